"""A pool whose books many processes share: the line is here, the books are in a store.

Still no IO: :meth:`SharedCapacity.message` says what to ask the store, :meth:`SharedCapacity.receive` takes its answer, and
:meth:`SharedCapacity.failed` the news that there is none. Between two answers this process goes by its *replica*, a ledger
that looks like the books did at the last answer; it is for looking only.

Only those who go next are asked for, as many as should fit. What the store grants comes as leases
(:mod:`~paceline.shared.leases`), and the line spends them in its own order. What happens to attempts is told with
the next question; if there is none, a little later. What answers teach is learned on the replica right after an
answer of the store, when it is as the books are, and told with the next message: it counts if nobody else was faster.

While the store is lost, the pool goes on with a ledger of its own: this process's share of what the replica says. When
the store answers again, what was spent meanwhile is charged there, and a moment later, when the other processes have
done the same, the books rule again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from paceline.core.learning import Learning
from paceline.core.ledger import COOL_DOWN, PROBE_NS, Ledger
from paceline.core.meters import Slots
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import NS, Cost, Quota
from paceline.core.results import Decision, Outcome, Reading, Refusal, Reservation, StoreLost, WaitUntil
from paceline.shared.leases import Lease, Leases
from paceline.shared.messages import Learned, Message, Refused, Reply, Settled
from paceline.shared.outbox import LINGER_NS, Outbox
from paceline.shared.snapshot import STORE_LOST, Fallback, Snapshot

LostMode = Literal["safe", "closed", "open"]

ASK_AGAIN_NS, PLACE_NS = 1 * NS, 5 * NS
"""Who waits asks again after the first at the earliest and the second at the latest: another's refund may help."""

SLOT_NS = NS // 200
"""Who waits for another process's slot asks again after this for each process: nobody knows when one comes free."""

ASK_MIN_NS = NS // 1_000
"""Nobody asks again sooner: rounded up twice, a wait can be a nanosecond for as long as somebody else is ahead."""

CURRENT_NS = NS // 4
"""What the store said longer ago turns nobody away: another process may have given something back."""

RENEW_NS = 5 * NS
"""How often a process that holds slots says so."""

RETRY_NS = 1 * NS
"""How often a lost store is tried."""

REJOIN_NS = 3 * NS // 2
"""How long after a lost store's first answer the books rule again: all others have told by then what they spent."""


_ASK = WaitUntil(0, "")  # the store knows


