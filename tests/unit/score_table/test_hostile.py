"""Segments that somebody filled with nonsense: a clear error or a degraded pick, never a crash.

Each variant goes through every door: the public reader, ``loadboard dump``, and a lane with the strategies on
it. Whoever may write a table may also cut its file short under those who have it mapped, which is SIGBUS by
nature; nothing here ever does it (see the last tests), and nobody is trusted who is not in the table's group.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadboard import dump
from proxy_adapter.strategies.least_load import LeastLoadStrategy
from proxy_adapter.strategies.power_of_two import PowerOfTwoStrategy
from score_table.errors import TableError
from score_table.lane import Lane
from score_table.layout import (
    DETAIL_RECORD,
    HEADER_SIZE,
    HOT_LINE,
    IDENTITY_BLOCK,
    IDENTITY_PART,
    LANE_BLOCK,
    LANE_BLOCK_SIZE,
    MONITOR_LINE,
    Field,
    Geometry,
    State,
)
from score_table.location import Location
from score_table.pick import CORES
from score_table.reader import TableReader
from score_table.records import Detail
from score_table.removal import remove_table
from score_table.segment import Segment
from score_table.writer import TableWriter
from tests.tables import make_table, publish
from tests.unit.proxy_adapter.instances import Plain, plain

SLOTS, LANES, INSTANCES = 16, 2, 3
GEOMETRY = Geometry(SLOTS, LANES)
REFUSED = {69, 77}
ROOM = Path(__file__).parents[3] / "score_table"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a table with three instances that is as it should be."""
    path = tmp_path_factory.mktemp("pristine") / "table"
    writer = make_table(str(path), INSTANCES, slots=SLOTS, lanes=LANES)
    for slot in range(INSTANCES):
        detail = Detail(1, "up", "fine", "vllm", inflight=2.0, qps_1m=1.0, kv_usage=0.5, own=1.0)
        writer.write_detail(slot, detail)
    publish(writer)
    writer.set_state(State.READY)
    return path.read_bytes()


class Hostile:
    """A table file that is rewritten, and everyone who opens it."""

    def __init__(self, path: Path, pristine: bytes, seed: int) -> None:
        self.path, self.pristine = path, pristine
        self.rng = random.Random(seed)
        self.instances: list[Plain] = plain(INSTANCES)
        self.opened = self.refused = 0

    def meets(self, image: bytes, what: str) -> None:
        """Put ``image`` in place and go through every door; ``AssertionError`` naming ``what``."""
        with open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "wb") as file:
            file.truncate(0)
            file.write(image)
        try:
            if self._reads():
                self._dumps(0)
                self._picks()
                self.opened += 1
            else:
                self.refused += 1
                if self.refused % 10 == 1:
                    assert self._dumps(69) in REFUSED
                    self._picks()
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error

    def _reads(self) -> bool:
        try:
            reader = TableReader.open(str(self.path))
        except TableError:
            return False
        with reader, contextlib.suppress(TableError):
            reader.identities()
            reader.snapshot()
        return True

    def _dumps(self, expected: int) -> int:
        arguments = argparse.Namespace(table=str(self.path), json=self.rng.random() < 0.5)
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            status = dump.run(arguments)
            out.flush()
        assert status == expected or status in REFUSED
        return status

    def _picks(self) -> None:
        lane = Lane(str(self.path), core=self.rng.choice(list(CORES.values())))
        lane.attach()
        for kind in (LeastLoadStrategy, PowerOfTwoStrategy):
            self.use(lane, kind(lane=lane, rng=self.rng))
        lane.close()

    def use(self, lane: Lane, strategy: LeastLoadStrategy) -> None:
        """A few picks and one of everything else."""
        some = self.instances[: self.rng.randint(1, INSTANCES)]
        assert strategy.select(some) in some
        with strategy.dispatch(self.instances, prompt_tokens=self.rng.choice([0, 100, None])) as guard:
            assert guard.instance in self.instances
            lane.housekeep()
            guard.first_token()
        failed = strategy.dispatch([*self.instances, Plain("stranger")])
        failed.fail(ConnectionRefusedError())
        strategy.status()


@pytest.fixture
def hostile(tmp_path: Path, pristine: bytes, request: pytest.FixtureRequest) -> Hostile:
    return Hostile(tmp_path / "table", pristine, zlib.crc32(request.node.name.encode()))


