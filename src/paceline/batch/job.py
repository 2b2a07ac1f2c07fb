"""A run from start to end: check the input, recover the output, open the store, send, and summarise."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, cast
from urllib.parse import urlsplit

from paceline.batch.acceptance import UNREAD, Acceptance
from paceline.batch.address import account_of, at_home, goes_anywhere, placing
from paceline.batch.answers import RunAnswers
from paceline.batch.caller import Caller
from paceline.batch.check import SHOWN, Checker, InputPlan, check
from paceline.batch.client import RunClient
from paceline.batch.cost import Bill
from paceline.batch.forms import Form, as_lines, identified
from paceline.batch.index import Index, explained
from paceline.batch.journal import Batches, BatchJournal
from paceline.batch.notes import Reporter, RunStatus
from paceline.batch.offline import Batching, Offline
from paceline.batch.packs import Described, Packer
from paceline.batch.progress import ProgressLine, ProgressView, limits_now, opening
from paceline.batch.reach import certificates
from paceline.batch.reading import temporary
from paceline.batch.requests import FORMATS, INVALID_ROW, WHOLE, BadLineError, Shard, Source, decode
from paceline.batch.results import ANY, STDOUT, OutputError, Recovered, ResultsFile
from paceline.batch.runner import DONE, FAILED, INTERRUPTED, Runner
from paceline.batch.summary import RunStart, RunTally, in_words
from paceline.batch.tables import Rows, Table
from paceline.config import Config
from paceline.config.servers import ProviderAddress, Server, ServerGroup, address_at, address_of, root_of
from paceline.config.servers import group as read_group
from paceline.core.hints import counted
from paceline.core.results import PacelineWarning, SettingsError, StoreFormatError, explaining
from paceline.data.progress import logged
from paceline.limiter.limiter import Limiter
from paceline.providers.base import Provider
from paceline.providers.registry import base_of, is_loopback, provider_named
from paceline.providers.roots import usual_root
from paceline.shared.messages import Message
from paceline.stores import Prefixed, Store, StoreError, as_store
from paceline.stores.notes import Notes, notes_beside
from paceline.stores.sqlite import SQLiteStore

STDIN: Final = "-"

CHECKED_FIRST_MAX: Final = 16 * 2**20
"""Bytes of an input that is checked before the first request, in a second or two."""

SAMPLE: Final = 1_000
"""The lines of a larger input that are: they show its pools, and the mistakes that all of its lines have."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where the answers of a run go, and which are taken.

    Attributes:
        path: Its path; ``-`` for standard output; beside the input when ``None``.
        restart: Send everything again; the old output is kept under another name.
        repair: Move corrupt lines of the output to another file, and send their requests again.
        into: The column of the answers, where it is a table.
        acceptance: Says which answers are taken: those that are finished, in the form of a schema if it has one.
        keeps: Whether it is there after the run.
    """

    path: str | None = None
    restart: bool = False
    repair: bool = False
    into: str = "answer"
    acceptance: Acceptance = ANY
    keeps: bool = True

    def beside(self, source: str, shard: Shard, caller: Caller) -> str:
        """Its path, for this input.

        Raises:
            SettingsError: Standard input has nothing beside it.
        """
        if self.path is not None:
            return self.path
        if source == STDIN:
            again = caller.again(STDIN, output="answers.csv")
            raise SettingsError(f"standard input needs an output: {again}; or, for standard output, -o -")
        part = "" if shard == WHOLE else f".shard-{shard}"
        return source.removesuffix(".jsonl") + part + ".results.jsonl"

    def leave(self, results: ResultsFile, journal: BatchJournal | None, view: ProgressView) -> BatchJournal | None:
        """On a restart, rename the output and the journal of an earlier run; return the journal to write, if any.

        An output that has been removed is a restart, too, for the answers that its run has saved elsewhere.
        """
        if (self.restart or not os.path.exists(results.path)) and (aside := results.set_aside()):  # noqa: PTH110
            view.say(f"the old answers are in {aside}")
        if not (self.restart and results.resumable):
            return journal
        before = BatchJournal(results.path)
        if (aside := before.set_aside()) and before.unfinished:
            text = f"the provider continues with {counted(before.unfinished, 'batch')} of the earlier run, and you still pay; the old journal is {aside}"
            print(f"paceline run: {text}", file=sys.stderr)  # noqa: T201
        return None if journal is None else BatchJournal(results.path)


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments of a run.

    Attributes:
        source: The input's path; ``-`` for standard input.
        output: Where the answers go.
        config: The settings.
        environ: Holds the keys, and the path of the user's state folder.
        check_first: Check the whole input before the first request, however large it is.
        shard: The part of the input.
        page: The port at which the status page is served on this machine while it runs; ``None`` for none.
        batching: Whether it sends in batches.
        form: How the rows of an input that has no requests become requests.
        strict: Whether a row that cannot be sent stops all; otherwise it is an error of that row.
        of_rows: Whether the lines of the input were made of rows, by :func:`~paceline.batch.forms.lines_of`.
    """

    source: str
    output: Output = Output()
    config: Config = field(default_factory=Config)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    check_first: bool = False
    shard: Shard = WHOLE
    page: int | None = None
    batching: Batching = field(default_factory=Batching)
    form: Form = field(default_factory=Form)
    strict: bool = False
    of_rows: bool = False

    def run(self, view: ProgressView) -> tuple[int, dict[str, Any]]:
        """Run the job.

        Returns:
            The exit code, and the summary.

        Raises:
            PacelineError: The run could not start: nothing has been sent.
        """
        certificates()
        table = Table.at(self.output.path, self.output.into)
        path = table.journal if table is not None else self.output.beside(self.source, self.shard, self.form.caller)
        with logged(view.say), _open_input(self.source) as file:
            self._require_other_file(file, path)
            if table is not None:
                self._require_other_file(file, table.path)
                table.require_own()
            form = at_home(self.form, self.config)
            own = Source(file, form.provider, of_rows=True, strict=False)
            given = own if self.of_rows else as_lines(file, self.source, form)
            strict, anywhere = given.strict or self.strict, not form.provider and goes_anywhere(self.config)
            given = replace(given, shard=self.shard, strict=strict, anywhere=anywhere)
            if given.recognised:
                view.say(given.recognised)
            with given.file:
                rows = partial(identified, file, self.source, form, given)
                if table is not None:
                    table.require_column(rows, self.output.acceptance)
                with closing(ResultsFile(path, self.output.acceptance)) as results, explained():
                    answers = RunAnswers(results, Index(), RunTally(bill=Bill(self.config.prices or {})), view)
                    with closing(answers.index):
                        code, report = _Run(self, given, answers).run()
                    if table is not None and code != INTERRUPTED:
                        code = self._write(replace(table, journal=results.place), rows, view) or code
                    if table is not None and code == INTERRUPTED:
                        told = f"paceline run: {table.path} is not written yet: run the same command again, which writes it at its end"
                        print(told, file=sys.stderr)  # noqa: T201
                    return code, report

    def _write(self, table: Table, rows: Rows, view: ProgressView) -> int:
        """Write the table of answers; return the exit code if that has failed."""
        try:
            count = table.write(rows, self.output.acceptance)
            rows_in = (
                "1 row with its answer or error is"
                if count == 1
                else f"{count:,} rows with their answers or errors are"
            )
            view.say(f"{rows_in} in {table.path}")
        except OutputError as error:
            print(f"paceline run: {error}", file=sys.stderr)  # noqa: T201
            return FAILED
        except KeyboardInterrupt:  # the answers are there
            return INTERRUPTED
        return DONE

    def group(self) -> ServerGroup | None:
        """The group that answers all requests, if one is set.

        Raises:
            SettingsError: It is invalid, or other settings exclude it.
        """
        if self.config.group is None:
            return None
        if self.config.base_url is not None:
            raise SettingsError("group and base_url exclude each other: the servers of a group have their addresses")
        if self.batching.mode != "sync":
            raise SettingsError(f"--mode {self.batching.mode}: a group sends requests one by one: use --mode sync")
        found = read_group(self.config, self.config.group, self.environ)
        for one in found.members.values():
            if not (one.key or is_loopback(urlsplit(one.root).hostname or "")):
                raise SettingsError(f"no key for {one.name}: set the environment variable {one.key_env}")
        return found

    @staticmethod
    def _require_other_file(file: BinaryIO, output: str) -> None:
        if output != STDOUT and os.path.exists(output) and os.path.samestat(os.fstat(file.fileno()), os.stat(output)):  # noqa: PTH110, PTH116
            raise OutputError(f"{output}: this is the input; choose another output with -o")

    def store(self, pools: Iterable[str], addresses: Mapping[str, ProviderAddress], view: ProgressView) -> Store | None:
        """The store for the quotas of ``pools``, after one exchange with it for each; ``None`` to keep the quotas in this process.

        Raises:
            StoreError: The configured store cannot be used.
        """
        try:
            store = choose_store(self.config, self.environ, [one.root for one in addresses.values()])
            if store is not None:
                account = partial(account_of, addresses=addresses, base_url=self.config.base_url, environ=self.environ)
                store = Prefixed(store, account)
                for pool in pools:
                    store.exchange(pool, Message("paceline run", 0, leaving=True))
        except StoreError as error:
            if self.config.store is not None or isinstance(error, StoreFormatError):
                raise StoreError(f"{error}; nothing has been sent") from None
            view.say(
                f"warning: {error}; so this run stores its quotas in memory: other runs don't share them, and the use"
                " of a day is lost at the end (--store names another place, --store memory: none)"
            )
            return None
        return store


