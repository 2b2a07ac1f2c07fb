"""One lane floods the queue of a pool, and another sends a request each second: it hardly waits."""

import asyncio

import paceline
from virtual_time import virtual

GRANT_S = 0.1


@virtual
async def test_a_flood_of_three_thousand(clock):
    limiter = paceline.Limiter({"jobs": "600 requests/min"}, clock=clock)

    async def one(lane):
        with paceline.lane(lane):
            permit = await limiter.acquire("jobs")
            permit.settle()
            return permit.waited_s

    flood = [asyncio.create_task(one("flood")) for _ in range(3_000)]
    await asyncio.sleep(60)
    waits = []
    for _ in range(20):
        await asyncio.sleep(1)
        waits.append(await one("calm"))
    left = limiter.status()["pools"]["jobs"]["waiting"]
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    assert max(waits) <= 2 * GRANT_S
    assert left > 1_000
