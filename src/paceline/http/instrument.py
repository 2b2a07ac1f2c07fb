"""Pace a whole process: every client of httpx2 and httpx, those made before and those made after, in every SDK."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from types import ModuleType
from typing import Any

from paceline.http import dspy, genai
from paceline.http.bypass import BypassWatch, warn_of
from paceline.http.httpx import PacedTransport, exchange_async, exchange_sync, installed_libraries, lift_connections
from paceline.pacing.pacer import Pacer
from paceline.providers.base import Provider
from paceline.providers.registry import provider_named


class Instrumented(ExitStack):
    """The changes of :func:`instrument`; :meth:`undo` takes them back, as does the end of a ``with`` block."""

    def undo(self) -> None:
        """Take all changes back; a second call does nothing."""
        self.close()

    def replace(self, owner: type, name: str, method: Any) -> None:
        """Replace a method of a class."""
        self.callback(setattr, owner, name, owner.__dict__[name])
        setattr(owner, name, method)


_active = Instrumented()


def instrument(limiter: Pacer, *, provider: str | None = None) -> Instrumented:
    """Pace every httpx2 and httpx client of this process. Called again, the newest limiter holds.

    Requests to the hosts of providers are paced, and requests to other hosts if they are an LLM's: if the body has a model
    and messages, an input or a prompt.

    A client that is attached to a limiter keeps it. google-genai is kept from sending through aiohttp, and dspy's own
    client is paced, too. A package whose traffic takes another way is named in a :class:`~paceline.PacelineWarning`,
    now if it is imported already, else when it is imported.

    Args:
        limiter: The limiter whose pools are charged.
        provider: The provider of requests whose address does not tell it (a proxy, a gateway). Known hosts keep
            their own.

    Raises:
        ImportError: Neither httpx2 nor httpx is installed.
        TypeError: ``limiter`` is not a limiter.
    """
    if not isinstance(limiter, Pacer):
        raise TypeError(
            f"instrument() takes a limiter, not {type(limiter).__name__}: paceline.instrument(paceline.Limiter(...))"
        )
    global _active  # noqa: PLW0603
    libraries = installed_libraries()
    fallback = provider_named(provider) if provider else None
    _active.undo()
    _active = done = Instrumented()

    def cure_genai(module: ModuleType) -> None:
        api: Any = getattr(module, "BaseApiClient", None)
        if hasattr(api, "_use_aiohttp"):  # not so before 1.31, which never sent through aiohttp
            done.replace(api, "_use_aiohttp", genai.class_without_aiohttp(api._use_aiohttp))  # noqa: SLF001

    def cure_dspy(module: ModuleType) -> None:
        try:
            done.callback(dspy.pace(module, limiter, fallback=fallback))
        except ImportError:
            warn_of("dspy")

    watch = BypassWatch({genai.MODULE: cure_genai, dspy.MODULE: cure_dspy})
    done.callback(watch.stop)
    for library in libraries:
        done.replace(library.Client, "send", _sync_send(limiter, fallback, library.Client.send))
        done.replace(library.AsyncClient, "send", _async_send(limiter, fallback, library.AsyncClient.send))
    return done


def _sync_send(limiter: Pacer, fallback: Provider | None, original: Any) -> Any:
    @functools.wraps(original)
    def send(self: Any, request: Any, **options: Any) -> Any:
        plain = functools.partial(original, self, **options)
        if _is_paced_below(self, request):
            return plain(request)
        return exchange_sync(limiter, plain, request, fallback=fallback)

    return send


def _async_send(limiter: Pacer, fallback: Provider | None, original: Any) -> Any:
    @functools.wraps(original)
    async def send(self: Any, request: Any, **options: Any) -> Any:
        plain = functools.partial(original, self, **options)
        if _is_paced_below(self, request):
            return await plain(request)
        return await exchange_async(limiter, plain, request, fallback=fallback)

    return send


def _is_paced_below(client: Any, request: Any) -> bool:
    """Whether the transport of the request is paced; if not, its connection pool is raised to hold all in flight."""
    transport = client._transport_for_url(request.url)  # noqa: SLF001
    lift_connections(transport)
    return isinstance(transport, PacedTransport)
