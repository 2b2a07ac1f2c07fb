"""The emulated provider in virtual time."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.emulator.settings import Settings, SettingsError
from paceline.emulator.tally import DAY_S, RateTimeline
from paceline.emulator.world import Admitted, Refused, World


def world(limits="500 requests/min,400k tokens/min", **settings) -> World:
    return World(Settings(limits=limits, **settings))


@given(st.integers(1, 2_000), st.one_of(st.none(), st.integers(1, 2_000)))
def test_settle_actual_ends_at_what_was_used(size, most):
    w = world(settle="actual")
    admitted = w.admit(0.0, "m", size, most)
    w.finish(0.0, admitted)
    w.finish(0.0, admitted)
    assert w.levels(0.0, "m")[1].remaining == 400_000 - size - admitted.output_tokens
    assert w.tally()["charges"]["tokens"] == size + admitted.output_tokens


def test_all_quotas_or_none():
    w = world("10 requests/min,1k tokens/min")
    assert isinstance(w.admit(0.0, "m", 900), Admitted)
    refused = w.admit(0.0, "m", 200)
    assert isinstance(refused, Refused)
    assert (refused.kind, refused.unit, refused.limit, refused.used) == ("rate", "tokens", 1_000, 900)
    assert (refused.requested, refused.wait_s) == (200, pytest.approx(6))
    assert [level.remaining for level in w.levels(0.0, "m")] == [9, 100]


def test_the_quota_with_the_longest_wait_refuses():
    w = world("2 requests/min,2 requests/day")
    w.admit(0.0, "m", 1)
    w.admit(0.0, "m", 1)
    assert w.admit(0.0, "m", 1).period_s == 86_400


def test_output_is_charged_as_it_appears_and_refuses_the_next():
    w = world("50 requests/min,50k input_tokens/min,1k output_tokens/min", output_share=1.0, output_spread=0.0)
    first = w.admit(0.0, "claude", 100, 1_500)
    assert first.output_tokens == 1_500
    assert w.levels(0.0, "claude")[2].remaining == 1_000
    w.produce(0.0, first, 400)
    second = w.admit(0.0, "claude", 100, 10)
    w.finish(0.0, first)
    w.finish(0.0, second)
    assert w.levels(0.0, "claude")[2].remaining == -510
    refused = w.admit(0.0, "claude", 100, 10)
    assert (refused.kind, refused.unit) == ("rate", "output_tokens")
    assert refused.wait_s == pytest.approx(511 * 60 / 1_000)
    assert isinstance(w.admit(31.0, "claude", 100, 10), Admitted)


def test_a_client_that_leaves_stops_the_output():
    w = world("1k output_tokens/min", output_share=1.0, output_spread=0.0)
    admitted = w.admit(0.0, "m", 1, 500)
    w.produce(0.0, admitted, 100)
    w.finish(0.0, admitted, gone=True)
    tally = w.tally()
    assert tally["charges"]["output_tokens"] == 100
    assert (tally["answered"], tally["faults"], tally["in_flight"]) == (0, {"gone": 1}, 0)


def test_refused_requests_count_when_told_to():
    hammered, polite = world("60 requests/min", failed_count=True), world("60 requests/min")
    for w in (hammered, polite):
        for step in range(1_200):
            w.admit(step * 0.1, "m", 1)
    assert polite.total.admitted == 60 + 119
    assert hammered.total.admitted == 60 + 6  # the burst's own refill; after that each refusal takes what came back
    assert isinstance(hammered.admit(121.0, "m", 1), Admitted)  # but there is no debt


def test_models_share_a_pool_and_others_have_their_own():
    w = world({"a|b": "2 requests/min", "*": "1 requests/min"})
    assert isinstance(w.admit(0.0, "a", 1), Admitted)
    assert isinstance(w.admit(0.0, "b", 1), Admitted)
    refused = w.admit(0.0, "b", 1)
    assert (refused.model, refused.pool) == ("b", "a")
    assert isinstance(w.admit(0.0, "c", 1), Admitted)
    assert isinstance(w.admit(0.0, "d", 1), Admitted)
    assert w.admit(0.0, "c", 1).kind == "rate"
    assert world({"a": "2 requests/min"}).admit(0.0, "z", 1).kind == "unknown_model"


def test_slots():
    w = world("2 concurrency")
    first, _ = w.admit(0.0, "m", 1), w.admit(0.0, "m", 1)
    assert w.admit(0.0, "m", 1).unit == "concurrency"
    w.finish(1.0, first)
    assert isinstance(w.admit(1.0, "m", 1), Admitted)
    assert w.tally()["in_flight_peak"] == 2


def test_faults_come_as_often_as_told_and_again_with_the_same_seed():
    def run(seed):
        w = world("1m requests/s", faults={"500": 0.1, "503": 0.1, "529": 0.05, "growth": 0.05, "slow": 0.1}, seed=seed)
        for i in range(2_000):
            if isinstance(a := w.admit(i / 100, "m", 1, 100), Admitted):
                w.finish(i / 100, a)
        return w.tally()

    tally = run(1)
    assert tally == run(1)
    assert tally != run(2)
    assert tally["faults"]["500"] == pytest.approx(200, rel=0.2)
    assert tally["refused"]["capacity"] == tally["faults"]["503"] + tally["faults"]["529"]
    assert tally["refused"]["growth"] == pytest.approx(100, rel=0.3)
    assert tally["answered"] == tally["admitted"] - tally["faults"]["500"]


def test_latency_grows_with_the_output():
    w = world(latency_s=0.5, latency_per_token_s=0.01, output_share=1.0, output_spread=0.0)
    admitted = w.admit(0.0, "m", 1, 100)
    assert (admitted.first_s, admitted.duration_s) == (0.5, pytest.approx(1.5))
    slow = world(latency_s=0.5, faults={"slow": 1.0}).admit(0.0, "m", 1, 100)
    assert slow.duration_s == 2.5
    lengths = {world(seed=s, jitter=0.2, latency_s=1.0).admit(0.0, "m", 1, 100).duration_s for s in range(20)}
    assert len(lengths) == 20
    assert all(0.8 <= d <= 1.2 for d in lengths)


def perfect_client(w: World, count: int, now: float = 0.0) -> None:
    """Send as soon as the server would take it."""
    while w.total.admitted < count:
        answer = w.admit(now, "m", 500, 300)
        if isinstance(answer, Refused):
            now += answer.wait_s + 1e-6


@pytest.mark.parametrize("rule", ["bucket", "quantised"])
def test_a_perfect_client_runs_at_the_ideal(rule):
    w = world("500 requests/min,200k tokens/min", rule=rule, quantum_s=6)
    perfect_client(w, 1_000)
    tally = w.tally()
    burst = 20_000 if rule == "quantised" else 200_000
    assert tally["ideal_s"] == pytest.approx((800_000 - burst) / 200_000 * 60)
    assert tally["speed_vs_ideal"] == pytest.approx(1, abs=1e-3)
    assert tally["steady_s"] == pytest.approx(240)


def test_the_ideal_knows_of_other_users_and_changed_limits():
    w = world("60 requests/min", other_users=0.5, other_users_from_s=30)
    perfect_client(w, 120)  # 60 at once, 30 in 30 s, then half the rate
    assert w.tally()["ideal_s"] == pytest.approx(90)
    assert w.tally()["speed_vs_ideal"] == pytest.approx(1, abs=0.02)
    w = world("60 requests/min")
    perfect_client(w, 90)
    w.set_limits(30.0, "120 requests/min")
    perfect_client(w, 150, 30.0)  # 60 at once, 30 in 30 s, 60 at twice the rate
    assert w.tally()["ideal_s"] == pytest.approx(60)
    assert w.tally()["speed_vs_ideal"] == pytest.approx(1, abs=0.02)


def test_set_limits_changes_named_pools_and_the_default():
    w = world({"a": "10 requests/min", "*": "10 requests/min"})
    for name in "ab":
        w.admit(0.0, name, 1)
    w.set_limits(0.0, {"*": "5 requests/min,1k tokens/min"})
    assert [level.limit for level in w.levels(0.0, "b")] == [5, 1_000]
    assert [level.limit for level in w.levels(0.0, "a")] == [10]
    w.set_limits(0.0, {"b": "7 requests/min", "new": "3 requests/min"})
    assert [level.limit for level in w.levels(0.0, "b")] == [7]
    assert w.levels(0.0, "new")[0].remaining == 3
    with pytest.raises(SettingsError, match="unknown unit"):
        w.set_limits(0.0, {"a": "5 apples/min"})


def test_start_level():
    w = world("60 requests/min", start_level=0.5)
    assert sum(isinstance(w.admit(0.0, "m", 1), Admitted) for _ in range(60)) == 30


def test_tally_adds_up():
    w = world({"a": "10 requests/min,1k tokens/min", "b": "5 requests/min"})
    events = [(step * 0.5, name) for step in range(40) for name in "ab"]
    running: list[tuple[float, int, Admitted]] = []
    for number, (now, name) in enumerate(events):
        while running and running[0][0] <= now:
            w.finish(running[0][0], heapq.heappop(running)[2])
        if isinstance(a := w.admit(now, name, 30, 10), Admitted):
            heapq.heappush(running, (now + 2.0, number, a))
    tally = w.tally()
    assert tally["admitted"] == sum(pool["admitted"] for pool in tally["pools"].values())
    assert tally["admitted"] + tally["refused_total"] == 80
    _, admitted, refused = zip(*tally["timeline"], strict=True)
    assert (sum(admitted), sum(refused)) == (tally["admitted"], tally["refused"]["rate"])
    assert tally["charges"]["tokens"] == tally["pools"]["a"]["admitted"] * 40
    assert tally["in_flight"] == tally["admitted"] - tally["answered"] == len(running)


@pytest.mark.parametrize(("rule", "later"), [("bucket", 60), ("window", 100), ("sliding", 100)])
def test_a_later_world_continues_from_what_was_used(rule, later):
    """80 of 100 a minute at 130 s; ten seconds later a bucket has refilled by a sixth, and 60 s later all is back."""
    settings = Settings(limits={"m": "100 requests/min,3 concurrency"}, rule=rule)
    world = World(settings, 120.0)
    for _ in range(80):
        world.finish(130.0, world.admit(130.0, "m", 1))
    state, left = world.used(130.0), []
    for now in (130.0, 140.0, 154.0, 190.0):
        other = World(settings, now)
        other.resume(now, state)
        left.append(round(other.levels(now, "m")[0].remaining))
    assert left == [20, 37 if rule == "bucket" else 20, later if rule == "bucket" else 20, 100]


def test_faults_change_in_mid_run():
    w = world("1m requests/s", changes=[{"at_s": 60, "faults": {"429": 1.0}}, {"at_s": 80, "faults": {}}])
    kinds = [getattr(w.admit(float(at), "m", 1), "kind", "admitted") for at in (59, 60, 79, 80)]
    assert kinds == ["admitted", "capacity", "capacity", "admitted"]
    assert w.tally()["faults"] == {"429": 2}


def test_a_change_of_limits_leaves_the_faults():
    w = world("5 requests/min", faults={"429": 1.0}, changes=[{"at_s": 1, "limits": {"*": "9 requests/min"}}])
    assert w.admit(2.0, "m", 1).kind == "capacity"
    assert w.levels(2.0, "m")[0].limit == 9


@pytest.mark.parametrize(
    ("stated", "wait_s"), [("", 6.0), ("true", 6.0), ("none", 6.0), ("full", 60.0), ("long", 120.0), (86_400, 86_400)]
)
def test_a_refusal_states_the_wait_that_is_set(stated, wait_s):
    w = world("10 requests/min", retry_after=stated)
    for _ in range(10):
        w.admit(0.0, "m", 1)
    assert w.admit(0.0, "m", 1).wait_s == pytest.approx(wait_s)


def test_nine_of_ten_answers_take_at_most_the_median_times_the_spread():
    w = world("1m requests/s", latency_s=2.0, latency_spread=3.0)
    times_s = sorted(w.admit(0.0, "m", 1).duration_s for _ in range(5_000))
    assert times_s[2_500] == pytest.approx(2.0, rel=0.05)
    assert times_s[4_500] == pytest.approx(6.0, rel=0.05)


def test_a_timeline_keeps_the_seconds_of_one_day():
    timeline = RateTimeline(0.0)
    for second in range(DAY_S + 2):
        timeline.add(second, second % 2)
    rows = timeline.rows()
    assert (len(rows), rows[0], rows[-1]) == (DAY_S, [2, 1, 0], [DAY_S + 1, 0, 1])
