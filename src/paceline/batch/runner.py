"""The workers: a fixed number of tasks that take requests from one reader, send them, and record the answers."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from paceline.batch.acceptance import UNSTABLE, maximum_of
from paceline.batch.answers import RunAnswers
from paceline.batch.client import RunClient, RunOutcome
from paceline.batch.index import explained
from paceline.batch.packs import Described, Packer, RowAnswer, answers_of
from paceline.batch.progress import ProgressLine, ProgressView
from paceline.batch.requests import RunRequest
from paceline.batch.results import OutputError, ResultsFile
from paceline.batch.transport import PausedError
from paceline.core.hints import counted
from paceline.core.quota import NS
from paceline.core.results import PacelineError
from paceline.http.describe import Metered, describe
from paceline.pacing.durable import LOOK_S
from paceline.pacing.tries import Tries
from paceline.responses.finish import State

WRITE_AGAIN_S: Final = 1.0
UNWRITTEN_MAX_S: Final = 600.0
"""How often a failed write is tried again, and for how long before the run stops."""

WHYS_SHOWN: Final = 3

ROWS_MAX: Final = 65_536
"""Rows that share requests in flight. Texts of 1 KB take 200 MB; requests of 2,048 rows are 32."""

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""

_STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]


interrupts: dict[int, Callable[[], object]] = {}
"""What an interrupt calls of a run in another thread than the main one, by the thread: only the main one has signals."""


def heed(on_signal: Callable[[], object]) -> Callable[[], None]:
    """Call ``on_signal`` at each signal that ends a program, and is not ignored; return what restores the handlers."""
    interrupts[threading.get_ident()] = on_signal
    main = threading.current_thread() is threading.main_thread()  # other threads cannot handle signals
    heeded = [number for number in _STOPPING if main and signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = [(number, signal.signal(number, lambda *_: on_signal())) for number in heeded]

    def restore() -> None:
        interrupts.pop(threading.get_ident(), None)
        for number, handler in before:
            signal.signal(number, handler)

    return restore


async def look_after(results: ResultsFile, view: ProgressView, settle: Callable[[], object] = lambda: None) -> None:
    """Compare the output with its name, also while no answer comes, which may take hours.

    Args:
        results: The output.
        view: Says that it was written again.
        settle: Does so with another file; it may raise :class:`OutputError`, which the next use of that file raises again.
    """
    while True:
        await asyncio.sleep(LOOK_S)
        with suppress(OutputError):
            settle()
        if not results.kept and results.settle() and results.mended:
            view.say(f"{results.path}: {results.mended}; the answers are in {results.place}")
            results.mended = ""


class RowsInFlight:
    """Counts the rows that share requests in flight."""

    def __init__(self) -> None:
        self.count, self._ended = 0, asyncio.Event()

    @contextmanager
    def counted(self, request: RunRequest) -> Iterator[None]:
        """Count the rows of a request while the block runs."""
        rows = len(request.rows) if len(request.rows) > 1 else 0
        self.count += rows
        try:
            yield
        finally:
            if rows:
                self.count -= rows
                self._ended.set()
                self._ended = asyncio.Event()

    async def end(self) -> None:
        """Wait until one of these requests has ended."""
        await self._ended.wait()


class Runner:
    """Sends the requests of ``source`` and records every answer.

    Args:
        source: The requests to send, with what they cost; one is read when a worker is free.
        client: Sends them.
        answers: Takes the answers.
        meter: Shows the speed.
        packer: Puts rows that may share a request into one.
        workers: How many requests wait or are in flight at once.

    Attributes:
        stop: The exit code and the reason of a run that ended early.
        client: As given.
    """

    def __init__(
        self,
        source: Iterator[Described],
        client: RunClient,
        answers: RunAnswers,
        meter: ProgressLine,
        packer: Packer,
        workers: int,
    ) -> None:
        self.stop: tuple[int, str] | None = None
        self.client, self._answers, self._meter, self._workers = client, answers, meter, workers
        self._source, self._packer = packer.packed(source), packer
        self._again: list[Described] = []  # not sent as answers could not be written; halves of others
        self._shared = RowsInFlight()
        self._writing = asyncio.Lock()  # held by the worker that writes what could not be written
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Send everything."""
        tally = self._answers.tally
        workers = min(self._workers, max(tally.left, 1))
        tally.ideal.begin(self.client.limiter.pacer.clock.now_ns() / NS, tally.start.pools)
        self.client.open()
        restore = heed(partial(asyncio.get_running_loop().call_soon_threadsafe, self._on_signal))
        self._tasks = [asyncio.create_task(self._work()) for _ in range(workers)]
        progress = asyncio.create_task(self._show())
        looks = asyncio.create_task(look_after(self._answers.results, self._answers.view))
        try:
            await self._finish()
            whys = self.client.whys
            if whys and self.stop is None:
                self.stop = FAILED if tally.ok else USAGE, "; ".join(whys[:WHYS_SHOWN])
        finally:
            progress.cancel()
            looks.cancel()
            restore()
            await self.client.close()

    def _halt(self, code: int, message: str) -> None:
        """Send nothing more. Requests in flight may finish; waiting requests have cost nothing and are cancelled."""
        current = asyncio.current_task()
        others = self.client.sender.in_flight - {current}
        if self.stop is None:
            self.stop = code, message
            if others and code != INTERRUPTED:
                self._answers.view.say(
                    f"stopping: {message}; waiting for {counted(len(others), 'request')} in flight; interrupt to stop at once"
                )
        self.client.sender.stopping = True
        for task in self._tasks:
            if task is not current and task not in others:
                task.cancel()

    def _on_signal(self) -> None:
        if self.stop is None:
            self._halt(INTERRUPTED, "interrupted")
            self._answers.view.say("stopping: waiting for the requests in flight; interrupt again to stop at once")
        else:
            for task in self._tasks:
                task.cancel()

    async def _finish(self) -> None:
        """Wait for the workers. After the first exception of one nothing is sent, and requests in flight, which are paid, may finish."""
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            broken = next((task for task in done if not task.cancelled() and task.exception()), None)
            if broken is not None:
                self._halt(FAILED, type(broken.exception()).__name__)
        finally:
            if self.stop is None:
                for task in self._tasks:
                    task.cancel()
            ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        for error in ([broken.exception()] if broken else []) + ended:
            if isinstance(error, Exception):
                raise error

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(self._answers.view.every_s)
            unwritten = self._answers.results.why if self._answers.results.kept else ""
            pools, lacking = self.client.limiter.status()["pools"], self.client.room.words
            self._answers.view.show(*self._meter.line(pools, unwritten, lacking))

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while self.stop is None and (found := await self._next()) is not None:
            with self._shared.counted(found[0]):
                try:
                    await self._serve(*found)
                except PausedError:
                    self._again.append(found)
                finally:
                    self.client.sender.in_flight.discard(task)
            await asyncio.sleep(0)  # the client notices here that the server has closed the connection after its answer

    async def _next(self) -> Described | None:
        """The next request; while answers cannot be written, there is none."""
        async with self._writing:
            if self._answers.results.kept:
                await self._write_kept()
        if self.stop is not None:
            return None
        try:
            with explained():
                while self._shared.count >= ROWS_MAX and not self._again:
                    await self._shared.end()
                while (
                    found := self._again.pop() if self._again else next(self._source, None)
                ) is None and self._shared.count:
                    await self._shared.end()  # its halves may be sent side by side
        except PacelineError as error:  # the input has changed, or its ids fit nowhere
            self._halt(FAILED if self._answers.tally.ok else USAGE, str(error))
            return None
        return found

    async def _write_kept(self) -> None:
        """Write the answers that could not be written, as soon as that is possible."""
        path, results = self._answers.results.path, self._answers.results
        where = results.saved() or "memory alone, because they fit nowhere else"
        self._answers.view.say(
            f"cannot write {path}: {results.why}; sending is paused, and answers are kept in {where}{results.remedy}"
        )
        started_s, most = asyncio.get_running_loop().time(), 0
        while results.kept and (waited_s := asyncio.get_running_loop().time() - started_s) < UNWRITTEN_MAX_S:
            await asyncio.sleep(WRITE_AGAIN_S)
            most = max(most, len(results.kept))
            results.write_kept()
        if results.kept:
            self._halt(FAILED, f"{path} could not be written for {waited_s / 60:.0f} minutes: {results.why}")
        else:
            self._answers.view.say(f"{results.place} can be written again; it has the {most:,} answers that were kept")

    async def _serve(self, request: RunRequest, metered: Metered) -> None:
        """Send one request and record its answer, or the answer of each row that shares it; or halt, or cut it in halves because of one."""
        if self._answers.before.get(request.line) == State.CUT_OFF:
            request, metered = self._raised(request) or (request, metered)
        outcome = await self._ask(request, metered)
        if outcome is None:
            return
        answers = self._judged(request, outcome)
        if answers is None:
            self._again += self._packer.halves(request)
            return
        is_final = outcome.error is not None or self.stop is not None
        again = [] if is_final else [one for one in answers if one.code in (*UNSTABLE, State.CUT_OFF)]
        lines = {one.row.line for one in again}
        for one in answers:
            if one.row.line not in lines:
                self._record(*one)
        if again:
            await self._once_more(request, metered, outcome.tries, again)

    async def _once_more(
        self, request: RunRequest, metered: Metered, tries: Tries | None, firsts: list[RowAnswer]
    ) -> None:
        """Ask for other answers in place of those that are none, if they may be better, and record one of both."""
        following: Described | None = None
        seconds: dict[int, RowAnswer] = {}
        if firsts[0].code in UNSTABLE and (tries is None or tries.spoiled()):
            following = self._packer.together([one.row for one in firsts]) if request.rows else (request, metered)
        elif firsts[0].code == State.CUT_OFF and not request.raised:
            following, tries = self._raised(request), None
        try:
            if following is not None:
                self.client.sender.free()  # the first ones are paid for; the next attempt may wait, and be cancelled
                second = await self._ask(*following, tries)
                if second is not None and second.error is None:
                    seconds = {one.row.line: one for one in self._judged(following[0], second) or ()}
        except PausedError:
            pass
        finally:  # also if the second attempt fails, the first answers are recorded
            for first in firsts:
                self._record(*seconds.get(first.row.line, first))

    async def _ask(self, request: RunRequest, metered: Metered, tries: Tries | None = None) -> RunOutcome | None:
        """Send a request, after these ``tries``; return its outcome, unless the run ends because of it."""
        outcome = await self.client.ask(request, metered, tries)
        if outcome is None:
            return None
        record = outcome.answer.record if outcome.answer is not None else None
        paid, tally = [] if outcome.tries is None else outcome.tries.paid, self._answers.tally
        if record is not None:
            tally.sent.waits.add(record.waited_s)
            tally.ideal.take(self.client.limiter, record)
            if record.usage is not None:
                paid.append((record.pool, record.usage))
        while paid:  # the next attempts after these tries add theirs
            pool, usage = paid.pop()
            # As a budget prices it: another host's prices aren't the provider's.
            tally.bill.add(pool.partition("/")[0], request.model, usage)
        words = outcome.error["message"] if outcome.error is not None else ""
        if outcome.ends == "money":
            self._halt(FAILED, words)
        elif outcome.ends:
            self._halt(FAILED if self._answers.tally.ok else USAGE, f"{request.place}: {words}")
        return None if outcome.ends else outcome

    def _judged(self, request: RunRequest, outcome: RunOutcome) -> list[RowAnswer] | None:
        """What is to be recorded of each row; ``None`` if halves of the request have to show which row an error is about."""
        answers, judge = answers_of(request, outcome.response, outcome.error), self._answers.acceptance.error_of
        return None if answers is None else [one._replace(error=judge(one.response, one.error)) for one in answers]

    def _raised(self, request: RunRequest) -> Described | None:
        """The request with a larger maximum of tokens, if this run raises it."""
        body = self._answers.acceptance.raised(request.body)
        if body is None:
            return None
        request = replace(request, body=body, raised=True)
        metered = describe(self.client.limiter.pacer, request.provider, request.path, request.content())
        return None if metered is None else (request, metered)

    def _record(self, request: RunRequest, response: dict[str, Any] | None, error: dict[str, Any] | None) -> None:
        """Write an answer and count it."""
        most, raised = maximum_of(request.body), request.raised
        record = self._answers.record(request.line, request.shown_id, response, error, most, raised=raised)
        try:
            self._answers.write(record)
        except OutputError as failure:
            self._halt(FAILED, str(failure))
