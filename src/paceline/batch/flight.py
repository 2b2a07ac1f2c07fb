"""The life of a provider's batch: it is created, found where the answer is lost, and polled; its results are written."""

from __future__ import annotations

import asyncio
import math
import os
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from paceline.batch.acceptance import UNREAD, maximum_of
from paceline.batch.answers import Record, RunAnswers
from paceline.batch.api import (
    BrokenError,
    Endpoints,
    NoResultsError,
    NotYetError,
    Problem,
    RefusedError,
    Result,
    SeenBatch,
    UploadError,
    known_form,
    spool,
)
from paceline.batch.batches import Batches
from paceline.batch.chunks import BatchKind, Chunk, Load
from paceline.batch.endpoints import FULL
from paceline.batch.journal import LOST
from paceline.batch.reading import temporary
from paceline.batch.results import encode_answer
from paceline.batch.runner import FAILED, USAGE, WRITE_AGAIN_S
from paceline.batch.timing import LIFE_S, Outage, StopError, Timing, jittered, stopping
from paceline.batch.unpaid import is_unpaid
from paceline.core.hints import counted
from paceline.providers.registry import provider_named
from paceline.responses.finish import State

NOTHING_MADE: Final = frozenset([0, 401, 402, 403, 413, 429])
"""The refusals of a creation by what stands before it: of the certificate (0), the key, the money, the size, the rate."""

PASSING: Final = frozenset([408, 409, 425])
"""The refusals of a creation that say that it came at the wrong moment."""

MAXIMUM_MOST: Final = 2**32 - 1
"""The largest maximum of tokens that is noted: what an array holds on every system."""

NOT_SHOWN: Final = frozenset([400, 403, 404, 410, 422])
"""The refusals of a look at a batch that is another account's, or whose id has another server's form."""

GONE: Final = "gone"
"""The state of a batch that the provider does not know any more."""


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


