"""Many lanes: whoever would go if every lane were looked at each time goes, and few lanes are looked at."""

from __future__ import annotations

import random
from copy import deepcopy
from itertools import takewhile
from math import inf
from typing import Any, NamedTuple

import pytest
from core_worlds import T0
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from grids import some
from paceline.core.queue import LaneSpec, Queue, Waiter
from paceline.core.quota import NS

EVERYBODY = 10_000


class Entry(NamedTuple):
    """A request that waits in the model: its cost, when its cached prompt is lost (0: it has none), what that saves."""

    amount: float
    lost: int
    saves: float
    returned: bool


class Row:
    """A lane of the model: number -> who waits, in the order of arrival."""

    def __init__(self, spec: LaneSpec) -> None:
        self.spec = spec
        self.waiting: dict[int, Entry] = {}
        self.finish = self.overtook = 0.0
        self.ahead = inf

    @property
    def head(self) -> int:
        first, cached = next(iter(self.waiting)), [number for number, one in self.waiting.items() if one.lost]
        entry = self.waiting[first]
        if not cached or entry.returned or (self.overtook and self.overtook >= 7 * entry.amount):
            return first
        return min(cached, key=lambda number: (self.waiting[number].lost, number))


class Scan:
    """The rule and nothing else: nothing is kept in order between lanes, each question looks at all of them."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.virtual: dict[int, float] = {}

    def push(self, number: int, spec: LaneSpec, entry: Entry, *, overtook: bool = False) -> None:
        row = self.rows.setdefault(spec.name, Row(spec))
        before, row.spec = row.spec, spec
        if before.priority != spec.priority:
            owes = max(row.finish - self.virtual.get(before.priority, 0.0), 0.0)
            row.finish = self.virtual.get(spec.priority, 0.0) + owes
        others = list(row.waiting.items())
        stays = takewhile(lambda other: other[0] < number and (other[1].returned or not overtook), others)
        at = len(list(stays)) if entry.returned else len(others)
        row.waiting = dict([*others[:at], (number, entry), *others[at:]])
        if before.priority != spec.priority:
            self.forget(before.priority)

    def start(self, row: Row) -> float:
        head = row.waiting[row.head]
        lowered = row.finish - (head.saves + max(row.ahead, 0.0)) / row.spec.weight if head.lost else row.finish
        return max(self.virtual.get(row.spec.priority, 0.0), lowered)

    def haste(self, row: Row) -> float:
        return (row.waiting[row.head].lost or inf) if row.ahead > 0 else inf

    def first(self) -> Row | None:
        busy = [row for row in self.rows.values() if row.waiting]

        def key(row: Row) -> tuple[float, ...]:
            return -row.spec.priority, self.start(row), self.haste(row), next(iter(row.waiting))

        return min(busy, key=key, default=None)

    def head(self) -> int | None:
        row = self.first()
        return None if row is None else row.head

    def pop(self, share: float) -> None:
        row = self.first()
        number, virtual = row.head, self.virtual.get(row.spec.priority, 0.0)
        self.virtual[row.spec.priority] = self.start(row)
        row.finish = max(virtual, row.finish) + share / row.spec.weight
        gone = row.waiting[number]
        row.ahead = min(row.ahead, gone.saves) - share if gone.lost else share
        if any(one.lost for one in row.waiting.values()):
            first = next(iter(row.waiting)) == number
            row.overtook = max(0.0, row.overtook - 7 * share) if first else row.overtook + share
        row.waiting.pop(number)
        self.forget_if_empty(row)

    def withdraw(self, number: int) -> None:
        row = next(row for row in self.rows.values() if number in row.waiting)
        del row.waiting[number]
        self.forget_if_empty(row)

    def renew(self, number: int, lost: int) -> None:
        row = next(row for row in self.rows.values() if number in row.waiting)
        row.waiting[number] = row.waiting[number]._replace(lost=lost)

    def correct(self, spec: LaneSpec, share: float, *, cached: bool) -> None:
        if spec.name in self.rows:
            self.rows[spec.name].finish += share / self.rows[spec.name].spec.weight
            self.rows[spec.name].ahead += -share if cached else share

    def forget_if_empty(self, row: Row) -> None:
        if not row.waiting:
            row.overtook = 0.0
            self.forget(row.spec.priority)

    def forget(self, priority: int) -> None:
        same = [row for row in self.rows.values() if row.spec.priority == priority]
        busy = any(row.waiting for row in same)
        for row in same:
            if not row.waiting and (not busy or row.finish <= self.virtual.get(priority, 0.0)):
                del self.rows[row.spec.name]
        if not busy:
            self.virtual.pop(priority, None)

    def order(self, most: int) -> list[int]:
        """Who goes, one after the other, if each is charged its amount."""
        later, numbers = deepcopy(self), []
        while len(numbers) < most and (row := later.first()) is not None:
            numbers.append(row.head)
            later.pop(row.waiting[numbers[-1]].amount)
        return numbers

    def ahead_of_newcomer(self, spec: LaneSpec, lost: int) -> int:
        higher = sum(len(row.waiting) for row in self.rows.values() if row.spec.priority > spec.priority)
        mine = self.rows.get(spec.name)
        if mine is None or mine.spec.priority > spec.priority:
            return higher
        return higher + sum(not lost or 0 < one.lost <= lost for one in mine.waiting.values())


class Both:
    """A line and the model, told the same."""

    def __init__(self) -> None:
        self.line, self.scan = Queue(), Scan()
        self.line.seconds_of = lambda amounts: amounts[0]
        self.waiting: dict[int, Waiter] = {}
        self.gone: list[Waiter] = []

    def join(
        self,
        spec: LaneSpec,
        amount: float,
        deadline_ns: int | None = None,
        old: Waiter | None = None,
        cached: tuple[int, float] = (0, 0.0),
    ) -> None:
        waiter = Waiter({}, spec, deadline_ns)
        waiter.amounts = [amount]
        waiter.lost_ns, waiter.saves = cached
        waiter.returned, waiter.overtook = old is not None, old is not None and old.overtook
        waiter.number = self.line.next_number() if old is None else old.number
        self.line.push(waiter)
        entry = Entry(amount, 0 if waiter.returned else cached[0], cached[1], waiter.returned)
        self.scan.push(waiter.number, spec, entry, overtook=waiter.overtook)
        self.waiting[waiter.number] = waiter

    def go(self, share: float | None = None) -> None:
        """The head goes; charged its amount, unless ``share`` says otherwise."""
        head = self.line.head()
        assert head is not None
        assert head is self.waiting[self.scan.head()]
        share = head.amounts[0] if share is None else share
        self.line.pop(head, share)
        self.scan.pop(share)
        self.gone.append(self.waiting.pop(head.number))

    def come_back(self, pick: int, spec: LaneSpec | None, amount: float) -> None:
        old = self.gone.pop(pick % len(self.gone))
        self.join(spec or old.lane, amount, old.deadline_ns, old)

    def renew(self, pick: int, lost: int) -> None:
        waiter = self.waiting[sorted(self.waiting)[pick % len(self.waiting)]]
        if waiter.lost_ns:
            waiter.lost_ns = lost
            self.line.renew(waiter)
            self.scan.renew(waiter.number, lost)

    def correct(self, pick: int, share: float) -> None:
        waiter = self.gone[pick % len(self.gone)]
        self.line.correct(waiter, share)
        self.scan.correct(waiter.lane, share, cached=waiter.lost_ns > 0)

    def withdraw(self, pick: int) -> None:
        number = sorted(self.waiting)[pick % len(self.waiting)]
        waiter = self.waiting.pop(number)
        assert self.line.withdraw(waiter)
        assert not self.line.withdraw(waiter)
        self.scan.withdraw(number)

    def overdue(self, now_ns: int) -> None:
        late = self.line.overdue(now_ns)
        due = [t for t in self.waiting.values() if t.deadline_ns is not None and t.deadline_ns <= now_ns]
        assert [t.number for t in late] == [t.number for t in sorted(due, key=lambda t: (t.deadline_ns, t.number))]
        for waiter in late:
            self.scan.withdraw(waiter.number)
            del self.waiting[waiter.number]

    def drain(self) -> None:
        assert {t.number for t in self.line.drain()} == set(self.waiting)
        self.waiting.clear()
        self.scan = Scan()

    def compare(self, most: int) -> None:
        """Who goes next, and who after that; how many there are; and which lanes are remembered."""
        line, scan = self.line, self.scan
        head = line.head()
        assert (None if head is None else head.number) == scan.head()
        assert [t.number for t in line.peek(most)] == scan.order(most)
        assert line.length == len(self.waiting)
        assert line.waiting() == {name: len(row.waiting) for name, row in scan.rows.items() if row.waiting}
        assert list(line._lanes) == list(scan.rows)
        assert len(line._busy) + len(line._idle) == len(line._lanes)
        assert line._virtual == scan.virtual

    def finish(self) -> None:
        """All go, in the order that was foretold, and leave nothing behind."""
        deadlines_ns = [t.deadline_ns for t in self.waiting.values() if t.deadline_ns is not None]
        assert self.line.next_deadline_ns == min(deadlines_ns, default=None)
        foretold = self.line.peek(EVERYBODY)
        for waiter in foretold:
            assert self.line.head() is waiter
            self.go()
        assert not self.waiting
        for left in ("_lanes", "_virtual", "_waiting", "_families", "_busy", "_idle"):
            assert not getattr(self.line, left)


names = st.sampled_from([f"lane-{i}" for i in range(12)])
specs = st.builds(LaneSpec, names, st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0, 0, 0, 1, -1]))
amounts = st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 7.0])
picks = st.integers(0, 1_000)
lost = st.sampled_from([3, 5, 5, 9])
cached = st.none() | st.tuples(lost, st.sampled_from([0.0, 0.5, 2.0, 9.0]))


class ManyLanes(RuleBasedStateMachine):
    """What may happen to a line, in any order; amounts are few and round, so that many starts are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.both = Both()

    @rule(spec=specs, amount=amounts, after_s=st.none() | st.integers(1, 5), cached=cached)
    def join(self, spec: LaneSpec, amount: float, after_s: int | None, cached: tuple[int, float] | None) -> None:
        self.both.join(spec, amount, None if after_s is None else T0 + after_s * NS, cached=cached or (0, 0.0))

    @precondition(lambda self: self.both.waiting)
    @rule(pick=picks, lost=st.sampled_from([0, 2, 5, 9, 30]))
    def renew(self, pick: int, lost: int) -> None:
        self.both.renew(pick, lost)

    @rule(members=st.lists(st.tuples(specs, amounts, cached), min_size=5, max_size=25))
    def many_join(self, members: list[tuple[LaneSpec, float, tuple[int, float] | None]]) -> None:
        for spec, amount, cached in members:
            self.both.join(spec, amount, cached=cached or (0, 0.0))

    @precondition(lambda self: self.both.waiting)
    @rule(shares=st.lists(st.none() | amounts, min_size=1, max_size=20))
    def go(self, shares: list[float | None]) -> None:
        for share in shares[: len(self.both.waiting)]:
            self.both.go(share)

    @precondition(lambda self: self.both.gone)
    @rule(pick=picks, spec=st.none() | specs, amount=amounts)
    def come_back(self, pick: int, spec: LaneSpec | None, amount: float) -> None:
        self.both.come_back(pick, spec, amount)

    @precondition(lambda self: self.both.gone)
    @rule(pick=picks, share=st.sampled_from([-7.0, -2.0, -1.0, -0.5, 0.5, 1.0, 6.0]))
    def correct(self, pick: int, share: float) -> None:
        self.both.correct(pick, share)

    @precondition(lambda self: self.both.waiting)
    @rule(pick=picks)
    def withdraw(self, pick: int) -> None:
        self.both.withdraw(pick)

    @rule(after_s=st.integers(0, 5))
    def overdue(self, after_s: int) -> None:
        self.both.overdue(T0 + after_s * NS)

    @rule(unlikely=st.integers(0, 9))
    def drain(self, unlikely: int) -> None:
        if unlikely == 9:
            self.both.drain()

    @rule(spec=specs, lost=st.just(0) | lost)
    def newcomer(self, spec: LaneSpec, lost: int) -> None:
        assert self.both.line.ahead_of_newcomer(spec, lost) == self.both.scan.ahead_of_newcomer(spec, lost)

    @invariant()
    def same(self) -> None:
        self.both.compare(6)

    def teardown(self) -> None:
        self.both.compare(EVERYBODY)
        self.both.finish()


