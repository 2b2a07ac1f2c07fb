"""The report: requests per minute, the buffer of prepared papers, and the waits in each lane."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pipeline import Pipeline

import paceline
from paceline.testing import Emulator

MODELS = ("arcee", "pony")
KINDS = {"rate": "429", "capacity": "503"}
"""The kinds of refusals that are always shown, with their status."""


def seen_by_server(emulator: Emulator) -> Counter[str]:
    """The admitted requests of each model, and the refused ones by their kind, by the emulated provider."""
    tally = emulator.tally()
    seen = Counter({name: pool["admitted"] for name, pool in tally["pools"].items()})
    return seen + Counter({f"refused_{kind}": count for kind, count in tally["refused"].items()})


def seen_by_limiter(limiter: paceline.Limiter) -> Counter[str]:
    """The same by the limiter, for a real provider."""
    seen: Counter[str] = Counter()
    for name, pool in limiter.status()["pools"].items():
        seen[name.rpartition("/")[2]] += pool["counts"].get("settled", 0)
        seen.update({kind: count for kind, count in pool["counts"].items() if kind.startswith("refused_")})
    return seen


class Waits:
    """A listener that keeps the wait of each granted request, by lane, with its time (Unix time)."""

    def __init__(self) -> None:
        self.by_lane: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def __call__(self, event: paceline.Event) -> None:
        """Keep one wait."""
        if event.kind == "acquired":
            self.by_lane[event.lane].append((time.time(), event.waited_s))


@dataclass
class Meter:
    """Reads the number of requests, and of papers in the buffer, at intervals.

    Attributes:
        look: Returns the admitted requests of each model so far, and those refused, by kind.
        limits: Requests per minute of the plan.
        speed: The seconds of the plan in one real second.
        buffer: The buffer of prepared papers, if any.
        rows: The readings with their times (Unix time).
    """

    look: Callable[[], Counter[str]]
    limits: Mapping[str, int]
    speed: float = 1.0
    buffer: paceline.Buffer | None = None
    rows: list[tuple[float, Counter[str]]] = field(default_factory=list)

    async def read(self) -> None:
        """Take one reading."""
        seen = await asyncio.to_thread(self.look)
        if self.buffer is not None:
            seen["buffer"] = self.buffer.status()["items"]
        self.rows.append((time.time(), seen))

    async def run(self) -> None:
        """Take readings until cancelled."""
        while True:
            await asyncio.sleep(2 / self.speed)
            await self.read()

    def refused(self) -> dict[str, int]:
        """The refusals so far, by kind."""
        last = self.rows[-1][1]
        return {kind: last[f"refused_{kind}"] for kind in KINDS} | {
            name.removeprefix("refused_"): count for name, count in last.items() if name.startswith("refused_")
        }

    def running_s(self, minutes: float) -> float:
        """The time at which pony, which binds, had the calls of so many minutes; its full bucket at the start counts as one."""
        calls = minutes * self.limits["pony"]
        return next((at_s for at_s, counts in self.rows[:-1] if counts["pony"] >= calls), self.rows[0][0])

    def rate(self, what: str, from_s: float, to_s: float) -> float:
        """The requests of the model ``what`` per minute, from ``from_s`` to ``to_s``."""
        rows = [(at_s, counts) for at_s, counts in self.rows if from_s <= at_s <= to_s]
        (first_s, first), (last_s, last) = rows[0], rows[-1]
        return (last[what] - first[what]) / (last_s - first_s) * 60 / self.speed

    def buffered(self, from_s: float) -> tuple[int, int]:
        """The least and the greatest number of papers in the buffer since ``from_s``."""
        counts = [counts["buffer"] for at_s, counts in self.rows if at_s >= from_s]
        return min(counts), max(counts)


def table(pipeline: Pipeline, meter: Meter, waits_s: Mapping[str, list[tuple[float, float]]]) -> str:
    """The results after the start-up, in minutes of the plan."""
    if len(meter.rows) < 2:
        return "the run was too short for a result"
    start_s, end_s, speed = meter.rows[0][0], meter.rows[-1][0], meter.speed
    from_s, limits, buffer = meter.running_s(2), meter.limits, meter.buffer
    minutes = (end_s - from_s) * speed / 60
    rates = {model: meter.rate(model, from_s, end_s) for model in MODELS}
    papers = sum(at_s >= from_s for at_s in pipeline.done_s) / minutes
    lines = [
        f"{minutes:.1f} minutes, after the first {(from_s - start_s) * speed / 60:.1f}; {pipeline.workers} workers",
        *(f"refused {f'({kind}, {KINDS[kind]})' if kind in KINDS else f'({kind})':<17}{count:>9,}" for kind, count in meter.refused().items()),
        *(f"{model:<5} calls/min   {rates[model]:>16.1f}  {rates[model] / limits[model]:>7.1%} of {limits[model]}" for model in MODELS),
        f"papers/min        {papers:>16.1f}",
        f"papers given up   {sum(pipeline.lost.values()):>16,}",
    ]  # fmt: skip
    if buffer is not None:
        least, most = meter.buffered(from_s)
        lines.append(f"papers in buffer  {f'{least} to {most}':>16}  watermarks {buffer.low}, {buffer.high}")
    if waits_s:
        lines.append(f"{'lane':<10} {'calls':>7} {'mean wait':>10} {'longest':>10}")
    for lane, waits in sorted(waits_s.items()):
        waited = [wait_s * speed for at_s, wait_s in waits if at_s >= from_s]
        if waited:
            mean_s, most_s = sum(waited) / len(waited), max(waited)
            lines.append(f"{lane:<10} {len(waited):>7,} {mean_s:>8.1f} s {most_s:>8.1f} s")
    return "\n".join(lines)
