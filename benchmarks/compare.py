"""paceline and its peers on the same workloads, against two servers: the runs. ``python -m benchmarks --report DIR``."""

from __future__ import annotations

import bisect
import json
import os
import platform
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import gateway, page
from benchmarks.contestants import PEERS
from benchmarks.environments import ROOT, environment, version_of
from benchmarks.proc import Others, wait_until_idle
from benchmarks.servers import Counts, serving
from benchmarks.tap import Seen, Tap
from benchmarks.traffic import CHAT, RESPONSES
from benchmarks.worlds import SERVERS, WORLDS, Job, Server, World, charged

WORKERS = 500
IDEAL_S, QUICK_S = 30.0, 10.0
GRACE_S = 45.0
"""Beyond the time of a run, for imports and the start: after that the client is killed."""
STEP_S = 0.5
"""The resolution of the recorded counts."""


def cut(ideal_s: float) -> float:
    """A run is stopped after so many seconds: a little more than twice the shortest time."""
    return 2 * ideal_s + 5


def overtaking(admitted: Mapping[int, float]) -> int:
    """The most requests of a higher number that were admitted before one of a lower number; not admitted counts as last."""
    later: list[float] = []
    most = 0
    for number in range(max(admitted, default=-1), -1, -1):
        at = admitted.get(number, float("inf"))
        most = max(most, bisect.bisect_left(later, at))
        bisect.insort(later, at)
    return most


