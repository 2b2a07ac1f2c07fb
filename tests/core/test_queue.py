"""Who goes next: order inside a lane, weights and priorities between lanes, bounded memory, deadlines."""

from __future__ import annotations

from collections import Counter

import pytest
from core_worlds import T0
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.queue import LANES_MAX, Lanes, LaneSpec, Queue, Waiter, line_of
from paceline.core.quota import NS
from paceline.core.results import QuotaError


def join(line: Queue, spec: LaneSpec, deadline_ns: int | None = None) -> Waiter:
    waiter = Waiter({}, spec, deadline_ns)
    waiter.number = line.next_number()
    line.push(waiter)
    return waiter


def go(line: Queue, share: float = 1.0) -> Waiter:
    head = line.head()
    assert head is not None
    line.pop(head, share)
    return head


def nothing_left(line: Queue) -> bool:
    kept = line._lanes or line._virtual or line._waiting or line._families or line._busy or line._idle
    return not (line.length or kept or line.next_deadline_ns or line.deadlines)


shares = st.lists(st.integers(1, 50), min_size=20, max_size=80)


@given(
    costs=st.tuples(shares, shares),
    weights=st.tuples(st.sampled_from([1, 2, 4, 0.5]), st.sampled_from([1, 3, 10])),
    corrected=st.booleans(),
    data=st.data(),
)
def test_two_busy_lanes_share_by_weight_within_two_maximum_costs(costs, weights, corrected, data):
    line, queues = Queue(), {"a": list(costs[0]), "b": list(costs[1])}
    lanes = {name: LaneSpec(name, weight) for name, weight in zip("ab", weights, strict=True)}
    for name, queue in queues.items():
        for _ in queue:
            join(line, lanes[name])
    ahead = [0.0]  # what lane a got per weight, less what lane b got
    while all(queues.values()):
        name = line.head().lane.name
        share = queues[name].pop(0)
        # The estimate may be wrong, up to the largest cost; it is corrected when the true one is known.
        estimate = data.draw(st.integers(1, 50)) if corrected else share
        waiter = go(line, estimate)
        line.correct(waiter, share - estimate)
        ahead.append(ahead[-1] + share / lanes[name].weight * (1 if name == "a" else -1))
    bound = sum(50 / weight for weight in weights)
    assert max(ahead) - min(ahead) <= bound + 1e-6  # so in any interval


class TestLanesOfAParent:
    team = LaneSpec("team", 2)
    lanes = (LaneSpec("alone"), LaneSpec("a", parent=team), LaneSpec("b", parent=team), LaneSpec("c", 2, parent=team))

    def went(self, line, number):
        return Counter(go(line).lane.name for _ in range(number))

    def busy(self, lanes, each=1_000):
        line = Queue()
        return line, [join(line, lane) for _ in range(each) for lane in lanes]

    def test_the_busy_ones_divide_its_share(self):
        line, waiters = self.busy(self.lanes)
        assert self.went(line, 600) == {"alone": 200, "a": 100, "b": 100, "c": 200}
        for waiter in waiters:
            if waiter.lane.name in "bc":
                line.withdraw(waiter)
        assert self.went(line, 600) == pytest.approx({"alone": 200, "a": 400}, abs=2)

    def test_a_part_has_parts(self):
        front = LaneSpec("front", 3, parent=self.team)
        users = [LaneSpec(f"front/{name}", parent=front) for name in "uvw"]
        line, _ = self.busy((*self.lanes[:2], *users))
        parts = {"alone": 240, "a": 120, "front/u": 120, "front/v": 120, "front/w": 120}
        assert self.went(line, 720) == pytest.approx(parts, abs=2)

    def test_one_that_changes_its_parent_leaves_nothing_behind(self):
        line, _ = self.busy((self.lanes[0], self.lanes[1]), 10)
        join(line, LaneSpec("a", 3, parent=LaneSpec("other", 0.5)))
        assert line._families == {("other", 0): (1, 3)}
        self.went(line, 21)
        assert nothing_left(line)

    def test_a_late_correction_is_divided_as_the_share(self):
        line, _ = self.busy(self.lanes[:3], 3)
        while (gone := go(line)).lane.name != "b":
            pass
        finish = line._lanes["b"].finish
        line.correct(gone, 5.0)
        assert line._lanes["b"].finish - finish == 5.0  # of the two busy ones each has a weight of 1


