"""Fireworks: input, uncached input and output, under limits that move."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.core.quota import INPUT_TOKENS, OUTPUT_TOKENS
from paceline.providers.base import Call, Usage
from paceline.providers.registry import provider_named
from paceline.providers.tables import lookup

PROVIDER = provider_named("fireworks")
CALL = Call("fireworks", "chat", "accounts/fireworks/models/kimi-k2p6", 100, max_output_tokens=50)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_nothing_is_charged_beyond_what_was_held_for_the_same_tokens(fresh, cached, output):
    held = PROVIDER.held(Call("fireworks", "chat", "m", 1), fresh + cached, output)
    charged = PROVIDER.charged(CALL, Usage(fresh + cached, output, cached))
    assert charged["uncached_input_tokens"] == fresh
    assert held[INPUT_TOKENS] == held["uncached_input_tokens"] == charged[INPUT_TOKENS] == fresh + cached
    assert held[OUTPUT_TOKENS] == charged[OUTPUT_TOKENS] == output


def test_two_quotas_without_a_remainder_name_no_unit():
    none = {f"x-ratelimit-{what}-tokens-{family}": value for family in ("prompt", "generated") for what, value in (("limit", "40000000"), ("remaining", "0"))}  # fmt: skip
    refusal = PROVIDER.refusal(429, none, b"")
    assert refusal is not None
    assert refusal.unit is None


def test_published():
    start = lookup("fireworks", CALL.model)
    assert [int(quota.amount) for quota in start.quotas] == [6_000, 3_600_000, 900_000, 36_000]
    assert [int(quota.amount) for quota in lookup("fireworks", "m", "large").quotas] == [
        6_000,
        21_600_000,
        5_400_000,
        216_000,
    ]
    assert [int(quota.amount) for quota in lookup("fireworks", "m", "small").quotas] == [
        6_000,
        64_800_000,
        16_200_000,
        648_000,
    ]
    assert [quota.unit for quota in start.quotas][2] == "uncached_input_tokens"
    assert lookup("fireworks", "m", "no_payment_method").quotas[0].amount == 10
    assert start.pool == CALL.model
