"""The real-time bench sends what it says, counts what it should, and runs from end to end. No time is asserted."""

from __future__ import annotations

import asyncio
import json
import math
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import gateway
from bench.peers import nginx
from bench.peers.arrivals import GATEWAY, HIDDEN, Planned, mixed, poisson, steady, with_burst
from bench.peers.client import Connections, Record
from bench.peers.experiments import (
    BURST,
    EXPERIMENTS,
    FULL,
    HIDDEN_LOAD,
    ORDER,
    ORDERS,
    PLAIN,
    QUICK,
    Run,
    Times,
    perform,
    plan_of,
    seconds_of,
)
from bench.peers.goals import GOALS, Goal, Verdict, judge
from bench.peers.mixes import DEMO, LONG, capacity
from bench.peers.outcome import Outcome, of_burst, of_slots, of_streams, of_turns, percentile
from bench.peers.per_process import LeastOutstanding
from bench.peers.ratios import spread
from bench.peers.report import tables, verdicts
from bench.peers.results import OtherSettingsError, ResultsFile
from bench.peers.slot_engine import SlotEngine
from bench.peers.stage import LEAST_LOAD, NGINX, NGINX_ZONE, PER_PROCESS, ROUND_ROBIN
from tests.unit.proxy_adapter.instances import plain
from tests.waiting import wait_until_async

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "benchmark.md").read_text()

# -- schedules --------------------------------------------------------------------------------------------


def test_arrivals_have_the_rate_that_was_asked_for() -> None:
    # A Poisson count of mean 5500 has a deviation of 74: five of them.
    assert abs(len(poisson(random.Random(1), 55.0, 100.0)) - 5500) < 5 * 74
    assert poisson(random.Random(1), 0.0, 100.0) == []


def test_services_are_exponential_of_the_mean() -> None:
    services = [request.service_s for request in steady("1", 100.0, 55.0, 0.2)]
    # Mean and deviation of an exponential are the same, so that of this mean is 0.2 / sqrt(5500).
    assert sum(services) / len(services) == pytest.approx(0.2, abs=5 * 0.2 / math.sqrt(5500))
    shorter = steady("1", 1.0, 55.0, 0.2)
    assert [json.loads(request.body)["service_s"] for request in shorter] == services[: len(shorter)]


def test_a_seed_is_a_schedule() -> None:
    assert steady("1", 9.0, 55.0, 0.2) == steady("1", 9.0, 55.0, 0.2) != steady("2", 9.0, 55.0, 0.2)
    assert mixed("1", 9.0, 25.0, DEMO.draw) == mixed("1", 9.0, 25.0, DEMO.draw)


def test_hidden_requests_come_besides_the_others() -> None:
    plan = steady("1", 20.0, 40.0, 0.2, hidden_rate=15.0)
    assert [request for request in plan if request.target == GATEWAY] == steady("1", 20.0, 40.0, 0.2)
    assert {request.target for request in plan} == {GATEWAY, HIDDEN}
    assert [request.due_s for request in plan] == sorted(request.due_s for request in plan)


def test_after_a_burst_the_same_requests_come_again() -> None:
    plan, windows = with_burst("1", 55.0, 0.2, warm_s=12.0, window_s=5.0, settle_s=12.0, burst=160)
    assert windows == ((12.0, 17.0), 17.0, (29.0, 34.0))

    def within(begin: float, end: float) -> list[tuple[float, float]]:
        found = [request for request in plan if begin <= request.due_s < end and request.due_s != 17.0]
        return [(round(request.due_s - begin, 9), request.service_s) for request in found]

    assert sum(request.due_s == 17.0 for request in plan) == 160
    assert within(*windows.before) == within(*windows.after)
    assert within(0.0, 17.0) == within(17.0, 34.0)


def test_a_burst_needs_a_warm_up_of_its_settling_time() -> None:
    with pytest.raises(ValueError, match="must be as long as the 12 s"):
        with_burst("1", 55.0, 0.2, warm_s=11.0, window_s=5.0, settle_s=12.0, burst=160)


