"""Meters that processes share: a part of one, what is used of one and not of another, and what was used elsewhere."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add

from paceline.core.meters import PARTS, Bucket, Meter, Slots, Spaced, meter
from paceline.core.quota import NS
from paceline.shared.messages import Left


def part_of(m: Meter, now_ns: int, share: float) -> Meter:
    """A meter that allows ``share`` of what ``m`` allows, as used as ``m`` is.

    A cost above what the part holds at once is granted when the part has come back so far: it still fits.
    """
    quota = replace(m.quota, amount=m.quota.amount * share, burst=m.quota.burst * share)
    part: Meter
    if isinstance(m, Spaced):
        part = Spaced(quota, now_ns, m.headroom_s)
        part.part_of(m, share)
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
        return [max(a - b, 0.0) for a, b in zip(m.parts(now_ns), told.parts(now_ns), strict=True)]
    return 0.0 if isinstance(m, Slots) else max(told.level(now_ns) - m.level(now_ns), 0.0)


def at_once(m: Meter, parts: list[float]) -> float:
    """What ``m`` would lack if it had been charged these eighths of the last period, the latest first."""
    if not isinstance(m, Bucket):
        return reduce(add, parts, 0.0)  # sum() rounds otherwise in newer Pythons, and in no store
    room_ns = 0.0
    for amount in reversed(parts):
        room_ns = max(room_ns - m.quota.period_s * NS / PARTS, 0.0) + amount * m.ns_per_unit
    return room_ns / m.ns_per_unit


def absorb(m: Meter, now_ns: int, left: Left) -> None:
    """So much was spent elsewhere and has not come back; ``m`` has not granted it."""
    if isinstance(m, Spaced):
        m.fill(now_ns, left if isinstance(left, list) else [left])
        return
    amount = at_once(m, left) if isinstance(left, list) else left
    if amount:
        m.charge(now_ns, amount)
        if isinstance(m, Bucket):
            m.not_granted(amount)
