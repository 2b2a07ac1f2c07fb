"""Worlds in which limits are learned, and a cache that misses: a miss is no other client's use, and no lower limit.

The workers of :mod:`tests.simulation.fleet` hold conversations before a provider that caches their prompts. The speed is that of
what the provider has charged, so misses do not lower it.
"""

import pytest
from tests.simulation.fleet import Fleet
from tests.simulation.test_worlds import LIMITS, WORLDS

from grids import sampled
from paceline.planner.workload import Conversation

TURNS, PROMPT, GROWS = 10, 6_000, 400


class Talks(Fleet):
    """Each worker holds a conversation of ten turns, and then another one."""

    def __init__(self, told, settings, **options):
        limits = {"m": settings["limits"]["m"].replace("tokens", "input_tokens")}
        settings = {**settings, "cache": True, "limits": limits}
        super().__init__(told.replace("tokens", "input_tokens"), settings, model="anthropic/m", **options)
        self.talks = 0

    async def _work(self, host):
        while host.todo:
            self.talks += 1
            talk = Conversation(self.model, f"talk {self.talks}", PROMPT)
            for _ in range(TURNS):
                if not host.todo:
                    return
                host.todo.pop()
                request = talk.request(self.output, max_output_tokens=self.output, estimated=talk.tokens / self.under)
                host.lost += (await host.process.send(request)).error is not None
                talk.grow(self.output + GROWS)
                await self.sim.time.sleep(1.0)


# What is refused beyond the bound of the world: a follow-up that misses costs as much as ten that do not, and where others take
# a share, there is nothing left to absorb that.
MORE = {0.05: 10, 0.3: 15}


@pytest.mark.parametrize(("world", "misses"), sampled([*WORLDS], [*MORE], quick=[0]))
def test_limits_are_learned_beside_a_cache_that_misses(world, misses):
    told, true, refused, ideal, _ = WORLDS[world]
    source = "assumed" if world == "nothing told" else "given"
    settings = {"limits": {"m": LIMITS}, "latency_s": 0.5, "jitter": 0.3, "cache_misses": misses, **true}
    fleet = Talks(told, settings, jobs=800, workers=80, source=source).run()
    [pool] = fleet.hosts[0].process.limiter.status()["pools"].values()
    said = f"{world}, misses {misses}: {fleet.said()}, {pool['cache']}"
    assert fleet.lost == 0, said
    assert len(fleet.refused) <= refused + MORE[misses], said
    if ideal is None:  # the restarts of windows are not known at first
        assert fleet.steady >= 0.7, said
    else:
        assert fleet.speed >= (0.75 if true.get("other_users") else 0.85), said
    # What is expected, and what has been charged, follow the answers.
    assert pool["cache"]["expected"] == pytest.approx(1.0 - misses, abs=0.3), said
    charged = fleet.tally["charges"]["input_tokens"]
    assert pool["cache"]["input_tokens"] - pool["cache"]["read_tokens"] == pytest.approx(charged, rel=0.1), said
