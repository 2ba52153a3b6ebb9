"""Draining: no new requests, nothing forgotten, and back at once."""

from __future__ import annotations

import logging

import pytest

from score_table.layout import Mark
from score_table.pick.rules import band_of
from tests.unit.monitor.rig import Rig, config, with_instance

BOTH = config("a", "b")
DRAINING = with_instance(BOTH, 0, draining=True)


def marks(rig: Rig, name: str) -> tuple[int, int]:
    slot = rig.slot(name)
    return band_of(int(rig.table.base[slot])), band_of(int(rig.table.rest[slot]))


def test_a_draining_instance_is_marked_in_both_rows_from_the_start() -> None:
    rig = Rig(DRAINING)
    assert marks(rig, "a") == (Mark.DRAINING, Mark.DRAINING)
    assert marks(rig, "b") == (0, 0)


def test_a_reload_drains_and_brings_back_at_the_next_tick_and_restarts_no_poller() -> None:
    rig = Rig(BOTH)
    rig.sample("a", load=3)
    for wanted, mark in ((DRAINING, Mark.DRAINING), (BOTH, Mark.NONE), (DRAINING, Mark.DRAINING)):
        changes = rig.apply(wanted)
        assert (changes.started, changes.stopped) == ([], [])
        rig.tick()
        assert marks(rig, "a") == (mark, mark)
        assert rig.detail("a").inflight == 3.0


def test_its_requests_are_counted_to_their_end_and_its_polls_count() -> None:
    rig = Rig(DRAINING)
    rig.table.dispatch(rig.slot("a"), 5)
    rig.tick()
    rig.sample("a", load=7)
    rig.tick()
    detail = rig.detail("a")
    assert (detail.state, detail.own, detail.others, detail.inflight) == ("up", 5.0, 2.0, 7.0)
    rig.table.end(rig.slot("a"), 5)
    rig.sample("a", load=2)
    rig.tick()
    assert (rig.detail("a").own, rig.detail("a").ended) == (0.0, 5)


def test_unreachable_is_the_stronger_mark_and_draining_is_left_when_it_is_back() -> None:
    rig = Rig(DRAINING)
    rig.fail("a")
    rig.tick()
    assert marks(rig, "a") == (Mark.UNREACHABLE, Mark.UNREACHABLE)
    rig.sample("a", load=0)
    rig.tick()
    assert marks(rig, "a") == (Mark.DRAINING, Mark.DRAINING)


def test_an_unreachable_instance_that_is_told_to_drain_stays_unreachable() -> None:
    rig = Rig(BOTH)
    rig.fail("a")
    rig.apply(DRAINING)
    rig.tick()
    assert marks(rig, "a") == (Mark.UNREACHABLE, Mark.UNREACHABLE)


def test_a_draining_instance_without_a_known_load_is_no_better_than_draining() -> None:
    rig = Rig(with_instance(config("a", "b", unknown="avoid"), 0, draining=True))
    assert (marks(rig, "a")[0], marks(rig, "b")[0]) == (Mark.DRAINING, Mark.AVOIDED)


def test_a_draining_instance_has_no_say_in_overload_limits() -> None:
    rig = Rig(with_instance(config("a", "b", overload_waiting=1), 0, draining=True))
    for name, load in (("a", 0), ("b", 9)):
        rig.sample(name, load=load, slots=4.0)
    rig.tick()
    assert marks(rig, "b") == (0, 0)


def test_a_change_is_told(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(BOTH)
    with caplog.at_level(logging.INFO):
        caplog.clear()
        rig.apply(DRAINING)
        rig.apply(DRAINING)
        rig.apply(BOTH)
    assert [record.getMessage() for record in caplog.records] == [
        "a: draining, it gets no new requests",
        "a: no longer draining",
    ]
