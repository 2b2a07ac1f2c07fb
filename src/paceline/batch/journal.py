"""The batches of a run, and their journal: a file beside the output that says, before a batch is created, that it will be.

Each line is a JSON object, on the disk before the next step. A batch whose answer was lost is found by its metadata, so that no
crash leads to a second batch with the same requests, and none leaves results unread:

    {"event": "run", "run": "5f0c...", "version": 1}
    {"event": "intent", "chunk": "1-9f2c...", "provider": "openai", "path": ..., "model": ..., "account": ..., "at_s": ...,
     "tokens": 81200, "ids": ["a", "b"]}
    {"event": "batch", "chunk": "1-9f2c...", "batch": "batch_abc", "file": "file-abc"}
    {"event": "ended", "chunk": "1-9f2c...", "state": "completed"}
    {"event": "deadline", "seconds": 21600, "end_s": 1764000000}

``deadline`` is what a run until a deadline was asked for, and the time at which that is over; zeros when such a run has ended. ``ended`` follows
when the results are in the output and on the disk, or when no batch was found. In the second case its state is ``never created``, and a
``batch`` can still follow: a creation that took effect late.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from paceline.batch.answers import RunAnswers
from paceline.batch.chunks import BatchKind, Chunk, ProviderQueue
from paceline.batch.index import Index
from paceline.batch.results import OutputError, output_errors, require_one_name, set_aside
from paceline.pacing.durable import LostFileError, WatchedFile, recovered_names, take_back

LINE_MAX: Final = 256 * 2**20
"""Bytes in a line: the ids of the most requests that a batch has."""

SUFFIX: Final = ".batches.jsonl"

LOST: Final = "never created"
"""The state of a batch that was not found after its creation had no answer."""

NO_RESULTS: Final = (LOST, "refused", "failed", "gone")
"""The states of batches without results."""

TRIES_MAX: Final = 3
"""How often a request is part of a batch that ends without an answer to it or a reason against it, before it counts as failed."""

_TRIES, _HOLD = 0b11, 0b100  # of the number of a line: its tries, and one batch that has it


class BatchJournal:
    """The batches of one output.

    Args:
        output: The path of the output.
        reread: Whether batches that have ended are read again, because answers of theirs have gone from the output.

    Attributes:
        run: The id of all runs with this journal, in the metadata of their batches.
        known: The ids of all its batches.
        counted: The names of the chunks whose results are read again.
        lost: The batches that were not found after their creation, and may still appear, by the chunk's name.
        deadline: The seconds of ``--deadline`` and their end, in seconds since 1970, of a run that has not ended; or ``None``.

    Raises:
        OutputError: The file cannot be read, or is not a journal.
    """

    def __init__(self, output: str, *, reread: bool = False) -> None:
        self.path, self._reread = output + SUFFIX, reread
        self.run = ""
        self.known: set[str] = set()
        self.counted: set[str] = set()
        self.deadline: tuple[float, float] | None = None
        self.lost: dict[str, Chunk] = {}
        self._open: dict[str, Chunk] = {}
        self._count = self._end = 0
        self._file: WatchedFile | None = None
        with output_errors(self.path), suppress(FileNotFoundError):
            take_back(self.path)
            self._read()
        self._reread = False

    @property
    def unfinished(self) -> int:
        """How many batches exist, or were announced, whose results are not all in the output."""
        return len(self._open)

    def _read(self) -> None:
        with Path(self.path).open("rb") as file:
            for number, raw in enumerate(iter(lambda: file.readline(LINE_MAX), b""), 1):
                if not raw.endswith(b"\n"):  # a crash has cut it: the step that it announces was not taken
                    break
                try:
                    self._take(json.loads(raw))
                except (ValueError, KeyError, TypeError, AttributeError):
                    self.require_name()
                    raise OutputError(
                        f"{self.path}, line {number}: not a line of a journal of batches; remove the file only if no batch"
                        " of this output is in progress"
                    ) from None
                self._end += len(raw)

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "run":
            self.run = str(event["run"])
        elif kind == "intent":
            of = BatchKind(event["provider"], event["path"], event["model"])
            made = Chunk(of, tokens=event["tokens"], name=event["chunk"], account=event["account"], at_s=event["at_s"])
            made.custom_ids = event["ids"]
            self._add(made)
        elif kind == "batch":
            name = event["chunk"]
            if any(one.batch == event["batch"] for other, one in self._open.items() if other != name):
                raise ValueError("another chunk has this batch")
            if name in self.lost:
                self._open[name] = self.lost.pop(name)
            self._open[name].batch, self._open[name].file = event["batch"], str(event.get("file", ""))
            self.known.add(event["batch"])
        elif kind == "ended":
            name = event["chunk"]
            if self._reread and self._open[name].batch and event["state"] not in NO_RESULTS:
                self.counted.add(name)
                return
            chunk = self._open.pop(name, None)  # it has ended before, if its results were read again
            if event["state"] == LOST and chunk is not None:
                self.lost[name] = chunk
        elif kind == "deadline":
            seconds, end_s = float(event["seconds"]), float(event["end_s"])
            self.deadline = (seconds, end_s) if seconds else None
        else:
            raise ValueError("an unknown event")

    def _add(self, chunk: Chunk) -> None:
        self._count += 1
        self._open[chunk.name] = chunk

    def chunks(self, index: Index) -> list[Chunk]:
        """The batches of an earlier process that exist, or were announced. They and the :attr:`lost` ones get their lines of the input."""
        for chunk in (*self._open.values(), *self.lost.values()):
            chunk.lines = array("Q", (index.line_of(one) or 0 for one in chunk.custom_ids))
            chunk.others = frozenset(one for one, line in zip(chunk.custom_ids, chunk.lines, strict=True) if not line)
            chunk.custom_ids = []  # they are many
        return list(self._open.values())

    def open(self) -> None:
        """Open the file to be written.

        Raises:
            OutputError: It cannot be written.
        """
        require_one_name(self.path)
        with output_errors(f"{self.path}: cannot be written"):
            self._file = WatchedFile(self.path, end=self._end, mirrored=True)
        if not self.run:
            self.run = secrets.token_hex(8)
            self._write({"event": "run", "run": self.run, "version": 1})

    def intend(self, chunk: Chunk, account: str) -> None:
        """Say that a batch will be created.

        Raises:
            OutputError: That cannot be written: nothing may be created.
        """
        digest = chunk.digest or sha256(b"".join(chunk.content)).hexdigest()[:16]
        chunk.name = f"{self._count + 1}-{digest}"
        chunk.account, chunk.at_s = account, time.time()
        event = {"event": "intent", "chunk": chunk.name, **chunk.kind._asdict(), "account": account}
        event |= {"at_s": round(chunk.at_s, 3), "tokens": round(chunk.tokens), "ids": chunk.custom_ids}
        self._write(event)
        chunk.custom_ids = []  # they are many
        self._add(chunk)

    def created(self, chunk: Chunk, batch: str) -> None:
        """Say which batch it is.

        Raises:
            OutputError: That cannot be written.
            ValueError: It is the batch of another chunk.
        """
        event = {"event": "batch", "chunk": chunk.name, "batch": batch, "file": chunk.file}
        self._take(event)
        self._write(event)

    def ended(self, chunk: Chunk, state: str) -> None:
        """Say that its results are in the output, or that there is no batch.

        Raises:
            OutputError: That cannot be written.
        """
        event = {"event": "ended", "chunk": chunk.name, "state": state}
        self._write(event)
        self._take(event)

    def keep_deadline(self, deadline: tuple[float, float] | None) -> None:
        """Say until when the run is to be done, so that the next command keeps to it; ``None`` when it has ended.

        Raises:
            OutputError: That cannot be written.
        """
        if deadline != self.deadline:
            seconds, end_s = deadline or (0, 0)
            self._write({"event": "deadline", "seconds": seconds, "end_s": end_s})
            self.deadline = deadline

    def require_name(self) -> None:
        """Refuse to go on while an earlier run's journal is at another name, because another file has its own.

        Raises:
            OutputError: It is.
        """
        if os.path.exists(aside := next(recovered_names(self.path))):  # noqa: PTH110
            raise OutputError(
                f"{self.path}: another file has taken the name of this journal of batches, which is in {aside}: move it to"
                f" {self.path}, so that no batch is paid twice; or leave its batches with --restart"
            )

    def set_aside(self) -> str | None:
        """Rename the file, and return its new name; ``None`` when there is none.

        Raises:
            OutputError: It cannot be renamed.
        """
        name = ""
        for path in (*takewhile(os.path.exists, recovered_names(self.path)), self.path):
            if os.path.exists(path):  # noqa: PTH110
                name = set_aside(path)
        return name or None

    def settle(self) -> None:
        """Look after the file: see :class:`~paceline.pacing.durable.WatchedFile`.

        Raises:
            OutputError: It is not at its name, and cannot be written there again.
        """
        with self._writing() as file:
            file.settle()

    def _write(self, event: dict[str, Any]) -> None:
        raw = json.dumps(event).encode() + b"\n"
        with self._writing() as file:
            try:
                file.append(raw, synced=True)
            except LostFileError:  # it is written again now: no batch is created before
                file.append(raw, synced=True)
        self._end += len(raw)

    @contextmanager
    def _writing(self) -> Iterator[WatchedFile]:
        """The open file; refuse to go on if the block cannot write it, or has moved it."""
        assert self._file is not None
        then = "; no batch is created without it: make room, and run the same command again"
        with output_errors(f"{self.path}: cannot be written", then):
            yield self._file
        if self._file.moved:
            raise OutputError(
                f"{self.path}: another file has this name now, and was left as it is: the journal of batches is in"
                f" {self._file.path}: move it to {self.path}, and run the same command again"
            )

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):
                self._file.settle()
            self._file.close()
            self._file = None


class Batches:
    """The batches of a run: in the journal, in the queues of the providers, and for each line of the input.

    Args:
        journal: Open for writing.
        answers: Has the ids of the input, and which lines are done; counts the batches.
        queue: The known limit of enqueued tokens of each model.

    Attributes:
        unable_s: Since when no batch could be created; ``None`` after a creation.
        most_bytes: The most bytes of a batch that a provider takes, learned from its refusals, by its name.
    """

    def __init__(self, journal: BatchJournal, answers: RunAnswers, queue: float | None) -> None:
        self.journal, self.index, self._sent = journal, answers.index, answers.tally.sent
        self._started_s = time.time()
        self.unable_s: float | None = None
        self.most_bytes = defaultdict[str, float](lambda: math.inf)
        self._queues = defaultdict[BatchKind, ProviderQueue](lambda: ProviderQueue(queue))  # by provider and model
        self._lines = array("H")
        self._read: list[tuple[Chunk, str]] = []  # with their states; their results are to be in the output

    @property
    def tokens(self) -> float:
        """What the batches hold of all queues."""
        return sum(sum(queue.held.values()) for queue in self._queues.values())

    def note_created(self, chunk: Chunk, batch: str) -> None:
        """There is a batch."""
        self.journal.created(chunk, batch)
        self._sent.batches += self.is_new(chunk)
        self.unable_s = None

    def is_new(self, chunk: Chunk) -> bool:
        """Whether this run has announced a batch, and not an earlier one."""
        return chunk.at_s >= self._started_s

    def holds(self, line: int) -> bool:
        """Whether a line is part of a batch that has not ended."""
        return line < len(self._lines) and self._lines[line] >= _HOLD

    def is_open(self, line: int) -> bool:
        """Whether a line has no result, and is part of no batch."""
        return not (self.holds(line) or self.index.is_done(line))

    def queue(self, kind: BatchKind) -> ProviderQueue:
        """The provider's queue for the batches of a kind."""
        return self._queues[kind._replace(path="")]

    def hold(self, chunk: Chunk) -> None:
        """Note that the requests of a batch are part of it."""
        self.queue(chunk.kind).held[chunk.name] = chunk.tokens
        for line in filter(None, chunk.lines):
            if line >= len(self._lines):
                self._lines.extend([0] * (line + 1 - len(self._lines)))
            self._lines[line] += _HOLD

    def drop(self, chunk: Chunk, state: str) -> None:
        """There is no such batch."""
        self.journal.ended(chunk, state)
        self._release(chunk)

    def end(self, chunk: Chunk, state: str) -> None:
        """The results of a batch are read: its requests can be sent again."""
        self._release(chunk)
        self._read.append((chunk, state))

    def note_written(self, is_kept: Callable[[int], object]) -> None:
        """Say which of the batches that were read have all their results in the output. A crash loses what else is kept of a line."""
        for one in list(self._read):
            if not any(map(is_kept, one[0].lines)):
                self.journal.ended(*one)
                self._read.remove(one)

    def _release(self, chunk: Chunk) -> None:
        self.queue(chunk.kind).held.pop(chunk.name, None)
        for line in filter(None, chunk.lines):
            self._lines[line] -= _HOLD

    def unanswered(self, chunk: Chunk) -> Iterator[int]:
        """The lines of a batch that have no result and are part of no other batch."""
        for line in filter(None, chunk.lines):
            if self._lines[line] < 2 * _HOLD and not self.index.is_done(line):
                yield line

    def tried(self, line: int) -> bool:
        """A batch has ended without an answer to a request, which can be sent again; whether that was the last try."""
        self._lines[line] += not self.is_spent(line)
        return self.is_spent(line)

    def is_spent(self, line: int) -> bool:
        """Whether a line was part of as many batches as it may be."""
        return line < len(self._lines) and self._lines[line] & _TRIES == TRIES_MAX