@pytest.mark.parametrize("mix", [DEMO, LONG])
def test_a_mixed_load_streams_and_fits_its_engines(mix: Any) -> None:
    asked = [json.loads(request.body) for request in mixed("1", 10.0, 25.0, mix.draw)]
    assert all(each["stream"] for each in asked)
    shapes = [mix.draw(random.Random(seed)) for seed in range(1000)]
    assert max(shape.prompt_tokens + shape.output_tokens for shape in shapes) <= mix.engine.kv_capacity
    assert max(shape.prompt_tokens for shape in shapes) > 5_000


def test_the_capacity_of_an_engine_is_between_what_bounds_it() -> None:
    found = capacity(DEMO, seconds=60.0)
    # A step takes at least 10 ms, and gives at most 16 tokens; a request wants 150 on average (deviation below
    # as much): 10 requests a second. One tenth of that would be an engine that decodes two at a time.
    assert 1.0 < found < 11.0


# -- the slot engine --------------------------------------------------------------------------------------


def test_a_slot_engine_serves_in_turn_and_shows_what_it_does() -> None:
    async def main() -> None:
        engine, order = SlotEngine(2), []

        async def one(name: str, service_s: float) -> None:
            await engine.serve(service_s)
            order.append(name)

        held = [asyncio.create_task(engine.serve(60.0)) for _ in range(2)]
        await asyncio.sleep(0)
        queue = [asyncio.create_task(one(name, 0.0)) for name in "abc"]
        await asyncio.sleep(0)
        assert engine.gauges()[:2] == (2, 3)
        queue[1].cancel()
        await wait_until_async(lambda: engine.gauges().waiting == 2)
        held[0].cancel()
        await wait_until_async(lambda: len(order) == 2)
        assert order == ["a", "c"]
        assert engine.gauges()[:2] == (1, 0)
        assert engine.gauges().finished == 2
        held[1].cancel()
        await asyncio.gather(*held, *queue, return_exceptions=True)
        assert engine.gauges()[:2] == (0, 0)
        assert (await engine.serve(0.0)).waited_s == 0.0

    asyncio.run(main())


def test_timers_that_come_late_do_not_make_an_engine_slower() -> None:
    """Each begins when the one before should have ended, whatever the clock says by then."""

    async def main() -> None:
        # To this clock every timer comes late without end.
        engine = SlotEngine(1, clock=lambda: 0.0)
        served = await asyncio.gather(*(engine.serve(0.001) for _ in range(5)))
        assert [each.waited_s for each in served] == pytest.approx([0.0, 0.001, 0.002, 0.003, 0.004])

    asyncio.run(main())


# -- counting per process ---------------------------------------------------------------------------------


def test_per_process_takes_the_fewest_of_its_own_and_gives_each_back_once() -> None:
    strategy, instances = LeastOutstanding(random.Random(1)), plain(3)
    guards = [strategy.dispatch(instances) for _ in range(6)]
    assert sorted(Counter(guard.instance.instance_id for guard in guards).values()) == [2, 2, 2]
    free = guards[0].instance
    with guards[0]:
        pass
    guards[0].release()
    guards[0].fail()
    assert strategy.status()["outstanding"] == 5
    assert strategy.dispatch(instances).instance is free
    with pytest.raises(RuntimeError, match="no instances"):
        strategy.select([])


# -- figures ----------------------------------------------------------------------------------------------


def _slot_run(waits_ms: Sequence[float], *, lag_s: float = 0.0, status: int = 200) -> Any:
    plan, records = [], []
    for number, wait_ms in enumerate(waits_ms):
        due = float(number)
        plan.append(Planned(due, GATEWAY, "/", b"", 0.5))
        said = {"engine": "e", "waited_s": wait_ms / 2e3, "served_s": 0.5, "late_s": 0.0}
        end = due + lag_s + 0.5 + wait_ms / 1e3
        records.append(Record(due + lag_s, end, end, status, "w", json.dumps(said).encode()))
    return plan, records


