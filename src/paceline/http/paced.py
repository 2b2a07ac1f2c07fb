"""Which requests are paced, and as what.

A request to an unknown path is recognised by its body. At an unknown host such requests are paced once an answer has an LLM's form.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

from paceline.core.results import SettingsError
from paceline.http.account import payer_of
from paceline.http.background import poll_of
from paceline.http.binding import Binding, Undescribed, own_refusal
from paceline.http.describe import (
    MODEL_MAX,
    Metered,
    body_of,
    call_by_hand,
    describe,
    is_metered,
    metered,
    model_named,
)
from paceline.http.exchange import Exchange, sending_here
from paceline.http.tap import BodyReader, Tap
from paceline.http.unpaced import MANAGEMENT, MEDIA_HOSTS, announce
from paceline.pacing.accounts import Payer
from paceline.pacing.pacer import Pacer
from paceline.pacing.permit import holds_permit
from paceline.providers import parse
from paceline.providers.base import Provider, UsageReader
from paceline.providers.registry import base_of, changed, head_of, is_loopback, maker, provider_for_host, provider_named
from paceline.providers.tables import known_providers, stated_tiers
from paceline.responses.events import data_in
from paceline.responses.values import as_mapping, as_text, decode

log = logging.getLogger("paceline.http")

paced_beyond: Final[set[str]] = set()
"""The addresses of gateways with the same quotas, which pace what they get."""

INPUTS: Final = ("messages", "input", "inputs", "prompt", "contents", "texts", "documents", "passages")
"""Fields: an LLM's request has one of them."""


_BY_PATH: Final = ("gemini", "bedrock")

UNKNOWN_MAX: Final = 256
"""Of how many unknown hosts it is logged that the limits of a provider are not applied there."""

BODY_MAX: Final = 32 * 2**20
"""A longer body is not looked at."""
ANSWER_MAX: Final = 65_536
"""So much of an answer is looked at, which is some events of a stream."""
PATHS_MAX: Final = 1_000
"""How many paths are remembered."""
_MODELS: Final = ("model", "model_id", "modelId")
_MARKS: Final = tuple(f'"{name}"'.encode() for name in INPUTS)

_llms: set[tuple[str, str]] = set()  # hosts and paths at which an LLM has answered


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
    # Before the method is looked at, because most requests for such an answer are GETs.
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
            body = body_of(content)
            return describe(pacer, known, path, content, payer_of(pacer, known, http.header, body, http.query), body)
    elif (found := await _guessed(pacer, http, target, fallback)) is not None:
        return found
    # A caller with a permit has said by hand what the request costs.
    return None if holds_permit() else await _unlisted(pacer, http, target, known, fallback)


# An unknown host: a proxy, a gateway, a server of the user's own, or a service that has nothing to do with LLMs.


async def _guessed(
    pacer: Pacer, http: Undescribed, target: tuple[str, str], fallback: Provider | None
) -> Metered | None:
    """Describe a request to an unknown host, in the dialect that it seems to use.

    Its pool is the one of the dialect if the user has named this provider or given quotas for it. Otherwise it is named by
    host and model, because the published limits of a provider do not hold at another host.

    Returns:
        ``None`` for a request that costs nothing, or is not an LLM's: neither its path names a model, nor its body a model and an input.
    """
    (host, path), likely = target, _likely(pacer, http, target, fallback)
    guess = next((one for one in likely if one is not None and is_metered(one, path)), None)
    if guess is None:
        return None
    content = await http.content()
    body = body_of(content)
    model = model_named(guess, path, as_text(body.get("model"))[:MODEL_MAX])
    if model is None or model == parse.UNKNOWN:
        return None
    has_input = any(map(body.get, INPUTS)) or content.startswith(b"--")  # a form has a file: a recording, a picture
    if not has_input and model_named(guess, path, "") != model:  # nor is the model in the path
        return None
    named = guess is fallback or _stands_in(pacer, guess, host, model)
    payer = None  # of a host without a name: a server of the user's own has the same limits for all keys
    if not named and not pacer.pools.limits.given_for(guess.name, model, guess.pool(model)):
        if guess.name != host:
            _log_once(_OTHER, guess.name, host)
        guess = _under_host(guess, host, path)
    else:
        payer = payer_of(pacer, guess, http.header, body, http.query)
    found = describe(pacer, guess, path, content, payer, body)
    return found and replace(found, guessed=not named)


