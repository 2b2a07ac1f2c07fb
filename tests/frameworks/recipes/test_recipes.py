"""Each `pip install` line of the pages can be resolved in a fresh environment, with the newest packages of today."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("examples/*/README.md"))]
UV = [sys.executable, "-m", "uv", "--quiet", "--system-certs"]


def lines():
    """What is installed: the words after `pip install`, in a console or in code quotes."""
    found = set()
    for page in PAGES:
        text = page.read_text("utf-8")
        found |= set(re.findall(r"^\$ pip install ([^#\n]+)", text, re.MULTILINE))
        found |= set(re.findall(r"`pip install ([^`]+)`", text))
    return sorted(line.strip() for line in found)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """The Python of an environment with nothing in it."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([*UV, "venv", "--python", sys.executable, str(home)], check=True, timeout=60)
    return home / "bin" / "python"


def test_they_are_found():
    assert len(lines()) >= 15
    for word in (
        "extropy-run",
        "fifty_agents/requirements.txt",
        "langchain",
        "paper_pipeline/requirements.txt",
        "google-genai",
        "ray[data]",
    ):
        assert any(word in line or word.replace("langchain", "contextualizer") in line for line in lines()), word


@pytest.mark.parametrize("line", lines())
def test_it_can_be_resolved(fresh, line):
    line = re.sub(r" @ git\+[^\s']+", "", line)  # the address of the repository is not known before a release
    line = re.sub(r"^git\+\S+", ".", line)
    line = re.sub(r"\bpaceline(?=[\['\s]|$)", ".", line.replace("==VERSION", ""))  # this copy
    words = [*UV, "pip", "install", "--dry-run", "--python", str(fresh), *shlex.split(line)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
