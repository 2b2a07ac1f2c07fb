"""Lanes from the configuration; and why three phases over two models need weights and nothing else."""

import asyncio
import random
from collections import Counter

import pytest

import paceline
from grids import WORLD, some
from paceline import Limiter
from paceline.config import Config
from paceline.core.queue import LANES_MAX, Lanes, LaneSpec
from paceline.core.results import SettingsError
from paceline.testing import ManualClock, run_virtual


@pytest.fixture
def limiter():
    lanes = {"wrap": {"weight": 4, "priority": 2}, "default": {"priority": -1}}
    said = {"lanes": lanes, "limits": {"jobs": "60 requests/min"}}
    return Limiter(**Config().having(said, "test").arguments(), clock=ManualClock())


def lane_of(limiter, **options):
    return limiter.acquire("jobs", **options)._waiter.lane


class TestSettings:
    def test_who_only_names_a_lane_gets_what_is_configured(self, limiter):
        with paceline.lane("wrap"):
            assert lane_of(limiter) == LaneSpec("wrap", 4, 2)
        assert lane_of(limiter, lane="wrap") == LaneSpec("wrap", 4, 2)
        with paceline.lane("other"):
            assert lane_of(limiter) == LaneSpec("other", 1, 0)
        assert lane_of(limiter) == LaneSpec("default", 1, -1)

    def test_who_says_more_is_heard(self, limiter):
        for said, spec in (
            ({"weight": 1}, LaneSpec("wrap", 1, 2)),
            ({"priority": 0}, LaneSpec("wrap", 4, 0)),
            ({"weight": 1, "priority": 0}, LaneSpec("wrap", 1, 0)),
        ):
            with paceline.lane("wrap", **said):
                assert lane_of(limiter) == spec
        assert lane_of(limiter, lane=LaneSpec("wrap")) == LaneSpec("wrap", 1, 0)

    def test_a_limiter_takes_specs(self):
        limiter = paceline.Limiter({"jobs": "1 requests/s"}, lanes=[LaneSpec("wrap", 4)])
        with paceline.lane("wrap"):
            assert lane_of(limiter) == LaneSpec("wrap", 4)

    def test_the_same_words_give_the_same_object(self):
        lanes = Lanes([LaneSpec("wrap", 4)])
        assert lanes["wrap", None, None] is lanes["wrap", None, None]
        for number in range(3 * LANES_MAX):
            assert lanes[f"lane-{number}", None, None].weight == 1
        assert len(lanes) <= LANES_MAX

    @pytest.mark.parametrize("priority", ["1", float("nan"), 0.5, None])
    def test_a_priority_that_is_none_is_refused_where_it_is_said(self, priority):
        with pytest.raises(SettingsError, match=f"priority of lane 'wrap' is {priority!r}: it must be a whole number"):
            LaneSpec("wrap", priority=priority)

    def test_a_weight_that_gives_no_share_is_refused_where_it_is_said(self):
        with pytest.raises(SettingsError, match="weight of lane 'wrap' is '2'"):
            LaneSpec("wrap", "2")
        with pytest.raises(SettingsError, match="weight of lane 'wrap'"), paceline.lane("wrap", weight=0):
            pass


MINUTES, WORKERS = 15, 500


def phases(start, **lanes):
    """Papers need 1 call of arcee (prep), 3 of pony at once, 4 of arcee (wrap). Pony's calls in each minute, and more.

    Arcee allows 200 calls a minute and pony 100, so pony's 100 are 33 papers a minute, which take 167 of arcee's.
    """

    async def main(clock):
        said = {"limits": {"arcee": {"rpm": 200}, "pony": {"rpm": 100}}, "lanes": lanes}
        limiter = Limiter(**Config().having(said, "test").arguments(patient=False), clock=clock)
        chance, start_ns, pony, waits = random.Random(7), clock.now_ns(), Counter(), {"prep": [], "wrap": []}

        async def call(model, lane, least_s, most_s):
            async with limiter.acquire(model, lane=lane) as permit:
                minute = (clock.now_ns() - start_ns) // 60_000_000_000
                pony[minute] += model == "pony"
                waits.setdefault(lane, []).append(permit.waited_s)
                await asyncio.sleep(chance.uniform(least_s, most_s))

        async def work(phase):
            while True:
                if phase == "prep":
                    await call("arcee", "prep", 2, 6)
                if phase != "wrap":
                    await asyncio.gather(*(call("pony", "expensive", 5, 25) for _ in range(3)))
                for _ in range(4):
                    await call("arcee", "wrap", 2, 6)
                phase = "prep"

        tasks = [asyncio.create_task(work(start(number))) for number in range(WORKERS)]
        await asyncio.sleep(60 * MINUTES)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [pony[minute] for minute in range(1, MINUTES)], waits

    return run_virtual(main)


WEIGHTS = {"prep": {"weight": 1}, "wrap": {"weight": 4}}
STARTS = {
    "all begin": lambda _: "prep",
    "resumed anywhere": lambda number: ("prep", "expensive", "wrap")[number % 3],
    "resumed at both ends": lambda number: ("prep", "wrap")[number % 2],
}


@pytest.mark.parametrize("start", some([*STARTS], "resumed at both ends"))
def test_weights_by_calls_keep_the_scarce_model_busy(start):
    """Each phase is sure of a fifth of arcee for each of its calls: 40 papers a minute, more than pony can take.

    So neither starves the other, however much waits; what one leaves the other takes; and no more papers are ever on
    their way than there are workers. (With all workers in the wrap there is no prep that could go first.)
    """
    pony, waits = phases(STARTS[start], **WEIGHTS)
    assert min(pony) >= 98
    assert max(waits["wrap"]) < 180
    assert max(waits["prep"]) < 400


@WORLD
def test_strict_priority_can_starve():
    pony, _ = phases(STARTS["resumed at both ends"], wrap={"priority": 1})
    assert min(pony) < 50
