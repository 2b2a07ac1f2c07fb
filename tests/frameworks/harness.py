"""What the suites of SDKs share: the limits, and what to read from the books of either side."""

import os
from importlib.metadata import version
from pathlib import Path

LIMITS = {
    "anthropic/*": ["6000 requests/min", "4M input_tokens/min", "800k output_tokens/min"],
    "gemini/*": ["6000 requests/min", "4M input_tokens/min"],
    "cohere/*": ["6000 requests/min"],
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
MESSAGES = [{"role": "user", "content": PROMPT}]

CROWD = 150
"""How many call at once."""

SLOTS = ["100k requests/min", "8 concurrency"]
"""Limits under which an unpaced crowd is refused nearly to a man, on a machine of any speed."""

NARROW = {"rule": "quantised", "quantum_s": 5}
"""A world that holds no more than five seconds of its rate; of :data:`RATE` 50 of an unpaced crowd are refused."""

RATE = "1200 requests/min"


def counts(limiter, pool):
    """What has happened in a pool."""
    return limiter.status()["pools"][pool]["counts"]


def spent(limiter, pool):
    """What our books say that a pool has spent, per unit."""
    return {quota["unit"]: quota["spent"] for quota in limiter.status()["pools"][pool]["quotas"]}


def charged(world, model):
    """What the server's books say."""
    return world.tally()["pools"][model]["charges"]


def row(package, how, limiter, world, model, pool):
    """One row of the table of packages: check that nothing was refused and that both books agree; return the figures.

    With the environment variable PACELINE_FIGURES, the row is also added to the file of that name, as a line of Markdown.
    """
    tally = world.tally()
    ours, theirs = spent(limiter, pool), charged(world, model)
    figures = {"attempts": tally["admitted"] + tally["refused_total"], "refused": tally["refused_total"]}
    if path := os.environ.get("PACELINE_FIGURES"):
        books = ", ".join(f"{ours[unit]:,.0f} / {theirs[unit]:,.0f} {unit}" for unit in theirs if unit in ours)
        line = f"| {package} {version(package)} | {how} | {figures['attempts']} | {figures['refused']} | {books} |\n"
        with Path(path).open("a") as file:
            file.write(line)
    assert figures["refused"] == 0
    assert ours == theirs
    return figures
