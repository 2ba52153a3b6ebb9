"""The transition table is complete, has no trap, and takes busy for anything but dead."""

from __future__ import annotations

import itertools

import pytest

from monitor.polling.failure import FailureKind
from monitor.polling.health import (
    EVENT_OF,
    IN_A_ROW,
    TRANSITIONS,
    Health,
    HealthEvent,
    Repeats,
    transition,
)


def test_every_state_knows_every_event() -> None:
    assert set(TRANSITIONS) == set(itertools.product(Health, HealthEvent))


@pytest.mark.parametrize("state", Health)
@pytest.mark.parametrize("event", HealthEvent)
def test_a_transition_leads_where_the_table_says(state: Health, event: HealthEvent) -> None:
    assert transition(state, event) is TRANSITIONS[state, event]


@pytest.mark.parametrize("state", Health)
def test_a_sample_makes_any_state_up(state: Health) -> None:
    assert transition(state, HealthEvent.SAMPLE) is Health.UP


@pytest.mark.parametrize("state", Health)
def test_a_refused_connection_makes_any_state_unreachable_at_once(state: Health) -> None:
    assert transition(state, HealthEvent.REFUSED) is Health.UNREACHABLE


def test_nothing_but_a_refused_connection_makes_an_instance_unreachable() -> None:
    others = [event for event in HealthEvent if event is not HealthEvent.REFUSED]
    for state, event in itertools.product(Health, others):
        if state is not Health.UNREACHABLE:
            assert transition(state, event) is not Health.UNREACHABLE, (state, event)


def test_a_failed_poll_alone_leaves_a_fresh_instance_up() -> None:
    assert transition(Health.UP, HealthEvent.FAILED) is Health.UP


def test_only_an_old_sample_makes_an_instance_stale() -> None:
    assert transition(Health.UP, HealthEvent.EXPIRED) is Health.STALE


@pytest.mark.parametrize(
    "event", [HealthEvent.SILENT, HealthEvent.FAILED, HealthEvent.ANSWERED, HealthEvent.EXPIRED]
)
def test_an_instance_without_a_sample_stays_new(event: HealthEvent) -> None:
    assert transition(Health.NEW, event) is Health.NEW


def test_timeouts_and_5xx_do_not_end_unreachable() -> None:
    assert transition(Health.UNREACHABLE, HealthEvent.FAILED) is Health.UNREACHABLE


def test_silence_alone_changes_no_state() -> None:
    assert all(transition(state, HealthEvent.SILENT) is state for state in Health)


def test_silence_three_times_in_a_row_counts_as_refused_until_something_else_happens() -> None:
    silent, refused, failed = HealthEvent.SILENT, HealthEvent.REFUSED, HealthEvent.FAILED
    repeats = Repeats()
    happened = [silent, silent, failed, silent, silent, silent, silent, HealthEvent.SAMPLE, silent]
    counted = [silent, silent, failed, silent, silent, refused, refused, HealthEvent.SAMPLE, silent]
    assert [repeats.counted(event) for event in happened] == counted


@pytest.mark.parametrize("event", set(HealthEvent) - set(IN_A_ROW))
def test_any_other_event_stays_what_it_is_however_often_it_comes(event: HealthEvent) -> None:
    repeats = Repeats()
    assert [repeats.counted(event) for _ in range(10)] == [event] * 10


def test_a_restarted_engine_that_tells_no_load_is_used_again() -> None:
    assert transition(Health.UNREACHABLE, HealthEvent.ANSWERED) is Health.STALE


def test_every_kind_of_failure_has_an_event_and_none_counts_as_a_sample() -> None:
    assert set(EVENT_OF) == set(FailureKind)
    assert not {HealthEvent.SAMPLE, HealthEvent.EXPIRED} & set(EVENT_OF.values())


def test_only_a_missing_handshake_counts_as_silence() -> None:
    silent = {kind for kind, event in EVENT_OF.items() if event is HealthEvent.SILENT}
    assert silent == {FailureKind.NO_CONNECTION}


def test_only_what_makes_connecting_impossible_counts_as_refused() -> None:
    refused = {kind for kind, event in EVENT_OF.items() if event is HealthEvent.REFUSED}
    assert refused == {FailureKind.REFUSED, FailureKind.UNREACHABLE}


def test_the_values_are_the_words_of_the_detail_records() -> None:
    assert {state.value for state in Health} == {"new", "up", "stale", "unreachable"}
