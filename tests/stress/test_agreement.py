"""A short run of the agreement proof; ``python -m tests.stress.agreement`` makes the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from score_table.pick import CORES
from score_table.pick.plain import PlainCore
from tests.stress.agreement import Boards, Disagreement, Tally
from tests.stress.agreement_cases import BATCH, batches


def test_all_implementations_agree_on_20_000_random_tables_and_pick_sequences(tmp_path: Path) -> None:
    boards, tally = Boards(tmp_path), Tally()
    for batch in batches(0, 20_000):
        tally.add(boards.compare(1, batch, 0, 20_000))
    assert tally.cases == 20_000
    assert min(tally.unmarked, tally.marked, tally.none) > 1000, tally


def test_an_implementation_that_differs_is_found_and_its_case_can_be_repeated_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(PlainCore):
        """Takes the slot at the cursor for one behind it."""

        def choose(self, candidates: object, cursor: int, fade: int, extra: object) -> int:
            return super().choose(candidates, cursor + 1, fade, extra)  # type: ignore[arg-type]

    monkeypatch.setitem(CORES, "wrong", Wrong)
    boards = Boards(tmp_path)
    with pytest.raises(Disagreement, match=r"wrong: -?\d+") as found:
        boards.compare(1, 0, 0, BATCH)
    number = int(str(found.value).split()[1].rstrip(","))
    with pytest.raises(Disagreement) as again:
        boards.compare(1, 0, number, number + 1)
    assert str(again.value) == str(found.value)