def test_a_wait_is_the_time_of_the_answer_without_its_service() -> None:
    found = of_slots(*_slot_run([900, 10, 20, 30, 900]), (1.0, 4.0))
    assert found.problems == []
    assert found.figures["requests"] == 3, "only those that are due in the window count"
    assert found.figures["wait_mean"] == pytest.approx(20)
    assert found.figures["wait_p99"] == pytest.approx(30)
    assert found.figures["queued_p99"] == pytest.approx(15)
    assert found.figures["passing_p99"] == pytest.approx(15)
    assert found.figures["workers"] == {"w": 3}


def test_a_connection_that_the_gateway_has_closed_meanwhile_is_not_sent_on() -> None:
    """As servers do with one that was idle for long: no request is lost with it."""

    async def answers_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def sent() -> list[int]:
        server = await asyncio.start_server(answers_once, "127.0.0.1", 0)
        pool = Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", random.Random(1))
        found = []
        for _ in range(3):
            found.append((await pool.ask("/", b"", 0.0)).status)
            await wait_until_async(
                lambda: all(idle.is_closed for idle in pool._idle), what="the other end's close"
            )
        pool.close()
        server.close()
        return found

    assert asyncio.run(sent()) == [200, 200, 200]


def test_a_run_with_a_late_client_does_not_count() -> None:
    found = of_slots(*_slot_run([10, 20], lag_s=0.02), (0.0, 9.0))
    assert "client late: p99 20.0 ms" in found.problems[0]
    assert found.figures["wait_mean"] == pytest.approx(15), "from the moment of the send"


@pytest.mark.parametrize("status", [0, 502])
def test_a_run_with_failed_requests_does_not_count(status: int) -> None:
    for of in (of_slots, of_streams):
        assert f"2 with status {status}" in of(*_slot_run([10, 20], status=status), (0.0, 9.0)).problems[0]


def test_a_window_without_requests_does_not_count() -> None:
    assert of_slots([], [], (0.0, 1.0)).problems == ["no request was due"]


def test_a_burst_is_two_windows() -> None:
    found = of_burst(*_slot_run([10, 20, 900, 30, 40]), (0.0, 2.0), (3.0, 5.0))
    assert found.figures["before_wait_mean"] == pytest.approx(15)
    assert found.figures["after_wait_mean"] == pytest.approx(35)


def test_what_a_gateway_adds_is_taken_within_each_round() -> None:
    def took(*times: float) -> list[Record]:
        return [Record(0.0, time / 1e3, time / 1e3, 200, "", b"") for time in times]

    found = of_turns({"direct": took(1, 9, 1), "nginx": took(3, 11, 3)}, "direct")
    assert found.figures["nginx_added_p50"] == found.figures["nginx_added_max"] == pytest.approx(2)


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (90, 90), (99, 99), (100, 100)])
def test_a_percentile_is_one_of_the_values(percent: float, value: int) -> None:
    assert percentile(range(100, 0, -1), percent) == value
    assert percentile([7.0], percent) == 7.0


def test_a_spread_is_a_geometric_mean_with_student_s_interval() -> None:
    found = spread([0.5, 2.0])
    assert found.mean == pytest.approx(1.0)
    # The deviation of -ln 2 and ln 2 is sqrt(2) ln 2, that of their mean ln 2; t is 6.314.
    assert found.high == pytest.approx(2.0**6.314)
    assert found.low == pytest.approx(0.5**6.314)
    assert spread([3.0])[:3] == (pytest.approx(3.0), None, None)
    many = spread([1.0, 2.0] * 20)
    assert many.low is not None
    assert many.low < many.mean
    for wrong in ([], [1.0, 0.0]):
        with pytest.raises(ValueError, match="above 0"):
            spread(wrong)


# -- goals ------------------------------------------------------------------------------------------------

GOAL = Goal("a / b", PLAIN, (LEAST_LOAD, "x"), (NGINX, "x"), 2.0)


def _judged(goal: Goal, ratios: Sequence[float], repetitions: int | None = None) -> Verdict:
    results = {}
    for number, ratio in enumerate(ratios):
        results[Run(PLAIN, LEAST_LOAD, number)] = {"x": 10 * ratio}
        results[Run(PLAIN, NGINX, number)] = {"x": 10}
    (verdict,) = judge([goal], results, repetitions or len(ratios))
    return verdict


