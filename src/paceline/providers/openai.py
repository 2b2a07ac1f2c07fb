"""OpenAI, and the dialect that most other providers copied. What OpenAI counts, with sources: ``tables/openai.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Final

from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS
from paceline.core.results import Reading, Refusal, RefusalKind, RefusalScope
from paceline.providers import parse
from paceline.providers.anthropic import Anthropic
from paceline.providers.base import Call, Headers, Usage, UsageReader
from paceline.providers.common import BaseProvider, CostRule
from paceline.providers.parse import as_mapping, as_text, count
from paceline.providers.prompt import MediaTokens
from paceline.providers.streams import Found

MESSAGES: Final = "messages"
"""Anthropic's path, which many hosts with OpenAI's dialect serve, too (their documentation, 2026)."""

ENDPOINTS: Final = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/embeddings": "embeddings",
    "/completions": "completions",
    "/v1/messages": MESSAGES,  # not /v1/threads/<id>/messages
    "/rerank": "rerank",
    "/images/generations": "images",
    "/images/edits": "images",  # this and the next three have the body of an HTML form
    "/images/variations": "images",
    "/audio/transcriptions": "transcriptions",
    "/audio/translations": "transcriptions",
    "/audio/speech": "speech",
    "/moderations": "moderations",
}
_TEXTS: Final = ("messages", "input", "inputs", "instructions", "prompt", "system", "query", "documents")
_NO_OUTPUT: Final = {"embeddings", "rerank", "images", "speech", "ocr", "transcriptions", "moderations"}
"""The endpoints whose answer has no tokens of output."""

# Images: a 1024 x 1024 one is 85 + 4 * 170 tokens in high detail, any is 85 in low (OpenAI's vision guide, gpt-4o).
# Audio: assumption, a minute at 10 tokens a second. Files: assumption, three pages of 1 500 tokens.
MEDIA: Final = MediaTokens(image=765, small_image=85, audio=600, file=4_500)

# Pools under another name than the model's, as refusals named them (2026-09).
_POOLS: Final = (
    ("gpt-realtime-mini", "gpt-4o-mini-realtime"),
    ("gpt-realtime-2.1-mini", "gpt-4o-mini-realtime"),
    ("gpt-realtime-1.5", "gpt-4o-realtime"),
    ("gpt-realtime-2", "gpt-4o-realtime"),
    ("gpt-image-2", "gpt-image"),
)

# Requests with more input than this are limited apart from the others of the model (2025 for gpt-4.1, 2026-09). The
# input is an estimate, which may be too low by a fifth.
_LONG_CONTEXT: Final = (("gpt-4.1", 0.8 * 128_000), ("", 0.8 * 272_000))

_MEANINGS: Final = {  # of several, the first holds; exceeded_current_quota_error and engine_overloaded_error are Moonshot's, base_resp MiniMax's
    RefusalKind.MONEY: "402 insufficient_quota credit_balance_exhausted billing_hard_limit_reached billing_not_active"
    " exceeded_current_quota_error base_resp_1008",
    RefusalKind.CAPACITY: "503 529 server_is_overloaded service_unavailable_error resource_unavailable"
    " engine_overloaded_error",
    RefusalKind.GROWTH: "slow_down",
    RefusalKind.NEVER_FITS: "413",
    RefusalKind.RATE: "429 rate_limit_exceeded rate_limit_error too_many_requests base_resp_1002 base_resp_1039",
}
_ORDER: Final = list(_MEANINGS)
CODES: Final = {code: Refusal(kind) for kind, codes in _MEANINGS.items() for code in codes.split()}
"""The meaning of an error's ``code``, its ``type`` and the HTTP status."""
_SPENT = re.compile(r"\w{1,40}_(?:spend|usage)_limit_exceeded")
_MODE = re.compile(r"-(?:long-context|ultrafast|priority|flex|batch)$")  # at the end of a limit's name

_LIMIT = re.compile(r"\bLimit:?\s{0,2}([\d,]{1,20})", re.ASCII)
_USED = re.compile(r"\b(?:Used|Current):?\s{0,2}([\d,]{1,20})", re.ASCII)
_REQUESTED = re.compile(r"\bRequested:?\s{0,2}([\d,]{1,20})", re.ASCII)
_TRY_AGAIN = re.compile(
    r"(?:try again|retry) (?:in|after) ((?:[\d.]{1,20}\s{0,2}(?:h|ms|m|us|µs|s|seconds?)\b\s?|[\d.]{1,20}[hms]){1,4})"
)
_POOL_NAMED = re.compile(r"\(for limit ([\w.:-]{1,100})\)")
_DIMENSION = re.compile(r"\bon ([a-z][a-z -]{0,30}?) per (sec|second|min|minute|hour|day)\b")
_SHORT = re.compile(r"\((R|T|IT|OT|I)P([MD])\)")
_SHORT_UNITS: Final = {"R": REQUESTS, "T": TOKENS, "IT": INPUT_TOKENS, "OT": OUTPUT_TOKENS, "I": "images"}
_ANTHROPIC: Final = Anthropic("anthropic", "", (), "")


