"""What sharing does with meters: their state as plain values, a part of one, and what was used of it elsewhere."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

from paceline.core.meters import TINY, Bucket, Meter, Slots, Spaced, Window, meter
from paceline.core.quota import NS, Quota
from paceline.shared.messages import Left

PARTS = 8
"""In how many parts of the last period processes and store report the use of a spread quota."""


def dump_meter(m: Meter) -> dict[str, Any]:
    """All that changes in ``m``, as plain values; instants in nanoseconds."""
    if isinstance(m, Bucket):
        state = {
            "full_at": m.full_at_ns,
            "capacity": m.capacity,
            "ceiling": m.ceiling,
            "opened": m.opened,
            "sequence": m.sequence,
            "low_marks": list(m.low_marks),
            "low_rooms": list(m.low_rooms),
        }
        if isinstance(m, Spaced):
            state |= {"ends": list(m.ends), "amounts": list(m.amounts), "used": m.used}
        return state
    if isinstance(m, Window):
        return {"used": m.used, "start": m.start_ns, "stop": m.stop_ns}
    assert isinstance(m, Slots)
    return {"used": m.used}


def load_meter(m: Meter, quota: Quota, state: dict[str, Any]) -> None:
    """Let ``m`` be the meter of ``quota`` that :func:`dump_meter` described."""
    if isinstance(m, Bucket):
        m.full_at_ns, m.opened, m.sequence = state["full_at"], state["opened"], state["sequence"]
        m.low_marks, m.low_rooms = list(state["low_marks"]), list(state["low_rooms"])
        take_learned(m, quota, state["capacity"], state["ceiling"])
        if isinstance(m, Spaced):
            m.ends, m.amounts, m.used = list(state["ends"]), list(state["amounts"]), state["used"]
        return
    assert isinstance(m, Window | Slots)
    m.quota, m.most, m.used = quota, quota.amount, state["used"]
    if isinstance(m, Window):
        m.start_ns, m.stop_ns = state["start"], state["stop"]


def take_learned(m: Meter, quota: Quota, capacity: float, ceiling: float) -> None:
    """Take the quota, and what answers have taught about it, from the store; what is used stays used."""
    if isinstance(m, Bucket):
        m.capacity, m.ceiling = capacity, ceiling
        m.configure(quota)
    else:
        m.quota, m.most = quota, quota.amount


def stand(m: Bucket, full_at_ns: int, opened: float) -> None:
    """Put ``m`` where the store says that it stands; its low points are unknown."""
    m.full_at_ns = full_at_ns
    m.low_marks, m.low_rooms = [], []
    if opened != m.opened:
        m.opened = opened
        m.widen()


def turn(m: Bucket, by_ns: int) -> None:
    """The clock was set by ``by_ns``: every instant moves with it."""
    m.full_at_ns += by_ns
    m.sequence += by_ns
    m.low_marks = [mark + by_ns for mark in m.low_marks]
    if isinstance(m, Spaced):
        m.ends = [end_ns + by_ns for end_ns in m.ends]


def carry(before: Meter, after: Meter) -> None:
    """What was used of one meter is used of the one that takes its place; refunds of its charges stay guarded."""
    if isinstance(before, Bucket) and isinstance(after, Bucket):
        after.full_at_ns, after.sequence = before.full_at_ns, before.sequence
        after.low_marks, after.low_rooms = before.low_marks, before.low_rooms
        if isinstance(before, Spaced) and isinstance(after, Spaced):
            after.ends, after.amounts, after.used = list(before.ends), list(before.amounts), before.used
    elif isinstance(before, Slots) and isinstance(after, Slots):
        after.used = before.used
    elif isinstance(before, Window) and isinstance(after, Window):
        after.used, after.start_ns, after.stop_ns = before.used, before.start_ns, before.stop_ns


def lasts_ns(m: Window, now_ns: int) -> int:
    """How long the present window still grants something."""
    m.roll(now_ns)
    return max(m.stop_ns - math.ceil(m.headroom_s * NS) - now_ns, 0)


def use(m: Spaced, now_ns: int, used: float) -> None:
    """Take what the store says was used of the last period: what is more than was known was charged just now."""
    m.forget(now_ns)
    more = used - m.used
    if more > 0:
        _log(m, now_ns, more)
    while more < 0 and m.amounts:  # the store does not say which charges were refunded: the oldest, to be safe
        back = min(m.amounts[0], -more)
        more += back
        m.amounts[0] -= back
        if m.amounts[0] <= TINY:
            del m.ends[0], m.amounts[0]
    m.used = used


def used_by_parts(m: Spaced, now_ns: int) -> list[float]:
    """What each eighth of the last period was charged, the latest first."""
    m.forget(now_ns)
    parts = [0.0] * PARTS
    for end_ns, amount in zip(m.ends, m.amounts, strict=True):
        parts[min(max(now_ns - end_ns, 0) * PARTS // m.period_ns, PARTS - 1)] += amount
    return parts


def fill(m: Spaced, now_ns: int, parts: list[float]) -> None:
    """Add what each eighth of the last period was charged elsewhere; nothing is owed for it."""
    m.forget(now_ns)
    for part, amount in enumerate(parts[:PARTS]):
        if amount > 0:
            _log(m, now_ns - part * (m.period_ns // PARTS), amount)
    m.used = _sum(m.amounts)


def _log(m: Spaced, end_ns: int, amount: float) -> None:
    i = bisect_left(m.ends, end_ns)
    if i < len(m.ends) and m.ends[i] == end_ns:
        m.amounts[i] += amount
    else:
        m.ends.insert(i, end_ns)
        m.amounts.insert(i, amount)


def _sum(amounts: list[float]) -> float:
    """From left to right, as every store adds: sum() rounds differently in newer Pythons."""
    return reduce(add, amounts, 0.0)


def part_of(m: Meter, now_ns: int, share: float) -> Meter:
    """A meter that allows ``share`` of what ``m`` allows, as used as ``m`` is.

    A cost above what the part holds at once is granted when the part has come back so far: it still fits.
    """
    quota = replace(m.quota, amount=m.quota.amount * share, burst=m.quota.burst * share)
    part: Meter
    if isinstance(m, Spaced):
        part = Spaced(quota, now_ns, m.headroom_s)
        part.full_at_ns, part.ends = m.full_at_ns, list(m.ends)
        part.amounts = [amount * share for amount in m.amounts]
        part.used = _sum(part.amounts)
    elif isinstance(m, Bucket):
        part = Bucket(quota, now_ns, m.headroom_s)
        part.full_at_ns = m.full_at_ns
        part.press(now_ns, m.ceiling)
        part.full_at_ns = m.full_at_ns
        part.hold(m.capacity * share)
    else:
        part = meter(quota, now_ns, m.headroom_s)
        part.charge(now_ns, m.quota.amount * share - m.level(now_ns) * share)
    part.most = m.most
    return part


def left_of(m: Meter, told: Meter, now_ns: int) -> Left:
    """What is used of ``m`` and not of ``told``."""
    if isinstance(m, Spaced) and isinstance(told, Spaced):
        return [max(a - b, 0.0) for a, b in zip(used_by_parts(m, now_ns), used_by_parts(told, now_ns), strict=True)]
    return 0.0 if isinstance(m, Slots) else max(told.level(now_ns) - m.level(now_ns), 0.0)


def at_once(m: Meter, parts: list[float]) -> float:
    """What ``m`` would lack if it had been charged these eighths of the last period, the latest first."""
    if not isinstance(m, Bucket):
        return _sum(parts)
    room_ns = 0.0
    for amount in reversed(parts):
        room_ns = max(room_ns - m.quota.period_s * NS / PARTS, 0.0) + amount * m.ns_per_unit
    return room_ns / m.ns_per_unit


def absorb(m: Meter, now_ns: int, left: Left) -> None:
    """So much was spent elsewhere and has not come back; ``m`` has not granted it."""
    if isinstance(m, Spaced):
        fill(m, now_ns, left if isinstance(left, list) else [left])
        return
    amount = at_once(m, left) if isinstance(left, list) else left
    if amount:
        m.charge(now_ns, amount)
        if isinstance(m, Bucket):
            m.not_granted(amount)
