"""The breaker of a host: after some failures in a row, its pools pause, and then send one probe."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from paceline.core.checked import check, suggesting
from paceline.core.progress import Row
from paceline.core.quota import NS
from paceline.core.results import Refusal, RefusalKind, public
from paceline.pacing.clock import Clock
from paceline.pacing.forks import reentrant_lock
from paceline.pacing.scheduler import ByHand, Scheduler

log = logging.getLogger("paceline")

SHED_S = 1.0
"""Refusals for want of capacity count as failures of the host if no attempt of the pool was ever admitted, or none for
so many seconds. Otherwise they may be chance: servers that refuse half of their load refuse five in a row every few
seconds."""

HOSTS_MAX = 1_000
"""How many hosts have a breaker: their names come from callers, and memory is bounded."""


@public
@suggesting
@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When the breaker of a host opens, and for how long.

    Attributes:
        failures: How many failures in a row open it: 5xx, timeouts and broken connections, of any model.
        pause_s: The longest pause in seconds.
        first_pause_s: The first pause in seconds. After it one attempt goes. If this attempt fails too, the next
            pause is twice as long. If it equals ``pause_s``, all pauses have the same length.
    """

    failures: int = 5
    pause_s: float = 60.0
    first_pause_s: float = 1.0

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        seconds = ("seconds", 0, sys.float_info.max)  # finite: the provider is tried again
        check(self, failures=("a whole number", 1, inf), pause_s=seconds, first_pause_s=seconds)


class Breaker:
    """The failures of one host in a row, and the pause that follows them.

    The breaker is open until a success ends the pause. It holds nothing back itself: its pools pause, and each sends a
    probe.

    Attributes:
        in_row: The number of failures since the last success.
        pause_s: The length of the present pause in seconds; 0 while the breaker is closed.
        open_until_ns: When a probe may go; 0 while the breaker is closed.
        reached: Whether a connection to the host was ever made.
        schedulers: The schedulers of the pools whose requests went to the host.
    """

    __slots__ = ("in_row", "open_until_ns", "pause_s", "policy", "reached", "schedulers")

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.reached = False
        self.schedulers: set[Scheduler] = set()
        self.succeeded()

    def succeeded(self) -> None:
        """Count a success: close the breaker."""
        self.in_row, self.pause_s, self.open_until_ns = 0, 0.0, 0

    def failed(self, now_ns: int, sent_ns: int) -> bool:
        """Count a failed attempt that was sent at ``sent_ns``; whether it opens the breaker (again)."""
        self.in_row += 1
        if self.in_row < self.policy.failures or sent_ns < self.open_until_ns:
            return False  # too few failures, or it was in flight when the breaker opened
        self.pause_s = min(2 * self.pause_s or self.policy.first_pause_s, self.policy.pause_s)
        self.open_until_ns = now_ns + round(self.pause_s * NS)
        return True


def is_server_fault(status: int, refusal: Refusal | None, row: Row | None) -> bool | None:
    """Whether an answer is a failure of its host: any 5xx that is not a refusal of the pool's own rate.

    Args:
        status: Its status.
        refusal: The refusal in it.
        row: The refusals of the pool in a row, with this one.

    Returns:
        ``None``: it is neither a failure nor a success, because the servers refuse a part of the load.
    """
    if status < 500:
        return False
    if refusal is None:
        return True
    if refusal.kind is not RefusalKind.CAPACITY:
        return False
    chance = row is not None and (row.is_paced or (row.admitted and row.lasted_s < SHED_S))
    return None if chance else True


