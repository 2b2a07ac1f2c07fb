"""Who goes next: lanes, priority classes, weights, deadlines and a bound.

Inside a lane, arrival order, always: a large request is never overtaken by small ones behind it.
Between lanes, strict priority classes; inside a class, start-time fair queueing: a lane's next request
starts where its last one finished in virtual time, finish = start + cost / weight, and the lane that
starts first goes first. A lane that was idle starts at the present virtual time, so idleness saves up
nothing. The estimate is charged when a request goes, and corrected when its true cost is known.

The lanes stand in two sorted rows, those in which somebody waits and those that only owe, so finding who goes next costs
about the same with one lane and with thousands.
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

from paceline.core.quota import Cost
from paceline.core.results import Outcome, QuotaError


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """A class of work: its name, its share among busy lanes, and its priority (higher goes first)."""

    name: str = "default"
    weight: float = 1.0
    priority: int = 0

    def __post_init__(self) -> None:
        """Refuse a lane without a name, a weight that gives no share, and a priority that is above or below no other."""
        if self.name == "":
            raise QuotaError("a lane's name is empty: call it something")
        if isinstance(self.weight, bool) or not isinstance(self.weight, int | float) or not 0 < self.weight < inf:
            raise QuotaError(f"weight of lane {self.name!r} is {self.weight!r}: it must be a finite number above 0")
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise QuotaError(f"priority of lane {self.name!r} is {self.priority!r}: it must be a whole number")


DEFAULT_LANE = LaneSpec()

LaneName = tuple[str, float | None, int | None]
"""A lane's name, and the weight and the priority that were said with it."""

LANES_MAX = 1_000
"""How many lanes are kept at hand: their names come from outside."""


class Lanes(dict[LaneName, LaneSpec]):
    """Lanes by what was said of them, with what was not said filled in; for the same words the same object.

    Args:
        known: What is known beforehand; any other lane has weight 1 and priority 0.
    """

    def __init__(self, known: Iterable[LaneSpec] = ()) -> None:
        super().__init__()
        self._known: dict[str, LaneSpec] = {}
        for spec in known:
            if not isinstance(spec, LaneSpec):
                raise QuotaError(f"lanes: {spec!r} is no lane: it must be a LaneSpec, as LaneSpec('name', weight=2)")
            self._known[spec.name] = spec

    def __missing__(self, lane: LaneName) -> LaneSpec:
        """The lane, said for the first time.

        Raises:
            QuotaError: The weight gives no share.
        """
        if len(self) >= LANES_MAX:
            self.clear()
        name, weight, priority = lane
        known = self._known.get(name) or LaneSpec(name)
        weight = known.weight if weight is None else weight
        spec = self[lane] = LaneSpec(name, weight, known.priority if priority is None else priority)
        return spec


GONE_MAX = 64
"""How many deadlines of those who have gone are kept beside twice those who wait."""


class Waiter:
    """A request's place in the queue.

    Attributes:
        cost: What it will reserve.
        lane: Its class of work.
        arrived_ns: When it came.
        number: Its place in the order of arrival.
        returned: Whether it is another attempt of a request that has been in the line: it keeps its number.
        deadline_ns: When it must have gone, or ``None``.
        owner: Whatever the shell needs to wake the one who waits.
        amounts: The cost as the ledger counts it.
        outcome: How it ended; ``None`` while it waits.
        queued: Whether it had to wait its turn.
        name: The caller's name for it, for the status; ``None`` for none.
    """

    __slots__ = (
        "amounts",
        "arrived_ns",
        "cost",
        "deadline_ns",
        "lane",
        "name",
        "number",
        "outcome",
        "owner",
        "queued",
        "returned",
    )

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


_Stand = tuple[int, float, int, int, str]
"""Where a lane stands: less its priority, where it starts, its first waiter's number (0: it is empty); its id, so that no
two are equal; and its name."""


class _Lane:
    __slots__ = ("finish", "row", "spec", "stand", "waiters")

    def __init__(self, spec: LaneSpec) -> None:
        self.spec = spec
        self.waiters: OrderedDict[int, Waiter] = OrderedDict()
        self.finish = 0.0
        self.row: list[_Stand] = []  # in which it stands; empty: in none
        self.stand: _Stand = (0, 0.0, 0, 0, "")


