"""The parts of the demo proxy that need no network: prompts, headers, instances, settings."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import threading
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy_adapter.demo_proxy import connections as connections_module
from proxy_adapter.demo_proxy.app import make_source
from proxy_adapter.demo_proxy.connections import Connections
from proxy_adapter.demo_proxy.failure_log import describe
from proxy_adapter.demo_proxy.headers import request_headers, response_headers
from proxy_adapter.demo_proxy.instances import FixedInstances, make_instance, split_instance
from proxy_adapter.demo_proxy.prompts import MAX_PARSED_BYTES, UNKNOWN, work_of
from proxy_adapter.demo_proxy.settings import ENVIRONMENT_KEY, ProxySettings
from proxy_adapter.demo_proxy.table_instances import TableInstances
from score_table.errors import TableAbsent, TablePermission
from tests.unit.proxy_adapter.demo_proxy_rig import refusing
from tests.waiting import wait_until_async

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "document", "tokens"),
    [
        (COMPLETIONS, {"prompt": "a" * 401}, 100),
        (COMPLETIONS, {"prompt": ""}, 1),
        (COMPLETIONS, {"prompt": list(range(57))}, 57),
        (COMPLETIONS, {"prompt": ["a" * 40, "b" * 40]}, 20),
        (COMPLETIONS, {"prompt": [[1, 2, 3], [4, 5]]}, 5),
        (COMPLETIONS, {"prompt": {"odd": 1}}, 1),
        (COMPLETIONS, {"messages": []}, None),
        (CHAT, {"messages": [{"content": "a" * 80}, {"content": "b" * 20}]}, 25),
        (
            CHAT,
            {
                "messages": [
                    {"content": [{"type": "text", "text": "c" * 40}, {"image_url": {"url": "d" * 999}}]}
                ]
            },
            10,
        ),
        (CHAT, {"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, 1),
        (CHAT, {"messages": ["odd", None, {"content": 7}, {"content": [None, {"text": 1}]}]}, 1),
        (CHAT, {"prompt": "not here"}, None),
        ("/v1/embeddings", {"input": "x", "prompt": "y"}, None),
    ],
)
def test_prompt_tokens_are_a_quarter_of_the_text(path: str, document: Any, tokens: int | None) -> None:
    assert work_of(path, json.dumps(document).encode()).prompt_tokens == tokens


@pytest.mark.parametrize(("stream", "told"), [(True, True), (False, False), (None, False), ("true", False)])
def test_only_a_request_that_asks_for_a_stream_is_said_to_stream(stream: Any, told: bool) -> None:
    assert work_of(CHAT, json.dumps({"messages": [], "stream": stream}).encode()).streams is told


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe{",
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "\xc3\x28"}',
        b'{"prompt": "' + b"a" * MAX_PARSED_BYTES + b'"}',
        b"prompt=form",
        b"\x1f\x8b\x08",
    ],
)
def test_a_body_that_cannot_be_read_is_unknown(body: bytes) -> None:
    assert work_of(COMPLETIONS, body) == UNKNOWN


def test_a_number_of_a_million_digits_does_no_harm() -> None:
    assert work_of(COMPLETIONS, b'{"prompt": [' + b"9" * 1_000_000 + b"]}").prompt_tokens == 1


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["content", "text", "prompt"]), inner),
    max_leaves=15,
)


@given(path=st.sampled_from([COMPLETIONS, CHAT]), value=_json, stream=_json)
def test_no_document_raises_and_no_estimate_is_below_one(path: str, value: Any, stream: Any) -> None:
    key = "prompt" if path == COMPLETIONS else "messages"
    tokens = work_of(path, json.dumps({key: value, "stream": stream}).encode()).prompt_tokens
    assert tokens is None if value is None else (tokens is not None and tokens >= 1)


@given(st.binary(), st.sampled_from([b"", b"{", b'{"prompt":']))
def test_no_bytes_raise(body: bytes, start: bytes) -> None:
    work_of(COMPLETIONS, start + body)


def test_names_in_connection_are_dropped_wherever_they_stand() -> None:
    headers = [
        (b"X-A", b"1"),
        (b"Connection", b"x-a , X-B"),
        (b"x-b", b"2"),
        (b"Connection", b"x-c"),
        (b"x-c", b"3"),
    ]
    assert request_headers("GET", [*headers, (b"x-d", b"4")], b"") == [(b"x-d", b"4")]
    assert response_headers(headers, b"i") == [(b"x-loadboard-instance", b"i")]


@pytest.mark.parametrize("chunked", [True, False])
def test_an_announced_length_is_not_passed_beside_a_transfer_encoding(chunked: bool) -> None:
    headers = [(b"Content-Length", b"7"), (b"x-a", b"1")]
    encoding = [(b"Transfer-Encoding", b"chunked")] if chunked else []
    names = [name for name, _ in response_headers(headers + encoding, b"i")]
    kept = [] if chunked else [b"content-length"]
    assert names == [*kept, b"x-a", b"x-loadboard-instance"]


@pytest.mark.parametrize("kind", [httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError])
def test_an_error_without_a_text_is_told_by_its_name(kind: type[httpx.TransportError]) -> None:
    instance = make_instance("http://h:1")
    assert describe(instance, kind("")).endswith(f": {kind.__name__}")
    assert describe(instance, kind("because")).endswith(": because")


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [("GET", b"", None), ("GET", b"ab", b"2"), ("POST", b"", b"0"), ("DELETE", b"", None)],
)
def test_the_length_is_that_of_the_body_read(method: str, body: bytes, length: bytes | None) -> None:
    fields = dict(
        request_headers(method, [(b"content-length", b"99"), (b"transfer-encoding", b"chunked")], body)
    )
    assert fields.get(b"content-length") == length
    assert b"transfer-encoding" not in fields


@pytest.mark.parametrize(
    ("url", "id_", "host", "port", "host_header", "prefix"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000", "10.0.0.1", 8000, b"10.0.0.1:8000", b""),
        ("http://Engine.local/", "engine.local:80", "engine.local", 80, b"engine.local", b""),
        ("https://engine.local", "engine.local:443", "engine.local", 443, b"engine.local", b""),
        ("http://[0:0:0:0:0:0:0:1]:9000/a/", "[::1]:9000", "::1", 9000, b"[::1]:9000", b"/a"),
    ],
)
def test_an_instance_is_made_from_its_url(
    url: str, id_: str, host: str, port: int, host_header: bytes, prefix: bytes
) -> None:
    made = make_instance(url)
    assert (made.instance_id, made.host, made.port) == (id_, host, port)
    assert (made.host_header, made.prefix) == (host_header, prefix)


@pytest.mark.parametrize(
    ("text", "id_", "url"),
    [
        ("a=http://h:1", "a", "http://h:1"),
        ("http://h:1/x=y", "h:1", "http://h:1/x=y"),
        ("http://h:1", "h:1", "http://h:1"),
        ("rack=7=http://h:1", None, None),
    ],
)
def test_an_id_may_stand_before_the_url(text: str, id_: str | None, url: str | None) -> None:
    if id_ is None:
        with pytest.raises(ValueError, match="must start with http"):
            split_instance(text)
    else:
        assert split_instance(text) == (id_, url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("10.0.0.1:8000", "must start with"),
        ("ftp://h", "must start with"),
        ("http://", "names no host"),
        ("http://::1:8000", "brackets"),
        ("http://h:99999", "range"),
        ("http://me:secret@h:1", "nothing else"),
        ("http://h:1?x=1", "nothing else"),
    ],
)
def test_a_bad_url_is_refused_without_showing_a_password(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        make_instance(url)
    assert "secret" not in str(caught.value)


def test_an_id_that_no_header_can_carry_is_encoded() -> None:
    assert make_instance("http://h:1", "gpu ü\n").id_header == b"gpu %C3%BC%0A"


def test_an_id_may_be_used_once() -> None:
    one = make_instance("http://h:1", "a")
    with pytest.raises(ValueError, match="'a' is used twice"):
        FixedInstances((one, one))


def test_settings_survive_the_way_to_a_worker() -> None:
    settings = ProxySettings("least_load", "/t", (("a", "http://h:1"),), 5, 1.5, 0.5)
    assert ProxySettings.from_environment({ENVIRONMENT_KEY: settings.to_json()}) == settings
    with pytest.raises(RuntimeError, match="loadboard proxy"):
        ProxySettings.from_environment({})


def test_instances_come_from_the_settings_else_from_the_table() -> None:
    named = ProxySettings("x", "/t", (("a", "http://h:1"),))
    assert [instance.instance_id for instance in make_source(named).current()] == ["a"]
    assert make_source(ProxySettings("x", "/t")).current() == ()
    with pytest.raises(ValueError, match="must be named"):
        make_source(ProxySettings("x", None))


class _Table:
    """Answers of a table, one per look; the last one stays."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.looks = 0

    def __call__(self, location: str) -> Iterable[tuple[str, str]]:
        self.looks += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        names: list[tuple[str, str]] = answer
        return names


