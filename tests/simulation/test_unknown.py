"""The user knows nothing: a wrong tier, a period that no header names, refusals that lie. No request is turned away.

The speed is that of the binding quota after the first two periods, as a share of its true rate.
"""

import math
import random

import pytest
from tests.simulation.fleet import BLIND, UNKNOWN, Fleet

from grids import WORLD, sampled, some
from paceline.emulator.world import Refused
from paceline.pacing.breaker import BreakerPolicy
from paceline.pacing.retry import RetryPolicy

BODY_ONLY = {"headers": False}
FREE, PAID = "10 requests/min,250k tokens/min,20 requests/day", "150 requests/min,1M tokens/min,10k requests/day"
TRUE = "500 requests/min,400k tokens/min"
MOVING = [(12, {"m": "4 requests/s"}), (24, {"m": "10 requests/s"})]


# world: source, what the table says, what is true, further settings, jobs, the longest period of the true limits
WORLDS = {
    "too low a tier": ("assumed", "50 requests/min,30k tokens/min", TRUE, {}, 2_000, 60),
    "too high a tier": ("assumed", "5000 requests/min,4M tokens/min", TRUE, {}, 2_000, 60),
    "too high a tier, body only": ("assumed", "5000 requests/min,4M tokens/min", TRUE, BODY_ONLY, 2_000, 60),
    "too low a tier, no headers": ("assumed", FREE, PAID, BODY_ONLY, 1_200, 60),
    "too low a tier, no headers, a bucket of a day": ("assumed", FREE, PAID, BODY_ONLY, 1_200, 60),
    "too low a tier, blind": ("assumed", FREE, PAID, BLIND, 1_200, 60),
    "the free tier was named and is wrong": ("published", FREE, "10 requests/min,250k tokens/min", BODY_ONLY, 100, 60),
    "periods of 10 s": ("assumed", TRUE, "80 requests/10s,70k tokens/10s", {}, 2_000, 10),
    "periods of 30 s": ("assumed", TRUE, "500 requests/30s,400k tokens/30s", {}, 2_000, 30),
    "periods of an hour": ("assumed", TRUE, "2000 requests/hour,9M tokens/hour", {}, 8_000, 3_600),
    "a table's period of 10 s, windows of a minute": (
        "assumed", "10 requests/10s,400k tokens/min", "6000 requests/min,400k tokens/min", {"rule": "window"}, 2_000, 60,
    ),
    "windows of 30 s": ("assumed", TRUE, "500 requests/30s,400k tokens/30s", {"rule": "window"}, 2_000, 30),
}  # fmt: skip


@pytest.mark.parametrize(("world", "seed", "latency_s"), sampled([*WORLDS], [1, 2], [0.5, 3.0], quick=[3]))
def test_every_request_is_served(world, seed, latency_s):
    source, told, true, settings, jobs, period_s = WORLDS[world]
    fleet = Fleet(
        told, {"limits": {"m": true}, "latency_s": latency_s, "jitter": 0.3, **settings}, source=source, seed=seed,
        jobs=jobs, model="gemini/m" if told == FREE and "bucket" not in world else "openai/m",
    ).run(30_000)  # fmt: skip
    periods = 5 if "window" in world else 2  # three restarts show a window's period
    speed = fleet.speed_after(periods * period_s, true)
    said = f"{world}, seed {seed}: {fleet.said()}, {speed}"
    assert fleet.lost == 0, said
    assert fleet.tally["admitted"] == jobs, said
    assert len(fleet.refused) <= jobs / 100, said
    assert speed >= (0.85 if "window" in world else 0.95), said  # a window is spread evenly


@pytest.mark.parametrize("source", ["published", "assumed"])
@pytest.mark.parametrize("headers", [True, False])
def test_a_prompt_above_a_guess_is_sent_and_its_answer_teaches(source, headers):
    true = "500 requests/min,60k tokens/min"
    fleet = Fleet(
        "500 requests/min,30k tokens/min", {"limits": {"m": true}, "latency_s": 2.0, "headers": headers},
        source=source, jobs=20, words=(36_000, 36_000),
    ).run(3_600)  # fmt: skip
    assert (fleet.lost, fleet.tally["admitted"]) == (0, 20)
    # An assumed limit is tested upward; where no header states it, once more five minutes after the refusal.
    assert len(fleet.refused) <= (source == "assumed") * (1 if headers else 2)
    assert fleet.speed >= 0.9 if headers else fleet.speed >= 0.7


def test_a_limit_that_was_lowered_for_some_minutes_turns_no_request_away():
    fleet = Fleet(
        TRUE, {"limits": {"m": TRUE}, "latency_s": 1.0}, source="given", jobs=300, words=(20, 30_000),
        changes=[(60, {"m": "500 requests/min,20k tokens/min"}), (240, {"m": TRUE})],
    ).run(7_200)  # fmt: skip
    too_large = fleet.tally["refused"].get("too_large", 0)  # the provider's own refusals, as without paceline
    assert fleet.lost == too_large <= 8
    assert fleet.speed >= 0.95


