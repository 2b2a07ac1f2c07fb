"""Writes the results of batches, each once. The first of two answers to a request waits for the second one."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from array import array
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, BinaryIO, Final, cast

from paceline.batch.acceptance import UNREAD, maximum_of
from paceline.batch.answers import Record, RunAnswers
from paceline.batch.api import Result
from paceline.batch.chunks import BatchKind
from paceline.batch.results import encode_answer
from paceline.batch.runner import FAILED, WRITE_AGAIN_S
from paceline.batch.timing import StopError, Timing
from paceline.core.results import explaining
from paceline.providers.registry import provider_named
from paceline.responses.finish import State

MAXIMUM_MOST: Final = 2**32 - 1
"""The largest maximum of tokens that is noted: what an array holds on every system."""


@dataclass(slots=True)
class ResultsRead:
    """What was read of the results of a batch.

    Attributes:
        left: The lines without a final result, and the ids of requests that the input no longer has.
        again: The results of those that can be sent again.
        early: Whether the batch has ended before it had a result for every request.
        answers: The answers with usage.
        tokens: Their input tokens.
        counted: Whether this run has read them before.
        first: The lines with an answer that is none and that is asked for once more.
    """

    left: set[int | str]
    again: dict[int | str, Result] = field(default_factory=dict)
    early: bool = False
    answers: int = 0
    tokens: int = 0
    counted: bool = False
    first: set[int] = field(default_factory=set)


class AnswerWriter:
    """Writes the answers of batches, and counts them. What may be another answer the next time is asked for once more.

    Attributes:
        view: Shows the progress.
    """

    def __init__(self, answers: RunAnswers, timing: Timing) -> None:
        self.view, self._answers, self._index = answers.view, answers, answers.index
        self._time, self._opened = timing, ExitStack()
        # The first answers of requests that are sent once more, by line: what is told of each, and where its record is in a file.
        self._firsts: dict[int, tuple[Record, int]] = {}
        self._maxima = array("L")  # of tokens, by line; 0 is unknown

    @cached_property
    def _records(self) -> BinaryIO:
        """The records of the first answers, which may be many."""
        return cast("BinaryIO", self._opened.enter_context(tempfile.TemporaryFile()))

    def note(self, line: int, maximum: int) -> None:
        """Note the maximum of tokens that a request has in the input."""
        if line >= len(self._maxima):
            self._maxima.extend([0] * (line + 1 - len(self._maxima)))
        self._maxima[line] = min(maximum, MAXIMUM_MOST)

    def take(self, kind: BatchKind, result: Result, reading: ResultsRead) -> None:
        """Write one result of a request of the batch, unless it is there already or the request can be sent again."""
        line = self._index.line_of(result.custom_id)
        key = line or result.custom_id
        if key not in reading.left:
            return
        unread = result.error is not None and result.error["code"] == UNREAD
        if result.again or (reading.early and result.response is None and not unread):
            reading.again[key] = result
            return
        reading.left.discard(key)
        reading.again.pop(key, None)
        error = self._answers.acceptance.error_of(result.response, result.error)
        if line is None:  # paid, and no longer in the input
            self._answers.results.append(encode_answer(result.custom_id, result.response, error))
            return
        if self._index.is_done(line):
            return
        self._judge(line, result, error, reading)
        usage = provider_named(kind.provider).usage(_body(result)) if result.error is None else None
        if usage is not None and not reading.counted:
            reading.answers += 1
            reading.tokens += usage.input_tokens
            self._answers.tally.bill.add(kind.provider, kind.model, usage, batch=True)

    def _judge(self, line: int, result: Result, error: dict[str, Any] | None, reading: ResultsRead) -> None:
        """Write a result, or keep it while its request is sent once more; a second one without an answer leaves the first."""
        first, before, acceptance = self.first(line), self._answers.before.get(line), self._answers.acceptance
        most = self._maxima[line] if line < len(self._maxima) else 0
        if first is not None and result.error is not None:
            self.settle(line)
            return
        custom_id = self._index.shown(line, result.custom_id)
        is_raised = acceptance.raises and State.CUT_OFF in (first, before)
        if is_raised:
            most = maximum_of(acceptance.raised({"max_tokens": most}) or {"max_tokens": most})
        record = self._answers.record(line, custom_id, result.response, error, most, raised=is_raised)
        if record.code and first is None and acceptance.takes_again(record.code, before):
            self._firsts[line] = record._replace(raw=b""), self._records.seek(0, os.SEEK_END)
            self._records.write(record.raw)
            reading.first.add(line)
            return
        self._firsts.pop(line, None)
        self._write(line, record)

    def first(self, line: int) -> str | None:
        """The name of the answer that is none of a request that is sent once more."""
        return self._firsts[line][0].code if line in self._firsts else None

    def settle(self, line: int) -> None:
        """Record the first answer: there is no second one."""
        record, at = self._firsts.pop(line)
        self._records.seek(at)
        self._write(line, record._replace(raw=self._records.readline()))

    def end(self) -> bool:
        """Record the first answers whose requests have no second one yet; whether the output has all results."""
        with self._opened:
            for line in list(self._firsts):
                self.settle(line)
        self._answers.results.sync()
        return not self._answers.results.kept

    def record(self, line: int, code: str, message: str, response: dict[str, Any] | None = None) -> None:
        """Record that a request has failed; or the first answer, if there is one."""
        if self.first(line) is not None:
            self.settle(line)
        elif (custom_id := self._index.id_of(line)) is not None and not self._index.is_done(line):
            error, shown = {"code": code, "message": message}, self._index.shown(line, custom_id)
            self._write(line, self._answers.record(line, shown, response, error, 0, raised=False))

    def _write(self, line: int, record: Record) -> None:
        """Write the record of a request, and count it."""
        self._index.mark(line)
        self._answers.write(record)

    async def save(self) -> None:
        """Bring the results to the disk; wait while there is no room for them.

        Raises:
            StopError: There was no room for too long. The results can be read again.
        """
        said, started_s, results = False, time.monotonic(), self._answers.results
        while results.kept or not results.settle():
            if not said:
                self.view.say(f"cannot write {results.path}: {results.why}{results.remedy}")
            said = True
            if time.monotonic() - started_s > self._time.lost_s:
                raise StopError(FAILED, f"{results.path} cannot be written: {results.why}")
            await asyncio.sleep(WRITE_AGAIN_S)
            results.write_kept()
        with explaining(f"{results.path} cannot be written", kind=partial(StopError, FAILED)):
            results.sync()


def _body(result: Result) -> dict[str, Any]:
    body = (result.response or {}).get("body")
    return body if isinstance(body, dict) else {}
