"""The binding of urllib3 1.26 and 2, and of requests and others above it: ``HTTPConnectionPool.urlopen``.

urllib3's own retries and redirects call that method again from inside: each is an exchange of its own, and the one around
it ends when it begins. Answers with status 429 are repeated by the limiter alone.
"""

from __future__ import annotations

import functools
import inspect
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import copy
from functools import cache, partial
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse, IncompleteRead
from importlib import import_module
from types import MethodType
from typing import Any
from urllib.parse import unquote, urlsplit

from paceline.http.ahead import ReadAhead, in_pieces
from paceline.http.background import poll_of
from paceline.http.binding import Exchanged
from paceline.http.exchange import sending, sending_here
from paceline.http.paced import exchange
from paceline.http.tap import Tap
from paceline.pacing.pacer import Pacer
from paceline.pacing.permit import Permit
from paceline.pacing.sync import run_sync
from paceline.providers.base import Provider
from paceline.providers.verdict import Beginning

PEEKED_PIECE = 16_384
"""Bytes of a body that are read ahead in one step, at most."""

_POSITIONAL = (
    *("retries", "redirect", "assert_same_host", "timeout", "pool_timeout", "release_conn", "chunked", "body_pos"),
    *("preload_content", "decode_content"),
)
"""The order of ``urlopen``'s arguments after the headers, in urllib3 1.26 and 2."""
_PORTS = {"http": 80, "https": 443}
_TOO_MANY = 429


def paced_urlopen(
    pacer: Pacer, original: Any, provider: Provider | None = None, fallback: Provider | None = None
) -> Any:
    """``HTTPConnectionPool.urlopen``, at the pace of ``pacer``; see :func:`~paceline.http.paced.exchange`."""

    @functools.wraps(original)
    def urlopen(
        pool: Any, method: str, url: str, body: Any = None, headers: Any = None, *args: Any, **named: Any
    ) -> Any:
        options = dict(zip(_POSITIONAL, args, strict=False)) | named
        posts = method.upper() == "POST"
        if not posts and poll_of(pacer, method.upper(), url) is None:
            return original(pool, method, url, body, headers, **options)
        if options.get("multiplexed"):  # of niquests' fork, which would return a promise of the response
            options["multiplexed"] = False
        permit, above, token = _attempted.get(), sending_here(), None
        # Inside the attempt of another exchange: a retry or a redirect.
        if posts and permit is not None and above is not None:
            history = getattr(options.get("retries"), "history", None)
            above.repeated(permit, *((history[-1].status or 0, history[-1].error) if history else (0, None)))
            # Without the exchange above, which would take a request to its own target for its attempt.
            inner, token = _attempted.set(None), sending.set(None)
        try:
            http = _Urllib3(original, pool, method.upper(), url, body, headers, options)
            return run_sync(exchange(pacer, http, provider, fallback))
        finally:
            if token is not None:
                _attempted.reset(inner)
                sending.reset(token)

    return urlopen


def pace_pool(pacer: Pacer, pool: Any, provider: Provider | None) -> None:
    """Pace one connection pool."""
    # Unwrapped: ``instrument`` may have wrapped the method of the class for another limiter.
    pool.urlopen = MethodType(paced_urlopen(pacer, inspect.unwrap(type(pool).urlopen), provider), pool)


def pace_manager(pacer: Pacer, manager: Any, provider: Provider | None) -> None:
    """Pace the pools of a ``PoolManager``, the present ones and those that it makes later."""
    make = manager._new_pool  # noqa: SLF001

    def made(*args: Any, **options: Any) -> Any:
        pool = make(*args, **options)
        pace_pool(pacer, pool, provider)
        return pool

    manager._new_pool = made  # noqa: SLF001
    for key in list(manager.pools.keys()):
        pace_pool(pacer, manager.pools[key], provider)


