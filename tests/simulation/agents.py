"""Fleets of agents before a provider that caches prompts: the real limiter in virtual time, compared with a model of it.

    python -m tests.simulation.agents            # all worlds, as a table
    python -m tests.simulation.agents A D fair   # some of them

Each agent holds a conversation: a prompt, answers, think times, prompts that grow. The figures of the model are of a simulation of
the queue alone (two per cent of headroom, only the head is tried, a pool settled at the end of an answer): ``arrival`` lets requests go
in the order of their arrival, ``rule`` lets those go first whose prompt is still cached.
"""

import argparse
import asyncio
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.simulation.troubles import Simulation

from paceline.core.queue import LaneSpec
from paceline.pacing.retry import RetryPolicy
from paceline.planner.workload import Conversation

MODEL = "anthropic/m"
LIMITS = "1000 requests/min,450k input_tokens/min,90k output_tokens/min"
WIDE = "4000 requests/min,450k input_tokens/min,90k output_tokens/min"
TIER_1 = "50 requests/min,30k input_tokens/min,8k output_tokens/min"
FIRST_S = 0.6
"""Seconds until an answer begins."""

ESTIMATE_OFF = 0.03
"""The standard deviation of the error of the client's estimates."""

Draw = Callable[[random.Random], float]


def evenly(least: float, most: float) -> Draw:
    return lambda dice: dice.uniform(least, most)


def about(median: float, spread: float, least: float, most: float) -> Draw:
    """Lognormal between bounds."""
    return lambda dice: min(most, max(least, dice.lognormvariate(math.log(median), spread)))


def tools(dice: random.Random) -> float:
    """The think time of a coding agent: mostly seconds, sometimes minutes."""
    return dice.uniform(60, 600) if dice.random() < 0.05 else min(60.0, dice.lognormvariate(1.8, 0.8))


def exactly(value: float) -> Draw:
    return lambda _: value


STEP, ANSWER, PAUSE_S, ANSWERS_S = exactly(400), exactly(100), evenly(0.5, 3), evenly(2, 6)
"""What most fleets do: tokens of a further message and of an answer, seconds between two turns and of an answer."""


@dataclass(kw_only=True)
class Agent:
    """What one agent does; sizes in tokens, times in seconds.

    ``shared``: the part of the prompt that all agents begin with who are among the same ones. ``kids``: agents of its own, by number; it
    lets them work after its first turn, and goes on when all have ended.
    """

    starts_s: float
    turns: int
    prompt: int
    grows: Draw = STEP
    output: Draw = ANSWER
    thinks: Draw = PAUSE_S
    answers: Draw = ANSWERS_S
    shared: int = 0
    among: str = ""
    lane: str | None = None
    kids: dict[int, "Agent"] = field(default_factory=dict)


@dataclass(kw_only=True)
class World:
    """A fleet and its provider.

    ``model``: by column what the model gives: turns an hour, thousand tokens charged a turn, median and 95 % of the conversations,
    longest wait of a new one, refusals; ``None``: no conversation ends.
    """

    name: str
    agents: Callable[[], Sequence[Agent]]
    limits: str = LIMITS
    ends_s: float = 7_200.0
    processes: int = 1
    weights: dict[str, float] = field(default_factory=dict)
    provider: dict[str, object] = field(default_factory=dict)
    model: dict[str, tuple] = field(default_factory=dict)


def _each(number: int, **how) -> Callable[[], list[Agent]]:
    return lambda: [Agent(starts_s=0.001 * i, turns=10, prompt=20_000, **how) for i in range(number)]


def _coding() -> list[Agent]:
    return [
        Agent(
            starts_s=i, turns=25, prompt=30_000 + int(random.Random(i).uniform(0, 20_000)), shared=18_000,
            grows=about(1_200, 0.9, 100, 15_000), output=about(400, 0.7, 50, 3_000), thinks=tools, answers=evenly(6, 25),
        )
        for i in range(200)
    ]  # fmt: skip


