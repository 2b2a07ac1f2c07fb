"""The windows of a plan that are shut, and the clients with a login to it that cannot wait for them."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import Final

from paceline.config.schema import RUN_S
from paceline.core.progress import Row
from paceline.core.quota import NS
from paceline.core.results import Refusal
from paceline.gateway.errors import own
from paceline.gateway.incoming import Incoming
from paceline.gateway.relay import ClientReply
from paceline.gateway.waiting import HeldRequest, resumes, returns
from paceline.http.exchange import Exchange
from paceline.pacing.breaker import Health
from paceline.pacing.retry import Again, GiveUp, RetryPolicy, varied
from paceline.pacing.scheduler import Scheduler
from paceline.pacing.tries import Tries

LOOK_S: Final = 1.0
"""How often a request looks whether the window that it waits for is shut for too long, while its client gets nothing."""


class PlanTries(Tries):
    """The attempts with the login to a plan. None stops the pool: other clients may wait for as long as its window is shut.

    Args:
        policy: The policy of the limiter.
        health: As for :class:`~paceline.pacing.tries.Tries`.
        bounded: Whether the client cannot be kept waiting for longer than ``max_retry_after_s``.
    """

    __slots__ = ("_most_s",)

    def __init__(self, policy: RetryPolicy, health: Health, *, bounded: bool) -> None:
        self._most_s = policy.max_retry_after_s if bounded else RUN_S
        super().__init__(varied(policy, max_retry_after_s=self._most_s), health)

    def failed(self, scheduler: Scheduler, refusal: Refusal | None, row: Row | None) -> Again | GiveUp:
        """See :meth:`Tries.failed`. A window that a refusal names needs no test before its wait is believed to be too long."""
        decision = super().failed(scheduler, refusal, row)
        asked_s = 0.0 if refusal is None else refusal.retry_after_s or 0.0
        if isinstance(decision, GiveUp):
            if not decision.stop_s or row is None or (row.is_allowance and not row.holds):
                return decision
            return replace(decision, stop_s=0.0, pause_s=min(asked_s or row.test_s, row.test_s))
        if refusal is None or refusal.window is None or asked_s <= self._most_s or not decision.pool_wide:
            return decision
        return GiveUp(f"the plan's window {refusal.window} is used up", pause_s=decision.pause_s)


def has_login(held: HeldRequest) -> bool:
    """Whether the login to a plan pays for a request."""
    payer = held.exchange.metered.payer
    return payer is not None and payer.account.is_login


def bound(request: Incoming, held: HeldRequest, *, is_fed: bool) -> bool:
    """Prepare a request with the login to a plan for a window that is shut; whether its client cannot be kept waiting for long."""
    pacer, headers = held.exchange.pacer, request.head.headers
    waits = is_fed or (returns(headers) and not resumes(headers))
    held.exchange.tries = PlanTries(pacer.retry, pacer.health, bounded=not waits)
    return not waits


def shut(held: HeldRequest) -> ClientReply | None:
    """The refusal of a request that waits for a window for too long, with what is left of the wait; ``None``: it may wait.

    It is the provider's, if this process has had one.
    """
    left_s = _shut_s(held.exchange)
    if left_s <= held.exchange.pacer.retry.max_retry_after_s:
        return None
    pool = held.exchange.metered.scheduler.pool.name
    headers = {"x-should-retry": "false"}
    if math.isfinite(left_s):
        headers["retry-after"] = str(math.ceil(left_s))
    sent, why = held.requests[0], "a window of the plan is used up, and this request cannot wait for it"
    return sent.instead("stopped", None) or own(429, "stopped", f"{pool}: {why}", headers, sent.path)


def _shut_s(exchange: Exchange) -> float:
    """How long a window of the plan is shut for a request that would not test it; 0 for none."""
    scheduler = exchange.metered.scheduler
    account, _, model = scheduler.pool.name.partition("/")
    now_ns = scheduler.now_ns()
    left_s = [
        (one.ends_ns - now_ns) / NS if one.ends_ns else math.inf
        for name, of, one in exchange.pacer.pools.shut()
        if name == account and of in (None, model) and one.state == "shut" and one.test_ns > now_ns
    ]
    return max(left_s, default=0.0)


async def shut_meanwhile(held: HeldRequest, task: asyncio.Task[ClientReply], due_s: float | None) -> ClientReply | None:
    """Wait for ``task``, at most for ``due_s``; the refusal by a window that is found to be shut before."""
    until_s = math.inf if due_s is None else time.monotonic() + due_s
    while not (await asyncio.wait([task], timeout=LOOK_S))[0]:
        if held.exchange.waits and (refusal := shut(held)) is not None:
            return refusal
        if time.monotonic() >= until_s:
            break
    return None