class _Run:
    """One run of a job: its input is checked, its requests are sent, and its summary is printed."""

    def __init__(self, job: Job, given: Source, answers: RunAnswers) -> None:
        self._job, self._answers, self._group = job, answers, job.group()
        self._given = given if self._group is None else replace(given, provider=self._members[0].provider.name)
        provider = self._given.provider
        self._arguments = job.config.arguments(base_of(provider) if provider else _provider_of_first(self._given))
        self._limiter, self._store = Limiter(**self._arguments), cast("Store | None", None)

    @property
    def _members(self) -> Sequence[Server]:
        """The servers of the group that answers all requests, if there is one."""
        return self._group.servers if self._group is not None else ()

    def run(self) -> tuple[int, dict[str, Any]]:
        """Send everything.

        Returns:
            The exit code, and the summary.
        """
        job, file, saved = self._job, self._given.file, list[str]()
        results, tally, view = self._answers.results, self._answers.tally, self._answers.view
        try:
            journal = job.batching.journal(results, restart=job.output.restart)
            self._whole = self._repeats = journal is not None or self._checks_first()
            plan = self._check()
            journal = job.output.leave(results, journal, view)
            self._open(plan)
            with Reporter(self._notes(), file, job.source, job.shard, tally, self._meter, view) as reporter:
                try:
                    ended = self._one_by_one(reporter) if journal is None else self._in_batches(journal)
                finally:
                    saved += _save(results, tally)
                self._tell_added()
                if ended.stop is None:
                    results.finish(self._answers.index)
                code, report = self._end(ended)
                reporter.end(report)
            return code or (FAILED if saved else DONE), report
        finally:
            view.close()
            sys.stderr.writelines(f"paceline run: {line}\n" for line in saved)
            self._limiter.close()

    def _checks_first(self) -> bool:
        """Whether the whole input is checked before the first request: on demand, if it is small, or to resume a run."""
        job, results = self._job, self._answers.results
        return (
            job.check_first
            or job.strict
            or _size(self._given.file) <= CHECKED_FIRST_MAX
            or (not job.output.restart and results.has_lines())
        )

    def _check(self) -> InputPlan:
        """Check the input, or the beginning of it; find where its requests go, and open the store of their quotas."""
        index, view = self._answers.index, self._answers.view
        first, most = self._checking(index if self._whole else Index()), None if self._whole else SAMPLE
        plan = check(self._given, first, most=most, tick=lambda n: view.say(f"checked {n:,} requests"))
        _say(view, self._foretold(plan))
        self._addresses = self._addressed(plan)
        if self._job.batching.mode != "batch":
            self._store = self._job.store(plan.shares, self._addresses, view)
        if self._store is not None:
            self._limiter = Limiter(**self._arguments | {"store": self._store})
            _join(self._limiter, (share.model for share in plan.shares.values()))
        self._checker = self._checking(index)
        self._checker.plan = plan if self._whole else self._checker.plan
        return plan

    def _checking(self, index: Index) -> Checker:
        place = placing(self._job.config, self._limiter.limits, self._job.environ)
        return Checker(self._limiter, index, self._members, place)

    def _foretold(self, plan: InputPlan) -> Iterator[str]:
        """Where requests go that do not go to their provider, without the path, which may hold a key; and warnings."""
        for provider in () if self._members else plan.providers.values():
            root, variable = root_of(provider, self._job.config.base_url, self._job.environ)
            if root and root != usual_root(provider):
                host = "{0.scheme}://{0.netloc}".format(urlsplit(root))
                yield f"requests of {provider.name} go to {host}{variable and f' ({variable})'}"
        if self._job.batching.mode != "sync" and self._job.config.budget:
            yield "warning: the budget doesn't include the cost of batches; to stay within it, use --mode sync"
        if self._job.batching.mode != "batch":  # batches have other limits
            yield from (f"warning: {one}" for one in plan.warnings[:SHOWN])

    def _addressed(self, plan: InputPlan) -> dict[str, ProviderAddress]:
        """The addresses of the providers in ``plan``; where that is not the whole input, of all that have a key.

        Raises:
            SettingsError: A provider of ``plan`` has no address or no key.
        """
        if members := self._members:
            return {one.provider.name: address_at(one.provider, one.base_url, one.key or "none") for one in members}
        self._job.batching.require(plan.providers)
        addresses = {name: self._address(provider) for name, provider in plan.providers.items()}
        if not self._whole and self._given.provider is None:
            for name in {*FORMATS.values()} - addresses.keys():
                with suppress(SettingsError):
                    addresses[name] = self._address(provider_named(name))
        return addresses

    def _address(self, provider: Provider) -> ProviderAddress:
        return address_of(provider, self._job.config.base_url, self._job.environ)

    def _open(self, plan: InputPlan) -> None:
        """Recover the output, and say what is left to do."""
        job, answers, tally, view = self._job, self._answers, self._answers.tally, self._answers.view
        recovered = Recovered()
        if self._whole:
            recovered = answers.results.recover(answers.index, repair=job.output.repair)
        answers.before.update(recovered.before_this(plan.requests))
        tally.requests, tally.skipped = plan.requests + plan.refused, recovered.answered - recovered.doubtful
        tally.final = recovered.final + Counter({UNREAD: recovered.doubtful})
        tally.start = RunStart(self._limiter.status()["pools"])
        if not self._whole:
            file = self._given.file
            tally.requests, tally.about = tally.requests * _size(file) // file.tell(), "about "
        _say(view, _opened(self._given, answers))
        _say(view, opening(plan, recovered, tally))
        if job.batching.mode != "batch":  # batches have other limits
            _say(view, limits_now(plan, tally, self._limiter, self._store))
        self._meter = ProgressLine(self._checker.plan, tally, job.config.workers)

    def _notes(self) -> Notes | None:
        """Where this run reports its progress: beside its store, if that is in a place of its own."""
        return None if self._store is None else notes_beside(choose_store(self._job.config, self._job.environ))

    def _one_by_one(self, reporter: Reporter) -> Runner:
        """Send the requests one by one; return their sender."""
        current = self._runner(self._again() if self._whole else self._unchecked())
        if self._answers.tally.left:
            self._serve_page(reporter)
            asyncio.run(current.run())
        if self._lacks_some(stopped=current.stop is not None):
            current = self._runner(self._again())
            asyncio.run(current.run())
            self._lacks_some(stopped=True)
        return current

    def _in_batches(self, journal: BatchJournal) -> Runner | Offline:
        """Send in batches; where these are left for a deadline, send the rest one by one. Return the sender that was the last one.

        A request is sent one by one only after its batch has ended. Where the end of a cancelled batch takes too long, the others
        are sent first.
        """
        batching, answers, tally = self._job.batching, self._answers, self._answers.tally
        sender, path = cast("Runner | None", None), answers.results.path
        end_s = batching.end_s(journal)
        deadline = batching.deadline(end_s, self._checker.plan, self._limiter, tally, answers.view)
        while True:
            current = Offline(
                self._again, self._addresses, answers, journal=journal, most_lines=batching.batch_lines,
                queue=batching.batch_queue, deadline=deadline,
            )  # fmt: skip
            if tally.left or journal.unfinished or journal.lost:
                try:
                    journal.open()
                    journal.keep_deadline(end_s)
                    asyncio.run(current.run(create=sender is None))
                finally:
                    journal.close()
            if current.stop is not None or not (current.left if sender is None else tally.left):
                if self._lacks_some(stopped=current.stop is not None):
                    journal = BatchJournal(path, reread=sender is None)
                    continue
                _forget_deadline(journal, ended=current.stop is None)
                return current
            sender = self._runner(self._free(current.batches))
            asyncio.run(sender.run())
            lacking = self._lacks_some(stopped=sender.stop is not None)
            journal = BatchJournal(path)
            if sender.stop is not None or not (journal.unfinished or lacking):
                _forget_deadline(journal, ended=sender.stop is None)
                return sender

    def _runner(self, source: Iterator[Described]) -> Runner:
        """The sender of some requests, with connections of its own."""
        config, answers = self._job.config, self._answers
        client = RunClient(
            self._limiter, self._addresses, config.timeout_s, answers.view.say, answers.tally.sent.attempts,
            lambda: bool(answers.results.kept), self._group,
        )  # fmt: skip
        return Runner(source, client, answers, self._meter, Packer(self._checker.describe), config.workers)

    def _free(self, batches: Batches) -> Iterator[Described]:
        """The requests that are in no batch, each once."""
        for request, metered in self._again():
            if not batches.holds(request.line) and self._answers.index.mark(request.line):
                yield request, metered

    def _again(self) -> Iterator[Described]:
        """The requests of a checked input that are still to be sent, read one at a time from the first line on."""
        given, index, last_line = self._given, self._answers.index, self._checker.plan.last_line
        line, changed = 0, "the input has changed since it was checked"
        for line, raw in given.lines():
            if line > last_line:
                return
            if index.is_done(line):
                continue
            with explaining(f"{changed}: {given.unit} {line}", kind=BadLineError, of=BadLineError):
                request = given.read(line, raw)
                metered = self._checker.describe(request)
            if index.line_of(request.custom_id) != line:
                raise BadLineError(f"{changed}: {given.unit} {line}: its custom_id was not {request.custom_id!r:.100}")
            yield request, metered
        if line < last_line:
            raise BadLineError(f"{changed}: it had a line {last_line}")

    def _unchecked(self) -> Iterator[Described]:
        """The requests, each checked when it is read. A line that cannot be sent is reported, and counts as failed.

        Of a row that is recorded, too. A line may have no id of its own.
        """
        given, checker, plan, bad = self._given, self._checker, self._checker.plan, 0
        size, warned, tally, view = _size(given.file), len(plan.warnings), self._answers.tally, self._answers.view
        for line, raw in given.lines():
            try:
                request = given.read(line, raw)
                if request.provider.name not in self._addresses:
                    self._address(request.provider)  # raises: it has no key
                found = request, checker.add(request)
            except (BadLineError, SettingsError) as error:
                plan.requests, bad = plan.requests + 1, bad + 1
                if given.strict:
                    tally.fail("bad_line")
                else:
                    checker.refuse(line, raw, str(error))
                    _record(line, decode(raw or b"")["custom_id"], str(error), self._answers)
                if bad <= SHOWN:
                    view.say(f"{given.unit} {line}: {error}; it is not sent")
                continue
            tally.requests = max(plan.requests * size // given.file.tell(), plan.requests)
            for warning in plan.warnings[warned : SHOWN if line > SAMPLE else 0]:
                view.say(f"warning: {warning}")
            warned = len(plan.warnings)
            yield found
        tally.requests, tally.about = plan.requests, ""

    def _lacks_some(self, *, stopped: bool) -> bool:
        """Count what another program has cut off the output meanwhile; return whether requests are to be sent again.

        Once, because that program may go on, and only if the whole input is checked.

        Args:
            stopped: Whether nothing may be sent any more.
        """
        answers, results = self._answers, self._answers.results
        results.settle()
        if not results.shortened:
            return False
        gone = answers.tally.recount(*results.recount(answers.index))
        _record_refused(answers)
        again, self._repeats = self._repeats and not stopped, False
        if gone:
            then = "their requests are sent again" if again else "the same command again sends their requests"
            answers.view.say(f"another program has cut {gone:,} answers off {results.path}: {then}")
        return gone > 0 and again

    def _tell_added(self) -> None:
        """Say how many lines a checked input has got meanwhile."""
        plan = self._checker.plan
        if not self._whole or _size(self._given.file) <= plan.end:
            return
        if added := sum(line > plan.last_line for line, _ in self._given.lines()):
            text = f"{added:,} lines were added to the input after it was checked: the same command again sends them"
            self._answers.view.say(text)

    def _serve_page(self, reporter: Reporter) -> None:
        """Serve the status page with the counts of this run until the process ends.

        Raises:
            SettingsError: The port is taken, or the server is missing.
        """
        if self._job.page is not None:
            unusable = f"--page {self._job.page}: the port cannot be used"
            with explaining(unusable), explaining("--page", of=ImportError):
                from paceline.telemetry.server import StatusServer

                url = StatusServer(RunStatus(self._limiter, reporter), "127.0.0.1", self._job.page, None).url
            print(f"paceline run: page at {url}", file=sys.stderr)  # noqa: T201

    def _end(self, ended: Runner | Offline) -> tuple[int, dict[str, Any]]:
        """Print the summary; return the exit code and the summary."""
        stop, output, tally, view = ended.stop, self._job.output, self._answers.tally, self._answers.view
        results = self._answers.results
        calls = tally.sent.calls if isinstance(ended, Offline) else tally.sent.attempts
        report = tally.report(
            self._limiter.status()["pools"],
            calls=calls,
            interrupted=stop is not None and stop[0] == INTERRUPTED,
            store=self._store.url if self._store else None,
            output=results.place if output.keeps else None,
        )
        if self._job.batching.mode != "sync":
            report["batches"] = tally.sent.batches
        lines = in_words(report, tally)
        if isinstance(ended, Offline):
            left = report["batches_in_progress"] = ended.batches.journal.unfinished
            going = f"the provider continues with {counted(left, 'batch')}: " if left else ""
            again = f"{going}the same command again continues"
            made = f"{calls.made:,} calls, {calls.refused:,} of them refused with a 429"
            lines = [lines[0], f"{counted(tally.sent.batches, 'batch')} created in {made}", *lines[2:]]
        else:
            resumes = results.resumable and output.keeps
            again = "the same command again sends the rest" if resumes else "nothing can be resumed"
            lines += ended.client.reach.at_end()
        view.close()
        _say(view, lines)
        if stop is not None:
            with suppress(OSError):  # the terminal was closed
                requests = f"{tally.about}{counted(tally.left, 'request')}"
                print(f"paceline run: stopped: {stop[1]}; {requests} left: {again}", file=sys.stderr)  # noqa: T201
            return stop[0], report
        if output.keeps:
            _say(view, tally.remedies(report, self._job.form.caller))
        return FAILED if tally.failed or tally.final or tally.left else DONE, report


def choose_store(config: Config, environ: Mapping[str, str], roots: Sequence[str] = ()) -> Store | None:
    """The configured store, or the user's state file; ``None`` for ``memory:``, and for servers on this machine.

    Raises:
        StoreError: Invalid store URL, or no home folder.
    """
    if config.store is not None:
        return as_store(config.store)
    hosts = [urlsplit(root).hostname or "" for root in roots or [config.base_url or ""]]
    if all(map(is_loopback, hosts)):  # a server on this machine is a test's
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PacelineWarning)  # the check has named the command line's option
        for model in models:
            provider, _, name = model.partition("/")
            limiter.pacer.pools.of_model(provider, name).refresh()


