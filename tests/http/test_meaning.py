"""The meaning of an answer for the pool: which requests a refusal is about, and what is charged for the usage."""

import json
import logging

import httpx2
import pytest

import paceline
from paceline.core.quota import NS
from paceline.http import pace_transport
from paceline.providers import parse
from paceline.testing import ManualClock, run_virtual

LIMITS = {
    "openai/*": ["600 requests/min", "1M tokens/min"],
    "anthropic/*": ["600 requests/min", "1M input_tokens/min", "200k output_tokens/min"],
    "openrouter/*": ["600 requests/min", "1M tokens/min"],
}
PATHS = {"openai": "/v1/chat/completions", "openrouter": "/api/v1/chat/completions", "anthropic": "/v1/messages"}
MODELS = {"openai": "gpt-5.4", "openrouter": "acme/m", "anthropic": "claude-opus-5"}
OK = (200, {}, {"usage": {"input_tokens": 12, "output_tokens": 5}})


def said(status, message, headers=None, **fields):
    return status, headers or {}, {"error": {"message": message, **fields}}


class World:
    """A client of one provider in virtual time, whose answers are given in advance."""

    def __init__(self, provider, *replies):
        self.provider, self.replies, self.times = provider, list(replies), []
        self.clock = ManualClock()
        self.start_ns = self.clock.now_ns()
        self.limiter = paceline.Limiter(LIMITS, clock=self.clock)

    def now_s(self):
        return (self.clock.now_ns() - self.start_ns) / NS

    async def answer(self, request):
        self.times.append(self.now_s())
        status, headers, body = self.replies.pop(0)
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(json.dumps(body).encode()))

    def run(self, *bodies):
        """Post the bodies one after the other; the status or paceline's word for each."""

        async def main(_):
            transport = pace_transport(self.limiter, httpx2.MockTransport(self.answer), self.provider)
            async with httpx2.AsyncClient(transport=transport, base_url="https://127.0.0.1") as client:
                found = []
                for body in bodies:
                    whole = {"model": MODELS[self.provider], "messages": [], "max_tokens": 50, **body}
                    response = await client.post(PATHS[self.provider], json=whole)
                    found.append(response.headers.get("x-paceline", response.status_code))
                return found

        return run_virtual(main, self.clock)

    def pool(self):
        [pool] = self.limiter.status()["pools"].values()
        return pool

    def limits(self):
        return [quota["limit"] for quota in self.pool()["quotas"]]


AFFORDS = (
    "This request requires more credits, or fewer max_tokens. You requested up to 65536 tokens, but can only afford 9."
)
IN_FLIGHT = "This request would exceed your available credits given your current in-flight requests."
FAST = "This request would exceed your organization's rate limit of {} fast mode input tokens per minute."
LONG_PROMPT = [{"role": "user", "content": "a b c d " * 80_000}]
LONG = "Rate limit reached for gpt-5.4 (for limit gpt-5.4-long-context) on tokens per min (TPM): Limit 400, Used 400, Requested 9."


def test_a_balance_that_covers_less_output_stops_no_pool():
    world = World("openrouter", said(402, AFFORDS, code=402), OK)
    assert world.run({"max_tokens": 65_536}, {"max_tokens": 5}) == ["gave_up", 200]
    assert (world.pool()["stopped"], world.pool()["cool_down_s"], world.now_s()) == (None, 0, 0)


def test_a_budget_in_flight_is_waited_for_by_its_request_alone():
    reason = {"limit_source": "openrouter_in_flight_budget"}
    world = World("openrouter", said(402, IN_FLIGHT, code=402, metadata=reason), OK)
    assert world.run({}) == [200]
    assert 0.75 <= world.times[1] <= 1.25
    assert world.pool()["stopped"] is None


def test_no_balance_stops_the_pool():
    world = World("openrouter", said(402, "Insufficient credits", code=402))
    assert world.run({}, {}) == ["stopped", "stopped"]


def test_a_limit_of_0_stops_the_pool_as_no_balance_does():
    text = (
        "Rate limit reached for gpt-5.4 on tokens per min (TPM): Limit 0, Used 0, Requested 9. Please try again in 20s."
    )
    world = World("openai", said(429, text, code="rate_limit_exceeded"))
    assert world.run({}, {}) == ["stopped", "stopped"]
    assert world.pool()["stopped"] == "the provider allows none of it, because a limit is 0 (rate_limit_exceeded)"


