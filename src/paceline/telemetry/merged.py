"""The status of several processes that share their quotas in a store, as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from paceline.core.waits import OTHER
from paceline.pacing.answers import PASSED
from paceline.pacing.status import QUEUE_SHOWN

_METRICS_ADDED: Final = ("in_flight", "rate_limit_429_count", "rate_limit_wait_seconds")

_CACHE_MOST: Final = ("expected", "whole_until_s")


def merged(statuses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One status out of the statuses of several processes; the first is this one's.

    What the store knows (the quotas, what is left of them) is taken from the process that the store has told it last;
    requests, counts and waits are added up. Of a plan's window the newest reading counts.
    """
    used = {by: [status[by] for status in statuses if by in status] for by in ("keys", "teams")}
    together: dict[str, Any] = {
        "pools": dict(sorted(_by_name((status.get("pools", {}) for status in statuses), _pool).items())),
        "plans": [_plan(found) for found in _grouped(_rows(statuses, "plans"), "account", "window")],
        "answers": _answers(_rows(statuses, "answers")),
        "unpaced": [
            found[-1] | {"count": sum(row["count"] for row in found)}
            for found in _grouped(_rows(statuses, "unpaced"), "provider", "host", "kind")
        ],
    }
    return dict(statuses[0]) | together | {by: _by_name(tables, summed) for by, tables in used.items() if tables}


