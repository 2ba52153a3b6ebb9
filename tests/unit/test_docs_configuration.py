"""The reference page against the options as they are."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from loadboard import check
from monitor.config import InstanceConfig, Option, options
from monitor.config.address import MAX_URL_BYTES
from monitor.config.fields import by_key, range_of
from monitor.config.model import MAX_ID_BYTES, MAX_TAGS_BYTES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text("utf-8")


def row(option: Option) -> str:
    """The line of the page for one option."""
    default = f'"{option.default}"' if isinstance(option.default, str) else option.default
    names = f"`{option.key_path}` | `{option.flag}` | `{option.env}`"
    reload = "yes" if option.reloadable else "no"
    return f"| {names} | `{default}` | {option.range} | {reload} | {option.help} |"


def key_rows() -> list[str]:
    return [
        f"| `{key}` | {range_of(field)} | {field.description} |"
        for key, field in by_key(InstanceConfig).items()
    ]


def rows_below(heading: str) -> list[str]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


def test_every_option_has_its_line_and_there_are_no_others() -> None:
    assert rows_below("Options") == [row(option) for option in options()]


def test_every_key_of_an_instance_has_its_line_and_there_are_no_others() -> None:
    assert rows_below("Instances") == key_rows()


def test_the_limits_of_the_table_are_told() -> None:
    told = f"An id has at most {MAX_ID_BYTES} bytes (UTF-8), a url {MAX_URL_BYTES}, the tags {MAX_TAGS_BYTES}"
    assert told in PAGE.replace("\n ", "")


def test_what_check_prints_is_what_the_page_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    parser = argparse.ArgumentParser()
    check.add_parser(parser.add_subparsers())
    args = parser.parse_args(["check", "deploy/loadboard.toml"])
    assert args.run(args) == 0
    assert f"$ loadboard check deploy/loadboard.toml\n{capsys.readouterr().out}```" in PAGE
