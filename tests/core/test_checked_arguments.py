"""Arguments of a limiter and of its policies that have a wrong type, an impossible value or an unknown name."""

import pytest

from paceline import BreakerPolicy, Limiter, PlanPolicy, RetryPolicy, SettingsError
from paceline.config import Config

NAN = float("nan")


@pytest.mark.parametrize(
    ("made", "given", "message"),
    [
        (Limiter, {"retry": 3}, "retry is 3: it must be a RetryPolicy or None"),
        (Limiter, {"retry": {"max_attempts": 3}}, "retry is {'max_attempts': 3}: it must be a RetryPolicy or None"),
        (Limiter, {"plans": {"keep": 0.1}}, "plans is {'keep': 0.1}: it must be a PlanPolicy"),
        (Limiter, {"breaker": False}, "breaker is False: it must be a BreakerPolicy or None"),
        (Limiter, {"waiting_max": 2.5}, "waiting_max is 2.5: it must be a whole number from 1 to 100,000,000"),
        (Limiter, {"prompt_cache": "no"}, "prompt_cache is 'no': it must be True or False"),
        (Limiter, {"learn": None}, "learn is None: it must be True, False or 'up'"),
        (Limiter, {"prices": {"x": {"input": NAN}}}, "prices['x']['input'] is nan: it must be a number"),
        (Limiter, {"priorities": [1]}, "priorities is [1]: it must be a dict or None"),
        (Limiter, {"clock": 3}, "clock is 3: it must be a Clock"),
        (RetryPolicy, {"jitter": 5}, "jitter is 5: it must be a share from 0 to 1"),
        (RetryPolicy, {"backoff_s": NAN}, "backoff_s is nan: it must be seconds, 0 or more"),
        (RetryPolicy, {"max_attempts": "3"}, "max_attempts is '3': it must be a whole number, 1 or more"),
        (RetryPolicy, {"max_refused": 2.5}, "max_refused is 2.5: it must be a whole number, 1 or more or None"),
        (BreakerPolicy, {"failures": 2.5}, "failures is 2.5: it must be a whole number, 1 or more"),
        (BreakerPolicy, {"pause_s": float("inf")}, "pause_s is inf: it must be seconds, 0 or more, and finite"),
        (PlanPolicy, {"keep": "x"}, "keep is 'x': it must be a number"),
    ],
)
def test_a_wrong_value(made, given, message):
    with pytest.raises(SettingsError) as caught:
        made(**given)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [3, "x", None, [1]])
def test_a_value_of_a_table_is_left_to_its_reader(value):
    assert Config(retry={"max_attempts": value}).retry == {"max_attempts": value}


@pytest.mark.parametrize(
    ("made", "name", "message"),
    [
        (Limiter, "usabel", "Limiter() has no argument 'usabel'; did you mean 'usable'?"),
        (Limiter, "limits", "Limiter() has no argument 'limits': pass them first, or as quotas="),
        (RetryPolicy, "max_atempts", "RetryPolicy() has no argument 'max_atempts'; did you mean 'max_attempts'?"),
        (BreakerPolicy, "pauses", "BreakerPolicy() has no argument 'pauses'; did you mean 'pause_s'?"),
        (
            PlanPolicy,
            "x",
            "PlanPolicy() has no argument 'x'; its arguments are keep, spread, stop_at, overage, when_shut",
        ),
    ],
)
def test_an_unknown_name(made, name, message):
    with pytest.raises(TypeError) as caught:
        made(**{name: 1})
    assert str(caught.value) == message
