"""Joint limits: quotas that several pools are charged to together."""

import asyncio
from collections import Counter

import pytest

import paceline
from paceline.core.quota import NS
from paceline.core.results import (
    AcquireTimeoutError,
    NeverFits,
    NeverFitsError,
    Refusal,
    RefusalKind,
    RefusalScope,
    SettingsError,
)
from paceline.pacing.joint import joint_limits
from paceline.planner.forecast import eta
from paceline.testing import ManualClock
from virtual_time import virtual
from waits import gone

OPENAI = {f"openai/{model}": "6000 requests/min" for model in "abc"}


def limiter_of(clock, joint, limits=OPENAI, **given):
    return paceline.Limiter(limits, joint_limits=joint, clock=clock, learn=False, headroom_s=0, **given)


def pool_of(limiter, name="joint/openai/*"):
    return limiter.status()["pools"][name]


def spent(limiter, name="joint/openai/*"):
    return [quota["spent"] for quota in pool_of(limiter, name)["quotas"]]


class Calls:
    """Calls of a limiter, each with its pool and the second of its start."""

    def __init__(self, limiter):
        self.limiter, self.clock, self.log = limiter, limiter.pacer.clock, []
        self.start_ns = self.clock.now_ns()

    def note(self, name):
        self.log.append((name, round((self.clock.now_ns() - self.start_ns) / NS, 6)))

    async def one(self, name, answer_s=0.0, **options):
        async with self.limiter.acquire(name, **options) as permit:
            self.note(name)
            await asyncio.sleep(answer_s)
            permit.settle()

    def later(self, models, **options):
        return [asyncio.create_task(self.one(f"openai/{model}", **options)) for model in models]


class TestNames:
    @pytest.mark.parametrize(
        ("name", "pools", "others"),
        [
            ("openai/*", ["openai/gpt-5", "openai/o3"], ["openai@eu/gpt-5", "groq/x", "jobs"]),
            ("OpenAI", ["openai/gpt-5"], ["groq/gpt-5"]),
            ("google", ["gemini/gemini-2.5-pro"], ["openai/gemini"]),
            ("openai@*/*", ["openai@eu/gpt-5", "openai@us/o3"], ["openai/gpt-5"]),
            ("openai/gpt-5*", ["openai/gpt-5", "openai/gpt-5-mini"], ["openai/o3"]),
            ("openai/gpt-5, openai/o3", ["openai/gpt-5", "openai/o3"], ["openai/gpt-5-mini"]),
            ("gpt-5", ["openai/gpt-5", "azure/gpt-5"], ["openai/gpt-5-mini"]),
            ("openai/gpt-5-2025-08-07", ["openai/gpt-5"], ["openai/o3"]),
            ("openai, groq/*", ["openai/gpt-5", "groq/x"], ["jobs"]),
            ("jobs", ["jobs"], ["jobs/a"]),
            ("jobs/*", ["jobs/a", "jobs/b"], ["jobs"]),
            ("*", ["openai/gpt-5", "openai@eu/gpt-5", "jobs"], []),
        ],
    )
    def test_which_pools_it_holds_for(self, name, pools, others):
        (joint,) = joint_limits({name: "10 requests/min"})
        assert [pool for pool in [*pools, *others] if joint.holds_for(pool)] == pools

    def test_days_end_where_those_of_the_provider_end(self):
        found = joint_limits(dict.fromkeys(("gemini", "openai", "gemini, openai"), "10 requests/day"))
        quotas = [[str(quota) for quota in joint.resolved.quotas] for joint in found]
        assert quotas == [
            ["10 requests/day window America/Los_Angeles"],
            ["10 requests/day window utc", "10 requests/86401s"],
            ["10 requests/day window utc"],
        ]

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (["openai"], r"joint_limits is \['openai'\]: it must be a dict"),
            ({"": "10 requests/min"}, "joint limit of '': its name must be a pattern of pools"),
            ({"openai/a, ": "10 requests/min"}, "joint limit of 'openai/a, ': its name"),
            ({3: "10 requests/min"}, "a name in joint_limits is 3: it must be a text"),
            (
                {"openai": "10 requests/min", "openai/*": "9 requests/min"},
                r"joint limit of 'openai/\*': there is another spelling of 'openai/\*': keep one",
            ),
            ({"openai": "10 usd/day"}, "joint limit of 'openai': '10 usd/day.*': money is limited by a budget"),
            ({"openai": "10 starts/min"}, "joint limit of 'openai': '10 starts/min': its unit must be one of requests"),
            ({"openai": "fast"}, "joint limit of 'openai': 'fast'"),
            ({"openai": ()}, "joint limit of 'openai': it has no quota"),
        ],
    )
    def test_what_is_none_is_an_error_that_names_it(self, given, said):
        with pytest.raises(SettingsError, match=said):
            paceline.Limiter(OPENAI, joint_limits=given)


