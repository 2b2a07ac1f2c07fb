"""The batch, and one half of the demo: workers that send every request once, with or without paceline."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import openai

from paceline.emulator import Emulator

MODEL = "gpt-6-luna"
MAX_OUTPUT_TOKENS = 150
TICK_S = 0.5
RETRY_PAUSES_S = (2.0, 8.0, 16.0)
"""The pauses of an application after a ``RateLimitError`` that the SDK's own two retries could not prevent."""

# Prompt lengths in words, and how many of a hundred requests are like that.
_LENGTHS = ((40, 200, 60), (300, 800, 32), (1_500, 2_500, 8))
_WORDS = "all the workers share one limit so each request waits until its turn comes"


@dataclass(frozen=True, slots=True)
class DemoBatch:
    """The requests, and the limits of the emulated provider.

    Attributes:
        requests: The number of requests; the first minute's quota goes at once, the rest at the allowed rate.
        workers: The number of workers that send at the same time.
        tokens_per_min: The limit on prompt and ``max_tokens`` together.
        latency_s: The time until an answer.
        cut_s: The time after which the half without paceline is stopped.
        start_s: The time over which the workers start, one after another.
        headroom_s: The part of each limit that stays unused, in seconds of refill.
        seed: Makes the prompts repeatable.
    """

    requests: int = 2_300
    workers: int = 500
    requests_per_min: int = 1_500
    tokens_per_min: int = 1_200_000
    latency_s: float = 0.5
    cut_s: float = 35.0
    start_s: float = 2.0
    headroom_s: float = 1.0
    seed: int = 7

    @property
    def limits(self) -> list[str]:
        """The limits in the notation that the emulator and the limiter share."""
        return [f"{self.requests_per_min} requests/min", f"{self.tokens_per_min} tokens/min"]

    def prompts(self) -> list[str]:
        """A prompt for each request: most are short, some are long, a few are very long."""
        chance, words = random.Random(self.seed), _WORDS.split()
        weights = [share for _, _, share in _LENGTHS]
        drawn = chance.choices(_LENGTHS, weights, k=self.requests)
        return [" ".join(chance.choices(words, k=chance.randint(low, high))) for low, high, _ in drawn]


@dataclass(slots=True)
class Half:
    """The results of one half.

    Attributes:
        title: With or without paceline.
        requests: The number of requests to send.
        done: Requests that were answered.
        lost: Requests without an answer after their last retry.
        errors: Requests that ended in another error, by its kind.
        spans_s: For each answered request, the seconds from the first attempt to the answer.
        over: Whether the half has ended.
        stopped: Whether its time limit ended it.
        tally: The emulator's counts; see ``World.tally``.
    """

    title: str
    requests: int
    done: int = 0
    lost: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    spans_s: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0
    over: bool = False
    stopped: bool = False
    tally: dict[str, Any] = field(default_factory=dict)

    @property
    def refused(self) -> int:
        """Attempts that the server refused."""
        return int(self.tally.get("refused_total", 0))

    @property
    def attempts(self) -> int:
        """HTTP attempts that reached the server."""
        return int(self.tally.get("admitted", 0)) + self.refused

    @property
    def speed(self) -> float | None:
        """The share of the ideal speed, by the server's tally; ``None`` when no request had to wait.

        For a half that was stopped: the least time for its admitted requests, divided by the time until the stop.
        """
        if not self.stopped:
            return self.tally.get("speed_vs_ideal")
        ideal_s = self.tally.get("ideal_s") or 0.0
        return ideal_s / self.elapsed_s if ideal_s > 0 else None

    def span_s(self, share: float) -> float | None:
        """The seconds in which ``share`` of the answered requests were answered."""
        spans = sorted(self.spans_s)
        return spans[min(int(share * len(spans)), len(spans) - 1)] if spans else None

    def timeline(self) -> list[tuple[int, int]]:
        """Admitted and refused attempts in each second since the start."""
        rows = {second: (admitted, refused) for second, admitted, refused in self.tally.get("timeline", ())}
        seconds = max(int(self.elapsed_s), *(second + 1 for second in rows), 0)
        return [rows.get(second, (0, 0)) for second in range(seconds)]


Call = Callable[[str], Awaitable[None]]


def plain(client: openai.AsyncOpenAI) -> Call:
    """The usual way to call an SDK: its two retries, which honour ``retry-after``, in a loop that sleeps and retries."""

    async def call(prompt: str) -> None:
        for pause_s in RETRY_PAUSES_S:
            try:
                return await ask(client, prompt)
            except openai.RateLimitError:
                await asyncio.sleep(pause_s)
        return await ask(client, prompt)

    return call


async def ask(client: openai.AsyncOpenAI, prompt: str) -> None:
    """One chat completion."""
    messages: Any = [{"role": "user", "content": prompt}]
    await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=MAX_OUTPUT_TOKENS)


async def run_half(
    half: Half,
    emulator: Emulator,
    batch: DemoBatch,
    call: Call,
    tick: Callable[[Half], None],
    *,
    cut_s: float | None = None,
) -> None:
    """Send the batch with ``call``.

    Args:
        half: Receives the results.
        emulator: The provider, with full quotas.
        batch: The requests.
        call: Sends one prompt, or raises.
        tick: Called twice a second with ``half`` and a fresh tally.
        cut_s: Stop after this time, in seconds; ``None`` for no limit.
    """
    started = time.monotonic()
    prompts = iter(batch.prompts())
    delays_s = (n * batch.start_s / batch.workers for n in range(batch.workers))
    workers = asyncio.gather(*(_worker(half, call, prompts, delay_s) for delay_s in delays_s))
    watch = asyncio.create_task(_watch(half, emulator, tick, started))
    try:
        async with asyncio.timeout(cut_s):
            await workers
    except TimeoutError:
        half.stopped = True
    finally:
        half.elapsed_s = time.monotonic() - started
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    half.tally = await asyncio.to_thread(emulator.tally)
    half.over = True
    tick(half)


async def _worker(half: Half, call: Call, prompts: Iterator[str], delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    for prompt in prompts:
        began = time.monotonic()
        try:
            await call(prompt)
        except openai.RateLimitError:
            half.lost += 1
        except openai.OpenAIError as error:
            half.errors[type(error).__name__] += 1
        else:
            half.done += 1
            half.spans_s.append(time.monotonic() - began)


async def _watch(half: Half, emulator: Emulator, tick: Callable[[Half], None], started: float) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        half.tally = await asyncio.to_thread(emulator.tally)
        half.elapsed_s = time.monotonic() - started
        tick(half)
