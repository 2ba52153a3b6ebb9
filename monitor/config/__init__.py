"""The monitor's configuration: one model, from which keys, flags, variables and defaults all follow."""

from __future__ import annotations

from monitor.config.joint import MonitorConfig
from monitor.config.listing import changes
from monitor.config.load import load_config
from monitor.config.model import InstanceConfig, Settings
from monitor.config.notes import notes
from monitor.config.options import Option, add_option_flags, flags_from, options
from monitor.config.problems import ConfigError, Problem
from monitor.config.score_sections import ExpectedWait, InflightKv, TokenAware, WeightedSum
from monitor.config.scoring import PoolConfig, Scoring

__all__ = [
    "load_config",
    "MonitorConfig",
    "Settings",
    "Scoring",
    "TokenAware",
    "InflightKv",
    "ExpectedWait",
    "WeightedSum",
    "InstanceConfig",
    "PoolConfig",
    "ConfigError",
    "Problem",
    "Option",
    "options",
    "add_option_flags",
    "flags_from",
    "notes",
    "changes",
]
