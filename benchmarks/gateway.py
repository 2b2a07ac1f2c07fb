"""The gateway beside LiteLLM's proxy and Portkey's gateway: the same server under each, the same load, in turn (Linux).

Each gateway is one process on one core; the server and the load have another one to themselves.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.proc import Others, resident_mb, wait_until_idle
from benchmarks.table import Row, spread

RATES = (50, 200, 500)
GOAL_PER_S, GOAL_RATE, GOAL_P50_MS, GOAL_P99_MS = 3_000, 200, 1.0, 5.0
TASKS, STREAMS_PER_S = 64, 10
START_S, INSTALL_S = 300.0, 400.0
ROOT = Path(__file__).resolve().parent.parent
LITELLM = "litellm[proxy]==1.108.7"
"""Newer ones need the package litellm-proxy, which is not in every index."""
PORTKEY = {"dependencies": {"@portkey-ai/gateway": "1.15.2"}, "overrides": {"@hono/node-server": "1.13.5"}}
"""The second as in its own lock file: with the newest one, it answers 500 to each streamed request (its issue 1389)."""

Figures = dict[str, Any]


class MissingError(Exception):
    """A gateway that cannot be installed or does not start: why."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """How to run a gateway.

    Attributes:
        name: Its name and version.
        command: Its command for a port, the server's port, and an empty folder.
        environ: Variables beside ``PATH`` and ``HOME``.
        headers: The headers that its clients send, for the server's port.
    """

    name: str
    command: Callable[[int, int, Path], Sequence[str]]
    environ: dict[str, str] = field(default_factory=dict)
    headers: Callable[[int], dict[str, str]] = lambda _: {}


def _paceline(*, stored: bool = False) -> Gateway:
    """This project's, without a store or with one in SQLite."""
    code = "from paceline.cli import main; main()"
    options = ["--provider", "openai", "--limit", "*=10M requests/min"]
    environ = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}

    def command(port: int, server: int, folder: Path) -> list[str]:
        store = ["--store", f"sqlite:{folder / 'quotas.db'}"] if stored else []
        where = ["--port", str(port), "--base-url", f"http://127.0.0.1:{server}"]
        return [sys.executable, "-c", code, "serve", *options, *store, *where]

    return Gateway("paceline --store sqlite:..." if stored else "paceline", command, environ)


