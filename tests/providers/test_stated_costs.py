"""What answers report of their price: service tiers, writes to a cache that keeps them for an hour, and the cost itself."""

import pytest
from cases import read, sse

from paceline.providers.base import Usage
from paceline.providers.registry import provider_named

XAI, OPENROUTER, PERPLEXITY, OPENAI, ANTHROPIC, GEMINI = map(
    provider_named, ("xai", "openrouter", "perplexity", "openai", "anthropic", "gemini")
)
TOKENS = {"prompt_tokens": 480, "completion_tokens": 20}


def usage(provider, **found):
    return provider.usage({"choices": [], "usage": {**TOKENS, **found}})


@pytest.mark.parametrize(
    ("provider", "found", "usd"),
    [
        (XAI, {"cost_in_usd_ticks": 37_756_000}, 0.0037756),
        (XAI, {"cost_in_usd_ticks": 0}, None),
        (XAI, {"cost_in_usd_ticks": "many"}, None),
        (OPENROUTER, {"cost": 0.95}, 0.95),
        (OPENROUTER, {"cost": 0}, 0.0),
        (OPENROUTER, {"cost": 0.95, "is_byok": True, "cost_details": {"upstream_inference_cost": 19}}, 19.95),
        (OPENROUTER, {"cost": 0.95, "is_byok": True}, None),
        (OPENROUTER, {"cost": 0.95, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.9}}, 0.95),
        (PERPLEXITY, {"cost": {"request_cost": 0.008, "total_cost": 0.05178}}, 0.05178),
        (PERPLEXITY, {"cost": 1}, None),
        (OPENROUTER, {"cost": -1}, None),
        (OPENROUTER, {"cost": True}, None),
        (OPENROUTER, {"cost": float("nan")}, None),
        (OPENROUTER, {"cost": float("inf")}, None),
        (OPENROUTER, {"cost": "0.95"}, None),
        (OPENAI, {"cost": 0.95}, None),  # no field of its own
    ],
)
def test_a_cost_that_the_provider_states(provider, found, usd):
    assert usage(provider, **found).usd == (None if usd is None else pytest.approx(usd))


@pytest.mark.parametrize("tier", ["flex", "default", "priority", None, 5, ["flex"], {"a": 1}])
def test_the_tier_that_has_answered(tier):
    answer = {"service_tier": tier, "usage": TOKENS}
    for one in (answer, {"type": "response.completed", "response": answer}):
        assert OPENAI.usage(one).tier == (tier if isinstance(tier, str) else "")


def test_the_tier_that_a_request_asks_for():
    body = {"model": "gpt-5.5", "messages": [], "service_tier": "flex"}
    assert OPENAI.describe("/v1/chat/completions", body).tier == "flex"
    assert OPENAI.describe("/v1/chat/completions", {**body, "service_tier": None}).tier == ""
    fast = ANTHROPIC.describe("/v1/messages", {"model": "claude-opus-5", "messages": [], "speed": "fast"})
    assert (fast.tier, fast.mode) == ("fast", "fast")
    path = "/v1beta/models/gemini-3.5-flash:generateContent"
    for name, tier in (("serviceTier", "SERVICE_TIER_PRIORITY"), ("service_tier", "priority")):
        assert GEMINI.describe(path, {"contents": [], name: tier}).tier == "priority"


WROTE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 900,
    "cache_creation": {"ephemeral_5m_input_tokens": 500, "ephemeral_1h_input_tokens": 400},
    "output_tokens": 1,
    "speed": "fast",
    "service_tier": "standard",
}


def test_writes_that_are_kept_for_an_hour_are_told_apart():
    found = ANTHROPIC.usage({"type": "message", "usage": WROTE})
    assert found == Usage(910, 1, 0, 900, hour_write_tokens=400, tier="fast")
    assert ANTHROPIC.usage({"usage": {**WROTE, "speed": "standard"}}).tier == "standard"
    wrong = {**WROTE, "cache_creation": {"ephemeral_1h_input_tokens": 5_000}}
    assert ANTHROPIC.usage({"usage": wrong}).hour_write_tokens == 900


@pytest.mark.parametrize(
    "last", [{"output_tokens": 50}, {"input_tokens": 10, "cache_creation_input_tokens": 900, "output_tokens": 50}]
)
def test_a_stream_that_names_them_once_keeps_them(last):
    start, delta = {"type": "message_start", "message": {"usage": WROTE}}, {"type": "message_delta", "usage": last}
    found = read(ANTHROPIC, sse(start, delta, {"type": "message_stop"}, name=True), stream=True).usage
    assert found == Usage(910, 50, 0, 900, hour_write_tokens=400, tier="fast")
