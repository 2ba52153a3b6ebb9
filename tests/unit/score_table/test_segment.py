"""Creation in one visible step, both backings, and every way in which a table can be wrong."""

from __future__ import annotations

import os
import stat
import zlib
from pathlib import Path

import pytest

from score_table.errors import (
    TableAbsent,
    TableError,
    TableIncompatible,
    TableNoSpace,
    TableNotReady,
    TableTruncated,
    TableUntrusted,
)
from score_table.layout import HEADER_SIZE, IDENTITY_PART, Geometry, State
from score_table.location import Location, default_table
from score_table.segment import Segment, boot_id


def make(location: str, slots: int = 16, lanes: int = 2) -> Segment:
    return Segment.create(
        Location.parse(location), Geometry(slots, lanes), mode=0o660, gid=None, max_heartbeat_age_ns=10**9
    )


@pytest.fixture(params=["shared memory", "file"])
def location(request: pytest.FixtureRequest, table_name: str, tmp_path: Path) -> str:
    return table_name if request.param == "shared memory" else str(tmp_path / "table")


def test_a_created_table_is_complete_and_of_the_asked_mode_whatever_the_umask(location: str) -> None:
    before = os.umask(0o077)
    try:
        made = make(location)
    finally:
        os.umask(before)
    place = Location.parse(location)
    facts = place.path.stat()
    assert stat.S_IMODE(facts.st_mode) == 0o660
    assert facts.st_size == made.geometry.total_size
    assert facts.st_blocks * 512 >= facts.st_size, "space is reserved, not only promised"
    opened = Segment.open(place, writable=False)
    assert opened.epoch == made.epoch
    assert opened.state == State.INIT
    assert opened.boot_id == boot_id()
    assert place.temporaries() == []


def test_words_stored_by_one_mapping_are_seen_by_another(location: str) -> None:
    made = make(location)
    opened = Segment.open(Location.parse(location), writable=False)
    made.store("heartbeat", 2**63 + 5)
    made.row(3)[15] = -7
    assert opened.read("heartbeat") == 2**63 + 5
    assert opened.row(3)[15] == -7
    with pytest.raises(TypeError):
        opened.row(3)[15] = 1


def test_creation_replaces_what_has_the_name_and_the_old_mapping_notices(location: str) -> None:
    old = make(location)
    assert old.is_current()
    make(location)
    assert not old.is_current()


def test_a_retired_table_is_not_current(location: str) -> None:
    made = make(location)
    made.store("state", State.RETIRED)
    assert not made.is_current()


def test_an_unknown_state_counts_as_retired(location: str) -> None:
    made = make(location)
    made.store("state", 77)
    assert made.state == State.RETIRED


def test_absent_not_ready_foreign_and_truncated_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "table"
    place = Location.parse(str(path))

    def opening() -> Segment:
        return Segment.open(place, writable=False)

    with pytest.raises(TableAbsent, match="loadboard run"):
        opening()
    path.touch()
    with pytest.raises(TableNotReady):
        opening()
    path.write_bytes(bytes(HEADER_SIZE))
    with pytest.raises(TableNotReady):
        opening()
    path.write_bytes(b"PK\x03\x04" + bytes(HEADER_SIZE))
    with pytest.raises(TableIncompatible, match="not a loadboard table"):
        opening()
    path.write_bytes(b"short")
    with pytest.raises(TableIncompatible, match="not a loadboard table"):
        opening()
    path.write_bytes(b"LOADBRD\x01")
    with pytest.raises(TableTruncated, match="8 bytes"):
        opening()
    path.unlink()
    size = make(str(path)).geometry.total_size
    os.truncate(path, size - 4096)
    with pytest.raises(TableTruncated, match=f"{size - 4096} of {size} bytes: a copy that was not finished"):
        opening()
    Location.parse(str(path)).lock_path.touch()
    with pytest.raises(TableTruncated, match=f"{size - 4096} of {size} bytes: restart the monitor"):
        opening()


def _rewrite(path: Path, name: str, value: bytes, *, fix_checksum: bool) -> None:
    header = bytearray(path.read_bytes()[:HEADER_SIZE])
    field = IDENTITY_PART[name]
    header[field.offset : field.offset + field.size] = value
    if fix_checksum:
        start, end = IDENTITY_PART["layout_major"].offset, IDENTITY_PART["identity_crc"].offset
        header[end : end + 4] = zlib.crc32(header[start:end]).to_bytes(4, "little")
    with path.open("r+b") as file:
        file.write(header)


