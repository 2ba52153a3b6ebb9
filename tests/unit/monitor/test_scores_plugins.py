"""Score modes of other packages: found by entry point, tried once, and held off from the monitor if they fail."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadboard import check
from loadboard.cli import main
from monitor.clock import SystemClock
from monitor.config import MonitorConfig, load_config
from monitor.daemon import open_table
from monitor.scores import failing, score_mode
from monitor.scores.plugins import (
    PLAIN_PRICES,
    RECOVERED_AFTER,
    SLOW_IN_A_ROW,
    WARN_EVERY_S,
    Plugin,
    PluginError,
    load,
)
from monitor.sd_notify import Notifier
from monitor.service import Service
from score_table.layout import SCORE_LIMIT, UNITS
from tests.unit.monitor.config_problems import ONE, Write, problems_of, the_problem, writer
from tests.unit.monitor.loads import fleet, loads
from tests.unit.monitor.rig import Rig, config

Install = Callable[..., str]

#: A mode as another package would write it.
GOOD = """
import asyncio
import sys
import numpy as np
from score_table.identity import Prices


class Mode:
    name = {name!r}

    def __init__(self, options):
        unknown = set(options) - {{"scale"}}
        if unknown:
            raise ValueError(f"unknown option {{unknown.pop()}}")
        self.scale = options.get("scale", 1.0)

    def prices(self, kv_capacity):
        {prices}

    def score(self, loads):
        {score}


def factory(options):
    return Mode(options)
"""
PRICES = "return Prices(request=1024.0 * self.scale, prompt_token=0.0, kv_token=0.0)"
SCORE = "return self.scale * (loads.n + 1.0)"
_numbers = itertools.count(1)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package with the score mode ``fancy``, of the given parts or of a whole module's text."""
    modules = []

    def install(
        text: str = "", *, name: str = "fancy", prices: str = PRICES, score: str = SCORE, calls: str = "fancy"
    ) -> str:
        number = next(_numbers)
        package, module = f"scores-{number}", f"scores_of_others_{number}"
        directory = tmp_path / package
        facts = directory / f"scores_{number}-1.0.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(f"[loadboard.scores]\n{calls} = {module}:factory\n")
        whole = text or GOOD.format(name=name, prices=prices, score=score)
        (directory / f"{module}.py").write_text(whole)
        monkeypatch.syspath_prepend(directory)
        modules.append(module)
        return package

    yield install
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return writer(tmp_path)


FANCY = 'score = "fancy"\n' + ONE


def test_its_name_is_a_score_and_its_options_reach_it(install: Install, write: Write) -> None:
    install()
    loaded = load_config(write(FANCY + "[score_options]\nscale = 2\n"), {}, {})
    mode = score_mode(loaded)
    assert mode.name == "fancy"
    assert mode.score(loads(n=4.0)).tolist() == [10.0]
    assert mode.prices(None).request == 2 * UNITS
    assert load_config(write(ONE), {"score": "fancy"}, {}).score == "fancy"


def test_its_options_are_followed_by_a_monitor(install: Install) -> None:
    install()
    rig = Rig(config("a", score="fancy"))
    rig.sample("a", load=4)
    rig.tick()
    assert rig.live("a") == pytest.approx(5.0)
    rig.apply(config("a", score="fancy", score_options={"scale": 3.0}))
    rig.tick()
    assert rig.live("a") == pytest.approx(15.0)


def test_a_pool_may_have_it_alone(install: Install, write: Write) -> None:
    install()
    pool = '[[pools]]\ntags = { role = "decode" }\nscore = "fancy"\n[pools.score_options]\n'
    assert load_config(write(ONE + pool + "scale = 2\n"), {}, {}).pools[0].score == "fancy"
    assert the_problem(write(ONE + pool + "colour = 2\n")).startswith("pools[0].score: entry point 'fancy'")


def test_check_shows_where_it_comes_from(
    install: Install, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    package = install()
    file = write(FANCY)
    assert main(["check", str(file)]) == 0
    out = capsys.readouterr().out
    assert "score fancy, table" in out
    assert "  score fancy: entry point 'fancy' (scores_of_others_" in out
    assert f"of {package} 1.0\n" in out
    assert check.__doc__


def test_one_that_is_not_installed_is_refused_with_the_names_there_are(
    install: Install, write: Write
) -> None:
    install()
    said = the_problem(write('score = "fanzy"\n' + ONE))
    assert said.startswith("score: 'fanzy' is not a score mode: use one of token_aware, inflight_kv, ")
    assert "weighted_sum, fancy, or install the package whose entry point 'fanzy' is in the group" in said
    assert said.endswith("did you mean fancy?")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import asyncio; raise asyncio.CancelledError", "CancelledError"),
        (
            "import asyncio\ndef factory(options): raise asyncio.CancelledError('over')",
            "CancelledError: over",
        ),
        ("factory = 3", "TypeError: 'int' object is not callable"),
        ("other = 3", "AttributeError"),
        ("def factory(): return None", "TypeError"),
        ("def factory(options): raise ValueError('no licence')", "ValueError: no licence"),
        ("def factory(options): return None", "its name is None and has to be that of the entry point"),
        ("class factory:\n  name = 'fancy'\n  def __init__(self, options): pass", "'prices'"),
    ],
)
def test_one_that_cannot_be_loaded_is_a_problem_that_names_it(
    install: Install, write: Write, text: str, said: str
) -> None:
    package = install(text)
    (problem,) = problems_of(write(FANCY))
    assert problem.startswith("score: entry point 'fancy' (scores_of_others_")
    assert f"of {package} 1.0" in problem
    assert said in problem


