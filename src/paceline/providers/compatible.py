"""Hosts that speak OpenAI's API: one row each in ``DIALECTS``, and a function only for what differs.

A plain row means: the input and the expected output are held, the reported usage is charged, each model is a pool, and
headers report no quota. What a provider counts and reports, with sources, is noted in ``tables/<name>.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS
from paceline.core.results import Reading, Refusal, RefusalKind, RefusalScope
from paceline.providers import parse
from paceline.providers.base import Call, Headers, Usage, UsageReader
from paceline.providers.common import CostRule
from paceline.providers.generic import consistent_readings
from paceline.providers.openai import CODES, OpenAIDialect, family_reading
from paceline.providers.parse import as_mapping, as_text, count
from paceline.providers.streams import JsonReader

UNCACHED_TOKENS: Final = "uncached_tokens"
"""Cerebras' unit: input without cached reads, and output."""
UNCACHED_INPUT_TOKENS: Final = "uncached_input_tokens"
"""Fireworks' unit: input without cached reads."""
AUDIO_SECONDS: Final = "audio_seconds"
"""Groq's unit of transcriptions."""
FREE: Final = "free"
"""The pool of all of OpenRouter's free models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a host differs from OpenAI.

    Attributes:
        costs: How it counts tokens.
        units: Units that its headers report, beside those of every cost.
        codes: Error codes of its own, or with a meaning of its own.
        modes: The values of ``service_tier`` whose requests have limits of their own.
        readings: Reads the quotas in its headers.
        rate: Refines a refusal of the kind ``RATE``, from the refusal, the headers and the body.
        usage: Refines the usage, from the usage and the object that reports it.
        money: Finds a used-up balance in the message of a 403, 412 or 429.
        statuses: HTTP statuses of its own, with the common ones that mean the same.
        paths: Further paths, each with its endpoint; a group ``model`` names the model.
    """

    costs: CostRule = OpenAIDialect.costs
    units: frozenset[str] = frozenset()
    codes: Mapping[str, Refusal] = field(default_factory=dict)
    modes: frozenset[str] = frozenset()
    readings: Callable[[Headers], list[Reading]] = lambda _: []
    rate: Callable[[Refusal, Headers, bytes], Refusal] = lambda refusal, _headers, _body: refusal
    usage: Callable[[Usage, Mapping[str, Any]], Usage] = lambda usage, _found: usage
    money: re.Pattern[str] | None = None
    statuses: tuple[tuple[int, int], ...] = ()
    paths: tuple[tuple[re.Pattern[str], str], ...] = ()


class Compatible(OpenAIDialect):
    """The provider in the row of ``DIALECTS`` that carries its name; without one, as an unknown host."""

    def __init__(self, name: str, key_env: str, hosts: tuple[str, ...], encoding: str) -> None:
        super().__init__(name, key_env, hosts, encoding)
        self.dialect = DIALECTS.get(name, UNDOCUMENTED)
        self.costs, self.units, self.paths = self.dialect.costs, self.dialect.units, self.dialect.paths
        self.codes = {**CODES, **self.dialect.codes}

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe a request as OpenAI's; its mode is its ``service_tier``, if that has limits of its own."""
        call, tier = super().describe(path, body), as_text(body.get("service_tier"))
        return replace(call, mode=tier) if call is not None and tier in self.dialect.modes else call

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        return self.dialect.readings(headers)

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        dialect = self.dialect
        if dialect.money and status in (403, 412, 429):
            text = parse.error_of(body)[1]
            if dialect.money.search(text):
                return Refusal(RefusalKind.MONEY, text[:300])
        refusal = super().refusal(dict(dialect.statuses).get(status, status), headers, body)
        if refusal is None or refusal.kind is not RefusalKind.RATE:
            return refusal
        return dialect.rate(refusal, headers, body)

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        usage = super().usage(payload)
        return usage and self.dialect.usage(usage, parse.usage_of(payload))


def _family_readings(
    families: tuple[tuple[str, str, float], ...], headers: Headers, *, resets: bool = False
) -> list[Reading]:
    """The readings in ``x-ratelimit-{limit,remaining,reset}-<family>``, for families with a unit and a period each."""
    found = []
    for family, unit, period_s in families:
        reading = family_reading(headers, family, unit)
        if reading is not None and (resets or reading.limit is not None or reading.remaining is not None):
            found.append(replace(reading, period_s=period_s, reset_s=reading.reset_s if resets else None))
    return found


