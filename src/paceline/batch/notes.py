"""The progress of the shards of a run: each shard leaves a note beside the store, and the notes make one view of the run.

A run is recognised by its input and the number of its shards: by the input's name without its folder, its size, and a hash of
its first bytes, which are the same on all machines. A note has numbers, and the input's name; no key, and nothing of a request.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, BinaryIO, Final, Self

from paceline.batch.progress import ProgressLine, ProgressView
from paceline.batch.requests import Shard
from paceline.batch.summary import ERRORS_SHOWN, RunTally
from paceline.core.results import StoreError
from paceline.limiter.limiter import Limiter
from paceline.pacing.status import QUEUE_SHOWN
from paceline.stores import notes

HEAD: Final = 64 * 1024
"""Bytes at the start of an input by which it is recognised."""

EVERY_S: Final = 5.0
"""Between two notes of a shard; with more than 1,000 shards longer, so that all together write 200 a second."""

EVERY_MAX_S: Final = 30.0
SILENT_S: Final = 60.0
"""A shard that runs, by its last note, but has written none for so long, is silent: it was killed, or lost its store."""

END_S: Final = 3.0
"""How long the end of a run waits for its last note."""

COUNT_MAX: Final = 1e15
"""Of any number in a note."""

NAME_MAX: Final = 100
"""Characters of the name of an error in a note; a provider may have written it."""

RUNNING, FINISHED, STOPPED, FAILED, SILENT = STATES = "running", "finished", "stopped", "failed", "silent"


TEXTS, COUNTS = ("run", "input", "state"), ("shard", "shards", "requests", "done", "failed", "refused", "per_min")
"""The fields of a note that are texts, and numbers; the others are ``about``, ``left_s`` and ``errors``."""


def read_note(entry: bytes) -> dict[str, Any]:
    """What a shard tells of itself in an entry; fields that are unknown here are left out.

    Returns:
        ``run``: the same for all shards of a run; ``input``: the input's name without its folder; ``shard``: from 1 to ``shards``;
        ``state``: ``running``, ``finished`` (all requests are answered or failed), ``stopped`` (by a signal) or ``failed``;
        ``requests``: the requests of the shard; ``about``: whether that number is estimated; ``done``: the requests that are answered
        or failed, in this run or before; ``failed``: the ones that failed in this run, and that an earlier run has left as failed;
        ``refused``: answers with status 429; ``per_min``: requests in a minute now; ``left_s``: the time left in seconds, if it is
        known; ``errors``: the failed requests by name, the most frequent ones.

    Raises:
        LookupError, TypeError, ValueError: It is no note.
    """
    given = json.loads(entry)
    note = {name: given[name] for name in (*TEXTS, *COUNTS, "left_s")} | {"about": bool(given["about"])}
    errors, left_s = dict(given.get("errors") or {}), note["left_s"]
    numbers = [*map(note.get, COUNTS), *errors.values(), *([] if left_s is None else [left_s])]
    are_of_kind = all(isinstance(note[name], str) for name in TEXTS) and all(map(_is_count, numbers))
    if not are_of_kind or note["state"] not in STATES or not 1 <= note["shard"] <= note["shards"]:
        raise ValueError("no note")
    return note | {"errors": {str(name)[:NAME_MAX]: count for name, count in list(errors.items())[:ERRORS_SHOWN]}}


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value <= COUNT_MAX


def run_id(source: str, file: BinaryIO, shards: int) -> str:
    """The name of the run that sends ``file`` in so many shards; the position of the file stays."""
    at = file.tell()
    file.seek(0)
    head = file.read(HEAD)
    file.seek(at)
    size = os.fstat(file.fileno()).st_size
    known = json.dumps([os.path.basename(source), shards, size, sha256(head).hexdigest()])  # noqa: PTH119
    return sha256(known.encode()).hexdigest()[:16]


class Reporter:
    """Writes the note of a shard while its ``with`` block runs, and at the end, from a thread of its own.

    A place that cannot be used costs one line of warning; each note is tried anew.

    Args:
        place: Where the notes are; ``None``: there are none.
        file: The input.
        source: Its path.
        shard: The part of it.
        tally: The counts.
        meter: The speed, as of its last line.
        view: For the warning.

    Attributes:
        state: The state in the last note; until it is set, a block that ends has failed.
    """

    def __init__(
        self,
        place: notes.Notes | None,
        file: BinaryIO,
        source: str,
        shard: Shard,
        tally: RunTally,
        meter: ProgressLine,
        view: ProgressView,
    ) -> None:
        self.state = FAILED
        self._place, self._source, self._shard = place, source, shard
        self._tally, self._meter, self._view = tally, meter, view
        self._run = run_id(source, file, shard.of) if place is not None else ""
        self._ending, self._started_s = threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._report, name="paceline progress", daemon=True)

    def __enter__(self) -> Self:
        if self._place is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        if self._place is not None:
            self._thread.join(END_S)

    def end(self, report: dict[str, Any]) -> None:
        """Take the end of the run from its summary."""
        self.state = STOPPED if report["interrupted"] else FAILED if self._tally.left else FINISHED

    def runs(self) -> list[dict[str, Any]]:
        """The run as it is now, in the form of :func:`read_runs`."""
        return [_sum([(0.0, self._note(ended=False))])]

    def _report(self) -> None:
        assert self._place is not None
        warned, every_s = False, min(max(EVERY_S, self._shard.of / 200), EVERY_MAX_S)
        while True:
            ended = self._ending.is_set()  # read first: the note below then has the last state
            try:
                self._place.write({f"{self._run}/{self._shard.number}": json.dumps(self._note(ended=ended))})
            except StoreError as error:
                if not warned:
                    self._view.say(f"warning: the progress is not reported to the store: {error}")
                warned = True
            if ended:
                break
            self._ending.wait(every_s)

    def _note(self, *, ended: bool) -> dict[str, Any]:
        tally, meter = self._tally, self._meter
        done = tally.ok + tally.failed
        per_min = meter.per_min or 60 * done / max(time.monotonic() - self._started_s, 1e-9)  # before its first line
        left_s = meter.left_s or (60 * tally.left / per_min if per_min else None)
        return {
            "run": self._run,
            "input": os.path.basename(self._source),  # noqa: PTH119
            "shard": self._shard.number,
            "shards": self._shard.of,
            "state": self.state if ended else RUNNING,
            "requests": tally.requests,
            "about": bool(tally.about),
            "done": tally.before + done,
            "failed": tally.failed + tally.final.total(),
            "refused": tally.sent.attempts.refused + tally.sent.calls.refused,
            "per_min": 0.0 if ended else round(per_min, 3),
            "left_s": None if ended or left_s is None else round(left_s, 3),
            "errors": {name[:NAME_MAX]: count for name, count in tally.every_error.items()},
        }


class RunStatus:
    """The status of a limiter with the counts of the run that uses it, for a page.

    Attributes:
        pacer: The limiter's.
    """

    def __init__(self, limiter: Limiter, reporter: Reporter) -> None:
        self._limiter, self._reporter, self.pacer = limiter, reporter, limiter.pacer

    def status(self, queue: int = QUEUE_SHOWN) -> dict[str, Any]:
        """See :meth:`Limiter.status <paceline.Limiter.status>`; the run is below ``runs``."""
        return {**self._limiter.status(queue), "runs": self._reporter.runs()}


def read_runs(place: notes.Notes) -> tuple[list[dict[str, Any]], int]:
    """The runs as plain JSON values, the one that reported last first; and how many notes cannot be read.

    Raises:
        StoreError: The place cannot be used.
    """
    shards: dict[str, list[tuple[float, dict[str, Any]]]] = defaultdict(list)
    unreadable = 0
    for age_s, entry in place.read():
        try:
            note = read_note(entry)
        except (LookupError, TypeError, ValueError, RecursionError):
            unreadable += 1
        else:
            shards[note["run"]].append((max(age_s, 0.0), note))
    runs = sorted(shards.values(), key=lambda found: min(age_s for age_s, _ in found))
    return [_sum(found) for found in runs], unreadable


def _shard(age_s: float, note: dict[str, Any]) -> dict[str, Any]:
    silent = note["state"] == RUNNING and age_s >= SILENT_S
    return note | {"state": SILENT if silent else note["state"], "age_s": round(age_s, 1)}


def _sum(found: Iterable[tuple[float, dict[str, Any]]]) -> dict[str, Any]:
    """One run from the notes of its shards. Speed and time left are about the shards that run, side by side."""
    shards = [_shard(age_s, note) for age_s, note in sorted(found, key=lambda each: each[1]["shard"])]
    first, states = shards[0], Counter(shard["state"] for shard in shards)
    running = [shard for shard in shards if shard["state"] == RUNNING]
    shared = ("run", "input", "shards")
    return {
        **{name: first[name] for name in shared},
        "reported": len(shards),
        "states": {state: states[state] for state in STATES},
        **{name: sum(shard[name] for shard in shards) for name in ("requests", "done", "failed", "refused")},
        "errors": dict(sum((Counter(shard["errors"]) for shard in shards), Counter[str]()).most_common(ERRORS_SHOWN)),
        "about": any(shard["about"] for shard in shards),
        "per_min": round(sum(shard["per_min"] for shard in running), 3),
        "left_s": max((shard["left_s"] for shard in running if shard["left_s"] is not None), default=None),
        "each": [{name: value for name, value in shard.items() if name not in shared} for shard in shards],
    }
