"""Limits that are not stated, where a store keeps the others: each process measures its share."""

from __future__ import annotations

from itertools import count

import pytest

from paceline.core.pause import PROBE_NS
from paceline.core.queue import Waiter
from paceline.core.quota import NS, parse_quotas
from paceline.core.results import Reading, Refusal, RefusalKind, Reservation
from paceline.core.unstated.measured import RateMeter
from paceline.core.unstated.rate import RatePhase
from paceline.shared.exchange import SPEED_NS, answer, ask
from paceline.shared.ledger import SharedLedger
from shared_pools import shared_pool

T0 = 1_000 * NS
BARE = Refusal(RefusalKind.RATE)


class Fleet:
    """Pools of several processes, and the store."""

    def __init__(self, hosts: int = 2, quotas: str = "") -> None:
        self.now_ns, self.ledger, self.messages = T0, SharedLedger(), 0
        self.quotas, self.names = parse_quotas(quotas) if quotas else (), count()
        self.pools = [self.join() for _ in range(hosts)]

    def join(self):
        pool = shared_pool("p", self.quotas, self.now_ns, who=f"process {next(self.names)}", learns=True)
        if not self.quotas:
            pool.capacity.learning.unstated.begin(self.now_ns)
        return pool

    def exchange(self, pool):
        message = ask(pool, self.now_ns)
        if message is None:
            return []
        self.messages += 1
        return answer(pool, self.now_ns, self.ledger.apply(self.now_ns, message))

    def take(self, pool, **cost: float) -> Reservation:
        """One attempt, as soon as it may go."""
        waiter = Waiter(cost)
        waiter.outcome = pool.submit(self.now_ns, waiter)
        for _ in range(10_000):
            if isinstance(waiter.outcome, Reservation):
                return waiter.outcome
            self.exchange(pool)
            pool.pump(self.now_ns)
            if not isinstance(waiter.outcome, Reservation):
                self.now_ns += NS // 50
        raise AssertionError(waiter.outcome)

    def serve(self, pool, seconds: float) -> int:
        """Send for some seconds, with answers at once; how many attempts went."""
        until_ns, sent = self.now_ns + round(seconds * NS), 0
        while self.now_ns < until_ns:
            pool.settle(self.now_ns, self.take(pool), {"requests": 1.0})
            sent += 1
        return sent

    def measure(self, pool, rate: float) -> None:
        """Let the rate of the process be so much."""
        unstated(pool)._rates["requests"].rate.lean(self.now_ns, rate)

    def tell(self, *pools) -> None:
        """Let each of them report, twice, so that all know of all."""
        for pool in 2 * pools:
            self.now_ns += 6 * NS
            pool.settle(self.now_ns, self.take(pool), {"requests": 1.0})
            held = self.take(pool)
            self.now_ns += 6 * NS
            self.exchange(pool)
            pool.settle(self.now_ns, held, {"requests": 1.0})


def unstated(pool):
    return pool.capacity.learning.unstated


def rate_of(pool, unit: str = "requests"):
    return unstated(pool)._rates[unit].rate


@pytest.fixture
def fleet():
    return Fleet(1)


@pytest.fixture
def pool(fleet):
    return fleet.pools[0]