def _litellm() -> Gateway:
    """Its proxy, in a virtual environment that is made at first use; without a database, keys and logs."""
    home = _kept("litellm", LITELLM, _litellm_into)

    def command(port: int, server: int, folder: Path) -> list[str]:
        parameters = {"model": "openai/gpt-4o", "api_base": f"http://127.0.0.1:{server}/v1", "api_key": "sk-none"}
        config = folder / "config.yaml"
        config.write_text(json.dumps({"model_list": [{"model_name": "gpt-4o", "litellm_params": parameters}]}))
        options = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        return [str(home / "bin" / "litellm"), "--config", str(config), *options]

    environ = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"}
    environ["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"  # no check of keys, on loopback
    return Gateway(f"LiteLLM {LITELLM.partition('==')[2]}", command, environ)


def _litellm_into(home: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True, capture_output=True, timeout=120)
    install = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", LITELLM]
    subprocess.run(install, check=True, capture_output=True, timeout=INSTALL_S)


def _portkey() -> Gateway:
    """Its gateway for Node, from npm."""
    home = _kept("portkey", json.dumps(PORTKEY), _portkey_into)
    script = home / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    return Gateway(
        f"Portkey {PORTKEY['dependencies']['@portkey-ai/gateway']}",
        lambda port, _, __: ["node", str(script), f"--port={port}", "--headless"],
        {"NODE_ENV": "production"},
        lambda server: {"x-portkey-provider": "openai", "x-portkey-custom-host": f"http://127.0.0.1:{server}/v1"},
    )


def _portkey_into(home: Path) -> None:
    if shutil.which("npm") is None:
        raise MissingError("needs Node and npm")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    (home / "package.json").write_text(json.dumps(PORTKEY))
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run(install, check=True, capture_output=True, timeout=INSTALL_S, cwd=home)


PEERS = {"litellm": _litellm, "portkey": _portkey}
"""The other gateways, by their names on the command line."""


def _kept(name: str, needs: str, install: Callable[[Path], None]) -> Path:
    """A folder of the user's cache, filled at first use."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline-benchmarks" / name
    ready = home / "ready"
    if not ready.exists() or ready.read_text() != needs:
        try:
            install(home)
        except (subprocess.SubprocessError, OSError) as error:
            raise MissingError(f"could not be installed ({type(error).__name__})") from None
        ready.write_text(needs)
    return home


# Processes.


def _cores() -> tuple[list[str], list[str]]:
    """The prefixes of commands for the gateway, and for the server and the load: a core each."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 or shutil.which("taskset") is None:
        return [], []
    return ["taskset", "-c", str(cores[0])], ["taskset", "-c", str(cores[1])]


@contextmanager
def _server() -> Iterator[int]:
    command = [*_cores()[1], sys.executable, "-m", "benchmarks.gateway_stub"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


class Running:
    """A gateway that runs; or none, where the load goes to the server itself."""

    def __init__(self, gateway: Gateway | None, server: int) -> None:
        self._gateway, self._server = gateway, server
        self._process: subprocess.Popen[bytes] | None = None
        self.port = server
        self.headers = {} if gateway is None else gateway.headers(server)

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        self.restart()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._folder.cleanup()

    @property
    def pid(self) -> int | None:
        """Its process."""
        return None if self._process is None else self._process.pid

    def memory_mb(self) -> float:
        """Its resident memory."""
        return 0.0 if self.pid is None else resident_mb(self.pid)

    def restart(self) -> None:
        """Start it anew, and wait for its first answer."""
        if self._gateway is None:
            return
        self._stop()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        home = Path(self._folder.name)
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), **self._gateway.environ}
        command = [*_cores()[0], *self._gateway.command(self.port, self._server, home)]
        with (home / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home, env=environ)
        until_s = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until_s:
                said = (home / "log").read_text(errors="replace").split("\n")
                raise MissingError(
                    f"did not start: {next((line for line in reversed(said) if line.strip()), '')[:200]}"
                )
            time.sleep(0.2)

    def _answers(self) -> bool:
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "word"}]}).encode()
        headers = {"content-type": "application/json", "authorization": "Bearer sk-none", **self.headers}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
                return bool(json.load(answer)["usage"]["total_tokens"] == 400)
        except (OSError, ValueError):
            return False

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def load(self, **plan: Any) -> Figures:
        """Put a load on it."""
        plan |= {"port": self.port, "headers": self.headers, "pid": self.pid}
        bound_s = plan.get("seconds", 5.0) + plan.get("open_s", 0.0) + 40
        command = [*_cores()[1], sys.executable, "-m", "benchmarks.gateway_load"]
        wait_until_idle()
        try:
            done = subprocess.run(
                command, input=json.dumps(plan), capture_output=True, text=True, cwd=ROOT, timeout=bound_s, check=True
            )
        except subprocess.SubprocessError as error:
            raise MissingError(f"the load failed ({type(error).__name__})") from None
        return dict(json.loads(done.stdout))


# Measurements.


def _round(running: Running, seconds: float) -> Figures:
    """All figures of one gateway but for the idle streams."""
    figures: Figures = {"start_mb": running.memory_mb()}
    running.load(tasks=TASKS, seconds=seconds, warm_s=0)  # compilers and pools of connections warm up
    for rate in RATES:
        figures[f"{rate}"] = one = running.load(rate=rate, seconds=seconds)
        if one["behind"]:  # what it still has to do would burden the next
            running.restart()
            running.load(tasks=TASKS, seconds=seconds, warm_s=0)
            break
    figures["closed"] = running.load(tasks=TASKS, seconds=seconds)
    figures["stream"] = running.load(rate=STREAMS_PER_S, stream=True, seconds=seconds)
    figures["end_mb"] = running.memory_mb()
    return figures


