"""The report: requests per minute, and the waits in each lane."""

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
    """The admitted requests of each model, and the refused ones, by the emulated provider."""
    tally = emulator.tally()
    return {name: pool["admitted"] for name, pool in tally["pools"].items()} | {"refused": tally["refused_total"]}


def seen_by_limiter(limiter: paceline.Limiter) -> dict[str, int]:
    """The same by the limiter, for a real provider."""
    counts = {name.rpartition("/")[2]: pool["counts"] for name, pool in limiter.status()["pools"].items()}
    refused = sum(number for count in counts.values() for kind, number in count.items() if kind.startswith("refused"))
    return {model: count.get("settled", 0) for model, count in counts.items()} | {"refused": refused}


@dataclass
class Meter:
    """Reads the number of requests at intervals.

    Attributes:
        look: Returns the admitted requests of each model so far, and those ``refused``.
        limits: Requests per minute of the plan.
        speed: The seconds of the plan in one real second.
        rows: The readings with their times (Unix time).
    """

    look: Callable[[], dict[str, int]]
    limits: Mapping[str, int]
    speed: float = 1.0
    rows: list[tuple[float, dict[str, int]]] = field(default_factory=list)

    async def read(self) -> None:
        """Take one reading."""
        seen = await asyncio.to_thread(self.look)
        self.rows.append((time.time(), seen))

    async def run(self) -> None:
        """Take readings until cancelled."""
        while True:
            await asyncio.sleep(2 / self.speed)
            await self.read()

    def running_s(self, minutes: float) -> float:
        """The time at which pony, which binds, had the calls of so many minutes; its full bucket at the start counts as one."""
        calls = minutes * self.limits["pony"]
        return next((at_s for at_s, counts in self.rows[:-1] if counts.get("pony", 0) >= calls), self.rows[0][0])

    def rate(self, what: str, from_s: float, to_s: float) -> float:
        """The requests of the model ``what`` per minute, from ``from_s`` to ``to_s``."""
        rows = [(at_s, counts) for at_s, counts in self.rows if from_s <= at_s <= to_s]
        (first_s, first), (last_s, last) = rows[0], rows[-1]
        return (last.get(what, 0) - first.get(what, 0)) / (last_s - first_s) * 60 / self.speed


class Watched(paceline.Limiter):
    """A limiter that records the waits of requests: by lane, the time of each grant (Unix time) and its wait."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waits_s: dict[str, list[tuple[float, float]]] = {}

    def acquire_call(self, *args: Any, **options: Any) -> Any:
        """As :meth:`paceline.Limiter.acquire_call`, with a record of the permit."""
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
    """The results after the start-up, in minutes of the plan."""
    if len(meter.rows) < 2:
        return "the run was too short for a result"
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