# Groq: a transcription is counted in seconds of audio (messages of 2026).


def _groq_rate(refusal: Refusal, _headers: Headers, _body: bytes) -> Refusal:
    return replace(refusal, unit=AUDIO_SECONDS) if refusal.unit == "seconds_of_audio" else refusal


# Mistral: headers without resets. A limit of 0 means that the model is not on the plan: such a 429 never ends.

_MISTRAL: Final = (("req-minute", REQUESTS, 60.0), ("tokens-minute", TOKENS, 60.0))


def _mistral_readings(headers: Headers) -> list[Reading]:
    return [reading for reading in _family_readings(_MISTRAL, headers) if reading.limit is not None]


def _mistral_rate(refusal: Refusal, headers: Headers, _: bytes) -> Refusal:
    words, kind = f"{refusal.code} {refusal.message}".lower(), RefusalKind.RATE
    if any(parse.number(headers.get(f"x-ratelimit-limit-{family}")) == 0 for family, *_ in _MISTRAL):
        kind = RefusalKind.NEVER_FITS
    elif refusal.code == "3505" or "service_tier_capacity" in words or "service tier capacity" in words:
        kind = RefusalKind.CAPACITY
    unit = REQUESTS if "requests rate limit" in words else refusal.unit
    return replace(refusal, kind=kind, unit=unit, requested=parse.amount(headers.get("x-ratelimit-tokens-query-cost")))


# xAI: undocumented headers, of which only those count that prove their period: a minute's number must not pass for a
# second's. A chat's completion leaves reasoning out.


def _xai_usage(usage: Usage, found: Mapping[str, Any]) -> Usage:
    if not found.get("completion_tokens"):
        return usage
    details = as_mapping(found.get("completion_tokens_details"))
    reasoning = count(details.get("reasoning_tokens")) or count(found.get("reasoning_tokens"))
    usage = _cached(usage, found.get("cached_prompt_text_tokens"))  # as xAI's own SDK names it
    return replace(usage, output_tokens=usage.output_tokens + reasoning)


def _cached(usage: Usage, tokens: Any) -> Usage:
    """``usage`` with its cached reads under another name, where OpenAI's is missing."""
    return usage if usage.cached_tokens else replace(usage, cached_tokens=min(count(tokens), usage.input_tokens))


# Together: all limits are per second. What remains of a second is out of date when the answer arrives, so it is not
# read. Tokens are taken as a minute's amount: a prompt larger than a second's would never fit (assumed: it is served
# nevertheless, as the limit is advertised per minute).

_TOGETHER_LIMITED = re.compile(rb"dynamic_(request|token)_limited")


def _together_readings(headers: Headers) -> list[Reading]:
    requests, tokens = (
        parse.amount(headers.get(f"{name}-dynamic")) or parse.amount(headers.get(name))
        for name in ("x-ratelimit-limit", "x-tokenlimit-limit")
    )
    found = []
    if requests is not None and requests >= 1:  # below, not even one request would fit into a second
        found.append(Reading(REQUESTS, requests, period_s=1.0))
    if tokens is not None:
        found.append(Reading(TOKENS, tokens * 60, period_s=60.0))
    return found


def _together_rate(refusal: Refusal, headers: Headers, body: bytes) -> Refusal:
    limited = _TOGETHER_LIMITED.search(body[:4_096])
    unit = {b"request": REQUESTS, b"token": TOKENS}[limited[1]] if limited else refusal.unit
    return replace(refusal, unit=unit, retry_after_s=_asked_or_reset_s(refusal, headers.get("x-ratelimit-reset")))


def _asked_or_reset_s(refusal: Refusal, reset: str | None) -> float | None:
    asked_s = refusal.retry_after_s
    return (parse.wait(parse.number(reset)) or None) if asked_s is None else asked_s


# Fireworks: documented per second while a minute is enforced; live headers were per minute. So a value below the lowest
# limit that was ever published for a minute is taken as a second's. ``x-ratelimit-over-limit`` is not read: it was
# ``no`` on a 429. A 429's body names no quota; its headers do when nothing remains of exactly one.

