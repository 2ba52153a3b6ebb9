"""Adapters from an engine's answers to readings: one engine per module, and who asks for what."""

from __future__ import annotations

from monitor.engines.base import Engine
from monitor.engines.sglang import Sglang
from monitor.engines.vllm import Vllm

#: Every engine there is an adapter for, in the order in which a body is compared with them.
ENGINES: tuple[Engine, ...] = (Vllm(), Sglang())

__all__ = ["ENGINES", "Engine"]
