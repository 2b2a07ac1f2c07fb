"""The processes that share a ledger, and the places of those that wait.

No call costs more with more processes. What processes count is kept in running sums. A process enters them with its
message, and its part changes at known instants without one: its slots become free, it is overdue, its share wanes, it
loses its place. The next such instant is its *event*; a call takes the events that are due, and looks at no other
process. The first ``FRONT`` places are exact; what goes before a later one is estimated from its position.

Instants are microseconds of the store's clock, which never goes back here, and shares are billionths, so that the sums
are exact in any order. A differential test compares this with ``stores/peers.lua``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple

from paceline.shared.messages import SHARED_PART, WANE_NS, WANES

# More than six times RENEW_NS, so that a process keeps its slots if it cannot report for 12 s.
LEASE_US = 15_000_000
"""How long a process counts after its last message, and keeps its slots; longer where that many may not report so often."""

# A process that waits asks again within PLACE_NS and GRACE_NS, together 7 s.
VANISHED_US, QUIET_US = 120_000_000, 7_000_000
"""How long after its last message a process that did not report again is charged with its share; and after which time
without any message all processes had lost the store."""

FORGET_US, LEFT_US = 3_600_000_000, 600_000_000
"""How long the number of a process's last message is remembered, and the number of a process that has left."""

BILLION = 1_000_000_000
WEIGHT: Final[int] = 2 ** (WANES - 1)
"""What a process weighs whose share has not waned."""

# Not 0: the part of a quota is a quota, whose amount must be above 0.
SHARE_MIN = 1_000
"""The least share, in billionths."""

LOOK_US = 5_000_000
"""How often it is looked whether a process that is charged with its share has ended."""

FRONT = 16
"""How many places are exact."""

# A call is one Redis script, and the server does nothing else meanwhile.
EVENTS_MAX = 200
"""How many events a call takes; the rest waits for the next call."""


class PeerPlace(NamedTuple):
    """The next request of a waiting process.

    Attributes:
        number: Rises from place to place.
        until_us: Until when the process may ask again.
        amounts: What the request needs, by account.
    """

    number: int
    until_us: int
    amounts: list[float]


@dataclass(slots=True)
class Peer:
    """A process.

    Attributes:
        seen_us: The time of its last message.
        number: The number of that message.
        share: Its share of the limits while the store is lost.
        due_us: When it must have reported again; 0: it has not announced that.
        lease_us: How long it counts after its last message; negative: it has left.
        presumed_ns: What was charged since it vanished and it has not reported, in nanoseconds of refill.
        held: What it holds, by account.
        live, weight, told, gone: Its part of the sums of that name.
        since_us: The sum of charged time when it vanished.
        event_us: When its part changes without a message.
    """

    seen_us: int
    number: int = 0
    share: int = 0
    due_us: int = 0
    lease_us: int = LEASE_US
    presumed_ns: float = 0.0
    held: list[float] = field(default_factory=list)
    live: int = 0
    weight: int = 0
    gone: int = 0
    since_us: int = 0
    event_us: int = 0

    @property
    def told(self) -> int:
        """Its share, as far as it has not waned."""
        return self.share * self.weight // WEIGHT


class Seen(NamedTuple):
    """What the store knows of a process.

    Attributes:
        who: Its name.
        state: ``alive``, ``silent`` (it has not reported when it had announced to), ``idle`` (it had not announced a report, or
            is known to have ended), or ``left``.
        ago_s: How long ago its last message was.
        part: Its share of the limits if the store is lost.
        waits: Whether a request of it waits.
    """

    who: str
    state: str
    ago_s: float
    part: float
    waits: bool

    @classmethod
    def of(
        cls, who: str, now_us: int, seen_us: int, due_us: int, lease_us: int, told: int, place_until_us: int
    ) -> Seen:
        """A process, by the fields of :class:`Peer`; ``place_until_us`` is 0 for no place."""
        state = "alive"
        if lease_us < 0:
            state = "left"
        elif due_us and due_us <= now_us:
            state = "silent"
        elif not due_us and now_us > seen_us + (lease_us if told else QUIET_US):
            state = "idle"
        return cls(who, state, max(now_us - seen_us, 0) / 1e6, told / BILLION, place_until_us >= now_us)


_values = attrgetter(*Peer.__slots__)
"""Of a process, in a dump."""