class TestTogether:
    @virtual
    async def test_a_model_that_waits_for_its_own_quota_uses_nothing_of_it(self, clock):
        slow = OPENAI | {"openai/a": "1 requests/min burst 1"}
        calls = Calls(limiter_of(clock, {"openai": "60 requests/min burst 1"}, slow))
        first = calls.later("a" * 50)
        await asyncio.sleep(0)
        await asyncio.gather(*calls.later("b" * 100))
        await gone(first)
        log = calls.log
        assert Counter(name for name, _ in log) == {"openai/a": 2, "openai/b": 100}
        assert log[-1] == ("openai/b", 101)

    @virtual
    async def test_several_of_them_hold_at_once(self, clock):
        joint = {"openai/a, openai/b": "60 requests/min burst 1", "*": "30 requests/min burst 1"}
        calls = Calls(limiter_of(clock, joint))
        await asyncio.gather(*calls.later("abc" * 10))
        assert [at_s for _, at_s in calls.log] == [2 * number for number in range(30)]
        assert (spent(calls.limiter, "joint/openai/a, openai/b"), spent(calls.limiter, "joint/*")) == ([20], [30])

    def test_the_accounts_of_a_provider_have_it_together(self):
        accounts = {f"openai@{name}/*": "6000 requests/min" for name in ("eu", "us")}
        limiter = limiter_of(ManualClock(), {"openai@*/*": "2 requests/min"}, accounts)
        assert limiter.try_acquire("openai@eu/gpt-5")
        assert limiter.try_acquire("openai@us/gpt-5")
        assert limiter.try_acquire("openai@eu/o3").quota == "2 requests/min of joint/openai@*/*"

    @virtual
    async def test_slots_come_after_it(self, clock):
        limiter = limiter_of(clock, {"openai": "60 requests/min burst 2"}, concurrency={"openai": 1})
        await limiter.acquire("openai/a")
        with pytest.raises(AcquireTimeoutError, match="1 concurrency of openai/in flight would allow it"):
            await limiter.acquire("openai/b", timeout=0.5)

    def test_slots_of_its_own(self, clock):
        limiter = limiter_of(clock, {"openai/a, openai/b": "2 concurrency"})
        held = [limiter.try_acquire(f"openai/{model}") for model in "ab"]
        later = limiter.try_acquire("openai/a")
        assert (later.quota, later.retry_after_s) == ("2 concurrency of joint/openai/a, openai/b", float("inf"))
        assert limiter.try_acquire("openai/c")
        held[1].settle()
        assert limiter.try_acquire("openai/a")


