"""One process's side of shared quotas: the life of its exchanges with the store, and the reasons for the next one.

It does no IO: :func:`ask` returns the next message of a pool, and :func:`answer` takes the reply, or the reason why there is
none. While the store is lost, a fallback grants this process's share of the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.core.capacity import Learns, Resolution
from paceline.core.ledger import Ledger
from paceline.core.pause import Pause, PausePhase
from paceline.core.pool import Pool
from paceline.core.queue import Queue, Waiter
from paceline.core.quota import FAR_NS, NS
from paceline.core.results import STORE_LOST, Reservation, StoreFormatError, StoreLost, WaitUntil
from paceline.pacing.settings import OnStoreFailure
from paceline.shared.holdings import LINGER_NS, Holdings
from paceline.shared.membership import Membership, State
from paceline.shared.messages import POLL_NS, Message, StoreReply
from paceline.shared.snapshot import Fallback

ASK_AGAIN_NS, PLACE_NS = 1 * NS, 5 * NS
"""When to ask again for the head of the queue: after the first at the earliest, since a refund may help, and after the
second at the latest."""

ASK_MIN_NS = NS // 1_000
"""The shortest interval between two messages for one request: a wait that is rounded up twice can be a nanosecond."""

RENEW_NS = 9 * NS // 4
"""How often a process that holds slots reports them: sooner than in ``REJOIN_NS``."""

SPEED_NS = 5 * NS
"""How often a process that has measured a limit reports its rate. At ``RENEW_NS``, four processes at a host of 60 requests a minute
sent up to 1.26 messages for every request, and 0.58 at this pace."""


class Head:
    """The head of the queue, as the last reply has left it: when to ask the store for it again.

    Attributes:
        queue: The requests that wait for the quotas.
        ask_ns: When to ask again.
        placed: Whether the store keeps a place for it.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue, self.ask_ns, self.placed = queue, 0, False
        self._asked: Waiter | None = None  # that was not granted; none, or the head is asked for at once
        self._ungranted: list[float] | None = None  # the amounts of the first request that was not granted

    @property
    def is_asked(self) -> bool:
        """Whether it was asked for; or the one that it overtakes, because its prompt is cached.

        Else each cached request that arrives would cost a message, and what the store has left would be no more.
        """
        if self._asked is None or (head := self.queue.head()) is None:
            return False
        return head is self._asked or (bool(head.lost_ns) and self.queue.waits(self._asked))

    def replied(self, now_ns: int, asked: Message, reply: StoreReply, *, measured: bool, by_slots: bool) -> None:
        """Plan when to ask again for a request that the reply to ``asked`` does not grant.

        ``measured``: the store is asked for a part of each request; ``by_slots``: the request waits for a slot.
        """
        ungranted = asked.wants[len(reply.grants) :]
        # With leases and measured limits, the message has other amounts than the request, which conclude() can't compare.
        self._ungranted = ungranted[0] if ungranted and not (asked.slack_ns or measured) else None
        self.placed = bool(ungranted) and asked.place_ns > 0
        wait_ns = max(reply.wait_ns, ASK_MIN_NS) if ungranted else 0
        polls_ns = max(reply.peers, 1) * POLL_NS
        # After an eighth of the wait, since a refund may have shortened it. Many processes ask more rarely.
        self.ask_ns = now_ns + min(wait_ns, max(ASK_AGAIN_NS, wait_ns // 8, polls_ns), max(PLACE_NS, polls_ns))
        if by_slots and reply.peers > 1:
            # When one becomes free is unknown, so it is asked for as often as the store can bear.
            self.ask_ns = min(self.ask_ns, now_ns + polls_ns)

    def conclude(self, undecided: Sequence[Waiter]) -> None:
        """Note what the pool has not granted by the reply; ``undecided``: the waiters in its message."""
        turned_away = undecided and any(isinstance(waiter.outcome, WaitUntil) for waiter in undecided)
        # Waiters that came meanwhile are asked for at once, and one that asks for something else now.
        head = self.queue.head()
        moved = self._ungranted is not None and head is not None and head.amounts != self._ungranted
        self._asked = None if turned_away or moved else head


class StoreSide(Holdings):
    """One process's side of what is shared of a pool: what it has of the quotas, and its exchanges, one after the other.

    Args:
        ledger: The quotas as configured in this process; it becomes the snapshot.
        queue: The requests that wait for the quotas.
        now_ns: The present.
        who, on_store_failure: See :class:`Membership`.
        lease_s: The longest lease in seconds; 0: ask for every request; ``None``: by the measured load.
        learns: Whether answers change the quotas.

    Attributes:
        asked: The message that has no reply yet; ``None`` between two exchanges.
        free_ns: Until when a limit that this process measures holds the head of the queue back.
    """

    exchange_due = False

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
        Holdings.__init__(self, ledger, now_ns, lease_s=lease_s, learns=learns)
        self.membership = Membership(now_ns, on_store_failure, who)
        self._pause: Pause[Reservation] = Pause()  # of this process alone
        self.free_ns = 0
        self._begin(queue, now_ns)

    def _begin(self, queue: Queue, now_ns: int) -> None:
        self.head = Head(queue)
        self.asked: Message | None = None
        self._undecided: Sequence[Waiter] = ()  # the waiters whose costs it carries
        self._sent_ns, self._left = now_ns, False  # the last message, and whether the process left with it

    @property
    def exchange_ns(self) -> int:
        """When an exchange has something to send, if nothing happens before; ``FAR_NS``: not before a reply or an event."""
        if self.asked is not None:
            return FAR_NS
        membership, head = self.membership, self.head
        # While the store is lost, only the next attempt to reach it counts.
        if membership.state.alone:
            return membership.try_ns
        leases, due_ns = self.leases, self.outbox.due_ns
        if leases.leases:
            # Of the oldest lease: what is left of it goes back, for the others.
            due_ns = min(due_ns, leases.leases[0].expires_ns)
        if head.queue.length:
            due_ns = min(due_ns, max(head.ask_ns if head.is_asked else 0, self._pause.until_ns, self.free_ns))
        elif head.placed or (leases.slack_ns and leases.low):
            # It gives up its place; or it asks for the next lease before this one is spent.
            due_ns = min(due_ns, self._sent_ns + LINGER_NS)
        due_ns = min(due_ns, self._sent_ns + max(self._report_ns, membership.peers * POLL_NS))
        if not (membership.state.known or head.queue.length):
            # A store that refuses this process is tried no more often than a lost one.
            due_ns = max(due_ns, membership.try_ns)
        return due_ns

    @property
    def _report_ns(self) -> int:
        """How long after a message the process reports its slots, or its measured rate, again; ``FAR_NS``: it has neither."""
        ledger = self.snapshot.ledger
        if ledger.entries.slots and ledger.in_flight:
            return RENEW_NS
        return SPEED_NS if self.unstated.is_limiting and (ledger.in_flight or self.head.queue.length) else FAR_NS

    @property
    def settled(self) -> bool:
        """Whether the store knows of all attempts that have ended."""
        return self.membership.state.alone or self.outbox.empty

    def message(self, now_ns: int, undecided: Sequence[Waiter] = (), *, at_once: bool = False) -> Message | None:
        """The message to send now; ``None`` when none is due.

        ``undecided``: the waiters in the queue that the reply grants or turns away; they keep no place in the store.
        ``at_once``: send all there is, before it is due.
        """
        if self.asked is not None:
            return None
        leases, fallback, membership, waiting = self.leases, self.fallback, self.membership, self.head.queue.length
        due_ns, known = self.exchange_ns, membership.state.known
        # Once, unless it has sent something since.
        leaving = at_once and known and not self._left
        is_due = due_ns != FAR_NS if at_once else due_ns <= now_ns
        if not (leaving or is_due):
            return None
        self.give_back(now_ns, everything=at_once)
        asks = membership.state.asks and self.decides and now_ns >= max(self._pause.until_ns, self.free_ns)
        wants = self._wants(now_ns, undecided) if asks else []
        # Taken last: what is given back above is part of it.
        news = self.outbox.take(now_ns, leases.slack_ns, fallback)
        quotas = self.snapshot.known(now_ns, fresh=not known)
        message = Message(membership.who, self.outbox.number, quotas, news=news, wants=wants)
        # At the end nothing measured is told: what a process holds keeps it from leaving.
        message.held, message.slack_ns = self.held(measured=not at_once), leases.slack_ns
        message.alone, message.closed = fallback is not None, membership.mode == "fail_closed"
        message.share = membership.share_at(now_ns) if fallback is None else fallback.share
        message.place_ns = PLACE_NS if waiting > len(undecided) else 0
        # A process that holds slots stays, or others would take them.
        message.leaving = at_once and not any(message.held) and not waiting
        self._sent_ns, self._left = now_ns, message.leaving
        self.asked, self._undecided = message, tuple(undecided)
        return message

    def _wants(self, now_ns: int, undecided: Sequence[Waiter]) -> list[list[float]]:
        """The costs that the store is asked for: of one request, while a probe or a measurement goes alone."""
        wants = self.leases.wants(now_ns, self.snapshot.ledger, self.head.queue, self.membership.peers)
        if self.learning is not None:
            self.learning.sent_within(self.leases.slack_ns)
        # The first lessons may change the limits, so requests wait for them. One that does not wait needs a decision.
        if self.outbox.teaches_first and not undecided:
            wants = []
        if self._pause.phase is not PausePhase.OPEN or self.unstated.is_limiting:
            # A probe goes alone, and a measurement learns from each attempt before the next one.
            del wants[1:]
        return [self.unstated.without(want) for want in wants] if self.unstated.meters else wants

    def receive(self, now_ns: int, reply: StoreReply) -> Resolution:
        """Apply the store's reply, before the pool grants by it."""
        asked, undecided = self.asked, self._undecided
        self.asked, self._undecided = None, ()
        assert asked is not None
        membership, pause = self.membership, self._pause
        before, measured = membership.state, bool(self.unstated.meters)
        # The others report first what they have spent without this process.
        if before.late:
            # Without an event: no refusal has begun it, so all may go at its end, and none as a probe.
            pause.until_ns = max(pause.until_ns, now_ns + membership.report_ns)
        membership.replied(now_ns, asked, self._sent_ns, reply)
        self.outbox.confirm()
        if before.alone:
            self._report(now_ns, first=before is not State.BACK)
            if membership.state.alone:
                return Resolution((), WaitUntil(now_ns, STORE_LOST))
            self.end_fallback()
        changed = self.take(now_ns, asked, reply)
        ledger = self.snapshot.ledger
        by_slots = reply.binds >= 0 and ledger.entries[reply.binds].meter.holds
        self.head.replied(now_ns, asked, reply, measured=measured, by_slots=by_slots)
        until = WaitUntil(max(now_ns + reply.wait_ns, pause.until_ns), ledger.name(reply.binds))
        # Alone, the pool has counted its waiters by the quotas of the fallback.
        return Resolution(undecided, until, changed=before.alone or changed)

    def _report(self, now_ns: int, *, first: bool) -> None:
        """Report what the fallback has spent: the store answers again."""
        membership, fallback = self.membership, self.fallback
        if fallback is None:
            return
        if (news := fallback.news(now_ns)) is not None:
            self.outbox.add(now_ns, news, at_once=True)
        if membership.mode == "fail_safe":
            # Others may have started; if some seem to have ended, they may not have come back yet.
            fallback.resize(now_ns, min(membership.share, fallback.share))
            if first:
                fallback.spend_no_more_at_once(now_ns)

    def failed(self, now_ns: int, reason: str, *, final: bool = False) -> Resolution:
        """Note that there is no reply; what the store may have granted stays charged.

        ``final``: nor can there be one, now that a newer version uses the store. The process stops in every mode.
        """
        self.asked, self._undecided, membership = None, (), self.membership
        before = membership.state
        membership.failed(now_ns, reason, final=final)
        self.head = Head(self.head.queue)  # it is asked for at once when the store answers again
        if not membership.state.alone:
            self.end_fallback()
            return Resolution((), StoreLost(reason))
        if not before.alone and membership.mode != "fail_closed":
            share = 1.0 if membership.mode == "fail_open" else membership.share_at(now_ns)
            # The random number is the process's place among all that send a request larger than their share.
            self.fallback = Fallback(self.snapshot, self._sent_ns, now_ns, share, membership.random.random())
        return Resolution((), None, newly_lost=not before.alone)

    def forked(self, who: str, now_ns: int) -> None:
        """Start as a new process ``who`` in a forked child: leases, attempts and news belong to the parent."""
        self._begin(self.head.queue, now_ns)
        self.leave_to_parent(now_ns)
        self.membership.forked(who)
        if self.fallback is not None and self.membership.mode == "fail_safe":
            self.fallback.resize(now_ns, self.membership.share)
        # The timer stayed with the parent.
        self.exchange_due = True

    def status(self, now_ns: int) -> dict[str, Any]:
        """The state of the store, the number of processes, and how old the store's last reply is."""
        membership, state = self.membership, self.membership.state
        store: dict[str, Any] = {"state": state.label, "peers": membership.peers}
        if state.known:
            store["replied_ago_s"] = round(max(now_ns - self.snapshot.as_of_ns, 0) / NS, 3)
        if state.alone:
            store |= {"mode": membership.mode, "reason": membership.reason}
        elif state is State.STOPPED:
            store["reason"] = membership.reason
        return {"store": store}


def side_of(pool: Pool) -> StoreSide:
    """The side to the store of a pool that processes share."""
    capacity = pool.capacity
    assert isinstance(capacity, StoreSide), f"{pool.name}: its quotas are in this process only"
    return capacity


def ask(pool: Pool, now_ns: int, *, at_once: bool = False) -> Message | None:
    """The message of ``pool`` to its store now; see :meth:`StoreSide.message`."""
    side = side_of(pool)
    message = side.message(now_ns, pool.undecided, at_once=at_once)
    # None: it was asked too early, as after two pokes. The section sets its timer for the exchange again.
    side.exchange_due = message is None
    return message


def answer(pool: Pool, now_ns: int, reply: StoreReply | str | StoreFormatError) -> list[Waiter]:
    """Apply the store's reply, or the reason why there is none; returns the waiters that have an ``outcome`` by it."""
    side = side_of(pool)
    if lost := isinstance(reply, str | StoreFormatError):
        resolution = side.failed(now_ns, str(reply), final=isinstance(reply, StoreFormatError))
    else:
        resolution = side.receive(now_ns, reply)
    side.exchange_due = True
    done = pool.resolve(now_ns, resolution)
    if not (lost or side.membership.state.alone):
        # After resolve(), because both look at what the pool has granted by the reply.
        side.head.conclude(resolution.asked)
        # A grant whose request has gone meanwhile waits with other news. Left in the leases, it would be due at once.
        side.give_back(now_ns)
    return done
