"""What is expected of requests that do not tell: one hold time per kind of instance, a prompt length of each."""

from __future__ import annotations

import pytest

from score_table.expected import UNKNOWN_NS, Expected, hold_ns
from score_table.identity import Identity
from score_table.ledger.charge import PlainSeat
from score_table.records import Detail
from tests.tables import PRICES, instance_id


def record(inflight: float | None, rate: float | None, prompt: float = 0.0, generation: int = 1) -> Detail:
    return Detail(generation, "up", inflight=inflight, qps_1m=rate, prompt_tokens=prompt)


def seat(slot: int | None, *, guessed: bool = False) -> PlainSeat:
    made = PlainSeat(instance_id(slot or 0), None, None, 5)
    made.settle(1, slot, PRICES.request, PRICES.prompt_token, PRICES.kv_token)
    made.guessed = guessed
    return made


def holders(*roles: str) -> dict[int, Identity]:
    return {
        slot: Identity(instance_id(slot), f"http://h:{slot}", 1, PRICES, {"role": role} if role else {})
        for slot, role in enumerate(roles)
    }


def test_the_hold_time_is_that_of_a_request_at_all_of_them_together() -> None:
    assert hold_ns([record(30.0, 2.0), record(2.0, 2.0)]) == 8_000_000_000
    assert hold_ns([record(6.0, 2.0)]) == 3_000_000_000


def test_records_without_both_above_zero_say_nothing_of_it() -> None:
    silent = [record(None, 2.0), record(5.0, None), record(0.0, 2.0), record(5.0, 0.0), record(-5.0, 2.0)]
    assert hold_ns(silent) == hold_ns([]) == UNKNOWN_NS
    assert hold_ns([*silent, record(6.0, 2.0)]) == 3_000_000_000


@pytest.mark.parametrize(
    ("records", "seconds"),
    [
        ([record(1.0, 1000.0)], 0.05),
        ([record(1000.0, 0.1)], 120),
        ([record(1e308, 1e-300)], 120),
        ([record(1e308, 1e308)] * 2, 0.05),
        ([record(5e-324, 1e308)], 0.05),
    ],
)
def test_it_is_from_a_twentieth_of_a_second_to_two_minutes(records: list[Detail], seconds: float) -> None:
    assert hold_ns(records) == seconds * 1e9


def test_seats_of_the_same_tags_share_a_hold_time_and_each_has_a_length_of_its_own() -> None:
    seats = [seat(0, guessed=True), seat(1), seat(2), seat(3, guessed=True), seat(None)]
    details = {0: record(30.0, 2.0, 700.0), 1: record(2.0, 2.0, 900.0), 2: record(1.0, 1.0, 50.0)}
    Expected().learn(seats, holders("decode", "decode", "prefill", ""), details.get)
    assert [each.hold_ns for each in seats] == [8_000_000_000, 8_000_000_000, 5, UNKNOWN_NS, 5]
    assert [each.prompt_tokens for each in seats] == [700.0, 900.0, 0.0, 0.0, 0.0]
    assert not any(each.guessed for each in seats)


def test_no_record_is_read_of_a_kind_at_which_every_request_told() -> None:
    read: list[int] = []
    seats = [seat(0), seat(1, guessed=True)]
    Expected().learn(seats, holders("decode", "prefill"), lambda slot: read.append(slot))
    assert read == [1]


def test_the_record_of_a_former_holder_is_not_believed_and_a_length_once_known_stays() -> None:
    one = seat(0, guessed=True)
    one.prompt_tokens = 300.0
    Expected().learn([one], holders(""), {0: record(6.0, 2.0, 700.0, generation=2)}.get)
    assert (one.hold_ns, one.prompt_tokens) == (UNKNOWN_NS, 300.0)


def test_a_seat_whose_slot_has_no_holder_is_left_alone() -> None:
    one = seat(7, guessed=True)
    Expected().learn([one], holders(""), {7: record(6.0, 2.0)}.get)
    assert (one.hold_ns, one.guessed) == (5, True)


def test_a_new_seat_begins_with_the_hold_time_of_its_kind_once_that_is_known() -> None:
    """A newcomer has finished nothing, so its own record says nothing of a request's time; and it is idle, so it gets a
    burst of requests before anybody learns again."""
    expected, held_by = Expected(), holders("decode", "decode", "prefill")
    details = {0: record(6.0, 2.0), 1: record(0.0, 0.0, 90.0), 2: record(1.0, 1.0)}
    first, late, other = seat(0, guessed=True), seat(1), seat(2)
    expected.begin(first, 0, held_by, details.get)
    assert first.hold_ns == 3_000_000_000, "nothing was learned yet: its own record"
    details[0] = record(8.0, 2.0)
    first.guessed = True
    expected.learn([first], held_by, details.get)
    expected.begin(late, 1, held_by, details.get)
    assert (late.hold_ns, late.prompt_tokens) == (4_000_000_000, 90.0)
    expected.begin(other, 2, held_by, details.get)
    assert other.hold_ns == 1_000_000_000, "of another kind"


def test_what_was_learned_of_a_kind_stays_until_it_is_learned_anew_or_has_no_seat() -> None:
    expected, held_by = Expected(), holders("decode", "decode")
    one, late = seat(0, guessed=True), seat(1)
    expected.learn([one], held_by, {0: record(6.0, 2.0)}.get)
    expected.learn([one], held_by, {0: record(8.0, 2.0)}.get)
    expected.begin(late, 1, held_by, {}.get)
    assert late.hold_ns == 3_000_000_000, "every request told meanwhile"
    expected.learn([], held_by, {}.get)
    expected.begin(late, 1, held_by, {}.get)
    assert late.hold_ns == UNKNOWN_NS
