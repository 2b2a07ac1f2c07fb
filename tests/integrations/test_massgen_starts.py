"""The starts of MassGen's agents, without MassGen: the pool of an agent, and the lines of its log."""

from __future__ import annotations

import logging

import pytest

import paceline
from paceline.integrations import massgen
from virtual_time import virtual

STARTS = {
    "gemini": {"max_starts": 7, "time_window": 60},
    "gemini/gemini-2.5-pro": {"max_starts": 2, "time_window": 60},
    "claude": {"max_starts": 20, "time_window": 60, "mode": "even", "burst": 5},
}


@pytest.mark.parametrize(
    ("backend", "model", "said"),
    [
        ("gemini", "gemini-2.5-flash", "a (gemini, 1/7 starts) after 0.0 s, 7 starts/min exact of starts/gemini"),
        ("gemini", "gemini-2.5-pro", "a (gemini, 1/2 starts) after 0.0 s, 2 starts/min exact of starts/gemini/gemini-2.5-pro"),
        ("claude", "opus", "a (claude, 1/5 starts) after 0.0 s, 20 starts/min burst 5 even of starts/claude"),
        ("openai", "gpt-5-mini", "a (openai) at once, there is no limit starts/openai"),
    ],
)  # fmt: skip
@virtual
async def test_each_start_is_logged_with_the_count_and_the_limit(caplog, clock, backend, model, said):
    caplog.set_level(logging.INFO, "paceline.rate_limit")
    limiter = paceline.Limiter.load(None, starts=STARTS, clock=clock)
    await massgen._take(limiter, "a", backend, model)
    assert [record.getMessage() for record in caplog.records] == [f"Rate limit: Agent startup allowed: {said}"]
