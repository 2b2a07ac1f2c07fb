"""500 workers, each with one paper at a time, over machines without any code for limits."""

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
"""The most states that one paper enters: eight, and some again after a failure."""

PHASES = {"prep": "prep", "expensive": "expensive", **dict.fromkeys(
    ("wrap", "wrap_check", "wrap_first_revision", "wrap_revision", "wrap_title"), "wrap"
)}  # fmt: skip
"""The lane of each state."""

OLD_PAUSES_S = (2.0, 8.0, 16.0)
"""The pauses of every agent after a failure, without a limiter."""

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

warnings.simplefilter("ignore", ValidationWarning)  # flatmachines 4.2.1 warns about its own form of an agent
warnings.filterwarnings(
    "ignore", r"coroutine 'OpenAIChatCompletion\.acompletion'"
)  # litellm 1.106.2, cancelled at the end


@dataclass
class Pipeline:
    """The workers and their results.

    Attributes:
        workers: The number of papers in work at the same time.
        hooks: Set the lanes and hold prep; ``None`` for neither, and retries in every agent.
        speed: The divisor of the pauses.
        done_s: The times at which papers were finished, as Unix times.
        lost: The reasons for failed papers, and their counts.
    """

    workers: int = 500
    hooks: PacelineHooks | None = None
    speed: float = 1.0
    done_s: list[float] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the machines."""
        paper, review = (yaml.safe_load((HERE / name).read_text()) for name in ("paper.yml", "review.yml"))
        self._changes = {"machines": {"review": review}}  # otherwise each of the three reads the file again
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
        """Make the first call, for which litellm imports its other modules, and the first machine of each worker (30 s)."""
        await self._machine().execute(next(self._todo), max_steps=1)
        self._ready = [self._machine() for _ in range(self.workers)]

    async def run(self, run_s: float) -> None:
        """Run all workers for ``run_s`` seconds; papers in work at the end are abandoned."""
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
            result_backend=InMemoryResultBackend(),  # the default one never drops the results of machines inside
            **self._changes,
        )


def papers() -> Iterator[dict[str, Any]]:
    """An endless series of papers; a third each needs 0, 1 and 2 revisions: on average 4 calls in the wrap phase."""
    chance = random.Random(7)
    for number in itertools.count(1):
        abstract = " ".join(chance.choices(WORDS, k=chance.randint(80, 200)))
        yield {"title": f"Paper {number}", "abstract": abstract, "revisions": number % 3}
