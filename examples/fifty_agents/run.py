"""Fifty agents of one backend, seven starts a minute, and ten agents of another backend without a limit.

python examples/fifty_agents/run.py                # real time, 7 minutes, against the emulator
python examples/fifty_agents/run.py --speed 60     # the same with a second for a minute
python examples/fifty_agents/run.py --mode off     # without limits: the API refuses 43
python examples/fifty_agents/run.py --real         # the real APIs: needs GEMINI_API_KEY and OPENAI_API_KEY
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

NEEDS = "pip install '.[emulator,cli]'"

try:
    import httpx2
    import uvicorn
    import yaml

    import paceline
    from paceline.testing import Emulator
except ImportError as error:
    if __name__ != "__main__":
        raise
    print(f"fifty_agents: {error}; {NEEDS}", file=sys.stderr)
    sys.exit(2)

FILE = Path(__file__).parent / "starts.yaml"
AGENTS = [(f"agent_{number:02}", "gemini", "gemini-3.8-flash") for number in range(1, 50)]
AGENTS += [(f"helper_{number:02}", "openai", "gpt-6-luna") for number in range(1, 11)]
AGENTS += [("coordinator", "gemini", "gemini-3.8-flash")]  # the last to call, and the first to wait: it has priority
API = {"gemini": 7, "openai": 500}
"""Requests a minute that the emulated API allows."""

out = logging.getLogger("run")


def limiter_of(speed: float = 1, mode: str | None = None, **options: Any) -> paceline.Limiter:
    """The limiter of ``starts.yaml``, with minutes of ``60 / speed`` seconds.

    Raises:
        SettingsError: A setting in the file is invalid.
    """
    if mode == "off":
        return paceline.Limiter(
            {"*": "1M requests/s"}, learn=False, retry=paceline.RetryPolicy(max_attempts=1), **options
        )
    if speed != 1 or mode:
        settings = yaml.safe_load(FILE.read_text())
        limited = {backend: its for backend, its in settings["starts"].items() if its}
        for its in limited.values():
            its["time_window"] /= speed
        if mode is not None:
            limited["gemini"]["mode"] = mode
        options["starts"] = limited
        options["limits"] = {f"{backend}/*": per_minute(most, speed) for backend, most in API.items()}
    return paceline.Limiter.load(FILE, **options)


def per_minute(most: int, speed: float) -> str:
    """A limit of the API in text."""
    return f"{most} requests/{60 / speed:g}s"


async def start(limiter: paceline.Limiter, agent: str, backend: str, model: str) -> float:
    """Return when ``agent`` may start, with its wait in seconds; at once where the file has no limit."""
    for pool in (f"starts/{backend}/{model}", f"starts/{backend}"):
        if pool in limiter.limits.given:
            async with limiter.acquire(pool, name=agent, starts=1) as permit:
                permit.settle()
            return permit.waited_s
    return 0.0


class Program:
    """Sixty agents that call at the same time.

    Attributes:
        started_s: By the agent's name, the seconds until its start.
    """

    def __init__(self, limiter: paceline.Limiter, base_url: str | None) -> None:
        self.started_s: dict[str, float] = {}
        self.failed = 0
        self._limiter, self._clients = limiter, {}
        for backend in API:
            self._clients[backend] = limiter.attach(client(backend, base_url), provider=backend)

    async def run(self) -> None:
        """Run until every agent has started and has its first answer."""
        start_s = time.monotonic()
        await asyncio.gather(*(self._agent(start_s, *agent) for agent in AGENTS))
        for its in self._clients.values():
            await its.aclose()

    async def _agent(self, start_s: float, name: str, backend: str, model: str) -> None:
        await start(self._limiter, name, backend, model)
        self.started_s[name] = time.monotonic() - start_s
        out.info("%s starts after %.1f s", name, self.started_s[name])
        path, body = call(backend, model, f"You are {name}. Say hello.")
        response = await self._clients[backend].post(path, json=body)
        self.failed += not response.is_success


def client(backend: str, base_url: str | None) -> httpx2.AsyncClient:
    """A client of the emulator, or of the real API with the key from the environment."""
    if backend == "gemini":
        url, headers = (
            "https://generativelanguage.googleapis.com",
            {"x-goog-api-key": os.environ.get("GEMINI_API_KEY", "any")},
        )
    else:
        url, headers = "https://api.openai.com", {"authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'any')}"}
    return httpx2.AsyncClient(base_url=base_url or url, headers=headers, timeout=60)


def call(backend: str, model: str, text: str) -> tuple[str, dict[str, Any]]:
    """The path and the body of a call."""
    if backend == "gemini":
        return f"/v1beta/models/{model}:generateContent", {"contents": [{"role": "user", "parts": [{"text": text}]}]}
    return "/v1/responses", {"model": model, "input": text}


def main() -> int:
    """Run the program, and print the starts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--speed", type=int, choices=(1, 2, 3, 5, 6, 10, 15, 20, 30, 60), default=1, help="of the clock"
    )
    parser.add_argument(
        "--mode", choices=("window", "even", "off"), help="of the limit of gemini; by default the file's"
    )
    parser.add_argument("--status", type=int, metavar="PORT", help="serve the status page, which names who waits")
    parser.add_argument("--real", action="store_true", help="the real APIs: needs GEMINI_API_KEY and OPENAI_API_KEY")
    asked = parser.parse_args()
    if asked.real and not {"GEMINI_API_KEY", "OPENAI_API_KEY"} <= os.environ.keys():
        parser.error("--real needs GEMINI_API_KEY and OPENAI_API_KEY")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stdout)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    limiter = limiter_of(asked.speed, asked.mode)
    if asked.status:
        app = uvicorn.Config(paceline.status_app(limiter), port=asked.status, log_level="critical")
        threading.Thread(target=uvicorn.Server(app).run, daemon=True).start()
    models = {model: per_minute(API[backend], asked.speed) for _, backend, model in AGENTS}
    with nullcontext() if asked.real else Emulator(models, latency_s=0.5 / asked.speed, jitter=0.5) as world:
        program = Program(limiter, world and world.base_url)
        asyncio.run(program.run())
        tally = world.tally() if world else None
    gemini = sorted(program.started_s[name] for name, backend, _ in AGENTS if backend == "gemini")
    others = max(program.started_s[name] for name, backend, _ in AGENTS if backend == "openai")
    print(
        f"gemini: 7 agents started within {gemini[6]:.2f} s, all 50 within {gemini[-1]:.1f} s; the others within {others:.2f} s"
    )
    if tally:
        print(f"the API admitted {tally['admitted']} requests and refused {tally['refused_total']}")
    return 1 if program.failed else 0


if __name__ == "__main__":
    sys.exit(main())
