"""The notation of quotas: it can be read, written and read again; what is wrong is said with what would be right."""

from __future__ import annotations

import math
import sys
import zoneinfo
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.quota import DAY_S, MONTH, MONTH_S, Quota, Rule, brief, ns_per_unit, parse_quotas
from paceline.core.results import QuotaError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500 requests/min", Quota("requests", 500)),
        ("2M input_tokens/min burst 50k", Quota("input_tokens", 2e6, burst=5e4)),
        ("1000 requests/day window utc", Quota("requests", 1000, 86_400, rule=Rule.WINDOW, anchor="utc")),
        ("10 concurrency", Quota("concurrency", 10, 0, rule=Rule.SLOTS)),
        ("  1_500.5 k_x / 2.5 s  sliding ", Quota("k_x", 1500.5, 2.5, rule=Rule.SLIDING)),
        ("1g tokens/hr", Quota("tokens", 1e9, 3600)),
        ("3 starts slots", Quota("starts", 3, 0, rule=Rule.SLOTS)),
        (
            "9 usd/day window America/Los_Angeles burst 4",
            Quota("usd", 9, 86_400, 4, Rule.WINDOW, "America/Los_Angeles"),
        ),
        ("5 requests/10min", Quota("requests", 5, 600)),
        ("5 usd/month", Quota("usd", 5, MONTH_S, rule=Rule.WINDOW, anchor=MONTH)),
        ("500 rpm", Quota("requests", 500, 60)),
        ("500 RPM burst 50", Quota("requests", 500, 60, 50)),
        ("2M TPM sliding", Quota("tokens", 2e6, 60, rule=Rule.SLIDING)),
        ("100/min", Quota("requests", 100, 60)),
        ("5k / 10min window", Quota("requests", 5_000, 600, rule=Rule.WINDOW)),
        ("500 requests per minute", Quota("requests", 500, 60)),
        ("2M input_tokens Per hour burst 50k", Quota("input_tokens", 2e6, 3_600, 50_000)),
        ("30,000 tokens/min", Quota("tokens", 30_000, 60)),
        ("10 per second", Quota("requests", 10, 1)),
    ],
)
def test_reading(text, expected):
    assert Quota.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "write it like '500 requests/min'"),
        ("lots of tokens", "write it like"),
        ("-5 requests/min", "write it like"),
        ("500 requests", "has no period"),
        ("500 request", "did you mean 'requests'?"),
        ("5 requests/fortnight", "use s, min, hour, day or month"),
        ("5 requests/min burst", "'burst' needs an amount"),
        ("5 requests/min burst lots", "'burst' needs an amount"),
        ("5 requests/min slidng", "did you mean 'sliding'?"),
        ("5 requests/min qqq", "write it like"),
        ("5 requests/min burst 10,400 tokens/min", "write a space after a comma between two limits"),
        ("5 requests/day utc", "unknown option 'utc'"),
        ("5 requests/day Europe/Berlin", "unknown option 'Europe/Berlin': write it like"),
        ("0 requests/min", "above 0"),
        ("5 requests/0s", "every other rule needs one above 0 s"),
        ("5 requests/min slots", "slots have no period"),
        ("5 requests/day window Europe/Berlim", "Europe/Berlim"),
        ("5 requests/min window Europe/Berlin", "day"),
        ("7 starts/min burst 3 exact", "an exact quota grants its whole amount at once: leave out the burst"),
        ("5 usd/2month", "unknown period 'month'"),
        ("5 usd/month burst 1", "unknown period 'month'"),
        ("5 usd/day window month", "unknown option 'month'"),
    ],
)
def test_what_is_wrong_is_said(text, hint):
    with pytest.raises(QuotaError) as caught:
        Quota.parse(text)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    "bad",
    [
        *({"unit": unit} for unit in ("Requests", "a b")),
        *({"amount": amount} for amount in (0, -1, math.nan, math.inf, 1e-300)),
        *({"burst": burst} for burst in (-1, math.inf)),
        *({"period_s": period_s} for period_s in (0, -60, math.nan, math.inf, 1e-16, 1e300)),
        *({"rule": rule} for rule in ("window", Rule.SLOTS)),
        {"period_s": MONTH_S, "anchor": MONTH},
        {"period_s": DAY_S, "rule": Rule.WINDOW, "anchor": MONTH},
    ],
)
def test_no_quota_that_nobody_can_mean(bad):
    with pytest.raises(QuotaError):
        replace(Quota("requests", 5), **bad)


@pytest.mark.parametrize(("text", "printed"), [
    ("5 usd/30d window", "5 usd/30 days window"), ("5 usd/168h", "5 usd/7 days"), ("5 usd/12h", "5 usd/12 hours"),
    ("5 usd/600s", "5 usd/10 min"), ("5 usd/90s", "5 usd/90s"), ("5 usd/24 hours", "5 usd/day"), ("5 usd/second", "5 usd/s"),
])  # fmt: skip
def test_a_period_is_printed_as_one_writes_it(text, printed):
    assert str(Quota.parse(text)) == printed


@pytest.mark.parametrize(("notation", "shown"), [
    ("437.1234567 requests/min", "437.12 requests/min"), ("90.5001 tokens/min", "90.5 tokens/min"),
    ("0.00125 usd/s", "0.00125 usd/s"), ("2.5 starts/90s", "2.5 starts/90s"),
    ("openai/gpt-5: 200 requests/86401s", "openai/gpt-5: 200 requests/day"),
    ("xai/grok-4.20: 437.126 requests/min", "xai/grok-4.20: 437.13 requests/min"),
])  # fmt: skip
def test_a_notation_for_the_eye_has_two_digits_of_a_measured_amount_and_no_second_more_than_a_day(notation, shown):
    assert brief(notation) == shown


