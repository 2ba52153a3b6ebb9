"""What the demo shows: a table's contents, as `loadboard dump --json` gives them, to something rich prints."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

#: Shown for everything that is not known; a 0 is a known 0.
UNKNOWN = "-"

_RATE_WINDOW_S = 5.0
_NUMBERS = (
    "\ninflight",
    "out-\nstanding",
    "qps\n1m",
    "KV\nuse",
    "sample\nage",
    "\nscore",
    "\npicks",
    "picks\n/s",
)
_EXAMPLE = '{"prompt":"hi","max_tokens":20}'
_STATE_STYLES = {"up": "green", "stale": "yellow", "unreachable": "red"}


@dataclass(frozen=True)
class About:
    """What the frame says besides the table."""

    proxy_url: str
    notes: Mapping[str, str]  #: by instance id, e.g. that it is a slow one


class PickRates:
    """Picks per second of each instance over the last seconds, from the running totals."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[tuple[str, int], int]]] = deque()

    def update(self, now_s: float, instances: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
        """The rate by instance id; ``None`` until there are two looks at the same generation of it."""
        totals = {
            (instance["id"], instance["generation"]): instance["dispatched"]
            for instance in instances
            if instance["dispatched"] is not None
        }
        self._seen.append((now_s, totals))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= _RATE_WINDOW_S:
            self._seen.popleft()
        then_s, then = self._seen[0]
        rates: dict[str, float | None] = {instance["id"]: None for instance in instances}
        for key, total in totals.items():
            before = then.get(key)
            if before is not None and now_s > then_s and total >= before:
                rates[key[0]] = (total - before) / (now_s - then_s)
        return rates


def frame(table: Mapping[str, Any], rates: Mapping[str, float | None], about: About) -> RenderableType:
    """One picture of the table: header, a row per instance, how to send a request of one's own.

    ``table`` has the keys of ``loadboard dump --json``; ``rates`` are picks per second by instance id.
    """
    instances = _instances(table["instances"], rates, about.notes)
    return Group(_header(table), "", instances, "", _footer(about))


def _header(table: Mapping[str, Any]) -> Text:
    text = Text()
    text.append("loadboard demo", style="bold")
    text.append(f"  table {table['table']}  {_whole(table['lanes_in_use'])} proxy workers (lanes)\n")
    text.append(f"monitor pid {_whole(table['monitor_pid'])}, heartbeat ")
    text.append(f"{_seconds(table['heartbeat_age_s'], 2)} old  picks: ")
    degraded = table["degraded"]
    if degraded is None:
        text.append("by score", style="green")
    else:
        text.append(f"degraded ({degraded})", style="bold red")
    return text


def _instances(
    instances: Sequence[Mapping[str, Any]], rates: Mapping[str, float | None], notes: Mapping[str, str]
) -> Table:
    # Fits 80 columns as long as the ids are host:port.
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("instance", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for heading in _NUMBERS:
        table.add_column(heading, justify="right", no_wrap=True)
    for instance in instances:
        state = instance.get("mark") or instance["state"]  # what keeps picks away says more
        table.add_row(
            Text(instance["id"] + ("*" if instance["id"] in notes else "")),
            Text(state, style=_STATE_STYLES.get(state, "")),
            _whole(instance["inflight"]),
            _whole(instance["outstanding"]),
            _decimal(instance["qps_1m"], 2),
            _percent(instance["kv_usage"]),
            _seconds(instance["age_s"], 1),
            _decimal(instance["score"], 2),
            _whole(instance["dispatched"]),
            _decimal(rates.get(instance["id"]), 1),
        )
    return table


def _footer(about: About) -> Text:
    text = Text(no_wrap=True, overflow="ignore")
    text.append("The engines are simulated: they take a model's time and generate nothing.\n", style="dim")
    for instance_id, note in about.notes.items():
        text.append(f"* {instance_id}: {note}\n", style="dim")
    # Copied by hand from the screen: on a line of its own, which 80 columns do not wrap or cut.
    text.append("Send a request of your own:\n", style="dim")
    text.append(f"curl {about.proxy_url}/v1/completions -d '{_EXAMPLE}'")
    return text


def _decimal(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def _whole(value: float | None) -> str:
    return _decimal(value, 0)


def _seconds(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f} s"


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.1%}"
