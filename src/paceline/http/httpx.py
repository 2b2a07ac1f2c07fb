"""The binding of httpx2 and httpx, and transports of theirs that pace."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from paceline.http.ahead import ReadAhead, in_pieces
from paceline.http.binding import Exchanged
from paceline.http.paced import exchange
from paceline.http.tap import Tap
from paceline.pacing.pacer import BaseLimiter, Pacer
from paceline.pacing.permit import Permit
from paceline.pacing.sync import awaited, run_sync
from paceline.providers.base import Provider
from paceline.providers.registry import provider_named
from paceline.providers.verdict import Beginning

LIBRARIES = ("httpx2", "httpx")

MARK = "paceline"
"""The key of the record of an exchange in a response's ``extensions``."""

DEFAULT_CONNECTIONS = 100  # the limit of both libraries for a client whose owner did not choose one
CONNECTIONS = 1_000

Send = Callable[[Any], Any]
"""Takes a request of the library, returns a response of it, or an awaitable of one, which in sync code does not suspend."""


class HttpxRequest:
    """A request of httpx2 or httpx, which ``send`` sends; see :class:`~paceline.http.binding.Undescribed`."""

    def __init__(self, send: Send, request: Any, *, is_async: bool) -> None:
        self._send, self._request, self.is_async = send, request, is_async
        self._library = _library_of_request(request.__class__)
        self.method: str = request.method
        url = request.url
        self.address: str = url.netloc.decode("ascii")
        self.target: tuple[str, str] = url.host, url.path
        self.query = str(url.query, "latin-1")
        self._headers: dict[bytes, bytes] | None = None
        self._is_peeked = False  # whether the beginning of the last answer alone is read: its stream is ours then

    def header(self, name: str) -> str:
        if self._headers is None:  # the libraries' own look-up takes some microseconds for each name
            # Reversed, so that the first one of a name counts.
            self._headers = {one.lower(): value for one, value in reversed(self._request.headers.raw)}
        return self._headers.get(name.encode(), b"").decode("latin-1")

    @property
    def in_memory(self) -> bool:
        return getattr(self._request, "_content", None) is not None

    async def content(self) -> bytes:
        content = getattr(self._request, "_content", None)
        if content is None:  # a streamed body: once it is read, it can be sent again
            content = await self._request.aread() if self.is_async else self._request.read()
        return bytes(content)

    async def send(self, permit: Permit | None = None) -> Any:  # noqa: ARG002
        return await awaited(self._send(self._request))

    def head(self, response: Any) -> tuple[int, dict[str, str]]:
        raw = response.headers.raw
        return response.status_code, {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}

    async def peek(self, response: Any, headers: Mapping[str, str], beginning: Beginning) -> None:
        if hasattr(response, "_content"):
            beginning.take(response.content)
            return
        stream = response.stream
        rest: Any = aiter(stream) if self.is_async else iter(stream)
        ahead = ReadAhead(
            partial(anext, rest, None) if self.is_async else partial(next, rest, None),
            beginning,
            in_pieces(headers, partial(_decode, response)),
            is_async=self.is_async,
            sock=None if self.is_async else _socket_of(response),
        )
        await ahead.run()
        self._is_peeked = not ahead.ended
        if self._is_peeked:
            response.stream = body_of(self._library, stream, ahead, rest)
        else:  # all of it is here, and its connection can have another request
            await awaited(stream.aclose() if self.is_async else stream.close())
            response.stream = self._library.ByteStream(b"".join(ahead.parts))

    def tap(self, response: Any, headers: Mapping[str, str], tap: Tap) -> None:
        if hasattr(response, "_content"):  # read already: its stream will not be iterated
            tap.feed(response.content)
            tap.finish()
        else:
            tap.decode = in_pieces(headers, partial(_decode, response))
            if not self._is_peeked:
                response.stream = body_of(self._library, response.stream)
            response.stream.tap(tap)

    async def close(self, response: Any) -> None:
        await awaited(response.aclose() if self.is_async else response.close())

    def note(self, response: Any, record: Exchanged) -> None:
        response.extensions = {**response.extensions, MARK: record}

    def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> Any:
        library = self._library
        headers = {**headers, "content-length": str(len(body))}
        return library.Response(status, headers=headers, stream=library.ByteStream(body), request=self._request)


def body_of(library: Any, inner: Any, ahead: ReadAhead | None = None, rest: Any = None) -> Any:
    """A response stream of ``library`` over the stream ``inner``, sync or async as it is iterated.

    Args:
        library: The module httpx2 or httpx.
        inner: The stream, which is closed with this one.
        ahead: What has read the beginning.
        rest: An iterator of the other chunks; ``inner`` itself if not given.
    """
    return _class_of(library, _Body, "SyncByteStream", "AsyncByteStream")(inner, ahead, rest)


def _socket_of(response: Any) -> Any:
    """The socket of a sync response; ``None`` if it is not known, or other responses use it, too."""
    stream = response.extensions.get("network_stream")
    if stream is None or response.extensions.get("http_version") == b"HTTP/2":
        return None
    return stream.get_extra_info("socket")


