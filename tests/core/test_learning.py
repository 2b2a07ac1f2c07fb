"""What single answers teach, step by step. Whole worlds are in tests/simulation."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
from core_pools import use_up

from paceline.core import charges
from paceline.core.learning import learning
from paceline.core.learning.resets import Refill
from paceline.core.ledger import Ledger
from paceline.core.local import LocalCapacity
from paceline.core.meters import Bucket, Spread
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import NS, parse_quotas
from paceline.core.results import Basis, Reading, Refusal, RefusalKind, RefusalScope, Reservation, Source, SourceKind
from paceline.core.unstated.in_flight import FULL_MAX_N
from paceline.pacing.status import report

T0 = 1_700_000_000 * NS


def pool_of(text="600 requests/min, 600k tokens/min", learns=True, source=SourceKind.GIVEN, **options):
    quotas = parse_quotas(text)
    sources = [Source(source)] * len(quotas)
    return Pool("openai/m", LocalCapacity.of(quotas, T0, learns=learns, sources=sources, **options))


def ungentle(text, source=SourceKind.ASSUMED):
    """A pool whose buckets are open, without headroom."""
    quotas = parse_quotas(text)
    ledger = Ledger(quotas, T0, sources=[Source(source)] * len(quotas), headroom_s=0.0)
    return Pool("openai/m", LocalCapacity(ledger, learns=True))


def amount_of(pool, index=0):
    return pool.ledger.entries[index].meter.quota.amount


def send(pool, at_s, tokens=1_000):
    outcome = pool.try_grant(T0 + round(at_s * NS), Waiter({"requests": 1, "tokens": tokens}))
    assert isinstance(outcome, Reservation), outcome
    return outcome


def quota(pool, at_s, unit="tokens"):
    return next(q for q in report(pool, T0 + round(at_s * NS))["quotas"] if q["unit"] == unit)


def tokens(**said):
    return [Reading("tokens", **said)]


@pytest.fixture
def pool():
    return pool_of()


def test_inside_the_band_we_believe_our_own_ledger(pool):
    one = send(pool, 0)
    send(pool, 0.1)  # left at about the same time: the server may have counted it, or not
    before = quota(pool, 1)["remaining"]
    pool.observe(T0 + NS, tokens(limit=600_000, remaining=599_000, reset_s=0.1), one)
    assert quota(pool, 1)["remaining"] == before


@pytest.mark.parametrize(("answers", "remaining"), [(1, 400_000), (5, 395_000)])
def test_below_the_band_somebody_else_is_spending_and_the_same_news_counts_once(answers, remaining, pool):
    for one in [send(pool, 0) for _ in range(answers)]:
        pool.observe(T0 + NS, tokens(limit=600_000, remaining=remaining, reset_s=60 - remaining / 10_000), one)
    assert quota(pool, 1)["remaining"] == pytest.approx(remaining + 10_000, rel=0.01)  # refilled for its age


def test_above_the_band_we_overcharged(pool):
    one = send(pool, 0, tokens=15_000)
    for _ in range(3):
        pool.settle(T0, send(pool, 0, tokens=1_000), None)
    pool.settle(T0 + round(0.3 * NS), send(pool, 0.2, tokens=10), None)
    late = send(pool, 0.5, tokens=10)
    assert quota(pool, 0.6)["remaining"] == 600_000 - 18_020 + 6_000
    pool.observe(T0 + round(0.6 * NS), tokens(limit=600_000, remaining=599_990, reset_s=0.001), late)
    # What it says, less the last two attempts, which it may not count, and what is in flight: that may have cost less, and
    # then it will be refunded.
    assert quota(pool, 0.6)["remaining"] == 600_000 - 18_020 + 6_000
    pool.settle(T0 + round(0.6 * NS), late, None)
    pool.settle(T0 + round(0.7 * NS), one, None)
    assert quota(pool, 0.7)["remaining"] == 600_000 - 18_020 + 7_000
    last = send(pool, 0.7, tokens=10)
    pool.observe(T0 + round(0.7 * NS), tokens(limit=600_000, remaining=599_990, reset_s=0.001), last)
    assert quota(pool, 0.7)["remaining"] >= 600_000 - 10


def test_a_stated_limit_is_adopted_up_and_down_and_an_old_one_is_not():
    pool = pool_of(learns="up")
    old = send(pool, 0)
    new = send(pool, 1)
    pool.observe(T0 + 2 * NS, tokens(limit=1_200_000, remaining=1_199_000, reset_s=0.05), new)
    assert quota(pool, 2)["limit"] == 1_200_000
    pool.observe(T0 + 2 * NS, tokens(limit=600_000, remaining=599_000, reset_s=0.1), old)
    assert quota(pool, 2)["limit"] == 1_200_000
    pool.observe(T0 + 4 * NS, tokens(limit=300_000, remaining=100, reset_s=59.9), send(pool, 3))
    assert quota(pool, 4)["limit"] == 300_000
    assert quota(pool, 4)["remaining"] < 10_000
    assert quota(pool, 4)["source"] == "learned"


def test_remaining_and_reset_tell_what_a_quantised_bucket_holds(pool):
    pool.observe(T0 + NS, tokens(limit=600_000, remaining=59_000, reset_s=0.1), send(pool, 0))
    assert quota(pool, 1)["learned"] == {"holds": 60_000}
    pool.observe(T0 + 2 * NS, tokens(limit=600_000, remaining=599_000, reset_s=0.1), send(pool, 1.5))
    assert quota(pool, 2)["learned"] == {}


def test_a_reset_that_follows_a_clock_is_no_buckets(pool):
    pool.observe(T0 + NS, tokens(limit=600_000, remaining=599_000, reset_s=43.0), send(pool, 0))
    assert quota(pool, 1)["learned"] == {"rule": "restarts at stated instants"}


def test_a_body_with_numbers_sets_limit_and_level(pool):
    said = Refusal(
        RefusalKind.RATE, retry_after_s=0.2, unit="tokens", period_s=60.0, limit=300_000, used=299_500, requested=1_000
    )
    pool.refuse(T0 + NS, send(pool, 0), said, 0.2)
    now = quota(pool, 1)
    assert now["limit"] == 300_000
    assert -1_000 <= now["remaining"] <= 500  # what was left, less the refused attempt: its charge stays


def test_a_request_goes_after_the_stated_wait_and_not_by_the_numbers_beside_it():
    pool = ungentle("500 requests/min")
    for _ in range(3):
        send(pool, 0)
    said = Refusal(RefusalKind.RATE, retry_after_s=19.0, unit="requests", period_s=60.0, limit=3, used=3, requested=1)
    pool.refuse(T0 + NS, send(pool, 0.9), said, 19.0)
    assert not isinstance(pool.try_grant(T0 + 19 * NS, Waiter({"requests": 1})), Reservation)
    send(pool, 20.1)


@pytest.mark.parametrize("sent", [3, 12])
def test_each_refusal_shows_that_the_bucket_is_empty_and_no_more(sent):
    """A limit far below the given one is learned while many are in flight: the server has a bucket of 3 a minute."""
    pool = ungentle("600 requests/min")
    said = Refusal(RefusalKind.RATE, retry_after_s=20.0, unit="requests", period_s=60.0, limit=3, used=3, requested=1)
    for refused in [send(pool, n / 100) for n in range(sent)]:
        pool.observe(T0 + NS, [Reading("requests", 3, 0, reset_s=60.0)], refused)
        pool.refuse(T0 + NS, refused, said, 20.0)
    send(pool, 23)


def test_an_earlier_answer_does_not_know_what_others_have_used_since():
    """Both state the limit, which was given too high; the answer to the later request comes first."""
    pool = ungentle("600 requests/min")
    early, late = send(pool, 0), send(pool, 5)
    pool.observe(T0 + 6 * NS, [Reading("requests", 60, 10, reset_s=50.0)], late)
    left = quota(pool, 7, "requests")["remaining"]
    pool.observe(T0 + 7 * NS, [Reading("requests", 60, 55, reset_s=5.0)], early)
    assert quota(pool, 7, "requests")["remaining"] == left


def test_requests_of_one_time_are_counted_in_any_order():
    """The server has 6 left of 60, for the 6 that are sent at once, and has counted the fifth one second."""
    pool = ungentle("600 requests/min")
    sent = [send(pool, 0) for _ in range(6)]
    pool.observe(T0 + NS, [Reading("requests", 60, 5, reset_s=55.0)], sent[0])
    left = quota(pool, 1, "requests")["remaining"]
    pool.observe(T0 + NS, [Reading("requests", 60, 4, reset_s=56.0)], sent[4])
    assert quota(pool, 1, "requests")["remaining"] == left


def test_a_pool_that_is_to_slow_down_does_so_with_much_left():
    pool = ungentle("60 requests/min")
    first, *others = [send(pool, 0) for _ in range(50)]
    pool.refuse(T0 + NS, first, Refusal(RefusalKind.GROWTH), 0.0)
    left = quota(pool, 2, "requests")["remaining"]
    for one in others[-5:]:
        pool.observe(T0 + 2 * NS, [Reading("requests", 60, 50, reset_s=10.0)], one)
    assert quota(pool, 2, "requests")["remaining"] == left


def test_what_is_left_of_a_minute_is_no_lack_of_a_smaller_burst():
    """A window of a minute, without resets: of 60 less is left with each request."""
    pool = ungentle("60 requests/min burst 1")
    for second in range(50):
        pool.observe(T0 + second * NS, [Reading("requests", 60, 59 - second, period_s=60.0)], send(pool, second))
    pool.observe(T0 + 50 * NS, [Reading("requests", 60, 0, period_s=60.0)], send(pool, 50))  # others have used the rest
    assert not isinstance(pool.try_grant(T0 + 50 * NS + NS // 2, Waiter({"requests": 1})), Reservation)
    send(pool, 51.1)


def test_a_refusal_that_names_a_unit_alone_is_about_the_tightest_of_its_quotas():
    pool = ungentle("16 requests/s, 200 requests/min, 1k requests/day", SourceKind.GIVEN)
    for n in range(100):
        refused = send(pool, n // 10)
    pool.refuse(T0 + 10 * NS, refused, Refusal(RefusalKind.RATE, unit="requests"), 1.0)
    assert [bool(q["learned"]) for q in report(pool, T0 + 10 * NS)["quotas"]] == [False, True, False]


def test_a_limit_without_a_period_becomes_that_of_no_other_quota():
    """LiteLLM states "Limit type: tokens. Current limit: 2000000" of a day, too."""
    pool = pool_of("100k tokens/min, 2M tokens/day", source=SourceKind.ASSUMED)
    for second in range(10):
        refused = send(pool, second)
    pool.refuse(T0 + 10 * NS, refused, Refusal(RefusalKind.RATE, unit="tokens", limit=2e6), 1.0)
    assert [amount_of(pool, index) for index in (0, 1)] == [100_000, 2_000_000]


def test_quotas_that_answers_name_are_added():
    pool = pool_of("600 requests/min")
    pool.observe(T0 + NS, tokens(limit=50_000, remaining=49_000, reset_s=1.2, period_s=60.0), send(pool, 0))
    assert quota(pool, 1)["limit"] == 50_000
    said = Refusal(RefusalKind.RATE, retry_after_s=8.0, unit="requests", period_s=86_400.0, limit=200, used=200)
    pool.refuse(T0 + 3 * NS, send(pool, 2), said, 8.0)
    assert [q["quota"] for q in report(pool, T0 + 3 * NS)["quotas"]] == [
        "600 requests/min", "50k tokens/min", "200 requests/day",
    ]  # fmt: skip
    json.dumps(report(pool, T0))


@pytest.mark.parametrize("kind", [RefusalKind.CAPACITY, RefusalKind.NEVER_FITS])
def test_what_is_not_our_rate_lowers_nothing(kind, pool):
    before = report(pool, T0 + 5 * NS)["quotas"][1]["limit"]
    pool.refuse(T0 + NS, send(pool, 0), Refusal(kind, limit=10.0, used=10.0, unit="tokens"), 0.0)
    assert (quota(pool, 5)["limit"], quota(pool, 5)["learned"]) == (before, {})


@pytest.mark.parametrize("known", ["500 requests/min", "600k tokens/min"])
@pytest.mark.parametrize("first", [0, 19])
def test_a_limit_that_the_first_of_many_answers_states_counts_all_that_are_in_flight(known, first):
    """The server may have counted any of them first, in whichever order they were sent."""
    pool = ungentle(known)
    many = [send(pool, tenth / 1_000) for tenth in range(20)]
    pool.observe(T0 + NS, [Reading("requests", limit=20, remaining=19, reset_s=3.0, period_s=60.0)], many[first])
    assert "20 requests/min" in pool.ledger.names
    assert quota(pool, 1, "requests")["remaining"] < 1
    assert quota(pool, 4, "requests")["remaining"] >= 1


def test_a_limit_that_the_first_answer_states_is_not_used_up_by_what_has_refilled():
    pool = ungentle("500 requests/min")
    for at_s in range(0, 60, 6):
        one = send(pool, at_s)
    pool.observe(T0 + 60 * NS, [Reading("requests", limit=20, remaining=19, reset_s=3.0, period_s=60.0)], one)
    assert quota(pool, 60, "requests")["remaining"] >= 19


def test_what_is_in_flight_when_an_answer_states_a_quota_belongs_to_it():
    pool = pool_of("500 requests/min")
    first, second, third = (send(pool, 0, tokens=2_000) for _ in range(3))
    said = Reading("tokens", limit=60_000, remaining=58_000, reset_s=2.0, period_s=60.0)
    pool.observe(T0, [said], first)
    assert quota(pool, 0)["remaining"] == 60_000 - 6_000
    assert not isinstance(pool.try_grant(T0, Waiter({"tokens": 4_000})), Reservation)
    for one in (first, second):
        pool.settle(T0, one, None)
    send(pool, 1, tokens=5_000)  # each of their answers opens it
    assert quota(pool, 1)["remaining"] == 60_000 - 10_000
    pool.observe(T0 + NS, [replace(said, remaining=34_000, reset_s=26.0)], third)  # others use the key
    assert quota(pool, 1)["remaining"] == pytest.approx(60_000 - 26_000 - 5_000, abs=1_000)
    level = quota(pool, 1)["remaining"]
    pool.settle(T0 + NS, third, {"tokens": 500})
    assert quota(pool, 1)["remaining"] == pytest.approx(level + 1_500)


@pytest.mark.parametrize(("charged_after", "lack"), [([], 2_900), (["tokens"], 0)])
def test_other_processes_are_told_what_is_in_flight_of_a_new_quota(charged_after, lack):
    """The store has charged nothing of it. What is charged at the end of an attempt is not charged yet."""
    pool, reports = pool_of("500 requests/min", charged_after=charged_after), []
    pool.capacity.learning = learning.Learning(pool.ledger, reports.append)
    first, second = send(pool, 0, tokens=2_000), send(pool, 0.1, tokens=1_000)
    pool.observe(T0 + NS // 10, [Reading("tokens", limit=60_000, remaining=58_000, reset_s=2.0, period_s=60.0)], first)
    [shift] = [change for change in reports if getattr(change, "what", None) == "shift"]
    assert shift.value / NS * 1_000 == pytest.approx(lack)
    assert quota(pool, 0.1)["remaining"] == pytest.approx(60_000 - lack)
    assert [len(one.amounts) for one in (first, second)] == [1, 1]


def test_the_restart_that_early_answers_have_named_is_known_when_the_quota_is_no_bucket():
    """The last answer shows that, and has taken too long to name a restart that is so near."""
    pool = Pool("local/m", LocalCapacity.of([], T0, learns=True))
    many = [send(pool, twentieth / 20) for twentieth in range(40)]
    for number, at_s in ((0, 1.0), (2, 1.2), (12, 2.0)):
        said = Reading("requests", limit=200, remaining=199 - number, reset_s=4.7 - at_s)
        pool.observe(T0 + round(at_s * NS), [said], many[number])
    [m] = pool.ledger.meters
    assert m.restarts_by_answers
    assert m.level(T0 + 2 * NS) == 160
    assert m.full_ns(T0 + 2 * NS) == pytest.approx(T0 + 5.7 * NS, abs=NS / 10)  # it may be rounded


def test_a_limit_found_beside_a_small_bucket_is_no_spent_quota():
    """A limit of 3 000 a minute, enforced as 50 a second: 49 remaining, full in no time; nobody has spent 2 951."""
    pool = pool_of("50 requests/min")
    pool.observe(T0 + NS, [Reading("requests", limit=3_000, remaining=49, reset_s=0.02)], send(pool, 0))
    send(pool, 1)


def test_a_refusal_for_somebody_elses_use_is_no_smaller_bucket():
    """Its headers have said already how much is left; held against the ledger of before, it would be a bucket of one."""
    pool = pool_of("30 requests/min")
    one = send(pool, 0)
    now_ns = T0 + NS // 2
    pool.observe(now_ns, [Reading("requests", limit=30, remaining=0, reset_s=60.0)], one)
    pool.refuse(now_ns, one, Refusal(RefusalKind.RATE, retry_after_s=2.0, unit="requests"), 2.0)
    assert quota(pool, 1, "requests")["learned"].get("holds", 30) >= 29
    assert pool.try_grant(now_ns, Waiter({"requests": 1})).at_ns - now_ns < 5 * NS


@pytest.mark.parametrize("reset_resolution_s", [0.0, 1.0])
def test_a_bucket_whose_resets_are_whole_seconds_is_no_counter(reset_resolution_s):
    """A bucket of 5 at one a second: a bit more than one is used, and the reset is rounded up to 2 s."""
    pool = pool_of("60 requests/min burst 5")
    said = Reading("requests", limit=60, remaining=4, reset_s=2.0, reset_resolution_s=reset_resolution_s, period_s=60)
    pool.observe(T0 + NS, [said], send(pool, 0))
    is_counter = not pool.ledger.meters[0].bursts
    assert is_counter == (reset_resolution_s == 0)


class TestAdaptiveHeadroom:
    """1 s at the start; less while the provider has more left than needed, more when attempts are sent late."""

    @staticmethod
    def of_tokens(**options):
        return Pool("openai/m", LocalCapacity.of(parse_quotas("100k tokens/10s"), T0, learns=True, **options))

    @staticmethod
    def headroom_s(pool):
        return pool.ledger.entries[0].meter.headroom_s

    @staticmethod
    def run(pool, from_s, to_s, *, missing_s=0.0, headers=True):
        """Send as fast as the tokens allow; the provider has what the pool has, less the refill of ``missing_s``."""
        at_s = from_s
        while at_s < to_s:
            sent = pool.try_grant(T0 + round(at_s * NS), Waiter({"requests": 0, "tokens": 2_000}))
            if isinstance(sent, Reservation):
                remaining = math.floor(quota(pool, at_s)["remaining"] - missing_s * 10_000)
                pool.settle(T0 + round((at_s + 0.05) * NS), sent, None)
                if headers:
                    answer = tokens(limit=100_000, remaining=remaining)
                    pool.observe(T0 + round((at_s + 0.05) * NS), answer, sent)
            at_s += 0.1

    @pytest.fixture
    def pool(self):
        return self.of_tokens(adapts=True)

    @pytest.mark.parametrize(
        ("options", "halved"),
        [({}, {15: 0.5, 120: 0.25}), ({"missing_s": 0.2}, {120: 0.5, 240: 0.5}), ({"headers": False}, {120: 1.0})],
        ids=["enough is left", "less than in the pool", "nothing shows what is left"],
    )
    def test_it_is_halved_while_the_provider_has_enough_left(self, pool, options, halved):
        """What is missing is less than what a comparison of the levels finds."""
        from_s = 0
        for to_s, headroom_s in halved.items():
            self.run(pool, from_s, to_s, **options)
            assert self.headroom_s(pool) == headroom_s
            assert quota(pool, to_s)["learned"].get("headroom_s", 1.0) == headroom_s
            from_s = to_s

    def test_it_stays_where_much_is_left(self, pool):
        for second in range(60):
            sent = send(pool, second, tokens=1_000)
            pool.settle(T0 + second * NS, sent, None)
            pool.observe(T0 + second * NS, tokens(limit=100_000, remaining=99_000), sent)
        assert self.headroom_s(pool) == 1.0

    def test_a_refusal_of_a_nearly_empty_bucket_restores_it(self, pool):
        self.run(pool, 0, 60)
        refused = send(pool, 60, tokens=1_000)
        pool.refuse(T0 + 60 * NS, refused, Refusal(RefusalKind.RATE, unit="tokens", retry_after_s=1.0), 1.0)
        assert self.headroom_s(pool) == 1.0
        assert "holds" not in quota(pool, 62)["learned"]  # the bucket is as large as before

    def test_a_given_headroom_stays(self):
        pool = self.of_tokens(headroom_s=2.0)
        pool.capacity.learning.sent_late(3.0)
        self.run(pool, 0, 60)
        assert self.headroom_s(pool) == 2.0

    @pytest.mark.parametrize(("begins_s", "headroom_s"), [(12.5, 0.5), (11.5, 1.0)])
    def test_its_test_counts_only_answers_to_attempts_that_were_sent_since(self, pool, begins_s, headroom_s):
        self.run(pool, 0, 11, headers=False)  # until the bucket is nearly empty
        self.run(pool, 11, 12, headers=begins_s < 12)
        at_s = 12.0
        while not isinstance(one := pool.try_grant(T0 + round(at_s * NS), Waiter({"tokens": 2_000})), Reservation):
            at_s += 0.01
        left = math.floor(quota(pool, at_s)["remaining"]) - 5_000  # less than the half, and within the tolerance
        pool.settle(T0 + round(at_s * NS), one, None)
        self.run(pool, 12.5, 15)
        pool.observe(T0 + 15 * NS, tokens(limit=100_000, remaining=left), one)
        self.run(pool, 15, begins_s + 10.5)
        assert self.headroom_s(pool) == headroom_s


@pytest.mark.parametrize("another_comes", [False, True], ids=["the last answer", "another comes between"])
def test_a_quota_that_headers_show_to_have_enough_left_is_not_blamed_for_a_refusal_that_names_none(another_comes):
    pool = ungentle("600 requests/min, 60k tokens/min", SourceKind.GIVEN)
    for second in range(0, 60, 5):
        waiters = [Waiter({"requests": 1, "tokens": 900}) for _ in range(5)]  # of the tokens the least is left
        granted = [pool.try_grant(T0 + second * NS, waiter) for waiter in waiters]
        sent = [one for one in granted if isinstance(one, Reservation)][-1]
        now_ns = T0 + round((second + 0.2) * NS)
        pool.observe(now_ns, tokens(limit=60_000, remaining=30_000), sent)
        if another_comes:
            pool.observe(now_ns, [], granted[0])
        pool.refuse(now_ns, sent, Refusal(RefusalKind.RATE), 0.0)
    assert "ceiling" not in quota(pool, 60, "tokens")["learned"]
    assert "ceiling" in quota(pool, 60, "requests")["learned"]


class TestLongPeriods:
    """A quota of an hour or a day is used whole: it opens whole, and a refusal that does not name it changes nothing of it."""

    def test_it_opens_whole(self):
        pool = Pool("openai/m", LocalCapacity.of(parse_quotas("50 requests/day"), T0, learns=True, headroom_s=0.0))
        assert all(isinstance(pool.try_grant(T0, Waiter({})), Reservation) for _ in range(50))

    @pytest.mark.parametrize("rule", ["", " window utc"])
    def test_a_refusal_that_names_nothing_leaves_it_as_it_is(self, rule):
        pool = pool_of(f"50 requests/day{rule}, 600 requests/min")
        for _ in range(10):
            pool.settle(T0, pool.try_grant(T0, Waiter({})), {"requests": 1})
        for n in range(3):
            pool.refuse(T0 + n * NS, pool.try_grant(T0 + n * NS, Waiter({})), Refusal(RefusalKind.RATE), 0.0)
        limit, _ = report(pool, T0 + 3 * NS)["quotas"]
        assert (limit["limit"], limit["learned"]) == (50, {})
        assert limit["remaining"] == pytest.approx(37, abs=1)

    def test_a_wait_of_hours_says_nothing_of_a_minute(self):
        """It names the unit, and is about a longer period that is not listed: the minute is no counter."""
        pool = pool_of("60 requests/min")
        pool.settle(T0, pool.try_grant(T0, Waiter({})), {"requests": 1})
        named = Refusal(RefusalKind.RATE, unit="requests", retry_after_s=20_000.0)
        pool.refuse(T0 + NS, pool.try_grant(T0 + NS, Waiter({})), named, 0.0)
        assert "rule" not in report(pool, T0 + NS)["quotas"][0]["learned"]


def test_the_notice_of_a_higher_limit_names_the_one_that_was_given():
    pool = pool_of("600 requests/min", usable=0.5)
    for at_s, limit in (0, 400), (1, 900):  # it is lowered, and then rises above the given one
        pool.observe(T0 + at_s * NS, [Reading("requests", limit=limit, remaining=limit - 1)], send(pool, at_s))
    [notice] = pool.capacity.learning.notices
    assert notice.startswith("the provider states a limit of 900 requests, and '600 requests/min' was given")


class TestGuesses:
    """Limits that no answer has confirmed are raised while the provider serves more."""

    @staticmethod
    def refused_after_sixty(**said):
        """A pool that a minute's requests have raised at once, and a refusal ten seconds later."""
        pool = ungentle("60 requests/min")
        for outcome in [pool.try_grant(T0, Waiter({})) for _ in range(60)]:
            pool.settle(T0, outcome, {"requests": 1})
        refusal = Refusal(RefusalKind.RATE, unit="requests", **said)
        pool.refuse(T0 + 10 * NS, pool.try_grant(T0 + 10 * NS, Waiter({})), refusal, said.get("retry_after_s", 0.0))
        return pool

    @pytest.mark.parametrize("text", ["2 requests/day", "2 requests/day window utc"])
    @pytest.mark.parametrize("source", [SourceKind.PUBLISHED, SourceKind.ASSUMED])
    def test_one_of_a_long_period_is_raised_by_twice_as_many_requests_each_time_that_it_binds(self, text, source):
        pool, limits = pool_of(text, source=source, headroom_s=0.0), []
        for _ in range(9):
            outcome = pool.try_grant(T0, Waiter({}))
            assert isinstance(outcome, Reservation)  # what was served more is there at once
            pool.settle(T0, outcome, {"requests": 1})
            limits.append(amount_of(pool))
        assert limits == [2, 3, 5, 5, 9, 9, 9, 9, 17]
        [notice] = pool.capacity.learning.notices
        assert notice.endswith("the provider serves more, so paceline raises it step by step")

    @pytest.mark.parametrize(
        ("source", "limits"), [(SourceKind.ASSUMED, [60, 120, 240, 480]), (SourceKind.PUBLISHED, [60])]
    )
    def test_the_rate_of_an_assumed_one_doubles_when_an_eighth_was_served(self, source, limits):
        pool, seen = ungentle("60 requests/min", source), []
        for outcome in [pool.try_grant(T0, Waiter({})) for _ in range(60)]:
            pool.settle(T0, outcome, {"requests": 1})
            seen.append(amount_of(pool))
        assert list(dict.fromkeys(seen)) == limits
        assert [seen.index(limit) for limit in limits[1:]] == [7, 22, 52][: len(limits) - 1]  # after 8, 15 and 30 more

    def test_a_refusal_about_its_request_alone_raises_none(self):
        pool, alone = ungentle("60 requests/min"), Refusal(RefusalKind.RATE, scope=RefusalScope.REQUEST)
        for outcome in [pool.try_grant(T0, Waiter({})) for _ in range(60)]:
            pool.refuse(T0, outcome, alone, 0.0)
        assert amount_of(pool) == 60

    def test_one_that_was_raised_too_far_falls_back_to_what_was_served(self):
        pool = self.refused_after_sixty()
        served = 59 / 70 * 60  # in 10 s, by a bucket of a minute; the refused one counts as one of the 60
        m = pool.ledger.entries[0].meter
        assert (m.quota.amount, m.burst_cap) == (pytest.approx(2 * served), pytest.approx(served))
        assert m.ceiling == 0.5
        for second in range(11, 80):
            pool.try_grant(T0 + second * NS, Waiter({}))
        assert 0.5 < m.ceiling < 0.55  # it climbs from there, within a period

    def test_one_that_falls_back_lacks_no_more_than_what_was_served_at_once(self):
        send(self.refused_after_sixty(retry_after_s=2.0), 12.1)

    def test_before_anything_was_served_a_refusal_says_nothing_about_the_rate(self):
        pool = ungentle("60 requests/min")
        refused = pool.try_grant(T0, Waiter({}))
        for outcome in [pool.try_grant(T0 + NS, Waiter({})) for _ in range(60)]:
            pool.settle(T0 + NS, outcome, {"requests": 1})
        assert amount_of(pool) == 480
        pool.refuse(T0 + NS, refused, Refusal(RefusalKind.RATE, unit="requests"), 0.0)
        assert amount_of(pool) == 480

    def test_a_window_that_was_raised_stays_after_a_refusal_and_is_raised_no_more(self):
        pool = pool_of("2 requests/day window utc", source=SourceKind.ASSUMED)
        outcomes = []
        for _ in range(4):
            outcomes.append(pool.try_grant(T0, Waiter({})))
            pool.settle(T0, outcomes[-1], {"requests": 1})
        pool.refuse(T0, pool.try_grant(T0, Waiter({})), Refusal(RefusalKind.RATE, unit="requests"), 0.0)
        assert (amount_of(pool), pool.capacity.learning.guesses.tested) == (5, {})

    def test_a_refusal_that_states_the_limit_is_taken_by_its_word(self):
        pool = self.refused_after_sixty(limit=90)
        assert (amount_of(pool), pool.ledger.entries[0].meter.ceiling) == (90, 1)

    @staticmethod
    def serve(pool, from_s, rounds, seconds=1.0):
        """All slots at once, ``rounds`` times, with answers after ``seconds``; the amounts that were seen."""
        seen, now_ns = [amount_of(pool)], T0 + round(from_s * NS)
        for _ in range(rounds):
            sent = use_up(pool, now_ns)
            now_ns += round(seconds * NS)
            for outcome in sent:
                pool.settle(now_ns, outcome, {"requests": 1})
            seen.append(amount_of(pool))
        return seen

    def test_slots_grow_by_one_when_all_of_them_were_served(self):
        # Only the first answer of a round finds all slots in use; it counts those of the round before.
        assert self.serve(ungentle("8 concurrency"), 0, 5) == [8, 8, 9, 9, 10, 10]
        assert self.serve(ungentle("1 concurrency"), 0, 3) == [1, 2, 2, 3]

    @pytest.mark.parametrize("unit", ["concurrency", None])
    def test_a_refusal_lowers_slots_and_then_they_grow_by_one(self, unit):
        pool = ungentle("8 concurrency")
        sent = [pool.try_grant(T0, Waiter({})) for _ in range(8)]
        pool.refuse(T0, sent.pop(), Refusal(RefusalKind.RATE, unit=unit), 0.0)
        assert amount_of(pool) == 5  # three quarters of the 7 in use
        for outcome in sent:
            pool.settle(T0 + NS, outcome, {"requests": 1})
        assert self.serve(pool, 1, 4) == [5, 6, 6, 7, 7]  # those in flight at the refusal are served, too
        assert pool.ledger.entries[0].source.kind is SourceKind.ASSUMED

    def test_each_further_refusal_doubles_the_rounds_up_to_a_bound(self):
        pool = ungentle("8 concurrency")
        guess, rounds = pool.capacity.learning.guesses.tested[0], []
        for _ in range(10):
            pool.refuse(T0, pool.try_grant(T0, Waiter({})), Refusal(RefusalKind.RATE, unit="concurrency"), 0.0)
            rounds.append(guess.rounds)
        assert rounds == [1, 2, 4, 8, 16, 32, 64, FULL_MAX_N, FULL_MAX_N, FULL_MAX_N]
        assert amount_of(pool) == 1

    def test_given_slots_that_others_hold_are_lowered_and_come_back_one_by_one(self):
        pool = ungentle("8 concurrency", SourceKind.GIVEN)
        held = [pool.try_grant(T0, Waiter({})) for _ in range(4)]
        pool.refuse(T0, held.pop(), Refusal(RefusalKind.RATE, unit="concurrency"), 0.0)
        assert amount_of(pool) == 3
        amounts = []
        for _ in range(30):  # each is answered while the others are in flight
            pool.settle(T0, held.pop(0), {"requests": 1})
            held += use_up(pool, T0)
            amounts.append(amount_of(pool))
        assert [amounts.index(slots) + 1 for slots in (4, 5, 6, 7, 8)] == [3, 7, 12, 18, 25]
        assert pool.ledger.entries[0].source.kind is SourceKind.GIVEN
        for open_tests in [1] * 3 + [0]:  # the former number has to hold for as many attempts
            assert len(pool.capacity.learning.guesses.tested) == open_tests
            pool.settle(T0, held.pop(0), {"requests": 1})
            held.append(pool.try_grant(T0, Waiter({})))

    def test_refusals_of_attempts_in_flight_together_lower_slots_once_and_do_not_raise_them_again(self):
        pool = ungentle("5 concurrency", SourceKind.GIVEN)
        held = [pool.try_grant(T0, Waiter({})) for _ in range(5)]
        refused = Refusal(RefusalKind.RATE, unit="concurrency", limit=5)
        for n in (1, 2):  # each states the number again
            pool.refuse(T0 + n * NS, held.pop(), refused, 0.0)
            assert amount_of(pool) == 4

    def test_slots_that_another_process_has_lowered_come_back_one_by_one_and_later_after_each_refusal(self):
        pool = ungentle("8 concurrency", SourceKind.GIVEN)
        learning, rounds = pool.capacity.learning, []
        for before, slots in [(8, 3), (3, 4), (4, 3)]:
            pool.ledger.adopt(T0, 0, slots)
            learning.guesses.learned_elsewhere(T0, 0, before)
            rounds.append(learning.guesses.tested[0].rounds)
        assert rounds == [1, 1, 2]
        seen = self.serve(pool, 0, 16)
        assert seen[-1] > 3
        assert {b - a for a, b in pairwise(seen)} == {0, 1}

    @pytest.mark.parametrize(("others", "spent", "slots"), [(0, 10, 8), (7, 2_900, 5), (7, 3_100, 8)])
    def test_a_refusal_that_names_nothing_is_blamed_on_slots_if_much_is_left_of_all_else(self, others, spent, slots):
        """If the attempt was alone in flight, its refusal is not blamed on slots."""
        pool = ungentle("8 concurrency, 6000 tokens/min")
        for _ in range(others):
            pool.try_grant(T0, Waiter({}))
        refused = pool.try_grant(T0, Waiter({"tokens": spent}))
        pool.refuse(T0, refused, Refusal(RefusalKind.RATE), 0.0)
        assert amount_of(pool) == slots

    def test_the_guess_that_makes_requests_wait_for_minutes_is_named_once(self):
        texts = "1 concurrency, 60 requests/min burst 1, 100 tokens/hour, 100 pages/hour"
        pool = ungentle(texts, SourceKind.PUBLISHED)
        assert isinstance(pool.try_grant(T0, Waiter({"tokens": 100})), Reservation)
        waits_ns = {pool.submit(T0, Waiter({"tokens": 100})).at_ns - T0 for _ in range(2)}
        assert min(waits_ns) > 60 * NS
        [notice] = pool.capacity.learning.notices
        unconfirmed = "the limit '100 tokens/hour' is published, and no answer has confirmed it: set the limits"
        assert notice.startswith(unconfirmed)
        assert notice.endswith("; requests wait for it")


