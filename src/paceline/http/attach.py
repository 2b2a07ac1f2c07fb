"""Pace one client in place, keeping its pool, proxies and socket options."""

from __future__ import annotations

import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

from paceline.core.outcomes import PacelineWarning
from paceline.http.transport import is_paced, library_of, pace_transport
from paceline.providers.registry import provider_named

if TYPE_CHECKING:
    from paceline.limiter import Limiter

DEPTH_MAX, OBJECTS_MAX = 3, 500
"""How deep, and among how many objects, a client is searched for the HTTP client inside."""


def attach(limiter: Limiter, client: Any, provider: str | None = None) -> None:
    """See :meth:`paceline.Limiter.attach`."""
    clients = _http_clients(client)
    if not clients:
        raise TypeError(
            f"no httpx or httpx2 client inside {type(client).__name__}: attach the HTTP client itself, "
            "or call paceline.instrument(limiter) to pace the whole process"
        )
    if type(client).__module__.startswith("google.genai"):
        warnings.warn(
            "google-genai makes its async clients anew for each event loop, so attach() paces only its sync calls; for the "
            "async ones call paceline.instrument(limiter) and set GOOGLE_GENAI_HTTP_CLIENT=httpx2",
            PacelineWarning,
            stacklevel=3,
        )
    for http_client in clients:
        mounts = http_client._mounts  # noqa: SLF001  (what OpenTelemetry's instrumentation replaces, too)
        http_client._transport = _paced(limiter, http_client._transport, provider)  # noqa: SLF001
        for pattern, transport in mounts.items():
            mounts[pattern] = transport and _paced(limiter, transport, provider)


def _paced(limiter: Limiter, transport: Any, provider: str | None) -> Any:
    if is_paced(transport):
        if transport.limiter is not limiter:
            raise ValueError("this client is attached to another limiter already")
        if provider is not None and (
            transport.provider is None or provider_named(provider).name != transport.provider.name
        ):
            raise ValueError("this HTTP client is attached for another provider already: give each SDK its own")
        return transport
    return pace_transport(limiter, transport, provider)


def _http_clients(client: Any) -> list[Any]:
    """The HTTP clients that ``client`` is or has inside, nearest first."""
    found, seen = [], {id(client)}
    queue = deque([(client, 0)])
    while queue:
        thing, depth = queue.popleft()
        if library_of(thing, "Client", "AsyncClient") is not None:
            found.append(thing)
            continue
        if depth == DEPTH_MAX:
            continue
        for inner in list(getattr(thing, "__dict__", {}).values()):
            if hasattr(inner, "__dict__") and id(inner) not in seen and len(seen) < OBJECTS_MAX:
                seen.add(id(inner))
                queue.append((inner, depth + 1))
    return found
