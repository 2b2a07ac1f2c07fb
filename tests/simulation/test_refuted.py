"""Requests that are always refused, and told limits that refusals refute: the real limiter in virtual time."""

import pytest
from tests.simulation.fleet import BLIND, UNKNOWN, Fleet

from grids import some


def run(true, jobs, workers, seed, told=UNKNOWN, changes=(), source="assumed", bad=(), **settings):
    limits = {"limits": {"m": true}, **BLIND, "latency_s": 1.0, "jitter": 0.3, **settings}
    fleet = Fleet(
        told, limits, source=source, jobs=jobs, workers=workers, seed=seed, words=(20, 200), changes=changes, bad=bad
    )
    fleet.run(3_600)
    assert fleet.lost == len(bad)
    assert len(fleet.admitted) == jobs
    return len(fleet.refused), fleet.admitted[-1][0], fleet


# what is told, what is true, requests, workers, the places of the requests that are always refused; the seconds of the others
BAD = {
    "no limit, one": (UNKNOWN, "100k requests/s", 400, 20, [9], 20),
    "no limit, three": (UNKNOWN, "100k requests/s", 400, 20, [9, 50, 120], 35),
    "no limit, five at once": (UNKNOWN, "100k requests/s", 400, 20, range(9, 14), 95),
    "600 a minute, one": (UNKNOWN, "10 requests/s", 400, 20, [9], 45),
    "60 a minute, one": (UNKNOWN, "10 requests/10s", 200, 40, [70], 205),
    "told right, one": ("600 requests/min", "10 requests/s", 400, 20, [9], 50),
    "told right, five at once": ("600 requests/min", "10 requests/s", 400, 20, range(9, 14), 130),
    "a window, one": (UNKNOWN, "30 requests/15s window", 150, 40, [9], 110),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", some([1, 2], 1))
@pytest.mark.parametrize("world", BAD)
def test_a_request_that_is_refused_for_its_own_sake_does_not_slow_the_others_down(world, seed):
    told, true, jobs, workers, bad, slowest_s = BAD[world]
    source = "assumed" if told == UNKNOWN else "given"
    _, took_s, fleet = run(true, jobs, workers, seed, told=told, source=source, bad=bad, latency_s=0.5)
    said = f"{took_s:.1f} s, {fleet.bad_refused}"
    assert took_s <= slowest_s, said
    assert len(fleet.bad_refused) <= 14 * len(bad), said
    assert fleet.sim.now_s <= took_s + 60, said


# what is told, what is true, requests, workers; the most refused, and the seconds
TOLD = {
    "a hundred times too high": ("6000 requests/min", "10 requests/10s", 60, 40, 60, 85),
    "ten times too high": ("600 requests/min", "10 requests/10s", 200, 40, 40, 215),
    "tokens, a hundred times too high": (
        "6000 requests/min,4M tokens/min", "6000 requests/min,40k tokens/min", 300, 100, 40, 110,
    ),
    "a window, ten times too high": ("5000 requests/min", "500 requests/min window", 1_500, 100, 40, 230),
    "any minute, ten times too high": ("5000 requests/min", "500 requests/min sliding", 1_500, 100, 40, 230),
    "slots that are not told": ("6000 requests/min", "5 concurrency", 200, 40, 60, 55),
}  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", some([1, 2, 3], 1))
@pytest.mark.parametrize("world", TOLD)
def test_a_limit_that_refusals_refute_is_measured(world, seed):
    told, true, jobs, workers, most, slowest_s = TOLD[world]
    refused, took_s, _ = run(true, jobs, workers, seed, told=told, source="given")
    said = f"{refused} refused, {took_s:.1f} s"
    assert refused <= most, said
    assert took_s <= slowest_s, said