class Counting:
    """A server that counts requests in windows, or in a trailing period; ``rule`` is what its resets are about."""

    def __init__(self, rule, limit, period_s, *, others=0):
        self.rule, self.limit, self.period_s, self.others = rule, limit, period_s, others
        self.at_s, self.used, self.refused = 0.0, [], 0

    def demand(self, pool, until_s, every_s=0.1):
        """Send all that the pool grants."""
        while self.at_s < until_s:
            now_ns = T0 + round(self.at_s * NS)
            while isinstance(outcome := pool.try_grant(now_ns, Waiter({"requests": 1})), Reservation):
                self.serve(pool, now_ns, outcome)
            self.at_s += every_s

    def serve(self, pool, now_ns, reservation):
        start_s = self.at_s // self.period_s * self.period_s
        least_s = start_s if self.rule == "window" else self.at_s - self.period_s + 1e-9
        self.used = [one for one in self.used if one >= least_s]
        if len(self.used) + self.others >= self.limit:
            self.refused += 1
            pool.refuse(now_ns, reservation, Refusal(RefusalKind.RATE, unit="requests", retry_after_s=1.0), 1.0)
            return
        self.used.append(self.at_s)
        counts_from_s = {"window": start_s, "oldest": self.used[0], "newest": self.at_s}[self.rule]
        reset_s = counts_from_s + self.period_s - self.at_s
        left = self.limit - len(self.used) - self.others
        pool.observe(now_ns, [Reading("requests", limit=self.limit, remaining=left, reset_s=reset_s)], reservation)
        pool.settle(now_ns, reservation, {"requests": 1})


