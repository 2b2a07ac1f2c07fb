"""Whether a command is a Python program, by its name and the head of its file."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_PYTHON: Final = re.compile(r"(python|pypy)w?[\d.]*t?|py|uvx?|rye|pixi|conda|mamba|micromamba", re.ASCII)
"""Names of interpreters, and of tools that start Python programs."""

_WRAPPERS: Final = frozenset(
    ["caffeinate", "env", "ionice", "mpiexec", "mpirun", "nice", "nohup", "setsid", "srun", "stdbuf", "time", "timeout"]
)
"""Commands whose arguments name the command to run."""

_FIRST_LINE: Final = re.compile(rb"#![^\n]*(python|pypy|uv run)")
_TRICKS: Final = (b"\n'''exec' ", b'pyenv" exec ')
"""What is in the head of a shell script that starts Python alone: pip's, where the path of its interpreter is too long for a
first line, and pyenv's."""

HEAD: Final = 1_024
"""The bytes of a file that are looked at."""


def is_python(command: Sequence[str]) -> bool:
    """Whether ``command`` starts Python: an interpreter, or a script or installed program that names one in its first line."""
    program = shutil.which(command[0])
    name = Path(command[0]).name.lower().removesuffix(".exe")
    if _PYTHON.fullmatch(name):
        return True
    if name in _WRAPPERS:
        rest = next((place for place in range(1, len(command)) if shutil.which(command[place])), None)
        return rest is not None and is_python(command[rest:])
    return program is not None and _starts_python(Path(program))


def _starts_python(file: Path) -> bool:
    if sys.platform == "win32":  # where pip installs programs, and nothing else does
        return file.suffix.lower() == ".exe" and file.parent.name.lower() == "scripts"
    try:
        with file.open("rb") as opened:
            head = opened.read(HEAD)
    except OSError:
        return False
    return _FIRST_LINE.match(head) is not None or (head.startswith(b"#!") and any(trick in head for trick in _TRICKS))
