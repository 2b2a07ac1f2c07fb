"""A provider that fails is left alone for a while; retries are never more than a share of the traffic."""

import asyncio

import httpx2

import paceline
from paceline.core.quota import NS
from paceline.http import pace_transport
from paceline.pacing.breaker import Breaker, BreakerPolicy
from paceline.pacing.retry import RetryBudget
from paceline.testing import ManualClock, run_virtual

BODY = {"model": "gpt-5", "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 5}


def test_five_in_a_row_open_it_and_a_failed_probe_opens_it_again():
    breaker = Breaker(BreakerPolicy(failures=5, pause_s=60))
    assert [breaker.failed(NS, 0) for _ in range(6)] == [False] * 4 + [True, False]  # the sixth was on its way
    assert breaker.open_until_ns == 61 * NS
    assert breaker.failed(62 * NS, 61 * NS)  # the probe
    assert breaker.open_until_ns == 122 * NS
    breaker.succeeded()
    assert not breaker.failed(200 * NS, 199 * NS)


def test_a_success_between_starts_the_count_again():
    breaker = Breaker(BreakerPolicy(failures=2))
    assert not breaker.failed(0, 0)
    breaker.succeeded()
    assert not breaker.failed(0, 0)


def test_retries_beyond_their_share_wait_longer_and_longer():
    budget = RetryBudget(0)
    assert [budget.spend(0) for _ in range(22)] == [0.0] * 20 + [1.0, 2.0]
    for _ in range(50):
        budget.earn()
    assert budget.spend(0) == 0.0
    assert budget.spend(3_600 * NS) == 0.0


class Failing(httpx2.AsyncBaseTransport):
    def __init__(self, clock, fails):
        self.clock, self.fails, self.times = clock, fails, []

    async def handle_async_request(self, request):
        self.times.append(round((self.clock.now_ns() - self.clock.start_ns) / NS, 1))
        await asyncio.sleep(0.1)
        status = 500 if len(self.times) <= self.fails else 200
        return httpx2.Response(status, stream=httpx2.ByteStream(b"{}"))


def test_over_http_all_wait_then_one_probe_then_all():
    clock = ManualClock()
    clock.start_ns = clock.now_ns()
    inner = Failing(clock, fails=6)
    limiter = paceline.Limiter(
        {"openai/*": ["6000 requests/min"]},
        clock=clock,
        retry=paceline.RetryPolicy(faults=True, max_attempts=20, backoff_s=0.1, backoff_max_s=0.1),
        breaker=BreakerPolicy(failures=5, pause_s=60),
    )

    async def main():
        async with httpx2.AsyncClient(
            transport=pace_transport(limiter, inner, "openai"), base_url="http://127.0.0.1"
        ) as http:
            return await asyncio.gather(*[http.post("/v1/chat/completions", json=BODY) for _ in range(5)])

    answers = run_virtual(main(), clock)
    assert [answer.status_code for answer in answers] == [200] * 5
    first, probe, second_probe, rest = inner.times[:5], inner.times[5], inner.times[6], inner.times[7:]
    assert max(first) < 1
    assert 60 <= probe < 61  # alone, and it fails
    assert 120 <= second_probe < 121
    assert len(rest) == 4
    assert all(120 <= at < 123 for at in rest)