def _opened(given: Source, answers: RunAnswers) -> Iterator[str]:
    """Open the output, and record the rows that cannot be sent and have no answer of an earlier run; returns lines about them.

    Raises:
        OutputError: The output cannot take them.
    """
    count, results = 0, answers.results
    results.open()
    for count, (line, _, why) in enumerate(answers.index.refused(), 1):
        if count <= SHOWN:
            yield f"{given.unit} {line}: {why}; it is not sent"
    _record_refused(answers)
    if count > SHOWN:
        yield f"and {count - SHOWN:,} more {given.unit}s"
    if results.kept:
        raise OutputError(f"{results.path}: cannot be written: {results.why}; nothing has been sent")


def _record_refused(answers: RunAnswers) -> None:
    """Record the rows that cannot be sent and that the output does not have."""
    for line, custom_id, why in answers.index.refused():
        if answers.index.mark(line):
            _record(line, custom_id, why, answers)


def _record(line: int, custom_id: str | int, why: str, answers: RunAnswers) -> None:
    """Record a row that cannot be sent.

    Raises:
        OutputError: A pipe or a device has failed.
    """
    error = {"code": INVALID_ROW, "message": why}
    answers.write(answers.record(line, custom_id, None, error, 0, raised=False))


def _say(view: ProgressView, lines: Iterable[str]) -> None:
    for line in lines:
        view.say(line)


