"""The accounts of unstated limits, in a pool."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil, log, log2, nan
from random import Random

import pytest

from paceline.core.ledger import Ledger
from paceline.core.local import LocalCapacity
from paceline.core.meters import Bucket, Spread, new_meter
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import FAR_NS, NS, Quota, QuotaError, Rule, parse_quotas
from paceline.core.results import Reading, Refusal, RefusalKind, RefusalScope, Reservation, WaitUntil
from paceline.core.unstated.chance import EVIDENCE_N
from paceline.core.unstated.measured import InFlightMeter, RateMeter
from paceline.core.unstated.rate import RatePhase
from paceline.pacing.status import report

T0 = 1_700_000_000 * NS
BARE = Refusal(RefusalKind.RATE)
FULL = Refusal(RefusalKind.CAPACITY)


def pool_of(quotas: str = "") -> Pool:
    ledger = Ledger(parse_quotas(quotas) if quotas else (), T0, gentle=True)
    capacity = LocalCapacity(ledger, learns=True)
    capacity.learning.unstated.begin(T0)
    return Pool("local/m", capacity)


class Driver:
    """Sends attempts as soon as they may go, and refuses or answers them."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.now_ns = pool, T0

    def send(self, **cost: float) -> Reservation:
        while isinstance(outcome := self.pool.try_grant(self.now_ns, Waiter(cost)), WaitUntil):
            assert outcome.at_ns > self.now_ns
            self.now_ns = outcome.at_ns
        assert isinstance(outcome, Reservation)
        return outcome

    def refuse(self, attempt: Reservation, refusal: Refusal = BARE) -> None:
        self.now_ns += NS // 20
        self.pool.refuse(self.now_ns, attempt, refusal, 0.0)

    def settle(self, attempt: Reservation) -> None:
        self.pool.settle(self.now_ns, attempt, {"requests": 1})

    def until_refused(self, n: int, refusal: Refusal = BARE) -> None:
        for _ in range(n):
            self.settle(self.send())
        self.refuse(self.send(), refusal)


def quotas_of(driver: Driver) -> list[str]:
    return [one["quota"] for one in report(driver.pool, driver.now_ns)["quotas"]]


def told(quotas: str, *, learns: bool = True, gentle: bool = True) -> Driver:
    """The driver of a pool whose limits the user has told."""
    return Driver(Pool("m", LocalCapacity(Ledger(parse_quotas(quotas), T0, gentle=gentle), learns=learns)))


@pytest.fixture
def driver():
    """Before a provider that states no limit."""
    return Driver(pool_of())


@pytest.mark.parametrize(
    ("refusal", "units"),
    [(BARE, ["requests", "concurrency"]), (Refusal(RefusalKind.RATE, unit="requests"), ["requests"])],
)
def test_a_stated_rate_that_refusals_lower_again_is_measured_and_they_may_come_by_chance(refusal, units):
    driver, dice = told("60 requests/min burst 1"), Random(2)
    bucket, learning, lowest = driver.pool.ledger.entries[0], driver.pool.capacity.learning, 1.0
    for _ in range(300):
        driver.until_refused(0, refusal) if dice.random() < 0.3 else driver.settle(driver.send())
        lowest = min(lowest, bucket.meter.ceiling)
        if learning.unstated.finds_chance("requests"):
            break
    assert lowest < 1 == bucket.meter.ceiling
    assert [meter.quota.unit for meter in learning.unstated.meters] == units
    assert learning.unstated.finds_chance("requests")


def test_the_burst_that_refusals_by_chance_have_shown_is_forgotten():
    driver, dice, smallest = told("60 requests/min burst 30"), Random(2), 30.0
    meter = driver.pool.ledger.entries[0].meter
    assert isinstance(meter, Bucket)
    for _ in range(300):
        driver.until_refused(0) if dice.random() < 0.3 else driver.settle(driver.send())
        smallest = min(smallest, meter.burst_cap)
    assert smallest < 30 < meter.burst_cap


