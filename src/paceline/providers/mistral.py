"""Mistral (La Plateforme): OpenAI's dialect, with headers of its own.

Sources: https://help.mistral.ai, on rate limits, and https://admin.mistral.ai/plateforme/limits (2026); live headers
of 2026; refusals of 2025 and 2026.

* Limits: requests a second for an organization; tokens a minute and a month, and requests a minute, per model.
* Input and output count. What is held at the start, whether cached input counts, and how windows work are not
  documented: we hold input and the output to expect, and settle to what was used.
* ``x-ratelimit-tokens-query-cost`` tells what the request was charged. There are no resets.
* A limit of 0 requests a minute means that the model is not on the plan: such a 429 never ends.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.core.quota import REQUESTS, TOKENS
from paceline.core.results import Reading, Refusal, RefusalKind
from paceline.providers.base import Headers
from paceline.providers.compatible import Compatible
from paceline.providers.parse import amount, number, remainder

_FAMILIES = (("req-minute", REQUESTS), ("tokens-minute", TOKENS))


class Mistral(Compatible):
    """The Mistral API: chat, fill-in-the-middle, agents and embeddings."""

    name = "mistral"
    hosts: tuple[str, ...] = ("api.mistral.ai", "codestral.mistral.ai")
    key_env = "MISTRAL_API_KEY"

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        """``x-ratelimit-{limit,remaining}-{req-minute,tokens-minute}``."""
        found = []
        for family, unit in _FAMILIES:
            limit = amount(headers.get(f"x-ratelimit-limit-{family}"))
            remaining = remainder(headers.get(f"x-ratelimit-remaining-{family}"))
            if limit is not None:  # without one (0: not on the plan) what remains of it says nothing
                found.append(Reading(unit, limit, remaining, None, 60.0))
        return found

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        """Classify as OpenAI's, by the headers' limit and the type ``service_tier_capacity_exceeded``."""
        refusal = super().refusal(status, headers, body)
        if refusal is None or refusal.kind is not RefusalKind.RATE:
            return refusal
        words = f"{refusal.code} {refusal.message}".lower()
        kind: RefusalKind = refusal.kind
        if any(number(headers.get(f"x-ratelimit-limit-{family}")) == 0 for family, _ in _FAMILIES):
            kind = RefusalKind.NEVER_FITS
        elif refusal.code == "3505" or "service_tier_capacity" in words or "service tier capacity" in words:
            kind = RefusalKind.CAPACITY
        unit = REQUESTS if "requests rate limit" in words else refusal.unit
        requested = amount(headers.get("x-ratelimit-tokens-query-cost"))
        return replace(refusal, kind=kind, unit=unit, requested=requested)