positive = st.one_of(
    st.integers(1, 10**12).map(float),
    st.floats(1e-6, 1e12, allow_nan=False),
    st.sampled_from([0.1, 1234.5, 999_999.0, 1_000_001.0, 1_234_567.0, 2.5e6, 1e15]),
)


@given(
    unit=st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True).filter(lambda unit: unit != "concurrency"),
    amount=positive,
    period_s=st.one_of(st.sampled_from([1.0, 60.0, 3600.0, 86_400.0]), positive),
    burst=st.none() | positive,
    rule=st.sampled_from([("bucket", None), ("sliding", None), ("window", None), ("window", "utc")]),
)
def test_what_is_written_can_be_read(unit, amount, period_s, burst, rule):
    quota = Quota(unit, amount, period_s, burst or 0.0, Rule(rule[0]), rule[1])
    assert Quota.parse(str(quota)) == quota


@given(unit=st.sampled_from(["usd", "starts"]), amount=positive)
def test_months_that_are_written_can_be_read(unit, amount):
    quota = Quota(unit, amount, MONTH_S, rule=Rule.WINDOW, anchor=MONTH)
    assert str(quota).endswith(f" {unit}/month")
    assert Quota.parse(str(quota)) == quota


@given(unit=st.sampled_from(["concurrency", "starts"]), amount=positive)
def test_slots_that_are_written_can_be_read(unit, amount):
    quota = Quota(unit, amount, 0, rule=Rule.SLOTS)
    assert Quota.parse(str(quota)) == quota


@given(text=st.text(max_size=40))
def test_no_text_does_anything_but_parse_or_say_why(text):
    try:
        quota = Quota.parse(text)
    except QuotaError:
        return
    assert quota.amount > 0


def test_several():
    both = (Quota("requests", 5), Quota("requests", 9, 86_400))
    assert parse_quotas("5 requests/min, 9 requests/day,") == both
    assert parse_quotas(["5 requests/min", "9 requests/day"]) == both
    with pytest.raises(QuotaError, match="no quota in"):
        parse_quotas(" , ")
    with pytest.raises(QuotaError, match="two quotas for requests over the same period"):
        parse_quotas("5 requests/min, 6 requests/60s")


def test_another_amount():
    assert Quota("requests", 10).with_amount(20) == Quota("requests", 20)
    assert Quota("requests", 10, burst=4).with_amount(20).burst == 4
    assert Quota("requests", 10, burst=4).with_amount(2).burst == 2


@pytest.mark.parametrize("text", ["100 requests/day", "100 requests/24h", "100 requests/day window"])
def test_a_day_without_a_zone_restarts_at_midnight_where_the_provider_says(text):
    restarting = Quota.parse(text).restarting("America/Los_Angeles")
    assert restarting == Quota("requests", 100, DAY_S, rule=Rule.WINDOW, anchor="America/Los_Angeles")
    assert Quota.parse(text).restarting("") == Quota.parse(text)


@pytest.mark.parametrize("own", ["min", "25h", "day burst 99", "day sliding", "day exact", "day window utc"])
def test_a_quota_with_a_period_a_burst_or_a_rule_of_its_own_does_not_restart(own):
    quota = Quota.parse(f"100 requests/{own}")
    assert quota.restarting("America/Los_Angeles") == quota


def test_rates():
    assert Quota("requests", 120).rate == 2
    assert ns_per_unit(Quota("requests", 120)) == 5e8
    assert Quota("concurrency", 3, 0, rule=Rule.SLOTS).rate == 0


@pytest.mark.parametrize(
    ("text", "quotas"),
    [
        ("1,500 requests/min, 1,000,000 tokens/min,100 requests/s",
         [Quota("requests", 1_500, 60), Quota("tokens", 1e6, 60), Quota("requests", 100, 1)]),
        ("30 requests/min burst 10,400k tokens/min,400,000 input_tokens/min",
         [Quota("requests", 30, 60, burst=10), Quota("tokens", 400e3, 60), Quota("input_tokens", 400e3, 60)]),
        ("30 requests/min burst 1,000,400k tpm", [Quota("requests", 30, 60, burst=1_000), Quota("tokens", 400e3, 60)]),
        ("1,500k tokens/min", [Quota("tokens", 1.5e6, 60)]),
        ("2,500K/min", [Quota("requests", 2.5e6, 60)]),
        ("1,200M tokens/day burst 1,500k window Europe/Berlin",
         [Quota("tokens", 1.2e9, 86_400, 1.5e6, Rule.WINDOW, "Europe/Berlin")]),
    ],
)  # fmt: skip
def test_commas_between_thousands_and_between_quotas(text, quotas):
    assert parse_quotas(text) == tuple(quotas)


def test_a_system_without_time_zones_is_named(monkeypatch):
    for name in {"tzdata", *(name for name in sys.modules if name.startswith("tzdata"))}:
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.ZoneInfo.clear_cache()
    zoneinfo.reset_tzpath(())
    try:
        with pytest.raises(QuotaError, match="no time zones, and 'America/Los_Angeles' is one: pip install tzdata"):
            parse_quotas("20 requests/day window America/Los_Angeles")
    finally:
        zoneinfo.reset_tzpath()
