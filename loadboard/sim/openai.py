"""The OpenAI completion API as far as a simulated engine needs it: bodies to calls, tokens to answers."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadboard.sim.exposition import MODEL_NAME

_BYTES_PER_TOKEN = 4  # the usual rule of thumb for English text
_WORD = " simulated"
_COMPLETION_TOKENS = 16  # where max_tokens is not given: OpenAI's own default
_CHAT_TOKENS = 128


class BadRequest(ValueError):
    """The client's fault; ``status`` and ``kind`` are those of vLLM's error answers."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.kind = "NotFoundError" if status == 404 else "BadRequestError"


def error_body(error: BadRequest) -> dict[str, Any]:
    return {
        "error": {
            "message": str(error),
            "type": error.kind,
            "param": error.param,
            "code": error.status,
        }
    }


@dataclass(frozen=True)
class Call:
    """One request of a client, understood."""

    chat: bool
    prompt_tokens: int
    max_tokens: int
    stream: bool
    include_usage: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, body: bytes, *, chat: bool) -> Call:
        """Reads the body of ``/v1/completions`` or ``/v1/chat/completions``; raises :class:`BadRequest`."""
        try:
            asked = json.loads(body)
        except ValueError:
            raise BadRequest("the body is not JSON") from None
        if not isinstance(asked, dict):
            raise BadRequest("the body must be a JSON object")
        model = asked.get("model", MODEL_NAME)
        if model != MODEL_NAME:
            raise BadRequest(f"The model `{model}` does not exist.", "model", 404)
        if asked.get("n", 1) != 1:
            raise BadRequest("a simulated engine gives one answer: n must be 1", "n")
        options = asked.get("stream_options")
        return cls(
            chat=chat,
            prompt_tokens=_chat_tokens(asked) if chat else _prompt_tokens(asked),
            max_tokens=_max_tokens(asked, chat),
            stream=asked.get("stream") is True,
            include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        )

    def answer(self) -> dict[str, Any]:
        """The whole answer at once, for a client that does not stream."""
        text = _WORD * self.max_tokens
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "length"}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return self._envelope([choice]) | {"usage": self._usage()}

    def chunk(self, new: int, *, first: bool, last: bool) -> bytes:
        """One server-sent event with ``new`` tokens."""
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": None,
            "finish_reason": "length" if last else None,
        }
        text = _WORD * new
        if self.chat:
            choice["delta"] = {"role": "assistant", "content": text} if first else {"content": text}
        else:
            choice["text"] = text
        return _event(self._envelope([choice]))

    def end(self) -> bytes:
        """The events after the last token."""
        done = b"data: [DONE]\n\n"
        if not self.include_usage:
            return done
        return _event(self._envelope([]) | {"usage": self._usage()}) + done

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        if self.chat:
            kind = "chat.completion.chunk" if self.stream else "chat.completion"
        else:
            kind = "text_completion"
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": MODEL_NAME,
            "choices": choices,
        }

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.max_tokens,
            "total_tokens": self.prompt_tokens + self.max_tokens,
        }


def text_tokens(text: str) -> int:
    """Tokens of a text: a quarter of its bytes, at least 1."""
    return max(1, -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN))


def _prompt_tokens(asked: Mapping[str, Any]) -> int:
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]  # a batch of one
    if isinstance(prompt, str):
        return text_tokens(prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return len(prompt)
    raise BadRequest("prompt must be one text or one list of token ids", "prompt")


def _chat_tokens(asked: Mapping[str, Any]) -> int:
    messages = asked.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list with at least one message", "messages")
    texts: list[str] = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            texts.append(content)
        elif isinstance(content, list):
            texts += [str(part.get("text", "")) for part in content if isinstance(part, dict)]
        else:
            raise BadRequest("every message needs a content: a text or a list of parts", "messages")
    return text_tokens("".join(texts))


def _max_tokens(asked: Mapping[str, Any], chat: bool) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        value = asked.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadRequest(f"{name} must be a whole number of at least 1, not {value!r}", name)
        return value
    return _CHAT_TOKENS if chat else _COMPLETION_TOKENS


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
