"""Google's Gemini API with a key of AI Studio, and Gemini on Vertex AI.

What each of them counts, with sources: ``tables/gemini.toml``, ``tables/vertex.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from paceline.core.quota import REQUESTS
from paceline.providers import parse
from paceline.providers.base import COUNTING, Call, Others, Usage
from paceline.providers.common import CostRule
from paceline.providers.forms import dialect
from paceline.providers.openai import MESSAGES, OpenAIDialect
from paceline.providers.prompt import MediaTokens
from paceline.responses.values import as_text, items_of

_OWN: Final = dialect("gemini")

MEDIA: Final = MediaTokens(**_OWN["media"])

_PATH = re.compile(r"/models/([^/:]{1,200}):(\w{1,40})/?$", re.ASCII)


class Gemini(OpenAIDialect):
    """The Gemini API: Google's own methods, ``/interactions``, and OpenAI's paths under ``/openai/``.

    The unit ``tokens`` counts input only; output is counted for a user's own quotas in ``output_tokens``.
    """

    costs = CostRule(output_weight=0.0)
    media = MEDIA
    paths = ((re.compile(r"/interactions$"), "interactions"),)
    events = (b'"usageMetadata"', b'"usage"', b'"error"', b"[DONE]")
    usages = ("usageMetadata", "usage")
    day_ends_in = "America/Los_Angeles"
    refines = _OWN["refines"]

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        match = _PATH.search(path.partition("?")[0])
        if match is None:
            call, texts = super().describe(path, body), parse.inputs_in(body.get("input"))
            is_batch = call is not None and call.endpoint == "embeddings" and texts > 1
            return replace(call, units={REQUESTS: texts}) if call is not None and is_batch else call
        model, method = match.groups()
        return self._own(model, method, body) if method in _OWN["methods"] else None

    def _own(self, model: str, method: str, body: Mapping[str, Any]) -> Call:
        call = self._call(_OWN, _OWN["methods"][method], model, body)
        if method == "batchEmbedContents":  # each of its texts is a request (100 used up a free key's minute, 2026-06)
            call = replace(call, units={REQUESTS: max(parse.inputs_in(body.get("requests")), 1)})
        # https://ai.google.dev/gemini-api/docs/priority-inference, 2026
        tier = call.tier or parse.tier_of({"service_tier": body.get("serviceTier")})
        # Each text of a batch names the model.
        others = tuple(name for name in call.others.models if name.removeprefix("models/") != model)
        beside = call.others.beside and bool(others)
        return replace(call, tier=tier, stream=method.startswith("stream"), others=Others(others, beside))

    def pool(self, model: str) -> str:
        """The model itself: Google names each in its refusals, snapshots too."""
        return model.removeprefix("models/")

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """``usageMetadata``, as the wire or as Google's SDK spells it; output leaves thoughts out, so they are added."""
        found = parse.usage_of(payload, _OWN["usages"])
        audio, audio_output = (_audio_in(found, _OWN["audio"][part]) for part in ("input", "output"))
        usage = parse.usage_by(_OWN["counts"], found, audio_tokens=audio, audio_output_tokens=audio_output)
        return usage or super().usage(payload)


def _audio_in(usage: Mapping[str, Any], names: list[str]) -> int:
    """The audio in the counts of tokens by modality, which have one of these names."""
    details = items_of(next(filter(None, map(usage.get, names)), None))
    parts = (one for one in details if as_text(one.get("modality")).upper() == "AUDIO")
    return sum(parse.first_count(one, ("tokenCount", "token_count", "tokens")) for one in parts)


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
    refines = (*_OWN["refines"], *dialect("vertex")["refines"])

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        match = _CLAUDE.search(path.partition("?")[0])
        if match:
            counts = match[2] == "count-tokens"  # in place of a model
            return self._described(COUNTING if counts else MESSAGES, f"{match[1]}/{match[2]}", body)
        return None if _OTHER_PUBLISHERS.search(path) else super().describe(path, body)

    def pool(self, model: str) -> str:
        """The model (OpenAI's paths write ``google/`` before it); for Claude its lineage, or its alias."""
        lineage = _LINEAGES.match(model)
        if lineage:
            return f"{lineage[1]}/claude-{next(filter(None, lineage.groups()[1:]))}"
        if "/claude-" in model:
            return parse.undated(model)
        return super().pool(model.removeprefix("google/"))
