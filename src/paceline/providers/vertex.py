"""Gemini on Google's Vertex AI (the Gemini Enterprise Agent Platform).

Sources: https://cloud.google.com/vertex-ai/generative-ai/docs, Standard PayGo and error code 429 (2026).

* No quota in the usual sense: up to the tokens a minute that an organization's spend of the last 30 days has earned,
  traffic goes first; above them it goes as capacity allows. We pace at that line. 30 000 requests a minute for a
  model and region are the only hard limit.
* A 429 ``RESOURCE_EXHAUSTED`` that names no quota is shared capacity running out, not your rate.
* Whether output and cached input count to the line is not documented: we count both.
* Claude and other publishers' models on Vertex have quotas that nobody publishes, and are not metered here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from paceline.core.quota import TOKENS, Cost
from paceline.core.results import RefusalKind
from paceline.providers.base import Call, Usage
from paceline.providers.gemini import Gemini

_OTHERS = re.compile(r"/publishers/(?!google/)")


class Vertex(Gemini):
    """Gemini's dialect under ``/projects/<project>/locations/<region>/publishers/google/models/``."""

    name = "vertex"
    hosts: tuple[str, ...] = ("aiplatform.googleapis.com", "*-aiplatform.googleapis.com")
    key_env = "GOOGLE_OAUTH_ACCESS_TOKEN"  # it takes no keys; the variable's name is an assumption
    unnamed = RefusalKind.CAPACITY

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe a request for one of Google's own models."""
        return None if _OTHERS.search(path) else super().describe(path, body)

    def pool(self, model: str) -> str:
        """The model; OpenAI's paths write ``google/`` before it."""
        return super().pool(model.removeprefix("google/"))

    def held(self, call: Call, input_tokens: float, output_tokens: float) -> Cost:
        """The input and the output to expect."""
        return _with_output(super().held(call, input_tokens, output_tokens))

    def charged(self, call: Call, usage: Usage) -> Cost:
        """The reported input and output."""
        return _with_output(super().charged(call, usage))


def _with_output(cost: Cost) -> Cost:
    return {**cost, TOKENS: cost["input_tokens"] + cost["output_tokens"]}
