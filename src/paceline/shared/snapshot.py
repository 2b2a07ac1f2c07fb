"""The process's view of the shared ledger: a snapshot of it, and the fallback for the time without a store."""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.core.learning.learning import Learning
from paceline.core.learning.tracker import QuotaTracker
from paceline.core.ledger import Ledger
from paceline.core.local import LocalCapacity
from paceline.core.meters import Bucket, Meter, Spread, window_starts
from paceline.core.queue import Waiter
from paceline.core.quota import NS, Quota, Rule
from paceline.core.results import Decision, Reservation
from paceline.core.unstated.measured import FoundMeter
from paceline.shared.messages import Charged, Known, LearnedState, Left, StoreReply
from paceline.shared.meters import BOUNDLESS, FOUND, of


class Snapshot:
    """The shared ledger at the last reply of the store. It is read only: no request is charged to it.

    Attributes:
        ledger: The quotas at that time, and the attempts of this process in flight.
        quotas: The configured quotas, then those that became known.
        as_of_ns: The time of the last reply.
        versions: For each quota, the version of its learned state; -1: none.
        noted: Which notes of the pool are known here.
        held: For each quota of slots, how many the store counts as this process's.
    """

    def __init__(self, ledger: Ledger, now_ns: int) -> None:
        self.ledger = ledger
        self.quotas: tuple[Quota, ...] = ()
        self.versions: list[int] = []
        self.as_of_ns = now_ns
        self.noted = 0
        self.held: list[float] = []

    def _introduce_new(self) -> None:
        """Add the quotas that became known to all further messages."""
        unknown = self.ledger.entries[len(self.quotas) :]
        self.quotas += tuple([of(entry.meter).told(entry.meter) for entry in unknown])
        self.versions += [-1] * (len(self.quotas) - len(self.versions))

    def known(self, now_ns: int, *, fresh: bool) -> Known:
        """What a message has of the quotas, with their state in the snapshot; ``fresh``: in the first message."""
        self._introduce_new()
        ledger, quotas = self.ledger, self.quotas
        windows = [window_starts(one.anchor, now_ns) if one.rule is Rule.WINDOW else None for one in quotas]
        recalled = [of(m).recalled(m, now_ns) for m in ledger.meters]
        versions = list(self.versions)
        return Known(quotas, versions, fresh, ledger.headroom_s, ledger.gentle, windows, recalled, self.noted)

    def update(self, now_ns: int, asked: Known, reply: StoreReply, learning: Learning | None) -> bool:
        """Apply the states of a reply to ``asked``; whether a quota is new, or has another limit."""
        ledger, self.as_of_ns, self.noted = self.ledger, now_ns, reply.noted
        changed, known = False, len(asked.quotas)
        # Own quotas are the user's: a new one was taken back, or was given to other processes. A quota that this process
        # has found since it asked has the place of a new one: the store learns of it by the next message, and tells of
        # the new one again.
        takes_new = not ledger.own and len(ledger.entries) == known
        for i, standing in enumerate(reply.standings if takes_new else reply.standings[:known]):
            is_new = i >= known
            if is_new:
                assert standing.learned is not None, "the reply has a new quota without its learned state"
                self._add(now_ns, standing.learned.quota, learning)
            entry = ledger.entries[i]
            m, before = entry.meter, entry.meter.quota.amount
            tracker = None if learning is None else learning.trackers.get(i)
            # The sum of charges only grows, so a smaller one is from another ledger.
            if tracker is not None and standing.charged < tracker.charges.total:
                tracker.ledger_restarted()
                # A new ledger counts its versions anew, so the same number would hide another state.
                self.versions[i] = -1
            if standing.learned is not None:
                self.versions[i] = standing.learned.version
            # What stands for a measured limit in the store is a number of slots, and no limit that was stated.
            if isinstance(m, FoundMeter):
                m.among(now_ns, standing.used, reply.peers)
                changed |= is_new
                continue
            if standing.learned is not None:
                self._learn(now_ns, i, standing.learned, tracker)
                m = entry.meter  # another one, if the store counts the quota in another way
            entry.spent = standing.spent
            of(m).stand(m, now_ns, standing.lack_ns, standing.used, standing.opened)
            if tracker is not None:
                tracker.charges.log(now_ns, standing.charged)
            if is_new or m.quota.amount != before:
                changed = True
                if learning is not None:
                    learning.guesses.learned_elsewhere(now_ns, i, before)
        ledger.pause.until_ns = now_ns + reply.pause_ns
        return changed

    def _add(self, now_ns: int, quota: Quota, learning: Learning | None) -> None:
        if learning is not None and quota.amount == BOUNDLESS:
            learning.measure(now_ns, quota.unit.removeprefix(FOUND))
        else:
            self.ledger.add_quota(now_ns, quota)
            if learning is not None:
                learning.corrections.added(now_ns)
        self._introduce_new()

    def _learn(self, now_ns: int, i: int, learned: LearnedState, tracker: QuotaTracker | None) -> None:
        ledger, entry = self.ledger, self.ledger.entries[i]
        if tracker is not None:
            tracker.learned_elsewhere(
                now_ns,
                limit=learned.quota.amount,
                ceiling=learned.ceiling,
                shifted_ns=learned.shifted_ns,
                epoch=learned.epoch,
                refused_amount=learned.refused,
            )
        entry.refused = learned.refused
        m, spread = entry.meter, learned.spread or learned.quota.rule is not Rule.BUCKET
        # The store counts it in another way: one of the two is a bucket, and the other is spread.
        if m.refills and m.bursts is spread:
            # count_as_bucket(): the store has lost its ledger, and with it that the quota is spread.
            m = ledger.spread(now_ns, i) if spread else ledger.count_as_bucket(now_ns, i)
        of(m).teach(m, learned.quota, learned.burst_cap, learned.ceiling)
        entry.name = str(learned.quota)
        ledger.raise_given(i)


