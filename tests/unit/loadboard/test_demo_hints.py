"""Command lines that are copied from the demo's screen."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from loadboard.demo.hints import command_name, own_request, whole_table

README = (Path(__file__).parents[3] / "README.md").read_text()
PROXY = "http://127.0.0.1:38000"


def words(line: str) -> list[str]:
    """As a shell reads it."""
    return shlex.split(line.replace("\\\n", " "))


@pytest.mark.parametrize("width", [60, 80, 107, 108, 200])
def test_the_request_is_the_same_in_every_width(width: int) -> None:
    lines = own_request(PROXY, width)
    assert max(map(len, lines.splitlines())) <= width
    *call, body = words(lines)
    assert call == [
        *("curl", "-N", f"{PROXY}/v1/chat/completions", "-H", "Content-Type: application/json", "-d")
    ]
    assert json.loads(body) == {
        "model": "simulated",
        "stream": True,
        "max_tokens": 400,
        "messages": [{"role": "user", "content": "hello"}],
    }


def test_the_request_is_that_of_the_readme() -> None:
    assert own_request("http://127.0.0.1:8000", 120).replace("\\\n    ", "") in README.replace("\\\n    ", "")


def test_a_line_that_is_too_long_is_broken_where_a_shell_goes_on() -> None:
    command = "/home/somebody/a/long/way/down/.venv/bin/loadboard"
    lines = whole_table(command, "/loadboard-demo-12345-abcdef", 80)
    assert max(map(len, lines.splitlines())) <= 80
    assert words(lines) == [command, "dump", "--table", "/loadboard-demo-12345-abcdef"]
    assert whole_table("loadboard", "/t", 80) == "loadboard dump --table /t"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a command in ``bin/``."""
    command = tmp_path / "bin" / "loadboard"
    command.parent.mkdir()
    command.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("called", ["bin/loadboard", "{home}/bin/loadboard"])
def test_the_command_is_shown_with_its_path(home: Path, called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [called.format(home=home), "demo"])
    assert command_name() == "bin/loadboard"


def test_a_command_in_the_present_directory_is_one_of_that_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home / "bin")
    monkeypatch.setattr(sys, "argv", [str(home / "bin" / "loadboard")])
    assert command_name() == "./loadboard"


def test_a_command_of_the_system_needs_no_path(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{home}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(sys, "argv", [str(home / "bin" / "loadboard")])
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert command_name() == "loadboard"
    # That of an activated environment is on the PATH of one terminal only.
    monkeypatch.setattr(sys, "prefix", str(home))
    assert command_name() == "bin/loadboard"


def test_a_module_is_called_as_a_module(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(home / "loadboard" / "__main__.py"), "demo"])
    assert command_name() == shlex.join([sys.executable, "-m", "loadboard"])
