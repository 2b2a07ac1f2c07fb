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


def program_at(command: Sequence[str]) -> int:
    """The place of the program in ``command``: behind those that start the command in their arguments."""
    at = 0
    while _name(command[at]) in _WRAPPERS:
        rest = next((place for place in range(at + 1, len(command)) if shutil.which(command[place])), None)
        if rest is None:
            break
        at = rest
    return at


def is_python(command: Sequence[str]) -> bool:
    """Whether ``command`` starts Python: an interpreter, or a script or installed program that names one in its first line."""
    word = command[program_at(command)]
    program = shutil.which(word)
    return _PYTHON.fullmatch(_name(word)) is not None or (program is not None and _starts_python(Path(program)))


def _name(word: str) -> str:
    return Path(word).name.lower().removesuffix(".exe")


def _starts_python(file: Path) -> bool:
    if sys.platform == "win32":  # where pip installs programs, and nothing else does
        return file.suffix.lower() == ".exe" and file.parent.name.lower() == "scripts"
    try:
        with file.open("rb") as opened:
            head = opened.read(HEAD)
    except OSError:
        return False
    return _FIRST_LINE.match(head) is not None or (head.startswith(b"#!") and any(trick in head for trick in _TRICKS))
