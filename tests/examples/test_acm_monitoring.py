"""The evaluation program's own names, in its own words: five samples of headers, log lines, metrics, state; in virtual time."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
from example_programs import EXAMPLES, load

import paceline
from paceline.core.quota import NS
from paceline.testing import ManualClock
from virtual_time import virtual

_, monitoring = load("acm", "monitoring")
AT = datetime(2025, 12, 4, 11, 59, 30, tzinfo=UTC).timestamp()
SAMPLES = {
    "openai/gpt-6.1-sol": {
        "x-ratelimit-limit-requests": "500", "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-requests": "499", "x-ratelimit-remaining-tokens": "149800",
        "x-ratelimit-reset-requests": "120ms", "x-ratelimit-reset-tokens": "1s",
    },
    "anthropic/claude-sonnet-5-5": {
        "anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2025-12-04T12:00:00Z",
        "anthropic-ratelimit-tokens-limit": "40000", "anthropic-ratelimit-tokens-remaining": "39500",
        "anthropic-ratelimit-tokens-reset": "2025-12-04T12:00:00Z",
    },
    "google/gemini-3.8-flash": {
        "x-ratelimit-limit": "60", "x-ratelimit-remaining": "59", "x-ratelimit-reset": "1701696000",
    },
    "azure/a-deployment": {
        "x-ratelimit-remaining-requests": "119", "x-ratelimit-remaining-tokens": "119900", "x-ms-region": "eastus",
    },
    "groq/openai/gpt-oss-120b": {
        "x-ratelimit-limit-requests": "30", "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-requests": "29", "x-ratelimit-remaining-tokens": "5800",
        "x-ratelimit-reset-requests": "2s", "x-ratelimit-reset-tokens": "10s",
    },
}  # fmt: skip
"""The plan's five samples, as they are in it."""

LEFT = {
    "openai/gpt-6.1-sol": (500, 499, 150_000, 149_800),
    "anthropic/claude-sonnet-5-5": (50, 49, 40_000, 39_500),
    "google/gemini-3.8-flash": (60, 59, 120_000, 119_850),  # its tokens are input alone
    # It states no limits: the file's hold, and what is left is above them.
    "azure/a-deployment": (100, 99, 80_000, 79_800),
    "groq/openai/gpt-oss-120b": (30, 29, 6_000, 5_800),  # of a minute, though Groq's own count the day
}
"""Of each sample: the limit and what is left, of requests and of tokens a minute."""


@pytest.fixture
def file():
    return EXAMPLES / "acm" / "defaults.yaml"


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, "paceline.rate_limit")
    logger = logging.getLogger("paceline.rate_limit")
    logger.addFilter(monitoring.as_planned)
    yield caplog
    logger.removeFilter(monitoring.as_planned)


@pytest.mark.parametrize("name", SAMPLES)
def test_each_sample_is_read_as_a_minute_s(file, name):
    limiter = paceline.Limiter.load(file, clock=ManualClock(AT))
    permit = limiter.try_acquire(name, input_tokens=150, output_tokens=50)
    permit.settle({"input_tokens": 150, "output_tokens": 50}, headers=SAMPLES[name])
    pool = limiter.status()["pools"][limiter.pacer.pools.scheduler(name).pool.name]
    assert [quota["unit"] for quota in pool["quotas"]] == ["requests", "tokens", "concurrency"]  # and none of a day
    metrics = pool["metrics"]
    rpm, requests, tpm, tokens = LEFT[name]
    assert (metrics["rpm_limit"], metrics["rpm_remaining"], metrics["tpm_limit"]) == (rpm, requests, tpm)
    second = tpm / 60  # Groq and OpenAI state the reset in whole seconds, which leaves as much open
    assert tokens - second * 10 <= metrics["tpm_remaining"] <= tokens


def test_log_lines_have_the_planned_names_levels_and_fields(file, log):
    limiter = paceline.Limiter.load(file, clock=ManualClock(AT))
    permit = limiter.try_acquire("openai/gpt-6.1-sol", input_tokens=4_000, output_tokens=1_000)
    permit.settle(input_tokens=3_900, output_tokens=900)
    acquire, release = log.records
    assert [(one.getMessage(), one.levelname) for one in log.records] == [
        ("rate_limit.acquire", "INFO"), ("rate_limit.release", "INFO"),
    ]  # fmt: skip
    planned = {"provider": "openai", "model": "gpt-6.1-sol", "estimated_tokens": 5_000, "wait_seconds": 0.0}
    assert {name: getattr(acquire, name) for name in planned} == planned
    assert (acquire.rpm_remaining, acquire.tpm_remaining) == (499, 145_000)
    planned = {"provider": "openai", "model": "gpt-6.1-sol", "actual_tokens": 4_800, "estimation_ratio": 0.96}
    assert {name: getattr(release, name) for name in planned} == planned
    assert release.tpm_remaining == 145_200


