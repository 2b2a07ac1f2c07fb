"""Arguments that a pool cannot use are applied by what follows from them, or refused: none is ignored in silence."""

import types
from functools import partial

import pytest

import paceline
from paceline import Group, Limiter, PacelineWarning, QuotaError
from paceline.pacing.allowances import PATIENCE_S, Asked
from paceline.pacing.permit import waiter_of
from paceline.providers.base import Call, Usage
from paceline.testing import ManualClock

APART = "anthropic/c"
QUOTAS = {
    APART: ["50 requests/min", "30k input_tokens/min", "8k output_tokens/min"],
    "input": "30k input_tokens/min",
    "both": ["30k tokens/min", "20k input_tokens/min"],
    "sum": "30k tokens/min",
    "requests": "50 requests/min",
}
SIDES = {"input_tokens": 1_200, "output_tokens": 300}


@pytest.fixture
def limiter():
    return Limiter(QUOTAS, clock=ManualClock())


def charged(permit, *units):
    return [permit.charged.get(unit) for unit in units]


# A sum of tokens, and quotas on input and output.


@pytest.mark.parametrize("named", ["input_tokens", "output_tokens"])
@pytest.mark.parametrize("pool", QUOTAS)
def test_a_sum_beside_one_side_gives_the_other(limiter, pool, named):
    permit = limiter.try_acquire(pool, tokens=1_500, **{named: SIDES[named]})
    assert permit.cost == {"tokens": 1_500, "requests": 1} | SIDES
    permit.settle(tokens=1_600, **{named: SIDES[named] + 40})
    other = next(side for side in SIDES if side != named)
    if pool in (APART, "both") or (pool, named) == ("input", "output_tokens"):  # it is counted there
        assert permit.charged[other] == SIDES[other] + 60


@pytest.mark.parametrize("pool", [APART, "input", "both"])
def test_a_sum_alone_is_refused_where_a_side_is_counted(limiter, pool):
    said = rf"{pool}: tokens is 1,500 of .*counts input_tokens.*pass input_tokens and"
    group = Group({"a": (limiter, "sum"), "b": (limiter, pool)})
    for ask in (partial(limiter.acquire, pool), partial(limiter.try_acquire, pool), group.acquire):
        with pytest.raises(QuotaError, match=said):
            ask(tokens=1_500)
    with pytest.raises(QuotaError, match=said):
        paceline.eta(limiter, {pool: [{"tokens": 1_500}]})
    assert limiter.try_acquire(pool, tokens=0).charged["input_tokens"] == 0


@pytest.mark.parametrize("usage", [{"tokens": 1_400}, {"tokens_used": 1_400}])
def test_to_settle_a_sum_alone_is_refused_where_only_sides_are_counted(limiter, usage):
    for pool in (APART, "input"):
        permit = limiter.try_acquire(pool, **SIDES)
        with pytest.raises(QuotaError, match=rf"{pool}: tokens is 1,400 of .* pass input_tokens"):
            permit.settle(**usage) if "tokens" in usage else permit.settle(usage)
        assert permit.open
        permit.settle(input_tokens=1_100, output_tokens=100)
        assert permit.charged["input_tokens"] == 1_100


def test_a_sum_alone_is_settled_where_it_is_counted_and_harmless_where_no_tokens_are(limiter):
    permit = limiter.try_acquire("both", **SIDES)
    permit.settle(tokens=1_400)
    assert charged(permit, "tokens", "input_tokens") == [1_400, 1_200]
    limiter.try_acquire("requests", tokens=1_500).settle(tokens=1_400)
    limiter.try_acquire("requests", **SIDES).settle(**SIDES)


def test_a_joint_limit_counts_the_sum():
    limiter = Limiter(QUOTAS, joint_limits={"requests": "10k tokens/min"}, clock=ManualClock())
    limiter.try_acquire("requests", tokens=6_000).settle(tokens=2_000)
    joint = limiter.status()["pools"]["joint/requests"]["quotas"][0]
    assert joint["remaining"] == pytest.approx(8_000, abs=170)  # less a second of refill
    limiter = Limiter(QUOTAS, joint_limits={"requests": "10k input_tokens/min"}, clock=ManualClock())
    with pytest.raises(QuotaError, match="counts input_tokens apart"):
        limiter.try_acquire("requests", tokens=6_000)