def test_a_reading_moves_the_burst_only_as_far_as_it_contradicts_it():
    pool, found = ungentle("6k tokens/min", SourceKind.GIVEN), []
    exact, rough, smaller = (800, 2.0, 0.0), (950, 0.5, 20.0), (700, 1.0, 0.0)
    larger, whole = (1_500, 0.5, 0.0), (6_000, 0, 0)
    for at_s, (left, reset_s, wrong_s) in enumerate([rough, exact, rough, smaller, rough, larger, rough, whole]):
        said = Reading("tokens", 6_000, left, float(reset_s), 60.0, reset_resolution_s=float(wrong_s))
        pool.observe(T0 + at_s * NS, [said], send(pool, at_s, 1))
        found.append(pool.ledger.entries[0].meter.burst_cap)
    assert found == pytest.approx([0, 1_000, 1_000, 800, 800, 1_550, 1_550, math.inf])


def test_a_small_bucket_lacks_no_more_than_it_may_hold():
    pool = ungentle("6k tokens/min", SourceKind.GIVEN)
    sent = send(pool, 0, 5_000)
    pool.observe(T0, [Reading("tokens", 6_000, 100, 1.0, 60.0, reset_resolution_s=2.0)], sent)  # 200, more or less
    assert pool.ledger.entries[0].meter.lack(T0) == pytest.approx(400)


