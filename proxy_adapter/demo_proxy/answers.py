"""The answers that the proxy gives itself, in the form that OpenAI clients understand."""

from __future__ import annotations

import json

from starlette.types import Send

_JSON = b"application/json"


def error_body(message: str, kind: str, code: str) -> bytes:
    """``{"error": {...}}``; ``kind`` is OpenAI's ``type``."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    return json.dumps({"error": error}).encode()


def error_event(message: str, kind: str, code: str) -> bytes:
    """The same as one server-sent event."""
    return b"data: " + error_body(message, kind, code) + b"\n\n"


async def send_error(
    send: Send,
    status: int,
    message: str,
    code: str,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    *,
    more_body: bool = False,
) -> None:
    """Send a whole error response; with ``more_body`` the caller ends it with an empty last body."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = error_body(message, kind, code)
    fields = [(b"content-type", _JSON), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body, "more_body": more_body})
