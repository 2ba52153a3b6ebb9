"""One GET against servers that misbehave: the right kind, a sentence that helps, and nothing left open."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from monitor.polling import trust
from monitor.polling.causes import Stage, broken
from monitor.polling.fetch import Body, FailureKind, Fetcher, FetchFailure, Target
from tests import servers
from tests.waiting import wait_until_async

SECRET = "sk-very-secret"


def run(test: Callable[[Fetcher], Coroutine[Any, Any, None]], max_body_bytes: int = 1_000_000) -> None:
    """Run the test with a fetcher of its own; nothing may be left when the fetcher is closed."""

    async def whole() -> None:
        fds, tasks = servers.open_fds(), asyncio.all_tasks()
        fetcher = Fetcher(max_body_bytes)
        await test(fetcher)
        await fetcher.aclose()
        await wait_until_async(lambda: servers.open_fds() <= fds, what="all descriptors to be closed")
        await wait_until_async(lambda: asyncio.all_tasks() <= tasks, what="all tasks to end")

    asyncio.run(asyncio.wait_for(whole(), 30))


def at(url: str, **more: Any) -> Target:
    return Target("gpu-1", url, **more)


async def failure(answer: Awaitable[Body]) -> FetchFailure:
    """The failure that ``answer`` ends in; its sentence is checked for what every one has to keep to."""
    with pytest.raises(FetchFailure) as raised:
        await answer
    reason = raised.value.reason
    assert reason.startswith("instance gpu-1: ")
    assert SECRET not in reason
    assert "\n" not in reason
    assert ";" in reason  # what is wrong; what to do
    return raised.value


# Answers


def test_a_whole_answer_is_returned_with_its_status() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(b"vllm:num_requests_running 3\n")) as server:
            body = await fetcher.get(at(server.url), "/metrics", 5)
            assert body == Body(200, b"vllm:num_requests_running 3\n")
            assert server.requests[0].path == "/metrics"

    run(test)


def test_a_chunked_answer_is_put_together() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.flood(200_000, chunked=True)) as server:
            assert len((await fetcher.get(at(server.url), "/metrics", 5)).content) == 196608

    run(test)


@pytest.mark.parametrize("status", [204, 400, 401, 403, 404, 405, 501])
def test_an_answer_below_500_is_the_callers_to_judge(status: int) -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(b"", status)) as server:
            assert await fetcher.get(at(server.url), "/metrics", 5) == Body(status, b"")

    run(test)


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_error_is_a_failure_with_its_status(status: int) -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(b"oops", status)) as server:
            error = await failure(fetcher.get(at(server.url), "/metrics", 5))
            assert (error.kind, error.status) == (FailureKind.STATUS, status)
            assert f"{server.url}/metrics answers {status}" in error.reason

    run(test)


def test_the_path_is_appended_to_the_base_with_its_prefix_and_query() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer()) as server:
            await fetcher.get(at(f"{server.url}/model%20a/"), "/v1/loads?include=core", 5)
            assert server.requests[0].path == "/model%20a/v1/loads?include=core"

    run(test)


def test_one_connection_serves_all_polls() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(b"x")) as server:
            target = at(server.url)
            for _ in range(5):
                await fetcher.get(target, "/metrics", 5)
            assert server.connections == 1

    run(test)


def test_a_connection_that_the_instance_closes_as_it_is_used_again_is_replaced_unnoticed() -> None:
    async def test(fetcher: Fetcher) -> None:
        behaviour = servers.one_after_another(
            servers.answer(b"1"), servers.close_unanswered, servers.answer(b"2")
        )
        async with servers.serving(behaviour) as server:
            target = at(server.url)
            assert (await fetcher.get(target, "/metrics", 5)).content == b"1"
            assert (await fetcher.get(target, "/metrics", 5)).content == b"2"
            assert server.connections == 2

    run(test)


def test_openmetrics_and_compression_are_not_asked_for() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer()) as server:
            await fetcher.get(at(server.url), "/metrics", 5)
            headers = server.requests[0].headers
            assert "openmetrics" not in headers["accept"]
            assert headers["accept"].startswith("text/plain;version=0.0.4")
            assert "application/json" in headers["accept"]
            assert headers["accept-encoding"] == "identity"

    run(test)


def test_each_target_sends_its_own_headers() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer()) as server:
            await fetcher.get(at(server.url, headers={"Authorization": f"Bearer {SECRET}"}), "/metrics", 5)
            await fetcher.get(at(server.url), "/metrics", 5)
            assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
            assert "authorization" not in server.requests[1].headers

    run(test)


def test_a_cookie_is_not_sent_back() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(headers={"Set-Cookie": "a=b"})) as server:
            target = at(server.url)
            await fetcher.get(target, "/metrics", 5)
            await fetcher.get(target, "/metrics", 5)
            assert "cookie" not in server.requests[1].headers

    run(test)


def test_the_proxy_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(fetcher: Fetcher) -> None:
        async with (
            servers.serving(servers.answer(b"proxy")) as proxy,
            servers.serving(servers.answer(b"instance")) as server,
        ):
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(name, proxy.url)
            monkeypatch.delenv("NO_PROXY", raising=False)
            monkeypatch.delenv("no_proxy", raising=False)
            assert (await fetcher.get(at(server.url), "/metrics", 5)).content == b"instance"
            assert proxy.connections == 0

    run(test)


@pytest.mark.skipif(not servers.has_ipv6(), reason="::1 cannot be listened on")
def test_an_ipv6_address_in_brackets_is_asked() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(b"six"), host="::1") as server:
            assert "[::1]" in server.url
            assert (await fetcher.get(at(server.url), "/metrics", 5)).content == b"six"
            assert server.requests[0].headers["host"] == f"[::1]:{server.port}"

    run(test)


# Deadline and cap


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        (servers.hang, "gave no answer within 0.5 s"),
        (servers.hang_in_headers, "gave no answer within 0.5 s"),
        (servers.trickle, "bytes of its answer within 0.5 s"),
    ],
)
def test_an_answer_that_is_not_whole_in_time_is_a_timeout(behaviour: servers.Behaviour, says: str) -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(behaviour) as server:
            error = await failure(fetcher.get(at(server.url), "/metrics", 0.5))
            assert error.kind is FailureKind.TIMEOUT
            assert f"{server.url}/metrics" in error.reason
            assert says in error.reason
            await wait_until_async(lambda: server.under_way == 0, what="the connection to be closed")

    run(test)


def test_a_server_that_never_accepts_is_a_timeout_without_an_answer() -> None:
    async def test(fetcher: Fetcher) -> None:
        with servers.never_accepting_port() as port:
            error = await failure(fetcher.get(at(f"http://127.0.0.1:{port}"), "/metrics", 0.5))
            assert error.kind is FailureKind.TIMEOUT
            assert "gave no answer" in error.reason

    run(test)


def test_a_port_that_drops_connections_is_told_apart_from_a_timeout() -> None:
    async def test(fetcher: Fetcher) -> None:
        with servers.silent_port() as port:
            error = await failure(fetcher.get(at(f"http://127.0.0.1:{port}"), "/metrics", 0.5))
            assert error.kind is FailureKind.NO_CONNECTION
            assert "no connection" in error.reason

    run(test)


def test_after_a_timeout_the_next_poll_has_a_connection_of_its_own() -> None:
    async def test(fetcher: Fetcher) -> None:
        behaviour = servers.one_after_another(servers.hang, servers.answer(b"awake"))
        async with servers.serving(behaviour) as server:
            target = at(server.url)
            await failure(fetcher.get(target, "/metrics", 0.5))
            assert (await fetcher.get(target, "/metrics", 5)).content == b"awake"

    run(test)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_huge_body_is_cut_at_the_cap(chunked: bool) -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.flood(100_000_000, chunked=chunked)) as server:
            error = await failure(fetcher.get(at(server.url), "/metrics", 20))
            assert error.kind is FailureKind.TOO_LARGE
            assert "more than 1000000 bytes" in error.reason
            assert "max_body_bytes" in error.reason
            await wait_until_async(lambda: server.under_way == 0, what="the server to be cut off")

    run(test, max_body_bytes=1_000_000)


def test_a_body_of_exactly_the_cap_is_taken() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(b"x" * 1000)) as server:
            assert len((await fetcher.get(at(server.url), "/metrics", 5)).content) == 1000

    run(test, max_body_bytes=1000)


def test_a_compressed_body_is_refused_unopened() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(
            servers.answer(b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
        ) as server:
            error = await failure(fetcher.get(at(server.url), "/metrics", 5))
            assert error.kind is FailureKind.PROTOCOL
            assert "compressed" in error.reason

    run(test)


# Redirects


@pytest.mark.parametrize("absolute", [False, True])
def test_one_redirect_on_the_same_server_is_followed(absolute: bool) -> None:
    async def test(fetcher: Fetcher) -> None:
        paths: dict[str, servers.Behaviour] = {"/metrics/": servers.answer(b"here")}
        async with servers.serving(servers.by_path(paths)) as server:
            paths["/metrics"] = servers.redirect(f"{server.url}/metrics/" if absolute else "/metrics/")
            target = at(server.url, headers={"Authorization": f"Bearer {SECRET}"})
            assert await fetcher.get(target, "/metrics", 5) == Body(200, b"here")
            assert server.requests[1].headers["authorization"] == f"Bearer {SECRET}"
            assert server.connections == 1

    run(test)


def test_a_redirect_to_another_server_is_named_and_never_asked() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with (
            servers.serving(servers.answer()) as other,
            servers.serving(servers.redirect(f"{other.url}/metrics?token={SECRET}")) as server,
        ):
            target = at(server.url, headers={"Authorization": f"Bearer {SECRET}"})
            error = await failure(fetcher.get(target, "/metrics", 5))
            assert error.kind is FailureKind.REDIRECT
            assert f"127.0.0.1:{server.port}" in error.reason
            assert f"127.0.0.1:{other.port}" in error.reason
            assert other.connections == 0

    run(test)


@pytest.mark.parametrize(
    ("location", "named"),
    [
        ("http://elsewhere.invalid/metrics", "elsewhere.invalid:80"),
        ("//elsewhere.invalid:81/metrics", "elsewhere.invalid:81"),
        ("http://[2001:db8::1]/metrics", "[2001:db8::1]:80"),
        (f"http://me:{SECRET}@elsewhere.invalid/", "elsewhere.invalid:80"),
        ("ftp://127.0.0.1/metrics", "127.0.0.1"),
        ("http://127.0.0.1:port/", "no valid URL"),
    ],
)
def test_a_redirect_away_is_refused_however_it_is_written(location: str, named: str) -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.redirect(location)) as server:
            error = await failure(fetcher.get(at(server.url), "/metrics", 5))
            assert error.kind is FailureKind.REDIRECT
            assert named in error.reason

    run(test)


def test_a_second_redirect_is_not_followed() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.redirect("/again")) as server:
            error = await failure(fetcher.get(at(server.url), "/metrics", 5))
            assert error.kind is FailureKind.REDIRECT
            assert [request.path for request in server.requests] == ["/metrics", "/again"]

    run(test)


def test_redirects_share_the_one_deadline() -> None:
    async def test(fetcher: Fetcher) -> None:
        behaviour = servers.by_path({"/metrics": servers.redirect("/slow"), "/slow": servers.trickle})
        async with servers.serving(behaviour) as server:
            error = await failure(fetcher.get(at(server.url), "/metrics", 0.5))
            assert error.kind is FailureKind.TIMEOUT

    run(test)


# Broken connections


def test_a_refused_connection_is_told_apart() -> None:
    async def test(fetcher: Fetcher) -> None:
        with servers.refused_port() as port:
            error = await failure(fetcher.get(at(f"http://127.0.0.1:{port}"), "/metrics", 5))
            assert error.kind is FailureKind.REFUSED
            assert f"http://127.0.0.1:{port}/metrics refuses" in error.reason

    run(test)


def test_a_name_with_several_addresses_is_refused_if_all_of_them_refuse() -> None:
    async def test(fetcher: Fetcher) -> None:
        with servers.refused_port() as port:
            error = await failure(fetcher.get(at(f"http://localhost:{port}"), "/metrics", 5))
            assert error.kind is FailureKind.REFUSED

    run(test)


def test_an_instance_that_ends_between_two_polls_is_refused_at_the_second() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(b"x")) as server:
            target = at(server.url)
            await fetcher.get(target, "/metrics", 5)
        error = await failure(fetcher.get(target, "/metrics", 5))
        assert error.kind is FailureKind.REFUSED

    run(test)


def test_a_name_that_does_not_exist_is_told_apart() -> None:
    async def test(fetcher: Fetcher) -> None:
        error = await failure(fetcher.get(at("http://no-such-host.invalid:1"), "/metrics", 20))
        # Without a name server nobody can tell that the name does not exist.
        assert error.kind in (FailureKind.UNREACHABLE, FailureKind.UNRESOLVED)
        assert "no-such-host.invalid" in error.reason

    run(test)


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        (servers.break_off_mid_body, "broke off its answer after 11 bytes"),
        (servers.close_unanswered, "no valid HTTP answer"),
        (servers.reset, "no valid HTTP answer"),
        (servers.speak_no_http, "no valid HTTP answer"),
    ],
)
def test_a_broken_answer_is_a_protocol_failure_that_says_where(
    behaviour: servers.Behaviour, says: str
) -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(behaviour) as server:
            error = await failure(fetcher.get(at(server.url), "/metrics", 5))
            assert error.kind is FailureKind.PROTOCOL
            assert says in error.reason
            assert server.connections == 1  # a new connection that breaks is not tried again

    run(test)


def os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


@pytest.mark.parametrize(
    ("leaves", "kind"),
    [
        ([os_error(errno.ECONNREFUSED)], FailureKind.REFUSED),
        ([os_error(errno.ECONNREFUSED), os_error(errno.ECONNREFUSED)], FailureKind.REFUSED),
        ([os_error(errno.EADDRNOTAVAIL), os_error(errno.ECONNREFUSED)], FailureKind.REFUSED),
        ([os_error(errno.EHOSTUNREACH), os_error(errno.ECONNREFUSED)], FailureKind.PROTOCOL),
        ([os_error(errno.EHOSTUNREACH)], FailureKind.UNREACHABLE),
        ([os_error(errno.ENETUNREACH), os_error(errno.ENETUNREACH)], FailureKind.UNREACHABLE),
        ([os_error(errno.ETIMEDOUT)], FailureKind.NO_CONNECTION),
        ([os_error(errno.EMFILE)], FailureKind.LOCAL),
        ([os_error(errno.EADDRNOTAVAIL)], FailureKind.LOCAL),
        ([os_error(errno.ECONNRESET)], FailureKind.PROTOCOL),
        ([socket.gaierror(socket.EAI_NONAME, "Name or service not known")], FailureKind.UNREACHABLE),
        ([socket.gaierror(socket.EAI_AGAIN, "Temporary failure")], FailureKind.UNRESOLVED),
        ([], FailureKind.PROTOCOL),
    ],
)
def test_what_the_operating_system_said_decides_the_kind(leaves: list[OSError], kind: FailureKind) -> None:
    class Group(Exception):  # what an exception group looks like from outside, on Python 3.10 too
        exceptions = tuple(leaves)

    wrapped = Exception("All connection attempts failed")
    wrapped.__context__ = Group()
    found, text = broken(wrapped, Stage.CONNECT, "http://a:1/metrics", 0)
    assert found is kind
    assert "http://a:1/metrics" in text


@pytest.mark.parametrize("code", [socket.EAI_NONAME, socket.EAI_AGAIN])
def test_a_name_that_cannot_be_looked_up_is_no_matter_of_connecting(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def look_up(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(code, "made up")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def test(fetcher: Fetcher) -> None:
        error = await failure(fetcher.get(at("http://engine.test:8000"), "/metrics", 5))
        assert error.kind is (
            FailureKind.UNREACHABLE if code == socket.EAI_NONAME else FailureKind.UNRESOLVED
        )
        assert "made up" in error.reason

    run(test)


def test_a_name_server_that_hangs_says_nothing_about_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(*_: Any, **__: Any) -> Any:
        release.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)

    async def test(fetcher: Fetcher) -> None:
        try:
            error = await failure(fetcher.get(at("http://engine.test:8000"), "/metrics", 0.2))
        finally:
            release.set()
        assert error.kind is FailureKind.UNRESOLVED
        assert "DNS" in error.reason

    run(test)


# This side's own faults


@pytest.mark.parametrize("token", [f"{SECRET}\r\nX: y", f"{SECRET}é"])
def test_a_token_that_no_header_can_hold_is_our_fault_and_not_shown(token: str) -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer()) as server:
            target = at(server.url, headers={"Authorization": f"Bearer {token}"})
            error = await failure(fetcher.get(target, "/metrics", 5))
            assert error.kind is FailureKind.LOCAL
            assert error.__cause__ is None
            assert "bearer token" in error.reason

    run(test)


@pytest.mark.parametrize("url", ["http://a:port", "ftp://a", "nonsense", "http://"])
def test_a_url_that_is_none_is_our_fault(url: str) -> None:
    async def test(fetcher: Fetcher) -> None:
        assert (await failure(fetcher.get(at(url), "/metrics", 5))).kind is FailureKind.LOCAL

    run(test)


def test_a_ca_file_that_cannot_be_read_is_named() -> None:
    async def test(fetcher: Fetcher) -> None:
        error = await failure(fetcher.get(at("https://127.0.0.1:1", verify="/no/such/ca.pem"), "/metrics", 5))
        assert error.kind is FailureKind.LOCAL
        assert "/no/such/ca.pem" in error.reason

    run(test)


def test_secrets_are_not_in_the_printed_form_of_a_target() -> None:
    assert SECRET not in repr(at("http://a", headers={"Authorization": SECRET}))


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of its own authority for 127.0.0.1, with its key in the same file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    file = tmp_path_factory.mktemp("tls") / "instance.pem"
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=instance"
    names = "-addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [openssl, *request.split(), *names.split(), "-keyout", file, "-out", f"{file}.crt"],
        check=True,
        capture_output=True,
        timeout=30,
    )
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.parametrize("checked", [True, False])
def test_tls_works_with_the_right_ca_file_and_without_checking(
    tls: ssl.SSLContext, certificate: Path, checked: bool
) -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(b"safe"), tls=tls) as server:
            target = at(server.url, verify=f"{certificate}.crt" if checked else False)
            for _ in range(2):
                assert (await fetcher.get(target, "/metrics", 10)).content == b"safe"
            assert server.connections == 1

    run(test)


def test_an_unknown_authority_is_a_tls_failure(tls: ssl.SSLContext) -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(), tls=tls) as server:
            error = await failure(fetcher.get(at(server.url), "/metrics", 10))
            assert error.kind is FailureKind.TLS
            assert "self-signed" in error.reason or "self signed" in error.reason
            assert "ca_file" in error.reason
            assert server.requests == []

    run(test)


def test_https_against_a_port_that_speaks_http_is_a_tls_failure() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
            error = await failure(fetcher.get(at(f"https://127.0.0.1:{server.port}"), "/metrics", 5))
            assert error.kind is FailureKind.TLS

    run(test)


@pytest.mark.parametrize("ended_by", ["the deadline", "cancellation"])
def test_a_handshake_that_hangs_leaves_no_connection_behind(ended_by: str) -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving_bytes(None) as server:
            target = at(f"https://127.0.0.1:{server.port}")
            fds = servers.open_fds()
            if ended_by == "the deadline":
                error = await failure(fetcher.get(target, "/metrics", 0.5))
                assert error.kind is FailureKind.TIMEOUT
                assert "handshake" in error.reason
            else:
                task = asyncio.ensure_future(fetcher.get(target, "/metrics", 20))
                await wait_until_async(lambda: server.connections == 1, what="the handshake to begin")
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await wait_until_async(lambda: servers.open_fds() <= fds, what="the descriptor to be closed")

    run(test)


def test_a_redirect_from_http_to_https_on_the_same_host_is_followed(
    tls: ssl.SSLContext, certificate: Path
) -> None:
    async def test(fetcher: Fetcher) -> None:
        async with (
            servers.serving(servers.answer(b"safe"), tls=tls) as safe,
            servers.serving(servers.redirect(f"{safe.url}/metrics")) as server,
        ):
            target = at(server.url, verify=f"{certificate}.crt")
            for _ in range(3):
                assert (await fetcher.get(target, "/metrics", 10)).content == b"safe"
            assert (server.connections, safe.connections) == (1, 1)

    run(test)


def test_plain_http_reads_no_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[object] = []
    monkeypatch.setattr(trust, "_built", built.append)
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: built.append("verify"))
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_, **__: built.append("default"))

    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(b"x")) as server:
            await fetcher.get(at(server.url), "/metrics", 5)
            await fetcher.get(at(server.url, verify="/no/such/ca.pem"), "/metrics", 5)

    run(test)
    assert built == []


def test_authorities_are_read_once_and_not_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, tls: ssl.SSLContext, certificate: Path
) -> None:
    threads = []
    build = trust._built

    def built(verify: bool | str) -> ssl.SSLContext:
        threads.append(threading.current_thread())
        return build(verify)

    monkeypatch.setattr(trust, "_built", built)

    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(b"safe"), tls=tls) as server:
            targets = [at(server.url, verify=f"{certificate}.crt") for _ in range(5)]
            await asyncio.gather(*(fetcher.get(target, "/metrics", 20) for target in targets))

    run(test)
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_authorities_that_take_too_long_to_read_serve_the_next_poll(
    monkeypatch: pytest.MonkeyPatch, tls: ssl.SSLContext, certificate: Path
) -> None:
    build, builds, release = trust._built, [], threading.Event()

    def slow(verify: bool | str) -> ssl.SSLContext:
        builds.append(verify)
        release.wait(30)
        return build(verify)

    monkeypatch.setattr(trust, "_built", slow)

    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(b"safe"), tls=tls) as server:
            target = at(server.url, verify=f"{certificate}.crt")
            error = await failure(fetcher.get(target, "/metrics", 0.2))
            assert error.kind is FailureKind.LOCAL
            assert server.connections == 0
            release.set()
            assert (await fetcher.get(target, "/metrics", 20)).content == b"safe"

    run(test)
    assert len(builds) == 1


def test_a_ca_file_that_is_corrected_is_read_again(
    tls: ssl.SSLContext, certificate: Path, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"

    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(b"safe"), tls=tls) as server:
            target = at(server.url, verify=str(file))
            assert (await failure(fetcher.get(target, "/metrics", 20))).kind is FailureKind.LOCAL
            shutil.copy(f"{certificate}.crt", file)
            assert (await fetcher.get(target, "/metrics", 20)).content == b"safe"

    run(test)


# Cancellation and leaks


@pytest.mark.parametrize("behaviour", [servers.hang, servers.hang_in_headers, servers.trickle])
def test_a_cancelled_request_ends_at_once_and_closes_its_connection(behaviour: servers.Behaviour) -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(behaviour) as server:
            task = asyncio.ensure_future(fetcher.get(at(server.url), "/metrics", 20))
            await wait_until_async(lambda: server.under_way == 1, what="the request")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await wait_until_async(lambda: server.under_way == 0, what="the connection to be closed")

    run(test)


def test_a_hundred_failures_leave_no_descriptor_and_no_task() -> None:
    behaviours = [
        servers.hang,
        servers.trickle,
        servers.break_off_mid_body,
        servers.close_unanswered,
        servers.reset,
        servers.speak_no_http,
        servers.flood(3_000_000),
        servers.redirect("http://elsewhere.invalid/"),
        servers.answer(b"", 503),
    ]

    async def test(fetcher: Fetcher) -> None:
        async with contextlib.AsyncExitStack() as stack:
            running = [await stack.enter_async_context(servers.serving(each)) for each in behaviours]
            targets = [at(server.url) for server in running]
            for _ in range(12):
                await asyncio.gather(
                    *(failure(fetcher.get(target, "/metrics", 0.2)) for target in targets),
                )
            await wait_until_async(
                lambda: sum(server.under_way for server in running) == 0, what="requests to end"
            )

    run(test)


def test_forgetting_a_target_closes_its_connection_and_no_other() -> None:
    async def test(fetcher: Fetcher) -> None:
        async with servers.serving(servers.answer(b"x")) as server:
            one, other = at(server.url), at(server.url)
            await fetcher.get(one, "/metrics", 5)
            await fetcher.get(other, "/metrics", 5)
            await fetcher.forget(one)
            await fetcher.forget(one)
            await fetcher.get(other, "/metrics", 5)
            assert server.connections == 2
            await fetcher.get(one, "/metrics", 5)
            assert server.connections == 3

    run(test)
