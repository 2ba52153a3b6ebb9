"""What the prober asks next, against servers that have only some of the endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, make_wsgi_app

from monitor.engines.probe import Prober
from monitor.sample import Reading

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
LOADS = "/v1/loads?include=core"
VLLM = (SAMPLES / "vllm-0.32.0-busy-full.txt").read_bytes()
SGLANG = (SAMPLES / "sglang-0.5.23-tp1.txt").read_bytes()
SGLANG_LOADS = (SAMPLES / "sglang-0.5.23-v1-loads.json").read_bytes()
GET_LOAD = (SAMPLES / "sglang-0.5.6-get-load.json").read_bytes()
STATS_OFF = (SAMPLES / "vllm-0.32.0-disable-log-stats.txt").read_bytes()

Server = Mapping[str, tuple[int, bytes]]


def serve(server: Server, path: str) -> tuple[int, bytes]:
    """The answer to ``path``; a server with "filter" set also filters its metrics page, as vLLM does."""
    if path.startswith("/metrics/?") and "filter" in server:
        names = [part.removeprefix("name[]=").encode() for part in path.partition("?")[2].split("&")]
        lines = server["/metrics"][1].split(b"\n")
        return 200, b"".join(
            line + b"\n" for line in lines if line.partition(b"{")[0].partition(b" ")[0] in names
        )
    return server.get(path.partition("[]")[0], (404, b""))


def poll(prober: Prober, server: Server) -> tuple[str, Reading | None]:
    path = prober.next_path()
    return path, prober.answered(path, *serve(server, path))


def polls(prober: Prober, server: Server, count: int) -> list[str]:
    """The paths of so many polls, shortened."""
    return [
        "filtered" if path.startswith("/metrics/") else path
        for path, _ in (poll(prober, server) for _ in range(count))
    ]


def full(body: bytes) -> tuple[int, bytes]:
    return 200, body


def test_an_unknown_engine_is_asked_for_its_metrics_page_first() -> None:
    prober = Prober()
    assert (prober.next_path(), prober.engine, prober.reason) == ("/metrics", "", "")


# -- vLLM and its filtered page ------------------------------------------------------------------------------


def test_vllm_is_asked_for_the_filtered_page_once_it_is_known_to_carry_everything() -> None:
    prober = Prober()
    server = {"/metrics": full(VLLM), "filter": full(b"")}
    assert polls(prober, server, 4) == ["/metrics", "filtered", "filtered", "filtered"]
    assert prober.engine == "vllm"


def test_the_filtered_page_gives_the_same_reading_as_the_whole_one() -> None:
    prober = Prober()
    server = {"/metrics": full(VLLM), "filter": full(b"")}
    _, whole = poll(prober, server)
    _, filtered = poll(prober, server)
    assert whole == filtered
    assert filtered is not None
    assert (filtered.kv_capacity, filtered.process_start) == (6144, 1795968967.37)


def test_the_filter_is_understood_by_the_handler_that_vllm_serves_its_page_with() -> None:
    registry = CollectorRegistry(auto_describe=True)  # as the default one, which vLLM uses
    ProcessCollector(registry=registry)
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "cache_config_info",
        "other",
    ):
        Gauge(f"vllm:{name}", "text", ["engine"], registry=registry).labels("0").set(0.5)
    for name in ("request_success", "generation_tokens", "prompt_tokens", "num_preemptions"):
        Counter(f"vllm:{name}", "text", ["engine"], registry=registry).labels("0").inc(3)
    app = make_wsgi_app(registry)

    def get(path: str) -> bytes:
        where, _, query = path.partition("?")
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": where, "QUERY_STRING": query}
        return b"".join(app(environ, lambda *_: None))

    prober = Prober()
    whole = prober.answered("/metrics", 200, get("/metrics"))
    path = prober.next_path()
    body = get(path)
    assert path != "/metrics"
    assert b"vllm:other" not in body
    assert b"preemptions" not in body
    assert prober.answered(path, 200, body) == whole


def test_an_empty_filtered_page_is_given_up_for_the_whole_one() -> None:
    prober = Prober()
    server = {"/metrics": full(VLLM), "/metrics/?name": full(b"")}
    assert polls(prober, server, 4) == ["/metrics", "filtered", "/metrics", "/metrics"]
    assert (prober.engine, prober.reason) == ("vllm", "")


def test_a_filtered_page_that_lacks_a_family_is_given_up_and_says_which() -> None:
    prober = Prober()
    lacking = VLLM.replace(b"\nvllm:num_requests_waiting{", b"\nvllm:other{")
    server = {"/metrics": full(VLLM), "/metrics/?name": full(lacking)}
    poll(prober, server)
    _, reading = poll(prober, server)
    assert reading is None
    assert "vllm:num_requests_waiting" in prober.reason
    assert polls(prober, server, 2) == ["/metrics", "/metrics"]


def test_a_server_that_cannot_filter_and_sends_the_whole_page_is_fine() -> None:
    prober = Prober()
    server = {"/metrics": full(VLLM), "/metrics/?name": full(VLLM)}
    assert polls(prober, server, 3) == ["/metrics", "filtered", "filtered"]


def test_a_missing_filtered_page_is_remembered() -> None:
    prober = Prober()
    server = {"/metrics": full(VLLM)}
    assert polls(prober, server, 4) == ["/metrics", "filtered", "/metrics", "/metrics"]


def test_a_filtered_page_that_dries_up_later_is_given_up_then() -> None:
    prober = Prober()
    polls(prober, {"/metrics": full(VLLM), "filter": full(b"")}, 3)
    assert polls(prober, {"/metrics": full(VLLM), "/metrics/?name": full(b"")}, 3) == [
        "filtered",
        "/metrics",
        "/metrics",
    ]


def test_renamed_families_of_a_relay_are_asked_for_as_a_whole_page() -> None:
    prober = Prober()
    server = {
        "/metrics": full(VLLM.replace(b"vllm:", b"vllm_").replace(b"process_start", b"x")),
        "filter": full(b""),
    }
    assert polls(prober, server, 3) == ["/metrics"] * 3


def test_vllm_with_its_statistics_off_is_unknown_with_the_reason() -> None:
    prober = Prober()
    server = {"/metrics": full(STATS_OFF)}
    assert polls(prober, server, 5) == ["/metrics", LOADS, "/get_load", "/metrics", "/metrics"]
    assert prober.engine == ""
    assert "--disable-log-stats" in prober.reason


# -- SGLang --------------------------------------------------------------------------------------------------


def test_sglang_is_asked_for_its_load_endpoint_once_found() -> None:
    prober = Prober()
    server = {"/metrics": full(SGLANG), LOADS: full(SGLANG_LOADS)}
    assert polls(prober, server, 3) == ["/metrics", LOADS, LOADS]
    assert prober.engine == "sglang"


def test_sglang_without_its_metrics_page_is_found_by_its_load_endpoint() -> None:
    prober = Prober()
    assert polls(prober, {LOADS: full(SGLANG_LOADS)}, 3) == ["/metrics", LOADS, LOADS]


def test_sglang_without_its_load_endpoint_is_asked_for_its_metrics_page() -> None:
    prober = Prober()
    assert polls(prober, {"/metrics": full(SGLANG)}, 4) == ["/metrics", LOADS, "/metrics", "/metrics"]


def test_an_older_sglang_is_found_by_its_older_endpoint() -> None:
    prober = Prober()
    server = {"/get_load": full(GET_LOAD)}
    assert polls(prober, server, 5) == ["/metrics", LOADS, "/get_load", "/get_load", "/get_load"]
    assert prober.engine == "sglang"


# -- absence, refusal, trouble -------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [404, 405, 501])
def test_absence_is_remembered_until_the_restart(status: int) -> None:
    prober = Prober()
    server = {"/metrics": full(SGLANG), LOADS: (status, b"")}
    assert polls(prober, server, 5) == ["/metrics", LOADS, "/metrics", "/metrics", "/metrics"]
    prober.restarted()
    assert prober.engine == ""
    assert polls(prober, server, 3) == ["/metrics", LOADS, "/metrics"]


def test_a_metrics_page_that_is_absent_is_unknown_with_the_reason_and_no_reading() -> None:
    prober = Prober()
    for _ in range(3):
        _, reading = poll(prober, {})
        assert reading is None
    assert "/metrics answered 404" in prober.reason


def test_with_every_endpoint_absent_all_are_asked_again() -> None:
    prober = Prober()
    assert polls(prober, {}, 6) == ["/metrics", LOADS, "/get_load"] * 2
    assert polls(prober, {"/metrics": full(VLLM)}, 1) == ["/metrics"]
    assert prober.engine == "vllm"


@pytest.mark.parametrize("status", [401, 403])
def test_missing_credentials_are_named_and_another_endpoint_is_used(status: int) -> None:
    prober = Prober()
    server = {"/metrics": full(SGLANG), LOADS: (status, b"")}
    poll(prober, server)
    _, reading = poll(prober, server)
    assert reading is None
    assert f"{LOADS} answered {status}" in prober.reason
    assert "bearer token" in prober.reason
    assert polls(prober, server, 2) == ["/metrics", "/metrics"]


def test_missing_credentials_everywhere_are_asked_about_again() -> None:
    prober = Prober("vllm")
    assert polls(prober, {"/metrics": (401, b"")}, 2) == ["/metrics", "/metrics"]
    assert "401" in prober.reason


@pytest.mark.parametrize("status", [500, 502, 503, 429, 302])
def test_trouble_is_never_remembered(status: int) -> None:
    prober = Prober()
    server = {"/metrics": full(SGLANG), LOADS: full(SGLANG_LOADS)}
    polls(prober, server, 2)
    assert polls(prober, {"/metrics": full(SGLANG), LOADS: (status, b"")}, 2) == [LOADS, "/metrics"]
    assert polls(prober, server, 2) == [LOADS, LOADS]


def test_trouble_of_an_unknown_engine_says_so_and_all_endpoints_get_their_turn() -> None:
    prober = Prober()
    server = {"/metrics": (503, b""), LOADS: (503, b""), "/get_load": (503, b"")}
    assert polls(prober, server, 4) == ["/metrics", LOADS, "/get_load", "/metrics"]
    assert prober.reason == "/metrics answered 503"


def test_an_unknown_engine_whose_page_came_late_is_found_although_everything_else_answers() -> None:
    prober = Prober()
    catch_all = {LOADS: full(b"<html>"), "/get_load": full(b"<html>")}
    polls(prober, catch_all, 3)
    assert "/metrics" in polls(prober, catch_all | {"/metrics": full(VLLM)}, 61)
    assert prober.engine == "vllm"


def test_requests_without_an_answer_leave_nothing_absent() -> None:
    prober = Prober()
    asked = []
    for _ in range(6):
        asked.append(prober.next_path())
        prober.failed(asked[-1])
    assert asked == ["/metrics", LOADS, "/get_load"] * 2, "one that hangs must not hide those that work"
    server = {"/metrics": full(SGLANG), LOADS: full(SGLANG_LOADS)}
    polls(prober, server, 2)
    for _ in range(20):
        prober.failed(prober.next_path())
    for _ in range(4):
        poll(prober, server)
    assert polls(prober, server, 2) == [LOADS, LOADS]
    assert prober.engine == "sglang"


def test_a_cheap_endpoint_that_always_fails_is_tried_ever_more_seldom() -> None:
    prober = Prober()
    server = {"/metrics": full(VLLM), "filter": full(b"")}
    asked = []
    for _ in range(200):
        path = prober.next_path()
        asked.append(path)
        if path == "/metrics":
            assert prober.answered(path, *serve(server, path)) is not None
        else:
            prober.failed(path)
    assert 5 <= len([path for path in asked if path != "/metrics"]) <= 9
    assert polls(prober, server, 100)[-10:] == ["filtered"] * 10


# -- another engine at the address ---------------------------------------------------------------------------


def test_a_replacement_of_vllm_by_sglang_is_noticed_within_two_polls() -> None:
    prober = Prober()
    polls(prober, {"/metrics": full(VLLM), "filter": full(b"")}, 3)
    replaced = {"/metrics": full(SGLANG), LOADS: full(SGLANG_LOADS), "filter": full(b"")}
    polls(prober, replaced, 2)
    assert prober.engine == "sglang"
    assert polls(prober, replaced, 1) == [LOADS]


def test_a_replacement_of_sglang_by_vllm_is_noticed_within_two_polls() -> None:
    prober = Prober()
    polls(prober, {"/metrics": full(SGLANG), LOADS: full(SGLANG_LOADS)}, 3)
    replaced = {"/metrics": full(VLLM), "filter": full(b"")}
    polls(prober, replaced, 2)
    assert prober.engine == "vllm"
    assert polls(prober, replaced, 2) == ["filtered", "filtered"]


def test_two_answers_not_recognised_make_the_engine_unknown_again() -> None:
    prober = Prober()
    polls(prober, {"/metrics": full(VLLM)}, 3)
    server = {"/metrics": full(b"other_metric 1\n")}
    poll(prober, server)
    assert prober.engine == "vllm"
    assert "nothing in it is of vllm" in prober.reason
    poll(prober, server)
    assert prober.engine == ""
    assert polls(prober, {"/metrics": full(VLLM)}, 1) == ["/metrics"]
    assert prober.engine == "vllm"


def test_one_answer_not_recognised_changes_nothing() -> None:
    prober = Prober()
    server = {"/metrics": full(VLLM)}
    for _ in range(5):
        polls(prober, server, 3)
        poll(prober, {"/metrics": full(b"<html>starting</html>")})
        assert prober.engine == "vllm"


def test_an_engine_whose_endpoints_all_vanish_is_looked_for_elsewhere() -> None:
    prober = Prober()
    polls(prober, {"/metrics": full(VLLM)}, 3)
    assert polls(prober, {LOADS: full(SGLANG_LOADS)}, 2) == ["/metrics", LOADS]
    assert prober.engine == "sglang"


# -- an engine named by the operator -------------------------------------------------------------------------


def test_a_named_engine_is_asked_only_for_what_it_has() -> None:
    prober = Prober("sglang")
    assert prober.engine == ""
    assert polls(prober, {"/metrics": full(SGLANG)}, 3) == [LOADS, "/metrics", "/metrics"]
    assert prober.engine == "sglang"


def test_a_wrongly_named_engine_is_told_what_it_looks_like() -> None:
    prober = Prober("vllm")
    for _ in range(4):
        path, reading = poll(prober, {"/metrics": full(SGLANG), LOADS: full(SGLANG_LOADS)})
        assert (path, reading, prober.engine) == ("/metrics", None, "")
    assert "it looks like sglang" in prober.reason


def test_an_engine_without_an_adapter_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown engine: TGI"):
        Prober("TGI")


def test_an_engine_that_shows_itself_only_where_another_one_would_be_asked_leaves_a_next_path() -> None:
    prober = Prober()
    while prober.next_path() != "/metrics":
        prober.failed(prober.next_path())
    prober.answered("/metrics", 400, b"")
    prober.answered(prober.next_path(), 200, b"vllm:x 1")
    assert prober.next_path() == "/metrics"


statuses = st.sampled_from([200, 200, 200, 204, 302, 400, 401, 404, 501, 503])
PAGE = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 1"
OTHER = b"sglang:num_running_reqs 1"
bodies = st.sampled_from([PAGE, b"vllm:x 1", OTHER, SGLANG_LOADS, GET_LOAD, b"other 1", b"", b"\xff", b"{}"])


@settings(max_examples=100, deadline=None)
@given(
    engine=st.sampled_from(["auto", "vllm", "sglang"]),
    answers=st.lists(st.one_of(st.none(), st.just("restart"), st.tuples(statuses, bodies)), max_size=30),
)
def test_whatever_is_answered_there_is_a_next_path_and_a_good_server_is_read_again(
    engine: str, answers: list[tuple[int, bytes] | str | None]
) -> None:
    prober = Prober(engine)
    for answer in answers:
        path = prober.next_path()
        if answer is None:
            prober.failed(path)
        elif isinstance(answer, str):
            prober.restarted()
        else:
            reading = prober.answered(path, *answer)
            assert (reading is None) == (prober.reason != "")
    good = SGLANG if engine == "sglang" else VLLM
    read = [poll(prober, {"/metrics": full(good)})[1] for _ in range(6)]
    assert read[-1] is not None
