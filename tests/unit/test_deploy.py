"""The files for systemd, judged by systemd's own tools, and the example configuration."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from monitor.config import InstanceConfig, load_config, options
from monitor.config.fields import by_key

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "loadboard.service"
EXAMPLE = DEPLOY / "loadboard.toml"

needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
needs_sysusers = pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="needs systemd-sysusers")


def tool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=60, check=False
    )


class Unit(configparser.RawConfigParser):
    """A unit's last value per key."""

    def __init__(self) -> None:
        super().__init__(strict=False, comment_prefixes=("#",), delimiters=("=",))
        self.read(UNIT, "utf-8")

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@needs_analyze
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    # The command is not where the unit looks for it while the project is under test.
    copy.write_text(UNIT.read_text().replace("ExecStart=/usr/bin/loadboard", "ExecStart=/bin/true"))
    done = tool("systemd-analyze", "verify", "--man=no", copy)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_analyze
def test_the_units_exposure_is_at_most_two() -> None:
    done = tool("systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=20", UNIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Overall exposure level" in done.stdout


@needs_sysusers
def test_sysusers_makes_the_units_user_and_group() -> None:
    done = tool("systemd-sysusers", "--dry-run", DEPLOY / "loadboard.sysusers.conf")
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stderr
    service = Unit()["Service"]
    declared = re.findall(r"^u (\S+) - ", (DEPLOY / "loadboard.sysusers.conf").read_text(), re.MULTILINE)
    assert declared == [service["User"]] == [service["Group"]]


def test_the_table_outlives_the_service() -> None:
    service = Unit()["Service"]
    assert service["RemoveIPC"] == "no"
    assert service["RuntimeDirectoryPreserve"] == "yes"
    for key in ("DynamicUser", "PrivateIPC", "IPCNamespacePath", "TemporaryFileSystem", "InaccessiblePaths"):
        assert key not in service


def test_the_monitor_may_do_what_it_needs() -> None:
    service = Unit()["Service"]
    assert set(service["RestrictAddressFamilies"].split()) == {"AF_UNIX", "AF_INET", "AF_INET6"}
    assert "ProcSubset" not in service  # the boot id is under /proc/sys
    assert service["Type"] == "notify"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["RestartPreventExitStatus"].split() == ["77", "78"]


def test_the_example_is_a_valid_configuration_with_all_the_defaults() -> None:
    config = load_config(EXAMPLE, {}, {}, resolve=False)
    assert all(option.read(config) == option.default for option in options())


def test_the_example_shows_every_option_with_its_default(tmp_path: Path) -> None:
    uncommented = re.sub(r"^#(?=[\w\[])", "", EXAMPLE.read_text(), flags=re.MULTILINE)
    file = tmp_path / "all.toml"
    file.write_text(uncommented)
    config = load_config(file, {}, {}, resolve=False)
    assert all(option.read(config) == option.default for option in options())
    assert config.token_aware.model_fields_set == set(type(config.token_aware).model_fields)
    assert config.inflight_kv.model_fields_set == set(type(config.inflight_kv).model_fields)
    top = uncommented.partition("[")[0]
    assert set(re.findall(r"^(\w+) = ", top, re.MULTILINE)) == {
        option.key_path for option in options() if "." not in option.key_path
    }


def test_the_example_shows_every_key_of_an_instance() -> None:
    text = EXAMPLE.read_text().partition("[[instances]]")[2]
    assert all(key in text for key in by_key(InstanceConfig))