class TestCost:
    def test_a_settlement_corrects_it(self):
        limiter = limiter_of(ManualClock(), {"openai": ["100 requests/min", "10k tokens/min", "8k input_tokens/min"]})
        permit = limiter.try_acquire("openai/a", input_tokens=1_000, output_tokens=500)
        assert spent(limiter) == [1, 1_500, 1_000]
        permit.settle(input_tokens=600, output_tokens=700)
        assert spent(limiter) == [1, 1_300, 600]
        assert pool_of(limiter)["estimates"]["input_tokens"] == {"estimated": 1_000, "actual": 600, "ratio": 0.6}

    def test_a_sum_of_tokens_is_corrected_by_its_sides(self):
        limiter = limiter_of(ManualClock(), {"openai": "10k tokens/min"})
        permit = limiter.try_acquire("openai/a", input_tokens=1_000, output_tokens=500)
        permit.settle(input_tokens=600, output_tokens=700)
        assert spent(limiter) == [1_300]

    def test_a_cancel_gives_back(self):
        limiter = limiter_of(ManualClock(), {"openai": ["1 requests/min", "10k tokens/min"]}, concurrency={"openai": 5})
        limiter.try_acquire("openai/a", tokens=9_000).cancel()
        assert (spent(limiter), pool_of(limiter)["in_flight"]) == ([0, 0], 0)
        assert limiter.try_acquire("openai/b", tokens=9_000)

    @virtual
    async def test_who_leaves_the_line_gives_back_what_its_own_pool_has_charged(self, clock):
        limiter = limiter_of(clock, {"openai": "1 requests/min"})
        assert limiter.try_acquire("openai/a")
        task = asyncio.ensure_future(limiter.acquire("openai/b"))
        await asyncio.sleep(1)
        assert pool_of(limiter)["waiting"] == 1
        await gone([task])
        assert (spent(limiter, "openai/b"), pool_of(limiter)["waiting"], spent(limiter)) == ([0], 0, [1])

    def test_a_refused_attempt_keeps_its_charge_except_of_less_than_the_pool(self):
        limiter = limiter_of(ManualClock(), {"openai": ["100 requests/min", "10k tokens/min"]})
        limiter.try_acquire("openai/a", tokens=500).refused(retry_after_s=1)
        limiter.try_acquire("openai/b", tokens=500).refused(Refusal(RefusalKind.RATE, scope=RefusalScope.REQUEST))
        assert spent(limiter) == [2, 500]
        assert pool_of(limiter)["cool_down_s"] == 0, "the refusal is of a model"

    @virtual
    async def test_slow_answers_of_one_model_hold_back_no_other(self, clock):
        limiter = limiter_of(clock, {"openai": "6000 requests/min, 1M tokens/min"})
        for _ in range(3):
            (await limiter.acquire("openai/a", tokens=10)).settle(tokens=9)
        held = [await limiter.acquire("openai/a", tokens=10) for _ in range(30)]
        await asyncio.sleep(20)
        for _ in range(20):
            await limiter.acquire("openai/b", timeout=0)
        assert len(held) == 30


class TestBound:
    @virtual
    async def test_a_request_that_never_fits_fails_at_once(self, clock):
        start_ns, limits = clock.now_ns(), {"openai/a": "1 requests/min", "openai/b": "9 requests/s"}
        limiter = limiter_of(clock, {"openai": "1k tokens/min"}, limits)
        assert limiter.try_acquire("openai/a", tokens=1)
        said = r"openai/a: .* 1,001 tokens, .*holds 1,000 at most \(1k tokens/min of joint/openai/\*\)"
        with pytest.raises(NeverFitsError, match=said):
            await limiter.acquire("openai/a", tokens=1_001)
        refused = limiter.try_acquire("openai/b", tokens=1_001)
        assert (refused, refused.quota) == (NeverFits("tokens", 1_001, 1_000), "1k tokens/min of joint/openai/*")
        assert (spent(limiter, "openai/b"), clock.now_ns()) == ([0], start_ns)

    @pytest.mark.parametrize("own", ["6000 requests/min", "60 requests/min burst 1"])
    @virtual
    async def test_a_timeout_that_it_cannot_meet_fails_at_once(self, clock, own):
        limiter = limiter_of(clock, {"openai": "1 requests/min"}, dict.fromkeys(OPENAI, own))
        assert limiter.try_acquire("openai/a")
        start_ns = clock.now_ns()
        said = r"openai/a: .* 1 requests/min of joint/openai/\* would allow it"
        with pytest.raises(AcquireTimeoutError, match=said) as caught:
            await limiter.acquire("openai/a", timeout=30)
        assert clock.now_ns() == start_ns
        assert (caught.value.quota, caught.value.retry_after_s) == ("1 requests/min of joint/openai/*", 60)
        assert caught.value.waited_s == 0
        permit = await limiter.acquire("openai/a", timeout=61)
        assert permit.waited_s == 60

    @virtual
    async def test_a_timeout_that_passes_in_its_line_gives_all_back(self, clock):
        limiter = limiter_of(clock, {"openai": "1k tokens/min"})
        assert limiter.try_acquire("openai/a", tokens=1_000)
        ahead = asyncio.ensure_future(limiter.acquire("openai/b", tokens=1_000))
        await asyncio.sleep(0)
        with pytest.raises(AcquireTimeoutError):
            await limiter.acquire("openai/c", tokens=10, timeout=50)
        assert (spent(limiter, "openai/c"), pool_of(limiter)["waiting"]) == ([0], 1)
        assert (await ahead).waited_s == pytest.approx(60)

    @virtual
    async def test_a_higher_priority_goes_first_over_all_pools(self, clock):
        calls = Calls(limiter_of(clock, {"openai": "60 requests/min burst 1"}))
        tasks = calls.later("aaaa")
        await asyncio.sleep(0)
        urgent = calls.later("bb", lane=paceline.LaneSpec("urgent", priority=1))
        await asyncio.gather(*tasks, *urgent)
        assert [name for name, _ in calls.log] == [f"openai/{model}" for model in "abbaaa"]

    @virtual
    async def test_a_refused_attempt_goes_before_those_that_came_later(self, clock):
        calls = Calls(limiter_of(clock, {"openai": "60 requests/min burst 1"}))
        refused = await calls.limiter.acquire("openai/a")
        others = calls.later("b" * 50)
        await asyncio.sleep(5.5)
        refused.refused(retry_after_s=0.1)
        again = await calls.limiter.acquire("openai/a", again=refused)
        await gone(others)
        assert again.waited_s <= 1

    @virtual
    async def test_who_waits_there_while_its_pool_pauses_keeps_its_place_in_both(self, clock):
        calls = Calls(limiter_of(clock, {"openai": "60 requests/min burst 1"}))
        await calls.one("openai/a")
        mine = calls.later("a")
        await asyncio.sleep(0)
        others = calls.later("b" * 100)
        calls.limiter.pacer.pools.scheduler("openai/a").pause(clock.now_ns() + 30 * NS)
        await asyncio.gather(*mine)
        await gone(others)
        log = calls.log
        assert log[-1] == ("openai/a", pytest.approx(31, abs=1))
        assert log[1:3] == [("openai/b", 1), ("openai/b", 2)], "what it gives back is used at once"


