"""Whether the store of the quotas lets requests go."""

from __future__ import annotations

from paceline.pacing.scheduler import Worker
from paceline.pacing.settings import OnStoreFailure
from paceline.shared.worker import StoreWorker


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
        return (self._mode == "fail_safe" and worker.knows) or worker.contact.answers()