_FIREWORKS: Final = (
    ("tokens-prompt", INPUT_TOKENS, 3.6e6),
    ("tokens-cache-adjusted-prompt", UNCACHED_INPUT_TOKENS, 900e3),
    ("tokens-generated", OUTPUT_TOKENS, 36e3),
)


def _fireworks_readings(headers: Headers) -> list[Reading]:
    found = []
    for family, unit, lowest in _FIREWORKS:
        reading = family_reading(headers, family, unit)
        if reading is not None and reading.limit is not None:
            scale = 1 if reading.limit >= lowest else 60
            remaining = None if reading.remaining is None else reading.remaining * scale
            found.append(Reading(unit, reading.limit * scale, remaining, None, 60.0))
    return found


def _fireworks_rate(refusal: Refusal, headers: Headers, _: bytes) -> Refusal:
    empty = [r.unit for r in _fireworks_readings(headers) if r.remaining is not None and r.remaining <= 0]
    return replace(refusal, unit=empty[0], period_s=60.0) if len(empty) == 1 else refusal


# Cerebras: resets are seconds to the end of the clock minute and of the UTC day, not to a full quota, so they are not
# read. Which of its two counts a tokens header means is not documented; taken for all tokens, it can only be too slow.

_CEREBRAS: Final = tuple(
    (f"{unit}-{period}", unit, parse.PERIODS_S[period])
    for unit in (REQUESTS, TOKENS)
    for period in ("minute", "hour", "day")
)
_CEREBRAS_QUOTA = re.compile(r"\b(?:(uncached)\s)?(?:total\s)?(tokens|requests) per (minute|hour|day)\b", re.IGNORECASE)


def _cerebras_rate(refusal: Refusal, headers: Headers, body: bytes) -> Refusal:
    if refusal.code == "queue_exceeded":  # "We're experiencing high traffic right now!"
        return replace(refusal, kind=RefusalKind.CAPACITY)
    named = _CEREBRAS_QUOTA.search(parse.error_of(body)[1])
    if named is None:
        return refusal
    family, period = named[2].lower(), named[3].lower()
    return replace(
        refusal,
        unit=UNCACHED_TOKENS if named[1] else family,
        period_s=parse.PERIODS_S[period],
        retry_after_s=_asked_or_reset_s(refusal, headers.get(f"x-ratelimit-reset-{family}-{period}")),
    )


class Perplexity(Compatible):
    """Perplexity, whose Agent, Search and asynchronous APIs have limits of their own: each is one model here."""

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        api = parse.endpoint_of(path, {"/responses": "agent-api", "/agent": "agent-api", "/search": "search-api"})
        if api == "search-api":
            return self._call("search", api, [body.get("query")], None, 0, stream=False)
        if parse.endpoint_of(path, {"/async/chat/completions": "async"}):
            api, body = "async-api", as_mapping(body.get("request"))
            return replace(self._described("chat", api, body), max_output_tokens=0)  # its answer is the job
        call = super().describe("/responses" if api else path, body)
        return replace(call, model=api) if call is not None and api else call


def _perplexity_usage(usage: Usage, found: Mapping[str, Any]) -> Usage:
    citations, reasoning = count(found.get("citation_tokens")), count(found.get("reasoning_tokens"))
    return replace(usage, input_tokens=usage.input_tokens + citations, output_tokens=usage.output_tokens + reasoning)


# Moonshot: messages of 2025 and 2026, e.g. "request reached organization max RPM: 3, please try again after 1 seconds",
# "request reached max organization concurrency: 1", "request reached project TPM rate limit, current: 1410, limit: 100".

_MOONSHOT_LIMIT = re.compile(r"\b(?:([RT])P([MD])|concurrency)\b(?: rate limit, current: \d+, limit)?: (\d{1,15})")


def _moonshot_rate(refusal: Refusal, _headers: Headers, body: bytes) -> Refusal:
    named = _MOONSHOT_LIMIT.search(parse.error_of(body)[1])
    if named is None:
        return refusal
    if named[1] is None:
        return replace(refusal, unit=CONCURRENCY)
    unit, period = {"R": REQUESTS, "T": TOKENS}[named[1]], {"M": "minute", "D": "day"}[named[2]]
    return replace(refusal, unit=unit, period_s=parse.PERIODS_S[period], limit=parse.amount(named[3]))


