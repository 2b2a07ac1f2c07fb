"""What single answers teach, step by step. Whole worlds are in tests/simulation."""

import json
import math

import pytest

from paceline.core.capacity import LocalCapacity
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import NS, parse_quotas
from paceline.core.results import Reading, Refusal, RefusalKind, Reservation, Source, SourceKind
from paceline.pacing.status import report

T0 = 1_700_000_000 * NS


def pool_of(text="600 requests/min, 600k tokens/min", learns=True):
    return Pool("openai/m", LocalCapacity.of(parse_quotas(text), T0, learns=learns))


def send(pool, at_s, tokens=1_000):
    outcome = pool.try_grant(T0 + round(at_s * NS), Waiter({"requests": 1, "tokens": tokens}))
    assert isinstance(outcome, Reservation), outcome
    return outcome


def quota(pool, at_s, unit="tokens"):
    return next(q for q in report(pool, T0 + round(at_s * NS))["quotas"] if q["unit"] == unit)


def tokens(**said):
    return [Reading("tokens", **said)]


def test_inside_the_band_we_believe_our_own_ledger():
    pool = pool_of()
    one = send(pool, 0)
    send(pool, 0.1)  # left at about the same time: the server may have counted it, or not
    before = quota(pool, 1)["remaining"]
    pool.observe(T0 + NS, tokens(limit=600_000, remaining=599_000, reset_s=0.1), one)
    assert quota(pool, 1)["remaining"] == before


def test_below_the_band_somebody_else_is_spending():
    pool = pool_of()
    one = send(pool, 0)
    pool.observe(T0 + NS, tokens(limit=600_000, remaining=400_000, reset_s=20.0), one)
    assert quota(pool, 1)["remaining"] == pytest.approx(410_000, rel=0.01)  # refilled for its age


def test_the_same_news_in_many_answers_counts_once():
    pool = pool_of()
    many = [send(pool, 0) for _ in range(5)]
    for one in many:
        pool.observe(T0 + NS, tokens(limit=600_000, remaining=395_000, reset_s=20.5), one)
    assert quota(pool, 1)["remaining"] == pytest.approx(405_000, rel=0.02)


def test_an_older_reading_raises_nothing():
    pool = pool_of()
    old = send(pool, 0)
    new = send(pool, 5)
    pool.observe(T0 + 6 * NS, tokens(limit=600_000, remaining=100_000, reset_s=50.0), new)
    low = quota(pool, 6)["remaining"]
    pool.observe(T0 + 6 * NS, tokens(limit=600_000, remaining=599_000, reset_s=0.1), old)
    assert quota(pool, 6)["remaining"] == low


def test_above_the_band_we_overcharged():
    pool = pool_of()
    one = send(pool, 0, tokens=15_000)
    for _ in range(3):
        pool.settle(T0, send(pool, 0, tokens=1_000), None)
    late = send(pool, 2, tokens=10)
    pool.observe(T0 + round(2.1 * NS), tokens(limit=600_000, remaining=599_990, reset_s=0.001), late)
    assert quota(pool, 2.1)["remaining"] >= 599_000
    assert one.open


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


def test_remaining_and_reset_tell_what_a_quantised_bucket_holds():
    pool = pool_of()
    pool.observe(T0 + NS, tokens(limit=600_000, remaining=59_000, reset_s=0.1), send(pool, 0))
    assert quota(pool, 1)["learned"] == {"holds": 60_000}
    pool.observe(T0 + 2 * NS, tokens(limit=600_000, remaining=599_000, reset_s=0.1), send(pool, 1.5))
    assert quota(pool, 2)["learned"] == {}


def test_a_reset_that_follows_a_clock_is_no_buckets():
    pool = pool_of()
    pool.observe(T0 + NS, tokens(limit=600_000, remaining=599_000, reset_s=43.0), send(pool, 0))
    assert quota(pool, 1)["learned"] == {"rule": "no bucket: spread evenly"}


def test_a_refusal_that_waits_longer_than_a_bucket_would_is_no_buckets():
    pool = pool_of("600 requests/min")
    said = Refusal(RefusalKind.RATE, retry_after_s=40.0, unit="requests")
    pool.refuse(T0 + NS, send(pool, 0), said, 40.0)
    assert quota(pool, 1, "requests")["learned"] == {"rule": "no bucket: spread evenly"}


