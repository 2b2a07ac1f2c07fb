"""One process before a provider without stated limits: it refuses, and says nothing more."""

import pytest
from tests.simulation.fleet import Fleet

from paceline.pacing.status import report

BLIND = {"headers": False, "body_numbers": False, "latency_s": 1.0, "jitter": 0.3}
UNKNOWN = "8 concurrency"
"""What is assumed of an unknown host."""

# what is true, requests, workers; the most refused, and the seconds
WORLDS = {
    "60 a minute, burst 10": ("10 requests/10s", 200, 40, 40, 215),
    "60 a minute, burst 1": ("1 requests/s", 200, 40, 40, 250),
    "a burst of a minute": ("60 requests/min", 300, 40, 50, 270),
    "600 a minute": ("10 requests/s", 1_000, 100, 30, 112),
    "6 a minute": ("1 requests/10s", 40, 40, 25, 520),
    "5 in flight": ("5 concurrency", 200, 40, 20, 50),
    "no limit": ("100k requests/s", 1_000, 100, 0, 15),
}


def run(true, jobs, workers, seed, told=UNKNOWN, changes=(), source="assumed", **settings):
    limits = {"limits": {"m": true}, **BLIND, **settings}
    fleet = Fleet(
        told,
        limits,
        source=source,
        jobs=jobs,
        workers=workers,
        seed=seed,
        words=(20, 200),
        changes=changes,
        lies="none",
    )
    fleet.run(3_600)
    assert fleet.lost == 0
    assert len(fleet.admitted) == jobs
    return len(fleet.refused), fleet.admitted[-1][0], fleet


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("world", WORLDS)
def test_an_unknown_host_is_measured(world, seed):
    true, jobs, workers, most, slowest_s = WORLDS[world]
    refused, took_s, _ = run(true, jobs, workers, seed)
    said = f"{refused} refused, {took_s:.1f} s"
    assert refused <= most, said
    assert took_s <= slowest_s, said


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_moving_capacity_is_followed(seed):
    changes = [(12, {"m": "4 requests/s"}), (24, {"m": "10 requests/s"})]
    refused, took_s, _ = run("10 requests/s", 300, 100, seed, changes=changes)
    said = f"{refused} refused, {took_s:.1f} s"
    assert refused <= 25, said
    assert took_s <= 50, said


def test_what_was_found_is_in_the_status():
    *_, fleet = run("5 concurrency", 200, 40, 1)
    found = {one["unit"]: one for one in report(fleet.pool, 0)["quotas"]}
    assert found["concurrency"]["rule"] == "measured"
    assert 3 <= found["concurrency"]["limit"] <= 7
