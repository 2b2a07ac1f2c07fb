"""Beliefs: evidence in, the explanation out."""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from math import inf
from random import Random

import pytest

from paceline.core.beliefs.evidence import FIRST_NS, LOG_N, LONGEST_NS, SHORTEST_NS, Evidence
from paceline.core.beliefs.explanations import (
    CHANCE,
    CHANGE,
    NEAR,
    Free,
    InFlight,
    Rate,
    Sliding,
    Window,
    Word,
    best,
    candidates,
    explain,
)
from paceline.core.quota import NS
from paceline.emulator.rules import BucketRule, SlidingRule, SlotsRule, WindowRule

T0 = 1_000 * NS
ROUGH_NS = NS // 33


class Log:
    """Attempts, each with its outcome.

    ``text`` has a sign for each: admitted ``+``, refused ``-``. They are ``every_s`` apart, and answered at once.
    """

    def __init__(self, text: str = "", every_s: float = 1.0) -> None:
        self.evidence, self.now_ns = Evidence(), T0
        for n, sign in enumerate(text):
            self.add(sign == "+")
            self.now_ns += round(every_s * (0.9, 1.1, 1.0)[n % 3] * NS)

    def add(self, admitted: bool, amount: float = 1.0, stated_s: float = 0.0):
        attempt = self.evidence.add(self.now_ns, amount, 1.0)
        self.outcome(attempt, admitted)
        attempt.stated_ns = round(stated_s * NS)
        return attempt

    def outcome(self, attempt, admitted: bool) -> None:
        if admitted:
            self.evidence.answered(self.now_ns, attempt)
        else:
            self.evidence.refused(self.now_ns, attempt)

    def best(self, *rates: float, others: float = 1):
        log = self.evidence.known(self.now_ns)
        last = max(i for i, one in enumerate(log) if not one.admitted)
        return best(candidates(log, last, rates), log, last, ROUGH_NS, others)


def in_flight(*steps: tuple[int, int]) -> Log:
    """So many sent at once, and then so many of those answered, one by one; more than five are refused."""
    log, held = Log(), []
    for sent, ended in steps:
        for _ in range(sent):
            attempt = log.evidence.add(log.now_ns, 1.0, 1.0)
            if len(held) < 5:
                held.append(attempt)
            else:
                log.outcome(attempt, False)
            log.now_ns += NS // 50
        log.now_ns += 2 * NS
        for _ in range(ended):
            log.outcome(held.pop(0), True)
            log.now_ns += NS // 50
        log.now_ns += 2 * NS
    return log


def window(texts: list[str], period_s: float, every_s: float) -> Log:
    """The attempts in each of several periods; a space is a time without one."""
    log = Log()
    for n, text in enumerate(texts):
        log.now_ns = T0 + round(n * period_s * NS)
        for sign in text:
            if sign != " ":
                log.add(sign == "+")
            log.now_ns += round(every_s * NS)
    return log


ROW = "+" * 30 + "-" * 10

BELIEFS = {
    "each second one is refused: twice what is admitted": (Log("+-" * 20, 0.5), Rate, 0.0),
    "two of three, with a burst": (Log("+" * 10 + "-++" * 15 + "-", 0.5), Rate, 0.0),
    "none is admitted but some in the beginning": (Log("+" * 10 + "-" * 10, 0.1), Rate, 0.0),
    "one in ten, at no regular distance": (Log("+++-++++++++++++-+-+++++++++++++++++++++-++++-" * 4, 1.0), Free, 0.1),
    "more than five in flight": (in_flight((7, 2), (3, 1), (4, 3), (5, 1), (2, 2), (4, 4), (6, 0)), InFlight, 0.0),
    "thirty in any minute": (window([ROW] * 3, 60, 1), Sliding, 0.0),
    "thirty in a minute": (window([" " * 20 + ROW, ROW, ROW], 60, 1), Window, 0.0),
}


@pytest.mark.parametrize("name", BELIEFS)
def test_what_is_believed(name):
    log, model, chance = BELIEFS[name]
    found = log.best()
    assert type(found.model) is model, found
    assert found.chance == pytest.approx(chance, abs=0.05)


def test_a_rate_is_what_was_refilled_between_two_refusals():
    found = Log("+-" * 20, 0.5).best()
    assert (found.model.size, found.chance) == (1, 0)
    assert 0.9 < found.model.rate <= found.model.high < 2  # a refusal 0.5 s after an admission leaves that open


def test_a_stated_wait_is_a_restart():
    log = window([" " * 20 + ROW, ROW], 60, 1)
    log.add(False, stated_s=20.0)
    model = log.best().model
    assert (model.number, model.period_ns, (model.start_ns - log.now_ns - 20 * NS) % (60 * NS)) == (30, 60 * NS, 0)


def test_other_processes_make_chance_less_likely():
    log = BELIEFS["one in ten, at no regular distance"][0]
    assert log.best(others=100).chance == 0


