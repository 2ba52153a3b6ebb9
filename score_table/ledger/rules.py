"""What a process has open and how it counts: one contract, one ledger in C and one in Python that agree.

A *seat* is an instance as this process counts at it. A *charge* is what one open request counts: linear
prices, each part taken back once. It belongs to a *guard*, or, where nobody will end it (a pick by ``select``, a
failed request in its hold time), ends by time. A charge counts in the rows of the process's claim at the slot
of its seat; at nominal prices on the seat itself while that has no slot; and nowhere while the lane is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar

from score_table.claim import Claim
from score_table.identity import Directory, Prices
from score_table.layout import PROMPT_TOKENS_LIMIT, UNITS
from score_table.pick import PickCore

#: Prompt tokens an engine is taken to prefill per second where nobody sees the first token.
PREFILL_RATE = 7500
#: Prompt tokens of a request that does not tell, before any has told, where the seat says nothing.
FIRST_PROMPT_TOKENS = 220.0
#: Weight of the newest in the running mean of prompt lengths.
MEAN_WEIGHT = 1 / 64
#: Charges that nobody holds end by time; beyond this many the oldest ends early.
UNGUARDED_LIMIT = 65536
#: What the turn of picks that nobody ends grows by at each seat: the golden ratio of 2^32, so that their ends are spread.
HOLD_STEP = 0x9E3779B9
#: Cursors of a picker. Lists that share one may push each other on.
TURNS = 64
#: Prices of a request at an instance that is not in the table: those of ``token_aware`` with its defaults.
NOMINAL = Prices(float(UNITS), 3 * UNITS / 1000, 20 * UNITS / 400_000)

Picked = TypeVar("Picked")
Picked_co = TypeVar("Picked_co", covariant=True)


class Seat(Protocol):
    """An instance as this process counts at it, found again in every table by id, else by host and port."""

    @property
    def key(self) -> str:
        """Its id, as the proxy knows it."""

    @property
    def host(self) -> str | None: ...

    @property
    def port(self) -> int | None: ...

    @property
    def version(self) -> int:
        """That of the ledger for which the slot holds; with another one the seat has to be settled."""

    @property
    def slot(self) -> int | None:
        """Its slot; ``None`` where the table has none for it."""

    @property
    def units(self) -> int:
        """Outstanding here while it has no slot, at nominal prices; 1024 are one request."""

    @property
    def open(self) -> int:
        """Open charges, in whatever slot they count, held ones included."""

    hold_ns: int  #: how long a pick that nobody ends keeps its price on average
    prompt_tokens: float  #: taken for a request that does not tell its prompt's length; 0: unknown
    guessed: bool  #: counted such a request since somebody last cleared this

    def settle(
        self, version: int, slot: int | None, request: float, prompt_token: float, kv_token: float, /
    ) -> None:
        """Set slot and prices, for the ledger's ``version``. Only for a seat that nobody counts at yet."""


#: A seat with its slot, its three prices, and whether its id belongs to another address than before: open charges
#: are at the former one, and are not counted at the new one.
Settled = tuple[Seat, "int | None", float, float, float, bool]


class Guard(Protocol[Picked_co]):
    """One counted request. Use it with ``with`` or ``async with``, or call :meth:`release`.

    Leaving the block normally, by a cancellation or by an exception that is not the instance's fault releases
    it; by a transport error, a time-out or a 5xx it counts as :meth:`fail`. A guard that is dropped releases
    itself. Every call after the first release or failure does nothing. In a forked child it is void.
    """

    @property
    def instance(self) -> Picked_co:
        """The instance that was picked."""

    def first_token(self) -> None:
        """The first token came back: the prefill part of the price is taken back. Later calls do nothing."""

    def fail(self, error: BaseException | None = None) -> None:
        """The instance failed the request: its price is kept for the hold time (10 s), then taken back.

        Where ``error`` is a refused connection the monitor is asked to look at the instance at once.
        """

    def release(self) -> None:
        """The request is over."""

    def __enter__(self) -> Guard[Picked_co]: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def __aenter__(self) -> Awaitable[Guard[Picked_co]]: ...

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Awaitable[None]: ...