def test_a_body_with_numbers_sets_limit_and_level():
    pool = pool_of()
    said = Refusal(
        RefusalKind.RATE, retry_after_s=0.2, unit="tokens", period_s=60.0, limit=300_000, used=299_500, requested=1_000
    )
    pool.refuse(T0 + NS, send(pool, 0), said, 0.2)
    now = quota(pool, 1)
    assert now["limit"] == 300_000
    assert -1_000 <= now["remaining"] <= 500  # what was left, less the refused attempt: its charge stays


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


def test_growing_too_fast_halves_the_speed():
    pool = pool_of("600 requests/min")
    pool.refuse(T0 + NS, send(pool, 0), Refusal(RefusalKind.GROWTH, unit="requests"), 1.0)
    assert quota(pool, 1, "requests")["learned"] == {"ceiling": 0.5}


@pytest.mark.parametrize("kind", [RefusalKind.CAPACITY, RefusalKind.NEVER_FITS])
def test_what_is_not_our_rate_lowers_nothing(kind):
    pool = pool_of()
    before = report(pool, T0 + 5 * NS)["quotas"][1]["limit"]
    pool.refuse(T0 + NS, send(pool, 0), Refusal(kind, limit=10.0, used=10.0, unit="tokens"), 0.0)
    assert quota(pool, 5)["limit"] == before
    assert quota(pool, 5)["learned"] == {}


def test_a_day_opens_with_its_share_and_its_limit_is_found_in_headers():
    pool = pool_of("1000 requests/day")
    for _ in range(33):
        send(pool, 0)
    other = pool_of("600 requests/min")
    said = Reading("requests", limit=1_000, remaining=999, reset_s=86.4, period_s=86_400.0)
    other.observe(T0 + NS, [said], send(other, 0))
    assert [q["quota"] for q in report(other, T0)["quotas"]] == ["600 requests/min", "1k requests/day"]


def test_a_limit_found_beside_a_small_bucket_is_no_spent_quota():
    """A limit of 3 000 a minute, enforced as 50 a second: 49 remaining, full in no time; nobody has spent 2 951."""
    pool = pool_of("50 requests/min")
    said = [Reading("requests", limit=3_000, remaining=49, reset_s=0.02)]
    pool.observe(T0 + NS, said, send(pool, 0))
    send(pool, 1)


def test_one_at_a_time_at_full_speed():
    pool = pool_of("60 requests/min burst 1")
    at_ns = T0
    for _ in range(60):
        waiter = Waiter({"requests": 1})
        outcome = pool.try_grant(at_ns, waiter)
        if not isinstance(outcome, Reservation):
            at_ns = outcome.at_ns
            outcome = pool.try_grant(at_ns, waiter)
        pool.settle(at_ns, outcome, None)
    assert (at_ns - T0) / NS == pytest.approx(59, rel=0.06)


def test_a_refusal_for_somebody_elses_use_is_no_smaller_bucket():
    """Its headers have said already how much is left; held against the ledger of before, it would be a bucket of one."""
    pool = pool_of("30 requests/min")
    one = send(pool, 0)
    now_ns = T0 + NS // 2
    pool.observe(now_ns, [Reading("requests", limit=30, remaining=0, reset_s=60.0)], one)
    pool.refuse(now_ns, one, Refusal(RefusalKind.RATE, retry_after_s=2.0, unit="requests"), 2.0)
    assert quota(pool, 1, "requests")["learned"].get("holds", 30) >= 29
    again = pool.try_grant(now_ns, Waiter({"requests": 1}))
    assert again.at_ns - now_ns < 5 * NS


def test_a_quota_that_an_answer_adds_does_not_hinder_the_settlement_of_earlier_attempts():
    sources = [Source(SourceKind.ASSUMED)]
    pool = Pool("m", LocalCapacity.of(parse_quotas("600 requests/min"), T0, learns=True, sources=sources))
    earlier, one = send(pool, 0), send(pool, 0)
    pool.observe(T0 + NS, tokens(limit=50_000, remaining=49_000, reset_s=1.2, period_s=60.0), one)
    for reservation in (one, earlier):
        pool.settle(T0 + NS, reservation, {"tokens": 900})
    assert pool.ledger.in_flight == 0