def _as_bucket(m: Meter, now_ns: int) -> Bucket | None:
    """The bucket that lets a cost above the burst of ``m`` go; ``None``: a counter has no such cost."""
    if not isinstance(m, Spread):
        return m if isinstance(m, Bucket) else None
    bucket = Bucket(replace(m.quota, rule=Rule.BUCKET), now_ns, 0.0)
    bucket.become(now_ns, bucket.quota, m.ceiling)
    # It lacks all that the last period has used. The spread quota's own full_at_ns is of its small burst.
    m.log.forget(now_ns)
    bucket.full_at_ns, bucket.most = now_ns + round(m.log.used * bucket.ns_per_unit), m.most
    return bucket


class Fallback(LocalCapacity):
    """The capacity of one process while the store is lost: its share of the snapshot.

    Args:
        snapshot: The ledger at the last reply.
        asked_ns: When the message without a reply was sent.
        now_ns: The present.
        share: The share, from 0 to 1.
        phase: A random number from 0 to 1 of this process, see :meth:`reserve`.
    """

    def __init__(self, snapshot: Snapshot, asked_ns: int, now_ns: int, share: float, phase: float) -> None:
        shared = snapshot.ledger
        ledger = Ledger([], now_ns, headroom_s=shared.headroom_s, ttl_s=shared.ttl_ns / NS)
        for i, entry in enumerate(shared.entries):
            m, held = entry.meter, max(shared.in_use(i), *snapshot.held[i : i + 1], 0.0)
            left = of(m).alone(m, now_ns, share, held, snapshot.as_of_ns, asked_ns)
            ledger.entries.append(entry.with_meter(left))
            if i in shared.entries.slots:
                left.release(now_ns, 0, held - shared.in_use(i))  # it uses those that are free since the last reply
        ledger.pause.until_ns = shared.pause.until_ns
        self.share = share
        self._phase = phase
        self._turns: dict[int, float] = {}  # by quota, the largest request that waits for its turn
        super().__init__(ledger)
        # The share with the reported use: copies, but of slots, whose use is not reported.
        self._reported = [entry.with_meter(of(entry.meter).part(entry.meter, now_ns, 1.0)) for entry in ledger.entries]

    def resize(self, now_ns: int, share: float) -> None:
        """Go on with another share; slots stay until the store answers again."""
        times, self.share = share / self.share, share
        # By the present meters, because the new ones know nothing of the turns.
        turns = [(i, amount, self._turn_ns(i)) for i, amount in self._turns.items()]
        for entry in (*self.ledger.entries, *self._reported):
            # Slots are whole, and attempts in flight hold them already.
            if not entry.meter.holds:
                entry.meter = of(entry.meter).part(entry.meter, now_ns, times)
        for turn in turns:
            self._let_go(*turn)

    def spend_no_more_at_once(self, now_ns: int) -> None:
        """Grant at the rate of the share from now on, and nothing beyond: the store presumes no more of this process.

        Otherwise what its buckets hold could be granted after the store is authoritative for other processes.
        """
        for i, (entry, before) in enumerate(zip(self.ledger.entries, self._reported, strict=True)):
            m, reported = entry.meter, before.meter
            if i in self._turns or not (isinstance(m, Bucket) and isinstance(reported, Bucket) and m.bursts):
                continue  # what is no bucket grants at its rate already
            by_ns = now_ns + m.reach_ns - max(m.full_at_ns, now_ns)
            if by_ns > 0:
                m.full_at_ns = now_ns + m.reach_ns
                reported.full_at_ns = max(reported.full_at_ns, now_ns) + by_ns

    def reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        """Make room for a request that is larger than this process's share of a quota: it waits for its turn.

        It goes when it would be a process's turn: the first after a random part of the time that refills it, the others
        after that time. In many processes, the requests follow each other at the rate of all shares.
        """
        for i, (entry, amount) in enumerate(zip(self.ledger.entries, waiter.amounts, strict=False)):
            # It fits into the share, or a turn of that size is planned already.
            if amount <= max(entry.meter.quota.burst, self._turns.get(i, 0.0)):
                continue
            reported = self._reported[i]
            m, evenly = _as_bucket(entry.meter, now_ns), _as_bucket(reported.meter, now_ns)
            if m is None or evenly is None:
                continue
            entry.meter, reported.meter = m, evenly
            # From now on: a bucket that was full in the past has saved nothing up for a large request.
            m.full_at_ns = max(m.full_at_ns, now_ns)
            first_ns = now_ns + round(self._phase * amount * m.ns_per_unit)
            self._let_go(i, amount, self._turn_ns(i) if i in self._turns else first_ns)
        return super().reserve(now_ns, waiter)

    def _turn_ns(self, i: int) -> int:
        m = self.ledger.entries[i].meter
        assert isinstance(m, Bucket)
        return m.full_at_ns + math.ceil(self._turns[i] * m.ns_per_unit) - m.reach_ns

    def _let_go(self, i: int, amount: float, at_ns: int) -> None:
        """Let the next request of ``amount`` go at ``at_ns``; what it costs is not changed."""
        m = self.ledger.entries[i].meter
        assert isinstance(m, Bucket)
        m.reach_ns = m.open_reach_ns = m.full_at_ns + math.ceil(amount * m.ns_per_unit) - at_ns
        self._turns[i] = amount

    def release(self, reservation: Reservation) -> None:
        """Free the slots of an attempt from before the loss, for this process."""
        for i in self.ledger.entries.slots:
            if i < len(reservation.amounts):
                self.ledger.entries[i].meter.release(0, 0, reservation.amounts[i])

    def news(self, now_ns: int) -> Charged | None:
        """What was spent since the last call, and the part of it that has not been refilled; ``None``: nothing."""
        more, left = list[float](), list[Left]()
        for entry, reported in zip(self.ledger.entries, self._reported, strict=True):
            m, before = entry.meter, reported.meter
            more.append(max(entry.spent - reported.spent, 0.0) if of(m).charged else 0.0)
            left.append(of(m).left(m, before, now_ns) if of(m).charged else [])
            reported.spent += more[-1]
            of(before).absorb(before, now_ns, left[-1])
        return Charged(more, left) if any(more) else None
