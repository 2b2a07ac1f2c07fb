"""Joint limits in simulated worlds, in one process and with a store."""

import asyncio

import pytest
from tests.simulation.troubles import Simulation

from grids import some
from paceline.planner.simulation import Request

SCARCE, PLENTY = "openai/gpt-5", "openai/gpt-5-mini"
OWN = {SCARCE: "60 requests/min", PLENTY: "3000 requests/min"}


def refused_of(limits, *, shared, processes, flood, few, every_s, joint="300 requests/min"):
    """How many of ``flood`` requests at once, and of ``few`` one after another, are refused where ``limits`` are the true ones."""
    simulation = Simulation(limits, latency_s=0.5, seed=1, store={"cost_s": 0.003})
    fleet = [simulation.process(shared=shared, quotas=OWN, joint_limits={"openai": joint}) for _ in range(processes)]

    async def main():
        tasks = [asyncio.create_task(fleet[n % processes].send(Request(PLENTY, 10, 10))) for n in range(flood)]
        await asyncio.sleep(0)
        for n in range(few):
            tasks.append(asyncio.create_task(fleet[n % processes].send(Request(SCARCE, 10, 10))))
            await asyncio.sleep(every_s)
        await asyncio.gather(*tasks)

    simulation.run(main)
    assert [sent.error for sent in simulation.sent] == [None] * (flood + few)
    return simulation.world.tally()["refused_total"], simulation.now_s


@pytest.mark.parametrize(("shared", "processes"), some([(False, 1), (True, 1), (True, 3)], (False, 1), (True, 3)))
def test_what_all_models_have_together_is_used_and_not_exceeded(shared, processes):
    joint = "120 requests/min"
    world = {f"{SCARCE}|{PLENTY}": joint}
    refused, took_s = refused_of(world, shared=shared, processes=processes, flood=220, few=20, every_s=0.1, joint=joint)
    assert refused == 0
    assert took_s == pytest.approx(60, rel=0.1)  # 120 at once, and then 2 a second


@pytest.mark.long("thousands of requests")
@pytest.mark.parametrize(("shared", "most"), [(False, 1), (True, 12)])  # a store lets the own quota refill meanwhile
def test_the_own_quota_is_kept_when_a_long_line_has_moved_on(shared, most):
    refused, _ = refused_of(OWN, shared=shared, processes=1, flood=1_500, few=300, every_s=0.25)
    assert refused <= most
