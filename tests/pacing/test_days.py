"""A quota of a day restarts at the midnight of its provider, whichever form of the configuration it comes from."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

import paceline
from paceline.config import parse_limit
from paceline.core.quota import NS, Quota
from paceline.core.results import QuotaError
from paceline.stores.sqlite import SQLiteStore
from paceline.testing import ManualClock

HOUR = 3_600


def rule_of(limiter, pool):
    return limiter.status()["pools"][pool]["quotas"][0]["quota"]


@pytest.mark.parametrize(
    ("pool", "text", "shown"),
    [
        ("gemini/m", "100 requests/day", "100 requests/day window America/Los_Angeles"),
        ("gemini/m", "100 requests/day window", "100 requests/day window America/Los_Angeles"),
        ("vertex/m", "100 requests/day", "100 requests/day window America/Los_Angeles"),
        ("openrouter/m", "100 requests/day", "100 requests/day window utc"),
        ("anthropic/m", "100 requests/day", "100 requests/day window utc"),
        ("jobs", "100 requests/day", "100 requests/day window utc"),
        ("jobs", "100 requests/day window Europe/Berlin", "100 requests/day window Europe/Berlin"),
        ("openai/m", "100 requests/day", "100 requests/day"),  # it refills continuously there
        ("groq/m", "100 requests/day", "100 requests/day"),
        ("groq/m", "100 requests/day window utc", "100 requests/day window utc"),
        ("jobs", "100 requests/day burst 50", "100 requests/day burst 50"),
        ("jobs", "100 requests/day sliding", "100 requests/day sliding"),
        ("jobs", "100 requests/hour", "100 requests/hour"),
    ],
)
def test_the_rule_of_a_day(pool, text, shown):
    assert rule_of(paceline.Limiter({pool: text}), pool) == shown
    assert rule_of(paceline.Limiter({pool: Quota.parse(text)}), pool) == shown
    assert rule_of(paceline.Limiter(dict([parse_limit(f"{pool}={text}")])), pool) == shown  # the command line


@pytest.mark.parametrize("key", ["limits", "defaults"])
@pytest.mark.parametrize(
    ("amounts", "shown"),
    [
        ("{rpd: 100}", "100 requests/day window America/Los_Angeles"),
        ("{tpd: 100}", "100 tokens/day window America/Los_Angeles"),
        ("{rpd: 100, day_zone: UTC}", "100 requests/day window utc"),
        ("{day_zone: Asia/Tokyo, rpd: 100}", "100 requests/day window Asia/Tokyo"),
    ],
)
def test_amounts_in_a_file(tmp_path, key, amounts, shown):
    file = tmp_path / "limits.yaml"
    file.write_text(f"{key}:\n  google:\n    default: {amounts}\n    m: {amounts}\n")
    assert rule_of(paceline.Limiter.load(file), "gemini/m") == shown


@pytest.mark.parametrize(
    ("amounts", "message"),
    [("{rpd: 100, day_zone: Asia/Tokio}", "Asia/Tokyo"), ("{day_zone: UTC}", "it is empty: give rpm, tpm")],
)
def test_a_zone_that_is_none(tmp_path, amounts, message):
    file = tmp_path / "limits.yaml"
    file.write_text(f"limits:\n  google:\n    m: {amounts}\n")
    with pytest.raises(QuotaError, match=message):
        paceline.Limiter.load(file)


@pytest.mark.parametrize("start", [datetime(2027, 3, 13, 20, 10, tzinfo=UTC), datetime(2027, 11, 6, 3, tzinfo=UTC)])
@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize(("pool", "zone"), [("gemini/m", "America/Los_Angeles"), ("acme/m", "UTC"), ("jobs", "UTC")])
def test_no_day_of_the_provider_has_more(tmp_path, pool, zone, store, start):
    """Three days with demand at every quarter of an hour, across a change of the clocks; with a store, restarted often."""
    clock = ManualClock(start.timestamp())
    used = Counter()

    def new():
        kept = SQLiteStore(tmp_path / "s.db", clock=clock) if store else None
        return paceline.Limiter({pool: "40 requests/day"}, learn=False, store=kept, clock=clock)

    limiter = new()
    for quarter in range(3 * 24 * 4):
        for _ in range(15):
            if not (permit := limiter.try_acquire(pool)):
                break
            permit.settle()
            used[datetime.fromtimestamp(clock.now_ns() / NS, ZoneInfo(zone)).date()] += 1
        if store and quarter % 7 == 3:
            limiter.close()
            limiter = new()
        clock.advance(HOUR / 4)
    limiter.close()
    assert len(used) >= 3
    assert max(used.values()) <= 40
    assert sum(used.values()) >= 40 * (len(used) - 1)
