"""A program for each door, for `make lint`: what a type checker sees of them. It is not run.

An ignored error must be one: mypy reports an ignore that nothing needs.
"""

import asyncio
from typing import assert_type

import openai

import paceline
from paceline.data.mapping import Done, Results
from paceline.pacing.status import PoolStatus


async def under_an_sdk(limiter: paceline.Limiter) -> None:
    client = limiter.attach(openai.AsyncOpenAI())
    assert_type(client, openai.AsyncOpenAI)
    await client.chat.completionz.create()  # type: ignore[attr-defined]


async def by_hand(limiter: paceline.Limiter) -> None:
    async with limiter.acquire("openai/gpt-5", input_tokens=100) as permit:
        assert_type(permit, paceline.Permit)
    outcome = limiter.try_acquire("openai/gpt-5")
    if outcome:
        assert_type(outcome, paceline.Permit)
        outcome.settle()
    else:
        assert_type(outcome, paceline.Later | paceline.NeverFits)


async def decorated(limiter: paceline.Limiter) -> None:
    @limiter.paced("openai/gpt-5")
    async def ask(text: str) -> str:
        return text

    assert_type(await ask("a"), str)
    await ask(5)  # type: ignore[arg-type]


async def over_items() -> None:
    async def ask(text: str) -> int:
        return len(text)

    assert_type(await paceline.map(ask, ["a"]), Results[int])
    async for done in paceline.map(ask, ["a"]):
        assert_type(done, Done[str, int])
    assert_type(await paceline.map(len, ["a"]), Results[int])
    assert_type(paceline.map_sync(len, ["a"]), Results[int])
    paceline.map(ask, [5])  # type: ignore[arg-type]
    with paceline.lane(paceline.LaneSpec("wrap")):
        assert_type(await asyncio.create_task(paceline.map(ask, ["a"])), Results[int])


async def over_rows() -> None:
    paceline.run([{"text": "a"}], model="gpt-5", prompt="text", files=["photo"], output="answers.csv")
    await paceline.arun([{"text": "a"}], model="gpt-5", prompt="text")
    await paceline.arun([{"text": "a"}], model=5)  # type: ignore[arg-type]


def from_a_script() -> None:
    async def ask(text: str) -> int:
        return len(text)

    assert_type(asyncio.run(paceline.map(ask, ["a"])), Results[int])
    assert_type(paceline.map_sync(ask, ["a"]), Results[int])


def the_status(limiter: paceline.Limiter) -> None:
    with limiter:
        assert_type(limiter.status()["pools"]["openai/gpt-5"], PoolStatus)
        limiter.status()["polls"]  # type: ignore[typeddict-item]