def pace_adapter(pacer: Pacer, adapter: Any, provider: Provider | None) -> None:
    """Pace an ``HTTPAdapter`` of requests, with the proxies that it uses now and later."""
    make = adapter.proxy_manager_for

    def made(proxy: str, **options: Any) -> Any:
        known = adapter.proxy_manager.get(proxy)
        manager = make(proxy, **options)
        if manager is not known:  # the adapter keeps one for each proxy, which is paced once
            pace_manager(pacer, manager, provider)
        return manager

    adapter.proxy_manager_for = made
    for manager in (adapter.poolmanager, *adapter.proxy_manager.values()):
        pace_manager(pacer, manager, provider)


def header_text(value: Any) -> str:
    """The name or the value of a header, which may be bytes."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


class _Urllib3:
    """A request of urllib3; see :class:`~paceline.http.binding.Undescribed`."""

    is_async = False

    def __init__(
        self, send: Any, pool: Any, method: str, url: str, body: Any, headers: Any, options: dict[str, Any]
    ) -> None:
        self._send, self._pool, self._url, self._options, self.method = send, pool, url, options, method
        self._body, self._headers = body, headers
        parts = urlsplit(url)  # absolute for an HTTP proxy, whose pool it is
        host, port = (parts.hostname, parts.port) if parts.netloc else (pool.host, pool.port)
        self.address = f"{host}" if port in (None, _PORTS.get(pool.scheme)) else f"{host}:{port}"
        self.target, self.query = ((host or "").strip("[]"), unquote(parts.path)), parts.query

    def header(self, name: str) -> str:
        headers = self._pool.headers if self._headers is None else self._headers
        return next((header_text(headers[one]) for one in headers if header_text(one).lower() == name), "")

    @property
    def in_memory(self) -> bool:
        return isinstance(self._body, str | bytes | bytearray)

    async def content(self) -> bytes:
        body = self._body
        if body is None:
            return b""
        if hasattr(body, "read"):  # a file is sent from where it stands, and stands there again
            at = body.tell() if hasattr(body, "seek") else None
            read = body.read()
            if at is None:
                self._body = read
            else:
                body.seek(at)
            body = read
        elif not isinstance(body, str | bytes | bytearray | memoryview) and isinstance(body, Iterable):
            # An iterator gives its parts once, and a further attempt sends them again.
            self._body = body = b"".join(part.encode() if isinstance(part, str) else part for part in body)
        return body.encode() if isinstance(body, str) else bytes(body)

    async def send(self, permit: Permit | None = None) -> Any:
        options = self._options
        if permit is None:
            return self._send(self._pool, self.method, self._url, self._body, self._headers, **options)
        token = _attempted.set(permit)
        retries = options.get("retries")
        options = {**options, "retries": _without_429(self._pool.retries if retries is None else retries)}
        try:
            return self._send(self._pool, self.method, self._url, self._body, self._headers, **options)
        finally:
            _attempted.reset(token)

    def head(self, response: Any) -> tuple[int, dict[str, str]]:
        return response.status, {name.lower(): value for name, value in response.headers.items()}

    async def peek(self, response: Any, headers: Mapping[str, str], beginning: Beginning) -> None:
        whole = _preloaded(response)
        if whole is None:
            peek_response(response, headers, beginning)
        else:
            # Read whole by urllib3, which has decoded it then by default.
            decode = None if self._options.get("decode_content", True) else in_pieces(headers, _decompress)
            beginning.take_encoded(whole, decode)
            beginning.end()

    def tap(self, response: Any, headers: Mapping[str, str], tap: Tap) -> None:
        whole = _preloaded(response)
        if whole is None:
            tap_response(response, headers, tap)
            return
        if not self._options.get("decode_content", True):
            tap.decode = in_pieces(headers, _decompress)
        tap.feed(whole)
        tap.finish()

    def note(self, response: Any, record: Exchanged) -> None:
        response.paceline = record

    async def close(self, response: Any) -> None:
        if _preloaded(response) is None:
            # Both: the first closes the connection, and the second gives its place in the pool back, for which others may wait.
            response.close()
            response.release_conn()

    def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> Any:
        keep = ("preload_content", "decode_content")
        options = {name: self._options[name] for name in keep if name in self._options}
        return import_module("urllib3.response").HTTPResponse(
            _Whole(body),
            headers,
            status,
            reason=HTTPStatus(status).phrase,
            version=11,
            request_method="POST",
            request_url=self._url,
            **options,
        )


def peek_response(response: Any, headers: Mapping[str, str], beginning: Beginning) -> None:
    """Feed ``beginning`` with the body of a response of urllib3 until it is enough, or its hold is over; the caller can still read it."""
    source = response._fp  # noqa: SLF001
    usual = isinstance(source, HTTPResponse)

    def read() -> bytes | None:
        try:
            chunk = source.read1(PEEKED_PIECE)  # as it was sent, without chunks
            if not chunk:
                with suppress(ValueError):  # niquests has closed it already
                    source.read()  # which sees the end, and gives the connection back
                if usual and source.length and response.status < HTTPStatus.BAD_REQUEST:  # else its reader meets it
                    raise IncompleteRead(b"", source.length)
        except HTTPException as error:  # urllib3 lets none out
            raise import_module("urllib3.exceptions").ProtocolError(f"Connection broken: {error!r}", error) from error
        return chunk or None

    sock = getattr(getattr(source.fp, "raw", None), "_sock", None) if usual else None
    ahead = ReadAhead(read, beginning, in_pieces(headers, _decompress), is_async=False, sock=sock)
    run_sync(ahead.run())
    response._fp = (_AheadOfHttpClient if usual else _Ahead)(ahead, source)  # noqa: SLF001


def tap_response(response: Any, headers: Mapping[str, str], tap: Tap) -> None:
    """Feed ``tap`` while the caller reads a response of urllib3."""
    if hasattr(response, "_paceline_tap"):  # the answer to a retry of urllib3's own, which has the same reader
        return
    tap.decode = in_pieces(headers, _decompress)
    response._paceline_tap = tap  # noqa: SLF001
    response.__class__ = _tapped(response.__class__)


_attempted: ContextVar[Permit | None] = ContextVar("paceline_attempted", default=None)
"""The permit of the attempt that is sent here. A local of threads that is older than gevent's patch would be one for all greenlets."""


