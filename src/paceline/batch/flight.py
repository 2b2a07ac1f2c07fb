"""The life of a provider's batch: it is created, found where the answer is lost, and polled; its results are written."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from paceline.batch.acceptance import UNREAD, is_unpaid
from paceline.batch.api import (
    BrokenError,
    Endpoints,
    NoResultsError,
    NotYetError,
    Problem,
    RefusedError,
    SeenBatch,
    UnreadyError,
    UploadError,
    known_form,
    spool,
    uploading,
)
from paceline.batch.chunks import Chunk
from paceline.batch.endpoints import FULL
from paceline.batch.journal import LOST, Batches
from paceline.batch.runner import FAILED, USAGE
from paceline.batch.summary import in_time
from paceline.batch.timing import LIFE_S, Outage, StopError, Timing, jittered, stopping
from paceline.batch.writer import AnswerWriter, ResultsRead
from paceline.core.hints import counted
from paceline.core.results import RefusalKind
from paceline.providers.refusals import meaning

NOTHING_MADE: Final = frozenset([0, 401, 402, 403, 413, 429])
"""The refusals of a creation by what stands before it: of the certificate (0), the key, the money, the size, the rate."""

PASSING: Final = frozenset([408, 409, 425])
"""The refusals of a creation that say that it came at the wrong moment."""

NOT_SHOWN: Final = frozenset([400, 403, 404, 410, 422])
"""The refusals of a look at a batch that is another account's, or whose id has another server's form."""

GONE: Final = "gone"
"""The state of a batch that the provider does not know any more."""


def _stands(refusal: RefusedError) -> bool:
    """Whether a refusal of a creation says that nothing was made."""
    return refusal.status in NOTHING_MADE or refusal.code == FULL


def _has_no_room(seen: SeenBatch, problem: Problem) -> bool:
    """Whether a batch has failed because of the provider's load or an outage, which passes: no request of it was tried."""
    return seen.state == "failed" and (problem.code == FULL or is_unpaid(None, problem.code, problem.message))


def _is_all(seen: SeenBatch, final: int, whys: list[str]) -> bool:
    """Whether ``final`` results are all answers of a batch, whose files cannot be read for ``whys``."""
    # A count of answers is not reached by requests that were not done; and without a count, what is not there may be paid.
    return final >= (seen.answered or 0) and bool(seen.stated or not whys)


def _is_about_money(status: int | None, code: str, words: str) -> bool:
    """Whether an error of a creation or of a batch says that there is no money, which no wait changes."""
    said = meaning(status, [code], words)
    return said is not None and said.kind is RefusalKind.MONEY


