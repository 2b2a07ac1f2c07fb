"""The last minutes of a limiter: the levels of its quotas, its queues, and what was logged."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from paceline.core.budget import ALONE
from paceline.core.pool import Pool
from paceline.core.quota import REQUESTS, Rule
from paceline.core.results import StoreError
from paceline.pacing.lines import KEEPS, is_shown

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

SPEED_S, SPEED_MIN_S = 60.0, 5.0
"""The time over which the speed of a pool is measured, and the least."""


class PoolSample(NamedTuple):
    """The numbers of a pool at one instant.

    Attributes:
        waiting, in_flight: The requests that wait, and those in flight.
        granted, refused: So far.
        left: The share of each quota that is left.
        spent: Of each quota with a period of ``SPEED_S`` at most, the amount so far without refused attempts, and the limit per second.
    """

    waiting: int
    in_flight: int
    granted: int
    refused: int
    left: dict[str, float]
    spent: dict[str, tuple[float, float]]


class Sample(NamedTuple):
    """A state, and what has changed until then.

    Attributes:
        t: The time, in seconds since 1970.
        speed: Of each quota in ``state.spent``, the speed in the last ``SPEED_S``, as a share of its limit.
    """

    t: float
    state: PoolSample
    speed: dict[str, float]

    def sharing(self, last: Sample) -> Sample:
        """This sample, with what is equal in the last one."""
        state = last.state if last.state == self.state else self.state
        return Sample(self.t, state, last.speed if last.speed == self.speed else self.speed)


class Reporting(Protocol):
    """A :class:`~paceline.Limiter`, or an object with a similar status."""

    def status(self) -> Mapping[str, Any]:
        """Plain JSON values; every pool by its name below ``pools``."""


def _recorders() -> list[logging.Handler]:
    return [handler for handler in logging.getLogger("paceline").handlers if hasattr(handler, KEEPS)]


class Recorder(logging.Handler):
    """Samples a limiter each second, from a thread of its own, and keeps what paceline logs.

    Args:
        limiter: A limiter, which is sampled without its whole status; or any object with a ``status()``.
        now_s: The present, in seconds since the epoch.
    """

    def __init__(self, limiter: Reporting, now_s: Callable[[], float] = time.time) -> None:
        super().__init__(logging.WARNING)
        setattr(self, KEEPS, True)
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
                self._try_sample()
                self._thread = threading.Thread(target=self._run, name="paceline-history", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End; what was recorded stays. A configuration of ``logging`` closes all handlers, and does not end this."""
        self._ended.set()
        logging.getLogger("paceline").removeHandler(self)
        self.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record of paceline's loggers; it has no keys and no prompts."""
        text = record.getMessage()
        self._events.append({"t": round(record.created, 3), "level": record.levelname.lower(), "text": text[:TEXT_MAX]})
        if logging.lastResort is not None and not is_shown(record.name) and _recorders()[:1] == [self]:
            logging.lastResort.handle(record)  # as without a page

    def _run(self) -> None:
        while not self._ended.wait(STEP_S):
            self._try_sample()

    def _try_sample(self) -> None:
        try:
            self.sample()
        except StoreError:  # of a page over a store: its status says so
            pass
        except Exception:  # a step is missing, and the next one is not
            log.exception("no sample for the page")

    def sample(self) -> None:
        """Take a sample of every pool."""
        now_s = round(self._now_s(), 3)
        for name, state in self._states():
            kept = self._pools.get(name)
            if kept is None:
                if len(self._pools) >= POOLS_MAX:
                    continue
                kept = self._pools[name] = deque(maxlen=SAMPLES)
            new = Sample(now_s, state, _speed(kept, now_s, state))
            # An idle pool has the same numbers each second, which are kept once.
            kept.append(new.sharing(kept[-1]) if kept else new)

    def _states(self) -> Iterator[tuple[str, PoolSample]]:
        pacer = getattr(self._limiter, "pacer", None)
        if pacer is None:
            for name, pool in self._limiter.status()["pools"].items():
                yield name, _of_status(pool)
        else:
            for scheduler in (*pacer.pools.in_use, *pacer.allowances.schedulers):
                pool = scheduler.pool
                yield pool.name, scheduler.read(lambda now_ns, pool=pool: _of_pool(pool, now_ns))

    def document(self, since_s: float = 0.0) -> dict[str, Any]:
        """What was recorded after ``since_s``, as JSON values; of each pool a column for each number."""
        pools = {}
        for name, samples in list(self._pools.items()):
            newer = [sample for sample in list(samples) if sample.t > since_s]
            if newer:
                pools[name] = _columns(newer)
        events = [event for event in list(self._events) if event["t"] > since_s]
        now_s = round(self._now_s(), 3)
        return {"time": now_s, "step_s": STEP_S, "keep_s": STEP_S * SAMPLES, "pools": pools, "events": events}