def measure(quick: bool, peers: Sequence[str] = ("litellm", "portkey")) -> list[Row]:
    """Rounds in turn over no gateway, paceline and the peers; then the idle streams."""
    if sys.platform != "linux":
        return [Row("the gateway", "n/a: needs Linux")]
    if unknown := [name for name in peers if name not in PEERS]:
        raise SystemExit(f"--peers: unknown {unknown[0]!r}: give some of {', '.join(PEERS)}, with commas between")
    seconds, times, held = (3.0, 1, 500) if quick else (8.0, 3, 5_000)
    gateways: dict[str, Gateway | None] = {"direct": None, "paceline": _paceline()}
    missing: dict[str, str] = {}
    for name in peers:
        try:
            gateways[name] = PEERS[name]()
        except MissingError as error:
            missing[name] = str(error)
    print(f"  the gateway on {_named(_cores()[0])}; the server and the load on {_named(_cores()[1])}", flush=True)
    found: dict[str, list[Figures]] = {name: [] for name in gateways}
    streams: dict[str, Figures] = {}
    others = Others()
    with _server() as server:
        for number in range(times + 1):
            for name in [name for name in gateways if name not in missing]:
                try:
                    with Running(gateways[name], server) as running:
                        if number < times:
                            found[name].append(_round(running, seconds))
                        elif name != "direct":
                            running.load(tasks=16, seconds=seconds / 2, warm_s=0)
                            streams[name] = running.load(held=held, seconds=12.0, open_s=60.0)
                except MissingError as error:
                    missing[name] = str(error)
                print(
                    f"  round {number + 1} of {times + 1}: {name}: {_brief(name, found, streams, missing)}", flush=True
                )
    print(f"  other processes had {others.share():.0%} of all cores meanwhile", flush=True)
    names = {name: gateway.name for name, gateway in gateways.items() if gateway is not None}
    return _rows(names, found, streams, missing, held)


RATIO_ROUNDS, RATIO_S, RATIO_TASKS, RATIO_STREAMS = 7, 2.0, 32, 4


def ratios() -> dict[str, Any]:
    """The CPU and the memory of each gateway beside paceline's: medians over rounds in which each has its turn, at any load.

    Returns:
        ``rounds``, ``load`` (the least and the most), ``missing`` (gateways that could not be measured, and why), and ``gateways``: for each
        name the CPU of a request and of a stream in us, their ratios to paceline's in the same round, and the memory in MB.
    """
    made: dict[str, Gateway] = {"paceline": _paceline(), "paceline, stored": _paceline(stored=True)}
    missing: dict[str, str] = {}
    for name, make in PEERS.items():
        try:
            made[name] = make()
        except MissingError as error:
            missing[name] = str(error)
    loads = [os.getloadavg()[0]]
    with ExitStack() as stack:
        server, running = stack.enter_context(_server()), dict[str, Running]()
        for name, gateway in made.items():
            try:
                running[name] = stack.enter_context(Running(gateway, server))
            except MissingError as error:
                missing[gateway.name] = str(error)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in running}
        start_mb = {name: one.memory_mb() for name, one in running.items()}
        for one in running.values():  # compilers and pools of connections warm up
            one.load(tasks=RATIO_TASKS, seconds=2 * RATIO_S, warm_s=0)
        for number in range(RATIO_ROUNDS):
            for name, one in running.items():
                closed = one.load(tasks=RATIO_TASKS, seconds=RATIO_S)
                stream = one.load(tasks=RATIO_STREAMS, stream=True, seconds=RATIO_S)
                found[name].append((_cpu_us(closed), _cpu_us(stream)))
            loads.append(os.getloadavg()[0])
            shown = ", ".join(f"{name} {found[name][-1][0]:.0f} us" for name in found)
            print(f"  round {number + 1} of {RATIO_ROUNDS}: {shown}", flush=True)
        end_mb = {name: one.memory_mb() for name, one in running.items()}
    base = found["paceline"]
    return {
        "rounds": RATIO_ROUNDS, "load": [round(min(loads), 1), round(max(loads), 1)], "missing": missing,
        "gateways": {
            made[name].name: {
                "request": _beside([cpu for cpu, _ in rounds], [cpu for cpu, _ in base]),
                "stream": _beside([cpu for _, cpu in rounds], [cpu for _, cpu in base]),
                "mb": [round(start_mb[name]), round(end_mb[name])],
            }
            for name, rounds in found.items()
        },
    }  # fmt: skip