def _by_name(tables: Iterable[Mapping[str, Any]], join: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """What the tables have under each name, as one."""
    found: dict[str, list[Any]] = {}
    for name, value in (named for table in tables for named in table.items()):
        found.setdefault(name, []).append(value)
    return {name: join(values) for name, values in found.items()}


def _rows(statuses: Sequence[Mapping[str, Any]], name: str) -> Iterator[Any]:
    return (row for status in statuses for row in status.get(name, ()))


def _grouped(rows: Iterable[Any], *names: str) -> Iterable[list[Any]]:
    """The rows that have the same values of these fields."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups.values()


def _answers(rows: Iterable[Any]) -> list[Any]:
    """What came of the attempts of all; a trouble has its remedy until any process has had a newer answer."""
    answers = []
    for found in _grouped(rows, "upstream", "pool", "status", "cause"):
        newest = min(found, key=lambda row: row["last_ago_s"])
        counts, remedy = sum(row["count"] for row in found), _first(row["remedy"] for row in found)
        answers.append(newest | {"count": counts, "remedy": remedy})
    for found in _grouped(answers, "upstream", "pool"):
        newest_s = min((row["last_ago_s"] for row in found if row["cause"] not in PASSED), default=math.inf)
        for row in found:
            if row["last_ago_s"] > newest_s:
                row["remedy"] = None
    return answers


def _plan(found: list[Any]) -> dict[str, Any]:
    """A window of a plan: the newest reading, and what all processes have used.

    Each takes the others' part for its own until it has seen pauses: together they have used no more than is stated.
    """
    newest = dict(min(found, key=lambda row: row["stated_ago_s"]))
    own = [row["own"] for row in found if row.get("own") is not None]
    part = min(1.0, newest["used"] / sum(own)) if any(own) and newest.get("used") is not None else 1.0
    most = sorted(_sessions(_rows(found, "sessions")), key=lambda one: -sum(one[name] or 0 for name in _SHARES))
    together: dict[str, Any] = {
        "own": _part(sum(own), part) if own else None,
        "waiting": sum(row.get("waiting", 0) for row in found),
    }
    if tests := [row["test_s"] for row in found if row.get("test_s") is not None]:
        together["test_s"] = min(tests)
    if newest.get("state") == "open" and any(row.get("state") == "held" for row in found):
        together["state"] = "held"
    return newest | together | {"sessions": [one | {name: _part(one[name], part) for name in _SHARES} for one in most]}


def _sessions(rows: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """The sessions of all; a subagent may be in several processes, and each counts its own."""
    for found in _grouped(rows, "program", "session"):
        sums = {name: round(sum(row[name] or 0 for row in found), 4) for name in _OF_SESSION}
        yield found[0] | (sums if len(found) > 1 else {})


_SHARES: Final = ("own", "subagents_own")
_OF_SESSION: Final = ("subagents", *_SHARES)


def _part(share: float | None, part: float) -> float | None:
    return None if share is None else round(part * share, 4)


def _pool(found: list[Any]) -> dict[str, Any]:
    newest: Mapping[str, Any] = min(found, key=lambda pool: pool.get("store", {}).get("replied_ago_s", math.inf))
    first = dict(newest)
    if len(found) == 1:
        return first
    for name, joined in _JOINED.items():
        first[name] = joined([pool.get(name) for pool in found])
    if stores := [pool["store"] for pool in found if "store" in pool]:
        first["store"] = max(stores, key=lambda store: ("reason" in store, store["state"] == "joined"))
    granted = [pool["counts"].get("granted", 0) for pool in found]
    waited_s = sum(pool["wait_s"]["mean"] * count for pool, count in zip(found, granted, strict=True))
    longest_s = max(pool["wait_s"]["longest"] for pool in found)
    first["wait_s"] = {"mean": round(waited_s / max(sum(granted), 1), 3), "longest": longest_s}
    first["metrics"] = dict(first["metrics"]) | {
        name: round(sum(pool["metrics"][name] for pool in found), 3) for name in _METRICS_ADDED
    }
    return first


def together(pools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Different pools as one: what can be added up of them. Their quotas cannot, nor what a store knows."""
    own = [pool for pool in pools if "counts" in pool]
    if not own:
        return {"quotas": [], "cool_down_s": max(pool.get("cool_down_s", 0.0) for pool in pools)}
    found = _pool([{name: value for name, value in pool.items() if name != "store"} for pool in own])
    return found | {"quotas": [], "metrics": {name: found["metrics"][name] for name in _METRICS_ADDED}}


def added(tables: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The ``waits`` of several statuses, added up by lane."""
    return _by_name(tables, waited)


def waited(rows: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """Waits, added up."""
    counts = [sum(each) for each in zip(*(row["counts"] for row in rows), strict=True)]
    return {"counts": counts, "sum_s": sum(row["sum_s"] for row in rows)}


def bounded(rows: Iterable[tuple[str, Any]], most: int, join: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """The first rows by their names, and the others as one with the name ``other``."""
    return _by_name(({name if place < most else OTHER: row} for place, (name, row) in enumerate(rows)), join)


def summed(tables: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Tables of numbers, added up by name."""
    return _by_name(tables, sum)


def _cache(found: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    tables = [table for table in found if table]
    if not tables:
        return None
    most = {name: max(table[name] for table in tables) for name in _CACHE_MOST}
    return summed(tables) | most


def _estimate(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    estimated, actual = (round(sum(row[name] for row in rows), 3) for name in ("estimated", "actual"))
    return {"estimated": estimated, "actual": actual, "ratio": round(actual / estimated, 4) if estimated else None}


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value), None)


def _longest(values: Sequence[Any]) -> float | None:
    return None if None in values else max(values)


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _queue(queues: Iterable[Sequence[Any]]) -> list[Any]:
    waiters = sorted((waiter for queue in queues for waiter in queue), key=lambda waiter: -waiter["waited_s"])
    return waiters[:QUEUE_SHOWN]


_JOINED: Final[Mapping[str, Callable[[list[Any]], Any]]] = {
    "waiting": sum, "in_flight": sum, "lanes": summed, "counts": summed, "finishes": summed, "queue": _queue,
    "binds": _first, "cool_down_s": max, "paused": _first, "stopped": _first, "by_chance": _largest, "eta_s": _longest, "waits": added,
    "estimates": partial(_by_name, join=_estimate), "cache": _cache, "lanes_waited_s": partial(_by_name, join=max),
}  # fmt: skip
"""How the values that pools of one name have in several processes become one, by the name of the value."""
