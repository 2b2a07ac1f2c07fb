"""Processes with a store before a provider without stated limits: it refuses, and says nothing more."""

from statistics import mean

import pytest
from tests.simulation.fleet import BLIND, UNKNOWN, Fleet

from grids import WORLD, some
from paceline.core.unstated.measured import FoundMeter
from paceline.pacing.status import report


class Shared(Fleet):
    """Processes that share a pool; ``answered_s`` has for each when its requests were answered."""

    def __init__(self, true, jobs, hosts, seed=1, told=UNKNOWN, source="assumed", active=(), **options):
        settings = {"limits": {"m": true}, **BLIND, "latency_s": 1.0, "jitter": 0.3, **options.pop("settings", {})}
        super().__init__(
            told, settings, source=source, jobs=jobs, hosts=hosts, workers=160 // hosts, seed=seed, words=(20, 200),
            **{"capacity": {}, **options},
        )  # fmt: skip
        self.answered_s = [[] for _ in self.hosts]
        for n, host in enumerate(self.hosts):
            host.process.send = self._counted(host.process.send, self.answered_s[n])
            host.active = active[n] if active else ()

    @staticmethod
    def _counted(send, ended_s):
        async def counted(request):
            sent = await send(request)
            if sent.error is None:
                ended_s.append(sent.ended_s)
            return sent

        return counted

    @property
    def fairness(self):
        """Jain's index of what the processes were answered while all of them had work: 1 if all got the same."""
        until_s = min(max(ended_s, default=0.0) for ended_s in self.answered_s)
        counts = [sum(at_s <= until_s for at_s in ended_s) for ended_s in self.answered_s]
        return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts))

    @property
    def messages(self):
        """The messages to the store for each attempt."""
        return len(self.sim.store.calls_s) / self.sent()

    def all_served(self, jobs):
        assert (self.lost, len(self.admitted)) == (0, jobs), self.said()
        return self


# what is true, requests, processes; the most refused, the seconds, the least fairness
WORLDS = {
    "60 a minute, one": ("10 requests/10s", 300, 1, 42, 320, 1.0),
    "60 a minute, four": ("10 requests/10s", 300, 4, 130, 400, 0.85),
    "600 a minute, one": ("10 requests/s", 1_000, 1, 30, 112, 1.0),
    "600 a minute, four": ("10 requests/s", 1_000, 4, 150, 125, 0.9),
    "5 in flight, one": ("5 concurrency", 200, 1, 30, 50, 1.0),
    "5 in flight, four": ("5 concurrency", 200, 4, 80, 85, 0.6),
    "no limit, one": ("100k requests/s", 1_000, 1, 0, 15, 1.0),
    "no limit, four": ("100k requests/s", 1_000, 4, 0, 15, 0.95),
}


@WORLD
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("world", WORLDS)
def test_an_unknown_host_is_measured(world, seed):
    true, jobs, hosts, most, slowest_s, fairness = WORLDS[world]
    fleet = Shared(true, jobs, hosts, seed)
    fleet.run(3_600).all_served(jobs)
    said = f"{len(fleet.refused)} refused, {fleet.admitted[-1][0]:.0f} s, fairness {fleet.fairness:.2f}, {fleet.messages:.2f} messages"
    assert len(fleet.refused) <= most, said
    assert fleet.admitted[-1][0] <= slowest_s, said
    assert fleet.fairness >= fairness, said
    assert fleet.messages <= 1, said


@pytest.mark.parametrize(("hosts", "most"), some([(1, 30), (4, 100)], (4, 100)))
def test_a_moving_capacity_is_followed(hosts, most):
    changes = [(12, {"m": "4 requests/s"}), (24, {"m": "10 requests/s"})]
    fleet = Shared("10 requests/s", 300, hosts, changes=changes)
    fleet.run(3_600).all_served(300)
    assert len(fleet.refused) <= most
    assert fleet.admitted[-1][0] <= 60


@WORLD
def test_a_process_that_joins_begins_with_its_share():
    """It sends no burst, and soon all three get the same."""
    always = [((0.0, 1e9),)] * 2
    fleet = Shared("10 requests/s", None, 3, active=[*always, ((100.0, 1e9),)])
    fleet.run(160)
    new = [at_s for at_s in fleet.hosts[2].sent_at_s if at_s < 103]
    assert 0 < len(new) <= 15
    assert sum(98 < at_s < 110 for at_s in fleet.refused) <= 20
    rates = [sum(120 < at_s < 160 for at_s in host.sent_at_s) / 40 for host in fleet.hosts]
    assert all(0.6 * mean(rates) < rate < 1.5 * mean(rates) for rate in rates), rates


MODES = [("fail_safe", 1.0), ("fail_closed", 0.0), ("fail_open", 1.0)]


@pytest.mark.parametrize(("mode", "share"), some(MODES, MODES[0]))
def test_a_store_that_is_lost_opens_and_stops_nothing(mode, share):
    """What is measured goes on at its rate; only ``fail_closed`` grants nothing."""
    fleet = Shared("10 requests/s", None, 2, store={"away": [(60, 90)]}, capacity={"on_store_failure": mode})
    fleet.run(150)
    before, away, after = (fleet.sent(from_s, from_s + 20) / 20 for from_s in (40, 68, 120))
    assert 8 <= before <= 12
    assert 8 * share <= away <= 12 * share
    assert 8 <= after <= 12
    assert sum(60 < at_s < 150 for at_s in fleet.refused) <= 30


def test_a_limit_that_headers_state_holds_in_place_of_the_measured_one():
    fleet = Shared("600 requests/min", 300, 4, settings={"headers": True, "body_numbers": True})
    fleet.run(3_600).all_served(300)
    rows = {one["unit"]: one for one in report(fleet.pool, 0)["quotas"]}
    assert (rows["requests"]["rule"], rows["requests"]["limit"]) == ("bucket", 600)
    assert len(fleet.refused) <= 8
    meters = fleet.pool.capacity.unstated.meters
    assert all(meter.found is None for meter in meters if meter.quota.unit == "requests")


@pytest.mark.parametrize("hosts", some([1, 3], 3))
def test_a_limit_that_refusals_refute_is_measured(hosts):
    fleet = Shared("10 requests/10s", 120, hosts, told="6000 requests/min", source="given")
    fleet.run(3_600).all_served(120)
    assert len(fleet.refused) <= 155
    assert fleet.admitted[-1][0] <= 170
    assert any(isinstance(m, FoundMeter) and m.found for m in fleet.pool.ledger.meters)
