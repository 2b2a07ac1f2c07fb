"""The measured rate and the bound on the number in flight together, before providers that state no limit.

``CASES`` has for each world the most refusals, and the time as a multiple of the clairvoyant's. They hold for each seed.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from core_providers import T0, Bucket, Chance, Clairvoyant, Counter, Log, Slots, Stall, World, ideal_s
from core_providers import run as run_with

from paceline.core.quota import FAR_NS, NS
from paceline.core.unstated.in_flight import InFlightBound, blame
from paceline.core.unstated.rate import MeasuredRate

SEEDS = range(1, 5)


class Unstated:
    """The measured rate and the bound together, as a pool uses them."""

    def __init__(self, world):
        self.rate = MeasuredRate(T0, stated=world.stated is not None)
        self.bound = InFlightBound()
        self.each_ns, self.full_at_ns = round(NS / world.stated) if world.stated else 0, T0

    def earliest_ns(self, now_ns):
        if self.bound.flight.in_flight >= self.bound.size:
            return FAR_NS
        return max(self.rate.earliest_ns(now_ns), self.full_at_ns - NS)

    def sent(self, now_ns):
        self.full_at_ns = max(self.full_at_ns, now_ns) + self.each_ns
        return self.rate.sent(now_ns, 1.0), self.bound.sent(now_ns)

    def unsent(self, now_ns, notes):
        self.rate.unsent(notes[0])
        self.bound.flight.lost(now_ns, notes[1])

    def answered(self, now_ns, notes):
        self.rate.answered(now_ns, notes[0])
        self.bound.ended(now_ns, notes[1], answered=True)

    def refused(self, now_ns, notes, asked_ns):
        blame(now_ns, self.rate, notes[0], self.bound, notes[1], asked_ns)


def run(world, seed, **options):
    return run_with(world, seed, Unstated(world), **options)


CASES = {
    "60/min, burst 1": (World(lambda: [Bucket(1, 1)]), 30, 1.25),
    "60/min, burst 10": (World(lambda: [Bucket(1, 10)]), 40, 1.11),
    "60/min, burst 60": (World(lambda: [Bucket(1, 60)], requests=400, workers=100), 50, 1.11),
    "60/min, one worker": (World(lambda: [Bucket(1, 1)], requests=200, workers=1, latency_s=0.3), 20, 1.25),
    "6/min, burst 1": (World(lambda: [Bucket(0.1, 1)], requests=60), 25, 1.3),
    "6/min, burst 6": (World(lambda: [Bucket(0.1, 6)], requests=60), 30, 1.11),
    "600/min, burst 10": (World(lambda: [Bucket(10, 10)], requests=1_000, workers=100), 30, 1.11),
    "600/min, latency 30 s": (World(lambda: [Bucket(10, 10)], requests=1_000, workers=500, latency_s=30), 30, 1.11),
    "600/min, heavy tail": (World(lambda: [Bucket(10, 10)], requests=1_000, workers=100, spread=1.0), 30, 1.11),
    "6000/min, burst 100": (World(lambda: [Bucket(100, 100)], requests=4_000, workers=500), 100, 1.11),
    "no limit": (World(list, requests=3_000, workers=500), 0, 1.25),
    "no limit, short": (World(list, requests=50, workers=50), 0, 1.65),
    "slots 1": (World(lambda: [Slots((0, 1))], requests=60), 15, 1.11),
    "slots 5": (World(lambda: [Slots((0, 5))]), 20, 1.11),
    "slots 5, heavy tail": (World(lambda: [Slots((0, 5))], latency_s=2, spread=1.0), 40, 1.4),
    "slots 50": (World(lambda: [Slots((0, 50))], requests=1_500, workers=100), 50, 1.11),
    "slots 50, then 20": (World(lambda: [Slots((0, 50), (60, 20))], requests=1_500, workers=100), 90, 1.15),
    "slots 5, then 50": (World(lambda: [Slots((0, 5), (60, 50))], requests=1_500, workers=100), 60, 1.35),
    "stated right": (World(lambda: [Bucket(1, 1.05)], stated=0.99), 1, 1.02),
    "stated twice": (World(lambda: [Bucket(1, 10)], stated=2), 30, 1.11),
    "stated 10 times": (World(lambda: [Bucket(1, 10)], stated=10), 45, 1.11),
    "stated 100 times": (World(lambda: [Bucket(1, 1)], requests=60, stated=100), 30, 1.25),
    "stated 100 times, burst 10": (World(lambda: [Bucket(1, 10)], requests=60, stated=100), 40, 1.11),
    "capacity 10, 4, 10/s": (World(lambda: [Bucket([(0, 10), (12, 4), (24, 10)], 5)], workers=100, latency_s=2), 20, 1.28),
    "capacity halves": (World(lambda: [Bucket([(0, 10), (60, 5)], 10)], requests=1_000, workers=100), 30, 1.11),
    "capacity doubles": (World(lambda: [Bucket([(0, 5), (60, 10)], 10)], requests=1_000, workers=100), 30, 1.25),
    "a stall of 20 s": (World(lambda: [Bucket(10, 10), Stall(30, 50)], requests=800, workers=100), 40, 1.25),
    "a stall of 10 min": (World(lambda: [Bucket(10, 10), Stall(5, 605)], requests=800, workers=100), 80, 1.1),
    "window of 15 s": (World(lambda: [Counter(100, 15, 4)], requests=2_000, workers=100), 180, 1.2),
    "window of 60 s": (World(lambda: [Counter(30, 60, 13)], requests=150), 40, 1.5),
    "any minute": (World(lambda: [Log(60, 60)], requests=400, workers=50), 75, 1.45),
    "callers cancel": (World(lambda: [Bucket(1, 10)], unsent=0.2), 40, 1.11),
    "refusals count": (World(lambda: [Bucket(1, 10, counts_refused=True)], requests=200), 35, 1.25),
    "honest waits, bucket": (World(lambda: [Bucket(1, 10)], asks=lambda wait_s: wait_s), 25, 1.11),
    "honest waits, window": (World(lambda: [Counter(30, 60, 13)], requests=150, asks=lambda wait_s: wait_s), 25, 1.4),
    "asks for 1 s": (World(lambda: [Bucket(0.1, 3)], requests=60, asks=lambda _: 1.0), 30, 1.11),
    "asks for a minute": (World(lambda: [Bucket(1, 10)], asks=lambda _: 60.0), 16, 1.3),
    "asks for a day": (World(lambda: [Counter(30, 15, 4)], requests=150, asks=lambda _: 86_400.0), 8, 1.8),
}  # fmt: skip


@pytest.mark.sample(len(CASES))
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_refusals_are_few_and_the_time_is_near_the_clairvoyants(name, seed, monkeypatch):
    monkeypatch.setattr(MeasuredRate, "_accept", lambda *_: pytest.fail("a limit was taken for chance"))
    world, refused, slower = CASES[name]
    outcome, best_s = run(world, seed), ideal_s(world, seed)
    found = f"{outcome.refused} refused, {outcome.took_s / best_s:.2f} times the ideal"
    assert outcome.served == world.requests, found
    assert outcome.refused <= refused, found
    assert outcome.took_s <= slower * best_s, found


CHANCES = {
    "5 %": ([(0, 0.05)], [], 3.0),
    "30 %": ([(0, 0.3)], [], 3.5),
    "30 %, 10/s": ([(0, 0.3)], [(10, 10)], 2.0),
    "30 % until 60 s, 10/s": ([(0, 0.3), (60, 0)], [(10, 10)], 2.0),
    "30 % from 60 s, 10/s": ([(0, 0), (60, 0.3)], [(10, 10)], 7.0),
    "30 %, all from 30 to 60 s": ([(0, 0.3), (30, 1), (60, 0.3)], [], 6.0),
}
"""The shares that are refused by chance, the buckets, and the time as a multiple of the time of the buckets alone. It holds for three of
four seeds: several refusals in a row right at the beginning still look as if nothing were admitted."""


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CHANCES)
def test_refusals_by_chance_cost_little_time(name):
    shares, buckets, slower = CHANCES[name]
    times = []
    for seed in SEEDS:
        limits = World(lambda: [Bucket(*bucket) for bucket in buckets], requests=1_500, workers=100)
        world = replace(limits, rules=lambda seed=seed, limits=limits: [Chance(seed, *shares), *limits.rules()])
        outcome = run(world, seed)
        assert outcome.served == 1_500
        times.append(outcome.took_s / ideal_s(limits, seed))
    assert sorted(times)[-2] <= slower, times


@pytest.mark.parametrize("seed", SEEDS)
def test_chance_that_has_ended_is_noticed(seed):
    client = Unstated(World(list))
    world = World(lambda: [Chance(seed, (0, 0.3), (60, 0)), Bucket(10, 10)], requests=1_500, workers=100)
    outcome = run_with(world, seed, client)
    assert client.rate.chance.share < 0.05
    assert sum(at_s > 120 for at_s in outcome.refused_s) <= 60


@pytest.mark.parametrize("seed", SEEDS)
def test_refusals_are_rare_in_the_long_run(seed):
    outcome = run(World(lambda: [Bucket(1, 10)], requests=2_400), seed)
    assert sum(at_s > 300 for at_s in outcome.refused_s) <= 0.02 * 2_100
    assert outcome.took_s <= 2_400 / 0.98


@pytest.mark.parametrize("seed", SEEDS)
def test_no_stampede_after_a_stall(seed):
    outcome = run(World(lambda: [Bucket(10, 10), Stall(30, 50)], requests=800, workers=100), seed)
    after = [at_s for at_s in outcome.sent_s if at_s >= 50]
    assert max(sum(from_s <= at_s < from_s + 1 for at_s in after) for from_s in after) <= 20


def random_world(seed: int) -> World:
    """A world of any kind: rates of 6 to 1,800 a minute, one to 300 workers, answers in 0.3 to 30 s."""
    dice = random.Random(f"world {seed}")
    rate, latency_s, workers = (
        10 ** dice.uniform(-1, 1.5),
        dice.choice([0.3, 1, 3, 10, 30]),
        dice.choice([1, 20, 100, 300]),
    )
    burst, period_s = max(1.0, rate * dice.choice([0, 1, 10, 60])), dice.choice([5, 15, 60])
    at_s, slots = dice.uniform(20, 120), dice.choice([1, 2, 5, 20, 80])
    amount, offset_s, stall_s = max(round(rate * period_s), 1), dice.uniform(0, period_s), dice.choice([5, 60, 600])
    later, more = rate * dice.choice([0.3, 3]), dice.choice([1, 5, 50])
    rules = {
        "bucket": lambda: [Bucket(rate, burst)],
        "counting bucket": lambda: [Bucket(rate, burst, counts_refused=True)],
        "moving": lambda: [Bucket([(0, rate), (at_s, later)], burst)],
        "window": lambda: [Counter(amount, period_s, offset_s)],
        "log": lambda: [Log(amount, period_s)],
        "slots": lambda: [Slots((0, slots), (at_s, more))],
        "slots and bucket": lambda: [Slots((0, slots)), Bucket(rate, burst)],
        "stall": lambda: [Bucket(rate, burst), Stall(at_s, at_s + stall_s)],
        "all": lambda: [Bucket(rate, burst), Slots((0, slots)), Counter(2 * amount, period_s), Stall(at_s, at_s + 20)],
    }[
        dice.choice(
            ["bucket", "counting bucket", "moving", "window", "log", "slots", "slots and bucket", "stall", "all"]
        )
    ]
    asks = dice.choice(
        [None, None, lambda wait_s: min(wait_s, 60.0), lambda _: 1.0, lambda _: 30.0, lambda _: 86_400.0]
    )
    return World(
        rules,
        requests=dice.choice([20, 60, 150]),
        workers=workers,
        latency_s=latency_s,
        spread=dice.choice([0.1, 1.0]),
        stated=dice.choice([None, None, 2 * rate, 100 * rate]),
        asks=asks,
        unsent=dice.choice([0.0, 0.0, 0.1, 0.5]),
    )


@pytest.mark.parametrize("seed", range(100))
def test_every_request_is_served_in_random_worlds(seed):
    world = random_world(seed)
    outcome = run(world, seed, hours=24)
    assert outcome.served == world.requests
    assert outcome.refused <= 100 + world.requests


def test_the_clairvoyant_is_never_refused():
    for seed in range(20):
        world = random_world(seed)
        outcome = run_with(world, seed, Clairvoyant(), hours=24)
        assert (outcome.served, outcome.refused) == (world.requests, 0), seed
