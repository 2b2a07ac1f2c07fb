"""Pace a whole process: every client of httpx2 and httpx, made before or after, by whichever SDK."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from paceline.http import dspy, genai
from paceline.http.bypass import BypassWatch, warn_of
from paceline.http.describe import said_by
from paceline.http.exchange import exchange
from paceline.http.sansio import AsyncIo, SyncIo, run_sync
from paceline.http.transport import LIBRARIES, is_paced, lift_connections
from paceline.providers.registry import provider_named

if TYPE_CHECKING:
    from paceline.pacing.pacer import Pacer
    from paceline.providers.base import Provider

Page = Callable[[Any], "Provider | None"]


class Instrumented:
    """What :func:`instrument` has done; :meth:`undo` it, or use it with ``with``."""

    def __init__(self, limiter: Pacer, page: Page) -> None:
        self._limiter, self._page = limiter, page
        self._originals: list[tuple[type, str, Any]] = []
        self._end_dspy: Callable[[], None] | None = None
        self._watch = BypassWatch({genai.MODULE: self._cure_genai, dspy.MODULE: self._cure_dspy})

    def replace(self, owner: type, name: str, method: Any) -> None:
        """Put ``method`` in the place of the class's own."""
        self._originals.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, method)

    def _cure_genai(self, module: ModuleType) -> None:
        api: Any = getattr(module, "BaseApiClient", None)
        if hasattr(api, "_use_aiohttp"):  # not so before 1.31, which never sent through aiohttp
            self.replace(api, "_use_aiohttp", genai.class_without_aiohttp(api._use_aiohttp))  # noqa: SLF001

    def _cure_dspy(self, module: ModuleType) -> None:
        try:
            self._end_dspy = dspy.pace(module, self._limiter, self._page)
        except ImportError:
            warn_of("dspy")

    def undo(self) -> None:
        """Put everything back; a second call does nothing."""
        global _active  # noqa: PLW0603
        for owner, name, method in self._originals:
            setattr(owner, name, method)
        self._originals.clear()
        self._watch.stop()
        if self._end_dspy is not None:
            self._end_dspy()
        if _active is self:
            _active = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.undo()


_active: Instrumented | None = None


def instrument(limiter: Pacer, *, provider: str | None = None) -> Instrumented:
    """Pace every httpx2 and httpx client of this process. Instrumented again, the newest limiter holds.

    A client that is attached to a limiter keeps it. google-genai is kept from sending through aiohttp, and dspy's own
    client is paced, too. Packages that send past all of these are named in a :class:`~paceline.PacelineWarning`, when
    they are imported already and when they are imported later.

    Args:
        limiter: Whose pools to charge.
        provider: Whose dialect is spoken where a request's address does not tell (a proxy, a gateway). Known hosts
            keep their own.

    Raises:
        ImportError: Neither httpx2 nor httpx is installed: there is nothing to pace.
    """
    global _active  # noqa: PLW0603
    libraries = [import_module(name) for name in LIBRARIES if find_spec(name) is not None]
    if not libraries:
        raise ImportError("paceline.instrument() paces httpx2 and httpx clients, and neither is installed")
    page = _page(provider_named(provider) if provider else None)
    if _active is not None:
        _active.undo()
    done = Instrumented(limiter, page)
    for library in dict.fromkeys(libraries):  # httpx2.alias_httpx() makes one library of the two
        done.replace(library.Client, "send", _sync_send(limiter, page, library.Client.send))
        done.replace(library.AsyncClient, "send", _async_send(limiter, page, library.AsyncClient.send))
    _active = done
    return done


def _page(named: Provider | None) -> Page:
    """By request, whose dialect it speaks: ``named`` where nothing else tells; ``None``: the engine finds out."""
    return lambda request: None if named is None else said_by(request) or named


def _sync_send(limiter: Pacer, page: Page, original: Any) -> Any:
    @functools.wraps(original)
    def send(self: Any, request: Any, **options: Any) -> Any:
        plain = functools.partial(original, self, **options)
        if _paced_below(self, request):
            return plain(request)
        return run_sync(exchange(limiter, SyncIo(), plain, request, page(request)))

    return send


def _async_send(limiter: Pacer, page: Page, original: Any) -> Any:
    @functools.wraps(original)
    async def send(self: Any, request: Any, **options: Any) -> Any:
        plain = functools.partial(original, self, **options)
        if _paced_below(self, request):
            return await plain(request)
        return await exchange(limiter, AsyncIo(), plain, request, page(request))

    return send


def _paced_below(client: Any, request: Any) -> bool:
    """Whether the transport that will carry the request paces it already; if not, make room for all in flight."""
    transport = client._transport_for_url(request.url)  # noqa: SLF001
    lift_connections(transport)
    return is_paced(transport)