def _save(results: ResultsFile, tally: RunTally) -> Iterator[str]:
    """Write what the output lacks, if it can take it now; returns lines that say where the answers are otherwise."""
    settled = results.settle()
    if not settled:
        results.rescue()
    if results.place != results.path:
        yield (
            f"{results.path} belongs to another file now, or cannot be written: all answers are in {results.place}: move it to"
            f" {results.path}, and the same command again continues"
        )
        settled = not results.kept
    if settled:
        return
    unable, saved = f"{results.path} cannot be written: {results.why}", len(results.kept) - results.unsaved
    if not results.kept:
        yield f"{unable}: run the same command again"
    if saved:
        again = "; the same command again adds them" if results.resumable else ""
        yield f"{unable}: {saved:,} answers are in {results.saved()}{again}"
    for line in islice(results.kept, saved, None):
        ok = json.loads(line)["error"] is None
        tally.ok, tally.failed = tally.ok - ok, tally.failed - (not ok)
    if results.unsaved:
        yield f"{unable}: {results.unsaved:,} answers fit nowhere else either and are lost; their requests are left"


def _forget_deadline(journal: BatchJournal, *, ended: bool) -> None:
    """Begin anew with the next command, if this run has ended."""
    if ended and journal.deadline is not None:
        with suppress(OutputError):  # nothing is lost without it
            journal.open()
            journal.keep_deadline(None)
        journal.close()


def _size(file: BinaryIO) -> int:
    """The bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def _provider_of_first(given: Source) -> str | None:
    """The provider of the first request, whose tables a tier refers to."""
    for line, raw in given.lines():
        with suppress(BadLineError):
            return given.read(line, raw).provider.name
        if given.strict:
            break
    return None


def _open_input(path: str) -> BinaryIO:
    """The input as a file that can be read twice; the content of a pipe is copied to a temporary file first."""
    with explaining(f"{path}: cannot be read"):
        file: BinaryIO = open(0, "rb", closefd=False) if path == STDIN else Path(path).open("rb")  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.seekable():
        file.seek(0)
        return file
    with file, ExitStack() as made:
        spool = made.enter_context(temporary())
        shutil.copyfileobj(file, spool, 2**20)
        spool.seek(0)
        made.pop_all()
    return spool
