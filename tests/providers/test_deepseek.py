"""DeepSeek: slots, and answers that keep the connection alive before they start."""

from __future__ import annotations

import json

import pytest
from cases import feed, sse

from paceline.core.quota import CONCURRENCY, REQUESTS, TOKENS, Rule
from paceline.core.results import RefusalKind
from paceline.providers.base import Usage
from paceline.providers.registry import provider_named
from paceline.providers.tables import lookup

PROVIDER = provider_named("deepseek")
ANSWER = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 8}}


def test_a_request_holds_a_slot():
    call = PROVIDER.describe("/chat/completions", {"model": "deepseek-v4-pro", "messages": [], "max_tokens": 100})
    assert call is not None
    held = PROVIDER.held(call, 50, 400)
    assert (held[CONCURRENCY], held[REQUESTS], held[TOKENS]) == (1, 1, 150)
    assert CONCURRENCY not in PROVIDER.charged(
        call, Usage(50, 10)
    )  # released when the answer is complete, never refunded


def test_keep_alive_comments_and_lines_before_the_answer():
    alive = b": keep-alive\n\n" * 1_000
    stream = feed(PROVIDER, alive + sse({"choices": [], "usage": None}) + alive + sse(ANSWER, b"[DONE]"), stream=True)
    assert (stream.usage, stream.done, stream.refusal) == (Usage(9, 4, 8), True, None)
    assert feed(PROVIDER, b"\n" * 300 + json.dumps(ANSWER).encode()).usage == Usage(9, 4, 8)


def test_many_empty_lines_before_a_long_body():
    body = json.dumps({"choices": ["x" * 200_000], **ANSWER}).encode()
    reader = PROVIDER.usage_reader(PROVIDER.describe("/chat/completions", {}))
    reader.feed(b"\n" * 200_000 + body)
    reader.close()
    assert reader.usage == Usage(9, 4, 8)


def test_published():
    for model, slots, confidence in (
        ("deepseek-v4-pro", 500, "documented"),
        ("deepseek-v4-flash", 2_500, "documented"),
        ("deepseek-v9", 500, "assumed"),
    ):
        published = lookup("deepseek", model)
        assert [(q.unit, q.amount, q.rule) for q in published.quotas] == [(CONCURRENCY, slots, Rule.SLOTS)]
        assert (published.pool, published.confidence) == (model, confidence)


@pytest.mark.parametrize(
    ("error", "kind", "unit"),
    [
        ({"code": "insufficient_quota", "message": "You exceeded your current quota"}, RefusalKind.MONEY, None),
        ({"message": "Insufficient Balance"}, RefusalKind.MONEY, None),
        ({"message": "The server is overloaded"}, RefusalKind.CAPACITY, None),
        ({"code": "rate_limit_exceeded", "message": "Rate limit reached"}, RefusalKind.RATE, CONCURRENCY),
        ({"message": "Please wait"}, RefusalKind.RATE, CONCURRENCY),
    ],
)
def test_a_status_alone_says_less_than_a_name(error, kind, unit):
    refusal = PROVIDER.refusal(429, {}, json.dumps({"error": error}).encode())
    assert (refusal.kind, refusal.unit) == (kind, unit)
