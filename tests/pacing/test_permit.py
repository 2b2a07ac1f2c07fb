"""A permit's life: settled, cancelled, refused or forgotten, once; and how it travels down."""

import asyncio
from functools import partial

import httpx
import pytest
from test_attempts import FULL, MONEY, answered

import paceline
from paceline.core.quota import NS
from paceline.core.results import PacelineWarning, QuotaError, Refusal, RefusalKind
from paceline.pacing.permit import current_permit
from virtual_time import virtual


@pytest.fixture
def limiter(clock):
    quotas = {"jobs": ["60 requests/min", "1000 tokens/min"], "other": "60 requests/min", "starts": "7 starts/min"}
    return paceline.Limiter(quotas, clock=clock)


def left(limiter):
    """Tokens left, requests left, permits open."""
    status = limiter.status()["pools"]["jobs"]
    return status["quotas"][1]["remaining"], status["quotas"][0]["remaining"], status["in_flight"]


class TestSettle:
    @pytest.mark.parametrize("amount", [-1, float("nan"), float("inf"), "many", None])
    def test_an_amount_that_nobody_can_mean(self, limiter, amount):
        permit = limiter.acquire("jobs", tokens=500).wait()
        for ask in (permit.settle, partial(limiter.acquire, "jobs")):
            with pytest.raises(QuotaError, match=r"tokens is .*: it must be a finite number"):
                ask(tokens=amount)
        assert permit.open


class TestForgotten:
    @pytest.mark.parametrize(
        ("unit", "tokens"), [("tokens", 500), ("input_tokens", 500), ("output_tokens", 500), ("usd", 800)]
    )
    def test_charged_in_full_with_a_warning(self, limiter, unit, tokens):
        said = "jobs: a permit was not settled"
        with pytest.warns(PacelineWarning, match=said) as caught, limiter.acquire("jobs", **{unit: 500}):
            pass
        assert caught[0].filename == __file__  # the place of the block
        assert left(limiter) == (1_000 - tokens, 59, 0)

    def test_charged_in_full_though_the_warning_is_an_error(self, limiter):
        with pytest.raises(PacelineWarning), limiter.acquire("jobs", tokens=500):  # as pytest is set up here
            pass
        assert left(limiter) == (500, 59, 0)

    def test_no_warning_where_nothing_was_left_to_say(self, limiter):
        with limiter.acquire("jobs", tokens=0), limiter.acquire("starts"):
            pass
        with pytest.raises(LookupError), limiter.acquire("jobs", tokens=500):
            raise LookupError
        assert left(limiter) == (500, 58, 0)


class TestRefused:
    @pytest.mark.parametrize(("asked_s", "pause_s"), [(8, 8), (60, 60), (3_600, 15)])
    @virtual
    async def test_several_at_once_wait_as_stated(self, clock, asked_s, pause_s):
        limiter = paceline.Limiter({"own": "9 concurrency"}, clock=clock)
        permits = [await limiter.acquire("own") for _ in range(5)]
        for permit in permits:
            permit.refused(Refusal(RefusalKind.RATE, retry_after_s=asked_s))
        start_ns = clock.now_ns()
        (await limiter.acquire("own")).settle()
        assert (clock.now_ns() - start_ns) / NS == pytest.approx(pause_s, abs=1)  # too long a wait is tested


