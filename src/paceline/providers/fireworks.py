"""Fireworks AI, serverless: three quotas on tokens that grow and shrink with the traffic.

Sources: https://docs.fireworks.ai/serverless/rate-limits (three copies of 2026), .../guides/inference-error-codes
(2026), a third party's load test with live headers (2026-08-05).

* Limits, for an account and a model: all input, input that was not cached, and output, each a minute. They move between
  a floor and a ceiling that depends on the model's size; too steep a rise is a 429. A model's fast variant has limits
  of its own; requests of priority share the model's.
* 6 000 requests a minute for the whole account (10 without a payment method). Here every model's pool has them.
* Staying inside the limits does not guarantee an answer: a busy deployment sheds load with a 503.
* What is held at admission is not documented. We assume the input, all of it uncached, and the expected output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from paceline.core.quota import INPUT_TOKENS, OUTPUT_TOKENS, Cost
from paceline.core.results import Reading, Refusal, RefusalKind
from paceline.providers.base import Call, Headers, Usage
from paceline.providers.compatible import Compatible
from paceline.providers.parse import amount, remainder

UNCACHED_INPUT_TOKENS: Final = "uncached_input_tokens"

# A header's family, its unit, and the lowest limit that was ever published for it, per minute.
_FAMILIES: Final = (
    ("tokens-prompt", INPUT_TOKENS, 3.6e6),
    ("tokens-cache-adjusted-prompt", UNCACHED_INPUT_TOKENS, 900e3),
    ("tokens-generated", OUTPUT_TOKENS, 36e3),
)


class Fireworks(Compatible):
    """The Fireworks API, serverless."""

    name = "fireworks"
    hosts = ("api.fireworks.ai",)
    key_env = "FIREWORKS_API_KEY"

    def held(self, call: Call, input_tokens: float, output_tokens: float) -> Cost:
        """The input counts as uncached until the answer says otherwise."""
        return super().held(call, input_tokens, output_tokens) | {UNCACHED_INPUT_TOKENS: float(input_tokens)}

    def charged(self, call: Call, usage: Usage) -> Cost:
        """Cached reads count as input, not as uncached input."""
        fresh = usage.input_tokens - usage.cached_tokens
        return super().charged(call, usage) | {UNCACHED_INPUT_TOKENS: float(fresh)}

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        """``x-ratelimit-{limit,remaining}-tokens-{prompt,cache-adjusted-prompt,generated}``.

        The page says that they are per second while a minute is enforced; live ones were per minute. So a value below
        the lowest limit of a minute is taken as a second's. ``x-ratelimit-over-limit`` is not read: it was ``no``
        on a 429. Some accounts get nothing else.
        """
        found = []
        for family, unit, floor in _FAMILIES:
            limit = amount(headers.get(f"x-ratelimit-limit-{family}"))
            if limit is None:
                continue
            remaining = remainder(headers.get(f"x-ratelimit-remaining-{family}"))
            scale = 1 if limit >= floor else 60
            found.append(Reading(unit, limit * scale, None if remaining is None else remaining * scale, None, 60.0))
        return found

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        """As OpenAI's; a 429's body names no quota, but its headers may: nothing remains of it."""
        refusal = super().refusal(status, headers, body)
        if refusal is None or refusal.kind is not RefusalKind.RATE:
            return refusal
        empty = [r for r in self.readings(headers, 0.0) if r.remaining is not None and r.remaining <= 0]
        return replace(refusal, unit=empty[0].unit, period_s=60.0) if len(empty) == 1 else refusal