def test_a_stated_rate_that_has_come_back_is_doubted_anew():
    driver = told("60 requests/min burst 3")
    bucket, learning = driver.pool.ledger.entries[0], driver.pool.capacity.learning
    for _ in range(2):
        for served in (4, 3, 2):
            driver.until_refused(served, Refusal(RefusalKind.RATE, unit="requests"))
        assert bucket.meter.ceiling < 0.6
        for _ in range(300):
            driver.settle(driver.send())
        assert bucket.meter.ceiling == 1
    assert not learning.unstated.meters


def test_a_stated_rate_that_falls_step_by_step_is_measured():
    driver, ceilings = told("60 requests/min burst 3"), []
    bucket, learning = driver.pool.ledger.entries[0], driver.pool.capacity.learning
    for served in (3, 2, 2, 2):
        ceilings.append(bucket.meter.ceiling)
        driver.until_refused(served, Refusal(RefusalKind.RATE, unit="requests"))
    assert all(after > 0.6 * before for before, after in pairwise(ceilings[2:]))
    assert ceilings[-1] < 0.36
    assert bucket.meter.ceiling == 1
    assert [meter.quota.unit for meter in learning.unstated.meters] == ["requests"]


def test_a_stated_rate_of_a_day_is_not_measured_for_its_refusals():
    driver = told("86400 requests/day")
    for _ in range(6):
        driver.until_refused(5, Refusal(RefusalKind.RATE, unit="requests", retry_after_s=1.0))
    assert not driver.pool.capacity.learning.unstated.meters


@pytest.mark.parametrize(
    ("stated", "notices"),
    [
        ("", []),  # a warning has said that no limit is known
        ("1000k tokens/min", ["no known limit on requests explains the refusals: paceline measures it"]),
    ],
)
def test_a_refusal_measures_the_rate_which_becomes_a_quota_and_is_said_once(stated, notices):
    driver = Driver(pool_of(stated))
    for _ in range(2):
        driver.until_refused(10)
    *_, row = report(driver.pool, driver.now_ns)["quotas"]
    assert row["quota"] == f"{row['limit']:g} requests/min measured"
    assert (row["unit"], row["rule"], row["source"]) == ("requests", "measured", "learned: measured")
    assert 60 < row["limit"] < 600
    assert list(driver.pool.notices) == notices


def test_a_test_of_a_long_wait_shows_no_rate(driver):
    asks = Refusal(RefusalKind.RATE, unit="tokens", retry_after_s=180.0)
    first, _ = driver.send(tokens=10), driver.send(tokens=10)
    assert driver.pool.row(driver.now_ns, first, asks).is_paced
    driver.refuse(first, asks)
    test, measured = driver.send(tokens=10), driver.pool.ledger.entries[-1].meter.rate
    assert not driver.pool.row(driver.now_ns, test, asks).is_paced
    before = measured.rate, measured.next_at_ns
    driver.refuse(test, asks)
    assert (measured.rate, measured.next_at_ns) == before


@pytest.mark.parametrize("wait", [{"retry_after_s": 1e-10}, {"sooner_s": nan}, {"sooner_s": -1.0}])
def test_a_wait_that_is_none_is_not_obeyed(driver, wait):
    driver.until_refused(10)
    attempt = driver.send()
    driver.now_ns += 60 * NS
    driver.refuse(attempt, replace(BARE, **wait))
    assert driver.pool.ledger.meters[0].rate.phase is not RatePhase.BLOCKED


def test_a_refusal_needs_no_pause_in_a_crowd(driver):
    _, attempt = driver.send(), driver.send()
    assert driver.pool.row(driver.now_ns, attempt, BARE).is_paced
    driver.refuse(attempt)
    assert driver.pool.capacity.cool_down_ns(driver.now_ns) <= 0
    waits = driver.pool.try_grant(driver.now_ns, Waiter({}))
    assert isinstance(waits, WaitUntil)
    assert waits.quota.startswith(("requests, not measured yet", "queue")) or "measured" in waits.quota