class OpenAIDialect(BaseProvider):
    """OpenAI's paths, bodies, errors and usage, without OpenAI's limits."""

    codes = CODES
    media = MEDIA
    paths: tuple[tuple[re.Pattern[str], str], ...] = ()
    """Further paths, each with its endpoint; a group ``model`` names the model, which the body then does not."""

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe a request to a path that ends in one of ``ENDPOINTS``, or to one of ``paths``."""
        endpoint, model = _endpoint(path), None
        for pattern, kind in self.paths:
            match = pattern.search(path.partition("?")[0].rstrip("/"))
            if match:
                endpoint, model = kind, match.groupdict().get("model")
        return None if endpoint is None else self._described(endpoint, model or parse.model_of(body), body)

    def _described(self, endpoint: str, model: str, body: Mapping[str, Any]) -> Call:
        parts = [body[key] for key in _TEXTS if key in body]
        schemas = [body.get(key) for key in ("tools", "functions", "response_format", "text") if body.get(key)]
        most = 0 if endpoint in _NO_OUTPUT else _max_output_tokens(body)
        return self._call(endpoint, model[:200], parts, schemas, most, stream=body.get("stream") is True)

    def usage_reader(self, call: Call) -> UsageReader:
        """The reader of OpenAI's answers; of Anthropic's on its path."""
        return _ANTHROPIC.usage_reader(call) if call.endpoint == MESSAGES else super().usage_reader(call)

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Usage under the names of chat (``prompt_tokens``) or Responses (``input_tokens``)."""
        found = parse.usage_of(payload)
        inputs = as_mapping(found.get("prompt_tokens_details") or found.get("input_tokens_details"))
        output_tokens = count(found.get("completion_tokens")) or count(found.get("output_tokens"))
        total_tokens = (
            0 if output_tokens else count(found.get("total_tokens"))
        )  # alone: embeddings of Voyage and others
        return parse.make_usage(
            count(found.get("prompt_tokens")) or count(found.get("input_tokens")) or total_tokens,
            output_tokens,
            count(inputs.get("cached_tokens")),
            count(inputs.get("cache_write_tokens")),
        )

    def _on_event(self, event: dict[str, Any], known: Usage | None) -> Found:  # noqa: ARG002
        kind, answer = event.get("type"), as_mapping(event.get("response"))
        error, refusal = event.get("error") or answer.get("error"), None
        if isinstance(error, Mapping):
            refusal = self._classify(None, error, as_text(error.get("message"))[:4_096], {})
        elif kind == "error" and not error:  # OpenAI's own form, also at hosts with other error objects
            refusal = OpenAIDialect._classify(self, None, event, as_text(event.get("message"))[:4_096], {})
        return self.usage(event), refusal, kind in ("response.completed", "response.incomplete", "response.failed")

    def _classify(self, status: int | None, error: Mapping[str, Any], text: str, headers: Headers) -> Refusal | None:
        """Classify by the status, the error's ``code`` and ``type``, and the numbers in its message."""
        code, kind_of = as_text(error.get("code"))[:100], as_text(error.get("type"))[:100]
        names = (code, kind_of, "" if status is None else str(status))
        found = [self.codes[name] for name in names if name in self.codes]
        if _SPENT.fullmatch(code) or _SPENT.fullmatch(kind_of):
            found = [Refusal(RefusalKind.MONEY)]
        if not found:
            return None
        said = min(found, key=lambda refusal: _ORDER.index(refusal.kind))
        kind, scope = said.kind, RefusalScope.POOL
        limit, requested = _found(_LIMIT, text), _found(_REQUESTED, text)
        if kind is RefusalKind.RATE:
            above = limit is not None and requested is not None and requested > limit
            if limit == 0 or above or text.startswith("Request too large"):
                kind = RefusalKind.NEVER_FITS
            elif status not in (None, 200, 429):
                return None
        if kind is RefusalKind.NEVER_FITS and limit != 0:  # with a limit of 0 the model is not enabled
            scope = RefusalScope.REQUEST
        unit, period_s = _dimension(text)
        pool, again = _POOL_NAMED.search(text), _TRY_AGAIN.search(text)
        if pool and scope is RefusalScope.POOL and _MODE.search(pool[1]):
            scope = RefusalScope.MODE
        return Refusal(
            kind=kind,
            message=as_text(error.get("message"))[:300],
            code=code or kind_of,
            retry_after_s=parse.longest(
                parse.retry_after_s(headers), parse.go_duration_s(again[1].rstrip(". ")) if again else None
            ),
            unit=unit or said.unit,
            period_s=period_s or said.period_s,
            limit=limit or None,
            used=_found(_USED, text),
            requested=requested,
            pool=pool[1] if pool else None,
            scope=scope,
        )


