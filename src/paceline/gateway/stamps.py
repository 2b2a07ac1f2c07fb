"""Whether a file has changed since it was read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

LOOK_S: Final = 1.0
"""The least time between two looks at a file: so long what it had before can be in use."""

Stamp = tuple[int, int, int]


def stamp(file: Path) -> Stamp | None:
    """What is another one when the content of the file is, also where a link in its path leads to another file; ``None`` without a file."""
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino
