"""Turns of conversations by hand: who goes first, what is reserved, and which member of a group has the prompt."""

import logging

import pytest

import paceline
from paceline.core.quota import NS
from paceline.testing import ManualClock

POOL = "anthropic/claude-sonnet-4-5"
LIMITS = {"anthropic/*": ["60k input_tokens/min", "1000 requests/min"]}


def usage(read: int = 0, written: int = 0) -> dict[str, int]:
    counts = {"input_tokens": 0, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    return counts | {"output_tokens": 10}


def limiter_of(clock: ManualClock, **options) -> paceline.Limiter:
    return paceline.Limiter(LIMITS, clock=clock, **options)


def turn(limiter: paceline.Limiter, conversation: str, tokens: int, read: int = 0) -> None:
    with limiter.acquire(POOL, conversation=conversation, input_tokens=tokens) as permit:
        permit.settle(usage(read, tokens - read))


def reserved(limiter: paceline.Limiter, conversation: str = "run-17", tokens: float = 1_100, **options) -> float:
    with limiter.acquire(POOL, conversation=conversation, input_tokens=tokens, **options) as permit:
        cost = permit.cost["input_tokens"]
        permit.cancel()
    return cost


def test_an_answer_teaches_what_the_next_turn_costs():
    limiter = limiter_of(ManualClock())
    turn(limiter, "run-17", 1_000)
    assert reserved(limiter) == 1_100  # nothing has been read yet
    for _ in range(22):
        turn(limiter, "run-17", 1_000, read=1_000)
    assert 100 < reserved(limiter) < 210
    assert reserved(limiter, "run-18") == 1_100
    assert reserved(limiter, cached_tokens=0) == 1_100
    assert 550 < reserved(limiter, "run-18", cached_tokens=550) < 620


def test_a_turn_whose_prompt_is_cached_goes_first(clock):
    limiter = limiter_of(clock)
    turn(limiter, "run-17", 10_000)
    while permit := limiter.try_acquire(POOL, input_tokens=1_000):
        permit.settle(input_tokens=1_000)
    asked = [
        limiter.acquire(POOL, input_tokens=10_000),
        limiter.acquire(POOL, conversation="new", input_tokens=10_000),
        limiter.acquire(POOL, conversation="run-17", input_tokens=10_500),
    ]
    scheduler = limiter.pacer.pools.scheduler(POOL)
    for one in asked:
        scheduler.pool.submit(clock.now_ns(), one._waiter)
    assert scheduler.pool.queue.head() is asked[2]._waiter
    row = limiter.status()["pools"][scheduler.pool.name]["queue"][0]
    assert row["cached_tokens"] == 10_000
    assert 290 < row["lost_in_s"] < 300


def test_after_a_refusal_the_whole_prompt_is_reserved(clock):
    limiter = limiter_of(clock)
    for _ in range(10):
        turn(limiter, "run-17", 1_000, read=1_000)
    permit = limiter.acquire(POOL, conversation="run-17", input_tokens=1_000).wait()
    assert permit.cost["input_tokens"] < 700
    permit.refused(retry_after_s=0.001)
    clock.advance(1)
    further = limiter.acquire(POOL, again=permit, input_tokens=1_000).wait()
    assert further.cost["input_tokens"] == 1_000
    further.settle(usage(1_000))
    assert reserved(limiter, "run-17", 1_000) == 1_000
    clock.advance(301)
    turn(limiter, "run-17", 1_000, read=0)
    assert reserved(limiter, "run-17", 1_000) < 700


def test_switched_off_nothing_is_expected():
    limiter = limiter_of(ManualClock(), prompt_cache=False)
    for _ in range(22):
        turn(limiter, "run-17", 1_000, read=1_000)
    assert reserved(limiter) == 1_100
    assert limiter.status()["pools"]["anthropic/claude-sonnet-4x"]["cache"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"conversation": ""}, "conversation is '': it must be a text of 1 to 200 characters"),
        ({"conversation": 7}, "conversation is '7'"),
        ({"conversation": "x" * 201}, "conversation is 'xxx"),
        ({"conversation": "a", "cached_tokens": -1}, "cached_tokens is -1: it must be a finite number, 0 or more"),
        ({"cached_tokens": 5}, "cached_tokens is given without a conversation"),
    ],
)
def test_invalid_arguments(options, said):
    with pytest.raises(paceline.QuotaError, match=said):
        limiter_of(ManualClock()).acquire(POOL, input_tokens=1, **options)


def test_a_group_stays_with_the_member_that_has_the_prompt(clock):
    group = paceline.Group({name: (limiter_of(clock), POOL) for name in ("eu", "us")})
    members = []
    for _ in range(6):
        with group.acquire(conversation="run-17", input_tokens=1_000) as (member, permit):
            members.append(member)
            permit.settle(usage(0 if len(members) == 1 else 900, 1_000 if len(members) == 1 else 100))
    assert len(set(members)) == 1
    others = []
    for _ in range(6):
        with group.acquire(input_tokens=1_000) as (member, permit):
            others.append(member)
            permit.settle(usage(0, 1_000))
    assert set(others) == {"eu", "us"}


def test_an_hour_of_late_follow_ups_is_worth_a_line(clock, caplog):
    limiter = limiter_of(clock)
    with caplog.at_level(logging.WARNING, "paceline"):
        for _ in range(11):
            turn(limiter, "run-17", 10_000)
            clock.advance(600)
    [line] = [text for text in caplog.messages if "ttl" in text]
    assert line.startswith("anthropic/claude-sonnet-4x: 60000 tokens in the last hour were cached again")
    assert clock.now_ns() > 3_600 * NS
