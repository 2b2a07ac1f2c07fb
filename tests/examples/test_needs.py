"""What an example says where the packages that it needs are not installed."""

import os
import re
import subprocess
import sys

import pytest
from example_programs import EXAMPLES

NOWHERE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.mark.parametrize(
    ("example", "missing", "needs"),
    [
        ("fifty_agents", "httpx2", "pip install '.[emulator,cli]'"),
        (
            "paper_pipeline",
            "litellm",
            "pip install '.[emulator,httpx]' -r examples/paper_pipeline/requirements.txt",
        ),
    ],
)
def test_one_line_says_what_is_missing_and_how_to_get_it(example, missing, needs):
    run = [sys.executable, "-S", str(EXAMPLES / example / "run.py")]  # -S: no package is found
    done = subprocess.run(run, env=NOWHERE, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{example}: No module named {missing!r}; {needs}\n"
    assert needs in (EXAMPLES / example / "README.md").read_text(), "the README's own command"


def test_no_example_needs_more_than_is_public():
    internal = re.compile(
        r"^\s*(?:from|import) paceline\.(?!testing\b|emulator\b|integrations\.(?!langchain_agents\b)|stores\b|estimation\.estimate\b).*",
        re.MULTILINE,
    )
    found = {str(path): internal.findall(path.read_text("utf-8")) for path in EXAMPLES.rglob("*.py")}
    assert {path: lines for path, lines in found.items() if lines} == {}
