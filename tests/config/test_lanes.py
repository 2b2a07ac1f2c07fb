"""Lanes from the configuration; and the page on them: its examples run and print what it says, and what it says beside them holds."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from config_helpers import load_limiter

import paceline
from paceline.config import Config
from paceline.core.results import SettingsError
from paceline.emulator import Emulator
from paceline.pacing.pacer import Pacer
from paceline.testing import ManualClock
from virtual_time import virtual

PAGE = (Path(__file__).parents[2] / "docs" / "lanes.md").read_text()
BLOCKS = {language: re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) for language in ("python", "toml")}


@pytest.fixture(scope="module")
def page():
    """Every example run, in the order of the page and in one space; OpenAI is an emulator."""
    space, limits = {}, {"gpt-6-luna": "500 requests/min,500k tokens/min"}
    with Emulator(limits) as world, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "none")
        patch.setenv("OPENAI_BASE_URL", f"{world.base_url}/v1")
        for block in BLOCKS["python"]:
            exec(block, space)
        yield space


@pytest.fixture
def limiter():
    lanes = {"wrap": {"weight": 4, "priority": 2}, "default": {"priority": -1}}
    said = {"lanes": lanes, "limits": {"jobs": "60 requests/min"}}
    return paceline.Limiter(**Config().having(said, "test").arguments(), clock=ManualClock())


def lane_of(limiter, **options):
    return limiter.acquire("jobs", **options)._waiter.lane


def test_who_only_names_a_lane_gets_what_is_configured(limiter):
    with paceline.lane("wrap"):
        assert lane_of(limiter) == paceline.LaneSpec("wrap", 4, 2)
    assert lane_of(limiter, lane="wrap") == paceline.LaneSpec("wrap", 4, 2)
    with paceline.lane("other"):
        assert lane_of(limiter) == paceline.LaneSpec("other", 1, 0)
    assert lane_of(limiter) == paceline.LaneSpec("default", 1, -1)


def test_who_says_more_is_heard(limiter):
    for said, spec in (({"weight": 1}, (1, 2)), ({"priority": 0}, (4, 0)), ({"weight": 1, "priority": 0}, (1, 0))):
        with paceline.lane("wrap", **said):
            assert lane_of(limiter) == paceline.LaneSpec("wrap", *spec)
    assert lane_of(limiter, lane=paceline.LaneSpec("wrap")) == paceline.LaneSpec("wrap", 1, 0)


def lanes_of(limiter):
    return limiter.status()["pools"]["jobs"]["lanes"]


def lane_here(limiter):
    return lane_of(limiter).name


async def test_a_call_of_an_sdk_goes_through_the_lane_around_it(page, monkeypatch):
    waiters = []
    waiter_of = Pacer.waiter
    monkeypatch.setattr(
        Pacer, "waiter", lambda *asked, **named: waiters.append(waiter_of(*asked, **named)) or waiters[-1]
    )
    async with page["client"]:
        assert (await page["answer"]("Why?")).output_text
    assert [waiter.lane for waiter in waiters] == [paceline.LaneSpec("interactive", priority=1)]


async def test_how_far_a_lane_reaches():
    limiter = paceline.Limiter({"jobs": "60 requests/min"})

    async def here():
        return lane_here(limiter)

    with ThreadPoolExecutor(1) as pool, paceline.lane("inside"):
        task, coroutine = asyncio.create_task(here()), here()
        assert await here() == "inside"
        assert await asyncio.to_thread(lane_here, limiter) == "inside"
        assert await asyncio.get_running_loop().run_in_executor(pool, lane_here, limiter) == "default"
    assert [await task, await coroutine] == ["inside", "default"]


@virtual
async def test_by_hand(page, clock):
    limiter = paceline.Limiter({"jobs": "60 requests/min burst 2"}, clock=clock)
    await limiter.acquire("jobs")
    seen = []

    async def attempts():
        for attempt in limiter.attempts("jobs", lane="tried"):
            async with attempt:
                pass

    async def by_hand():
        with paceline.lane("around"):
            await page["by_hand"](limiter)

    tasks = [asyncio.create_task(work()) for work in (attempts, by_hand)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.3)
        seen += lanes_of(limiter)
    assert set(seen) == {"wrap", "tried"}
    with pytest.raises(SettingsError, match="leave out lane"):
        page["limiter"].try_acquire("jobs", lane="wrap")


def test_a_file_and_the_code_say_the_same(page, write):
    code, file = page["limiter"], paceline.Limiter.load(write(BLOCKS["toml"][0]))
    for name, weight, priority in (("wrap", 4, 0), ("interactive", 1, 1), ("other", 1, 0)):
        assert lane_of(code, lane=name) == lane_of(file, lane=name) == paceline.LaneSpec(name, weight, priority)
    variable = re.search(r"`(PACELINE_\w+)=(\d+)`", PAGE).groups()
    told = load_limiter(write("[limits]\njobs = '60 requests/min'"), dict([variable]))
    assert lane_of(told, lane="wrap") == lane_of(code, lane="wrap")
    with paceline.lane("wrap", priority=2):
        assert lane_of(told) == paceline.LaneSpec("wrap", 4, 2), "number by number"
