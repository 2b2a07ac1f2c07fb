"""What a pool expects of the output of its first requests, before a provider that charges output as it is produced."""

import asyncio
import json

import httpx2
import pytest

import paceline
from paceline.http.httpx import pace_transport
from virtual_time import virtual

BODY = {"model": "claude-opus-5", "max_tokens": 64_000, "messages": [{"role": "user", "content": "Hi."}]}
OTPM = 90_000
TIER_2 = ["1k requests/min", "450k input_tokens/min", f"{OTPM} output_tokens/min"]


class Anthropic(httpx2.AsyncBaseTransport):
    """A bucket of output, which each answer takes from while it is produced; it states no levels."""

    def __init__(self, clock, output, seconds=8.0):
        self.clock, self.output, self.seconds = clock, output, seconds
        self.level, self.at_s = float(OTPM), clock.now_ns() / 1e9
        self.refused, self.in_flight, self.peak = 0, 0, 0

    def take(self, tokens):
        now_s = self.clock.now_ns() / 1e9
        self.level = min(OTPM, self.level + (now_s - self.at_s) * OTPM / 60) - tokens
        self.at_s = now_s

    async def handle_async_request(self, request):
        self.take(0)
        if self.level <= 0:
            self.refused += 1
            message = f"This request would exceed your organization's rate limit of {OTPM:,} output tokens per minute"
            error = {"type": "error", "error": {"type": "rate_limit_error", "message": message}}
            wait_s = max(1, round(-self.level * 60 / OTPM))
            return httpx2.Response(429, headers={"retry-after": str(wait_s)}, content=json.dumps(error))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        for _ in range(16):
            await asyncio.sleep(self.seconds / 16)
            self.take(self.output / 16)
        self.in_flight -= 1
        answer = {"type": "message", "content": [{"type": "text", "text": "Hi."}]}
        answer["usage"] = {"input_tokens": 9, "output_tokens": self.output}
        return httpx2.Response(200, content=json.dumps(answer))


async def ask_many(limiter, server, number, model="claude-opus-5"):
    """The virtual seconds until all are answered."""
    start_ns = limiter.pacer.clock.now_ns()
    async with httpx2.AsyncClient(transport=pace_transport(limiter, server, "anthropic")) as http:
        asked = [http.post("http://a.test/v1/messages", json={**BODY, "model": model}) for _ in range(number)]
        assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
    return (limiter.pacer.clock.now_ns() - start_ns) / 1e9


def limiter_of(clock, **options):
    return paceline.Limiter({"anthropic/*": TIER_2}, clock=clock, **options)


@virtual
async def test_the_first_twenty_requests_with_a_large_maximum_go_at_once(clock):
    server = Anthropic(clock, output=400)
    assert await ask_many(limiter_of(clock), server, 20) < 10
    assert (server.peak, server.refused) == (20, 0)


@pytest.mark.parametrize("output", [2_000, 8_000])
@virtual
async def test_an_expectation_that_is_far_too_low_costs_few_refusals(clock, output):
    """The bucket and its refill bound what can be produced: a limiter that knows the outputs is no faster."""
    server, number = Anthropic(clock, output), 100
    seconds = await ask_many(limiter_of(clock), server, number)
    least_s = (number * output - OTPM) * 60 / OTPM
    assert seconds < 1.2 * max(least_s, 8) + 20
    assert server.refused <= 5


@virtual
async def test_a_model_that_is_new_expects_what_the_others_have_shown(clock):
    limiter, server = limiter_of(clock), Anthropic(clock, output=3_000)
    await ask_many(limiter, server, 10)
    server.peak = 0
    await ask_many(limiter, server, 60, "claude-opus-5-5")
    assert server.peak <= OTPM / 3_000
