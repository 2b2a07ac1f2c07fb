"""A pipeline of ten threads and two conversations with an agent, all on one quota of 30 000 tokens per minute.

python examples/contextualizer/run.py              # in real time, about two minutes
python examples/contextualizer/run.py --speed 10   # the same with six seconds for a minute
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from limited import Limited
from limited_provider import make_provider
from limited_settings import MODEL, POOL, SPEEDS, SettingError, Settings

import paceline
from paceline.testing import Emulator

PAPER = "The authors measure what nobody had measured before, and find that it depends. " * 75
"""About 1 200 tokens."""

SCHEMA = {"type": "object", "properties": {"topic": {"type": "string"}}, "required": ["topic"]}
THREADS, PAPERS, TURNS = 10, 40, 8


def pipeline(provider: Limited, number: int) -> None:
    """Read one paper, with one of the two functions."""
    prompt = f"Paper {number}: {PAPER}"
    if number % 2:
        provider.generate_structured(f"The topic? {prompt}", SCHEMA)
    else:
        provider.generate(f"Summarise. {prompt}")
    record, room = provider.last, provider.room()
    assert record is not None
    print(
        f"pipeline {number:>3} {record.method:<20} waited {record.waited_s:5.1f} s  used {record.used:>5,}"
        f"  of the quota: used {room.used:>6,.0f} left {room.left:>6,.0f}, waiting {room.waiting}\n",
        end="",  # one write, so that the lines of threads do not mix
    )


def conversation(agent: Any, name: str) -> None:
    """Talk to the agent until the history no longer fits."""
    messages: list[Any] = []
    for turn in range(TURNS):
        started = time.monotonic()
        messages = agent.invoke({"messages": [*messages, {"role": "user", "content": f"{turn}: {PAPER}"}]})["messages"]
        sent = messages[-1].usage_metadata["input_tokens"]
        took = time.monotonic() - started
        print(
            f"agent {name} turn {turn + 1:<20} took {took:7.1f} s  sent {sent:>5,} of {len(messages) - 1} messages\n",
            end="",
        )


def run(limiter: paceline.Limiter, base_url: str | None) -> list[BaseException]:
    """Run pipeline and agent at the same time; return the errors."""
    provider = make_provider(limiter, base_url)
    with ThreadPoolExecutor(THREADS) as pool, ThreadPoolExecutor(2) as talks:
        work: list[Future[None]] = []
        try:
            from limited_agent import make_agent, make_model
        except ImportError as error:
            print(f"without the agent: {error}; pip install -r examples/contextualizer/requirements.txt")
        else:
            agent = make_agent(make_model(limiter, base_url), limiter)
            work += [talks.submit(conversation, agent, name) for name in "AB"]
        work += [pool.submit(pipeline, provider, number) for number in range(PAPERS)]
    print(f"\n{provider.calls} calls used {provider.tokens:,} tokens and waited {provider.waited_s:,.0f} s together")
    return [error for job in work if (error := job.exception()) is not None]


def main() -> int:
    """Run against the emulator, or the real API."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--speed", type=int, choices=SPEEDS, default=1, help="seconds of the plan in one second")
    parser.add_argument("--real", action="store_true", help="the real API: needs OPENAI_API_KEY")
    parser.add_argument("--log", action="store_true", help="print the limiter's waits and retries")
    asked = parser.parse_args()
    if asked.log:
        logging.basicConfig(format="%(message)s")
        logging.getLogger("paceline.rate_limit").setLevel(logging.INFO)
    if asked.real and ("OPENAI_API_KEY" not in os.environ or asked.speed != 1):
        parser.error("--real needs OPENAI_API_KEY, and cannot be combined with --speed")
    try:
        settings = Settings.from_env()
    except SettingError as error:
        parser.error(str(error))
    limiter = settings.limiter(asked.speed)
    started = time.monotonic()
    with ExitStack() as running:
        world = None
        if not asked.real:
            limits = {MODEL: f"{settings.max_tpm} tokens/{60 // asked.speed}s"}
            world = running.enter_context(Emulator(limits, latency_s=1 / asked.speed, jitter=0.5))
        errors = run(limiter, world and world.base_url)
        tally = world.tally() if world else None
    spent = limiter.status()["pools"][POOL]["quotas"][0]["spent"]
    minutes = (time.monotonic() - started) * asked.speed / 60
    print(f"pipeline and agent together: {spent:,.0f} tokens in {minutes:.1f} min of the plan")
    if tally:
        print(f"the API admitted {tally['admitted']} requests and refused {tally['refused_total']}")
    for error in errors:
        print(f"failed: {type(error).__name__}: {error}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
