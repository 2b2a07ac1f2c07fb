"""Requests to unknown paths that have an LLM's body. At an unknown host they are paced once an answer has an LLM's form."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from paceline.http.describe import INPUTS, Metered, body_of, call_by_hand, has_limits, metered
from paceline.http.tap import BodyReader
from paceline.http.unpaced import MANAGEMENT
from paceline.pacing.accounts import Payer
from paceline.pacing.pacer import Pacer
from paceline.providers import parse
from paceline.providers.base import Provider
from paceline.providers.registry import provider_named
from paceline.responses.events import data_in
from paceline.responses.values import as_mapping, as_text, decode

log = logging.getLogger("paceline.http")

BODY_MAX: Final = 32 * 2**20
"""A longer body is not looked at."""
ANSWER_MAX: Final = 65_536
"""So much of an answer is looked at, which is some events of a stream."""
PATHS_MAX: Final = 1_000
"""How many paths are remembered."""
_MODELS: Final = ("model", "model_id", "modelId")
_MARKS: Final = tuple(f'"{name}"'.encode() for name in INPUTS)

_llms: set[tuple[str, str]] = set()  # hosts and paths at which an LLM has answered


def llm_body(path: str, content: bytes) -> Mapping[str, Any] | None:
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


def limited_body(pacer: Pacer, host: str, path: str, content: bytes) -> Mapping[str, Any] | None:
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
    if is_chat(body):
        path = "/" + path.rstrip("/").rpartition("/")[2]
    return MANAGEMENT.search(path) is not None


def is_chat(body: Mapping[str, Any]) -> bool:
    """Whether a body has messages, as an LLM's alone has."""
    messages = body.get("messages")
    return isinstance(messages, list) and bool(messages) and bool(as_mapping(messages[0]).get("role"))


def recognised(
    pacer: Pacer, provider: Provider, body: Mapping[str, Any], *, guessed: bool, payer: Payer | None = None
) -> Metered:
    """The request with this body, in the dialect of ``provider``, which ``payer`` pays."""
    found = metered(pacer, provider, call_by_hand(provider, body["model"], body), body, payer=payer)
    return replace(found, guessed=guessed)


def owner_of(pacer: Pacer, host: str, model: str, fallback: Provider | None) -> tuple[Provider, bool]:
    """The provider under whose name a model at an unknown host is paced, and whether the user has given limits for the host."""
    limits, at_host = pacer.pools.limits, provider_named(host)
    home = fallback or (provider_named(limits.home) if limits.home else None)
    sure = has_limits(pacer, host)
    if home is not None and not sure and limits.given_for(home.name, model, home.pool(model)) is not None:
        return home, False
    return at_host, sure


def answers_here(host: str, path: str) -> bool:
    """Whether an LLM has answered at this path."""
    return (host, path.partition("?")[0]) in _llms


def trial(host: str, path: str) -> BodyReader:
    """Looks at an answer: whether an LLM gives it."""
    return BodyReader(ANSWER_MAX, partial(_remember, (host, path.partition("?")[0])))


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
