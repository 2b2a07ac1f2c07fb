"""What the tests of pools share."""

from __future__ import annotations

from core_worlds import T0, quota

from paceline.core.line import LaneSpec, Ticket
from paceline.core.outcomes import Refusal, RefusalKind, Reservation
from paceline.core.pool import Pool

RATE = Refusal(RefusalKind.RATE)
MONEY = Refusal(RefusalKind.MONEY, message="no credit left")


def pool_of(*texts: str, **options) -> Pool:
    return Pool("p", [quota(text) for text in texts], T0, **{"headroom_s": 0.0, **options})


def ask(pool: Pool, now_ns: int = T0, deadline_ns: int | None = None, lane: LaneSpec | None = None, **cost: float):
    ticket = Ticket(cost, lane or LaneSpec(), deadline_ns)
    return ticket, pool.submit(now_ns, ticket)


def use_up(pool: Pool, now_ns: int = T0) -> list:
    """Take what can be had at once, one request at a time."""
    granted = []
    while isinstance(outcome := pool.attempt(now_ns, Ticket({})), Reservation):
        granted.append(outcome)
    return granted


def again(pool: Pool, now_ns: int, old: Ticket):
    ticket = Ticket(old.cost, old.lane, old.deadline_ns)
    ticket.number, ticket.returned = old.number, True
    return ticket, pool.submit(now_ns, ticket)


def pump_at_wake(pool: Pool) -> tuple[int, list[Ticket]]:
    assert pool.wake_ns is not None
    now_ns = pool.wake_ns
    return now_ns, pool.pump(now_ns)
