"""`paceline run --mode sync`, `batch` and `auto` over the same inputs: time and cost, with providers' times made short.

The emulator is ``FASTER`` times as fast as a provider: turnarounds of batches as OpenRouter measured them in 2026 (a median of
7 minutes, nine of ten within an hour), limits and deadlines alike. Times are printed as they would be at a provider.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import fields
from pathlib import Path

from benchmarks.table import Row
from paceline.batch import offline
from paceline.batch.job import Job
from paceline.batch.offline import Batching
from paceline.batch.progress import ProgressView
from paceline.batch.timing import Timing
from paceline.config import Config
from paceline.core.quota import parse_quotas
from paceline.emulator import Emulator

FASTER = 210
PER_MIN = 50
WORKLOADS = {
    "100 requests, 6 h": (100, 360),
    "2,000 requests, 6 h": (2_000, 360),
    "2,000 requests, 63 min": (2_000, 63),
}
"""So many requests of one model at 50 requests/min, and the deadline in minutes."""

PROMPT = "Which of these two answers is better, and why? " * 20
BATCHES = {"turnaround_s": 420 / FASTER, "turnaround_spread": 8.5, "validating_s": 10 / FASTER, "cancel_s": 60 / FASTER}


def measure(quick: bool) -> list[Row]:
    """A row for each workload and mode."""
    before = offline.TIMING
    names = [field.name for field in fields(before)]
    offline.TIMING = Timing(**{name: getattr(before, name) / FASTER for name in names})
    try:
        rows = []
        for name, (count, minutes) in list(WORKLOADS.items())[: 1 if quick else None]:
            rows += [_row(name, mode, count, minutes) for mode in ("sync", "batch", "auto")]
    finally:
        offline.TIMING = before
    return rows


def _row(name: str, mode: str, count: int, minutes: int) -> Row:
    limit = f"{PER_MIN * FASTER // 60} requests/s"  # so a burst of three minutes and a half
    with (
        tempfile.TemporaryDirectory() as folder,
        Emulator(limits={"*": limit}, batches=BATCHES, latency_s=0.05) as emulator,
    ):
        source = Path(folder, "in.jsonl")
        source.write_text("".join(_line(number) for number in range(count)))
        config = Config.load(environ={}, given={"base_url": emulator.base_url, "limits": {"*": parse_quotas(limit)}})
        batch_lines = None if mode == "sync" else max(count // 8, 10)
        deadline_s = minutes * 60 / FASTER if mode == "auto" else None
        job = Job(
            str(source),
            config=config,
            environ={"OPENAI_API_KEY": "key"},
            batching=Batching(mode, deadline_s, batch_lines),
        )
        _, report = job.run(ProgressView())
        tally = emulator.tally()
    took = report["seconds"] * FASTER / 60
    in_time = took <= minutes
    what = f"{name}, --mode {mode}: time, cost, answers in batches, paid twice"
    ours = (
        f"{took:,.0f} min, {report['usd']:.3f} USD ({report['usd_saved']:.3f} less), {report['in_batches'] / count:.0%},"
        f" {tally['answers']['most'] - 1}; {report['refused']} refused"
    )
    return Row(what, ours, f"<= {minutes} min", in_time)


def _line(number: int) -> str:
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": f"{number}: {PROMPT}"}], "max_tokens": 100}
    return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"
