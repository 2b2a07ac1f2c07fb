"""Hosts that speak OpenAI's API: a row each in ``dialects.toml``, and a class only for what a row cannot say."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Any, Final

from paceline.core.quota import REQUESTS
from paceline.core.results import Reading, Refusal, RefusalKind, RefusalScope
from paceline.providers import parse
from paceline.providers.base import COUNTING, Call, Headers, Usage
from paceline.providers.common import IMAGES, INPUTS, CostRule, refusal_fields
from paceline.providers.forms import dialect, endpoint_of
from paceline.providers.openai import OpenAIDialect
from paceline.providers.plan_headers import window_of
from paceline.providers.prompt import MediaTokens
from paceline.providers.quota_headers import Documented
from paceline.providers.registry import PROVIDERS, changed
from paceline.responses.values import as_mapping, as_text, at, count, items_of

FREE: Final = "free"
"""The pool of all of OpenRouter's free models."""


class Compatible(OpenAIDialect):
    """A host like OpenAI: what it has of its own is in ``dialects.toml``, or in a class of this file that its row names."""

    modes: Collection[str] = ()
    """The values of ``service_tier`` whose requests have limits of their own."""
    streaming: Collection[str] = ()
    """The endpoints whose answers are streams unless the body says ``false``."""
    reads: Collection[Mapping[str, Any]] | None = None
    """What is in headers that no other host has, if it has any."""
    usd: tuple[str, float] = ("", 1.0)
    """Where its usage states what was charged, and the unit of it in US dollars."""

    def __init__(self, name: str, key_env: str, hosts: tuple[str, ...], encoding: str) -> None:
        super().__init__(name, key_env, hosts, encoding)
        entry = PROVIDERS[name]
        self.api, self.cache_s = entry.api or name, entry.cache_s or OpenAIDialect.cache_s
        row = dialect(self.api)
        vars(self).update({field: ATTRIBUTES[field](said) for field, said in row.items() if field in ATTRIBUTES})

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        call, tier = super().describe(path, body), as_text(body.get("service_tier"))
        if call is not None and call.endpoint in self.streaming:
            return replace(call, stream=body.get("stream") is not False)
        return replace(call, mode=tier) if call is not None and tier in self.modes else call

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:
        return super().readings(headers, now_s) if self.reads is None else [*_readings(self.reads, headers)]

    def _refined(self, refusal: Refusal, error: Mapping[str, Any], text: str, headers: Headers) -> Refusal:
        refusal = super()._refined(refusal, error, text, headers)
        soon = refusal.kind in (RefusalKind.RATE, RefusalKind.CAPACITY)
        return self._of_own(refusal, text, headers) if soon else refusal

    def _of_own(self, refusal: Refusal, text: str, headers: Headers) -> Refusal:  # noqa: ARG002
        """A refusal that ends by itself, with what the host says of it in a form of its own."""
        return refusal

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        usage, (path, unit) = super().usage(payload), self.usd
        if usage is None or not path:
            return usage
        usd = at(parse.usage_of(payload), path)
        # Of a unit of its own, 0 is what an SDK has where nothing is stated.
        return replace(usage, usd=parse.stated_usd(usd if unit == 1.0 else count(usd) * unit or None))


class Mistral(Compatible):
    """Mistral: headers without resets. A limit of 0 means that the model is not on the plan: such a 429 never ends."""

    def _of_own(self, refusal: Refusal, text: str, headers: Headers) -> Refusal:  # noqa: ARG002
        limits = (text for name, text in headers.items() if name.startswith("x-ratelimit-limit-"))
        kind = RefusalKind.NEVER_FITS if any(parse.number(limit) == 0 for limit in limits) else refusal.kind
        return replace(refusal, kind=kind, requested=parse.amount(headers.get("x-ratelimit-tokens-query-cost")))