def test_a_refusal_with_another_reason_measures_nothing(driver):
    driver.until_refused(10, FULL)
    driver.until_refused(10, Refusal(RefusalKind.RATE, scope=RefusalScope.REQUEST))
    assert quotas_of(driver) == []


def refused_by_full_servers(driver: Driver, attempts: int, every_s: float = 0.0, share: float = 0.0) -> list[int]:
    """Which attempts are refused by servers that admit one each ``every_s`` seconds, and refuse a ``share`` by chance."""
    dice, free_ns, refused = Random(2), 0, []
    for n in range(attempts):
        one = driver.send()
        if driver.now_ns < free_ns or dice.random() < share:
            refused.append(n)
            driver.refuse(one, FULL)
        else:
            free_ns = driver.now_ns + round(every_s * NS)
            driver.settle(one)
    return refused


@pytest.mark.parametrize("quotas", ["", "100k requests/min"])
def test_full_servers_that_refuse_for_a_rate_are_asked_at_that_rate_and_a_higher_one_is_tested_soon(quotas):
    driver = told(quotas) if quotas else Driver(pool_of())
    assert len(refused_by_full_servers(driver, 100, every_s=0.5)) >= 30
    since_ns, tests = driver.now_ns, refused_by_full_servers(driver, 100, every_s=0.5)
    assert (driver.now_ns - since_ns) / NS == pytest.approx(50, rel=0.1)
    assert len(tests) <= 8 + EVIDENCE_N
    assert all(later - earlier <= 30 for earlier, later in pairwise([*tests, 100]))
    measured = [int(one.split()[0]) for one in quotas_of(driver) if "min measured" in one]
    assert any(amount == pytest.approx(120, rel=0.05) for amount in measured)


def refused_by_slots(driver: Driver, attempts: int, slots: int, share: float = 0.0) -> list[int]:
    """Which attempts are refused by servers with ``slots``, that refuse a ``share`` by chance; each takes a second."""
    dice, held, refused = Random(2), [], []
    for n in range(attempts):
        while isinstance(one := driver.pool.try_grant(driver.now_ns, Waiter({})), WaitUntil):
            driver.now_ns = min(one.at_ns, held[0].granted_ns + NS if held else one.at_ns)
            if held and driver.now_ns - held[0].granted_ns >= NS:
                driver.settle(held.pop(0))
        while held and driver.now_ns - held[0].granted_ns >= NS:
            driver.settle(held.pop(0))
        if len(held) == slots or dice.random() < share:
            refused.append(n)
            driver.refuse(one, FULL)
        else:
            held.append(one)
            driver.now_ns += NS // 50
    return refused


@pytest.mark.parametrize("quotas", ["", "100k requests/min", "12 concurrency"])
def test_full_servers_with_slots_are_asked_for_no_more_than_these(quotas):
    driver = told(quotas) if quotas else Driver(pool_of())
    refused = refused_by_slots(driver, 300, slots=8)
    assert 3 <= sum(n < 100 for n in refused) <= 30
    assert sum(n >= 100 for n in refused) <= 8
    assert "8 concurrency measured" in quotas_of(driver)


def test_one_refusal_of_full_servers_slows_nothing_down_beside_a_stated_limit():
    driver = told("100k requests/min")
    held = [driver.send() for _ in range(3)]
    driver.refuse(held.pop(), FULL)
    unstated = driver.pool.capacity.learning.unstated
    assert [(meter.quota.unit, meter.is_limiting) for meter in unstated.meters] == [("concurrency", False)]
    assert unstated.meters[0].bound.flight.in_flight == 2
    since_ns = driver.now_ns
    for _ in range(100):
        driver.send()
    assert driver.now_ns == since_ns


@pytest.mark.parametrize("quotas", ["", "100k requests/min"])
def test_what_full_servers_refuse_by_chance_leaves_no_bound(quotas):
    driver = told(quotas) if quotas else Driver(pool_of())
    refused_by_slots(driver, 400, slots=100, share=0.3)
    assert not any("concurrency measured" in one for one in quotas_of(driver))