# Z.ai: "Usage limit reached for 5 hour. Your limit will reset at 2026-08-27 21:31:39", in English or Chinese (2026-08).
# The instant is taken for China's time: one was more than five hours ahead of UTC.

PROMPTS: Final = "prompts"
"""Z.ai's unit of coding plans."""
_ZAI_PERIOD = re.compile(r"(\d{1,3})\s{0,2}(?:hour|小时)")
_ZAI_RESET = re.compile(r"\b(20\d\d-\d\d-\d\d) (\d\d:\d\d:\d\d)\b")


def _zai_rate(refusal: Refusal, headers: Headers, body: bytes) -> Refusal:
    if refusal.unit != PROMPTS:
        return refusal
    text, wait_s = parse.error_of(body)[1], refusal.retry_after_s
    period, reset = _ZAI_PERIOD.search(text), _ZAI_RESET.search(text)
    if wait_s is None and reset:
        wait_s = parse.seconds_until(parse.rfc3339_s(f"{reset[1]}T{reset[2]}+08:00"), headers)
    return replace(refusal, retry_after_s=wait_s, period_s=float(period[1]) * 3_600 if period else None)


_FREE_LIMIT = re.compile(r"free-models-per-(min|day)|openrouter_free_tier_(minute|daily)")
# A 402 may concern its request alone (messages of 2026): the balance covers less output, a shorter prompt, or the
# request once others in flight have been paid for.
_AFFORDS_LESS = re.compile(
    r"fewer max_tokens(?!.{0,100}can only afford (?:0\b|-))|prompt tokens limit exceeded|weight_exceeds_budget",
    re.IGNORECASE,
)
_IN_FLIGHT = re.compile(r"in_flight_budget")


def _openrouter_readings(headers: Headers) -> list[Reading]:
    """``x-ratelimit-{limit,remaining}`` of a 429: the minute's 20 requests, or the day's, which are more."""
    limit = parse.amount(headers.get("x-ratelimit-limit"))
    remaining = parse.remainder(headers.get("x-ratelimit-remaining"))
    return [] if limit is None else [Reading(REQUESTS, limit, remaining, None, 60.0 if limit <= 20 else 86_400.0)]


class OpenRouter(Compatible):
    """OpenRouter, which hands on the refusals of other hosts beside its own, and may state them beside ``choices``."""

    errors_outrank = True  # https://openrouter.ai/docs/errors, 2026-11

    def pool(self, model: str) -> str:
        """One pool for all free models, one for each other model."""
        return FREE if model.endswith(":free") else model

    def _classify(self, status: int | None, error: Mapping[str, Any], text: str, headers: Headers) -> Refusal | None:  # noqa: ARG002
        """Classify by the status, in a stream the error's ``code``, and by whose limit the error names."""
        if status is None:
            status = int(parse.number(as_text(error.get("code"))) or 0)
        metadata = as_mapping(error.get("metadata"))
        source, message = as_text(metadata.get("limit_source"))[:100], as_text(error.get("message"))
        named = {str(name).lower(): as_text(value) for name, value in as_mapping(metadata.get("headers")).items()}
        headers = {name: value for name, value in named.items() if name.startswith("x-ratelimit-")} | dict(headers)
        free = _FREE_LIMIT.search(f"{source} {message[:1_000]}")
        # An answer without an error object comes from OpenRouter's protection against floods: it limits the account.
        own = bool(free) or not error or "x-ratelimit-limit" in headers
        scope, told = RefusalScope.POOL, f"{source} {as_text(metadata.get('reason'))[:100]} {message[:1_000]}"
        if status == 402 and _AFFORDS_LESS.search(told):
            kind, scope = RefusalKind.MONEY, RefusalScope.REQUEST
        elif status == 402 and _IN_FLIGHT.search(told):
            kind, scope = RefusalKind.RATE, RefusalScope.REQUEST
        elif status == 402:
            kind = RefusalKind.MONEY
        elif status == 429:
            kind = RefusalKind.RATE if own else RefusalKind.CAPACITY
        elif status in (503, 529):
            kind = RefusalKind.CAPACITY
        else:
            return None
        [reading] = (_openrouter_readings(headers) if kind is RefusalKind.RATE else []) or [Reading(REQUESTS)]
        period_s = parse.PERIODS_S[(free[1] or free[2]).replace("daily", "day")] if free else reading.period_s
        asked_s, reset_ms = parse.retry_after_s(headers), parse.number(headers.get("x-ratelimit-reset"))
        if asked_s is None and reset_ms is not None:
            asked_s = parse.seconds_until(reset_ms / 1_000, headers)
        return Refusal(
            kind=kind,
            message=message[:300],
            code=source or as_text(error.get("code"))[:100],
            retry_after_s=asked_s,
            unit=REQUESTS if period_s else None,
            period_s=period_s,
            limit=reading.limit,
            pool=FREE if free else None,
            scope=scope,
        )


