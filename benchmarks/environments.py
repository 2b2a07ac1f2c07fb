"""Virtual environments for the peers, one for each, in the user's cache."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from benchmarks.throttle import newer_python

ROOT = Path(__file__).resolve().parent.parent
CLIENT = "httpx2==2.16.2"
"""The HTTP client of the peers that have none."""
LITELLM = "litellm==1.110.2"
"""Also where another peer depends on it: 1.107.0 is reported to have been tampered with."""
PACKAGES = {
    "aiolimiter": ("aiolimiter==1.3.0",),
    "async-batch-llm": ("async-batch-llm[openai]==0.28.0", "openai==3.57.0"),
    "infermesh": ("infermesh==0.3.2", LITELLM),
    "inspect-ai": ("inspect-ai==0.3.285", "openai==3.57.0"),
    "langchain-core": ("langchain-core==1.8.3",),
    "litellm": (LITELLM,),
    "lm-deluge": ("lm-deluge==0.0.168",),
    "mocklimit": ("mocklimit==0.6.0",),
    "openai": ("openai==3.57.0",),
    "token-throttle": ("token-throttle==14.0.0",),
    "tokenjuggler": ("tokenjuggler[openai]==0.1.0", "openai==3.57.0"),
}
"""What is installed for each, by name: releases do not change under a comparison."""
INSTALL_S = 300


@cache
def environment(package: str) -> tuple[str, str]:
    """The Python of the environment with ``package``, made at first use; or "" and the reason. "" is this project."""
    if not package:
        return sys.executable, ""
    base = newer_python()
    if base is None:
        return "", "no Python 3.12 or later was found"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline-benchmarks" / f"peer-{package}"
    python, ready, needs = home / "bin" / "python", home / "ready", [*PACKAGES[package], CLIENT]
    if not (ready.exists() and ready.read_text() == "\n".join(needs)):
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *needs]
        try:
            subprocess.run([base, "-m", "venv", "--clear", str(home)], check=True, capture_output=True)
            subprocess.run(install, check=True, capture_output=True, timeout=INSTALL_S)
        except (subprocess.SubprocessError, OSError):
            return "", "could not be installed"
        ready.write_text("\n".join(needs))
    return str(python), ""


def version_of(package: str) -> str:
    """The version that is installed there, with the Python below it; or why there is none."""
    name = package or "paceline"
    code = f"import importlib.metadata as m, platform as p; print(m.version({name!r}), 'on Python', p.python_version())"
    python, why = environment(package)
    return why or subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