@pytest.mark.parametrize(("unit", "shows"), [("tokens", True), (None, False)])
def test_full_servers_show_slots_after_a_refusal_that_names_another_limit(unit, shows):
    driver = Driver(pool_of())
    driver.refuse(driver.send(), FULL)
    driver.refuse(driver.send(), Refusal(RefusalKind.RATE, unit=unit))
    refused_by_slots(driver, 300, slots=8)
    assert ("8 concurrency measured" in quotas_of(driver)) is shows


@pytest.mark.parametrize("quotas", ["", "100k requests/min"])
def test_refusals_that_come_no_sooner_than_answers_show_no_bound(quotas):
    """Each refused attempt may have had more others than every admitted one: all of them may have ended on its way."""
    driver, dice, held = told(quotas) if quotas else Driver(pool_of()), Random(2), []
    for _ in range(800):
        while not isinstance(one := driver.pool.try_grant(driver.now_ns, Waiter({})), Reservation):
            driver.now_ns = one.at_ns
        held.append(one)
        driver.now_ns += NS // 100
        if len(held) == 20:
            ended = held.pop(0)
            if dice.random() < 0.1:
                driver.pool.refuse(driver.now_ns, ended, FULL, 0.0)
            else:
                driver.settle(ended)
    assert not any("concurrency measured" in one for one in quotas_of(driver))


def test_the_rate_of_full_servers_is_in_the_status_from_the_beginning():
    shown = []
    for attempts in range(100):
        driver = Driver(pool_of())
        refused_by_full_servers(driver, attempts, every_s=0.5)
        shown += quotas_of(driver)
    assert shown
    assert all(name.endswith("/min measured") for name in shown)


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_full_servers_that_refuse_at_that_rate_do_it_by_chance_and_nothing_limits_any_more(driver, share):
    """Also where so few are refused that it looks like chance to the measurement alone. What was stated since stays so."""
    driver.refuse(driver.send(tokens=100), Refusal(RefusalKind.RATE, unit="tokens"))
    one, _ = driver.send(tokens=100), driver.send(tokens=100)
    driver.pool.observe(driver.now_ns, [Reading("tokens", limit=600_000, remaining=500_000, period_s=60)], one)
    driver.refuse(driver.send(), Refusal(RefusalKind.RATE, unit="concurrency"))
    driver.settle(one)
    assert quotas_of(driver) == ["2 concurrency measured", "600k tokens/min"]
    refused_by_full_servers(driver, 100, every_s=0.5)
    refused_by_full_servers(driver, 300, share=share)
    since_ns = driver.now_ns
    assert not refused_by_full_servers(driver, 20)
    assert driver.now_ns - since_ns < 4 * NS  # it doubles each second
    assert quotas_of(driver) == ["600k tokens/min"]


@pytest.mark.parametrize(("limit", "quotas"), [(3, []), (600, ["600 requests/min"])])
def test_a_limit_that_was_exceeded_before_a_refusal_states_it_is_of_another_model(driver, limit, quotas):
    driver.until_refused(40, Refusal(RefusalKind.RATE, unit="requests", limit=limit, period_s=60))
    assert [quota for quota in quotas_of(driver) if "measured" not in quota] == quotas
    since_ns = driver.now_ns
    for _ in range(10):
        driver.settle(driver.send())
    assert driver.now_ns - since_ns < 3 * NS


