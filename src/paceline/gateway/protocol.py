"""The connection of a client, over the HTTP protocol of uvicorn."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from itertools import chain
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paceline.gateway.connection import Headers
from paceline.gateway.errors import untold

log = logging.getLogger("paceline.gateway")

CONNECTION: Final = "paceline"
"""The extension of a scope with its connection."""

HEAD_MAX: Final = 65_536
"""Bytes in the head of a request: its first line and its headers."""

HEAD_S: Final = 30.0
"""The longest time from a connection, or from the first byte of a request, to the end of the request's head."""

HEADERS_MAX: Final = 256
"""Headers of a request."""

WRITE_S: Final = 60.0
"""The longest time in which a client takes nothing of an answer with more than 64 kB ready."""

KEEP_S: Final = 75
"""How long a connection is kept that has no request."""

LAST_S: Final = 1
"""How long a connection is kept for a request on its way when the server ends, whose client was not told with its last answer."""

LEAVE_S: Final = 0.1
"""How long a connection is kept whose place another one needs, and whose client is told so."""

AGAIN: Final = b"retry-after: 1\r\n"
"""What a client is told that gets no place."""


class _Held:
    """In place of the transport of an answer: holds what is written until it is closed, or released by :meth:`HttpProtocol.hold`.

    Args:
        transport: The transport.
        headers: The headers of the answer, which is written without them: uvicorn would check each of them again.
    """

    def __init__(self, transport: asyncio.Transport, headers: Headers) -> None:
        self._transport, self._parts = transport, list[bytes]()
        self._lines = b"".join([b"%b: %b\r\n" % pair for pair in headers])

    def write(self, data: bytes) -> None:
        """Hold ``data``."""
        if not self._parts:  # the head, which ends with a blank line
            data = b"%b%b\r\n" % (data[:-2], self._lines)
        self._parts.append(data)

    def flush(self) -> None:
        """Send in one step what is held."""
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()

    def close(self) -> None:
        """See :class:`asyncio.Transport`."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """See :class:`asyncio.Transport`."""
        return self._transport.is_closing()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with bounds on sizes and times, and the client's leave-taking for the gateway.

    A connection has a timer whenever it depends on the client: for the head of a request, for the rest of a body that
    the gateway has not waited for, for the next request, and for the taking of an answer.

    Attributes:
        task: Cancelled when the client goes away.
        gone: Whether the client went away.
        opened_s: When it was opened, on the monotonic clock.
        asked: Whether the body of the present request was asked for, if its client waits for that.
    """

    task: asyncio.Task[Any] | None = None
    gone = False
    opened_s = 0.0
    asked = False
    _present: Any = None  # the request that is being answered
    _unread = 0  # bytes since the last head, or the last part of a body
    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.config.tls is not None and self.config.ssl is not None:  # type: ignore[attr-defined]
            self.config.tls.look(self.config.ssl)  # type: ignore[attr-defined]  # before its handshake

    @property
    def most(self) -> int:
        """How many connections this process may have."""
        return self.config.connections_max  # type: ignore[attr-defined, no-any-return]

    @property
    def _idle(self) -> dict[HttpProtocol, None]:
        """The connections of this process without a request, the longest first."""
        return self.config.idle  # type: ignore[attr-defined, no-any-return]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.opened_s = time.monotonic()
        self._late = self.loop.call_later(HEAD_S, self.abort)
        if len(self.connections) > self.most:
            if untold("connections") is not None:
                log.warning("all %d connections of this process are in use: idle ones end to make room", self.most)
            if self._idle:
                next(iter(self._idle)).end_idle()
            else:
                self._refuse(503, AGAIN)
                return
        self._idle[self] = None

    def end_idle(self) -> None:
        """Close the connection, which is without a request: another one needs its place.

        A first request can be on its way, or not be read yet. Its client gets a 503.
        """
        del self._idle[self]
        if self._present is None and not self.transport.is_closing():
            self._refuse(503, AGAIN)
            self.loop.call_later(LEAVE_S, self.abort)  # with TLS, the close would wait for the client
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._idle.pop(self, None)
        for timer in (self._late, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self.transport.set_protocol(asyncio.Protocol())  # on Windows, it would keep this one until a garbage collection
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        self._unset_keepalive_if_required()
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserError:
            self._refuse(400)
            return
        if self._unread > HEAD_MAX:  # a head, the trailers of a body, an extension of a chunk, or empty lines
            self._refuse(431)
        elif self._late is None and (self.cycle is None or self.cycle.response_complete):
            self._late = self.loop.call_later(HEAD_S, self.abort)

    def _parse(self, data: bytes) -> bytes:
        """Parse what came; returns what is to be parsed next.

        The parser leaves the body of a request that offers another protocol to that protocol. The offer is declined: another parser
        gets the same request without it. Java's ``HttpClient`` makes one with the first request of a connection.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self.transport.is_closing():
                return b""
            kept = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] != b"upgrade"]
            version = self.parser.get_http_version().encode()
            head = b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(kept))
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            return head + data[offer.args[0] :]
        return b""

    def on_headers_complete(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        # A part of the body may have come with the head, so the head is measured, if both together are too large.
        large = self._unread > HEAD_MAX and len(self.url) + sum(map(len, chain(*self.headers))) > HEAD_MAX
        self._unread = 0
        if large or len(self.headers) > HEADERS_MAX:
            self._refuse(431)
            return
        if not _clear(self.headers, self.parser.get_http_version()):
            self._refuse(400)
            return
        if self.parser.get_method() == b"CONNECT":
            self._refuse(405)
            return
        if self.parser.should_upgrade():
            return
        self._idle.pop(self, None)
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]
        super().on_headers_complete()
        self.headers = []  # for the trailers, which are dropped
        if not self.app_state[CONNECTION].life.state.ready:  # the next request of this client goes to another process
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._present, self.asked = cycle, False
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if self.cycle.response_complete:  # before the body had come
            if self._late is not None:
                self._late.cancel()
            self._late = self.loop.call_later(KEEP_S, self.abort)

    def on_response_complete(self) -> None:
        awaited = not self.pipeline and self.cycle.more_body and self.expect_100_continue and not self.asked
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None and not self.transport.is_closing():  # no request came meanwhile
            self._idle[self] = None
        if awaited:  # what comes next may be the body or another request
            self.transport.close()
        if self._late is None and self.transport.is_closing():
            self._late = self.loop.call_later(WRITE_S, self.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(WRITE_S, self.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def timeout_keep_alive_handler(self) -> None:
        self.abort()  # also if the client has not taken the last answer

    def _refuse(self, status: int, headers: bytes = b"") -> None:
        """End the connection, with ``status`` if no answer is under way."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.abort()
        elif not self.transport.is_closing():
            line = b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())
            self.transport.write(line + headers + b"connection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()
            if self._late is None:
                self._late = self.loop.call_later(WRITE_S, self.abort)

    def shutdown(self) -> None:
        self.app_state[CONNECTION].drain()
        self.timeout_keep_alive = LAST_S
        present: Any = self.cycle
        if present is None or present.response_complete:
            self.loop.call_later(LAST_S, super().shutdown)
        elif not present.response_started:
            super().shutdown()

    @property
    def answering(self) -> bool:
        """Whether the head of an answer has been sent for the present request."""
        return self._present is not None and self._present.response_started

    def hold(self, headers: Headers) -> Callable[[], None]:
        """Hold what is sent of the present answer, which is to begin without headers; returns what sends it in one step.

        Args:
            headers: Its headers, which were checked already.
        """
        answer, held = self._present, _Held(self.transport, headers)
        answer.transport = held
        length = dict(headers).get(b"content-length")
        if length is not None:  # else uvicorn sends the body in chunks
            answer.chunked_encoding, answer.expected_content_length = False, int(length)

        def release() -> None:
            answer.transport = self.transport
            held.flush()

        return release

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def close(self) -> None:
        """Close the connection when all is sent."""
        self.transport.close()


def _clear(headers: list[tuple[bytes, bytes]], version: str) -> bool:
    """Whether a request of HTTP 1.0 or 1.1 names its host as that asks, and its body has no other encoding on the way than ``chunked``."""
    hosts = sum(name == b"host" for name, _ in headers)
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    return version in ("1.0", "1.1") and int(version == "1.1") <= hosts <= 1 and codings in ([], [b"chunked"])