class SharedCapacity(Pool):
    """One process's side of a shared pool.

    Args:
        name: Its name.
        quotas: What is configured here.
        now_ns: The present.
        who: This process, by a name that no other has.
        lost: What to do while the store is lost: go on with a share of the limit, let nobody go, or go on as if alone.
        lease_s: How long a lease lasts at most, in seconds; 0: ask for every request; ``None``: by the measured load.
        options: As for :class:`Pool`.
    """

    def __init__(
        self,
        name: str,
        quotas: Iterable[Quota],
        now_ns: int,
        *,
        who: str,
        lost: LostMode = "safe",
        lease_s: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, quotas, now_ns, **options)
        self.who, self.lost_mode, self.asks = who, lost, True
        self.lost: str | None = None  # why
        self.peers = 1
        self._joined = False
        self.ledger = self._replica = Snapshot(self.ledger, now_ns)
        if self.learning is not None:
            self.learning = Learning(self._replica, self._learned)
        self.outbox = Outbox()
        self._leases = Leases(now_ns, lease_s)
        self._low: Lease | None = None  # for which it was said that it is time for the next lease
        self._asked: Message | None = None
        self._unread: list[tuple[Reservation, Refusal | Iterable[Reading], int]] = []
        self._reading: list[tuple[Reservation, Refusal | Iterable[Reading], int]] = []
        self._trying, self._tried = list[Waiter](), list[Waiter]()  # go with the next answer, or not at all
        self._head: Waiter | None = None  # that was asked for last
        self._ask_ns = 0  # when to ask for the head again
        self._called_ns = now_ns
        self._left_ns = -1  # when we signed off
        self._back_ns: int | None = None  # when a lost store answered again
        self._probe: Reservation | bool = False  # goes alone after that: the next one, or this one

    def attempt(self, now_ns: int, waiter: Waiter) -> Outcome:
        """As :meth:`Pool.attempt`; ``WaitUntil`` with ``waiter.queued``: the store's answer will decide."""
        if self.lost is not None or self.stopped is not None or len(self.queue) > len(self._trying):
            return super().attempt(now_ns, waiter)
        if not len(self.queue):
            decision = super().attempt(now_ns, waiter)
            if not isinstance(decision, WaitUntil) or now_ns < self.paused_ns:
                return decision
        waiter.arrived_ns, waiter.amounts = now_ns, self.ledger.amounts(waiter.cost)
        waiter.number, waiter.queued, waiter.outcome = self.queue.next_number(), True, None
        self.queue.push(waiter)
        self._trying.append(waiter)
        self._set_wake(now_ns)
        return WaitUntil(now_ns, "")

    @property
    def call_ns(self) -> int | None:
        """When :meth:`message` has something to say, if nothing happens before; ``None``: not before an answer."""
        if self._asked is not None:
            return None
        if self.lost is not None:
            return self._ask_ns
        due = [at_ns for at_ns in (self.outbox.due_ns, self._leases.expires_ns) if at_ns is not None]
        if len(self.queue):
            asked = self.queue.head() is self._head
            due.append(max(self._ask_ns if asked else 0, self.paused_ns))
        elif self._head is not None:  # its place is not needed any more
            due.append(self._called_ns + LINGER_NS)
        elif self._leases.low:
            due.append(self._called_ns + LINGER_NS)  # the next lease before this one is spent
        if self._replica.has_slots and self._replica.in_flight:
            due.append(self._called_ns + RENEW_NS)
        return min(due, default=None)

    def message(self, now_ns: int, *, at_once: bool = False) -> Message | None:
        """What to say to the store now; ``None`` when nothing is due (``at_once``: when there is nothing to say at all).

        The answer goes to :meth:`receive`, or to :meth:`failed`.
        """
        due_ns = self.call_ns
        leaving = at_once and self._joined and self._asked is None and self._left_ns != self._called_ns
        if not leaving and (due_ns is None or (due_ns > now_ns and not at_once)):
            return None
        self._give_back(now_ns, everything=at_once)
        wants = []
        if self.lost is None and now_ns >= self.paused_ns:
            wants = self._leases.wants(now_ns, self._replica, self.queue, self.learning, self.peers)
            if self._probe:
                del wants[1:]
        self._reading, self._unread = self._reading + self._unread, []
        self._tried = list(self._trying)
        self._called_ns = now_ns
        told = self.outbox.take(now_ns, self.ledger if isinstance(self.ledger, Fallback) else None)
        message = Message(self.who, self.outbox.number, fresh=not self._joined, news=told, wants=wants)
        message.held, message.slack_ns = self._held(), self._leases.slack_ns
        message.place_ns = PLACE_NS if len(self.queue) > len(self._trying) else 0
        if at_once and not any(message.held) and not len(self.queue):
            message.leaving, self._left_ns = True, now_ns
        self._replica.introduce(now_ns, message)
        self._asked = message
        return message

    def receive(self, now_ns: int, reply: Reply) -> list[Waiter]:
        """Take the store's answer; the waiters whose ``outcome`` is set by it."""
        asked, self._asked, self._joined = self._asked, None, True
        assert asked is not None
        self.outbox.confirm()
        self.peers = max(reply.peers, 1)
        if self.lost is not None and not self._rejoin(now_ns):
            return self.pump(now_ns)
        self._relearn(self._replica.follow_reply(now_ns, reply, self.learning))
        for n, marks in enumerate(reply.grants):
            self._leases.leases.append(
                Lease(asked.wants[n], marks, now_ns, asked.slack_ns, probe=reply.probe and n == 0)
            )
        self._digest(now_ns)
        done = self.pump(now_ns)
        self._head = self.queue.head()
        wait_ns = max(reply.wait_ns, ASK_MIN_NS) if len(reply.grants) < len(asked.wants) else 0
        self._ask_ns = now_ns + min(wait_ns, max(ASK_AGAIN_NS, wait_ns // 8), PLACE_NS)
        if reply.binds >= 0 and self.peers > 1 and isinstance(self._replica.meters[reply.binds], Slots):
            self._ask_ns = min(self._ask_ns, now_ns + self.peers * SLOT_NS)
        binds = self.ledger.name(reply.binds)
        for waiter in self._tried:
            self._trying.remove(waiter)
            if waiter.outcome is None and self.queue.withdraw(waiter):
                waiter.outcome = WaitUntil(now_ns + reply.wait_ns, binds)
                done.append(waiter)
        self._tried.clear()
        self._give_back(now_ns)
        self._set_wake(now_ns)
        return done

    def failed(self, now_ns: int, reason: str) -> list[Waiter]:
        """The store has not answered; what it may have granted stays charged. The waiters that this decides."""
        self._asked = None
        self._ask_ns = now_ns + RETRY_NS
        tried = [waiter for waiter in self._trying if self.queue.withdraw(waiter)]
        self._trying, self._tried = [], []
        if not self._joined and self.lost_mode != "open":
            for waiter in tried:
                waiter.outcome = StoreLost(reason)
            return tried + self._turn_away(StoreLost(reason))
        if self.lost is None:
            self._lose(now_ns)
        self.lost, self._back_ns = reason, None
        done = self.pump(now_ns)
        for waiter in tried:
            waiter.outcome = super().attempt(now_ns, waiter)
        return done + tried

    def pause(self, until_ns: int) -> None:
        """Only this process: it may be its own network that fails."""
        self.paused_ns, self._probe = max(self.paused_ns, until_ns), True

    def lift(self, now_ns: int, until_ns: int) -> None:
        """End the pause until ``until_ns``, if it is the one in force."""
        if self.paused_ns == until_ns > now_ns:
            self.paused_ns, self._probe = now_ns, False

    def forked(self, who: str, now_ns: int) -> None:
        """This is another process now: what was granted, and what there is to tell, stayed with its parent."""
        self.who, self._called_ns = who, now_ns
        self._asked = self._head = None
        self._trying, self._tried, self._unread, self._reading = [], [], [], []
        self.outbox.clear()
        self._leases.give_back(now_ns, everything=True)
        for ledger in (self._replica, self.ledger):
            for reservation in ledger.open:
                ledger.close(reservation)
        if isinstance(self.ledger, Fallback):
            self.ledger.news(now_ns)  # its parent tells
        self.stirred = True  # no timer came along

    def status(self, now_ns: int) -> dict[str, Any]:
        """As :meth:`Pool.status`, and how it stands with the store."""
        store: dict[str, Any] = {"state": "joined" if self._joined else "new", "peers": self.peers}
        if self.lost is not None:
            store |= {"state": "lost", "mode": self.lost_mode, "reason": self.lost}
        return super().status(now_ns) | {"store": store}

    # What a message says.

    def _held(self) -> list[float]:
        holders: set[Ledger | Leases] = {self._replica, self.ledger, self._leases}
        meters = enumerate(self._replica.meters)
        return [sum(holder.held(i) for holder in holders) if isinstance(m, Slots) else 0.0 for i, m in meters]

    # What an answer changes here.

    def _digest(self, now_ns: int) -> None:
        """Learn from the answers that came before the store was asked: the replica has seen what they saw."""
        for reservation, said, pause_ns in self._reading:
            super()._study(now_ns, reservation, said, pause_ns)
        self._reading = []

    def _learned(self, index: int, what: str, value: float | Quota) -> None:
        if not isinstance(value, Quota):  # a new one is introduced with the next message
            self.outbox.add(self._replica.as_of_ns, Learned(index, what, value), at_once=True)  # type: ignore[arg-type]

    def _give_back(self, now_ns: int, *, everything: bool = False) -> None:
        for rest in self._leases.give_back(now_ns, everything=everything):
            self.outbox.add(now_ns, rest)

    # The hooks of Pool.

    def _is_current(self, now_ns: int) -> bool:
        return self.lost is not None or now_ns - self._replica.as_of_ns < CURRENT_NS

    def _reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        if self._probe and now_ns < self.paused_ns:
            return WaitUntil(self.paused_ns, COOL_DOWN)
        if self.lost is not None:
            return self._reserve_alone(now_ns, waiter)
        amounts, leases = waiter.amounts, self._leases
        lease = leases.last
        if (lease is None or not lease.take(amounts)) and (lease := leases.take(amounts)) is None:
            # A waiter's, too: others may have learned that the quota is smaller.
            never = self._replica.never(amounts) if self._is_current(now_ns) else None
            return _ASK if never is None else never
        reservation = Reservation(waiter.cost, amounts, (), now_ns, now_ns + self._replica.ttl_ns, lease)
        self._replica.hold(reservation)
        self.counts["granted"] += 1
        if self.learning is not None:
            self.learning.drawn(now_ns, reservation)
        if lease.low and lease is not self._low and leases.low:
            self._low, self.stirred = lease, True  # time for the next lease
        if self._probe:
            self._probe, self.paused_ns = reservation, now_ns + PROBE_NS
        return reservation

    def _reserve_alone(self, now_ns: int, waiter: Waiter) -> Decision:
        if self.ledger is self._replica:
            return WaitUntil(max(self._ask_ns, now_ns + 1), STORE_LOST)
        decision = super()._reserve(now_ns, waiter)
        if self._probe and isinstance(decision, Reservation):
            self._probe, self.paused_ns = decision, now_ns + PROBE_NS
        return decision

    def _close(self, now_ns: int, reservation: Reservation) -> bool:
        """An attempt is over; whether it was granted while the store is lost, and still is."""
        if reservation is self._probe:
            self._probe, self.paused_ns = False, now_ns
        if not isinstance(self.ledger, Fallback):
            self._replica.close(reservation)
            return False
        alone = self.ledger.owns(reservation)
        if not alone:
            self._replica.close(reservation)
            self.ledger.over(reservation)
        return alone

    def _settle(self, now_ns: int, reservation: Reservation, actual: Cost | None) -> None:
        if self.ledger is self._replica and reservation is not self._probe:  # as _close does it: this is the hot path
            self.ledger.close(reservation)
        elif self._close(now_ns, reservation):
            self.ledger.settle(now_ns, reservation, actual)
            return
        lease, amounts = reservation.lease, reservation.amounts
        true = self._replica.actual_amounts(reservation, actual)
        if lease is None:
            self.outbox.owed(now_ns, amounts, true)
            self.stirred = True
        elif lease.answered(amounts, true):
            self.outbox.answered(now_ns, lease)
            self.stirred = True

    def _cancel(self, now_ns: int, reservation: Reservation) -> None:
        if self._close(now_ns, reservation):
            self.ledger.cancel(now_ns, reservation)
            return
        if (lease := reservation.lease) is not None:
            none: list[float | None] = [0.0] * len(reservation.amounts)
            self.outbox.add(now_ns, Settled(reservation.amounts, lease.marks, none, answered=False, probe=lease.probe))

    def _keep(self, now_ns: int, reservation: Reservation, pause_ns: int, *, ours: bool) -> None:
        if self._close(now_ns, reservation):
            super()._keep(now_ns, reservation, pause_ns, ours=False)
            return
        amounts = reservation.amounts if ours else [0.0] * len(reservation.amounts)
        self.outbox.add(now_ns, Refused(amounts, pause_ns), at_once=True)  # all others must hear of it

    def _study(
        self, now_ns: int, reservation: Reservation, said: Refusal | Iterable[Reading], pause_ns: int = 0
    ) -> None:
        if self.learning is not None and reservation.lease is not None and self.lost is None:
            self._unread.append((reservation, said, pause_ns))
            self.outbox.soon(now_ns)

    def _set_wake(self, now_ns: int) -> None:
        due = [self.queue.next_deadline_ns]
        if self.lost is not None and now_ns < self.paused_ns:
            due.append(self.paused_ns)
        elif self.ledger is not self._replica and len(self.queue):
            super()._set_wake(now_ns)
            due.append(self.wake_ns)
        self.wake_ns = min((at_ns for at_ns in due if at_ns is not None), default=None)

    # While the store is lost.

    def _lose(self, now_ns: int) -> None:
        """Go on alone: with this process's share of what the books said last."""
        self.counts["store_lost"] += 1
        self._head = None
        if self.lost_mode == "closed":
            return
        self.ledger = Fallback(self._replica, now_ns, 1.0 if self.lost_mode == "open" else 1.0 / self.peers)
        self._recount()

    def _recount(self) -> None:
        """Other meters count from now on."""
        for waiter in self.queue:
            waiter.amounts = self.ledger.amounts(waiter.cost)

    def _rejoin(self, now_ns: int) -> bool:
        """The lost store has answered; whether its books rule from now on."""
        if self._back_ns is None:
            self._back_ns = self._ask_ns = now_ns  # tell at once what was spent
            return False
        if now_ns < self._back_ns + REJOIN_NS:
            self._ask_ns = self._back_ns + REJOIN_NS
            return False
        if isinstance(self.ledger, Fallback):
            news = self.ledger.news(now_ns)
            if news is not None:
                self.outbox.add(now_ns, news, at_once=True)
            for reservation in self.ledger.open:
                self._replica.hold(reservation)
        self.lost = self._back_ns = None
        self.ledger = self._replica
        self._recount()
        return True
