"""dspy 3.4 and later, which sends through an HTTP client of its own: that client, paced.

What dspy sends through litellm (embeddings, ``engine="litellm"``) is paced by ``paceline.instrument()``; use both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from paceline.http.exchange import exchange
from paceline.http.sansio import AsyncIo, SyncIo, run_sync
from paceline.http.transport import LIBRARIES
from paceline.integrations import package
from paceline.providers.registry import provider_named

if TYPE_CHECKING:
    from paceline.limiter import Limiter

MODULE: Final = "dspy._vendor.lm15.transports"
"""Where dspy's client is."""

_active: list[ExitStack] = []


def instrument(limiter: Limiter, *, provider: str | None = None) -> ExitStack:
    """Pace every ``dspy.LM`` of this process, sync, async and streamed, those made before and those made after.

    dspy has at most 100 connections for each LM; who has a permit may wait for one. Requests are paced, observed, retried and settled like any other's. Say ``num_retries=0`` to each ``dspy.LM``: it
    repeats a refusal of ours, too, though nothing is sent then. Instrumented again, the newest limiter holds.

    Args:
        limiter: Whose pools to charge.
        provider: Whose dialect is spoken, where the host does not tell.

    Returns:
        Its ``close()``, or ``with``, puts everything back.

    Raises:
        ImportError: dspy is missing or sends through something else, or neither httpx2 nor httpx is installed.
    """
    client = package(MODULE, "dspy>=3.4")
    while _active:
        _active.pop().close()
    done = ExitStack()
    for owner, name, method in paced(limiter, client, provider):
        done.callback(setattr, owner, name, owner.__dict__[name])
        setattr(owner, name, method)
    _active.append(done)
    return done


def paced(limiter: Limiter, client: Any, provider: str | None = None) -> list[tuple[type, str, Any]]:
    """What to put where in the module ``client``: the class, the name of its method, the method.

    Raises:
        ImportError: It is another client than the one known here, or neither httpx2 nor httpx is installed.
    """
    found = [getattr(client, name, None) for name in ("StdlibTransport", "StdlibAsyncTransport")]
    if not hasattr(found[0], "stream") or not hasattr(found[1], "_do_stream"):
        raise ImportError("this dspy has another HTTP client than 3.4's: use dspy.LM(..., engine='litellm')")
    library = _library()
    page = provider_named(provider) if provider else None
    stream_sync, stream_async = found[0].stream, found[1]._do_stream  # type: ignore[union-attr]  # noqa: SLF001

    def stream(self: Any, request: Any) -> Any:
        described = _described(library, request)
        response = run_sync(
            exchange(
                limiter, SyncIo(), lambda _: _answered(library, described, stream_sync(self, request)), described, page
            )
        )
        return client.TransportResponse(
            **_head(response), chunks=iter(response.stream), release=lambda _: response.close()
        )

    async def _do_stream(self: Any, request: Any) -> Any:
        described = _described(library, request)

        async def send(_: Any) -> Any:
            return _answered(library, described, await stream_async(self, request))

        async def release(_: bool) -> None:
            await response.aclose()

        response = await exchange(limiter, AsyncIo(), send, described, page)
        return client.AsyncTransportResponse(**_head(response), chunks=aiter(response.stream), release=release)

    return [(found[0], "stream", stream), (found[1], "_do_stream", _do_stream)]  # type: ignore[list-item]


def _library() -> Any:
    """The HTTP library in whose words the engine is spoken to; it sends nothing here."""
    for name in LIBRARIES:
        if find_spec(name) is not None:
            return package(name, name)
    raise ImportError("this integration needs httpx2 or httpx: pip install 'paceline[httpx2]'")


def _described(library: Any, request: Any) -> Any:
    return library.Request(request.method, request.url, content=request.body)


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
