"""The windows of plans in the headers of answers, as clients and gateways have published them."""

import json
import time

import pytest

from paceline.core.results import RefusalKind
from paceline.providers.plan_headers import is_page, plan_headers_in, plan_readings, refused_window
from paceline.providers.registry import provider_named

NOW_S = 1_790_000_000.0
H, D = 3_600.0, 86_400.0


def claude(**windows):
    """The headers of Claude: ``five_h="utilization status seconds"``, with ``over_all="status claim"``."""
    names = {"five_h": "5h", "seven_d": "7d", "oi": "7d_oi"}
    status, _, claim = windows.pop("over_all", "allowed five_hour").partition(" ")
    start = "anthropic-ratelimit-unified-"
    found = {f"{start}status": status, f"{start}representative-claim": claim, f"{start}fallback-percentage": "0.5"}
    for name, said in windows.items():
        used, of, in_s = said.split()
        own = f"{start}{names[name]}-"
        found |= {f"{own}utilization": used, f"{own}status": of, f"{own}reset": str(int(NOW_S + float(in_s)))}
    return found


def codex(family="codex", **slots):
    """The headers of Codex: ``primary="percent minutes seconds"``."""
    found = {"x-codex-plan-type": "plus"}
    for slot, said in slots.items():
        used, minutes, in_s = said.split()
        own = f"x-{family}-{slot}-"
        found |= {f"{own}used-percent": used, f"{own}window-minutes": minutes, f"{own}reset-after-seconds": in_s}
    return found


def read(headers, refused=None):
    return {one.window: (one.used, one.until_s, one.status, one.length_s, one.scope) for one in
            plan_readings(headers, NOW_S, refused)}  # fmt: skip