def test_a_lane_that_is_idle_pays_for_what_its_last_request_cost_more():
    line, idle, busy = Queue(), LaneSpec("idle"), LaneSpec("busy")
    first = join(line, idle)
    for _ in range(20):
        join(line, busy)
    assert go(line) is first
    line.correct(first, 10.0)
    assert [go(line).lane.name for _ in range(5)] == ["busy"] * 5
    join(line, LaneSpec("another"))
    assert "another" in [go(line).lane.name for _ in range(2)]  # when a lane ends, those that owe nothing are forgotten
    join(line, idle)
    assert [go(line).lane.name for _ in range(7)] == ["busy"] * 6 + ["idle"]


def test_who_goes_before_whom():
    line, spec, high = Queue(), LaneSpec(), LaneSpec("high", priority=1)
    first, second, urgent = join(line, spec), join(line, spec), join(line, high)
    join(line, LaneSpec("beside"))
    assert (line.before(second), line.before(urgent)) == ([first, urgent], [])
    assert line.ahead_of_newcomer(spec) == 3
    assert line.ahead_of_newcomer(high) == 1
    assert line.ahead_of_newcomer(LaneSpec("new")) == 1
    assert line.ahead_of_newcomer(LaneSpec("new", priority=2)) == 0


class TestDeadlines:
    def test_those_who_have_gone_are_not_remembered_until_their_deadline(self):
        line, spec = Queue(), LaneSpec()
        join(line, spec, T0 + NS)  # soon, and it stays
        for _ in range(1_000):
            line.withdraw(join(line, spec, T0 + 3_600 * NS))
        assert len(line.deadlines) < 500


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan"), True, "2"])
def test_a_weight_must_give_a_share(weight):
    with pytest.raises(QuotaError, match="weight of lane 'x'"):
        LaneSpec("x", weight)


@pytest.mark.parametrize("priority", [0.5, True, "1"])
def test_a_priority_is_a_whole_number(priority):
    with pytest.raises(QuotaError, match="priority of lane 'x'"):
        LaneSpec("x", priority=priority)


def test_a_lane_has_a_name():
    with pytest.raises(QuotaError, match="the name of a lane is empty"):
        LaneSpec("")


def test_the_limits_of_a_lane_are_its_own_and_those_of_all_above_it():
    team = LaneSpec("team")
    key = LaneSpec("key", parent=team)
    user = LaneSpec("user", parent=key)
    assert [line_of(lane) for lane in (team, user)] == [[team], [user, key, team]]


@pytest.mark.parametrize(
    ("own", "until", "waits"), [(None, None, None), (None, 5, 5), (5, None, 5), (5, 6, 5), (5, 4, 4)]
)
def test_another_attempt_waits_for_no_longer_than_the_first(own, until, waits):
    waiter = Waiter({}, deadline_ns=own)
    waiter.wait_until(until)
    assert waiter.deadline_ns == waits


class TestLanes:
    def test_what_the_caller_leaves_out_is_that_of_the_known_lane(self):
        lanes = Lanes([LaneSpec("bulk", weight=3, priority=-1)])
        assert lanes["bulk", None, None] == LaneSpec("bulk", 3, -1)
        assert lanes["bulk", 7, None] == LaneSpec("bulk", 7, -1)
        assert lanes["bulk", None, 2] == LaneSpec("bulk", 3, 2)
        assert lanes["other", None, None] == LaneSpec("other", 1, 0)
        assert lanes["bulk", 0.5, 0] is lanes["bulk", 0.5, 0]

    def test_a_name_alone_is_no_known_lane(self):
        with pytest.raises(QuotaError, match=r"lanes: 'bulk' is not a lane: write it like LaneSpec"):
            Lanes(["bulk"])

    def test_names_from_callers_fill_no_memory(self):
        lanes = Lanes([LaneSpec("known", weight=2)])
        sizes = [(lanes[f"lane-{i}", None, None], len(lanes))[1] for i in range(2 * LANES_MAX + 1)]
        assert (max(sizes), sizes[LANES_MAX]) == (LANES_MAX, 1)
        assert lanes["known", None, None].weight == 2