@pytest.mark.parametrize(("ratio", "met"), [(1.9, True), (2.0, True), (2.1, False)])
def test_a_goal_is_met_up_to_its_limit(ratio: float, met: bool) -> None:
    assert _judged(GOAL, [ratio, ratio]).met is met


def test_where_the_limit_is_not_good_enough_it_is_missed() -> None:
    goal = Goal("a / b", PLAIN, GOAL.of, GOAL.to, 2.0, below=True)
    assert not _judged(goal, [2.0, 2.0]).met
    assert _judged(goal, [1.99, 1.99]).met


def test_the_upper_bound_is_that_of_the_interval() -> None:
    goal = Goal("a / b", PLAIN, GOAL.of, GOAL.to, 2.0, upper=True)
    assert _judged(goal, [1.0, 1.01, 0.99]).met
    assert not _judged(goal, [1.0, 3.0, 0.5]).met
    assert _judged(goal, [1.0]).remark == "one repetition has no interval"


def test_what_was_not_measured_in_every_repetition_is_missed() -> None:
    assert _judged(GOAL, [1.0, 1.0], repetitions=3).remark == "only 2 of 3 repetitions count"
    assert not _judged(GOAL, [1.0, 1.0], repetitions=3).met
    (verdict,) = judge([GOAL], {}, 5)
    assert (verdict.met, verdict.remark) == (False, "not measured")
    assert verdicts([verdict]).splitlines()[1].startswith("MISSED")


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.text)
def test_every_goal_stands_in_the_page_with_its_limit(goal: Goal) -> None:
    limit = f"below {goal.limit:g}" if goal.below else f"{goal.limit:g}"
    assert f"| {goal.text} | {limit} |" in PAGE


# -- the plan and its file --------------------------------------------------------------------------------


def test_gateways_are_interleaved_and_each_second_repetition_is_turned() -> None:
    plan = plan_of([PLAIN, ORDER], 2)
    assert [run[1:] for run in plan if run.experiment == PLAIN] == [
        (LEAST_LOAD, 0),
        (NGINX, 0),
        (NGINX, 1),
        (LEAST_LOAD, 1),
    ]
    assert [run.gateway for run in plan if run[::2] == (ORDER, 0)] == [LEAST_LOAD, ROUND_ROBIN, PER_PROCESS]


def test_what_no_goal_asks_for_comes_besides_and_nginx_can_be_left_out() -> None:
    def names(**how: bool) -> set[tuple[str, str]]:
        return {run[:2] for run in plan_of([PLAIN, BURST], 1, **how)}

    assert names() == {(PLAIN, LEAST_LOAD), (PLAIN, NGINX), (BURST, LEAST_LOAD)}
    assert names(beside=True) - names() == {(PLAIN, NGINX_ZONE), (BURST, NGINX)}
    assert names(without_nginx=True, beside=True) == {(PLAIN, LEAST_LOAD), (BURST, LEAST_LOAD)}


def test_the_runs_against_nginx_take_less_than_ninety_minutes() -> None:
    against_nginx = [name for name in EXPERIMENTS if name not in ORDERS]
    assert sum(seconds_of(run, FULL) for run in plan_of(against_nginx, 5)) < 85 * 60
    assert (FULL.warm, FULL.measured) == (60.0, 120.0)


def test_a_broken_bench_goes_on_where_it_was(tmp_path: Path) -> None:
    file, first, second = tmp_path / "runs.jsonl", Run(PLAIN, NGINX, 0), Run(PLAIN, NGINX, 1)
    before = ResultsFile(file, {"seed": "1"})
    before.add(first, Outcome({"x": 1.0}, []))
    before.add(second, Outcome({"x": 2.0}, ["client late"]))
    after = ResultsFile(file, {"seed": "1"})
    assert after.counted == {first: {"x": 1.0}}
    assert after.rejected == {second: ["client late"]}
    after.add(second, Outcome({"x": 3.0}, []))
    assert ResultsFile(file, {"seed": "1"}).counted == {first: {"x": 1.0}, second: {"x": 3.0}}
    assert ResultsFile(file, {"seed": "1"}).rejected == {}