def test_what_a_request_was_refused_for_its_own_sake_is_taken_back(driver):
    driver.until_refused(10)
    driver.refuse(driver.send())
    [meter, in_flight] = driver.pool.ledger.meters
    assert meter.rate.tally.blamed == 2
    driver.refuse(driver.send(), Refusal(RefusalKind.RATE, scope=RefusalScope.REQUEST, retracts=1))
    assert (meter.rate.tally.blamed, meter.rate.phase) == (1, RatePhase.RISING)
    driver.refuse(driver.send(), Refusal(RefusalKind.RATE, unit="tokens", scope=RefusalScope.REQUEST, retracts=1))
    driver.refuse(driver.send(), Refusal(RefusalKind.RATE, scope=RefusalScope.REQUEST, retracts=1))
    assert (meter.rate.phase, quotas_of(driver)) == (RatePhase.OPENING, [])
    assert (meter.rate.tally.admitted, in_flight.bound.flight.in_flight) == (10, 0)


@pytest.mark.parametrize("learns", [True, False])
def test_a_refusal_of_one_request_changes_nothing_where_nothing_is_measured(learns):
    driver = told("600 requests/min", learns=learns, gentle=False)
    driver.refuse(driver.send(), Refusal(RefusalKind.RATE, scope=RefusalScope.REQUEST, retracts=1))
    assert driver.pool.ledger.entries.units == ["requests"]


def test_a_lost_attempt_holds_no_place(driver):
    driver.send()
    driver.now_ns += 901 * NS
    driver.settle(driver.send())
    assert driver.pool.ledger.in_flight == 0
    assert not any(meter.notes for meter in driver.pool.ledger.meters)


def test_a_measured_quota_cannot_be_given():
    with pytest.raises(QuotaError, match="what is measured cannot be given"):
        new_meter(Quota("requests", 57, rule=Rule.MEASURED), T0, 1.0)
    with pytest.raises(QuotaError, match="unknown option 'measured'"):
        Quota.parse("57 requests/min measured")


@pytest.mark.parametrize(
    ("quotas", "served", "refusal", "measured"),
    [
        ("6000 requests/min", 0, BARE, ["requests", "concurrency"]),
        ("6000 requests/min", 0, Refusal(RefusalKind.RATE, unit="requests"), ["requests"]),
        ("6000 requests/min", 0, Refusal(RefusalKind.RATE, unit="requests", limit=600), []),
        ("6000 requests/min", 0, Refusal(RefusalKind.RATE, retry_after_s=2.0), []),
        ("6000 requests/min", 0, Refusal(RefusalKind.GROWTH), []),
        ("20 requests/min burst 5", 2, BARE, []),
        ("8 concurrency", 0, BARE, ["requests", "concurrency"]),  # only slots are stated
    ],
)
def test_a_bare_refusal_refutes_a_limit_of_which_nothing_was_used(quotas, served, refusal, measured):
    driver = told(quotas)
    stated = [*driver.pool.ledger.entries.units]
    driver.until_refused(served, refusal)
    assert driver.pool.ledger.entries.units == [*stated, *measured]


@pytest.mark.parametrize(
    ("quotas", "wait_s", "units"),
    [
        ("6000 requests/min", 2.0, ["requests"] * 2),
        ("6000 requests/min", 30.0, ["requests"]),
        ("10 requests/min", 2.0, ["requests"]),
    ],
)
def test_a_short_wait_in_spite_of_a_spread_limit_refutes_it_if_nothing_was_used(quotas, wait_s, units):
    """A long one may be that of a counter which others have used up: the quota is spread after it."""
    driver = told(quotas)
    for asked_s in (40.0, wait_s):
        driver.refuse(driver.send(), Refusal(RefusalKind.RATE, unit="requests", retry_after_s=asked_s))
        assert isinstance(driver.pool.ledger.entries[0].meter, Spread)
        driver.now_ns += 70 * NS
    assert driver.pool.ledger.entries.units == units


def test_of_two_waits_the_longer_one_is_kept_after_a_refused_probe():
    driver, two = Driver(pool_of()), Refusal(RefusalKind.RATE, unit="requests", retry_after_s=50.0, sooner_s=4.0)
    driver.until_refused(3, two)
    waits_s = []
    for _ in range(2):
        since_ns = driver.now_ns
        driver.refuse(driver.send(), two)
        waits_s.append((driver.now_ns - since_ns) / NS)
    assert waits_s[0] <= 5
    assert waits_s[1] >= 25  # one in two is tested at half