class TestGrants:
    def test_the_first_one_waits_for_the_store_and_the_others_do_not(self, fleet, pool):
        assert not isinstance(pool.submit(T0, Waiter({})), Reservation)
        fleet.exchange(pool)
        assert fleet.serve(pool, 3) > 20
        assert fleet.messages <= 2

    def test_a_process_that_waits_or_has_attempts_in_flight_reports_now_and_then(self, fleet, pool):
        held = fleet.take(pool)
        fleet.exchange(pool)
        assert pool.capacity.exchange_ns == pytest.approx(fleet.now_ns + SPEED_NS, abs=NS // 10)
        pool.settle(fleet.now_ns, held, {"requests": 1.0})
        assert pool.capacity.exchange_ns > fleet.now_ns + 3_600 * NS

    def test_a_cancelled_attempt_leaves_its_turn(self, fleet, pool):
        pool.cancel(fleet.now_ns, fleet.take(pool))
        assert isinstance(pool.try_grant(fleet.now_ns, Waiter({})), Reservation)

    def test_a_pause_of_the_store_sends_one_probe(self, fleet, pool):
        fleet.serve(pool, 1)
        pool.refuse(fleet.now_ns, fleet.take(pool), Refusal(RefusalKind.CAPACITY), 3.0)
        began_ns = fleet.now_ns
        probe = fleet.take(pool)
        assert fleet.now_ns - began_ns == pytest.approx(3 * NS, abs=NS // 10)
        assert pool.submit(fleet.now_ns, Waiter({})).at_ns > fleet.now_ns
        fleet.exchange(pool)
        assert pool.pump(fleet.now_ns + NS // 2) == []
        pool.settle(fleet.now_ns + NS // 2, probe, {"requests": 1.0})
        fleet.now_ns += NS
        fleet.exchange(pool)
        assert pool.queue.length == 0
        assert PROBE_NS > NS


class TestOtherProcesses:
    def test_one_that_joins_begins_with_what_each_of_them_could_have(self, fleet, pool):
        fleet.measure(pool, 8.0)
        fleet.tell(pool)
        new = fleet.join()
        fleet.take(new)
        assert rate_of(new).phase is RatePhase.RISING
        assert rate_of(new).cycle.top == pytest.approx(4.0, rel=0.05)

    def test_a_unit_that_a_refusal_names_is_measured_by_all(self):
        fleet = Fleet(2, "600 requests/min")
        one, other = fleet.pools
        refused = fleet.take(one, tokens=50.0)
        fleet.take(other, tokens=50.0)
        one.refuse(fleet.now_ns, refused, Refusal(RefusalKind.RATE, unit="tokens"), 0.0)
        for pool in (one, one, other):
            fleet.now_ns += NS
            fleet.take(pool, tokens=50.0)
        assert [unstated(pool).measures("tokens") for pool in (one, other)] == [True, True]
        assert [one.unit for one in other.ledger.entries] == ["requests", "tokens"]

    def test_a_grant_of_the_store_counts_for_nothing_in_what_processes_tell(self):
        fleet = Fleet(2, "600 requests/min")
        for pool in fleet.pools:
            unstated(pool).begin(fleet.now_ns)
            fleet.exchange(pool)
            fleet.take(pool)
            fleet.take(pool)
        assert [rate_of(pool).phase for pool in fleet.pools] == [RatePhase.OPENING] * 2
        assert [rate_of(pool).common.rate for pool in fleet.pools] == [0, 0]

    def test_a_limit_that_one_has_seen_ends_the_measurement_of_all(self):
        fleet = Fleet()
        one, other = fleet.pools
        fleet.take(other)
        sent = fleet.take(one)
        one.settle(fleet.now_ns, sent, {"requests": 1.0})
        one.observe(fleet.now_ns, [Reading("requests", limit=600, remaining=500, period_s=60.0)], sent)
        fleet.tell(one, other)
        for pool in (one, other):
            assert [account.name for account in pool.ledger.entries if account.name.startswith("600")]
            assert rate_of(pool).phase is RatePhase.OFF


def test_the_attempts_of_the_parent_hold_no_place_in_a_forked_child(fleet, pool):
    fleet.take(pool)
    fleet.take(pool)
    assert unstated(pool)._in_flight.bound.flight.in_flight == 2
    pool.capacity.forked("child", fleet.now_ns)
    assert unstated(pool)._in_flight.bound.flight.in_flight == 0


def test_refusals_measure_the_rate_without_a_message_and_without_a_store(fleet, pool):
    fleet.serve(pool, 2)
    refused, before = fleet.take(pool), fleet.messages
    pool.refuse(fleet.now_ns, refused, BARE, 0.0)
    assert rate_of(pool).phase is RatePhase.RISING
    assert ask(pool, fleet.now_ns) is None
    assert fleet.messages == before


def test_full_servers_teach_each_process_its_slots_beside_a_shared_limit_and_each_refusal_counts_once():
    fleet, held, refused = Fleet(1, "6000 requests/min"), [], 0
    [pool] = fleet.pools
    for _ in range(30):
        one = fleet.take(pool)
        fleet.now_ns += NS // 20
        if len(held) < 8:
            held.append(one)
            continue
        pool.refuse(fleet.now_ns, one, Refusal(RefusalKind.CAPACITY), 0.0)
        refused += 1
        fleet.exchange(pool)
        fleet.now_ns += NS
        pool.settle(fleet.now_ns, held.pop(0), {"requests": 1.0})
        if unstated(pool).is_limiting:
            break
    shedding = pool.capacity.learning.unstated.shedding
    assert pool.ledger.entries[-1].name == "8 concurrency measured"
    assert shedding.lost == refused - 1 == 3  # the last one is explained


@pytest.mark.parametrize(("unit", "meters"), [(None, 2), ("requests", 1)])
def test_attempts_that_were_sent_before_a_measurement_count_in_flight_and_not_in_the_rate(unit, meters):
    fleet = Fleet(1, "600 requests/min")
    [pool] = fleet.pools
    served, cancelled = fleet.take(pool), fleet.take(pool)
    for _ in range(2):  # the second time it has begun
        unstated(pool).begin(fleet.now_ns, unit)
    in_flight = unstated(pool)._in_flight
    assert in_flight is None or in_flight.bound.flight.in_flight == 2
    pool.settle(fleet.now_ns, served, {"requests": 1.0})
    pool.cancel(fleet.now_ns, cancelled)
    assert (len(unstated(pool).meters), rate_of(pool).tally.count) == (meters, 0)
    assert in_flight is None or in_flight.bound.flight.in_flight == 0


def test_an_attempt_that_costs_nothing_of_a_unit_is_not_charged_to_its_rate(fleet, pool):
    fleet.take(pool, requests=0.0)
    assert (rate_of(pool).tally.count, unstated(pool)._in_flight.bound.flight.in_flight) == (0, 1)


@pytest.mark.parametrize("total", [-1e-12, 0.0, 1e-12])
def test_a_process_keeps_its_rate_where_the_sum_of_the_told_ones_is_not_quite_zero(total):
    meter = RateMeter(0, "requests", T0)
    meter.rate.expect(T0, 5.0)
    meter.among(T0 + 600 * NS, total, 2)
    assert meter.found == 300.0


def test_the_end_of_a_process_takes_back_what_it_has_told_of_a_measured_rate():
    fleet = Fleet()
    pool = fleet.pools[0]
    fleet.measure(pool, 5.0)
    fleet.tell(pool)
    message = ask(pool, fleet.now_ns, at_once=True)
    assert message.leaving
    assert not any(message.held)
