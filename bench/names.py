"""What is measured, by name: of what case, with how many instances and lanes, beside which processes."""

from __future__ import annotations

from typing import NamedTuple

SIZES = (4, 16, 64, 256, 1024, 4096)
LANES = (1, 8, 32)
#: Where nothing else is said.
USUAL_SIZE, USUAL_LANES = 64, 8

PASS = "pass"
EMPTY = "empty C call"
INDEX = "lst[i]"
PICK = "native pick"
PICK_HALF = "native pick of a random half"
PICK_TENTH = "native pick of a random tenth"
DISPATCH = "dispatch().release()"
WITH_DISPATCH = "with dispatch()"
PICKER_DISPATCH = "picker.dispatch().release()"
SELECT = "select(list)"
PICKER_SELECT = "picker.select(list)"
SELECT_AND_HOLD = "select(list) + end of its hold"
COPY = "list[:]"
SELECT_NEW = "select(list[:])"
SELECT_HALF = "select(random half[:])"
SELECT_TENTH = "select(random tenth[:])"
NUMPY = "numpy pick"
PLAIN = "plain Python pick"
SCAN = "list scan"
RPC = "manager RPC: pick"
RPC_BOTH = "manager RPC: pick, release"
#: The clocks by which a round trip is taken. The client's CPU time alone leaves out the server's work; the wall
#: clock has all that a request waits for, also where the machine is busy with other things.
WALL, CPU_OF_BOTH, CPU_OF_CLIENT = "wall", "CPU of both", "CPU of client"

WRITER = "1 kHz writer"
COMPANY = "2 readers + counter"


class Name(NamedTuple):
    """``instances`` and ``lanes`` are 0 where they do not matter. ``beside`` is what runs on the other core."""

    case: str
    instances: int = 0
    lanes: int = 0
    beside: str = ""


def usual(case: str, instances: int = USUAL_SIZE, lanes: int = USUAL_LANES, *, beside: str = "") -> Name:
    """A name with what is usual."""
    return Name(case, instances, lanes, beside)


def by_clock(case: str, clock: str) -> str:
    """The case of a round trip, taken by that clock."""
    return f"{case} ({clock})"


def stopped(beside: str) -> str:
    """The same table while its neighbours are stopped."""
    return f"{beside}, stopped"


def elsewhere(beside: str) -> str:
    """The same processes at work on another table, which shows what is due to their mere running."""
    return f"{beside}, on another table"


#: What a figure beside neighbours is compared with: the same table, nobody at work. Each of the two tables is
#: the other one's "another table".
WITHOUT = {
    WRITER: stopped(WRITER),
    elsewhere(COMPANY): stopped(WRITER),
    COMPANY: stopped(COMPANY),
    elsewhere(WRITER): stopped(COMPANY),
}
