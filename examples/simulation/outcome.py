"""The table at the end, one row for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EARLY = 50
"""The number of first answers that are shown apart: they correct the estimates of the others."""

TOGETHER = "together"


@dataclass(frozen=True, slots=True)
class Row:
    """The results of one model's requests, or of all together.

    Attributes:
        model: Its name.
        requests: The number of admitted requests.
        refused: The number of refusals, by the emulator's tally, or by the limiter's records for a real provider.
        seconds: The time from the first admission to the last.
        share: The shortest time that the limits allow (a full burst, then the rate), over ``seconds``; ``None`` where no
            request had to wait, or without a tally.
        early: Estimated input tokens of the first answers, over the reported ones.
        later: The same for the other answers.
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
        records: The estimate and the usage of each answer.
        tally: The emulator's tally; ``None`` for a real provider.
        took_s: The duration of the run in seconds.
    """
    made = []
    for pool, models in pools.items():
        own = [record for record in records if record.pool == pool]
        used = [record for record in own if record.usage is not None]
        seen = tally["pools"][models[0]] if tally else {"elapsed_s": took_s, "speed_vs_ideal": None}
        refused = seen.get("refused_total", sum(len(record.refusals) for record in own))
        numbers = seen.get("admitted", len(used)), refused, seen["elapsed_s"], seen["speed_vs_ideal"]
        made.append(Row(" + ".join(models), *numbers, _ratio(used[:EARLY]), _ratio(used[EARLY:])))
    if tally and len(made) > 1:  # an agent that waits for one model uses the other less, so the whole run has a row
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
