"""The pools of a configuration: what they leave out, what is wrong with them, and what the instances say."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadboard.cli import main
from monitor.config import load_config
from tests.unit.monitor.config_problems import ONE, Write, problems_of, the_problem, writer

POOL = '[[pools]]\ntags = { role = "prefill" }\n'


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return writer(tmp_path)


def test_without_any_there_are_none(write: Write) -> None:
    assert load_config(write(ONE), {}, {}).pools == ()


def test_a_pool_has_what_it_is_given_and_else_the_common_options(write: Write) -> None:
    own = 'score = "inflight_kv"\noverload_kv = 0.8\n[pools.inflight_kv]\nlambda = 3.0\n[pools.token_aware]\nkv_limit = 0.9\n'
    common = 'unknown = "avoid"\noverload_waiting = 7\n[token_aware]\nkv_weight = 2.0\nkv_limit = 0.6\n'
    config = load_config(write(common + POOL + own + POOL.replace("prefill", "decode") + ONE), {}, {})
    first, second = (pool.over(config) for pool in config.pools)
    assert (first.score, first.unknown, first.overload_waiting, first.overload_kv) == (
        "inflight_kv",
        "avoid",
        7,
        0.8,
    )
    assert (first.inflight_kv.lambda_, first.inflight_kv.kv_limit) == (3.0, 0.999)
    assert (first.token_aware.kv_weight, first.token_aware.kv_limit) == (2.0, 0.9)
    for name in type(second).model_fields:
        assert getattr(second, name) == getattr(config, name)


def test_flags_and_variables_are_common_options_that_a_pool_overrides(write: Write) -> None:
    file = write(POOL + "overload_waiting = 3\n" + ONE)
    config = load_config(file, {"overload_waiting": "9"}, {"LOADBOARD_SCORE": "inflight_kv"})
    (pool,) = config.pools
    assert (config.overload_waiting, pool.over(config).overload_waiting) == (9, 3)
    assert pool.over(config).score == "inflight_kv"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('score = "inflight_kv"', "pools[1].tags: is missing: add tags = ... (a table of texts)"),
        ("tags = {}", "pools[1].tags: is empty: name at least one tag"),
        ("tags = { role = 1 }", "pools[1].tags.role: 1 is not a text: put it in quotes"),
        ("tags = { role = { a = 'b' } }", "pools[1].tags.role: a table is not a text"),
        ('tags = "prefill"', "pools[1].tags: 'prefill' is not a table of texts"),
        ('tags = { role = "prefill" }', "pools[1].tags: are those of pools[0] too"),
        ('tags = { a = "b" }\nscor = "x"', "pools[1].scor: unknown key; did you mean score?"),
        (
            'tags = { a = "b" }\ninterval = 3',
            "pools[1].interval: unknown key here: interval belongs at the top level, above the first [section]",
        ),
        (
            'tags = { a = "b" }\nweight = 3.0',
            "pools[1].weight: unknown key here: weight belongs under [[instances]]",
        ),
        (
            'tags = { a = "b" }\nslots_weight = 3.0',
            "pools[1].slots_weight: unknown key here: slots_weight belongs under [pools.token_aware]",
        ),
        (
            'tags = { a = "b" }\ntoken_aware = 3',
            "pools[1].token_aware: 3 is not a table: write [pools.token_aware] and its keys below it",
        ),
        (
            'tags = { a = "b" }\n[pools.token_aware]\nkv_limit = 2.0',
            "pools[1].token_aware.kv_limit: 2.0 is out of range: use 0.5 to 0.999",
        ),
        (
            'tags = { a = "b" }\n[pools.token_aware]\nkv_limits = 0.9',
            "pools[1].token_aware.kv_limits: unknown key; did you mean kv_limit?",
        ),
        ('tags = { a = "b" }\noverload_kv = 90.0', "pools[1].overload_kv: 90.0 is out of range: use 0 to 1"),
        ('tags = { a = "b" }\nunknown = "avoided"', "pools[1].unknown: 'avoided' is not one of"),
    ],
)
def test_a_wrong_pool_is_named_with_its_value_and_the_way_out(lines: str, said: str, write: Write) -> None:
    assert the_problem(write(f"{POOL}[[pools]]\n{lines}\n{ONE}")).startswith(said)


def test_the_same_tags_in_another_order_are_the_same(write: Write) -> None:
    first, second = "a = '1', b = '2'", "b = '2', a = '1'"
    problem = the_problem(write(f"[[pools]]\ntags = {{{first}}}\n[[pools]]\ntags = {{{second}}}\n{ONE}"))
    assert problem == "pools[1].tags: are those of pools[0] too: put both pools into one"


@pytest.mark.parametrize("text", ["[pools]\nx = 1\n", "pools = 3\n"])
def test_pools_of_another_form_are_refused(text: str, write: Write) -> None:
    assert the_problem(write(text + ONE)) == "pools: has to be a list of tables: write [[pools]] above each"


def test_faults_of_pools_are_reported_beside_all_others(write: Write) -> None:
    found = problems_of(write("tick = 9\n[[pools]]\ntags = {}\n" + ONE + "weight = 0\n"))
    assert [line.split(": ")[0] for line in found] == ["tick", "instances[0].weight", "pools[0].tags"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("weight = 0.001", "weight: 0.001 is out of range: use 0.01 to 100"),
        ("weight = -1", "weight: -1 is out of range: use 0.01 to 100"),
        ("weight = nan", "weight: nan is out of range: use 0.01 to 100"),
        ('draining = "yes"', "draining: 'yes' is not true or false"),
    ],
)
def test_a_wrong_weight_or_draining_is_named(line: str, said: str, write: Write) -> None:
    assert the_problem(write(f"{ONE}{line}\n")).startswith(f"instances[0].{said}")


def checked(file: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["check", str(file)]) == 0
    return capsys.readouterr().out.splitlines()[1:]


def test_check_lists_the_pools_with_their_instances(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    instances = "".join(
        f'[[instances]]\nurl = "http://10.0.0.1:{port}"\ntags = {{ role = "{role}", rack = "1" }}\n'
        for port, role in ((8001, "prefill"), (8002, "prefill"), (8003, "decode"))
    )
    file = write(POOL + 'score = "inflight_kv"\n[[pools]]\ntags = { role = "decode" }\n' + instances)
    assert checked(file, capsys) == [
        "  pools[0] (role = prefill): 2 instances, score inflight_kv",
        "  pools[1] (role = decode): 1 instance, score token_aware",
    ]


def test_check_notes_pools_without_instances(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    wide_first = POOL + "[[pools]]\ntags = { role = 'prefill', gpu = 'h' }\n" + POOL.replace("prefill", "x")
    tagged = ONE + "tags = { role = 'prefill', gpu = 'h' }\n"
    assert [line for line in checked(write(wide_first + tagged), capsys) if "note" in line] == [
        "  note: pools[1].tags: pools[0] matches every instance that has them, and the first that matches counts: "
        "put the one with more tags first",
        "  note: pools[2].tags: no instance has them: its options are of no use",
    ]
