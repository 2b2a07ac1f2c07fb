"""Gates behind a gate: slots in flight that all models of a provider share, and the least time between two requests."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any, cast

from paceline.core.line import Ticket
from paceline.core.outcomes import Outcome, Refusal, Reservation
from paceline.core.quota import CONCURRENCY, NS, REQUESTS, Cost
from paceline.gate import Gate, Waiting
from paceline.shared import SharedGate

Walk = Generator[tuple[Gate | None, Ticket], Outcome, Outcome]
"""Where to wait next with which ticket (``None``: at the first gate), given what came of it; returns how it ended."""

MOMENT_NS = NS // 10
"""Pauses that differ by less are the same: a store says how long is left each time it is asked."""

KEPT = 256
"""How many requests may be in flight before those that nobody closed are looked for."""


def with_gates(gate: Gate, further: list[Gate]) -> Gate:
    """A gate to the same pool, whose requests go through ``further`` gates when they are granted here.

    Slots come last: nobody holds one while it waits for a quota, so a slow model keeps none from a fast one, and who
    holds one waits for nothing of ours: there is no deadlock. Who waits further on holds its own pool's charge, which
    comes back if it goes. The pool should have as many slots of its own: then no more than those are ever granted and
    not gone yet, and the pool's own pace is kept but for them.
    """
    if isinstance(gate, SharedGate):
        return _SharedFirst(gate, further)
    return _First(gate.pool, gate._clock, further=further)  # noqa: SLF001  (the same gate, made again)


class _First(Gate):
    """The first of several gates, to all whom it serves the only one."""

    def __init__(self, *pool_and_clock: Any, further: list[Gate]) -> None:
        super().__init__(*pool_and_clock)
        self.further = further
        self._at: dict[Ticket, tuple[Gate, Ticket]] = {}  # granted here, and waiting there
        self._passed: dict[Reservation, list[tuple[Gate, Reservation]]] = {}
        self._look_at = KEPT

    def attempt(self, ticket: Ticket) -> Outcome:
        """See :meth:`Gate.attempt`."""
        with closing(self._walk(ticket)) as walk:
            gate, there = next(walk)
            while True:
                try:
                    gate, there = walk.send(super().attempt(there) if gate is None else gate.attempt(there))
                except StopIteration as end:
                    return cast("Outcome", end.value)

    def wait(self, ticket: Ticket) -> Outcome:
        """See :meth:`Gate.wait`."""
        with closing(self._walk(ticket)) as walk:
            gate, there = next(walk)
            while True:
                try:
                    gate, there = walk.send(super().wait(there) if gate is None else gate.wait(there))
                except StopIteration as end:
                    return cast("Outcome", end.value)

    async def wait_async(self, ticket: Ticket) -> Outcome:
        """See :meth:`Gate.wait_async`."""
        with closing(self._walk(ticket)) as walk:
            gate, there = next(walk)
            while True:
                outcome = await (super().wait_async(there) if gate is None else gate.wait_async(there))
                try:
                    gate, there = walk.send(outcome)
                except StopIteration as end:
                    return cast("Outcome", end.value)

    def why(self, ticket: Ticket) -> Waiting | None:
        """See :meth:`Gate.why`."""
        further = self._at.get(ticket)
        return super().why(ticket) if further is None else further[0].why(further[1])

    def settle(self, reservation: Reservation, actual: Cost | None, ticket: Ticket | None = None) -> None:
        """See :meth:`Pool.settle`."""
        super().settle(reservation, actual, ticket)
        self._land(reservation)

    def cancel(self, reservation: Reservation) -> None:
        """See :meth:`Pool.cancel`."""
        super().cancel(reservation)
        self._land(reservation)

    def refuse(self, reservation: Reservation, refusal: Refusal, pause_s: float) -> None:
        """See :meth:`Pool.refuse`."""
        super().refuse(reservation, refusal, pause_s)
        self._land(reservation)

    def after_fork(self) -> None:
        """In a forked child: who was in flight stayed with the parent."""
        super().after_fork()
        self._at, self._passed = {}, {}

    def _walk(self, ticket: Ticket) -> Walk:
        """From gate to gate; whoever leaves on the way gives back what it was granted."""
        while True:
            granted = yield None, ticket
            if not isinstance(granted, Reservation):
                return granted
            until_ns = self.pool.ledger.not_before_ns
            try:
                for gate in self.further:
                    there = Ticket({REQUESTS: 1, CONCURRENCY: 1}, ticket.lane, ticket.deadline_ns)
                    self._at[ticket] = gate, there
                    step = yield gate, there
                    if not isinstance(step, Reservation):
                        self.cancel(granted)
                        return step
                    granted.granted_ns = step.granted_ns  # it has not gone before
                    self._pass(granted, gate, step)
            except BaseException:
                self.cancel(granted)
                raise
            finally:
                self._at.pop(ticket, None)
            if self.pool.ledger.not_before_ns <= max(until_ns + MOMENT_NS, self.now_ns()):
                return granted
            self.cancel(granted)  # the provider asked for a pause meanwhile: back to the front of the line
            ticket.returned = True

    def _pass(self, reservation: Reservation, gate: Gate, further: Reservation) -> None:
        if len(self._passed) > self._look_at:
            for lost in [other for other in list(self._passed) if not other.open]:
                self._land(lost)
            self._look_at = 2 * len(self._passed) + KEPT
        self._passed.setdefault(reservation, []).append((gate, further))

    def _land(self, reservation: Reservation) -> None:
        for gate, further in self._passed.pop(reservation, ()):
            gate.settle(further, None)


class _SharedFirst(_First, SharedGate):
    def __init__(self, gate: SharedGate, further: list[Gate]) -> None:
        super().__init__(gate.pool, gate._clock, gate._courier, further=further)  # noqa: SLF001