def _speed(kept: deque[Sample], now_s: float, state: PoolSample) -> dict[str, float]:
    """The speed of each quota at ``now_s``, since the first of the ``kept`` samples that is not too old."""
    recent = islice(kept, max(len(kept) - round(SPEED_S / STEP_S), 0), None)
    first = next((one for one in recent if one.t >= now_s - SPEED_S), None)
    if first is None or now_s - first.t < SPEED_MIN_S:
        return {}
    before = first.state.spent
    return {
        name: round(max(spent - before[name][0], 0.0) / (now_s - first.t) / limit, 4)
        for name, (spent, limit) in state.spent.items()
        if name in before
    }


def _of_pool(pool: Pool, now_ns: int) -> PoolSample:
    ledger, counts = pool.ledger, pool.record.counts
    known = [entry for entry in ledger.entries if entry.meter.is_known and entry.unit != ALONE]
    left = {one.name: _share(one.meter.level(now_ns), one.meter.quota.amount) for one in known}
    spent = {
        one.name: (one.spent - one.refused, quota.amount / quota.period_s)
        for one in known
        for quota in [one.meter.quota]
        if _has_speed(quota.rule, quota.period_s)
    }
    return PoolSample(pool.queue.length, ledger.in_flight, counts["granted"], _refused(counts), left, spent)


def _of_status(pool: Mapping[str, Any]) -> PoolSample:
    counts = pool.get("counts", {})
    quotas = [quota for quota in pool.get("quotas", ()) if quota["limit"]]
    left = {quota["quota"]: _share(quota["remaining"], quota["limit"]) for quota in quotas}
    spent = {
        quota["quota"]: (quota["spent"] - quota.get("refused", 0.0), quota["limit"] / quota["period_s"])
        for quota in quotas
        if "spent" in quota and _has_speed(quota.get("rule"), quota.get("period_s", 0.0))
    }
    waiting, refused = pool.get("waiting", 0), _refused(counts)
    if "processes" in pool:  # of a store, which knows both in another form
        waiting = pool["processes"]["waiting"]
        refused = round(max((quota["refused"] for quota in quotas if quota["unit"] == REQUESTS), default=0))
    return PoolSample(waiting, pool.get("in_flight", 0), counts.get("granted", 0), refused, left, spent)


def _has_speed(rule: str | None, period_s: float) -> bool:
    """Whether what a quota grants in a minute can be compared with its limit; else the amount that is used can."""
    return rule != Rule.SLOTS and 0 < period_s <= SPEED_S


def _refused(counts: Mapping[str, int]) -> int:
    return sum(count for kind, count in counts.items() if kind.startswith("refused_"))


def _share(level: float, amount: float) -> float:
    return round(min(max(level / amount, 0.0), 1.0), 4)


def _columns(samples: list[Sample]) -> dict[str, Any]:
    names = ("waiting", "in_flight", "granted", "refused")
    columns: dict[str, Any] = {name: [getattr(sample.state, name) for sample in samples] for name in names}
    columns["t"] = [sample.t for sample in samples]
    columns["quotas"] = _table([sample.state.left for sample in samples])
    columns["speed"] = _table([sample.speed for sample in samples])
    return columns


def _table(rows: list[dict[str, float]]) -> dict[str, list[float | None]]:
    """A column for each name."""
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
