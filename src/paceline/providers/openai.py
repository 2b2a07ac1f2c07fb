"""OpenAI, and the dialect that half of the industry copied from it.

Sources: https://developers.openai.com/api/docs/guides/rate-limits (2026-08, 2026-10), .../guides/error-codes
(2026-10), .../guides/prompt-caching (2026-08); live headers and refusals of 2023 to 2026, whose arithmetic fits one
equation to the millisecond: a bucket of ``limit``, refilled at ``limit / period``, for minutes and for days.

* Limits: requests and tokens a minute and a day, for an organization and a project, per pool of models.
* Held at the start: documented as ``max(max_tokens, characters)``, while OpenAI's own cookbook budgets the
  *sum* of prompt and ``n * max_tokens``. We hold the sum, which is never less.
* Settled down to the real output afterwards: not documented for HTTP. We assume not.
* Failed and refused requests count. Cached reads count.
* ``reset`` in the headers is the time until the bucket is *full*, not until a request may go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from paceline.core.quota import INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS, Cost
from paceline.core.results import Reading, Refusal, RefusalKind
from paceline.providers.base import Call, Headers, Usage, UsageReader
from paceline.providers.parse import (
    amount,
    as_mapping,
    as_text,
    count,
    endpoint_of,
    error_of,
    go_duration_s,
    make_usage,
    number,
    remainder,
    retry_after_s,
    undated,
    usage_of,
)
from paceline.providers.prompt import MediaTokens, prompt_tokens
from paceline.providers.streams import JsonReader, SseReader

ENDPOINTS: Final = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/embeddings": "embeddings",
    "/completions": "completions",
}

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

_MONEY = re.compile(
    r"insufficient_quota|credit_balance_exhausted|billing_hard_limit_reached"
    r"|\w{1,40}_spend_limit_exceeded|\w{1,40}_usage_limit_exceeded"
)
_CAPACITY: Final = {"server_is_overloaded", "service_unavailable_error", "resource_unavailable", "503", "529"}
_RATE: Final = {"rate_limit_exceeded", "rate_limit_error", "too_many_requests", "429"}


class OpenAI:
    """The OpenAI API."""

    name = "openai"
    hosts: tuple[str, ...] = ("api.openai.com", "us.api.openai.com", "eu.api.openai.com")
    key_env = "OPENAI_API_KEY"
    encoding = "o200k"

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe a request to a path that ends in one of ``ENDPOINTS``, whatever comes before it."""
        endpoint = endpoint_of(path, ENDPOINTS)
        if endpoint is None:
            return None
        parts = [body.get(key) for key in ("messages", "input", "instructions", "prompt")]
        schemas = [body.get(key) for key in ("tools", "functions", "response_format", "text") if body.get(key)]
        return Call(
            provider=self.name,
            endpoint=endpoint,
            model=as_text(body.get("model"))[:200] or "unknown",
            input_tokens=prompt_tokens(parts, schemas, self.encoding, MEDIA),
            max_output_tokens=0 if endpoint == "embeddings" else _max_output_tokens(body),
            stream=body.get("stream") is True,
        )

    def pool(self, model: str) -> str:
        """A dated snapshot shares its alias's pool, a fine-tuned model its base's (assumed); some have a family's."""
        return _pool(model)

    def held(self, call: Call, input_tokens: float, output_tokens: float) -> Cost:
        """The input, and the most that the request may produce; the expected output where it does not say."""
        asked = call.max_output_tokens
        return _cost(input_tokens, output_tokens if asked is None else asked)

    def charged(self, call: Call, usage: Usage) -> Cost:
        """The reported input, cached reads included, and the output that was held.

        Nothing documents that output which was held and not produced is given back over HTTP (only Realtime says
        so), so a request that named a maximum stays charged with it. Where OpenAI does give it back,
        ``x-ratelimit-remaining-tokens`` of the next answers says so, and the pool's level follows. A request
        without a maximum is charged what it produced.
        """
        return _cost(usage.input_tokens, max(call.max_output_tokens or 0, usage.output_tokens))

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        """``x-ratelimit-{limit,remaining,reset}-{requests,tokens,project-tokens}``."""
        found = [family_reading(headers, REQUESTS, REQUESTS), _strictest(headers)]
        return [reading for reading in found if reading is not None]

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        """Classify an answer by its status, its error's ``code`` and ``type``, and the numbers in its message."""
        if status < 400:
            return None
        error, text = error_of(body)
        return classify(status, error, text, retry_after_s(headers))

    def usage_reader(self, call: Call) -> UsageReader:
        """A reader for a JSON body, or for the events of a chat or Responses stream."""
        if not call.stream:
            return JsonReader(self.usage)
        return SseReader(self._on_event, b'"usage"', b'"error"', b"[DONE]")

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Usage under the names of chat (``prompt_tokens``) or Responses (``input_tokens``)."""
        found = usage_of(payload)
        inputs = as_mapping(found.get("prompt_tokens_details") or found.get("input_tokens_details"))
        return make_usage(
            count(found.get("prompt_tokens")) or count(found.get("input_tokens")),
            count(found.get("completion_tokens")) or count(found.get("output_tokens")),
            count(inputs.get("cached_tokens")),
            count(inputs.get("cache_write_tokens")),
        )

    def _on_event(self, event: dict[str, Any], _: Usage | None) -> tuple[Usage | None, Refusal | None, bool]:
        kind, answer = event.get("type"), as_mapping(event.get("response"))
        error = event.get("error") or answer.get("error") or (event if kind == "error" else None)
        refusal = None
        if isinstance(error, Mapping):
            refusal = classify(None, error, as_text(error.get("message"))[:4_096], None)
        usage = self.usage(event) if event.get("usage") or answer.get("usage") else None
        return usage, refusal, kind in ("response.completed", "response.incomplete", "response.failed")


def _max_output_tokens(body: Mapping[str, Any]) -> int | None:
    asked = next(
        filter(None, (count(body.get(key)) for key in ("max_completion_tokens", "max_tokens", "max_output_tokens"))), 0
    )
    choices = max(count(body.get("n")), count(body.get("best_of")), 1)
    return asked * choices or None


def _cost(input_tokens: float, output_tokens: float) -> Cost:
    """One request in every unit that a user may have set a quota for."""
    return {
        REQUESTS: 1.0,
        TOKENS: float(input_tokens + output_tokens),
        INPUT_TOKENS: float(input_tokens),
        OUTPUT_TOKENS: float(output_tokens),
    }


@lru_cache(maxsize=1_024)
def _pool(model: str) -> str:
    base = model.split(":")[1] if model.startswith("ft:") else model
    alias = undated(base)
    return next((pool for prefix, pool in _POOLS if alias.startswith(prefix)), alias) or model


def family_reading(headers: Headers, family: str, unit: str) -> Reading | None:
    """One ``x-ratelimit-*-<family>`` of the headers; what cannot be read is absent, and nothing read is no reading."""
    limit = amount(headers.get(f"x-ratelimit-limit-{family}"))
    remaining = remainder(headers.get(f"x-ratelimit-remaining-{family}"))
    reset_s = go_duration_s(headers.get(f"x-ratelimit-reset-{family}"))
    if limit is None and remaining is None and reset_s is None:
        return None
    return Reading(unit, limit, remaining, reset_s, infer_period_s(limit, remaining, reset_s))


def infer_period_s(limit: float | None, remaining: float | None, reset_s: float | None) -> float | None:
    """The quota's period, from ``reset = (limit - remaining) * period / limit``: a minute, a day or unknown.

    Resets are printed in milliseconds and remainders in whole units, so a reset below 4 ms, and an estimate more
    than a quarter away from both, say nothing.
    """
    if limit is None or remaining is None or reset_s is None or remaining >= limit or reset_s < 0.004:
        return None
    estimate = reset_s * limit / (limit - remaining)
    return next((period for period in (60.0, 86_400.0) if abs(estimate - period) <= period / 4), None)


def _strictest(headers: Headers) -> Reading | None:
    """The tokens of the organization or, where that is lower, of the project; never more left than either says."""
    ours, project = family_reading(headers, TOKENS, TOKENS), family_reading(headers, "project-tokens", TOKENS)
    if ours is None or project is None:
        return ours or project
    low, high = sorted((ours, project), key=lambda reading: reading.limit or float("inf"))
    if high.remaining is not None and (low.remaining is None or high.remaining < low.remaining):
        return Reading(TOKENS, low.limit, high.remaining, None, low.period_s or high.period_s)
    return low


_LIMIT = re.compile(r"\bLimit:?\s{0,2}([\d,]{1,20})", re.ASCII)
_USED = re.compile(r"\b(?:Used|Current):?\s{0,2}([\d,]{1,20})", re.ASCII)
_REQUESTED = re.compile(r"\bRequested:?\s{0,2}([\d,]{1,20})", re.ASCII)
_TRY_AGAIN = re.compile(
    r"(?:try again|retry) (?:in|after) ((?:[\d.]{1,20}\s{0,2}(?:h|ms|m|us|µs|s)\b\s?|[\d.]{1,20}[hms]){1,4})"
)
_POOL_NAMED = re.compile(r"\(for limit ([\w.:-]{1,100})\)")
_DIMENSION = re.compile(r"\bon ([a-z][a-z -]{0,30}?) per (sec|second|min|minute|hour|day)\b")
_SHORT = re.compile(r"\((R|T|IT|OT|I)P([MD])\)")
_PERIODS: Final = {"sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "hour": 3_600.0, "day": 86_400.0}
_SHORT_UNITS: Final = {"R": REQUESTS, "T": TOKENS, "IT": INPUT_TOKENS, "OT": OUTPUT_TOKENS, "I": "images"}


def classify(status: int | None, error: Mapping[str, Any], text: str, header_wait_s: float | None) -> Refusal | None:
    """Say why an error object refuses; ``None`` when it is a fault of another kind.

    Args:
        status: The HTTP status; ``None`` for an error inside a stream, which its ``code`` must explain.
        error: The error object: ``code``, ``type``, ``message``.
        text: Where to look for numbers; the provider's message.
        header_wait_s: The wait that the headers asked for; the longer of it and the message's holds.
    """
    code, kind_of = as_text(error.get("code"))[:100], as_text(error.get("type"))[:100]
    names = {code, kind_of, "" if status is None else str(status)}
    limit, requested = _found(_LIMIT, text), _found(_REQUESTED, text)
    never = (
        text.startswith("Request too large")
        or limit == 0
        or (limit is not None and requested is not None and requested > limit)
    )
    if status == 402 or _MONEY.fullmatch(code) or _MONEY.fullmatch(kind_of):
        kind = RefusalKind.MONEY
    elif names & _CAPACITY:
        kind = RefusalKind.CAPACITY
    elif "slow_down" in names:
        kind = RefusalKind.GROWTH
    elif status == 413 or (never and names & _RATE):
        kind = RefusalKind.NEVER_FITS
    elif names & _RATE and status in (None, 200, 429):
        kind = RefusalKind.RATE
    else:
        return None
    unit, period_s = _dimension(text)
    pool = _POOL_NAMED.search(text)
    waits = [wait for wait in (header_wait_s, _wait_in(text)) if wait is not None]
    return Refusal(
        kind=kind,
        message=as_text(error.get("message"))[:300],
        code=code or kind_of,
        retry_after_s=max(waits) if waits else None,
        unit=unit,
        period_s=period_s,
        limit=limit or None,
        used=_found(_USED, text),
        requested=requested,
        pool=pool[1] if pool else None,
    )


def _found(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return number(match[1]) if match else None


def _wait_in(text: str) -> float | None:
    match = _TRY_AGAIN.search(text)
    return go_duration_s(match[1].rstrip(". ")) if match else None


def _dimension(text: str) -> tuple[str | None, float | None]:
    """Unit and period of the quota that a message names, e.g. ``on tokens per min (TPM)``."""
    match = _DIMENSION.search(text)
    if match:
        return re.sub(r"[ -]+", "_", match[1]), _PERIODS[match[2]]
    short = _SHORT.search(text)
    return (_SHORT_UNITS[short[1]], 60.0 if short[2] == "M" else 86_400.0) if short else (None, None)
