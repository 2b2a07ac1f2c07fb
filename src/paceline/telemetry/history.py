"""The last minutes of a limiter: the levels of its quotas, its queues, and what was logged."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from paceline.core.pool import Pool

STEP_S: Final = 1.0
"""The time between two samples."""

SAMPLES: Final = 600
"""The samples that are kept of each pool: ten minutes."""

POOLS_MAX: Final = 200
"""The number of pools whose samples are kept, in the order of their names."""

EVENTS: Final = 200
TEXT_MAX: Final = 500
"""How many events are kept, and characters of each."""

log = logging.getLogger("paceline")

Sample = tuple[float, int, int, int, int, dict[str, float]]
"""The time, in seconds since the epoch; waiting; in flight; granted and refused so far; the share of each quota that is left."""


class Reporting(Protocol):
    """A :class:`~paceline.Limiter`, or an object with a similar status."""

    def status(self) -> Mapping[str, Any]:
        """Plain JSON values; every pool by its name below ``pools``."""


class Recorder(logging.Handler):
    """Samples a limiter each second, from a thread of its own, and keeps what paceline logs.

    Args:
        limiter: A limiter, which is sampled without its whole status; or any object with a ``status()``.
        now_s: The present, in seconds since the epoch.
    """

    def __init__(self, limiter: Reporting, now_s: Callable[[], float] = time.time) -> None:
        super().__init__(logging.WARNING)
        self._limiter, self._now_s = limiter, now_s
        self._pools: dict[str, deque[Sample]] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def start(self) -> None:
        """Begin, unless it has begun."""
        with self._guard:
            if self._thread is None:
                logging.getLogger("paceline").addHandler(self)
                self.sample()
                self._thread = threading.Thread(target=self._run, name="paceline-history", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End; what was recorded stays."""
        self._ended.set()
        logging.getLogger("paceline").removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record of paceline's loggers; it has no keys and no prompts."""
        text = record.getMessage()
        self._events.append({"t": round(record.created, 3), "level": record.levelname.lower(), "text": text[:TEXT_MAX]})

    def _run(self) -> None:
        while not self._ended.wait(STEP_S):
            try:
                self.sample()
            except Exception:  # a step is missing, and the next one is not
                log.exception("no sample for the page")

    def sample(self) -> None:
        """Take a sample of every pool."""
        now_s = round(self._now_s(), 3)
        for name, sample in self._samples(now_s):
            kept = self._pools.get(name)
            if kept is None:
                if len(self._pools) >= POOLS_MAX:
                    continue
                kept = self._pools[name] = deque(maxlen=SAMPLES)
            kept.append(sample)

    def _samples(self, now_s: float) -> Iterator[tuple[str, Sample]]:
        pacer = getattr(self._limiter, "pacer", None)
        if pacer is None:
            for name, pool in self._limiter.status()["pools"].items():
                yield name, _of_status(now_s, pool)
        else:
            for scheduler in (*pacer.pools.in_use, *pacer.allowances.schedulers):
                pool = scheduler.pool
                yield pool.name, scheduler.read(lambda now_ns, pool=pool: _of_pool(now_s, pool, now_ns))

    def document(self, since_s: float = 0.0) -> dict[str, Any]:
        """What was recorded after ``since_s``, as JSON values; of each pool a column for each number."""
        pools = {}
        for name, samples in list(self._pools.items()):
            newer = [sample for sample in list(samples) if sample[0] > since_s]
            if newer:
                pools[name] = _columns(newer)
        events = [event for event in list(self._events) if event["t"] > since_s]
        now_s = round(self._now_s(), 3)
        return {"time": now_s, "step_s": STEP_S, "keep_s": STEP_S * SAMPLES, "pools": pools, "events": events}


def _of_pool(now_s: float, pool: Pool, now_ns: int) -> Sample:
    ledger, counts = pool.ledger, pool.counts
    refused = sum(count for kind, count in counts.items() if kind.startswith("refused_"))
    left = {one.name: _share(one.meter.level(now_ns), one.meter.quota.amount) for one in ledger.accounts}
    return now_s, pool.queue.length, ledger.in_flight, counts["granted"], refused, left


def _of_status(now_s: float, pool: dict[str, Any]) -> Sample:
    counts = pool.get("counts", {})
    refused = sum(count for kind, count in counts.items() if kind.startswith("refused_"))
    left = {quota["quota"]: _share(quota["remaining"], quota["limit"]) for quota in pool.get("quotas", ())}
    return now_s, pool.get("waiting", 0), pool.get("in_flight", 0), counts.get("granted", 0), refused, left


def _share(level: float, amount: float) -> float:
    return round(min(max(level / amount, 0.0), 1.0), 4)


def _columns(samples: list[Sample]) -> dict[str, Any]:
    names = ("t", "waiting", "in_flight", "granted", "refused")
    columns: dict[str, Any] = {name: [sample[i] for sample in samples] for i, name in enumerate(names)}
    quotas = dict.fromkeys(quota for sample in samples for quota in sample[5])
    columns["quotas"] = {quota: [sample[5].get(quota) for sample in samples] for quota in quotas}
    return columns