def _two_kinds() -> list[Agent]:
    return [
        Agent(
            starts_s=0.5 * i, turns=25, prompt=60_000 if i % 2 else 5_000, grows=exactly(500 if i % 2 else 4_000),
            thinks=evenly(5, 30),
        )
        for i in range(300)
    ]  # fmt: skip


def _trees() -> list[Agent]:
    """Agents with eight others each, whose system prompt of 25k nobody has written."""
    how = {"turns": 4, "grows": exactly(600), "output": exactly(300), "thinks": evenly(1, 4), "answers": evenly(5, 12)}
    agents = []
    for i in range(40):
        kids = [Agent(starts_s=0.001 * j, prompt=26_500, shared=25_000, among=f"{i}", **how) for j in range(8)]
        numbered = {10_000 + i * 100 + j: kid for j, kid in enumerate(kids)}
        agents.append(Agent(starts_s=0.5 * i, prompt=30_000, kids=numbered, **how))
    return agents


def _one_shots() -> list[Agent]:
    return [Agent(starts_s=0.0001 * i, turns=1, prompt=9_000, shared=8_000, output=exactly(200)) for i in range(3_000)]


def _uncached() -> list[Agent]:
    return [
        Agent(starts_s=0.001 * i, turns=1, prompt=random.Random(i).randrange(500, 20_000), thinks=evenly(1, 2))
        for i in range(1_000)
    ]


def _rivals() -> list[Agent]:
    """Follow-ups that fill the quota by themselves, and requests of which nothing is cached, in two lanes."""
    agents = [
        Agent(starts_s=0.05 * i, turns=10**6, prompt=20_000, grows=exactly(2_000), thinks=evenly(2, 8), lane="agents")
        for i in range(250)
    ]
    batch = [Agent(starts_s=0.005 * i, turns=1, prompt=5_000, thinks=evenly(1, 2), lane="batch") for i in range(6_000)]
    return agents + batch


WORLDS = {
    "A": World(
        name="150 agents x 10, 20k + 0.5k", agents=_each(150),
        model={"arrival": (1_204, 22.3, 4_237, 4_463, 348, 0), "rule": (10_961, 2.4, 244, 469, 436, 0)},
    ),
    "D": World(
        name="200 coding agents x 25", agents=_coding, ends_s=14_400,
        model={"arrival": (727, 36.5, None, None, 460, 0), "rule": (5_135, 4.4, 1_861, 3_064, 1_197, 0)},
    ),
    "E": World(
        name="300 x 25, 60k + 0.6k / 5k + 4k", agents=_two_kinds, ends_s=20_000,
        model={"arrival": (600, 44.2, None, None, 1_250, 0), "rule": (6_851, 3.6, 2_043, 3_601, 3_247, 0)},
    ),
    "G": World(
        name="20 x 10, 12k, 30k ITPM", limits=TIER_1, ends_s=14_400,
        agents=lambda: [Agent(starts_s=0.1 * i, turns=10, prompt=12_000, grows=exactly(500), thinks=evenly(1, 5)) for i in range(20)],
        model={"arrival": (121, 14.7, 5_623, 5_945, 429, 0), "rule": (1_044, 1.8, 376, 688, 631, 0)},
    ),
    "K": World(
        name="40 trees of 9, 25k that nobody has written", agents=_trees, ends_s=14_400,
        model={"arrival": (5_379, 4.4, 682, 938, 304, 18), "rule": (8_405, 3.2, 266, 443, 272, 0)},
    ),
    "L": World(
        name="3,000 requests, 8k shared + 1k", agents=_one_shots, ends_s=14_400,
        limits="4000 requests/min,450k input_tokens/min,400k output_tokens/min",
        model={"arrival": (24_641, 1.1, 235, 416, 433, 0), "rule": (26_533, 1.1, 202, 385, 401, 0)},
    ),
    "O": World(
        name="150 lanes, one agent each", weights={f"k{i}": 1.0 for i in range(150)},
        agents=lambda: [Agent(starts_s=0.001 * i, turns=10, prompt=20_000, lane=f"k{i}") for i in range(150)],
        model={"arrival": (1_211, 22.1, 4_210, 4_436, 348, 0), "rule": (10_776, 2.7, 428, 494, 409, 0)},
    ),
    "T": World(
        name="1,000 requests, nothing cached", agents=_uncached, provider={"cache": False},
        model={"arrival": (2_719, 10.2, 632, 1_255, 1_320, 0), "rule": (2_719, 10.2, 632, 1_255, 1_320, 0)},
    ),
    "U": World(
        name="as A, 4 processes on a store", agents=_each(150), processes=4,
        model={"arrival": (5_919, 4.1, 902, 910, 360, 0), "rule": (11_054, 2.4, 245, 468, 436, 0)},
    ),
    "X": World(
        name="as A, 5 % misses", agents=_each(150), provider={"cache_misses": 0.05},
        model={"arrival": (1_204, 22.3, 4_237, 4_463, 348, 0), "rule": (7_838, 3.4, 512, 685, 578, 2)},
    ),
    "fair": World(
        name="250 endless agents, 6,000 others, lanes 1:1", agents=_rivals, limits=WIDE, ends_s=1_200,
        weights={"agents": 1.0, "batch": 1.0},
    ),
    "fair 3:1": World(
        name="the same, lanes 3:1", agents=_rivals, limits=WIDE, ends_s=1_200,
        weights={"agents": 3.0, "batch": 1.0},
    ),
}  # fmt: skip


