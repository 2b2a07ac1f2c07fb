"""The phases of the paper pipeline in virtual time: its own limiter and lanes, 500 workers, an emulated provider, ninety minutes."""

import asyncio
import random
from itertools import pairwise

import pytest
from run import LANES, LIMITS, limiter, per_minute

import paceline
from paceline.emulator import Refused, Settings, World
from paceline.testing import run_virtual

WORKERS, MINUTES, STEADY = 500, 90, 60
STARTS = {
    "all begin": lambda _: 0,
    "resumed at both ends": lambda number: 2 * (number % 2),
    "resumed anywhere": lambda number: number % 3,
    "resumed before wrap": lambda _: 2,
}
"""By worker: 0, 1 or 2 phases are behind it."""

SHARES = {lane.name: LIMITS["arcee"] * lane.weight / sum(lane.weight for lane in LANES) for lane in LANES}
"""Calls of arcee per minute that a phase is sure of while it asks for them."""


class Run:
    """What became of it: who went when and how long it waited by lane, and when papers were done; in seconds."""

    def __init__(self, start):
        self.went, self.done_s, self.start, self.refused = {}, [], start, 0
        run_virtual(self.main)

    async def main(self, clock):
        self.limiter, self.began_ns = limiter(clock=clock), clock.now_ns()
        limits = {model: per_minute(limit, 1) for model, limit in LIMITS.items()}
        self.world = World(Settings(limits=limits), clock.now_ns() / 1e9)
        self.clock, self.chance = clock, random.Random(5)
        workers = [asyncio.create_task(self.work(number)) for number in range(WORKERS)]
        done, busy = await asyncio.wait(workers, timeout=60 * MINUTES)
        for worker in busy:
            worker.cancel()
        await asyncio.wait(busy)
        for worker in done:
            worker.result()  # papers never end: it failed

    async def work(self, number):
        phase = self.start(number)
        while True:
            if phase == 0:
                await self.call("arcee", "prep", 1, 4)
            if phase <= 1:
                await asyncio.gather(*[self.call("pony", "expensive", 3, 9) for _ in range(3)])
            for _ in range(self.chance.choice((3, 4, 5))):
                await self.call("arcee", "wrap", 1, 4)
            self.done_s.append(self.now_s())
            phase = 0

    def now_s(self):
        return (self.clock.now_ns() - self.began_ns) / 1e9

    async def call(self, model, lane, least_s, most_s):
        with paceline.lane(lane):
            async with self.limiter.acquire(model) as permit:
                went_s = (permit.reservation.granted_ns - self.began_ns) / 1e9
                self.went.setdefault(lane, []).append((went_s, permit.waited_s))
                await asyncio.sleep(self.chance.uniform(0, 0.1))  # on the way
                now_s = self.clock.now_ns() / 1e9
                self.refused += isinstance(self.world.admit(now_s, model, 100, 100), Refused)
                await asyncio.sleep(self.chance.uniform(least_s, most_s))

    def rate(self, lanes, from_min, to_min):
        count = sum(60 * from_min <= at_s < 60 * to_min for lane in lanes for at_s, _ in self.went[lane])
        return count / (to_min - from_min)

    def waits_throughout(self, lane, minute):
        """Whether somebody of the lane is in line at every instant of a minute."""
        until_s, end_s = minute * 60, minute * 60 + 60
        for at_s, wait_s in self.went[lane]:  # in the order of arrival
            if at_s - wait_s <= until_s < end_s:
                until_s = max(until_s, at_s)
        return until_s >= end_s

    def waits(self, lane, from_min, to_min):
        return [wait_s for at_s, wait_s in self.went[lane] if 60 * from_min <= at_s < 60 * to_min]


@pytest.fixture(scope="module", params=STARTS)
def outcome(request):
    return Run(STARTS[request.param])


def first_of_pony(outcome):
    """The minute in which the first paper reached pony, whose bucket is full until then."""
    return int(min(at_s for at_s, _ in outcome.went["expensive"]) / 60)


def test_zero_429s(outcome):
    assert outcome.refused == 0
    assert outcome.world.tally()["admitted"] > 20_000


def test_pony_never_runs_dry(outcome):
    for minute in range(first_of_pony(outcome) + 3, MINUTES):
        assert outcome.rate(["expensive"], minute, minute + 1) >= 0.98 * LIMITS["pony"]


def test_arcee_is_never_below_what_balance_demands_and_ends_there(outcome):
    for minute in range(3, MINUTES - 5, 5):
        assert outcome.rate(["prep", "wrap"], minute, minute + 5) >= 155  # five minutes of uneven papers
    assert outcome.rate(["prep", "wrap"], STEADY, MINUTES) == pytest.approx(167, abs=4)


@pytest.mark.parametrize("lane", SHARES)
def test_each_phase_of_arcee_has_its_share_in_every_minute_in_which_it_waits(outcome, lane):
    """Prep does not starve, and it does not flood: wrap has four fifths whenever it asks for them."""
    minutes = [minute for minute in range(1, MINUTES) if outcome.waits_throughout(lane, minute)]
    assert minutes
    for minute in minutes:
        assert outcome.rate([lane], minute, minute + 1) >= SHARES[lane] - 1


def test_thirty_three_papers_a_minute(outcome):
    assert sum(at_s >= STEADY * 60 for at_s in outcome.done_s) / (MINUTES - STEADY) == pytest.approx(33.3, abs=1)


def test_strict_arrival_order_inside_a_phase(outcome):
    for went in outcome.went.values():
        arrived_s = [at_s - wait_s for at_s, wait_s in went]
        assert all(later - earlier > -1e-6 for earlier, later in pairwise(arrived_s))


def test_nobody_starves(outcome):
    """In the steady state the longest wait is near the mean; before it, nobody waits longer than 500 papers take."""
    waits = outcome.waits("expensive", STEADY, MINUTES)
    assert max(waits) <= 1.15 * sum(waits) / len(waits)
    for lane in ("prep", "wrap"):
        assert max(outcome.waits(lane, STEADY, MINUTES)) <= 5
        assert max(outcome.waits(lane, 0, MINUTES)) <= 500 / 33 * 60
