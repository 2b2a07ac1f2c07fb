"""What another process has learned, and this one takes from the store."""

from __future__ import annotations

import pytest
from core_shared_ledger import Member, answer, ask, message_of

from paceline.core.queue import Waiter
from paceline.core.quota import NS, parse_quotas
from paceline.core.results import LEARNED, Reading, Refusal, RefusalKind, SourceKind
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import Refused


@pytest.fixture
def member() -> Member:
    """It is open."""
    member = Member("60 tokens/min", source=SourceKind.ASSUMED)
    for _ in range(20):
        member.answer(member.take(2))
    return member


class TestLimit:
    def test_it_is_no_guess_any_more(self, member):
        learning = member.pool.capacity.learning
        assert list(learning.guesses.tested) == [0]
        member.other_process_says("adopt", 90.0)
        member.take(1)
        assert member.pool.ledger.names == ["90 tokens/min"]
        assert [one.source for one in member.pool.ledger.entries] == [LEARNED]
        assert learning.guesses.tested == {}

    def test_a_guess_that_this_process_has_raised_stays_one(self):
        member = Member("60 tokens/min", source=SourceKind.ASSUMED)
        while member.meter.quota.amount == 60:
            member.answer(member.take(6), actual={"tokens": 6})
        assert member.pool.ledger.names == ["120 tokens/min"]
        guesses = member.pool.capacity.learning.guesses
        guesses.learned_elsewhere(member.now_ns, 0, 120.0)  # the store sends the same amount back
        assert list(guesses.tested) == [0]
        assert member.pool.ledger.entries[0].source.kind is SourceKind.ASSUMED

    def test_what_it_was_lowered_to_is_tested_here_too(self, member):
        guesses = member.pool.capacity.learning.guesses
        member.other_process_says("adopt", 30.0)
        member.take(1)
        assert guesses.tested[0].is_bounded
        assert guesses.tested[0].most == 60
        assert guesses.tested[0].test_ns == pytest.approx(member.now_ns + 300 * NS, abs=10 * NS)

    def test_an_older_answer_does_not_change_it_back(self, member):
        old = member.take(2)
        member.other_process_says("adopt", 90.0)
        member.exchange_soon()
        member.answer(old, Reading("tokens", limit=50))
        assert member.pool.ledger.names == ["90 tokens/min"]
        member.answer(member.take(2), Reading("tokens", limit=50))
        assert member.pool.ledger.names == ["50 tokens/min"]


def test_a_new_quota_of_others_comes_after_the_one_that_was_found_meanwhile():
    member, both = Member("60 tokens/min"), tuple(parse_quotas("60 tokens/min,30 requests/min"))
    pool = member.pool
    member.take(1)
    for number in (1, 2):
        member.ledger.apply(member.now_ns, message_of("b", number, both, versions=[0, -1], gentle=True))
    waiter = Waiter({"tokens": 1})
    pool.submit(member.now_ns, waiter)
    reply = member.ledger.apply(member.now_ns, ask(pool, member.now_ns, at_once=True))
    assert len(reply.standings) == 2
    pool.capacity.learning.measure(member.now_ns, "concurrency")  # its refusals show a limit before the reply comes
    pool.recount()
    found = pool.ledger.entries[1].meter
    answer(pool, member.now_ns, reply)
    assert pool.ledger.entries[1].meter is found
    assert len(pool.ledger.entries) == 2
    member.take(1)
    assert pool.ledger.names[2:] == ["30 requests/min"]


class TestLevel:
    def test_an_older_answer_does_not_raise_it(self, member):
        member.wait(60)
        old = member.take(2)
        member.other_process_says("shift", 30.0 * NS)
        member.exchange_soon()
        level = member.meter.level(member.now_ns)
        assert level == pytest.approx(28, abs=1)
        member.answer(old, Reading("tokens", limit=60, remaining=58, reset_s=2.0))
        assert member.meter.level(member.now_ns) == pytest.approx(level, abs=1)

    def test_an_answer_from_before_another_rate_is_not_compared(self, member):
        member.wait(60)
        old = member.take(2)
        member.other_process_says("epoch")
        member.exchange_soon()
        member.answer(old, Reading("tokens", limit=60, remaining=5, reset_s=55.0))
        assert member.meter.level(member.now_ns) == pytest.approx(58, abs=1)
        member.answer(member.take(2), Reading("tokens", limit=60, remaining=5, reset_s=55.0))
        assert member.meter.level(member.now_ns) == pytest.approx(5, abs=1)


class TestCeiling:
    def test_it_climbs_from_there(self, member):
        member.other_process_says("set_ceiling", 0.5)
        member.take(1)
        assert member.meter.ceiling == 0.5  # no step for the time before
        member.wait(5)
        member.take(1)
        assert 0.5 < member.meter.ceiling < 0.53

    @pytest.mark.parametrize("before", [0.0, 9.0])
    def test_a_refusal_there_begins_a_measurement_here(self, member, before):
        """Also in a store that has lost its ledger, and with it what was refused ``before``."""
        member.wait(60)
        if before:
            member.other_process_sends(Refused([before], 0))
            member.answer(member.take(1))
            member.wait(60)
            member.ledger = SharedLedger()
        member.other_process_sends(Refused([2.0], 0))
        member.exchange_soon()
        if before:  # the answer shows that
            member.answer(member.take(1))
        began_ns = member.now_ns
        while member.now_ns < began_ns + 10 * NS:  # half the rate is admitted
            member.answer(member.take(1))
            member.wait(1.98)
        last = member.take(1)
        member.pool.refuse(member.now_ns, last, Refusal(RefusalKind.RATE, unit="tokens", retry_after_s=0.5), 0.5)
        member.exchange_soon()
        assert member.meter.ceiling == pytest.approx(0.5, abs=0.06)


def test_quotas_that_an_attempt_does_not_use_have_no_note():
    member = Member("60 tokens/min, 9 concurrency, 60 pages/min")
    assert list(member.take(2).notes) == [0]