READ = {
    "claude": (
        claude(five_h="0.94 allowed_warning 9000", seven_d="0.0 allowed 86400", oi="1.0 rejected 500000"),
        {
            "5h": (0.94, 9_000.0, "allowed_warning", 5 * H, None),
            "7d": (0.0, D, "allowed", 7 * D, None),
            "7d_oi": (1.0, 500_000.0, "rejected", 7 * D, "Fable"),
        },
    ),
    "instants of RFC 3339": (
        {"anthropic-ratelimit-unified-5h-utilization": "0.42", "anthropic-ratelimit-unified-5h-reset": "2026-09-21T14:26:40Z"},
        {"5h": (0.42, 800.0, None, 5 * H, None)},
    ),
    "the claim alone": (
        claude(over_all="rejected seven_day") | {"anthropic-ratelimit-unified-reset": str(int(NOW_S) + 60)},
        {"7d": (None, 60.0, "rejected", 7 * D, None)},
    ),
    "money": (
        {"anthropic-ratelimit-unified-overage-status": "allowed", "anthropic-ratelimit-unified-overage-utilization": "0.1",
         "anthropic-ratelimit-unified-overage-in-use": "true"},
        {"overage": (0.1, None, "allowed", None, "money")},
    ),
    "codex": (
        codex(primary="62.5 300 9137", secondary="31 10080 400000"),
        {"codex 5h": (0.625, 9_137.0, None, 5 * H, None), "codex 7d": (0.31, 400_000.0, None, 7 * D, None)},
    ),
    "7 days in the first slot, and none in the second": (
        codex(primary="100 10080 471285", secondary="0 0 0"),
        {"codex 7d": (1.0, 471_285.0, None, 7 * D, None)},
    ),
    "minutes that are one short": (
        codex(primary="1 299 60", secondary="2 10079 60"),
        {"codex 5h": (0.01, 60.0, None, 299 * 60.0, None), "codex 7d": (0.02, 60.0, None, 10_079 * 60.0, None)},
    ),
    "minutes": (codex(primary="1 15 60"), {"codex 15m": (0.01, 60.0, None, 900.0, None)}),
    "an instant": (
        {"x-codex-primary-used-percent": "7", "x-codex-primary-window-minutes": "300", "x-codex-primary-reset-at": str(int(NOW_S) + 9)},
        {"codex 5h": (0.07, 9.0, None, 5 * H, None)},
    ),
    "a limit of one model, which the plain family repeats": (
        codex(primary="20 10080 60") | codex("codex-bengalfox", primary="20 10080 60")
        | {"x-codex-active-limit": "codex_bengalfox", "x-codex-bengalfox-limit-name": "GPT-5.3\x07-Codex-Spark"},
        {"codex-bengalfox 7d": (0.2, 60.0, None, 7 * D, "GPT-5.3-Codex-Spark")},
    ),
    "two limits": (
        codex(primary="20 10080 60") | codex("codex-bengalfox", primary="40 10080 60") | {"x-codex-active-limit": "premium"},
        {"codex 7d": (0.2, 60.0, None, 7 * D, None), "codex-bengalfox 7d": (0.4, 60.0, None, 7 * D, "bengalfox")},
    ),
    "lengths that are not stated": (
        {"x-codex-primary-used-percent": "30", "x-codex-secondary-used-percent": "70"},
        {"codex": (0.7, None, None, None, None)},
    ),
    "handed on by litellm": (
        {f"llm_provider-{name}": text for name, text in claude(five_h="0.5 allowed 60").items()},
        {"5h": (0.5, 60.0, "allowed", 5 * H, None)},
    ),
    "nonsense": (
        {"anthropic-ratelimit-unified-5h-utilization": "nan", "anthropic-ratelimit-unified-5h-reset": "-1e400",
         "anthropic-ratelimit-unified-5h-status": "sk-ant\x00" * 99, "x-codex-primary-used-percent": "-3",
         "x-codex-primary-window-minutes": "x", "x-codex-over-secondary-limit-percent": "5"},
        {"5h": (None, None, None, 5 * H, None), "codex": (None, None, None, None, None)},
    ),
    "no plan": ({"anthropic-ratelimit-requests-limit": "50", "x-codex-plan-type": "plus"}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("headers", "expected"), READ.values(), ids=READ)
def test_windows_are_read(headers, expected):
    assert read(headers) == expected


@pytest.mark.parametrize(
    ("headers", "paid"),
    [
        (claude(five_h="1.0 allowed 60"), []),
        (claude(five_h="1.0 allowed 60") | {"anthropic-ratelimit-unified-overage-in-use": "false"}, []),
        (claude(five_h="1.0 allowed 60") | {"anthropic-ratelimit-unified-overage-in-use": "true"}, ["5h"]),
        (codex(primary="100 300 60", secondary="40 10080 60"), []),
        (codex(primary="99 300 60") | {"x-codex-credits-has-credits": "true"}, []),
        (codex(primary="100 300 60", secondary="40 10080 60") | {"x-codex-credits-has-credits": "True"}, ["codex 5h"]),
    ],
)
def test_that_requests_cost_money_is_what_the_provider_states(headers, paid):
    assert [one.window for one in plan_readings(headers, NOW_S) if one.paid] == paid


def test_a_wrong_clock_here_does_not_move_the_end():
    on_its_way = claude(five_h="0.5 allowed 600") | {"date": "Mon, 21 Sep 2026 14:13:19 GMT"}
    assert read(on_its_way)["5h"][1] == 600.0
    late = claude(five_h="0.5 allowed 1400") | {"date": "Mon, 21 Sep 2026 14:26:40 GMT"}
    assert read(late)["5h"][1] == 600.0


def window(percent, seconds=9_000, *, minutes=300):
    """A window of Codex, as its event has it."""
    at = int(NOW_S) + seconds
    return {"used_percent": percent, "window_minutes": minutes, "reset_after_seconds": seconds, "reset_at": at}


def on_page(primary, secondary=None):
    """A limit on Codex's page: the names of its fields are others."""
    slots = {"primary_window": primary, "secondary_window": secondary}
    return {
        slot: one and {**one, "window_minutes": None, "limit_window_seconds": one["window_minutes"] * 60}
        for slot, one in slots.items()
    }


BODIES = {
    "Claude's page": (
        {
            "five_hour": {"utilization": 33.0, "resets_at": "2026-09-21T16:43:20.528743+00:00"},
            "seven_day": {"utilization": 100, "resets_at": "2026-09-22T14:13:20+00:00"},
            "seven_day_opus": None,
            "seven_day_sonnet": {"utilization": 0.5, "resets_at": None},
            "extra_usage": {"is_enabled": False, "monthly_limit": None, "used_credits": None, "utilization": None},
        },
        {
            "5h": (0.33, 9_000.529, None, 5 * H, None),
            "7d": (1.0, D, None, 7 * D, None),
            "7d_sonnet": (0.005, None, None, 7 * D, "Sonnet"),
        },
    ),
    "Codex's event": (
        {
            "type": "codex.rate_limits", "plan_type": "pro",
            "rate_limits": {"allowed": True, "limit_reached": False, "primary": window(7), "secondary": window(29.5, minutes=10_080)},
            "code_review_rate_limits": None,
        },
        {"codex 5h": (0.07, 9_000.0, None, 5 * H, None), "codex 7d": (0.295, 9_000.0, None, 7 * D, None)},
    ),
    "an event about one model's limit": (
        {"type": "codex.rate_limits", "metered_limit_name": "codex_bengalfox", "rate_limits": {"primary": window(2), "secondary": None}},
        {"codex-bengalfox 5h": (0.02, 9_000.0, None, 5 * H, "bengalfox")},
    ),
    "Codex's page": (
        {
            "plan_type": "pro", "rate_limit": on_page(window(1, minutes=10_080)),
            "additional_rate_limits": [
                {"limit_name": "GPT-5.3-Codex-Spark", "metered_feature": "codex_bengalfox", "rate_limit": on_page(window(40), window(5, minutes=10_080))},
                None,
            ],
        },
        {
            "codex 7d": (0.01, 9_000.0, None, 7 * D, None),
            "codex-bengalfox 5h": (0.4, 9_000.0, None, 5 * H, "GPT-5.3-Codex-Spark"),
            "codex-bengalfox 7d": (0.05, 9_000.0, None, 7 * D, "GPT-5.3-Codex-Spark"),
        },
    ),
    "nonsense": (
        {"five_hour": {"utilization": float("nan")}, "seven_day": {"utilization": "sk-ant"}, "seven_day_opus": 7, "rate_limits": [],
         "additional_rate_limits": {"x": 1}, "rate_limit": {"primary_window": {"used_percent": 10**400, "reset_at": True}}},
        {},
    ),
    "no plan": ({"id": "r", "usage": {"input_tokens": 9}}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), BODIES.values(), ids=BODIES)
def test_bodies_say_the_same_as_headers(body, expected):
    found = read(plan_headers_in(body))
    assert found.keys() == expected.keys()
    for name, row in expected.items():
        assert found[name] == pytest.approx(row, abs=1e-3)


def test_that_an_event_s_limit_is_paid_with_credits():
    body = {"type": "codex.rate_limits", "metered_limit_name": "codex-x", "rate_limits": {"primary": window(100)}}
    for told, paid in ((None, False), ({"has_credits": False}, False), ({"has_credits": True}, True)):
        [one] = plan_readings(plan_headers_in(body | {"credits": told}), NOW_S)
        assert one.paid is paid


def test_the_pages_of_two_providers():
    assert is_page("anthropic", "/api/oauth/usage")
    assert is_page("chatgpt", "/backend-api/wham/usage")
    assert not is_page("chatgpt", "/api/oauth/usage")
    assert not is_page("gemini", "/api/oauth/usage")


REFUSED = {
    "the claim": (claude(five_h="1.0 rejected 60", oi="1.0 rejected 999", over_all="rejected five_hour"), "5h"),
    "the window that only some models have": (
        claude(five_h="0.2 allowed 60", oi="1.0 rejected 999", over_all="rejected seven_day_overage_included"),
        "7d_oi",
    ),
    "a claim that is not known": (claude(over_all="rejected fortnight"), "fortnight"),
    "no claim, the one that ends last": (
        claude(five_h="1.0 rejected 60", seven_d="1.0 rejected 999", over_all="rejected"),
        "7d",
    ),
    "used up, and it goes on for money": (claude(five_h="1.0 allowed 60"), None),
    "a rate of Claude's": (claude(five_h="0.2 allowed 60"), None),
    "a rate of Codex's": (codex(primary="62 300 9137", secondary="99.9 10080 60"), None),
    "a window of Codex's": (codex(primary="62 300 9137", secondary="100 10080 60"), "codex 7d"),
    "another limit's": (codex(primary="62 300 60") | codex("codex-bengalfox", primary="100 300 60"), None),
    "the limit of this model": (
        codex(primary="100 300 60") | codex("codex-bengalfox", primary="100 300 60") | {"x-codex-active-limit": "codex_bengalfox"},
        "codex-bengalfox 5h",
    ),
    "no headers": ({}, None),
}  # fmt: skip


@pytest.mark.parametrize(("headers", "window"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_is_about_a_window_or_a_rate(headers, window):
    body = b'{"type": "error", "error": {"type": "rate_limit_error", "message": "no"}}'
    for name in ("anthropic", "openai"):
        refusal = provider_named(name).refusal(429, headers | {"date": "Mon, 21 Sep 2026 14:13:20 GMT"}, body)
        assert (refusal.kind, refusal.window) == (RefusalKind.RATE, window)
    if window is not None:
        assert refused_window(headers, NOW_S).window == window
        assert read(headers, window)[window][2] == "rejected"
    else:
        assert all(row[2] != "rejected" for row in read(headers).values())


def in_a_moment(seconds):
    return str(int(time.time() + seconds))


def waits():
    """By name the headers, the error and the wait of a refusal, from now on."""
    return {
        "stated": ({"retry-after": "7", "anthropic-ratelimit-unified-reset": in_a_moment(9_000)}, {}, 7),
        "the end of the claim's window": (
            {
                "anthropic-ratelimit-unified-5h-reset": in_a_moment(9_000),
                "anthropic-ratelimit-unified-reset": in_a_moment(5),
            },
            {},
            9_000,
        ),
        "the end over all": ({"anthropic-ratelimit-unified-reset": in_a_moment(9_000)}, {}, 9_000),
        "the instant in the body": ({}, {"type": "usage_limit_reached", "resets_at": int(in_a_moment(9_000))}, 9_000),
        "the end of Codex's window": (codex(primary="100 10080 9000"), {"type": "usage_limit_reached"}, 9_000),
        "none of a rate": (codex(primary="62 10080 9000"), {}, None),
    }


@pytest.mark.parametrize("name", waits())
def test_the_wait_is_the_windows_end_if_none_is_stated(name):
    headers, error, wait_s = waits()[name]
    over_all = claude(over_all="rejected five_hour") if any("anthropic" in name for name in headers) else {}
    body = json.dumps({"error": {"type": "rate_limit_error", "message": "no", **error}}).encode()
    refusal = provider_named("openai").refusal(429, over_all | headers, body)
    assert refusal.retry_after_s == (wait_s and pytest.approx(wait_s, abs=60))