def test_an_attempt_that_goes_later_counts_from_then_on(driver):
    attempt = driver.send()
    driver.pool.capacity.sent(T0 + 5 * NS, attempt)
    [meter, in_flight] = driver.pool.ledger.meters
    assert [note.sent_ns for note in meter.notes.values()] == [T0 + 5 * NS]
    assert [note.sent_ns for note in in_flight.notes.values()] == [T0 + 5 * NS]
    assert in_flight.bound.flight.in_flight == 1


def test_a_stated_number_of_slots_ends_the_search_for_it(driver):
    open_ = [driver.send() for _ in range(5)]
    driver.refuse(driver.send(), Refusal(RefusalKind.RATE, unit="concurrency"))
    driver.refuse(open_[0], Refusal(RefusalKind.RATE, unit="concurrency", limit=4))
    assert quotas_of(driver) == ["4 concurrency"]


def test_waiters_ahead_of_a_measured_rate_take_the_time_of_that_rate(driver):
    driver.until_refused(10)
    [meter, _] = driver.pool.ledger.meters
    at_ns = meter.earliest(driver.now_ns, 1.0)
    assert meter.earliest(driver.now_ns, 1.0, 60.0) - at_ns == pytest.approx(60 / meter.rate.cycle.top * NS, rel=0.01)


@pytest.mark.parametrize("refusal", [BARE, Refusal(RefusalKind.RATE, unit="requests")])
@pytest.mark.parametrize("quotas", ["6000 requests/min", "30 concurrency"])
def test_the_attempts_before_a_measurement_count_in_its_first_blocked_time_only(quotas, refusal):
    driver = told(quotas, gentle=False)
    for _ in range(20):
        driver.settle(driver.send())
    driver.now_ns += 61 * NS  # a minute: what went before counts no more
    began_ns = driver.now_ns
    for _ in range(20):
        driver.settle(driver.send())
    first, second = driver.send(), driver.send()
    driver.refuse(first, refusal)
    rate = next(one.rate for one in driver.pool.ledger.meters if isinstance(one, RateMeter))
    assert (rate.tally.count, rate.block.end, rate.block.before) == (0, (began_ns, 0.0), 21.0)
    driver.refuse(second, refusal)
    assert (rate.tally.count, rate.block.end, rate.block.before) == (0, (began_ns, 0.0), 20.0)


def test_the_refusal_that_begins_a_measurement_counts_nothing_of_its_attempt():
    driver = told("6000 requests/min,4M tokens/min", gentle=False)
    driver.refuse(driver.send(), Refusal(RefusalKind.RATE, unit="tokens"))
    assert driver.pool.ledger.entries.units == ["requests", "tokens", "tokens"]
    block = driver.pool.ledger.meters[2].rate.block
    assert (block.end, block.before) == ((T0, 0.0), 0.0)


def test_attempts_in_flight_when_a_limit_is_stated_count_for_nothing(driver):
    settled, refused, cancelled = (driver.send() for _ in range(3))
    driver.pool.observe(driver.now_ns, [Reading("requests", limit=6000, remaining=5900, period_s=60)], settled)
    driver.pool.observe(driver.now_ns, [Reading("concurrency", limit=100)], settled)
    driver.settle(settled)
    driver.refuse(refused)
    driver.pool.cancel(driver.now_ns, cancelled)
    assert quotas_of(driver) == ["6k requests/min", "100 concurrency"]
    assert driver.pool.ledger.meters[0].rate.tally.count == 0
    assert driver.pool.ledger.meters[1].bound.flight.in_flight == 0


def test_an_attempt_alone_in_flight_bounds_nothing(driver):
    attempt = driver.send()
    for _ in range(2):  # the second time it is closed already
        driver.refuse(attempt, Refusal(RefusalKind.RATE, unit="concurrency"))
    assert quotas_of(driver) == []
    driver.send()