def _likely(pacer: Pacer, http: Undescribed, target: tuple[str, str], fallback: Provider | None) -> tuple[Any, ...]:
    """The dialects that a request to an unknown host may use, the likely ones first.

    Anthropic's, if the request has its own header; ``fallback``; the provider's of the limiter; OpenAI's, which carries the
    name of the host; Google's or Bedrock's, whose paths name the model.
    """
    home = pacer.pools.limits.home
    likely = provider_named("anthropic") if http.header("anthropic-version") else fallback
    if likely is None and home is not None:
        likely = provider_named(home)
    return likely, provider_named(target[0]), *map(provider_named, _BY_PATH)


def _has_limits(pacer: Pacer, host: str) -> bool:
    """Whether the user has given limits for models at a host."""
    start = f"{provider_named(host).name}/"
    return any(name.startswith(start) for name in pacer.pools.limits.given)


def _stands_in(pacer: Pacer, guess: Any, host: str, model: str) -> bool:
    """Whether a server on this machine stands for the provider that the limiter was given: an emulator, a proxy, a mock.

    Not of a model that the provider is known not to have, by its maker: a server of the user's own has others. Nor where the user has
    given limits for the server.
    """
    if guess.name != pacer.pools.limits.provider or not is_loopback(host) or _has_limits(pacer, host):
        return False
    name, made_by = base_of(guess.name), maker(model)
    has_table = name in known_providers()
    if made_by == name or (has_table and stated_tiers(name, model)):
        return True
    if made_by is not None or head_of(name).makes:
        return False
    if has_table:
        _log_once(_TAKEN, guess.name, host)
    return True


_OTHER: Final = (
    "%(host)s is not a host of %(provider)s, so the published limits of %(provider)s do not apply there; if it is a gateway to"
    " %(provider)s, name the provider: limiter.attach(client, provider='%(provider)s'), or instrument(limiter,"
    " provider='%(provider)s')"
)
_TAKEN: Final = (
    "the server on %(host)s is paced with the limits of %(provider)s, the provider of the limiter; if it has models of your own,"
    " give it limits of its own, e.g. {'%(host)s/*': '600 requests/min'}"
)
_logged: Final[dict[tuple[str, str, str], object]] = {}
"""What was logged of a provider and an unknown host."""


def _log_once(text: str, provider: str, host: str) -> None:
    """Log ``text`` once, also where several threads begin at once."""
    mine = object()
    if len(_logged) >= UNKNOWN_MAX or _logged.setdefault((text, provider, host), mine) is not mine:
        return
    log.warning(text, {"provider": provider, "host": host})


@lru_cache(maxsize=256)
def _under_host(provider: Any, host: str, path: str) -> Any:
    """The dialect of ``provider`` under the name of ``host``; OpenAI's with the reservations that unknown hosts need.

    OpenAI's reads the paths of Anthropic, too, but neither its usage nor its cache of prompts.
    """
    generic: Any = provider_named(host)
    if base_of(provider.name) != "anthropic" and is_metered(generic, path):
        return generic
    return changed(provider, name=host)


async def _unlisted(
    pacer: Pacer, http: Undescribed, target: tuple[str, str], known: Any, fallback: Provider | None
) -> Metered | BodyReader | None:
    """What a request to a path costs that no provider lists: its body may say what it is."""
    host, path = target
    sure = known is None and _has_limits(pacer, host)
    if sure:
        body = _limited_body(pacer, host, path, await http.content())
    else:
        # A body that is streamed would be read whole for nothing: most such requests are no LLM's.
        body = _llm_body(path, await http.content()) if http.in_memory else None
    if body is not None and known is not None and _is_chat(body):
        payer = payer_of(pacer, known, http.header, body, http.query)
        return _recognised(pacer, known, body, guessed=False, payer=payer)
    if body is not None and known is None:
        owner = provider_named(host) if sure else _owner_of(pacer, host, body["model"], fallback)
        place = host, path.partition("?")[0]
        if sure or place in _llms:
            return _recognised(pacer, owner, body, guessed=fallback is None)
        announce(owner.name, host, path, trial=True)
        return BodyReader(ANSWER_MAX, partial(_remember, place))
    name = known.name if known is not None else MEDIA_HOSTS.get(host, "")
    if name:
        announce(name, host, path)
    return None


