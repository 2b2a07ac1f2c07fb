from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest

import paceline
from paceline.batch.check import InputPlan, PoolWork
from paceline.batch.ideal import Served
from paceline.batch.progress import LineView, Live, ProgressLine, ProgressView, binding, eta_s, forecast_s, view
from paceline.batch.summary import Calls, RunTally, Sent
from paceline.providers.base import Usage
from paceline.testing import ManualClock

PLAN = InputPlan(
    100, shares={"a": PoolWork(80, {"requests": 80.0, "tokens": 8_000.0}), "b": PoolWork(20, {"requests": 20.0})}
)


def pool(*, requests=60.0, tokens=6_000.0, left=0.0, granted=0, spent=0.0, waiting=0, cool_down_s=0.0):
    def quota(unit, limit):
        return {"unit": unit, "limit": limit, "period_s": 60.0, "remaining": left, "burst": limit, "spent": spent}

    slots = {"unit": "concurrency", "limit": 5.0, "period_s": 0.0, "remaining": 5.0, "burst": 5.0, "spent": 9.0}
    quotas = [quota("requests", requests), quota("tokens", tokens), slots]
    binds = "60 requests/min" if waiting else None
    now = {"waiting": waiting, "binds": binds, "cool_down_s": cool_down_s}
    return {"quotas": quotas, "counts": {"granted": granted}} | now


def test_eta_by_what_each_pool_has_left():
    pools = {"a": pool(), "b": pool(requests=6.0)}
    assert eta_s(PLAN, pools, 100) == pytest.approx(200)  # b: 20 requests at 6 a minute
    assert eta_s(PLAN, pools, 50) == pytest.approx(100)
    assert eta_s(PLAN, {"a": pool(tokens=600.0)}, 100) == pytest.approx(800)  # a: 8 000 tokens at 10 a second
    assert eta_s(PLAN, {"a": pool(left=800.0)}, 10) == 0
    assert eta_s(PLAN, {"a": pool(left=800.0, cool_down_s=45.0)}, 10) == 45
    assert eta_s(PLAN, {}, 100) == 0


def test_eta_by_what_pools_pass_together():
    shares = {name: replace(share, passes=("joint",)) for name, share in PLAN.shares.items()}
    pools = {"a": pool(), "b": pool(), "joint": pool(requests=30.0)}
    assert eta_s(replace(PLAN, shares=shares), pools, 100) == pytest.approx(200)  # 100 requests at 30 a minute


def test_eta_by_what_requests_turned_out_to_cost():
    cost = defaultdict(float, {"requests": 200.0, "tokens": 10_000.0})
    assert eta_s(PLAN, {"a": pool()}, 100, {"a": Served(100, cost)}) == pytest.approx(160)
    assert eta_s(PLAN, {"a": pool()}, 100, {"a": Served(10, cost)}) == pytest.approx(80)


def test_what_others_spend_and_what_was_refused_says_nothing_of_the_time_that_is_left():
    meter = ProgressLine(PLAN, RunTally(requests=100, sent=Sent(Calls(refused=800))), 10)
    assert "80 s left" in meter.line({"a": pool(granted=900, spent=9_000.0, waiting=1)})[0]


def test_names_what_binds():
    assert binding({"a": pool(waiting=3)}, 50, 10) == ("60 requests/min", True)
    assert binding({"a": pool(waiting=3), "b": pool()}, 50, 10) == ("a: 60 requests/min", True)
    measured = {**pool(waiting=3), "binds": "237.55654115100805 requests/min"}
    assert binding({"a": measured}, 50, 10) == ("237.56 requests/min", True)
    assert binding({"a": pool()}, 50, 10) == ("10 workers", False)
    assert binding({}, 5, 10) == ("the answers", False)


def test_a_cool_down_after_the_end_of_a_day_is_named_by_the_day():
    cool = pool(waiting=3, left=50.0) | {"binds": "cool-down"}
    assert binding({"a": cool}, 50, 10) == ("cool-down", True)
    amounts = {"limit": 1e3, "remaining": 0.4, "burst": 1e3}
    day = {"unit": "requests", "quota": "1k requests/day", "period_s": 86_400.0} | amounts
    minute = day | {"quota": "9 requests/min", "period_s": 60.0}
    money = day | {"unit": "usd", "quota": "0.5 usd/month", "period_s": 2.6e6}
    used_up = cool | {"quotas": [minute, day, money, *cool["quotas"]]}
    assert binding({"a": used_up}, 50, 10) == ("1k requests/day", True)


def passed(monkeypatch, *instants_s):
    """Let the clock of the progress show 0 s, and then these instants."""
    clock = SimpleNamespace(monotonic=iter([0.0, *instants_s]).__next__)
    monkeypatch.setattr("paceline.batch.progress.time", clock)