TestManyLanes = ManyLanes.TestCase
TestManyLanes.settings = settings(stateful_step_count=25)


@pytest.mark.parametrize("seed", some([1, 2, 3], 1))
def test_two_hundred_lanes_go_as_if_each_were_looked_at(seed):
    chance, both = random.Random(seed), Both()

    def any_lane() -> LaneSpec:
        return LaneSpec(f"lane-{chance.randrange(200)}", chance.choice([1, 2, 5]), chance.choice([0, 0, 0, 0, 1]))

    for step in range(2_000):
        what = chance.random()
        if what < 0.45 or not both.waiting:
            cached = (chance.randrange(1, 99), chance.uniform(0.1, 20.0)) if chance.random() < 0.5 else (0, 0.0)
            both.join(any_lane(), chance.uniform(0.1, 10.0), cached=cached)
        elif what < 0.8:
            both.go()
        elif what < 0.9 and both.gone:
            both.correct(len(both.gone) - 1 - chance.randrange(20), chance.uniform(-9.0, 9.0))
        elif what < 0.95 and both.gone:
            both.come_back(chance.randrange(1_000), None, chance.uniform(0.1, 10.0))
        else:
            both.withdraw(chance.randrange(1_000))
        if step % 50 == 0:
            both.compare(10)
    both.compare(EVERYBODY)
    both.finish()


class Looked(LaneSpec):
    """A lane that counts how often it is looked at: nobody can tell its place without its priority."""

    times = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "priority":
            Looked.times += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("lanes", [10, 1_000])
def test_few_lanes_are_looked_at_however_many_there_are(lanes):
    line, chance = Queue(), random.Random(lanes)
    specs = [Looked(f"lane-{i}", 1.0 + i % 3) for i in range(lanes)]

    def join(spec: LaneSpec) -> None:
        waiter = Waiter({}, spec)
        waiter.number, waiter.amounts = line.next_number(), [1.0]
        line.ahead_of_newcomer(spec)
        line.push(waiter)

    for spec in specs:
        join(spec)
    Looked.times = 0
    for _ in range(1_000):  # some lanes go idle and come back, others have several who wait
        waiter = line.head()
        line.pop(waiter, 2.0)
        join(chance.choice(specs))
        line.correct(waiter, chance.uniform(-1.9, 1.9))
    assert 1_000 <= Looked.times < 30 * 1_000
    Looked.times = 0
    line.peek(8)
    assert Looked.times <= 4 * 8
