"""``loadboard check`` and the configuration part of ``loadboard run``."""

from __future__ import annotations

import argparse
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from loadboard import check, run
from monitor.config import ConfigError, MonitorConfig

ONE = '[[instances]]\nurl = "http://10.0.0.1:8000"\n'


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    check.add_parser(commands)
    run.add_parser(commands)
    return parser.parse_args(words)


def call(*words: str) -> int:
    args = parse(*words)
    code = args.run(args)
    assert isinstance(code, int)
    return code


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "loadboard.toml"
    file.write_text(ONE)
    return file


class Daemon(types.ModuleType):
    """Stands in for the daemon: keeps what it was called with."""

    config: MonitorConfig
    reload: Callable[[], MonitorConfig]

    def main(self, config: MonitorConfig, *, reload: Callable[[], MonitorConfig]) -> int:
        self.config, self.reload = config, reload
        return 75


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    import monitor

    daemon = Daemon("monitor.daemon")
    monkeypatch.setitem(sys.modules, "monitor.daemon", daemon)
    monkeypatch.setattr(monitor, "daemon", daemon, raising=False)
    return daemon


def test_a_good_file_is_ok(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("check", str(file)) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (f"{file}: ok (1 instance, score token_aware, table /loadboard)\n", "")


def test_what_differs_from_the_defaults_is_listed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = ONE.replace("10.0.0.1", "10.0.0.2")
    file.write_text(f"interval = 0.5\n[inflight_kv]\nlambda = 2\n{ONE}{second}id = 'second'\n")
    assert call("check", str(file)) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: ok (2 instances, score token_aware, table /loadboard)",
        "  interval = 0.5 (default 1.0)",
        "  inflight_kv.lambda = 2.0 (default 1.5)",
    ]


def test_weights_draining_and_what_pools_have_of_their_own_are_listed(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(
        f"{ONE}weight = 2\ntags = {{ role = 'decode' }}\n{ONE}id = 'b'\ndraining = true\n"
        "[[pools]]\ntags = { role = 'decode' }\nscore = 'expected_wait'\noverload_waiting = 5\n"
        "[pools.expected_wait]\nthroughput = 900\n[score_options]\nscale = 2\napi_key = 's3cret'\n"
    )
    assert call("check", str(file)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:8] == [
        "  score_options.scale = 2",
        "  score_options.api_key = ***",
        "  pools[0] (role = decode): 1 instance, score expected_wait",
        "  pools[0].overload_waiting = 5",
        "  pools[0].expected_wait.throughput = 900.0",
        "  instances[0].weight = 2 (10.0.0.1:8000)",
        "  instances[1].draining = true (b)",
    ]


def test_what_is_not_checked_is_said(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"{ONE}bearer_token_env = 'LOADBOARD_NO_SUCH_TOKEN'\n")
    assert call("check", str(file)) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  instances[0].bearer_token_env: looked up when the monitor starts, not checked here"
    ]


def test_two_ids_with_one_url_are_noted(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"{ONE}{ONE}id = 'second'\n")
    assert call("check", str(file)) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  note: instances[1].url: 'http://10.0.0.1:8000' is the url of instances[0] too: if it is one server, "
        "its load counts twice; remove one of them"
    ]


@pytest.mark.parametrize(
    ("key", "end"),
    [("url", "/metrics"), ("url", "/v1"), ("url", "/prefix/v1/"), ("metrics_url", "/v1")],
)
def test_an_address_with_a_path_that_is_added_anyway_is_noted(
    key: str, end: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://10.0.0.2:8000{end}"
    file.write_text(f"[[instances]]\nurl = '{url}'\n" if key == "url" else f"{ONE}metrics_url = '{url}'\n")
    assert call("check", str(file)) == 0
    notes = capsys.readouterr().out.splitlines()[1:]
    assert len(notes) == 1
    last = end.rstrip("/").rpartition("/")[2]
    assert notes[0].startswith(f"  note: instances[0].{key}: {url.rstrip('/')!r} ends in /{last}, but ")


@pytest.mark.parametrize("end", ["", "/", "/prefix", "/v1beta", "/v1/prefix"])
def test_other_addresses_are_not_noted(end: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"[[instances]]\nurl = 'http://10.0.0.1:8000{end}'\n")
    assert call("check", str(file)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_file_without_instances_is_told_what_a_file_can_have(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("")
    assert call("check", str(file)) == 78
    assert capsys.readouterr().err == (
        f'{file}: instances: there are none: add [[instances]] with url = "http://HOST:PORT" to the file\n'
    )


def test_problems_go_to_stderr_one_per_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"interval = 0\nslots = 63\n{ONE}")
    assert call("check", str(file)) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"{file}: slots: 63 is out of range: use 16 to 4096, a multiple of 16",
        f"{file}: interval: 0 is out of range: use 0.05 to 300 s",
    ]


def test_a_missing_file_is_a_problem_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("check", str(tmp_path / "none")) == 78
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'none'}: cannot be read: No such file")


def test_the_answer_does_not_depend_on_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(f"interval = 0\n{ONE}")
    monkeypatch.setenv("LOADBOARD_INTERVAL", "1")
    assert call("check", str(file)) == 78


def test_run_hands_the_configuration_to_the_daemon_and_returns_its_code(
    file: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADBOARD_TIMEOUT", "1.5")
    words = ["--config", str(file), "--instance", "b=http://h", "--instance", "http://i", "--interval", "0.5"]
    assert call("run", *words) == 75
    config = daemon.config
    assert (config.interval, config.timeout) == (0.5, 1.5)
    assert [instance.id for instance in config.instances] == ["10.0.0.1:8000", "b", "i:80"]


def test_a_reload_reads_the_file_again_and_keeps_the_flags(file: Path, daemon: Daemon) -> None:
    call("run", "--config", str(file), "--interval", "0.5")
    file.write_text(f"interval = 2\njitter = 0.2\n{ONE}")
    fresh = daemon.reload()
    assert (fresh.interval, fresh.jitter) == (0.5, 0.2)
    file.write_text("jitter = 2\n")
    with pytest.raises(ConfigError, match="jitter: 2 is out of range"):
        daemon.reload()


def test_run_refuses_a_bad_configuration_before_the_daemon_starts(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("run", "--interval", "x") == 78
    assert capsys.readouterr().err.splitlines() == [
        "--interval: 'x' is not a number: use 0.05 to 300 s",
        'instances: there are none: add [[instances]] with url = "http://HOST:PORT" to the file, '
        "or give --instance http://HOST:PORT",
    ]
    assert not hasattr(daemon, "config")


def test_an_abbreviated_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("run", "--interv", "1")
    assert caught.value.code == 2
    assert "--interv" in capsys.readouterr().err
