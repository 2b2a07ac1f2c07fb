"""A run by the providers' Batch APIs: create batches, poll them, write their results, and send again what was not done.

Every step is in the journal before it is taken (see :mod:`paceline.batch.journal`), so that a run can be killed at any moment: the same
command goes on with its batches.
"""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from paceline.batch.address import Address, proxy_for
from paceline.batch.api import (
    BrokenError,
    Endpoints,
    NotYetError,
    RefusedError,
    Result,
    Seen,
    Web,
    known_form,
    spool,
)
from paceline.batch.chunks import Chunk, Item, Kind, Load, Queue, cut
from paceline.batch.deadline import Deadline
from paceline.batch.endpoints import FULL, endpoints
from paceline.batch.index import Index
from paceline.batch.journal import LOST, Journal
from paceline.batch.progress import View
from paceline.batch.redact import Secrets
from paceline.batch.requests import Request
from paceline.batch.results import UNREAD, OutputError, Results, encode_answer
from paceline.batch.runner import FAILED, INTERRUPTED, USAGE, WRITE_AGAIN_S
from paceline.batch.summary import Tally
from paceline.batch.timing import Outage, StopError, Timing, jittered, stopping
from paceline.batch.transport import session
from paceline.http.describe import Metered
from paceline.providers.registry import provider_named

IN_FLIGHT_MAX: Final = 20
"""Batches at once: enough to fill a queue, and few enough to ask each of them every minute."""

TRIES_MAX: Final = 3
"""How often a request is part of a batch that ends without having worked on it, before it counts as failed."""

LINES_MIN: Final = 1_000
"""The least requests that an input is cut into, where nothing else limits a batch: very small batches fail more often."""

PARTS: Final = 8
"""Batches that a large input is cut into, at least: so that each of them could still be sent one by one."""

GONE: Final = "gone"
"""The state of a batch that the provider does not know any more."""

_TRIES, _HOLD = 0b11, 0b100  # of the number of a line: its tries, and one batch that has it
_STOPPING = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]

TIMING = Timing()


class _LeaveError(Exception):
    """The batches are to be left."""


