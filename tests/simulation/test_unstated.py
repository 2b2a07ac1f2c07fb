"""A provider that states no limit: the worlds of ``tests.simulation.unstated`` within bounds."""

from math import inf

import pytest
from tests.simulation.planted import UNSTATED_BUGS
from tests.simulation.unstated import (
    CHOSEN,
    SHEDDING,
    World,
    becoming,
    drawn,
    geometric,
    holding,
    mean,
    rated,
    refusing,
    run,
    started,
    summary,
)

from grids import WORLD, some
from paceline.cli.status import _rows
from paceline.core.unstated.rate import MeasuredRate
from paceline.pacing.status import report

FURTHER = [
    (World("60/min, burst 10, told 100 times", "told", rated(1), 60, 40, 1.0, "6000 requests/min", settings=holding(1, 10)), 60, 1.1),
    (World(
        "60/min, burst 10, told 100 times, states the wait", "told", rated(1), 60, 40, 1.0, "6000 requests/min",
        settings=holding(1, 10) | {"retry_after": "true"},
    ), 130, 1.3),
    (World(
        "2/s, burst 10, a table states tokens", "told", rated(2), 120, 20, 2.0, "6M tokens/min", "published", (20, 100),
        settings=holding(2, 10),
    ), 20, 1.15),
    (World("5 in flight, told a rate", "told", "5 concurrency", 200, 40, 1.0, "6000 requests/min"), 60, 1.3),
    (World(
        "5, then 40 in flight", "slots", "5 concurrency", 800, settings={"changes": becoming((60, "40 concurrency"))}
    ), 30, 1.45),
    (World(
        "40k tokens/min, told 4M", "told", "6000 requests/min,40k tokens/min", 300, latency_s=1.0, words=(20, 200),
        told="6000 requests/min,4M tokens/min", settings={"dialect": "openai", "body_numbers": False},
    ), 40, 1.6),
    (World(
        "40k tokens/min, told 4M, and no unit is named", "told", "6000 requests/min,40k tokens/min", 300, latency_s=1.0, words=(20, 200),
        told="6000 requests/min,4M tokens/min",
    ), 20, 1.6),
    *(
        (World(
            f"60 in {a} minute, told slots, states {waits} s", "told", f"60 requests/min {rule}", 200, latency_s=0.3,
            told="20 concurrency", settings={"retry_after": waits},
        ), 35, 1.6)
        for a, rule in (("a", "window"), ("any", "sliding")) for waits in (1, 10)
    ),
    (World("500 in a minute, told 10 times", "told", "500 requests/min window", 1_500, 100, 1.0, "5000 requests/min"), 45, 2.3),
    (World("500 in any minute, told 10 times", "told", "500 requests/min sliding", 1_500, 100, 1.0, "5000 requests/min"), 45, 2.3),
    (World("30 % by chance, 400 requests", SHEDDING, "1m requests/s", 400, settings={"faults": {"429": 0.3}}), 260, 3.5),
    *(
        (World(
            f"told the limit, {told}, {chance:.0%} by chance", SHEDDING, rated(per_s), round(150 * per_s), 20 + round(8 * per_s), 2.0, told,
            settings=holding(per_s, burst) | {"faults": {"429": chance}},
        ), refused, times)
        for told, per_s, burst, chance, refused, times in (
            ("1 requests/s", 1, 1.5, 0.1, 35, 2.5), ("1 requests/s", 1, 1.5, 0.3, 100, 2.7), ("60 requests/min", 1, 60, 0.1, 35, 2.7),
            ("10 requests/s", 10, 10.5, 0.02, 60, 2.6),
        )
    ),
    (World(
        "told 4 times the limit, 10 % by chance", SHEDDING, rated(0.25), 150, 20, 2.0, "1 requests/s",
        settings=holding(0.25, 2) | {"faults": {"429": 0.1}},
    ), 130, 2.5),
    (World(
        "1/s, nothing twice for 20 s, then 5/s", "moving", rated(1), 2_000, 50,
        settings=holding(1, 5) | {"changes": [*refusing(60, 80), *refusing(360, 380), *becoming((400, rated(5)))]},
    ), 90, 1.15),
    (World(
        "30 % by chance for a minute, 10/s", SHEDDING, rated(10), 1_500,
        settings=holding(10, 10) | {"faults": {"429": 0.3}, "changes": [{"at_s": 60, "faults": {}}]},
    ), 1_500, 1.3),
    (World(
        "one worker, nothing for 5 minutes", "moving", rated(1), 20, 1, 0.3,
        settings=holding(1, 1) | {"changes": refusing(5, 305)},
    ), 45, 1.7),
]  # fmt: skip
WORLDS = {world.name: world for world in [*CHOSEN, *(world for world, *_ in FURTHER)]}