def test_a_measured_rate_is_tried_too():
    log = Log("+" * 10 + "-++" * 15 + "-", 0.5)
    log_ = log.evidence.known(log.now_ns)
    assert Rate(7.0, 7.0, inf, log_[10].sent_ns) in [*candidates(log_, len(log_) - 1, [7.0])]


def test_a_change_at_the_provider_is_unlikely():
    log = Log("+" * 60 + "-+" * 10).evidence.known(T0 + 100 * NS)
    rates = [one for one in candidates(log, 78, []) if isinstance(one, Rate)]
    assert {one.prior for one in rates if one.empty_ns == log[60].sent_ns} == {0.0}
    assert {one.prior for one in rates if one.empty_ns > log[60].sent_ns} == {-CHANGE - CHANCE}


def test_a_model_that_cannot_win_is_given_up():
    log = Log("+-" * 20, 0.5).evidence.known(T0 + 100 * NS)
    assert explain(InFlight(0), log, 1, ROUGH_NS, 1, -20.0) is None
    assert explain(InFlight(0), log, 1, ROUGH_NS, 1, -inf).counts[1] == (20, 20)


class TestEvidence:
    def test_an_attempt_that_was_not_refused_in_time_is_admitted(self):
        evidence = Evidence()
        first = evidence.add(T0, 1.0, 1.0)
        evidence.judge(T0 + FIRST_NS)
        assert first.admitted is None
        evidence.judge(T0 + FIRST_NS + 1)
        assert first.admitted

    def test_a_refusal_after_its_verdict_changes_what_was_before_the_later_ones(self):
        evidence = Evidence()
        late, later = (evidence.add(T0 + s * NS, 2.0, 1.0) for s in (0, 5))
        assert (late.admitted, later.before) == (True, 2.0)
        evidence.refused(T0 + 6 * NS, late)
        assert (late.admitted, later.before, evidence.lost) == (False, 0.0, 2.0)

    @pytest.mark.parametrize(
        ("took_ns", "verdict_ns"), [(NS // 10, NS // 5), (NS // 1_000, SHORTEST_NS), (10 * NS, LONGEST_NS)]
    )
    def test_the_time_of_a_verdict_is_twice_the_slowest_refusal(self, took_ns, verdict_ns):
        evidence = Evidence()
        evidence.refused(T0 + took_ns, evidence.add(T0, 1.0, 1.0))
        assert evidence.verdict_ns == verdict_ns

    def test_a_refused_attempt_was_not_in_flight_for_the_later_ones(self):
        evidence = Evidence()
        first, second = evidence.add(T0, 2.0, 1.0), evidence.add(T0, 3.0, 1.0)
        assert (second.most, second.before) == (1, 2.0)
        evidence.refused(T0, first)
        assert (second.most, second.least, second.before) == (0, 0, 0.0)
        assert (evidence.admitted, evidence.in_flight, evidence.mean) == (3.0, 1, 2.5)

    def test_one_that_was_answered_may_have_ended_before_the_next_one_came(self):
        evidence = Evidence()
        first, second = evidence.add(T0, 1.0, 1.0), evidence.add(T0 + NS, 1.0, 1.0)
        evidence.answered(T0 + NS, first)
        assert (second.most, second.least) == (1, 0)
        evidence.answered(T0 + 2 * NS, second)
        assert first.least == 0

    def test_an_outcome_that_something_else_explains_is_no_evidence(self):
        evidence = Evidence()
        evidence.refused(T0, evidence.add(T0, 1.0, 1.0), counts=False)
        assert evidence.known(T0) == []

    def test_the_log_has_a_bound_and_keeps_those_without_an_outcome(self):
        log = Log("+" * (LOG_N + 10))
        assert len(log.evidence.log) == LOG_N
        held = [log.evidence.add(log.now_ns, 1.0, 1.0) for _ in range(LOG_N + 10)]
        assert log.evidence.log[-len(held)] is held[0]


class TestModels:
    def test_a_bucket_keeps_the_level_within_bounds(self):
        log = Log("-+---", 0.5).evidence.known(T0 + 100 * NS)
        words = [Word(word) for word in Rate(1.0, 1.0, inf, T0).words(log, 0)]
        assert words == [Word.MAYBE, Word.MAYBE, Word.MAYBE, Word.HAD, Word.HAD]

    def test_nothing_is_known_before_a_bucket_was_empty(self):
        log = Log("++", 0.5).evidence.known(T0 + 100 * NS)
        assert [*Rate(1.0, 1.0, inf, T0 + NS).words(log, 0)] == [Word.MAYBE] * 2

    def test_what_was_used_before_the_log_is_not_known(self):
        log = Log("+" * (LOG_N + 10)).evidence.known(T0 + 10_000 * NS)
        words = [*Sliding(5, 10 * NS).words(log, 0)]
        assert (words.count(Word.MAYBE), words[-1]) == (10, Word.NOTHING)

    @pytest.mark.parametrize(("amount", "free_s"), [(1.0, 0.0), (2.0, 10.0), (3.0, 10.9), (9.0, 13.0)])
    def test_when_an_amount_fits_a_trailing_period(self, amount, free_s):
        log = Log("++-+").evidence.log
        assert Sliding(4, 10 * NS).free_ns(log, amount, T0 + 9 * NS) - T0 == pytest.approx((free_s or 9.0) * NS)

    def test_an_attempt_about_a_restart_belongs_to_either_period(self):
        log = window(["+" * 12, "+" * 12], 6, 0.5).evidence.known(T0 + 100 * NS)
        words = [*Window(11, 6 * NS, T0).words(log, NS)]
        assert words[11] == Word.MAYBE  # at 5.5 s
        assert words[-2:] == [Word.MAYBE] * 2  # two of the period before may have come late

    def test_refusals_before_the_first_admission_show_no_gap(self):
        log = Log("--").evidence.known(T0 + 100 * NS)
        assert all(one.rate < one.high for one in candidates(log, 1, []) if isinstance(one, Rate))


class Server:
    """A provider that counts by ``rule``, and a client that sends at random paces."""

    def __init__(self, rule, dice: Random, per_s: float, latency_s: float) -> None:
        self.rule, self.dice, self.per_s, self.latency_s = rule, dice, per_s, latency_s
        self.evidence, self.now, self.events = Evidence(), 1_000.0, []
        self.slots = isinstance(rule, SlotsRule)

    def until(self, to: float) -> None:
        """Let the outcomes come that are due."""
        while self.events and self.events[0][0] <= to:
            at, _, what = heappop(self.events)
            what(round(at * NS))
        self.now = to

    def send(self, number: int) -> None:
        pace = self.per_s
        for n in range(number):
            if n % 20 == 0:
                pace = self.per_s * self.dice.choice([0.7, 1.0, 1.1, 1.5])
            self.until(self.now + self.dice.uniform(0.8, 1.2) / pace)
            attempt = self.evidence.add(round(self.now * NS), 1.0, pace)
            heappush(self.events, (self.now + self.dice.uniform(0.04, 0.06), n, partial(self.arrive, attempt, n)))

    def arrive(self, attempt, n: int, now_ns: int) -> None:
        """The attempt comes to the provider."""
        now = now_ns / NS
        if self.rule is None or self.rule.fits(now, 1.0):
            if self.rule is not None:
                self.rule.charge(now, 1.0)
            at = now + self.latency_s * self.dice.uniform(0.8, 1.2)
            if self.slots:
                heappush(self.events, (at - 0.04, n, lambda at_ns: self.rule.give_back(at_ns / NS, 1.0, now)))
            heappush(self.events, (at, n, lambda at_ns: self.evidence.answered(at_ns, attempt)))
        else:
            at = now + self.dice.uniform(0.04, 0.06)
            heappush(self.events, (at, n, lambda at_ns: self.evidence.refused(at_ns, attempt)))


def random_bucket(dice):
    per_s = 10 ** dice.uniform(-1, 0.7)
    burst = max(1.0, per_s * dice.choice([0, 1, 10]))
    rule = BucketRule(60 * per_s, 60.0, 1_000.0, quantum_s=burst / per_s)
    return rule, per_s, 1.0, lambda first_ns: Rate(per_s, per_s, burst, first_ns)


def random_slots(dice):
    number, latency_s = dice.choice([2, 5, 20]), dice.choice([1.0, 3.0])
    return SlotsRule(number), number / latency_s, latency_s, lambda _: InFlight(number)


def random_window(dice):
    number, period_s = dice.choice([10, 30, 60]), dice.choice([5, 15, 60])
    rule = WindowRule(number, period_s, 1_000.0, offset_s=3.0)
    return rule, number / period_s, 1.0, lambda _: Window(number, period_s * NS, 3 * NS)


def random_sliding(dice):
    number, period_s = dice.choice([10, 30, 60]), dice.choice([5, 15, 60])
    return SlidingRule(number, period_s, 1_000.0), number / period_s, 1.0, lambda _: Sliding(number, period_s * NS)


PROVIDERS = {"bucket": random_bucket, "slots": random_slots, "window": random_window, "sliding": random_sliding}


def gap(kind: str, seed: int) -> float:
    """How much better than the true model the best one is."""
    dice = Random(f"{kind} {seed}")
    rule, per_s, latency_s, true = PROVIDERS[kind](dice)
    server = Server(rule, dice, per_s, latency_s)
    server.send(dice.choice([60, 120, 250]))
    server.until(server.now + 10 * latency_s)
    log = server.evidence.known(round(server.now * NS))
    refused = [i for i, one in enumerate(log) if not one.admitted]
    if len(refused) < 10:  # until then the usual models are believed
        return 0.0
    found = best(candidates(log, refused[-1], []), log, refused[-1], ROUGH_NS)
    model = true(log[refused[0]].sent_ns)
    return found.score - explain(model, log, refused[-1], ROUGH_NS, 1, -inf).score


@pytest.mark.parametrize("number", [20, pytest.param(1_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", PROVIDERS)
def test_the_true_model_is_among_the_best(kind, number):
    gaps = [gap(kind, seed) for seed in range(number)]
    assert sum(one <= NEAR for one in gaps) >= 0.95 * number, sorted(gaps)[-number // 20 :]