class Queue:
    """The waiters of one pool, in the order in which they will go.

    Attributes:
        length: How many wait.
        next_number: Gives the next place in the order of arrival.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._virtual: dict[int, float] = {}  # priority -> virtual time
        self._waiting: defaultdict[int, int] = defaultdict(int)  # priority -> how many wait
        # One stand a lane, never later than it is: who has gone or paid more since is put right when it comes first.
        self._busy: list[_Stand] = []
        self._idle: list[_Stand] = []
        self._deadlines: list[tuple[int, int, int, Waiter]] = []  # those who have gone stay until there are too many
        self.next_number: Callable[[], int] = count(1).__next__
        self.length = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Waiter]:
        return (waiter for lane in self._lanes.values() for waiter in lane.waiters.values())

    def push(self, waiter: Waiter) -> None:
        """Put ``waiter`` at the end of its lane, or where its number says if it has been there before."""
        spec = waiter.lane
        priority = spec.priority
        lane = self._lanes.get(spec.name)
        if lane is None:
            lane = self._lanes[spec.name] = _Lane(spec)
        before, lane.spec = lane.spec.priority, spec  # the latest priority holds for the whole lane
        moves = waiter.returned or not lane.waiters or before != priority
        lane.waiters[waiter.number] = waiter
        self.length += 1
        self._waiting[priority] += 1
        if before != priority:  # what it owes, it owes there, too
            owes = max(lane.finish - self._virtual.get(before, 0.0), 0.0)
            lane.finish = self._virtual.get(priority, 0.0) + owes
        if moves:
            if waiter.returned:
                for number in (waiter.number, *reversed(_before(lane.waiters, waiter.number))):
                    lane.waiters.move_to_end(number, last=False)
            self._stand(lane)
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
        """The one waiter that may go next."""
        lane = self._first_lane()
        return next(iter(lane.waiters.values())) if lane else None

    def peek(self, most: int, share: Callable[[list[float]], float]) -> list[Waiter]:
        """The first waiters, at most so many, in the order in which they will go; ``share`` as for :meth:`pop`."""
        stands = self._busy.copy()  # a sorted row is a heap
        fronts: dict[str, tuple[Waiter, Iterator[Waiter]]] = {}
        first: list[Waiter] = []
        while stands and len(first) < most:
            below, start, _, which, name = stands[0]
            if name not in fronts:
                lane = self._lanes[name]
                rest = iter(lane.waiters.values())
                fronts[name] = next(rest), rest
                heapq.heapreplace(stands, self._stands(lane))
                continue
            waiter, rest = fronts[name]
            first.append(waiter)
            following = next(rest, None)
            if following is None:
                heapq.heappop(stands)
            else:
                fronts[name] = following, rest
                start += share(waiter.amounts) / waiter.lane.weight
                heapq.heapreplace(stands, (below, start, following.number, which, name))
        return first

    def pop(self, share: float) -> None:
        """The head has gone; ``share`` is its cost in any measure that is the same for all lanes."""
        lane = self._first_lane()
        assert lane is not None
        _, waiter = lane.waiters.popitem(last=False)
        priority = lane.spec.priority
        start = self._virtual.get(priority, 0.0)
        if lane.finish > start:
            start = lane.finish
        self._virtual[priority] = start
        lane.finish = start + share / waiter.lane.weight
        self._one_less(lane)

    def correct(self, waiter: Waiter, share: float) -> None:
        """The waiter's true cost differs by ``share`` from what :meth:`pop` was told."""
        lane = self._lanes.get(waiter.lane.name)
        if lane is not None:
            lane.finish += share / waiter.lane.weight
            if not lane.waiters or lane.finish < lane.stand[1] > self._virtual.get(lane.spec.priority, 0.0):
                self._stand(lane)  # it starts earlier than it stands

    def withdraw(self, waiter: Waiter) -> bool:
        """Take ``waiter`` out; whether it was there."""
        if not self._waits(waiter):
            return False
        lane = self._lanes[waiter.lane.name]
        del lane.waiters[waiter.number]
        self._one_less(lane)
        return True

    def overdue(self, now_ns: int) -> list[Waiter]:
        """Take out and return every waiter whose deadline has come."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            waiter = heapq.heappop(self._deadlines)[3]
            if self.withdraw(waiter):
                late.append(waiter)
        return late

    @property
    def next_deadline_ns(self) -> int | None:
        """The next deadline of a waiter that still waits."""
        while self._deadlines:
            deadline_ns, _, _, waiter = self._deadlines[0]
            if self._waits(waiter):
                return deadline_ns
            heapq.heappop(self._deadlines)
        return None

    def before(self, waiter: Waiter) -> list[Waiter]:
        """The waiters of the same lane, or of a higher priority, that go before ``waiter``."""
        return [
            other
            for other in self
            if other.lane.priority > waiter.lane.priority
            or (other.lane.name == waiter.lane.name and other.number < waiter.number)
        ]

    def ahead_of_newcomer(self, spec: LaneSpec) -> int:
        """How many would certainly go before a waiter that joins the lane of ``spec`` now."""
        lane = self._lanes.get(spec.name)
        higher = sum([waiting for priority, waiting in self._waiting.items() if priority > spec.priority])
        return higher + (len(lane.waiters) if lane and lane.spec.priority <= spec.priority else 0)

    def drain(self) -> list[Waiter]:
        """Take out and return every waiter."""
        waiters = list(self)
        self._forget_all()
        self._deadlines.clear()
        self.length = 0
        return waiters

    def waiting(self) -> dict[str, int]:
        """How many wait in each lane that is not empty."""
        return {name: len(lane.waiters) for name, lane in self._lanes.items() if lane.waiters}

    def _waits(self, waiter: Waiter) -> bool:
        """Whether this very waiter is in the line: another attempt of the same request has the same number."""
        lane = self._lanes.get(waiter.lane.name)
        return lane is not None and lane.waiters.get(waiter.number) is waiter

    def _first_lane(self) -> _Lane | None:
        busy = self._busy
        if len(busy) <= 1:
            return self._lanes[busy[0][4]] if busy else None
        while True:
            lane = self._lanes[busy[0][4]]
            if self._stands(lane) == busy[0]:
                return lane
            self._stand(lane)

    def _stands(self, lane: _Lane) -> _Stand:
        """Where ``lane`` stands now."""
        spec = lane.spec
        start = max(self._virtual.get(spec.priority, 0.0), lane.finish)
        return -spec.priority, start, next(iter(lane.waiters), 0), id(lane), spec.name

    def _stand(self, lane: _Lane) -> None:
        """Let ``lane`` stand where it belongs now, and no longer where it stood."""
        if lane.row:
            del lane.row[bisect_left(lane.row, lane.stand)]
        lane.row = self._busy if lane.waiters else self._idle
        lane.stand = self._stands(lane)
        insort(lane.row, lane.stand)

    def _one_less(self, lane: _Lane) -> None:
        """A waiter of ``lane`` has left."""
        self.length -= 1
        if not self.length:
            self._forget_all()
            return
        priority = lane.spec.priority
        self._waiting[priority] -= 1
        if not lane.waiters:
            self._stand(lane)
            self._forget_idle(priority)

    def _forget_idle(self, priority: int) -> None:
        """Drop the empty lanes of a class that owe nothing to virtual time; when all are empty, the class."""
        paid = self._virtual.get(priority, 0.0)
        if not self._waiting[priority]:
            paid = inf
            del self._waiting[priority]
            self._virtual.pop(priority, None)
        idle = self._idle
        begin = bisect_left(idle, (-priority, -inf, 0, 0, ""))
        end = bisect_left(idle, (-priority, paid, 1, 0, ""), begin)  # 1: after all that start at `paid`
        for stand in idle[begin:end]:
            del self._lanes[stand[4]]
        del idle[begin:end]

    def _forget_all(self) -> None:
        """Nobody waits, so nobody owes."""
        self._lanes.clear()
        self._virtual.clear()
        self._waiting.clear()
        self._busy.clear()
        self._idle.clear()


def _before(waiters: OrderedDict[int, Waiter], number: int) -> list[int]:
    """The numbers at the front of the lane that are older than ``number``: other returned attempts."""
    return list(takewhile(lambda other: other < number, waiters))
