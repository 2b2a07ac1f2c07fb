"""DeepSeek: no rate at all, only how many requests may be in flight.

Source: https://api-docs.deepseek.com/quick_start/rate_limit (2026).

* Limit: requests in flight, for an account and a model. A request counts until its answer is complete. The parameter
  ``user_id`` isolates scheduling, not the limit.
* Tokens are not limited, and no header reports anything.
* Until the first token an answer sends empty lines (JSON) or ``: keep-alive`` comments (streams); after ten minutes
  without a start the connection is closed.
* 402 is an empty balance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.core.quota import CONCURRENCY, Cost
from paceline.core.results import Refusal, RefusalKind
from paceline.providers.base import Call, Headers, Usage
from paceline.providers.compatible import Compatible
from paceline.providers.parse import count, usage_of


class DeepSeek(Compatible):
    """The DeepSeek API."""

    name = "deepseek"
    hosts = ("api.deepseek.com",)
    key_env = "DEEPSEEK_API_KEY"

    def held(self, call: Call, input_tokens: float, output_tokens: float) -> Cost:
        """One slot; requests and tokens only for quotas of your own."""
        return super().held(call, input_tokens, output_tokens) | {CONCURRENCY: 1.0}

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        """As OpenAI's; a 429 can only mean the slots."""
        refusal = super().refusal(status, headers, body)
        if refusal is None or refusal.kind is not RefusalKind.RATE:
            return refusal
        return replace(refusal, unit=CONCURRENCY, period_s=None)

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """OpenAI's names, with cached reads as ``prompt_cache_hit_tokens``."""
        usage = super().usage(payload)
        if usage is None or usage.cached_tokens:
            return usage
        cached = count(usage_of(payload).get("prompt_cache_hit_tokens"))
        return replace(usage, cached_tokens=min(cached, usage.input_tokens))
