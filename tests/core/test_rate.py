"""The measured rate by itself: exact numbers of each phase, and properties against a bucket."""

from __future__ import annotations

import itertools
import random
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.quota import NS
from paceline.core.unstated.chance import ALARM, CHECK_SHARE, EARLY_N, EVIDENCE_N, RECENT_N, SHARE_MAX, Chance
from paceline.core.unstated.cycle import BELOW, CYCLE_S, STEADY_MAX, Cycle
from paceline.core.unstated.delays import VERDICT_MAX_NS, VERDICT_MIN_NS, VERDICT_NS, RefusalDelay, StatedWaits
from paceline.core.unstated.rate import (
    DOUBTS,
    FASTEST,
    START,
    STATED_MAX_S,
    STRIKES,
    WAIT_S,
    Mark,
    MeasuredRate,
    RatePhase,
)

T0, SOON_NS = 1_000 * NS, NS // 10
"""The beginning, and how long a refusal takes here."""


class Bucket:
    """What a provider has left of a quota that refills, and is never full."""

    def __init__(self, per_s: float, level: float) -> None:
        self.per_s, self.level, self.at_ns = per_s, level, T0

    def admits(self, now_ns: int) -> bool:
        """Whether it admits an attempt, which it charges then."""
        self.level, self.at_ns = self.level + self.per_s * (now_ns - self.at_ns) / NS, now_ns
        admits = self.level >= 1 - 1e-9
        self.level -= admits
        return admits


def go(rate: MeasuredRate, amount: float = 1.0, now_ns: int = 0):
    """Send the next attempt as soon as it may go, and not before ``now_ns``; its note."""
    at_ns = max(rate.earliest_ns(now_ns), now_ns)
    while rate.earliest_ns(at_ns) > at_ns:  # the probe was admitted at the instant to ask again
        at_ns = rate.earliest_ns(at_ns)
    return rate.sent(at_ns, amount)


def refuse(rate: MeasuredRate, note, asked_s: float | None = None) -> bool:
    return rate.refused(note.sent_ns + SOON_NS, note, None if asked_s is None else round(asked_s * NS))


def held(top: float, span_s: float = 0.0) -> MeasuredRate:
    """A rate that has just been measured as ``top``, over ``span_s``, after one attempt, and that no test has found to be chance."""
    rate = MeasuredRate(T0)
    rate.sent(T0, 1.0)
    rate.phase, rate.empty = RatePhase.RISING, Mark(T0, 1.0)
    rate.cycle.span_s = span_s
    rate._begin_cycle(T0, top, lengthen=True)
    rate.chance.asked = top
    return rate


def blocked(rate: MeasuredRate) -> MeasuredRate:
    """Refuse what goes next, until nothing goes but probes."""
    while rate.phase is not RatePhase.BLOCKED:
        refuse(rate, go(rate))
    return rate


# -- opening


@pytest.fixture
def rate():
    """10 a second has just been measured."""
    return held(10.0)


def test_an_unknown_rate_begins_with_ten_attempts_a_second_and_doubles_each_second():
    rate = MeasuredRate(T0)
    first = go(rate)
    assert (first.sent_ns, first.rate) == (T0, START)
    for note in iter(lambda: go(rate), None):
        assert note.rate == pytest.approx(START * 2 ** ((note.sent_ns - T0) / NS))
        if note.sent_ns > T0 + 3 * NS:
            break
    assert rate.phase is RatePhase.OPENING


def test_the_time_between_two_attempts_is_the_cost_of_the_first_one_at_the_present_rate(rate):
    before = go(rate, 1.0)
    assert rate.earliest_ns(before.sent_ns) == before.sent_ns + round(NS / before.rate)
    heavy = go(rate, 7.0)
    assert rate.earliest_ns(heavy.sent_ns) == heavy.sent_ns + round(7 * NS / heavy.rate)


def test_the_first_refusal_of_an_opening_halves_the_rate():
    rate = MeasuredRate(T0)
    notes = [go(rate) for _ in range(30)]
    assert refuse(rate, notes[-1])
    assert rate.cycle.top == notes[-1].rate / 2
    assert rate.rate == pytest.approx(rate.cycle.top * (1 - BELOW))
    assert rate.phase is RatePhase.RISING


