"""A run from start to end: check the input, recover the output, send, and say what came of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, Final

import httpx2

from paceline.batch.check import SHOWN, Plan, check
from paceline.batch.index import Index
from paceline.batch.progress import Meter, View, eta_s
from paceline.batch.requests import BadLineError, Request, read_lines, read_request
from paceline.batch.results import STDOUT, OutputError, Recovered, Results
from paceline.batch.runner import Address, Runner, Stop
from paceline.batch.state import State, account
from paceline.batch.summary import Tally, in_time, in_words
from paceline.config import Config
from paceline.core.results import QuotaError
from paceline.limiter.limiter import Limiter
from paceline.providers.base import Provider
from paceline.providers.registry import locate, provider_for_host, provider_named

STDIN: Final = "-"
DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
_CODES = {Stop.INTERRUPTED: INTERRUPTED, Stop.KEY: USAGE, Stop.MONEY: FAILED, Stop.OUTPUT: FAILED}

ROOTS: Final = {"openai": "https://api.openai.com", "anthropic": "https://api.anthropic.com"}
"""Whose paths are those of the batch formats; everybody else's root is given with ``--base-url``."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to do.

    Attributes:
        source: The input's path; ``-`` for standard input.
        output: The output's path; ``-`` for standard output; beside the input when ``None``.
        config: The settings.
        restart: Send everything again; the old output is kept under another name.
        environ: Where keys and the user's state folder are.
    """

    source: str
    output: str | None = None
    config: Config = field(default_factory=Config)
    restart: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def run(self, view: View) -> tuple[int, dict[str, Any]]:
        """Do it.

        Returns:
            The exit code, and the summary.

        Raises:
            PacelineError: It could not start: nothing has been sent.
        """
        output = self._output()
        with _open_input(self.source) as file:
            self._distinct(file, output)
            with Results(output) as results:
                return self._run(file, results, view)

    def _run(self, file: BinaryIO, results: Results, view: View) -> tuple[int, dict[str, Any]]:
        provider = self._provider()
        state = State(self.config, self.environ, self._account)
        arguments = self.config.arguments(provider or _provider_of_first(file))
        limiter = Limiter(**arguments | {"store": state.store})
        index = Index()
        try:
            plan = check(file, limiter, index, provider=provider, tick=lambda n: _tick(view, n))
            for warning in plan.warnings[:SHOWN]:
                view.say(f"warning: {warning}")
            addresses = {name: self._address(page) for name, page in plan.pages.items()}
            if fault := state.join(limiter, [share.model for share in plan.shares.values()]):
                view.say(f"warning: {fault}")
            if self.restart and (aside := results.set_aside()):
                view.say(f"the old answers are in {aside}")
            recovered = results.recover(index)
            start = limiter.status()["pools"]
            tally = Tally(plan.requests, recovered.answered, start=start, store=state.url)
            for line in _opening(plan, recovered, tally, start):
                view.say(line)
            results.open()
            file.seek(0)
            source = _requests(file, index, provider, max(plan.last_line, 0))
            meter = Meter(plan, tally, self.config.workers)
            runner = Runner(source, limiter, self.config, addresses, results, tally, view, meter)
            if tally.left:
                asyncio.run(runner.run())
            return self._end(runner, limiter, tally, view, results)
        finally:
            view.close()
            index.close()
            limiter.close()

    def _end(
        self, runner: Runner, limiter: Limiter, tally: Tally, view: View, results: Results
    ) -> tuple[int, dict[str, Any]]:
        flight, stop = runner.flight, runner.stop
        report = tally.report(
            limiter.status()["pools"],
            attempts=flight.attempts,
            refused=flight.refused,
            elapsed_s=flight.last_s - flight.first_s,
            output=results.path,
            interrupted=stop is not None and stop[0] is Stop.INTERRUPTED,
        )
        view.close()
        for line in [*in_words(report, tally.left), *runner.reach.at_end()]:
            view.say(line)
        if stop is not None:
            again = "the same command again sends the rest" if results.resumable else "nothing can be resumed"
            print(f"paceline run: stopped: {stop[1]}; {tally.left:,} requests left: {again}", file=sys.stderr)  # noqa: T201
            return _CODES[stop[0]], report
        if tally.failed:
            view.say("the same command again sends the failed ones once more")
        return (FAILED if tally.failed else DONE), report

    def _output(self) -> str:
        if self.output is not None:
            return self.output
        if self.source == STDIN:
            raise QuotaError("standard input needs an output: -o FILE, or -o - for standard output")
        return self.source.removesuffix(".jsonl") + ".results.jsonl"

    def _distinct(self, file: BinaryIO, output: str) -> None:
        if output == STDOUT:
            return
        try:
            if os.path.samestat(os.fstat(file.fileno()), os.stat(output)):  # noqa: PTH116
                raise OutputError(f"{output}: that is the input; choose another output with -o")
        except FileNotFoundError:
            return

    def _provider(self) -> str | None:
        """Whose dialect every line speaks; ``None`` for that of its format."""
        if self.config.provider:
            return provider_named(self.config.provider).name
        page = provider_for_host(httpx2.URL(self.config.base_url).host) if self.config.base_url else None
        return page.name if page else None

    def _located(self, page: Provider) -> tuple[str, str]:
        return locate(page, self.config.base_url or ROOTS.get(page.name), self.environ)

    def _account(self, pool: str) -> str:
        return account(*self._located(provider_named(pool.partition("/")[0])))

    def _address(self, page: Provider) -> Address:
        root, key = self._located(page)
        headers = {"content-type": "application/json", "accept": "application/json", "user-agent": "paceline"}
        if page.name == "anthropic":
            headers |= {"x-api-key": key, "anthropic-version": "2023-06-01"}
        else:
            headers |= {"authorization": f"Bearer {key}"}
        return Address(root, headers, key, page.key_env)


def _tick(view: View, requests: int) -> None:
    if requests and requests % 200_000 == 0:
        view.say(f"checked {requests:,} requests")


def _opening(plan: Plan, recovered: Recovered, tally: Tally, pools: dict[str, Any]) -> Iterator[str]:
    """What is known before the first request: what is left to do, under which limits, and how long it takes at least."""
    if recovered.torn:
        yield "the last line of the output was torn, and has been cut"
    if recovered.strangers:
        yield f"warning: {recovered.strangers:,} answers in the output are for ids that the input does not have; they stay"
    before = f", {recovered.answered:,} answered before" if recovered.answered else ""
    again = f", {recovered.failed:,} failed before and are sent again" if recovered.failed else ""
    yield f"{plan.requests:,} requests{before}{again}"
    yield f"state: {tally.store or 'in this process only'}"
    for name in list(plan.shares)[:SHOWN]:
        yield f"{name}: {_limits(pools[name]['quotas'])}"
    least_s = eta_s(plan, pools, tally.left)
    if least_s >= 1:
        yield f"{tally.left:,} to send: at least {in_time(least_s)} under these limits"


def _limits(quotas: Sequence[Mapping[str, Any]]) -> str:
    """Quotas, and where they come from: those of one source together."""
    parts = []
    for source, group in groupby(quotas, lambda quota: quota["source"]):
        shown = "learned from answers" if source == "answer" else source
        parts.append(f"{', '.join(quota['quota'] for quota in group)} ({shown})")
    return ", ".join(parts)


def _requests(file: BinaryIO, index: Index, provider: str | None, last_line: int) -> Iterator[Request]:
    """What is still to be sent, read as it is asked for."""
    for line, raw in read_lines(file):
        if line > last_line:
            return
        if not index.is_done(line):
            try:
                yield read_request(line, raw, provider)
            except BadLineError as error:
                raise BadLineError(f"the input has changed since it was checked: line {line}: {error}") from None


def _provider_of_first(file: BinaryIO) -> str | None:
    """Whose format the first request has: its tables are meant by a tier."""
    try:
        return next((read_request(line, raw).page.name for line, raw in read_lines(file)), None)
    except BadLineError:
        return None
    finally:
        file.seek(0)


def _open_input(path: str) -> BinaryIO:
    """The input as a file that can be read twice; what comes through a pipe is spooled first."""
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
