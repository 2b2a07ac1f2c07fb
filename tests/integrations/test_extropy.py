"""What extropy's engine is given in the place of its limiter; extropy itself: tests/frameworks/extropy."""

from types import SimpleNamespace

import openai
import pytest

import paceline
from paceline.integrations.extropy import ExtropyLimiter, ExtropyRole
from paceline.pacing.permit import _current
from waits import play

GPT, MINI = "openai/gpt-5", "openai/gpt-5-mini"
PROMPT = "You are a voter of forty years. What do you think of the new tax? " * 10


@pytest.fixture(autouse=True)
def no_permit_is_left():
    """A permit that was handed down would be that of the next test in this thread."""
    yield
    _current.set(None)


@pytest.fixture
def world(paceline_emulator):
    fast = "600 requests/min,1M tokens/min"
    return paceline_emulator(limits={"gpt-5": fast, "gpt-5-mini": fast}, headers=False)


def test_waits_are_in_the_statistics(clock):
    limiter = paceline.Limiter({"openai/*": "600 requests/min burst 1"}, headroom_s=0, clock=clock)
    dual = ExtropyLimiter(limiter, GPT, MINI)
    for _ in range(11):
        play(clock, dual.pivotal.acquire_sync)
    stats = dual.stats()
    assert (stats["pivotal"]["total_acquired"], stats["routine"]["total_acquired"]) == (11, 0)
    assert stats["pivotal"]["total_wait_time_seconds"] == pytest.approx(1, abs=0.01)


async def test_without_a_client_below_nothing_stays_in_flight():
    limiter = paceline.Limiter({"openai/*": ["600 requests/min", "1M tokens/min", "2 concurrency"]})
    role = ExtropyRole(limiter, GPT)
    for _ in range(5):
        await role.acquire(100, 50)
    status = limiter.status()["pools"][GPT]
    assert status["in_flight"] == 1  # the last, until its time to live is over
    assert status["counts"] == {"granted": 5, "settled": 4}
    assert {quota["unit"]: quota["spent"] for quota in status["quotas"]}["tokens"] == 750


def test_sync(world):
    limiter = paceline.Limiter({"openai/*": ["600 requests/min", "1M tokens/min"]})
    role = ExtropyRole(limiter, GPT)
    with openai.OpenAI(api_key="k", base_url=f"{world.base_url}/v1") as client:
        limiter.attach(client, provider="openai")
        assert role.acquire_sync(estimated_input_tokens=200, estimated_output_tokens=50) == pytest.approx(0, abs=0.1)
        client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": PROMPT}], max_tokens=50)
    assert limiter.status()["pools"][GPT]["counts"] == {"granted": 1, "settled": 1}


def test_one_model_for_both_roles_is_one_pool():
    limiter = paceline.Limiter.for_provider("openai", tier=1)
    for dual in (
        ExtropyLimiter(limiter, GPT),
        ExtropyLimiter(limiter, GPT, GPT),
        ExtropyLimiter(limiter, GPT, "gpt-5"),
    ):
        assert dual.routine is dual.pivotal is dual.strong is dual.fast
        assert set(dual.stats()) == {"pivotal"}


def test_the_factory_takes_what_extropy_gives():
    engine = SimpleNamespace(DualRateLimiter=type("DualRateLimiter", (), {}))
    limiter = paceline.Limiter({"openai/*": "500 requests/min", "anthropic/*": "50 requests/min"})
    engine.DualRateLimiter.create = ExtropyLimiter.factory(limiter)
    dual = engine.DualRateLimiter.create(
        strong_model_string="anthropic/claude-sonnet-4",
        fast_model_string=MINI,
        tier=None,
        rpm_override=None,
        tpm_override=None,
    )
    assert (dual.strong.stats()["provider"], dual.fast.stats()["model"]) == ("anthropic", "gpt-5-mini")
    old = engine.DualRateLimiter.create(provider="openai", pivotal_model="gpt-5", routine_model="gpt-5-mini")
    assert (old.pivotal.stats()["model"], old.routine.stats()["model"]) == ("gpt-5", "gpt-5-mini")
    with pytest.raises(paceline.SettingsError, match="no quota for 'nobody'"):
        engine.DualRateLimiter.create(strong_model_string="nobody")


def limits(role):
    name = f"{role.stats()['provider']}/{role.stats()['model']}"
    return {quota["unit"]: quota["limit"] for quota in role._limiter.status()["pools"][name]["quotas"]}


def test_the_command_lines_tier_and_overrides_are_limits():
    limiter = paceline.Limiter(provider="openai", tier=1)
    create = ExtropyLimiter.factory(limiter)
    given = {"provider": "openai", "pivotal_model": "gpt-5", "routine_model": "gpt-5-mini", "tier": 3}
    dual = create(**given, rpm_override=300)
    assert limits(dual.pivotal) == {"requests": 300, "tokens": 2e6}  # tier 3 but for the override
    assert limits(dual.routine) == {"requests": 5_000, "tokens": 4e6}  # tier 3, and no override
    assert (dual.pivotal.rpm, dual.routine.rpm, dual.max_safe_concurrent) == (300, 5_000, 150)
    assert limits(create(**given, rpm_override=300).pivotal) == {"requests": 300, "tokens": 2e6}
    with pytest.raises(
        paceline.SettingsError, match="pool openai/gpt-5 is in use: set its tier and its overrides before"
    ):
        create(**given, rpm_override=400)


def test_overrides_and_tier_of_the_program_beat_a_file_and_the_limiter():
    given = {"openai/gpt-5": ["700 requests/min", "90k tokens/min"]}
    limiter = paceline.Limiter(given, provider="openai", tier=2, rpm_override=50)
    dual = ExtropyLimiter(limiter, GPT, MINI, tier=4, tpm_override=80_000, rpm_override=900)
    assert limits(dual.pivotal) == {"requests": 900, "tokens": 80_000}
    assert limits(dual.routine) == {"requests": 50, "tokens": 10e6}


def test_one_model_in_both_roles_keeps_the_override():
    dual = ExtropyLimiter(paceline.Limiter(provider="openai"), GPT, "gpt-5-2025-08-07", tier=2, rpm_override=300)
    assert dual.routine is dual.pivotal
    assert limits(dual.pivotal) == {"requests": 300, "tokens": 1e6}


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("openai/gpt-5", {"tier": 9}, "tier 9 of openai is unknown"),
        ("agents", {"tier": 1}, "'agents' is no model of a provider: write it like 'openai/gpt-6-luna'"),
    ],
)
def test_what_cannot_be_overridden(model, options, words):
    with pytest.raises(paceline.SettingsError, match=words):
        paceline.Limiter({"agents": "5 requests/min"}).override(model, **options)


def test_estimates_default_to_600_in_and_200_out():
    limiter = paceline.Limiter({"anthropic/*": ["50 requests/min", "30k input_tokens/min", "8k output_tokens/min"]})
    ExtropyRole(limiter, "anthropic/claude-haiku-4.5").acquire_sync()
    [pool] = limiter.status()["pools"].values()
    assert [quota["spent"] for quota in pool["quotas"]] == [1, 600, 200]


async def test_output_that_is_expected_never_makes_a_call_too_large():
    limiter = paceline.Limiter({"anthropic/*": ["50 requests/min", "30k input_tokens/min", "8k output_tokens/min"]})
    role = ExtropyRole(limiter, "anthropic/claude-sonnet-4")
    await role.acquire(estimated_input_tokens=1_000, estimated_output_tokens=20_000)
    with pytest.raises(paceline.NeverFitsError):
        await role.acquire(estimated_input_tokens=100_000, estimated_output_tokens=100)
