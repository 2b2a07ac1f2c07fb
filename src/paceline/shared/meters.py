"""Operations on meters that only sharing needs: their state as plain values, a part of one, use by other processes."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

from paceline.core.meters import TINY, Bucket, Meter, Slots, Spread, Window, meter
from paceline.core.quota import NS, Quota
from paceline.shared.messages import Left

PARTS = 8
"""The use of a spread quota is reported by so many parts of its last period."""


_USE: dict[type[Meter], dict[str, str]] = {
    Slots: {"used": "used"},
    Window: {"used": "used", "start": "start_ns", "stop": "stop_ns"},
    Bucket: {"full_at": "full_at_ns", "sequence": "sequence", "low_marks": "low_marks", "low_lacks": "low_lacks"},
}
_USE[Spread] = _USE[Bucket] | {"ends": "ends", "amounts": "amounts", "used": "used"}
"""The use of a meter, by its rule: the names in a dump, and the attributes."""


def dump_meter(m: Meter) -> dict[str, Any]:
    """The changing state of ``m``, as plain values; instants in nanoseconds. The lists are those of the meter."""
    state = {key: getattr(m, name) for key, name in _USE[type(m)].items()}
    if isinstance(m, Bucket):
        state |= {"burst_cap": m.burst_cap, "ceiling": m.ceiling, "opened": m.opened}
    return state


def load_meter(m: Meter, state: dict[str, Any]) -> None:
    """Set a new meter to the state that :func:`dump_meter` returned.

    Raises:
        KeyError, TypeError: ``state`` is invalid.
    """
    for key, name in _USE[type(m)].items():
        setattr(m, name, list(state[key]) if isinstance(getattr(m, name), list) else state[key])
    if isinstance(m, Bucket):
        m.opened = state["opened"]
        take_learned(m, m.quota, state["burst_cap"], state["ceiling"])


def take_learned(m: Meter, quota: Quota, burst_cap: float, ceiling: float) -> None:
    """Set the quota of ``m``, and what answers have taught about it; its use stays."""
    if isinstance(m, Bucket):
        m.burst_cap, m.ceiling = burst_cap, ceiling
        m.configure(quota)
    else:
        m.quota, m.most = quota, quota.amount


def stand(m: Bucket, full_at_ns: int, opened: float) -> None:
    """Set the level of ``m``; its low points are unknown."""
    m.full_at_ns = full_at_ns
    m.low_marks, m.low_lacks = [], []
    if opened != m.opened and not isinstance(m, Spread):  # of a store that has just lost that the quota is spread
        m.opened = opened
        m.widen()


def turn(m: Bucket, by_ns: int) -> None:
    """Move all instants of ``m`` by a step of the clock."""
    m.full_at_ns += by_ns
    m.sequence += by_ns
    m.low_marks = [mark + by_ns for mark in m.low_marks]
    if isinstance(m, Spread):
        m.ends = [end_ns + by_ns for end_ns in m.ends]


def carry(before: Meter, after: Meter) -> None:
    """Copy the use of a meter to the one that replaces it; refunds of earlier charges stay guarded."""
    if isinstance(before, Bucket) is isinstance(after, Bucket):
        for key in _USE[type(before)].keys() & _USE[type(after)].keys():
            name = _USE[type(before)][key]
            value = getattr(before, name)
            setattr(after, name, list(value) if isinstance(value, list) else value)


def use(m: Spread, now_ns: int, used: float) -> None:
    """Set the use of the last period; an increase counts as charged now."""
    m.forget(now_ns)
    more = used - m.used
    if more > 0:
        _log(m, now_ns, more)
    while more < 0 and m.amounts:  # refunds are taken from the oldest charges, to be safe
        back = min(m.amounts[0], -more)
        more += back
        m.amounts[0] -= back
        if m.amounts[0] <= TINY:
            del m.ends[0], m.amounts[0]
    m.used = used


def used_by_parts(m: Spread, now_ns: int) -> list[float]:
    """The charges of each eighth of the last period, the latest first."""
    m.forget(now_ns)
    parts = [0.0] * PARTS
    for end_ns, amount in zip(m.ends, m.amounts, strict=True):
        parts[min(max(now_ns - end_ns, 0) * PARTS // m.period_ns, PARTS - 1)] += amount
    return parts


def fill(m: Spread, now_ns: int, parts: list[float]) -> None:
    """Add the charges of other processes, by eighths of the last period; the level stays."""
    m.forget(now_ns)
    for part, amount in enumerate(parts[:PARTS]):
        if amount > 0:
            _log(m, now_ns - part * (m.period_ns // PARTS), amount)
    m.used = _sum(m.amounts)


def _log(m: Spread, end_ns: int, amount: float) -> None:
    i = bisect_left(m.ends, end_ns)
    if i < len(m.ends) and m.ends[i] == end_ns:
        m.amounts[i] += amount
    else:
        m.ends.insert(i, end_ns)
        m.amounts.insert(i, amount)


def _sum(amounts: list[float]) -> float:
    """Add from left to right, as every store does: sum() rounds differently in newer versions of Python."""
    return reduce(add, amounts, 0.0)


def part_of(m: Meter, now_ns: int, share: float) -> Meter:
    """A meter with ``share`` of the quota and of the use of ``m``; a cost that fits into ``m`` still fits, later."""
    quota = replace(m.quota, amount=m.quota.amount * share, burst=m.quota.burst * share)
    part: Meter
    if isinstance(m, Spread):
        part = Spread(quota, now_ns, m.headroom_s)
        part.full_at_ns, part.ends = m.full_at_ns, list(m.ends)
        part.amounts = [amount * share for amount in m.amounts]
        part.used = _sum(part.amounts)
    elif isinstance(m, Bucket):
        part = Bucket(quota, now_ns, m.headroom_s)
        part.full_at_ns = m.full_at_ns
        part.set_ceiling(now_ns, m.ceiling)
        part.full_at_ns = m.full_at_ns
        part.cap_burst(m.burst_cap * share)
    else:
        part = meter(quota, now_ns, m.headroom_s)
        if isinstance(m, Window) and isinstance(part, Window):
            part.ahead_ns = m.ahead_ns
        part.charge(now_ns, m.quota.amount * share - m.level(now_ns) * share)
    part.most = m.most
    return part


def left_of(m: Meter, reported: Meter, now_ns: int) -> Left:
    """The use of ``m`` beyond that of ``reported``."""
    if isinstance(m, Spread) and isinstance(reported, Spread):
        parts = zip(used_by_parts(m, now_ns), used_by_parts(reported, now_ns), strict=True)
        return [max(a - b, 0.0) for a, b in parts]
    return 0.0 if isinstance(m, Slots) else max(reported.level(now_ns) - m.level(now_ns), 0.0)


def at_once(m: Meter, parts: list[float]) -> float:
    """What ``m`` would lack after charges of ``parts`` in the eighths of the last period, the latest first."""
    if not isinstance(m, Bucket):
        return _sum(parts)
    lack_ns = 0.0
    for amount in reversed(parts):
        lack_ns = max(lack_ns - m.quota.period_s * NS / PARTS, 0.0) + amount * m.ns_per_unit
    return lack_ns / m.ns_per_unit


def absorb(m: Meter, now_ns: int, left: Left) -> None:
    """Charge ``m`` with the use of another meter; it was not granted by ``m``."""
    if isinstance(m, Spread):
        fill(m, now_ns, left if isinstance(left, list) else [left])
        return
    amount = at_once(m, left) if isinstance(left, list) else left
    if amount:
        m.charge(now_ns, amount)
        if isinstance(m, Bucket):
            m.not_granted(amount)


def spend(m: Meter, since_ns: int, now_ns: int, spent_ns: float) -> None:
    """Charge a bucket with ``spent_ns`` of its refill, which other processes may have spent evenly since ``since_ns``."""
    if isinstance(m, Bucket):
        refilled_ns = max(m.full_at_ns, now_ns) - max(m.full_at_ns, since_ns)  # a full bucket is not refilled
        lack_ns = max(spent_ns - refilled_ns, 0)
        if lack_ns > 0:
            m.charge(now_ns, lack_ns / m.ns_per_unit)
            m.not_granted(lack_ns / m.ns_per_unit)
        if isinstance(m, Spread) and spent_ns > lack_ns:  # the last period counts this, too
            m.count(now_ns, (spent_ns - lack_ns) / m.ns_per_unit)


def unspend(m: Meter, since_ns: int, now_ns: int, spent_ns: float) -> None:
    """Give back what :func:`spend` has charged since ``since_ns`` for a process that has not spent it."""
    if isinstance(m, Bucket):
        before_ns = m.full_at_ns
        m.correct(now_ns, since_ns, spent_ns / m.ns_per_unit, 0.0)
        m.not_granted((m.full_at_ns - before_ns) / m.ns_per_unit)


def reserved(m: Meter, share: float) -> float:
    """What other processes may spend of a window with their ``share``: at its start, at its end, or all at once."""
    return m.quota.amount * share if isinstance(m, Window) else 0.0


def beyond(m: Meter, left: Left, presumed_ns: float) -> tuple[Left, float]:
    """``left`` without the ``presumed_ns`` that :func:`spend` has charged to a bucket for the same process.

    Returns:
        What is left to charge, and how much of ``presumed_ns`` was counted.
    """
    parts = left if isinstance(left, list) else [left]
    total = _sum(parts)
    if not isinstance(m, Bucket) or not presumed_ns or not total:
        return left, 0.0
    paid = presumed_ns / m.ns_per_unit
    times = max(total - paid, 0.0) / total
    rest = [part * times for part in parts]
    return (rest if isinstance(left, list) else rest[0]), presumed_ns * min(total / paid, 1.0)


def recalled(m: Meter, now_ns: int) -> Left:
    """The state of ``m`` for :attr:`Message.recalled <paceline.shared.messages.Message.recalled>`."""
    if isinstance(m, Spread):
        return used_by_parts(m, now_ns)
    return float(max(m.full_at_ns - now_ns, 0)) if isinstance(m, Bucket) else m.quota.amount - m.level(now_ns)


def recall(m: Meter, now_ns: int, value: Left) -> None:
    """Set a new meter to the state that :func:`recalled` returned in a process."""
    if isinstance(m, Spread):
        fill(m, now_ns, value if isinstance(value, list) else [value])
        return
    if isinstance(value, list):  # the quota was spread in the snapshot
        value = at_once(m, value) * (m.ns_per_unit if isinstance(m, Bucket) else 1.0)
    if isinstance(m, Bucket):
        opened = max(m.opened, value / m.ns_per_unit)  # an opening bucket refills evenly from there
        stand(m, now_ns + round(value), opened)
    elif isinstance(m, Window):
        m.seen(now_ns, m.quota.amount - value)
