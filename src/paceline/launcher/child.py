"""The part of ``paceline exec`` in each Python process: a limiter, :func:`~paceline.instrument`, and a record at the end."""

from __future__ import annotations

import atexit
import json
import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.http import bypass, unpaced
from paceline.http.bypass import ImportWatch
from paceline.http.instrument import instrument
from paceline.limiter.limiter import Limiter

VARIABLE = "PACELINE_EXEC"
"""The environment variable with the path of the settings; records are written beside them."""


def start() -> None:
    """Pace this process by the settings of ``paceline exec``."""
    path = Path(os.environ[VARIABLE])
    try:
        arguments, provider = pickle.loads(path.read_bytes())  # noqa: S301  (written by our own parent)
    except OSError as error:
        print(
            f"paceline exec: process {os.getpid()} is not paced: the command has ended ({error.strerror})",
            file=sys.stderr,
        )
        return
    record = Record(path.parent, Limiter(**arguments))
    instrument(record.limiter, provider=provider)
    ImportWatch({name: partial(apply, record.limiter) for name, apply in PROGRAMS.items()})


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


class Record:
    """What one process has sent, written when it ends.

    Args:
        folder: Where the records of all processes are.
        limiter: The process's limiter.
    """

    def __init__(self, folder: Path, limiter: Limiter) -> None:
        self.limiter = limiter
        self._folder = folder
        self._begin()
        atexit.register(self._end)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Begin the record of this process, or of a forked one, which has the counts of its parent."""
        self._pid, self._before = os.getpid(), self._counts()
        unpaced.kinds.clear()
        self._path = self._folder / f"{self._pid}-{os.urandom(4).hex()}.json"
        self._write("{}")
        if "multiprocessing.util" in sys.modules:  # its children end without the functions of atexit
            from multiprocessing import util

            util.register_after_fork(self, Record._end_with_multiprocessing)

    def _end_with_multiprocessing(self) -> None:
        from multiprocessing import util

        util.Finalize(None, self._end, exitpriority=0)

    def _end(self) -> None:
        if os.getpid() != self._pid:
            return
        before, now = self._before, self._counts()
        pools = {}
        for name, counts in now.items():
            made = {what: number - before.get(name, {}).get(what, 0) for what, number in counts.items()}
            if any(made.values()):
                pools[name] = made | {"longest_s": counts["longest_s"]}
        kinds = [[*kind, number] for kind, number in unpaced.kinds.items()]
        self._write(json.dumps({"pools": pools, "unpaced": kinds, "bypassed": sorted(bypass.bypassed)}))

    def _counts(self) -> dict[str, dict[str, float]]:
        counts = {}
        for name, pool in self.limiter.status()["pools"].items():
            if pool["counts"]:
                waited_s = pool["wait_s"]["mean"] * pool["counts"].get("granted", 0)
                counts[name] = {**pool["counts"], "waited_s": waited_s, "longest_s": pool["wait_s"]["longest"]}
        return counts

    def _write(self, text: str) -> None:
        try:
            self._path.write_text(text)
        except OSError:  # the command has ended before this process
            return


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records in ``folder``; that of a process that was killed is empty."""
    records: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.json")):
        try:
            records.append(json.loads(path.read_text()))
        except (OSError, ValueError):
            records.append({})
    return records
