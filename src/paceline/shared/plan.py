"""The plan of an account that processes share through a store: a window that one has seen shut is shut for all.

Each process has its own copy, and opens it gently. The store has the pause of all, so that one process asks whether a window is open, and
notes of what they know: what is shut, what answers have stated of each window, when a person was there. While the store is lost, each process goes
on with its copy.
"""

from __future__ import annotations

import json
from typing import Any, Final

from paceline.core.allowance import OPENS_NS
from paceline.core.capacity import PENDING, Resolution
from paceline.core.ledger import Ledger
from paceline.core.pause import CLOSED, PROBE_NS, PausePhase
from paceline.core.plan import THERE_NS, Plan, PlanCapacity
from paceline.core.queue import LaneSpec, Queue, Waiter
from paceline.core.quota import NS, Cost
from paceline.core.results import COOL_DOWN, Decision, Refusal, Reservation, WaitUntil
from paceline.shared.exchange import ASK_AGAIN_NS, PLACE_NS, StoreSide
from paceline.shared.messages import POLL_NS, Note, Noted, Refused, Settled, StoreReply

KNOWN_NS: Final = NS
"""For how long a process goes on by the last reply: with many requests, a message a second."""

SHUT, PERSON, WINDOW = "shut", "person", "window "
"""The notes: what is shut, that a person was there, and, with its name, what is known of a window."""


