"""A refused request that was alone: where an unstated limit has refused it, it takes nothing of the stated quotas."""

from __future__ import annotations

import pytest
from core_shared_ledger import Member
from core_worlds import T0

from paceline.core.local import LocalCapacity
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import parse_quotas
from paceline.core.results import Refusal, RefusalKind, Reservation, WaitUntil

QUOTAS = "600 tokens/min, 9000 tokens/day, 9 concurrency"
BARE = Refusal(RefusalKind.RATE)


class Process:
    """A pool without a store, with what a :class:`Member` has."""

    def __init__(self) -> None:
        self.now_ns, self.pool = T0, Pool("m", LocalCapacity.of(parse_quotas(QUOTAS), T0, learns=True))

    def take(self, tokens: float) -> Reservation:
        while isinstance(outcome := self.pool.try_grant(self.now_ns, Waiter({"tokens": tokens})), WaitUntil):
            self.now_ns = outcome.at_ns
        assert isinstance(outcome, Reservation)
        return outcome

    def exchange_soon(self) -> None:
        """There is nothing to exchange."""


def refuse(process: Process | Member, reservation: Reservation, refusal: Refusal = BARE) -> bool:
    """As a request is: its row is looked at, and then it teaches. Whether a measured rate decides on the next attempt."""
    row = process.pool.row(process.now_ns, reservation, refusal)
    process.pool.refuse(process.now_ns, reservation, refusal, 0.0)
    process.exchange_soon()
    return row.is_paced


def used(process: Process | Member) -> list[float]:
    return [round(entry.meter.lack(process.now_ns)) for entry in process.pool.ledger.entries[:3]]


both = pytest.mark.parametrize("make", [Process, lambda: Member(QUOTAS)], ids=["process", "store"])


@both
@pytest.mark.parametrize(
    ("others", "refusal", "expected"),
    [
        (0, BARE, [0, 20, 0]),
        (1, BARE, [20, 40, 1]),
        (0, Refusal(RefusalKind.RATE, retry_after_s=0.5), [20, 20, 0]),
    ],
    ids=["alone", "in a crowd", "with a wait"],
)
def test_a_quota_of_a_minute_gets_its_charge_back_if_nothing_else_explains_the_refusal(make, others, refusal, expected):
    process = make()
    for _ in range(others):
        process.take(20)
    refuse(process, process.take(20), refusal)
    assert used(process) == expected


@both
def test_the_measured_rate_decides_on_its_next_attempt_once_another_was_admitted(make):
    process = make()
    assert [refuse(process, process.take(20)) for _ in range(3)] == [False] * 3
    assert used(process) == [0, 60, 0]
    process.pool.settle(process.now_ns, process.take(20), {"tokens": 20.0})
    assert refuse(process, process.take(20))
