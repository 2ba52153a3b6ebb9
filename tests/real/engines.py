"""Real vLLM servers on loopback, and an own reading of their ``/metrics``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.real.environment import SCRATCH, Real
from tests.real.processes import Session, reserve_port
from tests.waiting import wait_until

MODEL_NAME = "tiny"
MAX_TOKENS = 8192  # prompt and answer of one request
SEATS = 32  # requests that one engine computes at a time; the test never has more than this on one
_BLOCK = 32  # tokens; vLLM's CPU attention takes only multiples of 32
# Room for 24 requests of full length: 20 run, so nothing ever waits for KV, and usage still reads as a real share.
_BLOCKS = 24 * MAX_TOKENS // _BLOCK
# One event per 8 tokens: the figures are about requests, and the processor is needed for more than writing events.
_TOKENS_PER_EVENT = 8
_START_TIMEOUT_S = 300.0


class Figures(NamedTuple):
    """What an engine says of itself."""

    running: int
    waiting: int
    kv_usage: float  # share, 0..1

    @property
    def inside(self) -> int:
        """Requests that the engine has, computed now or waiting for it."""
        return self.running + self.waiting


class Engine:
    """One vLLM server on a port of its own that it keeps over restarts."""

    def __init__(self, instance_id: str, real: Real, core: int, temporary: Path) -> None:
        self.instance_id = instance_id
        self._real = real
        self._core = core
        self._temporary = temporary  # a short path: names of Unix sockets begin with it
        self._port = reserve_port()
        self._session: Session | None = None
        self._started = 0.0
        self.url = f"http://127.0.0.1:{self._port.getsockname()[1]}"

    def start(self) -> None:
        """Start the server, also after :meth:`kill`; :meth:`wait_healthy` tells when it answers."""
        if self._session is not None:
            self._session.bury()
        command = [
            # Its processes wait for each other in busy loops, which may keep everybody else on a core waiting for
            # seconds: all of them stay on this one.
            *("taskset", "--cpu-list", str(self._core)),
            *(str(self._real.python), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(self._real.model), "--served-model-name", MODEL_NAME),
            *("--host", "127.0.0.1", "--port", str(self._port.getsockname()[1])),
            *("--dtype", "bfloat16", "--enforce-eager"),  # eager: nothing is compiled at each start
            *("--max-model-len", str(MAX_TOKENS), "--max-num-seqs", str(SEATS)),
            *("--block-size", str(_BLOCK), "--num-gpu-blocks-override", str(_BLOCKS)),
            *("--stream-interval", str(_TOKENS_PER_EVENT), "--disable-uvicorn-access-log"),
        ]
        environ = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": str(self._core),
            "VLLM_HOST_IP": "127.0.0.1",  # else its inner sockets listen on every interface
            "VLLM_CACHE_ROOT": str(SCRATCH / "cache"),
            "VLLM_CONFIG_ROOT": str(SCRATCH / "config"),
            "VLLM_RPC_BASE_PATH": str(self._temporary),
            "TMPDIR": str(self._temporary),
        }
        self._started = time.monotonic()
        self._session = Session(f"engine-{self.instance_id}", command, environ)

    def wait_healthy(self) -> float:
        """Seconds from the start until ``/health`` says 200; AssertionError with the end of its log if never."""
        session = self._session
        assert session is not None

        def healthy() -> bool:
            status = session.exit_status()
            assert status is None, f"{session.name} ended with status {status}:\n{session.tail()}"
            try:
                return httpx.get(f"{self.url}/health", timeout=5.0).status_code == 200
            except httpx.TransportError:
                return False

        try:
            wait_until(healthy, _START_TIMEOUT_S, f"{session.name} to answer")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{session.tail()}") from None
        return time.monotonic() - self._started

    def kill(self) -> None:
        """SIGKILL for the API server, the engine core and its worker."""
        assert self._session is not None
        self._session.kill()

    def close(self) -> None:
        """Stop the server and give the port back."""
        if self._session is not None:
            self._session.stop(grace_s=5.0)  # one that is still starting does not listen
        self._port.close()


def read_figures(metrics_text: str) -> Figures:
    """The figures of a vLLM ``/metrics`` page, read with prometheus_client: nothing of loadboard has a part in it."""
    sums = {
        "vllm:num_requests_running": 0.0,
        "vllm:num_requests_waiting": 0.0,
        "vllm:kv_cache_usage_perc": 0.0,
    }
    for family in text_string_to_metric_families(metrics_text):
        if family.name in sums:
            sums[family.name] = sum(sample.value for sample in family.samples)
    running, waiting, kv_usage = sums.values()
    return Figures(int(running), int(waiting), kv_usage)


def scraper() -> httpx.AsyncClient:
    """A client for :func:`scrape`. A connection per question: engines close idle ones after 5 s without a word."""
    return httpx.AsyncClient(timeout=10.0, limits=httpx.Limits(max_keepalive_connections=0))


async def scrape(http: httpx.AsyncClient, engine: Engine) -> Figures:
    """Ask the engine itself."""
    answer = await http.get(f"{engine.url}/metrics")
    answer.raise_for_status()
    return read_figures(answer.text)
