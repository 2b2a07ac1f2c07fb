"""The capacity of quotas that processes share through a store.

The capacity does no IO: :meth:`SharedCapacity.message` returns the next message to the store,
:meth:`SharedCapacity.receive` takes the reply, and :meth:`SharedCapacity.failed` the reason why there is none. Between
two replies a process reads a *snapshot*: a ledger in the state of the last reply.

A message asks for as many requests from the head of the queue as should fit. The grants arrive as leases
(:mod:`~paceline.shared.leases`), and the queue spends them in its own order. The outcomes of attempts wait in the
*outbox* (:mod:`~paceline.shared.outbox`) for the next message, and what answers teach waits for its reply.

While the store is lost, a *fallback* grants: this process's share of the snapshot. When the store answers again, all
processes report what they have spent, and a moment later the store is authoritative again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from paceline.core.capacity import PENDING, Learns, LocalCapacity, Resolution
from paceline.core.changes import Change
from paceline.core.learning import Learning
from paceline.core.ledger import Ledger
from paceline.core.meters import FAR_NS
from paceline.core.pause import Pause, Phase
from paceline.core.pool import Pool
from paceline.core.queue import Queue, Waiter
from paceline.core.quota import NS, Cost, Quota
from paceline.core.results import (
    COOL_DOWN,
    STORE,
    STORE_LOST,
    Decision,
    Reading,
    Refusal,
    RefusalKind,
    Reservation,
    StoreFormatError,
    StoreLost,
    WaitUntil,
)
from paceline.shared.leases import Lease, LeasedReservation, Leases
from paceline.shared.membership import FEW, Membership, OnStoreFailure, State
from paceline.shared.messages import (
    SHARED_PART,
    Charged,
    Message,
    Refused,
    Reply,
    Settled,
    between_polls_ns,
)
from paceline.shared.outbox import LINGER_NS, Lesson, Lessons, Outbox
from paceline.shared.snapshot import Fallback, Snapshot

ASK_AGAIN_NS, PLACE_NS = 1 * NS, 5 * NS
"""When to ask again for the head of the queue: after the first at the earliest, since a refund may help, and after the
second at the latest."""

ASK_MIN_NS = NS // 1_000
"""The shortest interval between two messages for one request: a wait that is rounded up twice can be a nanosecond."""

CURRENT_NS = NS // 4
"""An older reply turns no request away: another process may have given something back."""

RENEW_NS = 5 * NS
"""How often a process that holds slots reports them."""


class SharedCapacity:
    """One process's side of shared quotas; a :class:`~paceline.core.capacity.Capacity`.

    Args:
        ledger: The quotas as configured in this process; it becomes the snapshot.
        queue: The requests that wait for the quotas.
        now_ns: The present.
        who: A unique name of this process.
        on_store_failure: While the store is lost: grant a share of the limits (``fail_safe``), nothing
            (``fail_closed``), or the whole limits (``fail_open``).
        lease_s: The longest lease in seconds; 0: ask for every request; ``None``: by the measured load.
        learns: Whether answers change the quotas.

    Attributes:
        ledger: The snapshot; while the store is lost, the ledger of the fallback.
        membership: What this process knows of the store.
    """

    behind = STORE

    def __init__(
        self,
        ledger: Ledger,
        queue: Queue,
        now_ns: int,
        *,
        who: str,
        on_store_failure: OnStoreFailure = "fail_safe",
        lease_s: float | None = None,
        learns: Learns = False,
    ) -> None:
        self.who = who
        self.membership = Membership(now_ns, on_store_failure)
        self.exchange_due = False
        self.outbox = Outbox()
        self._queue = queue
        self._snapshot = Snapshot(ledger, now_ns)
        self._fallback: Fallback | None = None
        self.ledger = ledger
        self.learning = Learning(ledger, self._learned, raises=learns == "up") if learns else None
        self._leases = Leases(now_ns, lease_s)
        self._low: Lease | None = None  # the lease that exchange_due was set for
        self._asked: tuple[Message, Sequence[Waiter]] | None = (
            None  # the message without a reply, and its undecided waiters
        )
        self._lessons = Lessons(self.learning) if self.learning is not None else None
        self._replied: tuple[Message, Reply, Sequence[Waiter]] | None = None  # until conclude()
        self._head: Waiter | None = None  # the head of the queue at the last reply
        self._ask_ns = 0  # when to ask for the head again
        self._called_ns = now_ns
        self._leaving_ns = -1  # when the last message with ``leaving`` was sent
        self._random = random.Random(who)
        self._pause: Pause[Reservation] = Pause()  # of this process alone

    # The exchange with the store.

    @property
    def exchange_ns(self) -> int:
        """When :meth:`message` has something to send, if nothing happens before; ``FAR_NS``: not before a reply."""
        if self._asked is not None:
            return FAR_NS
        if self.membership.state.alone:
            return self._ask_ns
        due_ns = min(self.outbox.due_ns, self._leases.expires_ns)
        if self._queue.length:
            asked = self._queue.head() is self._head
            due_ns = min(due_ns, max(self._ask_ns if asked else 0, self._pause.until_ns))
        elif (
            self._head is not None or self._leases.low
        ):  # gives up its place; or the next lease before this one is spent
            due_ns = min(due_ns, self._called_ns + LINGER_NS)
        if self._snapshot.ledger.slot_indexes and self._snapshot.ledger.in_flight:
            due_ns = min(due_ns, self._called_ns + max(RENEW_NS, between_polls_ns(self.membership.peers)))
        return due_ns

    @property
    def idle(self) -> bool:
        """Whether no reply is awaited."""
        return self._asked is None

    def message(self, now_ns: int, undecided: Sequence[Waiter] = (), *, at_once: bool = False) -> Message | None:
        """The message to send now; ``None`` when none is due.

        Args:
            now_ns: The present.
            undecided: The waiters in the queue that the reply grants or turns away; they keep no place in the store.
            at_once: Whether to send all there is, before it is due.

        Pass the reply to :meth:`receive`, or its absence to :meth:`failed`.
        """
        due_ns = self.exchange_ns
        state = self.membership.state
        leaving = at_once and state.known and self._asked is None and self._leaving_ns != self._called_ns
        if not leaving and (due_ns == FAR_NS if at_once else due_ns > now_ns):
            return None
        self._give_back(now_ns, everything=at_once)
        wants = []
        if state.asks and now_ns >= self._pause.until_ns:
            wants = self._leases.wants(now_ns, self._snapshot.ledger, self._queue, self.membership.peers)
            if self._pause.phase is not Phase.OPEN:
                del wants[1:]
        if self._lessons is not None:
            self._lessons.sent()
        self._called_ns = now_ns
        news = self.outbox.take(now_ns, self._leases.slack_ns, self._fallback)
        message = Message(self.who, self.outbox.number, fresh=not state.known, news=news, wants=wants)
        message.held, message.slack_ns = self._held(), self._leases.slack_ns
        message.alone = self._fallback is not None
        message.share = self._fallback.share if self._fallback is not None else self.membership.share_at(now_ns)
        message.closed = self.membership.mode == "fail_closed"
        message.place_ns = PLACE_NS if self._queue.length > len(undecided) else 0
        if at_once and not any(message.held) and not self._queue.length:
            message.leaving, self._leaving_ns = True, now_ns
        self._snapshot.introduce(now_ns, message)
        self._asked = message, tuple(undecided)
        return message

    def receive(self, now_ns: int, reply: Reply) -> Resolution:
        """Apply the store's reply; call :meth:`conclude` when the pool has granted."""
        assert self._asked is not None
        (asked, undecided), self._asked = self._asked, None
        before = self.membership.state
        if before.late:  # it comes back: the others report first what they have spent without it
            self._pause.until_ns = max(self._pause.until_ns, now_ns + self.membership.report_ns)
        self.membership.replied(now_ns, asked, self._called_ns, reply)
        self.outbox.confirm()
        if before.alone:
            self._report(now_ns, first=before is not State.BACK)
            if self.membership.state.alone:
                return Resolution((), WaitUntil(now_ns, STORE_LOST))
            self._rejoin()
        changed_limits = self._snapshot.update(now_ns, reply, self.learning)
        if self.learning is not None:
            for index, limit in changed_limits.items():
                self.learning.learned_elsewhere(now_ns, index, limit)
        changed = list(changed_limits)
        for n, marks in enumerate(reply.grants):
            lease = Lease(asked.wants[n], marks, now_ns, asked.slack_ns, probe=reply.probe and n == 0)
            self._leases.leases.append(lease)
        if self._lessons is not None:
            changed += self._lessons.learn(now_ns)
        self._replied = asked, reply, undecided
        until = WaitUntil(max(now_ns + reply.wait_ns, self._pause.until_ns), self.ledger.name(reply.binds))
        return Resolution(undecided, until, changed=before.alone or bool(changed))

    def _report(self, now_ns: int, *, first: bool) -> None:
        """Report what the fallback has spent: the store answers again."""
        membership, fallback = self.membership, self._fallback
        self._ask_ns = now_ns if first else membership.back_ns + membership.report_ns
        if fallback is None:
            return
        if (news := fallback.news(now_ns)) is not None:
            self.outbox.add(now_ns, news, at_once=True)
        if membership.mode == "fail_safe":
            # Others may have started; if some seem to have ended, they may not have come back yet.
            fallback.resize(now_ns, min(membership.share, fallback.share))
            if first:
                fallback.spend_no_more_at_once(now_ns)

    def _rejoin(self) -> None:
        """Spend grants of the store again; what is in flight stays so."""
        if self._fallback is not None:
            for reservation in self._fallback.local.ledger.open:
                self._snapshot.ledger.keep_open(reservation)
        self._fallback, self.ledger = None, self._snapshot.ledger

    def conclude(self, now_ns: int) -> None:
        """Plan the next message, after the pool has granted what the last reply allows."""
        if self._replied is None:
            return
        (asked, reply, undecided), self._replied = self._replied, None
        turned_away = any(isinstance(waiter.outcome, WaitUntil) for waiter in undecided)
        self._head = None if turned_away else self._queue.head()  # waiters that came meanwhile are asked for at once
        wait_ns = max(reply.wait_ns, ASK_MIN_NS) if len(reply.grants) < len(asked.wants) else 0
        polls_ns = between_polls_ns(self.membership.peers)
        self._ask_ns = now_ns + min(wait_ns, max(ASK_AGAIN_NS, wait_ns // 8, polls_ns), max(PLACE_NS, polls_ns))
        if reply.binds >= 0 and self.membership.peers > 1 and self._snapshot.ledger.accounts[reply.binds].meter.holds:
            self._ask_ns = min(self._ask_ns, now_ns + polls_ns)
        self._give_back(now_ns)

    def failed(self, now_ns: int, reason: str, *, final: bool = False) -> Resolution:
        """Note that there is no reply; what the store may have granted stays charged.

        Args:
            now_ns: The present.
            reason: Why there is none.
            final: Whether this process can have no reply, now that a newer version uses the store: it stops in every mode.
        """
        self._asked = None
        membership, snapshot, before = self.membership, self._snapshot, self.membership.state
        membership.failed(reason, final=final)
        apart = 1.0 if membership.peers <= FEW else self._random.uniform(0.5, 1.5)
        self._ask_ns = now_ns + round(apart * membership.retry_ns)
        if not membership.state.alone:
            self._fallback, self.ledger = None, snapshot.ledger
            return Resolution((), StoreLost(reason))
        if not before.alone:
            self._head = None
            if membership.mode != "fail_closed":
                share = 1.0 if membership.mode == "fail_open" else membership.share_at(now_ns)
                times = snapshot.as_of_ns, self._called_ns, now_ns
                self._fallback = Fallback(snapshot.ledger, *times, share, self._random.random())
                self.ledger = self._fallback.local.ledger
        return Resolution((), None, newly_lost=not before.alone)

    def forked(self, who: str, now_ns: int) -> None:
        """Start as a new process ``who`` in a forked child: leases, attempts and news belong to the parent."""
        self.who, self._called_ns = who, now_ns
        self._random = random.Random(who)  # the parent's would retry in step with it, and with other children
        self._asked = self._head = self._replied = None
        if self._lessons is not None:
            self._lessons = Lessons(self._lessons.learning)
        self.outbox = Outbox()
        self._leases.give_back(now_ns, everything=True)
        for ledger in (self._snapshot.ledger, self.ledger):
            for reservation in ledger.open:
                ledger.close(now_ns, reservation)
        self.membership.share *= (
            1 - SHARED_PART
        ) ** 2  # the least of what a process is told: its parent keeps the share
        if self._fallback is not None:
            self._fallback.news(now_ns)  # discarded: the parent reports it
            if self.membership.mode == "fail_safe":
                self._fallback.resize(now_ns, self.membership.share)
        self.exchange_due = True  # the timer stayed with the parent

    def _held(self) -> list[float]:
        """For each quota of slots, what is in flight or leased in this process."""
        ledger = self._snapshot.ledger
        holders: list[Ledger | Leases] = [ledger, self._leases]
        if self._fallback is not None:
            holders.append(self._fallback.local.ledger)
        held = [0.0] * len(ledger.accounts)
        for i in ledger.slot_indexes:
            held[i] = sum(holder.held(i) for holder in holders)
        return held

    def _learned(self, change: Change | Quota) -> None:
        if isinstance(change, Quota):  # it is part of the next message
            self._snapshot.introduced(change)
        else:
            self.outbox.add(self._snapshot.as_of_ns, change, at_once=True)

    def _give_back(self, now_ns: int, *, everything: bool = False) -> None:
        for rest in self._leases.give_back(now_ns, everything=everything):
            self.outbox.add(now_ns, rest)

    # The port to the pool.

    def reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        """See :meth:`Capacity.reserve <paceline.core.capacity.Capacity.reserve>`."""
        if now_ns < self._pause.until_ns:
            return WaitUntil(self._pause.until_ns, COOL_DOWN)
        if self.membership.state.alone:
            return self._reserve_alone(now_ns, waiter)
        amounts, leases = waiter.amounts, self._leases
        lease = leases.last
        if (lease is None or not lease.take(amounts)) and (lease := leases.take(amounts)) is None:
            # Also for requests in the queue: another process may have learned a lower limit.
            ledger = self._snapshot.ledger
            never = ledger.never(amounts) if self.is_current(now_ns) else None
            waiter.amounts = ledger.fitting(amounts)  # the store grants no more at once; the rest becomes debt
            return PENDING if never is None else never
        ledger = self._snapshot.ledger
        reservation = LeasedReservation(waiter.cost, amounts, [], now_ns, now_ns + ledger.ttl_ns)
        reservation.lease = lease
        ledger.keep_open(reservation)
        if self.learning is not None:
            self.learning.granted_by_store(now_ns, reservation)
        if lease.low and lease is not self._low and leases.low:
            self._low, self.exchange_due = lease, True
        if self._pause.phase is not Phase.OPEN:
            self._pause.granted(now_ns, reservation)
        return reservation

    def _reserve_alone(self, now_ns: int, waiter: Waiter) -> Decision:
        if self._fallback is None:
            return WaitUntil(max(self._ask_ns, now_ns + 1), STORE_LOST)
        self._fallback.take_turn(now_ns, waiter.amounts)
        decision = self._fallback.local.reserve(now_ns, waiter)
        if self._pause.phase is not Phase.OPEN and isinstance(decision, Reservation):
            self._pause.granted(now_ns, decision)
        return decision

    def earliest(self, now_ns: int, amounts: list[float], ahead: list[float] | None = None) -> tuple[int, int]:
        """As :meth:`Ledger.earliest`, but not before the end of this process's own pause."""
        at_ns, binding = self.ledger.earliest(now_ns, amounts, ahead)
        return (at_ns, binding) if at_ns >= self._pause.until_ns else (self._pause.until_ns, -1)

    def is_current(self, now_ns: int) -> bool:
        """Whether the last reply is recent, or the store is lost."""
        return self.membership.state.alone or now_ns - self._snapshot.as_of_ns < CURRENT_NS

    def settle(self, now_ns: int, reservation: Reservation, actual: Cost | None) -> list[float]:
        """See :meth:`Capacity.settle <paceline.core.capacity.Capacity.settle>`."""
        ledger = self._snapshot.ledger
        if self._fallback is None and reservation is not self._pause.probe:  # _close(), inlined in the hot path
            ledger.close(now_ns, reservation)
        elif (local := self._close(now_ns, reservation)) is not None:
            return local.settle(now_ns, reservation, actual)
        amounts = reservation.amounts
        true = ledger.settled_amounts(reservation, actual) if actual else amounts
        if not isinstance(reservation, LeasedReservation):
            debt = [max(a - b, 0.0) for a, b in zip(true, amounts, strict=True)]
            if any(debt):
                self.outbox.add(now_ns, Charged(debt))
            self.exchange_due = True
        elif reservation.lease.answered(amounts, true):
            self.outbox.settled(now_ns, reservation.lease)
            self.exchange_due = True
        if actual and self.learning is not None and self.learning.guesses.open and reservation.notes:
            self.learning.served(now_ns, reservation, true)
        return true

    def cancel(self, now_ns: int, reservation: Reservation) -> None:
        """See :meth:`Capacity.cancel <paceline.core.capacity.Capacity.cancel>`."""
        if (local := self._close(now_ns, reservation)) is not None:
            local.cancel(now_ns, reservation)
        elif isinstance(reservation, LeasedReservation):
            lease, none = reservation.lease, list[float | None]([0.0] * len(reservation.amounts))
            self.outbox.add(now_ns, Settled(reservation.amounts, lease.marks, none, answered=False, probe=lease.probe))

    def refuse(self, now_ns: int, reservation: Reservation, refusal: Refusal, pause_ns: int) -> bool:
        """See :meth:`Capacity.refuse <paceline.core.capacity.Capacity.refuse>`; learning follows the next reply."""
        if (local := self._close(now_ns, reservation)) is not None:
            return local.refuse(now_ns, reservation, refusal, pause_ns)
        ours = refusal.kind in (RefusalKind.RATE, RefusalKind.GROWTH)
        amounts = reservation.amounts if ours else [0.0] * len(reservation.amounts)
        self.outbox.add(now_ns, Refused(amounts, pause_ns), at_once=True)  # the pause is for all processes
        ledger = self._snapshot.ledger
        ledger.pause.until_ns = max(ledger.pause.until_ns, now_ns + pause_ns)  # for who looks before the reply
        self._study(
            now_ns, reservation, lambda learning, at_ns: learning.refused(at_ns, reservation, refusal, pause_ns)
        )
        return False

    def observe(self, now_ns: int, readings: Iterable[Reading], reservation: Reservation) -> bool:
        """See :meth:`Capacity.observe <paceline.core.capacity.Capacity.observe>`; learning follows the next reply."""
        self._study(now_ns, reservation, lambda learning, at_ns: learning.observe(at_ns, readings, reservation))
        return False

    def _study(self, now_ns: int, reservation: Reservation, lesson: Lesson) -> None:
        leased = isinstance(reservation, LeasedReservation) or not reservation.amounts  # of no request of this process
        if self._lessons is not None and leased and not self.membership.state.alone:
            self._lessons.add(lesson)
            self.outbox.soon(now_ns)

    def _close(self, now_ns: int, reservation: Reservation) -> LocalCapacity | None:
        """End an attempt; returns the capacity of the fallback when it has granted the attempt and closes it."""
        self._pause.answered(now_ns, reservation)
        fallback = self._fallback
        if fallback is not None and fallback.local.ledger.owns(reservation):
            return fallback.local
        self._snapshot.ledger.close(now_ns, reservation)
        if fallback is not None:
            fallback.release(reservation)
        return None

    def pause(self, until_ns: int) -> None:
        """Pause this process only: the failure may be in its own network."""
        self._pause.begin(until_ns)

    def lift(self, now_ns: int, until_ns: int) -> None:
        """End the pause until ``until_ns``, if it is the one in force."""
        self._pause.lift(now_ns, until_ns)

    def arrive(self, now_ns: int) -> None:
        """Nothing: the leases of this process are charged already, and the store's quotas are those of all processes."""

    def cool_down_ns(self, now_ns: int) -> int:
        """The rest of the longest pause: that of all processes, or of this one."""
        return max(self.ledger.pause.until_ns, self._pause.until_ns) - now_ns

    def wake_ns(self, now_ns: int, head: Waiter, until: WaitUntil | None = None) -> int | None:  # noqa: ARG002
        """When ``head`` may go while the store is lost; otherwise ``None``, since a reply decides."""
        if self.membership.state.alone and now_ns < self._pause.until_ns:
            return self._pause.until_ns
        return None if self._fallback is None else self._fallback.local.wake_ns(now_ns, head)

    def status(self, now_ns: int) -> dict[str, Any]:  # noqa: ARG002
        """The state of the store, and the number of processes."""
        membership, state = self.membership, self.membership.state
        store: dict[str, Any] = {"state": state.label, "peers": membership.peers}
        if state.alone:
            store |= {"mode": membership.mode, "reason": membership.reason}
        elif state is State.STOPPED:
            store["reason"] = membership.reason
        return {"store": store}


def shared_capacity(pool: Pool) -> SharedCapacity:
    """The capacity of a pool that processes share."""
    capacity = pool.capacity
    assert isinstance(capacity, SharedCapacity), f"{pool.name}: its quotas are kept in this process"
    return capacity


def ask(pool: Pool, now_ns: int, *, at_once: bool = False) -> Message | None:
    """The message of ``pool`` to its store now; see :meth:`SharedCapacity.message`."""
    return shared_capacity(pool).message(now_ns, pool.undecided, at_once=at_once)


def answer(pool: Pool, now_ns: int, reply: Reply | str | StoreFormatError) -> list[Waiter]:
    """Apply the store's reply, or the reason why there is none; returns the waiters that have an ``outcome`` by it."""
    capacity = shared_capacity(pool)
    if isinstance(reply, str | StoreFormatError):
        final = isinstance(reply, StoreFormatError)
        return pool.resolve(now_ns, capacity.failed(now_ns, str(reply), final=final))
    done = pool.resolve(now_ns, capacity.receive(now_ns, reply))
    capacity.conclude(now_ns)
    return done
