"""Anthropic's Messages API. What Anthropic counts, with sources: ``tables/anthropic.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS, Cost
from paceline.core.results import Reading, Refusal, RefusalKind, RefusalScope
from paceline.providers import parse
from paceline.providers.base import Call, Headers, Usage
from paceline.providers.common import BaseProvider, CostRule
from paceline.providers.parse import as_mapping, as_text, count
from paceline.providers.prompt import MediaTokens, prompt_tokens
from paceline.providers.streams import Found

# count_tokens and batches have limits of their own. A chat in OpenAI's form has the limits of messages
# (https://platform.claude.com/docs/en/api/openai-sdk, 2026).
ENDPOINTS: Final = {"/messages": "messages", "/chat/completions": "messages"}

# Images: width * height / 750 (Anthropic's vision guide), at most about 1 600. Files: assumption, three pages of
# 1 500 to 3 000 tokens. Audio: assumption.
MEDIA: Final = MediaTokens(image=1_600, small_image=1_600, audio=600, file=6_000)

# Classes of models that share one limit (2026-10; the members 4, 4-0 and 4-1 from older copies of the page).
_POOLS: Final = (
    ("claude-opus-4*", "claude-opus-4x"),
    ("claude-sonnet-4*", "claude-sonnet-4x"),
    ("claude-fable-5*", "claude-fable-5"),
    ("claude-mythos-5*", "claude-mythos-5"),
    ("claude-3-5-haiku*", "claude-3-5-haiku"),
)
# Input beyond 200 000 tokens has limits of its own with the beta of 2025-08 (https://docs.anthropic.com/en/api/rate-limits,
# 2025-09); later models have one limit for any length. The input is an estimate, which may be too low by a fifth.
_LONG_CONTEXT = re.compile(r"claude-sonnet-4(?:-[05])?")
_LONG_CONTEXT_TOKENS: Final = 0.8 * 200_000
_OLD_TOKENIZER = re.compile(r"claude-(?:2|3|instant|(?:opus|sonnet|haiku)-4(?:-[0-6])?$)")

_FAMILIES: Final = (
    ("requests", REQUESTS, 1.0),
    ("input-tokens", INPUT_TOKENS, 1_000.0),  # remainders are rounded to the nearest thousand
    ("output-tokens", OUTPUT_TOKENS, 1_000.0),
    ("tokens", TOKENS, 1_000.0),
)
_DIMENSION = re.compile(
    r"\b([\d,]{1,20}) ((?:[a-z-]{1,20} ){0,3}?)(input tokens|output tokens|tokens|requests) per (minute|hour|day)",
    re.ASCII | re.IGNORECASE,
)  # "50,000 input tokens per minute"; of a mode "0 fast mode input tokens per minute" (2026-09)
_MODE = re.compile(r"\b(?:fast mode|long context|priority tier|message batch)", re.IGNORECASE)
_REQUIRED = re.compile(r"extra usage is required", re.IGNORECASE)  # "... for long context requests." (2026-03)
_CONCURRENT = re.compile(
    r"concurrent connections", re.IGNORECASE
)  # "Number of concurrent connections has exceeded ..."
_MONEY = re.compile(r"spend(?:ing)?[ _]limit|credit balance|specified API usage limits|billing_error", re.IGNORECASE)


class Anthropic(BaseProvider):
    """The Anthropic API."""

    costs = CostRule(counts_cached=False)
    charged_after = frozenset({OUTPUT_TOKENS})
    events = (b'"usage"', b'"error"', b"message_stop", b"[DONE]")

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe a request to one of ``ENDPOINTS``; the estimate's weights follow the model's tokenizer."""
        endpoint = parse.endpoint_of(path, ENDPOINTS)
        if endpoint is None:
            return None
        model = parse.model_of(body)
        alias = parse.spelled(model)
        encoding = "claude_v3" if _OLD_TOKENIZER.match(alias) else self.encoding
        parts = [body.get("system"), body.get("messages")]
        most = count(body.get("max_tokens")) or count(body.get("max_completion_tokens")) or None
        tokens = prompt_tokens(parts, body.get("tools"), encoding, MEDIA)
        mode = "fast" if body.get("speed") == "fast" else ""
        if tokens > _LONG_CONTEXT_TOKENS and _LONG_CONTEXT.fullmatch(alias):
            mode = "long_context"
        return Call(self.name, endpoint, model, tokens, most, stream=body.get("stream") is True, mode=mode)

    def pool(self, model: str) -> str:
        """The class of models that shares the limit; a dated snapshot shares its alias's, and 4.5 is 4-5."""
        alias = parse.spelled(model)
        return next((pool for pattern, pool in _POOLS if fnmatchcase(alias, pattern)), alias)

    def charged(self, call: Call, usage: Usage) -> Cost:
        """The reported input without cached reads, and the output; for Haiku 3.5 cached reads count."""
        costs = CostRule() if self.pool(call.model) == "claude-3-5-haiku" else self.costs
        return costs.charged(call, usage)

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:
        """``anthropic-ratelimit-{requests,input-tokens,output-tokens,tokens}-{limit,remaining,reset}``.

        The family ``tokens`` repeats the most restrictive limit in effect, so it is read only without those of input and
        output: as input and output together. ``unified``, ``priority`` and ``fast`` belong to other traffic. Resets are
        instants in whole seconds, compared with the answer's own ``date`` where it has one, so that the local clock does
        not matter.
        """
        now_s = parse.http_date_s(headers.get("date")) or now_s
        found: list[Reading] = []
        for family, unit, resolution in _FAMILIES:
            limit = parse.amount(headers.get(f"anthropic-ratelimit-{family}-limit"))
            remaining = parse.remainder(headers.get(f"anthropic-ratelimit-{family}-remaining"))
            full_s = parse.rfc3339_s(headers.get(f"anthropic-ratelimit-{family}-reset"))
            reset_s = None if full_s is None else parse.wait(max(0.0, full_s - now_s))
            repeats = unit == TOKENS and any(reading.unit != REQUESTS for reading in found)
            if not repeats and (limit is not None or remaining is not None or reset_s is not None):
                found.append(Reading(unit, limit, remaining, reset_s, 60.0, resolution, reset_resolution_s=1.0))
        return found

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Usage whose ``input_tokens`` leave out what was read from and written to the cache; OpenAI's form of a chat."""
        found = parse.usage_of(payload)
        cached, written = count(found.get("cache_read_input_tokens")), count(found.get("cache_creation_input_tokens"))
        fresh = count(found.get("input_tokens")) or count(found.get("prompt_tokens"))
        output = count(found.get("output_tokens")) or count(found.get("completion_tokens"))
        return parse.make_usage(fresh + cached + written, output, cached, written)

    def _on_event(self, event: dict[str, Any], known: Usage | None) -> Found:
        """``message_start`` names the input; each ``message_delta`` the output so far, and perhaps the input again.

        The events of OpenAI's form have no type.
        """
        kind, error = event.get("type"), as_mapping(event.get("error"))
        if kind == "error" or error:
            return None, self._classify(None, error, as_text(error.get("message"))[:4_096], {}), False
        usage = self.usage(event) if kind in ("message_start", "message_delta", None) else None
        if usage and known:
            side = usage if usage.input_tokens else known
            output = max(usage.output_tokens, known.output_tokens)
            usage = Usage(side.input_tokens, output, side.cached_tokens, side.cache_write_tokens)
        return usage, None, kind == "message_stop"

    def _classify(self, status: int | None, error: Mapping[str, Any], text: str, headers: Headers) -> Refusal | None:
        """Classify by the status, the error's type and ``error_code``, and the limit in its message."""
        kind_of = as_text(error.get("type"))[:100]
        code = as_text(as_mapping(error.get("details")).get("error_code") or error.get("error_code"))[:100]
        limited = status == 429 or (status is None and kind_of == "rate_limit_error")
        match = _DIMENSION.search(text)
        amount = parse.number(parse.ungrouped(match[1])) if match else None
        scope = RefusalScope.MODE if (match and match[2]) or _MODE.search(text) else RefusalScope.POOL
        fast_limits = (parse.number(headers.get(f"anthropic-fast-{side}-tokens-limit")) for side in ("input", "output"))
        if match is None and 0 in fast_limits:  # without fast mode
            amount, scope = 0.0, RefusalScope.MODE
        if status == 402 or ((limited or status == 400) and _MONEY.search(f"{code} {kind_of} {text}")):
            kind, scope = RefusalKind.MONEY, RefusalScope.POOL
        elif status in (503, 529) or (status is None and kind_of == "overloaded_error"):
            kind = RefusalKind.CAPACITY
        elif status == 413:
            kind, scope = RefusalKind.NEVER_FITS, RefusalScope.REQUEST
        elif not limited:
            return None
        elif amount == 0 or _REQUIRED.search(text):  # the organization does not have this mode or model
            kind = RefusalKind.NEVER_FITS
        else:
            kind = RefusalKind.GROWTH if code == "ramp_limit_exceeded" else RefusalKind.RATE
        return Refusal(
            kind=kind,
            message=as_text(error.get("message"))[:300],
            code=code or kind_of,
            retry_after_s=parse.retry_after_s(headers),
            unit=match[3].lower().replace(" ", "_") if match else CONCURRENCY if _CONCURRENT.search(text) else None,
            period_s=parse.PERIODS_S[match[4].lower()] if match else None,
            limit=parse.amount(parse.ungrouped(match[1])) if match else None,
            scope=scope,
        )