BOUNDS = {
    "60/min, burst 1": (30, 1.2),
    "60/min, burst 10": (40, 1.1),
    "60/min, burst 60": (50, 1.1),
    "60/min, burst 1, one worker": (20, 1.2),
    "600/min, burst 10": (35, 1.1),
    "600/min, answers of 30 s": (35, 1.1),
    "600/min, answers of any length": (35, 1.1),
    "6/min, burst 1": (25, 1.3),
    "6/min, burst 6": (30, 1.1),
    "an hour at 60/min, burst 10": (72, 1.02),
    "60/min, burst 1, 50 requests": (15, 1.35),
    "2/s, burst 10, 20 workers": (20, 1.15),
    "no limit, 50 requests": (0, 1.65),
    "told the limit": (0, 1.06),
    "told twice the limit": (30, 1.1),
    "told 10 times the limit": (45, 1.1),
    "1 in flight": (20, 1.2),
    "5 in flight": (20, 1.1),
    "5 in flight, answers of any length": (20, 1.1),
    "50 in flight": (50, 1.1),
    "50, then 20 in flight": (90, 1.2),
    "10, then 4, then 10/s": (25, 1.3),
    "halves at 120 s": (40, 1.1),
    "doubles at 120 s": (40, 1.1),
    "10/s, nothing from 60 to 80 s": (45, 1.1),
    "30 in a minute": (40, 1.4),
    "100 in 15 s": (70, 1.2),
    "60 in any minute": (65, 1.3),
    "refusals count, 60/min, burst 10": (30, 1.2),
    "states the wait, 60/min, burst 10": (25, 1.1),
    "states the wait, 30 in a minute": (15, 1.4),
    "states 1 s, 6/min, burst 3": (30, 1.1),
    "states a minute, 60/min, burst 10": (16, 1.3),
    "states a day, 30 in 15 s": (14, 1.5),
    "5 % by chance": (200, 1.3),
    "30 % by chance, 10/s": (2_300, 1.3),
} | {world.name: (refused, times) for world, refused, times in FURTHER}
"""The most refusals, and the longest time as a multiple of the ideal."""

SHORT = [name for name in BOUNDS if WORLDS[name].requests <= 500]
"""The worlds of `make test`."""


def is_broken(name, seed):
    """Whether a world is not within its bounds, and what became of it."""
    outcome, (refused, times) = run(WORLDS[name], seed), BOUNDS[name]
    return bool(outcome.unserved) or outcome.refused > refused or outcome.times > times, str(outcome)


@pytest.mark.sample(20)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=WORLD), pytest.param(3, marks=WORLD)])
@pytest.mark.parametrize("name", some([*BOUNDS], *SHORT))
def test_the_limit_is_found(name, seed, monkeypatch):
    if WORLDS[name].group != SHEDDING:
        monkeypatch.setattr(MeasuredRate, "_accept", lambda *_: pytest.fail("a limit was taken for chance"))
    broken, said = is_broken(name, seed)
    assert not broken, said


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=WORLD) for seed in (4, 5, 6)])
def test_chance_is_found_although_a_stated_limit_lets_no_attempts_go_at_once(seed):
    broken, said = is_broken("told the limit, 1 requests/s, 30% by chance", seed)
    assert not broken, said


