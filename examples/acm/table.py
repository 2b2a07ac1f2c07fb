"""The output of a run: the used quotas at its start, and the results of each pool at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DAY_S = 86_400


def used_today(status: Mapping[str, Any]) -> list[str]:
    """The used part of each day's quota, where it is not 0."""
    return [
        f"{name}: {quota['limit'] - quota['remaining']:,.0f} of {quota['quota']}"
        for name, pool in status["pools"].items()
        for quota in pool["quotas"]
        if quota["period_s"] == DAY_S and quota["limit"] - quota["remaining"] >= 1
    ]


def table(status: Mapping[str, Any], forecast_s: Mapping[str, float], binds: Mapping[str, str]) -> str:
    """A row for each pool with answers: answers, refusals, waits, and the accuracy of the estimates."""
    head = f"{'pool':<30}{'answers':>8}{'429s':>6}{'mean wait':>11}{'longest':>9}{'actual/estimate':>17}{'forecast':>10}  binds"
    lines = [head]
    for name, pool in status["pools"].items():
        counts, wait = pool["counts"], pool["wait_s"]
        if not counts.get("settled") or name not in forecast_s:
            continue
        refused = counts.get("refused_rate", 0) + counts.get("refused_growth", 0)
        lines.append(
            f"{name:<30}{counts['settled']:>8}{refused:>6}{wait['mean']:>9.1f} s{wait['longest']:>7.1f} s"
            f"{_ratio(pool):>17}{forecast_s[name]:>8.0f} s  {binds[name]}"
        )
    return "\n".join(lines)


def learned(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Limits that answers have corrected."""
    given = {(name, quota["unit"], quota["period_s"]): quota for name, quota in _quotas(before)}
    lines = []
    for name, quota in _quotas(after):
        known = given.get((name, quota["unit"], quota["period_s"]))
        if known is None:
            lines.append(f"{name}: {quota['quota']} (the file does not say so)")
        elif known["limit"] != quota["limit"]:
            lines.append(f"{name}: {quota['quota']} (the file says {known['quota']})")
    return lines


def _quotas(status: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, quota) for name, pool in status["pools"].items() for quota in pool["quotas"]]


def _ratio(pool: Mapping[str, Any]) -> str:
    estimates = pool["estimates"]
    best = [estimates[unit]["ratio"] for unit in ("input_tokens", "tokens") if unit in estimates]
    return f"{best[0]:.3f}" if best and best[0] is not None else "-"