@pytest.mark.parametrize(
    ("section", "given"),
    [("", "which is empty"), ("[score_options]\nscale = 2\ncolour = 's3cret'\n", "with scale, colour in it")],
)
def test_options_are_blamed_before_the_package_that_refuses_them(
    install: Install, write: Write, section: str, given: str
) -> None:
    install("def factory(options): raise ValueError('it cannot be')")
    (problem,) = problems_of(write(FANCY + section))
    assert f" does not work with [score_options], {given}: ValueError: it cannot be; correct" in problem
    assert problem.endswith("and if it is right, report it to the package")
    assert "s3cret" not in problem
    install("import no_such_module_at_all", name="other", calls="other")
    assert "score_options" not in the_problem(write(FANCY.replace("fancy", "other") + section))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"name": "plain"}, "its name is 'plain' and has to be that of the entry point"),
        ({"prices": "return 3"}, "prices(None) is a int, not a score_table.identity.Prices"),
        ({"prices": "return Prices(float('nan'), 0.0, 0.0)"}, "price request is nan"),
        (
            {"prices": "return Prices(0.0, 1.0, 1.0)"},
            "prices(None).request is 0, so all requests until the next",
        ),
        ({"prices": "return Prices(511.0, 9.0, 9.0)"}, "at least 512 units are needed, half a request"),
        ({"score": "return 3.0"}, "score(loads) has the shape () and the loads have (3,)"),
        ({"score": "return loads.n[:1]"}, "has the shape (1,)"),
        ({"score": "return loads.n / loads.slots"}, "score(loads) is nan for slot 2 and has to be finite"),
        ({"score": "return ['high', 'low', 'low']"}, "ValueError"),
        ({"score": "return loads.kv"}, "each has to grow with loads.n"),
        ({"score": "return -loads.n"}, "each has to grow with loads.n"),
        ({"score": "return loads.n - 1.0"}, "its scores are [-1.0, 16.0, 4.5], but none may be negative"),
        ({"score": "loads.n[:] = 0.0; return loads.n"}, "read-only"),
        ({"score": "sys.exit()"}, "SystemExit"),
        ({"score": "raise asyncio.CancelledError"}, "CancelledError"),
    ],
)
def test_one_of_the_wrong_shape_is_a_problem_that_says_what_is_wrong(
    install: Install, write: Write, parts: dict[str, str], said: str
) -> None:
    install(**parts)
    (problem,) = problems_of(write(FANCY))
    assert problem.startswith("score: entry point 'fancy' (")
    assert "is no score mode" in problem
    assert said in problem


def test_a_name_of_the_monitors_own_is_refused_once_it_is_chosen(install: Install, write: Write) -> None:
    package = install(name="token_aware", calls="token_aware")
    said = the_problem(write(ONE))
    assert said.startswith("score: entry point 'token_aware' (")
    assert f"of {package} 1.0 has the name of one of the monitor's own modes: uninstall its package" in said
    assert load_config(write('score = "inflight_kv"\n' + ONE), {}, {}).score == "inflight_kv"


def test_two_packages_with_one_name_are_refused(install: Install, write: Write) -> None:
    packages = [install(), install()]
    said = the_problem(write(FANCY))
    assert all(package in said for package in packages)
    assert "have one name: uninstall all but one of them" in said


def test_a_board_that_cannot_load_it_stays_as_it_is(install: Install) -> None:
    install()
    rig = Rig(config("a"))
    rig.sample("a", load=4)
    broken = config("a", "b", score="fancy", score_options={"colour": 1})
    with pytest.raises(PluginError, match="unknown option colour"):
        rig.apply(broken)
    rig.tick()
    assert rig.live("a") == pytest.approx(5.0, abs=0.1)
    assert set(rig.keys) == {"a"}


# -- one that fails while it is in use


