"""The lane that whatever happens here goes through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from paceline.core.queue import LaneName, Lanes

current_lane: ContextVar[LaneName] = ContextVar("paceline_lane", default=("default", None, None))


@contextmanager
def lane(name: str, *, weight: float | None = None, priority: int | None = None) -> Iterator[None]:
    """Everything acquired inside goes through the lane ``name``, however deep inside an SDK.

    Args:
        name: The lane.
        weight: Its share among busy lanes of the same priority, for what is acquired inside; what the limiter knows, or 1.
        priority: Higher goes first, strictly; the latest holds for everybody in the lane. What the limiter knows, or 0.
    """
    _ = Lanes()[name, weight, priority]  # what cannot be meant is said here
    token = current_lane.set((name, weight, priority))
    try:
        yield
    finally:
        current_lane.reset(token)