@pytest.mark.parametrize(
    ("requests", "answered", "said"),
    [
        (400, [(10, 0)], "time left unknown"),
        (400, [(10, 0), (30, 96)], "95 s left"),
        (400, [(10, 0), (30, 96), (60, 399)], "0.2 s left"),
        (400, [*((at_s, 100) for at_s in range(2, 60)), (64, 110)], "2 min 49 s left"),
        (20_000, [(60 * n, min(n, 59) + 100 * max(0, n - 59)) for n in range(1, 121)], "2 h 18 min left"),
    ],
    ids=["no answer", "a provider below its limits", "the end", "the pause of a window", "a limit was raised"],
)
def test_eta_by_the_answers_until_then(monkeypatch, requests, answered, said):
    """Of the second to last, 110 in 64 s; of the last, 13,841 at 100 a minute, not at 51."""
    passed(monkeypatch, *(at_s for at_s, _ in answered))
    tally = RunTally(requests=requests)
    meter = ProgressLine(PLAN, tally, 10)
    for _, ok in answered:
        tally.ok = ok
        line, _ = meter.line({"a": pool(left=1e9, waiting=3)})
    assert said in line


def test_eta_before_a_restart_that_is_stated(monkeypatch):
    passed(monkeypatch, 60.0)
    one = pool(waiting=3)
    for quota in one["quotas"]:
        quota |= {"quota": "60 requests/min", "resets_at": "2026-11-25T00:00:00Z", "reset_s": 20.0}
    meter = ProgressLine(PLAN, RunTally(requests=75, ok=15), 10)
    assert "20 s left" in meter.line({"a": one})[0]  # not at 15 a minute


def test_line():
    tally = RunTally(requests=100, skipped=10, ok=30, failed=5, sent=Sent(Calls(refused=2)))
    tally.bill.add("openai", "gpt-5", Usage(input_tokens=1_000, output_tokens=234))
    text, share = ProgressLine(PLAN, tally, 10).line({"a": pool(waiting=1)})
    assert text.startswith("45/100  5 failed  ")
    assert "2 x 429  1,234 tokens  limited by 60 requests/min  " in text
    assert share == 0.45


@pytest.mark.parametrize("make", [Live, LineView])
def test_views_write_to_standard_error(make, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = make()
    shown.say("a [bold] word")
    shown.show("12/100", 0.12)
    shown.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert "a [bold] word" in err
    assert "12.0%  12/100" in err


def test_quiet_writes_nothing(capsys):
    quiet = view(quiet=True)
    quiet.say("a")
    quiet.show("b", 1.0)
    quiet.close()
    assert type(quiet) is ProgressView
    assert capsys.readouterr() == ("", "")


def test_eta_where_a_day_restarts():
    day = {"unit": "requests", "limit": 100.0, "period_s": 86_400.0, "remaining": 0.0, "spent": 0.0}
    day |= {"reset_s": 3_600.0, "resets_at": "2026-11-25T00:00:00Z"}
    one = pool() | {"quotas": [day]}
    plan = InputPlan(100, shares={"a": PoolWork(100, {"requests": 100.0})})
    assert eta_s(plan, {"a": one}, 50) == 3_600
    assert eta_s(plan, {"a": one}, 250) == 3_600 + 2 * 86_400


class TestBeforeTheStart:
    PLAN = InputPlan(200, shares={"a": PoolWork(200, {"requests": 200.0, "tokens": 20_000.0})})

    def test_it_is_a_forecast_of_the_pool_as_it_is(self):
        limiter = paceline.Limiter({"a": "100 requests/min burst 10"}, clock=ManualClock())
        least = forecast_s(limiter, self.PLAN, 200)
        assert least == pytest.approx((200 - 10) / 100 * 60, abs=2)
        while limiter.try_acquire("a"):
            pass
        assert forecast_s(limiter, self.PLAN, 200) == pytest.approx(120, abs=2)
        assert forecast_s(limiter, self.PLAN, 0) == 0

    def test_output_that_is_charged_when_it_is_produced_is_unknown_before_the_first_answers(self):
        limits = {"anthropic/claude-sonnet-4-5": "1000 requests/min, 1k output_tokens/min"}
        limiter = paceline.Limiter(limits, clock=ManualClock())
        pool = limiter.pacer.pools.scheduler("anthropic/claude-sonnet-4-5").pool.name
        plan = InputPlan(100, shares={pool: PoolWork(100, {"requests": 100.0, "output_tokens": 400_000.0})})
        assert forecast_s(limiter, plan, 100) < 10

    def test_of_a_long_run_the_first_requests_are_forecast(self):
        limiter = paceline.Limiter({"a": "60k requests/min burst 1"}, clock=ManualClock())
        assert forecast_s(limiter, self.PLAN, 1_000_000) == pytest.approx(1_000, rel=0.01)

    def test_what_cannot_be_forecast_is_no_error(self):
        limiter = paceline.Limiter({"a": "60 requests/min, 50 tokens/min"}, clock=ManualClock())
        limiter.try_acquire("a", tokens=1)
        assert forecast_s(limiter, self.PLAN, 200) > 20_000  # each request is above the limit: the run says so
