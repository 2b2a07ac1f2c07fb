"""`paceline plan` beside `paceline run`: the same input, the planned and the real duration."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.table import Row
from paceline.emulator import Emulator
from paceline.emulator.text import count_messages, write

MARGIN = 0.05
PROMPT = 200
"""The tokens of a prompt, about."""

WORLDS = {
    "requests bind": (["gpt-5"], "gpt-5=100 requests/10s", 400, 200, {"latency_s": 0.5}),
    "tokens bind": (["gpt-5"], "gpt-5=1000 requests/10s,60k tokens/10s", 600, 200, {"latency_s": 1.0, "jitter": 0.3}),
    "the answers' time binds": (["gpt-5"], "gpt-5=10k requests/10s", 600, 20, {"latency_s": 0.6, "jitter": 0.3}),
    "two models, two limits": (
        ["gpt-5", "gpt-5-mini"],
        "gpt-5=60 requests/10s|gpt-5-mini=100 requests/10s",
        500,
        200,
        {"latency_s": 1.5, "jitter": 0.5},
    ),
}
"""Models, limits, calls, workers, and settings of the provider."""


def measure(quick: bool) -> list[Row]:
    """A row for each world, and one for the time that a plan takes."""
    rows = [_row(name, *world) for name, world in list(WORLDS.items())[: 1 if quick else None]]
    return [*rows, _hour()]


def _row(name: str, models: list[str], limit: str, calls: int, workers: int, settings: dict[str, Any]) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in.jsonl")
        source.write_text("".join(_line(number, models[number % len(models)]) for number in range(calls)))
        limits = limit.split("|")
        own = [word for text in limits for word in ("--limit", text)]
        shared = [str(source), *own, "--workers", str(workers), "--json"]
        speed = ["--latency-s", str(settings["latency_s"]), "--latency-per-token-s", "0"]
        if "tokens" in limit:  # the emulator's tokens are its own, so the sizes are stated
            source = Path(folder, "work.yaml")
            source.write_text(json.dumps(_stated(calls)))
        (planned,) = json.loads(_paceline("plan", str(source), *shared[1:], *speed))["plans"]
        with Emulator(limits=limits, process=True, **settings) as emulator:
            output = ["-o", f"{folder}/out.jsonl", "--store", "memory:", "--base-url", emulator.base_url]
            real = json.loads(_paceline("run", *shared, *output))
    ratio = planned["seconds"] / real["seconds"]
    words = (
        f"{planned['seconds']:.1f} s planned, {real['seconds']:.1f} s real: {ratio - 1:+.1%}; {real['refused']} refused"
    )
    return Row(f"plan beside run, {calls} calls: {name}", words, f"within {MARGIN:.0%}", abs(ratio - 1) <= MARGIN)


def _stated(calls: int) -> dict[str, Any]:
    asked = count_messages([{"role": "user", "content": write(PROMPT)}])
    phase = {
        "name": "a",
        "models": "openai/gpt-5",
        "input_tokens": asked,
        "output_tokens": 50,
        "max_output_tokens": 100,
    }
    return {"items": calls, "phases": [phase]}


def _hour() -> Row:
    work = {"items": 30_000, "workers": 500, "phases": [{"name": "a", "models": "openai/gpt-5"}]}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "hour.yaml")
        file.write_text(json.dumps(work))
        began = time.monotonic()
        (made,) = json.loads(_paceline("plan", str(file), "--tier", "1", "--json"))["plans"]
        took = time.monotonic() - began
    words = f"{took:.1f} s for {made['seconds'] / 60:.0f} min"
    return Row("plan: 30,000 calls of 500 workers at 500 requests/min", words, "<= 5 s", took <= 5)


def _paceline(*words: str) -> str:
    command = [str(Path(sys.executable).with_name("paceline")), *words]
    environment = {"PATH": "/usr/bin:/bin", "OPENAI_API_KEY": "none", "HOME": tempfile.gettempdir()}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=300).stdout


def _line(number: int, model: str) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": write(PROMPT)}],
        "max_tokens": 100,
    }
    return json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"