@WORLD
def test_refusals_that_name_the_time_until_the_bucket_is_full_do_not_make_it_a_counter():
    fleet = Fleet(
        TRUE, {"limits": {"m": TRUE}, "latency_s": 1.0, "retry_after": "full", "other_users": 0.2, "other_users_from_s": 20.0},
        source="given", jobs=1_500,
    ).run()  # fmt: skip
    assert fleet.lost == 0
    assert fleet.speed_after(180, TRUE) >= 0.75  # of the whole rate; others take a fifth


@WORLD
def test_output_that_is_charged_when_it_is_produced_is_not_granted_twice():
    true = "500 requests/min,400k input_tokens/min,30k output_tokens/min"
    for seed in (1, 2, 3):
        fleet = Fleet(
            true, {"limits": {"m": true}, "latency_s": 4.0, "jitter": 0.5, "output_spread": 0.5, "output_share": 0.7},
            source="given", jobs=900, seed=seed, words=(20, 600), output=300, model="anthropic/m",
        ).run()  # fmt: skip
        assert (fleet.lost, fleet.refused) == (0, [])
        assert math.isclose(fleet.speed, 1.0, abs_tol=0.05)


SLOTS = "100k requests/min,20 concurrency"


@WORLD
@pytest.mark.parametrize(
    ("told", "changes", "refused"),
    [
        (SLOTS, [(100, {"m": "4 concurrency"}), (110, {"m": "20 concurrency"})], 10),
        ("100k requests/min", [], 60),  # those that are in flight when the first refusal comes are 60
    ],
)
def test_slots_that_fell_for_some_seconds_or_that_refusals_have_named_are_used(told, changes, refused):
    fleet = Fleet(
        told, {"limits": {"m": "20 concurrency"}, "latency_s": 2.0}, jobs=3_000, workers=60, output=0, model="openai/m",
        changes=changes,
    ).run()  # fmt: skip
    assert fleet.lost == 0
    assert len(fleet.refused) <= refused
    admitted = [at_s for at_s, _ in fleet.admitted if at_s > 160]
    assert len(admitted) / (admitted[-1] - 160) >= 0.9 * 20 / 2.05


@pytest.mark.parametrize("parallel", some([2, 8, 20], 8))
def test_refusals_lower_published_slots(parallel):
    fleet = Fleet(
        "8 concurrency", {"limits": {"m": f"{parallel} concurrency"}, "latency_s": 1.0, **BLIND}, source="published", jobs=1_500, workers=40,
        output=0,
    ).run(7_200)  # fmt: skip
    assert fleet.lost == 0
    assert fleet.pool.ledger.entries[0].meter.quota.amount <= parallel + 1
    assert len(fleet.refused) <= 25
    assert fleet.admitted[-1][0] <= 1.5 * 1_500 / parallel


WIDE = "100k requests/min"


def full(why):
    """The refusal of a server that has no room."""
    return Refused("capacity", why.model, why.pool, status=503)


def served(told, settings, *, refuses=None, **options):
    """What became of a fleet with the usual retries and breaker, of whose requests none is lost; ``refuses``: with what the provider does."""
    usual = {"workers": 100, "retry": RetryPolicy(), "breaker": BreakerPolicy()}
    fleet = Fleet(told, settings, source="assumed" if told is UNKNOWN else "given", **usual | options)
    if refuses is not None:
        refuse = fleet.sim.world.refuse
        fleet.sim.world.refuse = lambda now, why, pool: refuse(now, refuses(why), pool)
    fleet.run(900)
    assert fleet.lost == 0
    return fleet


@pytest.mark.parametrize(
    ("told", "jobs", "share", "seconds"),
    some(
        [(WIDE, 1_500, 0.05, 36), (WIDE, 1_500, 0.3, 45), (WIDE, 1_500, 0.5, 67), (UNKNOWN, 500, 0.3, 20), (UNKNOWN, 500, 0.6, 40)],
        (WIDE, 1_500, 0.05, 36),
    ),
)  # fmt: skip
def test_servers_that_refuse_a_share_by_chance_are_used_in_full(told, jobs, share, seconds):
    """Retries are in proportion to success, the breaker stays closed, and no request is given up for chance.

    Also where no limit is stated, and so much is refused that a rate may be the reason: it is tried for a moment.
    """
    settings = {"limits": {"m": WIDE}, "latency_s": 2.0, "headers": told is WIDE, "faults": {"529": share}}
    fleet = served(told, settings, jobs=jobs)
    assert fleet.sim.now_s <= seconds, fleet.sim.now_s


def test_servers_that_refuse_by_chance_and_answer_at_once_are_used_in_full():
    """On a slow network answers come no later than refusals, which say nothing about the number in flight then."""
    settings = {"limits": {"m": "1M requests/min"}, "headers": False, "latency_s": 0.1, "jitter": 0.3}
    settings["faults"] = {"503": 0.02}
    fleet = served(WIDE, settings, jobs=3_000, workers=60, words=(20, 200), net_s=(0.05, 0.15))
    assert fleet.sim.now_s <= 20, fleet.sim.now_s


