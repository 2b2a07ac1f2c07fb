"""Connections to a server: each has one answer at a time."""

from __future__ import annotations

import asyncio
import socket
import ssl
import string
from collections import deque
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import proxy

import aiohttp
import httptools
from aiohappyeyeballs import start_connection

from paceline.pacing.faults import Fault, fault_of

NEXT_ADDRESS_S: Final = 0.25
"""The time after which the next address of a host is tried, too (RFC 8305, section 8)."""

KEEP_S: Final = 30.0
"""How long a connection is kept that has no request."""

IDLE_MAX: Final = 2_000
"""Connections without a request that are kept to one server."""

HEADER_MAX, HEADERS_MAX, HEAD_MAX = 65_536, 1_000, 262_144
"""Bytes in one header, headers, and bytes in the head of an answer. Answers below 200 before it count, too."""

READ_MAX: Final = 65_536
"""Bytes that are taken from a connection in one step."""

HELD_MAX: Final = 65_536
"""Bytes of a body that are kept for a slower reader; then no more is taken from the connection."""

_IN_NAMES: Final = f"{string.ascii_letters}{string.digits}!#$%&'*+-.^_`|~".encode()
_IN_VALUES: Final = bytes({9, *range(32, 256)} - {127})
"""The characters that names and values of headers may have."""

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, and values."""


class InvalidAnswerError(aiohttp.ClientPayloadError):
    """A server's answer is not HTTP, or beyond the bounds; without the answer, which may hold a key."""


class Server:
    """One address, and its connections without a request."""

    def __init__(self, root: str, trusted: ssl.SSLContext) -> None:
        parts = urlsplit(root)
        self.host, self.secure = parts.hostname or "", parts.scheme == "https"
        self.port = parts.port or (443 if self.secure else 80)
        self.netloc, self.base = parts.netloc.encode(), parts.path.encode()
        self.idle: deque[ServerConnection] = deque()
        # Of all its connections: what is read is taken at once. A view, because asyncio's TLS reads into slices of it.
        self.buffer = memoryview(bytearray(READ_MAX))
        self.loop = asyncio.get_running_loop()  # a look for it is a system call before Python 3.12
        self._trusted = trusted if self.secure else None

    def kept(self) -> ServerConnection | None:
        """A connection that can be used again, the youngest one; older ones than ``KEEP_S`` are closed."""
        oldest_s = self.loop.time() - KEEP_S
        while self.idle and self.idle[0].idle_s < oldest_s:
            self.idle.popleft().transport.abort()
        while self.idle:
            # The youngest first: so those that are not needed age, and are closed.
            connection = self.idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def connect(self, timeout_s: float) -> ServerConnection:
        """A new connection."""
        loop = self.loop
        try:
            async with asyncio.timeout(timeout_s):
                addresses = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
                opened = await start_connection(addresses, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=loop)
                name = self.host if self.secure else None
                made = loop.create_task(
                    loop.create_connection(
                        lambda: ServerConnection(self), sock=opened, ssl=self._trusted, server_hostname=name
                    )
                )
                try:
                    _, connection = await asyncio.shield(made)  # uvloop leaves the socket open if it is cancelled here
                except asyncio.CancelledError:
                    made.add_done_callback(_abort)
                    raise
        except TimeoutError:
            raise aiohttp.ConnectionTimeoutError(f"no connection within {timeout_s:g} s") from None
        except OSError as error:
            if fault_of(error) is Fault.UNREACHED:
                raise
            raise NoConnectionError(error.strerror) from error
        return connection

    def close(self) -> None:
        """Close the connections without a request."""
        while self.idle:
            self.idle.pop().transport.abort()


def _abort(made: asyncio.Task[tuple[asyncio.Transport, Any]]) -> None:
    """Close a connection that nothing waits for any more."""
    if not made.cancelled() and made.exception() is None:
        made.result()[0].abort()


class NoConnectionError(ConnectionRefusedError):
    """There is no connection, for another reason than that it was refused."""


