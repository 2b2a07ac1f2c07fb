"""What answers change about a quota, as values.

The local ledger, the shared ledger and the Redis script make the same changes.

:func:`apply` makes a change in a meter. Two kinds need the ledger. ``SPREAD`` replaces the meter, so each ledger makes
it itself. After ``ADOPT`` the ledger of a process also corrects the name of the entry and the limit that the user has
given.

These corrections are no changes, because no other process makes them:

- ``Readings`` changes the period of a quota, or counts it as a bucket again, only where this process keeps its quotas
  alone. A store finds a quota by its unit and period. For the same reason only they count a quota as one that restarts
  at stated instants.
- ``Refusals`` spreads a window that restarts at another time. Where there is a store, it keeps the windows.
- ``QuotaTracker`` adapts the headroom (``Bucket.keep_unused``). Each process measures its own.
- ``LocalCapacity`` lowers the levels by the refill that the provider's full bucket does not get while granted attempts
  are on their way: ``no_refill_for_unsent``, ``arrive``. It does so only where this process keeps its quotas alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from paceline.core.meters import Meter


class What(StrEnum):
    """A kind of change. Its value is its name in messages to a store."""

    SHIFT = "shift"  # the level, by so many nanoseconds of refill
    CAP_BURST = "cap_burst"  # what a bucket holds at once
    SET_CEILING = "set_ceiling"  # the share of the rate of the quota
    ADOPT = "adopt"  # the amount of the quota
    SEEN = "seen"  # what the provider has left of a window
    SPREAD = "spread"  # the rule: the quota is not a bucket
    EPOCH = "epoch"  # nothing in the meter; notes from before are not compared any more


@dataclass(frozen=True, slots=True)
class Change:
    """A change to the quota at ``index`` that follows from an answer; ``what`` says what ``value`` is."""

    index: int
    what: What
    value: float = 0.0


def apply(now_ns: int, m: Meter, change: Change) -> None:
    """Make ``change`` in the meter ``m``; any but ``SPREAD``, which replaces the meter."""
    value = change.value
    match change.what:
        case What.SHIFT:
            m.shift(now_ns, round(value))  # values are floats, as in JSON and Lua, and a level is whole nanoseconds
        case What.CAP_BURST:
            m.cap_burst(value)
        case What.SET_CEILING:
            m.become(now_ns, m.quota, value)
        case What.ADOPT:
            m.become(now_ns, m.quota.with_amount(value))
        case What.SEEN:
            m.seen(now_ns, value)
