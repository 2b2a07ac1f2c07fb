"""CPU and memory of a process and its children, from ``/proc`` (Linux)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Seconds of CPU, in the program and in the kernel."""
    return sum(int(fields[11]) + int(fields[12]) for fields in _tree(pid)) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Resident memory in MB; a page that two of the processes share is counted twice."""
    return sum(int(fields[21]) for fields in _tree(pid)) * os.sysconf("SC_PAGE_SIZE") / 1e6


def wait_until_idle(most_s: float = 5.0) -> None:
    """Wait until all cores together are at least nine tenths idle; no longer than ``most_s``."""
    until_s = time.monotonic() + most_s
    share = 0.0
    while share < 0.9 and time.monotonic() < until_s:
        before = _ticks()
        time.sleep(0.3)
        idle, total = (now - then for now, then in zip(_ticks(), before, strict=True))
        share = idle / total if total else 0.0


class Others:
    """What other processes, and other guests of the host, take of the cores from now on."""

    def __init__(self) -> None:
        self._idle, self._total = _ticks()
        self._own_s = _own_s()

    def share(self) -> float:
        """Their share of all cores; children of this process count as its own when they have ended."""
        idle, total = _ticks()
        spent_s = (total - self._total - idle + self._idle) / os.sysconf("SC_CLK_TCK") - _own_s() + self._own_s
        return max(spent_s / (total - self._total) * os.sysconf("SC_CLK_TCK"), 0.0)


def _own_s() -> float:
    return sum(os.times()[:4])


def _ticks() -> tuple[int, int]:
    """Ticks of all cores since the start: idle ones, and all. Those of processes that are nice, and yield, are idle ones."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return fields[1] + fields[3] + fields[4], sum(fields)


def _tree(pid: int) -> Iterator[list[str]]:
    """The fields of ``/proc/PID/stat`` after the name, of the process and of all below it."""
    found: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            found[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    wanted = [pid]
    while wanted:
        one = wanted.pop()
        if one in found:
            yield found.pop(one)
        wanted += [child for child, fields in found.items() if int(fields[1]) == one]
