"""A buffer between two phases of a pipeline: the first phase is held while enough items are prepared for the second."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Self

from paceline.core.pool import WAITING_MAX
from paceline.core.results import QueueFullError, QuotaError, public
from paceline.pacing.forks import reentrant_lock
from paceline.pacing.owners import Owner, TaskOwner, ThreadOwner, wake_all
from paceline.pacing.sync import awaited, run_sync


@public
class Buffer:
    """A bounded number of items between two phases of a pipeline, with a low and a high watermark.

    An item takes a place before it is prepared, and gives the place back when the next phase has taken it. At ``high``
    items the buffer is held: further items wait, in the order of arrival. When fewer than ``low`` items are left, it
    fills again. Threads and event loops can share it::

        buffer = paceline.Buffer(low=40, high=60)
        async with buffer.place():  # or `with`
            await prepare(paper)
            await review(paper)
        await publish(paper)

    An item that fails or is cancelled leaves the buffer with its block. An item must not wait for a second place of the
    same buffer while it has one.

    Args:
        low: The buffer fills again when it has fewer items; from 1 to ``high``.
        high: The most items in the buffer.

    Raises:
        QuotaError: A watermark is not a whole number, or not in its range.
    """

    def __init__(self, *, low: int, high: int) -> None:
        for name, mark, most in (("high", high, WAITING_MAX), ("low", low, high)):
            if isinstance(mark, bool) or not isinstance(mark, int) or not 1 <= mark <= most:
                raise QuotaError(f"{name} of a buffer is {mark!r}: it must be a whole number from 1 to {most:,}")
        self.low, self.high = low, high
        self._lock = reentrant_lock()  # reentrant: a finalizer may end a block while this thread is in another one
        self._taken: dict[Place, Owner] = {}
        self._waiting: OrderedDict[Place, Owner] = OrderedDict()
        self._filling = True

    def place(self) -> Place:
        """Return the place of one item. The start of its ``with`` or ``async with`` block takes it."""
        return Place(self)

    def status(self) -> dict[str, Any]:
        """Return the state as JSON values: items in the buffer, items ``waiting`` for a place, watermarks."""
        with self._lock:
            taken, waiting = len(self._taken), len(self._waiting)
            return {"items": taken, "waiting": waiting, "filling": self._filling, "low": self.low, "high": self.high}

    def _enter(self, place: Place, owner: Owner) -> bool:
        """Take ``place``, or let it wait with ``owner``; whether it was taken at once."""
        with self._lock:
            if place in self._taken or place in self._waiting:
                raise RuntimeError("this place of a buffer is in use: call buffer.place() for each item")
            if self._filling and not self._waiting:
                self._take(place, owner)
                return True
            if len(self._waiting) >= WAITING_MAX:
                raise QueueFullError("buffer", len(self._waiting))
            self._waiting[place] = owner
            return False

    def _take(self, place: Place, owner: Owner) -> None:
        self._taken[place] = owner
        self._filling = len(self._taken) < self.high

    def _leave(self, place: Place) -> None:
        """Give ``place`` back, or stop waiting for it; then let others take what is free."""
        taken = []
        with self._lock:
            self._waiting.pop(place, None)
            self._taken.pop(place, None)
            self._filling = self._filling or len(self._taken) < self.low
            while self._filling and self._waiting:
                following, owner = self._waiting.popitem(last=False)
                self._take(following, owner)
                taken.append(owner)
        for loop in wake_all(taken):
            self._drop(loop)

    def _drop(self, loop: object) -> None:
        """Give back the places of a closed loop."""
        with self._lock:
            owners = [*self._taken.items(), *self._waiting.items()]
            lost = [place for place, owner in owners if getattr(owner, "loop", None) is loop]
        # Not under the lock, because ``_leave`` wakes the owners of the next places.
        for place in lost:
            self._leave(place)


class Place:
    """The place of one item in a :class:`Buffer`; can be taken again after it was given back."""

    __slots__ = ("_buffer",)

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer

    def release(self) -> None:
        """Give the place back, now rather than at the end of the block; without effect if that was done."""
        self._buffer._leave(self)  # noqa: SLF001

    async def _taken(self, owner: Owner, wait: Callable[[], object]) -> Self:
        """Take it, and ``wait`` before, if the buffer is held."""
        if not self._buffer._enter(self, owner):  # noqa: SLF001
            try:
                await awaited(wait())
            except BaseException:  # KeyboardInterrupt; or cancelled, before the place was taken or just after it
                self.release()
                raise
        return self

    def __enter__(self) -> Self:
        owner = ThreadOwner()
        return run_sync(self._taken(owner, owner.wait))

    async def __aenter__(self) -> Self:
        owner = TaskOwner()
        return await self._taken(owner, lambda: owner.future)

    def __exit__(self, *_: object) -> None:
        self.release()

    async def __aexit__(self, *_: object) -> None:
        self.release()
