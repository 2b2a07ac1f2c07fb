"""Mistral: headers of its own, no resets, limits of 0."""

from __future__ import annotations

import pytest
from cases import feed, load, sse

from paceline import Limiter
from paceline.core.quota import TOKENS
from paceline.providers.answers import usage_cost
from paceline.providers.base import Usage
from paceline.providers.registry import provider_named

PROVIDER = provider_named("mistral")
CASES = load("mistral")


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/chat/completions", "chat"), ("/v1/fim/completions", "completions"), ("/v1/agents/completions", "completions"),
        ("/v1/embeddings", "embeddings"), ("/v1/ocr", "ocr"), ("/v1/models", None), ("/v1/conversations", "conversations"),
        ("/v1/conversations/c1", "conversations"), ("/v1/conversations/c1/history", None),
    ],
)  # fmt: skip
def test_paths(path, endpoint):
    call = PROVIDER.describe(path, {"model": "mistral-large-latest"})
    assert (call.endpoint if call else None) == endpoint


def test_usage_comes_with_the_last_chunk():
    last = {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}
    assert feed(PROVIDER, sse({"choices": []}, last, b"[DONE]"), stream=True).usage == Usage(9, 4)
    assert usage_cost("mistral/mistral-large-latest", last["usage"])[TOKENS] == 13


def test_the_first_answer_raises_the_free_plans_limits():
    limiter = Limiter.for_provider("mistral")
    scheduler = limiter.pacer.pools.scheduler("mistral-large-latest")
    headers = next(case["headers"] for case in CASES["header"] if case["what"].startswith("live"))
    permit = limiter.try_acquire("mistral-large-latest", requests=0.25)  # a whole one would wait
    scheduler.observe(PROVIDER.readings(headers, 0.0), permit.reservation)
    assert [m.quota.amount for m in scheduler.pool.ledger.meters] == [720, 5_000_000]
    permit.cancel()