class ServerConnection(asyncio.BufferedProtocol):
    """A connection: it has one answer at a time.

    Attributes:
        idle_s: Since when it has no request.
        unsent: Whether a part of the present request is still to be sent.
    """

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server, self.loop = server, server.loop
        self._answer: Answer | None = None
        self._parser: Any = None
        self._full: asyncio.Future[None] | None = None
        self.idle_s, self.unsent = 0.0, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def begin(self, answer: Answer, message: bytes) -> None:
        """Send a request."""
        self._answer, self._parser = answer, httptools.HttpResponseParser(answer)
        self.transport.write(message)

    async def send(self, part: bytes) -> None:
        """Send more of a request; returns when there is room for more."""
        self.transport.write(part)
        if self._full is not None:
            await self._full

    def pause_writing(self) -> None:
        self._full = self.loop.create_future()

    def resume_writing(self) -> None:
        if self._full is not None and not self._full.done():
            self._full.set_result(None)
        self._full = None

    def status(self) -> int:
        """The status of the answer, once its head is there."""
        return int(self._parser.get_status_code())

    def is_kept(self) -> bool:
        """Whether the server keeps the connection after the answer."""
        return bool(self._parser.should_keep_alive())

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        answer = self._answer
        if answer is None:  # a server that speaks without being asked
            self.transport.abort()
            return
        clean = False
        try:
            self._parser.feed_data(self._server.buffer[:nbytes])
            answer.received(nbytes)
            clean = True
        except InvalidAnswerError as error:
            answer.fail(error)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
            cause = getattr(error, "__context__", None)  # what a callback raised
            answer.fail(cause if isinstance(cause, InvalidAnswerError) else InvalidAnswerError("it is no HTTP"))
        if answer.over:
            self._end(answer, reusable=clean and answer.frees and not self.unsent)

    def eof_received(self) -> None:
        """Close: the server sends no more."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        self._parser = None  # which has the last answer, and that one the connection
        if (answer := self._answer) is not None:
            answer.lost(exc)
            self._answer = None
        else:
            with suppress(ValueError):
                self._server.idle.remove(self)

    def _end(self, answer: Answer, *, reusable: bool) -> None:
        """The answer is over: keep the connection, or close it."""
        self._answer = None
        if not reusable or self.transport.is_closing() or len(self._server.idle) >= IDLE_MAX:
            self.transport.abort()
        else:
            # The reader of this answer takes its rest later, or never, and the next answer must be read.
            if answer.paused:
                self.transport.resume_reading()
            self.idle_s = self.loop.time()
            self._server.idle.append(self)

    def drop(self, answer: Answer) -> None:
        """Close, if the answer is the present one."""
        if self._answer is answer:
            self._answer = None
            self.transport.abort()


class Answer:
    """An answer while it comes; the parser calls its methods that begin with ``on_``.

    Attributes:
        head: Done when status and headers are there.
        paused: Whether the connection is paused, because more of the body is there than the reader takes.
        over: Whether nothing more will come.
        frees: Whether it has ended as its head says, with nothing after it, and the server keeps the connection.
    """

    __slots__ = (
        "__weakref__", "_connection", "_error", "_head_size", "_method", "_reader", "_timeout_s", "frees", "head", "headers", "over",
        "paused", "status",
    )  # fmt: skip

    def __init__(self, connection: ServerConnection, method: str, timeout_s: float) -> None:
        self._connection, self._method, self._timeout_s = connection, method, timeout_s
        self.head: asyncio.Future[None] = connection.loop.create_future()
        self.status, self.headers = 0, Headers()
        self.over = self.frees = self.paused = False
        self._reader = asyncio.StreamReader(HELD_MAX // 2, connection.loop)
        self._reader.set_transport(proxy(self))  # it pauses and resumes the reading
        self._error: Exception | None = None
        self._head_size = 0

    # The parser's calls.

    def on_message_begin(self) -> None:
        self.frees = False  # if it did: something came after it
        if self.over:
            raise InvalidAnswerError("bytes after the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:  # a trailer
            return
        if len(name) + len(value) > HEADER_MAX or len(self.headers) >= HEADERS_MAX:
            raise InvalidAnswerError("its headers are too large")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._connection.status()
        if 100 <= status < 200 and status != 101:
            self.headers = Headers()
            return
        if not 200 <= status <= 599 or not is_valid(self.headers):
            raise InvalidAnswerError("status or header")
        self.status = status
        if self._method == "HEAD":  # the parser waits for the body that the head states
            self._end()
        if not self.head.done():
            self.head.set_result(None)

    def on_body(self, body: bytes) -> None:
        if not self.over:
            self._reader.feed_data(body)

    def on_message_complete(self) -> None:
        if self.status and not self.over:
            self.frees = self._connection.is_kept()
            self._end()

    # The connection's.

    def received(self, size: int) -> None:
        """So many bytes came."""
        if not self.status:
            self._head_size += size
            if self._head_size > HEAD_MAX:
                raise InvalidAnswerError("its head is too large")

    def lost(self, error: Exception | None) -> None:
        """The connection ended. If the head does not say where the body ends, the body has ended with it."""
        is_told = self.status in (204, 304) or any(
            name == b"content-length" or (name == b"transfer-encoding" and b"chunked" in value.lower())
            for name, value in self.headers
        )
        if self.status and not is_told and error is None:
            self._end()
        else:
            self.fail(aiohttp.ServerDisconnectedError())

    def fail(self, error: Exception) -> None:
        """It is broken."""
        if not self.over:
            if not self.head.done():
                self.head.set_exception(error)
                self.head.exception()  # seen, also if the request was cancelled
            self._end(error)

    def _end(self, error: Exception | None = None) -> None:
        """Nothing more will come."""
        if not self.over:
            self.over, self._error = True, error
            self._reader.feed_eof()

    # The reader's.

    async def wait(self, step: Awaitable[Any]) -> Any:
        """Wait for a step of the server; one that takes too long ends the answer with an error, and so the step."""
        timer = self._connection.loop.call_later(self._timeout_s, self._give_up)
        try:
            return await step
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self.fail(TimeoutError(f"nothing came for {self._timeout_s:g} s"))
        self._connection.drop(self)

    async def read(self) -> bytes:
        """See :meth:`~paceline.gateway.client.Fetched.read`."""
        kept = self._reader.read(2**20)  # all of it
        part: bytes = await (kept if self.over else self.wait(kept))
        if not part and self._error is not None:
            raise self._error
        return part

    def pause_reading(self) -> None:
        """More is there than the reader takes."""
        self.paused = True
        self._connection.transport.pause_reading()

    def resume_reading(self) -> None:
        """The reader has taken it; the connection may have another answer by now."""
        self.paused = False
        if not self.over:
            self._connection.transport.resume_reading()

    def close(self) -> None:
        """See :meth:`~paceline.gateway.client.Fetched.close`."""
        if not self.over:
            self._end()
            self._connection.drop(self)


def is_valid(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether names and values have only the characters that they may have."""
    names, values = zip(*headers, strict=True) if headers else ((), ())
    return not b"".join(names).translate(None, _IN_NAMES) and not b"".join(values).translate(None, _IN_VALUES)
