"""Perplexity: requests, and tokens that nobody limits."""

from __future__ import annotations

import pytest
from cases import feed, sse

from paceline.core.quota import REQUESTS
from paceline.providers.base import Usage
from paceline.providers.registry import provider_named
from paceline.providers.tables import lookup

PROVIDER = provider_named("perplexity")


@pytest.mark.parametrize(
    ("path", "endpoint", "model"),
    [
        ("/chat/completions", "chat", "sonar-pro"),
        ("/v1/responses", "responses", "agent-api"),
        ("/v1/agent", "responses", "agent-api"),
        ("/search", "search", "search-api"),
    ],
)
def test_apis_with_limits_of_their_own(path, endpoint, model):
    call = PROVIDER.describe(path, {"model": "sonar-pro", "query": ["one", "two"], "input": "three"})
    assert call is not None
    assert (call.endpoint, call.model) == (endpoint, model)
    assert PROVIDER.held(call, call.input_tokens, 10)[REQUESTS] == 1


def test_other_paths_are_not_metered():
    assert PROVIDER.describe("/async/jobs", {}) is None


def test_every_chunk_names_the_usage_so_far_and_the_last_one_holds():
    chunks = [{"choices": [{}], "usage": {"prompt_tokens": 9, "completion_tokens": n, "citation_tokens": n * 10}} for n in (1, 2, 4)]  # fmt: skip
    assert feed(PROVIDER, sse(*chunks, b"[DONE]"), stream=True).usage == Usage(49, 4)
    assert feed(PROVIDER, sse(*chunks), stream=True).usage == Usage(49, 4, partial=True)


def test_published():
    def quotas(model, tier=None):
        return [str(quota) for quota in lookup("perplexity", model, tier).quotas]

    assert quotas("async-api", 3) == ["40 requests/min"]
    assert quotas("agent-api", 2) == ["8 requests/s", "500 requests/min"]
    [search] = lookup("perplexity", "search-api").quotas
    assert (search.rate, search.burst) == (50, 50)