def values(field: Field, rng: random.Random, count: int) -> Iterator[bytes]:
    """Values at the edges of the field's kind, then random bytes."""
    size = field.size
    if field.kind == "d":
        for number in ("nan", "inf", "-inf", "-0.0", "1e308", "-1e308", "5e-324"):
            yield struct.pack("<d", float(number))
    if size <= 8:
        for bit in range(8 * size):
            for value in (2**bit - 1, 2**bit):
                yield value.to_bytes(size, "little")
    yield bytes(size)
    yield b"\xff" * size
    for _ in range(count):
        yield rng.randbytes(size)


def replaced(image: bytes, offset: int, value: bytes) -> bytes:
    return image[:offset] + value + image[offset + len(value) :]


def with_header_checksum(image: bytes) -> bytes:
    start, end = IDENTITY_PART["layout_major"].offset, IDENTITY_PART["identity_crc"].offset
    return replaced(image, end, zlib.crc32(image[start:end]).to_bytes(4, "little"))


def with_checksum(image: bytes, start: int, group: dict[str, Field], first: str, last: str) -> bytes:
    """``image`` with the checksum of the block at ``start`` made right, over its fields from first to last."""
    body = image[start + group[first].offset : start + group[last].offset + group[last].size]
    return replaced(image, start + group["crc"].offset, zlib.crc32(body).to_bytes(4, "little"))


def identity_made_right(image: bytes, slot: int) -> bytes:
    return with_checksum(image, GEOMETRY.identity_offset(slot), IDENTITY_BLOCK, "id_length", "tags")


def detail_made_right(image: bytes, slot: int) -> bytes:
    return with_checksum(image, GEOMETRY.detail_offset(slot), DETAIL_RECORD, "state", "reason")


# -- the header -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in IDENTITY_PART if name != "identity_crc"])
def test_any_value_of_an_identity_part_field_with_a_right_checksum(hostile: Hostile, name: str) -> None:
    field = IDENTITY_PART[name]
    for value in values(field, hostile.rng, 60):
        image = replaced(hostile.pristine, field.offset, value)
        hostile.meets(with_header_checksum(image), f"{name} = {value.hex()}")
    if name in ("epoch", "max_heartbeat_age", "boot_id", "layout_minor"):
        assert hostile.refused == 0, "what may differ is accepted, a newer minor version too"
    else:
        assert hostile.opened <= 3, "only what is right is accepted"


def test_other_sizes_with_offsets_to_match_are_refused_where_the_file_is_too_short(hostile: Hostile) -> None:
    fits = 0
    for slots, lanes in ((16, 1), (16, 3), (32, 2), (65536, 1024), (16, 1024), (65536, 1)):
        image, other = hostile.pristine, Geometry(slots, lanes)
        fits += other.total_size <= len(image)
        for name, value in other.identity_values().items():
            field = IDENTITY_PART[name]
            image = replaced(image, field.offset, struct.pack("<" + field.kind, value))
        hostile.meets(with_header_checksum(image), f"{slots} slots, {lanes} lanes")
    assert hostile.opened == fits > 0


@pytest.mark.parametrize("name", [*HOT_LINE, *MONITOR_LINE])
def test_any_value_of_a_header_word(hostile: Hostile, name: str) -> None:
    field = {**HOT_LINE, **MONITOR_LINE}[name]
    for value in values(field, hostile.rng, 20):
        hostile.meets(replaced(hostile.pristine, field.offset, value), f"{name} = {value.hex()}")
    assert hostile.refused == 0


def test_header_words_all_random_at_once(hostile: Hostile) -> None:
    start, end = HOT_LINE["heartbeat"].offset, MONITOR_LINE["monitors"].offset + 8
    for _ in range(200):
        value = hostile.rng.randbytes(end - start)
        hostile.meets(replaced(hostile.pristine, start, value), value.hex())


# -- the rest ---------------------------------------------------------------------------------------------------


def test_random_cells_and_natural_units(hostile: Hostile) -> None:
    start, end = GEOMETRY.matrix_offset, GEOMETRY.lane_blocks_offset
    for lanes_hi in (0, 1, LANES) * 40:
        image = replaced(hostile.pristine, start, hostile.rng.randbytes(end - start))
        image = replaced(image, HOT_LINE["lanes_hi"].offset, lanes_hi.to_bytes(4, "little"))
        hostile.meets(image, f"{lanes_hi} lanes")


