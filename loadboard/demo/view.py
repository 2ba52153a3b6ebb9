"""What the demo shows: a table's contents, as `loadboard dump --json` gives them, to something rich prints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from loadboard import wording
from loadboard.demo.hints import own_request, whole_table

_RATE_WINDOW_S = 5.0
_STATE_STYLES = {"up": "green", "stale": "yellow", "unreachable": "red"}

#: From this width on there is room for everything.
WIDE = 110


@dataclass(frozen=True)
class About:
    """What the frame says besides the table."""

    proxy_url: str
    command: str  #: how `loadboard` can be called from where the demo was
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


class _Row(NamedTuple):
    instance: Mapping[str, Any]
    rate: float | None
    noted: bool
    silent: bool


@dataclass(frozen=True)
class _Column:
    heading: str
    width: int  #: at least; so that columns do not come and go with the values
    cell: Callable[[_Row], str]
    meaning: str = ""  #: for the legend

    def needs(self, rows: Sequence[_Row]) -> int:
        words = [*self.heading.split("\n"), *(self.cell(row) for row in rows)]
        return max(self.width, *map(len, words))


def _state(row: _Row) -> str:
    facts = row.instance
    return wording.state(facts["state"], facts["mark"], estimated=facts["estimated"], silent=row.silent)


_COLUMNS = {
    "instance": _Column("\ninstance", 8, lambda row: row.instance["id"] + "*" * row.noted),
    "state": _Column("\nstate", 11, _state),
    "engine": _Column("\nengine", 6, lambda row: row.instance["engine"] or wording.UNKNOWN),
    "inflight": _Column(
        "\ninflight", 8, lambda row: wording.whole(row.instance["inflight"]), "polled, of all clients"
    ),
    "waiting": _Column(
        "\nwaiting", 7, lambda row: wording.whole(row.instance["waiting"]), "of these not in the batch yet"
    ),
    "outstanding": _Column(
        "out-\nstanding",
        8,
        lambda row: wording.whole(row.instance["outstanding"]),
        "of this host's proxies, now",
    ),
    "held": _Column(
        "\nheld", 4, lambda row: wording.whole(row.instance["held"]), "of these failed and still counted"
    ),
    "qps_1m": _Column("qps\n1m", 5, lambda row: wording.decimal(row.instance["qps_1m"], 2)),
    "kv_usage": _Column("KV\nuse", 5, lambda row: wording.percent(row.instance["kv_usage"])),
    "age": _Column("sample\nage", 6, lambda row: wording.seconds(row.instance["age_s"], 1)),
    "score": _Column(
        "\nscore",
        6,
        lambda row: wording.decimal(row.instance["score"], 2),
        "what a pick compares, in requests",
    ),
    "picks": _Column(
        "\npicks",
        6,
        lambda row: wording.whole(row.instance["dispatched"]),
        "requests sent there by this host",
    ),
    "rate": _Column("picks\n/s", 5, lambda row: wording.decimal(row.rate, 1)),
}
_TEXTS = ("instance", "state", "engine")
# A longer id drives out no column and is cut where it must be.
_USUAL_ID = 24
# What is left out where there is no room, the first one first; id, state and score always stay.
_ONLY_WIDE = ("engine", "held", "waiting")
_LEFT_OUT = ("qps_1m", "age", "picks", "kv_usage", "rate", "inflight", "outstanding")


class Frame:
    """One picture of the table: header, a row per instance, the proxy workers, what one can do oneself.

    ``table`` has the keys of ``loadboard dump --json``; ``rates`` are picks per second by instance id. It
    makes use of the width there is, and leaves out workers and legend where the height does not suffice.
    """

    def __init__(self, table: Mapping[str, Any], rates: Mapping[str, float | None], about: About) -> None:
        self._table = table
        self._rates = rates
        self._about = about

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.size.height

        def lines(part: RenderableType) -> int:
            return len(console.render_lines(part, options.update(height=None), pad=False))

        silent = wording.is_silent(self._table["degraded"])
        rows = [
            _Row(instance, self._rates.get(instance["id"]), instance["id"] in self._about.notes, silent)
            for instance in self._table["instances"]
        ]
        chosen = _columns(rows, width)
        top = Group(_header(self._table, silent), "", _instances(rows, chosen, width), "")
        lanes = Group(_lanes(self._table["lanes"]), "")
        legend = _legend(chosen)
        bottom = _footer(self._table["table"], self._about, width)
        # The last line of a terminal is the cursor's.
        room = height - 1 - lines(top) - lines(bottom)
        yield top
        if self._table["lanes"] and lines(lanes) + lines(legend) <= room:
            yield lanes
        if lines(legend) <= room:
            yield legend
        yield bottom


def _header(table: Mapping[str, Any], silent: bool) -> Text:
    text = Text()
    text.append("loadboard demo", style="bold")
    text.append(f"  table {table['table']}  {wording.whole(table['lanes_in_use'])} proxy workers (lanes)\n")
    text.append(f"monitor pid {wording.whole(table['monitor_pid'])}, heartbeat ")
    text.append(f"{wording.seconds(table['heartbeat_age_s'], 2)} old  picks: ")
    degraded = table["degraded"]
    text.append(wording.picks(degraded), style="green" if degraded is None else "bold red")
    if silent:
        text.append(f"\n{wording.SILENT}", style="bold red")
    return text


def _columns(rows: Sequence[_Row], width: int) -> list[str]:
    """The names of the columns that fit ``width``."""
    left_out = set() if width >= WIDE else set(_ONLY_WIDE)
    needed = {name: column.needs(rows) + 1 for name, column in _COLUMNS.items()}
    needed["instance"] = min(needed["instance"], _USUAL_ID + 1)
    for name in (*_ONLY_WIDE, *_LEFT_OUT):
        if sum(needed[kept] for kept in needed if kept not in left_out) <= width + 1:
            break
        left_out.add(name)
    return [name for name in _COLUMNS if name not in left_out]


def _instances(rows: Sequence[_Row], names: Sequence[str], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    widths = {name: _COLUMNS[name].needs(rows) for name in names}
    others = sum(widths.values()) - widths["instance"] + len(widths) - 1
    widths["instance"] = max(1, min(widths["instance"], width - others))
    for name in names:
        justify: Literal["left", "right"] = "left" if name in _TEXTS else "right"
        table.add_column(_COLUMNS[name].heading, justify=justify, no_wrap=True, width=widths[name])
    for row in rows:
        style = "" if row.silent else _STATE_STYLES.get(row.instance["state"], "")
        table.add_row(
            *(Text(_COLUMNS[name].cell(row), style=style if name == "state" else "") for name in names)
        )
    return table


def _lanes(lanes: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("proxy worker", "pid", "outstanding", "picks"):
        table.add_column(heading, justify="right", no_wrap=True)
    for lane in lanes:
        table.add_row(f"lane {lane['lane']}", *(str(lane[key]) for key in ("pid", "outstanding", "picks")))
    return table


def _legend(names: Sequence[str]) -> Text:
    columns = {name: _COLUMNS[name] for name in names}
    told = [f"{name}: {column.meaning}" for name, column in columns.items() if column.meaning]
    return Text("; ".join(told), style="dim")


def _footer(table: str, about: About, width: int) -> Group:
    told = [
        "The engines are simulated: they take a model's time and generate nothing.",
        *(f"* {instance_id}: {note}" for instance_id, note in about.notes.items()),
        "In another terminal, the whole table, and a request of your own:",
    ]
    # Copied by hand from the screen: neither wrapped nor cut.
    commands = f"{whole_table(about.command, table, width)}\n{own_request(about.proxy_url, width)}"
    return Group(Text("\n".join(told), style="dim"), Text(commands, no_wrap=True, overflow="ignore"))