def _readings(rows: Collection[Mapping[str, Any]], headers: Headers) -> Iterator[Reading]:
    for row in rows:
        limit = next(filter(None, (parse.amount(headers.get(name)) for name in row["limit"])), None)
        remaining = parse.remainder(headers.get(row.get("remaining", "")))
        if limit is not None and row.get("least", 0) <= limit <= row.get("most", inf):
            scale = 60 if limit < row.get("lowest", 0) else 1
            rest = None if remaining is None else remaining * scale
            yield Reading(row["unit"], limit * scale, rest, period_s=row.get("period_s", 60.0))


class Fireworks(Compatible):
    """Fireworks. A 429's body names no quota; its headers do when nothing remains of exactly one."""

    def _of_own(self, refusal: Refusal, text: str, headers: Headers) -> Refusal:  # noqa: ARG002
        readings = self.readings(headers, 0.0)
        empty = [reading for reading in readings if reading.remaining is not None and reading.remaining <= 0]
        return replace(refusal, unit=empty[0].unit, period_s=60.0, limit=empty[0].limit) if len(empty) == 1 else refusal


class Azure(Compatible):
    """Azure OpenAI (Microsoft Foundry). The deployment is the pool, for any model; ``host`` is the resource's, and part of it."""

    host = ""

    def at_host(self, host: str) -> Azure:
        return self if host in self.hosts else changed(self, host=host)

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe a request; the deployment is in the path, or on ``/openai/v1/`` in the body's ``model``."""
        call, match = super().describe(path, body), _DEPLOYMENT.search(path)
        if call is None or call.endpoint == COUNTING:
            return call
        deployment = match[1] if match else call.model
        return replace(call, model=f"{self.host}/{deployment}" if self.host else deployment)


_DEPLOYMENT = re.compile(r"/deployments/([^/]{1,100})/")


class Cohere(Compatible):
    """The Cohere API, and OpenAI's paths under ``/compatibility/``: chat, embeddings and reranking are limited each in its own way."""

    units = frozenset({INPUTS, IMAGES})
    events = (b'"usage"', b'"error"', b"message-end", b"[DONE]")
    lines = frozenset({"chat_v1"})
    usages = ("usage", "meta")  # before v2 and of embeddings

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        endpoint = endpoint_of("cohere", path)
        if endpoint is None:
            call = super().describe(path, body)
            is_embedding = call is not None and call.endpoint == "embeddings"
            return replace(call, units={INPUTS: parse.inputs_in(body.get("input"))}) if call and is_embedding else call
        call = self._call(dialect("cohere"), endpoint, parse.model_of(body), body)
        if endpoint != "embed":
            return call
        inputs = sum(len(found) for key in ("texts", "images", "inputs") if isinstance(found := body.get(key), list))
        parts = [items_of(one.get("content")) for one in items_of(body.get("inputs"))]
        with_image = sum(any(part.get("type") == "image_url" for part in one) for one in parts)
        return replace(call, units={INPUTS: inputs, IMAGES: len(items_of(body.get("images"))) + with_image})

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """``billed_units`` (without them ``tokens``) of ``usage`` or ``meta``; OpenAI's form on its paths."""
        found = parse.usage_of(payload, dialect("cohere")["usages"])
        counted = (parse.usage_by(self.counts, as_mapping(found.get(name))) for name in ("billed_units", "tokens"))
        return next(filter(None, counted), None) or super().usage(payload)


class Perplexity(Compatible):
    """Perplexity, whose Agent, Search and asynchronous APIs have limits of their own: each is one model here."""

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        api = endpoint_of("perplexity", path)
        if api == "search-api":
            return self._described("search", api, body)
        if api == "async-api":
            body = as_mapping(body.get("request"))
            job = self._described("chat", api, body)  # its answer
            most, others = job.max_output_tokens, (parse.model_of(body), *job.others.models)
            return replace(job, max_output_tokens=0, billed_max=most, others=job.others._replace(models=others))
        call = super().describe("/responses" if api else path, body)
        return replace(call, model=api) if call is not None and api else call


# Z.ai: "Usage limit reached for 5 hour. Your limit will reset at 2026-08-27 21:31:39", in English or Chinese (2026-08).
# The instant has no zone. Both the international and the Chinese host mean China's time (oh-my-pi#11014, 2026-09-12: 00:35:41 was 16:35:41 UTC
# on the plan's page). If that is past, the instant is taken for UTC.

