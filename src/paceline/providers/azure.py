"""Azure OpenAI (Microsoft Foundry): OpenAI's models, limited by deployment. Facts and sources: ``tables/azure.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

from paceline.core.quota import REQUESTS, TOKENS
from paceline.core.results import Reading, Refusal, RefusalKind, RefusalScope
from paceline.providers import parse
from paceline.providers.base import Call, Headers
from paceline.providers.common import CostRule
from paceline.providers.openai import OpenAIDialect

_DEPLOYMENT = re.compile(r"/deployments/([^/]{1,100})/")
_AGAIN = re.compile(r"retry after ([\d.]{1,20}) ?(milli)?seconds?", re.IGNORECASE)
_UNIT = re.compile(r"exceeded (?:the )?(token|call|request) rate limit")
_DAY_S = 86_400.0


class Azure(OpenAIDialect):
    """Azure OpenAI. The deployment is the pool, for any model that it serves; ``host`` is the resource's, and part of it."""

    costs = CostRule(holds_maximum=True, refunds=False)
    host = ""

    def at_host(self, host: str) -> Azure:
        """The provider for the resource at ``host``."""
        if host in self.hosts:
            return self
        resource = copy(self)
        resource.host = host
        return resource

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe a request; the deployment is in the path, or on ``/openai/v1/`` in the body's ``model``."""
        call = super().describe(path, body)
        if call is None:
            return None
        match = _DEPLOYMENT.search(path)
        deployment = match[1] if match else call.model
        return replace(call, model=f"{self.host}/{deployment}" if self.host else deployment)

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        """OpenAI's names with whole seconds in ``reset``; ``-1`` and a limit of 0 mean that nothing is known."""
        found = [_reading(headers, unit, period_s) for unit, period_s in ((REQUESTS, None), (TOKENS, 60.0))]
        return [reading for reading in found if reading is not None]

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        """Classify as OpenAI's, with the words of Azure's messages."""
        refusal = super().refusal(status, headers, body)
        if refusal is None:
            return None
        text, code = parse.error_of(body)[1], f"{refusal.code} {refusal.message}".lower()
        unit, asked = _UNIT.search(text), _AGAIN.search(text)
        seconds = parse.number(asked[1]) if asked else None
        text_wait_s = parse.wait(seconds / 1_000 if seconds and asked and asked[2] else seconds)
        kind, scope = refusal.kind, refusal.scope
        if "max_tokens_too_large" in code:
            kind, scope = RefusalKind.NEVER_FITS, RefusalScope.REQUEST
        elif "system_capacity" in code:  # the words are an assumption, from the names of the documented subtypes
            kind = RefusalKind.CAPACITY
        long = text_wait_s is not None and text_wait_s >= _DAY_S  # a free or batch quota of a day, never a minute's
        return replace(
            refusal,
            kind=kind,
            retry_after_s=parse.longest(refusal.retry_after_s, text_wait_s),
            unit=(TOKENS if unit[1] == "token" else REQUESTS) if unit else refusal.unit,
            period_s=_DAY_S if long else refusal.period_s,
            scope=scope,
        )


def _reading(headers: Headers, unit: str, period_s: float | None) -> Reading | None:
    """One family of headers, also under its older spelling ``x-rate-limit-``."""
    limit_text, remaining_text, reset_text = (
        headers.get(f"x-ratelimit-{what}-{unit}") or headers.get(f"x-rate-limit-{what}-{unit}")
        for what in ("limit", "remaining", "reset")
    )
    limit, reset_s = parse.amount(limit_text), parse.wait(parse.number(reset_text))
    remaining = None if parse.number(remaining_text) == -1 else parse.remainder(remaining_text)
    if unit == REQUESTS:
        # Whether the number is a minute's or ten seconds' is not documented. One capture has 80 for 80k tokens, which
        # is ten seconds' share, and resets of up to 10 s are the documented example: assumed to be so then only.
        period_s = 10.0 if reset_s and reset_s <= 10 else None
        limit = limit if period_s else None
    if limit is None and remaining is None:
        return None
    # A reset longer than the period has been seen (300 s); its meaning is not known.
    return Reading(unit, limit, remaining, reset_s if reset_s and reset_s <= (period_s or 60) else None, period_s)