def test_a_refusal_about_slots_adds_slots():
    pool = pool_of("600 requests/min")
    pool.refuse(T0, send(pool, 0), Refusal(RefusalKind.RATE, unit="concurrency", limit=4), 0.0)
    assert pool.ledger.names == ["600 requests/min", "4 concurrency"]


@pytest.mark.parametrize("reset_resolution_s", [0.0, 1.0])
def test_a_bucket_whose_resets_are_whole_seconds_is_no_counter(reset_resolution_s):
    """A bucket of 5 at one a second: a bit more than one is used, and the reset is rounded up to 2 s."""
    pool = pool_of("60 requests/min burst 5")
    said = Reading("requests", limit=60, remaining=4, reset_s=2.0, reset_resolution_s=reset_resolution_s, period_s=60)
    pool.observe(T0 + NS, [said], send(pool, 0))
    spread = quota(pool, 1, "requests")["learned"] == {"rule": "no bucket: spread evenly"}
    assert spread == (reset_resolution_s == 0)


class TestAdaptiveHeadroom:
    """1 s at the start; less while the provider has more left than needed, more when attempts are sent late."""

    @staticmethod
    def pool(**options):
        return Pool("openai/m", LocalCapacity.of(parse_quotas("100k tokens/10s"), T0, learns=True, **options))

    @staticmethod
    def headroom_s(pool):
        return pool.ledger.meters[0].headroom_s

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

    def test_it_is_halved_while_the_provider_has_enough_left(self):
        pool = self.pool(adapts=True)
        self.run(pool, 0, 15)
        assert self.headroom_s(pool) == 0.5
        self.run(pool, 15, 120)
        assert self.headroom_s(pool) == 0.25
        assert quota(pool, 120)["learned"]["headroom_s"] == 0.25

    def test_it_stays_where_the_provider_has_less_left_than_the_pool(self):
        pool = self.pool(adapts=True)
        self.run(pool, 0, 120, missing_s=0.2)  # less than what a comparison of the levels finds
        assert self.headroom_s(pool) == 0.5
        self.run(pool, 120, 240, missing_s=0.2)
        assert self.headroom_s(pool) == 0.5

    def test_it_stays_where_nothing_shows_what_is_left(self):
        pool = self.pool(adapts=True)
        self.run(pool, 0, 120, headers=False)
        assert self.headroom_s(pool) == 1.0

    def test_it_stays_where_much_is_left(self):
        pool = self.pool(adapts=True)
        for second in range(60):
            sent = send(pool, second, tokens=1_000)
            pool.settle(T0 + second * NS, sent, None)
            pool.observe(T0 + second * NS, tokens(limit=100_000, remaining=99_000), sent)
        assert self.headroom_s(pool) == 1.0

    def test_a_refusal_of_a_nearly_empty_bucket_restores_it(self):
        pool = self.pool(adapts=True)
        self.run(pool, 0, 60)
        refused = send(pool, 60, tokens=1_000)
        pool.refuse(T0 + 60 * NS, refused, Refusal(RefusalKind.RATE, unit="tokens", retry_after_s=1.0), 1.0)
        assert self.headroom_s(pool) == 1.0
        assert "holds" not in quota(pool, 62)["learned"]  # the bucket is as large as before

    def test_late_sending_raises_it_within_a_bound(self):
        pool = self.pool(adapts=True)
        pool.capacity.learning.sent_late(2.0)
        assert self.headroom_s(pool) == 2.0
        pool.capacity.learning.sent_late(60.0)
        assert self.headroom_s(pool) == 4.0

    def test_a_given_headroom_stays(self):
        pool = self.pool(headroom_s=2.0)
        pool.capacity.learning.sent_late(3.0)
        self.run(pool, 0, 60)
        assert self.headroom_s(pool) == 2.0


def test_refusals_about_a_quota_that_is_not_listed_do_not_make_a_listed_one_a_counter():
    pool = pool_of("6000 requests/min, 6M tokens/min")
    for second in range(0, 200, 20):
        sent = send(pool, second)
        now_ns = T0 + round((second + 0.2) * NS)
        left = [
            Reading("tokens", limit=6_000_000, remaining=5_900_000),
            Reading("requests", limit=6_000, remaining=5_990),
        ]
        pool.observe(now_ns, left, sent)
        pool.refuse(now_ns, sent, Refusal(RefusalKind.RATE), 1.0)
    assert all("rule" not in quota["learned"] for quota in report(pool, now_ns)["quotas"])
