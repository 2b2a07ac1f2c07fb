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


# what is told, what is true, requests, workers; the most refused, and the seconds
TOLD = {
    "a hundred times too high": ("6000 requests/min", "10 requests/10s", 60, 40, 60, 85),
    "ten times too high": ("600 requests/min", "10 requests/10s", 200, 40, 40, 215),
    "tokens, a hundred times too high": (
        "6000 requests/min,4M tokens/min", "6000 requests/min,40k tokens/min", 300, 100, 40, 110,
    ),
    "slots that are not told": ("6000 requests/min", "5 concurrency", 200, 40, 60, 50),
}  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("world", TOLD)
def test_a_limit_that_refusals_refute_is_measured(world, seed):
    told, true, jobs, workers, most, slowest_s = TOLD[world]
    refused, took_s, _ = run(true, jobs, workers, seed, told=told, source="given")
    said = f"{refused} refused, {took_s:.1f} s"
    assert refused <= most, said
    assert took_s <= slowest_s, said


@pytest.mark.parametrize(
    ("told", "true"), [("60 requests/min", "10 requests/10s"), ("600 requests/min", "10 requests/s")]
)
def test_a_burst_that_was_told_too_large_is_no_other_limit(told, true):
    *_, fleet = run(true, 200, 40, 1, told=told, source="given")
    assert [one["rule"] for one in report(fleet.pool, 0)["quotas"]] == ["bucket"]
