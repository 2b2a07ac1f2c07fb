"""Pace one client in place, keeping its pool, proxies and socket options."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from paceline.core.results import warn
from paceline.http.aiohttp import pace_session
from paceline.http.botocore import pace_endpoint
from paceline.http.httpx import PacedTransport, library_of, library_of_transport, paced_transport
from paceline.http.urllib3 import pace_adapter, pace_manager, pace_pool
from paceline.pacing.pacer import Pacer
from paceline.providers.base import Provider
from paceline.providers.registry import provider_named

Pace = Callable[[Pacer, Any, Provider | None], None]

ATTACHED = "_paceline"
"""The attribute of an attached object of aiohttp, urllib3 or botocore: its pacer and its provider."""

DEPTH_MAX, OBJECTS_MAX = 3, 500
"""How deep, and among how many objects, a client is searched for HTTP clients."""


def attach(pacer: Pacer, client: Any, provider: str | None = None) -> None:
    """See :meth:`paceline.Limiter.attach`."""
    parts = list(_parts(client))
    http_clients = [part for part in parts if _is_http_client(part)]
    others = [(owner, pace) for part in parts for owner, pace in _others(part)]
    if not http_clients and not others:
        raise TypeError(
            f"no client of httpx, httpx2, aiohttp, requests, urllib3 or botocore inside {type(client).__name__}: attach the"
            " HTTP client itself, or call paceline.instrument(limiter) to pace the whole process"
        )
    for http_client in http_clients:  # all of them before the first change: all are paced, or none
        for transport in _transports(http_client):
            _check(pacer, transport, provider)
    for owner, _ in others:
        _check_owner(pacer, vars(owner).get(ATTACHED), provider)
    for http_client in http_clients:
        _attach(pacer, http_client, provider)
    for owner, pace in others:
        _attach_other(pacer, owner, pace, provider_named(provider) if provider else None)


def _attach(pacer: Pacer, http_client: Any, provider: str | None) -> None:
    mounts = http_client._mounts  # noqa: SLF001  (OpenTelemetry's instrumentation replaces these, too)
    http_client._transport = _paced(pacer, http_client._transport, provider)  # noqa: SLF001
    for pattern, transport in mounts.items():
        mounts[pattern] = transport and _paced(pacer, transport, provider)  # None: the client's own transport
    _attach_inner(pacer, http_client, provider)


def _attach_other(pacer: Pacer, owner: Any, pace: Pace, provider: Provider | None) -> None:
    if ATTACHED not in vars(owner):
        object.__setattr__(owner, ATTACHED, (pacer, provider))  # aiohttp's sessions warn of other attributes
        pace(pacer, owner, provider)


def _transports(http_client: Any) -> Iterator[Any]:
    """The transports that :func:`_attach` paces."""
    yield http_client._transport  # noqa: SLF001
    yield from filter(None, http_client._mounts.values())  # noqa: SLF001
    for inner in list(getattr(http_client, "_loop_clients", {}).values()):  # google-genai: one for each event loop
        yield from _transports(inner)


def _paced(pacer: Pacer, transport: Any, provider: str | None) -> Any:
    _check(pacer, transport, provider)
    return transport if isinstance(transport, PacedTransport) else paced_transport(pacer, transport, provider)


def _check(pacer: Pacer, transport: Any, provider: str | None) -> None:
    """Raise where ``transport`` cannot be paced, or is paced otherwise."""
    if not isinstance(transport, PacedTransport):
        library_of_transport(transport)
    else:
        _check_owner(pacer, (transport.pacer, transport.provider), provider)


def _check_owner(pacer: Pacer, attached: tuple[Pacer, Provider | None] | None, provider: str | None) -> None:
    """Raise if a client is attached to another limiter, or for another provider."""
    if attached is None:
        return
    if attached[0] is not pacer:
        raise ValueError("this client is attached to another limiter already: make a client for each limiter")
    if provider is not None and getattr(attached[1], "name", None) != provider_named(provider).name:
        raise ValueError("this HTTP client is attached for another provider already: give each SDK its own")


def _others(part: Any) -> Iterator[tuple[Any, Pace]]:
    """The objects of other libraries that ``part`` is or sends through, each with the function that paces it."""
    yield from ((part, pace) for (module, name), pace in _PACED.items() if _is_a(part, module, name))
    if _is_a(part, "requests", "Session"):
        yield from ((one, pace_adapter) for one in part.adapters.values() if hasattr(one, "poolmanager"))
    if hasattr(type(part), "_get_aiohttp_session"):
        yield part, _pace_sessions


_PACED: Final[dict[tuple[str, str], Pace]] = {
    ("aiohttp", "ClientSession"): pace_session,
    ("urllib3", "PoolManager"): pace_manager,
    ("urllib3", "HTTPConnectionPool"): pace_pool,
    ("botocore.endpoint", "Endpoint"): pace_endpoint,
}
"""By the module and the name of a class: what paces an object of it."""


def _is_a(thing: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(thing, kind)


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


# google-genai: its async client makes sessions of aiohttp, or clients of httpx2 or httpx, one for each event loop. They are paced as
# they are made. Found by reading and running google-genai 2.34 and 3.4. Not paced: the Live API (WebSockets); and Vertex with client
# certificates.


def _pace_sessions(pacer: Pacer, api: Any, provider: Provider | None) -> None:
    """Pace the session of every event loop, the present ones and those that are made later."""
    # ``bool()`` is False, for versions without these methods.
    if any(getattr(api, f"_use_google_auth_{way}", bool)() for way in ("sync", "async")):
        warn(
            "attach() does not pace google-genai with client certificates, which sends through google-auth; call"
            " paceline.instrument(limiter) to pace the whole process"
        )
        return
    make = api._get_aiohttp_session  # noqa: SLF001

    async def paced() -> Any:
        session = await make()
        _attach_other(pacer, session, pace_session, provider)
        return session

    api._get_aiohttp_session = paced  # noqa: SLF001


def _attach_inner(pacer: Pacer, http_client: Any, provider: str | None) -> None:
    """Pace the inner HTTP client of every event loop, the present ones and those that are made later."""
    if not hasattr(http_client, "_inner_client_cls") or "_inner_client_cls" in vars(http_client):
        return  # another SDK, or paced already
    make = http_client._inner_client_cls  # noqa: SLF001

    def paced(**options: Any) -> Any:
        inner = make(**options)
        _attach(pacer, inner, provider)
        return inner

    http_client._inner_client_cls = paced  # noqa: SLF001
    for inner in list(http_client._loop_clients.values()):  # noqa: SLF001
        _attach(pacer, inner, provider)
