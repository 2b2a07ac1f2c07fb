"""Cohere: chat, embeddings and reranking, each limited in its own way. Facts and sources: ``tables/cohere.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from paceline.core.quota import REQUESTS, TOKENS, Cost
from paceline.core.results import Refusal, RefusalKind
from paceline.providers import parse
from paceline.providers.base import Call, Headers, Usage, UsageReader
from paceline.providers.common import CostRule
from paceline.providers.openai import OpenAIDialect
from paceline.providers.parse import as_mapping, count
from paceline.providers.prompt import MediaTokens, prompt_tokens
from paceline.providers.streams import Found, JsonReader

INPUTS: Final = "inputs"
"""The unit of embeddings: one text or image."""

PATHS: Final = {
    "/v2/chat": "chat",
    "/v1/chat": "chat_v1",
    "/v2/embed": "embed",
    "/v1/embed": "embed",
    "/v2/rerank": "rerank",
    "/v1/rerank": "rerank",
}
_TEXTS = ("messages", "message", "preamble", "chat_history", "documents", "query", "texts", "images", "inputs")
MEDIA: Final = MediaTokens(image=1_600, small_image=256, audio=600, file=4_500)  # assumption

_LIMITED = re.compile(r"limit(?:ed to|:| is) ([\d,]{1,20}) (tokens|API calls)? ?(?:/|per) ?(minute|month)")
_PERIODS: Final = {"minute": 60.0, "month": 30 * 86_400.0}


@dataclass(frozen=True, slots=True)
class CohereCall(Call):
    """A request to Cohere; ``inputs``: the texts and images that it embeds."""

    inputs: int = 0


class Cohere(OpenAIDialect):
    """The Cohere API, and OpenAI's paths under ``/compatibility/``."""

    costs = CostRule(holds_maximum=True)
    units = frozenset({INPUTS})
    media = MEDIA
    events = (b'"usage"', b'"error"', b"message-end", b"[DONE]")

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe a request to one of ``PATHS``."""
        endpoint = parse.endpoint_of(path, PATHS)
        if endpoint is None:
            return super().describe(path, body)
        lists = [body.get(key) for key in ("texts", "images", "inputs")] if endpoint == "embed" else []
        return CohereCall(
            provider=self.name,
            endpoint=endpoint,
            model=parse.model_of(body),
            input_tokens=prompt_tokens([body.get(key) for key in _TEXTS], body.get("tools"), self.encoding, MEDIA),
            max_output_tokens=(count(body.get("max_tokens")) or None) if endpoint.startswith("chat") else 0,
            stream=body.get("stream") is True,
            inputs=sum(len(inputs) for inputs in lists if isinstance(inputs, list)),
        )

    def held(self, call: Call, input_tokens: float, output_tokens: float) -> Cost:
        """One request, its inputs, and the tokens, which only the limits of trial keys count."""
        return super().held(call, input_tokens, output_tokens) | _inputs(call)

    def charged(self, call: Call, usage: Usage) -> Cost:
        return super().charged(call, usage) | _inputs(call)

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        """Classify as OpenAI's, by the limit in the message; a month's calls are a balance that is used up."""
        refusal = super().refusal(status, headers, body)
        if refusal is None:
            return None
        named, wait_s = _LIMITED.search(parse.error_of(body)[1]), refusal.retry_after_s
        if wait_s is None:
            wait_s = parse.seconds_until(parse.number(headers.get("x-ratelimit-reset")), headers)
        if named is None or refusal.kind is not RefusalKind.RATE:
            return replace(refusal, retry_after_s=wait_s)
        return replace(
            refusal,
            kind=RefusalKind.MONEY if named[3] == "month" else RefusalKind.RATE,
            retry_after_s=wait_s,
            unit=TOKENS if named[2] == "tokens" else REQUESTS,
            period_s=_PERIODS[named[3]],
            limit=parse.amount(parse.ungrouped(named[1])),
        )

    def usage_reader(self, call: Call) -> UsageReader:
        """A reader for a JSON body (``usage``, before v2 and for embeddings ``meta``), or for the events of v2 chat.

        A stream of v1 is JSON of its own on every line; its last ``meta`` names the usage.
        """
        if call.endpoint in ("chat_v1", "embed", "rerank"):
            return JsonReader(self.usage, "meta")
        return super().usage_reader(call)

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """``billed_units`` (without them ``tokens``) of ``usage`` or ``meta``; OpenAI's form on its paths."""
        holders = (payload, as_mapping(payload.get("response")), as_mapping(payload.get("delta")))
        found = next((h[key] for h in holders for key in ("usage", "meta") if isinstance(h.get(key), Mapping)), payload)
        for name in ("billed_units", "tokens"):
            units = as_mapping(found.get(name))
            usage = parse.make_usage(count(units.get("input_tokens")), count(units.get("output_tokens")), 0, 0)
            if usage is not None:
                return usage
        return super().usage(payload)

    def _on_event(self, event: dict[str, Any], known: Usage | None) -> Found:
        if event.get("type") == "message-end":
            return self.usage(event), None, True
        return super()._on_event(event, known)


def _inputs(call: Call) -> Cost:
    return {INPUTS: float(call.inputs)} if isinstance(call, CohereCall) and call.inputs else {}