@pytest.mark.parametrize("name", [*LANE_BLOCK, "all"])
def test_random_lane_blocks(hostile: Hostile, name: str) -> None:
    start = GEOMETRY.lane_block_offset(0)
    image = replaced(hostile.pristine, HOT_LINE["lanes_hi"].offset, LANES.to_bytes(4, "little"))
    if name == "all":
        for _ in range(100):
            hostile.meets(replaced(image, start, hostile.rng.randbytes(LANES * LANE_BLOCK_SIZE)), name)
    else:
        for value in (bytes(8), b"\xff" * 8, *(hostile.rng.randbytes(8) for _ in range(10))):
            hostile.meets(replaced(image, start + LANE_BLOCK[name].offset, value), f"{name} = {value.hex()}")


@pytest.mark.parametrize("name", [name for name in IDENTITY_BLOCK if name != "crc"])
def test_an_identity_block_of_random_bytes_with_a_right_checksum(hostile: Hostile, name: str) -> None:
    field, start = IDENTITY_BLOCK[name], GEOMETRY.identity_offset(1)
    for value in values(field, hostile.rng, 20):
        image = replaced(hostile.pristine, start + field.offset, value)
        hostile.meets(identity_made_right(image, 1), f"{name} = {value.hex()}")


@pytest.mark.parametrize(
    "tags",
    [b"null", b"[1]", b'{"a":{"b":[1e999]}}', b"[" * 350, b'{"a":"\\ud800"}', b'{"":NaN}', b"\xff", b""],
)
def test_tags_that_are_no_object_of_strings(hostile: Hostile, tags: bytes) -> None:
    start = GEOMETRY.identity_offset(1)
    image = replaced(hostile.pristine, start + IDENTITY_BLOCK["tags"].offset, tags)
    image = replaced(image, start + IDENTITY_BLOCK["tags_length"].offset, len(tags).to_bytes(2, "little"))
    hostile.meets(identity_made_right(image, 1), repr(tags))


def test_identity_blocks_random_all_over(hostile: Hostile) -> None:
    for _ in range(100):
        image, start = hostile.pristine, GEOMETRY.identity_offset(0)
        image = replaced(image, start, hostile.rng.randbytes(GEOMETRY.identity_offset(1) - start))
        for name, most in (("id_length", 192), ("url_length", 304), ("tags_length", 360)):
            at = start + IDENTITY_BLOCK[name].offset
            image = replaced(image, at, hostile.rng.randrange(most).to_bytes(2, "little"))
        hostile.meets(identity_made_right(image, 0), "random identity")


@pytest.mark.parametrize("name", [name for name in DETAIL_RECORD if name not in ("crc", "sequence")])
def test_a_detail_record_of_random_bytes_with_a_right_checksum(hostile: Hostile, name: str) -> None:
    field, start = DETAIL_RECORD[name], GEOMETRY.detail_offset(1)
    image = replaced(hostile.pristine, start + DETAIL_RECORD["valid"].offset, b"\xff" * 4)
    for value in (
        *list(values(field, hostile.rng, 4))[:8],
        *(hostile.rng.randbytes(field.size) for _ in range(8)),
    ):
        mad = replaced(image, start + field.offset, value)
        hostile.meets(detail_made_right(mad, 1), f"{name} = {value.hex()}")


def test_detail_records_random_all_over(hostile: Hostile) -> None:
    start = GEOMETRY.detail_offset(0)
    for number in range(150):
        image = replaced(hostile.pristine, start, hostile.rng.randbytes(GEOMETRY.detail_offset(1) - start))
        for name, word in (("sequence", 2 * number), ("state", 1), ("generation", 1)):
            field = DETAIL_RECORD[name]
            image = replaced(image, start + field.offset, struct.pack("<" + field.kind, word))
        hostile.meets(detail_made_right(image, 0), "random record")


#: The ends of signed and unsigned words of 32 and 64 bits.
_EXTREMES = (
    b"\xff" * 8,
    b"\xff" * 7 + b"\x7f",
    bytes(7) + b"\x80",
    b"\xff\xff\xff\x7f" * 2,
    b"\0\0\0\x80" * 2,
)