def run(peer: str, world: World, server: Server, ideal_s: float) -> dict[str, Any]:
    """One run of one peer; ``why`` where there is no result."""
    what: dict[str, Any] = {
        "peer": peer,
        "world": world.name,
        "server": server,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    _, why = environment(PEERS[peer].package)
    if why:
        return what | {"why": why}
    jobs = world.jobs(server, ideal_s)
    wait_until_idle()
    starts, ends = world.outage
    began, others, load = time.monotonic(), Others(), os.getloadavg()[0]
    try:
        with (
            serving(server, world) as running,
            Tap(running.port, (starts * ideal_s, ends * ideal_s)) as tap,
        ):
            job = {
                "peer": peer, "url": f"http://127.0.0.1:{tap.port}", "workers": WORKERS, "told": world.told, "cut_s": cut(ideal_s),
                "jobs": [(job.text, job.cost["input_tokens"]) for job in jobs],
                "period_s": world.period_s(), "phase_s": world.phase_s(ideal_s),
            }  # fmt: skip
            told = _client(peer, job, cut(ideal_s) + GRACE_S + world.period_s())
            tap.settle()
            counts = running.counts()
    except (RuntimeError, OSError) as error:
        return what | {"why": str(error)}
    taken = {"load": round(load, 2), "others": round(others.share(), 3), "took_s": round(time.monotonic() - began, 1)}
    return what | taken | told | measured(tap.seen, jobs, world, server, counts, told)


def measured(
    every: Sequence[Seen], jobs: Sequence[Job], world: World, server: Server, counts: Counts, told: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """The figures of a run, from what the relay saw."""
    seen = [one for one in every if one.path.partition("?")[0] in (CHAT, RESPONSES)]
    passed = [one for one in seen if not one.outage]
    relayed = Counts(sum(one.status not in (0, 429) for one in passed), sum(one.status == 429 for one in passed))
    result: dict[str, Any] = {
        "requests": len(jobs), "refused": relayed.refused, "failed": sum(one.status >= 500 for one in seen),
        "counts": [relayed.admitted, relayed.refused], "counts_of_the_server": [counts.admitted, counts.refused],
    }  # fmt: skip
    admitted: dict[int, float] = {}
    costs = []
    for one in passed:  # in the order of arrival
        if one.status == 200:
            admitted.setdefault(one.number, one.at_s)
            costs.append(charged(server, one.path, jobs[one.number].text, one.size))
    if not admitted:
        return result | {"why": told.get("why") or "no request was admitted"}
    first, last = min(admitted.values()), max(admitted.values())
    ideal_s = world.earliest(costs, first)[-1]
    missing = len(jobs) - len(admitted)
    return result | {
        "missing": missing, "unfinished": missing > 0 and told.get("stopped", True),
        "elapsed_s": round(last - first, 3), "ideal_s": round(ideal_s, 3),
        "share": round(ideal_s / (last - first), 4) if last > first else 0.0,
        "overtaking": overtaking(admitted),
        "admitted": per_step(at - first for at in admitted.values()),
        "refusals": per_step(one.at_s - first for one in passed if one.status == 429),
    }  # fmt: skip


def per_step(times: Iterable[float]) -> list[int]:
    """How many of ``times`` there are up to the end of each step."""
    ordered = sorted(times)
    steps = int(max(ordered, default=0.0) / STEP_S) + 1
    return [bisect.bisect_right(ordered, (step + 1) * STEP_S) for step in range(steps)]


def _client(peer: str, job: Mapping[str, Any], most_s: float) -> dict[str, Any]:
    """Run the peer in a process of its own; kill it, and all that it has started, if it does not end in time."""
    python, _ = environment(PEERS[peer].package)
    child = subprocess.Popen(
        [python, "-m", "benchmarks.contestants"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, process_group=0, env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    timer = threading.Timer(most_s, kill)
    timer.start()
    try:
        with suppress(BrokenPipeError):
            child.stdin.write(json.dumps(job) + "\n")
            child.stdin.flush()  # it stays open: the child ends when it closes
        return dict(json.loads(child.stdout.read().splitlines()[-1]))
    except (IndexError, ValueError):
        return {"why": "the process failed" if timer.is_alive() else f"killed after {most_s:.0f} s"}
    finally:
        timer.cancel()
        kill()
        child.wait()
        with suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()


def plan(only: Mapping[str, Sequence[str]]) -> Iterator[tuple[World, Server, str]]:
    """The runs in their order, as far as the names in ``only`` allow; no names are all."""
    for world in WORLDS:
        for server in SERVERS:
            for peer in PEERS:
                chosen = {"world": world.name, "server": server, "peer": peer}
                if server in world.servers and all(chosen[key] in names for key, names in only.items() if names):
                    yield world, server, peer


def report(
    folder: Path,
    *,
    quick: bool,
    only: Mapping[str, Sequence[str]],
    command: str,
    measure: bool = True,
    gateways: bool = False,
) -> None:
    """Measure, and write the report again after each world and server; runs of an earlier report that are not repeated stay.

    Args:
        folder: The report is written below it; below ``docs`` a whole report that is not quick goes into README.md, too.
        quick: Runs of a third of the length.
        only: Names by ``world``, ``server`` and ``peer``; an empty sequence for all.
        command: What the page states as its command.
        measure: Whether to measure at all, or only to write the page again.
        gateways: Measure the gateways alone.
    """
    ideal_s = QUICK_S if quick else IDEAL_S
    raw = folder / page.RAW
    kept = json.loads(raw.read_text("utf-8")) if raw.exists() else {}
    if measure and kept.get("ideal_s") != ideal_s:  # runs of another length cannot stand beside these
        kept = {}
    if gateways:
        kept["gateways"] = {"command": command, "date": f"{datetime.now(UTC):%Y-%m-%d}"} | gateway.ratios()
        measure = False
    results = {(one["world"], one["server"], one["peer"]): one for one in kept.get("results", ())}
    todo = list(plan(only)) if measure else []
    for number, (world, server, peer) in enumerate(todo):
        one = run(peer, world, server, ideal_s)
        print(f"  {number + 1}/{len(todo)} {world.name}, {server}: {page.short(one)}", flush=True)
        results[world.name, server, peer] = one
        if number + 1 == len(todo) or todo[number + 1][:2] != (world, server):
            whole = not any(only.values())
            kept = _kept(results, command if whole else kept.get("command", command), ideal_s, kept.get("gateways"))
            page.write(folder, kept)
    if not measure and kept:
        page.write(folder, kept)
    complete = len(kept.get("results", ())) == len(list(plan({})))
    if complete and kept["ideal_s"] == IDEAL_S and folder.resolve() == ROOT / "docs":
        page.write_summary(ROOT / "README.md", kept)


def _kept(
    results: Mapping[tuple[str, str, str], dict[str, Any]], command: str, ideal_s: float, gateways: object
) -> dict[str, Any]:
    ordered = [results[key] for key in ((w.name, s, p) for w, s, p in plan({})) if key in results]
    packages = [*(peer.package for peer in PEERS.values()), "mocklimit"]
    return {
        "command": command, "quick": ideal_s != IDEAL_S, "ideal_s": ideal_s, "step_s": STEP_S,
        "machine": f"{os.cpu_count()} CPUs ({platform.machine()}), Python {platform.python_version()}",
        "minutes": round(sum(one.get("took_s", 0.0) for one in ordered) / 60, 1),
        "versions": {name or "paceline": version_of(name) for name in packages},
        "gateways": gateways,
        "results": ordered,
    }  # fmt: skip
