"""A run by the providers' Batch APIs: whether to use them, and how.

It creates batches, polls them, writes their results, and sends again what was not done. Every step is in the journal before it is taken (see
:mod:`paceline.batch.journal`), so that a run can be killed at any moment: the same command goes on with its batches.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from paceline.batch.acceptance import maximum_of
from paceline.batch.address import proxy_for
from paceline.batch.answers import RunAnswers
from paceline.batch.api import BYTES_MAX, Endpoints, Web
from paceline.batch.check import InputPlan
from paceline.batch.chunks import BatchKind, Chunk, ChunkItem, cut
from paceline.batch.endpoints import ENDPOINTS
from paceline.batch.files import FILE_GONE, GoneError, filled
from paceline.batch.flight import Flight
from paceline.batch.journal import Batches, BatchJournal
from paceline.batch.packs import Described
from paceline.batch.progress import ProgressView, eta_s
from paceline.batch.redact import Secrets
from paceline.batch.results import OutputError, ResultsFile
from paceline.batch.runner import FAILED, INTERRUPTED, USAGE, heed, look_after
from paceline.batch.summary import RunTally, in_time
from paceline.batch.timing import CALL_S, FULL_ALL_S, Deadline, StopError, Timing
from paceline.batch.transport import session
from paceline.batch.writer import AnswerWriter
from paceline.config.servers import ProviderAddress
from paceline.core.hints import counted
from paceline.core.results import SettingsError
from paceline.limiter.limiter import Limiter
from paceline.providers.parse import inputs_in
from paceline.responses.finish import State

IN_FLIGHT_MAX: Final = 20
"""Batches at once: enough to fill a queue, and few enough to ask each of them every minute."""

LINES_MIN: Final = 1_000
"""The least requests that an input is cut into, where nothing else limits a batch: very small batches fail more often."""

PARTS: Final = 8
"""Batches that a large input is cut into, at least: so that each of them could still be sent one by one."""

TIMING = Timing()


@dataclass(frozen=True, slots=True)
class Batching:
    """Whether a run sends in batches of the providers' Batch APIs, and how.

    Attributes:
        mode: ``sync`` sends the requests one by one, ``batch`` in batches; ``auto`` in batches while the rest can still be sent
            one by one before the deadline.
        deadline_s: For ``auto``: the seconds from the start to the deadline; a run that was stopped keeps its first start.
        batch_lines: The most requests of a batch; by the size of the input when ``None``.
        batch_queue: The provider's limit of enqueued input tokens for each model; learned from refusals when ``None``.
    """

    mode: str = "sync"
    deadline_s: float | None = None
    batch_lines: int | None = None
    batch_queue: float | None = None

    def require(self, providers: Iterable[str]) -> None:
        """Refuse providers whose requests this mode cannot send.

        Raises:
            SettingsError: There is one.
        """
        unknown = [name for name in providers if name not in ENDPOINTS]
        if self.mode != "sync" and unknown:
            raise SettingsError(f"--mode {self.mode}: no Batch API of {unknown[0]} is known here: use --mode sync")
        apart = [name for name in providers if name in ENDPOINTS and ENDPOINTS[name].APART]
        if self.mode == "auto" and apart:
            text = "takes no requests one by one under the name of a batch deployment: use --mode batch"
            raise SettingsError(f"--mode auto: {apart[0]} {text}")

    def journal(self, results: ResultsFile, *, restart: bool) -> BatchJournal | None:
        """The journal of batches of a run that sends in batches.

        Raises:
            OutputError: The output cannot be resumed; or a run that does not send in batches would send again what is in one.
        """
        if self.mode != "sync" and not results.resumable:
            raise OutputError(f"{results.path}: a run in batches needs a file for its output: name one with -o")
        journal = BatchJournal(results.path) if results.resumable else None
        if journal is not None and not restart:
            journal.require_name()
        if journal is not None and journal.unfinished and not restart and self.mode == "sync":
            raise OutputError(
                f"{journal.path}: the output lacks the results of {counted(journal.unfinished, 'batch')} of an earlier run:"
                " read them with --mode batch, or give them up with --restart"
            )
        return None if self.mode == "sync" else journal

    def end_s(self, journal: BatchJournal) -> tuple[float, float] | None:
        """The seconds of the deadline and its time: the time of an unfinished run with the same deadline, or one from now."""
        if self.mode != "auto" or self.deadline_s is None:
            return None
        if journal.deadline is not None and journal.deadline[0] == self.deadline_s:
            return journal.deadline
        return self.deadline_s, time.time() + self.deadline_s

    def deadline(
        self, given: tuple[float, float] | None, plan: InputPlan, limiter: Limiter, tally: RunTally, view: ProgressView
    ) -> Deadline | None:
        """The deadline of a run that changes from batches to requests one by one."""
        if given is None or not tally.left:
            return None
        left_s = min(given[0], given[1] - time.time())  # this machine's clock may have been set back
        if given[0] - left_s >= 1:
            view.say(f"the deadline of the unfinished run applies: {in_time(max(left_s, 0.0))} are left")
        deadline = Deadline(left_s, lambda count: eta_s(plan, limiter.status()["pools"], count), TIMING)
        needs_s, reserve_s = deadline.needs(tally.left), deadline.needs(0)
        if left_s <= reserve_s:
            view.say(
                f"the deadline leaves no time for batches, which would end {in_time(reserve_s)} before it: all requests"
                " are sent one by one, at the full price"
            )
        elif left_s < needs_s:
            view.say(
                f"the deadline may be missed: to cancel the batches and send all requests one by one takes {in_time(needs_s)}"
                f" under these limits, and {in_time(left_s)} are left"
            )
        else:
            view.say(f"in batches; if they have not ended {in_time(needs_s)} before the deadline, one by one")
        return deadline


class _LeaveError(Exception):
    """The batches are to be left."""


class Offline:
    """Sends requests in batches.

    Args:
        scan: Reads the requests that have no answer yet, from the first line on.
        addresses: Where requests go, by the provider's name.
        answers: Takes the answers.
        journal: Open for writing.
        most_lines: The most requests of a batch; ``None`` for the provider's limit.
        queue: The known limit of enqueued tokens of each model.
        deadline: When the batches are left; ``None`` for never.

    Attributes:
        stop: The exit code and the reason of a run that ended early.
        batches: Its batches, and the requests that each of them has.
    """

    def __init__(
        self,
        scan: Callable[[], Iterator[Described]],
        addresses: Mapping[str, ProviderAddress],
        answers: RunAnswers,
        *,
        journal: BatchJournal,
        most_lines: int | None,
        queue: float | None,
        deadline: Deadline | None,
    ) -> None:
        self.stop: tuple[int, str] | None = None
        self._scan, self._addresses, self._answers = scan, addresses, answers
        self._most_lines, self._deadline, self._time = most_lines, deadline, TIMING
        self._ends: dict[str, Endpoints] = {}
        self.batches = Batches(journal, answers, queue)
        self._writer = AnswerWriter(answers, self._time)
        self._flight = Flight(self._ends, self.batches, self._writer, self._time, last=deadline is None)

    @property
    def left(self) -> bool:
        """Whether the batches are left: cancelled before all requests are done."""
        return self._flight.leaving.is_set()

    async def run(self, *, create: bool = True) -> None:
        """Send everything, and write every result.

        Args:
            create: Whether to create batches; otherwise the batches of the journal are cancelled and brought to their end.

        Raises:
            BadLineError: The input has changed since it was checked, or a path cannot be part of a batch.
        """
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        assert main is not None

        def on_signal() -> None:
            self.stop = self.stop or (INTERRUPTED, "interrupted")
            loop.call_soon_threadsafe(main.cancel)

        proxy, secrets = proxy_for(self._addresses), Secrets(address.key for address in self._addresses.values())
        client = session(CALL_S)
        for name, address in self._addresses.items():
            web = Web(client, address, secrets, CALL_S, proxy, self._answers.tally.sent.calls)
            self._ends[name] = ENDPOINTS[name](web, self.batches.journal.run)
        restore = heed(on_signal)
        progress = asyncio.create_task(self._show())
        looks = asyncio.create_task(look_after(self._answers.results, self._answers.view, self.batches.journal.settle))
        try:
            await self._adopt()
            await self._flight.find_lost()
            if create:
                await self._send_or_leave()
            else:
                self._flight.leaving.set()
                while self._flight.tasks:
                    await self._wait(None)
            self.batches.journal.settle()
        except StopError as error:
            self.stop = error.code, str(error)
        except OutputError as error:
            self.stop = FAILED, str(error)
        except asyncio.CancelledError:
            if self.stop is None:
                raise
        finally:
            for task in (progress, looks, *self._flight.tasks):
                task.cancel()
            await asyncio.gather(progress, looks, *self._flight.tasks, return_exceptions=True)
            restore()
            await client.close()
            with suppress(OSError, OutputError):  # the same command reads these batches once more
                if self._writer.end():
                    self.batches.note_written(self._writer.first)

    async def _adopt(self) -> None:
        """Go on with the batches of an earlier process."""
        for chunk in self.batches.journal.chunks(self.batches.index):
            if not (self._flight.is_own(chunk) or await self._flight.sees(chunk)):
                raise StopError(
                    USAGE,
                    f"{self.batches.journal.path}: a batch of an earlier run was created at {chunk.account.partition(':')[0]} with another"
                    " key or address: use those, or give it up with --restart",
                )
            self.batches.hold(chunk)
            self._flight.follow(chunk)
        if self._flight.tasks or self.batches.journal.lost:
            # These can be read before the scan that cuts new ones has come to their lines.
            for found, _ in self._scan():
                self._writer.note(found.line, maximum_of(found.body))
        if self._flight.tasks:
            self._answers.view.say(f"continuing with {counted(len(self._flight.tasks), 'batch')} of an earlier run")

    async def _send_or_leave(self) -> None:
        try:
            await self._send_all()
            if self._deadline is not None and (left := self._answers.tally.left):
                self._answers.view.say(f"{left:,} requests have no answer in batches: they are sent one by one")
                self._flight.leaving.set()
        except StopError as error:
            await self._flight.land(str(error))
            raise
        except _LeaveError:
            if count := len(self._flight.tasks):
                text = "the rest is sent one by one, to keep the deadline"
                self._answers.view.say(f"leaving {count:,} batches: {text}")
            self._flight.leaving.set()
            end_s = time.monotonic() + self._time.cancel_s
            while self._flight.tasks and (left_s := end_s - time.monotonic()) > 0:
                await self._wait(left_s)

    def _check_deadline(self) -> None:
        """Raise if the batches are to be left now."""
        if (
            self._deadline is not None
            and not self._flight.leaving.is_set()
            and self._deadline.due(max(0, self._answers.tally.left - self._flight.done))
        ):
            raise _LeaveError

    async def _send_all(self) -> None:
        """Create batches until every request is done; those that come back are sent in a further pass."""
        while True:
            self._flight.returned = False
            again, self._flight.again = self._flight.again, []
            most = min(ends.LINES_MAX for ends in self._ends.values())
            chunks = cut(
                self._items(),
                most_lines=min(most, self._size_of_batch()),
                most_inputs=most,
                most_bytes=self._most_bytes,
                most_tokens=lambda kind: self.batches.queue(kind).most_of_one,
            )
            for chunk in chain(again, chunks):
                if await self._room(chunk):
                    await self._flight.create(chunk, self._check_deadline)
            while self._flight.tasks and not self._flight.returned:
                await self._wait(None)
            if not (self._flight.returned or self._flight.tasks or await self._flight.find_lost()):
                return

    def _size_of_batch(self) -> int:
        return self._most_lines or max(LINES_MIN, -(-self._answers.tally.left // PARTS))

    def _most_bytes(self, kind: BatchKind) -> float:
        return min(BYTES_MAX, self.batches.most_bytes[kind.provider])

    def _items(self) -> Iterator[ChunkItem]:
        for found, metered in self._scan():
            if self.batches.holds(found.line) or self.batches.is_spent(found.line):
                continue
            self._writer.note(found.line, maximum_of(found.body))
            first = self._writer.first(found.line)
            is_cut = State.CUT_OFF in (first, self._answers.before.get(found.line))
            most = self._answers.acceptance.raised(found.body) if is_cut else None
            if first == State.CUT_OFF and most is None:  # it has no maximum, or one as large
                self._writer.settle(found.line)
                continue
            request = found if most is None else replace(found, body=most)
            kind = BatchKind(request.provider.name, request.path, request.model)
            try:
                content = filled(self._ends[kind.provider].encode(request))
            except GoneError as error:
                self._writer.record(request.line, FILE_GONE, str(error))
                continue
            inputs = inputs_in(request.body.get("input")) if request.path.endswith("/embeddings") else 1
            yield ChunkItem(kind, request.line, request.custom_id, content, metered.tokens()[0], inputs)

    async def _room(self, chunk: Chunk) -> bool:
        """Wait until a batch can be created; ``False`` if its requests must be cut again."""
        queue = self.batches.queue(chunk.kind)
        while (
            len(self._flight.tasks) >= IN_FLIGHT_MAX
            or self._flight.unclear
            or not queue.fits(chunk.tokens, time.monotonic())
        ):
            if queue.refusals and not queue.held and time.monotonic() - queue.full_since_s > FULL_ALL_S:
                raise StopError(
                    FAILED,
                    f"{chunk.kind.model[:100]}: the provider has taken no batch for {FULL_ALL_S / 3600:.0f} h, with no"
                    " other batch of this run in its queue",
                )
            full_s = max(0.0, queue.full_until_s - time.monotonic()) or None
            await self._wait(self._time.retry_s if self._flight.unclear else full_s)
        is_large = chunk.tokens > queue.most_of_one or chunk.size > self._most_bytes(chunk.kind)
        # Requests that have come back may be in another batch by now.
        if (is_large and len(chunk.lines) > 1) or not all(map(self.batches.is_open, chunk.lines)):
            self._flight.returned = True
            await self._ends[chunk.kind.provider].delete(chunk)
            return False
        return True

    async def _wait(self, seconds: float | None) -> None:
        """Wait until a batch has ended, for so many seconds at most; raise what has gone wrong with one."""
        if self._deadline is not None and not self._flight.leaving.is_set():
            seconds = min(self._time.poll_first_s, self._time.poll_first_s if seconds is None else seconds)
        await self._flight.wait(seconds)
        self._check_deadline()

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(self._answers.view.every_s)
            self._answers.view.show(*self.line())

    def line(self) -> tuple[str, float]:
        """The progress as one line, and the share of the requests that is done."""
        tally, states = self._answers.tally, Counter(seen.state for seen in self._flight.seen.values())
        done = tally.ok + tally.failed + tally.before
        parts = [
            f"{done:,}/{tally.requests:,}",
            *([f"{tally.failed:,} failed"] if tally.failed else []),
            f"{len(self._flight.tasks):,} batches: {', '.join(f'{count} {state}' for state, count in states.items()) or 'none seen'}",
            f"{self._flight.done:,} requests done in them",
            f"{self.batches.tokens:,.0f} tokens in the queue",
        ]
        return "  ".join(parts), done / max(tally.requests, 1)