class Offline:
    """Sends requests in batches.

    Args:
        scan: Reads the requests that have no answer yet, from the first line on.
        index: Has the ids of the input, and which lines are done.
        addresses: Where requests go, by the provider's name.
        results: The output.
        tally: Counts requests.
        view: Shows the progress.
        journal: Open for writing.
        most_lines: The most requests of a batch; ``None`` for the provider's limit.
        queue: The known limit of enqueued tokens of each model.
        deadline: When the batches are left; ``None`` for never.
        timing: Durations.

    Attributes:
        stop: The exit code and the reason of a run that ended early.
        created: How many batches this run has created.
        left: Whether the batches were left because of the deadline.
    """

    def __init__(
        self,
        scan: Callable[[], Iterator[tuple[Request, Metered]]],
        index: Index,
        addresses: Mapping[str, Address],
        results: Results,
        tally: Tally,
        view: View,
        *,
        journal: Journal,
        most_lines: int | None = None,
        queue: float | None = None,
        deadline: Deadline | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.stop: tuple[int, str] | None = None
        self.created = 0
        self.left = False
        self._deadline, self._leaving = deadline, asyncio.Event()
        self._started_s = time.time()
        self._unable_s: float | None = None  # since when no batch could be created
        self._scan, self._index, self._journal, self._addresses = scan, index, journal, addresses
        self._results, self._tally, self._view = results, tally, view
        self._most_lines, self._time = most_lines, timing or TIMING
        self._ends: dict[str, Endpoints] = {}
        self._queues = defaultdict[Kind, Queue](lambda: Queue(queue))  # by provider and model
        self._lines = array("H")
        self._lost: list[Chunk] = []  # batches that may still appear
        self._finding = (
            asyncio.Lock()
        )  # one search at a time: a batch may fit two chunks, and the first to find it takes it
        self._tasks: list[asyncio.Task[None]] = []
        self._seen: dict[str, Seen] = {}
        self._counted: dict[str, tuple[int, int]] = {}  # answers with usage, and their input tokens, by chunk
        self._worked: set[Kind] = set()  # a batch of these was not failed by the provider's validation
        self._returned = False

    @property
    def calls(self) -> int:
        """HTTP calls so far."""
        return sum(ends.web.calls for ends in self._ends.values())

    @property
    def refused(self) -> int:
        """Those that were answered with status 429."""
        return sum(ends.web.refused for ends in self._ends.values())

    @property
    def in_progress(self) -> int:
        """The batches that go on when the run stops."""
        return self._journal.unfinished

    # --- the run -----------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        """The requests that are neither answered, nor done in a batch."""
        return max(0, self._tally.left - sum(seen.done for seen in self._seen.values()))

    def holds(self, line: int) -> bool:
        """Whether a line is part of a batch that has not ended."""
        return line < len(self._lines) and self._lines[line] >= _HOLD

    async def run(self, *, create: bool = True) -> None:
        """Send everything, and write every result.

        Args:
            create: Whether to create batches; otherwise those of the journal are cancelled and brought to their end.

        Raises:
            BadLineError: The input has changed since it was checked, or a path cannot be part of a batch.
        """
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        assert main is not None

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            self.stop = self.stop or (INTERRUPTED, "interrupted")
            loop.call_soon_threadsafe(main.cancel)

        in_main = threading.current_thread() is threading.main_thread()
        heeded = [number for number in _STOPPING if in_main and signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, on_signal) for number in heeded}
        client = session(self._time.call_s)
        proxy, secrets = proxy_for(self._addresses), Secrets(address.key for address in self._addresses.values())
        for name, address in self._addresses.items():
            web = Web(client, address, secrets, self._time.call_s, proxy)
            self._ends[name] = endpoints(name, web, self._time.retry_s, self._journal.run)
        progress = asyncio.create_task(self._show())
        try:
            await self._adopt()
            await self._find_lost()
            if create:
                await self._send_or_leave()
            else:
                self._leaving.set()
                while self._tasks:
                    await self._wait(None)
        except StopError as error:
            self.stop = error.code, str(error)
        except OutputError as error:
            self.stop = FAILED, str(error)
        except asyncio.CancelledError:
            if self.stop is None:
                raise
        finally:
            for task in (progress, *self._tasks):
                task.cancel()
            await asyncio.gather(progress, *self._tasks, return_exceptions=True)
            for number, handler in before.items():
                signal.signal(number, handler)
            await client.close()

    async def _adopt(self) -> None:
        """Go on with the batches of an earlier process."""
        for chunk, ids in list(self._journal.chunks(self._index)):
            lost, ends = self._journal.is_lost(chunk), self._ends.get(chunk.kind.provider)
            if ends is None or self._addresses[chunk.kind.provider].account != chunk.account:
                if lost:
                    continue
                raise StopError(
                    USAGE,
                    f"{self._journal.path}: a batch of an earlier run was created at {chunk.account.partition(':')[0]} with another"
                    " key or address: use those, or --restart to leave it",
                )
            ends.know(ids)
            if lost:
                self._lost.append(chunk)
            else:
                self._hold(chunk)
                self._follow(chunk)
        if self._tasks:
            self._view.say(f"going on with {len(self._tasks):,} batches of an earlier run")

    async def _send_or_leave(self) -> None:
        try:
            await self._send_all()
        except _LeaveError:
            self.left = True
            self._view.say(f"leaving {len(self._tasks):,} batches: the rest is sent one by one, to keep the deadline")
            self._leaving.set()
            end_s = time.monotonic() + self._time.cancel_s
            while self._tasks and (left_s := end_s - time.monotonic()) > 0:
                await self._wait(left_s)

    def _check_deadline(self) -> None:
        """Raise if the batches are to be left now."""
        if self._deadline is not None and not self._leaving.is_set() and self._deadline.due(self.unfinished):
            raise _LeaveError

    async def _send_all(self) -> None:
        """Create batches until every request is done; those that come back are sent in a further pass."""
        while True:
            self._returned = False
            loads = cut(
                self._items(),
                most_lines=self._size_of_batch(),
                most_bytes=min(ends.BYTES_MAX for ends in self._ends.values()),
                most_tokens=lambda kind: self._queue(kind).most_of_one,
            )
            for load in loads:
                if await self._room(load):
                    await self._create(load)
            while self._tasks and not self._returned:
                await self._wait(None)
            if not (self._returned or self._tasks or await self._find_lost()):
                return

    def _size_of_batch(self) -> int:
        most = min(ends.LINES_MAX for ends in self._ends.values())
        if self._most_lines is not None:
            return min(most, self._most_lines)
        return min(most, max(LINES_MIN, -(-self._tally.left // PARTS)))

    def _items(self) -> Iterator[Item]:
        for request, metered in self._scan():
            if self.holds(request.line):
                continue
            kind = Kind(request.provider.name, request.path, request.model)
            content = self._ends[kind.provider].encode(request)
            yield Item(kind, request.line, request.custom_id, content, metered.tokens()[0])

    def _queue(self, kind: Kind) -> Queue:
        return self._queues[kind._replace(path="")]

    def _hold(self, chunk: Chunk) -> None:
        """Note that the requests of a batch are part of it."""
        self._queue(chunk.kind).held[chunk.name] = chunk.tokens
        for line in filter(None, chunk.lines):
            if line >= len(self._lines):
                self._lines.extend([0] * (line + 1 - len(self._lines)))
            self._lines[line] += _HOLD

    def _unanswered(self, chunk: Chunk) -> Iterator[int]:
        """The lines of a batch that have no result and are part of no other batch."""
        for line in filter(None, chunk.lines):
            if self._lines[line] < 2 * _HOLD and not self._index.is_done(line):
                yield line

    # --- one batch ---------------------------------------------------------------------------------------------------

    async def _room(self, load: Load) -> bool:
        """Wait until a batch can be created; ``False`` if it has become too large meanwhile and must be cut again."""
        queue, started_s = self._queue(load.kind), time.monotonic()
        while len(self._tasks) >= IN_FLIGHT_MAX or not queue.fits(load.tokens, time.monotonic()):
            if not queue.held and time.monotonic() - started_s > self._time.full_all_s:
                raise StopError(
                    FAILED, f"the queue of {load.kind.model[:100]} is full, with no batch of this run in it"
                )
            await self._wait(max(0.0, queue.full_until_s - time.monotonic()) or None)
        if load.tokens > queue.most_of_one and len(load.lines) > 1:
            self._returned = True
            return False
        return True

    async def _create(self, load: Load) -> None:
        """Create a batch once, also where the answer to its creation is lost."""
        ends = self._ends[load.kind.provider]
        while True:
            self._check_deadline()
            chunk = self._journal.intend(load, self._addresses[load.kind.provider].account)
            self._hold(chunk)
            try:
                with known_form():
                    self._note_created(chunk, await ends.create(chunk, self._journal.run, load.content))
            except RefusedError as error:
                self._drop(chunk, "refused")
                if error.status not in (429, 503) and error.code != FULL:
                    raise stopping(error, load.kind) from None
                if error.code == "upload_failed":
                    await self._unable(error)
                    continue
                self._full(load.kind, str(error))
                self._returned = True
                return
            except BrokenError as error:
                self._view.say(f"the answer to the creation of a batch is lost ({error}): looking for it")
            self._follow(chunk)
            return

    def _note_created(self, chunk: Chunk, batch: str) -> None:
        self._journal.created(chunk, batch)
        self.created += chunk.at_s >= self._started_s
        self._unable_s = None

    async def _unable(self, error: object) -> None:
        """Wait before the next attempt to create a batch.

        Raises:
            StopError: There were attempts for too long.
        """
        if self._unable_s is None:
            self._unable_s = time.monotonic()
            self._view.say(f"no batch can be created: {error}: trying again for {self._time.lost_s / 60:.0f} min")
        if time.monotonic() - self._unable_s > self._time.lost_s:
            raise StopError(FAILED, f"no batch can be created: {error}")
        await asyncio.sleep(jittered(self._time.retry_s))

    def _drop(self, chunk: Chunk, state: str) -> None:
        """There is no such batch."""
        self._journal.ended(chunk, state)
        self._queue(chunk.kind).held.pop(chunk.name, None)
        for line in filter(None, chunk.lines):
            self._lines[line] -= _HOLD
        if state == LOST:
            self._lost.append(chunk)

    def _full(self, kind: Kind, text: str) -> None:
        queue, before = self._queue(kind), self._queue(kind).limit
        queue.refused(text, time.monotonic(), self._time.full_first_s, self._time.full_most_s)
        if queue.limit != before:
            self._view.say(f"{kind.model[:100]}: the provider's queue takes {queue.limit:,.0f} tokens")

    async def _find(self, chunk: Chunk) -> bool:
        """Look for the batch of ``chunk`` in the provider's list, some time after it was to be created; whether there is one."""
        ends, outage = self._ends[chunk.kind.provider], Outage(self._view, self._time)
        while True:
            settled = time.time() >= chunk.at_s + self._time.settle_s or outage.seconds > self._time.settle_s
            try:
                async with self._finding:
                    with known_form():
                        batch = await ends.find(chunk, self._journal.run, self._journal.known, self._index)
                    if batch is not None:
                        self._note_created(chunk, batch)
                        return True
            except (BrokenError, RefusedError) as error:
                waits = isinstance(error, NotYetError)
                if isinstance(error, RefusedError) and error.status != 429:
                    raise stopping(error, chunk.kind) from None
                if not waits and outage.too_long:
                    raise StopError(FAILED, f"the provider's batches cannot be listed: {error}") from None
                outage.tell(f"not known whether a batch was created: {error}")
                await asyncio.sleep(jittered(self._time.poll_most_s if waits else self._time.retry_s))
                continue
            if settled:
                return False
            await asyncio.sleep(max(0.0, min(self._time.retry_s, chunk.at_s + self._time.settle_s - time.time())))

    async def _find_lost(self) -> bool:
        """Look once more for the batches whose creation had no answer; whether one was created after all."""
        for chunk in list(self._lost):
            if time.time() - chunk.at_s > self._time.life_s:
                continue
            async with self._finding:
                try:
                    found = await self._find_late(chunk)
                except (BrokenError, RefusedError) as error:
                    self._view.say(
                        f"not known whether a batch was created after all: {error}; the same command looks again"
                    )
                    continue
                if not found:
                    continue
                self._note_created(chunk, chunk.batch)
            self._view.say(
                f"batch {chunk.batch} was created after the wait for it: its {len(chunk.lines):,} requests may be paid twice"
            )
            self._lost.remove(chunk)
            self._hold(chunk)
            self._follow(chunk)
        return bool(self._tasks)

    async def _find_late(self, chunk: Chunk) -> bool:
        """Look for the batch of a lost creation; whether there is one. It is cancelled if all its requests are answered."""
        ends = self._ends[chunk.kind.provider]
        with known_form():
            batch = await ends.find(chunk, self._journal.run, self._journal.known, self._index)
            if batch is None:
                return False
            chunk.batch = batch
            if all(map(self._index.is_done, filter(None, chunk.lines))):
                await ends.cancel(chunk)
        return True

    def _follow(self, chunk: Chunk) -> None:
        self._tasks.append(asyncio.create_task(self._finish(chunk)))

    async def _wait(self, seconds: float | None) -> None:
        """Wait until a batch has ended, for so many seconds at most; raise what has gone wrong with one."""
        if self._deadline is not None and not self._leaving.is_set():
            seconds = min(self._time.poll_first_s, self._time.poll_first_s if seconds is None else seconds)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(self._time.retry_s if seconds is None else seconds)
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.remove(task)
            task.result()
        self._check_deadline()

    async def _finish(self, chunk: Chunk) -> None:
        """Poll a batch to its end, write its results, and give back the requests that have none."""
        if not chunk.batch and not await self._find(chunk):
            self._view.say(
                "no batch was found: one is created again; if the first appears later, this command reads it"
            )
            self._drop(chunk, LOST)
            self._returned = True
            await self._unable("the answers are lost")
            return
        seen = await self._results_of(chunk)
        counted = self._counted.pop(chunk.name, None)
        if counted is not None:
            self._queue(chunk.kind).learn(chunk.tokens * counted[0] / len(chunk.lines), counted[1])
        full = next((problem for problem in seen.problems if problem.code == FULL), None)
        if full is None:
            self._queue(chunk.kind).accepted()
            found = self._fail_lines(chunk, seen)
            self._return(chunk, seen, tried=not found and not self._leaving.is_set())
        else:
            self._full(chunk.kind, full.message)
        await self._save()
        self._seen.pop(chunk.name, None)
        left = sum(1 for _ in self._unanswered(chunk))
        why = f"; {seen.problems[0].code}: {seen.problems[0].message}" if seen.problems else ""
        self._view.say(f"batch {chunk.batch}: {seen.state}, {left:,} of {len(chunk.lines):,} requests are left{why}")
        self._drop(chunk, seen.state)
        self._returned = self._returned or bool(left)
        if seen.state != "failed":
            self._worked.add(chunk.kind)
        elif full is None and not found and chunk.kind not in self._worked:
            raise StopError(USAGE, f"the first batch of {chunk.kind.model[:100]} has failed{why}")

    def _fail_lines(self, chunk: Chunk, seen: Seen) -> bool:
        """Record the requests that have made a batch fail; whether there are any."""
        found = False
        for problem in seen.problems:
            if problem.line is not None and 0 < problem.line <= len(chunk.lines):
                self._record(chunk.lines[problem.line - 1], problem.code, problem.message)
                found = True
        return found

    def _return(self, chunk: Chunk, seen: Seen, *, tried: bool) -> None:
        """Give back the requests without a result, or record that they have failed, after several tries."""
        why = seen.problems[0] if seen.problems else None
        code, words = (
            (why.code, why.message) if why else (f"batch_{seen.state}", "the provider has not worked on the request")
        )
        for line in self._unanswered(chunk) if tried else ():
            self._lines[line] += 1
            if self._lines[line] & _TRIES == TRIES_MAX:
                self._record(line, code, words)

    async def _poll(self, chunk: Chunk) -> Seen:
        """Look at a batch until it has ended."""
        ends, outage, cancelled = self._ends[chunk.kind.provider], Outage(self._view, self._time), False
        wait_s = first_s = self._time.poll_most_s if ends.SELDOM else self._time.poll_first_s
        while True:
            try:
                if self._leaving.is_set() and not cancelled:
                    await ends.cancel(chunk)
                    cancelled, wait_s = True, first_s
                with known_form():
                    seen = await ends.look(chunk)
            except (BrokenError, RefusedError) as error:
                missing = isinstance(error, RefusedError) and error.status == 404  # also just after the creation
                if isinstance(error, RefusedError) and error.status not in (404, 429):
                    raise stopping(error, chunk.kind) from None
                if outage.too_long:
                    if missing:
                        return Seen(chunk.batch, GONE, ended=True, stated=len(chunk.lines))
                    raise StopError(
                        FAILED, f"batch {chunk.batch}: the provider gives no usable answer: {error}"
                    ) from None
                outage.tell(f"batch {chunk.batch}: no usable answer: {error}")
            else:
                outage.end()
                self._seen[chunk.name] = seen
                if seen.ended:
                    return seen
                if time.time() - chunk.at_s > self._time.life_s:
                    raise StopError(
                        FAILED, f"batch {chunk.batch} has not ended after {self._time.life_s / 86_400:.0f} days"
                    )
            if self._leaving.is_set():
                await asyncio.sleep(jittered(wait_s))
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(jittered(wait_s)):
                        await self._leaving.wait()
            wait_s = min(self._time.poll_most_s, wait_s * 1.5)

    async def _results_of(self, chunk: Chunk) -> Seen:
        """Poll a batch to its end, and write its results: all that the provider counts, or as many as can be read."""
        seen, since_s, wait_s = await self._poll(chunk), math.inf, self._time.retry_s
        left: set[int | str] = {*filter(None, chunk.lines), *chunk.others}
        while True:
            for place in seen.files:
                await self._read(chunk, place, left)
            read = len(chunk.lines) - len(left)
            if read >= seen.stated:
                return seen
            text = f"batch {chunk.batch}: {seen.state}, with {seen.stated:,} results by the provider's count, of which {read:,} can be read"
            if seen.state == GONE or time.monotonic() - since_s > self._time.unread_s:
                break
            if since_s == math.inf:
                since_s = time.monotonic()
                self._view.say(f"{text}; reading them again for {self._time.unread_s / 60:.0f} min")
            await asyncio.sleep(jittered(wait_s))
            seen, wait_s = await self._poll(chunk), min(self._time.poll_most_s, wait_s * 1.5)
        self._view.say(f"{text}; the others are not sent again, because they may be paid: --repair sends them")
        for line in list(self._unanswered(chunk)):
            if line in left:
                self._record(line, UNREAD, f"{text}; this request may be paid: --repair sends it again")
        return seen

    async def _read(self, chunk: Chunk, place: str, left: set[int | str]) -> None:
        """Write the results of a batch that are not in the output, and take their lines out of ``left``."""
        ends, outage = self._ends[chunk.kind.provider], Outage(self._view, self._time)
        own_ids = ends.own_ids(filter(None, map(self._index.id_of, chunk.lines)))
        while True:
            try:
                with spool() as file:
                    for result in await ends.results(place, file, own_ids):
                        self._take(chunk, result, left)
            except (BrokenError, RefusedError) as error:
                if isinstance(error, RefusedError) and error.status not in (404, 429):
                    raise stopping(error, chunk.kind) from None
                if outage.too_long:
                    raise StopError(FAILED, f"batch {chunk.batch}: its results cannot be read: {error}") from None
                outage.tell(f"batch {chunk.batch}: its results cannot be read: {error}")
            else:
                return
            await asyncio.sleep(jittered(self._time.retry_s))

    def _take(self, chunk: Chunk, result: Result, left: set[int | str]) -> None:
        """Write one result of a request of the batch, unless it is there already or the request can be sent again."""
        line = self._index.line_of(result.custom_id)
        key = line or result.custom_id
        if key not in left:
            return
        left.discard(key)
        if result.again or (line is not None and not self._index.mark(line)):
            return
        self._append(line, result.custom_id, result.response, result.error)
        if line is None:  # paid, and no longer in the input
            return
        if result.error is None:
            self._tally.ok += 1
            usage = provider_named(chunk.kind.provider).usage(_body(result))
            if usage is not None:
                answers, tokens = self._counted.get(chunk.name, (0, 0))
                self._counted[chunk.name] = answers + 1, tokens + usage.input_tokens
                self._tally.use(chunk.kind.provider, chunk.kind.model, usage, batch=True)
        else:
            self._tally.fail(result.error["code"])

    def _record(self, line: int, code: str, message: str) -> None:
        """Record that a request has failed."""
        custom_id = self._index.id_of(line)
        if custom_id is not None and self._index.mark(line):
            self._append(line, custom_id, None, {"code": code, "message": message})
            self._tally.fail(code)

    def _append(
        self, line: int | None, custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None
    ) -> None:
        try:
            self._results.append(encode_answer(self._index.shown(line, custom_id), response, error))
        except OSError as failure:
            raise StopError(FAILED, f"{self._results.path} cannot be written: {failure.strerror}") from None

    async def _save(self) -> None:
        """Bring the results to the disk; wait while there is no room for them.

        Raises:
            StopError: There was no room for too long. The results can be read again.
        """
        said, started_s = False, time.monotonic()
        while self._results.kept:
            if not said:
                self._view.say(f"cannot write {self._results.path}: {self._results.why}; free some space")
            said = True
            if time.monotonic() - started_s > self._time.lost_s:
                raise StopError(FAILED, f"{self._results.path} cannot be written: {self._results.why}")
            await asyncio.sleep(WRITE_AGAIN_S)
            self._results.write_kept()
        try:
            self._results.sync()
        except OSError as error:
            raise StopError(FAILED, f"{self._results.path} cannot be written: {error.strerror}") from None

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(self._view.every_s)
            self._view.show(*self.line())

    def line(self) -> tuple[str, float]:
        """The progress as one line, and the share of the requests that is done."""
        tally, states = self._tally, dict[str, int]()
        for seen in self._seen.values():
            states[seen.state] = states.get(seen.state, 0) + 1
        done = tally.ok + tally.failed + tally.skipped
        within = sum(seen.done for seen in self._seen.values())
        held = sum(sum(queue.held.values()) for queue in self._queues.values())
        parts = [
            f"{done:,}/{tally.requests:,}",
            *([f"{tally.failed:,} failed"] if tally.failed else []),
            f"{len(self._tasks):,} batches: {', '.join(f'{count} {state}' for state, count in states.items()) or 'none seen'}",
            f"{within:,} requests done in them",
            f"{held:,.0f} tokens in the queue",
        ]
        return "  ".join(parts), done / max(tally.requests, 1)


def _body(result: Result) -> dict[str, Any]:
    body = (result.response or {}).get("body")
    return body if isinstance(body, dict) else {}


def deadline_in(seconds: float, need_s: Callable[[int], float]) -> Deadline:
    """A deadline, with the durations of :data:`TIMING`; see :class:`Deadline`."""
    return Deadline(seconds, need_s, lag_s=TIMING.cancel_s, last_s=TIMING.last_s)
