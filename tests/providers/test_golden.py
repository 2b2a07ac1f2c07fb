"""Every real answer that we know of, read as it was meant."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from cases import told

from paceline.core.results import RefusalKind
from paceline.providers.registry import provider_named

FIXTURES = Path(__file__).with_name("fixtures")
REFUSALS = tomllib.loads((FIXTURES / "refusals.toml").read_text(encoding="utf-8"))
HEADERS = tomllib.loads((FIXTURES / "headers.toml").read_text(encoding="utf-8"))["header"]
NUMBERS = [(name, case) for case in REFUSALS["refusal"] for name in {"openai": 1, case["form"]: 1}]


@pytest.mark.parametrize(
    ("name", "case"), NUMBERS, ids=[f"{name} {case['form']} {case['text']}" for name, case in NUMBERS]
)
def test_refusal_with_numbers(name, case):
    limit, used, requested = case["numbers"]
    dimension = case["dimension"]
    message = REFUSALS["texts"][case["form"]].format(
        model="m", dimension=dimension, limit=limit, used=used, requested=requested, text=case["text"]
    )
    body = json.dumps({"error": {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}}).encode()
    refusal = provider_named(name).refusal(429, {}, body)
    assert refusal.kind is RefusalKind.RATE
    assert (refusal.limit, refusal.used, refusal.requested) == (limit, used, requested)
    assert refusal.unit == dimension.split()[0]
    assert refusal.period_s == (86_400.0 if "day" in dimension else 60.0)
    assert refusal.retry_after_s == pytest.approx(case["wait_s"])
    if "outlier" not in case:
        predicted = (used + requested - limit) * refusal.period_s / limit
        assert refusal.retry_after_s == pytest.approx(predicted, abs=case.get("within_s", 0.0011))


def test_a_code_of_requests_holds_before_words_about_tokens():
    """The refusal of mocklimit 0.6, whose words are the same for every unit."""
    said = "Rate limit reached for requests in organization on tokens per min (TPM): Limit 432, Used 432, Requested 1. Please retry after 59.9s."
    body = json.dumps({"error": {"message": said, "type": "requests", "param": None, "code": "rate_limit_exceeded"}})
    refusal = provider_named("openai").refusal(429, {"retry-after-ms": "138"}, body.encode())
    assert (refusal.unit, refusal.limit, refusal.period_s) == ("requests", 432, 60)
    assert (refusal.sooner_s, refusal.retry_after_s) == (0.138, 59.9)


@pytest.mark.parametrize("case", HEADERS, ids=lambda case: f"{case['who']} {case['reset']}")
@pytest.mark.parametrize("unit", ["requests", "tokens"])
def test_headers(case, unit):
    headers = told(**{unit: [str(case[name]) for name in ("limit", "remaining", "reset")]})
    [reading] = provider_named("openai").readings(headers, 0.0)
    assert (reading.unit, reading.limit, reading.remaining) == (unit, case["limit"], case["remaining"])
    assert reading.reset_s == (None if case["reset_s"] < 0 else pytest.approx(case["reset_s"]))
    assert reading.period_s == (case["inferred_s"] or None)
