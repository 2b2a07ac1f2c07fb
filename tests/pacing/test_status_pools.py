"""What a pool's status says, in virtual time: resets, waits, estimates, the queue, and pools that nobody has used."""

import asyncio
import json
import math

import pytest

import paceline
from paceline.testing import ManualClock
from virtual_time import virtual
from waits import gone


def limiter_of(*quotas, clock=None, **options):
    return paceline.Limiter({"jobs": list(quotas)}, clock=clock or ManualClock(), **{"headroom_s": 0, **options})


def pool_of(limiter, name="jobs"):
    pool = limiter.status()["pools"][name]
    assert json.loads(json.dumps(pool, allow_nan=False)) == pool  # plain values
    return pool


class TestReset:
    def test_a_bucket_is_full_when_all_has_come_back(self, clock):
        limiter = limiter_of("60 requests/min", "600 tokens/min", clock=clock)
        assert [quota["reset_s"] for quota in pool_of(limiter)["quotas"]] == [0, 0]
        limiter.try_acquire("jobs", tokens=90).settle(tokens=100)
        assert [quota["reset_s"] for quota in pool_of(limiter)["quotas"]] == [1, 10]
        clock.advance(4)
        assert [quota["reset_s"] for quota in pool_of(limiter)["quotas"]] == [0, 6]

    def test_nobody_knows_when_a_slot_comes_free(self):
        limiter = limiter_of("2 concurrency")
        assert pool_of(limiter)["quotas"][0]["reset_s"] == 0
        permit = limiter.try_acquire("jobs")
        assert pool_of(limiter)["quotas"][0]["reset_s"] is None
        permit.settle()
        assert pool_of(limiter)["quotas"][0]["reset_s"] == 0


@virtual
async def test_of_slots_later_is_infinite_and_the_expected_wait_unknown(clock):
    limiter = limiter_of("1 concurrency", clock=clock)
    permit = limiter.try_acquire("jobs")
    assert limiter.try_acquire("jobs") == paceline.Later(math.inf, "1 concurrency")
    asked = limiter.acquire("jobs", name="second")
    waiting = asyncio.ensure_future(asked)
    await asyncio.sleep(0)
    assert asked.why() == paceline.Waiting(0, "1 concurrency", None)
    assert pool_of(limiter)["queue"][0]["name"] == "second"
    permit.settle()
    (await waiting).settle()
    assert asked.why() is limiter.acquire("jobs").why() is None


@virtual
async def test_the_mean_and_the_longest_wait_of_all_that_were_granted(clock):
    limiter = limiter_of("60 requests/min burst 1", clock=clock)
    assert pool_of(limiter, "jobs")["wait_s"] == {"mean": 0, "longest": 0}

    async def work():
        (await limiter.acquire("jobs")).settle()

    await asyncio.gather(*(work() for _ in range(4)))
    assert pool_of(limiter)["wait_s"] == {"mean": 1.5, "longest": 3}


class TestEstimates:
    def test_over_those_that_reported(self):
        limiter = limiter_of("600 requests/min", "1M tokens/min", "9 concurrency")
        assert pool_of(limiter)["estimates"] == {}
        limiter.try_acquire("jobs", tokens=100).settle(tokens=50)
        limiter.try_acquire("jobs", tokens=60).settle(tokens=30)
        limiter.try_acquire("jobs", tokens=999).settle()
        limiter.try_acquire("jobs", tokens=999).cancel()
        limiter.try_acquire("jobs", tokens=999).refused()
        assert pool_of(limiter)["estimates"] == {"tokens": {"estimated": 160, "actual": 80, "ratio": 0.5}}

    def test_nothing_estimated_has_no_ratio_and_what_was_not_estimated_no_row(self):
        limiter = limiter_of("600 requests/min", "1M input_tokens/min")
        limiter.try_acquire("jobs", input_tokens=0).settle(input_tokens=5, output_tokens=7)
        assert pool_of(limiter)["estimates"] == {"input_tokens": {"estimated": 0, "actual": 5, "ratio": None}}
        limiter.try_acquire("jobs", input_tokens=10).settle(input_tokens=0)
        assert pool_of(limiter)["estimates"]["input_tokens"]["ratio"] == 0.5