def _without_429(retries: Any) -> Any:
    """A policy of urllib3 that returns answers with status 429."""
    if not hasattr(retries, "status_forcelist"):  # None, a number or False: POSTs are not repeated because of a status
        return retries
    # A copy, because the other requests of the program have the same policy.
    policy = copy(retries)
    policy.status_forcelist = set(policy.status_forcelist or ()) - {_TOO_MANY}
    policy.RETRY_AFTER_STATUS_CODES = frozenset(policy.RETRY_AFTER_STATUS_CODES) - {_TOO_MANY}
    return policy


def _preloaded(response: Any) -> bytes | None:
    """The body of a response, if urllib3 has read it."""
    body = getattr(response, "_body", None)
    return bytes(body) if isinstance(body, bytes | bytearray) else None


def _decompress(encoding: str) -> Any:
    """urllib3's decoder of an encoding."""
    return import_module("urllib3.response")._get_decoder(encoding).decompress  # noqa: SLF001  (no public way)


@cache
def _tapped(kind: Any) -> Any:
    """A response of the class ``kind`` that feeds its tap with what is read from the connection."""

    class Tapped(kind):  # type: ignore[misc]
        _paceline_tap: Tap

        def _fp_read(self, *args: Any, **options: Any) -> bytes:
            data: bytes = super()._fp_read(*args, **options)
            self._paceline_tap.feed(data)
            return data

        def _handle_chunk(self, amt: Any) -> bytes:
            data: bytes = super()._handle_chunk(amt)
            self._paceline_tap.feed(data)
            return data

        @contextmanager
        def _error_catcher(self) -> Iterator[None]:
            with super()._error_catcher():  # at its end it releases the connection
                try:
                    yield
                except TimeoutError as error:
                    self._paceline_tap.broke(error)
                    raise

        def release_conn(self) -> None:  # at the end of the body, too
            super().release_conn()
            # Its beginning was read ahead, and has not passed to the caller yet.
            if not getattr(self._fp, "has_read", False):
                self._paceline_tap.finish()

        def close(self) -> None:
            super().close()
            self._paceline_tap.finish()

    return Tapped


