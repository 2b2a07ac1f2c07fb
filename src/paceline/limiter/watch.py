"""Whether the store of the quotas lets requests go."""

from __future__ import annotations

from typing import Final

from paceline.core.results import StoreError
from paceline.pacing.scheduler import Worker
from paceline.shared.capacity import shared_capacity
from paceline.shared.membership import OnStoreFailure
from paceline.shared.messages import Message
from paceline.shared.worker import StoreWorker

POOL: Final = "gateway"
"""The name of the pool without quotas for which the store is asked."""


class StoreWatch:
    """Looks whether the store answers.

    Args:
        worker: Makes the exchanges with the store; ``None`` without one.
        mode: What this process grants while the store is lost.
    """

    def __init__(self, worker: Worker | None, mode: OnStoreFailure) -> None:
        self._worker, self._mode = worker, mode

    @property
    def shared(self) -> bool:
        """Whether there is a store, so that the next process goes on with the same quotas."""
        return self._worker is not None

    def answers(self) -> bool:
        """Whether requests can be granted; it may take the time that a store has for an answer.

        In the mode ``fail_safe`` the store must have answered once: without the other processes' use no share is known.
        """
        worker = self._worker
        if not isinstance(worker, StoreWorker) or self._mode == "fail_open":
            return True
        schedulers = list(worker.schedulers) if self._mode == "fail_safe" else []
        if any(shared_capacity(scheduler.pool).membership.state.known for scheduler in schedulers):
            return True
        try:
            worker.store.exchange(POOL, Message("gateway", 0, leaving=True))
        except StoreError:
            return False
        return True
