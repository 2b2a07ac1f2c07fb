"""The limiter from outside: every way to ask, in virtual time."""

import asyncio
import threading

import pytest

import paceline
from paceline.core.quota import NS
from paceline.core.results import AcquireTimeoutError, NeverFitsError, PoolStoppedError, QueueFullError, QuotaError
from paceline.pacing.permit import refuse
from paceline.pacing.retry import GiveUp
from paceline.testing import ManualClock
from virtual_time import virtual

JOBS = {"jobs": "60 requests/min burst 2"}  # with the headroom of 1 s: one at once, then one a second


def jobs(clock, quotas=None, **options):
    return paceline.Limiter(quotas or JOBS, clock=clock, **options)


def status(limiter, pool="jobs"):
    return limiter.status()["pools"][pool]


@virtual
async def test_four_thousand_waiters_get_one_grant_each_in_order(clock):
    limiter, order = jobs(clock, {"jobs": "1000 requests/s burst 2000"}), []

    async def work(number):
        async with limiter.acquire("jobs"):
            order.append((number, clock.now_ns()))

    await asyncio.gather(*(work(number) for number in range(4_000)))
    assert status(limiter)["counts"] == {"granted": 4_000, "settled": 4_000}
    assert [number for number, _ in order] == list(range(4_000))
    assert (order[-1][1] - order[0][1]) / NS == pytest.approx(3.0)  # 1 000 at once: the burst less the headroom


class TestErrors:
    @virtual
    async def test_a_timeout_that_cannot_be_met_fails_at_once(self, clock):
        limiter, start_ns = jobs(clock), clock.now_ns()
        await limiter.acquire("jobs")
        with pytest.raises(AcquireTimeoutError) as caught:
            await limiter.acquire("jobs", timeout=0.5)
        assert clock.now_ns() == start_ns
        error = caught.value
        assert isinstance(error, TimeoutError)
        assert (error.pool, error.waited_s, error.quota) == ("jobs", 0, "60 requests/min burst 2")
        assert error.retry_after_s == pytest.approx(1)
        with pytest.raises(AcquireTimeoutError):
            limiter.acquire("jobs", timeout=0).wait()
        assert (await limiter.acquire("jobs", timeout=1)).waited_s == 1

    def test_what_never_fits_is_said_at_once(self):
        limiter = jobs(ManualClock(), {"jobs": "100 tokens/min"})
        said = r"jobs: the request costs 101 tokens, and the quota holds 100 at most \(100 tokens/min\)"
        with pytest.raises(NeverFitsError, match=said) as caught:
            limiter.acquire("jobs", tokens=101).wait()
        assert (caught.value.unit, caught.value.cost, caught.value.most) == ("tokens", 101, 100)
        refused = limiter.try_acquire("jobs", tokens=101)
        assert (refused, refused.quota) == (paceline.NeverFits("tokens", 101, 100), "100 tokens/min")

    @virtual
    async def test_the_bound_of_the_line(self, clock):
        limiter = jobs(clock, waiting_max=2)
        tasks = [asyncio.create_task(limiter.acquire("jobs")._wait_async()) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="2 requests wait already"):
            await limiter.acquire("jobs")
        await asyncio.gather(*tasks)

    @virtual
    async def test_each_client_of_a_stopped_pool_is_told_the_stated_end(self, clock):
        limiter = jobs(clock)
        permit = await limiter.acquire("jobs")
        long = paceline.Refusal(paceline.RefusalKind.RATE, retry_after_s=9_000.0)
        refuse(permit, long, GiveUp("the provider asks to wait 9,000 s", stop_s=9_000.0))
        for passed_s, tried_s in ((100, 500), (500, 100)):
            await asyncio.sleep(passed_s - (passed_s == 500) * 100)
            with pytest.raises(PoolStoppedError, match=f"one request is tried in {tried_s} s") as told:
                await limiter.acquire("jobs")
            assert told.value.retry_after_s == 9_000 - passed_s
            assert (told.value.pool, told.value.reason) == ("jobs", "the provider asks to wait 9,000 s")
            with pytest.raises(PoolStoppedError):
                limiter.try_acquire("jobs")
        await asyncio.sleep(8_500)
        for served in await asyncio.gather(*(limiter.acquire("jobs")._wait_async() for _ in range(3))):
            served.settle()

    def test_a_pool_that_nobody_knows(self):
        with pytest.raises(QuotaError, match=r"jbos.*jobs"):
            jobs(ManualClock()).acquire("jbos")


class TestPaced:
    @virtual
    async def test_sync_and_async_functions(self, clock):
        limiter = jobs(clock, {"jobs": ["60 requests/min burst 2", "1000 tokens/min"]})

        @limiter.paced("jobs", cost=lambda text: {"tokens": len(text)})
        async def shout(text):
            """Say it."""
            return text.upper()

        @limiter.paced("jobs", tokens=10)
        def whisper(text):
            return text.lower()

        start_ns = clock.now_ns()
        assert (await shout("hello"), await shout(text="you"), await shout("there")) == ("HELLO", "YOU", "THERE")
        assert (clock.now_ns() - start_ns) / NS == pytest.approx(2)
        await asyncio.sleep(1)
        assert whisper("HELLO") == "hello"
        assert (shout.__name__, shout.__doc__) == ("shout", "Say it.")
        assert status(limiter)["quotas"][1]["spent"] == 5 + 3 + 5 + 10

    @virtual
    async def test_an_object_with_an_async_call(self, clock):
        class Ask:
            async def __call__(self, text):
                await asyncio.sleep(1)
                return text

        limiter = jobs(clock, {"jobs": ["60 requests/min", "1 concurrency"]})
        ask, begun_ns = limiter.paced("jobs")(Ask()), clock.now_ns()
        assert await asyncio.gather(ask("a"), ask("b")) == ["a", "b"]
        assert (clock.now_ns() - begun_ns) / NS == pytest.approx(2)

    def test_generators_are_refused(self):
        def words():
            yield "a"

        async def async_words():
            yield "a"

        limiter = jobs(ManualClock(), {"jobs": "60 requests/min"})
        for function in (words, async_words):
            with pytest.raises(TypeError, match="words is a generator: acquire the permit in it"):
                limiter.paced("jobs")(function)


