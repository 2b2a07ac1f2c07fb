"""Transports that pace: composition over any inner transport of httpx2 or httpx."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from paceline.http.exchange import exchange
from paceline.http.sansio import AsyncIo, SyncIo, run_sync
from paceline.providers.registry import provider_named

if TYPE_CHECKING:
    from paceline.pacing.pacer import Pacer
    from paceline.providers.base import Provider

DEFAULT_CONNECTIONS = 100  # what both libraries allow a client whose owner did not choose
CONNECTIONS = 1_000
LIBRARIES = ("httpx2", "httpx")

_classes: dict[ModuleType, type] = {}


def pace_transport(limiter: Pacer, inner: Any, provider: str | None = None) -> Any:
    """A transport that sends through ``inner`` at the pace of ``limiter``.

    Args:
        limiter: Whose pools to charge.
        inner: A transport of httpx2 or httpx, sync or async.
        provider: Whose dialect is spoken, where the host does not tell.

    Returns:
        A transport of the same library.

    Raises:
        TypeError: ``inner`` is no such transport.
    """
    return _class_of(library_of_transport(inner))(limiter, inner, provider_named(provider) if provider else None)


def library_of_transport(transport: Any) -> ModuleType:
    """The library whose transport this is.

    Raises:
        TypeError: It is none of httpx2's or httpx's.
    """
    library = library_of(transport, "BaseTransport", "AsyncBaseTransport")
    if library is None:
        raise TypeError(f"{type(transport).__name__} is not a transport of httpx2 or httpx")
    return library


def library_of(thing: Any, *bases: str) -> ModuleType | None:
    """The loaded library, httpx2 or httpx, one of whose ``bases`` is a base of ``thing``'s type."""
    for name in LIBRARIES:
        library = sys.modules.get(name)
        if library is not None and any(isinstance(thing, getattr(library, base)) for base in bases):
            return library
    return None


def lift_connections(transport: Any) -> None:
    """Let a connection pool of the library's default size hold as many as are in flight.

    The limiter decides who goes. A request that had its permit and then waited for a connection would arrive
    late, beside others; and after the pool's timeout it would fail. A size that the client's owner chose stays.
    """
    pool = getattr(transport, "_pool", None)
    if getattr(pool, "_max_connections", None) == DEFAULT_CONNECTIONS:
        pool._max_connections = CONNECTIONS  # type: ignore[union-attr]  # noqa: SLF001


def _class_of(library: Any) -> type:
    if library not in _classes:

        class PacedTransport(library.BaseTransport, library.AsyncBaseTransport):  # type: ignore[misc]
            """Paces what goes through ``inner``, sync and async, as far as ``inner`` is either."""

            def __init__(self, limiter: Pacer, inner: Any, provider: Provider | None) -> None:
                lift_connections(inner)
                self.limiter, self.inner, self.provider = limiter, inner, provider

            def handle_request(self, request: Any) -> Any:
                send = self.inner.handle_request
                return run_sync(exchange(self.limiter, SyncIo(), send, request, self.provider))

            async def handle_async_request(self, request: Any) -> Any:
                send = self.inner.handle_async_request
                return await exchange(self.limiter, AsyncIo(), send, request, self.provider)

            def close(self) -> None:
                self.inner.close()

            async def aclose(self) -> None:
                await self.inner.aclose()

        _classes[library] = PacedTransport
    return _classes[library]


def is_paced(transport: Any) -> bool:
    """Whether ``transport`` is one of ours."""
    return any(isinstance(transport, paced) for paced in _classes.values())
