"""The HTTP/1.1 client of the gateway: it sends what it is given, and passes answers on as they come."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NamedTuple, Protocol

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from paceline.gateway.connection import (
    HEADER_MAX,
    HEADERS_MAX,
    KEEP_S,
    Answer,
    Headers,
    InvalidAnswerError,
    Server,
    ServerConnection,
    is_valid,
)
from paceline.gateway.upstreams import Upstream
from paceline.pacing.lack import Lack, lack_of

CONNECT_S: Final = 30.0
"""The longest time for a connection, its TLS included."""

SENT_WHOLE: Final = 2**18
"""Bytes of a body that are written in one step: one of 64 MB would hold the event loop."""

_AUTO: Final = ("user-agent", "accept", "accept-encoding", "content-type")

_BODILESS: Final = ("GET", "HEAD", "OPTIONS")
"""Methods of requests that state no length where they have no body."""


class Fetched(Protocol):
    """An answer whose body is still to be read."""

    status: int
    headers: Headers
    """As they were sent, names in lower case."""

    async def read(self) -> bytes:
        """The next part of the body as it comes; empty at its end."""

    def close(self) -> None:
        """End it, if it is not over; the connection cannot be used again then."""


class Upload(NamedTuple):
    """A body that is sent while it comes: its bytes, ``None`` if they are not stated, and its parts, none of them empty."""

    length: int | None
    parts: AsyncGenerator[bytes]


class HttpClient:
    """Sends requests over connections of its own, which it keeps; through a proxy, with aiohttp.

    The number of connections has no bound of its own: requests wait in the queues of pools, and a permit must not wait
    for a connection.

    Args:
        timeout_s: The longest wait for the head of an answer, for a part of its body, or for room for a part of a request.
        trusted: The certificates that are trusted.
    """

    def __init__(self, timeout_s: float, trusted: ssl.SSLContext) -> None:
        self._timeout_s, self._trusted = timeout_s, trusted
        self._servers: dict[str, Server] = {}
        self._proxied = _AiohttpClient(timeout_s, trusted)

    async def fetch(
        self, upstream: Upstream, method: str, path: str, headers: Headers, body: bytes | Upload
    ) -> Fetched:
        """Send a request; returns when the head of its answer is there.

        Args:
            upstream: The server.
            method: The method.
            path: The path there and the query, encoded.
            headers: The headers, without the connection's own.
            body: The body; empty for none. What is left of an upload when the answer begins is not sent.

        Raises:
            ClientConnectorError: There is no connection.
            ClientOSError: The connection broke.
            InvalidAnswerError: The answer is invalid.
            TimeoutError: There was none in time.
        """
        if upstream.proxy is not None:
            return await self._proxied.fetch(upstream, method, path, headers, body)
        server = self._servers.get(upstream.root)
        if server is None:
            server = self._servers[upstream.root] = Server(upstream.root, self._trusted)
        if isinstance(body, bytes) and len(body) > SENT_WHOLE:
            body = Upload(len(body), _sliced(body))
        upload = body if isinstance(body, Upload) else None  # cannot be sent again: no connection that may have ended
        message = _message(server, method, path, headers, body)  # may raise, and takes no connection then
        connection = (server.kept() if upload is None else None) or await self._connect(server)
        answer = Answer(connection, method, self._timeout_s)
        connection.begin(answer, message)
        try:
            if upload is not None:
                await _send_parts(connection, answer, upload)
            await answer.wait(answer.head)
        except BaseException:
            answer.close()
            raise
        return answer

    async def _connect(self, server: Server) -> ServerConnection:
        """A new connection; where there is no file for it, those without a request are closed for it."""
        timeout_s = min(CONNECT_S, self._timeout_s)
        try:
            return await server.connect(timeout_s)
        except OSError as error:
            if lack_of(error) is not Lack.FILES or not any(one.idle for one in self._servers.values()):
                raise
        for one in self._servers.values():
            one.close()
        await asyncio.sleep(0.001)  # the loop closes them
        return await server.connect(timeout_s)

    async def close(self) -> None:
        """Close all connections."""
        for server in self._servers.values():
            server.close()
        await self._proxied.close()
        await asyncio.sleep(0)  # the transports close


async def _sliced(body: bytes) -> AsyncGenerator[bytes]:
    for start in range(0, len(body), SENT_WHOLE):
        yield body[start : start + SENT_WHOLE]


async def _send_parts(connection: ServerConnection, answer: Answer, upload: Upload) -> None:
    """Send a body while it comes, until the server answers."""

    async def send() -> None:
        async with aclosing(upload.parts):
            async for part in upload.parts:
                # A write to a server that has closed would lose its answer. In one round the event loop sees that there is one,
                # and in the next one asyncio's own loop reads it.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                if answer.head.done():
                    return
                framed = part if upload.length is not None else b"%x\r\n%b\r\n" % (len(part), part)
                await answer.wait(connection.send(framed))
        if upload.length is None:
            await answer.wait(connection.send(b"0\r\n\r\n"))
        connection.unsent = False

    connection.unsent = True
    sending = asyncio.create_task(send())
    try:
        await asyncio.wait([sending, answer.head], return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            error = sending.exception()
            if error is not None and not answer.head.done():  # else the server closed in the moment of its answer
                raise error
    finally:
        sending.cancel()


def _message(server: Server, method: str, path: str, headers: Headers, body: bytes | Upload) -> bytes:
    target = server.base + path.encode("latin-1")
    if not target.startswith(b"/"):
        target = b"/" + target
    lines = [b"%b %b HTTP/1.1\r\nhost: %b" % (method.encode(), target, server.netloc)]
    lines += [b"%b: %b" % pair for pair in headers]
    length, body = (body.length, b"") if isinstance(body, Upload) else (len(body), body)
    if length is None:
        lines.append(b"transfer-encoding: chunked")
    elif length or method not in _BODILESS:
        lines.append(b"content-length: %d" % length)
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):  # one more in the first
        raise InvalidAnswerError("a line of the request's head has a line end")
    return b"%b\r\n\r\n%b" % (head, body)


class _AiohttpClient:
    """Sends requests with aiohttp, which knows proxies."""

    def __init__(self, timeout_s: float, trusted: ssl.SSLContext) -> None:
        self._timeout_s, self._trusted = timeout_s, trusted
        self._session: aiohttp.ClientSession | None = None

    async def fetch(
        self, upstream: Upstream, method: str, path: str, headers: Headers, body: bytes | Upload
    ) -> Fetched:
        if self._session is None:
            self._session = self._open()
        sent = CIMultiDict([(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers])
        if isinstance(body, Upload) and body.length is not None:
            sent["content-length"] = str(body.length)
        try:
            response = await self._session.request(
                method,
                URL(upstream.root + path, encoded=True),
                headers=sent,
                data=body.parts if isinstance(body, Upload) else body or None,
                allow_redirects=False,
                proxy=upstream.proxy,
            )
        except (aiohttp.ClientResponseError, ValueError) as error:
            if isinstance(error, aiohttp.ClientHttpProxyError):
                raise
            raise InvalidAnswerError(type(error).__name__) from None
        if not 200 <= response.status <= 599 or not is_valid(response.raw_headers):
            response.close()
            raise InvalidAnswerError("status or header")
        return _Fetched(response)

    def _open(self) -> aiohttp.ClientSession:
        timeout_s = self._timeout_s
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S, ssl=self._trusted),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=min(CONNECT_S, timeout_s), sock_read=timeout_s),
            max_line_size=HEADER_MAX,
            max_field_size=HEADER_MAX,
            max_headers=HEADERS_MAX,
            skip_auto_headers=_AUTO,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class _Fetched:
    """An answer of aiohttp."""

    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = [(name.lower(), value) for name, value in response.raw_headers]

    async def read(self) -> bytes:
        """See :meth:`Fetched.read`."""
        return await self._response.content.readany()

    def close(self) -> None:
        """See :meth:`Fetched.close`."""
        self._response.close()  # after the end of the body, the connection has been given back already
