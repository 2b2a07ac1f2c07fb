"""Fifty agents of one backend, seven starts a minute, and ten agents of another backend without a limit.

python examples/fifty_agents/run.py                # real time, about 7 minutes: both modes side by side
python examples/fifty_agents/run.py --speed 60     # the same with a second for a minute
python examples/fifty_agents/run.py --mode off     # without limits: the API refuses
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
import threading
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NEEDS = "pip install '.[emulator,cli,yaml,demo]'"

try:
    import httpx2
    import uvicorn
    from starts import Started, Starts
    from starts_file import MODES, StartsFile

    import paceline
    from paceline.testing import Emulator
except ImportError as error:
    if __name__ != "__main__":
        raise
    print(f"fifty_agents: {error}; {NEEDS}", file=sys.stderr)
    sys.exit(2)

HERE = Path(__file__).parent
GEMINI, OPENAI = "gemini-2.5-flash", "gpt-5-mini"
AGENTS = [(f"agent_{number:02}", "gemini", GEMINI) for number in range(1, 50)]
AGENTS += [(f"helper_{number:02}", "openai", OPENAI) for number in range(1, 11)]
AGENTS += [("coordinator", "gemini", GEMINI)]  # the last to call, and the first to start: it has priority
APIS = {
    "gemini": ("https://generativelanguage.googleapis.com", "GEMINI_API_KEY", "x-goog-api-key", ""),
    "openai": ("https://api.openai.com", "OPENAI_API_KEY", "authorization", "Bearer "),
}
"""For each backend: its API, the variable and the header of its key, and the header's prefix."""
SPEEDS = (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)
"""Divisors of a minute that give the whole seconds that the emulator needs."""

out = logging.getLogger("run")


class Program:
    """Sixty agents that call at the same time, and their results.

    Args:
        mode: ``even`` or ``window``; ``off``: no limits in the program.
        speed: The seconds of the plan in one real second.
        base_url: The emulated API; ``None`` for the real ones.
    """

    def __init__(self, mode: str, speed: int, base_url: str | None) -> None:
        self.mode = mode
        off = mode == "off"
        file = StartsFile() if off else StartsFile.load(HERE / "starts.yaml", speed=speed, mode=mode)
        self.starts = Starts(file, name=mode)
        self.started: list[Started] = []
        self.answered = self.failed = 0
        self._clients = {backend: client(backend, base_url) for backend in APIS}
        # The calls after a start are paced apart from the starts, by the API's own limits.
        self.api = paceline.Limiter(api_limits(speed))
        if not off:
            for backend, its in self._clients.items():
                self.api.attach(its, provider=backend)  # the address of an emulator does not name the provider

    async def run(self) -> None:
        """Run until every agent has started and made its first call."""
        try:
            await asyncio.gather(*(self._agent(*agent) for agent in AGENTS))
        finally:
            for its in self._clients.values():
                await its.aclose()

    async def _agent(self, name: str, backend: str, model: str) -> None:
        self.started.append(await self.starts.wait(name, backend, model))
        path, body = call(backend, model, f"You are {name}. Say hello.")
        response = await self._clients[backend].post(path, json=body)
        if response.is_success:
            self.answered += 1
        else:
            self.failed += 1
            out.info("%s: %s failed: %d", self.mode, name, response.status_code)

    def status(self) -> dict[str, Any]:
        """The pools of the starts and of the calls."""
        pools = self.starts.status()["pools"] | self.api.status()["pools"]
        return {"pools": {f"{self.mode}: {name}": pool for name, pool in pools.items()}}


class Page:
    """The source of the status page: all programs."""

    def __init__(self, programs: list[Program]) -> None:
        self._programs = programs

    def status(self) -> dict[str, Any]:
        """The pools of all programs."""
        return {"pools": {name: pool for program in self._programs for name, pool in program.status()["pools"].items()}}


def api_limits(speed: int) -> dict[str, str]:
    """The limits of the API."""
    return {"gemini/*": f"7 requests/{60 // speed}s", "openai/*": f"500 requests/{60 // speed}s"}