PROMPTS: Final = "prompts"
"""Z.ai's unit of coding plans."""
_ZAI_PERIOD = re.compile(r"(\d{1,3})\s{0,2}(?:hour|小时)")
_ZAI_RESET = re.compile(r"\b(20\d\d-\d\d-\d\d) (\d\d:\d\d:\d\d)\b")


class Zai(Compatible):
    """Z.ai, whose coding plans state the end of their windows in the message."""

    def _of_own(self, refusal: Refusal, text: str, headers: Headers) -> Refusal:
        if refusal.unit != PROMPTS:
            return refusal
        wait_s, period = refusal.retry_after_s or _zai_wait_s(text, headers), _ZAI_PERIOD.search(text)
        return replace(refusal, retry_after_s=wait_s, period_s=float(period[1]) * 3_600 if period else None)


def _zai_wait_s(text: str, headers: Headers) -> float | None:
    reset = _ZAI_RESET.search(text)
    ends = (parse.rfc3339_s(f"{reset[1]}T{reset[2]}{zone}") for zone in ("+08:00", "Z")) if reset else ()
    return next(filter(None, (parse.Reset(end_s).asked_s(headers) for end_s in ends)), None)


class Moonshot(Compatible):
    """Moonshot. The windows of its coding plan, at its own host: a 403 that states no end (openclaw#142656, kimi-code#2121, 2026).

    "Your weekly (7-day) usage limit", "your 5-hour usage limit"; "your usage limit for this billing cycle", which it says of any of them.
    """

    def _of_own(self, refusal: Refusal, text: str, headers: Headers) -> Refusal:  # noqa: ARG002
        if "usage limit" not in text:
            return refusal
        return replace(refusal, window=refusal.window or window_of(refusal.period_s) or "cycle", of_account=True)


# "hour allocated quota exceeded": the hours are five (alibabacloud.com/help/en/model-studio/coding-plan-faq, 2026-03). A refusal for the
# tokens of a minute has the same codes.
_BAILIAN_WINDOW = re.compile(r"(hour|week|month) allocated quota exceeded")
_BAILIAN_WINDOWS: Final = {"hour": "5h", "week": "7d", "month": "30d"}


class DashScope(Compatible):
    """DashScope, whose coding plan has windows that state no end."""

    def _of_own(self, refusal: Refusal, text: str, headers: Headers) -> Refusal:  # noqa: ARG002
        if (stated := _BAILIAN_WINDOW.match(text)) is None:
            return refusal
        return replace(refusal, unit=None, period_s=None, window=_BAILIAN_WINDOWS[stated[1]], of_account=True)


_FREE_LIMIT = re.compile(r"free-models-per-(min|day)|openrouter_free_tier_(minute|daily)")
# A 402 may concern its request alone (messages of 2026): the balance covers less output, a shorter prompt, or the
# request once others in flight have been paid for.
_AFFORDS_LESS = re.compile(
    r"fewer max_tokens(?!.{0,100}can only afford (?:0\b|-))|prompt tokens limit exceeded|weight_exceeds_budget",
    re.IGNORECASE,
)
_IN_FLIGHT = re.compile(r"in_flight_budget")


