"""The reasons to ask the store, and when each of them holds."""

from __future__ import annotations

from paceline.core.pause import Pause
from paceline.core.queue import Queue, Waiter
from paceline.core.quota import NS
from paceline.core.results import Reservation
from paceline.shared.holdings import Holdings
from paceline.shared.membership import Membership
from paceline.shared.messages import POLL_NS, Message, StoreReply
from paceline.shared.outbox import LINGER_NS

ASK_AGAIN_NS, PLACE_NS = 1 * NS, 5 * NS
"""When to ask again for the head of the queue: after the first at the earliest, since a refund may help, and after the
second at the latest."""

ASK_MIN_NS = NS // 1_000
"""The shortest interval between two messages for one request: a wait that is rounded up twice can be a nanosecond."""

RENEW_NS = 5 * NS
"""How often a process that holds slots, or has measured a limit, reports them."""


class Schedule:
    """When one process sends its next message, if no message is on its way.

    Attributes:
        ask_ns: When to ask again for :attr:`head`; while the store is lost, when to try it again.
        head: The head of the queue that the last reply did not grant; ``None``: there was none, or it is asked for at once.
        placed: Whether the store keeps a place for the head of the queue.
        held_ns: Until when a limit that this process measures holds the head of the queue back.
        sent_ns: When the last message was sent.
        left: Whether the process left with the last message.
    """

    __slots__ = (
        "_holdings", "_membership", "_pause", "_queue", "ask_ns", "head", "held_ns", "left", "placed", "sent_ns",
    )  # fmt: skip

    def __init__(
        self, now_ns: int, queue: Queue, holdings: Holdings, membership: Membership, pause: Pause[Reservation]
    ) -> None:
        self._queue, self._holdings, self._membership, self._pause = queue, holdings, membership, pause
        self.ask_ns = self.held_ns = 0
        self.head: Waiter | None = None
        self.left = self.placed = False
        self.sent_ns = now_ns

    @property
    def due_ns(self) -> int:
        """When a message is due, if nothing happens before; ``FAR_NS``: not before the next event."""
        membership = self._membership
        # While the store is lost, only the next attempt to reach it counts.
        if membership.state.alone:
            return self.ask_ns
        holdings, leases = self._holdings, self._holdings.leases
        due_ns = holdings.outbox.due_ns
        if leases.leases:
            # Of the oldest lease: what is left of it goes back, for the others.
            due_ns = min(due_ns, leases.leases[0].expires_ns)
        if self._queue.length:
            due_ns = min(due_ns, max(self.ask_ns if self._is_asked else 0, self._pause.until_ns, self.held_ns))
        elif self.placed or (leases.slack_ns and leases.low):
            # It gives up its place; or it asks for the next lease before this one is spent.
            due_ns = min(due_ns, self.sent_ns + LINGER_NS)
        ledger = holdings.snapshot.ledger
        reports = ledger.in_flight if ledger.entries.slots else 0
        if holdings.unstated.meters and holdings.unstated.is_limiting:
            reports = ledger.in_flight or self._queue.length
        if reports:
            due_ns = min(due_ns, self.sent_ns + max(RENEW_NS, membership.peers * POLL_NS))
        if not (membership.state.known or self._queue.length):
            # A store that refuses this process is tried no more often than a lost one.
            due_ns = max(due_ns, self.ask_ns)
        return due_ns

    @property
    def _is_asked(self) -> bool:
        """Whether the head of the queue was asked for; or the one that it overtakes, because its prompt is cached.

        Else each cached request that arrives would cost a message, and what the store has left would be no more.
        """
        if self.head is None or (head := self._queue.head()) is None:
            return False
        return head is self.head or (bool(head.lost_ns) and self._queue.waits(self.head))

    def replied(self, now_ns: int, asked: Message, reply: StoreReply) -> None:
        """Plan when to ask again for a request that the reply does not grant."""
        wanting = len(reply.grants) < len(asked.wants)
        wait_ns, self.placed = max(reply.wait_ns, ASK_MIN_NS) if wanting else 0, wanting and asked.place_ns > 0
        peers = self._membership.peers
        polls_ns = peers * POLL_NS
        # After an eighth of the wait, since a refund may have shortened it. Many processes ask more rarely.
        self.ask_ns = now_ns + min(wait_ns, max(ASK_AGAIN_NS, wait_ns // 8, polls_ns), max(PLACE_NS, polls_ns))
        if reply.binds >= 0 and peers > 1 and self._holdings.snapshot.ledger.entries[reply.binds].meter.holds:
            # When a slot becomes free is unknown, so it is asked for as often as the store can bear.
            self.ask_ns = min(self.ask_ns, now_ns + polls_ns)