def summary(program: Program, start_s: float) -> str:
    """The results of a program's agents, in one line."""
    gemini, others = (
        sorted(started.at_s - start_s for started in program.started if (started.backend == "gemini") == limited)
        for limited in (True, False)
    )
    return (
        f"{program.mode}: {len(gemini)} gemini agents started, 7 within {gemini[6]:.2f} s and all in {gemini[-1]:.2f} s;"
        f" {len(others)} of another backend within {others[-1]:.2f} s; {program.answered} calls answered,"
        f" {program.failed} failed"
    )


def client(backend: str, base_url: str | None) -> httpx2.AsyncClient:
    """A client of the emulator, or of the real API with the key from the environment."""
    url, variable, header, prefix = APIS[backend]
    key = "any" if base_url else os.environ[variable]
    return httpx2.AsyncClient(base_url=base_url or url, headers={header: prefix + key}, timeout=60)


def call(backend: str, model: str, text: str) -> tuple[str, dict[str, Any]]:
    """The path and the body of a call."""
    if backend == "gemini":
        return f"/v1beta/models/{model}:generateContent", {"contents": [{"role": "user", "parts": [{"text": text}]}]}
    return "/v1/responses", {"model": model, "input": text}


def main() -> int:
    """Run the programs side by side."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--speed", type=int, choices=SPEEDS, default=1, help="seconds of the plan in one second")
    parser.add_argument("--mode", choices=("both", *MODES, "off"), default="both")
    parser.add_argument("--port", type=int, default=8765, help="port of the status page; 0 for none")
    parser.add_argument("--picture", type=Path, metavar="STEM", help="draw the starts as STEM.svg and STEM.png")
    parser.add_argument("--real", action="store_true", help="the real APIs: needs GEMINI_API_KEY and OPENAI_API_KEY")
    asked = parser.parse_args()
    if asked.real and not {variable for _, variable, *_ in APIS.values()} <= os.environ.keys():
        parser.error("--real needs GEMINI_API_KEY and OPENAI_API_KEY")
    if asked.picture and find_spec("matplotlib") is None:
        parser.error(f"--picture needs matplotlib: {NEEDS}")
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(name)-6s %(message)s", datefmt="%H:%M:%S", stream=sys.stdout
    )
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    modes = MODES if asked.mode == "both" else (asked.mode,)
    with ExitStack() as running:
        worlds = [] if asked.real else [_world(running, asked.speed) for _ in modes]
        urls = [world.base_url for world in worlds] or [None] * len(modes)
        programs = [Program(mode, asked.speed, url) for mode, url in zip(modes, urls, strict=True)]
        if asked.port:
            _serve(Page(programs), asked.port)
        start_s = programs[0].starts.now_s()
        asyncio.run(_all(programs))
        for program in programs:
            out.info(summary(program, start_s))
        for mode, world in zip(modes, worlds, strict=False):
            tally = world.tally()
            out.info("%s: the API admitted %d requests and refused %d", mode, tally["admitted"], tally["refused_total"])
    if asked.picture:
        from starts_picture import draw

        for file in draw({program.mode: program.started for program in programs}, start_s, asked.speed, asked.picture):
            out.info("drawn: %s", file)
    return 0 if all(program.answered == len(AGENTS) for program in programs) else 1


def _world(running: ExitStack, speed: int) -> Emulator:
    limits = {GEMINI: api_limits(speed)["gemini/*"], OPENAI: api_limits(speed)["openai/*"]}
    return running.enter_context(Emulator(limits, latency_s=0.5 / speed, jitter=0.5))


def _serve(page: Page, port: int) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(paceline.status_app(page), log_config=None, log_level="critical")
    server = threading.Thread(target=uvicorn.Server(config).run, kwargs={"sockets": [listener]}, daemon=True)
    server.start()
    out.info("who waits: http://127.0.0.1:%d/ or: paceline status 127.0.0.1:%d", port, port)


async def _all(programs: list[Program]) -> None:
    await asyncio.gather(*(program.run() for program in programs))


if __name__ == "__main__":
    sys.exit(main())
