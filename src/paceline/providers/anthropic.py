"""Anthropic's Messages API. What Anthropic counts, with sources: ``tables/anthropic.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from paceline.core.quota import OUTPUT_TOKENS, Cost
from paceline.core.results import Refusal, RefusalKind, RefusalScope
from paceline.providers import parse
from paceline.providers.base import COUNTING, Call, Headers, Usage
from paceline.providers.common import BaseProvider, CostRule
from paceline.providers.forms import dialect, endpoint_of, is_long, pool_in
from paceline.providers.prompt import MediaTokens
from paceline.providers.streams import Found
from paceline.responses.values import as_mapping, as_text, count, items_of

_OWN: Final = dialect("anthropic")

MEDIA: Final = MediaTokens(**_OWN["media"])

_OLD_TOKENIZER = re.compile(r"claude-(?:2|3|instant|(?:opus|sonnet|haiku)-4(?:-[0-6])?$)")

_OWN_STEPS: Final = frozenset({"message", "fallback_message"})
"""The iterations of the model and of its fallbacks: with one of them, all that is charged is among the iterations."""


class Anthropic(BaseProvider):
    """The Anthropic API."""

    costs = CostRule(counts_cached=False)
    media = MEDIA
    charged_after = frozenset({OUTPUT_TOKENS})
    refines = _OWN["refines"]
    asks_usage = True  # WEAK: ``stream_options`` was not looked up here; if it is refused, the request goes without it
    events = (b'"usage"', b'"error"', b"message_stop", b"[DONE]")

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        endpoint = endpoint_of("anthropic", path)
        if endpoint is None:
            return None
        model = parse.model_of(body)
        alias = parse.spelled(model)
        call, mode = self._call(_OWN, endpoint, model, body), ""
        if endpoint == COUNTING:
            return call
        if is_long("anthropic", alias, call.input_tokens):
            mode = "long_context"
        elif body.get("speed") == "fast":
            mode = "fast"
        tier = "fast" if mode == "fast" else ""
        return replace(call, mode=mode, tier=tier) if mode or call.tier else call

    def encoding_of(self, model: str) -> str:
        return "claude_v3" if _OLD_TOKENIZER.match(parse.spelled(model)) else self.encoding

    def pool(self, model: str) -> str:
        """The class of models that shares the limit; a dated snapshot shares its alias's, and 4.5 is 4-5."""
        return pool_in("anthropic", parse.spelled(model))

    def charged(self, call: Call, usage: Usage) -> Cost:
        """The reported input without cached reads, and the output; for Haiku 3.5 cached reads count."""
        costs = CostRule() if self.pool(call.model) == "claude-3-5-haiku" else self.costs
        return costs.charged(call, usage)

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Usage whose ``input_tokens`` leave out what was read from and written to the cache; OpenAI's form of a chat.

        ``speed`` is the mode that has answered, and what is charged (https://platform.claude.com/docs/en/build-with-claude/fast-mode, 2026).
        The tokens of compactions, of advisors and of a model that declined in the middle of its answer are charged, and stand among the
        ``iterations`` alone (.../build-with-claude/compaction and .../refusals-and-fallback, 2026-11).
        """
        found = parse.usage_of(payload)
        steps, models = _counted(found)
        usage = parse.usage_by(_OWN["counts"], *steps, models=models)
        if usage is None:
            return None
        hour = max(hour_writes(found), sum(map(hour_writes, steps)))
        tier = as_text(found.get("speed") or found.get("service_tier"))[: parse.TIER_MAX]
        return replace(usage, hour_write_tokens=min(hour, usage.cache_write_tokens), tier=tier)

    def _on_event(self, event: dict[str, Any], known: Usage | None) -> Found:
        """``message_start`` names the input; each ``message_delta`` the output so far, and perhaps the input again.

        The output is whole with the reason to stop, or at the end. The events of OpenAI's form have no type.
        """
        kind = event.get("type")
        if kind == "error" or event.get("error"):
            return None, self._refused(event), False
        if kind == "message_stop":
            return known and replace(known, partial=known.partial and not known.output_tokens), None, True
        usage = self.usage(event) if kind in ("message_start", "message_delta", None) else None
        if usage and kind == "message_start":  # some tokens of output, which say nothing
            usage = replace(usage, output_tokens=0, partial=True)
        elif usage:
            stops = kind is None or as_mapping(event.get("delta")).get("stop_reason")
            usage = replace(usage, partial=usage.partial or not stops)
        return _joined(usage, known) if usage and known else usage, None, False

    def _refined(self, refusal: Refusal, error: Mapping[str, Any], text: str, headers: Headers) -> Refusal:  # noqa: ARG002
        """The organization may not have the fast mode, as headers say."""
        fast = {parse.number(headers.get(f"anthropic-fast-{side}-tokens-limit")) for side in ("input", "output")}
        may_be = refusal.kind in (RefusalKind.RATE, RefusalKind.NEVER_FITS) and refusal.scope is RefusalScope.POOL
        no_fast = may_be and refusal.unit is None and 0 in fast
        return replace(refusal, kind=RefusalKind.NEVER_FITS, scope=RefusalScope.MODE) if no_fast else refusal


def hour_writes(usage: Mapping[str, Any]) -> int:
    """The input that a cache keeps for an hour: in a body of Claude's, or of Bedrock's Converse (``cacheDetails``: its API reference, 2026)."""
    details = (count(one.get("inputTokens")) for one in items_of(usage.get("cacheDetails")) if one.get("ttl") == "1h")
    return count(as_mapping(usage.get("cache_creation")).get("ephemeral_1h_input_tokens")) + sum(details)


def _joined(usage: Usage, known: Usage) -> Usage:
    """What an event states, and what is known from the events before."""
    side = usage if usage.input_tokens else known
    return replace(
        side,
        output_tokens=max(usage.output_tokens, known.output_tokens),
        hour_write_tokens=min(max(usage.hour_write_tokens, known.hour_write_tokens), side.cache_write_tokens),
        tier=usage.tier or known.tier,
        models=usage.models or known.models,
        partial=usage.partial,
    )


def _counted(found: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], tuple[str, ...]]:
    """What is to be added up: the sums of an answer, or its iterations if some are left out there; and the models, if these name them.

    The end of a stream may state the iterations alone. What declined before any output costs nothing.
    """
    every = items_of(found.get("iterations"))
    steps = [one for one in every if count(one.get("output_tokens"))]
    if _OWN_STEPS.isdisjoint(map(_kind, steps)):
        return [found, *steps], ()
    models = tuple(as_text(one.get("model")) for one in steps)
    return [found] if {*map(_kind, every)} == {"message"} else steps, models if all(models) else ()


def _kind(step: Mapping[str, Any]) -> str:
    return as_text(step.get("type"))