class TestResets:
    """When the quotas of a day restart; ManualClock begins at 2027-01-15T08:00:00Z."""

    @pytest.mark.parametrize(
        ("quota", "at"),
        [
            ("100 requests/day window utc", "2027-01-16T00:00:00Z"),
            ("100 requests/day window America/Los_Angeles", "2027-01-16T08:00:00Z"),
            ("100 requests/hour window utc", "2027-01-15T09:00:00Z"),
            ("100 requests/day", "2027-01-16T00:00:00Z"),
            ("100 requests/day burst 50", None),
            ("100 requests/day sliding", None),
            ("5 concurrency", None),
        ],
    )
    def test_the_instant(self, quota, at):
        assert pool_of(limiter_of(quota))["quotas"][0]["resets_at"] == at


class TestQueue:
    @virtual
    async def test_in_the_order_of_the_line(self, clock):
        limiter = limiter_of("60 requests/min burst 1", clock=clock)
        limiter.try_acquire("jobs").settle()
        later = paceline.LaneSpec("urgent", priority=1)
        asked = [limiter.acquire("jobs", name="a", tokens=5), limiter.acquire("jobs")]
        asked.append(limiter.acquire("jobs", name="boss", lane=later))
        waiting = [asyncio.ensure_future(one) for one in asked]
        await asyncio.sleep(0.25)
        queue = pool_of(limiter)["queue"]
        for task in waiting:
            (await task).settle()
        assert pool_of(limiter)["queue"] == []
        cost, uncached = {"requests": 1}, {"waited_s": 0.25, "cached_tokens": 0, "lost_in_s": None}
        assert queue == [
            uncached | {"name": "boss", "lane": "urgent", "expected_wait_s": 0.75, "cost": cost},
            uncached | {"name": "a", "lane": "default", "expected_wait_s": 1.75, "cost": {"tokens": 5} | cost},
            uncached | {"name": None, "lane": "default", "expected_wait_s": 2.75, "cost": cost},
        ]

    @virtual
    async def test_another_attempt_keeps_the_name(self, clock):
        limiter = limiter_of("60 requests/min", clock=clock)
        permit = await limiter.acquire("jobs", name="agent_7")
        permit.refused(retry_after_s=5)
        waiting = asyncio.ensure_future(limiter.acquire("jobs", again=permit))
        await asyncio.sleep(1)
        queue = pool_of(limiter)["queue"]
        (await waiting).settle()
        assert [row["name"] for row in queue] == ["agent_7"]

    @virtual
    async def test_no_more_than_fifty(self, clock):
        limiter = limiter_of("60 requests/min burst 1", clock=clock)
        waiting = [asyncio.ensure_future(limiter.acquire("jobs", name=f"{i}")) for i in range(60)]
        await asyncio.sleep(0)
        pool = pool_of(limiter)
        await gone(waiting)
        assert [row["name"] for row in pool["queue"]] == [f"{i}" for i in range(1, 51)]
        assert pool["waiting"] == 59


class TestPoolsThatNobodyHasUsed:
    def test_those_with_a_name_are_there_and_change_nothing(self):
        quotas = dict.fromkeys(["jobs", "openai/gpt-5", "openai/*", "*"], "5 requests/min")
        limiter = paceline.Limiter(quotas, clock=ManualClock())
        before = limiter.status()["pools"]
        assert list(before) == ["jobs", "openai/gpt-5"]
        assert limiter.status()["pools"] == before
        assert limiter.pacer.pools._made == {}
        limiter.try_acquire("jobs", requests=0).cancel()
        used = limiter.status()["pools"]["jobs"]
        assert used | {"counts": {}, "waits": {}} == before["jobs"]
        assert list(used) == list(before["jobs"])

    def test_under_the_pool_s_own_name(self):
        limiter = paceline.Limiter.for_provider("openai", quotas={"gpt-5-2025-08-07": "5 requests/min"})
        assert list(limiter.status()["pools"]) == ["openai/gpt-5"]

    def test_a_model_that_is_in_use_with_its_provider_is_not_there_twice(self):
        limiter = paceline.Limiter({"gpt-5": "500 requests/min"})
        limiter.pacer.pools.of_model("openai", "gpt-5")
        assert list(limiter.status()["pools"]) == ["openai/gpt-5"]

    def test_of_a_store_the_same_and_nobody_is_asked(self, world):
        limiter = world.limiter()
        unused = limiter.status()["pools"]["jobs"]
        assert unused["store"] == {"state": "new", "peers": 1}
        limiter.acquire("jobs", tokens=100).wait().settle(tokens=40)
        used = limiter.status()["pools"]["jobs"]
        assert list(used) == list(unused)
        assert used["estimates"] == {"tokens": {"estimated": 100, "actual": 40, "ratio": 0.4}}
        assert [quota["reset_s"] > 0 for quota in used["quotas"]] == [True] * len(used["quotas"])
