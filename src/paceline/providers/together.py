"""Together AI: a rate for each model that follows what was served lately.

Sources: https://docs.together.ai/docs/rate-limits (two copies of 2026).

* Limits: requests and tokens, for a user (older copy) or an organization (newer), per model. They are measured in
  seconds and shown in minutes: 60 requests a minute are one a second.
* They are dynamic: about twice the rate of the past hour's successes, from 60 requests a minute up to an unpublished
  cap. Whoever goes steadily is given more.
* A burst that fails *above* that rate is a 429 of type ``dynamic_request_limited`` or ``dynamic_token_limited``; one
  that fails below it is a 503: their capacity, not our rate.
* What is held at admission and whether cached reads count is not documented; we assume the expected output, and that
  they do.
"""

from __future__ import annotations

import re
from dataclasses import replace

from paceline.core.quota import REQUESTS, TOKENS
from paceline.core.results import Reading, Refusal, RefusalKind
from paceline.providers.base import Headers
from paceline.providers.compatible import Compatible
from paceline.providers.parse import amount, number, wait

_LIMITED = re.compile(rb"dynamic_(request|token)_limited")


class Together(Compatible):
    """The Together API, serverless."""

    name = "together"
    hosts = ("api.together.ai", "api.together.xyz")
    key_env = "TOGETHER_API_KEY"

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        """The limits in ``x-ratelimit-limit`` and ``x-tokenlimit-limit``, or their ``-dynamic`` form where there is one.

        All are per second. What remains of a second says nothing by the time that an answer is here, so it is not
        read. Tokens are taken as a minute's amount: a prompt larger than a second's would never fit (assumed: it
        is served nevertheless, as the limit is advertised per minute).
        """
        found = []
        requests = _limit(headers, "x-ratelimit-limit")
        if requests is not None and requests >= 1:  # below, not even one request would fit into a second
            found.append(Reading(REQUESTS, requests, period_s=1.0))
        tokens = _limit(headers, "x-tokenlimit-limit")
        if tokens is not None:
            found.append(Reading(TOKENS, tokens * 60, period_s=60.0))
        return found

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        """As OpenAI's, with the unit from the error's type and the wait from ``x-ratelimit-reset`` (seconds)."""
        refusal = super().refusal(status, headers, body)
        if refusal is None or refusal.kind is not RefusalKind.RATE:
            return refusal
        limited = _LIMITED.search(body[:4_096])
        unit = {b"request": REQUESTS, b"token": TOKENS}[limited[1]] if limited else refusal.unit
        asked_s = refusal.retry_after_s
        if asked_s is None:
            asked_s = wait(number(headers.get("x-ratelimit-reset")))
        return replace(refusal, unit=unit, retry_after_s=asked_s)


def _limit(headers: Headers, name: str) -> float | None:
    dynamic = amount(headers.get(f"{name}-dynamic"))
    return amount(headers.get(name)) if dynamic is None else dynamic
