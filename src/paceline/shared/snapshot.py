"""Ledgers that stand in for shared books: what they said last, and a share of it while they cannot be asked."""

from __future__ import annotations

from paceline.core.learning import Learning
from paceline.core.ledger import Ledger
from paceline.core.meters import Bucket, Meter, Slots, Spaced, Window, restarts
from paceline.core.quota import NS, Quota, Rule
from paceline.core.results import Reservation
from paceline.shared.messages import Charged, Left, Message, Reply, Standing
from paceline.shared.meters import absorb, left_of, part_of

STORE_LOST = "store lost"
"""What binds while the store is lost and nothing is let go."""


class Snapshot(Ledger):
    """The books as they were at the store's last answer. For looking only: nothing is charged here.

    Attributes:
        quotas: As configured here, and those that became known.
        as_of_ns: When the store answered last.
        versions: For each, which state of what has been learned is known here; -1 for none.
    """

    def __init__(self, like: Ledger, now_ns: int) -> None:
        quotas = [m.quota for m in like.meters]
        super().__init__(quotas, now_ns, headroom_s=like.headroom_s, ttl_s=like.ttl_ns / NS, gentle=like.gentle)
        self.quotas = [m.quota for m in self.meters]
        self.versions = [-1] * len(self.quotas)
        self.as_of_ns = now_ns

    @property
    def has_slots(self) -> bool:
        """Whether the store wants to hear now and then what is in flight."""
        return bool(self._slots)

    def add(self, now_ns: int, quota: Quota) -> None:
        """A quota that became known: from the next message on it is one of ours."""
        super().add(now_ns, quota)
        self.quotas.append(quota)
        self.versions.append(-1)

    def introduce(self, now_ns: int, message: Message) -> None:
        """Say in ``message`` which quotas are meant and what is known about them."""
        message.quotas, message.versions = tuple(self.quotas), list(self.versions)
        message.headroom_s, message.gentle = self.headroom_s, self.gentle
        message.windows = [restarts(q.anchor, now_ns) if q.rule is Rule.WINDOW else None for q in self.quotas]
        message.recalled = [_recalled(m, now_ns) for m in self.meters]

    def follow_reply(self, now_ns: int, reply: Reply, learning: Learning | None) -> list[int]:
        """Become what the books are now; the indexes of the quotas that are new, or have another limit."""
        known, self.as_of_ns = [m.quota.amount for m in self.meters], now_ns
        for i, standing in enumerate(reply.standings):
            if i >= len(self.meters):
                assert standing.learned is not None, "the store describes what we do not know"
                self.add(now_ns, standing.learned.quota)
            if learning is not None:
                learning.follow()
            self._stand(now_ns, i, standing, learning)
        self.not_before_ns = now_ns + reply.pause_ns
        return [i for i, m in enumerate(self.meters) if i >= len(known) or m.quota.amount != known[i]]

    def gather(self, now_ns: int, index: int) -> Bucket:
        """The quota at ``index`` is a bucket again: the books have forgotten that it was to be spread."""
        m = self.meters[index] = Bucket(self.meters[index].quota, now_ns, self.headroom_s, gentle=self.gentle)
        return m

    def _stand(self, now_ns: int, i: int, standing: Standing, learning: Learning | None) -> None:
        tracker = learning.trackers[i] if learning else None
        if tracker is not None and standing.charged < tracker.charged:
            tracker.forgotten()
            self.versions[i] = -1
        lesson = standing.learned
        if lesson is not None:
            self.versions[i] = lesson.version
            if tracker is not None:
                tracker.learned_elsewhere(now_ns, lesson)
            m, spaced = self.meters[i], lesson.spread or lesson.quota.rule is not Rule.BUCKET
            if isinstance(m, Bucket) and isinstance(m, Spaced) != spaced:
                m = self.spread(now_ns, i) if spaced else self.gather(now_ns, i)
                if tracker is not None:
                    tracker.meter = m
            m.restore(lesson.quota, {**m.state(), "capacity": lesson.capacity, "ceiling": lesson.ceiling})
            self.names[i] = str(lesson.quota)
        m = self.meters[i]
        self.spent[i] = standing.spent
        if isinstance(m, Spaced):
            m.use(now_ns, standing.used)
        if isinstance(m, Bucket):
            m.stand(now_ns + standing.room_ns, standing.opened)
        elif isinstance(m, Window | Slots):
            m.level(now_ns)  # enter the present window
            m.used = standing.used
        if tracker is not None:
            tracker.saw(now_ns, standing.charged)


class Fallback(Ledger):
    """What a process goes by while the books cannot be asked: its share of what they said last."""

    def __init__(self, replica: Snapshot, now_ns: int, share: float) -> None:
        super().__init__([], now_ns, headroom_s=replica.headroom_s, ttl_s=replica.ttl_ns / NS)
        for i, (m, name) in enumerate(zip(replica.meters, replica.names, strict=True)):
            left = _slots_left(m, replica.held(i), share) if isinstance(m, Slots) else part_of(m, now_ns, share)
            self.follow(left, name)
        self.not_before_ns = replica.not_before_ns
        self._told = [part_of(m, now_ns, share) for m in replica.meters]  # as the books see this process's share
        self._spent_told = [0.0] * len(self.meters)

    def over(self, reservation: Reservation) -> None:
        """An attempt from before is over: its slots are free, for this process."""
        for i in self._slots:
            if i < len(reservation.amounts):
                self.meters[i].release(reservation.amounts[i])

    def news(self, now_ns: int) -> Charged | None:
        """What was spent since this was last asked, and what of it has not come back, however long that took."""
        slots = [isinstance(m, Slots) for m in self.meters]
        more = [
            0.0 if slot else max(spent - told, 0.0)
            for slot, spent, told in zip(slots, self.spent, self._spent_told, strict=True)
        ]
        left = [left_of(m, told, now_ns) for m, told in zip(self.meters, self._told, strict=True)]
        self._spent_told = [a + b for a, b in zip(self._spent_told, more, strict=True)]
        for told, rest in zip(self._told, left, strict=True):
            absorb(told, now_ns, rest)
        return Charged(more, left) if any(more) else None


def _slots_left(m: Slots, held: float, share: float) -> Slots:
    """What this process holds, and its share of what is free; what it holds is its own when it comes free."""
    free = max(m.quota.amount - (held if share == 1 else max(m.used, held)), 0.0)
    part = Slots(m.quota)
    part.used = m.quota.amount - free * share
    return part


def _recalled(m: Meter, now_ns: int) -> Left:
    if isinstance(m, Spaced):
        return m.parts(now_ns)
    return float(max(m.full_at_ns - now_ns, 0)) if isinstance(m, Bucket) else m.quota.amount - m.level(now_ns)