class TestShown:
    @virtual
    async def test_why_a_request_waits(self, clock):
        limiter = limiter_of(clock, {"openai": "1 requests/min"})
        assert limiter.try_acquire("openai/a")
        acquisition = limiter.acquire("openai/b")
        assert acquisition.expected_s() == 60
        task = asyncio.ensure_future(acquisition)
        await asyncio.sleep(1)
        why = acquisition.why()
        assert (why.ahead, why.quota, why.expected_wait_s) == (0, "1 requests/min of joint/openai/*", 59)
        status = pool_of(limiter)
        assert (status["binds"], status["waiting"], status["queue"][0]["lane"]) == ("1 requests/min", 1, "default")
        task.cancel()

    def test_it_is_in_the_status_before_its_first_use(self):
        limiter = limiter_of(ManualClock(), {"openai": ["10 requests/min", "1k tokens/min"]})
        rows = [(row["quota"], row["remaining"], row["source"]) for row in pool_of(limiter)["quotas"]]
        assert rows == [("10 requests/min", 10, "given"), ("1k tokens/min", 1_000, "given")]

    def test_a_forecast_has_it(self):
        limiter = limiter_of(ManualClock(), {"openai": ["60 requests/min burst 1", "6k tokens/min burst 300"]})
        found = eta(limiter, {f"openai/{model}": [{"tokens": 100}] * 10 for model in "ab"})
        assert found.total_s == pytest.approx(19, abs=0.1)
        assert found.binds["openai/b"] == "60 requests/min burst 1 of joint/openai/*"
        found = eta(limiter, {"openai/a": [{"tokens": 50}] * 10, "openai/b": [{"tokens": 300}] * 10})
        assert found.total_s == pytest.approx(37, abs=0.1)  # the last of b begins 27 s after the first one, at 10 s
        assert found.binds["openai/b"] == "6k tokens/min burst 300 of joint/openai/*"


@virtual
async def test_a_request_that_counts_as_lost_in_its_own_pool_is_charged_again(clock):
    limiter = limiter_of(clock, {"openai": "1 requests/min window"}, ttl_s=30)

    async def one():
        async with limiter.acquire("openai/a") as permit:
            assert permit.open

    tasks = []
    for _ in range(5):
        tasks.append(asyncio.create_task(one()))
        await asyncio.sleep(35)
    await asyncio.gather(*tasks)
    assert spent(limiter) == [5]


@virtual
async def test_a_pool_whose_requests_wait_in_the_line_is_not_silent(clock):
    calls = Calls(limiter_of(clock, {"openai": "60 requests/min burst 1"}))
    await calls.one("openai/a")
    (await calls.limiter.acquire("openai/a", tokens=1)).settle(tokens=1)  # answers are known
    tasks = []
    for _ in range(60):
        tasks += calls.later("a")
        await asyncio.sleep(0.5)
        assert calls.limiter.status()["pools"]["openai/a"]["cool_down_s"] == 0
    await asyncio.gather(*tasks)
    assert [at_s for _, at_s in calls.log[1:]] == list(range(2, 62))
