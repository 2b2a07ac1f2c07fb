"""How many calls of one function run at a time: as many as their limiters let go, and a few that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from paceline.core.results import NOT_QUOTAS
from paceline.pacing.permit import Acquisition

AHEAD = 64
"""So many calls at most wait for a permit, or have not asked for one yet. It is more than a limiter grants at one instant in most
pools, so that no permit waits for a call; and a function that asks for no permits has no more calls at a time."""


class CrowdPlace:
    """One call in a crowd.

    Attributes:
        crowd: The crowd.
        waits: How many of its requests wait for a permit; one more until it has its first permit.
        is_called: Whether its function was called.
        has_permit: Whether it has had a permit.
        has_ended: Whether it has ended. A task that it has left behind may still wait for a permit.
    """

    __slots__ = ("crowd", "has_ended", "has_permit", "is_called", "waits")

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.waits, self.is_called, self.has_permit, self.has_ended = 1, False, False, False

    @property
    def is_in_flight(self) -> bool:
        """Whether it may have sent a request: it was called, and doesn't wait for its first permit."""
        return self.is_called and (self.has_permit or self.waits <= 1)


_places: ContextVar[tuple[CrowdPlace, ...]] = ContextVar("paceline_places", default=())
"""The calls around the present code: the function of one crowd may make calls in another one."""


class Crowd:
    """The calls that run, for threads and tasks at once. To be made in the event loop that starts them.

    Args:
        most: How many calls run at most.

    Attributes:
        most: The same.
        running: How many calls run, or have a result that is not read yet.
        ahead: How many of them wait for a permit, or have not asked for one yet, or have a value that the journal does not take.
        called: How many calls have ended.
        asking: How many items wait for the journal: another process works at them.
        is_paced: Whether a call has asked for a permit.
        has_failed: Whether no further call may send its first request.
        has_ended: Whether a call that still waits must not go on.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.running = self.ahead = self.called = self.asking = 0
        self.is_paced = self.has_failed = self.has_ended = False
        self._lock = threading.RLock()  # a finalizer may end a wait while this thread counts another one
        self._waiting: dict[Acquisition, None] = {}  # in the order of their waits
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    async def room(self) -> None:
        """Wait until one more call may run."""
        while self.running >= self.most or self.ahead >= AHEAD:
            self._changed.clear()
            await self._changed.wait()

    def join(self) -> CrowdPlace:
        """Count one more call."""
        with self._lock:
            self.running += 1
            self.ahead += 1
        return CrowdPlace(self)

    def hold(self, place: CrowdPlace) -> None:
        """Count a call whose value its journal does not take as one that is ahead, until it leaves."""
        with self._lock:
            self.ahead += not place.waits
            place.waits = max(place.waits, 1)

    def leave(self, place: CrowdPlace) -> None:
        """Count a call that has ended."""
        with self._lock:
            self.ahead -= place.waits > 0
            place.waits, place.has_ended = 0, True
        self._changed.set()

    def take(self) -> None:
        """Count a result that was read."""
        with self._lock:
            self.running -= 1
        self._changed.set()

    @contextmanager
    def inside(self, place: CrowdPlace) -> Iterator[None]:
        """A call: what the block calls belongs to ``place``."""
        token, place.is_called = _places.set((*_places.get(), place)), True
        try:
            yield
        finally:
            _places.reset(token)
            self.called += 1

    @contextmanager
    def around_wait(self, acquisition: Acquisition) -> Iterator[None]:
        """A wait for a permit, in the context of the one who waits; see :data:`~paceline.pacing.permit.around_waits`.

        Raises:
            CallEndedError: The crowd has failed, and the call has had no permit. After the wait also if the crowd has
                ended meanwhile, and the call has not.
        """
        place = next((place for place in _places.get() if place.crowd is self), None)
        if place is None:
            yield
            return
        is_first = not place.has_permit
        if self.has_failed and is_first:
            raise CallEndedError
        self._wait(place, 1)
        self._waiting[acquisition] = None
        try:
            yield
        finally:
            del self._waiting[acquisition]
            self._wait(place, -1)
        if (self.has_ended or (self.has_failed and is_first)) and not place.has_ended:
            raise CallEndedError

    def why(self) -> str | None:
        """What the calls wait for, in words; ``None`` if they wait for answers alone."""
        waiting = list(self._waiting)
        for one in waiting:
            if (why := one.why()) is not None:
                what = NOT_QUOTAS[why.quota].awaited if why.quota in NOT_QUOTAS else why.quota
                after = "" if why.expected_wait_s is None else f", the next one {why.expected_wait_s:,.0f} s"
                return f"{len(waiting):,} calls wait for {what} of {one.pool}{after}"
        return f"{self.asking:,} items wait for another process that works at them" if self.asking else None

    def _wait(self, place: CrowdPlace, change: int) -> None:
        """Count a request of the call that begins (1) or ends (-1) to wait."""
        with self._lock:
            self.is_paced = True
            before = place.waits > 0
            place.waits += change
            if change < 0 and not place.has_permit:
                place.has_permit = True
                place.waits -= 1
            self.ahead += (place.waits > 0) - before
        if change < 0:
            with suppress(RuntimeError):  # the loop is closed: the crowd has ended
                self._loop.call_soon_threadsafe(self._changed.set)


class CallEndedError(BaseException):
    """A call must not send its request: its crowd has ended or failed."""