async def _after_looks(source: TableInstances, table: _Table, looks: int) -> None:
    task = asyncio.ensure_future(source.run())
    await wait_until_async(lambda: table.looks >= looks, what=f"{looks} looks at the table")
    await wait_until_async(lambda: table.looks > looks, what="the next look")
    task.cancel()


def test_the_instances_of_the_table_are_followed_and_outlive_it(caplog: pytest.LogCaptureFixture) -> None:
    absent = TableAbsent("/t", "there is no table /t")
    table = _Table(
        absent, absent, [("a", "http://h:1"), ("b", "nonsense")], TablePermission("/t", "may not open /t")
    )
    source = TableInstances("/t", table, refresh_s=0.01)
    assert source.current() == ()
    with caplog.at_level(logging.INFO, "loadboard.proxy_adapter"):
        asyncio.run(_after_looks(source, table, 6))
    assert [instance.instance_id for instance in source.current()] == ["a"]
    said = [record.message for record in caplog.records]
    assert len(said) == 4, said
    assert "there is no table" in said[0]
    assert "'b' is left out" in said[1]
    assert "instances from table /t: a" in said[2]
    assert "may not open" in said[3]


def test_whatever_is_wrong_with_the_table_it_is_looked_at_again_and_each_turn_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [("a", "http://h:1")]
    broken = ValueError("cannot mmap an empty file")
    table = _Table(names, broken, broken, names, broken, OSError(), names)
    source = TableInstances("/t", table, refresh_s=0.01)
    with caplog.at_level(logging.INFO, "loadboard.proxy_adapter"):
        asyncio.run(_after_looks(source, table, 8))
    assert [instance.instance_id for instance in source.current()] == ["a"]
    assert [record.levelname for record in caplog.records] == [
        "INFO",
        "WARNING",
        "INFO",
        "WARNING",
        "WARNING",
        "INFO",
    ]
    said = [record.message for record in caplog.records]
    assert said[1] == said[3]
    assert "empty file" in said[1]
    assert "OSError" in said[4]


