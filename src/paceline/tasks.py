"""A coroutine that waits for its ticket. Apart, so that asyncio is imported only where a task waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from paceline.gate import set_all

if TYPE_CHECKING:
    from paceline.gate import Others


class Task:
    """A coroutine that waits on a future of its loop."""

    __slots__ = ("future", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()

    def wake(self, others: Others) -> None:
        """See :meth:`~paceline.gate.Owner.wake`."""
        if asyncio._get_running_loop() is self.loop:  # noqa: SLF001  (get_running_loop raises off a loop)
            set_all([self.future])
        else:
            others.setdefault(self.loop, []).append(self.future)
