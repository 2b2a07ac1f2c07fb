"""Fleets of agents before a provider that caches prompts, and a model of the queue."""

from dataclasses import replace
from functools import cache

import pytest
from tests.simulation.agents import ORDERS, WIDE, WORLDS, Agent, Fleet, World, evenly, exactly

LONG = pytest.mark.long("thousands of turns")
SOAK = {"D", "E"}  # as A, with more turns of agents of other sizes


def worlds(names):
    return [
        pytest.param(name, marks=() if name == "G" else pytest.mark.soak if name in SOAK else LONG) for name in names
    ]


@cache
def played(name, order):
    """A fleet plays the same each time, and several tests look at it."""
    return Fleet(WORLDS[name], **ORDERS[order]).run()


@pytest.mark.parametrize("name", worlds("GADEOTX"))
def test_in_order_of_arrival_a_fleet_does_what_the_model_does(name):
    world = WORLDS[name]
    found = played(name, "arrival")
    turns, charged, _, _, wait_s, _ = found.figures
    expected_turns, expected_charged, _, _, expected_wait_s, _ = world.model["arrival"]
    assert turns == pytest.approx(expected_turns, rel=0.1)
    assert charged == pytest.approx(expected_charged, rel=0.1)
    assert wait_s == pytest.approx(expected_wait_s, rel=0.1)
    assert found.refused <= 2
    assert not found.failed


@pytest.mark.parametrize("name", worlds("GADEKLOTUX"))
def test_conversations_continue_while_their_prompts_are_cached(name):
    world = WORLDS[name]
    found = played(name, "rule")
    turns, charged, half_s, _, wait_s, refused = world.model["rule"]
    assert found.figures[0] >= 0.9 * turns
    assert found.figures[1] <= 1.25 * charged
    half, waits = (1.15, 1.25) if name == "K" else (1.1, 1.1)  # K: 1.1 to 1.24 by small changes of the order
    assert found.figures[2] <= half * half_s
    assert found.figures[4] <= waits * wait_s
    assert found.refused <= refused + 3
    assert not found.failed


@pytest.mark.long("thousands of turns")
@pytest.mark.parametrize(("name", "least"), [("K", 0.95 * 10_100), ("L", 26_601), ("O", 10_618)])
def test_streams_teach_what_was_cached_at_their_first_byte(name, least):
    found = Fleet(WORLDS[name], stream=True, **ORDERS["rule"]).run()
    assert found.figures[0] >= least
    assert found.refused <= 3


@pytest.mark.long("thousands of turns")
@pytest.mark.parametrize("output", [100, 300])
def test_in_lanes_of_their_own_agents_continue_whatever_they_put_out(output):
    agents = [replace(agent, output=exactly(output)) for agent in WORLDS["O"].agents()]
    found = Fleet(replace(WORLDS["O"], agents=lambda: agents), stream=True, **ORDERS["rule"]).run()
    assert found.again == 0
    assert found.refused <= 3


@pytest.mark.long("thousands of turns")
def test_new_keys_are_served_beside_agents_that_fill_the_quota_and_whose_prompts_grow():
    how = {"turns": 10**6, "prompt": 20_000, "grows": exactly(1_500), "thinks": evenly(5, 20)}
    agents = [Agent(starts_s=0.05 * i, lane=f"agent {i}", **how) for i in range(200)]
    new = [Agent(starts_s=300 + 10 * i, turns=1, prompt=5_000, lane=f"new {i}") for i in range(80)]
    fleet = Fleet(World(name="new keys", agents=lambda: agents + new, limits=WIDE, ends_s=1_200), stream=True)
    found = fleet.run()
    waits_s = sorted(one.waited_s for one in fleet.sim.sent if one.request.lane.startswith("new"))
    assert len(waits_s) == 80
    assert waits_s[40] <= 400
    assert found.again <= 2


@pytest.mark.long("thousands of requests")
def test_where_nothing_is_cached_the_order_is_that_of_arrival():
    orders = [played("T", order).order for order in ORDERS]
    assert orders[0] == orders[1]


@pytest.mark.long("thousands of turns")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("name", "share"), [("fair", 1.0), ("fair 3:1", 3.0)])
def test_lanes_share_what_is_charged_by_their_weights(name, share, order):
    lanes = played(name, order).lanes
    assert lanes["agents"] / lanes["batch"] == pytest.approx(share, rel=0.05)
