"""How a run sends: one by one, in batches, or in batches while there is time for the rest before its deadline."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.batch import offline
from paceline.batch.check import InputPlan
from paceline.batch.endpoints import ENDPOINTS
from paceline.batch.journal import BatchJournal
from paceline.batch.progress import ProgressView, eta_s
from paceline.batch.results import OutputError, ResultsFile
from paceline.batch.summary import RunTally, in_time
from paceline.batch.timing import Deadline
from paceline.core.hints import counted
from paceline.core.results import SettingsError
from paceline.limiter.limiter import Limiter


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
        deadline = Deadline(left_s, lambda count: eta_s(plan, limiter.status()["pools"], count), offline.TIMING)
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
