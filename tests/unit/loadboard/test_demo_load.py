"""The demo's clients: what they ask for and how they count the answers."""

from __future__ import annotations

import asyncio
import json
import random

import httpx
import pytest

from loadboard.demo.load import Shape, Tally, body, draw, generate, main
from loadboard.sim.openai import Call
from tests.waiting import wait_until_async


def test_the_mix_has_the_lengths_it_says() -> None:
    rng = random.Random(3)
    shapes = [draw(rng) for _ in range(20_000)]
    usual = [shape.prompt_tokens for shape in shapes if shape.prompt_tokens <= 3_999]
    assert sum(usual) / len(usual) == pytest.approx(220, rel=0.1)
    assert sum(shape.output_tokens for shape in shapes) / len(shapes) == pytest.approx(150, rel=0.1)
    assert sum(shape.prompt_tokens >= 4_000 for shape in shapes) / len(shapes) == pytest.approx(0.05, rel=0.1)
    assert sum(shape.stream for shape in shapes) / len(shapes) == pytest.approx(0.6, rel=0.1)


@pytest.mark.parametrize("chat", [True, False])
def test_an_engine_reads_the_lengths_that_were_drawn(chat: bool) -> None:
    path, content = body(Shape(prompt_tokens=321, output_tokens=45, chat=chat, stream=True))
    assert path == ("/v1/chat/completions" if chat else "/v1/completions")
    call = Call.of(content, chat=chat)
    assert (call.prompt_tokens, call.max_tokens, call.stream) == (321, 45, True)


def test_answers_failures_and_refusals_are_counted_apart() -> None:
    seen: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.content)
        if len(seen) % 3 == 0:
            raise httpx.ConnectError("refused")
        return httpx.Response(200 if len(seen) % 3 == 1 else 503)

    async def scenario() -> Tally:
        tally = Tally()
        transport = httpx.MockTransport(answer)
        async with httpx.AsyncClient(base_url="http://proxy", transport=transport) as client:
            sending = asyncio.create_task(generate(client, 2_000.0, random.Random(1), tally))
            await wait_until_async(lambda: tally.answered + tally.failed >= 30, what="30 answers")
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        return tally

    tally = asyncio.run(scenario())
    assert tally.answered == pytest.approx(len(seen) / 3, abs=1)
    assert tally.failed == pytest.approx(len(seen) * 2 / 3, abs=1)
    assert tally.skipped == 0
    assert "failed, 0 skipped; last failure: " in str(tally)
    assert all(json.loads(content)["model"] == "simulated" for content in seen)


def test_stopping_cuts_off_what_is_open() -> None:
    async def scenario() -> None:
        opened: list[int] = []
        cut: list[int] = []

        async def never(_: httpx.Request) -> httpx.Response:
            opened.append(1)
            try:
                await asyncio.Event().wait()
            finally:
                cut.append(1)
            raise AssertionError("unreachable")

        transport = httpx.MockTransport(never)
        async with httpx.AsyncClient(base_url="http://proxy", transport=transport) as client:
            sending = asyncio.create_task(generate(client, 1_000.0, random.Random(1), Tally()))
            await wait_until_async(lambda: len(opened) >= 5, what="open requests")
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            assert len(cut) == len(opened)

    asyncio.run(scenario())


def test_a_rate_that_sends_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["http://127.0.0.1:1", "--rate", "0"])
    assert "--rate must be greater than 0" in capsys.readouterr().err