class TestPeriods:
    """The period of a quota, where the headers name a limit, and no period."""

    @pytest.mark.parametrize("rule", ["window", "oldest", "newest"])
    def test_the_first_answer_shows_a_given_rate_in_a_shorter_period(self, rule):
        pool, server = pool_of("600 requests/min"), Counting(rule, 100, 10)
        server.demand(pool, 40)
        assert server.refused == 0
        assert (pool.ledger.names, [one.given for one in pool.ledger.entries]) == (["100 requests/10s"], [100])
        assert isinstance(pool.ledger.entries[0].meter, Spread)
        assert 300 < pool.ledger.entries[0].spent <= 400
        assert pool.ledger.entries[0].source.kind is SourceKind.LEARNED

    @pytest.mark.parametrize("rule", ["window", "oldest", "newest"])
    def test_the_longest_reset_shows_the_period_of_a_counter(self, rule):
        pool, server = pool_of("60 requests/min", source=SourceKind.ASSUMED), Counting(rule, 40, 10)
        server.demand(pool, 9)
        assert pool.ledger.names == ["40 requests/min"]
        server.demand(pool, 35)
        assert pool.ledger.names == ["40 requests/10s"]
        assert isinstance(pool.ledger.entries[0].meter, Spread)

    def test_a_process_that_shares_a_quota_keeps_its_period_and_the_amount_is_converted(self):
        pool, reports = pool_of("600 requests/min"), []
        pool.capacity.learning = learning.Learning(pool.ledger, reports.append)
        pool.observe(T0, [Reading("requests", limit=50, remaining=44, reset_s=10.0)], send(pool, 0))
        assert pool.ledger.names == ["50 requests/min"]
        pool.observe(T0 + NS, [Reading("requests", limit=50, remaining=49, reset_s=5.0)], send(pool, 1))
        assert (pool.ledger.names, pool.capacity.learning.trackers[0].stated_period_s) == (["600 requests/min"], 5)
        assert [change.what for change in reports if change.what != "epoch"] == ["adopt", "shift", "spread", "adopt"]

    def test_a_quota_that_came_from_elsewhere_is_tracked_from_then_on(self):
        pool = pool_of("600 requests/min")
        pool.ledger.add_quota(T0, parse_quotas("9k tokens/min")[0])
        assert 1 not in pool.capacity.learning.trackers
        pool.capacity.learning.corrections.added(T0)
        assert pool.capacity.learning.trackers[1].entry.meter is pool.ledger.entries[1].meter

    def test_a_refusal_that_names_another_period_is_about_the_quota_whose_period_was_learned(self):
        pool = pool_of("600 requests/min")
        Counting("newest", 100, 10).demand(pool, 5)
        said = Refusal(RefusalKind.RATE, unit="requests", period_s=60.0, limit=100.0)
        pool.refuse(T0 + 12 * NS, send(pool, 12), said, 1.0)
        assert pool.ledger.names == ["100 requests/10s"]

    def test_readings_far_apart_show_no_period(self):
        pool = pool_of("60 requests/min", source=SourceKind.ASSUMED)
        Counting("newest", 40, 10).demand(pool, 100, 20)
        assert pool.ledger.entries[0].meter.quota.period_s == 60

    @pytest.mark.parametrize("rule", ["oldest", "newest"])
    def test_those_that_count_others_show_a_counter_and_only_its_restarts_show_the_period(self, rule):
        pool, server = pool_of("60 requests/min", source=SourceKind.ASSUMED), Counting(rule, 40, 10, others=9)
        server.demand(pool, 9, 1)
        assert (pool.ledger.names, server.refused) == (["40 requests/min"], 0)
        assert isinstance(pool.ledger.entries[0].meter, Spread)
        server.demand(pool, 100, 1)
        assert (pool.ledger.names, server.refused) == (["40 requests/10s"], 0)

    @pytest.mark.parametrize("basis", Basis)
    @pytest.mark.parametrize("period_s", [18.0, 900.0])
    def test_readings_show_no_bucket_with_another_period_than_they_state(self, basis, period_s):
        """A trailing minute, of which little is used, states nearly a minute until all of it is back."""
        refill, said = Refill(), []
        for lack in (4_000, 4_500, 5_000, 5_500, 6_000):
            said.append(Reading("tokens", 9_000, 9_000 - lack, lack / 9_000 * period_s, 60.0, 100, 0.1, basis))
            refill.learn_bucket_period(said[-1])
        assert refill.sure is (basis is not Basis.STATED)
        for one in said:
            refill.learn_bucket_period(replace(one, reset_s=(9_000 - one.remaining) / 150))
        assert refill.sure
        refill.learn_bucket_period(said[0])
        assert not refill.sure

    def test_instants_in_whole_seconds_show_a_bucket(self):
        pool = pool_of("600 requests/min")
        for second in range(10):
            sent, lack = send(pool, second), 109 + 50 * second
            until_s = float(lack // 10)
            said = Reading("requests", 600, 600 - lack, until_s, until_s=until_s)
            pool.observe(T0 + second * NS + NS // 10, [said], sent)
        assert pool.capacity.learning.trackers[0].refill.sure

    def test_an_answer_to_an_earlier_attempt_adds_nothing_to_a_series(self):
        refill, [known] = Refill(), parse_quotas("60 requests/min")

        def learned(at_s, **said):
            reading, log = Reading("requests", limit=40, **said), charges.Charges()
            return refill.learn_counter_period(T0 + at_s * NS, reading, known.amount, known.period_s, 40.0, log)

        for at_s, remaining in ((0, 39), (2, 37), (4, 35), (1, 38), (6, 33), (8, 31), (10, 29)):
            assert learned(at_s, remaining=remaining, reset_s=60.0 if at_s == 1 else 10.0) is None
        assert learned(12) is None
        assert learned(12, remaining=27, reset_s=10.0) == 10

    def test_a_bucket_that_is_smaller_than_its_limit_is_no_counter(self):
        """Of 120 a minute a bucket holds 20: near 0 left of it, full in 10 s. The same numbers from a window show a counter."""
        for left_of, is_counter in (lambda at_s: max(18 - at_s, at_s % 3), False), (lambda at_s: 100 - 2 * at_s, True):
            refill = Refill()
            for at_s in range(30):
                left = left_of(at_s)
                reset_s = 40.0 - at_s if is_counter else (20 - left) / 2
                said = Reading("requests", limit=120, remaining=left, reset_s=reset_s)
                found = refill.learn_counter_period(T0 + at_s * NS, said, 120, 60.0, 120.0, charges.Charges())
                assert found is None
            assert refill.is_counter is is_counter

    @pytest.mark.parametrize("period_s", [None, 60.0])
    def test_answers_that_contradict_every_bucket_spread_a_quota_at_once(self, period_s):
        pool = pool_of("600 requests/min")
        for at_s, remaining in (0, 595), (0.5, 580):
            assert not isinstance(pool.ledger.entries[0].meter, Spread)
            for _ in range(600 - remaining):
                one = send(pool, at_s)
            said = Reading("requests", limit=600, remaining=remaining, reset_s=3.0 - at_s, period_s=period_s)
            pool.observe(T0 + round(at_s * NS), [said], one)
        assert isinstance(pool.ledger.entries[0].meter, Spread)
        assert pool.ledger.entries[0].meter.log.used >= 20

    def test_a_bucket_that_states_its_period_and_resets_in_whole_seconds_stays_a_bucket(self):
        pool = ungentle("35k tokens/min", SourceKind.GIVEN)
        for at_s, remaining in [(0, 34_900), (0.1, 34_331), (0.3, 33_819), (0.7, 33_025), (1.3, 31_815), (1.9, 30_508)]:
            said = Reading("tokens", 35_000, remaining, float(-(-(35_000 - remaining) * 60 // 35_000)), 60.0)
            pool.observe(T0 + round(at_s * NS), [said], send(pool, at_s, 900))
        assert not isinstance(pool.ledger.entries[0].meter, Spread)

    @pytest.mark.parametrize(("left", "is_exact"), [((5_700, 5_400, 5_100), True), ((5_000, 5_000, 4_000), False)])
    def test_an_amount_that_is_no_multiple_of_its_resolution_is_not_rounded(self, left, is_exact):
        pool = ungentle("6k tokens/min", SourceKind.GIVEN)
        for at_s, remaining in enumerate(left):
            said = Reading("tokens", 6_000, remaining, 4.0 - at_s, 60.0, resolution=1_000, reset_resolution_s=1.0)
            pool.observe(T0 + at_s * NS, [said], send(pool, at_s, 300))
        assert isinstance(pool.ledger.entries[0].meter, Spread) is is_exact

    def filling(self, pool, period_s, from_s=0, count=10, stated_s=None):
        """Answers of a bucket of 600 requests in ``period_s``, of which others use more and more."""
        for second in range(from_s, from_s + count):
            outcome = pool.try_grant(T0 + second * NS, Waiter({"requests": 1}))
            if not isinstance(outcome, Reservation):
                continue
            pool.settle(T0 + second * NS, outcome, None)
            lack = 100 + 20 * (second - from_s)
            reset_s = lack / 600 * period_s
            said = Reading("requests", limit=600, remaining=600 - lack, reset_s=reset_s, period_s=stated_s)
            pool.observe(T0 + second * NS, [said], outcome)

    @pytest.mark.parametrize("stated_s", [None, 60.0])
    def test_a_quota_that_was_spread_is_a_bucket_again_when_its_answers_show_one(self, stated_s):
        pool = pool_of("600 requests/min", source=SourceKind.ASSUMED)
        pool.observe(T0, [Reading("requests", limit=600, remaining=599, reset_s=50.0)], send(pool, 0))
        assert isinstance(pool.ledger.entries[0].meter, Spread)
        self.filling(pool, 60, from_s=1, count=13, stated_s=stated_s)
        assert not isinstance(pool.ledger.entries[0].meter, Spread)
        assert pool.ledger.names == ["600 requests/min"]

    @pytest.mark.parametrize("written", ["first", "last"])
    def test_instants_in_answers_that_take_long_show_a_bucket(self, written):
        """The demand falls, so that what was used refills, and answers take ever longer."""
        pool, sent = pool_of("600 requests/min"), {}
        took_s = {second: 5 + second // 5 for second in range(40)}
        answers = [(second + took, second) for second, took in took_s.items()]
        for at_s, second in sorted([*answers, *((second, None) for second in took_s)], key=lambda one: one[0]):
            if second is None:
                sent[at_s] = send(pool, at_s)
                continue
            lack = 540 - 10 * second  # at its admission, or now
            until_s = lack / 10 - (took_s[second] if written == "first" else 0)
            said = Reading("requests", 600, 600 - lack, float(math.ceil(until_s)), until_s=until_s)
            pool.observe(T0 + at_s * NS, [said], sent[second])
        assert type(pool.ledger.entries[0].meter) is Bucket

    def test_once_they_have_shown_a_bucket_a_long_wait_makes_it_no_counter(self):
        pool = pool_of("600 requests/min")
        self.filling(pool, 60)
        assert pool.capacity.learning.trackers[0].refill.sure
        pool.refuse(T0 + 20 * NS, send(pool, 20), Refusal(RefusalKind.RATE, retry_after_s=40.0, unit="requests"), 1.0)
        assert "rule" not in quota(pool, 20, "requests")["learned"]

    def test_a_reset_without_an_amount_changes_no_level(self):
        pool = pool_of("600k tokens/min", usable=0.5)
        pool.observe(T0, tokens(limit=600_000, reset_s=30.0), send(pool, 0))
        assert (quota(pool, 0)["remaining"], quota(pool, 0)["learned"]) == (299_000, {})


class TestRefusals:
    def test_those_of_attempts_in_flight_at_a_refusal_add_nothing(self):
        pool = ungentle("600 requests/min", SourceKind.GIVEN)
        sent = [send(pool, 0) for _ in range(600)]
        pool.refuse(T0 + NS, sent[-1], Refusal(RefusalKind.RATE, unit="requests"), 1.0)
        assert quota(pool, 1, "requests")["remaining"] == 600 - 10 - 599  # it is empty after the pause of a second
        pool.refuse(T0 + 2 * NS, sent[0], Refusal(RefusalKind.RATE, unit="requests"), 1.0)
        assert quota(pool, 2, "requests")["remaining"] == 1

    def test_for_growth_those_in_flight_halve_the_speed_once_and_later_ones_again(self):
        pool = pool_of("600 requests/min")
        growth = Refusal(RefusalKind.GROWTH, unit="requests")
        together = [send(pool, 0) for _ in range(3)]
        for reservation in together:
            pool.refuse(T0 + NS, reservation, growth, 0.0)
        assert pool.ledger.entries[0].meter.ceiling == 0.5
        ceilings = []
        for second in (10, 20, 30):
            pool.refuse(T0 + (second + 1) * NS, send(pool, second), growth, 0.0)
            ceilings.append(pool.ledger.entries[0].meter.ceiling)
        assert ceilings == pytest.approx([0.25, 0.125, 0.125], abs=0.001)  # an eighth at least

    def test_two_refusals_measure_the_rate_between_them(self):
        pool = ungentle("600 requests/min", SourceKind.GIVEN)
        refusal, m = Refusal(RefusalKind.RATE, unit="requests", retry_after_s=0.1), pool.ledger.entries[0].meter
        pool.refuse(T0, send(pool, 0), refusal, 0.0)
        for tenth in range(1, 100):  # half of them: 5 a second
            if tenth % 2:
                pool.settle(T0 + tenth * NS // 10, send(pool, tenth / 10), None)
        pool.refuse(T0 + 10 * NS, send(pool, 10), refusal, 0.0)
        assert m.ceiling == pytest.approx(0.5, abs=0.02)
        pool.refuse(T0 + 13 * NS, send(pool, 13), refusal, 0.0)  # too soon after the last one to measure
        assert m.ceiling == pytest.approx(0.5, abs=0.02)

    @pytest.mark.parametrize("wait_s", [9.0, 20.0, 59.0])
    def test_a_counter_goes_on_when_the_stated_wait_is_over(self, wait_s):
        """What was used counts as used a period before that: the counter restarts then, or the first of it leaves a trailing period."""
        pool = ungentle("60 requests/min")
        for step in range(50):
            pool.settle(T0 + step * NS // 10, send(pool, step / 10), None)
        said = Refusal(RefusalKind.RATE, retry_after_s=wait_s, unit="requests")
        pool.refuse(T0 + 5 * NS, send(pool, 5), said, wait_s)
        m = pool.ledger.entries[0].meter
        assert isinstance(m, Spread)
        over_ns = T0 + round((5 + wait_s) * NS)
        one, two = (m.earliest(over_ns, amount) - over_ns for amount in (1.0, 2.0))
        assert 0 <= one <= NS
        assert 0.9 * NS <= two - one <= 1.1 * NS

    def test_one_that_waits_longer_than_a_bucket_would_is_a_counters_which_stays_spread(self):
        pool = pool_of("600 requests/min")
        said = Refusal(RefusalKind.RATE, retry_after_s=40.0, unit="requests")
        pool.refuse(T0 + NS, send(pool, 0), said, 40.0)
        spread = pool.ledger.entries[0].meter
        assert isinstance(spread, Spread)
        assert quota(pool, 1, "requests")["learned"] == {"rule": "no bucket: spread evenly"}
        pool.refuse(T0 + 61 * NS, send(pool, 60), said, 40.0)
        assert pool.ledger.entries[0].meter is spread


@pytest.mark.parametrize(("slices", "left"), [(2, 310_490), (4_096, 509_980)])
def test_charges_that_the_log_has_lost_may_be_uncounted(monkeypatch, slices, left):
    """With a whole log, a reading shows that the charges were too high, less those of the last quarter of a second."""
    monkeypatch.setattr(charges, "SLICES_MAX", slices)
    pool = ungentle("600k tokens/min", SourceKind.GIVEN)
    for tenth in range(10):
        pool.settle(T0 + tenth * NS // 10, send(pool, tenth / 10, tokens=30_000), None)
    late = send(pool, 1.05, tokens=10)
    pool.observe(T0 + round(1.05 * NS), tokens(limit=600_000, remaining=600_000, reset_s=0.0), late)
    assert quota(pool, 1.05)["remaining"] == left
    assert len(pool.capacity.learning.trackers[0].charges.slices) <= slices


def test_late_sending_raises_the_headroom_of_buckets_alone_and_within_a_bound():
    pool = pool_of("600 requests/min, 9 concurrency, 60 pages/min sliding, 7 starts/min exact", adapts=True)
    for late_s, headroom_s in (2.0, 2.0), (1.5, 2.0), (60.0, 4.0):
        pool.capacity.learning.sent_late(late_s)
        assert [m.headroom_s for m in pool.ledger.meters] == [headroom_s, 0.0, 1.0, 1.0]


def test_headers_of_an_unknown_request_only_lower_the_level():
    pool = pool_of("600k tokens/min, 9 concurrency")
    send(pool, 0, tokens=15_000)
    of_now = Reservation({}, [], [], T0, T0)
    of_now.notes = pool.capacity.learning.notes_of_now()
    assert list(of_now.notes) == [0]
    pool.observe(T0, tokens(limit=600_000, remaining=300_000, reset_s=30.0), of_now)
    assert quota(pool, 0)["remaining"] == 300_000


class TestLowered:
    """A refusal has lowered a limit, and no headers tell when it rises again."""

    def lowered(self, text="600 requests/min", source=SourceKind.GIVEN):
        pool = ungentle(text, source)
        refused = Refusal(RefusalKind.RATE, unit="requests", period_s=60.0, limit=60.0)
        pool.refuse(T0, pool.try_grant(T0, Waiter({})), refused, 0.0)
        assert amount_of(pool) == 60
        return pool

    def demand(self, pool, from_s, to_s):
        """Serve one request each second for which there is one; the amounts after them, each once."""
        amounts = []
        for second in range(from_s, to_s):
            now_ns = T0 + second * NS
            while isinstance(granted := pool.try_grant(now_ns, Waiter({})), Reservation):
                pool.settle(now_ns, granted, {"requests": 1})
            if amount_of(pool) not in amounts[-1:]:
                amounts.append(amount_of(pool))
        return amounts

    @pytest.fixture
    def pool(self):
        return self.lowered()

    def test_it_is_tested_upward_after_five_minutes_step_by_step_to_what_it_was(self, pool):
        assert self.demand(pool, 1, 300) == [60]
        steps = self.demand(pool, 300, 1_200)
        assert steps == pytest.approx([60 * 1.25**n for n in range(1, 11)] + [600])
        assert not pool.capacity.learning.guesses.tested
        assert pool.ledger.entries[0].source.kind is SourceKind.GIVEN

    def test_so_is_a_guess_that_a_refusal_has_corrected(self):
        pool = self.lowered(source=SourceKind.ASSUMED)
        assert self.demand(pool, 1, 300) == [60]
        assert self.demand(pool, 300, 305)[-1] == 75

    def test_without_demand_it_is_not_tested(self, pool):
        for minute in range(1, 30):
            pool.settle(T0 + minute * 60 * NS, send(pool, minute * 60), {"requests": 1})
        assert amount_of(pool) == 60

    def test_a_refusal_that_states_it_again_doubles_the_time_to_the_next_test(self, pool):
        self.demand(pool, 1, 365)
        refused = Refusal(RefusalKind.RATE, unit="requests", period_s=60.0, limit=60.0)
        assert amount_of(pool) > 60
        pool.refuse(T0 + 365 * NS, pool.try_grant(T0 + 365 * NS, Waiter({})), refused, 0.0)
        assert amount_of(pool) == 60
        assert self.demand(pool, 366, 365 + 600) == [60]
        assert self.demand(pool, 365 + 600, 365 + 605)[-1] == 75

    def test_a_refusal_without_numbers_takes_the_last_step_back(self, pool):
        self.demand(pool, 1, 365)
        before = amount_of(pool)
        pool.refuse(T0 + 365 * NS, pool.try_grant(T0 + 365 * NS, Waiter({})), Refusal(RefusalKind.RATE), 0.0)
        assert amount_of(pool) == before / 1.25
        pool.refuse(T0 + 425 * NS, pool.try_grant(T0 + 425 * NS, Waiter({})), Refusal(RefusalKind.RATE), 0.0)
        assert amount_of(pool) == before / 1.25  # no step was made since

    def test_headers_end_the_test(self, pool):
        pool.observe(T0 + NS, [Reading("requests", 60.0, 10.0, 50.0)], send(pool, 1))
        assert not pool.capacity.learning.guesses.tested

    def test_a_test_of_another_process_lets_this_one_wait(self, pool):
        learning = pool.capacity.learning
        pool.ledger.adopt(T0, 0, 75.0)
        learning.guesses.learned_elsewhere(T0 + 299 * NS, 0, 60.0)
        assert learning.guesses.tested[0].test_ns == T0 + 359 * NS
        pool.ledger.adopt(T0, 0, 60.0)
        learning.guesses.learned_elsewhere(T0 + 359 * NS, 0, 75.0)
        assert learning.guesses.tested[0].test_ns == T0 + 959 * NS


class TestInferredPeriods:
    """A period that one reading suggests: that of a bucket, or what a counter looks like at times."""

    AGREE = tuple((used, 86_400.0) for used in (100, 150, 200, 300, 400))

    @pytest.mark.parametrize(
        ("given", "readings", "basis", "added"),
        [
            ("600k tokens/min", [(100, 60.0)], Basis.PROVED, ["1k requests/min"]),
            ("600 requests/min", AGREE[:4], Basis.PROVED, []),
            ("600 requests/min", AGREE, Basis.PROVED, ["1k requests/day"]),
            ("600 requests/min", [(100 + 10 * n, 80_000.0 + 300 * n) for n in range(50)], Basis.PROVED, []),
            ("600 requests/min", AGREE, Basis.ASSUMED, []),
            ("600k tokens/min", AGREE, Basis.ASSUMED, []),
        ],
        ids=[
            "first of its unit",
            "four agree",
            "five agree",
            "they contradict",
            "assumed",
            "assumed, first of its unit",
        ],
    )
    def test_it_is_added_when_it_is_proved_and_readings_agree(self, given, readings, basis, added):
        pool = ungentle(given)
        for used, period_s in readings:
            said = Reading("requests", 1_000.0, 1_000.0 - used, used * period_s / 1_000.0, period_s, basis=basis)
            pool.observe(T0, [said], send(pool, 0))
        assert pool.ledger.names == [given, *added]


class TestWindow:
    def refuse(self, pool, at_s, **said):
        now_ns = T0 + at_s * NS
        pool.refuse(now_ns, pool.try_grant(now_ns, Waiter({})), Refusal(RefusalKind.RATE, **said), 0.0)

    def test_one_that_is_refused_in_two_of_its_periods_is_spread(self):
        pool = ungentle("600 requests/min window utc", SourceKind.GIVEN)
        for at_s in (15, 16, 75):
            assert not isinstance(pool.ledger.entries[0].meter, Spread)
            self.refuse(pool, at_s)
        spread = pool.ledger.entries[0].meter
        assert isinstance(spread, Spread)
        assert spread.log.used == 1
        assert pool.capacity.learning.trackers[0].entry.meter is spread

    def test_numbers_say_enough(self):
        pool = ungentle("600 requests/min window utc", SourceKind.GIVEN)
        for at_s in (15, 75, 135):
            self.refuse(pool, at_s, unit="requests", period_s=60.0, limit=600.0)
        assert not isinstance(pool.ledger.entries[0].meter, Spread)

    def test_one_that_processes_share_stays(self):
        ledger = Ledger(parse_quotas("600 requests/min window utc"), T0)
        shared = learning.Learning(ledger, lambda *_: None)
        for at_s in (15, 75, 135):
            now_ns = T0 + at_s * NS
            granted = ledger.reserve(now_ns, {"requests": 1})
            shared.granted(now_ns, granted)
            shared.refusals.refused(now_ns, granted, Refusal(RefusalKind.RATE), 0)
        assert not isinstance(ledger.entries[0].meter, Spread)


def test_a_rate_that_is_measured_above_the_ceiling_changes_nothing():
    pool = ungentle("600 requests/min", SourceKind.GIVEN)
    refused = Refusal(RefusalKind.RATE, unit="requests")
    pool.refuse(T0, send(pool, 0), refused, 0.0)
    pool.capacity.learning.trackers[0].rate.first = T0, -100.0  # a hundred more were admitted than this process knows
    pool.refuse(T0 + 6 * NS, send(pool, 6), refused, 0.0)
    assert pool.ledger.entries[0].meter.ceiling == 1


def test_only_open_reservations_up_to_an_instant_count_as_before_it():
    ledger = Ledger(parse_quotas("600 requests/min"), T0)
    for second in range(3):
        ledger.reserve(T0 + second * NS, {"requests": 1})
    ledger.add_quota(T0, parse_quotas("600 tokens/min")[0])  # unknown to them
    assert (ledger.open_before(0, T0 + NS), ledger.open_before(1, T0 + NS)) == (2, 0)
    ledger.open_reservations[0].granted_ns = T0 + 3 * NS  # it has waited in a further pool
    assert ledger.open_before(0, T0 + NS) == 1


def test_a_number_of_slots_that_a_refusal_has_stated_rises_again_to_the_given_one():
    pool = ungentle("20 concurrency", SourceKind.GIVEN)
    granted = use_up(pool, T0)
    pool.refuse(T0 + NS, granted.pop(), Refusal(RefusalKind.RATE, unit="concurrency", limit=4.0), 0.0)
    assert amount_of(pool) == 4
    for second in range(2, 60):
        for one in granted:
            pool.settle(T0 + second * NS, one, {"requests": 1})
        granted = use_up(pool, T0 + second * NS)
    assert amount_of(pool) == 20
    assert not pool.capacity.learning.guesses.tested


def test_a_bucket_that_turns_out_to_be_smaller_lacks_no_more_than_it_holds():
    pool = ungentle("6 requests/min", SourceKind.LEARNED)
    first, *others = [send(pool, 0, 0) for _ in range(6)]
    pool.settle(T0, first, {"requests": 1.0})
    for one in others:
        pool.observe(T0, [Reading("requests", remaining=0, reset_s=10.0, period_s=60.0)], one)
        pool.refuse(T0, one, Refusal(RefusalKind.RATE, retry_after_s=10.0), 10.0)
    assert pool.try_grant(T0, Waiter({"requests": 1, "tokens": 0})).at_ns - T0 <= 12 * NS
