from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

_Picked = TypeVar("_Picked")

LAYOUT: dict[str, int]

class Candidates: ...

class Core:
    def __new__(
        cls,
        fd: int,
        size: int,
        matrix_offset: int,
        matrix_stride: int,
        n_offset: int,
        lanes_offset: int,
        slots: int,
        lanes: int,
        tie_window: int,
        mark_floor: int,
        mark_band: int,
        unused_band: int,
        /,
    ) -> Core: ...
    def prepare(self, slots: Sequence[int], /) -> Candidates: ...
    def choose(
        self, candidates: Candidates | None, cursor: int, fade: int, extra: Sequence[int] | None, /
    ) -> int: ...
    def live(self, slots: Sequence[int], fade: int, extra: Sequence[int] | None, /) -> list[int]: ...

class Rows:
    def __new__(
        cls,
        fd: int,
        size: int,
        cells_offset: int,
        naturals_offset: int,
        naturals_stride: int,
        block_offset: int,
        slots: int,
        cell_limit: int,
        token: int,
        /,
    ) -> Rows: ...

class Seat:
    hold_ns: int
    selected: bool
    @property
    def key(self) -> str: ...
    @property
    def host(self) -> str | None: ...
    @property
    def port(self) -> int | None: ...
    @property
    def version(self) -> int: ...
    @property
    def slot(self) -> int | None: ...
    @property
    def units(self) -> int: ...
    @property
    def open(self) -> int: ...
    def settle(
        self, version: int, slot: int | None, request: float, prompt_token: float, kv_token: float, /
    ) -> None: ...

class Guard(Generic[_Picked]):
    @property
    def instance(self) -> _Picked: ...
    def first_token(self) -> None: ...
    def fail(self, error: BaseException | None = None) -> None: ...
    def release(self) -> None: ...
    def __enter__(self) -> Guard[_Picked]: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __aenter__(self) -> Awaitable[Guard[_Picked]]: ...
    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Awaitable[None]: ...

class Ledger:
    def __new__(
        cls,
        clock: Callable[[], int] | None,
        hold_ns: int,
        is_failure: Callable[[BaseException], bool],
        was_refused: Callable[[BaseException | None], bool],
        mean_prompt_tokens: float,
        request: float,
        prompt_token: float,
        kv_token: float,
        /,
    ) -> Ledger: ...
    @property
    def version(self) -> int: ...
    @property
    def mean_prompt_tokens(self) -> float: ...
    def seat(self, key: str, host: str | None, port: int | None, /) -> Seat: ...
    def attach(
        self,
        rows: Rows,
        core: Core,
        membership: int,
        holders: int,
        max_heartbeat_age: int,
        settled: Any,
        /,
    ) -> int: ...
    def settle(self, membership: int, holders: int, settled: Any, /) -> int: ...
    def void(self, forked: bool, /) -> None: ...
    def dispatch(
        self, instance: _Picked, seat: Any, prompt_tokens: Any, first_token_visible: bool, /
    ) -> Guard[_Picked]: ...
    def hold(self, seat: Any, /) -> None: ...
    def housekeep(self, now_ns: int, /) -> None: ...
    def audit(self) -> bool: ...
    def outstanding(self) -> int: ...

class Picker:
    cursor: int
    def __new__(cls, ledger: Ledger, seat_of: Callable[[Any], Any], cursor: int, /) -> Picker: ...
    @property
    def picks(self) -> int: ...
    def dispatch(
        self, instances: Sequence[_Picked], hint: Any, prompt_tokens: Any, /
    ) -> Guard[_Picked] | None: ...
    def select(self, instances: Sequence[_Picked], /) -> _Picked | None: ...

def nothing() -> None: ...
