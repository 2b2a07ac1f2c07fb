"""The order in which the requests of a pool go: lanes with weights and priorities, and deadlines.

Inside a lane the order is that of arrival: a large request is never overtaken by small ones behind it. Between
lanes, a higher priority always goes first. Among the lanes of one priority the order is start-time fair queueing:
the next request of a lane starts where the last one finished in virtual time, finish = start + cost / weight, and
the lane with the earliest start goes first. A lane that was idle starts at the present virtual time, so idleness
earns nothing. The finish is computed from the estimated cost, and corrected when the true cost is known.

The lanes are kept in two sorted lists: the busy ones, in which requests wait, and the idle ones, which are empty and
whose finish is still ahead of the virtual time. So the next request is found about as fast with thousands of lanes as
with one.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, takewhile
from math import inf
from typing import Any

from paceline.core.quota import Cost, Quota
from paceline.core.results import Outcome, QuotaError


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """A class of work: its name, its share among busy lanes, and its priority (higher goes first).

    ``limits``: quotas that hold for the lane over all pools.
    """

    name: str = "default"
    weight: float = 1.0
    priority: int = 0
    limits: tuple[Quota, ...] = ()

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.name == "":
            raise QuotaError("the name of a lane is empty: it must have at least one character")
        if isinstance(self.weight, bool) or not isinstance(self.weight, int | float) or not 0 < self.weight < inf:
            raise QuotaError(f"weight of lane {self.name!r} is {self.weight!r}: it must be a finite number above 0")
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise QuotaError(f"priority of lane {self.name!r} is {self.priority!r}: it must be a whole number")


DEFAULT_LANE = LaneSpec()

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
        if len(self) >= LANES_MAX:
            self.clear()
        name, weight, priority = lane
        known = self._known.get(name) or LaneSpec(name)
        weight = known.weight if weight is None else weight
        spec = self[lane] = LaneSpec(name, weight, known.priority if priority is None else priority)
        return spec


GONE_MAX = 64
"""How many deadlines are kept beyond twice the waiters: those of other requests are removed in bulk."""


class Waiter:
    """One attempt of a request that asks for a permit.

    Attributes:
        cost: What it reserves.
        lane: Its class of work.
        arrived_ns: When it was submitted.
        number: Its place in the order of arrival.
        returned: Whether it takes the place of its number, before all later ones, and not the end of the lane: after a
            refusal, after it gave back a grant that a pause made useless, or after a wait in another pool.
        deadline_ns: The latest instant of a grant, or ``None``.
        owner: The thread or task that waits, as the scheduler needs it.
        amounts: The cost as one number per account.
        outcome: The result; ``None`` while it waits.
        queued: Whether it has joined the queue.
        name: The caller's name for it, for the status; ``None`` for none.
        estimate: Returns its present cost, which answers to other requests may have corrected; ``None``: the cost is fixed.
    """

    __slots__ = (
        "amounts", "arrived_ns", "cost", "deadline_ns", "estimate", "lane", "name", "number", "outcome", "owner", "queued",
        "returned",
    )  # fmt: skip

    def __init__(
        self, cost: Cost, lane: LaneSpec = DEFAULT_LANE, deadline_ns: int | None = None, name: str | None = None
    ) -> None:
        self.cost = cost
        self.name = name
        self.lane = lane
        self.deadline_ns = deadline_ns
        self.arrived_ns = 0
        self.number = 0
        self.returned = False
        self.amounts: list[float] = []
        self.owner: Any = None
        self.outcome: Outcome | None = None
        self.queued = False
        self.estimate: Callable[[], Cost] | None = None


_Key = tuple[int, float, int, int, str]
"""The sort key of a lane: minus its priority, its start, the number of its first waiter (0: none), its id (which makes
the key unique), and its name. A plain tuple, because the construction of a named one takes ten times as long."""


class _Lane:
    __slots__ = ("finish", "key", "row", "spec", "waiters")

    def __init__(self, spec: LaneSpec) -> None:
        self.spec = spec
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()
        self.finish = 0.0
        self.row: list[_Key] = []  # the sorted list that holds its key, if any
        self.key: _Key = (0, 0.0, 0, 0, "")


class Queue:
    """The waiters of one pool, in the order in which they will go.

    Attributes:
        length: The number of waiters.
        next_number: Returns the next place in the order of arrival.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._virtual: dict[int, float] = {}  # priority -> virtual time
        self._waiting: defaultdict[int, int] = defaultdict(int)  # priority -> number of waiters
        # One key per lane. A key may be too early, because a request of the lane was granted since or cost more than
        # estimated; it is corrected when it comes first.
        self._busy: list[_Key] = []
        self._idle: list[_Key] = []
        self._deadlines: list[tuple[int, int, int, Waiter]] = []  # a heap; also of former waiters
        self.next_number: Callable[[], int] = count(1).__next__
        self.length = 0

    def __iter__(self) -> Iterator[Waiter]:
        return (waiter for lane in self._lanes.values() for waiter in lane.waiters.values())

    def push(self, waiter: Waiter) -> None:
        """Put ``waiter`` at the end of its lane; a returned one at its number."""
        spec = waiter.lane
        priority = spec.priority
        lane = self._lanes.get(spec.name)
        if lane is None:
            lane = self._lanes[spec.name] = _Lane(spec)
        before, lane.spec = lane.spec.priority, spec  # the latest weight and priority hold for the whole lane
        moves = waiter.returned or not lane.waiters or before != priority  # whether the key of the lane changes
        last = next(reversed(lane.waiters), 0)
        lane.waiters[waiter.number] = waiter
        self.length += 1
        self._waiting[priority] += 1
        if before != priority:  # its lead over the virtual time stays the same
            lead = max(lane.finish - self._virtual.get(before, 0.0), 0.0)
            lane.finish = self._virtual.get(priority, 0.0) + lead
        if moves:
            if waiter.returned and waiter.number < last:
                older = list(takewhile(lambda number: number < waiter.number, lane.waiters))
                for number in (waiter.number, *reversed(older)):
                    lane.waiters.move_to_end(number, last=False)
            self._place(lane)
            if before != priority:
                others = len(lane.waiters) - 1
                self._waiting[priority] += others
                self._waiting[before] -= others
                self._forget_idle(before)
        if waiter.deadline_ns is not None:
            if len(self._deadlines) > 2 * self.length + GONE_MAX:
                self._deadlines = [entry for entry in self._deadlines if self._waits(entry[3])]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (waiter.deadline_ns, waiter.number, id(waiter), waiter))

    def head(self) -> Waiter | None:
        """The waiter that goes next."""
        lane = self._first_lane()
        return next(iter(lane.waiters.values())) if lane else None

    def peek(self, most: int, share: Callable[[list[float]], float]) -> list[Waiter]:
        """The first ``most`` waiters, in the order in which they will go; ``share`` computes the argument of :meth:`pop`."""
        keys = self._busy.copy()  # a sorted list is a heap
        fronts: dict[str, tuple[Waiter, Iterator[Waiter]]] = {}
        first: list[Waiter] = []
        while keys and len(first) < most:
            below, start, _, which, name = keys[0]
            if name not in fronts:
                lane = self._lanes[name]
                rest = iter(lane.waiters.values())
                fronts[name] = next(rest), rest
                heapq.heapreplace(keys, self._key(lane))
                continue
            waiter, rest = fronts[name]
            first.append(waiter)
            following = next(rest, None)
            if following is None:
                heapq.heappop(keys)
            else:
                fronts[name] = following, rest
                start += share(waiter.amounts) / self._lanes[name].spec.weight
                heapq.heapreplace(keys, (below, start, following.number, which, name))
        return first

    def pop(self, share: float) -> None:
        """Remove the head; ``share`` is its cost, in a measure that is the same for all lanes."""
        lane = self._first_lane()
        assert lane is not None
        lane.waiters.popitem(last=False)
        priority = lane.spec.priority
        start = self._virtual.get(priority, 0.0)
        if lane.finish > start:
            start = lane.finish
        self._virtual[priority] = start
        lane.finish = start + share / lane.spec.weight
        self._one_less(lane)

    def correct(self, waiter: Waiter, share: float) -> None:
        """Add ``share``, the true cost less the estimate of a granted ``waiter``, to the finish of its lane."""
        lane = self._lanes.get(waiter.lane.name)
        if lane is not None:
            lane.finish += share / lane.spec.weight
            start = lane.key[1]
            idle = not lane.waiters
            starts_earlier = (
                lane.finish < start and self._virtual.get(lane.spec.priority, 0.0) < start
            )  # than its key says
            if idle or starts_earlier:
                self._place(lane)

    def withdraw(self, waiter: Waiter) -> bool:
        """Remove ``waiter``; whether it was in the queue."""
        if not self._waits(waiter):
            return False
        lane = self._lanes[waiter.lane.name]
        del lane.waiters[waiter.number]
        self._one_less(lane)
        return True

    def overdue(self, now_ns: int) -> list[Waiter]:
        """Remove and return every waiter with a deadline of ``now_ns`` or earlier."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            waiter = heapq.heappop(self._deadlines)[3]
            if self.withdraw(waiter):
                late.append(waiter)
        return late

    @property
    def next_deadline_ns(self) -> int | None:
        """The earliest deadline of a waiter; ``None`` for none."""
        while self._deadlines:
            deadline_ns, _, _, waiter = self._deadlines[0]
            if self._waits(waiter):
                return deadline_ns
            heapq.heappop(self._deadlines)
        return None

    def before(self, waiter: Waiter) -> list[Waiter]:
        """The waiters that certainly go before ``waiter``: of the same lane, or of a higher priority."""
        return [
            other
            for other in self
            if other.lane.priority > waiter.lane.priority
            or (other.lane.name == waiter.lane.name and other.number < waiter.number)
        ]

    def ahead_of_newcomer(self, spec: LaneSpec) -> int:
        """How many waiters would certainly go before one that joins the lane of ``spec`` now."""
        lane = self._lanes.get(spec.name)
        higher = sum([waiting for priority, waiting in self._waiting.items() if priority > spec.priority])
        return higher + (len(lane.waiters) if lane and lane.spec.priority <= spec.priority else 0)

    def drain(self) -> list[Waiter]:
        """Remove and return every waiter."""
        waiters = list(self)
        self._forget_all()
        self._deadlines.clear()
        self.length = 0
        return waiters

    def waiting(self) -> dict[str, int]:
        """The number of waiters per lane, without empty lanes."""
        return {name: len(lane.waiters) for name, lane in self._lanes.items() if lane.waiters}

    def _waits(self, waiter: Waiter) -> bool:
        """Whether ``waiter`` is in the queue; a further attempt of its request has the same number."""
        lane = self._lanes.get(waiter.lane.name)
        return lane is not None and lane.waiters.get(waiter.number) is waiter

    def _first_lane(self) -> _Lane | None:
        busy = self._busy
        if len(busy) <= 1:
            return self._lanes[busy[0][4]] if busy else None
        while True:
            lane = self._lanes[busy[0][4]]
            if self._key(lane) == busy[0]:
                return lane
            self._place(lane)

    def _key(self, lane: _Lane) -> _Key:
        spec = lane.spec
        start = max(self._virtual.get(spec.priority, 0.0), lane.finish)
        return -spec.priority, start, next(iter(lane.waiters), 0), id(lane), spec.name

    def _place(self, lane: _Lane) -> None:
        """Compute the key of ``lane`` again, and move it to its place in the sorted lists."""
        if lane.row:
            del lane.row[bisect_left(lane.row, lane.key)]
        lane.row = self._busy if lane.waiters else self._idle
        lane.key = self._key(lane)
        insort(lane.row, lane.key)

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
            self._place(lane)
            self._forget_idle(priority)

    def _forget_idle(self, priority: int) -> None:
        """Drop the empty lanes of ``priority`` that are not ahead of its virtual time; all of them, if no waiter has it."""
        paid = self._virtual.get(priority, 0.0)
        if not self._waiting[priority]:
            paid = inf
            del self._waiting[priority]
            self._virtual.pop(priority, None)
        idle = self._idle
        begin = bisect_left(idle, (-priority, -inf, 0, 0, ""))
        end = bisect_left(idle, (-priority, paid, 1, 0, ""), begin)  # 1: also those that start at `paid`
        for key in idle[begin:end]:
            del self._lanes[key[4]]
        del idle[begin:end]

    def _forget_all(self) -> None:
        self._lanes.clear()
        self._virtual.clear()
        self._waiting.clear()
        self._busy.clear()
        self._idle.clear()
