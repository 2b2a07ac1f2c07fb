"""A budget: what is spent stays within it and one request, whatever requests cost and whenever they end."""

import random

import pytest
from core_worlds import T0, quota

from paceline.core.budget import ALONE, CLOCK_NS, THE_SLOT, BudgetPool, BudgetWaiter
from paceline.core.ledger import Ledger
from paceline.core.local import LocalCapacity
from paceline.core.queue import DEFAULT_LANE, Queue
from paceline.core.quota import NS
from paceline.core.results import Expired, Reservation, WaitUntil
from paceline.shared.capacity import SharedCapacity
from paceline.shared.exchange import answer, ask
from paceline.shared.ledger import SharedLedger


def budget(*texts):
    return BudgetPool("budget", LocalCapacity.of([*map(quota, texts), THE_SLOT], T0, headroom_s=0.0))


def submit(pool, most_usd, now_ns=T0, wait_s=600.0):
    waiter = BudgetWaiter(most_usd, DEFAULT_LANE, now_ns + round(wait_s * NS))
    waiter.outcome = pool.submit(now_ns, waiter)
    return waiter


def granted(waiter):
    return isinstance(waiter.outcome, Reservation)


@pytest.fixture
def pool():
    return budget("1 usd/day window utc")


class TestCovered:
    def test_requests_go_while_what_is_left_covers_them_and_one_goes_alone(self, pool):
        covered, alone, third = (submit(pool, 0.6) for _ in range(3))
        assert granted(covered)
        assert granted(alone)
        assert isinstance(third.outcome, WaitUntil)
        assert [ALONE in one.cost for one in (covered, alone, third)] == [False, True, True]
        pool.settle(T0, covered.outcome, {"usd": 0.1})
        assert pool.pump(T0) == [third]  # nine tenths are left
        assert ALONE not in third.cost

    def test_a_small_one_goes_beside_the_one_that_goes_alone(self, pool):
        assert granted(submit(pool, 64.0))
        assert granted(submit(pool, 0.9))

    def test_what_costs_nothing_goes_when_all_is_spent(self, pool):
        pool.settle(T0, submit(pool, None).outcome, {"usd": 3.0})
        assert granted(submit(pool, 0.0))


class TestWaiting:
    def test_the_end_of_the_last_one_refuses_those_for_which_nothing_is_left(self, pool):
        first = submit(pool, None)
        waiting = [submit(pool, None) for _ in range(3)]
        assert not any(isinstance(one.outcome, Expired) for one in waiting)
        pool.settle(T0, first.outcome, {"usd": 1.0})
        assert pool.pump(T0) == waiting
        assert all(isinstance(one.outcome, Expired) for one in waiting)
        assert pool.wake_ns is None
        assert isinstance(submit(pool, 0.1).outcome, Expired)

    def test_while_others_are_in_flight_something_may_come_back(self, pool):
        covered, alone = submit(pool, 0.9), submit(pool, 5.0)
        pool.settle(T0, alone.outcome, {"usd": 2.0})
        assert isinstance(submit(pool, 0.1).outcome, WaitUntil)
        pool.settle(T0, covered.outcome, {"usd": 0.1})
        [late] = pool.pump(T0)
        assert isinstance(late.outcome, Expired)

    def test_its_client_leaves(self, pool):
        submit(pool, None)
        waiting = submit(pool, None, wait_s=2.0)
        assert pool.pump(T0 + 3 * NS) == [waiting]
        assert isinstance(waiting.outcome, Expired)

    @pytest.mark.parametrize(("spent", "goes"), [(1.001, True), (1.1, False)])
    def test_a_budget_that_refills_soon_is_waited_for(self, spent, goes):
        pool = budget("1 usd/hour")
        pool.settle(T0, submit(pool, None).outcome, {"usd": spent})  # a thousandth refills in 3.6 s
        waiting = submit(pool, 0.5)
        assert isinstance(waiting.outcome, WaitUntil) is goes
        if goes:
            assert pool.pump(T0 + CLOCK_NS) == [waiting]
            assert granted(waiting)


class World:
    """Processes that share a budget through a store, and requests that end in any order."""

    def __init__(self, processes, seed):
        self.luck, self.now_ns, self.shared = random.Random(seed), T0, SharedLedger()
        quotas = [quota("1 usd/day window utc"), THE_SLOT]
        self.pools = (
            [self.pool(quotas, f"p{n}") for n in range(processes)] if processes else [budget("1 usd/day window utc")]
        )
        self.flying, self.waiters, self.spent, self.dearest = [], [], 0.0, 0.0
        self.stored = bool(processes)

    def pool(self, quotas, who):
        ledger, queue = Ledger(quotas, T0, headroom_s=0.0), Queue()
        return BudgetPool("budget", SharedCapacity(ledger, queue, T0, who=who), queue)

    def arrive(self):
        pool = self.luck.choice(self.pools)
        most = self.luck.choice([None, 0.001, 0.01, 0.1, 0.5, 2.0])
        waiter = submit(pool, most, self.now_ns)
        waiter.pool, waiter.most = pool, most
        self.waiters.append(waiter)
        self.note([waiter])

    def note(self, waiters):
        self.flying += [one for one in waiters if granted(one) and one not in self.flying]

    def end(self):
        if self.flying:
            one = self.flying.pop(self.luck.randrange(len(self.flying)))
            usd = self.luck.uniform(0, 3.0 if one.most is None else one.most)
            self.spent += usd
            self.dearest = max(self.dearest, usd)
            one.pool.settle(self.now_ns, one.outcome, {"usd": usd})
            self.note(one.pool.pump(self.now_ns))

    def exchange(self):
        for pool in self.luck.sample(self.pools, len(self.pools)) if self.stored else ():
            if (message := ask(pool, self.now_ns)) is not None:
                self.note(answer(pool, self.now_ns, self.shared.apply(self.now_ns, message)))

    def run(self):
        for _ in range(400):
            self.luck.choice([self.arrive, self.end, self.exchange])()
            self.now_ns += NS // 10
        for _ in range(4_000):
            self.end()
            self.exchange()
            self.now_ns += NS // 10
            for pool in self.pools:
                self.note(pool.pump(self.now_ns))
            if not self.flying and not any(pool.queue.length for pool in self.pools):
                return
        raise AssertionError("requests wait for nothing")


class SubWaiter(BudgetWaiter):
    """With what the world notes of it."""


@pytest.mark.sample(9)
@pytest.mark.parametrize("processes", [0, 1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_never_more_than_the_budget_and_one_request(processes, seed, monkeypatch):
    monkeypatch.setitem(globals(), "BudgetWaiter", SubWaiter)
    world = World(processes, seed)
    world.run()
    assert world.spent <= 1 + world.dearest
    assert world.spent >= 1 or all(granted(one) for one in world.waiters)  # and it is used