class _Body:
    def __init__(self, inner: Any, ahead: ReadAhead | None, rest: Any) -> None:
        self._inner = inner
        self._parts: Sequence[bytes] = () if ahead is None else ahead.parts
        self._late = ahead if ahead is not None and ahead.is_late else None
        self._rest = inner if rest is None else rest
        self._feed: Callable[[bytes], None] = _ignore
        self._finish: Callable[[], None] = _ignore
        self._broke: Callable[[BaseException], None] = _ignore

    def tap(self, tap: Tap) -> None:
        """Feed ``tap`` with each chunk that is iterated, and finish it at the end."""
        self._feed, self._finish, self._broke = tap.feed, tap.finish, tap.broke

    # Written twice, because a generator is either sync or async.

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._parts:
                self._feed(chunk)
                yield chunk
            if self._late is not None and (late := run_sync(self._late.late())) is not None:
                self._feed(late)
                yield late
            for chunk in self._rest:
                self._feed(chunk)
                yield chunk
        except BaseException as error:
            self._broke(error)
            raise
        finally:
            self._finish()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for chunk in self._parts:
                self._feed(chunk)
                yield chunk
            if self._late is not None and (late := await self._late.late()) is not None:
                self._feed(late)
                yield late
            async for chunk in self._rest:
                self._feed(chunk)
                yield chunk
        except BaseException as error:
            self._broke(error)
            raise
        finally:
            self._finish()

    def close(self) -> None:
        run_sync(self._close(self._inner.close))

    async def aclose(self) -> None:
        await self._close(self._inner.aclose)

    async def _close(self, close: Callable[[], Any]) -> None:
        try:
            await (awaited(close()) if self._late is None else self._late.close(close))
        finally:
            self._finish()


def _ignore(*_: object) -> None:
    pass


def _decode(response: Any, _: str) -> Any:
    """The library's decoder of a response's encoding: a copy's, so that the caller's is untouched."""
    copy = type(response)(response.status_code, headers=response.headers)
    return copy._get_content_decoder().decode  # noqa: SLF001  (no public way per chunk)


def pace_transport(limiter: BaseLimiter, inner: Any, provider: str | None = None) -> Any:
    """A transport that sends through ``inner`` at the pace of ``limiter``.

    Args:
        limiter: The limiter whose pools are charged.
        inner: A transport of httpx2 or httpx, sync or async.
        provider: The provider whose API the requests use; found by their host if not given.

    Returns:
        A transport of the same library.

    Raises:
        TypeError: ``inner`` is not a transport of httpx2 or httpx.
    """
    return paced_transport(limiter.pacer, inner, provider)


def paced_transport(pacer: Pacer, inner: Any, provider: str | None) -> Any:
    """The same as :func:`pace_transport`, with the pacer of the limiter."""
    paced = _class_of(library_of_transport(inner), PacedTransport, "BaseTransport", "AsyncBaseTransport")
    return paced(pacer, inner, provider_named(provider) if provider else None)


class PacedTransport:
    """Paces the requests that go through ``inner``: sync, async or both, as ``inner`` is."""

    def __init__(self, pacer: Pacer, inner: Any, provider: Provider | None) -> None:
        lift_connections(inner)
        self.pacer, self.inner, self.provider = pacer, inner, provider

    def handle_request(self, request: Any) -> Any:
        http = HttpxRequest(self.inner.handle_request, request, is_async=False)
        return run_sync(exchange(self.pacer, http, self.provider))

    async def handle_async_request(self, request: Any) -> Any:
        http = HttpxRequest(self.inner.handle_async_request, request, is_async=True)
        return await exchange(self.pacer, http, self.provider)

    def close(self) -> None:
        self.inner.close()

    async def aclose(self) -> None:
        await self.inner.aclose()


def lift_connections(transport: Any) -> None:
    """Raise the size of a connection pool, if it is the library's default, above the number of requests in flight.

    The limiter decides when a request is sent. One that had its permit and then waited for a connection would
    arrive late, together with others, and fail after the pool's timeout. A size that the client's owner chose stays.
    """
    pool = getattr(transport, "_pool", None)
    if getattr(pool, "_max_connections", None) == DEFAULT_CONNECTIONS:
        pool._max_connections = CONNECTIONS  # type: ignore[union-attr]  # noqa: SLF001


def installed_libraries() -> list[Any]:
    """The modules httpx2 and httpx, as far as they are installed.

    Raises:
        ImportError: Neither is.
    """
    found = [import_module(name) for name in LIBRARIES if find_spec(name) is not None]
    if not found:
        raise ImportError("neither httpx2 nor httpx is installed: pip install 'paceline[httpx2]'")
    return list(dict.fromkeys(found))  # httpx2.alias_httpx() makes one of the two


def library_of(cls: type, *bases: str) -> Any | None:
    """The loaded library, httpx2 or httpx, that has ``cls`` among its classes ``bases`` or their subclasses."""
    for name in LIBRARIES:
        library = sys.modules.get(name)
        if library is not None and issubclass(cls, tuple(getattr(library, base) for base in bases)):
            return library
    return None


def library_of_transport(transport: Any) -> Any:
    """The library of a transport.

    Raises:
        TypeError: It is not a transport of httpx2 or httpx.
    """
    library = library_of(transport.__class__, "BaseTransport", "AsyncBaseTransport")
    if library is None:
        raise TypeError(f"{type(transport).__name__} is not a transport of httpx2 or httpx")
    return library


@lru_cache(maxsize=64)
def _library_of_request(cls: type) -> Any:
    return library_of(cls, "Request")


@cache
def _class_of(library: Any, own: type, *bases: str) -> type:
    """The class ``own`` with the classes ``bases`` of ``library``."""
    return type(own.__name__, (own, *[getattr(library, base) for base in bases]), {})
