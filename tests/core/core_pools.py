"""What the tests of pools share."""

from __future__ import annotations

from core_worlds import T0, quota

from paceline.core.local import LocalCapacity
from paceline.core.pool import WAITING_MAX, Pool
from paceline.core.queue import LaneSpec, Waiter
from paceline.core.results import Cost, Refusal, RefusalKind, Reservation

RATE = Refusal(RefusalKind.RATE)
MONEY = Refusal(RefusalKind.MONEY, "a message of the provider", "no_credit")


def pool_of(*texts: str, **options) -> Pool:
    return local_pool([quota(text) for text in texts], **{"headroom_s": 0.0, **options})


def local_pool(quotas, now_ns: int = T0, *, name: str = "p", waiting_max: int = WAITING_MAX, **options) -> Pool:
    return Pool(name, LocalCapacity.of(quotas, now_ns, **options), waiting_max=waiting_max)


def ask(pool: Pool, now_ns: int = T0, deadline_ns: int | None = None, lane: LaneSpec | None = None, **cost: float):
    waiter = Waiter(cost, lane or LaneSpec(), deadline_ns)
    return waiter, pool.submit(now_ns, waiter)


def use_up(pool: Pool, now_ns: int = T0, cost: Cost | None = None) -> list:
    """Take what can be had at once, one request at a time."""
    granted = []
    while isinstance(outcome := pool.try_grant(now_ns, Waiter(cost or {})), Reservation):
        granted.append(outcome)
    return granted


def again(pool: Pool, now_ns: int, old: Waiter):
    waiter = Waiter(old.cost, old.lane, old.deadline_ns)
    waiter.number, waiter.returned = old.number, True
    return waiter, pool.submit(now_ns, waiter)


def pump_at_wake(pool: Pool) -> tuple[int, list[Waiter]]:
    assert pool.wake_ns is not None
    now_ns = pool.wake_ns
    return now_ns, pool.pump(now_ns)
