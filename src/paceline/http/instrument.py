"""Pace a whole process: every client of the HTTP libraries, those made before and those made after, in every SDK."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import ModuleType
from typing import Any, Final, cast

from paceline.http import dspy
from paceline.http.aiohttp import paced_request
from paceline.http.botocore import paced_response, remembering
from paceline.http.bypass import SEAMS, announced, dspy_is_unknown
from paceline.http.httpx import LIBRARIES, HttpxRequest, PacedTransport, lift_connections
from paceline.http.paced import exchange
from paceline.http.unpaced import DSPY, GRPC, announce_kind
from paceline.http.urllib3 import paced_urlopen
from paceline.pacing.imports import ImportWatch
from paceline.pacing.pacer import BaseLimiter, Pacer
from paceline.pacing.permit import Acquisition, around_waits
from paceline.pacing.sync import awaited, in_place_of
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


_newest: Final[dict[str, Instrumented]] = {}
"""By kind, the last one that was made."""


def newest(kind: str) -> Instrumented:
    """For new changes of a kind; those before are undone."""
    if kind in _newest:
        _newest[kind].undo()
    made = _newest[kind] = Instrumented()
    return made


def instrument(limiter: BaseLimiter, *, provider: str | None = None) -> Instrumented:
    """Pace every client of httpx2, httpx, aiohttp, botocore, urllib3 and requests in this process.

    Requests to the hosts of providers are paced, and requests to other hosts if they are an LLM's: if the body has a model
    and messages, an input or a prompt.

    If you call it again, the newest limiter applies. A client that is attached to a limiter uses that limiter. dspy's
    own client is paced, too. Requests to a provider in another way (gRPC, WebSockets, other HTTP libraries) are
    logged once per host, and listed by :meth:`Limiter.status() <paceline.Limiter.status>`.

    Args:
        limiter: The limiter whose pools are charged.
        provider: The provider behind unknown addresses (a proxy, a gateway). Known hosts have their own provider.

    Raises:
        TypeError: ``limiter`` is not a limiter.

    Example:
        paceline.instrument(limiter)
        answer = await openai.AsyncOpenAI().responses.create(model="gpt-6-luna", input=prompt)
    """
    if not isinstance(limiter, BaseLimiter):
        raise TypeError(
            f"instrument() takes a limiter, not {type(limiter).__name__}: paceline.instrument(paceline.Limiter(...))"
        )
    pacer, fallback = limiter.pacer, provider_named(provider) if provider else None
    done = newest("all")  # before the methods are looked at: they must not be wrapped twice

    def pace_dspy(module: ModuleType) -> None:
        try:
            done.callback(dspy.pace(module, pacer, fallback=fallback))
        except ImportError:
            announce_kind("", "", DSPY)

    def look_at_dspy(_: ModuleType) -> None:
        if dspy_is_unknown():
            announce_kind("", "", DSPY)

    def watch(module: ModuleType) -> None:
        for seam in SEAMS[module.__name__]:
            owner, _, method = seam.method.partition(".")
            kind: Any = getattr(module, owner, None)
            if kind is not None and method in vars(kind):  # not so in every version
                done.replace(kind, method, announced(seam, vars(kind)[method]))

    def pace_httpx(library: ModuleType) -> None:
        for kind, is_async in ((library.Client, False), (library.AsyncClient, True)):
            if kind not in seen:  # httpx2.alias_httpx() makes one of the two
                seen.add(kind)
                done.replace(kind, "send", _paced_send(pacer, fallback, kind.send, is_async=is_async))

    def pace_aiohttp(module: ModuleType) -> None:
        watch(module)  # WebSockets
        kind = module.ClientSession
        done.replace(kind, "_request", paced_request(pacer, kind._request, fallback=fallback))  # noqa: SLF001

    def pace_urllib3(module: ModuleType) -> None:
        kind = module.HTTPConnectionPool
        done.replace(kind, "urlopen", paced_urlopen(pacer, kind.urlopen, fallback=fallback))

    def pace_botocore(module: ModuleType) -> None:
        kind = module.AioEndpoint if module.__name__.startswith("aio") else module.Endpoint
        done.replace(kind, "create_request", remembering(kind.create_request))
        done.replace(kind, "_get_response", paced_response(pacer, kind._get_response, fallback))  # noqa: SLF001

    def exclude_waits(module: ModuleType) -> None:
        """Let inspect-ai's ``working_limit`` count no wait for a permit: it would cut samples that only waited."""
        suspended = getattr(module, "suspend_working_limit", None)  # not so in every version
        if suspended is not None:

            def around(_: Acquisition) -> AbstractContextManager[object]:
                return cast("AbstractContextManager[object]", suspended())

            around_waits.append(around)
            done.callback(around_waits.remove, around)

    seen: set[type] = set()
    actions = {
        **dict.fromkeys(SEAMS, watch),
        **dict.fromkeys(LIBRARIES, pace_httpx),
        "aiohttp.client": pace_aiohttp,
        "urllib3.connectionpool": pace_urllib3,
        **dict.fromkeys(("botocore.endpoint", "aiobotocore.endpoint"), pace_botocore),
        "dspy": look_at_dspy,
        dspy.MODULE: pace_dspy,
        "inspect_ai.util": exclude_waits,
    }
    if "xai_sdk" in sys.modules:  # its clients may have made their channels
        announce_kind("xai", "api.x.ai", GRPC)
    # The last callback runs first: nothing that is imported during the undoing is paced any more.
    done.callback(ImportWatch(actions).stop)
    return done


def _paced_send(pacer: Pacer, fallback: Provider | None, original: Any, *, is_async: bool) -> Any:
    """``Client.send``, or the async client's, at the pace of ``pacer``."""

    async def send(self: Any, request: Any, **options: Any) -> Any:
        plain = partial(original, self, **options)
        if _is_paced_below(self, request):
            return await awaited(plain(request))
        response = await exchange(pacer, HttpxRequest(plain, request, is_async=is_async), fallback=fallback)
        if not options.get("stream"):  # one of paceline's own has not been read
            await awaited(response.aread() if is_async else response.read())
        return response

    return in_place_of(original, send, is_async=is_async)


def _is_paced_below(client: Any, request: Any) -> bool:
    """Whether the transport of the request is paced; if not, its connection pool is raised to hold all in flight."""
    transport = client._transport_for_url(request.url)  # noqa: SLF001
    lift_connections(transport)
    return isinstance(transport, PacedTransport)
