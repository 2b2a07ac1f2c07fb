"""Cerebras: tokens count twice, once without cached reads and once with them.

Sources: https://inference-docs.cerebras.ai/support/rate-limits (2026-10, and copies of 2025 and 2026-05 for the headers),
refusals that users published (2025, 2026).

* Limits: requests a minute (hour, day); uncached tokens a minute; all tokens a minute, an hour and a day (three times
  the uncached ones by default). For an organization and a model.
* Documented as buckets that refill continuously. The header sample of the older page contradicts that: its resets are
  seconds to the end of the clock minute and of the UTC day. We keep buckets, and believe only limits and remainders.
* Held at the start: the estimated input and ``max_completion_tokens``; without it a bound that Cerebras estimates and we
  cannot know, so we hold the expected output. Revised to the real usage afterwards.
* Cached reads count among all tokens, not among the uncached ones.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from paceline.core.quota import REQUESTS, TOKENS, Cost
from paceline.core.results import Reading, Refusal, RefusalKind
from paceline.providers.base import Call, Headers, Usage
from paceline.providers.compatible import Compatible, token_cost
from paceline.providers.parse import amount, error_of, number, remainder, wait

UNCACHED_TOKENS: Final = "uncached_tokens"

_PERIODS: Final = {"minute": 60.0, "hour": 3_600.0, "day": 86_400.0}
_DIMENSION = re.compile(r"\b(?:(uncached)\s)?(?:total\s)?(tokens|requests) per (minute|hour|day)\b", re.IGNORECASE)


class Cerebras(Compatible):
    """The Cerebras inference API."""

    name = "cerebras"
    hosts = ("api.cerebras.ai",)
    key_env = "CEREBRAS_API_KEY"

    def held(self, call: Call, input_tokens: float, output_tokens: float) -> Cost:
        """The input and all that was asked, in both counts."""
        asked = call.max_output_tokens
        cost = token_cost(input_tokens, output_tokens if asked is None else asked)
        return cost | {UNCACHED_TOKENS: cost[TOKENS]}

    def charged(self, call: Call, usage: Usage) -> Cost:
        """What was used; the uncached count leaves cached reads out."""
        cost = super().charged(call, usage)
        return cost | {UNCACHED_TOKENS: cost[TOKENS] - usage.cached_tokens}

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        """``x-ratelimit-{limit,remaining}-{requests,tokens}-{minute,hour,day}``.

        The resets that come with them are no time until the quota is full, so they are left out: ``remaining`` is
        the level in a bucket, and what is left in a window. Which of its two counts a tokens header means is not
        said. We take it for all tokens: if it is the uncached count, we are too slow and never too fast.
        """
        found = []
        for unit in (REQUESTS, TOKENS):
            for period, period_s in _PERIODS.items():
                limit = amount(headers.get(f"x-ratelimit-limit-{unit}-{period}"))
                remaining = remainder(headers.get(f"x-ratelimit-remaining-{unit}-{period}"))
                if limit is not None or remaining is not None:
                    found.append(Reading(unit, limit, remaining, None, period_s))
        return found

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        """As OpenAI's, with the quota that the message names; its reset is how long to wait at most."""
        refusal = super().refusal(status, headers, body)
        if refusal is None or refusal.kind is not RefusalKind.RATE:
            return refusal
        if refusal.code == "queue_exceeded":  # "We're experiencing high traffic right now!"
            return replace(refusal, kind=RefusalKind.CAPACITY)
        named = _DIMENSION.search(error_of(body)[1])
        if named is None:
            return refusal
        family, period = named[2].lower(), named[3].lower()
        asked_s = refusal.retry_after_s
        if asked_s is None:
            asked_s = wait(number(headers.get(f"x-ratelimit-reset-{family}-{period}")))
        unit = UNCACHED_TOKENS if named[1] else family
        return replace(refusal, unit=unit, period_s=_PERIODS[period], retry_after_s=asked_s)
