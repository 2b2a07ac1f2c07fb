"""A store that lost its ledger and starts a new one: readings are not compared with notes about the old one."""

from __future__ import annotations

import pytest

from paceline.core.meters import Bucket, Spread
from paceline.core.queue import LaneSpec, Waiter
from paceline.core.quota import NS, parse_quotas
from paceline.core.results import Reading, Reservation
from paceline.shared.capacity import answer, ask
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import Learned, Message
from shared_pools import shared_pool

T0 = 1_700_000_000 * NS


class Fleet:
    """A pool of one process, and the shared ledger of its store."""

    def __init__(self, quotas: str, *, gentle: bool = True) -> None:
        self.now_ns, self.ledger, self.quotas = T0, SharedLedger(), tuple(parse_quotas(quotas))
        self.pool = shared_pool("p", self.quotas, T0, who="a", learns=gentle, lease_s=0.0)

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS)

    def exchange(self) -> list[Waiter]:
        message = ask(self.pool, self.now_ns, at_once=True)
        if message is None:
            return []
        return answer(self.pool, self.now_ns, self.ledger.apply(self.now_ns, message))

    def take(self, tokens: float) -> Reservation:
        waiter = Waiter({"tokens": tokens}, LaneSpec("default"))
        self.pool.submit(self.now_ns, waiter)
        for _ in range(2_000):
            self.exchange()
            if waiter.outcome is not None:
                break
            self.wait(0.05)
        assert isinstance(waiter.outcome, Reservation)
        return waiter.outcome

    def answer(self, granted: Reservation, *said: Reading) -> None:
        self.pool.settle(self.now_ns, granted, None)
        self.pool.observe(self.now_ns, said, granted)
        self.exchange()
        self.wait(0.02)
        self.exchange()

    def other_process_says(self, what: str, value: float = 0.0) -> None:
        for number, news in enumerate(([], [Learned(0, what, value)]), 1):  # its first message has no news
            message = Message("b", number, self.quotas, versions=[0], news=news, gentle=True)
            self.ledger.apply(self.now_ns, message)

    @property
    def meter(self) -> Bucket:
        return self.pool.ledger.meters[0]


def test_an_opening_bucket_goes_on_evenly_from_where_it_is_remembered():
    fleet = Fleet("60 tokens/min")
    for _ in range(40):
        fleet.answer(fleet.take(2))
    fleet.ledger = SharedLedger()
    assert fleet.meter.level(fleet.now_ns) < 5
    began_ns = fleet.now_ns
    fleet.take(2)
    assert 0 < fleet.now_ns - began_ns <= 3.1 * NS  # its own refill and the headroom, not that of the whole bucket


def test_readings_equal_to_the_ledger_change_nothing():
    fleet = Fleet("60 tokens/min", gentle=False)
    early = fleet.take(20)
    fleet.wait(1)
    fleet.take(21)
    fleet.wait(1)
    fleet.ledger = SharedLedger()
    fleet.answer(fleet.take(2), Reading("tokens", 60, 19, 41.0))
    assert fleet.meter.level(fleet.now_ns) == pytest.approx(19, abs=0.5)
    fleet.answer(early, Reading("tokens", 60, 40, 20.0))
    assert fleet.meter.level(fleet.now_ns) == pytest.approx(19, abs=0.5)


def test_a_quota_that_was_to_be_spread_is_a_bucket_again():
    fleet = Fleet("60 tokens/min")
    fleet.take(1)
    fleet.other_process_says("spread")
    fleet.wait(5)
    fleet.take(1)
    assert isinstance(fleet.meter, Spread)
    fleet.ledger = SharedLedger()
    fleet.take(1)
    assert not isinstance(fleet.meter, Spread)
    assert fleet.meter.level(fleet.now_ns) < 60
