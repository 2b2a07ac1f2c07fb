"""The answers of a run on their way into the output: judged, written and counted, for requests one by one and in batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from paceline.batch.acceptance import REPEATED, UNSTABLE, Acceptance, is_paid
from paceline.batch.index import Index
from paceline.batch.progress import ProgressView
from paceline.batch.results import ResultsFile, encode_answer
from paceline.batch.summary import FIRST, RunTally
from paceline.responses.finish import State

CUTS: Final = (
    f"most of the first {FIRST} answers are cut off: they reach the maximum of tokens. Give a larger one (--max-tokens, or"
    " --cut-off raise); or, if a part of an answer is what you want, --cut-off keep"
)


_Json = dict[str, Any]


class Record(NamedTuple):
    """A line of the output, the code of its error, and whether the same command would send its request again.

    It is empty if the line of an earlier run stays, which was paid for.
    """

    raw: bytes
    code: str = ""
    again: bool = True


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

    def record(
        self, line: int, custom_id: str | int, response: _Json | None, error: _Json | None, most: int, *, raised: bool
    ) -> Record:
        """The record of a request.

        Args:
            line: Its line.
            custom_id: Its id as the input has it.
            response: Its answer.
            error: What is wrong with the answer.
            most: The maximum of tokens that was asked for; 0 for none.
            raised: Whether that was larger than in the input.
        """
        if line in self.results.paid:
            if error is not None and not is_paid(response, error):
                return Record(b"", str(error["code"]))
            self.results.replaced = True
        if error is None:
            return Record(encode_answer(custom_id, response, None))
        if error["code"] in UNSTABLE and self.before.get(line) in UNSTABLE:
            error = {**error, REPEATED: True}
        if error["code"] == State.CUT_OFF:
            error = {**error, "max_tokens": most or None, "raised": raised}
        again = self.acceptance.recorded(response, error).again
        return Record(encode_answer(custom_id, response, error), str(error["code"]), again)

    def write(self, record: Record) -> None:
        """Write the record of a request, and count it.

        Raises:
            OutputError: A pipe or a device has failed.
        """
        if record.raw:
            self.results.append(record.raw)
        self.tally.count(record.code, again=record.again)
        if self.tally.cuts:
            self.view.say(CUTS)
