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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

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
    python = home / "bin" / "python"
    if (home / "ready").exists():
        return str(python), ""
    base = _newer_python()
    if base is None:
        return None, "needs Python 3.12"
    try:
        subprocess.run([base, "-m", "venv", "--clear", str(home)], check=True, capture_output=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *NEEDS]
        subprocess.run(install, check=True, capture_output=True, timeout=180)
    except (subprocess.SubprocessError, OSError):
        return None, "could not be installed"
    (home / "ready").touch()
    return str(python), ""


def _newer_python() -> str | None:
    if sys.version_info >= (3, 12):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for version in VERSIONS:
        found = [*sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True), shutil.which(f"python{version}")]
        for path in filter(None, found):
            if subprocess.run([str(path), "--version"], capture_output=True, check=False).returncode == 0:
                return str(path)
    return None


def _limiter(quotas: dict[str, int]) -> Any:
    from token_throttle import MemoryBackendBuilder, PerModelConfig, Quota, RateLimiter, UsageQuotas

    listed = [Quota(metric=name, limit=limit, per_seconds=60) for name, limit in quotas.items()]
    return RateLimiter(PerModelConfig(quotas=UsageQuotas(listed)), backend=MemoryBackendBuilder())


async def _acquire(count: int, times: int) -> dict[str, Any]:
    from benchmarks.timing import rounds_async

    limiter = _limiter({"requests": 100_000_000, "input_tokens": 1_000_000_000, "output_tokens": 1_000_000_000})
    cost = {"requests": 1, "input_tokens": 1_200, "output_tokens": 300}
    actual = {"requests": 1, "input_tokens": 1_150, "output_tokens": 120}

    async def run(n: int) -> None:
        for _ in range(n):
            async with limiter.reserve(cost, model="m") as handle:
                handle.set_actual_usage(actual)

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


def main() -> None:
    """Do the job on stdin."""
    job = json.load(sys.stdin)
    began = time.monotonic()
    run = _speed(job) if job["what"] == "speed" else _acquire(job["count"], job["times"])
    result = asyncio.run(run)
    print(json.dumps(result | {"total_s": time.monotonic() - began}))


if __name__ == "__main__":
    main()