def test_a_line_that_was_not_finished_is_dropped(tmp_path: Path) -> None:
    file, first, second = tmp_path / "runs.jsonl", Run(PLAIN, NGINX, 0), Run(PLAIN, NGINX, 1)
    ResultsFile(file, {}).add(first, Outcome({"x": 1.0}, []))
    file.write_text(file.read_text() + '{"run": {"experi')
    ResultsFile(file, {}).add(second, Outcome({"x": 2.0}, []))
    assert set(ResultsFile(file, {}).counted) == {first, second}


@pytest.mark.parametrize("content", ['{"settings": {"seed": "2"}}\n', "no JSON\n", "[]\n3\n"])
def test_runs_of_other_settings_are_not_mixed_in(tmp_path: Path, content: str) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(content)
    with pytest.raises(OtherSettingsError, match=r"runs\.jsonl is"):
        ResultsFile(file, {"seed": "1"})
    assert file.read_text() == content


# -- the program ------------------------------------------------------------------------------------------


def _pretended(problems: Callable[[Run, int], list[str]]) -> Any:
    """In place of a run: figures that meet every goal."""
    calls: Counter[Run] = Counter()

    def perform(run: Run, times: Times, seed: str, *, without_nginx: bool) -> Outcome:
        calls[run] += 1
        good = 1.0 if run.gateway == LEAST_LOAD else 4.0
        figures = dict.fromkeys(("wait_p99", "ttft_p99", "after_wait_mean", "before_wait_mean"), good)
        return Outcome({**figures, "workers": {"1": 3}, "degraded": {}}, problems(run, calls[run]))

    perform.calls = calls  # type: ignore[attr-defined]
    return perform


@pytest.fixture
def _nginx_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nginx, "find", lambda: "/usr/sbin/nginx")


@pytest.mark.usefixtures("_nginx_is_there")
def test_a_check_prints_every_goal_and_writes_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gateway, "perform", _pretended(lambda run, call: []))
    file = tmp_path / "figures.json"
    assert gateway.main(["--check", "--json", str(file)]) == 0
    said = capsys.readouterr().out
    for goal in GOALS:
        assert goal.text in said
    assert said.startswith("cpu:")
    assert "\nload average:" in said
    assert "60 of 60 runs to make, about 123 minutes\n" in said
    assert said.count(" left\n") == 59, "after each run but the last"
    written = json.loads(file.read_text())
    assert len(written["runs"]) == len(plan_of(EXPERIMENTS, 5))
    assert all(goal["met"] for goal in written["goals"])
    assert "cpu" in written["machine"]


@pytest.mark.usefixtures("_nginx_is_there")
def test_a_run_that_does_not_count_is_made_once_more_and_then_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Run(PLAIN, NGINX, 1)
    once = _pretended(lambda run, call: ["client late"] if run == bad and call == 1 else [])
    monkeypatch.setattr(gateway, "perform", once)
    assert gateway.main(["--check", "--only", "plain"]) == 0
    assert "plain 2 nginx: DOES NOT COUNT: client late" in capsys.readouterr().out
    always = _pretended(lambda run, call: ["client late"] if run == bad else [])
    monkeypatch.setattr(gateway, "perform", always)
    assert gateway.main(["--check", "--only", "plain"]) == 1
    assert always.calls[bad] == 2
    assert "only 4 of 5 repetitions count" in capsys.readouterr().out


@pytest.mark.usefixtures("_nginx_is_there")
def test_what_stands_in_the_file_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(run: Run, call: int) -> list[str]:
        if run == Run(HIDDEN_LOAD, NGINX, 1):
            raise KeyboardInterrupt
        return []

    resume = ["--resume", str(tmp_path / "runs.jsonl"), "--only", "plain,hidden", "--repetitions", "2"]
    monkeypatch.setattr(gateway, "perform", _pretended(breaks))
    assert gateway.main(resume) == 130
    rest = _pretended(lambda run, call: [])
    monkeypatch.setattr(gateway, "perform", rest)
    assert gateway.main([*resume, "--check"]) == 0
    assert set(rest.calls) == {Run(HIDDEN_LOAD, NGINX, 1), Run(HIDDEN_LOAD, LEAST_LOAD, 1)}
    assert gateway.main([*resume, "--seed", "2"]) == 2


