"""Processes before a provider of a plan: its windows are used up, and its refusals name no unit and state the end."""

import json

import pytest
from tests.simulation.fleet import Fleet

from grids import some
from paceline.emulator.wire import HttpAnswer
from paceline.emulator.world import World
from paceline.pacing.retry import RetryPolicy
from paceline.planner import wire
from paceline.planner.forecast import eta
from paceline.planner.timeline import end

HOUR_S = 3_600.0
PATIENT = RetryPolicy(max_retry_after_s=1e6, faults=True, max_attempts=12)


def claude(wait_s):
    said = "This request would exceed your account's rate limit. Please try again later."
    return {"retry-after": str(int(wait_s) + 1)}, {"type": "rate_limit_error", "message": said}


def codex(wait_s):
    """It rounds the wait down, so that one attempt comes a moment too early."""
    said = {"message": "The usage limit has been reached", "plan_type": "plus", "resets_in_seconds": int(wait_s)}
    return {"x-codex-primary-used-percent": "100"}, {"type": "usage_limit_reached", **said}


def of_tokens(wait_s):
    """It names a unit, and no quota whose period explains the wait."""
    return {"retry-after": str(int(wait_s))}, {"type": "tokens", "message": "Rate limit reached"}


class Plan(Fleet):
    """``windows`` windows of ``hours``, each of which admits ``budget`` requests; ``says_s``: the stated wait, by the true one."""

    def __init__(
        self, monkeypatch, form, hours, budget, windows, says_s=lambda wait_s: wait_s, told="60 requests/min", **options
    ):
        def refuse(call, outcome, refused, levels):
            headers, error = form(says_s(refused.wait_s))
            self.ends_s = self.sim.now_s + refused.wait_s
            self.first_end_s = self.first_end_s or self.ends_s
            lines = [(name.encode(), value.encode()) for name, value in headers.items()]
            answer = HttpAnswer(429, lines, json.dumps({"type": "error", "error": error}).encode())
            call.network.to_caller(lambda: end(outcome, call._reply(answer)))

        monkeypatch.setattr(wire.SimulatedHttp, "_refuse", refuse)
        monkeypatch.setattr(World, "levels", lambda *_: [])
        true = f"{budget} requests/{round(60 * hours)}min window"
        settings = {"limits": {"m": true}, "latency_s": 4.0, "jitter": 0.3}
        options = {"workers": 4, "words": (20, 200), "retry": PATIENT, **options}
        super().__init__(told, settings, jobs=budget * windows, **options)
        self.first_end_s, self.between, self._length_s, self._budget = 0.0, windows - 1, hours * HOUR_S, budget

    @property
    def ideal_s(self):
        """At a request a second. The first window is shorter than the others: the windows are those of the clock."""
        return self.first_end_s + (self.between - 1) * self._length_s + self._budget

    @property
    def took_s(self):
        return self.admitted[-1][0]

    def said(self):
        return f"{self.took_s:.0f} s of {self.ideal_s:.0f}, {len(self.refused)} refused"


# hours, requests a window, windows; the most refusals a window; processes, several of them with a store
WINDOWS = {
    "1 h": (1, 30, 4, 20, 1), "5 h": (5, 30, 4, 20, 1), "a day": (24, 30, 3, 32, 1), "a week": (168, 10, 3, 175, 1),
    "1 h, two processes": (1, 30, 3, 20, 2),
}  # fmt: skip


def limits(plan):
    """The limits of each process at the end, and what answers have changed of them."""
    found = [host.process.limiter.status()["pools"].values() for host in plan.hosts]
    return [(q["limit"], q["learned"]) for pools in found for pool in pools for q in pool["quotas"]]


@pytest.mark.parametrize("form", some([claude, codex], codex))
@pytest.mark.parametrize("window", WINDOWS)
def test_each_window_is_used_as_fast_as_the_first_one(monkeypatch, window, form):
    hours, budget, windows, refused, hosts = WINDOWS[window]
    plan = Plan(monkeypatch, form, hours, budget, windows, hosts=hosts, capacity={} if hosts > 1 else None).run(1e9)
    assert plan.lost == 0
    assert plan.took_s <= 1.01 * plan.ideal_s, plan.said()
    assert len(plan.refused) <= refused * plan.between, plan.said()
    assert limits(plan) == hosts * [(60, {})]


@pytest.mark.parametrize("minutes", [3, 20])
def test_a_wait_that_is_true_teaches_no_rate_by_its_tests(monkeypatch, minutes):
    """They are refused before its end, as it says: 1.5 and 1.9 times the ideal if each lowers the rate."""
    plan = Plan(monkeypatch, of_tokens, minutes / 60, 30, 8).run(1e9)
    assert plan.lost == 0
    assert plan.took_s <= 1.2 * plan.ideal_s, plan.said()
    assert len(plan.refused) <= 10 * plan.between, plan.said()


@pytest.mark.long("a world of thousands of requests")
def test_a_minute_that_states_a_quarter_of_an_hour_is_found_out(monkeypatch):
    """After three such waits the rate is learned, in which this speed is found: 0.79 to 0.82 if it is learned at once."""
    plan = Plan(monkeypatch, codex, 1 / 60, 60, 40, says_s=lambda _: 900.0, told="500 requests/min", workers=20).run(
        1e9
    )
    assert plan.lost == 0
    assert plan.ideal_s / plan.took_s >= 0.79, plan.said()


def test_a_window_that_opens_early_is_found_by_a_test(monkeypatch):
    """The stated end is four times too late; a test goes at most an eighth of the stated wait after the true one."""
    plan = Plan(monkeypatch, claude, 2, 30, 2, says_s=lambda wait_s: 4 * wait_s).run(1e9)
    assert plan.took_s <= plan.ideal_s + 4 * 7_200 / 8, plan.said()
    assert limits(plan) == [(60, {})]


def test_a_run_is_told_when_it_goes_on(monkeypatch):
    """Not when the next test goes."""
    plan = Plan(monkeypatch, claude, 5, 30, 2)
    told = []

    def look():
        limiter = plan.hosts[0].process.limiter
        [pool] = limiter.status()["pools"].values()
        work = {pool_name: [{}] * 10 for pool_name in limiter.status()["pools"]}
        told.append((plan.ends_s - plan.sim.now_s, pool["cool_down_s"], eta(limiter, work).total_s))

    for at_s in (60, 600, 9_000):
        plan.sim.time.after(at_s, look)
    plan.run(1e9)
    for left_s, paused_s, needs_s in told:
        assert left_s <= paused_s <= left_s + 2
        assert left_s <= needs_s <= left_s + 60