# Replicate: one limit for all predictions of an account; what a prediction generates is billed by time or by token, and
# not limited. https://replicate.com/docs/topics/predictions/rate-limits (2026): "Your rate limit resets in ~30s."

_REPLICATE_RESET = re.compile(rb"rate limit resets in ~?(\d{1,6})s")


def _replicate_rate(refusal: Refusal, _headers: Headers, body: bytes) -> Refusal:
    reset = _REPLICATE_RESET.search(body[:4_096])
    asked_s = refusal.retry_after_s
    return replace(refusal, unit=REQUESTS, retry_after_s=float(reset[1]) if reset and asked_s is None else asked_s)


class Replicate(Compatible):
    """Replicate, whose predictions of all models have one limit: they are one model here."""

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe the creation of a prediction, of a model, a version or a deployment."""
        if parse.endpoint_of(path, {"/predictions": "predictions"}) is None:
            return None
        call = self._described("predictions", "predictions", as_mapping(body.get("input")))
        return replace(call, max_output_tokens=0, stream=False)  # the answer is the job, and its stream another request


class Ollama(Compatible):
    """Ollama, whose own API streams one JSON object a line; the last one has the numbers of tokens."""

    def usage_reader(self, call: Call) -> UsageReader:
        return JsonReader(self.usage) if call.endpoint == "generate" else super().usage_reader(call)

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """OpenAI's form, or Ollama's own (its docs/api.md, 2026)."""
        own = parse.make_usage(count(payload.get("prompt_eval_count")), count(payload.get("eval_count")), 0, 0)
        return super().usage(payload) or own


UNDOCUMENTED: Final = Dialect(readings=consistent_readings)
"""A host whose counting and headers are not documented, or were not looked up."""
DIALECTS: Final = {
    "groq": Dialect(
        costs=CostRule(holds_maximum=True, counts_cached=False),
        units=frozenset({AUDIO_SECONDS}),
        readings=partial(
            _family_readings,
            (("requests", REQUESTS, 86_400.0), ("tokens", TOKENS, 60.0), ("audio-seconds", AUDIO_SECONDS, 3_600.0)),
            resets=True,
        ),
        rate=_groq_rate,
        statuses=((498, 503),),  # flex processing without capacity
        modes=frozenset({"flex"}),
    ),
    "mistral": Dialect(
        readings=_mistral_readings,
        rate=_mistral_rate,
        paths=(
            (re.compile(r"/v1/conversations(?:/[^/]+(?:/restart)?)?$"), "conversations"),
            (re.compile(r"/v1/ocr$"), "ocr"),
        ),
    ),
    "xai": Dialect(
        costs=CostRule(holds_maximum=True),
        readings=lambda headers: [reading for reading in consistent_readings(headers) if reading.period_s],
        usage=_xai_usage,
        money=re.compile(r"available credits|spending limit|purchase more credits", re.IGNORECASE),
    ),
    "deepseek": Dialect(
        costs=CostRule(slots=True),
        rate=lambda refusal, _headers, _body: replace(refusal, unit=CONCURRENCY, period_s=None),  # its only limit
        usage=lambda usage, found: _cached(usage, found.get("prompt_cache_hit_tokens")),
    ),
    "moonshot": Dialect(readings=consistent_readings, rate=_moonshot_rate),
    "zai": Dialect(
        readings=consistent_readings,
        rate=_zai_rate,
        codes={
            **dict.fromkeys(("1113", "1309"), Refusal(RefusalKind.MONEY)),  # arrears; the plan has expired
            "1302": Refusal(RefusalKind.RATE, unit=CONCURRENCY),
            "1305": Refusal(RefusalKind.CAPACITY),
            **dict.fromkeys(("1308", "1310"), Refusal(RefusalKind.RATE, unit=PROMPTS)),  # the plan's hours; its week
        },
    ),
    "dashscope": Dialect(
        readings=consistent_readings,
        codes={
            **dict.fromkeys(
                ("insufficient_quota", "Throttling.AllocationQuota"),
                Refusal(RefusalKind.RATE, unit=TOKENS, period_s=60.0),
            ),
            **dict.fromkeys(
                ("limit_requests", "Throttling.RateQuota"), Refusal(RefusalKind.RATE, unit=REQUESTS, period_s=60.0)
            ),
            **dict.fromkeys(("limit_burst_rate", "Throttling.BurstRate"), Refusal(RefusalKind.GROWTH)),
            **dict.fromkeys(("Arrearage", "PrepaidBillOverdue", "PostpaidBillOverdue"), Refusal(RefusalKind.MONEY)),
        },
        # DashScope's own paths (https://www.alibabacloud.com/help/en/model-studio/, 2026); of several, the last holds.
        paths=(
            (re.compile(r"/services/aigc/[\w-]{1,50}/[\w-]{1,50}$"), "images"),
            (re.compile(r"/services/aigc/(?:text|multimodal)-generation/generation$"), "chat"),
            (re.compile(r"/services/embeddings/[\w-]{1,50}/[\w-]{1,50}$"), "embeddings"),
            (re.compile(r"/services/rerank/[\w-]{1,50}/[\w-]{1,50}$"), "rerank"),
        ),
    ),
    "together": Dialect(readings=_together_readings, rate=_together_rate),
    "fireworks": Dialect(
        costs=CostRule(uncached_unit=UNCACHED_INPUT_TOKENS, uncached_of=INPUT_TOKENS),
        readings=_fireworks_readings,
        rate=_fireworks_rate,
        money=re.compile(r"spending limit|past invoices", re.IGNORECASE),  # of a suspended account: a 412 (2026-07)
    ),
    "openrouter": Dialect(readings=_openrouter_readings),
    "cerebras": Dialect(
        costs=CostRule(holds_maximum=True, uncached_unit=UNCACHED_TOKENS),
        readings=partial(_family_readings, _CEREBRAS),
        rate=_cerebras_rate,
    ),
    "perplexity": Dialect(usage=_perplexity_usage),
    # https://docs.sambanova.ai/docs/en/models/rate-limits, 2026: a minute's. Resets are instants, which are not read.
    "sambanova": Dialect(readings=partial(_family_readings, (("requests", REQUESTS, 60.0),))),
    # https://docs.digitalocean.com/products/inference/reference/quota-specific-response-headers, 2026-06: resets are instants.
    "digitalocean": Dialect(
        readings=partial(
            _family_readings,
            (("requests", REQUESTS, 60.0), ("tokens-per-minute", TOKENS, 60.0), ("tokens-per-day", TOKENS, 86_400.0)),
        )
    ),
    "databricks": replace(
        UNDOCUMENTED,
        paths=((re.compile(r"/serving-endpoints/(?P<model>[^/]{1,200})/invocations$"), "chat"),),
    ),
    "ollama": replace(
        UNDOCUMENTED,
        paths=(
            (re.compile(r"/api/(?:chat|generate)$"), "generate"),
            (re.compile(r"/api/embed(?:dings)?$"), "embeddings"),
        ),
    ),
    # https://docs.voyageai.com/reference, 2026; no headers are documented
    "voyage": replace(
        UNDOCUMENTED, paths=((re.compile(r"/v1/(?:multimodal|contextualized)embeddings$"), "embeddings"),)
    ),
    "replicate": Dialect(rate=_replicate_rate),
    "cloudflare": replace(UNDOCUMENTED, paths=((re.compile(r"/ai/run/(?P<model>@?[\w./-]{1,200})$"), "chat"),)),
}
