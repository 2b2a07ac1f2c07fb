"""Perplexity: requests only, in a leaky bucket.

Source: https://docs.perplexity.ai/guides/rate-limits-usage-tiers (2026); usage names from its SDK (2026-11).

* Limits: requests a minute per model for chat; requests a second and a minute for the Agent API, a second for the Search
  API, whichever model they use. For an account, by what it has bought so far. Documented as leaky buckets with
  continuous refill.
* Tokens are not limited. Usage names them for budgets of your own: citations are input that searches read
  (documented as such by the price list); reasoning is named beside the completion, and we add it (assumed).
* Headers are not documented. A 401 may also mean that no credits are left (unverified), so it is no refusal here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from paceline.providers.base import Call, Usage
from paceline.providers.compatible import Compatible
from paceline.providers.openai import MEDIA
from paceline.providers.parse import count, endpoint_of, usage_of
from paceline.providers.prompt import prompt_tokens

# APIs with limits of their own, by the end of their path; the Agent API also under OpenAI's name.
_APIS: Final = {"/responses": "agent-api", "/agent": "agent-api", "/search": "search-api"}


class Perplexity(Compatible):
    """The Perplexity API."""

    name = "perplexity"
    hosts = ("api.perplexity.ai",)
    key_env = "PERPLEXITY_API_KEY"

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Chat by its model; the Agent and Search APIs as one model each."""
        api = endpoint_of(path, _APIS)
        if api == "search-api":
            query = prompt_tokens([body.get("query")], None, self.encoding, MEDIA)
            return Call(self.name, "search", api, query, max_output_tokens=0)
        call = super().describe("/responses" if api else path, body)
        return replace(call, model=api) if call is not None and api else call

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """OpenAI's names, and ``citation_tokens`` and ``reasoning_tokens`` beside them."""
        usage, found = super().usage(payload), usage_of(payload)
        if usage is None:
            return None
        return replace(
            usage,
            input_tokens=usage.input_tokens + count(found.get("citation_tokens")),
            output_tokens=usage.output_tokens + count(found.get("reasoning_tokens")),
        )
