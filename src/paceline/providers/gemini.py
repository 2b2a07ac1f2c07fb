"""Google's Gemini API with a key of AI Studio, and Gemini on Vertex AI.

What each of them counts, with sources: ``tables/gemini.toml``, ``tables/vertex.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from paceline.core.quota import INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS, USD
from paceline.core.results import Reading, Refusal, RefusalKind, RefusalScope
from paceline.providers import parse
from paceline.providers.base import Call, Headers, Usage, UsageReader
from paceline.providers.common import CostRule
from paceline.providers.openai import MESSAGES, OpenAIDialect
from paceline.providers.parse import as_mapping, as_text, count
from paceline.providers.prompt import MediaTokens
from paceline.providers.streams import JsonReader

DAY_S: Final = 86_400.0
DAY_ENDS_IN: Final = "America/Los_Angeles"

METHODS: Final = {
    "generateContent": "generate",
    "streamGenerateContent": "generate",
    "embedContent": "embed",
    "batchEmbedContents": "embed",
}
"""The methods that are metered; ``countTokens`` and the Batch API have limits of their own."""

# Images: 258 tokens for each tile of 768 x 768 before Gemini 3, up to 1 120 for an image from it on. Audio: a minute
# at 32 tokens a second. Files: assumption, three pages of 560 (a video is far more: 263 tokens a second).
MEDIA: Final = MediaTokens(image=1_120, small_image=258, audio=1_920, file=1_680)

_PATH = re.compile(r"/models/([^/:]{1,200}):(\w{1,40})/?$", re.ASCII)
_ZERO = re.compile(r"\blimit: 0(?![\d.])")
_EXCEEDED = re.compile(r"Quota exceeded for (?:metric: )?(aiplatform\.googleapis\.com/\w{1,200})")
_RETRY = re.compile(r"[Rr]etry in ([\d.hms]{1,40})")
_UNITS: Final = (
    ("inputtoken", INPUT_TOKENS), ("outputtoken", OUTPUT_TOKENS), ("token", TOKENS), ("image", "images"), ("request", REQUESTS),
)  # fmt: skip
_PERIODS: Final = (("perday", DAY_S), ("perhour", 3_600.0), ("perminute", 60.0))
_SPENT = re.compile(r"spend(?:ing)?[ -](?:cap|limit|based)|credits? (?:are|is|balance)", re.IGNORECASE)  # words assumed
_TEN_MINUTES = re.compile(r"(?:10|ten)[ -]minute", re.IGNORECASE)


class Gemini(OpenAIDialect):
    """The Gemini API: Google's own methods, ``/interactions``, and OpenAI's paths under ``/openai/``.

    The unit ``tokens`` counts input only; output is counted for a user's own quotas in ``output_tokens``.
    """

    costs = CostRule(output_weight=0.0)
    media = MEDIA
    paths = ((re.compile(r"/interactions$"), "interactions"),)
    events = (b'"usageMetadata"', b'"usage"', b'"error"', b"[DONE]")
    unnamed = RefusalKind.RATE
    """The kind of a refusal that names no quota."""

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe ``.../models/<model>:<method>``; the model and whether it streams stand in the path."""
        match = _PATH.search(path.partition("?")[0])
        if match is None:
            return super().describe(path, body)
        model, method = match.groups()
        endpoint = METHODS.get(method)
        if endpoint is None:
            return None
        settings = as_mapping(body.get("generationConfig") or body.get("generation_config"))
        names = ("systemInstruction", "system_instruction", "contents", "content", "requests")
        schemas = [body.get("tools"), settings.get("responseSchema"), settings.get("responseJsonSchema")]
        most = count(settings.get("maxOutputTokens")) * max(count(settings.get("candidateCount")), 1) or None
        parts, schemas = [body.get(name) for name in names], [schema for schema in schemas if schema]
        most = 0 if endpoint == "embed" else most
        return self._call(endpoint, model, parts, schemas, most, stream=method.startswith("stream"))

    def pool(self, model: str) -> str:
        """The model itself: Google names each in its refusals, snapshots too."""
        return model.removeprefix("models/")

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:
        """``x-ratelimit-{limit,remaining,reset}``, as gateways and older clients report them: requests, for an unknown period.

        Google's own answers have none of them (observed 2026-08), and no page defines them. So a remainder counts only with
        ``0 <= remaining <= limit``; the reset is an instant or a duration.
        """
        limit, remaining = (
            parse.amount(headers.get("x-ratelimit-limit")),
            parse.remainder(headers.get("x-ratelimit-remaining")),
        )
        reset_s = parse.reset_s(headers.get("x-ratelimit-reset"), headers, now_s)
        if limit is None or (remaining is not None and not 0 <= remaining <= limit):
            return []
        return [Reading(REQUESTS, limit, remaining, reset_s)]

    def usage_reader(self, call: Call) -> UsageReader:
        """A reader for a JSON answer, or for server-sent events (``alt=sse``), of which the last usage counts.

        A stream without ``alt=sse`` is one JSON array; its usage is not read, and its estimate stays charged.
        """
        if call.endpoint in METHODS.values() and not call.stream:
            return JsonReader(self.usage, "usageMetadata")
        return super().usage_reader(call)

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """``usageMetadata``, as the wire or as Google's SDK spells it; output leaves thoughts out, so they are added."""
        named = payload.get("usageMetadata") or payload.get("usage_metadata") or payload.get("usage")
        found = as_mapping(named) or payload
        prompt, tools, answer, thoughts, cached = (
            count(found.get(wire) or found.get(sdk))
            for wire, sdk in (
                ("promptTokenCount", "prompt_token_count"),
                ("toolUsePromptTokenCount", "tool_use_prompt_token_count"),
                ("candidatesTokenCount", "candidates_token_count"),
                ("thoughtsTokenCount", "thoughts_token_count"),
                ("cachedContentTokenCount", "cached_content_token_count"),
            )
        )
        usage = parse.make_usage(prompt + tools, answer + thoughts, cached, 0)
        return usage or super().usage(payload)

    def _classify(self, status: int | None, error: Mapping[str, Any], text: str, headers: Headers) -> Refusal | None:
        """Classify by the violated quota where the answer names one; its wait may differ from ``RetryInfo``."""
        exhausted = status == 429 or (status is None and _code(error) in ("RESOURCE_EXHAUSTED", "429"))
        unit, period_s, limit = _violation(error, text)
        scope = RefusalScope.POOL
        wait_s, kind = _asked_wait(error, text, parse.retry_after_s(headers)), RefusalKind.RATE
        if status in (503, 529) or (status is None and _code(error) in ("UNAVAILABLE", "503")):
            kind = RefusalKind.CAPACITY
        elif status == 402:
            kind = RefusalKind.MONEY
        elif status == 413:
            kind, scope = RefusalKind.NEVER_FITS, RefusalScope.REQUEST
        elif not exhausted:
            return None
        elif limit == 0 or _ZERO.search(text):  # a model that this tier does not have
            kind = RefusalKind.NEVER_FITS
        elif unit is None and _SPENT.search(text):
            if _TEN_MINUTES.search(text):
                unit, period_s = USD, 600.0
            else:
                kind = RefusalKind.MONEY
        elif unit is None and period_s is None:
            kind = self.unnamed
        if period_s == DAY_S:  # the free tier asks for 38 s where the day ends tonight
            wait_s = _to_midnight_s(parse.http_date_s(headers.get("date")))
        return Refusal(
            kind=kind,
            message=as_text(error.get("message"))[:300],
            code=_code(error),
            retry_after_s=wait_s,
            unit=unit,
            period_s=period_s,
            limit=limit or None,
            scope=scope,
        )


