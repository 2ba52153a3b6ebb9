"""The daemon's log: one form for everything, and a reader that hangs stops nobody."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest
import structlog

from monitor import logs
from monitor.logs import open_log
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """The levels of other loggers are those of before."""
    names = (None, "httpx", "httpcore", "asyncio")
    before = [logging.getLogger(name).level for name in names]
    yield
    structlog.reset_defaults()
    for name, level in zip(names, before, strict=True):
        logging.getLogger(name).setLevel(level)


def written(log_format: str, level: str = "info") -> str:
    """What comes out for an event, a standard record, one of an HTTP library and one below the level."""
    stream = io.StringIO()
    log = open_log(log_format, level, stream)
    structlog.stdlib.get_logger("loadboard.monitor").info("started", slots=16)
    logging.getLogger("loadboard.score_table").warning("lane %d is gone", 3)
    logging.getLogger("httpx").info("GET /metrics")
    logging.getLogger("loadboard.monitor").debug("details")
    log.close()
    return stream.getvalue()


def test_json_lines_have_the_same_keys_wherever_they_come_from() -> None:
    for log_format in ("json", "auto"):
        event, record = [json.loads(line) for line in written(log_format).splitlines()]
        assert (event["event"], event["slots"], event["level"]) == ("started", 16, "info")
        assert (record["event"], record["logger"]) == ("lane 3 is gone", "loadboard.score_table")
        assert event.keys() - {"slots"} == record.keys()


def test_console_lines_are_for_people() -> None:
    event, record = written("console").splitlines()
    assert "started" in event
    assert "slots=16" in event
    assert "lane 3 is gone" in record


def test_the_level_is_that_of_the_configuration() -> None:
    assert "details" in written("json", "debug")
    assert "started" not in written("json", "warning")


def test_an_exception_is_one_line_of_json() -> None:
    stream = io.StringIO()
    log = open_log("json", "info", stream)
    try:
        raise ValueError("made up")
    except ValueError:
        logging.getLogger("loadboard.monitor").exception("failed")
    log.close()
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: made up" in json.loads(line)["exception"]


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_traceback_shows_no_values(log_format: str) -> None:
    stream = io.StringIO()
    log = open_log(log_format, "info", stream)

    def fail(token: str) -> None:
        raise ValueError("made up")

    try:
        fail("s3c" + "ret")
    except ValueError:
        logging.getLogger("loadboard.monitor").exception("failed")
    log.close()
    assert "ValueError: made up" in stream.getvalue()
    assert "s3cret" not in stream.getvalue()


class _Hanging(io.StringIO):
    """A stream whose reader has stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = threading.Event()

    def write(self, text: str) -> int:
        self.reading.wait(30)
        return super().write(text)


def test_a_reader_that_hangs_stops_nobody_and_what_was_lost_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "QUEUE_LENGTH", 10)
    stream = _Hanging()
    log = open_log("json", "info", stream)
    for number in range(100):
        logging.getLogger("loadboard.monitor").info("line %d", number)
    stream.reading.set()
    wait_until(lambda: "line 9" in stream.getvalue(), what="the lines that were kept")
    log.close()
    assert "records of this log were dropped" in stream.getvalue().splitlines()[-1]
