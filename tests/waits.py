"""Waits for what another thread, task or process brings about."""

import asyncio
import time

BOUND_S = 60.0
"""Only a broken test gets here, also on a busy machine."""


def until(condition, what="it", seconds=BOUND_S):
    """Poll until ``condition()`` is true."""
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.001)


async def soon(condition, what="it"):
    """The same, while the event loop goes on."""
    deadline_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        await asyncio.sleep(0.001)