class Places:
    """The places of the processes that wait, in their order: the first are exact, the others are a sum.

    Attributes:
        behind: How many places are behind the exact ones.
        amounts: What those need, by account.
        number: The number of the last place.
        moved: The number of the last exact one, or a later number.
    """

    def __init__(self) -> None:
        self.behind = 0
        self.amounts: list[float] = []
        self.number = self.moved = 0
        self._of: dict[str, PeerPlace] = {}  # by process, in the order of their numbers

    def until_us(self, who: str) -> int:
        """Until when a process may ask again to keep its place; 0: it has none."""
        place = self._of.get(who)
        return 0 if place is None else place.until_us

    def keep(self, who: str, amounts: list[float] | None, until_us: int = 0, *, last: bool = False) -> None:
        """Keep a place for a process: the one that it has, unless it has to be the ``last``. Without amounts it has none."""
        if amounts is None or last:
            self.remove(who)
        if amounts is None:
            return
        mine = self._of.get(who)
        if mine is None:
            self.number += 1
            # It is exact at once, if there is room and no earlier place waits behind the exact ones.
            if not self.behind and len(self._of) < FRONT:
                self.moved = self.number
        else:
            self._count(mine, -1)
        place = self._of[who] = PeerPlace(self.number if mine is None else mine.number, until_us, amounts)
        self._count(place, 1)

    def remove(self, who: str) -> None:
        """Take out the place of a process, if it has one."""
        place = self._of.pop(who, None)
        if place is not None:
            self._count(place, -1)

    def advance(self) -> None:
        """Make the first of the others exact, while there is room."""
        while self.behind and (exact := len(self._of) - self.behind) < FRONT:
            place = next(islice(self._of.values(), exact, None))
            self._count(place, -1)
            self.moved = place.number
        if not self.behind:
            self.amounts, self.moved = [], self.number

    def ahead(self, who: str, sums: list[float]) -> tuple[list[float], list[float]]:
        """What goes before the place of a process, and before a new one, by account; each begins with ``sums``."""
        before, others, passed, mine = list(sums), list(sums), False, self._of.get(who)
        for place in islice(self._of.values(), len(self._of) - self.behind):
            if place is mine:
                passed = True
                continue
            for i, amount in enumerate(place.amounts):
                others[i] += amount
                if not passed:
                    before[i] += amount
        if self.behind:
            part, own = 0.0 if passed else 1.0, list[float]()
            if mine is not None and not passed:
                # WEAK: an estimate from its position. The places before it may need more or less than the mean.
                part, own = (mine.number - self.moved - 1) / (self.number - self.moved), mine.amounts
            for i, amount in enumerate(self.amounts):
                rest = max(amount - (own[i] if i < len(own) else 0.0), 0.0)
                others[i] += rest
                before[i] += rest * part
        return before, others

    def _count(self, place: PeerPlace, times: int) -> None:
        """Count ``place``, unless it is exact; with -1 no more."""
        if place.number > self.moved:
            self.behind += times
            self.amounts += [0.0] * (len(place.amounts) - len(self.amounts))
            for i, amount in enumerate(place.amounts):
                self.amounts[i] += amount * times

    def dump(self) -> list[tuple[str, int, int, list[float]]]:
        """All places as plain values."""
        return [(who, *place) for who, place in self._of.items()]

    def load(self, state: list[list[Any]]) -> None:
        """Take the places that :meth:`dump` returned, beside the numbers."""
        for who, number, until_us, amounts in state:
            self._of[who] = PeerPlace(number, until_us, amounts)
            self.behind += number > self.moved


