"""The starts of MassGen's agents, without MassGen: the pool of an agent, and the lines of its log."""

from __future__ import annotations

import logging

import pytest

import paceline
from paceline.integrations import massgen
from paceline.testing import run_virtual

STARTS = {
    "gemini": {"max_starts": 7, "time_window": 60},
    "gemini/gemini-2.5-pro": {"max_starts": 2, "time_window": 60},
    "claude": {"max_starts": 20, "time_window": 60, "mode": "even", "burst": 5},
}


@pytest.mark.parametrize(
    ("backend", "model", "said"),
    [
        ("gemini", "gemini-2.5-flash", "a (starts/gemini) starts after 0.0 s (1 of 7 used, 7 starts/min exact)"),
        ("gemini", "gemini-2.5-pro", "a (starts/gemini/gemini-2.5-pro) starts after 0.0 s (1 of 2 used, 2 starts/min exact)"),
        ("claude", "opus", "a (starts/claude) starts after 0.0 s (1 of 5 used, 20 starts/min burst 5 even)"),
        ("openai", "gpt-5-mini", "a (openai) starts at once: there is no limit starts/openai"),
    ],
)  # fmt: skip
def test_each_start_is_logged_with_the_count_and_the_limit(caplog, backend, model, said):
    async def main(clock):
        limiter = paceline.Limiter.load(None, starts=STARTS, clock=clock)
        await massgen._take(limiter, "a", backend, model)

    caplog.set_level(logging.INFO, "paceline.rate_limit")
    run_virtual(main)
    assert [record.getMessage() for record in caplog.records] == [f"Rate limit: {said}"]