class OpenRouter(Compatible):
    """OpenRouter, which hands on the refusals of other hosts beside its own, and may state them beside ``choices``."""

    errors_outrank = True  # https://openrouter.ai/docs/errors, 2026-11

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """The usage with its ``cost``. With a key of the user's own it is OpenRouter's fee alone, and the host's price is stated beside it."""
        usage, found = super().usage(payload), parse.usage_of(payload)
        if usage is None or usage.usd is None or found.get("is_byok") is not True:
            return usage
        host = parse.stated_usd(at(found, "cost_details.upstream_inference_cost"))
        return replace(usage, usd=None if host is None else usage.usd + host)

    def pool(self, model: str) -> str:
        return FREE if model.endswith(":free") else model

    def _refined(self, refusal: Refusal, error: Mapping[str, Any], text: str, headers: Headers) -> Refusal:
        metadata = as_mapping(error.get("metadata"))
        source = as_text(metadata.get("limit_source"))[:100]
        named = {str(name).lower(): as_text(value) for name, value in as_mapping(metadata.get("headers")).items()}
        headers = {name: value for name, value in named.items() if name.startswith("x-ratelimit-")} | dict(headers)
        refusal = replace(refusal, code=source or as_text(error.get("code"))[:100])
        if refusal.kind is RefusalKind.MONEY:
            return _openrouter_money(refusal, f"{source} {as_text(metadata.get('reason'))[:100]} {text[:1_000]}")
        if refusal.kind is not RefusalKind.RATE:
            return refusal
        free = _FREE_LIMIT.search(f"{source} {text[:1_000]}")
        # An answer without an error object comes from OpenRouter's protection against floods: it limits the account.
        if error and not free and "x-ratelimit-limit" not in headers:
            return _of_host(refusal, f"{text[:1_000]} {as_text(metadata.get('raw'))[:1_000]}", headers)
        [reading] = self.readings(headers, 0.0) or [Reading(REQUESTS)]
        period_s = parse.seconds_in(free[1] or free[2]) if free else reading.period_s
        reset_s = parse.reset_in(headers.get(self.wait_header)).asked_s(headers)
        wait_s, pool = refusal.retry_after_s or reset_s, FREE if free else None
        unit = REQUESTS if period_s else None
        return replace(refusal, retry_after_s=wait_s, unit=unit, period_s=period_s, limit=reading.limit, pool=pool)


def _of_host(refusal: Refusal, said: str, headers: Headers) -> Refusal:
    """With a key of the user's own at the host, a plan there may be used up, which Z.ai says with its end (2026-09)."""
    ends_s = _zai_wait_s(said, headers) if "Limit Exhausted" in said else None
    return replace(refusal, retry_after_s=ends_s) if ends_s else replace(refusal, kind=RefusalKind.CAPACITY)


def _openrouter_money(refusal: Refusal, told: str) -> Refusal:
    if _AFFORDS_LESS.search(told):
        return replace(refusal, scope=RefusalScope.REQUEST)
    in_flight = _IN_FLIGHT.search(told)
    return replace(refusal, kind=RefusalKind.RATE, scope=RefusalScope.REQUEST) if in_flight else refusal


# Replicate: one limit for all predictions of an account; what a prediction generates is billed by time or by token, and
# not limited. https://replicate.com/docs/topics/predictions/rate-limits (2026).


class Replicate(Compatible):
    """Replicate, whose predictions of all models have one limit: they are one model here."""

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        if endpoint_of("replicate", path) is None:
            return None
        call = self._described("predictions", "predictions", as_mapping(body.get("input")))
        return replace(call, stream=False)  # the answer is the job, and its stream another request


def _counts(row: Mapping[str, list[str]]) -> parse.Counts:
    """OpenAI's counts, with a host's own: what was cached, if OpenAI's is missing; of the input and the output, what is added."""
    own = dict(OpenAIDialect.counts)
    for part, paths in row.items():
        own[part] = [[*own[part][0], *paths]] if part == "cached" else [*own[part], paths]
    return own


_AS_SAID: Final = (
    "modes", "streaming", "lines", "reads", "usd", "wait_header", "day_ends_in", "holds_cached", "asks_usage", "refines",
)  # fmt: skip
ATTRIBUTES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "costs": lambda row: CostRule(**row),
    "documented": lambda row: Documented(**row),
    "media": lambda row: MediaTokens(**row),
    "codes": lambda rows: {code: Refusal(**refusal_fields(row)) for code, row in rows.items()},
    "paths": lambda rows: tuple((re.compile(pattern), endpoint) for pattern, endpoint in rows),
    "counts": _counts,
    **dict.fromkeys(_AS_SAID, lambda said: said),
}
"""The fields of ``dialects.toml`` that are attributes of a host like OpenAI."""
