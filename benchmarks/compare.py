"""paceline and its peers on the same workloads, against two servers; a report in Markdown, with pictures and raw JSON."""

from __future__ import annotations

import bisect
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.contestants import PEERS
from benchmarks.table import machine
from benchmarks.tap import Tap
from benchmarks.throttle import _newer_python
from benchmarks.traffic import MAX_OUTPUT_TOKENS, cut, prompts
from paceline.emulator import Emulator
from paceline.emulator.text import PER_MESSAGE, count_tokens

ROOT = Path(__file__).resolve().parent.parent
NEEDS = ["httpx2>=2.16", "openai>=3"]
LATENCY_S = 0.3


@dataclass(frozen=True, slots=True)
class World:
    """A workload: the server's limits and those that the limiter is told, both per minute, as buckets that start full."""

    name: str
    true: dict[str, int]
    told: dict[str, int]
    servers: tuple[str, ...] = ("emulator", "mocklimit")
    workers: int = 500

    def jobs(self, ideal_s: float) -> list[tuple[str, int, int]]:
        """Prompts with input and output tokens: so many that the requests quota alone needs ``ideal_s``."""
        count = self.true["requests"] + round(self.true["requests"] / 60 * ideal_s)
        texts = [f"request {number}: {prompt}" for number, prompt in enumerate(prompts(count))]
        return [(text, count_tokens(text) + PER_MESSAGE, MAX_OUTPUT_TOKENS) for text in texts]


WORLDS = [
    World("known limit", {"requests": 600, "tokens": 480_000}, {"requests": 600, "tokens": 480_000}),
    World("half of what was told", {"requests": 300, "tokens": 480_000}, {"requests": 600, "tokens": 480_000}, ("emulator",)),
    World(
        "three quotas",
        {"requests": 600, "input_tokens": 420_000, "output_tokens": 62_000},
        {"requests": 600, "input_tokens": 420_000, "output_tokens": 62_000},
        ("emulator",),
    ),
]  # fmt: skip


@cache
def environment(package: str) -> tuple[str, str]:
    """The Python of a virtual environment with ``package``, in the user's cache; or "" and the reason."""
    if not package:
        return sys.executable, ""
    base = _newer_python()
    if base is None:
        return "", "no Python 3.12 or later was found"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline-benchmarks" / f"peer-{package}"
    python, ready = home / "bin" / "python", home / "ready"
    needs = [package, *NEEDS]
    if not (ready.exists() and ready.read_text() == "\n".join(needs)):
        try:
            subprocess.run([base, "-m", "venv", "--clear", str(home)], check=True, capture_output=True)
            install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *needs]
            subprocess.run(install, check=True, capture_output=True, timeout=300)
        except (subprocess.SubprocessError, OSError):
            return "", "could not be installed"
        ready.write_text("\n".join(needs))
    return str(python), ""


def version_of(package: str) -> str:
    """The version that is installed there."""
    code = f"import importlib.metadata as m, platform as p; print(m.version({package or 'paceline'!r}), '(Python', p.python_version() + ')')"
    python, why = environment(package)
    return why or subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