def test_a_sum_below_the_side_that_is_named_is_refused_where_the_other_is_counted(limiter):
    with pytest.raises(QuotaError, match="tokens is 100, and input_tokens alone is 1,200"):
        limiter.acquire(APART, tokens=100, input_tokens=1_200)
    limiter.acquire("sum", tokens=100, input_tokens=1_200)  # cached input, for example, may not count


def test_output_alone_gives_no_sum_where_the_input_was_not_told(limiter):
    permit = limiter.try_acquire("sum", tokens=1_500)
    with pytest.raises(QuotaError, match="1,500 tokens were reserved without their input"):
        permit.settle(output_tokens=300)
    permit.settle(input_tokens=900)  # embeddings have no output
    assert permit.charged["tokens"] == 900
    permit = limiter.try_acquire("sum", tokens=1_500, output_tokens=300)
    permit.settle(output_tokens=100)
    assert permit.charged["tokens"] == 1_300


def test_quotas_that_answers_have_added_make_a_sum_a_warning(limiter):
    """The same call was right before, and an error in the middle of a run would be late."""
    headers = {
        f"anthropic-ratelimit-{side}-tokens-{what}": value
        for side in ("input", "output")
        for what, value in {"limit": "30000", "remaining": "29000", "reset": "2030-01-01T00:00:00Z"}.items()
    }
    limiter = Limiter({APART: "50 requests/min"}, clock=ManualClock())
    limiter.try_acquire(APART, tokens=1_500).settle(**SIDES, headers=headers)
    units = [quota["unit"] for quota in limiter.status()["pools"][APART]["quotas"]]
    assert "input_tokens" in units
    limiter.pacer.clock.advance(60)
    with pytest.warns(PacelineWarning, match="counts input_tokens and output_tokens apart"):
        permit = limiter.try_acquire(APART, tokens=1_500)
    with pytest.warns(PacelineWarning, match="counts input_tokens and output_tokens apart"):
        permit.settle(tokens=1_400)


def test_a_function_whose_result_has_a_sum_alone_stays_as_reserved_with_a_warning(limiter):
    answer = types.SimpleNamespace(tokens_used=1_400)
    with pytest.warns(PacelineWarning, match="tokens is 1,400 .* stays charged as reserved"):
        assert limiter.paced(APART, **SIDES)(lambda: answer)() is answer
    limiter.paced("sum", **SIDES)(lambda: answer)()
    limiter.paced(APART, **SIDES)(lambda: "no usage")()


# Other arguments.


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("prompt_tokens", "input_tokens"),
        ("completion_tokens", "output_tokens"),
        ("max_tokens", "output_tokens"),
        ("total_tokens", "tokens"),
    ],
)
def test_names_of_other_apis_are_told_in_units_of_this_one(limiter, name, unit):
    for ask in (limiter.acquire, limiter.try_acquire):
        with pytest.raises(QuotaError, match=f"unknown unit '{name}'.* it is '{unit}' here"):
            ask("sum", **{name: 5})
    with pytest.raises(QuotaError, match=f"it is '{unit}' here"):
        limiter.try_acquire("sum", tokens=5).settle(**{name: 5})
    assert Limiter({"own": f"5 {name}/min"}, clock=ManualClock()).try_acquire("own", **{name: 1})


def test_settle_has_no_cached_tokens_because_the_answer_tells_them(limiter):
    with pytest.raises(QuotaError, match=r"unknown unit 'cached_tokens'.*settle\(answer\)"):
        limiter.try_acquire(APART, **SIDES).settle(cached_tokens=500)


@pytest.mark.parametrize("option", [{"timeout": 5}, {"lane": "bulk"}, {"name": "agent"}, {"conversation": "c"}])
def test_try_acquire_has_amounts_alone(limiter, option):
    with pytest.raises(QuotaError, match=f"amounts per unit alone: leave out {next(iter(option))}"):
        limiter.try_acquire("sum", **option)