class Picker(Protocol):
    """The pick of least load with its count in one call, for objects that were seen before.

    It answers only where everything is as it should be: a live table with an up-to-date slot map, a lane, a
    list or tuple, a slot for every object in it. Anything else it leaves, with ``None``, to its caller.
    """

    def cursor(self, turn: int, /) -> int:
        """Slot at which the rotation goes on for lists of that :func:`turn_of`."""

    def set_cursor(self, turn: int, cursor: int, /) -> None:
        """Go on from ``cursor``, not negative, with such lists."""

    @property
    def picks(self) -> int:
        """Picks made here."""

    def dispatch(self, instances: Sequence[Picked], hint: Any, prompt_tokens: Any, /) -> Guard[Picked] | None:
        """As :meth:`Ledger.dispatch` at the chosen one. A true ``hint["stream"]`` says that the first token is seen."""

    def select(self, instances: Sequence[Picked], /) -> Picked | None:
        """As :meth:`Ledger.hold` at the chosen one, which is returned."""


class Ledger(Protocol):
    """All open charges of this process. Thread-safe, never blocks on I/O; each call is one whole step.

    ``clock`` gives CLOCK_MONOTONIC ns, ``None`` is the real one. ``hold_ns``: for failed requests, and for picks
    at seats that say nothing else.
    """

    def __init__(self, clock: Callable[[], int] | None, hold_ns: int) -> None: ...

    @property
    def version(self) -> int:
        """Changes with each :meth:`attach` and :meth:`settle`; seats of another one count as without a slot."""

    @property
    def mean_prompt_tokens(self) -> float:
        """Running mean of the prompt lengths that were told."""

    def seat(self, key: str, host: str | None, port: int | None, /) -> Seat:
        """A new seat, not settled."""

    def attach(self, claim: Claim, core: PickCore, directory: Directory, settled: list[Settled]) -> int:
        """Count in the rows of ``claim`` from now on, by the slots in ``settled``, and count every open charge
        anew there. The former rows are left as they are.

        The totals of dispatches do not count those again, or at all: to the monitor they are a jump of what is
        outstanding, not traffic.

        Returns the new version; 0, and nothing is done, where ``directory`` is outdated by now (it may name slots that
        have other holders), or a signal handler asks in the middle of a step."""

    def settle(self, directory: Directory, settled: list[Settled]) -> int:
        """A newer slot map of the same table: charges without a slot move to one. Returns as :meth:`attach`."""

    def void(self, *, forked: bool) -> None:
        """Nothing open counts any more, and there are no rows. ``forked``: in a child, where locks are void too."""

    def dispatch(
        self, instance: Picked, seat: Seat, prompt_tokens: Any, first_token_visible: bool, reason: int = 0, /
    ) -> Guard[Picked]:
        """Count one request at ``seat``, chosen for ``reason`` (:class:`score_table.layout.Reason`).

        ``prompt_tokens`` out of range is cut to 0..2^18; ``None``, or what is no finite number, is a request that
        does not tell, and counts as :func:`guess` says. Without ``first_token_visible`` the prefill part goes
        after the time a prefill of that length takes; a request that does not tell then has none at all.
        """

    def hold(self, seat: Seat, reason: int = 0, /) -> None:
        """Count one request that nobody will end, and that does not tell; it ends after ``seat.hold_ns``."""

    def picker(self, seat_of: Callable[[Any], Seat]) -> Picker | None:
        """A new picker; ``seat_of`` gives the seat of an object it has not seen. ``None`` where there is no C."""

    def housekeep(self, now_ns: int, /) -> None:
        """End what ends by time."""

    def audit(self) -> bool:
        """Make the rows say what is open; whether they did not."""

    def outstanding(self) -> int:
        """Open charges, those that end by time included."""


def turn_of(lowest: int, highest: int) -> int:
    """Which of the ``TURNS`` cursors serves lists whose slots lie between these; a multiplicative hash."""
    return (((lowest << 16) + highest) * 0x9E3779B1 & 0xFFFFFFFF) >> 26


def guess(seat_prompt_tokens: float, mean_prompt_tokens: float) -> int:
    """The prompt length taken for a request that does not tell: what the seat says, else the running mean."""
    tokens = seat_prompt_tokens if seat_prompt_tokens > 0 else mean_prompt_tokens
    return int(min(tokens, PROMPT_TOKENS_LIMIT))


def held_ns(hold_ns: int, turn: int) -> int:
    """How long the pick of that turn, 0..2^32 - 1, keeps its price: ``hold_ns`` within a quarter. In C it is the same.

    With one time for all, picks that came together would end together, and be followed by as many at once, again and
    again; hosts in step would swing. Spread further, or in an order of no seat's own, the counts would follow chance.
    """
    return hold_ns - (hold_ns >> 2) + ((hold_ns >> 20) * (turn >> 12) >> 1)


def tokens_of(prompt_tokens: Any) -> int | None:
    """A prompt length within 0..2^18; ``None`` for what is no finite number."""
    try:
        return min(max(0, int(prompt_tokens)), PROMPT_TOKENS_LIMIT)
    except Exception:
        return None