@dataclass(kw_only=True)
class Outcome:
    """What became of a fleet; times in seconds.

    Attributes:
        turns: How many turns were admitted.
        charged: The input that the provider charged, in tokens.
        conversations_s: How long each conversation took that ended.
        new_wait_s: The longest wait of a first turn, also of one that still waits.
        refused: How many requests were refused.
        failed: The reasons for turns without an answer.
        again: How many follow-ups read less than half of their prompt.
        lanes: The charged input by lane.
        order: The turns in the order of their ends.
    """

    seconds: float
    turns: int
    charged: float
    conversations_s: list[float]
    new_wait_s: float
    refused: int
    failed: Counter
    again: int
    lanes: Counter
    order: list[str]

    @property
    def figures(self) -> tuple:
        """In the order of the model's."""
        ended = sorted(self.conversations_s)
        half, most = (ended[int(share * len(ended))] for share in (0.5, 0.95)) if ended else (None, None)
        turns_an_hour = self.turns * 3_600 / self.seconds
        return turns_an_hour, self.charged / max(1, self.turns) / 1e3, half, most, self.new_wait_s, self.refused


class Fleet:
    """Run the agents of ``world`` through limiters with these ``options``."""

    def __init__(self, world: World, *, seed: int = 1, stream: bool = False, **options) -> None:
        self._world, self._stream = world, stream
        self.sim = Simulation(
            {MODEL: world.limits}, seed=seed, **{"latency_s": FIRST_S, "cache": True, **world.provider}
        )
        options = {
            "quotas": {MODEL: world.limits}, "retry": RetryPolicy(faults=True), "shared": world.processes > 1,
            "lanes": [LaneSpec(name, weight) for name, weight in world.weights.items()], **options,
        }  # fmt: skip
        self.processes = [self.sim.process(**options) for _ in range(world.processes)]
        self._estimates = random.Random(seed)
        self._ended_s: list[float] = []
        self._new: dict[int, float] = {}  # the agents whose first turn waits, and since when

    async def _live(self, number: int, agent: Agent) -> None:
        time, dice = self.sim.time, random.Random(number * 7_919 + 13)
        process = self.processes[number % len(self.processes)]
        await time.sleep(agent.starts_s)
        started_s = time.now_s
        talk = Conversation(MODEL, f"c{number}", agent.prompt, shared=agent.shared, among=agent.among)
        self._new[number] = time.now_s
        for turn in range(agent.turns):
            output = int(agent.output(dice))
            request = talk.request(
                output, max_output_tokens=output, lane=agent.lane, stream=self._stream, duration_s=agent.answers(dice),
                estimated=talk.tokens * self._estimates.gauss(1.0, ESTIMATE_OFF), name=f"{number}/{turn}",
            )  # fmt: skip
            sent = await process.send(request)
            self._new.pop(number, None)
            if sent.error is not None:
                return
            talk.grow(output + int(agent.grows(dice)))
            if not turn and agent.kids:
                await asyncio.gather(*(self._live(of, kid) for of, kid in agent.kids.items()))
            if turn + 1 < agent.turns:
                await time.sleep(agent.thinks(dice))
        self._ended_s.append(time.now_s - started_s)

    def run(self) -> Outcome:
        """Until all conversations have ended, or the world has."""

        async def main():
            agents = [asyncio.create_task(self._live(i, agent)) for i, agent in enumerate(self._world.agents())]
            done, left = await asyncio.wait(agents, timeout=self._world.ends_s)
            waits_s = [self.sim.now_s - since_s for since_s in self._new.values()]
            for task in left:
                task.cancel()
            for task in done:
                task.result()
            return waits_s

        waits_s = self.sim.run(main)
        answered = [one for one in self.sim.sent if one.usage is not None]
        lanes = Counter()
        for one in answered:
            lanes[one.request.lane] += one.usage.input_tokens - one.usage.cached_tokens
        first = [one for one in answered if one.request.name.endswith("/0")]
        later = [one for one in answered if not one.request.name.endswith("/0")]
        tally = self.sim.world.tally()
        return Outcome(
            seconds=self.sim.now_s, turns=tally["admitted"], charged=tally["charges"]["input_tokens"],
            conversations_s=self._ended_s, new_wait_s=max([one.waited_s for one in first] + waits_s, default=0.0),
            refused=tally["refused_total"], failed=Counter(one.error for one in self.sim.sent if one.error),
            again=sum(one.usage.cached_tokens < one.usage.input_tokens / 2 for one in later),
            lanes=lanes, order=[one.request.name for one in self.sim.sent],
        )  # fmt: skip


