"""The first request of a prefix that the provider has not cached yet: the others with that prefix wait until it is written.

A prefix is readable when the answer that writes it begins. Requests that are sent before pay for it each, in money and in quota. A
run has no use for a short latency, so it waits.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from paceline.core.quota import NS
from paceline.estimation.prefixes import Prompt
from paceline.pacing.clock import Clock

HOLD_S: Final = 5.0
"""The longest wait for a prefix, from its first request on: most answers have begun by then."""

WRITTEN_S: Final = 240.0
"""For so long after its first request a prefix counts as written: it lives for five minutes."""

PREFIXES_MAX: Final = 10_000
"""The prefixes that are known as written; the oldest is dropped first."""


class Leads:
    """The first requests of prefixes, in one event loop.

    Args:
        clock: The clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: dict[int, tuple[int, asyncio.Event]] = {}  # by prefix: when it was sent, and when it is over
        self._written: OrderedDict[int, int] = OrderedDict()  # by prefix: when its first request was sent

    @asynccontextmanager
    async def behind(self, prompt: Prompt | None) -> AsyncIterator[None]:
        """Around a request: it waits for the first one of its prefix, if there is one, or is the first one."""
        now_ns = self._clock.now_ns()
        prefix = prompt.unwritten(now_ns) if prompt is not None else None
        if prefix is None or now_ns < self._written.get(prefix, -NS * 10**9) + WRITTEN_S * NS:
            yield
            return
        first = self._first.get(prefix)
        if first is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(first[0] / NS + HOLD_S - now_ns / NS, 0.0)):
                    await first[1].wait()
            yield
            return
        over = asyncio.Event()
        self._first[prefix] = now_ns, over
        try:
            yield
            self._written.pop(prefix, None)
            self._written[prefix] = now_ns
            if len(self._written) > PREFIXES_MAX:
                self._written.popitem(last=False)
        finally:
            del self._first[prefix]
            over.set()