class Health:
    """The breakers of all hosts.

    A pool whose requests go to several hosts pauses while the breakers of all of them are open.

    Args:
        clock: The clock.
        policy: When breakers open; ``None`` for never.

    Attributes:
        luck: Gives random numbers from 0 to 1, which spread the retries; a simulation has its own.
    """

    def __init__(self, clock: Clock, policy: BreakerPolicy | None) -> None:
        self._clock = clock
        self.policy = policy
        self.luck: Callable[[], float] = random.random
        self._breakers: dict[str, Breaker] = {}
        self._paused: dict[Scheduler, int] = {}  # until when
        self._lock = reentrant_lock()  # reentrant: a finalizer may close a permit, whose answer counts here

    def succeeded(self, host: str, scheduler: Scheduler) -> None:
        """Count an answer of ``host``; if its breaker was open, the pause ends."""
        breaker = self._breakers.get(host)
        if breaker is not None and breaker.reached and not breaker.in_row and scheduler in breaker.schedulers:
            return  # the hot path, without the lock: nothing would change
        if self.policy is None:
            return
        with self._lock:
            breaker = self._breaker(host, scheduler)
            if breaker is None:
                return
            breaker.reached = True
            paused = breaker.schedulers & self._paused.keys() if breaker.open_until_ns else ()
            breaker.succeeded()
            lifted = [(one, self._paused.pop(one)) for one in paused]
        # Outside of the lock, as in ``failed``: what follows takes the lock of a pool, and wakes waiters.
        for one, until_ns in lifted:
            one.section.change(one.pool.capacity.lift, until_ns)

    def failed(self, host: str, scheduler: Scheduler, sent_ns: int, reason: str, *, reached: bool = True) -> bool:
        """Count a failed attempt at ``host``; enough in a row pause its pools.

        Args:
            host: The host, with its port.
            scheduler: The scheduler of the pool.
            sent_ns: When the attempt was sent.
            reason: The failure in a few words, for the log.
            reached: Whether there was a connection. Without one, the failure counts only if there was one before: else
                the address is wrong, or its server was never started.

        Returns:
            Whether this failure has opened the breaker, for the first time or as a probe.
        """
        with self._lock:
            breaker = self._breaker(host, scheduler)
            if breaker is None or not (reached or breaker.reached):
                return False
            breaker.reached = True
            now_ns = self._clock.now_ns()
            if not breaker.failed(now_ns, sent_ns):
                return False
            in_row, pause_s = breaker.in_row, breaker.pause_s
            paused = {one: until_ns for one in breaker.schedulers if (until_ns := self._until_ns(one, now_ns))}
            self._paused |= paused
        log.warning(
            "%s: %d failures in a row, the last one %s; %s",
            host,
            in_row,
            reason,
            f"the next request waits up to {pause_s:g} s" if paused else "its pools continue with their other hosts",
        )
        # WEAK: an answer of the host that comes between the lock and this line finds no pause to lift. The pools then
        # pause to the end, and go on by a probe.
        for one, until_ns in paused.items():
            one.pause(until_ns)
        return True

    def paused_until_ns(self, scheduler: Scheduler) -> int:
        """Until when a pool pauses for the failures of its hosts; 0 if it does not."""
        return self._paused.get(scheduler, 0)

    def forget(self, host: str) -> None:
        """Forget a host: beside another one of the same pools, its closed breaker would keep them going."""
        with self._lock:
            self._breakers.pop(host, None)

    def drop(self, scheduler: Scheduler) -> None:
        """Forget a pool that is used no more."""
        with self._lock:
            self._paused.pop(scheduler, None)
            for breaker in self._breakers.values():
                breaker.schedulers.discard(scheduler)

    def _breaker(self, host: str, scheduler: Scheduler) -> Breaker | None:
        """The breaker of ``host``, which from now on knows the pool.

        ``None`` without a policy or with too many hosts.
        """
        breaker = self._breakers.get(host)
        if breaker is None:
            if self.policy is None or len(self._breakers) >= HOSTS_MAX:
                return None
            breaker = self._breakers[host] = Breaker(self.policy)
        breaker.schedulers.add(scheduler)
        return breaker

    def _until_ns(self, scheduler: Scheduler, now_ns: int) -> int:
        """When the first host of a pool may be tried; 0 while the breaker of one of them is closed."""
        instants = [one.open_until_ns for one in self._breakers.values() if scheduler in one.schedulers]
        # Of a closed breaker the instant is 0: the pool goes on with that host.
        return min((at_ns for at_ns in instants if at_ns > now_ns), default=0) if all(instants) else 0


class HealthByHand(ByHand):
    """The health of what calls by hand to one pool go to.

    Its host is not known. The name of the provider stands for it, and in a pool of the user's own the name of the pool.
    """

    def __init__(self, health: Health, scheduler: Scheduler, *, is_model: bool) -> None:
        self._health, self._scheduler, self.is_model = health, scheduler, is_model
        name = scheduler.pool.name
        self._host = name.partition("/")[0] if is_model else name

    def failed(self, sent_ns: int, reason: str, *, reached: bool, reported: bool) -> None:
        """See :meth:`ByHand.failed`, and :meth:`Health.failed`.

        In a pool of the user's own a call counts only if it is ``reported``: a block there need not be one call.
        """
        self.fails = True
        if self.is_model or reported:
            self._health.failed(self._host, self._scheduler, sent_ns, reason, reached=reached)

    def answered(self) -> None:
        """See :meth:`ByHand.answered`; only the first one after a failure changes anything."""
        if self.fails:
            self.fails = False
            self._health.succeeded(self._host, self._scheduler)
            self._health.forget(self._host)  # beside a real host its closed breaker would keep the pool going