@dataclass(eq=False, repr=False)
class Flight:
    """The batches in flight: creates each once, and follows it to its end in a task of its own.

    Attributes:
        ends: The Batch APIs, by the provider's name.
        batches: The batches of the run, and the requests that each of them has.
        answers: Writes the results.
        timing: How long it waits for what.
        last: Whether a request that comes back from each of its batches has failed; otherwise it is left.
        tasks: The tasks, with their batches.
        unclear: The batches whose creation was refused, and which may be there all the same, by the chunk's name.
        seen: The batches as they were when last looked at, by the chunk's name.
        leaving: Set when the batches are to be cancelled.
        returned: Whether requests have come back, which can be sent again.
        again: The batches whose file is kept, because the queue was full.
    """

    ends: Mapping[str, Endpoints]
    batches: Batches
    answers: AnswerWriter
    timing: Timing
    last: bool
    tasks: dict[asyncio.Task[None], Chunk] = field(default_factory=dict)
    unclear: set[str] = field(default_factory=set)
    seen: dict[str, SeenBatch] = field(default_factory=dict)
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    returned: bool = False
    again: list[Chunk] = field(default_factory=list)

    def __post_init__(self) -> None:
        # One search at a time: a batch may fit two chunks, and the first to find it takes it.
        self._finding = asyncio.Lock()

    def _say(self, text: str) -> None:
        self.answers.view.say(text)

    @property
    def done(self) -> int:
        """The requests that are done in them; not those that have failed, if these are known: they may have to be sent again."""
        return sum(seen.done if seen.answered is None else seen.answered for seen in self.seen.values())

    async def create(self, chunk: Chunk, check: Callable[[], None]) -> None:
        """Create a batch once, also where the answer to its creation is lost, and follow it.

        Args:
            chunk: Its requests.
            check: Called before each attempt; raises to prevent it.
        """
        refusal = None
        check()
        chunk.custom_ids = chunk.custom_ids or [*chunk.ids(self.batches.index)]
        self.batches.journal.intend(chunk, self.ends[chunk.kind.provider].web.address.account)
        self.batches.hold(chunk)
        try:
            with known_form():
                self.batches.note_created(chunk, await self._made(chunk, check))
        except UploadError as error:
            return await self._refused(chunk, error)
        except UnreadyError as error:
            self._say(f"the file of a batch cannot be used any more ({error}): its requests are uploaded again")
            self.batches.drop(chunk, "refused")
            self.returned = True
            return await self.ends[chunk.kind.provider].delete(chunk)
        except RefusedError as error:
            refusal = error
            self.unclear.add(chunk.name)
            if not _stands(error):
                self._say(f"the creation of a batch was refused with a {error.status} ({error}): looking for it")
        except BrokenError as error:
            self._say(f"the answer to the creation of a batch is lost ({error}): looking for it")
        finally:
            chunk.content = []
        self.follow(chunk, refusal)
        return None

    async def _made(self, chunk: Chunk, check: Callable[[], None]) -> str:
        """Upload the requests of a batch and create it, as often as its file is the reason that there is none; return its id.

        Raises:
            UnreadyError: The file was kept, and the requests are not here any more.
        """
        ends, outage = self.ends[chunk.kind.provider], Outage(self.answers.view, self.timing)
        wait_s, is_kept = self.timing.retry_s, bool(chunk.file)
        while True:
            try:
                with uploading():
                    chunk.file = chunk.file or await ends.upload(chunk)
                if chunk.file:
                    chunk.content = []  # it is large
                return await ends.create(chunk)
            except UnreadyError as error:
                if is_kept:
                    raise
                try:
                    words = "no batch can be created yet", "no batch can be created"
                    outage.note(error, chunk.kind, *words, now=not chunk.file)
                    await self.wait(jittered(wait_s))
                    wait_s = min(self.timing.poll_most_s, wait_s * 1.5)  # an upload can be large
                    check()
                except BaseException:  # also an interrupt: the provider has no batch to continue with
                    self.batches.drop(chunk, "refused")
                    raise

    async def _refused(self, chunk: Chunk, error: RefusedError) -> None:
        """There is no batch, because the provider has refused it: make it smaller, or wait for room.

        Raises:
            StopError: Neither helps, or there were refusals for too long.
        """
        kind, size, self.returned = chunk.kind, chunk.size, True
        too_large = error.status == 413 or error.code == "request_too_large"
        if too_large and len(chunk.lines) == 1:
            self.answers.record(chunk.lines[0], error.code or "request_too_large", str(error))
            await self.answers.save()
        self.batches.drop(chunk, "refused")
        is_rate = (error.status == 429 or error.code == FULL) and not too_large
        if is_full := is_rate and not _is_about_money(error.status, error.code, str(error)):
            self._full(chunk, str(error))
        await self.ends[kind.provider].delete(chunk)
        if too_large:
            self.batches.most_bytes[kind.provider] = min(self.batches.most_bytes[kind.provider], max(1, size // 2))
            self._say(f"{kind.provider} takes no batch of {size:,} bytes: those that follow have half of it at most")
        elif not is_full:
            raise stopping(error, kind) from None

    async def _look_for(self, chunk: Chunk) -> bool:
        """Look for the batch of a chunk in the provider's list, and note it; whether there is one.

        One that was lost is cancelled if all its requests are answered.
        """
        ends, batches = self.ends[chunk.kind.provider], self.batches
        async with self._finding:
            with known_form():
                batch = await ends.find(chunk, batches.journal.known, batches.index)
                if batch is not None and chunk.name in batches.journal.lost:
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

    def _full(self, chunk: Chunk, text: str) -> None:
        queue, model = self.batches.queue(chunk.kind), chunk.kind.model[:100]
        before, amount, was_free = queue.limit, chunk.tokens, not queue.refusals
        queue.refused(amount, text, time.monotonic(), self.timing.full_first_s, self.timing.full_most_s)
        if queue.limit != before:
            self._say(f"{model}: the provider's queue takes {queue.limit:,.0f} tokens")
        elif was_free:
            self._say(f"{model}: the provider takes no batch of about {amount:,.0f} tokens now ({text}): trying again")
        if chunk.file and chunk.size:
            self.again.append(replace(chunk, batch=""))
            chunk.file = ""  # the next batch has it

    def follow(self, chunk: Chunk, refusal: RefusedError | None = None) -> None:
        """Begin to follow a batch, whose creation may have been refused."""
        self.tasks[asyncio.create_task(self._finish(chunk, refusal))] = chunk

    async def wait(self, seconds: float | None) -> None:
        """Wait until a batch has ended, for so many seconds at most; raise what has gone wrong with one."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(self.timing.retry_s if seconds is None else seconds)
        for task in [task for task in self.tasks if task.done()]:
            del self.tasks[task]
            task.result()

    async def land(self, why: str) -> None:
        """Wait until the results of the batches that have ended are in the output: the run stops, and they are paid.

        Each later run may stop for the same reason.
        """
        if any(map(self._lands, self.tasks.values())):
            self._say(f"stopping: {why}; the results of batches that have ended are read first")
        while any(map(self._lands, self.tasks.values())):
            with suppress(StopError):
                await self.wait(self.timing.retry_s)

    def _lands(self, chunk: Chunk) -> bool:
        """Whether a batch has ended, or was not looked at yet."""
        seen = self.seen.get(chunk.name)
        return bool(chunk.batch) and (seen is None or seen.state in self.ends[chunk.kind.provider].ENDED)

    def is_own(self, chunk: Chunk) -> bool:
        """Whether a batch of an earlier process was created with the present key and address."""
        ends = self.ends.get(chunk.kind.provider)
        return ends is not None and ends.web.address.account == chunk.account

    async def sees(self, chunk: Chunk) -> bool:
        """Whether the present key and address show a batch that was created with others: then they are of one account.

        Raises:
            StopError: The key is refused, or there was no usable answer for too long.
        """
        ends, outage = self.ends.get(chunk.kind.provider), Outage(self.answers.view, self.timing)
        while ends is not None:
            try:
                with known_form():
                    return bool(await ends.look(chunk) if chunk.batch else await self._look_for(chunk))
            except (BrokenError, RefusedError) as error:
                if isinstance(error, RefusedError) and error.status in NOT_SHOWN:
                    return False
                outage.note(error, chunk.kind, f"not known whether this key shows a batch of {chunk.kind.model[:100]}")
            await asyncio.sleep(jittered(self.timing.retry_s))
        return False

    async def find_lost(self) -> bool:
        """Look once more for the batches whose creation had no answer; whether any batch is followed now."""
        for chunk in list(self.batches.journal.lost.values()):
            if not self.is_own(chunk) or time.time() - chunk.at_s > LIFE_S:
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
            self.batches.hold(chunk)
            self.follow(chunk)
        return bool(self.tasks)

    async def _finish(self, chunk: Chunk, refusal: RefusedError | None) -> None:
        """Poll a batch to its end, write its results, and give back the requests that have none."""
        if not chunk.batch and not await self._is_found(chunk, refusal):
            return
        is_again = chunk.name in self.batches.journal.counted
        reading = ResultsRead({*filter(None, chunk.lines), *chunk.others}, counted=is_again)
        seen = await self._results_of(chunk, reading)
        if reading.answers:
            self.batches.queue(chunk.kind).learn(chunk.tokens * reading.answers / len(chunk.lines), reading.tokens)
        found = self._fail_lines(chunk, seen)
        full = None if found else next((problem for problem in seen.problems if _has_no_room(seen, problem)), None)
        if full is not None and self._is_at_fault(chunk, full):
            self.answers.record(chunk.lines[0], full.code, full.message)
            found, full = True, None
        if full is None:
            self.batches.queue(chunk.kind).accepted()
            self._return(chunk, seen, reading, tried=not found and not self.leaving.is_set())
        await self.answers.save()
        self.seen.pop(chunk.name, None)
        left, why = self._tell(chunk, seen, reading)
        self.batches.end(chunk, seen.state)
        if full is not None:
            self._full(chunk, full.message)
        self.batches.note_written(self.answers.first)
        await self.ends[chunk.kind.provider].delete(chunk)
        self.returned = self.returned or left
        if seen.state == "failed":
            self._stop_at(chunk, seen, why, known=full is not None or found)
        else:
            self.batches.queue(chunk.kind).worked = True

    def _stop_at(self, chunk: Chunk, seen: SeenBatch, why: str, *, known: bool) -> None:
        """End the run at a failed batch if the next ones would fail, too; ``known``: they do not fail for the same reason.

        After a batch of an earlier run that had no money, there may be some by now: the next batch shows it.

        Raises:
            StopError: There is no money left, or it is the first batch of its model, and has no other known reason.
        """
        if any(_is_about_money(None, problem.code, problem.message) for problem in seen.problems):
            if self.batches.is_new(chunk):
                raise StopError(FAILED, f"a batch of {chunk.kind.model[:100]} has failed{why}")
            return
        if not (known or self.batches.queue(chunk.kind).worked):
            raise StopError(USAGE, f"the first batch of {chunk.kind.model[:100]} has failed{why}")

    async def _is_found(self, chunk: Chunk, refusal: RefusedError | None) -> bool:
        """Whether there is a batch whose creation had no clear answer; its requests are given back if there is none."""
        nothing = refusal is not None and _stands(refusal)  # was made, so that one look is enough
        stands = nothing or (refusal is not None and refusal.status not in PASSING)
        found = await self._find(chunk, 0.0 if nothing else self.timing.settle_s, stands=stands)
        if found and refusal is not None and nothing:
            self._say(
                f"batch {chunk.batch} was created, although the provider refused its creation with a {refusal.status}"
            )
        elif refusal is not None and nothing:
            await self._refused(chunk, refusal)
        elif not found:
            await self._not_made(chunk, refusal)
        self.unclear.discard(chunk.name)  # last: what the refusal shows is of the next batch, too
        return found

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
        """Record the requests that have made a batch fail, as none fills the queue; whether there are any."""
        found = False
        for problem in seen.problems:
            if problem.code != FULL and problem.line is not None and 0 < problem.line <= len(chunk.lines):
                self.answers.record(chunk.lines[problem.line - 1], problem.code, problem.message)
                found = True
        return found

    def _is_at_fault(self, chunk: Chunk, problem: Problem) -> bool:
        """Whether a request, and no outage, is taken for the reason that its batch fails: it has failed alone for so long."""
        queue = self.batches.queue(chunk.kind)
        lasts_s = time.monotonic() - queue.full_since_s if queue.refusals else 0.0
        return self.last and problem.code != FULL and len(chunk.lines) == 1 and lasts_s > self.timing.lost_s

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

    async def _find(self, chunk: Chunk, settle_s: float, *, stands: bool) -> bool:
        """Look for the batch of ``chunk`` in the provider's list, for ``settle_s`` from now on; whether there is one.

        It was announced before its requests were uploaded, which may have taken long.

        After a refusal that ``stands`` the run stops in any case, so that a list that cannot be read is not waited for.
        """
        outage, settled_s = Outage(self.answers.view, self.timing), time.monotonic() + settle_s
        while True:
            settled = time.monotonic() >= settled_s
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
            await asyncio.sleep(max(0.0, min(self.timing.retry_s, settled_s - time.monotonic())))

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
                    return SeenBatch(chunk.batch, GONE, stated=len(chunk.lines))
                name, none = f"batch {chunk.batch}", "no usable answer"
                outage.note(error, chunk.kind, f"{name}: {none}", f"{name}: the provider gives {none}")
            else:
                outage.end()
                self.seen[chunk.name] = seen
                if seen.state in ends.ENDED:
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
            reading.early = not self.ends[chunk.kind.provider].is_whole(seen.state)
            whys = [why for place in seen.files if (why := await self._read(chunk, place, reading))]
            final = len(chunk.lines) - len(reading.left)
            read = final + len(reading.again)
            reached = read >= seen.stated and _is_all(seen, final, whys)
            is_bare = not (seen.files or seen.stated or seen.problems)  # its counts and files may come later
            if (reached and not is_bare) or read == len(chunk.lines):
                return seen
            why = f" ({whys[0]})" if whys else ""
            text = f"batch {chunk.batch}: {seen.state}, with {seen.stated:,} results by the provider's count, and {read:,} can be read{why}"
            most_s = self.timing.settle_s if is_bare else self.timing.lost_s
            if seen.state == GONE or time.monotonic() - since_s > most_s:
                break
            if since_s == math.inf:
                since_s = time.monotonic()
                self._say(f"{text}; reading them again for {in_time(most_s)}")
            await asyncio.sleep(jittered(wait_s))
            seen, wait_s = await self._poll(chunk), min(self.timing.poll_most_s, wait_s * 1.5)
        if not reached:
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
