"""The same books for many processes: Redis and SQLite, asked for each request or by lease; peers beside them."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import paceline
from benchmarks import cycles
from benchmarks.acquire import ACTUAL, COST, QUOTAS
from benchmarks.peers import installed
from benchmarks.table import Row, spread
from benchmarks.throttle import run_throttle

TASKS = (1, 20, 200)
ASK_GOAL, COMMANDS_GOAL, LEASE_GOAL = 5_000, 2, 100_000
A_MINUTE = 600  # requests, in the row where they bind: ten a second
WAITERS = 20
LEASE_S = 1.0
FLEET, FLEET_TASKS = 2, 20
MEASURES_S = 1.2  # a process takes leases by itself when it has seen a second of high load


@dataclass(frozen=True, slots=True)
class Span:
    """How long each run takes, in seconds; many tasks get long enough to see who times out."""

    few_s: float
    many_s: float
    warm_s: float
    waiting_s: float
    throttle: tuple[int, ...]

    def plans(self, port: int = 0, *, short: bool = False) -> list[cycles.Plan]:
        """One for each number of tasks."""
        return [
            cycles.Plan(tasks, self.many_s if tasks > 100 and not short else self.few_s, self.warm_s, port)
            for tasks in TASKS
        ]

    def waiting(self, port: int) -> cycles.Plan:
        """For those who wait; within the first second the rest of the burst is spent."""
        return cycles.Plan(WAITERS, self.waiting_s, 1.0, port, slices=1)


FULL = Span(1.2, 6.5, 0.5, 5.0, throttle=TASKS)
QUICK = Span(0.3, 0.3, 0.2, 1.0, throttle=(20,))


def measure(quick: bool) -> list[Row]:
    """Redis, leases, SQLite, and a limit that binds."""
    span, began_load = QUICK if quick else FULL, _load()
    with _redis_server() as port, tempfile.TemporaryDirectory() as home:
        rows = _redis_rows(span, port) if port else [Row("Redis", "n/a: no redis-server, or no redis-py")]
        rows += _sqlite_rows(span, Path(home))
        if port:
            rows.append(_waiting_row(span, port))
    print(f"  stores: {_versions()}; load {began_load} before, {_load()} after")
    return rows


def _redis_rows(span: Span, port: int) -> list[Row]:
    url = f"redis://127.0.0.1:{port}/0"
    plans = span.plans(port)
    asking = [_run(_paceline, (url, 0.0), plan) for plan in plans]
    limits = [_run(_limits, (port,), plan) if installed("limits") else None for plan in plans]
    throttle = _throttle({"redis": url}, [plan for plan in plans if plan.tasks in span.throttle])
    leasing = [_run(_paceline, (url, LEASE_S), plan) for plan in span.plans(port, short=True)]
    usual = [_run(_paceline, (url, None), replace(plan, warm_s=MEASURES_S)) for plan in span.plans(port, short=True)]
    rows, goal = [], f">= {ASK_GOAL:,} /s, <= {COMMANDS_GOAL} commands, 0 failed"
    for plan, ours, theirs in zip(plans, usual, limits, strict=True):
        said = f"token-throttle: {throttle(plan)}; limits, 3 hits, cannot settle: {_say(theirs)}"
        rows.append(Row(f"Redis, {_tasks(plan)}: acquire + settle", _say(ours), goal, _met(ours), said))
    for plan, ours in zip(plans, asking, strict=True):
        rows.append(Row(f"Redis, lease_s=0, {_tasks(plan)}: the same", _say(ours), goal, _met(ours)))
    for plan, ours in zip(plans, leasing, strict=True):
        met = _median(ours) >= LEASE_GOAL and not ours["failed"]
        what = f"Redis, leases of {LEASE_S:g} s, {_tasks(plan)}: the same"
        rows.append(Row(what, _say(ours), f">= {LEASE_GOAL:,} /s, 0 failed", met))
    return [*rows, _fleet_row(span, url, port)]


def _fleet_row(span: Span, url: str, port: int) -> Row:
    """Processes that share the quotas, each with an event loop of its own."""
    _empty(port)
    plan, context = cycles.Plan(FLEET_TASKS, span.waiting_s, span.warm_s), get_context("spawn")
    barrier = context.Barrier(FLEET)  # they begin together
    with ProcessPoolExecutor(FLEET, context, initializer=barrier.wait, initargs=(60.0,)) as processes:
        running = [processes.submit(_run_here, _paceline, (url, LEASE_S), plan) for _ in range(FLEET)]
        results = [each.result() for each in running]
    rates = [sum(slices) for slices in zip(*(result["rates"] for result in results), strict=True)]
    failed = sum((Counter(result["failed"]) for result in results), Counter())
    together = {name: sum(result[name] for result in results) for name in ("tasks", "tasks_failed", "never")}
    together |= {"rates": rates, "failed": failed}
    said = f"{spread(rates, '/s', 0)}{_say_failed(together)}"
    met = statistics.median(rates) >= LEASE_GOAL and not failed
    what = f"Redis, leases of {LEASE_S:g} s, {FLEET} processes of {FLEET_TASKS} tasks each, together: the same"
    return Row(what, said, f">= {LEASE_GOAL:,} /s, 0 failed", met)


def _met(result: dict[str, Any]) -> bool:
    return _median(result) >= ASK_GOAL and result["sent"] <= COMMANDS_GOAL and not result["failed"]


def _sqlite_rows(span: Span, home: Path) -> list[Row]:
    plans = span.plans(short=True)
    throttle = _throttle({"sqlite": str(home / "peer.db")}, [plan for plan in plans if plan.tasks in span.throttle])
    rows = []
    for name, lease_s in (("lease_s=0", 0.0), (f"leases of {LEASE_S:g} s", LEASE_S)):
        for plan in plans:
            ours = _run(_paceline, (f"sqlite:{home}/{lease_s:g}-{plan.tasks}.db", lease_s), plan)
            said = "" if lease_s else f"token-throttle: {throttle(plan)}"
            rows.append(Row(f"SQLite, {name}, {_tasks(plan)}: the same", _say(ours), peers=said))
    return rows


def _waiting_row(span: Span, port: int) -> Row:
    """A limit that binds; whoever is granted something comes again at once."""
    plan, url = span.waiting(port), f"redis://127.0.0.1:{port}/0"
    ours = _run(_paceline, (url, 0.0, A_MINUTE), plan)
    theirs = _say_waiting(_run(_limits, (port, A_MINUTE), plan)) if installed("limits") else "n/a"
    throttle = _throttle({"redis": url, "requests": A_MINUTE}, [plan], _say_waiting)(plan)
    said = f"token-throttle: {throttle}; limits ({A_MINUTE // 60} requests/s), asked every 50 ms: {theirs}"
    what = f"Redis, {WAITERS} tasks wait for {A_MINUTE} requests/min: share of what the limit allows"
    return Row(what, _say_waiting(ours), peers=said)


# Who is measured: each makes one cycle of acquire and settle, ready to be run.

Cycle = tuple[Callable[[], Awaitable[None]], Callable[[], str | None]]
Maker = Callable[..., Awaitable[Cycle]]


async def _paceline(store: str, lease_s: float | None, a_minute: int = 0) -> Cycle:
    quotas = [f"{a_minute} requests/min", *QUOTAS[1:]] if a_minute else QUOTAS
    limiter = paceline.Limiter({"p": quotas}, store=store, lease_s=lease_s)
    if a_minute:  # the burst; what the headroom leaves goes in the first second
        (await limiter.acquire("p", requests=a_minute - WAITERS)).settle()

    async def cycle() -> None:
        async with limiter.acquire("p", **COST) as permit:
            permit.settle(**ACTUAL)

    def end() -> str | None:
        pool = limiter.status()["pools"]["p"]
        limiter.close()
        return "store lost" if pool["counts"].get("store_lost") or pool["store"]["state"] == "lost" else None

    return cycle, end


async def _limits(port: int, a_minute: int = 0) -> Cycle:
    """Its sliding window counter over redis-py (with its default, coredis, it is no faster)."""
    from limits import RateLimitItemPerMinute, RateLimitItemPerSecond
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import SlidingWindowCounterRateLimiter
    from redis.asyncio import BlockingConnectionPool

    url = f"redis://127.0.0.1:{port}/0"
    pool = BlockingConnectionPool.from_url(url, max_connections=2 * max(TASKS))
    storage = RedisStorage(f"async+{url}", implementation="redispy", connection_pool=pool)
    limiter = SlidingWindowCounterRateLimiter(storage)
    items = [(RateLimitItemPerMinute(int(1e9), 1, f"q{i}"), cost) for i, cost in enumerate((1, 1_200, 300))]
    if a_minute:  # once spent, a window of a minute would grant nothing for the rest of it
        items[0] = (RateLimitItemPerSecond(a_minute // 60, 1, "q0"), 1)

    async def cycle() -> None:
        for item, cost in items:
            while not await limiter.hit(item, "p", cost=cost):  # noqa: ASYNC110  (nothing to wait on)
                await asyncio.sleep(0.05)

    return cycle, lambda: None


def _throttle(
    job: dict[str, Any], plans: list[cycles.Plan], say: Callable[[dict[str, Any]], str] | None = None
) -> Callable[[cycles.Plan], str]:
    """token-throttle's figures of each plan."""
    if plans[0].port:
        _empty(plans[0].port)
    bound_s = 30 + sum(plan.warm_s + plan.seconds + cycles.END_S for plan in plans)
    result = run_throttle({"what": "cycles", **job, "plans": [asdict(plan) for plan in plans]}, bound_s)
    if "why" in result:
        return lambda _: f"n/a ({result['why']})"
    found = dict(zip(plans, result["results"], strict=True))
    return lambda plan: (say or _say)(found[plan]) if plan in found else "not in a quick run"


