"""Random histories of several processes: the promise, and a ledger that is dumped and loaded at any moment."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from core_shared_ledger import Attempt, Command, Player, commands, reloaded
from core_worlds import AMOUNTS, BUCKETS, EXACT, ODD, T0, gaps_ns, rate_of
from hypothesis import assume, given
from hypothesis import strategies as st

from grids import some
from paceline.core.ledger import Ledger
from paceline.core.meters import Bucket, Window
from paceline.core.quota import NS, parse_quotas
from paceline.core.results import Reservation, WaitUntil
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import Refused, Settled, StoreReply
from shared_pools import message_of

TOGETHER = [
    "60 requests/min, 6k tokens/min burst 3k, 4 concurrency",
    "7 requests/min, 900 tokens/hour window, 50 starts/day window utc, 30 images/min sliding",
]
WINDOWS = ["100 requests/day window utc", "40 tokens/min window utc"]
SLIDING = ["100 requests/min sliding", "900 tokens/hour window", "3 requests/min sliding"]

histories = st.lists(commands, max_size=40)
headrooms_s = st.sampled_from([0.0, 0.25, 1.0])


def players(text: str, headroom_s: float, *, gentle: bool, lessons: bool) -> dict[str, Player]:
    options = {"headroom_s": headroom_s, "gentle": gentle}
    return {who: Player(who, parse_quotas(text), options, lessons) for who in "abc"}


@pytest.mark.parametrize("text", [*TOGETHER, ODD[1]])
@given(history=histories, gentle=st.booleans(), at=st.integers(0, 39))
def test_a_reloaded_ledger_gives_the_same_replies(text, history, gentle, at):
    ledger, again, now_ns = SharedLedger(), SharedLedger(), T0
    group = players(text, 0.25, gentle=gentle, lessons=True)
    for number, command in enumerate(history):
        now_ns += command.gap_ns
        message = group[command.who].says(command)
        if number >= at:
            again = reloaded(again)
        for _ in range(1 + command.lost):
            reply = ledger.apply(now_ns, message)
            assert again.apply(now_ns, message) == reply
        group[command.who].heard(now_ns, reply)
    assert again.dump() == ledger.dump()


@pytest.mark.parametrize("text", some([TOGETHER[0], *SLIDING, ODD[2]], TOGETHER[0], SLIDING[1], ODD[2], mark=AMOUNTS))
@given(history=histories, at=st.integers(0, 39), back_ns=gaps_ns, gentle=st.booleans())
def test_a_clock_set_back_changes_no_answer(text, history, at, back_ns, gentle):
    ledger, other, now_ns, set_ns = SharedLedger(), SharedLedger(), T0, 0
    group = players(text, 0.25, gentle=gentle, lessons=True)
    for number, command in enumerate(history):
        if number == at and number:
            set_ns = -back_ns  # and no time seems to pass
        else:
            now_ns += command.gap_ns
        message = group[command.who].says(command)
        reply = ledger.apply(now_ns, message)
        assert other.apply(now_ns + set_ns, message) == reply
        group[command.who].heard(now_ns, reply)


def played(text: str, history: list[Command], headroom_s: float, *, gentle: bool) -> list[Attempt]:
    """All that was granted, with its true cost; quotas as published, and answers get lost."""
    ledger, now_ns = SharedLedger(), T0
    group = players(text, headroom_s, gentle=gentle, lessons=False)
    for command in history:
        now_ns += command.gap_ns
        player = group[command.who]
        message = player.says(command)
        if command.lost:
            ledger.apply(now_ns, message)
        player.heard(now_ns, reply := ledger.apply(now_ns, message))
        for _ in range(8 if command.part > 50 and command.end != "refuse" else 0):  # it comes back when it was told to
            if not reply.wait_ns:
                break
            now_ns += reply.wait_ns
            player.number += 1
            message = message_of(player.who, player.number, player.quotas, player.versions, wants=player.wanted)
            player.heard(now_ns, reply := ledger.apply(now_ns, message))
    return sorted((a for p in group.values() for a in p.attempts), key=lambda attempt: attempt.at_ns)


@pytest.mark.sample(2)
@pytest.mark.parametrize("text", BUCKETS)
@given(history=histories, headroom_s=headrooms_s, gentle=st.booleans())
def test_true_cost_in_any_interval_stays_within_burst_and_rate(text, history, headroom_s, gentle):
    (limit,) = parse_quotas(text)
    attempts = played(text, history, headroom_s, gentle=gentle)
    rate, slack = rate_of(limit), 0 if text in EXACT else len(attempts)
    for i, first in enumerate(attempts):
        admitted = Fraction(0)
        for attempt in attempts[i:]:
            admitted += Fraction(attempt.cost[0])
            assert admitted <= Fraction(limit.burst) + rate * (attempt.at_ns - first.at_ns + slack)


@pytest.mark.parametrize("text", some([*WINDOWS, *SLIDING], WINDOWS[0], *SLIDING[:2], mark=AMOUNTS))
@given(history=histories, headroom_s=headrooms_s)
def test_true_cost_in_any_period_stays_within_the_amount(text, history, headroom_s):
    (limit,) = parse_quotas(text)
    attempts, period_ns = played(text, history, headroom_s, gentle=False), round(limit.period_s * NS)
    for first in attempts:
        if text in WINDOWS:
            period = [a for a in attempts if a.at_ns // period_ns == first.at_ns // period_ns]
        else:
            period = [a for a in attempts if first.at_ns <= a.at_ns < first.at_ns + period_ns]
        assert sum(a.cost[0] for a in period) <= limit.amount + 1e-6


@given(history=histories)
def test_slots_held_at_the_same_time_stay_within_the_amount(history):
    ledger, now_ns = SharedLedger(), T0
    group = players("7 concurrency", 0.0, gentle=False, lessons=False)
    for command in history:
        now_ns += min(command.gap_ns, 15 * NS)
        for who, player in group.items():  # every process sends a message
            told = command if who == command.who else Command(0, who, [], "later", 0, 0, lost=False)
            player.wanted = player.wanted if who == command.who else []
            player.heard(now_ns, ledger.apply(now_ns, player.says(told)))
        assert sum(a.amounts[0] for player in group.values() for a in player.attempts if a.open) <= 7


@pytest.mark.sample(4)
@pytest.mark.parametrize("text", [*BUCKETS, *WINDOWS, *SLIDING, *TOGETHER])
@given(
    history=st.lists(
        st.tuples(gaps_ns, st.integers(1, 100), st.sampled_from("sckr"), st.integers(0, 120)), max_size=40
    ),
    headroom_s=headrooms_s,
    gentle=st.booleans(),
)
def test_one_process_with_one_request_at_a_time_is_a_ledger(text, history, headroom_s, gentle):
    quotas = parse_quotas(text)
    local, shared = Ledger(quotas, T0, headroom_s=headroom_s, gentle=gentle), SharedLedger()
    now_ns, number, known = T0, 0, [-1] * len(quotas)

    def tell(news: list[Settled | Refused], **options) -> StoreReply:
        nonlocal number
        number += 1
        held = [float(sum(r.amounts[i] for r, _ in open_ones)) for i in range(len(quotas))]
        options = {"headroom_s": headroom_s, "gentle": gentle, "held": held, "news": news} | options
        return shared.apply(now_ns, message_of("a", number, quotas, known, **options))

    open_ones: list[tuple[Reservation, Settled]] = []
    tell([])
    for gap_ns, share, end, part in history:
        now_ns += gap_ns
        cost = {q.unit: max(int(m.most * share / 100), 1) for q, m in zip(quotas, local.meters, strict=True)}
        want = [float(amount) for amount in local.amounts(cost)]
        decision = local.reserve(now_ns, cost)
        reply = tell([], wants=[want])
        if isinstance(decision, Reservation):
            # A ledger forgives the rounding of charges at this instant, the store does not.
            assume(not 0 < reply.wait_ns < 100)
            assert (len(reply.grants), reply.wait_ns) == (1, 0)
            assert reply.grants[0] == decision.marks
            charged = Settled(want, reply.grants[0], [float(a * part // 100) for a in want], probe=reply.probe)
            open_ones.append((decision, charged))
        else:
            assert isinstance(decision, WaitUntil)
            assert (reply.grants, reply.wait_ns) == ([], min(decision.at_ns - now_ns, 86_400 * NS))
            assert local.name(reply.binds) == decision.quota
        while end != "k" and open_ones:
            reservation, settled = open_ones.pop()
            news: list[Settled | Refused] = [settled]
            if end == "r":
                local.close(now_ns, reservation)
                local.pause.begin(now_ns + NS + part * NS)
                news = [Refused(settled.amounts, NS + part * NS)]
            elif end == "c":
                local.cancel(now_ns, reservation)
                nothing = [0.0] * len(quotas)
                news = [Settled(settled.amounts, settled.marks, nothing, answered=False, probe=settled.probe)]
            else:
                local.settle(now_ns, reservation, dict(zip(local.entries.units, settled.actual, strict=True)))
            tell(news)
    levels = [(lack_ns(m, now_ns), s) for m, s in zip(local.meters, [one.spent for one in local.entries], strict=True)]
    assert [(s.lack_ns, s.spent) for s in tell([]).standings] == levels


def lack_ns(m, now_ns):
    """What a standing tells of a meter: the lack of a bucket, and the rest of a window."""
    m.level(now_ns)
    if isinstance(m, Window):
        return m.stop_ns - now_ns
    return max(m.full_at_ns - now_ns, 0) if isinstance(m, Bucket) else 0


def test_histories_are_worth_playing():
    """Grants, waits, settles and probes occur, or the properties above say nothing."""
    ends = [(end, who) for end in ("settle", "refuse", "later") for who in "abc"]
    steps = [Command(NS, who, [30, 50], end, 60, NS, lost=False) for end, who in ends]
    attempts = played(TOGETHER[0], steps * 3, 0.25, gentle=False)
    assert len(attempts) > 5
    assert any(first.cost != first.amounts for first, _ in pairwise(attempts))
