"""The binding of dspy 3.4 and later, which sends through an HTTP client of its own.

It was found by reading and running 3.4.1. The exchange sees requests and responses of httpx2 or httpx, which are made
here of dspy's and sent nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from paceline.http.httpx import HttpxRequest, body_of, installed_libraries
from paceline.http.paced import exchange
from paceline.pacing.pacer import Pacer
from paceline.pacing.sync import awaited, in_place_of
from paceline.providers.base import Provider

MODULE: Final = "dspy._vendor.lm15.transports"
"""The module of dspy's client."""

_pacers: list[tuple[Pacer, Provider | None, Provider | None]] = []
"""Pacer, provider and fallback of each :func:`pace` that has not ended; the last one holds."""

_patched = ExitStack()


def pace(
    client: Any, pacer: Pacer, provider: Provider | None = None, fallback: Provider | None = None
) -> Callable[[], None]:
    """Pace dspy's client, the module ``client``, everywhere in this process; the newest pacer holds.

    The providers are told as for :func:`~paceline.http.paced.exchange`.

    Returns:
        The function that ends it: the previous pacer holds again, and without one, dspy's own methods are restored.

    Raises:
        ImportError: The module is unknown, or neither httpx2 nor httpx is installed.
    """
    if not _pacers:
        _patch(client)
    entry = (pacer, provider, fallback)
    _pacers.append(entry)

    def end() -> None:
        if any(one is entry for one in _pacers):  # by identity: two calls may have the same pacer
            _pacers[:] = [one for one in _pacers if one is not entry]
            if not _pacers:
                _patched.close()

    return end


def _patch(client: Any) -> None:
    sync: Any = getattr(client, "StdlibTransport", None)
    asynchronous: Any = getattr(client, "StdlibAsyncTransport", None)
    if not hasattr(sync, "stream") or not hasattr(asynchronous, "_do_stream"):
        raise ImportError("this dspy has another HTTP client than 3.4's: use dspy.LM(..., engine='litellm')")
    library = installed_libraries()[0]
    for owner, name, kind in (
        (sync, "stream", client.TransportResponse),
        (asynchronous, "_do_stream", client.AsyncTransportResponse),
    ):
        original = owner.__dict__[name]
        _patched.callback(setattr, owner, name, original)
        setattr(owner, name, _paced(library, original, kind, is_async=owner is asynchronous))


def _paced(library: Any, original: Any, kind: Any, *, is_async: bool) -> Any:
    """The method ``original``, whose responses are of this ``kind``, at the pace of the newest pacer."""

    async def stream(self: Any, request: Any) -> Any:
        async def send(copy: Any) -> Any:
            answer = await awaited(original(self, request))
            stream = body_of(library, answer)
            return library.Response(answer.status, headers=answer.headers, stream=stream, request=copy)

        newest = _pacers[-1:]
        if not newest:  # ended in another thread, just now
            return await awaited(original(self, request))
        pacer, *providers = newest[0]
        copy = library.Request(request.method, request.url, headers=request.headers, content=request.body)
        response = await exchange(pacer, HttpxRequest(send, copy, is_async=is_async), *providers)
        chunks, close = (aiter, response.aclose) if is_async else (iter, response.close)
        return kind(**_head(response), chunks=chunks(response.stream), release=lambda _: close())

    return in_place_of(original, stream, is_async=is_async)


def _head(response: Any) -> dict[str, Any]:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw]
    reason = response.reason_phrase
    return {"status": response.status_code, "reason": reason, "headers": headers, "http_version": "HTTP/1.1"}
