"""xAI (Grok): OpenAI's dialect, requests limited by the second.

Sources: https://docs.x.ai/developers/rate-limits (2026-10); refusals of 2026-02.

* Limits: requests a **second** (a minute's cannot be spent at once) and tokens a minute, for a team, per model, by
  what the team has spent since 2026-01-01.
* Tokens: prompt (text, images, audio), cached prompt, completion and reasoning. ``completion_tokens`` of a chat leaves
  reasoning out and we add it.
* What is held at the start is not documented: we hold input and the most output, and settle to what was used.
* Headers are not documented. OpenAI's names are believed with care, as at an unknown host.
* xAI's own SDK speaks gRPC, which no HTTP hook sees: acquire and settle around it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.core.quota import Cost
from paceline.core.results import Reading, Refusal, RefusalKind
from paceline.providers.base import Call, Headers, Usage
from paceline.providers.compatible import token_cost
from paceline.providers.generic import Generic
from paceline.providers.parse import as_mapping, count, error_of, make_usage, usage_of

_MONEY = re.compile(r"available credits|spending limit|purchase more credits", re.IGNORECASE)


class XAI(Generic):
    """The xAI API over HTTP."""

    hosts: tuple[str, ...] = ("api.x.ai",)

    def __init__(self) -> None:
        super().__init__("xai")

    def charged(self, call: Call, usage: Usage) -> Cost:  # noqa: ARG002
        """The reported input, cached reads included, and the output, reasoning included."""
        return token_cost(usage.input_tokens, usage.output_tokens)

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:
        """What agrees with itself and proves its period: a minute's number must not pass for a second's."""
        return [reading for reading in super().readings(headers, now_s) if reading.period_s]

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        """Classify as OpenAI's; a 429 (or 403) that names credits or a spending limit is money."""
        text = error_of(body)[1]
        if status in (403, 429) and _MONEY.search(text):
            return Refusal(RefusalKind.MONEY, text[:300])
        return super().refusal(status, headers, body)

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Usage as OpenAI's, with the reasoning of a chat added; also as xAI's own SDK names it."""
        usage, found = super().usage(payload), usage_of(payload)
        if usage is None or not found.get("completion_tokens"):
            return usage
        details = as_mapping(found.get("completion_tokens_details"))
        reasoning = count(details.get("reasoning_tokens")) or count(found.get("reasoning_tokens"))
        cached = usage.cached_tokens or count(found.get("cached_prompt_text_tokens"))
        more = make_usage(usage.input_tokens, usage.output_tokens + reasoning, cached, 0)
        return replace(usage, output_tokens=more.output_tokens, cached_tokens=more.cached_tokens) if more else usage
