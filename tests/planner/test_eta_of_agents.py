"""The forecast of agents whose prompts are cached."""

import pytest

from paceline import Limiter, SettingsError, eta
from paceline.planner import forecast as forecasts
from paceline.planner.forecast import Conversations
from paceline.planner.plan import plan
from paceline.planner.workload import Workload, WorkPhase

POOL = "anthropic/m"
LIMITS = {POOL: "1000 requests/min, 450k input_tokens/min, 90k output_tokens/min"}
TALK = Conversations(30, turns=6, prompt_tokens=20_000, grows=500, output_tokens=100, think_s=2.0)


def forecast(talk, **options):
    return eta(Limiter(LIMITS, **options), {POOL: talk}, latency_s=4.0)


def test_it_agrees_with_the_plan():
    phase = WorkPhase(
        name="agents", models=POOL, calls=6, input_tokens=20_000, output_tokens=100, grows=500, think_s=2.0
    )
    work = Workload(phases=[phase], items=30, provider={"latency_s": 4.0})
    made = plan(work.work(), {"quotas": LIMITS})
    assert forecast(TALK).total_s == pytest.approx(made.seconds, rel=0.12)
    assert forecast(TALK).binds == {POOL: "450k input_tokens/min"}


def test_without_a_quota_that_binds_it_is_the_time_of_one_agent():
    talk = Conversations(1, turns=3, prompt_tokens=1_000, think_s=7.0)
    assert forecast(talk).total_s == pytest.approx(3 * 4.0 + 2 * 7.0)


def test_what_is_not_found_in_the_cache_is_charged_again():
    fresh = Conversations(30, turns=6, prompt_tokens=20_000, grows=500, output_tokens=100, think_s=2.0, cached=0.0)
    burst, charged = 450_000, 30 * sum(20_000 + 500 * turn for turn in range(6))
    assert forecast(fresh).total_s == pytest.approx((charged - burst) / 7_500, rel=0.05)


def test_follow_ups_go_first_or_last_by_the_order_of_the_limiter():
    talk = Conversations(60, turns=2, prompt_tokens=20_000, grows=20_000, think_s=1.0, cached=0.9)
    ends = [forecast(talk, prompt_cache=on).pools[POOL] for on in (True, False)]
    # Ordered, the last agent starts last, and then answers and thinks once more.
    assert ends[1] < ends[0] < ends[1] + 5.0


def test_the_requests_of_a_forecast_are_bounded(monkeypatch):
    monkeypatch.setattr(forecasts, "REQUESTS_MAX", 100)
    with pytest.raises(SettingsError, match="more than 100 requests"):
        forecast(Conversations(30, turns=4, prompt_tokens=1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"turns": -1}, "turns is -1"),
        ({"agents": 2.5}, "agents is 2.5: it must be a whole number from 0 to"),
        ({"cached": 1.5}, "cached is 1.5: it must be a share from 0 to 1"),
    ],
)
def test_wrong_conversations_are_explained(fields, message):
    with pytest.raises(SettingsError, match=message):
        Conversations(**{"agents": 1, "turns": 1, "prompt_tokens": 1, **fields})
