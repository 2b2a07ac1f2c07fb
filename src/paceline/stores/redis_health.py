"""What makes quotas unsafe at a Redis: it evicts keys, it is a replica, or it has lost what it had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

LOST_US: Final = 86_400_000_000
"""How long after the loss of keys processes that join, and ``paceline doctor``, are told of it: a day, as the most common quotas last."""


def remarks(answer: list[Any]) -> Iterator[str]:
    """What is wrong, and what to do, by an answer of ``health.lua``."""
    _, lost, now, *infos = (part.decode() for part in answer)
    facts = dict(line.split(":", 1) for info in infos for line in info.splitlines() if ":" in line)
    policy, role = facts.get("maxmemory_policy", "noeviction"), facts.get("role", "master")
    if policy != "noeviction" and facts.get("maxmemory", "0") != "0":
        yield (
            f"it evicts keys when its memory is full (maxmemory-policy {policy}), and an evicted quota starts full again:"
            " set maxmemory-policy noeviction"
        )
    if role != "master":
        yield (
            f"it is a replica (role {role}), and processes at its master spend the same quotas again: give the address of the"
            " master, or let Sentinels find it with redis+sentinel://"
        )
    if lost and int(now) - int(lost) < LOST_US:
        yield (
            "it came back empty in the last 24 hours (FLUSHALL, a restart without persistence, or an eviction): running processes"
            " have restored their quotas; usage that only other processes knew is lost"
        )
