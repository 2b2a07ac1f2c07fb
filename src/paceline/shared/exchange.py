"""The life of one exchange with a store: a message, its reply or failure, and the plan of the next one.

It does no IO. :meth:`StoreExchange.message` returns the next message, :meth:`StoreExchange.receive` takes the reply, and
:meth:`StoreExchange.failed` the reason why there is none. :meth:`StoreExchange.conclude` follows when the pool has granted what the
reply allows.

While the store is lost, a fallback grants this process's share of the snapshot. When the store answers again, all processes
report what they have spent, and a moment later the store is authoritative again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from paceline.core.capacity import Resolution
from paceline.core.pause import Pause, PausePhase
from paceline.core.queue import Queue, Waiter
from paceline.core.quota import FAR_NS
from paceline.core.results import STORE_LOST, Reservation, StoreLost, WaitUntil
from paceline.shared.holdings import Holdings
from paceline.shared.membership import FEW, Membership, State
from paceline.shared.messages import SHARED_PART, Message, StoreReply
from paceline.shared.schedule import PLACE_NS, Schedule


class Asked(NamedTuple):
    """A message without a reply, and the undecided waiters whose costs it carries."""

    message: Message
    undecided: Sequence[Waiter]


class StoreExchange:
    """The exchanges of one process with the store of its quotas, one after the other.

    Args:
        who: A unique name of this process.
        queue: The requests that wait for the quotas.
        holdings: What the process has of the quotas.
        membership: What it knows of the store.
        schedule: When a message is due.
        pause: The pause of this process alone.

    Attributes:
        asked: The message that has no reply yet; ``None`` between two exchanges.
    """

    def __init__(
        self,
        who: str,
        queue: Queue,
        holdings: Holdings,
        membership: Membership,
        schedule: Schedule,
        pause: Pause[Reservation],
    ) -> None:
        self._queue, self._holdings, self._membership = queue, holdings, membership
        self._schedule, self._pause = schedule, pause
        self._begin(who)

    def _begin(self, who: str) -> None:
        self._who, self._random = who, random.Random(who)
        self.asked: Asked | None = None
        self._ungranted: list[float] | None = None  # the amounts of the first request that the last reply did not grant

    def message(self, now_ns: int, undecided: Sequence[Waiter] = (), *, at_once: bool = False) -> Message | None:
        """The message to send now; ``None`` when none is due.

        Args:
            now_ns: The present.
            undecided: The waiters in the queue that the reply grants or turns away; they keep no place in the store.
            at_once: Whether to send all there is, before it is due.
        """
        if self.asked is not None:
            return None
        holdings, membership, schedule = self._holdings, self._membership, self._schedule
        due_ns, known = schedule.due_ns, membership.state.known
        leaving = at_once and known and not schedule.left
        if not leaving and (due_ns == FAR_NS if at_once else due_ns > now_ns):
            return None
        holdings.give_back(now_ns, everything=at_once)
        leases, fallback = holdings.leases, holdings.fallback
        asks = membership.state.asks and holdings.decides and now_ns >= max(self._pause.until_ns, schedule.held_ns)
        wants = self._wants(now_ns, undecided) if asks else []
        if holdings.lessons is not None:
            holdings.lessons.sent()
        # Taken last: what is given back above is part of it.
        news = holdings.outbox.take(now_ns, leases.slack_ns, fallback)
        message = Message(self._who, holdings.outbox.number, fresh=not known, news=news, wants=wants)
        message.held, message.slack_ns = holdings.held(measured=not at_once), leases.slack_ns
        message.alone, message.closed = fallback is not None, membership.mode == "fail_closed"
        message.share = membership.share_at(now_ns) if fallback is None else fallback.share
        message.place_ns = PLACE_NS if self._queue.length > len(undecided) else 0
        # A process that holds slots stays, or others would take them.
        message.leaving = at_once and not any(message.held) and not self._queue.length
        holdings.snapshot.introduce(now_ns, message)
        schedule.sent_ns, schedule.left = now_ns, message.leaving
        self.asked = Asked(message, tuple(undecided))
        return message

    def _wants(self, now_ns: int, undecided: Sequence[Waiter]) -> list[list[float]]:
        """The costs that the store is asked for: of one request, while a probe or a measurement goes alone."""
        holdings = self._holdings
        wants = holdings.leases.wants(now_ns, holdings.snapshot.ledger, self._queue, self._membership.peers)
        if holdings.lessons is not None:
            holdings.lessons.learning.sent_within(holdings.leases.slack_ns)
            if holdings.lessons.are_first and not undecided:
                wants = []
        if self._pause.phase is not PausePhase.OPEN or holdings.unstated.is_limiting:
            # A probe goes alone, and a measurement learns from each attempt before the next one.
            del wants[1:]
        return [holdings.unstated.without(want) for want in wants] if holdings.unstated.meters else wants

    def receive(self, now_ns: int, reply: StoreReply) -> Resolution:
        """Apply the store's reply; call :meth:`conclude` when the pool has granted."""
        assert self.asked is not None
        (asked, undecided), self.asked = self.asked, None
        holdings, membership, pause = self._holdings, self._membership, self._pause
        before = membership.state
        # The others report first what they have spent without this process.
        if before.late:
            pause.until_ns = max(pause.until_ns, now_ns + membership.report_ns)
        refused = asked.wants[len(reply.grants) :]
        self._ungranted = refused[0] if refused and not (asked.slack_ns or holdings.unstated.meters) else None
        membership.replied(now_ns, asked, self._schedule.sent_ns, reply)
        holdings.outbox.confirm()
        if before.alone:
            self._report(now_ns, first=before is not State.BACK)
            if membership.state.alone:
                return Resolution((), WaitUntil(now_ns, STORE_LOST))
            holdings.end_fallback()
        changed = holdings.take(now_ns, asked, reply)
        self._schedule.replied(now_ns, asked, reply)
        binding = holdings.snapshot.ledger.name(reply.binds)
        until = WaitUntil(max(now_ns + reply.wait_ns, pause.until_ns), binding)
        return Resolution(undecided, until, changed=before.alone or changed)

    def _report(self, now_ns: int, *, first: bool) -> None:
        """Report what the fallback has spent: the store answers again."""
        membership, fallback = self._membership, self._holdings.fallback
        self._schedule.ask_ns = now_ns if first else membership.back_ns + membership.report_ns
        if fallback is None:
            return
        if (news := fallback.news(now_ns)) is not None:
            self._holdings.outbox.add(now_ns, news, at_once=True)
        if membership.mode == "fail_safe":
            # Others may have started; if some seem to have ended, they may not have come back yet.
            fallback.resize(now_ns, min(membership.share, fallback.share))
            if first:
                fallback.spend_no_more_at_once(now_ns)

    def conclude(self, now_ns: int, undecided: Sequence[Waiter]) -> None:
        """Note what the pool has not granted by the last reply, and has not spent; ``undecided``: the waiters in its message."""
        if not self._membership.state.alone:
            turned_away = undecided and any(isinstance(waiter.outcome, WaitUntil) for waiter in undecided)
            # Waiters that came meanwhile are asked for at once, and one that asks for something else now.
            head = self._queue.head()
            moved = self._ungranted is not None and head is not None and head.amounts != self._ungranted
            self._schedule.head = None if turned_away or moved else head
            self._holdings.give_back(now_ns)

    def failed(self, now_ns: int, reason: str, *, final: bool = False) -> Resolution:
        """Note that there is no reply; what the store may have granted stays charged.

        Args:
            now_ns: The present.
            reason: Why there is none.
            final: Whether this process can have no reply, now that a newer version uses the store: it stops in every mode.
        """
        self.asked = None
        holdings, membership, schedule = self._holdings, self._membership, self._schedule
        before = membership.state
        membership.failed(reason, final=final)
        # Many processes that try again at the same moment would keep a store down that has just come up.
        apart = 1.0 if membership.peers <= FEW else self._random.uniform(0.5, 1.5)
        schedule.ask_ns = now_ns + round(apart * membership.retry_ns)
        if not membership.state.alone:
            # The queue is refused, so there is no head to ask for.
            schedule.head = None
            holdings.end_fallback()
            return Resolution((), StoreLost(reason))
        if not before.alone:
            schedule.head = None
            if membership.mode != "fail_closed":
                share = 1.0 if membership.mode == "fail_open" else membership.share_at(now_ns)
                # The random number is the process's place among all that send a request larger than their share.
                holdings.begin_fallback(now_ns, schedule.sent_ns, share, self._random.random())
        return Resolution((), None, newly_lost=not before.alone)

    def forked(self, who: str, now_ns: int) -> None:
        """Start as a new process ``who`` in a forked child: leases, attempts and news belong to the parent."""
        # Its own random numbers: with the parent's it would try again in step with it, and with other children.
        self._begin(who)
        holdings, membership, schedule = self._holdings, self._membership, self._schedule
        schedule.head, schedule.sent_ns = None, now_ns
        schedule.left = schedule.placed = False
        holdings.leave_to_parent(now_ns)
        # The least of what a process is told, because its parent keeps the share.
        membership.share *= (1 - SHARED_PART) ** 2
        if holdings.fallback is not None and membership.mode == "fail_safe":
            holdings.fallback.resize(now_ns, membership.share)
