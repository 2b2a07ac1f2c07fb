"""One pool: a queue and a capacity. Commands in, outcomes out; no clock and no lock.

The caller invokes a method under its lock, then wakes the waiters that the method returns and sets one timer for
:attr:`Pool.wake_ns`. Nothing here waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from paceline.core.capacity import PENDING, Capacity, Resolution
from paceline.core.ledger import Ledger, merged, total_tokens
from paceline.core.meters import FAR_NS
from paceline.core.queue import Queue, Waiter
from paceline.core.quota import NS, REQUESTS, TOKENS, Cost
from paceline.core.results import (
    QUEUE,
    Decision,
    Expired,
    Outcome,
    QueueFull,
    Reading,
    Refusal,
    RefusalKind,
    Reservation,
    Stopped,
    StoreLost,
    WaitUntil,
)

WAITING_MAX = 1_000_000
"""The default bound on a queue; a waiter takes about half a kilobyte."""


class Pool:
    """The quotas that a provider charges together, and the requests that wait for them.

    Attributes:
        name: Its name, e.g. ``openai/gpt-5``.
        capacity: The quotas.
        queue: The requests that wait.
        wake_ns: When :meth:`pump` has something to do again, if nothing happens before; ``None`` for never.
        counts: How many were granted, settled, cancelled, refused (by kind), expired and lost.
        waited_ns: How long all that were granted had waited.
        longest_ns: The longest of these waits.
        estimates: Per unit the reserved amounts and the true ones, over all attempts whose true cost is known.
        stopped: Why nothing is sent any more, or ``None``.
        refused_in_row: How many attempts, one after the other, were refused since the last answer.
    """

    def __init__(
        self, name: str, capacity: Capacity, queue: Queue | None = None, *, waiting_max: int = WAITING_MAX
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.queue = Queue() if queue is None else queue
        self.wake_ns: int | None = None
        self.counts: defaultdict[str, int] = defaultdict(int)  # a Counter is three times as slow
        self.waited_ns = self.longest_ns = 0
        self.estimates: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.stopped: Stopped | None = None
        self.refused_in_row = 0
        self._row_since_ns = 0
        self._waiting_max = waiting_max
        self._attempts: list[Waiter] = []  # in the queue only until their decision is known

    @property
    def ledger(self) -> Ledger:
        """The quotas as far as they are known; for reading."""
        return self.capacity.ledger

    def submit(self, now_ns: int, waiter: Waiter) -> Outcome:
        """Grant ``waiter`` at once, let it join the queue (``WaitUntil``), or return the reason against it.

        A waiter that was in the queue before returns to its old place: the front of its lane.
        """
        ledger = self.capacity.ledger
        waiter.outcome, waiter.queued = None, False
        waiter.amounts = ledger.amounts(waiter.cost)
        waiter.arrived_ns = now_ns
        if not waiter.returned:
            waiter.number = self.queue.next_number()
        if self.stopped is not None:
            return self.stopped
        if not self.queue.length:
            decision = self._reserve(now_ns, waiter)
            if type(decision) is not WaitUntil:
                return decision
        never = ledger.never(waiter.amounts)
        if never is not None and self.capacity.is_current(now_ns):
            return never
        if self.queue.length >= self._waiting_max:
            return QueueFull(self.queue.length)
        at_ns, quota = self.soonest(now_ns, waiter)
        late = waiter.deadline_ns is not None and FAR_NS != at_ns > waiter.deadline_ns
        if late and self.capacity.is_current(now_ns):
            self.counts["expired"] += 1
            return Expired(at_ns, quota)
        waiter.queued = True
        self.queue.push(waiter)
        self._set_wake(now_ns)
        return WaitUntil(at_ns, quota)

    def attempt(self, now_ns: int, waiter: Waiter) -> Outcome:
        """Grant ``waiter`` at once or not at all: it overtakes none of those that wait.

        ``WaitUntil`` with ``waiter.queued``: the capacity decides later, and the waiter gets its outcome then.
        """
        waiter.outcome, waiter.queued = None, False
        waiter.arrived_ns = now_ns
        waiter.amounts = self.ledger.amounts(waiter.cost)
        if self.stopped is not None:
            return self.stopped
        if self.queue.length > len(self._attempts):
            never = self.ledger.never(waiter.amounts)
            return WaitUntil(*self.soonest(now_ns, waiter)) if never is None else never
        decision = PENDING if self.queue.length else self._reserve(now_ns, waiter)
        if decision is PENDING:
            waiter.number, waiter.queued = self.queue.next_number(), True
            self.queue.push(waiter)
            self._attempts.append(waiter)
            self._set_wake(now_ns)
        return decision

    def resolve(self, now_ns: int, resolution: Resolution) -> list[Waiter]:
        """The capacity has heard from its store; return the waiters whose ``outcome`` is set by that."""
        asked, until, changed = resolution
        if isinstance(until, StoreLost):
            return self._turn_away(until)
        if changed:
            self.recount()
        again = []
        if until is None:
            again, self._attempts = [waiter for waiter in self._attempts if self.queue.withdraw(waiter)], []
            self.counts["store_lost"] += changed
        done = self.pump(now_ns)
        self._attempts = [waiter for waiter in self._attempts if waiter not in asked]
        for waiter in asked:
            if waiter.outcome is None and self.queue.withdraw(waiter):
                waiter.outcome = until
                done.append(waiter)
        for waiter in again:
            waiter.outcome = self.attempt(now_ns, waiter)
        self._set_wake(now_ns)
        return done + again

    @property
    def attempts(self) -> Sequence[Waiter]:
        """The waiters of :meth:`attempt` whose decision is not known yet."""
        return tuple(self._attempts)

    def pump(self, now_ns: int) -> list[Waiter]:
        """Grant those that may go now; return the waiters whose ``outcome`` is set."""
        queue, ledger = self.queue, self.capacity.ledger
        if ledger.look_ns <= now_ns:
            self.counts["lost"] += ledger.expire(now_ns)
        if self.stopped is not None:
            return self._turn_away(self.stopped)
        done = self._overdue(now_ns, now_ns - 1)  # a deadline at this very instant is still kept
        while (head := queue.head()) is not None:
            decision = self._reserve(now_ns, head)
            if isinstance(decision, WaitUntil):
                break
            queue.pop(ledger.share(head.amounts))
            head.outcome = decision
            if isinstance(decision, Reservation):
                waited_ns = now_ns - head.arrived_ns
                self.waited_ns += waited_ns
                if waited_ns > self.longest_ns:
                    self.longest_ns = waited_ns
            done.append(head)
        done += self._overdue(now_ns, now_ns)
        self._set_wake(now_ns)
        return done

    def drain(self) -> None:
        """Forget all waiters: in a forked process they belong to the parent."""
        self.queue.drain()
        self._attempts.clear()

    def withdraw(self, now_ns: int, waiter: Waiter) -> None:
        """The caller behind ``waiter`` is gone: a grant that it got meanwhile is given back."""
        if isinstance(waiter.outcome, Reservation):
            self.cancel(now_ns, waiter.outcome)
        else:
            self.queue.withdraw(waiter)

    def settle(self, now_ns: int, reservation: Reservation, actual: Cost | None, waiter: Waiter | None = None) -> None:
        """Close ``reservation`` with its true cost (``None``: as reserved)."""
        if not reservation.open:
            return
        self.counts["settled"] += 1
        self.refused_in_row = 0
        amounts = self.capacity.settle(now_ns, reservation, actual)
        if actual:
            self._compare(reservation.cost, actual)
            if waiter is not None and waiter.queued:
                share = self.ledger.share
                self.queue.correct(waiter, share(amounts) - share(reservation.amounts))

    def _compare(self, cost: Cost, actual: Cost) -> None:
        """Add an estimate and its true cost to :attr:`estimates`."""
        for unit, amount in actual.items():
            if unit in cost:
                pair = self.estimates[unit]
                pair[0] += cost[unit]
                pair[1] += amount
        if TOKENS not in cost and TOKENS in self.ledger.units and TOKENS in (true := merged(cost, actual)):
            pair = self.estimates[TOKENS]
            pair[0] += total_tokens(cost)
            pair[1] += true[TOKENS]

    def cancel(self, now_ns: int, reservation: Reservation) -> None:
        """Close ``reservation``: its request was never sent."""
        if reservation.open:
            self.counts["cancelled"] += 1
            self.capacity.cancel(now_ns, reservation)

    def refuse(self, now_ns: int, reservation: Reservation, refusal: Refusal, pause_s: float) -> None:
        """The provider refused: keep the charge, and pause the whole pool for ``pause_s``.

        A refusal for money stops the pool; the next :meth:`pump` turns away the requests that wait.
        """
        self.counts[f"refused_{refusal.kind.value}"] += 1
        if reservation.granted_ns >= self._row_since_ns:  # the others left before this, and add nothing
            self.refused_in_row += 1
            self._row_since_ns = now_ns
        if self.capacity.refuse(now_ns, reservation, refusal, round(max(pause_s, 0.0) * NS)):
            self.recount()
        if refusal.kind is RefusalKind.MONEY:
            self.stop(refusal.message or refusal.code)

    def observe(self, now_ns: int, readings: Iterable[Reading], reservation: Reservation) -> None:
        """Learn from the headers of the answer to ``reservation``'s attempt; before it is settled."""
        if self.capacity.observe(now_ns, list(readings), reservation):
            self.recount()

    def recount(self) -> None:
        """The quotas are others now: compute the amounts of all requests that wait again."""
        for waiter in self.queue:
            waiter.amounts = self.ledger.amounts(waiter.cost)

    def stop(self, reason: str) -> None:
        """Send nothing more until :meth:`resume`."""
        self.stopped = Stopped(reason)

    def resume(self) -> None:
        """Forget a stop."""
        self.stopped = None

    def pause(self, until_ns: int) -> None:
        """Grant nothing before ``until_ns``, and one attempt first."""
        self.capacity.pause(until_ns)

    def lift(self, now_ns: int, until_ns: int) -> None:
        """End the pause until ``until_ns``, if it is the one in force."""
        self.capacity.lift(now_ns, until_ns)

    def soonest(self, now_ns: int, waiter: Waiter) -> tuple[int, str]:
        """A lower bound on when a newcomer can go, and what binds: only cancellations could make it earlier.

        Of those ahead only the requests are counted; their tokens may yet be refunded.
        """
        at_ns, binding = self.capacity.earliest(now_ns, waiter.amounts)
        ahead = self.queue.ahead_of_newcomer(waiter.lane) if not waiter.returned else 0
        if ahead:
            for i, m in enumerate(self.ledger.meters):
                if m.quota.unit == REQUESTS and waiter.amounts[i]:
                    then_ns = m.earliest(now_ns, waiter.amounts[i] + ahead)
                    if then_ns > at_ns:
                        at_ns, binding = then_ns, i
        return at_ns, self._named(now_ns, at_ns, binding)

    def place(self, now_ns: int, waiter: Waiter) -> tuple[int, int, str]:
        """How many go before ``waiter``, when it should go if no estimate is corrected, and what binds then."""
        before = self.queue.before(waiter)
        amounts = [sum(column) for column in zip(waiter.amounts, *(w.amounts for w in before), strict=True)]
        at_ns, binding = self.capacity.earliest(now_ns, amounts)
        return len(before), at_ns, self._named(now_ns, at_ns, binding)

    def binds(self, now_ns: int) -> str | None:
        """What the first in the queue waits for; where it may go this very moment, what it has waited for."""
        head = self.queue.head()
        if head is None:
            return None
        at_ns, binding = self.capacity.earliest(now_ns, head.amounts)
        return self.ledger.name(binding) if self.capacity.behind == QUEUE else self._named(now_ns, at_ns, binding)

    def _named(self, now_ns: int, at_ns: int, binding: int) -> str:
        """What is waited for, where the quota ``binding`` binds until ``at_ns``."""
        return self.ledger.name(binding) if at_ns > now_ns else self.capacity.behind

    def _reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        ledger = self.capacity.ledger
        if ledger.look_ns <= now_ns:
            self.counts["lost"] += ledger.expire(now_ns)
        decision = self.capacity.reserve(now_ns, waiter)
        if isinstance(decision, Reservation):
            self.counts["granted"] += 1
        return decision

    def _overdue(self, now_ns: int, deadline_ns: int) -> list[Waiter]:
        """Turn away the requests whose deadline is ``deadline_ns`` or earlier."""
        late = self.queue.overdue(deadline_ns)
        head = self.queue.head() if late else None
        for waiter in late:
            at_ns, binding = self.capacity.earliest(now_ns, waiter.amounts)
            if at_ns <= now_ns and head is not None:  # the first of the others would go before it
                both = [a + b for a, b in zip(waiter.amounts, head.amounts, strict=True)]
                at_ns, binding = self.capacity.earliest(now_ns, both)
            waiter.outcome = Expired(at_ns, self._named(now_ns, at_ns, binding))
            self.counts["expired"] += 1
        return late

    def _turn_away(self, why: Stopped | StoreLost) -> list[Waiter]:
        waiters = self.queue.drain()
        for waiter in waiters:
            waiter.outcome = why
        self._attempts.clear()
        self.wake_ns = None
        return waiters

    def _set_wake(self, now_ns: int) -> None:
        head = self.queue.head()
        if head is None:
            self.wake_ns = None
            return
        at_ns, deadline_ns = self.capacity.wake_ns(now_ns, head), self.queue.next_deadline_ns
        self.wake_ns = min((ns for ns in (at_ns, deadline_ns) if ns is not None), default=None)
