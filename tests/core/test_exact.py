"""Exact quotas: of the user's own, which only the limiter counts, and beside a provider that counts arrivals."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline
from memory_store import MemoryStore
from paceline.core import meters
from paceline.core.ledger import Ledger
from paceline.core.local import LocalCapacity
from paceline.core.meters import Exact
from paceline.core.quota import NS, Quota, Rule, ns_per_unit, parse_quotas
from paceline.core.results import LEARNED, Refusal, RefusalKind, Reservation
from paceline.testing import ManualClock, run_virtual

T0 = 1_700_000_000 * NS


def starts_of(quota, count=50, *, shared=False, **options):
    """When each of ``count`` agents starts that all ask at once, in seconds."""
    at = []

    async def main(clock):
        store = MemoryStore(clock=clock) if shared else None
        limiter = paceline.Limiter({"starts": quota}, store=store, clock=clock, **options)
        begin_ns = clock.now_ns()

        async def start():
            async with limiter.acquire("starts", starts=1):
                at.append((clock.now_ns() - begin_ns) / NS)

        await asyncio.gather(*(start() for _ in range(count)))

    run_virtual(main)
    return at


def test_fifty_agents_start_seven_a_minute_at_once():
    assert starts_of("7 starts/min exact") == [60.0 * (i // 7) for i in range(50)]


@pytest.mark.parametrize("options", [{}, {"usable": 0.5}, {"shared": True}], ids=["alone", "usable", "store"])
@pytest.mark.parametrize(
    ("quota", "burst", "gap_s"),
    [("7 starts/min even", 7, 60 / 7), ("20 starts/min burst 5 even", 5, 3), ("60 starts/min burst 1 even", 1, 1)],
)
def test_even_is_the_whole_burst_at_once_and_then_evenly(quota, burst, gap_s, options):
    """Nothing is left unused as headroom, and nothing is shared."""
    assert starts_of(quota, **options) == pytest.approx([max(0, i + 1 - burst) * gap_s for i in range(50)], abs=1e-6)


@pytest.mark.parametrize(("headroom_s", "period_s"), [(0.0, 60), (2.0, 62), (4.0, 63)])
def test_a_period_is_longer_by_the_headroom_and_by_a_twentieth_at_most(headroom_s, period_s):
    m = Exact(Quota("starts", 7.0, rule=Rule.EXACT), headroom_s)
    m.charge(T0, 7)
    assert m.earliest(T0, 1) == T0 + period_s * NS


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=60), st.integers(4, 1_000))
def test_no_trailing_period_has_more(asks, log_max):
    before, meters.EXACT_LOG_MAX = meters.EXACT_LOG_MAX, log_max
    try:
        m, now_ns, sent = Exact(Quota.parse("20 units/min exact")), T0, []
        for wait_s, cost in asks:
            now_ns = max(m.earliest(now_ns + wait_s * NS, cost), now_ns + wait_s * NS)
            m.charge(now_ns, cost)
            sent.append((now_ns, cost))
        for at_ns, _ in sent:
            assert sum(cost for ns, cost in sent if at_ns - 60 * NS < ns <= at_ns) <= 20
    finally:
        meters.EXACT_LOG_MAX = before


def counted(headroom_s=0.0, quotas="7 requests/min exact"):
    """A ledger whose quotas a provider counts, too."""
    return Ledger(parse_quotas(quotas), T0, headroom_s=headroom_s, gentle=True)


def free_s(ledger):
    """When the whole quota is free, in seconds."""
    return (ledger.earliest(T0, [7.0])[0] - T0) / NS


@pytest.mark.parametrize(
    ("headroom_s", "answered_s", "free"),
    [(0.0, 0.0, 60), (0.0, 1.5, 61.5), (0.0, 59.0, 119), (1.0, 0.5, 61), (1.0, 1.0, 61), (1.0, 2.5, 62.5), (0.0, 60.0, 60)],
)  # fmt: skip
def test_where_a_provider_counts_an_attempt_counts_from_its_answer(headroom_s, answered_s, free):
    """It may have come as late. The headroom is for what is on its way, and after a whole period nothing is."""
    ledger = counted(headroom_s)
    permit = ledger.reserve(T0, {})
    ledger.settle(T0 + round(answered_s * NS), permit, None)
    assert free_s(ledger) == free


def test_where_the_limiter_alone_counts_it_counts_from_its_grant():
    ledger = Ledger(parse_quotas("7 starts/min exact"), T0, headroom_s=0.0)
    ledger.settle(T0 + 50 * NS, ledger.reserve(T0, {"starts": 1}), None)
    assert ledger.earliest(T0 + 50 * NS, [7.0])[0] == T0 + 60 * NS


def test_a_stream_counts_from_its_beginning():
    ledger = counted(quotas="7 requests/min exact, 100 tokens/min exact")
    permit = ledger.reserve(T0, {"tokens": 40})
    ledger.arrived(T0 + NS, permit)
    ledger.settle(T0 + 30 * NS, permit, {"tokens": 60})
    assert ledger.earliest(T0, [7.0, 0.0])[0] == ledger.earliest(T0, [0.0, 41.0])[0] == T0 + 61 * NS
    assert ledger.entries[1].meter.level(T0 + 30 * NS) == 40


@pytest.mark.parametrize("refusal", [None, Refusal(RefusalKind.RATE, retry_after_s=1.0)], ids=["served", "refused"])
def test_an_exact_quota_that_was_added_since(refusal):
    capacity = LocalCapacity(counted(quotas="60 requests/min"))
    ledger = capacity.ledger
    permit = ledger.reserve(T0, {})
    ledger.add_quota(T0, Quota.parse("7 requests/min exact"))
    if refusal is None:
        capacity.settle(T0 + NS, permit, None)
    else:
        capacity.refuse(T0 + NS, permit, refusal, NS)
    ledger.give_back(T0 + NS, permit, 1)
    assert (ledger.entries[1].meter.level(T0 + NS), ledger.entries[1].spent) == (7, 0)


@pytest.mark.parametrize(("wait_s", "charged"), [(1.0, 0), (None, 1)], ids=["a wait", "no wait"])
def test_a_refusal_that_names_its_wait_gives_the_place_back(wait_s, charged):
    capacity = LocalCapacity(counted(quotas="7 requests/min exact, 100 tokens/min exact"))
    reservations = [capacity.ledger.reserve(T0, {}) for _ in range(4)]
    for refused in reservations[:2]:
        capacity.refuse(T0 + NS, refused, Refusal(RefusalKind.RATE, retry_after_s=wait_s), 1)
        assert refused.amounts == [charged, 0]
    for served in reservations[2:]:
        capacity.settle(T0 + NS, served, None)
    account, all_charged = capacity.ledger.entries[0], 2 + 2 * charged
    assert (account.meter.level(T0 + NS), account.spent, account.refused) == (7 - all_charged, all_charged, 2 * charged)


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.0, 5.0), st.floats(0.0, 5.0)), max_size=40), st.floats(0, 3))
def test_no_trailing_period_has_more_arrivals_however_late(attempts, headroom_s):
    """An attempt comes to the provider between its grant and its answer, and the next one waits for all answers."""
    ledger, now_ns, arrived = counted(headroom_s), T0, []
    for wait_s, way_s, answers_s in attempts:
        asked_ns = now_ns + wait_s * NS
        now_ns = max(ledger.earliest(asked_ns, [1.0])[0], asked_ns)
        permit = ledger.reserve(now_ns, {})
        arrived.append(now_ns + round(way_s * NS))
        now_ns = arrived[-1] + round(answers_s * NS)
        ledger.settle(now_ns, permit, None)
    for at_ns in arrived:
        assert sum(at_ns - 60 * NS < ns <= at_ns for ns in arrived) <= 7


@pytest.mark.parametrize("joint", [False, True], ids=["own", "joint"])
def test_an_attached_client_tells_when_an_answer_begins(joint):
    clock, exact = ManualClock(), "7 requests/min exact"
    quotas = {"openai/m": "60 requests/min"} if joint else {"openai/m": exact}
    limiter = paceline.Limiter(quotas, joint_limits={"openai/*": exact} if joint else None, clock=clock)
    permit = limiter.try_acquire("openai/m")
    clock.advance(1)
    limiter.pacer.pools.scheduler("openai/m").begun(permit.reservation)
    clock.advance(30)
    permit.settle()
    (quota,) = limiter.status()["pools"]["joint/openai/*" if joint else "openai/m"]["quotas"]
    assert quota["reset_s"] == 30


def test_a_quota_of_ones_own_has_a_headroom_where_one_is_set():
    assert starts_of("7 starts/min exact", count=8, headroom_s=1.0) == [0.0] * 7 + [61.0]


@pytest.mark.parametrize("rule", ["exact", "even"])
def test_answers_do_not_change_it(rule):
    limiter = paceline.Limiter({"openai/m": f"7 requests/min {rule}"}, usable=0.5, clock=ManualClock())
    with limiter.acquire("openai/m") as permit:
        stated = {"x-ratelimit-limit-requests": "5", "x-ratelimit-remaining-requests": "1"}
        permit.settle({"tokens_used": 1}, headers=stated)
    quotas = limiter.status()["pools"]["openai/m"]["quotas"]
    given = ("3.5 requests/min exact", 2.5) if rule == "exact" else ("7 requests/min even", 6)
    assert [(q["quota"], q["remaining"], q["source"]) for q in quotas[:1]] == [(*given, "given")]
    assert [q["limit"] for q in quotas if q["source"] == str(LEARNED)] == [2.5]  # the provider's, beside it


@pytest.mark.parametrize(("rule", "remaining", "reset_s"), [("exact", 6, 50), ("even", 7, 0)])
def test_the_status_says_when_all_of_it_is_free(rule, remaining, reset_s):
    limiter = paceline.Limiter({"starts": f"7 starts/min {rule}"}, clock=(clock := ManualClock()))
    limiter.try_acquire("starts", starts=1)
    clock.advance(10)
    (quota,) = limiter.status()["pools"]["starts"]["quotas"]
    assert (quota["remaining"], quota["reset_s"], quota["rule"], quota["learned"]) == (remaining, reset_s, rule, {})


@pytest.mark.parametrize("rule", ["exact", "even"])
def test_with_a_store_each_process_keeps_its_own(tmp_path, rule):
    quotas = {"starts": f"7 starts/day {rule}", "jobs": "7 jobs/day burst 7"}
    for left in (7, 0):
        limiter = paceline.Limiter(quotas, store=f"sqlite:{tmp_path}/s.db", headroom_s=0)
        assert [bool(limiter.try_acquire("starts", starts=1)) for _ in range(8)] == [True] * 7 + [False]
        for _ in range(left):
            limiter.acquire("jobs", jobs=1).wait().settle()
        with pytest.raises(paceline.AcquireTimeoutError):
            limiter.acquire("jobs", timeout=0.1, jobs=1).wait()
        limiter.close()


@pytest.mark.parametrize("text", ["7 starts/min", "9 starts/min", "999 starts/min", "31 starts/7s", "1 starts/min"])
def test_a_bucket_without_headroom_grants_its_burst_at_once(text):
    ledger = Ledger([quota := Quota.parse(text)], T0, headroom_s=0.0)
    for _ in range(int(quota.amount)):
        assert isinstance(ledger.reserve(T0, {quota.unit: 1}), Reservation)
    assert ledger.reserve(T0, {quota.unit: 1}).at_ns - T0 > ns_per_unit(quota) / 3
