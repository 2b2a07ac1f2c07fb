"""A store that lost its ledger and starts a new one: readings are not compared with notes about the old one."""

from __future__ import annotations

import pytest
from core_shared_ledger import Member

from paceline.core.meters import Spread
from paceline.core.results import Reading
from paceline.shared.ledger import SharedLedger


def test_readings_equal_to_the_ledger_change_nothing():
    member = Member("60 tokens/min", gentle=False)
    early = member.take(20)
    member.wait(1)
    member.take(21)
    member.wait(1)
    member.ledger = SharedLedger()
    member.answer(member.take(2), Reading("tokens", 60, 19, 41.0))
    assert member.meter.level(member.now_ns) == pytest.approx(19, abs=0.5)
    member.answer(early, Reading("tokens", 60, 40, 20.0))
    assert member.meter.level(member.now_ns) == pytest.approx(19, abs=0.5)


def test_a_quota_that_was_to_be_spread_is_a_bucket_again():
    member = Member("60 tokens/min")
    member.take(1)
    member.other_process_says("spread")
    member.wait(5)
    member.take(1)
    assert isinstance(member.meter, Spread)
    member.ledger = SharedLedger()
    member.take(1)
    assert not isinstance(member.meter, Spread)
    assert member.meter.level(member.now_ns) < 60