class Peers:
    """All processes of one pool.

    Attributes:
        live: How many processes count.
        weight: The same with those whose shares wane, in parts of ``2 ** (WANES - 1)``.
        told: The sum of their shares.
        gone: The shares of the processes that vanished.
        away_us: The end of the last time in which all processes had lost the store.
        awaited: How many of those that vanished in that time have not reported since, and may have spent something; one more
            for each quota whose slots were in use in a ledger before this one.
        held: What live processes hold, by account.
        places: The places of those that wait.
    """

    def __init__(self) -> None:
        self.live = self.weight = self.told = self.gone = self.awaited = 0
        self.held: list[float] = []
        self.places = Places()
        self.away_us = self._quiet_us = self._charged_us = 0
        self._peers: dict[str, Peer] = {}
        self._events: list[tuple[int, str]] = []  # a heap; those that a later one replaced stay until their time

    def advance(self, last_us: int, now_us: int, ended: Callable[[str, bool], bool]) -> float:
        """Take the events that are due since the call at ``last_us``; ``ended``: see :meth:`SharedLedger.apply`.

        Returns:
            What vanished processes may have spent since that call, in billionths of a microsecond of refill.
        """
        passed_us, spent = now_us - last_us, 0.0
        # After an outage, processes report what they have spent in it, so nothing is presumed for that time.
        if passed_us > QUIET_US:
            self._quiet_us, self.away_us, self.awaited = last_us, now_us, 0
        else:
            self._charged_us += passed_us
            spent = float(self.gone * passed_us)
        taken = 0
        while self._events and taken < EVENTS_MAX:
            event_us, who = self._events[0]
            peer = self._peers.get(who)
            # A later event has replaced it. To search the heap for it would cost more than to skip it here.
            if peer is None or peer.event_us != event_us:
                heapq.heappop(self._events)
                continue
            if event_us > now_us:
                break
            heapq.heappop(self._events)
            taken += 1
            self._withdraw(peer)
            if self.places.until_us(who) < now_us:
                self.places.remove(who)
            # In an outage all have lost the store, and a new server sees no process yet.
            if peer.due_us and peer.due_us <= now_us and ended(who, self.away_us <= peer.due_us):
                peer.share = peer.due_us = 0
            if peer.seen_us + (FORGET_US if peer.lease_us >= 0 else LEFT_US) < now_us:
                self._return(peer)
                del self._peers[who]
            else:
                spent += self._enter(who, peer, now_us)
        return spent

    def meet(self, who: str, now_us: int) -> Peer:
        """The process ``who``, taken out of the sums until :meth:`part`; its times are taken from its last message."""
        peer = self._peers.setdefault(who, Peer(now_us))
        self._withdraw(peer)
        self._return(peer)
        return peer

    def part(self, who: str, peer: Peer, now_us: int) -> None:
        """Enter the process, which has sent a message, into the sums again, and move places to the front."""
        peer.seen_us = now_us
        self._enter(who, peer, now_us)
        self.places.advance()

    def share(self) -> int:
        """The share of the limits for the process that was met, in billionths, while the store is lost."""
        # Not 1/N: of eight processes that start in turn, such parts add up to 2.7.
        told = min(BILLION * WEIGHT // (WEIGHT + self.weight), BILLION - self.told)
        return max(int(told * SHARED_PART), SHARE_MIN)

    def seen(self, now_us: int) -> list[Seen]:
        """All processes that are remembered."""
        return [
            Seen.of(who, now_us, p.seen_us, p.due_us, p.lease_us, p.told, self.places.until_us(who))
            for who, p in self._peers.items()
        ]

    def _withdraw(self, peer: Peer) -> None:
        """Take a process out of all sums but ``gone``."""
        self.live -= peer.live
        self.weight -= peer.weight
        # Before its weight is cleared, from which it is computed.
        self.told -= peer.told
        if peer.live:
            for i, amount in enumerate(peer.held):
                self.held[i] -= amount
        peer.live = peer.weight = 0

    def _return(self, peer: Peer) -> None:
        """A process that had vanished, if it had, is here again, or is not charged any more."""
        if peer.gone:
            # By a sum over all time, so that a process that vanished costs nothing while others send messages.
            peer.presumed_ns += peer.gone * (self._charged_us - peer.since_us) * 1e-6
            self.gone, peer.gone = self.gone - peer.gone, 0
            self.awaited -= self._quiet_us < peer.due_us < self.away_us

    def _enter(self, who: str, peer: Peer, now_us: int) -> float:
        """Count a process as it stands now; returns what it may have spent before it was noticed, as :meth:`advance`."""
        events = [peer.seen_us + (FORGET_US if peer.lease_us >= 0 else LEFT_US) + 1]
        if now_us <= peer.seen_us + peer.lease_us:
            peer.live = 1
            self.live += 1
            self.held += [0.0] * (len(peer.held) - len(self.held))
            for i, amount in enumerate(peer.held):
                self.held[i] += amount
            events.append(peer.seen_us + peer.lease_us + 1)
        spent, until_us = 0.0, peer.seen_us + VANISHED_US
        if peer.due_us and peer.due_us <= now_us < until_us:
            if not peer.gone:
                # It was noticed late, by the next message of any process. The time before that counts, too, but for the
                # time in which all had lost the store.
                late_us = max(now_us - max(peer.due_us, self.away_us), 0)
                peer.gone, peer.since_us = peer.share, self._charged_us - late_us
                self.gone += peer.gone
                self.awaited += peer.gone > 0 and self._quiet_us < peer.due_us < self.away_us
                spent = float(peer.gone * late_us)
            events.append(min(until_us, now_us + LOOK_US))
        else:
            self._return(peer)
            if now_us < peer.due_us:
                events.append(peer.due_us)
        # As long as it is charged with its share, that is whole; Membership.share_at() has the same.
        from_us = until_us if peer.due_us else peer.seen_us
        halved = max(now_us - from_us, 0) // (WANE_NS // 1_000)
        if peer.share and halved < WANES:
            peer.weight = WEIGHT >> halved
            self.weight += peer.weight
            self.told += peer.told
            events.append(from_us + (halved + 1) * (WANE_NS // 1_000))
        if until_us := self.places.until_us(who):
            events.append(until_us + 1)
        peer.event_us = min(events)
        heapq.heappush(self._events, (peer.event_us, who))
        return spent

    def dump(self) -> dict[str, Any]:
        """The whole state, as plain JSON values."""
        places = self.places
        return {
            "sums": [self.live, self.weight, self.told, self.gone, self.awaited, self.held, places.amounts],
            "times": [self._quiet_us, self.away_us, self._charged_us, places.number, places.moved],
            "peers": dict(zip(self._peers, map(_values, self._peers.values()), strict=True)),
            "places": places.dump(),
        }

    @classmethod
    def load(cls, state: dict[str, Any]) -> Peers:
        """The processes with the state that :meth:`dump` returned; raises as :meth:`SharedLedger.load`."""
        peers = cls()
        places = peers.places
        peers.live, peers.weight, peers.told, peers.gone, peers.awaited, peers.held, places.amounts = state["sums"]
        peers._quiet_us, peers.away_us, peers._charged_us, places.number, places.moved = state["times"]
        peers._peers = {who: Peer(*values) for who, values in state["peers"].items()}
        peers._events = sorted((peer.event_us, who) for who, peer in peers._peers.items())
        places.load(state["places"])
        return peers
