"""The examples' commands with the packages that their pages name, and no others; the other two are beside their frameworks."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("page", "command", "said"),
    [
        (
            "docs/systems.md",
            "python examples/acm/run.py --documents 4 --speed 10",
            "google saw 16 requests, refused 0,",
        ),
        (
            "examples/simulation/README.md",
            "python examples/simulation/run.py --agents 40 --rounds 1 --speed 20",
            "gpt-6-luna                 40        0",
        ),
        (
            "examples/fifty_agents/README.md",
            "python examples/fifty_agents/run.py --speed 60",
            "gemini: 7 agents started within ",
        ),
    ],
    ids=["acm", "simulation", "fifty_agents"],
)
def test_it_runs(page, command, said):
    words = shlex.split(command)
    assert " ".join(words[:2]) in (ROOT / page).read_text("utf-8")
    keyless = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    run = [sys.executable, *words[1:]]
    done = subprocess.run(run, cwd=ROOT, env=keyless, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
