"""Waits as histograms by lane."""

from bisect import bisect_left
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from paceline.core.quota import NS
from paceline.core.waits import BOUNDS_S, LANES_MAX, OTHER, Waits


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5_000 * NS))))
def test_each_wait_counts_up_to_each_bound_that_it_does_not_exceed(waits):
    found = Waits()
    for lane, waited_ns in waits:
        found.add(lane, waited_ns)
    assert set(found.lanes) == {lane for lane, _ in waits}
    for lane, (*counts, total_ns) in found.lanes.items():
        mine = sorted(waited_ns / NS for name, waited_ns in waits if name == lane)
        upto = [bisect_left(mine, bound_s + 0.5 / NS) for bound_s in BOUNDS_S]
        assert list(accumulate(counts)) == [*upto, len(mine)]
        assert total_ns == sum(waited_ns for name, waited_ns in waits if name == lane)
    assert (found.total_ns, found.longest_ns) == (sum(ns for _, ns in waits), max((ns for _, ns in waits), default=0))


def test_lanes_are_bounded():
    waits = Waits()
    for number in range(LANES_MAX + 50):
        waits.add(f"lane_{number}", NS)
    assert len(waits.lanes) == LANES_MAX + 1
    assert sum(waits.lanes[OTHER]) - waits.lanes[OTHER][-1] == 50