@pytest.mark.parametrize(
    "text", ["Your account has 3 RPM and 10K TPM.", "Allowed: 3 requests per minute and 10,000 tokens per minute"]
)
def test_a_refusal_that_names_two_quotas_teaches_both(text):
    world = World("openai", OK, OK, OK, said(429, text), *[OK] * 3)
    assert world.run(*[{}] * 6) == [200] * 6
    assert world.limits() == [3, 10_000]
    assert world.times[-1] - world.times[3] > 39  # two more of three a minute


@pytest.mark.parametrize(
    ("provider", "body", "reply"),
    [
        ("anthropic", {"speed": "fast"}, said(429, FAST.format("200,000"), {"retry-after": "180"}, type="rate_limit_error")),
        ("anthropic", {"speed": "fast"}, said(429, "Error", {"retry-after": "180"}, type="rate_limit_error")),
        ("openai", {}, said(429, LONG, {"retry-after": "180"}, code="rate_limit_exceeded")),
        ("openai", {"service_tier": "ultrafast"}, said(429, "x", {"retry-after": "180"}, code="rate_limit_exceeded")),
    ],
    ids=["fast mode", "fast mode, unnamed", "long context", "ultrafast"],
)  # fmt: skip
def test_a_refusal_of_a_mode_leaves_the_pool_alone(provider, body, reply):
    small = {"x-ratelimit-limit-tokens": "400", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "60s"}
    named = {"anthropic-ratelimit-input-tokens-limit": "400", "anthropic-ratelimit-input-tokens-remaining": "0"}
    status, headers, content = reply
    world = World(provider, (status, headers | small | named, content), OK, OK)
    before = LIMITS[f"{provider}/*"]
    assert world.run(body, {}) == [200, 200]
    assert 180 <= world.times[1] < 181
    assert world.times[2] - world.times[1] < 1
    assert world.limits() == [600, 1_000_000, 200_000][: len(before)]


def test_a_mode_that_the_organization_does_not_have_is_not_tried_again():
    world = World("anthropic", said(429, FAST.format("0"), type="rate_limit_error"), OK)
    assert world.run({"speed": "fast"}, {}) == ["never_fits", 200]
    assert world.now_s() == 0


@pytest.mark.parametrize(
    ("provider", "body", "taught"),
    [
        ("openai", {}, True),
        ("openai", {"service_tier": "ultrafast"}, False),
        ("openai", {"messages": LONG_PROMPT}, False),
        ("anthropic", {}, True),
        ("anthropic", {"speed": "fast"}, False),
        ("anthropic", {"model": "claude-sonnet-4-5-20250929", "messages": LONG_PROMPT}, False),
        ("anthropic", {"model": "claude-sonnet-4-6", "messages": LONG_PROMPT}, True),
    ],
)
def test_headers_of_an_answer_in_a_mode_teach_the_pool_nothing(provider, body, taught):
    headers = {"x-ratelimit-limit-requests": "30", "anthropic-ratelimit-requests-limit": "30"}
    world = World(provider, (200, headers, OK[2]))
    assert world.run(body) == [200]
    assert world.limits()[0] == (30 if taught else 600)


@pytest.mark.parametrize("wait", [{"retry-after": "0"}, {"retry-after-ms": "0"}])
def test_a_wait_of_nothing_is_no_reason_to_try_six_times_at_once(wait):
    world = World("openai", *[said(429, "Rate limit reached", wait, code="rate_limit_exceeded")] * 5, OK)
    assert world.run({}) == [200]
    assert world.now_s() > 10  # the waits double, as the measured rate has them


@pytest.mark.parametrize("reported", [999_999_999_999, 10**15])
def test_usage_that_no_request_can_cause_is_bounded(monkeypatch, caplog, reported):
    monkeypatch.setattr(parse, "_logged", set())
    caplog.set_level(logging.WARNING, "paceline")
    absurd = (200, {}, {"usage": {"prompt_tokens": reported, "completion_tokens": reported}})
    world = World("openai", absurd, OK)
    assert world.run({}, {}) == [200, 200]
    assert world.now_s() <= 8 * 60  # 2 times 4 million tokens at a million a minute
    assert [record.name for record in caplog.records] == ["paceline.providers"]
