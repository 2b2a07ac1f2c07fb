"""The life of a gateway: what it does with requests from its start to its end."""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Final


class LifeState(Enum):
    """What a gateway does with requests.

    Attributes:
        word: Its name in ``/readyz``.
        ready: Whether new requests are to be sent to it.
        closed: Whether its listener is closed, so that only what has come before is finished.
        patient: Whether requests may wait.
    """

    #           word  ready  closed  patient
    STARTING = "starting", False, False, True
    SERVING = "serving", True, False, True
    LEAVING = "leaving", False, False, True  # load balancers see it, and its listener is still open
    FINISHING = "stopping", False, True, True  # what waits goes on, where the next process shares the quotas
    ENDING = "ending", False, True, False  # only what is in flight is finished

    def __init__(self, word: str, ready: bool, closed: bool, patient: bool) -> None:
        self.word, self.ready, self.closed, self.patient = word, ready, closed, patient


class LifeEvent(Enum):
    """What changes the state."""

    STARTED = "started"
    ASKED = "asked"  # to end, by a signal
    HURRIED = "hurried"  # by Ctrl-C
    CLOSED = "closed"  # the listener


NEXT: Final = MappingProxyType(
    {
        (LifeState.STARTING, LifeEvent.STARTED): LifeState.SERVING,
        (LifeState.STARTING, LifeEvent.ASKED): LifeState.LEAVING,
        (LifeState.SERVING, LifeEvent.ASKED): LifeState.LEAVING,
        (LifeState.SERVING, LifeEvent.CLOSED): LifeState.FINISHING,  # its program ends it
        (LifeState.LEAVING, LifeEvent.CLOSED): LifeState.FINISHING,
        **{(state, LifeEvent.HURRIED): LifeState.ENDING for state in LifeState},
    }
)
"""The state that follows; other pairs change nothing."""


class Life:
    """What one gateway does with requests now.

    Args:
        shares: Whether the next process shares the quotas with this one, so that requests may wait until the end.

    Attributes:
        state: Its state.
    """

    def __init__(self, *, shares: bool) -> None:
        self.state, self._shares = LifeState.STARTING, shares

    def change(self, event: LifeEvent) -> bool:
        """Go on to the state after ``event``; whether it is another one."""
        before, self.state = self.state, NEXT.get((self.state, event), self.state)
        return self.state is not before

    @property
    def draining(self) -> bool:
        """Whether requests that wait, and new ones, are turned away: only the store tells the next process what is used."""
        return self.state.closed and not (self.state.patient and self._shares)