def test_without_nginx_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nginx, "find", lambda: None)
    assert gateway.main([]) == 2
    assert "apt-get install" in capsys.readouterr().err
    monkeypatch.setattr(gateway, "perform", _pretended(lambda run, call: []))
    assert gateway.main(["--check", "--only", "order"]) == 0
    assert gateway.main(["--check", "--without-nginx"]) == 1


def test_an_experiment_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gateway.main(["--only", "plain,nothing"])
    said = capsys.readouterr().err
    assert "there is no experiment 'nothing': choose from plain" in said


def test_every_option_and_experiment_stands_in_the_page() -> None:
    options = {flag for action in gateway._parser()._actions for flag in action.option_strings}
    for flag in options - {"-h", "--help"}:
        assert f"`{flag}" in PAGE, flag
    for name in EXPERIMENTS:
        assert f"| `{name}` |" in PAGE, name


# -- the real thing ---------------------------------------------------------------------------------------


def test_nginx_shares_its_counts_only_where_asked() -> None:
    engines = ["http://127.0.0.1:9001", "http://127.0.0.1:9002"]
    own, shared = (nginx.configuration(8080, engines, workers=4, zone=zone) for zone in (False, True))
    assert "zone" not in own
    assert "zone engines 64k;" in shared
    for text in (own, shared):
        assert "worker_processes 4;" in text
        # The method stands before keepalive, or nginx takes another one.
        assert text.index("least_conn;") < text.index("keepalive ")
        assert all(f"server {url.removeprefix('http://')};" in text for url in engines)


@pytest.mark.skipif(nginx.find() is None, reason="nginx is not installed")
@pytest.mark.parametrize("zone", [False, True])
def test_nginx_takes_its_configuration(tmp_path: Path, zone: bool) -> None:
    program = nginx.find()
    assert program is not None
    config = nginx.configuration(8080, ["http://127.0.0.1:9001"], workers=4, zone=zone)
    command = [*nginx.command(program, tmp_path, config), "-t"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


SHORT = Times(0.2, 1.0, 12.0, 1.0, 10, 0.2, 1.0)


def _performed(experiment: str, name: str) -> dict[str, Any]:
    found = perform(Run(experiment, name, 0), SHORT, "1")
    # A busy machine makes requests late; it makes none fail.
    assert [problem for problem in found.problems if " late: " not in problem] == []
    return found.figures


def test_a_short_run_of_the_demo_proxy_from_end_to_end() -> None:
    figures = _performed(PLAIN, LEAST_LOAD)
    sent = [request for request in steady("1 plain 0", 1.2, 55.0, 0.2) if request.due_s >= 0.2]
    assert figures["requests"] == len(sent) == sum(figures["engines"].values())
    assert len(figures["workers"]) == 4
    assert figures["degraded"] == {}
    assert 0 < figures["passing_p50"] <= figures["wait_max"]
    assert "plain, least_load (1 of 1 repetitions)" in tables({Run(PLAIN, LEAST_LOAD, 0): figures}, 1)


def test_a_short_run_of_streams_counted_per_process() -> None:
    figures = _performed(ORDER, PER_PROCESS)
    assert figures["requests"] > 0
    assert figures["ttft_p99"] <= figures["whole_max"]
    assert len(figures["workers"]) == 4


@pytest.mark.skipif(nginx.find() is None, reason="nginx is not installed")
def test_a_short_run_of_nginx_with_hidden_load() -> None:
    figures = _performed(HIDDEN_LOAD, NGINX)
    assert len(figures["workers"]) == 4
    assert figures["hidden_p99"] > 0


def test_quick_runs_are_quick() -> None:
    assert sum(seconds_of(run, QUICK) for run in plan_of(EXPERIMENTS, 2)) < 15 * 60
