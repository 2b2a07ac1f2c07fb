"""OpenRouter: only its free models have limits of its own; for the others it hands on what their hosts say.

Sources: https://openrouter.ai/docs/api/reference/limits (2026-10-17), refusals that users published (2026).

* All ``:free`` models of an account share 20 requests a minute and 50 a UTC day (1 000 once 10 USD of credits were
  bought). Attempts that failed count (unverified). How the minute is counted is not documented.
* A paid model has no limit of OpenRouter's: its 429 is its host's, which another host may serve. So it is capacity.
* 402 is money: credits, a key's limit, or the budget for what is in flight (``metadata.limit_source``).
* Headers come with a 429 alone; ``x-ratelimit-reset`` is an instant in milliseconds. An error can also come inside a
  stream, after a 200, with the status as its ``code``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from paceline.core.quota import REQUESTS
from paceline.core.results import Reading, Refusal, RefusalKind
from paceline.providers.base import Headers, Usage
from paceline.providers.compatible import Compatible
from paceline.providers.parse import (
    amount,
    as_mapping,
    as_text,
    error_of,
    http_date_s,
    number,
    remainder,
    retry_after_s,
    wait,
)

FREE: Final = "free"
"""The pool that all free models share."""

_FREE_MINUTE: Final = 20  # requests; a higher limit in a header is the day's
_FREE_LIMIT = re.compile(r"free-models-per-(min|day)|openrouter_free_tier_(minute|daily)")
_LIMIT, _REMAINING, _RESET = "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"


class OpenRouter(Compatible):
    """The OpenRouter API."""

    name = "openrouter"
    hosts = ("openrouter.ai",)
    key_env = "OPENROUTER_API_KEY"

    def pool(self, model: str) -> str:
        """One pool for all free models, one for each other model."""
        return FREE if model.endswith(":free") else model

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        """``x-ratelimit-{limit,remaining}`` of a 429: the minute's or the day's, told apart by the limit."""
        limit = amount(headers.get(_LIMIT))
        if limit is None:
            return []
        return [Reading(REQUESTS, limit, remainder(headers.get(_REMAINING)), None, _period_s(limit))]

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        """Classify an answer by its status and by whose limit it names."""
        if status < 400:
            return None
        error, _ = error_of(body)
        return _classify(status, headers, error)

    def _on_event(self, event: dict[str, Any], known: Usage | None) -> tuple[Usage | None, Refusal | None, bool]:
        usage, refusal, done = super()._on_event(event, known)
        error = event.get("error") or as_mapping(event.get("response")).get("error")
        if isinstance(error, Mapping):
            status = number(as_text(error.get("code")))
            refusal = _classify(int(status or 0), {}, error)
        return usage, refusal, done


def _period_s(limit: float) -> float:
    return 60.0 if limit <= _FREE_MINUTE else 86_400.0


def _classify(status: int, headers: Headers, error: Mapping[str, Any]) -> Refusal | None:
    metadata = as_mapping(error.get("metadata"))
    source, message = as_text(metadata.get("limit_source"))[:100], as_text(error.get("message"))
    named = {str(name).lower(): as_text(value) for name, value in as_mapping(metadata.get("headers")).items()}
    free = _FREE_LIMIT.search(f"{source} {message[:1_000]}")
    # Without an error object it is not OpenRouter that answered, but what protects it from floods: our rate.
    ours = bool(free) or not error or _LIMIT in headers or _LIMIT in named
    if status == 402:
        kind = RefusalKind.MONEY
    elif status == 429:
        kind = RefusalKind.RATE if ours else RefusalKind.CAPACITY
    elif status in (503, 529):
        kind = RefusalKind.CAPACITY
    else:
        return None
    limit = amount(headers.get(_LIMIT) or named.get(_LIMIT)) if kind is RefusalKind.RATE else None
    period_s = _period_s(limit) if limit is not None else None
    if free:
        period_s = 60.0 if free[1] == "min" or free[2] == "minute" else 86_400.0
    return Refusal(
        kind=kind,
        message=message[:300],
        code=source or as_text(error.get("code"))[:100],
        retry_after_s=_wait_s(headers, headers.get(_RESET) or named.get(_RESET)),
        unit=REQUESTS if period_s else None,
        period_s=period_s,
        limit=limit,
        pool=FREE if free else None,
    )


def _wait_s(headers: Headers, reset: str | None) -> float | None:
    """``retry-after``, else from the answer's ``date`` to its reset."""
    asked_s = retry_after_s(headers)
    reset_ms, now_s = number(reset), http_date_s(headers.get("date"))
    if asked_s is not None or reset_ms is None or now_s is None:
        return asked_s
    return wait(max(0.0, reset_ms / 1_000 - now_s))