def test_another_major_layout_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "table"
    make(str(path))
    _rewrite(path, "layout_major", (9).to_bytes(2, "little"), fix_checksum=True)
    with pytest.raises(TableIncompatible, match="layout 9, this loadboard reads 1"):
        Segment.open(Location.parse(str(path)), writable=False)


def test_another_minor_layout_is_accepted_only_with_the_same_fields(tmp_path: Path) -> None:
    path = tmp_path / "table"
    make(str(path))
    _rewrite(path, "layout_hash", (1).to_bytes(8, "little"), fix_checksum=True)
    with pytest.raises(TableIncompatible, match="another build"):
        Segment.open(Location.parse(str(path)), writable=False)


@pytest.mark.parametrize("name", [name for name in IDENTITY_PART if name not in ("magic", "identity_crc")])
@pytest.mark.parametrize("fix_checksum", [False, True])
def test_a_damaged_or_hostile_header_field_is_an_error_not_a_crash(
    tmp_path: Path, name: str, fix_checksum: bool
) -> None:
    path = tmp_path / "table"
    made = make(str(path))
    _rewrite(path, name, b"\xff" * IDENTITY_PART[name].size, fix_checksum=fix_checksum)
    if fix_checksum and name in ("epoch", "max_heartbeat_age", "boot_id", "layout_minor"):
        assert Segment.open(Location.parse(str(path)), writable=False).geometry == made.geometry
    else:
        with pytest.raises(TableError, match="table"):
            Segment.open(Location.parse(str(path)), writable=False)


def test_counts_beyond_the_capacity_are_cut_to_it(tmp_path: Path) -> None:
    made = make(str(tmp_path / "table"))
    made.store("n", 2**32 - 1)
    made.store("lanes_hi", 2**32 - 1)
    assert (made.n, made.lanes_hi) == (16, 2)


def test_a_table_that_everyone_may_write_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "table"
    make(str(path))
    path.chmod(0o666)
    with pytest.raises(TableUntrusted, match="0666"):
        Segment.open(Location.parse(str(path)), writable=False)


def test_a_link_or_a_fifo_in_the_table_s_place_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    make(str(target))
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(TableError):
        Segment.open(Location.parse(str(link)), writable=False)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(TableUntrusted, match="regular file"):
        Segment.open(Location.parse(str(tmp_path / "fifo")), writable=False)


def test_a_full_file_system_is_a_clear_error_and_leaves_nothing(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TableNoSpace, match=r"no room for the \d+ bytes.*--shm-size"):
        make(location)
    place = Location.parse(location)
    assert not place.path.exists()
    assert place.temporaries() == []


@pytest.mark.parametrize("text", ["", "loadboard", "a\0b", "/", "/..", "/" + "x" * 300, "./" + "x" * 300])
def test_names_that_are_no_table_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"names no table|ambiguous|shared memory name|no name for a table"):
        Location.parse(text)


def test_one_slash_is_shared_memory_and_more_are_a_file() -> None:
    assert Location.parse("/loadboard").shared_memory
    assert Location.parse("/loadboard").path == Path("/dev/shm/loadboard")
    assert not Location.parse("/run/loadboard/table").shared_memory
    assert not Location.parse("./table").shared_memory


def test_the_default_table_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOADBOARD_TABLE", raising=False)
    assert default_table() == "/loadboard"
    monkeypatch.setenv("LOADBOARD_TABLE", "/other")
    assert default_table() == "/other"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize(("uid", "trusted"), [(0, True), (999, True), (1000, False), (65534, False)])
def test_root_trusts_system_users_but_no_persons(tmp_path: Path, uid: int, trusted: bool) -> None:
    path = tmp_path / "table"
    make(str(path))
    os.chown(path, uid, 65534)
    if trusted:
        Segment.open(Location.parse(str(path)), writable=False)
    else:
        with pytest.raises(TableUntrusted, match=f"uid {uid}"):
            Segment.open(Location.parse(str(path)), writable=False)
