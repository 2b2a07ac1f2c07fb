"""A pause: nothing goes before an instant, then one attempt, the probe, and the others after its answer.

After a long pause many wait, and nothing else bounds them. Then two follow the beginning of the probe's answer, and of
each further one that goes one follows the beginning of the answer, and one its end: twice as many in each round, and no
herd.

A refusal, a silence or the breaker of a host begins a pause. It is in the ledger of the pool, which reports grants,
answers to the probe (``settle``), refused probes (``refuse``) and unsent ones (``cancel``).

Where processes share the quotas, there are two, and both hold: a refusal pauses all processes, in the ledger of the
store, and a silence or the breaker pauses one, in its ``SharedCapacity``. The Redis script pauses by the same table.

A stop has a pause of its own, in which requests are refused.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from paceline.core.quota import NS
from paceline.core.results import COOL_DOWN

PROBE_NS: Final = 2 * NS
"""How long after a pause the others wait for the answer to the probe, at most: a refusal comes at once."""

T = TypeVar("T")


class PausePhase(Enum):
    """What may go."""

    OPEN = "open"  # everything
    CLOSED = "closed"  # nothing before the end of the pause, then the probe
    PROBING = "probing"  # the probe is in flight: nothing before its answer, or before its time is over
    OPENING = "opening"  # two more for each answer: one at its beginning, one at its end


CLOSED, OPEN = PausePhase.CLOSED, PausePhase.OPEN
"""For the path of every request: the look-up of a member of an enum takes as long as a call."""


class PauseEvent(Enum):
    """What changes the phase."""

    BEGIN = "begin"  # a pause begins, or becomes longer
    GRANT = "grant"  # an attempt goes at or after the end of the pause
    MORE = "more"  # an answer lets others go
    UNSENT = "unsent"  # the probe was not sent: another attempt becomes the probe
    LIFT = "lift"  # the pause is over: its probe was answered, or none is needed


NEXT: Final = MappingProxyType(
    {
        (PausePhase.OPEN, PauseEvent.BEGIN): PausePhase.CLOSED,
        (PausePhase.OPEN, PauseEvent.LIFT): PausePhase.OPEN,
        (PausePhase.CLOSED, PauseEvent.BEGIN): PausePhase.CLOSED,
        (PausePhase.CLOSED, PauseEvent.GRANT): PausePhase.PROBING,
        (PausePhase.CLOSED, PauseEvent.LIFT): PausePhase.OPEN,
        (PausePhase.CLOSED, PauseEvent.MORE): PausePhase.OPENING,
        (PausePhase.PROBING, PauseEvent.BEGIN): PausePhase.CLOSED,  # the present probe tells nothing of the new pause
        (PausePhase.PROBING, PauseEvent.GRANT): PausePhase.PROBING,
        (PausePhase.PROBING, PauseEvent.UNSENT): PausePhase.CLOSED,
        (PausePhase.PROBING, PauseEvent.LIFT): PausePhase.OPEN,
        (PausePhase.PROBING, PauseEvent.MORE): PausePhase.OPENING,
        (PausePhase.OPENING, PauseEvent.BEGIN): PausePhase.CLOSED,
        (PausePhase.OPENING, PauseEvent.GRANT): PausePhase.OPENING,
        (PausePhase.OPENING, PauseEvent.MORE): PausePhase.OPENING,
        (PausePhase.OPENING, PauseEvent.LIFT): PausePhase.OPEN,
    }
)
"""The phase that follows; the other pairs do not occur."""


class Pause(Generic[T]):
    """The pause of a pool, or of one process.

    Attributes:
        phase: What may go.
        until_ns: No grant before this instant. ``shared`` sets it without an event in three cases: in a process's copy
            of the store's pause, whose phase the store alone knows; with all other instants when the store's clock was
            set; and until other processes have reported to a store that was away, because no probe follows that.
        probe: The probe in flight; ``None`` in the other phases.
        reason: Why nothing goes: what users read of the pause that ends last, or that was the last one.
        opens_ns: How long the others wait for an answer where two follow each; 0: all follow the probe's.
        probe_ns: How long they wait for the probe's.
    """

    __slots__ = ("_gone", "_room", "opens_ns", "phase", "probe", "probe_ns", "reason", "until_ns")

    def __init__(self, until_ns: int = 0, *, closed: bool = False, probe: T | None = None) -> None:
        self.until_ns, self.probe, self.reason = until_ns, probe, COOL_DOWN
        self.phase = PausePhase.CLOSED if closed else PausePhase.OPEN if probe is None else PausePhase.PROBING
        self.probe_ns = PROBE_NS
        self.opens_ns = self._room = 0  # how many more may go by the answers so far
        self._gone: dict[T, bool] = {}  # since the pause, without the end of an answer; whether it has begun

    def begin(self, until_ns: int, reason: str = COOL_DOWN, opens_ns: int = 0, probe_ns: int = PROBE_NS) -> None:
        """Grant nothing before ``until_ns``, for ``reason``; both stay where the pause in force ends later."""
        # The pause that ends last is in force, so its reason is what users read.
        if until_ns >= self.until_ns:
            self.reason = reason
        # Answers to what went before this pause let none go after it.
        # A pause that opens gently still does after another one in between, because as many wait.
        self._room, self.opens_ns = 0, max(self.opens_ns, opens_ns)
        self._gone.clear()
        # One of the refusals that pause together may come sooner than the probe's, or state no wait.
        self.probe_ns = max(probe_ns, self.probe_ns) if self.phase is CLOSED else probe_ns
        self._step(PauseEvent.BEGIN, None, max(self.until_ns, until_ns))

    @property
    def counts(self) -> bool:
        """Whether a grant is to be told: it becomes the probe, or uses up what an answer let go."""
        return self.phase is CLOSED or (self.opens_ns > 0 and self.phase is not OPEN)

    def granted(self, now_ns: int, attempt: T) -> None:
        """Take an attempt that goes after the pause for its probe. The others wait for its answer.

        When that time is over, a ledger lets the others go, and the answer still counts. A stop, and a pause in whose
        end two follow each answer, take the next attempt for the probe.
        """
        if not self.opens_ns:
            # At 600 requests/min, a stall of 5 s cost 40 refusals if all went at its end, and 12 with a probe.
            self._step(PauseEvent.GRANT, attempt, now_ns + self.probe_ns)
            return
        self._gone[attempt] = False
        # It is 0 for the probe, and for one that goes because no answer came within `opens_ns`.
        self._room = max(self._room - 1, 0)
        # While it opens, each attempt that has gone may let others go, not one alone.
        probe = None if self.phase is PausePhase.OPENING else attempt
        self._step(PauseEvent.GRANT, probe, now_ns if self._room else now_ns + self.opens_ns)

    def answered(self, now_ns: int, attempt: T, *, ended: bool = True) -> None:
        """Let the others go, if ``attempt`` is the probe; or one or two of them, if it has gone since the pause.

        ``ended``: whether its answer has ended, and not only begun.
        """
        if self.opens_ns:
            begun = self._gone.pop(attempt, None)
            if not ended and begun is not None:
                self._gone[attempt] = True
            if begun is not None and (ended or not begun):
                # The first beginning lets two go, so that each round is twice as large. A later answer lets one go at
                # its beginning and one at its end, or both at its end if that is all that is seen.
                more = 2 if not begun and (ended or self.phase is not PausePhase.OPENING) else 1
                # What is unused, because a quota binds, does not add up: it would go at once later.
                self._room = max(self._room, more)
                self._step(PauseEvent.MORE, None, min(self.until_ns, now_ns))
        elif self.probe is not None and attempt == self.probe:
            self._step(PauseEvent.LIFT, None, min(self.until_ns, now_ns))

    def unsent(self, now_ns: int, attempt: T) -> None:
        """Let another attempt go in the place of ``attempt``, if that is the probe, or has gone since the pause."""
        if self.probe is not None and attempt == self.probe:
            self._step(PauseEvent.UNSENT, None, min(self.until_ns, now_ns))
        # False: it has gone, and its answer has not begun. It has used up one that an answer let go.
        elif self._gone.get(attempt) is False and self.phase is PausePhase.OPENING:
            self._room += 1
            self._step(PauseEvent.MORE, None, min(self.until_ns, now_ns))
        self._gone.pop(attempt, None)

    def lift(self, now_ns: int, until_ns: int) -> None:
        """End the pause until ``until_ns``, if it is the one in force; no probe is needed.

        Where two follow each answer, one goes: those that waited for that wait still.
        """
        # A longer pause may have begun meanwhile for another reason. It stays.
        if self.until_ns == until_ns > now_ns:
            self._room = 1 if self.opens_ns else 0
            self._step(PauseEvent.MORE if self.opens_ns else PauseEvent.LIFT, None, now_ns)

    def empty(self) -> None:
        """End the pause if it opens: none waits."""
        if self.phase is PausePhase.OPENING:
            self._step(PauseEvent.LIFT, None, 0)

    def end(self) -> None:
        """End the pause; no probe is needed."""
        self._step(PauseEvent.LIFT, None, 0)

    def _step(self, event: PauseEvent, probe: T | None, until_ns: int) -> None:
        self.phase, self.probe, self.until_ns = NEXT[self.phase, event], probe, until_ns
        if self.phase is OPEN:
            self.opens_ns = self._room = 0
            self._gone.clear()
        assert (self.probe is not None) == (self.phase is PausePhase.PROBING)