def _run(maker: Maker, given: tuple[Any, ...], plan: cycles.Plan) -> dict[str, Any]:
    """In a process of its own: nobody is measured among what another has left behind."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_run_here, maker, given, plan).result()


def _run_here(maker: Maker, given: tuple[Any, ...], plan: cycles.Plan) -> dict[str, Any]:
    if plan.port:
        _empty(plan.port)

    async def run() -> dict[str, Any]:
        cycle, end = await maker(*given)
        result = await cycles.run(cycle, plan)
        said = end()
        if said is not None:
            result["failed"][said] = result["failed"].get(said, 0) + 1
        return result

    return asyncio.run(run())


# How a result reads.


def _median(result: dict[str, Any]) -> float:
    return float(statistics.median(result["rates"]))


def _say(result: dict[str, Any] | None) -> str:
    if result is None:
        return "n/a"
    return f"{spread(result['rates'], '/s', 0)}{_say_cost(result)}{_say_failed(result)}"


def _say_waiting(result: dict[str, Any]) -> str:
    share = _median(result) / (A_MINUTE / 60)
    return f"{share:.2f}{_say_cost(result)}{_say_failed(result)}"


def _say_cost(result: dict[str, Any]) -> str:
    if "sent" not in result:
        return f", {result['cpu_us']:,.0f} us of CPU"
    inside = f" (and {_count(result['inside'])} inside of scripts)" if result["inside"] else ""
    cpu = f"{result['cpu_us']:,.0f} us of CPU here, {result['server_us']:,.0f} us there"
    return f", {_count(result['sent'])} commands{inside}, {cpu}"


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}" if number >= 0.001 else "< 0.001"


def _say_failed(result: dict[str, Any]) -> str:
    kinds = ", ".join(sorted(result["failed"]))
    failed = f", {result['tasks_failed']} of {result['tasks']} tasks failed ({kinds})" if kinds else ", 0 failed"
    return failed + (f", {result['never']} tasks never went" if result["never"] else "")


def _tasks(plan: cycles.Plan) -> str:
    return f"{plan.tasks} task{'s' * (plan.tasks > 1)}"


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


# The server.


def _binary() -> str | None:
    return shutil.which("redis-server") or shutil.which("valkey-server")


def _versions() -> str:
    binary = _binary()
    if binary is None or not installed("redis"):
        return "no Redis"
    import redis
    from redis.utils import HIREDIS_AVAILABLE

    words = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.split()
    server = next((word[2:] for word in words if word.startswith("v=")), "of unknown version")
    parser = "with" if HIREDIS_AVAILABLE else "without"
    return f"{Path(binary).name} {server}, redis-py {redis.__version__} {parser} hiredis"


@contextmanager
def _redis_server() -> Iterator[int]:
    """The port of a Redis that keeps nothing and ends with the block; 0 where there can be none."""
    binary = _binary()
    if binary is None or not installed("redis"):
        yield 0
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        command = [
            binary,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            home,
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port)
            yield port
        finally:
            process.kill()
            process.wait()


def _empty(port: int) -> None:
    import redis

    with redis.Redis(port=port) as client:
        client.flushall()


def _wait_for(port: int) -> None:
    import redis

    deadline = time.monotonic() + 10.0
    while True:
        try:
            with redis.Redis(port=port) as client:
                client.ping()
        except redis.RedisError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
