"""The command line as a whole: what it imports, how it is called, and readers that go away."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadboard.cli import COMMANDS, build_parser, main
from monitor.config import options
from monitor.config.score_sections import OWN_MODES
from proxy_adapter.factory import ALIASES, STRATEGIES

ROOT = Path(__file__).parents[3]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_one_command_does_not_import_what_another_needs(table_name: str) -> None:
    heavy = ("pydantic", "httpx", "structlog", "starlette", "uvicorn", "rich")
    code = (
        "import sys; from loadboard.cli import main; status = main(['dump', '--table', sys.argv[1]]);"
        f"print(status, [name for name in {heavy} if name in sys.modules])"
    )
    assert python("-c", code, table_name).stdout == "69 []\n"


def test_the_help_of_the_whole_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    for command in COMMANDS:
        assert re.search(rf"^    {command} ", out, re.M), command


def test_a_command_that_does_not_exist_is_refused_with_those_that_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["dmp"])
    err = capsys.readouterr().err
    assert all(command in err for command in COMMANDS)


def test_a_parser_of_one_command_is_called_like_the_whole_one() -> None:
    assert build_parser("dump").format_usage() == build_parser().format_usage()


def test_the_package_can_be_run_as_a_module() -> None:
    found = python("-m", "loadboard", "--version")
    assert (found.returncode, found.stdout.split()[0]) == (0, "loadboard")


@pytest.mark.parametrize("words", [["--help"], ["check", str(ROOT / "deploy" / "loadboard.toml")]])
def test_a_reader_that_has_gone_is_no_fault(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    try:
        found = subprocess.run(
            [sys.executable, "-m", "loadboard", *words],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            env=buffered,
            timeout=60,
        )
    finally:
        os.close(write)
    assert (found.returncode, found.stderr) == (0, "")


def test_the_help_of_run_has_a_group_per_subject_and_shows_choices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = help_of("run", capsys)
    for group in ("table", "polling", "score", "log", *OWN_MODES):
        assert f"\n{group}:\n" in out
    choices = [option for option in options() if option.choices]
    assert len(choices) >= 3
    for option in choices:
        assert f"{option.flag} {{{','.join(option.choices)}}}" in out
    assert "TEXT" not in out


def test_the_help_of_proxy_names_the_strategies(capsys: pytest.CaptureFixture[str]) -> None:
    out = re.sub(r"\s+", "", help_of("proxy", capsys))  # argparse breaks names at their dashes
    for name in (*STRATEGIES, *ALIASES):
        assert name in out


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_the_first_make_says_what_takes_so_long(tmp_path: Path) -> None:
    found = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "install", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first = found.stdout.splitlines()[0]
    assert first == f'echo "creating {tmp_path / "venv"} and installing (about a minute)"'
