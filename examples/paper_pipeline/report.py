"""What happened: how many requests there were, minute by minute, and how long they waited in each lane."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline import Pipeline

import paceline
from paceline.testing import Emulator

MODELS = ("arcee", "pony")


def seen_by_server(emulator: Emulator) -> dict[str, int]:
    """How many requests of each model an emulated provider has admitted, and how many it has refused."""
    tally = emulator.tally()
    return {name: pool["admitted"] for name, pool in tally["pools"].items()} | {"refused": tally["refused_total"]}


def seen_by_limiter(limiter: paceline.Limiter) -> dict[str, int]:
    """The same as the limiter has it, where nobody else tells."""
    counts = {name.rpartition("/")[2]: pool["counts"] for name, pool in limiter.status()["pools"].items()}
    refused = sum(number for count in counts.values() for kind, number in count.items() if kind.startswith("refused"))
    return {model: count.get("settled", 0) for model, count in counts.items()} | {"refused": refused}


@dataclass
class Meter:
    """Reads now and then how many requests there were.

    Attributes:
        look: How many requests of each model were admitted so far, and how many ``refused``.
        limits: Requests per minute of real life.
        speed: How much faster than in real life everything goes.
        rows: What was seen, and when (Unix time).
    """

    look: Callable[[], dict[str, int]]
    limits: Mapping[str, int]
    speed: float = 1.0
    rows: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    async def read(self) -> None:
        """Look once."""
        seen = await asyncio.to_thread(self.look)
        self.rows.append((time.time(), seen))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(2 / self.speed)
            await self.read()

    def running_s(self, minutes: float) -> float:
        """When pony, which binds, had made as many calls as in so many minutes; the bucket that is full at first is one."""
        calls = minutes * self.limits["pony"]
        return next((at_s for at_s, counts in self.rows[:-1] if counts.get("pony", 0) >= calls), self.rows[0][0])

    def rate(self, what: str, from_s: float, to_s: float) -> float:
        """How many of ``what`` there were per minute, in the part of the run from ``from_s`` to ``to_s``."""
        rows = [(at_s, counts) for at_s, counts in self.rows if from_s <= at_s <= to_s]
        (first_s, first), (last_s, last) = rows[0], rows[-1]
        return (last.get(what, 0) - first.get(what, 0)) / (last_s - first_s) * 60 / self.speed


class Watched(paceline.Limiter):
    """A limiter that remembers how long requests waited: by lane, when each went (Unix time) and how long it had waited."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waits_s: dict[str, list[tuple[float, float]]] = {}

    def acquire_call(self, *args: Any, **options: Any) -> Any:
        """As the limiter does it, with a look at the permit."""
        return _Noted(super().acquire_call(*args, **options), self.waits_s)


class _Noted:
    def __init__(self, acquisition: paceline.Acquisition, waits_s: dict[str, list[tuple[float, float]]]) -> None:
        self._acquisition, self._waits_s = acquisition, waits_s

    def __await__(self) -> Any:
        permit = yield from self._acquisition.__await__()
        lane = permit._waiter.lane.name  # noqa: SLF001
        self._waits_s.setdefault(lane, []).append((permit.reservation.granted_ns / 1e9, permit.waited_s))
        return permit


def table(pipeline: Pipeline, meter: Meter, waits_s: Mapping[str, list[tuple[float, float]]]) -> str:
    """Everything that matters, once it is running; in minutes of real life."""
    if len(meter.rows) < 2:
        return "too short a run to say anything"
    start_s, end_s, speed = meter.rows[0][0], meter.rows[-1][0], meter.speed
    from_s, limits = meter.running_s(2), meter.limits
    minutes = (end_s - from_s) * speed / 60
    rates = {model: meter.rate(model, from_s, end_s) for model in MODELS}
    papers = sum(at_s >= from_s for at_s in pipeline.done_s) / minutes
    lines = [
        f"{minutes:.1f} minutes, after the first {(from_s - start_s) * speed / 60:.1f}; {pipeline.workers} workers",
        f"refused (429)     {meter.rows[-1][1]['refused']:>8,}",
        *(f"{model:<5} calls/min   {rates[model]:>8.1f}  {rates[model] / limits[model]:>7.1%} of {limits[model]}" for model in MODELS),
        f"papers/min        {papers:>8.1f}",
        f"papers given up   {sum(pipeline.lost.values()):>8,}",
    ]  # fmt: skip
    if waits_s:
        lines.append(f"{'lane':<10} {'calls':>7} {'mean wait':>10} {'longest':>10}")
    for lane, waits in sorted(waits_s.items()):
        waited = [wait_s * speed for at_s, wait_s in waits if at_s >= from_s]
        if waited:
            mean_s, most_s = sum(waited) / len(waited), max(waited)
            lines.append(f"{lane:<10} {len(waited):>7,} {mean_s:>8.1f} s {most_s:>8.1f} s")
    return "\n".join(lines)