def test_what_is_actual_is_the_usage_and_not_the_charge(file, log):
    """OpenAI charges the maximum output. A call without an estimate is compared with nothing."""
    limiter = paceline.Limiter.load(file, clock=(clock := ManualClock(AT)))
    permit = limiter.try_acquire("openai/gpt-6.1-sol", input_tokens=1_000, output_tokens=4_096)
    permit.settle({"usage": {"prompt_tokens": 1_000, "completion_tokens": 200}})
    release = log.records[-1]
    assert (release.actual_tokens, release.estimation_ratio) == (1_200, 0.2355)
    assert (release.charged["tokens"], permit.charged["tokens"]) == (5_096, 5_096)
    clock.advance(2)
    limiter.try_acquire("openai/gpt-6.1-sol").settle({"usage": {"prompt_tokens": 5_000, "completion_tokens": 100}})
    assert (log.records[-1].actual_tokens, log.records[-1].estimation_ratio) == (5_100, None)
    lines = monitoring.exported(limiter).splitlines()
    assert 'token_estimation_ratio{provider="openai",model="gpt-6.1-sol"} 0.2355' in lines


def test_a_refusal_is_a_warning_with_retry_after(file, log):
    limiter = paceline.Limiter.load(file, clock=ManualClock(AT))
    limiter.try_acquire("openai/gpt-6.1-sol", input_tokens=10).refused(retry_after_s=30)
    line = log.records[-1]
    assert (line.getMessage(), line.levelname) == ("rate_limit.429_error", "WARNING")
    assert (line.provider, line.model, line.retry_after) == ("openai", "gpt-6.1-sol", 30)


@virtual
async def test_one_format_with_all_planned_fields_is_for_every_line(file, log, clock):
    names = "provider model estimated_tokens wait_seconds rpm_remaining tpm_remaining actual_tokens estimation_ratio retry_after"
    formatter = logging.Formatter("%(levelname)s %(message)s " + " ".join(f"%({name})s" for name in names.split()))

    limiter = paceline.Limiter.load(file, clock=clock)
    held = [limiter.try_acquire("groq/openai/gpt-oss-120b", input_tokens=2_500) for _ in range(2)]
    for permit in held:
        if permit:
            permit.refused(paceline.Refusal(paceline.RefusalKind.CAPACITY))
    for number, attempt in enumerate(limiter.attempts("groq/openai/gpt-oss-120b", input_tokens=3_000)):
        async with attempt as permit:
            permit.settle(input_tokens=3_000) if number else permit.refused(retry_after_s=2)
    lines = {record.event: formatter.format(record) for record in log.records}
    assert {"rate_limit.wait", "rate_limit.retry", "rate_limit.refused", "rate_limit.429_error"} < lines.keys()
    for event, line in lines.items():
        assert " groq openai/gpt-oss-120b " in line
        assert line.startswith(("INFO ", "WARNING ", "DEBUG Rate", "DEBUG Retry")), event


def test_metrics_have_the_planned_names(file):
    limiter = paceline.Limiter.load(file, clock=ManualClock(AT))
    limiter.try_acquire("openai/gpt-6.1-sol", input_tokens=4_000, output_tokens=1_000).settle(
        input_tokens=3_900, output_tokens=900
    )
    permit = limiter.try_acquire("google/gemini-3.8-flash", input_tokens=100)
    limiter.try_acquire("groq/openai/gpt-oss-120b", input_tokens=10).refused()
    lines = monitoring.exported(limiter).splitlines()
    assert [line.split()[2:] for line in lines if line.startswith("#")] == [
        ["rate_limit_remaining_rpm", "gauge"], ["rate_limit_remaining_tpm", "gauge"], ["token_estimation_ratio", "gauge"],
        ["rate_limit_wait_seconds", "counter"], ["rate_limit_429_count", "counter"], ["concurrent_requests", "gauge"],
    ]  # fmt: skip
    openai = '{provider="openai",model="gpt-6.1-sol"}'
    assert f"rate_limit_remaining_rpm{openai} 499" in lines
    assert f"rate_limit_remaining_tpm{openai} 145200" in lines
    assert f"token_estimation_ratio{openai} 0.96" in lines
    assert f"rate_limit_wait_seconds{openai} 0" in lines
    assert 'rate_limit_429_count{provider="groq",model="openai/gpt-oss-120b"} 1' in lines
    assert 'concurrent_requests{provider="google"} 1' in lines
    assert 'concurrent_requests{provider="openai"} 0' in lines
    permit.cancel()


def test_state_and_permits_have_the_planned_fields(file):
    clock = ManualClock(AT)
    state = monitoring.State(lambda: clock.now_ns() / NS)
    limiter = paceline.Limiter.load(file, clock=clock, events=state)
    permit = limiter.try_acquire("openai/gpt-6.1-sol", input_tokens=400, output_tokens=100)
    told, other = (monitoring.RateLimitPermit.of(permit) for _ in range(2))
    assert (told.provider, told.model, told.estimated_tokens) == ("openai", "gpt-6.1-sol", 500)
    at = datetime.fromtimestamp(AT, UTC)
    assert abs(told.acquired_at - at) < timedelta(milliseconds=2)
    assert told.permit_id != other.permit_id
    clock.advance(7)
    permit.settle(input_tokens=400, output_tokens=90)
    assert abs(state.last_request_at["openai/gpt-6.1-sol"] - at) < timedelta(milliseconds=2)
    assert abs(state.last_updated["openai/gpt-6.1-sol"] - at - timedelta(seconds=7)) < timedelta(milliseconds=2)
