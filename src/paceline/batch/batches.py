"""The batches of a run, from the intent to the end, and the requests that each of them has."""

from __future__ import annotations

import math
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from paceline.batch.chunks import BatchKind, Chunk, ProviderQueue
from paceline.batch.index import Index
from paceline.batch.journal import LOST, BatchJournal

TRIES_MAX: Final = 3
"""How often a request is part of a batch that ends without an answer to it or a reason against it, before it counts as failed."""

_TRIES, _HOLD = 0b11, 0b100  # of the number of a line: its tries, and one batch that has it


class Batches:
    """The batches of a run: in the journal, in the queues of the providers, and for each line of the input.

    Args:
        journal: Open for writing.
        index: Has the ids of the input, and which lines are done.
        queue: The known limit of enqueued tokens of each model.

    Attributes:
        lost: The batches that were not found after their creation, and may still appear.
        created: How many batches this run has created.
        unable_s: Since when no batch could be created; ``None`` after a creation.
        most_bytes: The most bytes of a batch that a provider takes, learned from its refusals, by its name.
    """

    def __init__(self, journal: BatchJournal, index: Index, queue: float | None) -> None:
        self.journal, self.index = journal, index
        self.lost: list[Chunk] = []
        self.created, self._started_s = 0, time.time()
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
        self.created += chunk.at_s >= self._started_s
        self.unable_s = None

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
        if state == LOST:
            self.lost.append(chunk)

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
