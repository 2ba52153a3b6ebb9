"""The instances of a configuration: addresses, ids, flags, and tokens that stay secret."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.config import (
    ConfigError,
    InstanceConfig,
    load_config,
)
from monitor.config.address import MAX_URL_BYTES, base_url, shown
from monitor.config.model import MAX_ID_BYTES, MAX_TAGS_BYTES
from monitor.engines import ENGINES
from score_table import identity
from tests.unit.monitor.config_problems import ONE, Write, problems_of, the_problem, writer

SECRET = "sk-Very5ecret"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return writer(tmp_path)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('url = "10.0.0.1:8000"', "].url: '10.0.0.1:8000' does not say how to connect: write http://10.0.0.1:8000"),
        ('url = "ftp://a"', "].url: 'ftp://a' has the scheme 'ftp': use http:// or https://"),
        ('url = "http://"', "].url: 'http://' has no valid host name"),
        ('url = "http://a..b"', "].url: 'http://a..b' has no valid host name"),
        ('url = "http://a:99999"', "has the port '99999': use a number from 1 to 65535"),
        ('url = "http://a:"', "has the port ''"),
        ('url = "http://a b"', "has a space or an unprintable character"),
        ('url = "http://fe80::1:8000"', "seems to have an IPv6 address: put it in brackets"),
        ('url = "http://[fe80::1%eth0]:8000"', "no clear host"),
        ('url = "http://[10.0.0.1]:8000"', "no IPv6 address between its brackets"),
        ('url = "http://a/x?y=z"', "is a base URL"),
        (f'url = "http://a/{"x" * 300}"', "bytes long and the table holds 300"),
        ('id = "a"', "].url: is missing: add url ="),
        ('url = "http://a"\nid = ""', "].id: '' is no id"),
        ('url = "http://a"\nid = " a"', "].id: ' a' is no id"),
        (f'url = "http://a"\nid = "{"é" * 96}"', "is 192 bytes long and the table holds 190"),
        ('url = "http://a"\ntags = {a = 1}', "].tags.a: 1 is not a text"),
        (f'url = "http://a"\ntags = {{a = "{"x" * 343}"}}', "].tags: the tags are 351 bytes long as JSON and the table holds 350"),
        ('url = "http://a"\nengine = "vlm"', "].engine: 'vlm' is not one of `auto`, `vllm`, `sglang`; did you mean vllm?"),
        ('url = "http://a"\nmetrics_url = "http://a:9/metrics"', "].metrics_url: 'http://a:9/metrics' is not a base URL"),
        ('url = "http://a"\nstaleness = 3', "staleness belongs at the top level, above the first [section]"),
        ('url = "http://a"\nurll = "b"', "].urll: unknown key; did you mean url?"),
        ('url = "http://a"\nca_file = "/x"', "]: ca_file has no effect on 'http://a:80'"),
        ('url = "http://a"\nverify_tls = false', "]: verify_tls has no effect on 'http://a:80'"),
        ('url = "https://a"\nverify_tls = false\nca_file = "/x"', "]: ca_file has no effect with verify_tls = false"),
        ('url = "https://a"\nca_file = "/no/such/file"', "].ca_file: '/no/such/file' cannot be read: No such file"),
        ('url = "http://a"\nslots = 0', "].slots: 0 is out of range: use 1 to 1000000"),
    ],
)  # fmt: skip
def test_a_wrong_instance_is_named_with_its_value_and_the_way_out(
    lines: str, said: str, write: Write
) -> None:
    problem = the_problem(write(f"{ONE}[[instances]]\n{lines}\n"))
    assert problem.startswith("instances[1]")
    assert said in problem


def test_tags_of_just_the_room_there_is_are_taken(write: Write) -> None:
    text = "x" * (MAX_TAGS_BYTES - len('{"a":""}'))
    config = load_config(write(f'{ONE}tags = {{a = "{text}"}}\n'), {}, {})
    assert config.instances[0].tags == {"a": text}


def test_limits_and_words_are_those_of_the_rooms_that_have_to_hold_them() -> None:
    assert (MAX_ID_BYTES, MAX_URL_BYTES, MAX_TAGS_BYTES) == (
        identity.ID_LIMIT,
        identity.URL_LIMIT,
        identity.TAGS_LIMIT,
    )
    words = get_args(InstanceConfig.model_fields["engine"].annotation)
    assert set(words) == {"auto", *(engine.name for engine in ENGINES)}


def test_instances_of_flags_come_after_those_of_the_file(write: Write) -> None:
    config = load_config(write(ONE), {}, {}, ["second=http://10.0.0.2:8000", "http://[::1]:8000/v/"])
    assert [(instance.id, instance.url) for instance in config.instances] == [
        ("10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("second", "http://10.0.0.2:8000"),
        ("[::1]:8000", "http://[::1]:8000/v"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a/b=http://x", "'a/b' has a / in it"),
        ("http://x/?a=b", "'http://x/?***' has a query"),
        ("x:80/?a=b", "'x:80/?***' does not say how to connect"),
        ("a=x:80", "'x:80' does not say how to connect"),
        ("=http://x", "'' is no id"),
        ("", "'' does not say how to connect"),
    ],
)
def test_a_wrong_instance_flag_is_split_at_the_right_place(text: str, said: str) -> None:
    problem = the_problem(None, {}, {}, [text])
    assert problem.startswith(f"--instance {shown(text)}: ")
    assert said in problem


def test_an_equals_sign_in_a_path_belongs_to_the_url() -> None:
    config = load_config(None, {}, {}, ["http://x/a=b", "y=http://x/a=b"])
    assert [(instance.id, instance.url) for instance in config.instances] == [
        ("x:80", "http://x:80/a=b"),
        ("y", "http://x:80/a=b"),
    ]


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("HTTP://Host.Example:8000/", "http://host.example:8000"),
        ("https://h", "https://h:443"),
        ("http://h", "http://h:80"),
        ("http://h:8000/a/b/", "http://h:8000/a/b"),
        ("http://[2001:DB8:0:0::1]:8000", "http://[2001:db8::1]:8000"),
        ("http://under_score:1", "http://under_score:1"),
    ],
)
def test_urls_are_normalised(text: str, url: str) -> None:
    assert base_url(text) == url
    assert base_url(url) == url


@settings(deadline=None)  # a busy machine is no fault of a URL
@given(
    st.text(max_size=60) | st.text(alphabet="htps:/[]@?#%.0123456789ab", max_size=40).map("http://".__add__)
)
def test_any_text_is_a_url_or_a_fault(text: str) -> None:
    try:
        url = base_url(text)
    except ValueError:
        return
    assert base_url(url) == url


def test_an_instance_may_have_its_own_pace(write: Write) -> None:
    config = load_config(
        write(ONE + "interval = 0.5\n" + '[[instances]]\nurl="http://b"\ntimeout=1\n'), {}, {}
    )
    first, second = config.instances
    assert (config.interval_of(first), config.timeout_of(first)) == (0.5, 2.0)
    assert (config.interval_of(second), config.timeout_of(second)) == (1.0, 1.0)


def test_polls_go_to_the_metrics_url_where_there_is_one(write: Write) -> None:
    config = load_config(write(ONE + 'metrics_url = "http://10.0.0.1:9000/"\n'), {}, {})
    assert config.instances[0].metrics_base == "http://10.0.0.1:9000"
    assert config.instances[0].url == "http://10.0.0.1:8000"


def test_a_token_comes_from_the_file_a_variable_or_a_file_of_its_own(write: Write, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(f"{SECRET}\n")
    for line in (
        f'bearer_token = "{SECRET}"',
        'bearer_token_env = "TOKEN"',
        f'bearer_token_file = "{token_file}"',
    ):
        config = load_config(write(f"{ONE}{line}\n"), {}, {"TOKEN": SECRET})
        token = config.instances[0].bearer_token
        assert token is not None
        assert token.get_secret_value() == SECRET
        assert SECRET not in repr(config) + str(config) + str(config.model_dump())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f'bearer_token = "{SECRET}\\n"', "bearer_token: a bearer token has"),
        (f'bearer_token = ["{SECRET}"]', "bearer_token: the token has to be a text"),
        (f'bearer_tokn = "{SECRET}"', "bearer_tokn: unknown key; did you mean bearer_token?"),
        (f'bearer_token = "{SECRET}"\nbearer_token_env = "A"', "bearer_token and bearer_token_env are given"),
        (
            'bearer_token_env = "TOKEN"',
            "bearer_token_env: the environment variable TOKEN must hold one token",
        ),
        ('bearer_token_env = "NONE"', "bearer_token_env: the environment variable NONE is not set"),
        (f'bearer_token_env = "{SECRET}"', "bearer_token_env: the variable it names is not set"),
        (f'bearer_token_file = "{SECRET}"', "bearer_token_file: the file cannot be read: No such file"),
        (
            'bearer_token_file = "/no/file"',
            "bearer_token_file: the file /no/file cannot be read: No such file",
        ),
        ('bearer_token_file = "/dev/null"', "bearer_token_file: the file /dev/null is empty"),
        (
            f'metrics_url = "http://user:{SECRET}@a"',
            "metrics_url: 'http://***@a' has a user name or password",
        ),
        (f'metrics_url = "user:{SECRET}@a"', "metrics_url: '***@a' does not say how to connect"),
        (f'metrics_url = "http://a?key={SECRET}"', "metrics_url: 'http://a?***' has a query"),
        (f'metrics_url = "http://u:{SECRET}/x@a"', "metrics_url: 'http://***@a' has"),
    ],
)
def test_no_message_holds_a_token(line: str, said: str, write: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(f"{ONE}{line}\n"), {}, {"TOKEN": f"two {SECRET}"})
    assert said in str(caught.value)
    assert SECRET not in str(caught.value) + repr(caught.value.problems)
    assert caught.value.__cause__ is None


def test_an_instance_flag_with_a_password_is_not_quoted() -> None:
    assert SECRET not in "".join(problems_of(None, {}, {}, [f"a=http://u:{SECRET}@h"]))


def test_what_is_only_pointed_at_can_be_left_alone(write: Write) -> None:
    file = write('[[instances]]\nurl="https://a"\nbearer_token_file="/no/file"\nca_file="/no/ca"\n')
    config = load_config(file, {}, {}, resolve=False)
    assert config.instances[0].bearer_token is None


def test_a_ca_file_without_certificates_is_refused(write: Write, tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_text("nothing\n")
    problem = the_problem(write(f'[[instances]]\nurl="https://a"\nca_file="{ca_file}"\n'))
    assert problem == f"instances[0].ca_file: '{ca_file}' has no certificates in PEM form"
