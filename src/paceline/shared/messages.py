"""What a process and a store that keeps a pool's books for many processes say to each other: one call, one answer.

Only durations cross the border, never instants: whatever the clocks of two machines say, no decision depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.core.quota import Quota

Mark = int | str
"""Where a meter stood when it was charged: the store's own business."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Attempts were answered that had been charged ``amounts`` at ``marks``; ``actual`` is what they cost.

    Attributes:
        amounts: What was charged, for each of the message's quotas.
        marks: As the grant gave them.
        actual: What it should have been; ``None`` where that is not known. All zero: they were never sent.
        answered: Whether the provider has answered: an opening bucket may widen its burst.
        probe: Whether the probe after a cool-down was among them.
    """

    amounts: list[float]
    marks: list[Mark]
    actual: list[float | None]
    answered: bool = True
    probe: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """An attempt charged ``amounts`` was refused: its charge stays, and all grant nothing for ``pause_ns``."""

    amounts: list[float]
    pause_ns: int


Left = float | list[float]
"""What is used of a quota: of a spread one also by eighths of its last period, the latest first."""


@dataclass(frozen=True, slots=True)
class Charged:
    """``amounts`` were spent while the store could not be asked.

    Attributes:
        amounts: For each of the message's quotas.
        left: What of them has not come back meanwhile; ``None``: all.
    """

    amounts: list[float]
    left: list[Left] | None = None


@dataclass(frozen=True, slots=True)
class Learned:
    """An answer taught something about a quota: what the meter's method of that name is to be told.

    ``epoch``: what was noted before compares no more.
    It counts only if the quota is still as the process knew it: many processes learn the same thing at the same time.
    """

    index: int
    what: Literal["shift", "hold", "press", "adopt", "seen", "spread", "epoch"]
    value: float = 0.0


News = Settled | Refused | Charged | Learned


@dataclass(slots=True)
class Message:
    """What a process tells and asks in one call.

    Attributes:
        who: The process, by a name that no other has.
        number: Counts this process's messages; one that is told again (its answer was lost) keeps its number, and its
            news is not taken twice.
        quotas: As they are configured here; amounts and marks below are in this order.
        versions: For each quota, which state of what has been learned this process knows; -1 for none.
        fresh: Whether the configured quotas are to replace those that the store has: a process's first word.
        headroom_s: What each quota keeps unused, in seconds of its own refill.
        gentle: Whether buckets open slowly.
        news: What happened since the last message, in order.
        held: What is in flight in this process, for each quota (only slots care).
        wants: What those who wait would be charged, in the order in which they will go.
        leaving: Whether the process says nothing more for now, and holds nothing: it is no peer until it does.
        place_ns: Keep a place among the processes that wait for this long; 0 for no place.
        slack_ns: What is granted may be spent this much later.
        windows: For a quota whose window restarts at a place's midnight: those of yesterday, today and the next two
            days, in seconds since the epoch, for stores that know no time zones; ``None`` for all others.
        recalled: For each quota, what this process remembers of how it stands: how far from full a bucket is, in
            nanoseconds of its refill; what is used of all others. A store that has forgotten the quota starts there.
    """

    who: str
    number: int
    quotas: tuple[Quota, ...] = ()
    versions: list[int] = field(default_factory=list)
    fresh: bool = False
    headroom_s: float = 1.0
    gentle: bool = False
    news: list[News] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    wants: list[list[float]] = field(default_factory=list)
    leaving: bool = False
    place_ns: int = 0
    slack_ns: int = 0
    windows: list[tuple[int, ...] | None] = field(default_factory=list)
    recalled: list[Left] = field(default_factory=list)


@dataclass(slots=True)
class Standing:
    """How a quota stands.

    Attributes:
        room_ns: How far from full a bucket is, in nanoseconds of its refill; 0 for windows and slots.
        used: What is used of a window, of slots, or in a spread quota's last period; 0 for buckets.
        charged: All that was ever charged, by anybody; refunds do not lower it.
        spent: The same with refunds and debts.
        opened: What a bucket that opens may grant at once so far; infinite when it is open.
        learned: What answers have taught, only when the process did not know it yet.
    """

    room_ns: int
    used: float
    charged: float
    spent: float
    opened: float
    learned: Lesson | None = None


@dataclass(slots=True)
class Lesson:
    """What answers have taught about a quota.

    Attributes:
        version: Counts the changes of what follows.
        quota: As it is now.
        spread: Whether it is spread evenly.
        capacity: What it holds at once; infinite when it is as published.
        ceiling: The learned share of the rate.
        shifted_ns: The sum of all corrections of its level.
        epoch: Counts the changes of its rate or rule.
        refused: What refused attempts were charged.
    """

    version: int
    quota: Quota
    spread: bool = False
    capacity: float = float("inf")
    ceiling: float = 1.0
    shifted_ns: int = 0
    epoch: int = 0
    refused: float = 0.0


@dataclass(slots=True)
class Reply:
    """The store's answer.

    Attributes:
        grants: The marks of those of ``wants`` that are granted: the first so many.
        probe: Whether the first of them is the probe after a cool-down.
        wait_ns: When the next of ``wants`` should ask again; 0 when all are granted.
        binds: The index of the quota that it waits for, in the message's order; -1 for a cool-down, or none.
        pause_ns: What is left of a cool-down.
        peers: How many processes share the pool now, this one included.
        standings: How the message's quotas stand, and then those that only the store knows.
    """

    grants: list[list[Mark]]
    probe: bool
    wait_ns: int
    binds: int
    pause_ns: int
    peers: int
    standings: list[Standing]


def quota_key(quota: Quota) -> str:
    """What makes two quotas of two processes the same one: unit and period."""
    return f"{quota.unit}/{float(quota.period_s)!r}"


def quota_fields(quota: Quota) -> list[Any]:
    """A quota as plain values: unit, amount, period in seconds, burst, rule, anchor."""
    return [quota.unit, quota.amount, quota.period_s, quota.burst, quota.rule.value, quota.anchor]
