"""The table at the end, one row for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EARLY = 50
"""So many first answers are shown by themselves: the estimates of the others were corrected by them."""

TOGETHER = "together"


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one model's requests, or of all together.

    Attributes:
        model: Its name.
        requests: How many were admitted.
        refused: How many the provider refused: by its own tally, or by ours where it keeps none.
        seconds: From the first admission to the last; of the ideal share, too.
        share: The time that the limits ask for at least (a full burst, then the rate), over ``seconds``; ``None``
            where nothing had to wait, or nobody can tell.
        early: Input tokens estimated for the first answers, over those reported.
        later: The same for the others.
    """

    model: str
    requests: int
    refused: int
    seconds: float
    share: float | None
    early: float | None
    later: float | None


def rows(
    pools: Mapping[str, Sequence[str]], records: Sequence[Any], tally: Mapping[str, Any] | None, took_s: float
) -> list[Row]:
    """The numbers of a run.

    Args:
        pools: The models of each pool.
        records: What was estimated and used, one for each answer.
        tally: The emulator's; ``None``: there is none.
        took_s: How long the run took, in seconds.
    """
    made = []
    for pool, models in pools.items():
        own = [record for record in records if record.pool == pool]
        used = [record for record in own if record.usage is not None]
        seen = tally["pools"][models[0]] if tally else {"elapsed_s": took_s, "speed_vs_ideal": None}
        refused = seen.get("refused_total", sum(len(record.refusals) for record in own))
        numbers = seen.get("admitted", len(used)), refused, seen["elapsed_s"], seen["speed_vs_ideal"]
        made.append(Row(" + ".join(models), *numbers, _ratio(used[:EARLY]), _ratio(used[EARLY:])))
    if tally and len(made) > 1:  # who waits for one model asks less of the other: the run is what counts
        numbers = tally["admitted"], tally["refused_total"], tally["elapsed_s"], tally["speed_vs_ideal"]
        made.append(Row(TOGETHER, *numbers, None, None))
    return made


def table(made: Sequence[Row]) -> str:
    """The rows as text."""
    lines = [f"{'model':<20}{'requests':>9}{'refused':>9}{'seconds':>9}{'of ideal':>10}{'estimate / actual':>30}"]
    lines += [
        f"{row.model:<20}{row.requests:>9}{row.refused:>9}{row.seconds:>9.1f}{_shown(row.share):>10}"
        f"{_estimates(row):>30}"
        for row in made
    ]
    return "\n".join(lines)


def _estimates(row: Row) -> str:
    return f"first {EARLY}: {_shown(row.early)}, then {_shown(row.later)}" if row.early else ""


def _ratio(records: Sequence[Any]) -> float | None:
    actual = sum(record.usage.input_tokens for record in records)
    return sum(record.cost["input_tokens"] for record in records) / actual if actual else None


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.3f}"
