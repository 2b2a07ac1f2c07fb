"""What one process has of shared quotas between two messages to their store, and what waits for the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from paceline.core.capacity import Learns
from paceline.core.changes import Change
from paceline.core.learning.learning import Learning
from paceline.core.ledger import Ledger
from paceline.core.quota import FAR_NS, NS
from paceline.core.unstated.unstated import Unstated
from paceline.shared.leases import Lease, Leases
from paceline.shared.messages import Message, News, Noted, StoreReply
from paceline.shared.snapshot import Fallback, Snapshot

LINGER_NS, LINGER_PART = NS // 100, 8
"""How long news waits for a message with requests; with leases at least one part in so many of their duration."""

NEWS_MAX = 100_000
"""How much news is kept for a lost store; when it is full, the older half is dropped and its attempts stay charged."""

Lesson = Callable[[int], bool]
"""Learns from one answer, at the given present; returns whether quotas have changed."""


class Outbox:
    """The news for the store: sent once, in order, and again with the same number when there was no reply.

    The lessons of answers wait beside them, until the reply to the message that reports the attempts. Then the snapshot equals the
    shared ledger. What a lesson teaches goes into the next message, and applies unless another process was faster.

    Attributes:
        due_ns: When to send a message for the news alone; ``FAR_NS``: there is none.
        linger_ns: How long news waits for a message with requests.
        number: The number of the last message.
    """

    def __init__(self) -> None:
        self.due_ns = FAR_NS
        self.linger_ns = LINGER_NS
        self.number = 0
        self._news: list[News] = []
        self._settled: list[Lease] = []  # with ended attempts
        self._unconfirmed: list[News] | None = None  # of the last message, until its reply
        self._lessons: list[Lesson] = []  # of answers since the last message
        self._due: list[Lesson] = []  # of answers before it: the next reply counts their attempts
        self._untaught = True  # no lesson has been learned

    def add(self, now_ns: int, news: News, *, at_once: bool = False) -> None:
        """Add one update, to be sent soon or at once."""
        self._news.append(news)
        if len(self._news) > NEWS_MAX:
            # Half at once, because to drop one for each that comes would move the whole list.
            del self._news[: NEWS_MAX // 2]
        self.soon(now_ns)
        if at_once:
            self.due_ns = now_ns

    def soon(self, now_ns: int) -> None:
        """Send a message within :attr:`linger_ns`."""
        # The first news sets the time. Later news would put it off without an end.
        if self.due_ns == FAR_NS:
            self.due_ns = now_ns + self.linger_ns

    def settled(self, now_ns: int, lease: Lease) -> None:
        """Add a lease when the first of its attempts has ended: they are reported as one update."""
        self._settled.append(lease)
        self.soon(now_ns)

    def take(self, now_ns: int, slack_ns: int, fallback: Fallback | None) -> list[News]:
        """The news for the next message, with the news of ``fallback``; the previous news while it is unconfirmed.

        News that comes after it lingers longer while leases last for ``slack_ns``.
        """
        self.linger_ns = max(LINGER_NS, slack_ns // LINGER_PART)
        self._due, self._lessons = self._due + self._lessons, []
        # Until its reply, the same news goes again under the same number, so that it is applied once.
        if self._unconfirmed is None:
            self.number += 1
            settled = [lease.news() for lease in self._settled]
            alone = fallback.news(now_ns) if fallback is not None else None
            self._unconfirmed = [*settled, *self._news, *([alone] if alone is not None else [])]
            self._news, self._settled = [], []
        self.due_ns = now_ns + self.linger_ns if self._news or self._settled else FAR_NS
        return self._unconfirmed

    @property
    def empty(self) -> bool:
        """Whether the store has applied all news."""
        return not (self._news or self._settled or self._unconfirmed)

    def has_note(self, key: str) -> bool:
        """Whether a note under ``key`` waits for the next message."""
        return any(isinstance(news, Noted) and news.key == key for news in self._news)

    def confirm(self) -> None:
        """The store has applied the news of the last message."""
        self._unconfirmed = None

    def teach(self, now_ns: int, lesson: Lesson) -> None:
        """Add the lesson of an answer."""
        self._lessons.append(lesson)
        self.soon(now_ns)

    @property
    def teaches_first(self) -> bool:
        """Whether the next reply brings the first lessons: until then the limits may be other ones."""
        return self._untaught and bool(self._lessons)

    def learn(self, now_ns: int) -> bool:
        """Learn what the last reply allows; whether quotas have changed."""
        due, self._due = self._due, []
        self._untaught = self._untaught and not due
        # All first: any() would stop at the first lesson that changes something.
        changes = [lesson(now_ns) for lesson in due]
        return any(changes)


class Holdings:
    """What one process knows of shared quotas, what it may spend of them, and what it has to report.

    Attributes:
        snapshot: The shared ledger at the last reply, and the attempts in flight.
        fallback: What this process spends while the store is lost; ``None`` at other times, and in mode ``fail_closed``.
        leases: The grants that are not spent.
        outbox: The news for the store, and the lessons of answers.
        learning: What answers teach; ``None``: they do not change the quotas.
        unstated: The limits that neither the user nor an answer states. This process measures its share of each.
    """

    learning: Learning | None = None

    def __init__(self, ledger: Ledger, now_ns: int, *, lease_s: float | None, learns: Learns) -> None:
        self.snapshot = Snapshot(ledger, now_ns)
        self.fallback: Fallback | None = None
        self.leases = Leases(now_ns, lease_s)
        self.outbox = Outbox()
        if learns:
            self.learning = Learning(ledger, self._learned, raises=learns == "up")
        self.unstated = Unstated(ledger, deque(maxlen=0)) if self.learning is None else self.learning.unstated

    @property
    def decides(self) -> bool:
        """Whether the store has a say in the next grant: it has quotas that bind, or none, or it paused at its last reply."""
        ledger, measured = self.snapshot.ledger, len(self.unstated.meters)
        return ledger.pause.until_ns > self.snapshot.as_of_ns or len(ledger.entries) > measured or not measured

    def _learned(self, change: Change) -> None:
        # A new quota needs no news, because each message has all quotas.
        # The learning reports no present. What is due at an instant that has passed goes at once as well.
        self.outbox.add(self.snapshot.as_of_ns, change, at_once=True)

    @property
    def _ledgers(self) -> list[Ledger]:
        """Those with attempts in flight: the fallback's, too, because they hold slots of the provider."""
        return [self.snapshot.ledger] if self.fallback is None else [self.snapshot.ledger, self.fallback.ledger]

    def give_back(self, now_ns: int, *, everything: bool = False) -> None:
        """Give back the leases that are over, or ``everything``."""
        if self.leases.leases:
            for rest in self.leases.give_back(now_ns, everything=everything):
                self.outbox.add(now_ns, rest)

    def held(self, *, measured: bool = True) -> list[float]:
        """For each quota of slots, what is in flight or leased; for each ``measured`` limit, what other processes are told of it."""
        entries, holders = self.snapshot.ledger.entries, list[Ledger | Leases]([self.leases, *self._ledgers])
        held = [0.0] * len(entries)
        for i in entries.slots:
            held[i] = sum(holder.in_use(i) for holder in holders)
        for meter in self.unstated.meters if measured else ():
            held[meter.index] = meter.told
        return held

    def take(self, now_ns: int, asked: Message, reply: StoreReply) -> bool:
        """Take the state of the quotas and the grants of a reply, and learn; whether quotas have changed."""
        changed = self.snapshot.update(now_ns, asked.known, reply, self.learning)
        self.snapshot.held = [sum(one) for one in zip(asked.held, *asked.wants[: len(reply.grants)], strict=True)]
        for n, marks in enumerate(reply.grants):
            lease = Lease(asked.wants[n], marks, now_ns, asked.slack_ns, probe=reply.probe and n == 0)
            self.leases.leases.append(lease)
        return self.outbox.learn(now_ns) or changed

    def end_fallback(self) -> None:
        """Spend grants of the store again; what is in flight stays so."""
        if self.fallback is not None:
            for reservation in self.fallback.ledger.open_reservations:
                # They still end, and what they have cost is reported to the store.
                self.snapshot.ledger.keep_open(reservation)
        self.fallback = None

    def leave_to_parent(self, now_ns: int) -> None:
        """Drop, in a forked child, the leases, the attempts, the news and the lessons: they belong to the parent.

        What the parent has learned stays true here.
        """
        self.outbox = Outbox()
        self.leases.give_back(now_ns, everything=True)
        self.snapshot.held = []
        if self.fallback is not None:
            # Dropped: it marks as reported what the parent has spent and reports itself.
            self.fallback.news(now_ns)
        for ledger in self._ledgers:
            for reservation in ledger.open_reservations:
                ledger.close(now_ns, reservation)
                self.unstated.unsent(now_ns, reservation)
