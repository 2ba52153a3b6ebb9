"""What a request says of the work it will be: a cheap guess at its prompt, and whether it streams."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

#: Four characters to a token is the usual rule of thumb for English text.
CHARACTERS_PER_TOKEN = 4
#: Beyond this the time to parse would be felt by every other request of the worker.
MAX_PARSED_BYTES = 4 * 1024 * 1024

_PATHS = {"/v1/completions": "prompt", "/v1/chat/completions": "messages"}


class Work(NamedTuple):
    """What the strategy is told of a request before it is sent."""

    prompt_tokens: int | None  #: at least 1; None: unknown
    streams: bool  #: the first token will be seen
    tags: Mapping[str, str] = MappingProxyType({})  #: of the instances that may take it; empty: of any

    def hint(self) -> dict[str, Any] | None:
        """What ``dispatch`` takes besides the length of the prompt."""
        hint = {"stream": True} if self.streams else {}
        return {**hint, "tags": self.tags} if self.tags else hint or None


UNKNOWN = Work(None, False)


def work_of(path: str, body: bytes) -> Work:
    """Of a completion request; ``UNKNOWN`` where the path or the body is of another kind.

    Never raises, whatever the body holds.
    """
    key = _PATHS.get(path)
    if key is None or len(body) > MAX_PARSED_BYTES or body.lstrip()[:1] != b"{":
        return UNKNOWN
    try:
        # As floats: on older Pythons an integer of a million digits would take minutes to convert.
        document = json.loads(body, parse_int=float)
    except (ValueError, RecursionError):
        return UNKNOWN
    if not isinstance(document, dict):
        return UNKNOWN
    value = document.get(key)
    tokens = None
    if value is not None:
        tokens = max(1, _of_messages(value) if key == "messages" else _of_prompt(value))
    return Work(tokens, document.get("stream") is True)


def _of_prompt(prompt: Any) -> int:
    """A string, a list of token ids, or a list of either."""
    if isinstance(prompt, str):
        return len(prompt) // CHARACTERS_PER_TOKEN
    if not isinstance(prompt, list):
        return 0
    ids = characters = 0
    for part in prompt:
        if isinstance(part, str):
            characters += len(part)
        elif isinstance(part, list):
            ids += len(part)
        else:
            ids += 1
    return ids + characters // CHARACTERS_PER_TOKEN


def _of_messages(messages: Any) -> int:
    """Only text counts: an image sent inline has far more characters than tokens."""
    if not isinstance(messages, list):
        return 0
    characters = 0
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            characters += len(content)
        elif isinstance(content, list):
            for part in content:
                text = part.get("text") if isinstance(part, dict) else None
                if isinstance(text, str):
                    characters += len(text)
    return characters // CHARACTERS_PER_TOKEN
