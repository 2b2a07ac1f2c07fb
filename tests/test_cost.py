"""A test that takes too much CPU time fails the run, unless it says why."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import time, pytest

def burn():
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass

def test_burns():
    burn()

@pytest.mark.long("it burns")
def test_says_why():
    burn()

loaded = []

def test_loads_what_stays():
    if not loaded:
        burn()
        loaded.append(1)
"""
CONFTEST = """
import os, sys
sys.path.insert(0, {here!r})
import cost
os.getloadavg = lambda: (0.0, 0.0, 0.0)

def pytest_configure(config):
    config.addinivalue_line("markers", "long(why): x")
    costs = cost.Costs(0.05)
    costs.loop_s = cost.QUIET_LOOP_S = 1e9
    config.pluginmanager.register(costs)
"""


def test_a_dear_test_fails_the_run_unless_it_is_marked(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST.format(here=str(Path(__file__).parent)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"], cwd=tmp_path,
        capture_output=True, text=True, check=False, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "FAILED: test_it.py::test_burns: it takes 0.1 s of CPU time" in done.stdout
    assert done.stdout.count("it takes") == 1
    assert "the slowest ten" in done.stdout