class TestLanes:
    def test_lanes_nest_and_end_and_may_be_given_whole(self):
        limiter, spec = jobs(ManualClock(), {"jobs": "60 requests/min"}), paceline.LaneSpec("wrap", 4, 2)
        with paceline.lane("outer"):
            with paceline.lane("inner"):
                assert limiter.acquire("jobs")._waiter.lane.name == "inner"
            assert limiter.acquire("jobs")._waiter.lane.name == "outer"
        assert limiter.acquire("jobs")._waiter.lane == paceline.LaneSpec()
        with paceline.lane(spec):
            assert limiter.acquire("jobs")._waiter.lane == spec
        with paceline.lane(spec, priority=0):
            assert limiter.acquire("jobs")._waiter.lane == paceline.LaneSpec("wrap", 4, 0)

    def test_what_is_no_lane(self):
        with pytest.raises(paceline.QuotaError, match="the name of a lane is a int: give a text"), paceline.lane(5):
            pass


def test_pools_are_bounded(monkeypatch):
    monkeypatch.setattr("paceline.pacing.pools.POOLS_MAX", 10)
    limiter = jobs(ManualClock(), {"*": "5 requests/min"})
    for i in range(10):
        limiter.acquire(f"pool-{i}").wait()
    with pytest.raises(QuotaError, match="more than 10 pools"):
        limiter.acquire("one too many")


def test_a_call_that_is_too_large_names_both_numbers_and_is_not_made():
    limiter = paceline.Limiter({"openai/m": "30k tokens/min"}, max_tokens_per_call=1_500)
    made = []
    ask = limiter.paced("openai/m", input_tokens=1_100, output_tokens=500)(made.append)
    message = r"openai/m: the request is estimated at 1,600 tokens, and one call may have 1,500: send less"
    with pytest.raises(paceline.TooLargeError, match=message) as caught:
        ask("long")
    assert (caught.value.cost, caught.value.most, made) == (1_600, 1_500, [])
    for call in (limiter.acquire, limiter.try_acquire, limiter.attempts):
        with pytest.raises(paceline.NeverFitsError):
            call("openai/m", input_tokens=1_501)
    assert limiter.try_acquire("openai/m", input_tokens=1_000, output_tokens=500)


class TestPacedFunctionsThatAreRetried:
    def test_as_attempts_are(self):
        failures = [RuntimeError("Rate limit exceeded for gpt-4o")] * 2

        def generate(prompt):
            if failures:
                raise failures.pop()
            return {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}

        policy = paceline.RetryPolicy(max_attempts=3, backoff_s=0.0)
        limiter = paceline.Limiter({"openai/m": "30k tokens/min"})
        assert limiter.paced("openai/m", retry=policy, tokens=10)(generate)("Say it.")["usage"]
        assert limiter.status()["pools"]["openai/m"]["counts"] == {"granted": 3, "settled": 1, "refused_rate": 2}
        failures += [RuntimeError("Rate limit exceeded for gpt-4o")]
        with pytest.raises(paceline.GaveUpError) as caught:
            limiter.paced("openai/m", retry=paceline.RetryPolicy(max_attempts=1), tokens=10)(generate)("Say it.")
        assert (caught.value.attempts, str(caught.value.__cause__)) == (1, "Rate limit exceeded for gpt-4o")

    async def test_async(self):
        failures = [RuntimeError("429")]
        limiter = paceline.Limiter({"openai/m": "30k tokens/min"}, retry=paceline.RetryPolicy(backoff_s=0.0))

        @limiter.paced("openai/m", retry=True, tokens=10)
        async def generate():
            if failures:
                raise failures.pop()
            return "Yes."

        assert await generate() == "Yes."


class TestAsAnObject:
    def test_its_block_closes_the_store(self, tmp_path):
        before = set(threading.enumerate())
        with paceline.Limiter({"jobs": "60 requests/min"}, store=f"sqlite:{tmp_path}/quotas.db") as limiter:
            limiter.try_acquire("jobs").settle()
            threads = {thread for thread in threading.enumerate() if thread.name == "paceline-store"} - before
            assert len(threads) == 1
        assert not threads.pop().is_alive()

    def test_its_text_has_its_pools(self):
        assert repr(paceline.Limiter()) == "<Limiter without pools yet>"
        limiter = paceline.Limiter({"jobs": ["60 requests/min", "3 concurrency"]} | {f"z{n}": "1/s" for n in range(4)})
        limiter.try_acquire("jobs")
        text = repr(limiter)
        assert text.startswith(
            "<Limiter jobs: 60 requests/min, 3 concurrency (1 in flight, 0 wait); z0: 1 requests/s (0 "
        )
        assert text.endswith("; and 2 more pools>")

    def test_limits_of_a_lane_in_their_notation(self):
        lane = paceline.LaneSpec("nightly", limits="60 requests/min")
        assert paceline.Limiter(lanes=[lane]).status()["pools"]["lane/nightly"]["quotas"][0]["limit"] == 60
        with pytest.raises(paceline.QuotaError, match="'lots' is not a quota"):
            paceline.Limiter(lanes=[paceline.LaneSpec("nightly", limits="lots")])
