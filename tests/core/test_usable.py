"""``usable``: a share of every limit that is used, also of the limits that answers state."""

from __future__ import annotations

import pytest

from paceline.core.ledger import Ledger
from paceline.core.local import LocalCapacity
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import NS, parse_quotas
from paceline.core.results import Reading, Refusal, RefusalKind, Reservation, Source, SourceKind
from paceline.pacing.status import report

T0 = 1_700_000_000 * NS


def pool_of(text="30k tokens/min", *, usable=0.85, learns=True, source=SourceKind.GIVEN, **options):
    quotas = parse_quotas(text)
    sources = [Source(source)] * len(quotas)
    ledger = Ledger(quotas, T0, usable=usable, sources=sources, **{"gentle": bool(learns), **options})
    return Pool("openai/m", LocalCapacity(ledger, learns=learns))


def send(pool, at_s=0.0, **cost):
    outcome = pool.try_grant(T0 + round(at_s * NS), Waiter(cost or {"tokens": 100}))
    assert isinstance(outcome, Reservation), outcome
    return outcome


def shown(pool, at_s=0.0, unit="tokens"):
    return next(q for q in report(pool, T0 + round(at_s * NS))["quotas"] if q["unit"] == unit)


def test_the_quotas_are_shares_of_the_limits():
    pool = pool_of("30k tokens/min burst 20k, 500 requests/min sliding, 10 concurrency, 100 units/day window utc")
    quotas = {q["unit"]: (q["limit"], q["burst"], q["usable"]) for q in report(pool, T0)["quotas"]}
    assert quotas == {
        "tokens": (25_500, 17_000, 0.85),
        "requests": (425, 425, 0.85),
        "concurrency": (10, 10, 1.0),  # slots are whole
        "units": (85, 85, 0.85),
    }


@pytest.mark.parametrize(
    ("source", "learns", "stated", "limit"),
    [
        (SourceKind.GIVEN, True, 30_000, 25_500),
        (SourceKind.GIVEN, True, 20_000, 17_000),
        (SourceKind.GIVEN, True, 60_000, 25_500),
        (SourceKind.GIVEN, "up", 60_000, 51_000),
        (SourceKind.PUBLISHED, True, 60_000, 51_000),
        (SourceKind.ASSUMED, True, 20_000, 17_000),
    ],
)
@pytest.mark.parametrize("by", ["header", "refusal"])
def test_it_holds_for_stated_limits(source, learns, stated, limit, by):
    pool = pool_of(learns=learns, source=source)
    one = send(pool)
    if by == "header":
        pool.observe(T0 + NS, [Reading("tokens", stated, stated - 100)], one)
    else:
        pool.refuse(T0 + NS, one, Refusal(RefusalKind.RATE, unit="tokens", limit=stated, used=stated), 1)
    assert shown(pool, 1)["limit"] == limit
    assert shown(pool, 1).get("learned", {}).get("stated_limit") in (None, 60_000)


@pytest.mark.parametrize("reset_s", [None, 20.0])
@pytest.mark.parametrize("rule", ["", " sliding", " window utc"])
def test_the_rest_of_a_limit_is_kept_of_what_is_left(reset_s, rule):
    pool = pool_of(f"30k tokens/min{rule}")
    pool.observe(T0 + NS // 10, [Reading("tokens", 30_000, 20_000, reset_s)], send(pool))
    if rule != " sliding":  # spread evenly: it does not read a level
        assert shown(pool, 0.1)["remaining"] <= 20_000 - 4_500 + 100
        assert shown(pool, 0.1)["remaining"] >= 20_000 - 4_500 - 100


def test_what_is_left_by_a_refusal():
    pool = pool_of(headroom_s=0.0, gentle=False)
    send(pool, tokens=15_000)
    pool.refuse(T0, send(pool), Refusal(RefusalKind.RATE, unit="tokens", limit=30_000, used=29_000), 0)
    # 15,000 are taken for the size of the bucket; of 1,000 that are left 4,500 are kept; the refused 100 stay charged
    wait_s = (pool.ledger.earliest(T0, [100])[0] - T0) / NS
    assert wait_s == pytest.approx((4_500 - 1_000 + 100 + 100) / 425, abs=0.01)


def test_a_new_quota_of_an_answer_is_a_share_too():
    pool = pool_of("500 requests/min")
    pool.observe(T0, [Reading("tokens", 30_000, 20_000), Reading("concurrency", 10, 9)], send(pool, requests=1))
    assert (shown(pool)["limit"], shown(pool, unit="concurrency")["limit"]) == (25_500, 10)


def test_a_small_bucket_is_a_share_of_a_small_bucket():
    """The provider's bucket holds 10 s of 600k a minute: 100k. Of those, 85k are used, and no time is lost."""
    pool = pool_of("600k tokens/min")
    one = send(pool, tokens=50_000)
    pool.observe(T0 + NS // 10, [Reading("tokens", 600_000, 50_000, 5.0)], one)
    quota = shown(pool, 0.1)
    assert quota["learned"]["holds"] == pytest.approx(85_000, rel=0.01)
    assert pool.ledger.earliest(T0 + NS // 10, [80_000])[0] - T0 <= 7 * NS


def test_an_answer_to_a_request_that_used_none_of_a_quota_states_its_limit():
    pool = pool_of("500 requests/min, 30k tokens/min")
    pool.observe(T0 + NS, [Reading("tokens", 20_000, 19_000, 60.0)], send(pool, requests=1, tokens=0))
    quota = shown(pool, 1)
    assert (quota["limit"], quota["period_s"]) == (17_000, 60)


def test_a_guess_is_not_raised_by_what_its_limit_allows():
    pool = pool_of(source=SourceKind.PUBLISHED, headroom_s=0.0)
    for amount, limit in ((30_000, 25_500), (40_000, 34_000)):
        pool.submit(T0, Waiter({"tokens": amount}))
        at_ns = T0
        while not pool.ledger.in_flight:
            at_ns = pool.wake_ns
            pool.pump(at_ns)
        pool.settle(at_ns, pool.ledger.open_reservations[0], {"tokens": amount})
        assert shown(pool)["limit"] == limit
        pool.ledger.entries[0].meter.full_at_ns = T0


def test_the_period_is_learned_from_the_provider_s_bucket():
    pool = pool_of("600 requests/min", source=SourceKind.ASSUMED, usable=0.5)
    for second in range(10):
        one = send(pool, second, requests=1)
        lack = 100 + 20 * second
        pool.observe(T0 + second * NS, [Reading("requests", 600, 600 - lack, lack / 60)], one)  # 600 in 10 s
    quota = shown(pool, 12, "requests")
    assert (quota["limit"], quota["period_s"]) == (300, 10)