@contextmanager
def serving(server: str, world: World) -> Iterator[tuple[int, Any]]:
    """The server's port and a function that gives its tally."""
    if server == "emulator":
        limits = {"*": [f"{amount} {unit}/min" for unit, amount in world.true.items()]}
        with Emulator(limits, process=True, latency_s=LATENCY_S) as emulator:
            yield int(emulator.base_url.rpartition(":")[2]), emulator.tally
        return
    python, why = environment("mocklimit")
    if not python:
        raise RuntimeError(why)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        for name, value in (("spec", _SPEC), ("limits", _mocklimit(world))):
            Path(folder, f"{name}.yaml").write_text(json.dumps(value))  # JSON is YAML
        command = [
            python,
            "-m",
            "mocklimit",
            "serve",
            "--spec",
            f"{folder}/spec.yaml",
            "--rate-config",
            f"{folder}/limits.yaml",
        ]
        child = subprocess.Popen(
            [*command, "--port", str(port), "--log-level", "CRITICAL"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until = time.monotonic() + 20
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/mocklimit/stats", timeout=5).close()
                    break
                except OSError:
                    if time.monotonic() > until:
                        raise RuntimeError("mocklimit did not start") from None
                    time.sleep(0.2)
            yield port, dict
        finally:
            child.terminate()
            child.wait(10)


_ANSWER = {
    "id": "x", "object": "chat.completion", "created": 1, "model": "gpt-4.1-mini",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip
_CONTENT = {"application/json": {"schema": {"type": "object"}, "example": _ANSWER}}
_SPEC = {
    "openapi": "3.0.0",
    "info": {"title": "chat", "version": "1"},
    "paths": {"/v1/chat/completions": {"post": {"responses": {"200": {"description": "answer", "content": _CONTENT}}}}},
}


def _mocklimit(world: World) -> dict[str, Any]:
    limits = [
        {
            "dimension": unit, "capacity": amount, "refill_rate": amount / 60,
            "headers": {name: f"x-ratelimit-{name}-{unit}" for name in ("limit", "remaining", "reset")},
        }
        for unit, amount in world.true.items()
    ]  # fmt: skip
    fixed = {"strategy": "fixed"}
    endpoint = {
        "methods": ["POST"], "policy": "chat", "timing": {"base_ms": [LATENCY_S * 1_000, LATENCY_S * 1_000 + 1]},
        "resources": {
            "requests": {"input": fixed | {"value": 1}, "output": fixed | {"value": 0}},
            "tokens": {"input": {"strategy": "characters_div_4"}, "output": fixed | {"value": MAX_OUTPUT_TOKENS}},
        },
    }  # fmt: skip
    policy = {
        "strategy": "token_bucket", "limits": limits, "scope": "api_key", "error_template": {"provider": "openai"},
        "format": {"reset": "go_duration", "retry_after": {"header": "retry-after", "unit": "seconds"}},
    }  # fmt: skip
    return {"policies": {"chat": policy}, "endpoints": {"/v1/chat/completions": endpoint}}


def overtaking(admitted: dict[int, float]) -> int:
    """The most requests of a higher number that were admitted before one of a lower number; not admitted counts as last."""
    later: list[float] = []
    most = 0
    for number in range(max(admitted, default=-1), -1, -1):
        at = admitted.get(number, float("inf"))
        most = max(most, bisect.bisect_left(later, at))
        bisect.insort(later, at)
    return most


def run(peer: str, world: World, server: str, ideal_s: float) -> dict[str, Any]:
    """One run of one peer; ``why`` where there is no result."""
    what = {"peer": peer, "world": world.name, "server": server, "load": os.getloadavg()[0]}
    python, why = environment(PEERS[peer][0])
    if why:
        return what | {"why": why}
    jobs = world.jobs(ideal_s)
    with serving(server, world) as (port, tally), Tap(port) as tap:
        job = {
            "peer": peer, "url": f"http://127.0.0.1:{tap.port}", "jobs": jobs, "workers": world.workers,
            "told": world.told, "cut_s": cut(ideal_s),
        }  # fmt: skip
        try:
            done = subprocess.run(
                [python, "-m", "benchmarks.contestants"], input=json.dumps(job), capture_output=True, text=True, cwd=ROOT,
                timeout=cut(ideal_s) + 30, check=False, env={**os.environ, "NO_PROXY": "127.0.0.1"},
            )  # fmt: skip
            result = json.loads(done.stdout.splitlines()[-1])
        except (subprocess.TimeoutExpired, IndexError, ValueError):
            result = {"why": "the process failed or did not end"}
        counted = tally()
    seen = sorted(tap.seen)
    admitted: dict[int, float] = {}
    for at, number, status in seen:
        if status == 200:
            admitted.setdefault(number, at)
    if not admitted:
        return what | {"why": "no request was admitted"} | result
    first, last = min(admitted.values()), max(admitted.values())
    charged = [(1, *jobs[number][1:]) for number in admitted]
    sums = dict(zip(("requests", "input_tokens", "output_tokens"), map(sum, zip(*charged, strict=True)), strict=True))
    sums["tokens"] = sums["input_tokens"] + sums["output_tokens"]
    ideal = max((sums[unit] - amount) / amount * 60 for unit, amount in world.true.items())
    ideal = float(counted.get("ideal_s") or ideal)
    elapsed = result["seconds"] if result.get("stopped") or "seconds" not in result else last - first
    return what | result | {
        "refused": counted.get("refused_total", sum(status == 429 for *_, status in seen)),
        "share": max(ideal, 0.0) / elapsed if elapsed else 0.0,
        "missing": len(jobs) - len(admitted),
        "overtaking": overtaking(admitted),
        "admissions": [round(at - first, 3) for at in sorted(admitted.values())],
    }  # fmt: skip


def cells(result: dict[str, Any]) -> list[str]:
    """A row of the report."""
    if "share" not in result or "why" in result:
        return [result["peer"], f"n/a: {result['why']}", "", "", "", ""]
    end = ", stopped" if result["stopped"] else ""
    return [
        result["peer"], f"{result['refused']:,}", f"{result['share']:.2f}{end}", f"{result['missing']:,}",
        f"{result['overtaking']:,}", f"{result['cpu_s']:.1f} s",
    ]  # fmt: skip


COLUMNS = [
    "",
    "refused (429)",
    "share of the ideal speed",
    "not answered at the end",
    "longest overtaking",
    "CPU of the client",
]


def table(results: list[dict[str, Any]]) -> str:
    """In Markdown."""
    rows = [COLUMNS, ["---"] * len(COLUMNS), *map(cells, results)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def picture(results: list[dict[str, Any]], path: Path, title: str) -> None:
    """Admitted requests over time, one line for each peer."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4))
    for one in results:
        if one.get("admissions"):
            numbers = range(1, len(one["admissions"]) + 1)
            axes.step(one["admissions"], numbers, label=one["peer"], linewidth=2.5 if one["peer"] == "paceline" else 1)
    axes.set(title=title, xlabel="seconds after the first admission", ylabel="admitted requests")
    axes.legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def write(results: list[dict[str, Any]], folder: Path, command: str, ideal_s: float) -> None:
    """The page, its pictures and the raw JSON."""
    shutil.rmtree(folder / "images", ignore_errors=True)
    (folder / "images").mkdir(parents=True)
    versions = {
        package or "paceline": version_of(package) for package in [*(p for p, _ in PEERS.values()), "mocklimit"]
    }
    loads = [one["load"] for one in results]
    page = [
        "# paceline and its peers",
        (
            f"`{command}`. {machine().partition(';')[0]}; load {min(loads):.1f} to {max(loads):.1f} (median "
            f"{statistics.median(loads):.1f}), the benchmark's own included. One run for each row, {ideal_s:g} s at best, stopped after "
            f"{cut(ideal_s):g} s. Versions: {', '.join(f'{name} {number}' for name, number in versions.items())}."
        ),
    ]
    for world in WORLDS:
        for server in world.servers:
            some = [one for one in results if (one["world"], one["server"]) == (world.name, server)]
            if not some:
                continue
            name = f"{world.name.replace(' ', '-')}-{server}.svg"
            picture(some, folder / "images" / name, f"{world.name}, {server}")
            true, told = (
                ", ".join(f"{amount:,} {unit}/min" for unit, amount in limits.items())
                for limits in (world.true, world.told)
            )
            page += [
                f"## {world.name}, {server}", f"{world.workers} workers; limits {true}; told {told}.", table(some),
                f"![Admitted requests over time](images/{name})",
            ]  # fmt: skip
    (folder / "report.md").write_text("\n\n".join(page) + "\n")
    raw = {"command": command, "versions": versions, "worlds": [asdict(world) for world in WORLDS], "results": results}
    (folder / "report.json").write_text(json.dumps(raw) + "\n")


def report(folder: Path, *, quick: bool, only: str = "") -> None:
    """Measure each peer in each world, and write the page again after each world."""
    ideal_s = 8.0 if quick else 20.0
    command = f"python -m benchmarks --report DIR{' --quick' if quick else ''}{f' --peer {only!r}' if only else ''}"
    results = []
    for world in WORLDS:
        for server in world.servers:
            for peer in PEERS:
                if only in ("", peer):
                    try:
                        one = run(peer, world, server, ideal_s)
                    except (RuntimeError, OSError) as error:
                        one = {
                            "peer": peer,
                            "world": world.name,
                            "server": server,
                            "load": os.getloadavg()[0],
                            "why": str(error),
                        }
                    print(f"  {world.name}, {server}: {' | '.join(cells(one))}", flush=True)
                    results.append(one)
            write(results, folder, command, ideal_s)
