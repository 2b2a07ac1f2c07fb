"""A run from start to end: check the input, recover the output, open the store, send, and summarise."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, Final, cast
from urllib.parse import urlsplit

from paceline.batch.address import ROOTS, Address, account_of, address_of, provider_of
from paceline.batch.check import SHOWN, Checker, Plan, check
from paceline.batch.index import Index
from paceline.batch.progress import Meter, View, eta_s
from paceline.batch.requests import BadLineError, Request, read_lines, read_request
from paceline.batch.results import STDOUT, OutputError, Recovered, Results, read_answer
from paceline.batch.runner import DONE, FAILED, INTERRUPTED, Runner
from paceline.batch.summary import Tally, in_time, in_words
from paceline.config import Config
from paceline.core.results import QuotaError, SourceKind
from paceline.http.describe import Metered
from paceline.limiter.limiter import Limiter
from paceline.pacing.permit import Permit
from paceline.providers.base import Provider
from paceline.providers.registry import is_loopback, provider_named
from paceline.shared.messages import Message
from paceline.stores import Prefixed, Store, StoreError, open_store
from paceline.stores.sqlite import SQLiteStore

STDIN: Final = "-"

CHECKED_FIRST_MAX: Final = 16 * 2**20
"""Bytes of an input that is checked before the first request, in a second or two."""

SAMPLE: Final = 1_000
"""The lines of a larger input that are: they show its pools, and the mistakes that all of its lines have."""


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments of a run.

    Attributes:
        source: The input's path; ``-`` for standard input.
        output: The output's path; ``-`` for standard output; beside the input when ``None``.
        config: The settings.
        restart: Send everything again; the old output is kept under another name.
        environ: Holds the keys, and the path of the user's state folder.
        repair: Move corrupt lines of the output to another file, and send their requests again.
        check_first: Check the whole input before the first request, however large it is.
        page: The port at which the status page is served on this machine while it runs; ``None`` for none.
    """

    source: str
    output: str | None = None
    config: Config = field(default_factory=Config)
    restart: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    repair: bool = False
    check_first: bool = False
    page: int | None = None

    def run(self, view: View) -> tuple[int, dict[str, Any]]:
        """Run the job.

        Returns:
            The exit code, and the summary.

        Raises:
            PacelineError: The run could not start: nothing has been sent.
        """
        output = self._output()
        with _open_input(self.source) as file:
            self._require_other_file(file, output)
            with Results(output) as results:
                return self._run(file, results, view)

    def _run(self, file: BinaryIO, results: Results, view: View) -> tuple[int, dict[str, Any]]:
        provider = provider_of(self.config)
        arguments = self.config.arguments(provider or _provider_of_first(file))
        limiter, index = Limiter(**arguments), Index()
        saved: list[str] = []
        try:
            whole = self._checks_first(file, results)
            checker, most = Checker(limiter, index if whole else Index()), None if whole else SAMPLE
            plan = check(
                file, checker, provider=provider, most=most, tick=lambda n: view.say(f"checked {n:,} requests")
            )
            for warning in plan.warnings[:SHOWN]:
                view.say(f"warning: {warning}")
            addresses = self._addresses(plan, provider, whole=whole)
            store, problem = self._open_store(plan.shares)
            if problem:
                view.say(f"warning: {problem}")
            if store is not None:
                limiter = Limiter(**arguments | {"store": store})
                _join(limiter, (share.model for share in plan.shares.values()))
            if self.restart and (aside := results.set_aside()):
                view.say(f"the old answers are in {aside}")
            recovered = results.recover(index, repair=self.repair) if whole else Recovered()
            start, checker = limiter.status()["pools"], Checker(limiter, index)
            tally = Tally(plan.requests, recovered.answered, start=start, store=store.url if store else None)
            if whole:
                source = _checked(file, index, provider, plan.last_line, checker)
            else:
                tally.requests, tally.about = plan.requests * _size(file) // file.tell(), "about "
                source = self._unchecked(file, provider, checker, addresses, tally, view)
            for line in _opening(plan, recovered, tally, start):
                view.say(line)
            results.open()
            file.seek(0)
            meter = Meter(plan if whole else checker.plan, tally, self.config.workers)
            runner = Runner(source, limiter, self.config, addresses, results, tally, view, meter)
            try:
                if tally.left:
                    self._serve_page(limiter)
                    with asyncio.Runner(loop_factory=_loop_factory()) as loop:
                        loop.run(runner.run())
            finally:
                saved += _save(results, tally)
            return _end(runner, limiter, tally, view, results)
        finally:
            view.close()
            for line in saved:
                print(f"paceline run: {line}", file=sys.stderr)  # noqa: T201
            index.close()
            limiter.close()

    def _serve_page(self, limiter: Limiter) -> None:
        """Serve the status page until the process ends.

        Raises:
            QuotaError: The port is taken, or the server is missing.
        """
        if self.page is not None:
            try:
                url = limiter.serve_status(port=self.page).url
            except OSError as error:
                raise QuotaError(f"--page {self.page}: the port cannot be used: {error.strerror}") from None
            except ImportError as error:
                raise QuotaError(f"--page: {error}") from None
            print(f"paceline run: page at {url}", file=sys.stderr)  # noqa: T201

    def _output(self) -> str:
        if self.output is not None:
            return self.output
        if self.source == STDIN:
            raise QuotaError("standard input needs an output: -o FILE, or -o - for standard output")
        return self.source.removesuffix(".jsonl") + ".results.jsonl"

    @staticmethod
    def _require_other_file(file: BinaryIO, output: str) -> None:
        if output != STDOUT and os.path.exists(output) and os.path.samestat(os.fstat(file.fileno()), os.stat(output)):  # noqa: PTH110, PTH116
            raise OutputError(f"{output}: this is the input; choose another output with -o")

    def _address(self, provider: Provider) -> Address:
        return address_of(provider, self.config.base_url, self.environ)

    def _checks_first(self, file: BinaryIO, results: Results) -> bool:
        """Whether the whole input is checked before the first request: on demand, if it is small, or to resume a run."""
        return self.check_first or _size(file) <= CHECKED_FIRST_MAX or (not self.restart and results.has_lines())

    def _addresses(self, plan: Plan, provider: str | None, *, whole: bool) -> dict[str, Address]:
        """The addresses of the providers in ``plan``; where that is not the whole input, of all that have a key.

        Raises:
            QuotaError: A provider of ``plan`` has no address or no key.
        """
        addresses = {name: self._address(provider) for name, provider in plan.providers.items()}
        if not whole and provider is None:
            for name in ROOTS.keys() - addresses.keys():
                with suppress(QuotaError):
                    addresses[name] = self._address(provider_named(name))
        return addresses

    def _unchecked(
        self,
        file: BinaryIO,
        provider: str | None,
        checker: Checker,
        addresses: Mapping[str, Address],
        tally: Tally,
        view: View,
    ) -> Iterator[tuple[Request, Metered]]:
        """The requests, each checked when it is read. A line that cannot be sent is reported, and counts as failed."""
        size, plan, bad, warned = _size(file), checker.plan, 0, len(checker.plan.warnings)
        for line, raw in read_lines(file):
            try:
                request = read_request(line, raw, provider)
                if request.provider.name not in addresses:
                    self._address(request.provider)  # raises: it has no key
                found = request, checker.add(request)
            except (BadLineError, QuotaError) as error:
                plan.requests, bad = plan.requests + 1, bad + 1
                tally.fail("bad_line")
                if bad <= SHOWN:
                    view.say(f"line {line}: {error}; it is not sent")
                continue
            tally.requests = max(plan.requests * size // file.tell(), plan.requests)
            for warning in plan.warnings[warned : SHOWN if line > SAMPLE else 0]:
                view.say(f"warning: {warning}")
            warned = len(plan.warnings)
            yield found
        tally.requests, tally.about = plan.requests, ""

    def _open_store(self, pools: Iterable[str]) -> tuple[Store | None, str | None]:
        """The store for the quotas of ``pools``, after one exchange with it for each.

        Returns:
            The store, or ``None`` to keep the quotas in this process; and why the default store cannot be used.

        Raises:
            StoreError: The configured store cannot be used.
        """

        def prefix(pool: str) -> str:
            return account_of(pool, self.config.base_url, self.environ)

        try:
            store = choose_store(self.config, self.environ)
            if store is not None:
                store = Prefixed(store, prefix)
                for pool in pools:
                    store.exchange(pool, Message("paceline run", 0, leaving=True))
        except StoreError as error:
            if self.config.store is not None:
                raise StoreError(f"{error}; nothing has been sent") from None
            return None, (
                f"{error}; so this run keeps its quotas in memory: they are not shared with other runs, and what is"
                " used of a day is forgotten at its end (--store names another place, --store memory: none)"
            )
        return store, None


def choose_store(config: Config, environ: Mapping[str, str]) -> Store | None:
    """The configured store, or the user's state file; ``None`` for ``memory:``, and for a server on this machine.

    Raises:
        StoreError: Invalid store URL, or no home folder.
    """
    if config.store is not None:
        return None if config.store.startswith("memory:") else open_store(config.store)
    if is_loopback(urlsplit(config.base_url or "").hostname or ""):  # a server on this machine is a test's
        return None
    try:
        return SQLiteStore(state_file(environ))
    except StoreError:
        raise StoreError("this user has no home folder, and XDG_STATE_HOME is not set") from None


def state_file(environ: Mapping[str, str]) -> Path:
    """The file in which a user's runs keep their quotas, by the XDG base directory specification."""
    home = Path(environ.get("XDG_STATE_HOME", ""))
    return (home if home.is_absolute() else Path("~/.local/state")) / "paceline" / "state.db"


def _join(limiter: Limiter, models: Iterable[str]) -> None:
    """Read the state of the models' pools from the store before anything is sent."""
    for model in models:
        permit = limiter.try_acquire(model, requests=0, concurrency=0)
        if isinstance(permit, Permit):
            permit.cancel()


def _opening(plan: Plan, recovered: Recovered, tally: Tally, pools: dict[str, Any]) -> Iterator[str]:
    """The lines before the first request: what is left to do, under which limits, and the least time that it takes."""
    if recovered.torn:
        yield "the last line of the output was incomplete, and has been cut"
    if recovered.corrupt:
        yield f"corrupt lines moved to {recovered.aside}: {recovered.corrupt:,}; their requests are sent again"
    if recovered.unknown:
        yield f"warning: {recovered.unknown:,} answers in the output have ids that the input does not have; they stay"
    before = f", {recovered.answered:,} answered before" if recovered.answered else ""
    again = f", {recovered.failed:,} failed before and are sent again" if recovered.failed else ""
    later = ", each checked when it is sent" if tally.about else ""
    yield f"{tally.about}{tally.requests:,} requests{before}{again}{later}"
    yield f"state: {tally.store or 'in this process only'}"
    for name in list(plan.shares)[:SHOWN]:
        yield f"{name}: {_limits(pools[name]['quotas'])}"
    least_s = eta_s(plan, pools, tally.left)
    if least_s >= 1:
        yield f"{tally.about}{tally.left:,} to send: at least {in_time(least_s)} under these limits"


def _limits(quotas: Sequence[Mapping[str, Any]]) -> str:
    """Quotas and their sources; those of one source together."""
    parts = []
    for source, group in groupby(quotas, lambda quota: quota["source"]):
        shown = "learned from answers" if source == SourceKind.LEARNED else source
        parts.append(f"{', '.join(quota['quota'] for quota in group)} ({shown})")
    return ", ".join(parts)


def _save(results: Results, tally: Tally) -> Iterator[str]:
    """Write the answers that the output cannot take to other places; returns lines that name these."""
    unable = f"{results.path} cannot be written: {results.why}"
    target = f" >> {shlex.quote(results.path)}" if results.resumable else ""
    for name, count in results.save_kept(None, os.path.expanduser("~")):  # noqa: PTH111
        yield f"{unable}: {count:,} answers are in {name}; add them before the next run: cat {shlex.quote(name)}{target}"
    for line in results.kept:
        _, ok = read_answer(line) or ("", True)
        tally.ok, tally.failed = tally.ok - ok, tally.failed - (not ok)
    if results.kept:
        yield f"{unable}: {len(results.kept):,} answers fit nowhere else either and are lost; their requests are left"


def _end(runner: Runner, limiter: Limiter, tally: Tally, view: View, results: Results) -> tuple[int, dict[str, Any]]:
    """Print the summary; return the exit code and the summary."""
    attempts, stop = runner.sender, runner.stop
    report = tally.report(
        limiter.status()["pools"],
        attempts=attempts.attempts,
        refused=attempts.refused,
        elapsed_s=attempts.last_s - attempts.first_s,
        output=results.path,
        interrupted=stop is not None and stop[0] == INTERRUPTED,
    )
    view.close()
    for line in [*in_words(report, tally.left, tally.about), *runner.reach.at_end()]:
        view.say(line)
    if stop is not None:
        again = "the same command again sends the rest" if results.resumable else "nothing can be resumed"
        with suppress(OSError):  # the terminal was closed
            left = f"{tally.about}{tally.left:,}"
            print(f"paceline run: stopped: {stop[1]}; {left} requests left: {again}", file=sys.stderr)  # noqa: T201
        return stop[0], report
    if tally.failed:
        view.say("the same command again sends the failed requests once more")
    return (FAILED if tally.failed else DONE), report


def _checked(
    file: BinaryIO, index: Index, provider: str | None, last_line: int, checker: Checker
) -> Iterator[tuple[Request, Metered]]:
    """The requests of a checked input that are still to be sent, read one at a time."""
    for line, raw in read_lines(file):
        if line > last_line:
            return
        if not index.is_done(line):
            try:
                request = read_request(line, raw, provider)
                yield request, checker.describe(request)
            except BadLineError as error:
                raise BadLineError(f"the input has changed since it was checked: line {line}: {error}") from None


def _size(file: BinaryIO) -> int:
    """The bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop's event loops, where it is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return cast("Callable[[], asyncio.AbstractEventLoop]", new_event_loop)


def _provider_of_first(file: BinaryIO) -> str | None:
    """The provider of the first request, whose tables a tier refers to."""
    try:
        return next((read_request(line, raw).provider.name for line, raw in read_lines(file)), None)
    except BadLineError:
        return None
    finally:
        file.seek(0)


def _open_input(path: str) -> BinaryIO:
    """The input as a file that can be read twice; the content of a pipe is copied to a temporary file first."""
    try:
        file: BinaryIO = open(0, "rb", closefd=False) if path == STDIN else Path(path).open("rb")  # noqa: SIM115
    except OSError as error:
        raise QuotaError(f"{path}: cannot be read: {error.strerror}") from None
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.seekable():
        file.seek(0)
        return file
    spool: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115
    with file:
        shutil.copyfileobj(file, spool, 2**20)
    spool.seek(0)
    return spool