class OpenAI(OpenAIDialect):
    """The OpenAI API.

    Output that was held and not produced is not known to be given back (documented for Realtime only), so a request
    with a maximum stays charged with it. Where OpenAI gives it back, ``x-ratelimit-remaining-tokens`` of the next
    answers shows it, and the pool's level follows.
    """

    costs = CostRule(holds_maximum=True, refunds=False)

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe a request; its mode is ``ultrafast`` by its ``service_tier``, or ``long_context`` by its length."""
        call = super().describe(path, body)
        if call is None:
            return None
        if body.get("service_tier") == "ultrafast":
            return replace(call, mode="ultrafast")
        return replace(call, mode="long_context") if _is_long(call) else call

    def pool(self, model: str) -> str:
        """A dated snapshot shares its alias's pool, a fine-tuned model its base's (assumed); some have a family's."""
        return _pool(model)

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        """``x-ratelimit-{limit,remaining,reset}-{requests,tokens,project-tokens}``."""
        found = [family_reading(headers, REQUESTS, REQUESTS), _strictest(headers)]
        return [reading for reading in found if reading is not None]


@lru_cache(maxsize=1_024)
def _endpoint(path: str) -> str | None:
    return parse.endpoint_of(path, ENDPOINTS)


def _max_output_tokens(body: Mapping[str, Any]) -> int | None:
    most = (
        count(body.get("max_completion_tokens"))
        or count(body.get("max_tokens"))
        or count(body.get("max_output_tokens"))
    )
    choices = max(count(body.get("n")), count(body.get("best_of")), 1) if "n" in body or "best_of" in body else 1
    return most * choices or None


def _is_long(call: Call) -> bool:
    return call.input_tokens > next(most for prefix, most in _LONG_CONTEXT if call.model.startswith(prefix))


@lru_cache(maxsize=1_024)
def _pool(model: str) -> str:
    base = model.split(":")[1] if model.startswith("ft:") else model
    alias = parse.undated(base)
    return next((pool for prefix, pool in _POOLS if alias.startswith(prefix)), alias) or model


def family_reading(headers: Headers, family: str, unit: str) -> Reading | None:
    """The reading in ``x-ratelimit-{limit,remaining,reset}-<family>``; ``None`` when there is none.

    The reset is a duration until the bucket is full. The period is inferred, where the three numbers prove one.
    """
    limit_name, remaining_name, reset_name = _family(family)
    limit, remaining = parse.amount(headers.get(limit_name)), parse.remainder(headers.get(remaining_name))
    reset_s = parse.go_duration_s(headers.get(reset_name))
    if limit is None and remaining is None and reset_s is None:
        return None
    period_s = infer_period_s(limit, remaining, reset_s)
    return Reading(unit, limit, remaining, reset_s, period_s, inferred=period_s is not None)


@cache
def _family(family: str) -> tuple[str, str, str]:
    return f"x-ratelimit-limit-{family}", f"x-ratelimit-remaining-{family}", f"x-ratelimit-reset-{family}"


def infer_period_s(limit: float | None, remaining: float | None, reset_s: float | None) -> float | None:
    """The quota's period, from ``reset = (limit - remaining) * period / limit``: a minute, a day or unknown.

    Resets are printed in milliseconds and remainders in whole units, so a reset below 4 ms proves nothing, nor does an
    estimate more than a quarter away from both periods.
    """
    if limit is None or remaining is None or reset_s is None or remaining >= limit or reset_s < 0.004:
        return None
    estimate = reset_s * limit / (limit - remaining)
    return next((period for period in (60.0, 86_400.0) if abs(estimate - period) <= period / 4), None)


def _strictest(headers: Headers) -> Reading | None:
    """The tokens of the organization or of the project, whichever limit is lower, with the lower of the remainders."""
    organization, project = family_reading(headers, TOKENS, TOKENS), family_reading(headers, "project-tokens", TOKENS)
    if organization is None or project is None:
        return organization or project
    low, high = sorted((organization, project), key=lambda reading: reading.limit or float("inf"))
    if high.remaining is not None and (low.remaining is None or high.remaining < low.remaining):
        return Reading(TOKENS, low.limit, high.remaining, None, low.period_s or high.period_s, inferred=True)
    return low


def _found(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return parse.number(parse.ungrouped(match[1])) if match else None


def _dimension(text: str) -> tuple[str | None, float | None]:
    """Unit and period of the quota that a message names, e.g. ``on tokens per min (TPM)``, ``max concurrency``."""
    match = _DIMENSION.search(text)
    if match:
        return re.sub(r"[ -]+", "_", match[1]), parse.PERIODS_S[match[2]]
    short = _SHORT.search(text)
    if short:
        return _SHORT_UNITS[short[1]], 60.0 if short[2] == "M" else 86_400.0
    return (CONCURRENCY if "concurren" in text else None), None
