"""The options: precedence, and one model from which keys, flags and variables follow."""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.config import (
    Option,
    add_option_flags,
    flags_from,
    load_config,
    options,
)
from tests.unit.monitor.config_problems import ONE, Write, writer

OPTIONS = options()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return writer(tmp_path)


def other_value(option: Option) -> str:
    """A valid text for ``option`` that is not its default."""
    special = {"table": "/other", "table_mode": "0600", "group": "proxies", "slots": "80"}
    special["score"] = "weighted_sum"
    if option.key_path in special:
        return special[option.key_path]
    if option.choices:
        return next(choice for choice in option.choices if choice != option.default)
    if option.kind == "a number":
        return f"{float(option.default) * 0.98 or 0.5:g}"
    return str(int(option.default) + 1)


def test_a_file_with_one_url_gives_all_the_defaults(write: Write) -> None:
    config = load_config(write(ONE), {}, {})
    assert {option.key_path: option.read(config) for option in OPTIONS} == {
        option.key_path: option.default for option in OPTIONS
    }
    assert (config.table, config.interval, config.inflight_kv.lambda_) == ("/loadboard", 1.0, 1.5)
    assert config.table_mode_bits == 0o660


def test_no_file_is_needed() -> None:
    config = load_config(None, {}, {}, ["http://10.0.0.1:8000"])
    assert [instance.id for instance in config.instances] == ["10.0.0.1:8000"]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key_path)
def test_every_option_can_be_set_in_each_of_the_three_places(option: Option, write: Write) -> None:
    text = other_value(option)
    *section, key = option.key_path.split(".")
    quoted = text if option.kind != "a text" else f'"{text}"'
    file = write("".join(f"[{name}]\n" for name in section) + f"{key} = {quoted}\n" + ONE)
    parser = argparse.ArgumentParser()
    add_option_flags(parser)
    flags = flags_from(parser.parse_args([f"{option.flag}={text}"]))
    assert flags == {option.key_path: text}

    from_file = option.read(load_config(file, {}, {}))
    from_env = option.read(load_config(write(ONE), {}, {option.env: text}))
    from_flag = option.read(load_config(write(ONE), flags, {}))
    assert from_file == from_env == from_flag != option.default


def test_flags_win_over_variables_and_variables_over_the_file(write: Write) -> None:
    file = write("interval = 1.1\ntimeout = 1.1\njitter = 0.2\n" + ONE)
    env = {"LOADBOARD_INTERVAL": "1.2", "LOADBOARD_TIMEOUT": "1.2"}
    config = load_config(file, {"interval": "1.3"}, env)
    assert (config.interval, config.timeout, config.jitter) == (1.3, 1.2, 0.2)


def test_a_section_keeps_the_keys_that_a_flag_does_not_name(write: Write) -> None:
    file = write("[token_aware]\nkv_weight = 6\nkv_limit = 0.9\n" + ONE)
    config = load_config(file, {"token_aware.kv_weight": "7"}, {})
    assert (config.token_aware.kv_weight, config.token_aware.kv_limit) == (7.0, 0.9)


def test_an_empty_variable_is_as_good_as_none(write: Write) -> None:
    assert load_config(write("interval = 0.5\n" + ONE), {}, {"LOADBOARD_INTERVAL": ""}).interval == 0.5


def test_a_flag_may_be_empty(write: Write) -> None:
    assert load_config(write('group = "a"\n' + ONE), {"group": ""}, {}).group == ""


def test_flags_that_were_not_given_are_not_passed_on() -> None:
    parser = argparse.ArgumentParser()
    add_option_flags(parser)
    assert flags_from(parser.parse_args([])) == {}
    given = parser.parse_args(["--interval", "0.5", "--inflight-kv-lambda", "2"])
    assert flags_from(given) == {"interval": "0.5", "inflight_kv.lambda": "2"}


def test_names_follow_from_the_key_path_and_are_unique() -> None:
    by_path = {option.key_path: option for option in OPTIONS}
    nested = by_path["token_aware.prefill_weight"]
    assert (nested.flag, nested.env) == (
        "--token-aware-prefill-weight",
        "LOADBOARD_TOKEN_AWARE_PREFILL_WEIGHT",
    )
    assert by_path["inflight_kv.lambda"].env == "LOADBOARD_INFLIGHT_KV_LAMBDA"
    assert len({option.flag for option in OPTIONS}) == len({option.env for option in OPTIONS}) == len(OPTIONS)
    assert all(option.help and option.range for option in OPTIONS)


def test_what_belongs_to_the_table_from_its_making_and_the_form_of_the_log_are_not_reloadable() -> None:
    fixed = {option.key_path for option in OPTIONS if not option.reloadable}
    assert fixed == {"table", "table_mode", "group", "slots", "lanes", "max_heartbeat_age", "log_format"}


def test_a_variable_that_looks_like_an_option_is_pointed_out(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    env = {"LOADBOARD_INTERVALL": "9", "LOADBOARD_SERVICE_HOST": "10.0.0.9", "LOADBOARD_PORT_80_TCP": "x"}
    with caplog.at_level(logging.WARNING, "loadboard.monitor"):
        load_config(write(ONE), {}, env)
    assert [record.getMessage() for record in caplog.records] == [
        "environment variable LOADBOARD_INTERVALL is not an option of loadboard; "
        "did you mean LOADBOARD_INTERVAL?"
    ]


def test_a_loaded_configuration_equals_another_of_the_same_file(write: Write) -> None:
    file = write(ONE + 'bearer_token = "a"\n')
    assert load_config(file, {}, {}) == load_config(file, {}, {})


def test_options_can_be_listed_without_the_parts_of_the_daemon() -> None:
    code = (
        "import sys, monitor.config; sys.exit(' '.join({'httpx', 'structlog', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.strip() == ""
