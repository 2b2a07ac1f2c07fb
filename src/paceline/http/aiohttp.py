"""The binding of aiohttp (tested with 3.9 to 3.14): :meth:`ClientSession._request`, which every request passes.

The wait is before that method, because the client's total timeout starts in it.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from http import HTTPStatus
from importlib import import_module
from types import MethodType
from typing import Any

from paceline.http.ahead import held_parts
from paceline.http.background import poll_of
from paceline.http.binding import Exchanged
from paceline.http.paced import exchange
from paceline.http.tap import Tap
from paceline.pacing.pacer import Pacer
from paceline.pacing.permit import Permit
from paceline.providers.base import Provider
from paceline.providers.verdict import Beginning

Request = Callable[..., Awaitable[Any]]
"""``ClientSession._request`` without the session: method, URL, and options."""


def paced_request(
    pacer: Pacer, original: Any, provider: Provider | None = None, fallback: Provider | None = None
) -> Any:
    """``ClientSession._request``, at the pace of ``pacer``; see :func:`~paceline.http.paced.exchange`."""

    @functools.wraps(original)
    async def _request(session: Any, method: str, url: Any, **options: Any) -> Any:
        if method.upper() != "POST" and poll_of(pacer, method.upper(), str(url)) is None:
            return await original(session, method, url, **options)
        # Checked after the exchange: a refusal that is retried must not raise in an attempt.
        check = options.pop("raise_for_status", None)
        http = _Aiohttp(functools.partial(original, session), session, method.upper(), url, options)
        response = await exchange(pacer, http, provider, fallback)
        check = session._raise_for_status if check is None else check  # noqa: SLF001
        if callable(check):
            await check(response)
        elif check:
            response.raise_for_status()
        return response

    return _request


def pace_session(pacer: Pacer, session: Any, provider: Provider | None) -> None:
    """Pace one ``ClientSession``."""
    # Unwrapped: ``instrument`` may have wrapped the method of the class for another limiter.
    request = MethodType(paced_request(pacer, inspect.unwrap(type(session)._request), provider), session)  # noqa: SLF001
    object.__setattr__(session, "_request", request)  # sessions warn of attributes that are set in another way


class _Aiohttp:
    """A request of aiohttp; see :class:`~paceline.http.binding.Undescribed`."""

    is_async = True

    def __init__(self, send: Request, session: Any, method: str, url: Any, options: dict[str, Any]) -> None:
        self._send, self._session, self._options, self.method = send, session, options, method
        self._url = session._build_url(url)  # noqa: SLF001  (with the session's base)
        host, port = self._url.host or "", self._url.explicit_port
        self.target: tuple[str, str] = host, self._url.path
        self.address = host if port is None else f"{host}:{port}"
        self._given_url = url
        self._data: Callable[[], Any] | None = None  # makes the body for an attempt, where it can be sent once

    @property
    def query(self) -> str:
        params = self._options.get("params")
        more = self._url.with_query(params).raw_query_string if params else ""
        return f"{self._url.raw_query_string}&{more}"

    def header(self, name: str) -> str:
        own: Any = self._options.get("headers") or ()
        pairs = [*(own.items() if isinstance(own, Mapping) else own), *self._session.headers.items()]
        return next((str(value) for one, value in pairs if str(one).lower() == name), "")

    @property
    def in_memory(self) -> bool:
        return self._options.get("json") is not None or isinstance(self._options.get("data"), str | bytes | bytearray)

    async def content(self) -> bytes:
        options, payloads = self._options, import_module("aiohttp.payload")
        if options.get("json") is not None:  # serialised here, once
            session = self._session
            serialize = getattr(session, "_json_serialize_bytes", None) or session._json_serialize  # noqa: SLF001
            text, kind = serialize(options.pop("json")), "application/json"
            raw = text.encode() if isinstance(text, str) else bytes(text)
        else:
            data = options.get("data")
            if data is None or isinstance(data, bytes):
                return data or b""
            payload, written = _payload(data), _Written()
            await payload.write(written)
            raw, kind = bytes(written), payload.content_type
        self._data = lambda: payloads.BytesPayload(raw, content_type=kind)
        return raw

    async def send(self, permit: Permit | None = None) -> Any:  # noqa: ARG002
        options = self._options if self._data is None else {**self._options, "data": self._data()}
        return await self._send(self.method, self._given_url, raise_for_status=False, **options)

    def head(self, response: Any) -> tuple[int, dict[str, str]]:
        return response.status, {name.lower(): value for name, value in response.headers.items()}

    async def peek(self, response: Any, headers: Mapping[str, str], beginning: Beginning) -> None:  # noqa: ARG002
        if response._body is not None:  # noqa: SLF001
            beginning.take(bytes(response._body))  # noqa: SLF001
        else:
            await peek_stream(response.content, beginning)

    def tap(self, response: Any, headers: Mapping[str, str], tap: Tap) -> None:  # noqa: ARG002  (decoded by the parser)
        tap_stream(response.content, tap)

    def note(self, response: Any, record: Exchanged) -> None:
        response.paceline = record

    async def close(self, response: Any) -> None:
        # The connection can have another request if the body was read to its end, and is closed otherwise.
        response.release()

    def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> Any:
        aiohttp, multidict = import_module("aiohttp"), import_module("multidict")
        head = multidict.CIMultiDictProxy(multidict.CIMultiDict(headers))
        given = {
            "request_info": aiohttp.RequestInfo(self._url, "POST", head, self._url),
            "traces": [],
            "loop": self._session._loop,  # noqa: SLF001
            "session": self._session,
            "stream_writer": _Nothing(),
            "timer": import_module("aiohttp.helpers").TimerNoop(),
        }
        kind = self._session._response_class  # noqa: SLF001
        # Versions of aiohttp differ in what a response is made of.
        names = inspect.signature(kind.__init__).parameters.values()
        known = {one.name: given.get(one.name) for one in names if one.kind is one.KEYWORD_ONLY}
        response = kind("POST", self._url, **known)
        protocol = import_module("aiohttp.base_protocol").BaseProtocol(given["loop"])
        response.content = aiohttp.StreamReader(protocol, 2**16, loop=given["loop"])
        response.content.feed_data(body)
        response.content.feed_eof()
        response.version, response.status, response.reason = aiohttp.HttpVersion11, status, HTTPStatus(status).phrase
        response._headers = head  # noqa: SLF001
        response._raw_headers = tuple((name.encode(), value.encode()) for name, value in headers.items())  # noqa: SLF001
        return response


class _Nothing:
    """In place of the writer of a request that is not sent."""

    output_size = 0


async def peek_stream(stream: Any, beginning: Beginning) -> None:
    """Feed ``beginning`` with what a ``StreamReader`` receives until it is enough, or its hold is over, and put it back."""
    read = bytearray()
    try:
        # Cancelled, a read has taken nothing: it waits for an empty buffer alone. One that went on would be in the way of
        # the caller's: a second reader is an error.
        async for chunk in held_parts(beginning, stream.readany):
            read += chunk
            beginning.feed(chunk)
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            stream.unread_data(bytes(read))


def tap_stream(stream: Any, tap: Tap) -> None:
    """Feed ``tap`` with what a ``StreamReader`` has received and receives."""
    for chunk in getattr(stream, "_buffer", ()):  # has arrived already
        tap.feed(chunk)
    if tap.done or stream.is_eof() or stream.exception() is not None:
        tap.finish()
        return
    _taps[id(stream)] = tap
    stream.__class__ = _tapped(stream.__class__)


# WEAK: the connection keeps a response that the caller has dropped unread, so that its permit stays open as long.
_taps: dict[int, Tap] = {}
"""The tap of each stream that is being read, by its id: streams have no room for another attribute."""


@cache
def _tapped(kind: Any) -> Any:
    """A stream of the class ``kind`` that feeds its tap with what arrives."""

    class Tapped(kind):  # type: ignore[misc]
        __slots__ = ()

        def feed_data(self, data: bytes, *size: int) -> Any:
            tap = _taps.get(id(self))
            if tap is not None:
                tap.feed(data)
            return super().feed_data(data, *size)

        def feed_eof(self) -> None:
            if (tap := _taps.pop(id(self), None)) is not None:
                tap.finish()
            super().feed_eof()

        def set_exception(self, *error: Any) -> None:
            if (tap := _taps.pop(id(self), None)) is not None:
                tap.broke(error[0])
            super().set_exception(*error)

    return Tapped


class _Written(bytearray):
    """A body, for which it is the writer."""

    async def write(self, chunk: bytes) -> None:
        self.extend(chunk)


def _payload(data: Any) -> Any:
    """What aiohttp makes of a request's ``data``."""
    form = import_module("aiohttp").FormData
    if isinstance(data, form):
        return data()
    registry = import_module("aiohttp.payload")
    try:
        return registry.PAYLOAD_REGISTRY.get(data, disposition=None)
    except registry.LookupError:
        return form(data)()
