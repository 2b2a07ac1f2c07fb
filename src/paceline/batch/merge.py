"""Joins the outputs of shards, or of any runs of one input, and checks them: each request once, in the order of the input.

Memory does not grow with the input: what is known of each answer is in a temporary file.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from paceline.batch.acceptance import ANSWER, AsWritten
from paceline.batch.index import Index, explained
from paceline.batch.requests import BadLineError, decode, read_lines, request_of
from paceline.batch.results import OutputError, is_torn, output_errors, read_answer
from paceline.core.hints import counted
from paceline.pacing.durable import replacing

SHOWN: Final = 5
"""How many ids a message names."""

AS_WRITTEN: Final = AsWritten()


@dataclass(slots=True)
class Merged:
    """What :func:`merge` has found, in requests.

    Attributes:
        requests: The requests of the input.
        answered: The requests with an answer.
        failed: Those whose record is a failure.
        doubtful: Records with status 200 and no result; they count as failed.
        missing: Those without a record.
        twice: Further answers to a request that has one; the first one is in the result.
        unknown: Records with ids that the input does not have; they are left out.
        bad_lines: Lines of the input that are no requests, or have the id of an earlier line.
        torn: Files whose last line is incomplete: their run has not ended.
        examples: The first ids that are missing.
    """

    requests: int = 0
    answered: int = 0
    failed: int = 0
    doubtful: int = 0
    missing: int = 0
    twice: int = 0
    unknown: int = 0
    bad_lines: int = 0
    torn: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether each line of the input is a request with an answer."""
        return not (self.failed or self.missing or self.bad_lines)


def merge(source: str, outputs: Sequence[str], target: str, *, overwrite: bool = False) -> Merged:
    """Write the answers of ``outputs`` to the requests of ``source`` into ``target``, which appears when it is whole.

    Of several records of a request, the first answer is taken. If there is none, the last failure that is paid for.

    Args:
        source: The input.
        outputs: The outputs.
        target: The result.
        overwrite: Whether ``target`` may exist.

    Raises:
        OutputError: A file cannot be read or written, is no output of a run, or is named twice.
    """
    _require_distinct(source, outputs, target, overwrite=overwrite)
    merged, index = Merged(), Index()
    with ExitStack() as stack, explained():
        stack.callback(index.close)
        _read_input(_open(source, stack), index, merged)
        if merged.bad_lines and not merged.requests:
            raise OutputError(
                f"{source}: no line is a whole request; to merge the shards of a table, copy their outputs into one file, "
                "and give it as -o to the same run without --shard"
            )
        files = [_open(name, stack) for name in outputs]
        answers = 0
        for number, file in enumerate(files):
            answers += _read_output(outputs[number], number, file, index, merged)
        if answers and answers == merged.unknown:
            raise OutputError(
                f"no answer in the outputs is to a request of {source}: are they outputs of another input?"
            )
        _write(target, index, files, merged)
    return merged


def _require_distinct(source: str, outputs: Sequence[str], target: str, *, overwrite: bool) -> None:
    seen = {_identity(source): source}
    for name in outputs:
        if (file := _identity(name)) in seen:
            raise OutputError(f"{name}: this is the same file as {seen[file]}; name each once")
        seen[file] = name
    if _identity(target) in seen:
        raise OutputError(f"{target}: this is one of the files to be read; choose another with -o")
    if target == "-":
        raise OutputError("the result is a file: name one with -o")
    if Path(target).exists() and not Path(target).is_file():
        raise OutputError(f"{target}: it is no regular file, and is left alone; choose another with -o")
    if Path(target).exists() and not overwrite:
        raise OutputError(f"{target}: it exists; choose another with -o, or replace it with --overwrite")


def _identity(name: str) -> tuple[int, int] | str:
    """What is the same for all names of one file: links, and names that differ by case where the system ignores case."""
    with suppress(OSError):
        about = os.stat(name)  # noqa: PTH116
        if about.st_ino:  # some file systems of Windows have none
            return about.st_dev, about.st_ino
    with output_errors(name):
        return os.path.realpath(name)


def _open(name: str, stack: ExitStack) -> BinaryIO:
    if Path(name).is_fifo():
        raise OutputError(f"{name}: it is a pipe, and would be read twice: write it to a file")
    with output_errors(name):
        return stack.enter_context(Path(name).open("rb"))


def _read_input(file: BinaryIO, index: Index, merged: Merged) -> None:
    for line, raw in read_lines(file):
        try:
            custom_id = request_of(line, decode(raw)).custom_id
        except BadLineError:
            merged.bad_lines += 1
            continue
        if index.add(custom_id, line) is not None:
            merged.bad_lines += 1
            continue
        merged.requests += 1


def _read_output(name: str, number: int, file: BinaryIO, index: Index, merged: Merged) -> int:
    """Read the records of one output; return how many there are."""
    at = answers = 0
    for count, raw in enumerate(file):
        found = read_answer(raw, AS_WRITTEN)
        if found is None:
            if is_torn(raw, before=count):
                merged.torn.append(name)
                break
            raise OutputError(f"{name}, line {count + 1}: not an answer of paceline run")
        line = index.line_of(found[0])
        if line is None:
            merged.unknown += 1
        else:
            merged.doubtful += found[1].ok is None
            merged.twice += index.note(line, found[1].rank, number, at, len(raw)) == found[1].rank == ANSWER
        at, answers = at + len(raw), answers + 1
    return answers


def _write(target: str, index: Index, files: Sequence[BinaryIO], merged: Merged) -> None:
    like = next((one.name for one in files), "")
    with output_errors(f"{target}: it cannot be written"), replacing(target, like=like) as out:
        for custom_id, rank, number, at, size in index.records():
            if number is None:
                merged.missing += 1
                if len(merged.examples) < SHOWN:
                    merged.examples.append(custom_id)
                continue
            files[number].seek(at)
            raw = files[number].read(size)
            out.write(raw if raw.endswith(b"\n") else raw + b"\n")
            merged.answered, merged.failed = merged.answered + (rank == ANSWER), merged.failed + (rank != ANSWER)


def in_words(merged: Merged, source: str, target: str) -> Iterator[str]:
    """The findings, one line each."""
    yield f"{counted(merged.requests, 'request')}: {merged.answered:,} answered, {merged.failed:,} failed, {merged.missing:,} missing"
    if merged.bad_lines:
        yield f"{merged.bad_lines:,} lines of the input are no requests, or have the id of an earlier line"
    if merged.twice:
        yield f"{merged.twice:,} further answers to requests that have one: the first is taken"
    if merged.unknown:
        yield f"{merged.unknown:,} answers have ids that the input does not have: they are left out"
    for name in merged.torn:
        yield f"{name}: its last line is incomplete: its run has not ended"
    if merged.missing:
        more = ", ..." if merged.missing > len(merged.examples) else ""
        yield f"missing: {', '.join(repr(one) for one in merged.examples)}{more}"
    if merged.missing or merged.failed:
        repair = " --repair" if merged.doubtful else ""
        yield f"start the shards that have not ended again, or send the rest at once: paceline run {shlex.quote(source)} -o {shlex.quote(target)}{repair}"
