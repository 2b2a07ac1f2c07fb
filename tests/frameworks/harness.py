"""What the suites of SDKs share: the limits, and what to read from the books of either side."""

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import paceline
from odd_server import JSON, OddServer

LIMITS = {
    "anthropic/*": ["6000 requests/min", "4M input_tokens/min", "800k output_tokens/min"],
    "gemini/*": ["6000 requests/min", "4M input_tokens/min"],
    "cohere/*": ["6000 requests/min"],
    "bedrock/*": ["6000 requests/min", "4M tokens/min"],
    **{f"{provider}/*": ["6000 requests/min", "4M tokens/min"] for provider in ("openai", "groq", "mistral")},
}
"""By provider. Every quota is wide, so that nothing waits where a test is about something else."""

MODELS = {
    "gpt-5": LIMITS["openai/*"],
    "claude-haiku-4-5": LIMITS["anthropic/*"],
    "gemini-2.5-flash": LIMITS["gemini/*"],
    "command-a-03-2025": LIMITS["cohere/*"],
    "llama-3.3-70b-versatile": LIMITS["groq/*"],
    "mistral-small-latest": LIMITS["mistral/*"],
}

PROMPT = "Say something about the weather in twenty words. " * 5
KEY = {"authorization": "Bearer k"}
MESSAGES = [{"role": "user", "content": PROMPT}]


BUSY = ["100k requests/min", "10M tokens/min", "8 concurrency"]
"""The same, with tokens that are counted."""

BUSY_OF = {
    "anthropic": [BUSY[0], "10M input_tokens/min", "10M output_tokens/min", BUSY[2]],
    "gemini": [BUSY[0], "10M input_tokens/min", BUSY[2]],
    "cohere": [BUSY[0], BUSY[2]],
}
"""The same, of providers that count other units."""

AT_ONCE = 30
"""How many of the calls for a row are made at once from threads, and how many from one event loop."""


def counts(limiter, pool):
    """What has happened in a pool."""
    return limiter.status()["pools"][pool]["counts"]


def spent(limiter, pool):
    """What our books say that a pool has spent, per unit: of several quotas of a unit the first, the others were learned later."""
    return {quota["unit"]: quota["spent"] for quota in reversed(limiter.status()["pools"][pool]["quotas"])}


def charged(world, model):
    """What the server's books say."""
    return world.tally()["pools"][model]["charges"]


def books_agree(limiter, world, pool, calls):
    """So many calls were granted and settled in a pool, and both sides' books of it are the same."""
    assert counts(limiter, pool) == {"granted": calls, "settled": calls}
    assert spent(limiter, pool) == charged(world, pool.partition("/")[2])


def row(package, over, limiter, world, model, pool):
    """One row of the table of packages: check that nothing was refused and that both books agree; return the figures.

    With the environment variable PACELINE_FIGURES, the row is also added to the file of that name, as a line of Markdown.
    """
    tally = world.tally()
    ours, theirs = spent(limiter, pool), charged(world, model)
    figures = {"attempts": tally["admitted"] + tally["refused_total"], "refused": tally["refused_total"]}
    if path := os.environ.get("PACELINE_FIGURES"):
        units = [unit for unit in theirs if unit in ours and unit not in ("concurrency", "requests")] or ["requests"]
        books = ", ".join(f"{theirs[unit]:,.0f} {unit}" for unit in units)
        line = f"| {package} {version(package)} | {over} | {figures['attempts']} | {books} |\n"
        with Path(path).open("a") as file:
            file.write(line)
    assert figures["refused"] == 0
    assert ours == theirs
    return figures


def crowd(call, acall=None):
    """Make :data:`AT_ONCE` calls at once from threads, and from an event loop as many of the async one; their results."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        results = list(threads.map(lambda _: call(), range(AT_ONCE))) if call else []

    async def loop():
        return await asyncio.gather(*[acall() for _ in range(AT_ONCE)])

    return results + (asyncio.run(loop()) if acall else [])


def crowd_row(start, package, over, pool, calls, *, dialect=""):
    """A crowd under ``paceline.instrument()`` in a world of 8 slots, and its row.

    Args:
        start: The fixture ``paceline_emulator``.
        package: The distribution.
        over: What it sends through.
        pool: ``<provider>/<model>``.
        calls: From the world to a call and an async call; ``None`` for one that the package does not have.
        dialect: That of the emulator. Groq's gives back the output that was asked for and not used.
    """
    provider, _, model = pool.partition("/")
    quotas = BUSY_OF.get(provider, BUSY)
    world = start(limits={model: quotas}, latency_s=0.05, dialect=dialect)
    limiter = paceline.Limiter({f"{provider}/*": quotas})
    with paceline.instrument(limiter, provider=provider):
        crowd(*calls(world))
    return row(package, over, limiter, world, model, pool)


async def cancel_in_a_stream(limiter, pool, consume):
    """Cancel ``consume(begun)``, which sets ``begun`` within its stream: its place is free at once."""
    begun = asyncio.Event()
    task = asyncio.create_task(consume(begun))
    await begun.wait()
    assert limiter.status()["pools"][pool]["in_flight"] == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert limiter.status()["pools"][pool]["in_flight"] == 0


class Service(OddServer):
    """A provider whose dialect the emulator does not have: counts, and refuses what exceeds 8 requests in flight.

    Args:
        model: The model, as the limiter's pool calls it.
        made: From the path and the body of a request to the answer, and the input and output tokens in it.
        refusal: The body of a refusal.
        units: What is counted.
    """

    def __init__(self, model, made, refusal, units=("requests", "tokens", "concurrency")):
        super().__init__(self.respond)
        self.model, self.made, self.refusal, self.units = model, made, refusal, units
        self.in_flight = self.refused = 0
        self.charges = {"requests": 0, "tokens": 0, "concurrency": 0}

    def respond(self, number, body):
        with self.lock:
            fits = self.in_flight < 8
            self.in_flight += fits
            self.refused += not fits
        if not fits:
            return 429, JSON, self.refusal
        time.sleep(0.05)
        content, input_tokens, output_tokens = self.made(self.paths[number], body)
        with self.lock:
            self.in_flight -= 1
            for unit, amount in (("requests", 1), ("concurrency", 1), ("tokens", input_tokens + output_tokens)):
                self.charges[unit] += amount
        return 200, JSON, content

    def tally(self):
        """Its books, as those of the emulator."""
        charges = {unit: self.charges[unit] for unit in self.units}
        books = {self.model: {"charges": charges}}
        return {"admitted": self.charges["requests"], "refused_total": self.refused, "pools": books}


def service_row(package, over, pool, answer, refusal, calls, quotas=BUSY):
    """Send a crowd to a :class:`Service`, and write its row, as :func:`crowd_row` does; ``calls`` makes the calls."""
    provider, _, model = pool.partition("/")
    limiter = paceline.Limiter({f"{provider}/*": quotas})
    units = [quota.unit for quota in map(paceline.Quota.parse, quotas)]
    with Service(model, answer, refusal, units) as service:
        with paceline.instrument(limiter, provider=provider):
            crowd(*calls(service))
        row(package, over, limiter, service, model, pool)
