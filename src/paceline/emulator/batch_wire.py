"""What the Batch APIs of all emulated providers have in common: a call, its answer, and the requests in the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from paceline.emulator.batches import BatchEntry, EmulatedBatch
from paceline.emulator.wire import Dialect, HttpAnswer
from paceline.emulator.world import Admitted, Refused


class BatchReply(NamedTuple):
    """An answer: a JSON value or an error, or pieces of bytes.

    Attributes:
        status: The HTTP status.
        value: The JSON value.
        pieces: The content of a file instead.
        reads: The batch whose results these pieces are: it has been read when all of them were sent.
        creates: Whether something was created, so that the answer can be lost.
        answer: A whole answer instead, with headers of its own.
    """

    status: int = 200
    value: Any = None
    pieces: Iterable[bytes] | None = None
    reads: EmulatedBatch | None = None
    creates: bool = False
    answer: HttpAnswer | None = None


class BatchCall(NamedTuple):
    """One call of a Batch API.

    Attributes:
        dialect: The dialect that answers.
        what: ``files``, ``batches``, or Mistral's ``jobs``.
        id: The id in the path; empty without one.
        verb: ``content``, ``results`` or ``cancel``; empty without one.
        method: The HTTP method.
        query: The query's parameters.
        headers: The headers.
        root: The server's root, for links.
    """

    dialect: Dialect
    what: str
    id: str
    verb: str
    method: str
    query: Mapping[str, list[str]]
    headers: Mapping[bytes, bytes]
    root: str

    def number(self, name: str, default: int, most: int) -> int:
        """A positive number in the query."""
        text = self.query.get(name, [""])[0]
        return min(most, int(text)) if text.isascii() and text.isdigit() and int(text) else default

    def text(self, name: str) -> str:
        """A text in the query."""
        return self.query.get(name, [""])[0]


def answer_serial(batch: EmulatedBatch, number: int) -> int:
    """The number of the answer to a request of a batch."""
    return batch.serial * 10_000_000 + number


def admitted(one: BatchEntry) -> Admitted:
    """A request that was answered."""
    return Admitted(one.ask.model, "", one.ask.input_tokens, one.output_tokens, 0, 0.0)


def refused(one: BatchEntry) -> Refused:
    """A request that failed."""
    kinds = {400: "invalid", 404: "unknown_model", 500: "failure"}
    return Refused(kinds[one.status], one.ask.model, detail=one.ask.error)


def iso(at_s: float) -> str:
    """A time as text."""
    return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")
