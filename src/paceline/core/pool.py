"""One pool: a ledger and the line before it. Commands in, outcomes out; still no clock and no lock.

The shell calls a method under its lock, then wakes whoever the method says and sets one timer for
:attr:`Pool.wake_ns`. Nothing here waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from paceline.core.learning import Learning
from paceline.core.ledger import Ledger
from paceline.core.meters import FAR_NS
from paceline.core.queue import Queue, Waiter
from paceline.core.quota import INPUT_TOKENS, NS, OUTPUT_TOKENS, REQUESTS, TOKENS, Cost, Quota
from paceline.core.results import (
    QUEUE,
    STORE,
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
from paceline.pacing.status import report

WAITING_MAX = 1_000_000
"""The default bound on a line; a waiter takes about half a kilobyte."""


class Pool:
    """The quotas that a provider charges together, and those who wait for them.

    Attributes:
        name: Its name, e.g. ``openai/gpt-5``.
        ledger: What is left.
        line: Who waits.
        wake_ns: When :meth:`pump` has something to do again, if nothing happens before; ``None`` for never.
        stirred: Whether something is to be told to a store that the shell has not looked for.
        counts: How many were granted, settled, cancelled, refused (by kind), expired and lost.
        waited_ns: How long all that were granted had waited.
        longest_ns: How long one of them had waited at most.
        estimates: Per unit what was reserved, over all that reported in the end how much it was, and how much that was.
        refused_in_row: How many attempts, one after the other, have been refused since the last answer.
        sources: For each quota, where its limit comes from.
        asks: Whether it asks a store who may go.
        paused_ns: Until when this process pauses by itself, where others go on.
    """

    def __init__(
        self,
        name: str,
        quotas: Iterable[Quota],
        now_ns: int,
        *,
        headroom_s: float = 1.0,
        ttl_s: float = 900.0,
        waiting_max: int = WAITING_MAX,
        gentle: bool = False,
        source: str = "given",
    ) -> None:
        self.name = name
        self.ledger = Ledger(quotas, now_ns, headroom_s=headroom_s, ttl_s=ttl_s, gentle=gentle)
        self.learning = Learning(self.ledger) if gentle else None  # where a provider keeps books, too
        self.queue = Queue()
        self.wake_ns: int | None = None
        self.stirred = False
        self.asks = False
        self.paused_ns = 0
        self.counts: defaultdict[str, int] = defaultdict(int)  # a Counter is three times as slow
        self.sources = [source] * len(self.ledger.meters)
        self.waited_ns = self.longest_ns = 0
        self.estimates: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.stopped: Stopped | None = None
        self.refused_in_row = 0
        self._row_since_ns = 0
        self._waiting_max = waiting_max

    def submit(self, now_ns: int, waiter: Waiter) -> Outcome:
        """Grant ``waiter`` at once, let it join the line (``WaitUntil``), or say why not.

        A waiter that has been in the line before returns to its old place: the front of its lane.
        """
        ledger = self.ledger
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
        if never is not None and self._is_current(now_ns):
            return never
        if self.queue.length >= self._waiting_max:
            return QueueFull(self.queue.length)
        at_ns, quota = self.soonest(now_ns, waiter)
        if waiter.deadline_ns is not None and FAR_NS != at_ns > waiter.deadline_ns and self._is_current(now_ns):
            self.counts["expired"] += 1
            return Expired(at_ns, quota)
        waiter.queued = True
        self.queue.push(waiter)
        self._set_wake(now_ns)
        return WaitUntil(at_ns, quota)

    def attempt(self, now_ns: int, waiter: Waiter) -> Outcome:
        """Grant ``waiter`` at once or not at all: it never joins the line, and never overtakes it."""
        waiter.outcome, waiter.queued = None, False
        waiter.arrived_ns = now_ns
        waiter.amounts = self.ledger.amounts(waiter.cost)
        if self.stopped is not None:
            return self.stopped
        if self.queue.length:
            never = self.ledger.never(waiter.amounts)
            return WaitUntil(*self.soonest(now_ns, waiter)) if never is None else never
        return self._reserve(now_ns, waiter)

    def pump(self, now_ns: int) -> list[Waiter]:
        """Let go whoever may go now; return the waiters whose ``outcome`` is set."""
        queue, ledger = self.queue, self.ledger
        if ledger.look_ns <= now_ns:
            self.counts["lost"] += ledger.expire(now_ns)
        if self.stopped is not None:
            return self._turn_away(self.stopped)
        done = self._overdue(now_ns, now_ns - 1)  # whose deadline is this very instant may still go
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

    def withdraw(self, now_ns: int, waiter: Waiter) -> None:
        """Whoever waited with ``waiter`` is gone: nothing is lost, whether it was granted meanwhile or not."""
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
        self._settle(now_ns, reservation, actual)
        if actual:
            cost, estimates = reservation.cost, self.estimates
            for unit, amount in actual.items():
                if unit in cost:
                    pair = estimates[unit]
                    pair[0] += cost[unit]
                    pair[1] += amount
            if self.ledger.counts_sums and TOKENS not in cost:
                self._compare_sums(cost, actual)
            if waiter is not None and waiter.queued:
                true = self.ledger.actual_amounts(reservation, actual)
                self.queue.correct(waiter, self.ledger.share(true) - self.ledger.share(reservation.amounts))

    def _compare_sums(self, cost: Cost, actual: Cost) -> None:
        """Compare the tokens that the ledger counts as the sum of input and output."""
        known = cost | actual
        if TOKENS in known or INPUT_TOKENS in actual or OUTPUT_TOKENS in actual:
            pair = self.estimates[TOKENS]
            pair[0] += cost.get(INPUT_TOKENS, 0.0) + cost.get(OUTPUT_TOKENS, 0.0)
            pair[1] += known.get(TOKENS, known.get(INPUT_TOKENS, 0.0) + known.get(OUTPUT_TOKENS, 0.0))

    def cancel(self, now_ns: int, reservation: Reservation) -> None:
        """Close ``reservation``: its request was never sent."""
        if reservation.open:
            self.counts["cancelled"] += 1
            self._cancel(now_ns, reservation)

    def refuse(self, now_ns: int, reservation: Reservation, refusal: Refusal, pause_s: float) -> None:
        """The provider refused: keep the charge, and let the whole pool pause for ``pause_s``.

        A refusal for money stops the pool; those who wait are turned away by the next :meth:`pump`.
        """
        self.counts[f"refused_{refusal.kind.value}"] += 1
        pause_ns = round(max(pause_s, 0.0) * NS)
        ours = refusal.kind in (RefusalKind.RATE, RefusalKind.GROWTH)
        self._keep(now_ns, reservation, pause_ns, ours=ours)
        if reservation.granted_ns >= self._row_since_ns:  # the others left before this, and say the same
            self.refused_in_row += 1
            self._row_since_ns = now_ns
        self._study(now_ns, reservation, refusal, pause_ns)
        if refusal.kind is RefusalKind.MONEY:
            self.stop(refusal.message or refusal.code)

    def observe(self, now_ns: int, readings: Iterable[Reading], reservation: Reservation) -> None:
        """Learn from the headers of the answer to ``reservation``'s attempt; before it is settled."""
        self._study(now_ns, reservation, readings)

    def stop(self, reason: str) -> None:
        """Send nothing more until :meth:`resume`."""
        self.stopped = Stopped(reason)

    def resume(self) -> None:
        """Forget a stop."""
        self.stopped = None

    def soonest(self, now_ns: int, waiter: Waiter) -> tuple[int, str]:
        """A lower bound on when a newcomer can go, and what binds: only cancellations could make it earlier.

        Of those ahead only the requests are counted; what they will cost in tokens may yet be refunded.
        """
        ledger = self.ledger
        at_ns, binding = self.earliest(now_ns, waiter.amounts)
        ahead = self.queue.ahead_of_newcomer(waiter.lane) if not waiter.returned else 0
        if ahead:
            for i, m in enumerate(ledger.meters):
                if m.quota.unit == REQUESTS and waiter.amounts[i]:
                    then_ns = m.earliest(now_ns, waiter.amounts[i] + ahead)
                    if then_ns > at_ns:
                        at_ns, binding = then_ns, i
        return at_ns, self.named(now_ns, at_ns, binding)

    def place(self, now_ns: int, waiter: Waiter) -> tuple[int, int, str]:
        """How many go before ``waiter``, when it should go if no estimate is corrected, and what binds then."""
        before = self.queue.before(waiter)
        amounts = [sum(column) for column in zip(waiter.amounts, *(t.amounts for t in before), strict=True)]
        at_ns, binding = self.earliest(now_ns, amounts)
        return len(before), at_ns, self.named(now_ns, at_ns, binding)

    def earliest(self, now_ns: int, amounts: list[float]) -> tuple[int, int]:
        """As :meth:`Ledger.earliest`, and not before this process goes on."""
        at_ns, binding = self.ledger.earliest(now_ns, amounts)
        return (at_ns, binding) if at_ns >= self.paused_ns else (self.paused_ns, -1)

    def named(self, now_ns: int, at_ns: int, binding: int) -> str:
        """What is waited for, where the meter ``binding`` binds until ``at_ns``; from then on, those ahead or the store."""
        if at_ns > now_ns:
            return self.ledger.name(binding)
        return STORE if self.asks else QUEUE

    def status(self, now_ns: int) -> dict[str, Any]:
        """Everything that a reader may want to see, as plain JSON values; durations in seconds, waits rounded up."""
        return report(self, now_ns)

    def pause(self, until_ns: int) -> None:
        """Grant nothing before ``until_ns``, and one attempt first."""
        self.ledger.pause(until_ns)

    def lift(self, now_ns: int, until_ns: int) -> None:
        """End the pause until ``until_ns``, if it is the one in force."""
        self.ledger.lift(now_ns, until_ns)

    # What follows touches the books. Where they are shared, `SharedCapacity` tells the store instead.

    def _is_current(self, now_ns: int) -> bool:  # noqa: ARG002
        """Whether the books say how it is now."""
        return True

    def _settle(self, now_ns: int, reservation: Reservation, actual: Cost | None) -> None:
        self.ledger.settle(now_ns, reservation, actual)

    def _cancel(self, now_ns: int, reservation: Reservation) -> None:
        self.ledger.cancel(now_ns, reservation)

    def _keep(self, now_ns: int, reservation: Reservation, pause_ns: int, *, ours: bool) -> None:
        """The attempt was refused; ``ours``: for our own rate."""
        self.ledger.close(reservation)
        if pause_ns:
            self.ledger.pause(now_ns + pause_ns)
        if ours and self.learning is not None:
            self.learning.kept(reservation)

    def _study(
        self, now_ns: int, reservation: Reservation, said: Refusal | Iterable[Reading], pause_ns: int = 0
    ) -> None:
        """Learn from what an answer said."""
        if self.learning is None:
            return
        if isinstance(said, Refusal):
            self._relearn(self.learning.refused(now_ns, reservation, said, pause_ns))
        else:
            self._relearn(self.learning.observe(now_ns, said, reservation))

    def _relearn(self, changed: list[int]) -> None:
        """The quotas at these indexes are others now, or new."""
        for index in changed:
            self.sources[index:] = ["answer", *self.sources[index + 1 :]]
        if changed:
            for waiter in self.queue:
                waiter.amounts = self.ledger.amounts(waiter.cost)

    def _reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        if self.ledger.look_ns <= now_ns:
            self.counts["lost"] += self.ledger.expire(now_ns)
        decision = self.ledger.reserve(now_ns, waiter.cost, waiter.amounts)
        if isinstance(decision, Reservation):
            self.counts["granted"] += 1
            if self.learning is not None:
                self.learning.granted(now_ns, decision)
        return decision

    def _overdue(self, now_ns: int, deadline_ns: int) -> list[Waiter]:
        """Turn away those who wait and whose deadline is ``deadline_ns`` or earlier."""
        late = self.queue.overdue(deadline_ns)
        head = self.queue.head() if late else None
        for waiter in late:
            at_ns, binding = self.earliest(now_ns, waiter.amounts)
            if at_ns <= now_ns and head is not None:  # it is not alone: the first of the others would go before
                both = [a + b for a, b in zip(waiter.amounts, head.amounts, strict=True)]
                at_ns, binding = self.earliest(now_ns, both)
            waiter.outcome = Expired(at_ns, self.named(now_ns, at_ns, binding))
            self.counts["expired"] += 1
        return late

    def _turn_away(self, why: Stopped | StoreLost) -> list[Waiter]:
        waiters = self.queue.drain()
        for waiter in waiters:
            waiter.outcome = why
        self.wake_ns = None
        return waiters

    def _set_wake(self, now_ns: int) -> None:
        head = self.queue.head()
        if head is None:
            self.wake_ns = None
            return
        at_ns = min(self.ledger.earliest(now_ns, head.amounts)[0], self.ledger.next_expiry_ns)
        deadline_ns = self.queue.next_deadline_ns
        self.wake_ns = at_ns if deadline_ns is None else min(at_ns, deadline_ns)
