"""Requests that are always refused: the real limiter in virtual time."""

import pytest
from tests.simulation.fleet import BLIND, UNKNOWN, Fleet

from grids import some

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
    settings = {"limits": {"m": true}, **BLIND, "latency_s": 0.5, "jitter": 0.3}
    source = "assumed" if told == UNKNOWN else "given"
    fleet = Fleet(told, settings, source=source, jobs=jobs, workers=workers, seed=seed, words=(20, 200), bad=bad)
    took_s = fleet.run(3_600).admitted[-1][0]
    said = f"{took_s:.1f} s, {fleet.bad_refused}"
    assert (fleet.lost, len(fleet.admitted)) == (len(bad), jobs), said
    assert took_s <= slowest_s, said
    assert len(fleet.bad_refused) <= 14 * len(bad), said
    assert fleet.sim.now_s <= took_s + 60, said
