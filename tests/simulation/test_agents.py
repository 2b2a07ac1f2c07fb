"""Fleets of agents before a provider that caches prompts, and a model of the queue."""

import pytest
from tests.simulation.agents import ORDERS, WORLDS, Fleet

LONG = pytest.mark.long("thousands of turns")


@pytest.mark.parametrize("name", ["G", *(pytest.param(name, marks=LONG) for name in "ADEOTX")])
def test_in_order_of_arrival_a_fleet_does_what_the_model_does(name):
    world = WORLDS[name]
    found = Fleet(world, **ORDERS["arrival"]).run()
    turns, charged, _, _, wait_s, _ = found.figures
    expected_turns, expected_charged, _, _, expected_wait_s, _ = world.model["arrival"]
    assert turns == pytest.approx(expected_turns, rel=0.1)
    assert charged == pytest.approx(expected_charged, rel=0.1)
    assert wait_s == pytest.approx(expected_wait_s, rel=0.1)
    assert found.refused <= 2
    assert not found.failed


@pytest.mark.long("thousands of turns")
@pytest.mark.parametrize(("name", "share"), [("fair", 1.0), ("fair 3:1", 3.0)])
def test_lanes_share_what_is_charged_by_their_weights(name, share):
    lanes = Fleet(WORLDS[name]).run().lanes
    assert lanes["agents"] / lanes["batch"] == pytest.approx(share, rel=0.05)
