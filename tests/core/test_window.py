"""Counters that restart at known instants, days of 23 and 25 hours among them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from core_worlds import T0, gaps_ns, grant, grant_when_due, quota, wait_ns
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.ledger import Ledger
from paceline.core.quota import NS

ZONES = ["utc", "Europe/Berlin", "America/Los_Angeles", "Asia/Kolkata", "Australia/Lord_Howe"]


def ns(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> int:
    """An instant in UTC."""
    return int(datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp()) * NS


def daily(zone: str, now_ns: int, headroom_s: float = 1.0, amount: int = 10) -> Ledger:
    return Ledger([quota(f"{amount} units/day window {zone}")], now_ns, headroom_s=headroom_s)


@pytest.mark.parametrize(
    ("zone", "now_ns", "midnight_ns", "hours_before"),
    [
        ("utc", ns(2027, 3, 28, 12), ns(2027, 3, 29), 24),
        ("Europe/Berlin", ns(2027, 1, 15, 12), ns(2027, 1, 15, 23), 24),
        ("Europe/Berlin", ns(2027, 7, 15, 12), ns(2027, 7, 15, 22), 24),
        ("Europe/Berlin", ns(2027, 3, 28, 12), ns(2027, 3, 28, 22), 23),
        ("Europe/Berlin", ns(2027, 10, 31, 12), ns(2027, 10, 31, 23), 25),
        ("America/Los_Angeles", ns(2027, 3, 14, 18), ns(2027, 3, 15, 7), 23),
        ("America/Los_Angeles", ns(2027, 11, 7, 18), ns(2027, 11, 8, 8), 25),
    ],
)
def test_a_day_ends_at_midnight_however_long_it_was(zone, now_ns, midnight_ns, hours_before):
    ledger = daily(zone, now_ns)
    grant(ledger, now_ns, units=10)
    assert wait_ns(ledger, now_ns, {"units": 1}) == midnight_ns + NS  # the guard is the headroom
    assert wait_ns(ledger, midnight_ns - 1, {"units": 1}) == midnight_ns + NS
    started = daily(zone, now_ns)
    first_ns = midnight_ns - hours_before * 3_600 * NS
    assert wait_ns(started, first_ns, {"units": 1}) == first_ns + NS
    assert wait_ns(started, first_ns - 1, {"units": 1}) == first_ns + NS


@pytest.mark.parametrize("zone", ZONES)
@given(
    start=st.integers(0, 3 * 366 * 86_400),
    attempts=st.lists(st.tuples(gaps_ns, st.integers(1, 10)), min_size=1, max_size=30),
    headroom_s=st.sampled_from([0.0, 1.0]),
)
def test_no_local_day_holds_more_than_the_amount(zone, start, attempts, headroom_s):
    now_ns = T0 + start * NS
    ledger, spent = daily(zone, now_ns, headroom_s), Counter()
    where = UTC if zone == "utc" else ZoneInfo(zone)
    for gap_ns, cost in attempts:
        now_ns, _ = grant_when_due(ledger, now_ns + gap_ns, {"units": cost})
        seconds, guard = now_ns // NS, timedelta(seconds=headroom_s)
        day = datetime.fromtimestamp(seconds, where).date()
        assert (datetime.fromtimestamp(seconds, UTC) - guard).astimezone(where).date() == day
        assert (datetime.fromtimestamp(seconds, UTC) + guard).astimezone(where).date() == day
        spent[day] += cost
    assert max(spent.values()) <= 10


def test_the_guard_leaves_most_of_a_short_window():
    ledger = Ledger([quota("5 units/s window utc")], T0, headroom_s=10)
    assert grant_when_due(ledger, T0, {"units": 5})[0] == T0 + NS // 20


@pytest.mark.parametrize(
    ("notation", "here_ns", "stop_ns"),
    [
        ("10 units/month", ns(2027, 1, 1, 3), ns(2027, 2, 1)),
        ("10 units/day window Europe/Berlin", ns(2027, 10, 30, 22, 30), ns(2027, 10, 31, 23)),
    ],
)
@pytest.mark.parametrize("ahead_s", [-1, 1])
def test_a_window_longer_than_its_period_is_open_from_its_beginning_by_the_clock_of_its_store(
    notation, here_ns, stop_ns, ahead_s
):
    ledger = Ledger([quota(notation)], here_ns, headroom_s=1)
    ledger.entries[0].meter.restart_in(here_ns, stop_ns + ahead_s * NS - here_ns)
    assert grant_when_due(ledger, here_ns, {"units": 10})[0] == here_ns + NS  # a second of headroom
    assert wait_ns(ledger, here_ns + NS, {"units": 1}) == stop_ns + ahead_s * NS + NS


@pytest.mark.parametrize("ahead_s", [-40_000, -90, 0, 90, 40_000])
def test_a_window_follows_the_clock_of_its_store(ahead_s):
    """The store restarts the window 6 h from now; the caller's clock is ``ahead_s`` ahead of it."""
    here_ns = ns(2026, 5, 7, 18) + ahead_s * NS
    ledger = daily("utc", here_ns)
    ledger.entries[0].meter.restart_in(here_ns, 6 * 3_600 * NS)
    granted_ns, _ = grant_when_due(ledger, here_ns, {"units": 10})
    assert granted_ns == here_ns
    for days in range(3):
        granted_ns, _ = grant_when_due(ledger, granted_ns, {"units": 10})
        assert granted_ns == here_ns + (6 + 24 * days) * 3_600 * NS + NS  # a second of headroom
    ledger.entries[0].meter.restart_in(granted_ns, 24 * 3_600 * NS - NS - 1)  # the way of a reply is no other clock
    assert grant_when_due(ledger, granted_ns, {"units": 10})[0] == granted_ns + 24 * 3_600 * NS
