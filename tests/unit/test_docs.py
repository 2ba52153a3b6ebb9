"""The documents say what the program does: every option, field, status and command."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.routing import Route

from loadboard import exits
from loadboard.cli import build_parser
from monitor.scores import MODES, trial
from monitor.scores.expected_wait import ExpectedWait
from monitor.scores.inflight_kv import InflightKv
from monitor.scores.token_aware import TokenAware
from monitor.scores.weighted_sum import WeightedSum
from proxy_adapter import Dispatch, Strategy, build_instance_strategy
from proxy_adapter.factory import ALIASES, STRATEGIES
from score_table.explanation import ESTIMATES, Explained, Explanation
from score_table.layout import Reason
from score_table.pick import CORES
from score_table.reader import InstanceFacts, LaneFacts, TableSnapshot
from tests.tables import make_table
from tests.unit.monitor.loads import loads
from tests.unit.proxy_adapter.instances import plain

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = (ROOT / "docs" / "commands.md").read_text()
PAGES = {page.name: page.read_text() for page in (ROOT / "docs").glob("*.md")}

_PAGE_OF = {"run": "configuration.md", "proxy": "demo-proxy.md"}


def _commands() -> dict[str, argparse.ArgumentParser]:
    actions = build_parser()._actions
    found = next(action for action in actions if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)


def _options() -> list[tuple[str, str]]:
    return [
        (command, flag)
        for command, parser in _commands().items()
        for action in parser._actions
        for flag in action.option_strings
        if flag not in ("-h", "--help")
    ]


@pytest.mark.parametrize(("command", "flag"), _options())
def test_every_option_stands_in_its_page(command: str, flag: str) -> None:
    assert f"`{flag}" in PAGES[_PAGE_OF.get(command, "commands.md")]


@pytest.mark.parametrize("command", sorted(_commands()))
def test_every_command_stands_in_the_commands_page(command: str) -> None:
    assert f"| `loadboard {command}` |" in COMMANDS


@pytest.mark.parametrize("facts", [TableSnapshot, LaneFacts, InstanceFacts, Explanation, Explained])
def test_every_field_of_dump_and_why_stands_in_the_commands_page(facts: Any) -> None:
    for field in dataclasses.fields(facts):
        assert f"| `{field.name}` |" in COMMANDS, field.name


def test_every_reason_and_every_kind_of_estimate_stand_in_the_commands_page() -> None:
    for reason in Reason:
        assert f"| `{reason.name.lower()}` |" in COMMANDS, reason
    for estimate in ESTIMATES:
        assert f"`{estimate}`" in COMMANDS, estimate


def test_every_exit_status_stands_in_the_commands_page() -> None:
    statuses = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    for status in statuses:
        assert f"| {status} |" in COMMANDS, status


def test_every_pick_core_stands_in_the_commands_page() -> None:
    for name in CORES:
        assert f"`{name}`" in COMMANDS


def test_the_readme_has_every_strategy_with_its_aliases_and_the_planned_one() -> None:
    section = README.split("## Proxy Instance selection strategies")[1].split("\n## ")[0]
    for name in STRATEGIES:
        line = next(line for line in section.splitlines() if line.startswith(f"| `{name}`"))
        for alias, target in ALIASES.items():
            assert (f"`{alias}`" in line) == (target == name), (alias, line)
        assert "| available |" in line
    assert re.search(r"\| `kv_aware` \|.*\| planned \|", section)
    assert "--strategy least_load" in section
    assert "PROXY_INSTANCE_STRATEGY=least_load" in section


def _command_lines() -> list[str]:
    found = []
    for text in (README, *PAGES.values()):
        for block in re.findall(r"```console\n(.*?)```", text, re.S):
            joined = block.replace("\\\n", " ")
            found += [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
    return found


def _our_command_lines() -> list[list[str]]:
    found = []
    for line in _command_lines():
        words = shlex.split(line, comments=True)
        place = next((at for at, word in enumerate(words) if word.split("/")[-1] == "loadboard"), None)
        if place is not None and words[0] not in ("install", "systemctl"):
            found.append(words[place + 1 :])
    return found


@pytest.mark.parametrize("arguments", _our_command_lines(), ids=" ".join)
def test_every_command_line_in_the_documents_is_one_the_program_takes(arguments: list[str]) -> None:
    build_parser().parse_args(arguments)


@pytest.mark.parametrize("line", [line for line in _command_lines() if line.startswith("make ")])
def test_every_make_target_in_the_documents_exists(line: str) -> None:
    target = shlex.split(line, comments=True)[1]
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.M)


def test_the_embedding_example_of_the_readme_runs_and_counts(
    table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADBOARD_TABLE", table_name)
    example = README.split("### In your own proxy")[1].split("```python\n")[1].split("```")[0]
    writer = make_table(table_name, 2)
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "README.md", "exec", dont_inherit=True), namespace)
    seen: list[str] = []

    def send(instance: Any) -> str:
        seen.append(instance.instance_id)
        return "answer"

    try:
        assert [namespace["handle"](100, send) for _ in range(4)] == ["answer"] * 4
        assert set(seen) == {"10.0.0.1:8000", "10.0.0.2:8000"}
        assert namespace["strategy"].status()["table"] == table_name
        handler = [line for line in example.split("strategy = ")[1].splitlines() if line.strip()]
        assert len(handler) <= 10
    finally:
        namespace["strategy"].close()
        writer.close()


def test_links_between_the_documents_lead_somewhere() -> None:
    for page, text in {"README.md": README, **{f"docs/{name}": body for name, body in PAGES.items()}}.items():
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert ((ROOT / page).parent / target).exists(), (page, target)


LIBRARY = PAGES["library.md"]


@pytest.mark.parametrize(
    ("upstream", "status", "outstanding_after"), [(200, 200, 0), (404, 404, 0), (503, 503, 1), (None, 502, 1)]
)
def test_the_streaming_example_counts_until_the_body_has_ended(
    table_name: str, upstream: int | None, status: int, outstanding_after: int
) -> None:
    """In a Starlette application; what the instance failed stays for the hold time."""
    example = LIBRARY.split("```python\n")[1].split("```")[0]
    writer = make_table(table_name, 2)
    strategy = build_instance_strategy("least_load", table=table_name)
    seen: list[int] = []

    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b"a", b"b", b"c"):
            seen.append(int(writer.naturals().outstanding.sum()))
            yield chunk

    def answer(request: httpx.Request) -> httpx.Response:
        if upstream is None:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(upstream, content=chunks())

    async def main() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            namespace: dict[str, Any] = {
                "strategy": strategy,
                "instances": plain(2),
                "client": client,
                "count_tokens": len,
                "httpx": httpx,
                "HTTPException": HTTPException,
                "StreamingResponse": StreamingResponse,
                "BackgroundTask": BackgroundTask,
            }
            exec(compile(example, "library.md", "exec", dont_inherit=True), namespace)
            app = Starlette(routes=[Route("/", namespace["completions"], methods=["POST"])])
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as user:
                return await user.post("/", json={"prompt": "hello"})

    try:
        said = asyncio.run(main())
        assert said.status_code == status
        if upstream is not None:
            assert said.content == b"abc"
            assert seen == [1, 1, 1]
        assert writer.naturals().outstanding.sum() == outstanding_after
    finally:
        strategy.close()
        writer.close()


def test_the_example_of_pools_makes_a_strategy_per_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADBOARD_TABLE", "/loadboard-docs-no-such-table")
    section = LIBRARY.split("## Pools")[1].split("\n## ")[0]
    namespace: dict[str, Any] = {"build_instance_strategy": build_instance_strategy}
    exec(section.split("```python\n")[1].split("```")[0], namespace)
    strategy = namespace["strategy"]
    try:
        status = strategy.status()
        assert "| `pools` |" in LIBRARY
        assert f"`{strategy.name}`" in section
        strategies = {name: pool["strategy"] for name, pool in status["pools"].items()}
        assert strategies.pop("default") == "least_load"
        text = ",".join(f"{name}:{strategy}" for name, strategy in strategies.items())
        assert f"`{text}`" in section
        strategy.select(plain(2), namespace["hint"])
        assert strategy.status()["degraded_picks"]["untagged"] == 1
    finally:
        strategy.close()


def test_the_library_page_has_every_member_and_every_key_of_status() -> None:
    strategy = build_instance_strategy("least_load", table=None)
    for key in strategy.status():
        assert f"| `{key}` |" in LIBRARY, key
    for kind in (Strategy, Dispatch):
        for name in vars(kind):
            if not name.startswith("_"):
                assert f"`{name}" in LIBRARY, name


def test_the_example_of_the_score_page_is_what_the_code_computes() -> None:
    load = loads(own=4.0, others=2.0, n=6.0, pending=2000.0, kv=0.5, slots=64.0)
    assert TokenAware().score(load).tolist() == [18.0]
    assert "= 13 + 5 = 18" in PAGES["score.md"]
    others = [
        f"{mode.score(load)[0]:.1f} in `{mode.name}`"
        for mode in (InflightKv(), ExpectedWait(), WeightedSum())
    ]
    assert f"has {', '.join(others[:2])} and {others[2]}." in PAGES["score.md"].replace("\n", " ")


def test_every_score_mode_stands_in_the_score_page_with_when_to_use_it() -> None:
    for name in MODES:
        assert f"\n| `{name}` | " in PAGES["score.md"], name


def test_the_score_mode_of_the_score_page_is_one() -> None:
    example = PAGES["score.md"].split("## A mode of your own")[1].split("```python\n")[1].split("```")[0]
    namespace: dict[str, Any] = {"__name__": "my_scores"}
    exec(compile(example, "score.md", "exec", dont_inherit=True), namespace)
    mode = namespace["Shortest"]({"headroom": 2.0})
    assert trial.fault_of(mode, "shortest") == ""
    assert mode.score(loads(n=4.0, kv=0.5)).tolist() == [6.0]
