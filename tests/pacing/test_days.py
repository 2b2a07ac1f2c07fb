"""A quota of a day restarts at the midnight of its provider, whichever form of the configuration it comes from."""

from collections import Counter
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

import paceline
from paceline.config import parse_limit
from paceline.core.quota import NS, Quota
from paceline.core.results import SettingsError
from paceline.emulator.rules import BucketRule
from paceline.providers.registry import PROVIDERS, head_of
from paceline.stores.sqlite import SQLiteStore
from paceline.testing import ManualClock

HOUR, DAY = 3_600, 86_400
PACIFIC = "America/Los_Angeles"


def rules(pool, quotas):
    limiter = quotas if isinstance(quotas, paceline.Limiter) else paceline.Limiter({pool: quotas})
    return [quota["quota"] for quota in limiter.status()["pools"][pool]["quotas"]]


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
        ("groq/m", "100 requests/day window Europe/Berlin", "100 requests/day window Europe/Berlin"),
        ("jobs", "100 requests/day burst 50", "100 requests/day burst 50"),
        ("jobs", "100 requests/day sliding", "100 requests/day sliding"),
        ("jobs", "100 requests/hour", "100 requests/hour"),
    ],
)
def test_the_rule_of_a_day(pool, text, shown):
    command_line = paceline.Limiter(dict([parse_limit(f"{pool}={text}")]))
    assert [rules(pool, one)[0] for one in (text, Quota.parse(text), command_line)] == [shown] * 3


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
    assert rules("gemini/m", paceline.Limiter.load(file))[0] == shown


@pytest.mark.parametrize(
    ("amounts", "message"),
    [("{rpd: 100, day_zone: Asia/Tokio}", "Asia/Tokyo"), ("{day_zone: UTC}", "it is empty: give rpm, tpm")],
)
def test_a_zone_that_is_none(tmp_path, amounts, message):
    file = tmp_path / "limits.yaml"
    file.write_text(f"limits:\n  google:\n    m: {amounts}\n")
    with pytest.raises(SettingsError, match=message):
        paceline.Limiter.load(file)


@pytest.mark.parametrize("provider", ["openai", "groq", "digitalocean"])
def test_where_days_refill_continuously_a_bucket_stands_beside_the_window(provider):
    pool = f"{provider}/m"
    assert rules(pool, ["100 requests/day", "2M tokens/day", "5 requests/min"]) == [
        "100 requests/day window utc", "100 requests/86401s", "2M tokens/day window utc", "2M tokens/86401s", "5 requests/min",
    ]  # fmt: skip
    for text in ("100 requests/day window utc", "100 requests/day burst 50"):
        assert rules(pool, text) == [text]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("amount", "learn"), [(100, True), (100, "up"), (1_000, True), (1_000, "up")])
@pytest.mark.parametrize(("pool", "tells"), [("groq/m", True), ("openai/m", False)], ids=["headers", "no headers"])
def test_such_a_provider_refuses_nothing_and_no_day_has_more(pool, tells, amount, learn):
    """Three days with constant demand, from an hour before midnight: a window alone would be refused after each restart."""
    clock = ManualClock(datetime(2027, 3, 13, 23, tzinfo=UTC).timestamp())
    server = BucketRule(amount, DAY, clock.now_ns() / NS)
    limiter = paceline.Limiter({pool: f"{amount} requests/day"}, learn=learn, clock=clock)
    used = Counter()
    for _ in range(3 * 24 * 20):
        now_s = clock.now_ns() / NS
        while permit := limiter.try_acquire(pool):
            assert server.fits(now_s, 1)
            server.charge(now_s, 1)
            left, reset_s = int(server.remaining(now_s)), server.reset(now_s)
            permit.settle(headers=requests_of_a_day(amount, left, reset_s) if tells else None)
            used[datetime.fromtimestamp(now_s, UTC).date()] += 1
        clock.advance(180)
    assert max(used.values()) <= amount
    assert sorted(used.values())[1] >= 0.97 * amount


def requests_of_a_day(limit, left, reset_s):
    """The headers of Groq."""
    return {
        "x-ratelimit-limit-requests": str(limit),
        "x-ratelimit-remaining-requests": str(left),
        "x-ratelimit-reset-requests": f"{reset_s:.3f}s",
    }


def test_a_limit_in_headers_holds_for_the_window_and_the_bucket():
    """The level of the bucket alone follows them: at midnight that of the window is the whole amount again."""
    clock = ManualClock(datetime(2027, 3, 13, 23, 59, tzinfo=UTC).timestamp())
    limiter = paceline.Limiter({"groq/m": "1000 requests/day"}, clock=clock)
    limiter.try_acquire("groq/m").settle(headers=requests_of_a_day(500, 20, 82_944))
    quotas = limiter.status()["pools"]["groq/m"]["quotas"]
    assert [(quota["limit"], round(quota["remaining"])) for quota in quotas] == [(500, 499), (500, 20)]
    clock.advance(120)
    assert limiter.status()["pools"]["groq/m"]["quotas"][0]["remaining"] == 500


@pytest.mark.parametrize("provider", [*PROVIDERS, "acme"])
def test_a_day_of_any_provider_has_one_of_three_forms(provider):
    """``test_no_day_of_the_provider_has_more`` runs days of each."""
    form = {None: "acme", "utc": "acme", "America/Los_Angeles": "gemini", "": "openai"}[head_of(provider).day_zone]
    assert rules(f"{provider}/m", "40 requests/day") == rules(f"{form}/m", "40 requests/day")


@pytest.mark.sample(3)
@pytest.mark.parametrize("start", [datetime(2027, 3, 13, 20, 10, tzinfo=UTC), datetime(2027, 11, 6, 3, tzinfo=UTC)])
@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize(("pool", "zone"), [("gemini/m", PACIFIC), ("acme/m", "UTC"), ("openai/m", "UTC")])
def test_no_day_of_the_provider_has_more(tmp_path, pool, zone, store, start):
    """Two days with demand at every quarter of an hour, across a change of the clocks; with a store, restarted often."""
    clock = ManualClock(start.timestamp())
    used = Counter()

    def new():
        kept = SQLiteStore(tmp_path / "s.db", clock=clock) if store else None
        return paceline.Limiter({pool: "40 requests/day"}, learn=False, store=kept, clock=clock)

    limiter = new()
    for quarter in range(4 * 48):
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
    assert len(used) > 2
    assert max(used.values()) <= 40
    assert sum(used.values()) >= 80
