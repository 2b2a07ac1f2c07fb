"""Requests and answers of ASGI: read a body, send a whole answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from paceline.emulator.wire import Header, HttpAnswer

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def read_body(receive: Receive, most: int) -> bytes | None:
    """A request's body; ``None`` if it is too large. It is read to the end, so that the client can read the answer."""
    parts, size, more = list[bytes](), 0, True
    while more:
        message = await receive()
        part = message.get("body", b"")
        size, more = size + len(part), message.get("more_body", False)
        if size <= most:
            parts.append(part)
        else:
            parts.clear()
        if message["type"] == "http.disconnect":
            return None
    return b"".join(parts) if size <= most else None


async def send_answer(send: Send, answer: HttpAnswer, extra: Sequence[Header] = ()) -> None:
    """Send a whole answer, with its length and further headers."""
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body)), *extra]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
