"""The answers of a run on their way into the output: judged, written and counted, for requests one by one and in batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from paceline.batch.acceptance import Acceptance, marked
from paceline.batch.index import Index
from paceline.batch.progress import ProgressView
from paceline.batch.results import OutputError, ResultsFile
from paceline.batch.summary import FIRST, RunTally
from paceline.responses.finish import State

CUTS: Final = (
    f"most of the first {FIRST} answers are cut off: they reach the maximum of tokens. Give a larger one (--max-tokens, or"
    " --cut-off raise); or, if a part of an answer is what you want, --cut-off keep"
)


@dataclass(frozen=True, slots=True)
class RunAnswers:
    """Takes the answers of a run.

    Attributes:
        results: The output.
        index: Has the ids of the input, and which lines are done.
        tally: Counts requests.
        view: Shows the progress.
        before: What was wrong with the answers to requests in an earlier run, by line.
    """

    results: ResultsFile
    index: Index
    tally: RunTally
    view: ProgressView
    before: dict[int, str] = field(default_factory=dict)

    @property
    def acceptance(self) -> Acceptance:
        """Says which answers are taken, and which are asked for once more."""
        return self.results.acceptance

    def marked(self, error: dict[str, Any] | None, line: int, maximum: int, *, raised: bool) -> dict[str, Any] | None:
        """An error as it is recorded.

        Args:
            error: What is wrong with the answer.
            line: The line of its request.
            maximum: The maximum of tokens of the request; 0 if it is unknown.
            raised: Whether the request had a larger one than in the input.
        """
        error = marked(error, self.before.get(line))
        if error is not None and error["code"] == State.CUT_OFF:
            return {**error, "max_tokens": maximum or None, "raised": raised}
        return error

    def sends_again(self, response: dict[str, Any] | None, error: dict[str, Any] | None) -> bool:
        """Whether the same command sends a request with this record again, if that has failed."""
        return error is None or self.acceptance.recorded(response, error).again

    def append(self, record: bytes) -> None:
        """Write a record.

        Raises:
            OutputError: A pipe or a device has failed.
        """
        try:
            self.results.append(record)
        except OSError as failure:
            raise OutputError(f"{self.results.path} cannot be written: {failure.strerror}") from None

    def write(self, record: bytes, code: str, *, again: bool) -> None:
        """Write the record of a request, and count it.

        Args:
            record: What is written.
            code: The code of its error; empty for an answer.
            again: Whether the same command would send it again.

        Raises:
            OutputError: A pipe or a device has failed.
        """
        self.append(record)
        self.tally.count(code, again=again)
        if self.tally.cuts:
            self.view.say(CUTS)
