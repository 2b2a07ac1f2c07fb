"""The part of ``paceline exec`` in each Python process: a limiter, :func:`~paceline.instrument`, and a record at the end."""

from __future__ import annotations

import atexit
import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline import facts
from paceline.http import paced, unpaced
from paceline.http.instrument import instrument
from paceline.limiter.limiter import Limiter
from paceline.pacing.durable import open_binary
from paceline.pacing.events import Event
from paceline.pacing.imports import ImportWatch
from paceline.pacing.pools import Pools

POOLS_FEW = 20
"""With more pools, a record is written once a second, and at the end of its process."""

VARIABLE = "PACELINE_EXEC"
"""The environment variable with the path of the settings; records are written beside them."""

GATEWAY = "PACELINE_GATEWAY"
"""The environment variable with the address of the gateway of a command, if it has one."""


def start() -> None:
    """Pace this process by the settings of ``paceline exec``."""
    path = Path(os.environ[VARIABLE])
    try:
        arguments, provider, known = pickle.loads(path.read_bytes())  # noqa: S301  (written by our own parent)
    except OSError as error:
        print(
            f"paceline exec: process {os.getpid()} is not paced: its settings cannot be read ({error.strerror});"
            " a process that starts after the command has ended cannot be paced",
            file=sys.stderr,
        )
        return
    if gateway := os.environ.get(GATEWAY):
        paced.paced_beyond.add(gateway.rpartition("/")[2])
    record = Record(path.parent)
    for where, providers, trusted in known:
        facts.add_project(where, providers, trusted=trusted)
    limiter = Limiter(**arguments, events=record.count)
    instrument(limiter, provider=provider)
    ImportWatch({name: partial(apply, limiter) for name, apply in PROGRAMS.items()})


def _pace_massgen(limiter: Limiter, _: ModuleType) -> None:
    if any(name.startswith("starts/") for name in limiter.limits.given):
        from paceline.integrations.massgen import pace_starts

        pace_starts(limiter)


def _pace_extropy(limiter: Limiter, _: ModuleType) -> None:
    from paceline.integrations.extropy import pace_engine

    pace_engine(limiter)


PROGRAMS: dict[str, Callable[[Limiter, ModuleType], None]] = {
    "extropy.simulation.engine": _pace_extropy,
    "massgen.orchestrator": _pace_massgen,
}
"""Modules of programs that need more than :func:`~paceline.instrument`."""


COUNTED = ("requests", "refused", "unconnected", "unanswered", "waited_s", "longest_s")


class ChildTally:
    """What went through one limiter, by pool.

    Attributes:
        pools: The counts of each pool: ``requests``, ``refused``, ``unconnected`` (attempts without a connection), ``unanswered``
            (attempts that broke off), and the waits of the requests, ``waited_s`` and ``longest_s``.
    """

    def __init__(self) -> None:
        self.pools: dict[str, dict[str, float]] = {}

    def count(self, event: Event) -> None:
        """Count an event of a permit."""
        counts = self.pools.setdefault(event.pool, dict.fromkeys(COUNTED, 0))
        if event.kind == "acquired":
            counts["requests"] += 1
            counts["waited_s"] += event.waited_s
            counts["longest_s"] = max(counts["longest_s"], event.waited_s)
        elif event.kind == "cancelled":
            counts["requests"] -= 1
            counts["waited_s"] -= event.waited_s
            counts["unconnected"] += event.model is not None  # else no one has tried to send it
        elif event.kind == "refused":
            counts["refused"] += 1
        elif event.model is not None and not event.status:
            counts["unanswered"] += 1

    def record(self) -> dict[str, Any]:
        """The counts, what was announced in this process because it is not paced, and whether a pool was used."""
        kinds = [[*kind, number] for kind, number in unpaced.kinds.items()]
        return {"pools": self.pools, "unpaced": kinds, "used": Pools.used}


class Record(ChildTally):
    """What one process has sent, in a file that is always up to date: a process can end in many ways.

    Args:
        folder: Where the records of all processes are.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._begin()
        self._write()
        atexit.register(self._write)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Begin the record of this process, or of a forked one, whose file is made with its first request."""
        self._lock = threading.RLock()  # reentrant: a finalizer may end a permit in here
        self._file: int | None = None
        self.pools = {}
        self._written_s, self._size = 0.0, 0
        unpaced.kinds.clear()
        if "multiprocessing.util" in sys.modules:  # its children end without the functions of atexit
            from multiprocessing import util

            util.register_after_fork(self, Record._end_with_multiprocessing)

    def _end_with_multiprocessing(self) -> None:
        from multiprocessing import util

        util.Finalize(None, self._write, exitpriority=0)

    def count(self, event: Event) -> None:
        """Count an event of a permit."""
        with self._lock:
            super().count(event)
            if len(self.pools) <= POOLS_FEW or time.monotonic() - self._written_s > 1:
                self._write()

    def _write(self) -> None:
        with self._lock:
            record = self.record()
            if self._file is not None or any(record.values()) or not self._written_s:
                text = json.dumps(record).encode().ljust(self._size)
                self._size, self._written_s = len(text), time.monotonic()
                try:
                    if self._file is None:
                        path = self._folder / f"{os.getpid()}-{os.urandom(4).hex()}.json"
                        self._file = open_binary(str(path), os.O_WRONLY | os.O_CREAT)
                    os.lseek(self._file, 0, os.SEEK_SET)
                    os.write(self._file, text)
                except OSError:  # the command has ended before this process
                    return


def read_failed(folder: Path) -> list[str]:
    """Why each process was not paced that could not be, as its ``sitecustomize`` has told."""
    return [path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("*.unpaced"))]


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records in ``folder``."""
    records: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.json")):
        try:
            records.append(json.loads(path.read_bytes()))
        except (OSError, ValueError):
            continue  # of a process that still runs, and writes
    return records
