from collections.abc import Sequence

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

def nothing() -> None: ...
