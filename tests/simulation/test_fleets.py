"""Many processes on one quota, and a store that serves one call after the other, at the cost that Redis was measured at."""

import pytest
from tests.simulation.fleet import Fleet

from grids import WORLD
from paceline.core.queue import Waiter
from paceline.core.quota import NS, parse_quotas
from paceline.shared.exchange import answer, ask
from paceline.shared.ledger import SharedLedger
from paceline.shared.membership import FEW
from shared_pools import message_of, shared_pool

WORLDS = {"10": (10, 500), "100": (100, 500), "1000": (1_000, 500)}
LARGE = {
    "10 at 30k": (10, 30_000), "100 at 30k": (100, 30_000), "1000 at 30k": (1_000, 30_000),
    "10000": (10_000, 500),
}  # fmt: skip
START = 1_700_000_003 * NS


def worlds(*quick):
    marks = dict.fromkeys(quick, ()) | {"1000": pytest.mark.soak}
    return [
        *[pytest.param(*world, id=name, marks=marks.get(name, WORLD)) for name, world in WORLDS.items()],
        *[pytest.param(*world, id=name, marks=pytest.mark.soak) for name, world in LARGE.items()],
    ]


class Crowd(Fleet):
    """Processes with a few workers each, who never run out of work; the store takes ``cost_s`` for each call."""

    def __init__(self, processes, per_min, *, cost_s=0.0004, away=(), workers=1):
        quota = f"{per_min} requests/min"
        settings = {"limits": {"m": quota}, "latency_s": 2.0, "jitter": 0.3, "headers": False, "body_numbers": False}
        store = {"away": away, "hangs": True, "cost_s": cost_s, "stale_cost_s": 0.00003}
        super().__init__(
            quota, settings, hosts=processes, workers=workers, jobs=None, output=10, capacity={}, store=store
        )
        self.rate = per_min / 60

    def used(self, from_s, to_s):
        """The admitted requests of this time, as a part of what the limit refills."""
        refused = sum(from_s <= at < to_s for at in self.refused)
        return (self.sent(from_s, to_s) - refused) / (self.rate * (to_s - from_s))

    def calls_per_s(self, from_s, to_s):
        return sum(from_s <= at < to_s for at in self.sim.store.calls_s) / (to_s - from_s)


def workers_for(processes, per_min):
    """So many that the quota binds, with two seconds for an answer."""
    return max(1, round(1.5 * 2.3 * per_min / 60 / processes))


@pytest.mark.parametrize(("processes", "per_min"), worlds())
def test_a_crowd_uses_the_whole_quota(processes, per_min):
    crowd = Crowd(processes, per_min, workers=workers_for(processes, per_min)).run(90)
    assert crowd.refused == []
    assert crowd.used(30, 90) > 0.98
    assert crowd.calls_per_s(30, 90) < 250 + 2.5 * crowd.rate


@WORLD
@pytest.mark.parametrize("away_s", [5, pytest.param(60, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("processes", "per_min"), worlds("10"))
def test_a_crowd_whose_store_is_away_for_a_time(processes, per_min, away_s):
    from_s = 30 if processes <= 1_000 else 120  # until each of them has been told its share of the limits
    back_s = from_s + away_s
    workers = workers_for(processes, per_min)
    crowd = Crowd(processes, per_min, workers=workers, away=[(from_s, back_s)]).run(back_s + 60)
    assert crowd.refused == []
    assert all(not host.pool.capacity.membership.state.alone for host in crowd.hosts)
    assert crowd.used(back_s, back_s + 10) > 0.5
    assert crowd.used(back_s + 10, back_s + 60) > 0.98
    assert crowd.calls_per_s(back_s + 10, back_s + 60) < 250 + 2.5 * crowd.rate
    if away_s > 5:
        assert crowd.used(from_s + 5, back_s) > 0.5


@pytest.mark.soak
def test_ten_thousand_processes_on_a_large_quota_whose_store_is_away_for_a_minute():
    """At 0.4 ms a call the store would answer 10,000 processes that all ask in 4 s, and be lost to most of them."""
    from_s, back_s = 120, 180
    crowd = Crowd(10_000, 30_000, cost_s=0.00013, away=[(from_s, back_s)])
    lost = []
    joined_s = back_s + 35
    crowd.sim.time.after(
        joined_s, lambda: lost.extend(one for one in crowd.hosts if one.pool.capacity.membership.state.alone)
    )
    crowd.run(back_s + 60)
    assert crowd.refused == lost == []
    assert crowd.used(60, from_s) > 0.98
    assert crowd.calls_per_s(90, from_s) < 1_100
    assert crowd.used(from_s + 5, back_s) > 0.6
    assert crowd.used(back_s, back_s + 10) > 0.7
    assert crowd.used(back_s + 10, back_s + 60) > 0.98


def test_forked_children_try_a_lost_store_apart_from_each_other():
    quotas, ledger = parse_quotas("500 requests/min"), SharedLedger()
    for n in range(FEW):
        ledger.apply(START, message_of(f"h{n}", 1, quotas, [-1]))
    before, tries_ns = ledger.dump(), set()
    for n in range(10):
        child = shared_pool("sim", quotas, START, who="parent")  # as the parent was when it forked
        child.submit(START, Waiter({"requests": 1}))
        answer(child, START, SharedLedger.load(before).apply(START, ask(child, START)))
        child.capacity.forked(f"child {n}", START)
        assert ask(child, START, at_once=True) is not None
        answer(child, START, "no answer")
        tries_ns.add(child.capacity.exchange_ns)
    assert len(tries_ns) == 10
