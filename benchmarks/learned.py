"""Known and unknown limits in virtual time: the refusals and the speed of the real limiter, at any load of the machine."""

from __future__ import annotations

import sys

from benchmarks.environments import ROOT
from benchmarks.table import Row

LATENCY_S = 0.5


def measure(quick: bool) -> list[Row]:
    """A row for each world of ``tests/simulation/test_worlds.py``, over its seeds."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from tests.simulation.fleet import Fleet
    from tests.simulation.test_worlds import LIMITS, SEEDS, WORLDS

    rows = []
    for name, (told, true, most, ideal, steady) in WORLDS.items():
        settings = {"limits": {"m": LIMITS}, "latency_s": LATENCY_S, "jitter": 0.3, **true}
        source = "assumed" if name == "nothing told" else "given"
        reports = [
            Fleet(told, settings, seed=seed, jobs=800, source=source).run() for seed in SEEDS[: 1 if quick else None]
        ]
        refused = [len(report.refused) for report in reports]
        shares = [report.speed if steady is None else report.steady for report in reports]
        least = ideal if steady is None else steady
        goal = f"<= {most} refused, >= {least:g}{'' if steady is None else ' of the steady rate'}"
        shown = f"{_range(refused, '')} refused, {_range(shares, '.3f')}"
        rows.append(Row(name, shown, goal, max(refused) <= most and min(shares) >= (least or 0.0)))
    return rows


def _range(values: list[float] | list[int], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"
