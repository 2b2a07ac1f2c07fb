"""500 workers, each with one paper at a time, over machines that know nothing of limits."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from flatmachines import FlatMachine, HooksRegistry, InMemoryResultBackend, MachineHooks
from flatmachines.validation import ValidationWarning

from paceline.integrations.flatmachines import PacelineHooks

HERE = Path(__file__).resolve().parent
STEPS_MAX = 30
"""States that one paper may enter: eight, and a few again after a failure."""

PHASES = {"prep": "prep", "expensive": "expensive", **dict.fromkeys(
    ("wrap", "wrap_check", "wrap_first_revision", "wrap_revision", "wrap_title"), "wrap"
)}  # fmt: skip
"""By state: its lane."""

OLD_PAUSES_S = (2.0, 8.0, 16.0)
"""What every agent slept after a failure, before there was a limiter."""

WORDS = [
    "we",
    "show",
    "that",
    "a",
    "model",
    "of",
    "many",
    "parts",
    "learns",
    "from",
    "few",
    "examples",
    "and",
    "holds",
    "under",
    "noise",
    "and",
    "shift",
]

warnings.simplefilter("ignore", ValidationWarning)  # flatmachines 4.2.1 warns of its own form of an agent
warnings.filterwarnings(
    "ignore", r"coroutine 'OpenAIChatCompletion\.acompletion'"
)  # litellm 1.106.2, cancelled at the end


@dataclass
class Pipeline:
    """The workers and what came of them.

    Attributes:
        workers: How many papers are in work at the same time.
        hooks: Set the lanes; ``None``: nobody does, and every agent tries again for itself.
        speed: Pauses are shorter by this factor.
        done_s: When papers were finished, as Unix times.
        lost: Why papers were given up, and how often.
    """

    workers: int = 500
    hooks: PacelineHooks | None = None
    speed: float = 1.0
    done_s: list[float] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the machines."""
        paper, review = (yaml.safe_load((HERE / name).read_text()) for name in ("paper.yml", "review.yml"))
        self._changes = {"machines": {"review": review}}  # else each of the three reads the file again
        if self.hooks is None:
            pauses_s = [pause_s / self.speed for pause_s in OLD_PAUSES_S]
            self._changes["states"] = paper["data"]["states"]
            for state in (*paper["data"]["states"].values(), *review["data"]["states"].values()):
                if "agent" in state:
                    state["execution"] = {"type": "retry", "backoffs": pauses_s, "jitter": 0.1}
        hooks = self.hooks or MachineHooks()
        self._registry = HooksRegistry()
        self._registry.register("lanes", lambda: hooks)
        self._todo, self._ready = papers(), list[FlatMachine]()

    async def warm(self) -> None:
        """Make the first call, for which litellm imports the rest of itself, and everybody's first machine: half a minute."""
        await self._machine().execute(next(self._todo), max_steps=1)
        self._ready = [self._machine() for _ in range(self.workers)]

    async def run(self, run_s: float) -> None:
        """Let all workers work for ``run_s`` seconds; papers in work are then left as they are."""
        workers = [asyncio.create_task(self._work()) for _ in range(self.workers)]
        _, still = await asyncio.wait(workers, timeout=run_s)
        for worker in still:
            worker.cancel()
        for result in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _work(self) -> None:
        for paper in self._todo:
            machine = self._ready.pop() if self._ready else self._machine()
            result = await machine.execute(paper, max_steps=STEPS_MAX)
            if "text" in result:
                self.done_s.append(time.time())
            else:
                reason = str(result.get("error", f"not done in {STEPS_MAX} steps"))[:80]
                self.lost[reason] = self.lost.get(reason, 0) + 1

    def _machine(self) -> FlatMachine:
        return FlatMachine(
            config_file=str(HERE / "paper.yml"),
            hooks_registry=self._registry,
            result_backend=InMemoryResultBackend(),  # the default one keeps every result of every child for good
            **self._changes,
        )


def papers() -> Iterator[dict[str, Any]]:
    """Papers without end; a third each needs no, one and two revisions: four calls in the wrap phase on average."""
    chance = random.Random(7)
    for number in itertools.count(1):
        abstract = " ".join(chance.choices(WORDS, k=chance.randint(80, 200)))
        yield {"title": f"Paper {number}", "abstract": abstract, "revisions": number % 3}
