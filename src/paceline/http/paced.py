"""Which requests are paced, and as what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from paceline.core.results import SettingsError
from paceline.http.account import payer_of
from paceline.http.background import poll_of
from paceline.http.binding import Binding, Undescribed, own_refusal
from paceline.http.describe import (
    Metered,
    body_of,
    describe,
    describe_guessed,
    has_limits,
    is_metered,
    provider_guessed,
)
from paceline.http.exchange import Exchange, sending_here
from paceline.http.recognise import answers_here, is_chat, limited_body, llm_body, owner_of, recognised, trial
from paceline.http.tap import BodyReader, Tap
from paceline.http.unpaced import MEDIA_HOSTS, announce
from paceline.pacing.pacer import Pacer
from paceline.pacing.permit import holds_permit
from paceline.providers.base import Provider, UsageReader
from paceline.providers.registry import provider_for_host

paced_beyond: Final[set[str]] = set()
"""The addresses of gateways with the same quotas, which pace what they get."""


async def exchange(
    pacer: Pacer, http: Undescribed, provider: Provider | None = None, fallback: Provider | None = None
) -> Any:
    """Send a request at the pool's pace and return the response.

    Also when the caller is cancelled meanwhile, the charge of a request that was never sent is given back, and the
    charge of a request that the provider may have counted stays.

    Args:
        pacer: The pacer whose pools are charged.
        http: The request, and the way to send it.
        provider: The provider whose API the request uses; found by its host if not given.
        fallback: The provider of unknown hosts; by default the one of the limiter, if its quotas are given.
    """
    target = http.target
    if pacer.jobs and (reader := poll_of(pacer, http.method, target[1])) is not None:
        return await _watched(http, reader)
    if http.method != "POST":
        return await http.send()
    if paced_beyond and http.address in paced_beyond:
        return await http.send()
    # Paced by a layer above: attach() and instrument(), or one HTTP library over another.
    if (above := sending_here()) is not None and above.http.target == target:
        return await http.send()
    try:
        metered = await _describe(pacer, http, target, provider, fallback)
    except SettingsError as error:
        return own_refusal(http, error)
    # In this order: a request that costs nothing must not use up the pass.
    if metered is None or ((passes := _paced_above.get()) and passes.pop()):
        return await http.send()
    if isinstance(metered, BodyReader):
        return await _watched(http, metered)
    return await Exchange(pacer, http, metered).run()


async def _watched(http: Binding, reader: UsageReader) -> Any:
    """Send a request as it is, and let ``reader`` look at its answer."""
    response = await http.send()
    status, headers = http.head(response)
    if status < 400:
        http.tap(response, headers, Tap(reader, lambda _usage, _refusal: None))
    return response


async def _describe(
    pacer: Pacer, http: Undescribed, target: tuple[str, str], provider: Provider | None, fallback: Provider | None
) -> Metered | BodyReader | None:
    """What a request costs; ``None`` for one that is not paced; a trial for one that may be an LLM's."""
    host, path = target
    known: Any = provider or provider_for_host(host)
    if known is not None:
        if is_metered(known, path):
            content = await http.content()
            payer = payer_of(pacer, known, http.header, partial(body_of, content), http.query)
            return describe(pacer, known, path, content, payer)
    else:
        guess = provider_guessed(pacer, host, path, http.header, fallback)
        if guess is not None:
            content, named = await http.content(), guess is fallback
            found = describe_guessed(pacer, guess, target, content, http.header, http.query, named=named)
            if found is not None:
                return found
    # A caller with a permit has said by hand what the request costs.
    return None if holds_permit() else await _unlisted(pacer, http, target, known, fallback)


async def _unlisted(
    pacer: Pacer, http: Undescribed, target: tuple[str, str], known: Any, fallback: Provider | None
) -> Metered | BodyReader | None:
    """What a request to a path costs that no provider lists: its body may say what it is."""
    host, path = target
    if known is None and has_limits(pacer, host):
        body = limited_body(pacer, host, path, await http.content())
    else:
        # A body that is streamed would be read whole for nothing: most such requests are no LLM's.
        body = llm_body(path, await http.content()) if http.in_memory else None
    if body is not None and known is not None and is_chat(body):
        payer = payer_of(pacer, known, http.header, lambda: body, http.query)
        return recognised(pacer, known, body, guessed=False, payer=payer)
    if body is not None and known is None:
        owner, sure = owner_of(pacer, host, body["model"], fallback)
        if sure or answers_here(host, path):
            return recognised(pacer, owner, body, guessed=fallback is None)
        announce(owner.name, host, path, trial=True)
        return trial(host, path)
    name = known.name if known is not None else MEDIA_HOSTS.get(host, "")
    if name:
        announce(name, host, path)
    return None


_paced_above: ContextVar[list[bool] | None] = ContextVar("paceline_paced_above", default=None)
"""A pass for one request. A list, because a task has a copy of the context, and must use up the same pass."""


@contextmanager
def paced_above() -> Iterator[None]:
    """Let the next metered request pass the paced HTTP clients below: the caller has paced it."""
    token = _paced_above.set([True])
    try:
        yield
    finally:
        _paced_above.reset(token)
