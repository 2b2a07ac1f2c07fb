"""The batch, and one half of the demo: its workers send every request once, by the half's own way of calling."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openai

    from paceline.emulator import Emulator

MODEL = "gpt-5"
MAX_OUTPUT_TOKENS = 150
TICK_S = 0.5
RETRY_PAUSES_S = (2.0, 8.0, 16.0)
"""What an application sleeps after a ``RateLimitError`` that the SDK's own two retries could not prevent."""

# Prompt lengths in words, and how many of a hundred requests are like that.
_LENGTHS = ((40, 200, 60), (300, 800, 32), (1_500, 2_500, 8))
_WORDS = (
    "all",
    "the",
    "workers",
    "share",
    "one",
    "limit",
    "so",
    "each",
    "request",
    "waits",
    "until",
    "its",
    "turn",
    "comes",
)


@dataclass(frozen=True, slots=True)
class Batch:
    """What is sent, and under which limits.

    Attributes:
        requests: How many requests; the first minute's worth goes at once, the rest at the allowed rate.
        workers: How many send at the same time.
        requests_per_min: The emulated provider's limit on requests.
        tokens_per_min: Its limit on tokens: the prompt and ``max_tokens``.
        latency_s: How long an answer takes, in seconds.
        cut_s: The half without paceline is stopped after so many seconds.
        start_s: Workers start one after another over so many seconds, as in most programs.
        headroom_s: What the limiter keeps unused, in seconds of refill.
        seed: Makes the prompts repeatable.
    """

    requests: int = 2_300
    workers: int = 500
    requests_per_min: int = 1_500
    tokens_per_min: int = 1_200_000
    latency_s: float = 0.5
    cut_s: float = 35.0
    start_s: float = 2.0
    headroom_s: float = 0.25
    seed: int = 7

    @property
    def limits(self) -> list[str]:
        """The limits in the notation that the emulator and the limiter share."""
        return [f"{self.requests_per_min} requests/min", f"{self.tokens_per_min} tokens/min"]

    def prompts(self) -> list[str]:
        """A prompt for each request: most are short, some long, a few very long."""
        chance = random.Random(self.seed)
        weights = [share for _, _, share in _LENGTHS]
        drawn = chance.choices(_LENGTHS, weights, k=self.requests)
        return [" ".join(chance.choices(_WORDS, k=chance.randint(low, high))) for low, high, _ in drawn]


@dataclass(slots=True)
class Half:
    """What became of one half.

    Attributes:
        title: Who sent.
        requests: How many there were to send.
        done: How many were answered.
        lost: How many were given up after their last retry.
        errors: How many ended in another error; the kinds and their counts.
        spans_s: For each answered request, the seconds from its worker's first try to the answer.
        elapsed_s: Seconds so far.
        over: Whether it has ended.
        stopped: Whether it ran into its time limit.
        tally: What the emulator saw; see ``World.tally``.
    """

    title: str
    requests: int
    done: int = 0
    lost: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    spans_s: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0
    over: bool = False
    stopped: bool = False
    tally: dict[str, Any] = field(default_factory=dict)

    @property
    def refused(self) -> int:
        """How many attempts the server refused."""
        return int(self.tally.get("refused_total", 0))

    @property
    def attempts(self) -> int:
        """HTTP attempts that reached the server."""
        return int(self.tally.get("admitted", 0)) + self.refused

    @property
    def speed(self) -> float | None:
        """The share of the ideal speed, by the server's tally; ``None`` when nothing had to wait.

        A half that was stopped is measured up to then: the time that its admitted requests need at best, over the
        time that it had.
        """
        if not self.stopped:
            return self.tally.get("speed_vs_ideal")
        ideal_s = self.tally.get("ideal_s") or 0.0
        return ideal_s / self.elapsed_s if ideal_s > 0 else None

    def span_s(self, share: float) -> float | None:
        """The time that ``share`` of the answered requests stayed within, in seconds."""
        spans = sorted(self.spans_s)
        return spans[min(int(share * len(spans)), len(spans) - 1)] if spans else None

    def timeline(self) -> list[tuple[int, int]]:
        """Admitted and refused in each second since the start, quiet seconds too."""
        rows = {second: (admitted, refused) for second, admitted, refused in self.tally.get("timeline", ())}
        seconds = max(int(self.elapsed_s), *(second + 1 for second in rows), 0)
        return [rows.get(second, (0, 0)) for second in range(seconds)]


Call = Callable[[str], Awaitable[None]]


def plain(client: openai.AsyncOpenAI) -> Call:
    """How people call an SDK: its two retries, which honour ``retry-after``, inside a loop that sleeps and tries again."""
    from openai import RateLimitError

    async def call(prompt: str) -> None:
        for pause_s in RETRY_PAUSES_S:
            try:
                return await ask(client, prompt)
            except RateLimitError:
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
    batch: Batch,
    call: Call,
    tick: Callable[[Half], None],
    *,
    cut_s: float | None = None,
) -> None:
    """Send the batch with ``call``.

    Args:
        half: Where the results go.
        emulator: The provider, with full quotas.
        batch: What to send.
        call: Sends one prompt, or raises.
        tick: Called twice a second with ``half``, its tally fresh.
        cut_s: Stop after so many seconds; ``None`` for never.
    """
    started = time.monotonic()
    prompts = iter(batch.prompts())
    crowd = asyncio.gather(
        *(_worker(half, call, prompts, n * batch.start_s / batch.workers) for n in range(batch.workers))
    )
    watch = asyncio.create_task(_watch(half, emulator, tick, started))
    try:
        async with asyncio.timeout(cut_s):
            await crowd
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
    import openai

    await asyncio.sleep(delay_s)
    for prompt in prompts:
        began = time.monotonic()
        try:
            await call(prompt)
        except openai.RateLimitError:
            half.lost += 1
        except openai.OpenAIError as error:
            name = type(error).__name__
            half.errors[name] = half.errors.get(name, 0) + 1
        else:
            half.done += 1
            half.spans_s.append(time.monotonic() - began)


async def _watch(half: Half, emulator: Emulator, tick: Callable[[Half], None], started: float) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        half.tally = await asyncio.to_thread(emulator.tally)
        half.elapsed_s = time.monotonic() - started
        tick(half)