def test_names_that_cannot_be_used_leave_the_last_instances_and_are_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd: Any = [("b", None)]
    table = _Table([("a", "http://h:1")], odd, odd, [("b", "http://h:2")])
    source = TableInstances("/t", table, refresh_s=0.01)
    with caplog.at_level(logging.INFO, "loadboard.proxy_adapter"):
        asyncio.run(_after_looks(source, table, 4))
    assert [instance.instance_id for instance in source.current()] == ["b"]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]


def test_a_connection_that_fails_to_close_keeps_no_other_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections_module, "_KEEPALIVE_S", 0.01)
    closed = []

    class Unwilling(httpx.AsyncHTTPTransport):
        def __init__(self, name: str) -> None:
            super().__init__(verify=False)
            self.name = name

        async def aclose(self) -> None:
            closed.append(self.name)
            if self.name == "first":
                raise RuntimeError("made up")

    async def test() -> None:
        connections = Connections()
        for origin in ("first", "second"):
            await connections.give_back(origin, Unwilling(origin))
        chore = asyncio.ensure_future(connections.run())
        await wait_until_async(lambda: len(closed) == 2, what="both to be closed")
        await connections.give_back("third", Unwilling("third"))
        await wait_until_async(lambda: len(closed) == 3, what="a later one to be closed")
        chore.cancel()
        await asyncio.gather(chore, return_exceptions=True)
        await connections.aclose()

    asyncio.run(test())
    assert closed == ["first", "second", "third"]
    assert "could not be closed" in caplog.text


def test_the_authorities_are_read_once_and_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[bool] = []

    def read(**options: Any) -> ssl.SSLContext:
        readers.append(threading.current_thread() is threading.main_thread())
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    monkeypatch.setattr(httpx, "create_ssl_context", read)

    async def test() -> None:
        connections = Connections()
        async with refusing() as dead:
            for _ in range(2):
                asks = [httpx.Request("GET", f"https://{dead.host}:{dead.port}/") for _ in range(3)]
                ends = await asyncio.gather(
                    *map(connections.handle_async_request, asks), return_exceptions=True
                )
                assert [type(end) for end in ends] == [httpx.ConnectError] * 3
        await connections.aclose()

    asyncio.run(test())
    assert readers == [False]


def test_authorities_that_could_not_be_read_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Exception] = [OSError("made up"), OSError("made up")]

    def read(**options: Any) -> ssl.SSLContext:
        if answers:
            raise answers.pop()
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    monkeypatch.setattr(httpx, "create_ssl_context", read)

    async def test() -> None:
        connections = Connections()
        async with refusing() as dead:
            for kind in (OSError, OSError, httpx.ConnectError):
                with pytest.raises(kind):
                    await connections.handle_async_request(
                        httpx.Request("GET", f"https://{dead.host}:{dead.port}/")
                    )
        await connections.aclose()

    asyncio.run(test())


def test_the_list_is_the_same_object_while_nothing_changes() -> None:
    table = _Table([("a", "http://h:1")])
    source = TableInstances("/t", table, refresh_s=0.01)
    asyncio.run(_after_looks(source, table, 1))
    first = source.current()
    asyncio.run(_after_looks(source, table, table.looks + 2))
    assert source.current() is first
