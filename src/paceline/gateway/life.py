"""The life of a gateway: what it does with requests from its start to its end."""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Final


class State(Enum):
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


class Event(Enum):
    """What changes the state."""

    STARTED = "started"
    ASKED = "asked"  # to end, by a signal
    HURRIED = "hurried"  # by Ctrl-C
    CLOSED = "closed"  # the listener


NEXT: Final = MappingProxyType(
    {
        (State.STARTING, Event.STARTED): State.SERVING,
        (State.STARTING, Event.ASKED): State.LEAVING,
        (State.SERVING, Event.ASKED): State.LEAVING,
        (State.SERVING, Event.CLOSED): State.FINISHING,  # its program ends it
        (State.LEAVING, Event.CLOSED): State.FINISHING,
        **{(state, Event.HURRIED): State.ENDING for state in State},
    }
)
"""The state that follows; other pairs change nothing."""


def after(state: State, event: Event) -> State:
    """The state after ``event``."""
    return NEXT.get((state, event), state)


class Life:
    """What one gateway does with requests now.

    Args:
        shares: Whether the next process shares the quotas with this one, so that requests may wait until the end.

    Attributes:
        state: Its state.
    """

    def __init__(self, *, shares: bool) -> None:
        self.state, self._shares = State.STARTING, shares

    def change(self, event: Event) -> bool:
        """Go on to the state after ``event``; whether it is another one."""
        before, self.state = self.state, after(self.state, event)
        return self.state is not before

    @property
    def draining(self) -> bool:
        """Whether requests that wait, and new ones, are turned away: only the store tells the next process what is used."""
        return self.state.closed and not (self.state.patient and self._shares)