@pytest.mark.parametrize("seed", [6, pytest.param(11, marks=WORLD), pytest.param(14, marks=WORLD)])
def test_a_ceiling_that_falls_step_by_step_by_chance_is_doubted(seed):
    broken, said = is_broken("told the limit, 1 requests/s, 10% by chance", seed)
    assert not broken, said


@pytest.mark.parametrize("seed", some([*range(80, 100)], 85, 90, 94, 99))
def test_every_request_is_served_in_drawn_worlds(seed):
    outcome = run(drawn(seed))
    assert outcome.unserved == 0
    assert outcome.world.group == SHEDDING or outcome.refused <= 100 + outcome.world.requests


@pytest.mark.soak
@pytest.mark.parametrize(
    ("worlds", "refused", "times"),
    [
        ([world for world in CHOSEN if world.group != SHEDDING], 1_750, 1.2),
        ([world for world in CHOSEN if world.group == SHEDDING], inf, 3.5),
        ([world for world in map(drawn, range(80)) if world.group != SHEDDING], inf, 1.2),
    ],
    ids=["chosen", "by chance", "drawn"],
)
def test_worlds_together(worlds, refused, times):
    outcomes = [run(world) for world in worlds]
    said = summary("together", outcomes)
    assert sum(one.unserved for one in outcomes) == 0, said
    assert sum(one.refused for one in outcomes) <= refused, said
    assert geometric(outcomes) <= times, said


FINDERS = {
    "attempt_counts_for_the_request": "one worker, nothing for 5 minutes",
    "window_taken_for_a_bucket": "60/min, burst 1, 50 requests",
    "probe_that_never_comes": "60/min, burst 1, 50 requests",
    "refused_attempts_are_measured": "60/min, burst 1, 50 requests",
    "chance_taken_for_a_limit": "30 % by chance, 400 requests",
}


@pytest.mark.parametrize("bug", UNSTATED_BUGS)
def test_a_planted_bug_is_found(bug):
    with UNSTATED_BUGS[bug]():
        broken, said = is_broken(FINDERS[bug], 1)
    assert broken, said


def test_what_was_found_is_in_the_status():
    fleet = started(WORLDS["5 in flight"], 1).run()
    found = {one["unit"]: one for one in report(fleet.pool, 0)["quotas"]}
    assert found["concurrency"]["rule"] == "measured"
    assert 3 <= found["concurrency"]["limit"] <= 7


def test_the_share_that_is_refused_by_chance_is_in_the_status():
    fleet = started(WORLDS["30 % by chance, 400 requests"], 1).run()
    found = report(fleet.pool, 0)
    assert 0.1 < found["by_chance"] < 0.45
    assert f"about {found['by_chance']:.0%} refused by chance" in next(iter(_rows("m", found)))[-1]


@pytest.mark.parametrize(("told", "true"), [("60 requests/min", rated(1)), ("600 requests/min", rated(10))])
def test_a_burst_that_was_told_too_large_is_no_other_limit(told, true):
    world = World("a smaller burst", "told", true, 200, 40, 1.0, told, settings={"quantum_s": 10.0})
    fleet = started(world, 1).run()
    assert fleet.lost == 0
    assert [one["rule"] for one in report(fleet.pool, 0)["quotas"]] == ["bucket"]


def test_the_means_of_several_runs():
    world = WORLDS["60/min, burst 1, 50 requests"]
    outcomes = [run(world, seed) for seed in (1, 2)]
    assert mean(world, [1, 2]).took_s == pytest.approx(sum(one.took_s for one in outcomes) / 2)


def test_a_seed_draws_the_same_world():
    assert drawn(7) == drawn(7)
    assert len({drawn(seed).name for seed in range(80)}) == 80
