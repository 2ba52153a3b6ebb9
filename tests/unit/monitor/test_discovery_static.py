"""The instances of the configuration as a discovery source."""

from __future__ import annotations

from monitor.config import load_config
from monitor.discovery import Discovered, Source
from monitor.discovery.static import StaticSource


def test_every_configured_instance_is_there_in_order() -> None:
    config = load_config(None, {}, {}, ["b=http://10.0.0.2", "http://10.0.0.1:8000"])
    source: Source = StaticSource(config.instances)
    assert source.name == "static"
    assert source.current() == (
        Discovered("b", "http://10.0.0.2:80", {}, config.instances[0]),
        Discovered("10.0.0.1:8000", "http://10.0.0.1:8000", {}, config.instances[1]),
    )


def test_it_says_the_same_every_time() -> None:
    source = StaticSource(load_config(None, {}, {}, ["http://10.0.0.1:8000"]).instances)
    assert source.current() == source.current()


def test_without_instances_there_are_none() -> None:
    assert list(StaticSource(()).current()) == []
