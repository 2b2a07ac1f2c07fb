"""dspy 3.4 and later, which sends through an HTTP client of its own: that client, paced.

Found by reading and running 3.4.1.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from paceline.http.exchange import exchange
from paceline.http.sansio import AsyncIo, SyncIo, run_sync
from paceline.http.transport import LIBRARIES

if TYPE_CHECKING:
    from paceline.pacing.pacer import Pacer
    from paceline.providers.base import Provider

MODULE: Final = "dspy._vendor.lm15.transports"
"""Where dspy's client is."""

Page = Callable[[Any], "Provider | None"]
"""Given a request: whose dialect is spoken, where its host shall not tell."""

_holders: list[tuple[Pacer, Page]] = []
"""Who paces dspy; the last one does."""

_patched = ExitStack()


def pace(client: Any, limiter: Pacer, page: Page) -> Callable[[], None]:
    """Pace dspy's client, the module ``client``, everywhere in this process; the newest limiter holds.

    Returns:
        What ends it. The one before holds again, and dspy is itself when there is none.

    Raises:
        ImportError: It is another client than the one known here, or neither httpx2 nor httpx is installed.
    """
    if not _holders:
        for owner, name, method in _methods(client):
            _patched.callback(setattr, owner, name, owner.__dict__[name])
            setattr(owner, name, method)
    holder = (limiter, page)
    _holders.append(holder)

    def end() -> None:
        if any(one is holder for one in _holders):
            _holders[:] = [one for one in _holders if one is not holder]
            if not _holders:
                _patched.close()

    return end


def _methods(client: Any) -> list[tuple[type, str, Any]]:
    """What to put where: the class, the name of its method, the method."""
    found = [getattr(client, name, None) for name in ("StdlibTransport", "StdlibAsyncTransport")]
    if not hasattr(found[0], "stream") or not hasattr(found[1], "_do_stream"):
        raise ImportError("this dspy has another HTTP client than 3.4's: use dspy.LM(..., engine='litellm')")
    library = _library()
    stream_sync, stream_async = found[0].stream, found[1]._do_stream  # type: ignore[union-attr]  # noqa: SLF001

    def stream(self: Any, request: Any) -> Any:
        holder = _holder()
        if holder is None:  # ended in another thread, just now
            return stream_sync(self, request)
        limiter, page = holder
        described = _described(library, request)

        def send(_: Any) -> Any:
            return _answered(library, described, stream_sync(self, request))

        response = run_sync(exchange(limiter, SyncIo(), send, described, page(described)))
        return client.TransportResponse(
            **_head(response), chunks=iter(response.stream), release=lambda _: response.close()
        )

    async def _do_stream(self: Any, request: Any) -> Any:
        holder = _holder()
        if holder is None:
            return await stream_async(self, request)
        limiter, page = holder
        described = _described(library, request)

        async def send(_: Any) -> Any:
            return _answered(library, described, await stream_async(self, request))

        async def release(_: bool) -> None:
            await response.aclose()

        response = await exchange(limiter, AsyncIo(), send, described, page(described))
        return client.AsyncTransportResponse(**_head(response), chunks=aiter(response.stream), release=release)

    return [(found[0], "stream", stream), (found[1], "_do_stream", _do_stream)]  # type: ignore[list-item]


def _holder() -> tuple[Pacer, Page] | None:
    try:
        return _holders[-1]  # one step, whatever other threads do
    except IndexError:
        return None


def _library() -> Any:
    """The HTTP library in whose words the engine is spoken to; it sends nothing here."""
    for name in LIBRARIES:
        if find_spec(name) is not None:
            return import_module(name)
    raise ImportError("pacing dspy needs httpx2 or httpx: pip install 'paceline[httpx2]'")


def _described(library: Any, request: Any) -> Any:
    return library.Request(request.method, request.url, headers=request.headers, content=request.body)


def _answered(library: Any, described: Any, answer: Any) -> Any:
    """The answer as a response of the HTTP library, over the same connection."""
    body = _body_class(library)(answer)
    return library.Response(answer.status, headers=answer.headers, stream=body, request=described)


def _head(response: Any) -> dict[str, Any]:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw]
    return {
        "status": response.status_code,
        "reason": response.reason_phrase,
        "headers": headers,
        "http_version": "HTTP/1.1",
    }


@lru_cache(maxsize=2)
def _body_class(library: Any) -> type:
    class Body(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, answer: Any) -> None:
            self._answer = answer

        def __iter__(self) -> Iterator[bytes]:
            return iter(self._answer)

        def __aiter__(self) -> AsyncIterator[bytes]:
            return aiter(self._answer)

        def close(self) -> None:
            self._answer.close()

        async def aclose(self) -> None:
            await self._answer.aclose()

    return Body
