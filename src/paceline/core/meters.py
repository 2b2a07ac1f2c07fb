"""From a quota to the meter that keeps it."""

from __future__ import annotations

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
