"""Fleets of agents whose prompts are cached: turns an hour against the figures of the design, and what stays as it was."""

from __future__ import annotations

import pytest

from simulation.agents_http import Result, run_agents

OFF = {"prompt_cache": False}
LONG = pytest.mark.long("1,500 turns of a fleet")


def check(result: Result, turns_an_hour: float, *, refused: int = 0) -> None:
    """At least nine tenths of the figure of the model."""
    assert result.turns_an_hour >= 0.9 * turns_an_hour
    assert result.server.counts["refused"] <= refused


@LONG
def test_from_the_same_quota_nine_times_as_many_turns():
    today, ordered = run_agents(limiter=OFF), run_agents()
    assert today.turns_an_hour < 1_300
    check(ordered, 10_961)
    assert ordered.server.counts["again"] == 0
    cache = ordered.pool["cache"]
    assert cache["lost_waiting_tokens"] == cache["lost_away_tokens"] == 0
    assert cache["expected"] > 0.99
    assert cache["overtook"] > 1_000
    assert cache["read_tokens"] / cache["input_tokens"] > 0.85
    assert today.pool["cache"] is None


@LONG
def test_a_lane_for_each_client_key():
    check(run_agents(lanes=True), 10_776)


def test_where_nothing_is_cached_the_order_is_identical():
    plain, ordered = run_agents(60, 5, caches=False, limiter=OFF), run_agents(60, 5, caches=False)
    assert ordered.server.served == plain.server.served
    assert ordered.seconds == plain.seconds


@LONG
def test_with_a_third_of_misses_the_order_is_still_of_use():
    result = run_agents(misses=0.3)
    check(result, 3_059, refused=15)
    assert 0.4 < result.pool["cache"]["expected"] < 0.9


def test_conversations_that_begin_alike_are_told_apart():
    result = run_agents(60, 6, first=lambda _: "the same task")
    assert result.server.counts["again"] == 0


def test_an_hour_of_thought_is_counted_as_lost_away():
    result = run_agents(4, 3, think_s=(400, 500))
    assert result.pool["cache"]["lost_away_tokens"] > 0
    assert result.pool["cache"]["lost_waiting_tokens"] == 0


@LONG
def test_the_input_of_a_stream_is_settled_at_its_first_byte():
    result = run_agents(stream=True, holds_cached=True)
    check(result, 11_067, refused=15)


@LONG
def test_a_server_that_holds_whole_prompts_refuses_few():
    result = run_agents(holds_cached=True)
    assert result.server.counts["refused"] <= 0.015 * result.server.counts["served"]
