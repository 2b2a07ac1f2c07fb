"""A warning names the line that called paceline, whatever door it came through."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace

import pytest

import paceline
from paceline.testing import ManualClock

JOBS, DOLLARS = {"jobs": ["60 requests/min", "600 tokens/min"]}, {"jobs": "5 usd/day"}
APART = {"jobs": ["600 input_tokens/min", "600 output_tokens/min"]}


def limiter(quotas, **options):
    return paceline.Limiter(quotas, clock=ManualClock(), **options)


def in_a_block():
    with limiter(JOBS).acquire("jobs", tokens=5):
        pass


async def in_an_async_block():
    async with limiter(JOBS).acquire("jobs", tokens=5):
        pass


def in_attempts():
    for attempt in limiter(JOBS).attempts("jobs", tokens=5):
        with attempt:
            pass


async def blocking_a_loop():
    one = paceline.Limiter({"jobs": "1 concurrency"}, acquire_timeout_s=0.001)
    one.acquire("jobs").wait()
    with pytest.raises(paceline.AcquireTimeoutError):
        one.acquire("jobs").wait()


def acquiring():
    limiter(DOLLARS).acquire("jobs")


def trying():
    limiter(DOLLARS).try_acquire("jobs")


def of_an_unknown_provider():
    limiter(DOLLARS, provider="unheard").acquire("unheard/m", tokens=5)


def decorated():
    limiter(APART).paced("jobs", input_tokens=1, output_tokens=1)(lambda: SimpleNamespace(tokens_used=5))()


def over_items():
    paceline.map_sync(lambda _: 1 / 0, [1], progress=False)


DOORS = [
    in_a_block, in_an_async_block, in_attempts, blocking_a_loop, acquiring, trying, of_an_unknown_provider, decorated, over_items,
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_a_warning_names_the_line_that_called(door):
    with pytest.warns(paceline.PacelineWarning) as caught:
        asyncio.run(door()) if inspect.iscoroutinefunction(door) else door()
    lines, first = inspect.getsourcelines(door)
    for one in caught:
        assert one.filename == __file__
        assert first <= one.lineno < first + len(lines)
