"""``metrics`` of a pool: its numbers in one level, under the names of metrics."""

from datetime import UTC, datetime

import paceline
from paceline.core.results import Refusal, RefusalKind
from paceline.testing import ManualClock

NOON = datetime(2027, 3, 20, 12, tzinfo=UTC).timestamp()


def metrics_of(limiter, pool):
    return limiter.status()["pools"][pool]["metrics"]


def test_requests_and_tokens_per_minute_and_day():
    limits = {"rpm": "500 requests/min", "tpm": "30k tokens/min", "rpd": "100 requests/day", "tpd": "1M tokens/day"}
    clock = ManualClock(NOON)
    limiter = paceline.Limiter({"openai/m": list(limits.values())}, clock=clock)
    limiter.try_acquire("openai/m", input_tokens=1_000, output_tokens=500).settle(input_tokens=900, output_tokens=500)
    refused = limiter.try_acquire("openai/m", input_tokens=10)
    metrics = metrics_of(limiter, "openai/m")
    assert [metrics[f"{name}_limit"] for name in limits] == [500, 30_000, 100, 1_000_000]
    assert [round(metrics[f"{name}_remaining"]) for name in limits] == [498, 28_590, 98, 998_590]
    assert metrics["rpd_resets_at"] == metrics["tpd_resets_at"] == "2027-03-21T00:00:00Z"
    assert metrics["rpd_reset_s"] == 43_200
    assert (metrics["in_flight"], metrics["rate_limit_429_count"], metrics["rate_limit_wait_seconds"]) == (1, 0, 0)
    assert metrics["estimate_ratio"] == round(1_400 / 1_500, 4)
    refused.refused(Refusal(RefusalKind.RATE, retry_after_s=1.0))
    assert metrics_of(limiter, "openai/m")["rate_limit_429_count"] == 1


def test_input_and_output_apart():
    limits = {"anthropic/m": ["30k input_tokens/min", "8k output_tokens/min"]}
    metrics = metrics_of(paceline.Limiter(limits, clock=ManualClock(NOON)), "anthropic/m")
    assert (metrics["itpm_limit"], metrics["otpm_remaining"]) == (30_000, 8_000)
    assert not [name for name in metrics if name.startswith(("rpm", "tpm", "rpd"))]


def test_of_two_quotas_of_a_day_the_lower_amount():
    """The bucket of the provider is emptier than the window after midnight."""
    clock = ManualClock(datetime(2027, 3, 20, 23, 59, tzinfo=UTC).timestamp())
    limiter = paceline.Limiter({"openai/m": "100 requests/day"}, clock=clock)
    for _ in range(50):
        limiter.try_acquire("openai/m").settle()
    clock.advance(120)
    metrics = metrics_of(limiter, "openai/m")
    assert (metrics["rpd_limit"], round(metrics["rpd_remaining"])) == (100, 50)
    assert metrics["rpd_resets_at"] == "2027-03-22T00:00:00Z"


def test_slots_of_a_provider_before_its_first_use():
    limiter = paceline.Limiter(
        {"openai/m": "5 requests/min"}, concurrency={"openai": 10}, min_interval_s=0.05, clock=ManualClock()
    )
    pools = limiter.status()["pools"]
    assert set(pools) == {"openai/m", "openai/in flight", "openai/spacing"}
    assert pools["openai/in flight"]["quotas"][0]["remaining"] == 10
