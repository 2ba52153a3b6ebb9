"""The daemon's log: structlog's events and every room's standard logging, in one form, on standard error.

Records are written by a thread of their own. A reader of the log that hangs (a full pipe, a stopped terminal)
must not stop the heartbeat; when it hangs for long, records are dropped and counted.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import sys
from typing import TextIO

import structlog
from structlog.typing import Processor

QUEUE_LENGTH = 10_000


class _Handover(logging.handlers.QueueHandler):
    """Hands records to the writing thread as they are; never waits."""

    dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class Log:
    """The log in force; :meth:`close` writes out what is left."""

    def __init__(self, log_format: str, level: str, stream: TextIO) -> None:
        """``log_format`` is "console", "json" or "auto" (console on a terminal); ``level`` as in logging."""
        console = log_format == "console" or (log_format == "auto" and stream.isatty())
        shared: list[Processor] = [
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ]
        last: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
        if console:
            # Plain tracebacks: the pretty ones show the values of variables, tokens among them.
            plain = structlog.dev.plain_traceback
            last.append(
                structlog.dev.ConsoleRenderer(
                    colors=stream.isatty(), pad_event_to=0, exception_formatter=plain
                )
            )
        else:
            last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        self._writer = logging.StreamHandler(stream)
        self._writer.setFormatter(
            structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=last)
        )
        self._handover = _Handover(queue.Queue(QUEUE_LENGTH))
        self._listener = logging.handlers.QueueListener(self._handover.queue, self._writer)
        self._listener.start()
        root = logging.getLogger()
        self._former = list(root.handlers)
        root.handlers[:] = [self._handover]
        self.set_level(level)
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.stdlib.PositionalArgumentsFormatter(),
                *shared,
                structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
            cache_logger_on_first_use=True,
        )

    def set_level(self, level: str) -> None:
        """Log ``level`` and above from now on."""
        logging.getLogger().setLevel(level.upper())
        for name in ("httpx", "httpcore", "asyncio"):
            # A line per poll is no news.
            logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))

    def close(self) -> None:
        """Write out what is waiting and give the root logger back its former handlers."""
        self._listener.stop()
        logging.getLogger().handlers[:] = self._former
        if self._handover.dropped:
            text = f"{self._handover.dropped} records of this log were dropped, its reader was too slow"
            self._writer.handle(
                logging.LogRecord("loadboard.monitor", logging.WARNING, __file__, 0, text, (), None)
            )


def open_log(log_format: str, level: str, stream: TextIO | None = None) -> Log:
    """Log to ``stream`` (standard error) from now on."""
    return Log(log_format, level, stream or sys.stderr)
