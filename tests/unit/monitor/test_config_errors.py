"""A wrong configuration: every fault at once, with its key, its value and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.config import (
    ConfigError,
    InstanceConfig,
    MonitorConfig,
    load_config,
)
from tests.unit.monitor.config_problems import ONE, Write, problems_of, the_problem, writer


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return writer(tmp_path)


def test_all_problems_are_reported_at_once(write: Write) -> None:
    file = write('slots = 63\nscore = "best"\n[[instances]]\nurl = "ftp://a"\n[[instances]]\nid = "b"\n')
    lines = problems_of(file, {"lanes": "many"}, {"LOADBOARD_TIMEOUT": "-2"}, ["http://h:0"])
    starts = [line.split(": ")[0] for line in lines]
    assert sorted(starts) == [
        "--instance http://h:0",
        "--lanes",
        "LOADBOARD_TIMEOUT",
        "instances[0].url",
        "instances[1].url",
        "score",
        "slots",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("interval = 0", "interval: 0 is out of range: use 0.05 to 300 s"),
        ("interval = 301", "interval: 301 is out of range: use 0.05 to 300 s"),
        ("interval = nan", "interval: nan is out of range: use 0.05 to 300 s"),
        ("staleness = inf", "staleness: inf is out of range: use 0.1 to 3600 s"),
        ('interval = "1"', "interval: '1' is not a number: use 0.05 to 300 s"),
        ("lanes = true", "lanes: true is not a whole number: use 1 to 256"),
        ("lanes = 1.5", "lanes: 1.5 is not a whole number: use 1 to 256"),
        ("slots = 63", "slots: 63 is out of range: use 16 to 4096, a multiple of 16"),
        ("table = 3", "table: 3 is not a text: put it in quotes"),
        ('table = "loadboard"', "table: 'loadboard' is ambiguous: write /loadboard for shared memory"),
        ('table = "/"', "table: '/' names no table"),
        ('table = "/run/x/"', "table: '/run/x/' names no table"),
        ("table_mode = 432", "table_mode: 432 is not a text: put it in quotes"),
        ('table_mode = "0666"', "table_mode: '0666' is not one of 0600, 0640, 0644, 0660, 0664"),
        ('group = "a b"', "group: 'a b' is no name or number of a group"),
        ('unknown = "avoided"', "unknown: 'avoided' is not one of `estimate`, `avoid`; did you mean avoid?"),
        ('score = "token-aware"', "did you mean token_aware?"),
        ("token_aware = 3", "token_aware: 3 is not a table: write [token_aware] and its keys below it"),
        ("intervall = 1", "intervall: unknown key; did you mean interval?"),
        (
            "prefill_weight = 1",
            "prefill_weight: unknown key here: prefill_weight belongs under [token_aware]",
        ),
        (
            "kv_limit = 0.9",
            "kv_limit: unknown key here: kv_limit belongs under [token_aware] or under [inflight_kv] or under "
            "[expected_wait]",
        ),
        ('bearer_token = "s"', "bearer_token: unknown key here: bearer_token belongs under [[instances]]"),
        ("zzz = 1", "zzz: unknown key: remove it, or use one of table, table_mode,"),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_the_way_out(line: str, said: str, write: Write) -> None:
    assert said in the_problem(write(f"{line}\n{ONE}"))


def test_the_same_id_twice_is_refused_with_both_places(write: Write) -> None:
    same = ONE + '[[instances]]\nurl = "http://other"\nid = "10.0.0.1:8000"\n'
    problem = the_problem(write(same))
    assert problem.startswith("instances[1].id: '10.0.0.1:8000' is already the id of instances[0]")


def test_conflicts_are_found_beside_faults_of_their_own(write: Write) -> None:
    file = write("lanes = 0\n" + ONE + "interval = 60\n" + ONE + 'colour = "red"\n')
    assert [line.split(": ")[0] for line in problems_of(file)] == [
        "lanes",
        "instances[1].colour",
        "instances[1].id",
        "instances[0].interval",
    ]


def test_a_staleness_below_interval_and_timeout_is_refused_with_the_numbers(write: Write) -> None:
    problem = the_problem(write("staleness = 3\n" + ONE))
    assert problem.startswith("staleness: staleness = 3 s is shorter than interval*(1+jitter) + timeout")
    assert "1*(1+0.1) + 2 = 3.1 s" in problem
    assert "set staleness to at least 3.1" in problem


def test_the_suggested_staleness_is_enough(write: Write) -> None:
    problem = the_problem(write("interval = 0.7\njitter = 0.33\nstaleness = 1\n" + ONE))
    enough = problem.split("at least ")[1].split(",")[0]
    file = write(f"interval = 0.7\njitter = 0.33\nstaleness = {enough}\n{ONE}")
    assert load_config(file, {}, {}).staleness == float(enough)


def test_a_staleness_below_an_instances_own_pace_is_refused_at_that_instance(write: Write) -> None:
    assert the_problem(write(ONE + "interval = 10\n")).startswith("instances[0].interval: staleness = 5 s")
    assert the_problem(write(ONE + "timeout = 10\n")).startswith("instances[0].timeout: staleness = 5 s")


def test_a_staleness_that_a_flag_made_too_short_is_the_flags_fault(write: Write) -> None:
    assert the_problem(write(ONE), {"interval": "10"}).startswith("--interval: staleness = 5 s")
    assert the_problem(write(ONE), {}, {"LOADBOARD_STALENESS": "1"}).startswith("LOADBOARD_STALENESS: ")


def test_more_instances_than_slots_are_refused(write: Write) -> None:
    many = "".join(f'[[instances]]\nurl = "http://10.0.0.1:{8000 + i}"\n' for i in range(17))
    problem = the_problem(write("slots = 16\n" + many))
    assert problem == "slots: a table of 16 slots cannot hold 17 instances: set slots to at least 32"


def test_no_instances_is_an_error_that_says_how_to_add_one(write: Write) -> None:
    problem = the_problem(write(""))
    assert problem.startswith("instances: there are none: add [[instances]] with url = ")
    assert "--instance http://HOST:PORT" in problem


@pytest.mark.parametrize(
    "text", ["[instances]\nurl = 'http://a'\n", "instances = 3\n", "instances = ['http://a']\n"]
)
def test_instances_of_another_form_are_refused(text: str, write: Write) -> None:
    assert the_problem(write(text)).startswith("instances")


def test_a_syntax_error_names_its_line(write: Write) -> None:
    problem = the_problem(write("interval = 1\nlanes = \n"))
    assert problem.startswith("is not valid TOML: ")
    assert "line 2" in problem


def test_a_file_that_is_not_utf8_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "latin.toml"
    file.write_bytes(b"interval = 1\n# caf\xe9\n")
    assert the_problem(file) == "is not UTF-8 text in line 2: save it as UTF-8"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert the_problem(tmp_path / "none.toml").startswith("cannot be read: No such file or directory")
    assert the_problem(tmp_path).startswith("cannot be read: Is a directory")


def test_a_wrong_flag_or_variable_is_named_as_such_and_not_as_the_files_fault(write: Write) -> None:
    file = write("interval = 1\n" + ONE)
    with pytest.raises(ConfigError) as caught:
        load_config(file, {"interval": "fast"}, {"LOADBOARD_SLOTS": "1e3"})
    assert sorted(caught.value.lines()) == [
        "--interval: 'fast' is not a number: use 0.05 to 300 s",
        "LOADBOARD_SLOTS: '1e3' is not a whole number: use 16 to 4096, a multiple of 16",
    ]
    assert {problem.key_path for problem in caught.value.problems} == {"interval", "slots"}


def test_a_configuration_made_in_code_is_checked_alike() -> None:
    instance = InstanceConfig(url="http://a")
    assert MonitorConfig(instances=(instance,)).instances[0].id == "a:80"
    with pytest.raises(ValueError, match=r"instances\[1\]\.id: 'a:80' is already the id"):
        MonitorConfig(instances=(instance, instance))
