"""The order in which the requests of a pool go: lanes with weights and priorities, and deadlines.

Inside a lane requests go in the order of arrival: a large request is never overtaken by small ones behind it. Requests
whose prompts are still cached are the exception: they go before the others, in the order in which their cached prompts
are lost. An eighth of the rate of the lane goes in the order of arrival all the same. Between lanes, a higher priority
always goes first. Among the lanes of one priority the order is start-time fair queueing:
the next request of a lane starts where the last one finished in virtual time, finish = start + cost / weight, and
the lane with the earliest start goes first. A lane that was idle starts at the present virtual time, so idleness
earns nothing. The finish is computed from the estimated cost, and corrected when the true cost is known.
If the head of a lane is cached, the start is earlier, and the virtual time advances by that start. It is earlier by the
cached tokens of the head, and by what the lane is *ahead*: the cost of its last request that was not cached, less the
costs since. Without the second part, the lane would come after all lanes that have sent nothing yet, and would lose its
prompt meanwhile. A cost is one number here: how many seconds of the scarcest quota it takes.

The lanes are kept in two sorted lists: the busy ones, in which requests wait, and the idle ones, which are empty and
whose finish is still ahead of the virtual time. So the next request is found about as fast with thousands of lanes as
with one.

A lane with a parent has no share of its own: the busy lanes of one parent divide the weight of that by theirs.

WEAK: a lane that was idle starts at the present virtual time, so a parent whose lanes take turns to be idle gets more
than its share. Also, the places of its other lanes, where a cached prompt makes these earlier, are not computed again
when the number of busy ones changes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice, takewhile
from math import inf
from typing import Any, NamedTuple

from paceline.core.quota import Cost, Quota
from paceline.core.results import Outcome, QuotaError, public


@public
@dataclass(frozen=True, slots=True)
class LaneSpec:
    """A class of work: its name, its share among busy lanes, and its priority (higher goes first).

    ``limits``: quotas of the lane over all pools, as values or in their notation (``"60 requests/min"``).
    ``parent``: the lane that contains it. The lanes of a parent divide its share, and its limits apply to all of
    them.
    """

    name: str = "default"
    weight: float = 1.0
    priority: int = 0
    limits: Quota | str | Iterable[Quota | str] = ()
    parent: LaneSpec | None = None

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.name == "":
            raise QuotaError("the name of a lane is empty: it must have at least one character")
        if isinstance(self.weight, bool) or not isinstance(self.weight, int | float) or not 0 < self.weight < inf:
            raise QuotaError(f"weight of lane {self.name!r} is {self.weight!r}: it must be a finite number above 0")
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise QuotaError(f"priority of lane {self.name!r} is {self.priority!r}: it must be a whole number")


DEFAULT_LANE = LaneSpec()


def line_of(lane: LaneSpec) -> list[LaneSpec]:
    """The lane, its parent, and so on."""
    found = [lane]
    while (parent := found[-1].parent) is not None:
        found.append(parent)
    return found


LaneName = tuple[str, float | None, int | None]
"""A name of a lane, with the weight and the priority that the caller gave, if any."""

LANES_MAX = 1_000
"""How many lanes are cached: their names come from callers."""


class Lanes(dict[LaneName, LaneSpec]):
    """A cache of lanes: equal names, weights and priorities give the same object.

    Args:
        known: The weights and priorities by default; without one, 1 and 0.
    """

    def __init__(self, known: Iterable[LaneSpec] = ()) -> None:
        super().__init__()
        self._known: dict[str, LaneSpec] = {}
        for spec in known:
            if not isinstance(spec, LaneSpec):
                raise QuotaError(f"lanes: {spec!r} is not a lane: write it like LaneSpec('name', weight=2)")
            self._known[spec.name] = spec

    def __missing__(self, lane: LaneName) -> LaneSpec:
        """The lane, which is not in the cache.

        Raises:
            QuotaError: The name, the weight or the priority is invalid.
        """
        # Names come from callers, so the cache has a bound. It begins anew, because a lane is cheap to make.
        if len(self) >= LANES_MAX:
            self.clear()
        name, weight, priority = lane
        known = self._known.get(name) or LaneSpec(name)
        weight = known.weight if weight is None else weight
        priority = known.priority if priority is None else priority
        spec = self[lane] = LaneSpec(name, weight, priority, parent=known.parent)
        return spec


GONE_MAX = 64
"""How many deadlines are kept beyond twice the waiters: deadlines of requests that have gone are removed in bulk."""


OVERTAKING = 7.0
"""Cached requests that overtake the first of a lane take at most so many times its cost before it goes: an eighth of
the rate goes in the order of arrival."""


class Estimate(NamedTuple):
    """What a request is expected to cost at present.

    Attributes:
        cost: What it reserves.
        cached_tokens: The tokens of its prompt that the provider has in its cache.
        lost_ns: When the cache loses them, if they are at least half of the prompt; 0: there is nothing to lose.
    """

    cost: Cost
    cached_tokens: int = 0
    lost_ns: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Waiter:
    """One attempt of a request that asks for a permit.

    Attributes:
        cost: What it reserves.
        lane: Its class of work.
        arrived_ns: When it was submitted.
        began_ns: When its request began to wait, if it has waited elsewhere before: for the limits of its lane, or at
            another server.
        number: Its place in the order of arrival.
        returned: Whether it takes the place of its number, before all later ones, and not the end of the lane: after a
            refusal, after it gave back a grant that a pause made useless, or after a wait in another pool.
        deadline_ns: The latest instant of a grant, or ``None``.
        owner: The thread or task that waits, as the scheduler needs it.
        amounts: The cost as one number per entry.
        outcome: The result; ``None`` while it waits.
        queued: Whether it has joined the queue.
        name: The caller's name for it, for the status; ``None`` for none.
        estimate: Returns its present estimate, which answers to other requests may have corrected; ``None``: the cost
            is fixed.
        cached_tokens: The tokens of its prompt that the provider has in its cache.
        lost_ns: When the cache loses them, as far as known when it was last asked; 0: there is nothing to lose.
        saves: The cost of these tokens, by :attr:`Queue.seconds_of`.
        overtook: Whether it was granted before a request that had arrived earlier in its lane.
        turn: The turn of a conversation that it is, as the permit needs it; ``None`` for none.
        learn: Learns from the usage of its answer, as the permit needs it; ``None`` where the cost is no estimate.
        sized: Whether its tokens were given or estimated; else a size was assumed, which is compared with no answer.
        reported: The amounts that its answer reports, where the provider charges others.
    """

    cost: Cost
    lane: LaneSpec = DEFAULT_LANE
    deadline_ns: int | None = None
    name: str | None = None
    arrived_ns: int = 0
    began_ns: int | None = None
    number: int = 0
    returned: bool = False
    amounts: list[float] = field(default_factory=list)
    owner: Any = None
    outcome: Outcome | None = None
    queued: bool = False
    estimate: Callable[[], Estimate] | None = None
    cached_tokens: int = 0
    lost_ns: int = 0
    saves: float = 0.0
    overtook: bool = False
    turn: Any = None
    learn: Callable[[Any], None] | None = None
    sized: bool = True
    reported: Cost | None = None

    def wait_until(self, until_ns: int | None) -> None:
        """Let it wait for no longer than until ``until_ns``; ``None``: as long as before."""
        if until_ns is not None and (self.deadline_ns is None or until_ns < self.deadline_ns):
            self.deadline_ns = until_ns


_Key = tuple[int, float, float, int, int, str]
"""The sort key of a lane: minus its priority, its start, when its head loses its cached prompt (:func:`_haste`), the
number of its first waiter (0: none), its id (which makes the key unique), and its name. A plain tuple, because the
construction of a named one takes ten times as long."""


class _Lane:
    """The waiters of one lane, in the order of arrival.

    Attributes:
        finish: When its last request finished, in virtual time.
        cached: A heap of the instants at which cached prompts are lost, with the numbers of their waiters; also of
            former waiters, and of former instants.
        owed: The cost of the cached requests that went before earlier ones, less what these were given for it.
        ahead: What its cached requests may take before lanes that have had less: as much as its last request without a
            cached prompt has cost, less what they have cost since. Infinite before its first request: as much as is
            cached.
        keys: The sorted list that holds its key, the busy or the idle one; empty before the first place.
        key: Its key in that list.
    """

    __slots__ = ("ahead", "cached", "finish", "key", "keys", "owed", "spec", "waiters")

    def __init__(self, spec: LaneSpec) -> None:
        self.spec = spec
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()
        self.finish = self.owed = 0.0
        self.ahead = inf
        self.cached: list[tuple[int, int]] = []
        self.keys: list[_Key] = []
        self.key: _Key = (0, 0.0, inf, 0, 0, "")

    @property
    def first(self) -> Waiter:
        """The waiter that arrived first; a returned one before it."""
        return next(iter(self.waiters.values()))

    def add(self, waiter: Waiter) -> None:
        """Add a waiter at the end, or a returned one at its number."""
        last = next(reversed(self.waiters), 0)
        self.waiters[waiter.number] = waiter
        if waiter.lost_ns:
            self.add_cached(waiter)
        # A newcomer, the common case, stays at the end and moves none.
        if waiter.returned and (waiter.number < last or waiter.overtook):
            older = list(takewhile(lambda number: _goes_before(self.waiters[number], waiter), self.waiters))
            for number in (waiter.number, *reversed(older)):
                self.waiters.move_to_end(number, last=False)

    def add_cached(self, waiter: Waiter) -> None:
        """Let ``waiter`` go before those that have nothing to lose."""
        # Entries of former waiters leave when they come first. A search for each would cost more than this rebuild.
        if len(self.cached) > 2 * len(self.waiters) + GONE_MAX:
            self.cached = [(one.lost_ns, number) for number, one in self.waiters.items() if one.lost_ns]
            heapq.heapify(self.cached)
        else:
            heapq.heappush(self.cached, (waiter.lost_ns, waiter.number))


_Front = tuple[Waiter, Iterator[tuple[Waiter, int]], float, float]
"""A lane while its order is foretold: its next waiter, those after it, its finish, and what it is ahead."""


def _start(head: Waiter, finish: float, ahead: float, weight: float) -> float:
    """The start of a lane with this ``head`` and this ``finish``.

    It is earlier by the cached tokens of the head, and by ``ahead``.
    """
    return finish - (head.saves + max(ahead, 0.0)) / weight if head.lost_ns else finish


def _haste(head: Waiter, ahead: float) -> float:
    """When the ``head`` of a lane loses its cached prompt, while the lane may go before others that start as early."""
    return head.lost_ns if head.lost_ns and ahead > 0.0 else inf


def _ahead(gone: Waiter, cost_s: float, ahead: float) -> float:
    """What a lane is ``ahead`` after a request that costs ``cost_s``."""
    return min(ahead, gone.saves) - cost_s if gone.lost_ns else cost_s


def _rank(waiter: Waiter) -> tuple[int, int, int]:
    """The place of ``waiter`` in its lane: before all that have a larger one."""
    if waiter.returned:
        return 0, 0, waiter.number
    return (1, waiter.lost_ns, waiter.number) if waiter.lost_ns else (2, 0, waiter.number)


def _goes_before(other: Waiter, returned: Waiter) -> bool:
    """Whether ``other`` stays before ``returned``: it arrived earlier, and was not overtaken before."""
    return other.number < returned.number and (other.returned or not returned.overtook)


class Queue:
    """The waiters of one pool, in the order in which they will go.

    Attributes:
        length: The number of waiters.
        deadlines: A heap of the deadlines of waiters, also of former ones.
        next_number: Returns the next place in the order of arrival.
        seconds_of: See :meth:`Ledger.seconds_of <paceline.core.ledger.Ledger.seconds_of>`; the sum in a queue without a
            pool.
    """

    def __init__(self) -> None:
        self.next_number: Callable[[], int] = count(1).__next__
        self.seconds_of: Callable[[list[float]], float] = sum
        self._forget_all()

    def _forget_all(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._virtual: dict[int, float] = {}  # priority -> virtual time
        self._waiting: defaultdict[int, int] = defaultdict(int)  # priority -> number of waiters
        # parent and priority -> how many of its lanes are busy, and the sum of their weights
        self._families: dict[tuple[str, int], tuple[int, float]] = {}
        # One key per lane. A key may be too early, because a request of the lane was granted since or cost more than
        # estimated; it is corrected when it comes first.
        self._busy: list[_Key] = []
        self._idle: list[_Key] = []
        self.deadlines: list[tuple[int, int, int, Waiter]] = []
        self.length = 0

    def __iter__(self) -> Iterator[Waiter]:
        return (waiter for lane in self._lanes.values() for waiter in lane.waiters.values())

    def push(self, waiter: Waiter) -> None:
        """Put ``waiter`` at the end of its lane; a returned one at its number."""
        spec = waiter.lane
        priority, lane = spec.priority, self._lanes.get(spec.name)
        if lane is None:
            lane = self._lanes[spec.name] = _Lane(spec)
        # By identity, since `Lanes` gives equal lanes as one object. An equal copy is counted anew, to the same effect.
        if lane.waiters and lane.spec is not spec:
            self._count_busy(lane.spec, -1)
        if not lane.waiters or lane.spec is not spec:
            self._count_busy(spec, 1)
        before, lane.spec = lane.spec.priority, spec  # the latest weight and priority hold for the whole lane
        if waiter.returned:
            # It goes before all others, so that its cached prompt needs no place of its own.
            waiter.lost_ns = 0
        # Whether the key of the lane changes.
        moves = waiter.returned or waiter.lost_ns or lane.cached or not lane.waiters or before != priority
        lane.add(waiter)
        self.length += 1
        self._waiting[priority] += 1
        if before != priority:
            self._take_priority(lane, before)
        elif moves:
            self._place(lane)
        if waiter.deadline_ns is not None:
            self._keep_deadline(waiter.deadline_ns, waiter)

    def _take_priority(self, lane: _Lane, before: int) -> None:
        """Move a lane from the priority that it had ``before``; its lead over the virtual time stays the same."""
        # push() has counted the waiter that brings the priority.
        priority, others = lane.spec.priority, len(lane.waiters) - 1
        lead = max(lane.finish - self._virtual.get(before, 0.0), 0.0)
        lane.finish = self._virtual.get(priority, 0.0) + lead
        self._place(lane)
        self._waiting[priority] += others
        self._waiting[before] -= others
        self._forget_idle(before)

    def _keep_deadline(self, deadline_ns: int, waiter: Waiter) -> None:
        """Note the deadline of a waiter, and forget deadlines of waiters that are gone if these are many."""
        if len(self.deadlines) > 2 * self.length + GONE_MAX:
            self.deadlines = [entry for entry in self.deadlines if self.waits(entry[3])]
            heapq.heapify(self.deadlines)
        # The id, because waiters have no order: a further attempt of a request has its number, and maybe its deadline.
        heapq.heappush(self.deadlines, (deadline_ns, waiter.number, id(waiter), waiter))

    def head(self) -> Waiter | None:
        """The waiter that goes next."""
        busy = self._busy
        if not busy:
            return None
        # Keys that are too early come first. Each is corrected until the first one is right; a single one may be wrong.
        lane = self._lanes[busy[0][5]]
        while len(busy) > 1 and self._key(lane) != busy[0]:
            self._place(lane)
            lane = self._lanes[busy[0][5]]
        return self._next(lane) if lane.cached else next(iter(lane.waiters.values()))  # lane.first, without a call

    def peek(self, most: int) -> list[Waiter]:
        """The first ``most`` waiters, in the order in which they will go."""
        return list(islice(self.in_order(), most))

    def in_order(self) -> Iterator[Waiter]:
        """The waiters in the order in which they will go; the queue must not change meanwhile."""
        # A sorted list is a heap, so a copy serves as one.
        keys = self._busy.copy()
        fronts: dict[str, _Front] = {}
        while keys:
            below, start, _, _, which, name = keys[0]
            lane, front = self._lanes[name], fronts.get(name)
            # A lane is opened when it comes first, so that few are looked at, however many wait.
            if front is None:
                order = self._order(lane)
                fronts[name] = next(order)[0], order, lane.finish, lane.ahead
                heapq.heapreplace(keys, self._key(lane))
                continue
            gone, order, finish, ahead = front
            yield gone
            following = next(order, None)
            if following is None:
                heapq.heappop(keys)
                continue
            weight, cost_s, (waiter, oldest) = self._weight(lane.spec), self.seconds_of(gone.amounts), following
            finish, ahead = max(start, finish) + cost_s / weight, _ahead(gone, cost_s, ahead)
            fronts[name] = waiter, order, finish, ahead
            start = max(start, _start(waiter, finish, ahead, weight))
            heapq.heapreplace(keys, (below, start, _haste(waiter, ahead), oldest, which, name))

    def pop(self, head: Waiter, cost_s: float) -> float:
        """Remove ``head``, the present one; ``cost_s`` is its cost, by :attr:`seconds_of`.

        Returns:
            The cost of the waiters of its lane that it overtakes, if all cost as much as the first; 0 for none.
        """
        lane = self._lanes[head.lane.name]
        priority, finish, weight = lane.spec.priority, lane.finish, self._weight(lane.spec)
        start, overtaken = finish, 0.0
        if not lane.cached:
            lane.waiters.popitem(last=False)
        else:
            first = lane.first
            head.overtook = head is not first
            if head.overtook:
                lane.owed += cost_s
                overtaken = (len(lane.waiters) - 1) * self.seconds_of(first.amounts)
            else:
                lane.owed = max(0.0, lane.owed - OVERTAKING * cost_s)
            del lane.waiters[head.number]
            start = _start(head, finish, lane.ahead, weight)
        virtual = self._virtual.get(priority, 0.0)
        # The virtual time never goes back, although a cached head starts before lanes that have gone.
        self._virtual[priority] = max(virtual, start)
        # A lane that was idle begins at the present, or it would go first until it has made up for its idle time.
        lane.finish = max(virtual, finish) + cost_s / weight
        lane.ahead = _ahead(head, cost_s, lane.ahead)
        self._one_less(lane)
        return overtaken

    def renew(self, waiter: Waiter) -> None:
        """Give ``waiter``, whose ``lost_ns`` has changed, its place."""
        lane = self._lanes[waiter.lane.name]
        if waiter.lost_ns:
            lane.add_cached(waiter)
        self._place(lane)

    def correct(self, waiter: Waiter, cost_s: float) -> None:
        """Add ``cost_s``, the true cost less the estimate of a granted ``waiter``, to the finish of its lane."""
        lane = self._lanes.get(waiter.lane.name)
        if lane is not None:
            lane.finish += cost_s / self._weight(lane.spec)
            # As in _ahead(): a cached request has taken its cost from it, and any other one has set it to its cost.
            lane.ahead += -cost_s if waiter.lost_ns else cost_s
            start = lane.key[1]
            # A key that is too early is corrected when it comes first. One that is too late would not come in time,
            # and by an early one an idle lane would be forgotten with what it owes.
            moves = lane.cached or not lane.waiters
            now_earlier = lane.finish < start and self._virtual.get(lane.spec.priority, 0.0) < start
            if moves or now_earlier:
                self._place(lane)

    def withdraw(self, waiter: Waiter) -> bool:
        """Remove ``waiter``; whether it was in the queue."""
        if not self.waits(waiter):
            return False
        lane = self._lanes[waiter.lane.name]
        del lane.waiters[waiter.number]
        self._one_less(lane)
        return True

    def overdue(self, now_ns: int) -> list[Waiter]:
        """Remove and return every waiter with a deadline of ``now_ns`` or earlier."""
        late = []
        while self.deadlines and self.deadlines[0][0] <= now_ns:
            waiter = heapq.heappop(self.deadlines)[3]
            # Waiters that have gone stay in the heap until their deadlines.
            if self.withdraw(waiter):
                late.append(waiter)
        return late

    @property
    def next_deadline_ns(self) -> int | None:
        """The earliest deadline of a waiter; ``None`` for none."""
        while self.deadlines:
            deadline_ns, _, _, waiter = self.deadlines[0]
            if self.waits(waiter):
                return deadline_ns
            heapq.heappop(self.deadlines)
        return None

    def before(self, waiter: Waiter) -> list[Waiter]:
        """The waiters that certainly go before ``waiter``: of the same lane, or of a higher priority."""
        return [
            other
            for other in self
            if other.lane.priority > waiter.lane.priority
            or (other.lane.name == waiter.lane.name and _rank(other) < _rank(waiter))
        ]

    def ahead_of_newcomer(self, spec: LaneSpec, lost_ns: int = 0) -> int:
        """How many waiters would certainly go before one that joins the lane of ``spec`` now, with ``lost_ns``."""
        lane = self._lanes.get(spec.name)
        # A list, because sum() takes longer with a generator, and each newcomer comes here.
        ahead = sum([waiting for priority, waiting in self._waiting.items() if priority > spec.priority])
        # The waiters of a lane that had a higher priority are in the sum already.
        if lane is None or lane.spec.priority > spec.priority:
            return ahead
        if not lost_ns:
            return ahead + len(lane.waiters)
        # A set: a waiter whose cache lives longer is in the heap with both instants.
        soon = {number for until_ns, number in lane.cached if until_ns <= lost_ns}
        waiting = [lane.waiters[number] for number in soon if number in lane.waiters]
        return ahead + sum([0 < waiter.lost_ns <= lost_ns for waiter in waiting])  # not of a former instant

    def drain(self) -> list[Waiter]:
        """Remove and return every waiter."""
        waiters = list(self)
        self._forget_all()
        return waiters

    def waiting(self) -> dict[str, int]:
        """The number of waiters per lane, without empty lanes."""
        return {name: len(lane.waiters) for name, lane in self._lanes.items() if lane.waiters}

    def oldest_ns(self) -> dict[str, int]:
        """When the first waiter of each lane was submitted, without empty lanes."""
        return {name: lane.first.arrived_ns for name, lane in self._lanes.items() if lane.waiters}

    def waits(self, waiter: Waiter) -> bool:
        """Whether ``waiter`` is in the queue; a further attempt of its request has the same number."""
        lane = self._lanes.get(waiter.lane.name)
        return lane is not None and lane.waiters.get(waiter.number) is waiter

    def _next(self, lane: _Lane) -> Waiter:
        """The waiter of ``lane`` that goes next."""
        return self._chosen(lane, lane.first, lane.cached, lane.owed)

    def _chosen(
        self, lane: _Lane, first: Waiter, cached: list[tuple[int, int]], owed: float, gone: Collection[int] = ()
    ) -> Waiter:
        """Of ``lane``, without the waiters in ``gone``, the one that goes next.

        Entries of former waiters leave the heap.
        """
        chosen = first
        while cached:
            lost_ns, number = cached[0]
            waiter = lane.waiters.get(number)
            if waiter is not None and waiter.lost_ns == lost_ns and number not in gone:
                chosen = waiter
                break
            heapq.heappop(cached)
        # `owed` first: most lanes owe nothing, and a first waiter that costs nothing would always seem to be owed.
        is_first = first.returned or (owed and owed >= OVERTAKING * self.seconds_of(first.amounts))
        return first if is_first else chosen

    def _order(self, lane: _Lane) -> Iterator[tuple[Waiter, int]]:
        """The waiters of ``lane`` in the order in which they go, each with the number of the first that waits then."""
        if not lane.cached:
            yield from zip(lane.waiters.values(), lane.waiters, strict=True)
            return
        # As pop() will take them, on a copy of the heap: `_chosen` drops its entries of former waiters.
        cached, owed, gone = lane.cached.copy(), lane.owed, set[int]()
        for oldest, first in lane.waiters.items():
            while oldest not in gone:
                waiter = self._chosen(lane, first, cached, owed, gone)
                cost_s = self.seconds_of(waiter.amounts)
                owed = max(0.0, owed - OVERTAKING * cost_s) if waiter is first else owed + cost_s
                gone.add(waiter.number)
                yield waiter, oldest

    def _key(self, lane: _Lane) -> _Key:
        spec, start, lost_ns = lane.spec, lane.finish, inf
        if lane.cached:
            head = self._next(lane)
            start, lost_ns = _start(head, start, lane.ahead, self._weight(spec)), _haste(head, lane.ahead)
        start = max(self._virtual.get(spec.priority, 0.0), start)
        return -spec.priority, start, lost_ns, next(iter(lane.waiters), 0), id(lane), spec.name

    def _weight(self, spec: LaneSpec) -> float:
        """The weight of a lane at present; with a parent, a part of that's among its busy lanes."""
        weight, priority = spec.weight, spec.priority
        while (parent := spec.parent) is not None:
            _, busy = self._families.get((parent.name, priority), (0, 0.0))
            # A lane that is idle, and is corrected, is not in the sum: it alone may weigh more.
            weight *= parent.weight / max(busy, spec.weight)
            spec = parent
        return weight

    def _count_busy(self, spec: LaneSpec, by: int) -> None:
        """Count a lane that has begun to wait (1) or has ended (-1) in its parent.

        The first and the last lane there count in the parent of that.
        """
        priority = spec.priority
        while (parent := spec.parent) is not None:
            family = parent.name, priority
            number, busy = self._families.pop(family, (0, 0.0))
            # The last lane takes the family with it, and the noise that is left of a sum of floats.
            if number + by:
                self._families[family] = number + by, busy + by * spec.weight
            if number and number + by:
                return
            spec = parent

    def _place(self, lane: _Lane) -> None:
        """Compute the key of ``lane`` again, and move it to its place in the sorted lists."""
        if lane.keys:
            del lane.keys[bisect_left(lane.keys, lane.key)]
        lane.keys = self._busy if lane.waiters else self._idle
        lane.key = self._key(lane)
        insort(lane.keys, lane.key)

    def _one_less(self, lane: _Lane) -> None:
        """Count the removal of a waiter from ``lane``."""
        self.length -= 1
        assert self.length >= 0
        if not self.length:
            self._forget_all()
            return
        priority = lane.spec.priority
        self._waiting[priority] -= 1
        if not lane.waiters:
            self._count_busy(lane.spec, -1)
            lane.owed = 0.0
            lane.cached.clear()
            self._place(lane)
            self._forget_idle(priority)
        elif lane.cached or next(iter(lane.waiters)) < lane.key[3]:
            self._place(lane)  # the next head may have more to lose, or has arrived before one that had come back

    def _forget_idle(self, priority: int) -> None:
        """Drop the empty lanes of ``priority`` that are not ahead of its virtual time.

        If no waiter has this priority, all of them go.
        """
        paid = self._virtual.get(priority, 0.0)
        # Without waiters no lane is ahead of another one, and the virtual time begins at 0 again.
        if not self._waiting[priority]:
            paid = inf
            del self._waiting[priority]
            self._virtual.pop(priority, None)
        idle = self._idle
        begin = bisect_left(idle, (-priority, -inf, 0, 0, 0, ""))
        # With 1 as the number, the lanes that start at `paid` are among them.
        end = bisect_left(idle, (-priority, paid, inf, 1, 0, ""), begin)
        for key in idle[begin:end]:
            del self._lanes[key[5]]
        del idle[begin:end]
