"""token-throttle, which needs Python 3.12: run by another interpreter, in a virtual environment of its own.

As a script it reads a job from stdin and writes the result to stdout; :func:`run_throttle` is the caller's side.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

NEEDS = ("token-throttle==14.0.0", "httpx2>=2.16")
VERSIONS = ("3.13", "3.12", "3.14")
ROOT = Path(__file__).resolve().parent.parent


def run_throttle(job: dict[str, Any], timeout_s: float = 120.0) -> dict[str, Any]:
    """Run ``job`` there; ``{"why": ...}`` when it cannot be."""
    python, why = _interpreter()
    if python is None:
        return {"why": why}
    command = [python, "-m", "benchmarks.throttle"]
    try:
        done = subprocess.run(
            command, input=json.dumps(job), capture_output=True, text=True, cwd=ROOT, timeout=timeout_s, check=False
        )
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        return {"why": "it failed"}


@cache
def _interpreter() -> tuple[str | None, str]:
    """The Python of the virtual environment, made at first use and kept in the user's cache."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = Path(cache_home) / "paceline-benchmarks" / "token-throttle"
    python, ready, needs = home / "bin" / "python", home / "ready", [*NEEDS, *_same_client()]
    if ready.exists() and ready.read_text() == "\n".join(needs):
        return str(python), ""
    base = newer_python()
    if base is None:
        return None, "needs Python 3.12"
    try:
        subprocess.run([base, "-m", "venv", "--clear", str(home)], check=True, capture_output=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *needs]
        subprocess.run(install, check=True, capture_output=True, timeout=180)
    except (subprocess.SubprocessError, OSError):
        return None, "could not be installed"
    ready.write_text("\n".join(needs))
    return str(python), ""


def _same_client() -> list[str]:
    """The Redis client that is installed here, so that it makes no difference."""
    needs = []
    with suppress(PackageNotFoundError):
        for name in ("redis", "hiredis"):
            needs.append(f"{name}=={version(name)}")  # noqa: PERF401  (as far as they are there)
    return needs


def newer_python() -> str | None:
    """A Python of 3.12 or later: this one, one of pyenv's, or one on the path."""
    if sys.version_info >= (3, 12):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for number in VERSIONS:
        found = [*sorted(pyenv.glob(f"{number}.*/bin/python"), reverse=True), shutil.which(f"python{number}")]
        for path in filter(None, found):
            if subprocess.run([str(path), "--version"], capture_output=True, check=False).returncode == 0:
                return str(path)
    return None


QUOTAS = {"requests": 100_000_000, "input_tokens": 1_000_000_000, "output_tokens": 1_000_000_000}  # never binding
COST = {"requests": 1, "input_tokens": 1_200, "output_tokens": 300}
ACTUAL = {"requests": 1, "input_tokens": 1_150, "output_tokens": 120}


def _limiter(quotas: dict[str, int], backend: Any = None) -> Any:
    from token_throttle import MemoryBackendBuilder, PerModelConfig, Quota, RateLimiter, UsageQuotas

    listed = [Quota(metric=name, limit=limit, per_seconds=60) for name, limit in quotas.items()]
    config = PerModelConfig(quotas=UsageQuotas(listed))
    return RateLimiter(config, backend=backend or MemoryBackendBuilder())


def _cycle(limiter: Any) -> Callable[[], Awaitable[None]]:
    async def cycle() -> None:
        async with limiter.reserve(COST, model="m") as handle:
            handle.set_actual_usage(ACTUAL)

    return cycle


async def _acquire(count: int, times: int) -> dict[str, Any]:
    from benchmarks.timing import rounds_async

    limiter = _limiter(QUOTAS)
    cycle = _cycle(limiter)

    async def run(n: int) -> None:
        for _ in range(n):
            await cycle()

    taken = await rounds_async(run, count, times)
    await limiter.aclose()
    return {"us": taken}


async def _speed(job: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.traffic import client_of, send

    limiter = _limiter({"requests": job["requests"], "tokens": job["tokens"]})

    @asynccontextmanager
    async def admit(tokens: int) -> AsyncIterator[None]:
        usage = {"requests": 1, "tokens": tokens}
        async with limiter.reserve(usage, model="gpt-5") as handle:
            yield
            handle.set_actual_usage(usage)

    jobs = [(prompt, tokens) for prompt, tokens in job["jobs"]]
    async with client_of(job["url"]) as client:
        return await send(client, jobs, admit, job["workers"], job["cut_s"])


async def _cycles(job: dict[str, Any]) -> NoReturn:
    """Cycles over a shared backend, one plan after the other; prints the results and ends the process."""
    from benchmarks import cycles

    results = []
    for number, given in enumerate(job["plans"]):
        plan = cycles.Plan(**given)
        backend = _backend(job, f"p{number}", plan.tasks)
        limiter = _limiter(QUOTAS | ({"requests": job["requests"]} if "requests" in job else {}), backend)
        if "requests" in job:  # the burst
            await limiter.acquire_capacity(usage=COST | {"requests": job["requests"]}, model="m")
        results.append(await cycles.run(_cycle(limiter), plan))
    print(json.dumps({"results": results}), flush=True)
    os._exit(0)  # to close what was cut off takes seconds


def _backend(job: dict[str, Any], prefix: str, tasks: int) -> Any:
    if "sqlite" in job:
        from token_throttle import SqliteBackendBuilder

        return SqliteBackendBuilder(job["sqlite"], key_prefix=prefix)
    from redis.asyncio import BlockingConnectionPool, Redis
    from token_throttle import RedisBackendBuilder

    # Its operations guide: a blocking pool, with a connection for each concurrent acquire and some more.
    pool = BlockingConnectionPool.from_url(job["redis"], max_connections=2 * tasks + 20)
    return RedisBackendBuilder(Redis(connection_pool=pool), key_prefix=prefix)


def main() -> None:
    """Do the job on stdin."""
    job = json.load(sys.stdin)
    began = time.monotonic()
    if job["what"] == "speed":
        run = _speed(job)
    elif job["what"] == "cycles":
        run = _cycles(job)
    else:
        run = _acquire(job["count"], job["times"])
    result = asyncio.run(run)
    print(json.dumps(result | {"total_s": time.monotonic() - began}))


if __name__ == "__main__":
    main()
