"""A quota whose restarts answers state: what shows the instant, what goes after it, and what refutes it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from core_pools import local_pool, use_up
from core_worlds import T0, quota

from paceline.core.changes import What
from paceline.core.learning.learning import Learning
from paceline.core.learning.resets import Restarts
from paceline.core.ledger import Ledger
from paceline.core.local import LocalCapacity
from paceline.core.meters import OPENING_NS, Bucket, Named, Restarting, Spread
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import NS
from paceline.core.results import Reading, Refusal, RefusalKind, Reservation

RATE = Refusal(RefusalKind.RATE, unit="requests")


def at(second: float) -> int:
    return T0 + round(second * NS)


class TestRestarts:
    def read(self, restarts, second, reset_s, *, took_s=0.2, lack=10.0):
        return restarts.read(at(second - took_s), at(second), reset_s, lack)

    @pytest.fixture
    def restarts(self):
        return Restarts()

    def test_answers_narrow_the_bounds_of_one_instant(self, restarts):
        assert self.read(restarts, 1, 29.0) is Named.NEXT
        assert self.read(restarts, 5, 25.6) is Named.SAME
        assert (restarts.low_ns, restarts.high_ns) == (at(29.4), at(31))
        assert self.read(restarts, 9, 21.0) is Named.SAME

    def test_the_next_instant_shows_the_period(self, restarts):
        self.read(restarts, 1, 29.0)
        assert self.read(restarts, 31, 59.0, lack=1.0) is Named.NEXT
        assert restarts.period_s == 60
        assert self.read(restarts, 31.1, 0.0, took_s=2.0) is Named.EARLIER
        assert self.read(restarts, 85, 5.0, took_s=50.0) is None  # too slow, and it need not show what is known

    def test_after_a_time_without_requests_the_distance_is_no_period(self, restarts):
        self.read(restarts, 1, 29.0)
        assert self.read(restarts, 120, 29.0, lack=1.0) is Named.NEXT
        assert restarts.period_s is None

    @pytest.mark.parametrize("lack", [10.0, 1.0])  # also where the quota is back
    def test_an_instant_that_moves_before_it_is_reached_refutes_it(self, lack, restarts):
        self.read(restarts, 1, 60.0)
        assert self.read(restarts, 9, 60.0, lack=lack) is Named.NONE
        assert restarts.refuted

    def test_a_server_whose_clock_is_ahead_restarts_before_its_instant(self, restarts):
        self.read(restarts, 1, 35.0, lack=100.0)
        assert self.read(restarts, 31, 65.0, lack=1.0) is Named.NEXT

    def test_a_server_whose_clock_is_behind_is_late_each_time(self, restarts):
        self.read(restarts, 1, 29.0)
        assert self.read(restarts, 33, 0.0) is Named.LATE
        assert self.read(restarts, 34.3, 0.0, took_s=0.1) is Named.LATE
        assert self.read(restarts, 36, 54.0, lack=1.0) is Named.NEXT
        assert restarts.high_ns == at(36 + 54 + 1 + 4.8)

    @pytest.mark.parametrize(("first", "bounds"), [(True, (9, 11.25)), (False, (28.75, 31))])
    def test_a_slow_answer_bounds_the_instant_by_the_time_of_its_writing(self, first, bounds):
        restarts = Restarts(written_first=first)
        assert self.read(restarts, 20, 10.0, took_s=20) is Named.NEXT
        assert (restarts.low_ns, restarts.high_ns) == tuple(map(at, bounds))

    def test_a_late_restart_makes_the_next_bounds_wider_by_its_delay(self, restarts):
        self.read(restarts, 0, 10.0, took_s=0)
        assert self.read(restarts, 12, 0.0, took_s=0) is Named.LATE
        assert restarts.high_ns == at(13)
        assert self.read(restarts, 14, 10.0, took_s=0, lack=1.0) is Named.NEXT
        assert restarts.high_ns == at(14 + 10 + 1 + 3)
        assert self.read(restarts, 15, 10.0, took_s=0) is Named.SAME
        assert restarts.high_ns == at(28)

    def test_an_instant_that_is_now_is_not_the_one_before(self, restarts):
        restarts.read(at(0), at(0), 10.0, 10.0, instant=True)
        assert restarts.read(at(13), at(14), 0.0, 10.0, instant=True) is Named.NONE
        assert restarts.refuted

    def test_an_answer_of_before_that_names_a_later_instant_is_about_no_earlier_restart(self, restarts):
        self.read(restarts, 10, 10.0, took_s=0)
        assert self.read(restarts, 20, 10.0, took_s=0, lack=1.0) is Named.NEXT
        assert self.read(restarts, 19.5, 15.0, took_s=0) is Named.NONE

    def test_slow_answers_that_agree_with_no_time_of_writing_name_nothing(self, restarts):
        for second, reset_s in ((20, 10.0), (21, 14.0), (22, 9.0), (23, 16.0), (24, 8.0)):
            assert self.read(restarts, second, reset_s, took_s=19) is None

    def test_restarts_that_come_soon_after_each_other_are_none(self, restarts):
        assert self.read(restarts, 1, 2.0) is Named.NEXT
        assert self.read(restarts, 5, 2.0, lack=1.0) is Named.NONE

    def test_an_instant_is_named_by_an_answer_that_comes_after_it(self, restarts):
        for sent, second, until_s in [(1, 13, -3.0), (4, 15, -5.0), (11, 22, -2.0), (8, 23, -13.0)]:
            restarts.read(at(sent), at(second), until_s, 1.0, instant=True)
        assert (restarts.low_ns, restarts.high_ns, restarts.period_s) == (at(19), at(21), 10)

    @pytest.mark.parametrize("last", [False, True])
    def test_slow_answers_show_when_their_resets_are_written(self, last, restarts):
        for sent in range(0, 60, 2):
            second = sent + 6 + sent % 7
            restarts.read(at(sent), at(second), 10.0 - (second if last else sent) % 10, 1.0)
            if restarts.period_s:
                break
        assert restarts.period_s == 10
        assert restarts.low_ns < at(10 + 10 * ((second if last else sent) // 10)) <= restarts.high_ns

    @pytest.mark.parametrize(("reset_s", "took_s"), [(1.0, 0.2), (30.0, 20.0)])
    def test_a_short_reset_and_a_slow_answer_name_nothing(self, reset_s, took_s):
        assert self.read(Restarts(), 30, reset_s, took_s=took_s) is None


class TestMeter:
    def meter(self, opened=math.inf):
        m = Restarting(quota("100 requests/min"), T0, 0.0, at(10), opened)
        m.counted = 40.0
        return m

    def test_the_first_window_opens_twice_as_far_with_each_answer(self):
        m = self.meter(opened=41.0)
        m.charge(T0, 1)
        assert m.earliest(T0, 1) == T0 + OPENING_NS  # or an answer
        m.answered(T0, 1, 1.0)
        assert (m.earliest(T0, 2), m.full_ns(T0)) == (T0, at(10))
        assert (m.level(T0), m.lack(T0)) == (59, 41)

    @pytest.fixture
    def m(self):
        return self.meter()

    def test_what_does_not_fit_goes_at_the_restarts(self, m):
        assert (m.earliest(T0, 60), m.earliest(T0, 61), m.earliest(T0, 1, ahead=160)) == (T0, at(10), at(70))

    def test_after_a_restart_a_small_burst_goes_and_the_rest_with_an_answer(self, m):
        mark = m.charge(at(10), 1)
        assert [m.earliest(at(10), n) for n in (2, 3)] == [at(10), at(10) + OPENING_NS]
        assert m.earliest(at(12), 3) == at(12)
        m.correct(at(10), mark, 1, 3)
        assert m.counted == 3
        m.correct(at(10), at(9), 10, 1)  # of the window before
        assert m.counted == 3
        m.stated(at(9), Named.SAME, at(10), 90, 100)  # so is this answer
        m.stated(at(9), Named.EARLIER, at(10), 90, 100)
        assert not m.named
        m.stated(at(10), Named.NEXT, at(70), 5, 100)
        assert (m.earliest(at(10), 95), m.level(at(10))) == (at(10), 95)

    def test_the_first_cost_after_a_restart_goes_however_large(self, m):
        assert m.earliest(at(10), 100) == at(10)

    def test_a_restart_that_is_not_named_follows_by_the_period(self, m):
        m.become(T0, m.quota.with_amount(100, 30.0))
        assert m.full_ns(T0) == at(10)  # it is named
        m.charge(at(10), 1)
        m.passed(at(11), at(9), math.inf)
        assert m.full_ns(at(11)) == at(39)
        m.passed(at(25), at(9), 7.0)
        assert (m.full_ns(at(25)), m.counted) == (at(30), 1)
        m.become(at(25), m.quota.with_amount(90))
        assert m.full_ns(at(25)) == at(30)
        m.become(at(25), m.quota.with_amount(90, 12.0))
        assert m.full_ns(at(25)) == at(34)
        m.stated(at(25), Named.NEXT, at(31), 1, 100)
        m.passed(at(26), at(19), 7.0)
        assert m.full_ns(at(26)) == at(31)

    def test_the_wait_for_an_answer_counts_from_the_first_of_a_small_burst(self, m):
        m.charge(at(10), 1)
        m.charge(at(11), 1)
        assert m.earliest(at(11), 30) == at(10) + OPENING_NS

    def test_a_restart_may_come_earlier_or_later_than_was_known(self, m):
        m.stated(at(7), Named.NEXT, at(68), 2, 100)
        assert (m.counted, m.since_ns) == (2, at(7))
        assert m.earliest(at(68), 1) == at(68)
        m.stated(at(68), Named.LATE, at(70), 100, 100)
        assert m.earliest(at(68), 1) == at(70)

    @pytest.mark.parametrize(
        ("asked", "rest"),
        [
            ("passed", (T0, 60.0)), ("lacks_more", (0.0,)), ("earliest", (1,)), ("charge", (1,)), ("correct", (1, 1, 1)),
            ("level", ()), ("lack", ()), ("restart_ns", ()),
        ],
    )  # fmt: skip
    def test_each_question_enters_the_present_window(self, asked, rest, m):
        getattr(m, asked)(at(200), *rest)
        assert m.since_ns == at(10)

    def test_after_a_long_time_the_present_window_is_entered(self, m):
        assert (m.lack(at(200)), m.level(at(200)), m.full_ns(at(200))) == (0, 100, at(250))

    def test_below_the_published_rate_it_is_spread(self, m):
        m.become(T0, m.quota, 0.5)
        assert m.earliest(T0, 50) == T0
        m.charge(T0, 50)
        assert m.earliest(T0, 50) > at(50)

    def test_a_used_up_window_is_followed_by_whole_ones(self, m):
        m.use_up()
        assert (m.earliest(T0, 100), m.earliest(T0, 1, ahead=100)) == (at(10), at(70))

    def test_each_answer_opens_twice_its_cost(self):
        m = self.meter(opened=41.0)
        m.answered(T0, 1, 3.0)
        assert m.earliest(T0, 7) == T0
        assert m.earliest(T0, 8) > T0

    def test_nothing_is_used_of_a_new_window(self):
        m = Restarting(quota("100 requests/min"), T0, 0.0, at(10), math.inf)
        assert m.lack(T0) == 0
        m.unsent(T0, m.charge(T0, 1), 1)
        assert m.lack(T0) == 0

    def test_a_cost_that_was_not_charged_counts_in_the_present_window(self, m):
        m.roll(at(11))
        m.correct(at(11), 0, 0, 5)
        assert m.counted == 5

    @pytest.mark.parametrize(("least", "counted"), [(30, 40), (55, 55)])
    def test_an_answer_about_the_named_window_only_raises_its_use(self, least, counted, m):
        m.stated(at(5), Named.SAME, at(10), least, 100)
        assert (m.counted, m.since_ns, m.named) == (counted, 0, True)

    def test_a_first_window_is_opened_whole_by_an_answer_that_has_taken_long(self):
        m = self.meter(opened=41.0)
        m.charge(T0, 1)
        m.stated(T0, Named.SAME, at(10), 1, 100)
        assert m.earliest(T0, 50) == T0 + OPENING_NS
        m.stated(T0, Named.SAME, at(10), 1, 100, whole=True)
        assert m.earliest(T0, 50) == T0

    def test_an_answer_to_the_first_attempt_after_a_restart_names_the_window(self, m):
        m.roll(at(10))
        m.stated(at(10), Named.SAME, at(70), 1, 100)
        assert (m.named, m.counted, m.earliest(at(10), 99)) == (True, 1, at(10))

    @pytest.mark.parametrize(("lack", "more"), [(35.0, False), (35.5, True)])
    def test_a_quarter_of_the_quota_may_be_the_use_of_others(self, lack, more, m):
        m.charge(at(11), 10)
        assert m.lacks_more(at(11), lack) is more


class Window:
    """A server that restarts its counter each minute, 20 s after the start."""

    def __init__(self, limit=100, **options):
        self.pool = local_pool([quota("100 requests/min")], learns=True, **options)
        self.limit, self.used, self.window = limit, 0, 0

    @property
    def meter(self):
        return self.pool.ledger.entries[0].meter

    def send(self, second):
        outcome = self.pool.try_grant(at(second), Waiter({"requests": 1}))
        return outcome if isinstance(outcome, Reservation) else None

    def answer(self, second, one, reading=None):
        if (second + 40) // 60 != self.window:
            self.window, self.used = (second + 40) // 60, 0
        self.used += 1
        said = reading or Reading("requests", self.limit, self.limit - self.used, reset_s=60 - (second + 40) % 60)
        self.pool.observe(at(second), [said], one)
        self.pool.settle(at(second), one, {"requests": 1})

    def work(self, second):
        count = 0
        while (one := self.send(second)) is not None:
            self.answer(second, one)
            count += 1
        return count


@pytest.fixture
def server():
    return Window()


def test_a_window_is_whole_at_once_after_its_restart(server):
    assert server.work(0) == 100
    assert isinstance(server.meter, Restarting)
    assert server.work(20) == 0  # within the rounding of the instant
    assert server.work(21) == 100
    assert server.work(81) == 100


def test_attempts_that_are_sent_late_after_a_restart_leave_its_window_as_it_is(server):
    for _ in range(20):
        server.answer(0, server.send(0))
    late = [server.send(21), server.send(21)]
    before = server.meter.opened, server.meter.counted
    server.pool.capacity.no_refill_for_unsent(at(26), late)
    assert (server.meter.opened, server.meter.counted) == before == (pytest.approx(100 / 30), 2)


def test_of_a_part_of_the_limit_as_much_is_used():
    server = Window(usable=0.5)
    assert [server.work(second) for second in (0, 21, 81)] == [50, 50, 50]


def test_a_number_without_a_meaning_is_an_instant_while_answers_agree(server):
    for second in range(10):
        one = server.send(second)
        server.answer(second, one, Reading("requests", 100, 99 - second, reset_number=20.0 - second))
        assert isinstance(server.meter, Restarting)
    server.answer(10, server.send(10), Reading("requests", 100, 89, reset_number=20.0))
    assert (type(server.meter), server.meter.level(at(10))) == (Bucket, 89)


def test_a_number_that_moves_is_none(server):
    for second in range(20):
        server.answer(second, server.send(second), Reading("requests", 100, 99 - second, reset_number=50.0))
    assert not isinstance(server.meter, Spread)


def test_a_number_and_an_instant_that_differ_are_none(server):
    server.answer(0, server.send(0), Reading("requests", 100, 99, reset_number=20.0))
    server.answer(8, server.send(8), Reading("requests", 100, 98, reset_s=50.0))
    assert type(server.meter) is Spread


@pytest.mark.parametrize(("wait_s", "kind"), [(17.0, Restarting), (10.0, Spread), (None, Spread)])
def test_a_refusal_that_asks_to_wait_until_the_restart_only_uses_the_window_up(wait_s, kind, server):
    server.answer(0, server.send(0))  # it restarts at 20 s
    server.pool.refuse(at(3), server.send(3), replace(RATE, retry_after_s=wait_s), 0.0)
    assert type(server.meter) is kind
    assert server.send(19) is None or kind is Spread


@pytest.mark.parametrize("second", [19, 21])
def test_a_refusal_that_asks_to_wait_until_the_next_restart_says_that_the_window_has_begun(second, server):
    """The restart at 20 s is known to a second: what goes about then may meet the next window, used up by others."""
    server.answer(0, server.send(0))
    server.pool.refuse(at(second), server.send(second), replace(RATE, retry_after_s=80.0 - second), 0.0)
    assert type(server.meter) is Restarting
    assert (server.meter.level(at(78)), server.meter.full_ns(at(second))) == (0, at(81))
    assert server.send(82) is not None


def test_a_lack_that_nothing_explains_after_the_restart_refutes_it(server):
    server.work(0)
    server.answer(21, server.send(21), Reading("requests", 100, 30, reset_s=59.0))
    assert type(server.meter) is Spread
    server.answer(82, server.send(82))
    assert type(server.meter) is Spread


def test_an_instant_to_come_counts_from_now(server):
    server.answer(2, server.send(0), Reading("requests", 100, 98, reset_s=18.0, until_s=18.0))
    restarts = server.pool.capacity.learning.trackers[0].restarts
    assert (restarts.low_ns, restarts.high_ns, server.meter.stop_ns) == (at(19), at(21), at(21))


def test_an_instant_that_has_passed_tells_of_the_window_after_it(server):
    sent = [server.send(second) for second in range(5)]
    late = [server.send(15), server.send(22)]
    for used, one in enumerate(sent, 1):
        server.answer(30, one, Reading("requests", 100, 100 - used, reset_s=0.0, until_s=-10.0))
    assert isinstance(server.meter, Restarting)
    assert (server.meter.stop_ns, server.meter.named) == (at(81), False)
    assert server.meter.counted == 1  # the last one was sent at its beginning
    server.answer(31, late[0], Reading("requests", 100, 94, reset_s=0.0, until_s=-11.0))
    assert server.meter.stop_ns == at(81)
    server.answer(32, late[1], Reading("requests", 100, 99, reset_s=48.0, until_s=48.0))
    assert (server.meter.named, server.meter.level(at(32))) == (True, 99)


def test_a_restart_that_has_passed_when_an_answer_names_it_moves_the_next_one(server):
    server.answer(0, server.send(0), Reading("requests", 100, 99, reset_s=20.0, until_s=20.0))
    slow = server.send(50)
    server.answer(90, slow, Reading("requests", 100, 99, reset_s=0.0, until_s=-25.0))  # at 65, so every 45 s
    server.send(90)
    while server.send(92) is not None:
        pass
    assert server.send(110.9) is None
    assert server.send(111) is not None


def test_an_answer_at_a_restart_that_is_known_too_late_opens_no_further_window(server):
    server.answer(0, server.send(0), Reading("requests", 100, 99, reset_s=20.0, until_s=20.0))
    last = server.send(20)
    server.answer(20.5, last, Reading("requests", 100, 98, reset_s=0.0, until_s=-1.2))  # it was at 20.3 at the latest
    assert server.meter.stop_ns == at(21)
    assert server.send(21) is not None
    assert server.meter.since_ns == at(21)


class TestInstantsOfFull:
    """A bucket of 60 a minute that writes when it is full: an instant that may have passed when its answer comes."""

    def answered(self, second, *readings):
        """A pool whose attempts of T0 have these answers."""
        ledger = Ledger([quota("60 requests/min")], T0, headroom_s=0.0)
        pool = Pool("p", LocalCapacity(ledger, learns=True))
        attempts = [pool.try_grant(T0, Waiter({"requests": 1})) for _ in readings]
        for attempt, (remaining, until_s) in zip(attempts, readings, strict=True):
            reading = Reading("requests", 60, remaining, reset_s=max(until_s, 0.0), until_s=until_s)
            pool.observe(at(second), [reading], attempt)
            pool.settle(at(second), attempt, {"requests": 1})
        return pool

    def test_it_counts_from_the_admission_if_it_was_written_then(self):
        pool = self.answered(35, *((60 - n, n - 35) for n in range(1, 31)))
        assert len(use_up(pool, at(35))) == 60

    def test_it_counts_from_the_answer_if_clocks_may_differ(self):
        pool = self.answered(35, (59, -1))
        assert len(use_up(pool, at(35))) == 60


def test_a_number_that_moves_leaves_what_was_shown_to_be_a_bucket_as_it_is():
    pool = local_pool([quota("600 requests/min")], learns=True)
    account = pool.ledger.entries[0]

    def answer(second, lack, **reset):
        one = pool.try_grant(at(second), Waiter({"requests": 1}))
        pool.observe(at(second), [Reading("requests", 600, 600 - lack, **reset)], one)
        pool.settle(at(second), one, {"requests": 1})

    answer(0, 300, reset_number=30.0)
    assert isinstance(account.meter, Restarting)
    for second in range(1, 14):  # a bucket that fills is full at one instant, as if it restarted then
        answer(second, 300 - 9 * second, reset_s=30 - 0.9 * second)
    bucket = account.meter
    assert type(bucket) is Bucket
    answer(14, 170, reset_number=60.0)
    assert pool.capacity.learning.trackers[0].restarts.refuted
    assert account.meter is bucket


@pytest.mark.parametrize("used", [1, 30])
def test_processes_that_share_a_quota_spread_it(used):
    """Each of them learns what others have used of it."""
    server, changes = Window(), []
    server.pool.capacity.learning = Learning(server.pool.ledger, changes.append)
    server.answer(0, server.send(0), Reading("requests", 100, 100 - used, reset_s=50.0))
    assert type(server.meter) is Spread
    assert server.meter.lack(at(0)) == pytest.approx(used)
    missing_ns = sum(change.value for change in changes if change.what is What.SHIFT)
    assert missing_ns == pytest.approx((used - 1) * server.meter.ns_per_unit, abs=1)


class TestRefusals:
    def test_of_a_window_that_answers_have_named_it_refutes_the_restarts(self, server):
        server.answer(0, server.send(0))
        server.pool.refuse(at(1), server.send(1), RATE, 0.0)
        assert type(server.meter) is Spread

    def test_of_a_window_that_is_used_up_it_says_nothing(self, server):
        one = server.send(0)
        server.work(0)
        server.pool.observe(at(1), [Reading("requests", 100, 0, reset_s=19.0)], one)
        server.pool.refuse(at(1), one, RATE, 0.0)
        assert isinstance(server.meter, Restarting)

    def test_right_after_an_instant_two_of_them_do(self, server):
        server.answer(0, server.send(0))
        server.pool.refuse(at(21), server.send(21), RATE, 0.0)
        assert server.meter.level(at(21)) == 0
        server.pool.refuse(at(81), server.send(81), RATE, 0.0)
        assert type(server.meter) is Spread