_OTHER_PUBLISHERS = re.compile(r"/publishers/(?!google/)")
_CLAUDE = re.compile(
    r"/locations/([\w-]{1,50})/publishers/anthropic/models/([^/:]{1,200}):(?:raw|streamRaw)Predict/?$", re.ASCII
)

# Claude's quotas by lineage, for the endpoints ``global``, ``us`` and ``eu`` and for models launched after 2026-05-26;
# older models and all regions have one for each model. Source: https://docs.cloud.google.com/gemini-enterprise-agent-
# platform/models/partner-models/claude/quotas, 2026.
_LINEAGES = re.compile(
    r"(global|us|eu)/claude-(?:(fable|mythos)-\d+|(opus)-(?:4-[89]|[5-9])|(sonnet)-[5-9]|(haiku)-(?:5-[5-9]|[6-9]))(?:-|@|$)"
)


class Vertex(Gemini):
    """Gemini's dialect under ``/projects/<project>/locations/<region>/publishers/google/models/``.

    A 429 that names no quota is shared capacity running out. Whether output and cached input count is not documented;
    both are counted. Claude's models are ``<location>/<model>``, because each location has its own quotas.
    """

    costs = CostRule()
    unnamed = RefusalKind.CAPACITY

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe a request for one of Google's own models, or for one of Anthropic's."""
        match = _CLAUDE.search(path.partition("?")[0])
        if match:
            return self._described(MESSAGES, f"{match[1]}/{match[2]}", body)
        return None if _OTHER_PUBLISHERS.search(path) else super().describe(path, body)

    def pool(self, model: str) -> str:
        """The model (OpenAI's paths write ``google/`` before it); for Claude its lineage, or its alias."""
        lineage = _LINEAGES.match(model)
        if lineage:
            return f"{lineage[1]}/claude-{next(filter(None, lineage.groups()[1:]))}"
        if "/claude-" in model:
            return parse.undated(model)
        return super().pool(model.removeprefix("google/"))


def _code(error: Mapping[str, Any]) -> str:
    return (as_text(error.get("status")) or as_text(error.get("code")))[:100]


def _details(error: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    details = error.get("details")
    for detail in details[:20] if isinstance(details, list) else []:
        if as_text(as_mapping(detail).get("@type")).endswith(f"google.rpc.{kind}"):
            yield detail


def _violation(error: Mapping[str, Any], text: str) -> tuple[str | None, float | None, float | None]:
    """Unit, period and limit of the violated quota that takes longest; a limit of 0 before all others.

    Vertex names the quota in its message, without details (2024 to 2025).
    """
    found = []
    for failure in _details(error, "QuotaFailure"):
        violations = failure.get("violations")
        for violation in violations[:20] if isinstance(violations, list) else []:
            fields = as_mapping(violation)
            value = as_text(fields.get("quotaValue"))
            limit = 0.0 if parse.number(value) == 0 else parse.amount(value)
            unit, period_s = _quota_named(as_text(fields.get("quotaId")), as_text(fields.get("quotaMetric")))
            found.append((limit == 0, period_s or 0.0, unit, period_s, limit))
    if found:
        return max(found, key=lambda violation: violation[:2])[2:]
    named = _EXCEEDED.search(text)
    return (*_quota_named(named[1]), None) if named else (None, None, None)


def _quota_named(name: str, metric: str = "") -> tuple[str | None, float | None]:
    """Unit and period in a quota's name; the metric's path helps where the name has no unit."""
    name, metric = (words.lower().replace("_", "") for words in (name, metric))
    unit = next((unit for word, unit in _UNITS if word in f"{name} {metric}"), None)
    return unit, next((period for word, period in _PERIODS if word in name), None)


def _asked_wait(error: Mapping[str, Any], text: str, header_wait_s: float | None) -> float | None:
    """The longest wait in ``RetryInfo``, the message and the headers, in seconds."""
    again = _RETRY.search(text)
    delays = [parse.go_duration_s(as_text(detail.get("retryDelay"))) for detail in _details(error, "RetryInfo")]
    return parse.longest(header_wait_s, parse.go_duration_s(again[1].rstrip(".")) if again else None, *delays)


def _to_midnight_s(now_s: float | None) -> float:
    """Seconds until the day ends in Los Angeles; a whole day, which is never too early, where the time is unknown."""
    from datetime import datetime, time, timedelta
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    if now_s is None:
        return DAY_S
    try:
        now = datetime.fromtimestamp(now_s, ZoneInfo(DAY_ENDS_IN))
        midnight = datetime.combine(now.date() + timedelta(days=1), time(), now.tzinfo)
        return parse.wait(midnight.timestamp() - now_s) or DAY_S
    except (ValueError, OverflowError, OSError, ZoneInfoNotFoundError):
        return DAY_S
