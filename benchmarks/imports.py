"""What an import costs over a bare interpreter, in fresh processes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from benchmarks.peers import installed
from benchmarks.table import Row, below

GOAL_MS = 60.0
OURS = ("import paceline", "from paceline import Limiter")
PEERS = {"aiolimiter": "import aiolimiter", "limits": "import limits", "async_batch_llm": "import async_batch_llm"}


def measure(quick: bool) -> list[Row]:
    """A row for the package, and one with its main class."""
    peers = {name: code for name, code in PEERS.items() if installed(name)}
    times = _over_bare([*OURS, *peers.values()], 5 if quick else 10)
    said = ", ".join(
        f"{name} {statistics.median(times[peers[name]]):.0f} ms" if name in peers else f"{name} n/a" for name in PEERS
    )
    return [
        below(OURS[0] + ", over bare Python", times[OURS[0]], "ms", GOAL_MS),
        below(OURS[1] + ", over bare Python", times[OURS[1]], "ms", GOAL_MS, said),
    ]


def _over_bare(codes: list[str], count: int) -> dict[str, list[float]]:
    """Milliseconds of each above ``pass`` in the same round; all of them in turn, so that noise meets all alike."""
    taken: dict[str, list[float]] = {code: [] for code in codes}
    for number in range(count + 1):
        bare_ms = _run_ms("pass")
        for code in codes:
            above_ms = _run_ms(code) - bare_ms
            if number:  # the first round writes the bytecode
                taken[code].append(above_ms)
    return taken


def _run_ms(code: str) -> float:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    return (time.perf_counter() - began) * 1e3
