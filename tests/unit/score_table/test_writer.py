"""The monitor's door: one monitor, adoption, replacement, totals that outlive lanes, reclaiming."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from score_table.errors import MonitorRunning, TableCreateFailed, TableIncompatible
from score_table.identity import Identity, Prices
from score_table.lane import Lane
from score_table.layout import NATURAL_LEVELS, Geometry, Natural, State
from score_table.location import Location
from score_table.records import SAMPLE_FIELDS, SCORE_PARTS, Detail, read_detail, write_detail
from score_table.removal import remove_table
from score_table.segment import Segment
from score_table.writer import TableWriter
from tests.tables import PRICES, instance_id, make_table, opened, publish


def test_a_second_monitor_is_refused_with_the_pid_of_the_first(table_name: str) -> None:
    first = make_table(table_name, 1)
    with pytest.raises(MonitorRunning, match=f"pid {os.getpid()}") as caught:
        TableWriter.open(table_name, slots=64, lanes=8)
    assert caught.value.pid == os.getpid()
    first.close()
    TableWriter.open(table_name, slots=64, lanes=8).close()


def test_a_restarted_monitor_adopts_the_table_with_its_instances(table_name: str) -> None:
    make_table(table_name, 3).close()
    inode = Location.parse(table_name).path.stat().st_ino
    again = TableWriter.open(table_name, slots=64, lanes=8)
    assert again.adopted
    assert again.n == 3
    identity = again.identity(2)
    assert identity is not None
    assert identity.id == instance_id(2)
    assert Location.parse(table_name).path.stat().st_ino == inode
    again.close()


def test_a_clean_stop_leaves_the_table_stopped(table_name: str) -> None:
    make_table(table_name, 1).close()
    assert Segment.open(Location.parse(table_name), writable=False).state == State.STOPPED


@pytest.mark.parametrize(("slots", "lanes"), [(128, 8), (64, 16)])
def test_a_larger_table_replaces_the_former_one_which_is_retired(
    table_name: str, slots: int, lanes: int
) -> None:
    make_table(table_name, 1).close()
    old = Segment.open(Location.parse(table_name), writable=False)
    writer = TableWriter.open(table_name, slots=slots, lanes=lanes)
    assert not writer.adopted
    assert old.state == State.RETIRED
    assert (writer.capacity, writer.lanes) == (slots, lanes)
    writer.close()


def test_lanes_that_were_wanted_are_there_in_the_next_table(table_name: str) -> None:
    make_table(table_name, 1, lanes=2).close()
    Segment.open(Location.parse(table_name), writable=True).store("lanes_wanted", 3)
    writer = TableWriter.open(table_name, slots=64, lanes=2)
    assert (writer.adopted, writer.lanes) == (False, 3)
    writer.close()


@pytest.mark.parametrize("content", [b"", b"LOADBRD\x01 of another version" * 1000, b"LOADBRD\x01"])
def test_an_empty_file_and_a_table_of_another_layout_are_replaced(table_name: str, content: bytes) -> None:
    path = Location.parse(table_name).path
    path.write_bytes(content)
    path.chmod(0o600)
    writer = TableWriter.open(table_name, slots=64, lanes=8)
    assert not writer.adopted
    writer.close()


def _make_file(path: Path) -> None:
    path.write_bytes(b"somebody's notes")


def _make_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


@pytest.mark.parametrize("make", [_make_file, Path.mkdir, os.mkfifo, _make_link])
def test_what_is_no_table_is_neither_replaced_nor_removed(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "notes"
    make(path)
    before = path.lstat()
    with pytest.raises(TableCreateFailed, match="is not a loadboard table"):
        TableWriter.open(str(path), slots=64, lanes=8)
    for force in (False, True):
        with pytest.raises(TableIncompatible, match="left alone"):
            remove_table(str(path), force=force)
    assert path.lstat() == before


def test_left_over_temporaries_are_removed_by_the_monitor(table_name: str) -> None:
    temporary = Location.parse(table_name).temporary()
    os.close(temporary.create(4096))
    writer = make_table(table_name, 1)
    assert Location.parse(table_name).temporaries() == []
    writer.close()


def test_an_unknown_group_and_a_missing_directory_are_clear_errors(table_name: str, tmp_path: Path) -> None:
    with pytest.raises(TableCreateFailed, match="no group 'nobody-has-this'"):
        TableWriter.open(table_name, slots=64, lanes=8, group="nobody-has-this")
    with pytest.raises(TableCreateFailed, match="create it first"):
        TableWriter.open(str(tmp_path / "missing" / "table"), slots=64, lanes=8)


def test_the_mode_is_the_configured_one_also_after_adoption(table_name: str) -> None:
    make_table(table_name, 1).close()
    TableWriter.open(table_name, slots=64, lanes=8, mode=0o640).close()
    place = Location.parse(table_name)
    assert stat.S_IMODE(place.path.stat().st_mode) == 0o640
    assert stat.S_IMODE(place.lock_path.stat().st_mode) == 0o640


def test_totals_outlive_the_lanes_they_were_counted_in(table_name: str) -> None:
    writer = make_table(table_name, 2)
    for round_number in (1, 2, 3):
        lane = Lane(table_name)
        lane.attach()
        guard = opened(lane, instance_id(1), 10, visible=False)
        assert writer.naturals().dispatched[1] == round_number
        guard.release()
        writer.naturals()
        lane.close()
        naturals = writer.naturals()
        assert naturals.dispatched[1] == round_number
        assert naturals.ended[1] == round_number
    writer.close()


def test_a_slot_is_reusable_only_when_no_lane_counts_there(table_name: str) -> None:
    writer = make_table(table_name, 2)
    lane = Lane(table_name)
    lane.attach()
    guard = opened(lane, instance_id(1), 10, visible=False)
    assert writer.slot_reusable(0)
    assert not writer.slot_reusable(1)
    guard.release()
    assert writer.slot_reusable(1)
    for kind in list(Natural)[:NATURAL_LEVELS]:
        attached = lane.attached
        assert attached is not None
        attached.claim.naturals[kind][1] = 1
        assert not writer.slot_reusable(1), kind
        attached.claim.naturals[kind][1] = 0
    lane.close()
    writer.close()


def test_the_tokens_of_requests_that_do_not_tell_are_read_of_all_lanes(table_name: str) -> None:
    writer = make_table(table_name, 2)
    lanes = [Lane(table_name), Lane(table_name)]
    guards = []
    for lane in lanes:
        lane.attach()
        guards += [opened(lane, instance_id(1), None), opened(lane, instance_id(1), 220)]
    naturals = writer.naturals()
    assert naturals.guessed[:2].tolist() == [0, 440]
    assert naturals.kv_tokens[:2].tolist() == [0, 880]
    assert (naturals.dispatched[1], naturals.ended[1], naturals.suspects[1]) == (4, 0, 0)
    for guard in guards:
        guard.release()
    assert writer.naturals().guessed[:2].tolist() == [0, 0]
    for lane in lanes:
        lane.close()
    writer.close()


def test_a_living_worker_s_lane_is_never_reclaimed(table_name: str) -> None:
    writer = make_table(table_name, 1)
    lane = Lane(table_name)
    lane.attach()
    guard = opened(lane, instance_id(0), 10, visible=False)
    assert writer.reclaim() == []
    assert writer.naturals().outstanding[0] == 1
    guard.release()
    lane.close()
    writer.close()


def test_a_released_slot_has_no_identity_and_membership_moves(table_name: str) -> None:
    writer = make_table(table_name, 2)
    segment = Segment.open(Location.parse(table_name), writable=False)
    before = segment.read("membership")
    writer.release_slot(0)
    assert segment.read("membership") == before + 1
    assert writer.identity(0) is None
    assert writer.identity(1) is not None
    writer.close()


def test_what_does_not_fit_an_identity_block_is_refused_by_name(table_name: str) -> None:
    writer = make_table(table_name, 1)
    with pytest.raises(ValueError, match="url of instance 'x' has 400 bytes, the table holds 300"):
        writer.assign(1, Identity("x", "http://" + "h" * 393, 1, PRICES))
    with pytest.raises(ValueError, match="price request is nan"):
        writer.assign(1, Identity("x", "http://h", 1, Prices(float("nan"), 0, 0)))
    with pytest.raises(IndexError, match="slot 64"):
        writer.assign(64, Identity("x", "http://h", 1, PRICES))
    assert writer.n == 1
    writer.close()


def test_prices_are_bounded_one_by_one() -> None:
    assert Prices(1e9, 1e9, 5.0).bounded() == Prices(2**19, 1024, 5.0)
    assert Prices(1024, 3.072, 0.0512).bounded() == Prices(1024, 3.072, 0.0512)


def test_identities_survive_their_encoding_and_damage_is_noticed() -> None:
    identity = Identity("ü/1", "http://[::1]:8000/v", 7, PRICES, {"model": "m", "role": "prefill"})
    block = identity.encoded()
    assert Identity.decoded(block) == identity
    assert Identity.decoded(bytes(len(block))) is None
    for position in (0, 5, 20, 60, 300, 600):
        damaged = bytearray(block)
        damaged[position] ^= 1
        assert Identity.decoded(bytes(damaged)) is None


def test_detail_records_keep_unknown_apart_from_zero(tmp_path: Path) -> None:
    segment = Segment.create(
        Location.parse(str(tmp_path / "table")),
        Geometry(16, 1),
        mode=0o600,
        gid=None,
        max_heartbeat_age_ns=10**9,
    )
    assert read_detail(segment, 3) is None
    detail = Detail(
        generation=2, state="up", engine="vllm", reason="é" * 200, inflight=0.0, kv_usage=None, own=1.5
    )
    write_detail(segment, 3, detail)
    back = read_detail(segment, 3)
    assert back is not None
    assert back.inflight == 0.0
    assert back.kv_usage is None
    assert back.reason == "é" * 144
    assert back.own == 1.5
    every = Detail(**dict.fromkeys((*SAMPLE_FIELDS, *SCORE_PARTS), 0.25))
    write_detail(segment, 3, every)
    assert read_detail(segment, 3) == every


def test_a_detail_record_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    segment = Segment.create(
        Location.parse(str(tmp_path / "table")),
        Geometry(16, 1),
        mode=0o600,
        gid=None,
        max_heartbeat_age_ns=10**9,
    )
    write_detail(segment, 0, Detail(generation=1))
    word = segment.geometry.detail_offset(0) // 8
    segment.unsigned64[word] += 1
    assert read_detail(segment, 0) is None


def test_publish_stores_the_heartbeat_and_makes_the_table_ready(table_name: str) -> None:
    writer = make_table(table_name, 2)
    publish(writer, [3.0, -1.0], now_ns=123)
    segment = Segment.open(Location.parse(table_name), writable=False)
    assert segment.read("heartbeat") == 123
    assert segment.state == State.READY
    assert segment.row(0)[:2].tolist() == [3072, -1024]
    writer.close()


def test_a_lane_given_back_while_the_lanes_are_read_is_not_counted_twice(
    table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_table(table_name, 1)
    lane = Lane(table_name)
    lane.attach()
    for _ in range(10):
        opened(lane, instance_id(0), 10).release()
    assert writer.naturals().dispatched[0] == 10

    class GivesBack:
        """The rows of the table, with a worker that leaves at the moment they are copied."""

        def __getitem__(self, key: object) -> object:
            cells = rows[key]  # type: ignore[index]
            before = cells.copy()
            lane.close()

            class Copied:
                def copy(self) -> object:
                    return before

            return Copied()

    rows = writer._naturals
    monkeypatch.setattr(writer, "_naturals", GivesBack())
    assert writer.naturals().dispatched[0] == 10
    monkeypatch.setattr(writer, "_naturals", rows)
    assert writer.naturals().dispatched[0] == 10
    newcomer = Lane(table_name)
    newcomer.attach()
    opened(newcomer, instance_id(0), 10).release()
    assert writer.naturals().dispatched[0] == 11
    newcomer.close()
    writer.close()


def test_slots_that_begin_with_a_tick_make_every_older_slot_map_void(table_name: str) -> None:
    writer = make_table(table_name, 1)
    lane = Lane(table_name)
    lane.attach()
    writer.assign(1, Identity("newcomer", "http://newcomer:1", 1, PRICES))
    between = lane.current()
    assert between is not None
    assert between.directory.find("newcomer", None, None) is None, "its cell is still unused"
    publish(writer)
    after = lane.current()
    assert after is not None
    assert after.directory.find("newcomer", None, None) == 1
    membership = after.directory.membership
    publish(writer)
    assert lane.current() is after, "an ordinary tick changes no map"
    assert after.directory.membership == membership
    lane.close()
    writer.close()


def test_a_monitor_whose_lock_file_was_removed_is_not_the_monitor_any_more(table_name: str) -> None:
    writer = make_table(table_name, 1)
    assert writer.is_current()
    Location.parse(table_name).lock_path.unlink()
    assert not writer.is_current()
    second = TableWriter.open(table_name, slots=64, lanes=8)
    assert second.is_current()
    assert not writer.is_current()
    second.close()
    writer.close()


def test_the_units_in_the_cells_are_told_beside_the_natural_units(table_name: str) -> None:
    writer = make_table(table_name, 2)
    lane = Lane(table_name)
    lane.attach()
    guard = opened(lane, instance_id(1), 1000)
    assert writer.naturals().cells[:2].tolist() == [0, 1024 + 3072 + 51]
    guard.release()
    lane.close()
    writer.close()
