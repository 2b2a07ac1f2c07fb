"""A test that takes too much CPU time fails the run, unless it says why."""

import subprocess
import sys
from pathlib import Path

import pytest

BURNS = """
import time, pytest

{mark}
def test_burns():
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
"""
QUIET = "import os, cost\nos.getloadavg = lambda: (0.0, 0.0, 0.0)\ncost.QUIET_LOOP_S = 1e9\n"


@pytest.mark.parametrize(("mark", "code"), [("", 1), ('@pytest.mark.long("it burns")', 0)])
def test_a_dear_test_fails_the_run_unless_it_is_marked(tmp_path, mark, code):
    here = Path(__file__).parent
    (tmp_path / "test_it.py").write_text(BURNS.format(mark=mark))
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(here)!r})\n{QUIET}"
        "def pytest_configure(config):\n"
        "    config.addinivalue_line('markers', 'long(why): x')\n"
        "    config.pluginmanager.register(cost.Costs(0.1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    assert ("FAILED: test_it.py::test_burns: it takes 0.3 s of CPU time" in done.stdout) == bool(code)
    assert "the slowest ten" in done.stdout