class _Whole(io.BytesIO):
    """The source of a response made here: closed at its end, which is how urllib3 sees the end."""

    def read(self, amt: int | None = -1) -> bytes:
        data = super().read(amt)
        if self.tell() == len(self.getbuffer()):
            self.close()
        return data

    read1 = read


class _Ahead:
    """The source of a response whose beginning was read ahead."""

    def __init__(self, ahead: ReadAhead, inner: Any) -> None:
        self._read, self._ahead, self._inner = b"".join(ahead.parts), ahead, inner

    def read(self, amt: int | None = None) -> bytes:
        if amt is not None and amt >= 0:
            return self.read1(amt)
        data, self._read = self._read + self._late(), b""
        rest: bytes = b"" if self._ahead.ended else self._inner.read()  # niquests closes it at its end
        return data + rest

    def read1(self, amt: int = -1) -> bytes:
        self._read = self._read or self._late()
        size = len(self._read) if amt < 0 else amt
        data, self._read = self._read[:size], self._read[size:]
        return data if data or self._ahead.ended else self._inner.read1(amt)

    def _late(self) -> bytes:
        return run_sync(self._ahead.late()) or b""

    @property
    def has_read(self) -> bool:
        """Whether bytes that were read ahead are left, or may be."""
        return bool(self._read) or self._ahead.is_late

    def isclosed(self) -> bool:
        return not self.has_read and bool(self._inner.isclosed())

    @property
    def closed(self) -> bool:
        return self.isclosed()

    def close(self) -> None:
        self._read = b""
        run_sync(self._ahead.close(self._inner.close))


class _AheadOfHttpClient(_Ahead):
    """The same above a response of http.client, in chunks again.

    urllib3 2 reads a chunked body below http.client (``fp``), chunk by chunk. Elsewhere it fills what it was asked for
    (64 KiB), so that a stream would come at its end. WEAK: so it does with niquests, whose sources are its own.
    """

    def __init__(self, ahead: ReadAhead, inner: Any) -> None:
        super().__init__(ahead, inner)
        self._chunk, self._ended = b"", False
        # urllib3 closes it past this object, and its connection does, too: that would wait for the server.
        if ahead.is_late:
            inner.close = partial(self._close_late, inner.close)

    def read(self, amt: int | None = None) -> bytes:
        data = super().read(amt)
        if (amt is None or amt < 0) and self._inner.length:  # only its own read() tells
            raise IncompleteRead(data, self._inner.length)
        return data

    def _late(self) -> bytes:
        late = super()._late()
        self._unguarded()
        return late

    def _close_late(self, close: Callable[[], None]) -> None:
        self._unguarded()
        run_sync(self._ahead.close(close))

    def _unguarded(self) -> None:
        vars(self._inner).pop("close", None)

    @property
    def fp(self) -> _AheadOfHttpClient:
        return self

    def readline(self, limit: int = -1) -> bytes:  # noqa: ARG002
        """The line before a chunk; nothing after the last one."""
        if self._ended:
            return b""
        data = self.read1(PEEKED_PIECE)
        self._chunk, self._ended = data + b"\r\n", not data
        return b"%x\r\n" % len(data)

    def _safe_read(self, amt: int) -> bytes:
        """So many bytes of the chunk, and of the line end after it."""
        data, self._chunk = self._chunk[:amt], self._chunk[amt:]
        return data