class FirstAnswers:
    """The records of answers that are none, while their requests are sent once more, by line; on disk, because they may be many."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._at: dict[int, tuple[int, Record]] = {}  # their places, and their records without the lines

    def add(self, line: int, record: Record) -> None:
        """Keep one."""
        if self._file is None:
            self._file = temporary()
        self._at[line] = self._file.seek(0, os.SEEK_END), record._replace(raw=b"")
        self._file.write(record.raw)

    def pop(self, line: int) -> Record:
        """Take one out."""
        at, record = self._at.pop(line)
        assert self._file is not None
        self._file.seek(at)
        return record._replace(raw=self._file.readline())

    def code(self, line: int) -> str | None:
        """The code of the one of a request; ``None`` if there is none."""
        return self._at[line][1].code if line in self._at else None

    def lines(self) -> list[int]:
        """The lines of their requests."""
        return list(self._at)

    def close(self) -> None:
        """Delete the file."""
        if self._file is not None:
            self._file.close()


class AnswerWriter:
    """Writes the answers of batches, and counts them. What may be another answer the next time is asked for once more.

    Attributes:
        view: Shows the progress.
    """

    def __init__(self, answers: RunAnswers, timing: Timing) -> None:
        self.view, self._answers, self._index = answers.view, answers, answers.index
        self._time, self._firsts = timing, FirstAnswers()
        self._maxima = array("L")  # of tokens, by line; 0 is unknown

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
            self._answers.append(encode_answer(result.custom_id, result.response, error))
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
        asked = {"max_tokens": most or None, "raised": is_raised}
        record = self._answers.record(line, custom_id, result.response, error, asked)
        if record.code and first is None and acceptance.takes_again(record.code, before):
            self._firsts.add(line, record)
            reading.first.add(line)
            return
        if first is not None:
            self._firsts.pop(line)
        self._write(line, record)

    def first(self, line: int) -> str | None:
        """The name of the answer that is none of a request that is sent once more."""
        return self._firsts.code(line)

    def settle(self, line: int) -> None:
        """Record the first answer: there is no second one."""
        self._write(line, self._firsts.pop(line))

    def end(self) -> bool:
        """Record the first answers whose requests have no second one yet; whether the output has all results."""
        with closing(self._firsts):
            for line in self._firsts.lines():
                self.settle(line)
        self._answers.results.sync()
        return not self._answers.results.kept

    def record(self, line: int, code: str, message: str, response: dict[str, Any] | None = None) -> None:
        """Record that a request has failed; or the first answer, if there is one."""
        if self.first(line) is not None:
            self.settle(line)
        elif (custom_id := self._index.id_of(line)) is not None and not self._index.is_done(line):
            record = encode_answer(self._index.shown(line, custom_id), response, {"code": code, "message": message})
            self._write(line, Record(record, code, code != UNREAD))

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
        try:
            results.sync()
        except OSError as error:
            raise StopError(FAILED, f"{results.path} cannot be written: {error.strerror}") from None


def _body(result: Result) -> dict[str, Any]:
    body = (result.response or {}).get("body")
    return body if isinstance(body, dict) else {}


def _stands(refusal: RefusedError) -> bool:
    """Whether a refusal of a creation says that nothing was made."""
    return refusal.status in NOTHING_MADE or refusal.code == FULL


@dataclass(eq=False, repr=False)
class Flight:
    """The batches in flight: creates each once, and follows it to its end in a task of its own.

    Attributes:
        ends: The Batch APIs, by the provider's name.
        batches: The batches of the run, and the requests that each of them has.
        answers: Writes the results.
        timing: How long it waits for what.
        last: Whether a request that comes back from each of its batches has failed; otherwise it is left.
        tasks: The tasks.
        unclear: The batches whose creation was refused, and which may be there all the same, by the chunk's name.
        seen: The batches as they were when last looked at, by the chunk's name.
        leaving: Set when the batches are to be cancelled.
        returned: Whether requests have come back, which can be sent again.
    """

    ends: Mapping[str, Endpoints]
    batches: Batches
    answers: AnswerWriter
    timing: Timing
    last: bool
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    unclear: set[str] = field(default_factory=set)
    seen: dict[str, SeenBatch] = field(default_factory=dict)
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    returned: bool = False

    def __post_init__(self) -> None:
        self._worked: set[BatchKind] = set()  # a batch of these was not failed by the provider's validation
        # One search at a time: a batch may fit two chunks, and the first to find it takes it.
        self._finding = asyncio.Lock()

    def _say(self, text: str) -> None:
        self.answers.view.say(text)

    @property
    def done(self) -> int:
        """The requests that are done in them; not those that have failed, if these are known: they may have to be sent again."""
        return sum(seen.done if seen.answered is None else seen.answered for seen in self.seen.values())

    async def create(self, load: Load, check: Callable[[], None]) -> None:
        """Create a batch once, also where the answer to its creation is lost, and follow it.

        Args:
            load: Its requests.
            check: Called before each attempt; raises to prevent it.
        """
        ends, refusal = self.ends[load.kind.provider], None
        check()
        chunk = self.batches.journal.intend(load, ends.web.address.account)
        self.batches.hold(chunk)
        try:
            with known_form():
                self.batches.note_created(chunk, await ends.create(chunk, load.content))
        except UploadError as error:
            return await self._refused(chunk, error, load.size)
        except RefusedError as error:
            there = await self._is_there(chunk) if _stands(error) else None
            if there is False:
                return await self._refused(chunk, error, load.size)
            if there:
                self._say(
                    f"batch {chunk.batch} was created, although the provider refused its creation with a {error.status}"
                )
            else:
                refusal = error
                self._say(f"the creation of a batch was refused with a {error.status} ({error}): looking for it")
                self.unclear.add(chunk.name)
        except BrokenError as error:
            self._say(f"the answer to the creation of a batch is lost ({error}): looking for it")
        self.follow(chunk, refusal, load.size)
        return None

    async def _refused(self, chunk: Chunk, error: RefusedError, size: int) -> None:
        """There is no batch, because the provider has refused it: make it smaller, or wait.

        Raises:
            StopError: Neither helps, or there were refusals for too long.
        """
        kind, self.returned = chunk.kind, True
        too_large = error.status == 413 or error.code == "request_too_large"
        if too_large and len(chunk.lines) == 1:
            self.answers.record(chunk.lines[0], error.code or "request_too_large", str(error))
            await self.answers.save()
        self.batches.drop(chunk, "refused")
        if too_large:
            self.batches.most_bytes[kind.provider] = min(self.batches.most_bytes[kind.provider], max(1, size // 2))
            self._say(f"{kind.provider} takes no batch of {size:,} bytes: those that follow have half of it at most")
        elif error.code == "upload_failed" or error.status in PASSING:
            await self._pause(error)
        elif error.status == 429 or error.code == FULL:
            self._full(kind, str(error))
        else:
            raise stopping(error, kind) from None

    async def _is_there(self, chunk: Chunk) -> bool | None:
        """Whether a batch whose creation was refused is in the provider's list, by one look at it; ``None``: one that may be it is."""
        try:
            return await self._look_for(chunk)
        except NotYetError:
            return None
        except (BrokenError, RefusedError):
            return False

    async def _look_for(self, chunk: Chunk) -> bool:
        """Look for the batch of a chunk in the provider's list, and note it; whether there is one.

        One that was lost is cancelled if all its requests are answered.
        """
        ends, batches = self.ends[chunk.kind.provider], self.batches
        async with self._finding:
            with known_form():
                batch = await ends.find(chunk, batches.journal.known, batches.index)
                if batch is not None and chunk in batches.lost:
                    chunk.batch = batch
                    if all(map(batches.index.is_done, filter(None, chunk.lines))):
                        await ends.cancel(chunk)
            if batch is not None:
                batches.note_created(chunk, batch)
        return batch is not None

    async def _pause(self, error: object) -> None:
        """Wait before the next attempt to create a batch.

        Raises:
            StopError: There were attempts for too long.
        """
        if self.batches.unable_s is None:
            self.batches.unable_s = time.monotonic()
            self._say(f"no batch can be created: {error}: trying again for {self.timing.lost_s / 60:.0f} min")
        if time.monotonic() - self.batches.unable_s > self.timing.lost_s:
            raise StopError(FAILED, f"no batch can be created: {error}")
        await asyncio.sleep(jittered(self.timing.retry_s))

    def _full(self, kind: BatchKind, text: str) -> None:
        queue, before = self.batches.queue(kind), self.batches.queue(kind).limit
        queue.refused(text, time.monotonic(), self.timing.full_first_s, self.timing.full_most_s)
        if queue.limit != before:
            self._say(f"{kind.model[:100]}: the provider's queue takes {queue.limit:,.0f} tokens")

    def follow(self, chunk: Chunk, refusal: RefusedError | None = None, size: int = 0) -> None:
        """Begin to follow a batch, whose creation may have been refused; ``size``: its bytes."""
        self.tasks.append(asyncio.create_task(self._finish(chunk, refusal, size)))

    async def wait(self, seconds: float | None) -> None:
        """Wait until a batch has ended, for so many seconds at most; raise what has gone wrong with one."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(self.timing.retry_s if seconds is None else seconds)
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            task.result()

    async def sees(self, chunk: Chunk) -> bool:
        """Whether the present key and address show a batch that was created with others: then they are of one account.

        Raises:
            StopError: The key is refused, or there was no usable answer for too long.
        """
        ends, outage = self.ends[chunk.kind.provider], Outage(self.answers.view, self.timing)
        while True:
            try:
                with known_form():
                    return bool(await ends.look(chunk) if chunk.batch else await self._look_for(chunk))
            except (BrokenError, RefusedError) as error:
                if isinstance(error, RefusedError) and error.status in NOT_SHOWN:
                    return False
                outage.note(error, chunk.kind, f"not known whether this key shows a batch of {chunk.kind.model[:100]}")
            await asyncio.sleep(jittered(self.timing.retry_s))

    async def find_lost(self) -> bool:
        """Look once more for the batches whose creation had no answer; whether any batch is followed now."""
        for chunk in list(self.batches.lost):
            if time.time() - chunk.at_s > LIFE_S:
                continue
            try:
                if not await self._look_for(chunk):
                    continue
                requests = counted(len(chunk.lines), "request")
                self._say(f"batch {chunk.batch} was created after the wait for it: its {requests} may be paid twice")
            except (BrokenError, RefusedError) as error:
                if not any(map(self.batches.is_open, filter(None, chunk.lines))):
                    self._say(f"not known whether a batch was created after all: {error}; the same command looks again")
                    continue  # otherwise it is waited for: to create another one could be paid twice
            self.batches.lost.remove(chunk)
            self.batches.hold(chunk)
            self.follow(chunk)
        return bool(self.tasks)

    async def _finish(self, chunk: Chunk, refusal: RefusedError | None, size: int) -> None:
        """Poll a batch to its end, write its results, and give back the requests that have none."""
        if not chunk.batch and not await self._is_found(chunk, refusal, size):
            return
        is_again = chunk.name in self.batches.journal.counted
        reading = ResultsRead({*filter(None, chunk.lines), *chunk.others}, counted=is_again)
        seen = await self._results_of(chunk, reading)
        if reading.answers:
            self.batches.queue(chunk.kind).learn(chunk.tokens * reading.answers / len(chunk.lines), reading.tokens)
        full = next((problem for problem in seen.problems if problem.code == FULL), None)
        if full is None:
            self.batches.queue(chunk.kind).accepted()
            found = self._fail_lines(chunk, seen)
            self._return(chunk, seen, reading, tried=not found and not self.leaving.is_set())
        else:
            self._full(chunk.kind, full.message)
        await self.answers.save()
        self.seen.pop(chunk.name, None)
        left, why = self._tell(chunk, seen, reading)
        self.batches.end(chunk, seen.state)
        self.batches.note_written(self.answers.first)
        self.returned = self.returned or left
        passes = any(is_unpaid(None, problem.code, problem.message) for problem in seen.problems)
        if seen.state != "failed":
            self._worked.add(chunk.kind)
        elif full is None and not found and not passes and chunk.kind not in self._worked:
            raise StopError(USAGE, f"the first batch of {chunk.kind.model[:100]} has failed{why}")

    async def _is_found(self, chunk: Chunk, refusal: RefusedError | None, size: int) -> bool:
        """Whether there is a batch whose creation had no clear answer; its requests are given back if there is none."""
        found = await self._find(chunk, refusal)
        self.unclear.discard(chunk.name)
        if not found and refusal is not None and _stands(refusal):
            await self._refused(chunk, refusal, size)
        elif not found:
            await self._not_made(chunk, refusal)
        return bool(found)

    def _tell(self, chunk: Chunk, seen: SeenBatch, reading: ResultsRead) -> tuple[bool, str]:
        """Say how a batch has ended; whether requests are left, and the provider's reason."""
        left = sum(1 for _ in self.batches.unanswered(chunk))
        why = f"; {seen.problems[0].code}: {seen.problems[0].message}" if seen.problems else ""
        none = "of them are asked for once more: their answers are empty or invalid"
        none = f"; {len(reading.first):,} {none}" if reading.first else ""
        requests = counted(len(chunk.lines), "request")
        self._say(f"batch {chunk.batch}: {seen.state}, {left:,} of {requests} left{none}{why}")
        return left > 0, why

    async def _not_made(self, chunk: Chunk, refusal: RefusedError | None) -> None:
        """There is no batch as far as one can see: its requests go into another one, unless the refusal stands against it."""
        self.batches.drop(chunk, LOST)
        if refusal is not None and refusal.status not in PASSING:
            raise stopping(refusal, chunk.kind)
        self._say("no batch was found: one is created again; if the first appears later, this command reads it")
        self.returned = True
        await self._pause(refusal or "the answers are lost")

    def _fail_lines(self, chunk: Chunk, seen: SeenBatch) -> bool:
        """Record the requests that have made a batch fail; whether there are any."""
        found = False
        for problem in seen.problems:
            if problem.line is not None and 0 < problem.line <= len(chunk.lines):
                self.answers.record(chunk.lines[problem.line - 1], problem.code, problem.message)
                found = True
        return found

    def _return(self, chunk: Chunk, seen: SeenBatch, reading: ResultsRead, *, tried: bool) -> None:
        """Give back the requests without a final result, or record that they have failed, after several tries."""
        untouched = Problem(f"batch_{seen.state}", "the provider has not worked on the request", None)
        code, words, _ = next(iter(seen.problems), untouched)
        for line in self.batches.unanswered(chunk) if tried else ():
            spent = self.batches.tried(line)
            if self.answers.first(line) is not None:
                if spent or line not in reading.first:
                    self.answers.settle(line)
            elif spent and self.last:
                result = reading.again.get(line)
                if result is not None and result.error is not None:
                    self.answers.record(line, result.error["code"], result.error["message"], result.response)
                else:
                    self.answers.record(line, code, words)

    async def _find(self, chunk: Chunk, refusal: RefusedError | None) -> bool:
        """Look for the batch of ``chunk`` in the provider's list, some time after it was to be created; whether there is one.

        After a refusal that stands the run stops in any case, so that a list that cannot be read is not waited for.
        """
        outage, stands = Outage(self.answers.view, self.timing), refusal is not None and refusal.status not in PASSING
        while True:
            settled = time.time() >= chunk.at_s + self.timing.settle_s or outage.seconds > self.timing.settle_s
            try:
                if await self._look_for(chunk):
                    return True
            except (BrokenError, RefusedError) as error:
                waits = isinstance(error, NotYetError)  # it may be there: to create another one could be paid twice
                if stands and not waits and (settled or (isinstance(error, RefusedError) and error.status != 429)):
                    return False
                if isinstance(error, RefusedError) and error.status == 404:
                    raise stopping(error, chunk.kind) from None
                unknown = "not known whether a batch was created"
                outage.note(error, chunk.kind, unknown, "the provider's batches cannot be listed")
                await asyncio.sleep(jittered(self.timing.poll_most_s if waits else self.timing.retry_s))
                continue
            if settled:
                return False
            await asyncio.sleep(max(0.0, min(self.timing.retry_s, chunk.at_s + self.timing.settle_s - time.time())))

    async def _poll(self, chunk: Chunk) -> SeenBatch:
        """Look at a batch until it has ended."""
        ends, outage, cancelled = self.ends[chunk.kind.provider], Outage(self.answers.view, self.timing), False
        wait_s = first_s = self.timing.poll_most_s if ends.SELDOM else self.timing.poll_first_s
        while True:
            try:
                if self.leaving.is_set() and not cancelled:
                    await ends.cancel(chunk)
                    cancelled, wait_s = True, first_s
                with known_form():
                    seen = await ends.look(chunk)
            except (BrokenError, RefusedError) as error:
                if outage.too_long and isinstance(error, RefusedError) and error.status in (404, 410):
                    return SeenBatch(chunk.batch, GONE, ended=True, stated=len(chunk.lines))
                name, none = f"batch {chunk.batch}", "no usable answer"
                outage.note(error, chunk.kind, f"{name}: {none}", f"{name}: the provider gives {none}")
            else:
                outage.end()
                self.seen[chunk.name] = seen
                if seen.ended:
                    return seen
                if time.time() - chunk.at_s > LIFE_S:
                    raise StopError(FAILED, f"batch {chunk.batch} has not ended after {LIFE_S / 86_400:.0f} days")
            if self.leaving.is_set():
                await asyncio.sleep(jittered(wait_s))
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(jittered(wait_s)):
                        await self.leaving.wait()
            wait_s = min(self.timing.poll_most_s, wait_s * 1.5)

    async def _results_of(self, chunk: Chunk, reading: ResultsRead) -> SeenBatch:
        """Poll a batch to its end, and write its results: all that the provider counts, or as many as can be read."""
        seen, since_s, wait_s = await self._poll(chunk), math.inf, self.timing.retry_s
        while True:
            reading.early = seen.state != self.ends[chunk.kind.provider].WHOLE
            whys = [why for place in seen.files if (why := await self._read(chunk, place, reading))]
            final = len(chunk.lines) - len(reading.left)
            read = final + len(reading.again)
            # A count of answers is not reached by requests that were not done; and without a count, what is not there may be paid.
            reached = read >= seen.stated and final >= (seen.answered or 0) and (seen.stated or not whys)
            if reached or read == len(chunk.lines):
                return seen
            why, most_s = (f" ({whys[0]})", self.timing.lost_s) if whys else ("", self.timing.unread_s)
            text = f"batch {chunk.batch}: {seen.state}, with {seen.stated:,} results by the provider's count, and {read:,} can be read{why}"
            if seen.state == GONE or time.monotonic() - since_s > most_s:
                break
            if since_s == math.inf:
                since_s = time.monotonic()
                self._say(f"{text}; reading them again for {most_s / 60:.0f} min")
            await asyncio.sleep(jittered(wait_s))
            seen, wait_s = await self._poll(chunk), min(self.timing.poll_most_s, wait_s * 1.5)
        self._unread(chunk, reading, text)
        return seen

    def _unread(self, chunk: Chunk, reading: ResultsRead, text: str) -> None:
        """Record that requests may be answered, and paid, although no answer could be read."""
        self._say(f"{text}; the others are not sent again, because they may be paid: --repair sends them")
        for line in list(self.batches.unanswered(chunk)):
            if line in reading.left and line not in reading.again:
                self.answers.record(line, UNREAD, f"{text}; this request may be paid: --repair sends it again")

    async def _read(self, chunk: Chunk, place: str, reading: ResultsRead) -> str:
        """Write the results of a batch that are not in the output; return why there are none, empty if there are."""
        ends, outage = self.ends[chunk.kind.provider], Outage(self.answers.view, self.timing)
        own_ids = ends.own_ids(chunk.ids(self.batches.index))
        while True:
            try:
                with spool() as file:
                    for result in await ends.results(place, file, own_ids):
                        self.answers.take(chunk.kind, result, reading)
            except NoResultsError as error:
                return str(error)
            except (BrokenError, RefusedError) as error:
                outage.note(error, chunk.kind, f"batch {chunk.batch}: its results cannot be read")
            else:
                return ""
            await asyncio.sleep(jittered(self.timing.retry_s))