def _cpu_us(figures: Figures) -> float:
    return float(figures["cpu_s"] / max(figures["answered"], 1) * 1e6)


def _beside(ours: list[float], base: list[float]) -> dict[str, float]:
    """The median in us, and the median, the least and the most of the ratios round by round."""
    parts = [one / other for one, other in zip(ours, base, strict=True) if other]
    return {
        "us": round(statistics.median(ours)), "ratio": round(statistics.median(parts), 2),
        "least": round(min(parts), 2), "most": round(max(parts), 2),
    }  # fmt: skip


def _named(prefix: list[str]) -> str:
    return f"core {prefix[-1]}" if prefix else "any core (needs taskset and two cores)"


def _brief(name: str, found: dict[str, list[Figures]], streams: dict[str, Figures], missing: dict[str, str]) -> str:
    return missing.get(name) or json.dumps(streams.get(name) or found[name][-1])


# The table.


def _rows(
    names: dict[str, str],
    found: dict[str, list[Figures]],
    streams: dict[str, Figures],
    missing: dict[str, str],
    held: int,
) -> list[Row]:
    def each(cell: Callable[[str], str], direct: str = "") -> tuple[str, str]:
        """paceline's cell, and those of its peers."""

        def shown(name: str) -> str:
            return cell(name) if found[name] else f"n/a, {missing.get(name, 'not measured')}"

        others = [f"{names.get(name, name)}: {shown(name)}" for name in names if name != "paceline"]
        others += [f"{name}: n/a, {why}" for name, why in missing.items() if name not in names]
        return shown("paceline"), "; ".join(others + ([f"no gateway: {direct}"] if direct else []))

    rows = []
    for rate in RATES:
        met = _latency_met(found) if rate == GOAL_RATE else None
        ours, others = each(
            lambda name, rate=rate: _added(found, name, f"{rate}", "taken_s"),  # type: ignore[misc]
            _latency(found["direct"], f"{rate}", "taken_s"),
        )
        goal = f"p50 <= {GOAL_P50_MS:g} ms, p99 <= {GOAL_P99_MS:g} ms" if met is not None else ""
        rows.append(Row(f"gateway, {rate} requests/s: added to each request", ours, goal, met, others))
    closed = {name: [one["closed"] for one in rounds] for name, rounds in found.items()}
    ours, others = each(lambda name: _throughput(closed[name]), _throughput(closed["direct"]))
    met = bool(closed["paceline"]) and statistics.median(one["rate"] for one in closed["paceline"]) >= GOAL_PER_S
    rows.append(
        Row(f"gateway, {TASKS} connections, one request after the other", ours, f">= {GOAL_PER_S}/s", met, others)
    )
    rows.append(Row("the same: CPU of the gateway", *_pair(each(lambda name: _cpu(closed[name])))))
    ours, others = each(
        lambda name: _added(found, name, "stream", "first_s"), _latency(found["direct"], "stream", "first_s")
    )
    rows.append(Row(f"gateway, {STREAMS_PER_S} streams/s: added to the first event", ours, "", None, others))
    rows.append(
        Row(
            "the same: CPU for a stream of 20 events",
            *_pair(each(lambda name: _cpu([r["stream"] for r in found[name]]))),
        )
    )
    rows.append(Row("gateway, resident memory", *_pair(each(lambda name: _memory(found[name])))))
    rows.append(Row(f"gateway, {held:,} idle streams", *_pair(each(lambda name: _idle(streams.get(name), held)))))
    return rows