class TestLeft:
    """An error that leaves the block of a permit."""

    @pytest.mark.parametrize("pool", ["jobs", "openai/gpt-5"])
    @pytest.mark.parametrize(
        ("error", "pause_s"),
        [
            (answered(429, retry_after="8"), 8),
            (answered(429), 1),
            (RuntimeError("Rate limit exceeded"), 1),
            (ExceptionGroup("two", [answered(429, retry_after="8"), answered(429)]), 8),
            (answered(429, retry_after="3456000"), 15),  # a test on the way to a day in 40 days
            (answered(503, FULL, retry_after="8"), 0),  # servers that are full are no rate
            (answered(500), 0),
            (answered(400, '{"error": {"message": "rate limit: no such field"}}'), 0),
            (TimeoutError(), 0),
            (asyncio.CancelledError(), 0),
            (QuotaError("rate limit"), 0),
        ],
    )
    @virtual
    async def test_a_refusal_pauses_the_pool(self, clock, pool, error, pause_s):
        limiter = paceline.Limiter({pool: "60 requests/min"}, clock=clock)
        with pytest.raises(type(error)) as raised:
            async with limiter.acquire(pool):
                raise error
        assert raised.value is error
        start_ns = clock.now_ns()
        (await limiter.acquire(pool)).settle()
        assert (clock.now_ns() - start_ns) / NS == pytest.approx(pause_s, abs=0.1)

    LIMIT_OF_0 = '{"error": {"message": "Rate limit reached on requests per min (RPM): Limit 0, Used 0, Requested 1."}}'

    @pytest.mark.parametrize("body", [MONEY, LIMIT_OF_0])
    @virtual
    async def test_what_no_wait_ends_stops_it(self, clock, body):
        limiter = paceline.Limiter({"openai/gpt-5": "60 requests/min"}, clock=clock)
        with pytest.raises(httpx.HTTPStatusError):
            async with limiter.acquire("openai/gpt-5"):
                raise answered(429, body)
        with pytest.raises(paceline.PoolStoppedError):
            await limiter.acquire("openai/gpt-5")

    @pytest.mark.parametrize("inner", ["a block", "attempts", "reported", "attached"])
    @pytest.mark.parametrize("outer", ["starts", "anthropic/claude-opus-5", "openai/gpt-5"])
    @virtual
    async def test_it_is_learned_from_once_where_it_leaves_several_blocks(self, clock, outer, inner):
        names = dict.fromkeys(["agents", outer, "openai/gpt-5-mini"], "60 requests/min")
        limiter = paceline.Limiter(names, clock=clock)
        with pytest.raises((httpx.HTTPStatusError, paceline.GaveUpError)):
            async with limiter.acquire("agents"), limiter.acquire(outer):
                await self.refused_in(limiter, inner, answered(429, MONEY))
        for pool in ("agents", outer):
            (await limiter.acquire(pool, timeout=0)).settle()
        with pytest.raises(paceline.PoolStoppedError):
            await limiter.acquire("openai/gpt-5-mini")

    async def refused_in(self, limiter, inner, error):
        pool, body = "openai/gpt-5-mini", {"model": "gpt-5-mini", "input": "hi"}
        if inner == "attached":
            transport = httpx.MockTransport(lambda _: httpx.Response(429, json=error.response.json()))
            async with limiter.attach(httpx.AsyncClient(transport=transport)) as client:
                raise answered((await client.post(str(error.request.url), json=body)).status_code)
        if inner == "attempts":
            for attempt in limiter.attempts(pool):
                async with attempt:
                    raise error
        async with limiter.acquire(pool) as permit:
            if inner == "reported":
                permit.refused(error)
            raise error


class TestPrepaid:
    def test_it_travels_down_and_is_used_once_while_it_is_open(self, limiter):
        jobs, other = map(limiter.pacer.pools.scheduler, ("jobs", "other"))
        assert current_permit(jobs) is None
        with limiter.acquire("jobs", tokens=5) as permit:
            assert current_permit(other) is None
            with limiter.acquire("other") as inner:
                assert current_permit(other) is inner
            assert current_permit(jobs) is permit
            assert current_permit(jobs) is None  # a second attempt pays for itself
            permit.settle(tokens=5)
        assert current_permit(jobs) is None
        with limiter.acquire("jobs", tokens=5) as permit:
            permit.settle()
            assert current_permit(jobs) is None

    @virtual
    async def test_to_tasks_started_inside_and_not_to_others(self, clock, limiter):
        async def below():
            return current_permit(limiter.pacer.pools.scheduler("jobs"))

        async with limiter.acquire("jobs", tokens=0) as permit:
            assert await asyncio.create_task(below()) is permit
        assert await asyncio.create_task(below()) is None
        bare = await limiter.acquire("jobs", tokens=0)
        assert await below() is None  # awaited, it belongs to nobody's block
        bare.settle()


def test_its_repr_says_what_it_is(limiter):
    permit = limiter.acquire("jobs", tokens=5).wait()
    assert repr(permit).startswith("<Permit jobs open {'tokens': 5")
    permit.cancel()
    assert "closed" in repr(permit)