@pytest.mark.parametrize("core_name", sorted(CORES))
def test_a_table_scribbled_over_while_it_is_in_use(hostile: Hostile, core_name: str) -> None:
    """Behind the identity part nothing is safe from other members of the group; picks go on all the same."""
    hostile.path.write_bytes(hostile.pristine)
    hostile.path.chmod(0o600)
    lane = Lane(str(hostile.path), core=CORES[core_name])
    lane.attach()
    strategies = [kind(lane=lane, rng=hostile.rng) for kind in (LeastLoadStrategy, PowerOfTwoStrategy)]
    behind = HOT_LINE["heartbeat"].offset
    with hostile.path.open("r+b") as file:
        for _ in range(300):
            size = hostile.rng.choice([1, 8, 64, 512, 4096])
            offset = hostile.rng.randrange(behind, GEOMETRY.total_size - size) // 8 * 8
            word = hostile.rng.choice([hostile.rng.randbytes(8), *_EXTREMES])
            os.pwrite(file.fileno(), (word * (size // 8 + 1))[:size], offset)
            for strategy in strategies:
                hostile.use(lane, strategy)
    lane.close()


# -- sizes and what stands in the table's place ------------------------------------------------------------------


def _lengths() -> list[int]:
    edges = [0, 8, HEADER_SIZE, GEOMETRY.naturals_offset, GEOMETRY.lane_blocks_offset]
    edges += [GEOMETRY.identities_offset, GEOMETRY.details_offset, GEOMETRY.total_size]
    edges += [field.offset for field in {**IDENTITY_PART, **HOT_LINE, **MONITOR_LINE}.values()]
    around = {edge + step for edge in edges for step in (-1, 0, 1)}
    return sorted(length for length in around if 0 <= length < GEOMETRY.total_size)


def test_a_table_cut_short_anywhere_is_refused(hostile: Hostile) -> None:
    for length in _lengths():
        hostile.meets(hostile.pristine[:length], f"{length} bytes")
    assert hostile.opened == 0


def test_a_longer_file_is_a_table_all_the_same(hostile: Hostile) -> None:
    hostile.meets(hostile.pristine + bytes(5000), "longer")
    assert hostile.opened == 1


def test_foreign_files_are_refused(hostile: Hostile) -> None:
    for content in (b"\x7fELF", b"SQLite format 3\0", b"loadboard", hostile.rng.randbytes(100)):
        for size in (len(content), HEADER_SIZE, GEOMETRY.total_size):
            hostile.meets(content.ljust(size, b"\0"), repr(content))
    assert hostile.opened == 0


# -- no room ------------------------------------------------------------------------------------------------------


def _in_full_shared_memory(command: str) -> subprocess.CompletedProcess[str]:
    """``command`` where /dev/shm has room for 64 KiB; skips where this process may not make such a place."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare command here")
    script = "mount -t tmpfs -o size=64k none /dev/shm || exit 99\n"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script + command], capture_output=True, text=True, check=False
    )
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip(f"no mount namespace may be made here: {done.stderr.strip()}")
    return done


def test_a_full_dev_shm_is_said_by_the_monitor_and_nothing_is_left_there() -> None:
    command = (
        f"{sys.executable} -m loadboard run --table /full --instance http://127.0.0.1:1; echo $?; ls /dev/shm"
    )
    done = _in_full_shared_memory(command)
    assert done.stdout.splitlines()[-2:] == ["73", "full.lock"], done
    assert "no room for" in done.stderr + done.stdout


def test_a_small_table_fits_where_a_large_one_did_not() -> None:
    code = (
        "from score_table.writer import TableWriter; from score_table.errors import TableNoSpace\n"
        "try: TableWriter.open('/t', slots=1024, lanes=8)\n"
        "except TableNoSpace: print(TableWriter.open('/t', slots=16, lanes=1).capacity)"
    )
    assert _in_full_shared_memory(f'{sys.executable} -c "{code}"').stdout == "16\n"


def test_a_limit_on_file_sizes_is_a_clear_error(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
    try:
        with pytest.raises(TableError, match="table"):
            TableWriter.open(str(tmp_path / "table"), slots=1024, lanes=8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["table.lock"]


# -- nothing here cuts a mapped table short -----------------------------------------------------------------------


def _replace(table: str) -> None:
    TableWriter.open(table, slots=128, lanes=8).close()


def _remove(table: str) -> None:
    remove_table(table, force=True)


@pytest.mark.parametrize("end", [_replace, _remove])
def test_a_replaced_or_removed_table_stays_whole_under_its_readers(
    table_name: str, end: Callable[[str], None]
) -> None:
    make_table(table_name, 2).close()
    segment = Segment.open(Location.parse(table_name), writable=False)
    size = segment.geometry.total_size
    end(table_name)
    assert not segment.is_current()
    assert len(bytes(segment.data)) == size
    assert segment.row(0)[0] == 0


def test_no_file_of_a_table_is_ever_given_another_size() -> None:
    """Only new tables, the monitor's lock file and the private rows of a process without a lane get one."""
    found = Counter(
        path.name
        for path in sorted(ROOM.rglob("*.[pc]*"))
        if path.suffix in (".py", ".c")
        for line in path.read_text().splitlines()
        if "truncate(" in line
    )
    assert found == {"location.py": 1, "monitor_lock.py": 1, "claim.py": 1}