class SharedPlan(StoreSide, PlanCapacity):  # type: ignore[override]  # attributes of the one are properties of the other
    """The capacity of the pool that all requests of an account pass, in all processes."""

    def __init__(self, plan: Plan, ledger: Ledger, queue: Queue, now_ns: int, *, who: str, **options: Any) -> None:
        PlanCapacity.__init__(self, plan, ledger)
        # No leases: the ledger has no quotas, so there is nothing to lend.
        StoreSide.__init__(self, Ledger((), now_ns), queue, now_ns, who=who, **options | {"lease_s": 0.0})
        self._probe: Reservation | None = None  # that all processes wait for
        self._goes = self._probes = False  # the last reply lets one go, as the probe
        self._tested_ns = 0  # until then the outcome of another process's probe is awaited
        self._known = self.allowance.told(0)  # of all processes
        self._person_ns = 0  # when a person was told of

    def forked(self, who: str, now_ns: int) -> None:
        super().forked(who, now_ns)
        self._probe, self._goes, self._probes = None, False, False  # the probe is the parent's

    def reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        pause = self.ledger.pause
        # At the end of a pause the store chooses the process that probes. In an open pool a recent reply is enough.
        if pause.phase is CLOSED:
            knows = self._goes or now_ns < pause.until_ns
        else:
            knows = self.membership.state.known and now_ns < self.snapshot.as_of_ns + KNOWN_NS
        if not (knows or self.membership.state.alone):
            self.free_ns = 0
            return PENDING
        decision = super().reserve(now_ns, waiter)
        if isinstance(decision, WaitUntil):
            # Asked before the end, too, because another process may find the window open.
            self.free_ns = min(decision.at_ns, self._ask_ns(now_ns))
        elif self._probes and isinstance(decision, Reservation):
            self._probe, self._probes, self._goes = decision, False, False
        # A note for each request would be a message for each. This is 16 minutes of 16 hours.
        if self.plan.person_ns > self._person_ns + THERE_NS // 60:
            self._person_ns = self.plan.person_ns
            self._note(now_ns, PERSON, "")
        return decision

    def is_free(self, now_ns: int, lane: LaneSpec) -> bool:  # noqa: ARG002
        """See :meth:`PlanCapacity.is_free`: another process may know better."""
        return False

    def _ask_ns(self, now_ns: int) -> int:
        """When to ask the store next: soon, while a probe of another process is under way."""
        after_ns = ASK_AGAIN_NS if now_ns < self._tested_ns else PLACE_NS
        return self.snapshot.as_of_ns + max(after_ns, self.membership.peers * POLL_NS)

    def wake_ns(self, now_ns: int, head: Waiter) -> int | None:
        at_ns = super().wake_ns(now_ns, head)
        return at_ns if at_ns is None or at_ns > now_ns or self.membership.state.alone else None  # a reply lets it go

    def note_window(self, now_ns: int, window: str, text: str) -> None:
        self._note(now_ns, WINDOW + window, text)

    def _note(self, now_ns: int, key: str, text: str) -> None:
        self.outbox.add(now_ns, Noted(key, text))
        self.exchange_due = True

    def receive(self, now_ns: int, reply: StoreReply) -> Resolution:
        """See :meth:`StoreSide.receive`; takes what other processes know, and whether one may go."""
        resolution = super().receive(now_ns, reply)
        if self.membership.state.alone:
            return resolution
        pause, self._goes = self.ledger.pause, bool(reply.grants)
        if self._goes:
            self._tested_ns = 0
        # Another process tests it, or is about to.
        elif pause.phase is CLOSED and now_ns > pause.until_ns - ASK_AGAIN_NS:
            self._tested_ns = now_ns + min(reply.pause_ns, OPENS_NS)
        for note in reply.notes:
            self._hear(now_ns, note)
        if now_ns < self._tested_ns:
            self.head.ask_ns = min(self.head.ask_ns, self._ask_ns(now_ns))
        if self._goes:
            self._probes = reply.probe
            # Not with news on its way: if a refusal is among it, the store did not know of the latest pause.
            if pause.phase is CLOSED and self.outbox.empty:
                pause.lift(now_ns, pause.until_ns)
        elif reply.pause_ns > 0 and self.allowance.is_shut and pause.phase is not PausePhase.PROBING:
            pause.begin(now_ns + reply.pause_ns, COOL_DOWN, OPENS_NS)
        return resolution

    def _hear(self, now_ns: int, note: Note) -> None:
        try:
            if note.key == SHUT:
                self._tested_ns = 0
                # A note of this process that waits to be sent is newer than the store's.
                if not self.outbox.has_note(SHUT):
                    self.allowance.adopt(now_ns - note.age_ns, json.loads(note.text))
                    self._known = self.allowance.told(0)
            elif note.key == PERSON:
                self.plan.person_ns = max(self.plan.person_ns, now_ns - note.age_ns)
                self._person_ns = max(self._person_ns, self.plan.person_ns)
            elif note.key.startswith(WINDOW):
                self.heard(note.key.removeprefix(WINDOW), note.text, note.age_ns)
        # A note of another version is skipped: the plan goes on without it.
        except (ValueError, TypeError):
            pass

    def settle(self, now_ns: int, reservation: Reservation, actual: Cost | None) -> list[float]:
        true = super().settle(now_ns, reservation, actual)
        self._ended(now_ns, reservation)
        return true

    def admitted(self, now_ns: int, reservation: Reservation) -> None:
        super().admitted(now_ns, reservation)
        self._ended(now_ns, reservation)

    def cancel(self, now_ns: int, reservation: Reservation) -> None:
        super().cancel(now_ns, reservation)
        self._ended(now_ns, reservation, answered=False)

    def refuse(
        self,
        now_ns: int,
        reservation: Reservation,
        refusal: Refusal,
        pause_ns: int,
        opens_ns: int | None = None,
        probe_ns: int = PROBE_NS,
    ) -> bool:
        """See :meth:`Capacity.refuse <paceline.core.capacity.Capacity.refuse>`; all processes pause."""
        changed = super().refuse(now_ns, reservation, refusal, pause_ns, opens_ns, probe_ns)
        self._goes = self._probes = False
        if reservation is self._probe:
            self._probe = None
        self.outbox.add(now_ns, Refused([], pause_ns, OPENS_NS), at_once=True)
        self._ended(now_ns, reservation)
        return changed

    def _ended(self, now_ns: int, reservation: Reservation, *, answered: bool = True) -> None:
        """Tell the store of the probe, and of what is shut now."""
        if reservation is self._probe:
            self._probe = None
            self.outbox.add(now_ns, Settled([], [], [], answered=answered, probe=True), at_once=True)
            self.exchange_due = True
        # At 0 the times are instants, so that nothing differs because time has passed.
        if self._known != self.allowance.told(0):
            self._known = self.allowance.told(0)
            self._note(now_ns, SHUT, json.dumps(self.allowance.told(now_ns)))
