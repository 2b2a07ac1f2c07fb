"""AWS Bedrock's runtime endpoint. What Bedrock counts, and what is not read here, with sources: ``tables/bedrock.toml``.

boto3 is paced by :func:`paceline.instrument`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from paceline.core.quota import Cost
from paceline.providers import parse
from paceline.providers.anthropic import MEDIA, hour_writes
from paceline.providers.base import COUNTING, Call, Usage, UsageReader
from paceline.providers.common import BaseProvider, CostRule
from paceline.providers.forms import about, dialect
from paceline.providers.registry import changed
from paceline.providers.streams import EventStreamReader, Found
from paceline.responses.values import items_of

_PATH = re.compile(r"/model/(.{1,2048}?)/(converse|invoke|count-tokens)(-stream|-with-response-stream)?/?")
_HOST = re.compile(r"bedrock-runtime(?:-fips)?\.([a-z]{2,}(?:-[a-z]+)+-\d+)\.amazonaws\.com")
_ARN = re.compile(r"arn:[\w-]+:bedrock:([\w-]*):\d*:[\w-]+/(.+)", re.ASCII)

_METRICS: Final = "amazon-bedrock-invocationMetrics"
_OWN: Final = dialect("bedrock")


class Bedrock(BaseProvider):
    """The Bedrock runtime. A pool is a model or profile as requests name it, in ``region`` where the host names one."""

    costs = CostRule(holds_maximum=True)
    media = MEDIA
    # All input is held; what was read from the cache is given back at the end (its documentation, 2026-10).
    holds_cached = True
    region = ""
    refines = _OWN["refines"]

    def at_host(self, host: str) -> Bedrock:
        match = _HOST.fullmatch(host)
        return self if match is None else changed(self, region=match[1])

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        match = _PATH.fullmatch(unquote(path.partition("?")[0]))
        if match is None:
            return None
        if match[2] == "count-tokens":
            return self._call(_OWN, COUNTING, COUNTING, body)
        arn = _ARN.fullmatch(match[1])
        region, model = (arn[1], arn[2]) if arn else (self.region, match[1])
        name = f"{region}/{model}"[:200] if region else model[:200]
        call = self._call(_OWN, match[2], model[:200], body)
        call = replace(call, model=name, stream=match[3] is not None)
        return replace(call, max_output_tokens=0) if "embed" in model else call

    def held(self, call: Call, input_tokens: float, output_tokens: float) -> Cost:
        """All input and the most output, the model's maximum where the request sets none; the burndown comes later."""
        if call.max_output_tokens is None:
            call = replace(call, max_output_tokens=about("bedrock", "models", call.model)[1])
        return super().held(call, input_tokens, output_tokens)

    def charged(self, call: Call, usage: Usage) -> Cost:
        """The input without cache reads, and output times the burndown rate. It may be more than was held."""
        weight, _ = about("bedrock", "models", call.model)
        return CostRule(counts_cached=False, output_weight=weight).charged(call, usage)

    def usage_reader(self, call: Call) -> UsageReader:
        if not call.stream:
            return super().usage_reader(call)
        return EventStreamReader(partial(self._on_frame, [0]), "metadata", "chunk")

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Usage of Converse, of the metrics at the end of a stream, or in a model's own body."""
        found, results = parse.usage_of(payload, _OWN["usages"]), items_of(payload.get("results"))
        usage = parse.usage_by(_OWN["counts"], found, *results)  # Titan counts each of its results
        return usage and replace(usage, hour_write_tokens=min(hour_writes(found), usage.cache_write_tokens))

    def _on_frame(self, hours: list[int], kind: str, event: dict[str, Any]) -> Found:
        """``hours``: what the beginning of Claude's stream says to be kept for an hour, which the metrics leave out."""
        if kind == "metadata":
            return self.usage(event), None, True
        if kind == "chunk":
            if event.get("type") == "message_start":
                hours.append(hour_writes(parse.usage_of(event)))
            usage = self.usage(event) if _METRICS in event else None
            if usage is not None:
                usage = replace(usage, hour_write_tokens=min(max(hours), usage.cache_write_tokens))
            return usage, None, _METRICS in event
        return None, self._refused({**event, "__type": kind}), False