def _llm_body(path: str, content: bytes) -> Mapping[str, Any] | None:
    """The body of a request that may be an LLM's, with its model as ``model``: it names one, and has an input.

    ``None`` for any other, and for a path at which nothing is generated.
    """
    # The bytes first: of a program that sends much else, most bodies need not be parsed.
    if not content.startswith(b"{") or len(content) > BODY_MAX or not any(mark in content for mark in _MARKS):
        return None
    body = body_of(content)
    model = _model_in(body)
    if _generates_nothing(path, body) or not model or not any(body.get(name) for name in INPUTS):
        return None
    return {**body, "model": model}


def _model_in(body: Mapping[str, Any]) -> str:
    return next(filter(None, (as_text(body.get(name))[:200] for name in _MODELS)), "")


def _limited_body(pacer: Pacer, host: str, path: str, content: bytes) -> Mapping[str, Any] | None:
    """The body of a request at a host for which the user has given limits, with its model as ``model``, in any form.

    The limits say that the requests there cost something. ``None`` for a path at which nothing is generated, and for a model that the
    limits leave out.
    """
    provider, body = provider_named(host), body_of(content)
    if _generates_nothing(path, body):
        return None
    model = _model_in(body) or parse.UNKNOWN
    if pacer.pools.limits.given_for(provider.name, model, provider.pool(model)) is None:
        return None
    return {**body, "model": model}


def _generates_nothing(path: str, body: Mapping[str, Any]) -> bool:
    """Whether nothing is generated at a path. With messages, its end alone tells: ``/sessions/3/chat``, ``/agents/completions``."""
    path = path.partition("?")[0][:2_000]
    if _is_chat(body):
        path = "/" + path.rstrip("/").rpartition("/")[2]
    return MANAGEMENT.search(path) is not None


def _is_chat(body: Mapping[str, Any]) -> bool:
    """Whether a body has messages, as an LLM's alone has."""
    messages = body.get("messages")
    return isinstance(messages, list) and bool(messages) and bool(as_mapping(messages[0]).get("role"))


def _recognised(
    pacer: Pacer, provider: Provider, body: Mapping[str, Any], *, guessed: bool, payer: Payer | None = None
) -> Metered:
    """The request with this body, in the dialect of ``provider``, which ``payer`` pays."""
    found = metered(pacer, provider, call_by_hand(provider, body["model"], body), body, payer=payer)
    return replace(found, guessed=guessed)


def _owner_of(pacer: Pacer, host: str, model: str, fallback: Provider | None) -> Provider:
    """The provider under whose name a model is paced at an unknown host for which the user has given no limits."""
    limits = pacer.pools.limits
    home = fallback or (provider_named(limits.home) if limits.home else None)
    if home is not None and limits.given_for(home.name, model, home.pool(model)) is not None:
        return home
    return provider_named(host)


def _remember(place: tuple[str, str], start: bytes) -> None:
    """Remember a place if its answer has the form of an LLM's."""
    if place not in _llms and len(_llms) < PATHS_MAX and _has_form(start):
        _llms.add(place)
        log.info("%s%s answers as an LLM: its requests are paced from now on", *place)


def _has_form(start: bytes) -> bool:
    """Whether a body, or the beginning of a stream, is the answer of an LLM: it has choices or reports tokens."""
    payload = decode(start)
    values = [payload] if payload is not None else map(decode, data_in(start) or start.splitlines())
    return any(map(_is_answer, values))


def _is_answer(payload: Any) -> bool:
    found = as_mapping(payload)
    for name in ("choices", "candidates"):
        items = found.get(name)
        if isinstance(items, list) and any(
            as_mapping(item).keys() & {"message", "delta", "text", "content"} for item in items
        ):
            return True
    results = found.get("results")
    first = as_mapping(results[0]) if isinstance(results, list) and results else {}  # watsonx
    return "generated_text" in first or provider_named("generic").usage(found) is not None


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
