"""The proxy side of loadboard: strategies that pick the least-loaded instance from the score table."""

from __future__ import annotations

from proxy_adapter.contract import InstanceLike, Strategy
from proxy_adapter.dispatch import Dispatch
from proxy_adapter.factory import build_instance_strategy
from proxy_adapter.strategies.least_load import LeastLoadStrategy
from proxy_adapter.strategies.power_of_two import PowerOfTwoStrategy
from proxy_adapter.strategies.round_robin import RoundRobinStrategy

__all__ = [
    "Dispatch",
    "InstanceLike",
    "LeastLoadStrategy",
    "PowerOfTwoStrategy",
    "RoundRobinStrategy",
    "Strategy",
    "build_instance_strategy",
]
