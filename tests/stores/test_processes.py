"""Real processes on one quota, before a provider that counts: whatever is killed, frozen or started again in mid-run."""

from __future__ import annotations

import statistics
import sys

import pytest
from crew import Crew

pytestmark = pytest.mark.long("several processes in real time")

QUOTAS = ["300 requests/10s"]
BUSY = {"headroom_s": 2.0}  # the machine that tests run on may be busy with others: what leaves can be late
JITTER = 3  # and in real time a few may be late all the same; on a quiet one it is none: `pytest -m soak` says so


@pytest.fixture
def provider(paceline_emulator, request):
    """It has the quotas of the class, if that has others."""
    quotas = getattr(request.cls, "QUOTAS", QUOTAS)
    return paceline_emulator(limits={"gpt-5": ",".join(quotas)}, latency_s=0.2, process=True)


def test_four_processes_share_a_quota(provider, store):
    with Crew(provider, store, QUOTAS, requests=316, options=BUSY) as crew:
        results, tally = crew.results()
    assert tally["admitted"] == 316
    assert tally["refused_total"] <= JITTER
    assert all(result["states"][-1] == "joined" for result in results)
    assert max(result["status"]["store"]["peers"] for result in results) == 4


def test_leases_keep_the_same_promise(provider, redis_server):
    with Crew(provider, redis_server.url, QUOTAS, requests=316, options={**BUSY, "lease_s": 0.5}) as crew:
        _, tally = crew.results()
    assert tally["admitted"] == 316
    assert tally["refused_total"] <= JITTER


def test_one_that_is_killed_takes_nothing_along(provider, store):
    with Crew(provider, store, QUOTAS, requests=340, options=BUSY) as crew:
        crew.admitted(260)
        crew.kill(2)
        results, tally = crew.results()
    assert len(results) == 3
    assert tally["refused_total"] <= JITTER


@pytest.mark.parametrize(("away", "back"), [("freeze", "thaw"), ("kill", "restart")])
def test_redis_that_freezes_or_starts_again_with_nothing(provider, redis_server, away, back):
    """Each goes on with its share, and comes back by itself: a new ledger is restored from snapshots, with no full burst."""
    with Crew(provider, redis_server.url, QUOTAS, requests=440, options=BUSY, tells="lost") as crew:
        crew.admitted(260)
        getattr(redis_server, away)()
        crew.told("lost")
        crew.admitted(300)
        getattr(redis_server, back)()
        results, tally = crew.results()
    assert tally["refused_total"] <= JITTER
    # Each process has seen that the store was lost. One that still had work has also seen that it was back.
    states = [result["states"][result["states"].index("lost") :] for result in results]
    assert ["lost", "joined"] in states
    assert all(seen in (["lost"], ["lost", "joined"]) for seen in states)


class TestSlots:
    QUOTAS = ("4 concurrency", "6000 requests/min")

    def test_never_more_than_there_are(self, provider, store):
        with Crew(provider, store, self.QUOTAS, requests=32, workers=5) as crew:
            _, tally = crew.results()
        assert tally["refused_total"] <= JITTER
        assert tally["in_flight_peak"] == 4
        assert tally["elapsed_s"] < 3 * 32 * 0.2 / 4  # when a slot comes free, who waits for it hears of it soon

    def test_those_of_a_killed_process_come_back(self, paceline_emulator, store):
        provider = paceline_emulator(limits={"gpt-5": ",".join(self.QUOTAS)}, latency_s=0.5, process=True)
        with Crew(provider, store, self.QUOTAS, count=2, requests=12, workers=4, slots_back_s=2) as crew:
            crew.admitted(4)
            crew.kill(0)
            _, tally = crew.results()
        assert tally["refused_total"] <= JITTER
        assert tally["in_flight_peak"] <= 4


@pytest.mark.soak
class TestForAMinute:
    QUOTAS = ("2400 requests/min", "4M tokens/min")

    def test_eight_hundred_workers(self, provider, store):
        with Crew(provider, store, self.QUOTAS, count=8, workers=100, requests=6_400, bound_s=300) as crew:
            results, tally = crew.results()
        # Three hundred went at once, a hundred joined an empty line.
        steady = [result["waits_s"][400:] for result in results]
        waits_s = [wait for waits in steady for wait in waits]
        mean_s = statistics.fmean(waits_s)
        said = f"{tally['refused']}, speed {tally['speed_vs_ideal']:.4f}, waits {mean_s:.1f} s, at most {max(waits_s):.1f} s"
        sys.stdout.write(f"{said}\n")  # pytest -rP
        assert tally["refused_total"] == 0, said
        assert tally["speed_vs_ideal"] >= 0.98, said
        assert max(waits_s) <= 2 * mean_s, said