@WORLD
def test_chance_does_not_hide_slots_that_refusals_for_rate_show():
    settings = {"limits": {"m": "300 requests/min,20 concurrency"}, "latency_s": 3.0, "jitter": 0.3, **BLIND}
    settings["faults"] = {"503": 0.1}
    fleet = served("600 requests/min,50 concurrency", settings, jobs=800, workers=60, words=(20, 200), seed=3)
    assert fleet.admitted[-1][0] <= 140, fleet.admitted[-1][0]


@pytest.mark.parametrize(("latency_s", "seed"), some([(2.0, 1), (2.0, 2), (2.0, 3), (6.0, 1)]))
def test_full_servers_whose_capacity_moves_are_used_in_full(latency_s, seed):
    """A capacity of 10, 4 and 10 a second, as Vertex refuses for it: retries do not wait longer than success earns them.

    Those that are refused before the first answer, which takes long, have no success to go by.
    """
    settings = {"limits": {"m": "10 requests/s"}, "headers": False, "latency_s": latency_s}
    fleet = served(WIDE, settings, refuses=full, jobs=300, seed=seed, words=(20, 200), changes=MOVING)
    assert fleet.admitted[-1][0] <= 44, fleet.admitted[-1][0]  # 37 s would do
    assert fleet.tally["refused"]["capacity"] <= 1_000, fleet.tally["refused"]


@pytest.mark.parametrize("seed", some([1, 2, 3], 1))
def test_slots_that_others_take_from_second_to_second_are_used_in_full(seed):
    """What is admitted in the worst of these seconds is no rate: no attempt waits for it."""
    dice = random.Random(seed)
    settings = {"limits": {"m": "30 concurrency"}, "headers": False, "latency_s": 1.0, "jitter": 0.5}
    changes = [(at_s, {"m": f"{dice.randint(6, 30)} concurrency"}) for at_s in range(1, 100)]
    fleet = served(WIDE, settings, refuses=full, jobs=500, seed=seed, words=(20, 200), changes=changes)
    assert fleet.admitted[-1][0] <= 50, fleet.admitted[-1][0]  # 26 s would do


@pytest.mark.parametrize(
    ("told", "limit", "changes", "jobs", "refused", "seconds"),
    some(
        [
            (UNKNOWN, "5 requests/s", (), 1_500, 130, 305), (UNKNOWN, "10 requests/s", MOVING, 300, 190, 42), (UNKNOWN, "2 requests/s", (), 120, 140, 62),
            (UNKNOWN, "5 concurrency", (), 150, 90, 72), (UNKNOWN, "60 concurrency", (), 800, 40, 32), (WIDE, "2 requests/s", (), 480, 250, 245),
            (WIDE, "60 concurrency", (), 800, 300, 32), ("80 concurrency", "60 concurrency", (), 800, 300, 32),
        ],
        (UNKNOWN, "10 requests/s", MOVING, 300, 190, 42), ("80 concurrency", "60 concurrency", (), 800, 300, 32),
    ),
)  # fmt: skip
def test_full_servers_that_refuse_for_a_limit_are_not_asked_again_and_again(
    told, limit, changes, jobs, refused, seconds
):
    """A proxy that answers 503 above its rate, or with its slots taken: retries in proportion to success were refused three of four."""
    settings = {"limits": {"m": limit}, "headers": False, "latency_s": 2.0}
    fleet = served(told, settings, refuses=full, jobs=jobs, words=(20, 200), changes=changes)
    assert fleet.tally["refused"]["capacity"] <= refused, fleet.tally["refused"]
    assert fleet.admitted[-1][0] <= seconds, fleet.admitted[-1][0]


@pytest.mark.parametrize("told", ["20 concurrency", "20 concurrency, 100k requests/day"])
@pytest.mark.parametrize("retry_after", [1, "true"])
def test_slots_that_were_given_are_measured_if_refusals_state_a_wait_alone(told, retry_after):
    settings = {
        "limits": {"m": "5 concurrency,300 requests/min"},
        "latency_s": 3.0,
        **BLIND,
        "retry_after": retry_after,
    }
    fleet = Fleet(told, settings, seed=1, jobs=100, workers=50).run()
    assert len(fleet.refused) <= 40  # 289 if they are only obeyed
    assert fleet.admitted[-1][0] <= 90, fleet.admitted[-1][0]  # 57 s would do


@pytest.mark.parametrize(("limit", "taken"), [(3.0, False), (120.0, True)])
def test_a_stated_limit_that_was_exceeded_before_is_of_another_model(limit, taken):
    """A gateway passes on the refusal of a model behind it: 3 requests a minute, where 2 a second are admitted."""

    def refusal(why):
        return Refused("rate", why.model, why.pool, "requests", 60.0, limit, limit, 1.0, 5.0)

    settings = {"limits": {"m": "120 requests/min quantised"}, "quantum_s": 5.0, "headers": False, "latency_s": 0.3}
    fleet = served(UNKNOWN, settings, refuses=refusal, jobs=100, workers=40, words=(20, 200))
    assert any(account.meter.quota.amount == limit for account in fleet.pool.ledger.entries) == taken
    assert fleet.admitted[-1][0] <= 75, fleet.admitted[-1][0]  # 49 s would do
    assert len(fleet.refused) <= 20
