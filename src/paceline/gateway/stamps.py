"""Files that are read again when they change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from paceline.core.results import PacelineError

log = logging.getLogger("paceline.gateway")

LOOK_S: Final = 1.0
"""The least time between two looks at a file: so long what it had before can be in use."""

Stamp = tuple[int, int, int]


def stamp(file: Path) -> Stamp | None:
    """What is another one when the content of the file is, also where a link in its path leads to another file; ``None`` without a file."""
    try:
        about = file.stat()
    except OSError:
        return None
    # WEAK: a change in the same step of the file system's clock, with the same size and in place, is not seen.
    return about.st_mtime_ns, about.st_size, about.st_ino


class Watched:
    """Files that are read again when they have changed, while what was read before is in use.

    Args:
        kept: What happens where they cannot be read, for the log.
        files: The files.
        looked_s: When they were read, on the monotonic clock; by default, the first look reads them.
    """

    __slots__ = ("_failed", "_files", "_kept", "_looked_s", "_seen")

    def __init__(self, kept: str, *files: Path, looked_s: float | None = None) -> None:
        self._kept, self._files = kept, files
        self._seen: list[Stamp | None] | None = None  # they may have changed since they were read
        self._looked_s, self._failed = looked_s, False

    def look(self, read: Callable[[], object]) -> None:
        """Call ``read`` if a file has changed since it was last called, or if that failed; a failure is logged once.

        Within ``LOOK_S`` of the last look nothing happens.

        Args:
            read: Reads the files; raises :class:`~paceline.core.results.PacelineError` if it cannot.
        """
        now_s = time.monotonic()
        if self._looked_s is not None and now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        seen = [stamp(file) for file in self._files]  # before they are read
        if seen == self._seen and not self._failed:
            return
        try:
            read()
        except PacelineError as error:
            if not self._failed:
                log.warning("%s; %s", error, self._kept)
            self._failed = True
        else:
            self._seen, self._failed = seen, False