@pytest.mark.parametrize(
    "score",
    [
        "return 1 / 0 if loads.n.max() == 6 else loads.n * 100.0",
        "return sys.exit() if loads.n.max() == 6 else loads.n * 100.0",
        "if loads.n.max() != 6: return loads.n * 100.0\n        raise asyncio.CancelledError",
        "if loads.n.max() != 6: return loads.n * 100.0\n        raise GeneratorExit",
        "return loads.n[:1] if loads.n.max() == 6 else loads.n * 100.0",
        "return np.where(loads.n == 6, np.nan, loads.n * 100.0)",
        "return np.where(loads.n == 6, -np.inf, loads.n * 100.0)",
    ],
)
def test_where_one_score_fails_all_are_request_counts_and_it_is_told_once(
    install: Install, caplog: pytest.LogCaptureFixture, score: str
) -> None:
    package = install(score=score)
    mode = load("fancy", {})
    assert mode.score(fleet({"n": 2.0}, {"n": 3.0})).tolist() == [200.0, 300.0]
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert mode.score(fleet({"n": 2.0}, {"n": 6.0})).tolist() == [3.0, 7.0]
    assert mode.failures == 3
    assert len(caplog.records) == 1
    assert f"of {package} 1.0 fails: " in caplog.text
    assert mode.score(fleet({"n": 2.0}, {"n": 3.0})).tolist() == [200.0, 300.0]


def test_a_monitor_goes_on_ticking_while_it_fails(install: Install) -> None:
    install(score="return 1 / 0 if loads.n.max() == 6 else loads.n * 2.0")
    rig = Rig(config("a", "b", score="fancy"))
    rig.sample("a", load=6)
    rig.sample("b", load=1)
    rig.tick()
    assert (rig.live("a"), rig.live("b")) == (7.0, 2.0)
    assert rig.table.heartbeat == rig.now_ns


def test_a_record_says_that_the_score_fails_and_the_log_that_it_works_again(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install(score="return 1 / 0 if loads.own.max() == 6 else loads.n * 2.0")
    rig = Rig(config("a", score="fancy"))
    rig.sample("a", load=0)

    def reason() -> str:
        rig.fleet.changed.add(0)
        rig.tick()
        return rig.detail("a").reason

    with caplog.at_level(logging.INFO):
        assert reason() == ""
        rig.table.dispatch(0, 6)
        assert reason() == (
            "score mode fancy fails (ZeroDivisionError: division by zero): requests are counted instead of it"
        )
        assert caplog.text.count("fails") == 1
        caplog.clear()
        rig.table.dispatch(0, 1)
        assert [reason() for _ in range(RECOVERED_AFTER - 1)] == [""] * (RECOVERED_AFTER - 1)
        assert not caplog.records, "one that fails now and then does not fill the log"
        rig.tick()
        assert caplog.records[-1].getMessage().endswith(" works again")
        rig.table.end(0, 1)
        assert reason()
    assert caplog.text.count("fails") == 1, "it is told anew"


def test_prices_that_fail_are_those_of_request_counts(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install(prices="return Prices(1024.0, 0.0, 1 / (kv_capacity - 5) if kv_capacity else 1.0)")
    mode = load("fancy", {})
    assert mode.prices(6.0).kv_token == 1.0
    with caplog.at_level(logging.ERROR):
        assert mode.prices(5.0) == mode.prices(4.0) == PLAIN_PRICES
    assert [record.getMessage().count("ZeroDivisionError") for record in caplog.records] == [1]


def test_scores_are_held_within_what_the_table_can_tell_apart(install: Install) -> None:
    install(score="return loads.n + 1e300 * (loads.n == 7)")
    found = load("fancy", {}).score(fleet({"n": 6.0}, {"n": 7.0}))
    assert found.tolist() == [6.0, SCORE_LIMIT / UNITS]


def test_a_negative_score_counts_as_zero_and_is_told_once_a_minute(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    package = install(score="return loads.n - 100.0 * (loads.n == 6)")
    seconds = [0.0]
    mode = load("fancy", {}, clock=lambda: seconds[0])
    for seconds[0] in (0.0, 1.0, 59.0, 61.0):
        assert mode.score(fleet({"n": 6.0}, {"n": 7.0})).tolist() == [0.0, 7.0]
    assert len(caplog.records) == 2
    assert f"of {package} 1.0 has given the score -94, which counts as 0" in caplog.text
    assert mode.failures == 0


class Watch:
    """A mode's clock, by which each score takes as long as is said."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._readings: list[float] = []

    def __call__(self) -> float:
        return self._readings.pop(0)

    def call(self, mode: Plugin, took_ms: float) -> None:
        self._readings = [self.seconds, self.seconds + took_ms / 1e3]
        mode.score(fleet({"n": 2.0}))
        self.seconds += 0.02


def test_a_slow_score_is_told_once_a_minute_with_its_time_and_the_tick(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    package = install()
    watch = Watch()
    mode = load("fancy", {}, clock=watch)
    for _ in range(SLOW_IN_A_ROW):
        assert not caplog.records, "one alone may be due to the machine"
        watch.call(mode, 8.0)
    assert len(caplog.records) == 1
    assert f"of {package} 1.0 is slow: it took 8 ms for one score, and a tick has 20 ms" in caplog.text
    assert failing(mode) == "score mode fancy is slow: it took 8 ms for one score, and a tick has 20 ms"
    watch.call(mode, 300.0)
    assert len(caplog.records) == 1
    assert "300 ms" in failing(mode)
    watch.seconds += WARN_EVERY_S - 1.0
    watch.call(mode, 0.1)
    assert failing(mode), "it is shown for a while"
    watch.seconds += 2.0
    watch.call(mode, 0.1)
    assert failing(mode) == ""
    watch.call(mode, 300.0)
    assert len(caplog.records) == 2, "one that takes longer than a tick is told at once"


def test_a_score_that_is_now_and_then_held_up_is_not_called_slow(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install()
    watch = Watch()
    mode = load("fancy", {}, tick_s=0.05, clock=watch)
    for took_ms in (8.0, 49.0, 1.0) * 5:
        watch.call(mode, took_ms)
    assert failing(mode) == ""
    assert not caplog.records


@pytest.mark.parametrize("call", ["prices", "score"])
def test_an_interrupt_is_no_failure_and_gets_through(install: Install, call: str) -> None:
    install(
        prices="if kv_capacity == 6.0: raise KeyboardInterrupt\n        " + PRICES,
        score="if loads.n.max() == 6: raise KeyboardInterrupt\n        " + SCORE,
    )
    mode = load("fancy", {})
    with pytest.raises(KeyboardInterrupt):
        mode.prices(6.0) if call == "prices" else mode.score(fleet({"n": 6.0}))


@pytest.mark.parametrize(
    "text",
    ["raise KeyboardInterrupt", "def factory(options): raise KeyboardInterrupt"],
    ids=["import", "call"],
)
def test_an_interrupt_while_it_is_loaded_gets_through(install: Install, text: str) -> None:
    install(text)
    with pytest.raises(KeyboardInterrupt):
        load("fancy", {})


#: Notes in which thread its factory runs each time.
NOTING = (
    GOOD.format(name="fancy", prices=PRICES, score=SCORE)
    + """

import threading

made = []


def factory(options):
    made.append(threading.current_thread())
    return Mode(options)
"""
)


def _made() -> list[threading.Thread]:
    made: list[threading.Thread] = sys.modules[f"scores_of_others_{next(_numbers) - 1}"].made
    return made


def test_a_factory_is_asked_once_for_the_same_options_and_pools_fail_apart(install: Install) -> None:
    install(NOTING)
    rig = Rig(config("a", score="fancy"))
    made = _made()
    assert len(made) == 1
    rig.apply(config("a", "b", score="fancy"))
    assert len(made) == 1
    rig.apply(config("a", score="fancy", score_options={"scale": 3.0}))
    rig.apply(config("a", score="fancy"))
    assert len(made) == 2
    first, second = load("fancy", {}), load("fancy", {})
    assert first is not second, "each has its own word on whether it works"


def test_a_reload_makes_modes_in_another_thread_than_the_one_that_ticks(
    install: Install, table_name: str
) -> None:
    install(NOTING)
    before = config("a", score="fancy").model_copy(update={"table": table_name})
    after = before.model_copy(update={"score_options": {"scale": 2.0}})

    async def reload() -> None:
        table = open_table(before)
        service = Service(before, table, SystemClock(), Notifier(None))
        try:
            await service.start()
            await service.configure(after)
            await service.configure(before)
        finally:
            await service.aclose()
            table.close()

    asyncio.run(reload())
    at_start, later = _made()
    assert at_start is threading.current_thread()
    assert later is not threading.current_thread()


def test_it_cannot_write_to_what_the_monitor_knows(install: Install) -> None:
    install(score="loads.own[:] = 0.0 if loads.n.max() == 6 else loads.own; return loads.n + 1.0")
    with pytest.raises(PluginError, match="read-only"):
        load("fancy", {})


def test_options_are_a_copy(install: Install) -> None:
    install(
        GOOD.format(name="fancy", prices=PRICES, score=SCORE).replace(
            "self.scale =", "options['x'] = 1; self.scale ="
        )
    )
    given: dict[str, object] = {}
    assert isinstance(load("fancy", given), Plugin)
    assert given == {}


def test_options_without_a_mode_that_reads_them_are_noted(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(write(ONE + "[score_options]\nscale = 2\n"))]) == 0
    assert "note: score_options: only installed score modes read them" in capsys.readouterr().out
    assert isinstance(load_config(None, {}, {}, ["http://h"]), MonitorConfig)