def test_a_limit_that_an_answer_states_counts_what_was_sent_before(driver):
    first, *others = (driver.send() for _ in range(4))
    driver.pool.observe(driver.now_ns, [Reading("requests", limit=100, remaining=98, period_s=60)], first)
    for attempt in (first, *others):
        driver.settle(attempt)
    [row] = report(driver.pool, driver.now_ns)["quotas"]
    assert (row["remaining"], row["spent"]) == (95, 5)  # of the two that the answer counts, one is another client's


@pytest.mark.parametrize("in_flight", [1, 3, 6])
def test_what_is_missing_from_a_stated_limit_may_be_the_size_of_a_smaller_bucket(in_flight):
    driver, small = Driver(pool_of()), [Reading("requests", limit=1200, remaining=19, reset_s=0.05, period_s=60)]
    sent = [driver.send() for _ in range(in_flight)]
    driver.now_ns += NS // 2
    for attempt in sent:
        driver.pool.observe(driver.now_ns, small, attempt)
        driver.settle(attempt)
    answered_ns, attempt = driver.now_ns, driver.send()
    driver.pool.observe(driver.now_ns + NS // 2, small, attempt)
    driver.settle(attempt)
    driver.now_ns += NS // 2
    driver.send()
    assert driver.now_ns <= answered_ns + NS


def found_at_once(driver: Driver, refusal: Refusal) -> list[str]:
    """What is measured where five at once are served, and others get this refusal."""
    served = []
    for _ in range(4):
        while len(served) < 5:
            served.append(driver.send())
        driver.refuse(driver.send(), refusal)
        driver.now_ns += 2 * NS
        driver.settle(served.pop(0))
    return quotas_of(driver)


def test_the_number_in_flight_is_found_from_bare_refusals(driver):
    assert "5 concurrency measured" in found_at_once(driver, BARE)


def test_a_refusal_that_names_a_unit_says_nothing_of_the_number_in_flight(driver):
    [found] = found_at_once(driver, Refusal(RefusalKind.RATE, unit="requests"))
    assert found.endswith("requests/min measured")


@pytest.mark.parametrize("cost", [{"tokens": 10}, {"input_tokens": 8, "output_tokens": 2}])
@pytest.mark.parametrize(("unit", "measured"), [("prompts", False), ("tokens", True), ("requests", True)])
def test_a_rate_of_what_no_request_costs_is_not_measured(driver, unit, measured, cost):
    """Z.ai's coding plan counts prompts: a rate of them would hold no request back, and the pool would not pause."""
    of_plan = Refusal(RefusalKind.RATE, unit=unit, period_s=18_000.0, retry_after_s=40.0)
    attempt = driver.send(**cost)
    assert driver.pool.capacity.learning.refusals.is_unstated(driver.now_ns, attempt, of_plan) is measured
    driver.refuse(attempt, of_plan)
    assert driver.pool.capacity.learning.unstated.measures("prompts") is False


def test_it_is_known_which_units_are_measured(driver):
    unstated = driver.pool.capacity.learning.unstated
    units = [unit for unit in (None, "requests", "concurrency", "tokens") if unstated.measures(unit)]
    assert units == [None, "requests", "concurrency"]
    assert not unstated.refused(driver.now_ns, driver.send(), BARE)
    assert unstated.refused(driver.now_ns, driver.send(), Refusal(RefusalKind.RATE, unit="tokens"))


def test_the_waiters_ahead_of_an_opening_rate_take_the_time_in_which_it_doubles():
    assert RateMeter(0, "requests", T0).earliest(T0, 1.0, ahead=10.0) == T0 + ceil(log2(1 + log(2)) * NS)


def test_the_waiters_ahead_fill_the_places_in_flight():
    meter = InFlightMeter(0)
    for _ in range(3):
        meter.charge(T0, 1.0)
    meter.bound.size = 5
    assert [meter.earliest(T0, 1.0, ahead) for ahead in (0.0, 1.0, 2.0)] == [T0, T0, FAR_NS]
