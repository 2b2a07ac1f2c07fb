"""Cerebras: two counts of tokens, and resets that are none."""

from __future__ import annotations

from cases import feed, sse
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.quota import TOKENS
from paceline.providers.base import Call, Usage
from paceline.providers.registry import provider_named
from paceline.providers.tables import lookup

PROVIDER = provider_named("cerebras")


def test_everything_that_was_asked_is_held_in_both_counts():
    call = PROVIDER.describe("/v1/chat/completions", {"model": "gpt-oss-120b", "max_completion_tokens": 400})
    assert call is not None
    held = PROVIDER.held(call, 100, 20)
    assert (held[TOKENS], held["uncached_tokens"]) == (500, 500)
    unasked = PROVIDER.describe("/v1/chat/completions", {"model": "gpt-oss-120b", "max_completion_tokens": -1})
    assert unasked is not None
    assert PROVIDER.held(unasked, 100, 20)["uncached_tokens"] == 16_484


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_counts_differ_by_the_cached_reads(fresh, cached, output):
    charged = PROVIDER.charged(Call("cerebras", "chat", "m", 1), Usage(fresh + cached, output, cached))
    assert charged["uncached_tokens"] == fresh + output
    assert charged[TOKENS] == fresh + cached + output


def test_usage_in_a_stream():
    last = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}, "time_info": {}}
    assert feed(PROVIDER, sse({"choices": [{}], "usage": None}, last, b"[DONE]"), stream=True).usage == Usage(9, 4)


def test_published():
    def amounts(model, tier):
        return [(q.unit, int(q.amount), int(q.period_s)) for q in lookup("cerebras", model, tier).quotas]

    trial = [("requests", 5, 60), ("uncached_tokens", 30_000, 60), (TOKENS, 90_000, 60), (TOKENS, 10**6, 3_600), (TOKENS, 10**6, 86_400)]  # fmt: skip
    assert amounts("gpt-oss-120b", None) == amounts("qwen-3.8-27b", "free_trial") == amounts("m", None) == trial
    assert amounts("gpt-oss-120b", "developer") == [("requests", 1_000, 60), ("uncached_tokens", 10**6, 60), (TOKENS, 3_000_000, 60)]  # fmt: skip
    assert amounts("qwen-3.8-27b", "developer") == [("requests", 300, 60), ("uncached_tokens", 150_000, 60), (TOKENS, 750_000, 60)]  # fmt: skip
    assert lookup("cerebras", "m").confidence == "assumed"