def test_a_further_attempt_keeps_its_lane_and_ends_no_later(limiter):
    first = limiter.acquire("sum", lane="bulk", timeout=30, tokens=10).wait()
    first.refused(retry_after_s=0.001)
    with pytest.raises(QuotaError, match="lane is 'other': a further attempt keeps the lane of the first, 'bulk'"):
        limiter.acquire("sum", again=first, lane="other", tokens=10)
    limiter.pacer.clock.advance(10)
    again = limiter.acquire("sum", again=first, lane="bulk", timeout=30, tokens=10)
    now_ns = limiter.pacer.clock.now_ns()
    assert again._waiter.deadline_ns == now_ns + 20 * 10**9
    endless = limiter.try_acquire("sum", tokens=10)
    endless.refused(retry_after_s=0.001)
    assert limiter.acquire("sum", again=endless, timeout=5, tokens=10)._waiter.deadline_ns == now_ns + 5 * 10**9


def test_money_by_hand_is_refused_where_only_clients_have_a_budget():
    prices = {APART: {"input": 3.0, "output": 15.0}}
    limiter = Limiter({**QUOTAS, "own": "5 usd/day"}, budget="10 usd/day", prices=prices, clock=ManualClock())
    with pytest.raises(QuotaError, match="usd is charged to no budget"):
        limiter.acquire(APART, usd=0.02, **SIDES)
    assert limiter.try_acquire("own", usd=0.02).charged["usd"] == 0.02
    assert Limiter(QUOTAS, clock=ManualClock()).try_acquire("sum", usd=0.02, tokens=5)  # one call for all pools


class TestFailed:
    """What ``failed`` is told."""

    def test_a_response_is_read_as_its_exception_is(self):
        limiter = Limiter(QUOTAS, breaker=paceline.BreakerPolicy(failures=1), clock=ManualClock())
        limiter.try_acquire(APART, **SIDES).failed(types.SimpleNamespace(status_code=503, headers={}))
        assert limiter.status()["pools"][APART]["cool_down_s"] > 0

    @pytest.mark.parametrize("error", ["timeout", 503, object()])
    def test_another_thing_is_refused(self, limiter, error):
        with pytest.raises(TypeError, match=r"pass an exception or an HTTP response, or nothing"):
            limiter.try_acquire(APART, **SIDES).failed(error)

    def test_a_timeout_after_a_refusal_is_a_timeout(self, limiter):
        error = TimeoutError("no answer")
        error.__context__ = RuntimeError("Rate limit exceeded for gpt-4o")
        permit = limiter.try_acquire(APART, **SIDES)
        permit.failed(error)
        assert permit.refusal is None

    def test_a_refusal_pauses_the_pool_as_refused_does(self, limiter):
        permit = limiter.try_acquire(APART, **SIDES)
        permit.failed(types.SimpleNamespace(status_code=429, headers={"retry-after": "20"}))
        assert permit.refusal is not None
        assert limiter.status()["pools"][APART]["cool_down_s"] == pytest.approx(20, abs=0.1)


@pytest.mark.parametrize(("timeout_s", "waits_s"), [(5.0, [5, 5]), (None, [PATIENCE_S, None])])
def test_how_long_a_call_waits_for_the_limits_of_its_lane(timeout_s, waits_s):
    clock, prices = ManualClock(), {"openai/m": {"input": 1.0, "output": 2.0}}
    limiter = Limiter(budget="10 usd/day", prices=prices, clock=clock)
    limiter.limit_lane("bulk", "60 requests/min")
    asked = Asked(Call("openai", "chat", "m", 10, 5), lambda: Usage(input_tokens=10, output_tokens=5))
    charge = limiter.pacer.allowances.charge(limiter.pacer.lanes.of(lane="bulk"), [asked])
    until_ns = [waiter_of(step).deadline_ns for step, _ in charge.steps(limiter.pacer.deadline_ns(timeout_s))]
    assert until_ns == [wait_s and clock.now_ns() + round(wait_s * 1e9) for wait_s in waits_s]


# What the user may change later.


def test_a_limiter_has_its_own_copy_of_the_priorities():
    priorities = {"agent_*": 1}
    limiter = Limiter(QUOTAS, clock=ManualClock(), priorities=priorities)
    priorities["*"] = "none"
    for name in ("agent_08", "other"):
        limiter.acquire("requests", name=name).wait().settle()
    assert limiter.status()["pools"]["requests"]["counts"]["settled"] == 2
