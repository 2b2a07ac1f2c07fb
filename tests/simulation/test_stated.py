"""Windows whose headers state the instant of the restart are used whole, under a server that is not the emulator."""

import pytest
from tests.simulation.stated import FORMS, OFFSETS_S, TOLD, Server, run

from grids import WORLD, sampled, some

pytestmark = pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")


@pytest.mark.parametrize(("told", "form", "offset_s"), sampled([*TOLD], FORMS, OFFSETS_S, quick=[0]))
def test_each_window_is_used_whole(told, form, offset_s):
    outcome = run(Server(form=form, offset_s=offset_s), TOLD[told])
    assert outcome.refused <= 3
    assert outcome.share >= 0.94
    [pool] = outcome.limiter.status()["pools"].values()
    assert pool["quotas"][-1]["learned"] == {"rule": "restarts at stated instants"}
    assert pool["quotas"][-1]["resets_at"]


SOON = [
    (5.0, (0.2, 2.0)),
    (12.0, (0.2, 2.0)),
    (40.0, (0.2, 2.0)),
    (2.0, (0.05, 0.1)),
    (5.0, (1.0, 4.0)),
    (7.0, (1.0, 4.0)),
]


@pytest.mark.parametrize(("first", "form"), sampled(SOON, FORMS, quick=[0]))
def test_a_first_window_that_ends_soon_is_used_whole(first, form):
    outcome = run(Server(limit=200, offset_s=first[0], latency_s=first[1], form=form), None)
    assert outcome.refused <= 3
    assert outcome.share >= 0.94


@pytest.mark.parametrize(
    ("window", "form", "dated"),
    sampled([(5.0, 17), (10.0, 33), (15.0, 50), (20.0, 67)], ["epoch", "iso", "seconds"], [False, True], quick=[1]),
)
def test_short_windows_before_answers_that_take_as_long(window, form, dated):
    server = Server(
        period_s=window[0],
        limit=window[1],
        offset_s=5.0,
        latency_s=(5.0, 12.0),
        form=form,
        dated=dated,
        retry_after=False,
    )
    outcome = run(server, None)
    least, most = (0.68, 9) if window[0] == 5 else (0.84, 4) if form == "seconds" else (0.9, 3)
    assert outcome.refused <= most
    assert outcome.share >= least


@pytest.mark.parametrize("others", some([0, 20], 20))
def test_headers_as_of_the_end_of_answers_count_nothing_twice(others):
    server = Server(offset_s=15.0, latency_s=(0.1, 0.6), form="seconds", late=True, limit=120, others=others)
    outcome = run(server, "500 requests/min", jobs=300)
    assert outcome.refused == 0
    assert outcome.share >= 0.94


@WORLD
@pytest.mark.parametrize(
    ("server", "least"),
    [
        ({"skew_s": 5.0}, 0.92),
        ({"skew_s": -5.0}, 0.92),
        ({"skew_s": -5.0, "dated": True}, 0.92),
        ({"offset_s": 15.37, "form": "up"}, 0.92),
        ({"latency_s": (3.0, 8.0), "offset_s": 30.0}, 0.82),  # all of the first window is sent before answers agree
        ({"family": "", "form": "seconds"}, 0.92),
        ({"others": 20}, 0.8),
        ({"rule": "first", "offset_s": 0.0}, 0.92),
    ],
)
def test_clocks_that_differ_slow_answers_and_other_users(server, least):
    outcome = run(Server(**{"offset_s": 15.0, **server}), None)
    assert outcome.refused <= 6
    assert outcome.share >= least


@WORLD
@pytest.mark.parametrize("rule", ["oldest", "newest", "bucket"])
@pytest.mark.parametrize("form", ["epoch", "seconds"])
def test_resets_that_move_are_no_restarts(rule, form):
    outcome = run(Server(rule=rule, form=form), None)
    # The first reset of a trailing period is the same in all answers, like the reset of a counter that restarts.
    assert outcome.refused <= (13 if rule == "oldest" else 2)
    assert outcome.took_s <= 400


def test_a_trailing_period_is_known_though_answers_overtake_each_other():
    server = Server(rule="newest", period_s=10.0, limit=33, offset_s=5.0, latency_s=(1.0, 4.0), late=True, seed=6)
    outcome = run(server, None)
    assert outcome.refused <= 3
    assert outcome.took_s <= 250  # as a quota of a minute 910


# The latency, whether headers are as of the end of answers, and the seed.
BUCKETS = [
    ((0.2, 2.0), False, 1),
    ((0.2, 2.0), True, 3),
    ((2.0, 5.0), False, 2),
    ((5.0, 12.0), False, 1),
    ((5.0, 12.0), True, 1),
]


@pytest.mark.parametrize(("latency_s", "late", "seed"), some(BUCKETS, *BUCKETS[1:4]))
def test_a_bucket_whose_answers_take_long_stays_a_bucket(latency_s, late, seed):
    outcome = run(Server(rule="bucket", limit=200, latency_s=latency_s, late=late, seed=seed), None)
    assert outcome.refused == 0
    assert outcome.took_s <= 145  # 400 are refilled in 120 s


@WORLD
@pytest.mark.parametrize("rule", ["bucket", "oldest"])
def test_a_window_that_becomes_another_rule_is_spread_again(rule):
    outcome = run(Server(offset_s=15.0, change=(100.0, rule)), None)
    assert outcome.refused <= 6
    assert outcome.took_s <= 400
