"""Azure OpenAI (Microsoft Foundry): OpenAI's models, limited by deployment.

Sources: https://learn.microsoft.com/azure/foundry/openai/how-to/quota (2026-05, 2026-09), .../quotas-limits
(2026-08-20); live headers of 2024 and 2025-11; a live refusal inside a 200 of 2026-08-20.

* The pool is the deployment: its resource's host and its name. Two deployments of one model have two limits.
* Tokens: a count that restarts every minute, at an instant that nobody knows, of text by its characters plus
  ``max_tokens``. It is no billing count and is not corrected by what the answer used.
* Requests: derived from the tokens (6 a minute for each 1 000, for reasoning models fewer), but checked over one or
  ten seconds: a minute's requests cannot be sent at once.
* Failed requests count, those with status 400 too. Cached input counts (inferred: counting comes first).
* Shared capacity can lower the effective limit for hours: the headers say so, and they are right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from paceline.core.quota import REQUESTS, TOKENS
from paceline.core.results import Reading, Refusal, RefusalKind
from paceline.providers.base import Call, Headers, Provider
from paceline.providers.openai import OpenAI
from paceline.providers.parse import amount, error_of, number, remainder, retry_after_s, wait

_DEPLOYMENT = re.compile(r"/deployments/([^/]{1,100})/")
_AGAIN = re.compile(r"retry after ([\d.]{1,20}) ?(milli)?seconds?", re.IGNORECASE)
_UNIT = re.compile(r"exceeded (?:the )?(token|call|request) rate limit")
_DAY_S = 86_400.0


class Azure(OpenAI):
    """Azure OpenAI; ``host`` is the resource's, and part of the pools' names."""

    name = "azure"
    hosts: tuple[str, ...] = ("*.openai.azure.com", "*.cognitiveservices.azure.com", "*.services.ai.azure.com")
    key_env = "AZURE_OPENAI_API_KEY"

    def __init__(self, host: str = "") -> None:
        self.host = host

    def at_host(self, host: str) -> Provider:
        """The page for the resource at ``host``."""
        return self if host in self.hosts else _at(host)

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe a request; the deployment stands in the path, on the newer ``/openai/v1/`` in the body's ``model``."""
        call = super().describe(path, body)
        if call is None:
            return None
        match = _DEPLOYMENT.search(path)
        deployment = match[1] if match else call.model
        return replace(call, model=f"{self.host}/{deployment}" if self.host else deployment)

    def pool(self, model: str) -> str:
        """The deployment: ``<host>/<deployment>``, whatever model stands behind it."""
        return model

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        """OpenAI's names with whole seconds in ``reset``; ``-1`` and a limit of 0 mean that nothing is known."""
        found = [_reading(headers, unit, period_s) for unit, period_s in ((REQUESTS, None), (TOKENS, 60.0))]
        return [reading for reading in found if reading is not None]

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        """Classify as OpenAI's; a 200 refuses when it has a ``retry-after`` and its first event is an error."""
        if status == 200 and "retry-after" in headers:
            return self._refused_stream(headers, body)
        refusal = super().refusal(status, headers, body)
        if refusal is None:
            return None
        text, code = error_of(body)[1], f"{refusal.code} {refusal.message}".lower()
        unit = _UNIT.search(text)
        asked = _AGAIN.search(text)
        seconds = number(asked[1]) if asked else None
        spoken_s = wait(seconds / 1_000 if seconds and asked and asked[2] else seconds)
        waits = [wait_s for wait_s in (refusal.retry_after_s, spoken_s) if wait_s is not None]
        kind = refusal.kind
        if "max_tokens_too_large" in code:
            kind = RefusalKind.NEVER_FITS
        elif "system_capacity" in code:  # the words are an assumption, from the names of the documented subtypes
            kind = RefusalKind.CAPACITY
        long = spoken_s is not None and spoken_s >= _DAY_S  # a free or batch quota of a day, never a minute's
        return replace(
            refusal,
            kind=kind,
            retry_after_s=max(waits) if waits else None,
            unit=(TOKENS if unit[1] == "token" else REQUESTS) if unit else refusal.unit,
            period_s=_DAY_S if long else refusal.period_s,
        )

    def _refused_stream(self, headers: Headers, body: bytes) -> Refusal | None:
        """A streamed Responses call that is refused with status 200; ``None`` for one that goes on."""
        first = body[:65_536].replace(b"\r\n", b"\n").lstrip().partition(b"\n\n")[0]
        reader = self.usage_reader(Call(self.name, "responses", "", 0, stream=True))
        reader.feed(first + b"\n\n")
        if reader.refusal is None:
            return None
        waits = [wait_s for wait_s in (retry_after_s(headers), reader.refusal.retry_after_s) if wait_s is not None]
        return replace(reader.refusal, retry_after_s=max(waits) if waits else None)


@lru_cache(maxsize=256)
def _at(host: str) -> Azure:
    return Azure(host)


def _reading(headers: Headers, unit: str, period_s: float | None) -> Reading | None:
    """One family of headers, also under its older spelling ``x-rate-limit-``."""

    def value(what: str) -> str | None:
        return headers.get(f"x-ratelimit-{what}-{unit}") or headers.get(f"x-rate-limit-{what}-{unit}")

    limit, remaining, reset_s = amount(value("limit")), remainder(value("remaining")), wait(number(value("reset")))
    if remaining == -1:
        remaining = None
    if unit == REQUESTS:
        # Whether the number is a minute's or ten seconds' is not documented. One capture has 80 for 80k tokens, which
        # is ten seconds' share, and resets of up to 10 s are the documented example: assumed to be so then only.
        period_s = 10.0 if reset_s and reset_s <= 10 else None
        limit = limit if period_s else None
    if limit is None and remaining is None:
        return None
    # A longer reset than the period has been seen (300 s) and means nothing that is known.
    return Reading(unit, limit, remaining, reset_s if reset_s and reset_s <= (period_s or 60) else None, period_s)
