"""Many processes on one quota, and a store that serves one call after the other, at the cost that Redis was measured at."""

import copy
import heapq

import pytest
from tests.simulation.fleet import START_NS, Job
from tests.simulation.shared import Hub, shared_pool

from paceline.core.queue import Waiter
from paceline.core.quota import NS, parse_quotas
from paceline.shared.capacity import FEW, answer, ask
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import Message

STALE_S = 2.0
"""How old a message is when the Redis store drops it: the timeout, and a second."""

WORLDS = {"10": (10, 500), "100": (100, 500), "1000": (1_000, 500)}
LARGE = {
    "10 at 30k": (10, 30_000), "100 at 30k": (100, 30_000), "1000 at 30k": (1_000, 30_000),
    "10000": (10_000, 500),
}  # fmt: skip


def worlds():
    return [
        *[pytest.param(*world, id=name) for name, world in WORLDS.items()],
        *[pytest.param(*world, id=name, marks=pytest.mark.soak) for name, world in LARGE.items()],
    ]


class Crowd(Hub):
    """Processes with a few workers each, who never run out of work; the store takes ``cost_s`` for each call."""

    def __init__(self, processes, per_min, *, cost_s=0.0004, late_s=0.00003, workers=1, **options):
        quota = f"{per_min} requests/min"
        settings = {"limits": {"m": quota}, "latency_s": 2.0, "jitter": 0.3, "headers": False, "body_numbers": False}
        super().__init__(quota, settings, hosts=processes, workers=workers, jobs=0, **options)
        self.rate, self.cost_s, self.late_s = per_min / 60, cost_s, late_s
        self.free_ns, self.call_times_s = START_NS, []
        for host in self.hosts:
            host.todo = Endless()

    def carry(self, host, message):
        self.call_times_s.append(self.now_s)
        sent_ns, done = self.now_ns, []

        def give_up():
            if not done:
                done.append(True)
                host.replied(None)

        def arrive():
            until_s = max((b for a, b in self.away if a <= self.now_s < b), default=None)
            if until_s is not None:  # it waits in a socket until the store goes on
                self.at(START_NS + round(until_s * NS), arrive)
                return
            self.free_ns = max(self.now_ns, self.free_ns)
            late = self.free_ns - sent_ns > STALE_S * NS
            self.free_ns += round((self.late_s if late else self.cost_s) * NS)
            if not late:
                self.at(self.free_ns, serve)

        def serve():
            reply = self.ledger.apply(self.now_ns, message)
            self.after(self.random.uniform(*self.trip_s), lambda: take(reply))

        def take(reply):
            if not done:
                done.append(True)
                host.replied(reply)

        self.after(self.random.uniform(*self.trip_s), arrive)
        self.after(self.timeout_s, give_up)

    def run_for(self, seconds):
        for n, host in enumerate(self.hosts):
            for _ in range(host.workers):
                self.after(n * 0.001, host.next_job)
        while self.events and self.events[0][0] < START_NS + seconds * NS:
            self.now_ns, _, event = heapq.heappop(self.events)
            event()
        return self

    def used(self, from_s, to_s):
        """The admitted requests of this time, as a part of what the limit refills."""
        sent = sum(from_s <= at < to_s for host in self.hosts for at in host.sent_at_s)
        refused = sum(from_s <= at < to_s for at in self.refused)
        return (sent - refused) / (self.rate * (to_s - from_s))

    def calls_per_s(self, from_s, to_s):
        return sum(from_s <= at < to_s for at in self.call_times_s) / (to_s - from_s)


class Endless:
    """Work without an end."""

    def __bool__(self):
        return True

    def pop(self):
        return Job(100, 10)


def workers_for(processes, per_min):
    """So many that the quota binds, with two seconds for an answer."""
    return max(1, round(1.5 * 2.3 * per_min / 60 / processes))


@pytest.mark.parametrize(("processes", "per_min"), worlds())
def test_a_crowd_uses_the_whole_quota(processes, per_min):
    crowd = Crowd(processes, per_min, workers=workers_for(processes, per_min)).run_for(90)
    assert crowd.refused == []
    assert crowd.used(30, 90) > 0.98
    assert crowd.calls_per_s(30, 90) < 250 + 2.5 * crowd.rate


@pytest.mark.parametrize("away_s", [5, 60])
@pytest.mark.parametrize(("processes", "per_min"), worlds())
def test_a_crowd_whose_store_is_away_for_a_time(processes, per_min, away_s):
    from_s = 30 if processes <= 1_000 else 120  # until each of them has been told its share of the limits
    back_s = from_s + away_s
    workers = workers_for(processes, per_min)
    crowd = Crowd(processes, per_min, workers=workers, away=[(from_s, back_s)]).run_for(back_s + 60)
    assert crowd.refused == []
    assert all(host.pool.capacity.lost is None for host in crowd.hosts)
    assert crowd.used(back_s, back_s + 10) > 0.5
    assert crowd.used(back_s + 10, back_s + 60) > 0.98
    if away_s > 5:
        assert crowd.used(from_s + 5, back_s) > 0.5


@pytest.mark.soak
def test_ten_thousand_processes_on_a_large_quota_whose_store_is_away_for_a_minute():
    """At 0.4 ms a call the store would answer 10,000 processes that all ask in 4 s, and be lost to most of them."""
    from_s, back_s = 120, 180
    crowd = Crowd(10_000, 30_000, cost_s=0.00013, away=[(from_s, back_s)])
    lost = []
    joined_ns = START_NS + (back_s + 35) * NS
    crowd.at(joined_ns, lambda: lost.extend(host for host in crowd.hosts if host.pool.capacity.lost is not None))
    crowd.run_for(back_s + 60)
    assert crowd.refused == lost == []
    assert crowd.used(60, from_s) > 0.98
    assert crowd.calls_per_s(90, from_s) < 1_100
    assert crowd.used(from_s + 5, back_s) > 0.6
    assert crowd.used(back_s, back_s + 10) > 0.7
    assert crowd.used(back_s + 10, back_s + 60) > 0.98


def test_forked_children_try_a_lost_store_apart_from_each_other():
    quotas, ledger = parse_quotas("500 requests/min"), SharedLedger()
    for n in range(FEW):
        ledger.apply(START_NS, Message(f"h{n}", 1, quotas, [-1]))
    parent = shared_pool("sim", quotas, START_NS, who="parent")
    parent.submit(START_NS, Waiter({"requests": 1}))
    answer(parent, START_NS, ledger.apply(START_NS, ask(parent, START_NS)))
    tries_ns = set()
    for n in range(10):
        child = copy.deepcopy(parent)
        child.capacity.forked(f"child {n}", START_NS)
        assert ask(child, START_NS, at_once=True) is not None
        answer(child, START_NS, "no answer")
        tries_ns.add(child.capacity.exchange_ns)
    assert len(tries_ns) == 10