def _pair(cells: tuple[str, str]) -> tuple[str, str, None, str]:
    return cells[0], "", None, cells[1]


def _pairs(found: dict[str, list[Figures]], name: str, key: str, what: str) -> list[tuple[Figures, Figures]]:
    """The quantiles of no gateway, and of a gateway, in each round."""
    rounds = zip(found["direct"], found[name], strict=False)
    return [(direct[key][what], mine[key][what]) for direct, mine in rounds if key in mine and not mine[key]["behind"]]


def _latency_met(found: dict[str, list[Figures]]) -> bool:
    pairs = _pairs(found, "paceline", f"{GOAL_RATE}", "taken_s")
    goals = {"p50": GOAL_P50_MS, "p99": GOAL_P99_MS}
    return bool(pairs) and all(
        statistics.median(mine[point] - direct[point] for direct, mine in pairs) * 1e3 <= most
        for point, most in goals.items()
    )


def _added(found: dict[str, list[Figures]], name: str, key: str, what: str) -> str:
    pairs = _pairs(found, name, key, what)
    if len(pairs) < len(found[name]):
        behind = [one[key] for one in found[name] if key in one and one[key]["behind"]]
        if not behind:
            return "not tried, because a lower rate was too much"
        failed = sum(one["failed"] for one in behind)
        why = f"{failed:,} requests failed" if failed else "does not keep up"
        rounds = len([one for one in found[name] if key in one])
        return f"{why} in {len(behind)} of {rounds} rounds: {spread([one['rate'] for one in behind], '/s', 0)}"
    return ", ".join(
        f"{point} {spread([(mine[point] - direct[point]) * 1e3 for direct, mine in pairs], 'ms', 2)}"
        for point in ("p50", "p99")
    )


def _latency(rounds: list[Figures], key: str, what: str) -> str:
    return ", ".join(
        f"{point} {statistics.median(one[key][what][point] for one in rounds) * 1e3:.2f} ms" for point in ("p50", "p99")
    )


def _throughput(closed: list[Figures]) -> str:
    failed = sum(one["failed"] for one in closed)
    return spread([one["rate"] for one in closed], "/s", 0) + (f", {failed} failed" if failed else "")


def _cpu(figures: list[Figures]) -> str:
    """CPU of each request, and how many a core can do."""
    done = [one for one in figures if one["answered"]]
    if not done:
        return "none answered"
    used_us = [one["cpu_s"] / one["answered"] * 1e6 for one in done]
    return f"{spread(used_us, 'us', 0)}, so {1e6 / statistics.median(used_us):,.0f} /s for each core"


def _memory(rounds: list[Figures]) -> str:
    before, after = (statistics.median(one[key] for one in rounds) for key in ("start_mb", "end_mb"))
    return f"{before:.0f} MB at the start, {after:.0f} MB after the load"


def _idle(one: Figures | None, held: int) -> str:
    if one is None:
        return "failed"
    if not one["held"]:
        return "none could be opened"
    each_kb = (one["after_mb"] - one["before_mb"]) * 1e3 / one["held"]
    some = "" if one["held"] == held else f"only {one['held']:,} of them, "
    failed = f", {one['failed']:,} failed" if one["failed"] else ""
    return f"{some}{each_kb:.0f} kB each, opened in {one['opened_s']:.1f} s{failed}"
