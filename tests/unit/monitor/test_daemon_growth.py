"""More workers than lanes: the running monitor notices, and makes a larger table where it may."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from score_table.lane import Lane
from tests.tables import opened
from tests.unit.monitor.daemon_rig import START_S, Monitor, Start, engines
from tests.waiting import wait_until


@contextlib.contextmanager
def workers(location: str, requests: list[int]) -> Iterator[list[Lane]]:
    """Workers by what they have outstanding at instance "one"."""
    lanes, guards = [], []
    try:
        for count in requests:
            lane = Lane(location)
            lanes.append(lane)
            lane.attach()
            guards.extend(opened(lane, "one") for _ in range(count))
        yield lanes
    finally:
        for lane in lanes:
            lane.close()


def with_a_lane(lanes: list[Lane]) -> int:
    """How many of the workers have a lane of the table, after a round of their housekeeping."""
    found = 0
    for lane in lanes:
        lane.housekeep()
        found += lane.attached is not None and not lane.attached.claim.private
    return found


def outstanding_in(running: Monitor) -> list[int]:
    """Requests by lane, the busiest first."""
    return sorted((lane.outstanding for lane in running.snapshot().lanes), reverse=True)


def test_a_worker_too_many_has_a_lane_within_seconds(monitor: Start) -> None:
    with engines(1) as (engine,):
        running = monitor({"one": engine.url}, lanes=1)
        running.start()
        running.wait_for("one", state="up")
        with workers(running.table, [3, 2]) as lanes:
            assert with_a_lane(lanes) == 1
            running.wait_for("one", outstanding=3)

            def both_counted() -> bool:
                # Housekeeping goes on: one that attached before the instance had its slot counts there later.
                if with_a_lane(lanes) < 2 or not running.ready():
                    return False
                one = running.instance("one")
                return one is not None and (one.state, one.outstanding, one.own) == ("up", 5, 5.0)

            wait_until(both_counted, START_S, "a lane for both, and their counts")
            assert running.snapshot().lane_capacity == 2
            assert outstanding_in(running) == [3, 2]
            log = running.log()
            assert log.count("has 1 lanes and its workers want 2") == 1
            assert "raise `lanes` to at least 2" in log


def test_a_table_that_may_not_grow_further_is_not_made_anew_again_and_again(monitor: Start) -> None:
    with engines(1) as (engine,):
        running = monitor({"one": engine.url}, lanes=1)
        running.start()
        with workers(running.table, [1, 1, 1]) as lanes:
            # Twice the configured number is the most; the third one asks in each table that it comes to.
            wait_until(
                lambda: with_a_lane(lanes) == 2 and running.log().count("has 2 lanes") == 2,
                START_S,
                "two lanes, and the second table of that size",
            )
            wait_until(running.ready, START_S, "the last table")
            tables = running.log().count('"started"')
            seen = running.snapshot().ticks

            def two_seconds_later() -> bool:
                with_a_lane(lanes)
                return running.snapshot().ticks > seen + 100

            wait_until(two_seconds_later, START_S, "rounds of the monitor's chores")
            assert running.log().count('"started"') == tables
            assert with_a_lane(lanes) == 2
