"""Pace one client in place, keeping its pool, proxies and socket options."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from paceline.http import genai
from paceline.http.httpx import PacedTransport, library_of, library_of_transport, pace_transport
from paceline.pacing.pacer import Pacer
from paceline.providers.registry import provider_named

DEPTH_MAX, OBJECTS_MAX = 3, 500
"""How deep, and among how many objects, a client is searched for HTTP clients."""


def attach(limiter: Pacer, client: Any, provider: str | None = None) -> None:
    """See :meth:`paceline.Limiter.attach`."""
    parts = list(_parts(client))
    http_clients = [part for part in parts if _is_http_client(part)]
    if not http_clients:
        raise TypeError(
            f"no httpx or httpx2 client inside {type(client).__name__}: attach the HTTP client itself, "
            "or call paceline.instrument(limiter) to pace the whole process"
        )
    for http_client in http_clients:  # all of them before the first change: all are paced, or none
        for transport in _transports(http_client):
            _check(limiter, transport, provider)
    for http_client in http_clients:
        _attach(limiter, http_client, provider)
    for part in parts:
        if genai.is_api(part):
            genai.without_aiohttp(part)


def _attach(limiter: Pacer, http_client: Any, provider: str | None) -> None:
    mounts = http_client._mounts  # noqa: SLF001  (OpenTelemetry's instrumentation replaces these, too)
    http_client._transport = _paced(limiter, http_client._transport, provider)  # noqa: SLF001
    for pattern, transport in mounts.items():
        mounts[pattern] = transport and _paced(limiter, transport, provider)
    genai.pace_inner(http_client, lambda inner: _attach(limiter, inner, provider))


def _transports(http_client: Any) -> Iterator[Any]:
    """The transports that :func:`_attach` paces."""
    yield http_client._transport  # noqa: SLF001
    yield from filter(None, http_client._mounts.values())  # noqa: SLF001
    for inner in list(getattr(http_client, "_loop_clients", {}).values()):  # google-genai: one for each event loop
        yield from _transports(inner)


def _paced(limiter: Pacer, transport: Any, provider: str | None) -> Any:
    _check(limiter, transport, provider)
    return transport if isinstance(transport, PacedTransport) else pace_transport(limiter, transport, provider)


def _check(limiter: Pacer, transport: Any, provider: str | None) -> None:
    """Raise where ``transport`` cannot be paced, or is paced otherwise."""
    if not isinstance(transport, PacedTransport):
        library_of_transport(transport)
    elif transport.limiter is not limiter:
        raise ValueError("this client is attached to another limiter already: make a client for each limiter")
    elif provider is not None and getattr(transport.provider, "name", None) != provider_named(provider).name:
        raise ValueError("this HTTP client is attached for another provider already: give each SDK its own")


def _is_http_client(thing: Any) -> bool:
    return library_of(thing.__class__, "Client", "AsyncClient") is not None


def _parts(client: Any) -> Iterator[Any]:
    """``client`` and the objects inside, nearest first; HTTP clients are not opened."""
    seen = {id(client)}
    queue = deque([(client, 0)])
    while queue:
        thing, depth = queue.popleft()
        yield thing
        if depth == DEPTH_MAX or _is_http_client(thing):
            continue
        for inner in _held_by(thing):
            if hasattr(inner, "__dict__") and id(inner) not in seen and len(seen) < OBJECTS_MAX:
                seen.add(id(inner))
                queue.append((inner, depth + 1))


def _held_by(thing: Any) -> list[Any]:
    """The values of an object's attributes, the private ones of a pydantic model included (llama-index: the clients)."""
    held = list(getattr(thing, "__dict__", {}).values())
    if hasattr(type(thing), "__pydantic_private__"):
        held += (thing.__pydantic_private__ or {}).values()
    return held