def test_an_opening_measures_no_more_than_was_admitted_in_it():
    rate = MeasuredRate(T0)
    note, later = go(rate), rate.sent(T0 + 60 * NS // 1_000, 1.0)  # 60 ms
    rate.rate = 1_000.0
    last = rate.sent(T0 + 120 * NS // 1_000, 1.0)
    assert refuse(rate, last)
    assert rate.cycle.top == pytest.approx(3 / 0.120, rel=0.05)  # two were admitted, and one may be left
    assert (note.number, later.number) == (1, 2)


def test_the_rate_has_a_bound_where_there_is_no_limit():
    rate, now_ns = MeasuredRate(T0), T0
    for _ in range(4_000):
        now_ns += NS // 10
        rate.next_at_ns = now_ns
        rate.sent(now_ns, 1.0)
    assert FASTEST <= rate.rate < 2 * FASTEST


# -- the measurement


@pytest.mark.parametrize("burst", [1, 3, 50])
@given(per_s=st.floats(0.05, 200), start=st.floats(0.1, 100))
def test_what_is_admitted_between_two_empty_instants_is_the_refill(burst, per_s, start):
    """Of a bucket that is never full in between. The error is less than one attempt at each end."""
    bucket, rate, empty_ns = Bucket(per_s, burst), held(per_s * start), set()
    for _ in range(200):
        note, from_ns = go(rate), rate.empty.at_ns
        if rate.phase in DOUBTS:  # its end moves the instant, perhaps to where another one was
            empty_ns.clear()
        if bucket.admits(note.sent_ns):
            continue
        empty_ns.add(note.sent_ns)
        phase, cut_count = rate.phase, rate.tally.cut_count
        rate.refused(note.sent_ns, note)
        if rate.chance.share:  # a rate that was measured far too high is taken for chance
            break
        is_measured = phase is rate.phase is RatePhase.RISING and rate.tally.cut_count > cut_count
        if is_measured and from_ns in empty_ns:
            span_s = (note.sent_ns - from_ns) / NS
            assert min(per_s, note.rate) - 1e-6 <= rate.cycle.top <= per_s + 2 / span_s + 1e-6


def test_a_measurement_goes_on_until_eight_attempts_were_admitted(rate):
    start_ns = rate.empty.at_ns
    first = [go(rate) for _ in range(4)][-1]
    assert refuse(rate, first)
    assert rate.empty.at_ns == start_ns
    second = [go(rate) for _ in range(6)][-1]
    assert refuse(rate, second)
    assert rate.cycle.top == pytest.approx((3 + 5 + 1) / ((second.sent_ns - start_ns) / NS))
    assert rate.empty.at_ns == second.sent_ns


def test_a_refusal_of_an_attempt_before_the_cut_is_only_counted(rate):
    one, two = go(rate), go(rate)
    go(rate)
    refuse(rate, two)
    before = (rate.rate, rate.next_at_ns, rate.cycle.top, rate.phase)
    admitted = rate.tally.admitted
    assert not refuse(rate, one, asked_s=30.0)  # it states no wait, either
    assert (rate.rate, rate.next_at_ns, rate.cycle.top, rate.phase) == before
    assert rate.tally.admitted == admitted - 1


def test_a_measured_rate_is_never_above_the_rate_at_which_the_attempt_went(rate):
    notes = [rate.sent(T0 + 2 * NS, 1.0) for _ in range(50)]
    refuse(rate, notes[-1])
    assert rate.cycle.top == notes[-1].rate


@pytest.mark.parametrize("is_blocked", [False, True])
def test_a_time_without_demand_is_left_out_also_while_nothing_is_admitted(is_blocked):
    rates = []
    for idle_s in (0, 3_600):
        rate = held(10.0)
        notes = [go(rate) for _ in range(30)]
        if is_blocked:
            refuse(rate, notes[-1])
            blocked(rate)
        late = rate.sent(rate.next_at_ns + idle_s * NS, 1.0)
        if is_blocked:
            rate.answered(late.sent_ns, late)
        else:
            refuse(rate, [go(rate) for _ in range(10)][-1])
        rates.append(rate.cycle.top)
    assert rates[0] == pytest.approx(rates[1], rel=1e-3)


# -- the cycle


def test_the_rate_returns_to_the_measured_one_in_one_cycle_and_doubles_in_the_next(rate):
    while rate.phase is RatePhase.RISING:
        note = go(rate)
        assert note.rate <= 10.0 + 0.01
    assert (rate.test.at_ns - rate.empty.at_ns) / NS == pytest.approx(CYCLE_S, rel=0.1)
    while rate.cycle.top == 10.0:
        note = go(rate)
    assert rate.phase is RatePhase.TESTING
    assert (note.sent_ns - rate.empty.at_ns) / NS == pytest.approx(2 * CYCLE_S, rel=0.1)
    assert (rate.cycle.top, note.rate) == (20.0, pytest.approx(20.0, rel=0.05))


def test_a_cycle_is_flat_about_the_measured_rate():
    cycle = Cycle()
    cycle.begin(10.0, lengthen=True)
    assert cycle.rate == pytest.approx(9.0)
    rates = []
    for _ in range(20):
        cycle.advance(CYCLE_S / 10, 1.0)
        rates.append(cycle.rate)
    assert rates == sorted(rates)
    assert (rates[4], rates[14]) == (pytest.approx(10 * (1 - 0.1 / 8)), pytest.approx(10 * (1 + 1 / 8)))


def test_the_test_takes_no_longer_than_its_evidence_and_twenty_attempts():
    cycle = Cycle()
    cycle.begin(0.1, lengthen=True)
    for span_s, cycle_s in [(0.0, 5.0), (30.0, 30.0), (1_000.0, 200.0)]:  # 20 attempts take 200 s
        cycle.span_s, cycle.progress = span_s, 0.0
        assert not cycle.advance(0.99 * cycle_s, 1.0)
        assert cycle.advance(0.02 * cycle_s, 1.0)


def test_tests_that_find_the_same_rate_become_rarer_and_what_is_found_without_one_does_not_count():
    cycle, lengths = Cycle(), []
    for top in (10.0, 10.5, 10.1, 9.9, 10.0, 12.0, 12.0):
        cycle.begin(top, lengthen=True)
        lengths.append(cycle.steady)
    for top in (11.9, 11.8, 10.8):
        cycle.begin(top, lengthen=False)
        lengths.append(cycle.steady)
    assert lengths == [1, 2, 4, STEADY_MAX, STEADY_MAX, 1, 2, 2, 2, 1]


def test_a_refused_test_finds_what_was_admitted_in_it(rate):
    while rate.phase is RatePhase.RISING:
        go(rate)
    start = rate.test
    notes = [go(rate) for _ in range(60)]
    assert rate.cycle.top == 10.0
    assert not refuse(rate, notes[-1])
    tested = (60 - 1 + 1) / ((notes[-1].sent_ns - start.at_ns) / NS)  # the attempt at the beginning of the test is one
    assert rate.cycle.top == pytest.approx(tested, rel=0.02)
    assert 10 < rate.cycle.top < notes[-1].rate


def test_a_refused_test_lowers_the_rate_only_if_much_less_was_admitted():
    for lost, top in [(0.1, 10.0), (0.5, 5.0)]:
        rate, notes = held(10.0), []
        while rate.phase is not RatePhase.TESTING:
            notes.append(go(rate))
        for note in notes[: round(lost * len(notes))]:
            rate.explained(note.sent_ns, note)
        assert not refuse(rate, go(rate))
        assert rate.cycle.top == pytest.approx(top, rel=0.05)


# -- nothing admitted


def test_waits_double_while_nothing_is_admitted():
    rate = blocked(held(10.0))
    waits_s = []
    for _ in range(12):
        waits_s.append((rate.next_at_ns - rate.last_ns) / NS)
        note = go(rate)
        assert rate.block.probe is note
        assert refuse(rate, note)
        assert rate.phase is RatePhase.BLOCKED
    assert all(1.9 < b / a < 2.5 for a, b in itertools.pairwise(waits_s[:5]))
    assert waits_s[-1] == WAIT_S


def test_the_wait_of_a_slow_provider_is_three_attempts_long():
    rate = blocked(held(0.05, span_s=1_000.0))
    for _ in range(12):
        refuse(rate, go(rate))
    assert (rate.next_at_ns - rate.last_ns) / NS == pytest.approx(3 / 0.05, rel=1e-3)


def test_nothing_admitted_from_the_beginning_measures_one_attempt():
    rate = MeasuredRate(T0)
    for number in range(1, 11):
        assert refuse(rate, go(rate))
        assert (rate.phase is RatePhase.BLOCKED) == (number >= STRIKES)
    assert rate.next_at_ns - T0 > 60 * NS  # there is no known rate that bounds the wait
    until_ns, probe = rate.block.until_ns, go(rate)
    rate.answered(probe.sent_ns, probe)
    assert rate.cycle.top == pytest.approx(NS / (until_ns - T0))


def test_a_rate_that_was_found_otherwise_ends_no_blocked_time():
    rate = blocked(held(10.0))
    at_ns = rate.earliest_ns(rate.last_ns)
    rate.expect(rate.last_ns, 50.0)
    assert (rate.phase, rate.cycle.top, rate.earliest_ns(rate.last_ns)) == (RatePhase.BLOCKED, 10.0, at_ns)


@pytest.mark.parametrize("how", ["answered", "not refused", "sent"])
def test_a_probe_that_is_admitted_ends_the_blocked_time(how):
    rate = blocked(held(10.0))
    probe = go(rate)
    end_ns = probe.sent_ns + 2 * SOON_NS
    assert (rate.earliest_ns(probe.sent_ns + 1), rate.phase) == (end_ns, RatePhase.BLOCKED)  # one at a time
    if how == "answered":
        rate.answered(probe.sent_ns + 1, probe)
    elif how == "not refused":
        assert rate.earliest_ns(end_ns) >= end_ns
    else:
        rate.sent(end_ns, 1.0)
    assert (rate.phase, rate.block.probe) == (RatePhase.RISING, None)


def test_only_the_answer_of_the_probe_ends_the_blocked_time(rate):
    old = go(rate)
    refuse(rate, go(rate))
    blocked(rate)
    rate.answered(rate.last_ns, old)
    assert rate.phase is RatePhase.BLOCKED
    probe = go(rate)
    rate.answered(probe.sent_ns, old)
    assert rate.phase is RatePhase.BLOCKED


def test_a_blocked_time_is_measured_from_end_to_end(rate):
    """A window that restarts: the rate before the block is far above the mean of its cycle."""
    begin = rate.block.end
    notes = [go(rate) for _ in range(30)]
    refuse(rate, notes[-1])
    blocked(rate)
    for _ in range(4):
        refuse(rate, go(rate))
    wait_from_ns, wait_to_ns = rate.last_ns, rate.next_at_ns
    probe = go(rate)
    admitted = rate.tally.admitted - 1
    rate.answered(probe.sent_ns + NS, probe)
    middle_ns = (wait_from_ns + wait_to_ns) // 2
    assert rate.cycle.top == pytest.approx(admitted / ((middle_ns - begin.at_ns) / NS))
    assert rate.cycle.top < 5
    assert (rate.block.end, rate.empty) == ((middle_ns, admitted), (probe.sent_ns, admitted))
    assert rate.next_at_ns >= probe.sent_ns + NS  # it has waited for the answer


def window(rate: MeasuredRate, used_s: float, end_s: float, asked_s: float | None = None) -> float:
    """Let a counter admit all until one instant, and nothing from then on until another, in seconds since the beginning.

    Each refusal states a wait of ``asked_s``. Returns the period of a counter that this shows.
    """
    while rate.next_at_ns < T0 + used_s * NS:
        go(rate)
    if asked_s is None:
        blocked(rate)
    while rate.next_at_ns < T0 + end_s * NS:
        refuse(rate, go(rate), asked_s=asked_s)
    probe = go(rate)
    rate.answered(probe.sent_ns, probe)
    return rate.cycle.period_s


@pytest.mark.parametrize("every_s", [18, 36])
def test_after_two_blocked_times_that_measure_alike_a_cycle_takes_their_period(rate, every_s):
    assert window(rate, every_s * 2 / 3, every_s) == 0.0
    before_ns, found = rate.block.end.at_ns, rate.block.found
    period_s = window(rate, every_s * 5 / 3, every_s * 2)
    assert period_s == pytest.approx((rate.block.end.at_ns - before_ns) / NS)
    assert rate.cycle.top == max(found, rate.block.found)
    began_ns = rate.last_ns
    while rate.phase is RatePhase.RISING:
        last = go(rate)
    assert (last.sent_ns - began_ns) / NS == pytest.approx(min(period_s, CYCLE_S * STEADY_MAX), rel=0.1)


def test_a_mean_that_several_processes_measure_shows_no_counter(rate):
    rate.lean(rate.last_ns, 40.0)
    assert window(rate, 20, 30) == 0.0
    assert window(rate, 50, 600) == 0.0
    assert rate.cycle.top == 40.0


def test_an_outage_shows_no_counter(rate):
    assert window(rate, 20, 30) == 0.0
    assert window(rate, 50, 600) == 0.0


def test_a_counter_may_state_when_it_restarts(rate):
    assert window(rate, 20, 30, asked_s=4.0) == 0.0
    assert window(rate, 50, 60, asked_s=4.0) == pytest.approx(30, abs=0.1)


# -- attempts that were not sent, and refusals with another reason


@pytest.mark.parametrize("why", ["not sent", "another reason"])
def test_what_the_rate_has_not_refused_is_no_strike(rate, why):
    for _ in range(STRIKES - 1):
        note = go(rate)
        if why == "not sent":
            rate.unsent(note)
        else:
            rate.explained(note.sent_ns + SOON_NS, note)
    for _ in range(STRIKES - 1):
        assert refuse(rate, go(rate))
        assert rate.phase is not RatePhase.BLOCKED
    assert refuse(rate, go(rate))
    assert rate.phase is RatePhase.BLOCKED


def test_after_attempts_that_were_not_sent_no_more_than_the_time_since_the_last_one_is_left_out(rate):
    rate.phase = RatePhase.TESTING
    notes = [go(rate) for _ in range(5)]
    rate.test = Mark(rate.last_ns, rate.tally.admitted)
    for note in notes:
        rate.unsent(note)
    assert rate.next_at_ns < rate.last_ns
    go(rate, now_ns=rate.last_ns + 100 * NS)
    assert rate.test.at_ns == rate.last_ns


def test_a_probe_whose_refusal_has_another_reason_shows_nothing():
    rate = blocked(held(10.0))
    probe = go(rate)
    rate.explained(probe.sent_ns + 1, probe)
    assert (rate.phase, rate.block.probe) == (RatePhase.BLOCKED, None)
    assert go(rate).sent_ns >= probe.sent_ns


@pytest.mark.parametrize("phase", [RatePhase.RISING, RatePhase.TESTING, RatePhase.BLOCKED])
def test_it_opens_again_where_another_reason_explains_the_refusals(phase):
    rate = held(10.0)
    while phase is RatePhase.TESTING and rate.phase is not phase:
        go(rate)
    if phase is RatePhase.BLOCKED:
        blocked(rate)
    assert rate.phase is phase
    probe = go(rate)
    rate.reopen(probe.sent_ns)
    assert (rate.phase, rate.cycle.top, rate.block.probe) == (RatePhase.OPENING, 0.0, None)
    assert rate.rate >= 10.0
    assert rate.next_at_ns == probe.sent_ns


def test_it_opens_again_where_all_refusals_are_taken_back():
    rate = MeasuredRate(T0)
    for _ in range(10):
        go(rate)
    refuse(rate, go(rate))
    refuse(rate, go(rate))
    before = rate.rate
    rate.retract(T0 + 2 * NS, 0)
    rate.retract(T0 + 2 * NS, 1)
    assert (rate.phase, rate.rate, rate.tally.blamed) == (RatePhase.RISING, before, 1)
    rate.retract(T0 + 2 * NS, 5)
    assert (rate.phase, rate.tally.blamed, rate.next_at_ns) == (RatePhase.OPENING, 0, T0 + 2 * NS)
    rate.retract(T0 + 3 * NS, 1)
    assert rate.next_at_ns == T0 + 2 * NS


def test_the_first_blocked_time_is_measured_with_what_was_admitted_before_the_beginning():
    rate = MeasuredRate(T0)
    rate.count_before(T0 - 10 * NS, 50.0)
    rate.refused_before(T0 - 5 * NS)
    rate.refused_before(T0 - 11 * NS)  # not counted
    probe = go(blocked(rate))
    rate.answered(probe.sent_ns, probe)
    assert rate.cycle.top == pytest.approx(49 / ((rate.block.end.at_ns - T0) / NS + 10))
    rate.refused_before(T0 - 5 * NS)
    assert rate.block.before == 0


# -- a stated limit


def test_a_stated_limit_turns_it_off_until_the_first_refusal():
    rate = MeasuredRate(T0, stated=True)
    notes = [rate.sent(T0 + i, 1.0) for i in range(100)]
    assert rate.earliest_ns(T0 + 100) <= T0 + 100
    assert (rate.phase, rate.rate) == (RatePhase.OFF, inf)
    assert refuse(rate, notes[40])
    assert (rate.phase, rate.rate) == (RatePhase.OPENING, START)
    assert rate.empty == (notes[40].sent_ns, 40)
    assert not refuse(rate, notes[41])
    more = [go(rate) for _ in range(5)]
    refuse(rate, more[-1])
    since_s = (more[-1].sent_ns - notes[40].sent_ns) / NS
    assert rate.cycle.top == pytest.approx(min((104 - 1 - 40 + 1) / since_s, more[-1].rate / 2))  # one more was refused


# -- stated waits


@pytest.mark.parametrize(
    ("asked_s", "left", "wait_s"),
    [(1.5, 0, 1.5), (2.0, 0, 2.0), (STATED_MAX_S, 2, STATED_MAX_S), (86_400.0, 2, WAIT_S)],
)
def test_a_stated_wait_is_kept_up_to_a_minute_and_a_probe_goes_in_a_longer_one(rate, asked_s, left, wait_s):
    rate.block.stated_waits.left = left
    note = go(rate)
    assert refuse(rate, note, asked_s=asked_s)
    assert rate.phase is RatePhase.BLOCKED
    assert rate.next_at_ns == note.sent_ns + SOON_NS + round(wait_s * NS)


def test_the_share_that_is_kept_halves_with_each_admitted_test_and_doubles_up_to_the_whole_if_it_was_too_short():
    waits, waits_s = StatedWaits(), []
    for _ in range(5):
        waits_s.append(waits.kept_s(60.0, again=False))
        waits.admitted()
    assert waits_s == [30, 15, 7.5, 3.75, 1.875]
    waits.share, waits.left = 0.25, 5
    assert [waits.kept_s(8.0, again=True) for _ in range(3)] == [4.0, 8.0, 8.0]


def test_a_wait_that_is_right_is_tested_after_one_two_four_and_eight_more():
    waits = StatedWaits()
    assert [n for n in range(1, 16) if waits.kept_s(10.0, again=False) == 5.0] == [1, 3, 7, 15]


# -- when an attempt is admitted


def test_an_attempt_is_admitted_after_twice_the_slowest_refusal():
    delay = RefusalDelay()
    assert delay.verdict_ns == VERDICT_NS
    delay.add(NS // 5)
    assert delay.verdict_ns == 2 * NS // 5
    delay.add(NS // 1_000)
    assert delay.verdict_ns == 2 * (NS // 5 - NS // 500)
    for _ in range(1_000):
        delay.add(0)
    assert delay.verdict_ns == VERDICT_MIN_NS
    delay.add(60 * NS)
    assert delay.verdict_ns == VERDICT_MAX_NS


# -- properties

steps = st.lists(st.tuples(st.sampled_from("ssssranouet"), st.integers(0, 3 * NS), st.integers(0, 9)), max_size=60)


def play(steps, *, start_ns: int = T0, scale: float = 1.0, stated: bool = False) -> list[tuple[int, float, RatePhase]]:
    """Any history of attempts and outcomes; of each step the instant relative to the start, the rate and the phase."""
    rate, now_ns, notes, seen = MeasuredRate(start_ns, stated=stated), start_ns, [], []
    for what, gap_ns, which in steps:
        now_ns += gap_ns
        note = notes.pop(which % len(notes)) if notes and what not in "so" else None
        if what == "s":
            now_ns = max(now_ns, rate.earliest_ns(now_ns))
            notes.append(rate.sent(now_ns, (1 + which) * scale))
        elif what == "o" and rate.tally.count and rate.phase is not RatePhase.OFF:
            rate.reopen(now_ns)
        elif what == "t" and rate.tally.count:
            rate.retract(now_ns, which)
        elif note is None:
            continue
        elif what == "a":
            rate.answered(now_ns, note)
        elif what == "u":
            rate.unsent(note)
        elif what == "e":
            rate.explained(now_ns, note)
        else:
            rate.refused(now_ns, note, gap_ns if what == "n" else None)
        seen.append((now_ns - start_ns, rate.rate / scale, rate.phase))
        assert rate.rate > 0
        assert (rate.rate == inf) == (rate.phase is RatePhase.OFF)
        assert rate.earliest_ns(now_ns) - now_ns < 10**7 * NS
        assert rate.block.probe is None or rate.phase is RatePhase.BLOCKED
        assert rate.cycle.top > 0 or rate.phase in (RatePhase.OFF, RatePhase.OPENING, RatePhase.BLOCKED)
        assert 0 <= rate.tally.recent_lost <= rate.tally.count - rate.tally.cut_count
        assert rate.tally.admitted >= 0
        assert max(rate.empty.at_ns, rate.test.at_ns, rate.block.end.at_ns) <= now_ns
        assert 1 <= rate.cycle.steady <= STEADY_MAX
        assert 0 <= rate.cycle.progress < 2
    return seen


@given(steps=steps, stated=st.booleans())
def test_there_is_always_an_instant_for_the_next_attempt(steps, stated):
    play(steps, stated=stated)


@given(steps=steps, by_ns=st.integers(0, 10**6 * NS))
def test_only_differences_of_time_count(steps, by_ns):
    assert play(steps) == play(steps, start_ns=T0 + by_ns)


@given(steps=steps, power=st.integers(-10, 20))
def test_the_unit_of_the_amounts_does_not_count(steps, power):
    assert play(steps) == play(steps, scale=2.0**power)


# -- refusals by chance


def asking(top: float = 10.0) -> MeasuredRate:
    """A rate that a refusal below it has put in doubt, so that attempts go at once. One of ten was refused."""
    rate = held(top)
    rate.chance.asked, rate.chance.early = 0.0, EARLY_N - 1
    refuse(rate, [go(rate) for _ in range(9)][-1])
    assert rate.phase is RatePhase.ASKING
    return rate


def asked(rate: MeasuredRate, refused: int, gap_ns: int = 0) -> MeasuredRate:
    """Send the attempts of the test, ``gap_ns`` apart, refuse so many of them, and wait for their outcome."""
    notes = [go(rate, now_ns=rate.last_ns + gap_ns) for _ in range(EVIDENCE_N)]
    for note in notes[:refused]:
        rate.refused(rate.last_ns + SOON_NS, note)
    rate.earliest_ns(rate.last_ns + VERDICT_MAX_NS)
    return rate


def checking() -> MeasuredRate:
    """A rate beside a share of 30 %, which a larger one has put under a check."""
    rate = held(10.0)
    rate.chance.share, rate.chance.last = 0.3, rate.tally.count
    for _ in range(3):
        go(rate)
    while rate.phase is not RatePhase.CHECKING:
        refuse(rate, go(rate))
    return rate


@pytest.mark.parametrize("what", ["all", "reopen", "wait", "none"])
@pytest.mark.parametrize("seed", range(6))
def test_a_doubt_keeps_the_measured_rate_for_any_outcome(seed, what):
    """30 % are refused by chance, and all above 15 a second. In each doubt ``what`` happens: more of it, another reason, a stated wait, or no more of it."""
    dice, rate = random.Random(seed), held(10.0)
    rate.chance.asked, phases = 0.0, set()
    for place in range(1_500):
        phases.add(rate.phase)
        assert rate.cycle.top > 0 or rate.phase in (RatePhase.OPENING, RatePhase.BLOCKED)
        if rate.phase in DOUBTS and dice.random() < 0.2:
            if what == "reopen":
                rate.reopen(rate.next_at_ns)
            elif what == "wait":
                note = go(rate)
                rate.refused(note.sent_ns + SOON_NS, note, 50 * NS, only=dice.random() < 0.5)
        note = go(rate)
        if what == "none" and rate.phase is RatePhase.CHECKING:
            continue
        if dice.random() < (0.3 if place % 700 < 500 else 0.0) or note.rate > 15:
            refuse(rate, note)
    assert phases >= {RatePhase.RISING, RatePhase.ASKING, RatePhase.OPENING}


def test_a_refusal_below_the_measured_rate_is_followed_by_attempts_at_once():
    rate = asking()
    top = rate.cycle.top
    first = go(rate)
    notes = [first, *(go(rate) for _ in range(EVIDENCE_N - 1))]
    assert {note.sent_ns for note in notes} == {first.sent_ns}
    assert rate.earliest_ns(first.sent_ns) == first.sent_ns + VERDICT_NS > first.sent_ns + rate.refusal_delay.verdict_ns
    assert (rate.cycle.top, rate.chance.asked) == (top, top)


def test_no_attempts_go_at_once_where_the_number_in_flight_may_be_the_reason(rate):
    rate.chance.asked, rate.chance.early = 0.0, EARLY_N - 1
    note = [go(rate) for _ in range(9)][-1]
    rate.refused(note.sent_ns + SOON_NS, note, only=False)
    assert rate.phase is RatePhase.RISING


@pytest.mark.parametrize(
    ("refused", "phase"),
    [(0, RatePhase.OPENING), (3, RatePhase.OPENING), (5, RatePhase.RISING), (EVIDENCE_N, RatePhase.RISING)],
)
def test_chance_is_what_explains_the_attempts_at_once_better(refused, phase):
    rate = asking()
    top = rate.cycle.top
    asked(rate, refused)
    assert rate.phase is phase
    if phase is RatePhase.OPENING:
        assert 0.05 < rate.chance.share < 0.4
        assert rate.rate >= START
    else:
        assert (rate.cycle.top, rate.chance.share) == (top, 0.0)


@pytest.mark.parametrize("refused", [0, 1, 3])
def test_attempts_at_twice_the_rate_are_followed_by_slower_ones(refused):
    rate = asking(2.0)
    asked(rate, 1, gap_ns=round(NS / rate.cycle.top / 2))
    sent, top = rate.tally.count, rate.cycle.top
    assert (rate.phase, rate.rate) == (RatePhase.CHECKING, pytest.approx(top * CHECK_SHARE))
    go(rate)
    for _ in range(refused):
        refuse(rate, go(rate))
    while rate.phase is RatePhase.CHECKING:
        go(rate)
    assert (rate.phase, rate.cycle.top) == (RatePhase.RISING, top)
    assert rate.chance.share == pytest.approx({0: 0.0, 1: 2 / (rate.tally.count - sent + 2), 3: 4 / 6}[refused])


def test_attempts_that_were_not_sent_at_once_show_nothing():
    rate = asking()
    asked(rate, 0, gap_ns=round(NS / rate.cycle.top))
    assert (rate.phase, rate.chance.share) == (RatePhase.RISING, 0.0)


def asked_again(share: float, common: float = 0.0) -> MeasuredRate:
    """A rate that a test at once has shown to be a limit, and that has halved since, so that it is tested again.

    Such a ``share`` was refused lately. A limit refuses all of the second test, too.
    """
    rate = asked(asking(), EVIDENCE_N)
    first = rate.cycle.top
    assert rate.phase is RatePhase.RISING
    while rate.phase is not RatePhase.ASKING:
        assert rate.cycle.top > first / 2
        refuse(rate, [go(rate) for _ in range(9)][-1])
    assert 0 < rate.cycle.top <= first / 2
    rate.chance.seen, rate.chance.lost = 100.0, 100 * share
    rate.lean(rate.last_ns, common)
    return asked(rate, EVIDENCE_N)


def trying() -> MeasuredRate:
    """A rate that a second test at once has shown to be a limit, where so many are refused that it may hide chance."""
    rate = asked_again(0.5)
    assert rate.phase is RatePhase.TRYING
    return rate


def test_the_next_test_comes_after_the_rate_has_halved_and_a_slow_one_after_it():
    rate = trying()
    assert rate.rate == pytest.approx(rate.cycle.top / 2)


@pytest.mark.parametrize(("share", "common"), [(0.3, 0.0), (0.5, 1.0)])
def test_no_slow_test_follows_where_it_would_take_long_or_others_take_what_it_leaves(share, common):
    assert asked_again(share, common).phase is RatePhase.RISING


def test_a_slow_test_with_several_refusals_shows_chance():
    rate = trying()
    go(rate)
    for _ in range(STRIKES):
        assert rate.phase is RatePhase.TRYING
        refuse(rate, go(rate))
    assert (rate.phase, rate.chance.asked) == (RatePhase.OPENING, 0.0)
    assert 0 < rate.chance.share <= rate.chance.usual


def test_a_slow_test_takes_no_larger_share_for_chance_than_a_check():
    rate = trying()
    rate.chance.seen, rate.chance.lost = 30.0, 29.0
    for _ in range(9):
        refuse(rate, go(rate))
    go(rate)
    refuse(rate, go(rate))
    assert (rate.phase, rate.chance.share) == (RatePhase.OPENING, SHARE_MAX)


@pytest.mark.parametrize("doubt", [trying, checking])
def test_a_time_without_demand_in_a_doubt_is_left_out_once(doubt):
    rate = doubt()
    phase, top = rate.phase, rate.cycle.top
    while rate.phase is phase:
        go(rate, now_ns=rate.next_at_ns + 10 * NS)
    assert max(rate.empty.at_ns, rate.test.at_ns, rate.block.end.at_ns) < rate.last_ns
    refuse(rate, go(rate), asked_s=20.0)
    assert rate.phase is RatePhase.BLOCKED
    rate.earliest_ns(go(rate).sent_ns + VERDICT_MAX_NS)
    assert (rate.phase, rate.cycle.top < 2 * top) == (RatePhase.RISING, True)


@pytest.mark.parametrize("how", ["reopened", "shown to be chance"])
def test_a_time_without_demand_is_left_out_where_a_doubt_ends_in_an_opening(how):
    rate = trying()
    ended_ns = rate.block.end.at_ns
    note = go(rate, now_ns=rate.next_at_ns + 100 * NS)
    if how == "reopened":
        rate.reopen(note.sent_ns)
    else:
        for _ in range(STRIKES):
            refuse(rate, go(rate))
    assert rate.phase is RatePhase.OPENING
    assert ended_ns + 100 * NS < rate.block.end.at_ns < rate.last_ns


def test_no_more_than_the_time_of_a_doubt_is_left_out_where_earlier_attempts_are_refused_in_it():
    rate = held(10.0)
    rate.chance.asked, rate.chance.early = 0.0, EARLY_N - 1
    earlier = [go(rate) for _ in range(9)]
    refuse(rate, earlier.pop())
    for note in earlier:
        assert not rate.refused(rate.last_ns, note)
    asked(rate, EVIDENCE_N)
    assert rate.phase is RatePhase.RISING
    assert max(rate.empty.at_ns, rate.test.at_ns, rate.block.end.at_ns) <= rate.last_ns


@pytest.mark.parametrize(("per_s", "start", "burst"), [(3.0, 5.5, 1), (0.64, 38.0, 3), (0.85, 7.0, 3), (84.7, 5.9, 3)])
def test_a_limit_that_was_measured_more_than_twice_too_high_is_not_taken_for_chance(per_s, start, burst):
    """It refuses some of a slow test, but fewer than chance does."""
    bucket, rate = Bucket(per_s, burst), held(per_s * start)
    for _ in range(200):
        note = go(rate)
        if not bucket.admits(note.sent_ns):
            rate.refused(note.sent_ns, note)
            assert not rate.chance.share


def test_a_test_that_makes_chance_likelier_is_followed_by_another_one_after_a_refusal():
    rate = asking()
    rate.chance.seen, rate.chance.lost = 20.0, 10.0
    asked(rate, 5)  # three of eight are admitted: 1.2 by the logarithm of the ratio
    assert (rate.phase, rate.chance.share) == (RatePhase.RISING, 0.0)
    refuse(rate, [go(rate) for _ in range(9)][-1])
    assert rate.phase is RatePhase.ASKING


@pytest.mark.parametrize(("common", "phase"), [(0.0, RatePhase.ASKING), (10.0, RatePhase.RISING)])
def test_a_test_upward_that_measures_much_less_counts_as_a_refusal_at_the_measured_rate(rate, common, phase):
    rate.chance.asked, rate.chance.early = 0.0, EARLY_N - 1
    note = [go(rate) for _ in range(9)][-1]
    rate.lean(note.sent_ns, common)  # of several processes, the others may have had what it lacks
    rate.phase = RatePhase.TESTING
    rate.empty = rate.test = Mark(note.sent_ns - 2 * NS, 0.0)  # five a second were admitted since
    assert not refuse(rate, note)
    assert rate.phase is phase


@pytest.mark.parametrize(("share", "doubted"), [(0.3, 2), (SHARE_MAX, 10)])
def test_a_check_that_admits_nothing_ends_the_share_when_chance_may_not_refuse_all_of_it(share, doubted):
    rate = checking()
    rate.chance.share = share
    for number in range(doubted + 1):
        assert refuse(rate, go(rate))
        assert (rate.phase is RatePhase.BLOCKED) == (number == doubted)
    assert rate.chance.share == 0.0


def test_a_share_is_forgotten_when_nothing_is_refused_any_more():
    chance = Chance()
    chance.share = 0.3
    assert chance.takes(9)
    assert chance.share == 0.3
    assert not chance.takes(40)
    assert chance.share == 0.0


@given(numbers=st.lists(st.tuples(st.integers(1, 2_000), st.booleans()), max_size=300), share=st.floats(0.02, 0.75))
def test_the_numbers_of_a_share_have_bounds(numbers, share):
    chance = Chance()
    chance.share = share
    for number, counts in numbers:
        chance.takes(chance.count(number, counts=counts))
        assert 0 < chance.usual <= 1
        assert chance.seen <= 2 * RECENT_N + 2_000
        assert 0 <= chance.weight < ALARM


def test_a_rate_that_is_held_for_a_forecast_stays():
    rate = held(2.0)
    rate.hold()
    first = go(rate)
    for _ in range(100):
        last = go(rate)
    assert last.sent_ns - first.sent_ns == pytest.approx(100 * NS / 2, rel=0.01)


class TestSeveralProcesses:
    """Each goes towards the mean of all rates."""

    @staticmethod
    def measured(top: float) -> MeasuredRate:
        rate = MeasuredRate(0)
        rate.lean(0, top)
        return rate

    def test_one_that_has_sent_nothing_begins_with_the_mean(self):
        rate = self.measured(4.0)
        assert (rate.phase, rate.cycle.top, rate.told) == (RatePhase.RISING, 4.0, 4.0)
        assert rate.rate == pytest.approx(4 * (1 - BELOW))

    def test_one_that_opens_tells_the_mean_of_the_others_which_changes_nothing(self):
        rate = MeasuredRate(0)
        assert rate.told == 0.0
        go(rate)
        rate.lean(NS, 3.0)
        assert (rate.phase, rate.told) == (RatePhase.OPENING, 3.0)

    @pytest.mark.parametrize(("seconds", "top"), [(1, 3.6), (2.5, 3.0), (5, 2.0), (60, 2.0)])
    def test_it_goes_to_the_mean_within_five_seconds(self, seconds, top):
        rate = self.measured(4.0)
        rate.lean(round(seconds * NS), 2.0)
        assert rate.cycle.top == pytest.approx(top)

    def test_the_next_attempt_goes_sooner_at_a_higher_rate_and_not_later_at_a_lower_one(self):
        rate = self.measured(1.0)
        go(rate)
        at_ns = rate.next_at_ns
        rate.lean(5 * NS, 0.5)
        assert rate.next_at_ns == at_ns
        rate.lean(10 * NS, 4.0)
        assert rate.next_at_ns < at_ns

    def test_one_process_alone_goes_nowhere(self):
        rate = self.measured(4.0)
        rate.lean(5 * NS, 0.0)
        assert (rate.cycle.top, rate.told) == (4.0, 4.0)

    def test_while_nothing_is_admitted_it_tells_how_often_it_tries_and_then_it_takes_the_mean(self):
        rate = self.measured(4.0)
        for _ in range(3):
            note = go(rate, now_ns=rate.earliest_ns(0))
            rate.refused(note.sent_ns + SOON_NS, note)
        assert rate.phase is RatePhase.BLOCKED
        assert rate.told == rate.rate < 4
        rate.lean(rate.next_at_ns, 1.5)
        probe = rate.sent(rate.next_at_ns, 1.0)
        rate.answered(rate.next_at_ns + NS, probe)
        assert (rate.phase, rate.cycle.top) == (RatePhase.RISING, 1.5)


# -- the last place of each number


def test_the_last_attempt_before_a_cut_moves_no_instant_if_it_was_not_sent(rate):
    notes = [go(rate) for _ in range(6)]
    assert refuse(rate, notes[-2])
    before_ns = rate.next_at_ns
    rate.unsent(notes[-1])
    assert rate.next_at_ns == before_ns


@pytest.mark.parametrize("amount", [1.0, 5.0])
@pytest.mark.parametrize(
    ("share", "more_s", "phase"),
    [(1.0, 0.15, RatePhase.RISING), (1.0, 0.25, RatePhase.BLOCKED), (0.5, 0.3, RatePhase.RISING)],
)
def test_a_stated_wait_is_kept_if_it_is_two_attempts_longer_than_the_own_one(amount, share, more_s, phase):
    rate = MeasuredRate(T0)
    rate.sent(T0, amount)
    rate.phase, rate.empty = RatePhase.RISING, Mark(T0, amount)
    rate._begin_cycle(T0, 10 * amount, lengthen=True)
    rate.block.stated_waits.share = share
    note = go(rate, amount)
    now_ns = note.sent_ns + SOON_NS
    asked_ns = rate.next_at_ns - now_ns + round(more_s * NS)
    rate.refused(now_ns, note, asked_ns)
    assert rate.phase is phase
