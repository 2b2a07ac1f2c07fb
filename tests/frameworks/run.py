"""Run the tests of every framework in an environment of its own: ``python tests/frameworks/run.py [ENV ...]``.

A folder is an environment: ``requirements.txt`` (names with ``==``) and ``test_*.py``. Comments at the top of the
requirements say which extras of paceline it needs, and which files of ``suites/`` it runs besides its own::

    # extras: httpx2
    # suites: openai, anthropic

One that says ``# soak: why`` runs only when it is named. A test tool that the requirements name has their version.
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
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOMES = ROOT / ".venv-frameworks"

INSTALL_S, TESTS_S = 900, 300
"""The longest that an installation and the tests of one environment may take."""

TOOLS = ("pytest", "pytest-asyncio")
EXTRAS = ("emulator",)
"""What every environment has."""


@dataclass
class Env:
    """One environment: what it needs, and what came of it."""

    name: str
    requirements: list[str] = field(default_factory=list)
    options: dict[str, list[str]] = field(default_factory=dict)
    result: str = ""
    seconds: float = 0.0

    @classmethod
    def read(cls, name: str) -> Env:
        """Read a folder's requirements."""
        env = cls(name)
        for line in (HERE / name / "requirements.txt").read_text().splitlines():
            option = re.fullmatch(r"# (extras|suites|soak): (.+)", line.strip())
            if option is not None:
                env.options[option[1]] = [word.strip() for word in option[2].split(",")]
            elif (requirement := line.partition("#")[0].strip()) != "":
                env.requirements.append(requirement)
        return env

    @property
    def home(self) -> Path:
        """Its virtual environment."""
        return HOMES / self.name

    def tests(self) -> list[str]:
        """The files and folders that hold its tests."""
        own = [str(HERE / self.name)] if any((HERE / self.name).glob("test_*.py")) else []
        return own + [str(HERE / "suites" / f"test_{suite}.py") for suite in self.options.get("suites", [])]

    def install(self) -> str:
        """Bring the environment up; what went wrong, or nothing. One that is up to date is left alone."""
        extras = ",".join([*EXTRAS, *self.options.get("extras", [])])
        wanted = ["--editable", f"{ROOT}[{extras}]", *tools(self.requirements), *self.requirements]
        stamp, key = self.home / "ready", fingerprint(wanted)
        if stamp.exists() and stamp.read_text() == key:
            return ""
        python = self.home / "bin" / "python"
        create = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(self.home)]
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        for command in (create, [*pip, *wanted]):
            code, output = bounded(command, INSTALL_S)
            if code != 0:
                return output
        stamp.write_text(key)
        return ""

    def versions(self) -> str:
        """The packages that are under test, as they were asked for."""
        return " ".join(requirement.replace("==", " ") for requirement in self.requirements)


def tools(requirements: list[str]) -> list[str]:
    """The test tools, at the versions of the project's own environment, where ``requirements`` do not name them."""
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    named = {requirement.partition("==")[0] for requirement in requirements}
    return [f"{name}=={pinned[name]}" for name in TOOLS if name not in named]


def fingerprint(wanted: list[str]) -> str:
    """Changes with whatever would be installed."""
    project = (ROOT / "pyproject.toml").read_text()
    return hashlib.sha256("\n".join([sys.version, project, *wanted]).encode()).hexdigest()


def bounded(command: list[str], most_s: float) -> tuple[int, str]:
    """Run a command, and end it with all of its children when it takes too long; its exit code and output."""
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = child.communicate(timeout=most_s)
    except BaseException as error:
        os.killpg(child.pid, signal.SIGKILL)
        output, _ = child.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return 124, f"{output}\nended after {most_s:g} s"
    return child.returncode, output


def run(env: Env, arguments: list[str]) -> bool:
    """Install and test one environment; whether all is well."""
    started = time.monotonic()
    problem = env.install()
    if problem:
        env.result = "not installed"
        print(problem)
    else:
        pytest = [str(env.home / "bin" / "python"), "-m", "pytest", "-q", "--disable-warnings"]
        code, output = bounded([*pytest, *arguments, *env.tests()], TESTS_S)
        print(output, end="")
        counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)\b", (output.splitlines() or [""])[-1])
        env.result = ", ".join(counts) or f"exit code {code}"
        problem = "" if code == 0 else "failed"
    env.seconds = time.monotonic() - started
    return not problem


def main() -> int:
    """Run what is named, or all; print a table; 1 if anything failed."""
    names = sorted(path.parent.name for path in HERE.glob("*/requirements.txt"))
    parser = argparse.ArgumentParser(description="Run the tests of frameworks, each in an environment of its own.")
    parser.add_argument("envs", nargs="*", metavar="ENV", help=f"all if none is named: {', '.join(names)}")
    parser.add_argument("-k", metavar="EXPRESSION", help="as for pytest")
    asked = parser.parse_args()
    unknown = sorted(set(asked.envs) - set(names))
    if unknown:
        parser.error(f"no such environment: {', '.join(unknown)}; there are {', '.join(names)}")
    envs = [env for env in map(Env.read, asked.envs or names) if asked.envs or "soak" not in env.options]
    well = True
    for env in envs:
        print(f"--- {env.name}", flush=True)
        well &= run(env, ["-k", asked.k] if asked.k else [])
    print(f"\n{'environment':<24}{'result':<32}{'seconds':>8}  versions")
    for env in envs:
        print(f"{env.name:<24}{env.result:<32}{env.seconds:>8.1f}  {env.versions()}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
