"""From a quota to the meter that keeps it."""

from __future__ import annotations

from dataclasses import replace

from paceline.core.bucket import Bucket, Meter
from paceline.core.quota import Quota, Rule
from paceline.core.spaced import Spaced
from paceline.core.window import Slots, Window


def meter(quota: Quota, now_ns: int, headroom_s: float, *, gentle: bool = False) -> Meter:
    """The meter for ``quota``, with nothing used yet; ``gentle``: a bucket opens slowly."""
    if quota.rule is Rule.SLOTS:
        return Slots(quota)
    if quota.rule is Rule.WINDOW and quota.anchor is not None:
        return Window(quota, headroom_s)
    if quota.rule is Rule.BUCKET:
        return Bucket(quota, now_ns, headroom_s, gentle=gentle)
    return Spaced(quota, now_ns, headroom_s)


def part_of(m: Meter, now_ns: int, share: float) -> Meter:
    """A meter that allows ``share`` of what ``m`` allows, as used as ``m`` is.

    A cost above what the part holds at once is granted when the part has come back so far: it still fits.
    """
    quota = replace(m.quota, amount=m.quota.amount * share, burst=m.quota.burst * share)
    part: Meter
    if isinstance(m, Spaced):
        part = Spaced(quota, now_ns, m.headroom_s)
        part.charge(now_ns, m.used * share)
        part.full_at_ns = m.full_at_ns
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