ORDERS = {"arrival": {"prompt_cache": False}, "rule": {}}
"""The options of the limiter for each column of the model."""


def _cells(figures: Sequence) -> list[str]:
    turns, charged, half, most, wait, refused = figures
    ended = "none done" if half is None else f"{half:,.0f} / {most:,.0f}"
    return [f"{turns:,.0f}", f"{charged:.1f}", ended, f"{wait:,.0f}", f"{refused}"]


def main() -> None:
    """Print what became of each fleet, beside the figures of the model."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.agents", description="Fleets of agents in virtual time."
    )
    parser.add_argument("worlds", nargs="*", metavar="WORLD", help=f"{', '.join(WORLDS)}; all by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stream", action="store_true", help="answers are streamed")
    parser.add_argument("--order", choices=[*ORDERS], action="append", help="both by default")
    asked = parser.parse_args()
    if unknown := set(asked.worlds) - set(WORLDS):
        parser.error(f"no world is named {', '.join(sorted(unknown))}: choose from {', '.join(WORLDS)}")
    logging.disable()
    print(
        "| world | order | turns/h | of the model | k tokens a turn | conversations p50 / p95 s | longest wait of a new one s | refused |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in asked.worlds or WORLDS:
        world = WORLDS[name]
        for order in asked.order or ORDERS:
            found = Fleet(world, seed=asked.seed, stream=asked.stream, **ORDERS[order]).run()
            rows = [("", found.figures), *((" (model)", own) for own in [world.model.get(order)] if own)]
            for of, figures in rows:
                turns, *others = _cells(figures)
                ratio = f"{figures[0] / world.model[order][0]:.2f}" if not of and order in world.model else ""
                print(f"| {name}: {world.name} | {order}{of} |", " | ".join([turns, ratio, *others]), "|", flush=True)
            if len(found.lanes) == 2:
                shares = " : ".join(f"{tokens / 1e6:.2f}M" for _, tokens in sorted(found.lanes.items()))
                print(f"| | | charged, {' : '.join(sorted(found.lanes))}: {shares} | | | | | |")


if __name__ == "__main__":
    main()
