"""Groq: OpenAI's dialect with other periods."""

from __future__ import annotations

import json

import pytest
from cases import each, feed, load, sse

from paceline.core.quota import TOKENS
from paceline.core.results import RefusalKind
from paceline.providers.answers import usage_cost
from paceline.providers.base import Usage
from paceline.providers.registry import provider_for_host, provider_named
from paceline.providers.tables import lookup

PROVIDER = provider_named("groq")
CASES = load("groq")
SAID = (
    "Rate limit reached for model `{model}` in organization `org_x` service tier `on_demand` on {dimension}: Limit {limit}, "
    "Used {used}, Requested {requested}. Please try again in {text}. Need more tokens? Upgrade to Dev Tier today at "
    "https://console.groq.com/settings/billing"
)


@each(CASES, "header")
def test_resets_are_of_a_bucket(case):
    for reading in PROVIDER.readings(case["headers"], 0.0):
        if reading.reset_s is not None:
            assert reading.reset_s == pytest.approx(
                (reading.limit - reading.remaining) * reading.period_s / reading.limit, abs=0.001
            )


@pytest.mark.parametrize("case", CASES["refusal"], ids=lambda case: f"{case['dimension']} {case['text']}")
def test_refusals_with_numbers(case):
    limit, used, requested = case["numbers"]
    said = SAID.format(
        model="m", dimension=case["dimension"], limit=limit, used=used, requested=requested, text=case["text"]
    )
    body = json.dumps({"error": {"message": said, "type": "tokens", "code": "rate_limit_exceeded"}}).encode()
    refusal = PROVIDER.refusal(429, {}, body)
    assert refusal is not None
    assert refusal.kind is RefusalKind.RATE
    assert (refusal.limit, refusal.used, refusal.requested) == (limit, used, requested)
    assert refusal.unit == case["dimension"].split()[0]
    assert refusal.period_s == (86_400.0 if "day" in case["dimension"] else 60.0)
    assert refusal.retry_after_s == pytest.approx(case["wait_s"])
    assert refusal.retry_after_s == pytest.approx((used + requested - limit) * refusal.period_s / limit, abs=0.01)


def test_max_completion_tokens_are_held_and_settled():
    body = {
        "model": "openai/gpt-oss-120b",
        "messages": [{"role": "user", "content": "hi"}],
        "max_completion_tokens": 400,
    }
    call = PROVIDER.describe("/openai/v1/chat/completions", body)
    assert call is not None
    assert PROVIDER.held(call, 100, 50)[TOKENS] == 500
    assert PROVIDER.charged(call, Usage(100, 30, 60))[TOKENS] == 70


@pytest.mark.parametrize("holder", ["usage", "x_groq"])
def test_both_ways_to_end_a_stream(holder):
    usage = {"prompt_tokens": 9, "completion_tokens": 4}
    last = (
        {"choices": [], "usage": usage} if holder == "usage" else {"choices": [], "x_groq": {"id": "x", "usage": usage}}
    )
    stream = sse({"choices": [{"delta": {"content": "x"}}], "x_groq": {"id": "x"}}, last, b"[DONE]")
    assert feed(PROVIDER, stream, stream=True).usage == Usage(9, 4)


def test_models_have_pools_of_their_own():
    assert PROVIDER.pool("moonshotai/kimi-k2-instruct-0905") == "moonshotai/kimi-k2-instruct-0905"
    assert provider_for_host("api.groq.com").name == "groq"
    charged = usage_cost("groq/openai/gpt-oss-120b", {"prompt_tokens": 9, "completion_tokens": 4})
    assert charged[TOKENS] == 13
    assert [str(quota) for quota in lookup("groq", "openai/gpt-oss-120b").quotas] == [
        "30 requests/min", "1k requests/day", "8k tokens/min", "200k tokens/day",
    ]  # fmt: skip
