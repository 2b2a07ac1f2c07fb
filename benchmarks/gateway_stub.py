"""The server under the gateways: answers at once, without work. Prints its port.

A request with ``"stream": true`` gets 20 events, 5 ms apart; one of the user ``idle`` gets one event, and then a comment
each 5 s until its client goes.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

EVENTS, EVENT_S, COMMENT_S = 20, 0.005, 5.0
LIMITS = (
    "x-ratelimit-limit-requests: 10000000\r\nx-ratelimit-remaining-requests: 9999999\r\nx-ratelimit-reset-requests: 1ms\r\n"
    "x-ratelimit-limit-tokens: 1000000000\r\nx-ratelimit-remaining-tokens: 999999000\r\nx-ratelimit-reset-tokens: 1ms\r\n"
    "x-request-id: req_1\r\n"
)
USAGE = {"prompt_tokens": 380, "completion_tokens": 20, "total_tokens": 400}
CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}


def _answer() -> bytes:
    message = {"role": "assistant", "content": "word " * 24}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4o", "usage": USAGE}
    text = json.dumps(body | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    return f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{LIMITS}content-length: {len(text)}\r\n\r\n{text}".encode()


def _event(delta: dict[str, str], **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": more.pop("finish_reason", None)}]
    return _piece(f"data: {json.dumps(CHUNK | {'choices': choices} | more)}\n\n")


def _piece(text: str) -> bytes:
    return f"{len(text):x}\r\n{text}\r\n".encode()


ANSWER = _answer()
HEAD = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{LIMITS}transfer-encoding: chunked\r\n\r\n".encode()
FIRST, WORD = _event({"role": "assistant", "content": ""}), _event({"content": "word "})
LAST = _event({}, finish_reason="stop", usage=USAGE) + _piece("data: [DONE]\n\n") + b"0\r\n\r\n"
COMMENT = _piece(": comment\n\n")


class Answers(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.got = bytearray()
        self.loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self.got += data
        while (end := self.got.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.got[:end]).lower()
            if b"transfer-encoding: chunked" in head:
                over = self.got.find(b"\r\n0\r\n\r\n", end)
                if over < 0:
                    return
                size = over + 7 - end - 4
            else:
                size = int(head.partition(b"content-length:")[2].partition(b"\r")[0] or 0)
            if len(self.got) < end + 4 + size:
                return
            body = bytes(self.got[end + 4 : end + 4 + size])
            del self.got[: end + 4 + size]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if b'"stream":true' not in body and b'"stream": true' not in body:
            self.transport.write(ANSWER)
        else:
            self.transport.write(HEAD + FIRST)
            if b'"idle"' in body:
                self.loop.call_later(COMMENT_S, self._comment)
            else:
                self.loop.call_later(EVENT_S, self._word, EVENTS - 2)

    def _word(self, left: int) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(WORD if left else LAST)
        if left:
            self.loop.call_later(EVENT_S, self._word, left - 1)

    def _comment(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(COMMENT)
            self.loop.call_later(COMMENT_S, self._comment)


async def main() -> None:
    """Serve until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Answers, "127.0.0.1", 0, backlog=4_096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
