"""What the Batch APIs of all emulated providers have in common: a call, its answer, and the requests in the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from paceline.emulator.batches import EmulatedBatch
from paceline.emulator.settings import Settings
from paceline.emulator.wire import Dialect, HttpAnswer, load
from paceline.emulator.world import Admitted, Refused


class BatchError(Exception):
    """A call that is refused.

    Attributes:
        status: The HTTP status.
        text: What is wrong.
        code: OpenAI's code.
        param: OpenAI's name of the wrong parameter.
    """

    def __init__(self, status: int, text: str, code: str | None = None, param: str | None = None) -> None:
        self.status, self.text, self.code, self.param = status, text, code, param


class BatchReply(NamedTuple):
    """An answer: a JSON value, or pieces of bytes.

    Attributes:
        value: The JSON value.
        status: The HTTP status.
        answer: A whole answer instead, with headers of its own.
        pieces: The content of a file instead.
        reads: The batch whose results these pieces are: it has been read when all of them were sent.
        creates: Whether something was created, so that the answer can be lost.
    """

    value: Any = None
    status: int = 200
    answer: HttpAnswer | None = None
    pieces: Iterable[bytes] | None = None
    reads: EmulatedBatch | None = None
    creates: bool = False


class BatchCall(NamedTuple):
    """One call of a Batch API.

    Attributes:
        style: The style of the API; see :data:`~paceline.emulator.batches.IDS`.
        dialect: The dialect that answers.
        what: ``files``, ``batches``, Mistral's ``jobs``, or Gemini's ``models``.
        id: The id in the path; empty without one.
        verb: ``content``, ``results``, ``cancel`` or one of Gemini's; empty without one.
        method: The HTTP method.
        query: The query's parameters.
        headers: The headers.
        root: The server's root, for links.
        now: The time in seconds.
    """

    style: str
    dialect: Dialect
    what: str
    id: str
    verb: str
    method: str
    query: Mapping[str, list[str]]
    headers: Mapping[bytes, bytes]
    root: str
    now: float

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


def answer_to(batch: EmulatedBatch, number: int, dialect: Dialect, settings: Settings) -> Any:
    """The JSON value of the answer to a request of a batch, or of the error."""
    one, serial = batch.entries[number], answer_serial(batch, number)
    ask = one.ask
    if one.status == 200:
        return dialect.answer(ask, Admitted(ask.model, ask.input_tokens, one.output_tokens), serial)
    kinds = {400: "invalid", 404: "unknown_model", 500: "failure"}
    return load(dialect.refusal(Refused(kinds[one.status], ask.model, detail=ask.error), settings, serial).body)


def iso(at_s: float | None) -> str | None:
    """A time as text; ``None`` for none."""
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")
