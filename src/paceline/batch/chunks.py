"""Requests cut into provider batches, and the provider's queue, which the batches fill until they end. No clock, no IO."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from paceline.batch.index import Index
from paceline.providers.texts import said_in

FILL: Final = 0.9
"""The part of a known queue that is filled: the provider counts tokens a little differently, and frees the queue late."""

FILL_FIRST: Final = 0.5
"""The same before any answer has shown how the provider counts."""

PART: Final = 4
"""A batch is at most this part of what is filled, so that the next one is there when one ends."""

RATIO_MAX: Final = 5.0
"""How far the provider's count of tokens may be from the estimate, up and down; beyond it something else is counted."""

OPEN_BYTES: Final = 128 * 2**20
"""Bytes of the batches that are being filled at once, one for each model and path; beyond them the largest is closed."""

_OF_QUEUE: Final = "enqueued tokens"
"""The words of a refusal that states the limit of the queue, and not another one: "Limit: 2,000,000 enqueued tokens" at OpenAI, "The number
of enqueued tokens has surpassed the configured limit of 30K" at Azure (learn.microsoft.com/answers/questions/2285577, 2025-06)."""


class BatchKind(NamedTuple):
    """What the requests of one batch have in common: a provider's name, a path and a model."""

    provider: str
    path: str
    model: str


@dataclass(slots=True, eq=False)
class Chunk:
    """The requests of one batch.

    Attributes:
        kind: What they have in common.
        lines: Their lines in the input, in the order of the batch; 0 for one that the input no longer has.
        tokens: The estimate of their input.
        name: Its name in the journal, and in the batch's metadata; empty before it is in the journal.
        account: The account and the server of the batch; see :func:`paceline.config.servers.account`.
        at_s: When the batch was going to be created, in seconds since 1970.
        batch: The batch's id; empty before it is known.
        others: The ids of its requests that the input no longer has.
        custom_ids: The ids of all of them, until they are in the journal.
        content: Their lines in the provider's format, until they are sent.
        file: The provider's id of the file that has them; empty where there is none, or before it is uploaded.
        size: The bytes of ``content``; 0 for a batch of an earlier process.
    """

    kind: BatchKind
    lines: array[int] = field(default_factory=lambda: array("Q"))
    tokens: float = 0.0
    name: str = ""
    account: str = ""
    at_s: float = 0.0
    batch: str = ""
    others: frozenset[str] = frozenset()
    custom_ids: list[str] = field(default_factory=list)
    content: list[bytes] = field(default_factory=list)
    file: str = ""
    size: int = 0

    @property
    def digest(self) -> str:
        """The part of its name that stands for its content."""
        return self.name.partition("-")[2]

    def ids(self, index: Index) -> Iterator[str]:
        """The ids of its requests."""
        yield from filter(None, map(index.id_of, self.lines))
        yield from self.others


class ChunkItem(NamedTuple):
    """One request for :func:`cut`; ``inputs`` are the texts that it embeds."""

    kind: BatchKind
    line: int
    custom_id: str
    content: bytes
    tokens: float
    inputs: int = 1


def cut(
    items: Iterator[ChunkItem],
    *,
    most_lines: int,
    most_inputs: int,
    most_bytes: Callable[[BatchKind], float],
    most_tokens: Callable[[BatchKind], float],
) -> Iterator[Chunk]:
    """Cut requests into batches. A request that is too large for any batch is one of its own.

    Args:
        items: The requests.
        most_lines: The most requests of a batch.
        most_inputs: The most texts that the requests of one embed.
        most_bytes: The most bytes of a batch, asked anew for each request.
        most_tokens: The most input tokens of one, likewise.
    """
    chunks: dict[BatchKind, Chunk] = {}
    inputs = Counter[BatchKind]()
    for item in items:
        chunk = chunks.get(item.kind)
        if chunk is not None and (
            len(chunk.lines) >= most_lines
            or inputs[item.kind] + item.inputs > most_inputs
            or chunk.size + len(item.content) > most_bytes(item.kind)
            or chunk.tokens + item.tokens > most_tokens(item.kind)
        ):
            yield chunks.pop(item.kind)
            chunk = None
        if chunk is None:
            chunk = chunks[item.kind] = Chunk(item.kind)
            inputs[item.kind] = 0
        chunk.lines.append(item.line)
        chunk.custom_ids.append(item.custom_id)
        chunk.content.append(item.content)
        chunk.size += len(item.content)
        chunk.tokens += item.tokens
        inputs[item.kind] += item.inputs
        if sum(one.size for one in chunks.values()) > OPEN_BYTES:
            yield chunks.pop(max(chunks, key=lambda kind: chunks[kind].size))
    yield from chunks.values()


@dataclass(slots=True, eq=False)
class ProviderQueue:
    """The provider's queue for one model: what batches hold of it until they have ended.

    Attributes:
        limit: The provider's limit; ``None`` while it is not known.
        held: What each batch holds by the estimate, by the chunk's name.
        ratio: The provider's count over the estimate, of the last batch with answers; ``None`` before there is one.
        largest: The most that one batch may hold because larger ones were refused, by the estimate.
        full_until_s: Before this time nothing is sent.
        full_since_s: The first of the refusals in a row.
        refusals: The times in a row that the queue was full.
        worked: Whether a batch of it was not failed by the provider's validation.
    """

    limit: float | None = None
    held: dict[str, float] = field(default_factory=dict)
    ratio: float | None = None
    largest: float = math.inf
    full_until_s: float = 0.0
    full_since_s: float = 0.0
    refusals: int = 0
    worked: bool = False

    @property
    def most(self) -> float:
        """What may be held at once, by the estimate."""
        if self.limit is None:
            return math.inf
        return FILL_FIRST * self.limit if self.ratio is None else FILL * self.limit / self.ratio

    @property
    def most_of_one(self) -> float:
        """What one batch may hold."""
        return min(self.most / PART, self.largest)

    def fits(self, amount: float, now_s: float) -> bool:
        """Whether a batch may be created now; one that is larger than the queue may be, alone."""
        held = sum(self.held.values())
        return now_s >= self.full_until_s and (not held or held + amount <= self.most)

    def refused(self, amount: float, text: str, now_s: float, first_s: float, most_s: float) -> None:
        """The provider's queue was full for a batch of ``amount``: learn its limit from the text, and wait from ``first_s`` to ``most_s``, doubling.

        Gemini states no limit. So the next batch is half as large, if the queue was full twice in a row with no other batch of this run in it.
        """
        stated = said_in(text).limit if _OF_QUEUE in text else None
        if stated is not None:
            self.limit = stated
        if now_s < self.full_until_s:  # it was created before the wait, and shows no more than the first refusal
            return
        if not self.refusals:
            self.full_since_s = now_s
        elif not self.held:
            self.largest = amount / 2
        self.full_until_s = now_s + min(most_s, first_s * 2 ** min(self.refusals, 20))
        self.refusals += 1

    def learn(self, estimate: float, tokens: float) -> None:
        """Some answered requests had an estimate of ``estimate`` and an input of ``tokens``."""
        if estimate > 0 and tokens > 0:
            self.ratio = min(RATIO_MAX, max(1 / RATIO_MAX, tokens / estimate))

    def accepted(self) -> None:
        """A batch has passed the provider's check of the queue, and has left it: the next one, and larger ones, are tried again."""
        self.refusals, self.full_until_s = 0, 0.0
        self.largest *= 2
