"""Troubles of a simulation: stalled networks, frozen processes, clocks that are wrong, and a store that is away.

The store is the real shared ledger, behind a network that takes time, loses messages and is away at times.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

from paceline.core.capacity import Learns
from paceline.core.ledger import Ledger
from paceline.core.plan import Plan
from paceline.core.queue import Queue
from paceline.core.quota import NS
from paceline.core.results import SourceKind
from paceline.pacing.clock import Clock, Timer
from paceline.pacing.scheduler import Scheduler
from paceline.planner import simulation
from paceline.planner.timeline import Timeline
from paceline.planner.wire import Network, Request
from paceline.shared.capacity import SharedCapacity
from paceline.shared.exchange import answer, ask, side_of
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import Message, StoreReply
from paceline.shared.plan import SharedPlan


@contextmanager
def silence() -> Iterator[None]:
    """Nothing is logged, and nothing warns: a world of troubles would say much."""
    log = logging.getLogger("paceline")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


@dataclass(frozen=True, slots=True)
class Stall:
    """A time in which something does not move: the network delivers at its end all that it holds.

    Attributes:
        from_s: The start, in seconds since the start of the simulation.
        to_s: The end.
        ways: What is held: ``requests``, ``answers``, or both.
    """

    from_s: float
    to_s: float
    ways: Collection[str] = ("requests", "answers")


@dataclass(frozen=True, slots=True)
class Freeze:
    """A time in which a process does nothing: its machine is suspended, or has no CPU for it.

    Attributes:
        from_s: The start, in seconds since the start of the simulation.
        to_s: The end.
        clock_stops: Whether its clock stands still meanwhile, and is behind from then on.
    """

    from_s: float
    to_s: float
    clock_stops: bool = False


class HeldNetwork:
    """The network as a process has it: stalls hold its messages, and it sends and takes none while it is frozen."""

    def __init__(self, network: Network, stalls: Sequence[Stall], frozen: Sequence[Stall]) -> None:
        self._network, self._stalls, self._frozen = network, stalls, frozen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def to_provider(self, event: Callable[[], None]) -> None:
        now_s = self.time.now_s
        sent_s = _thawed(now_s, "requests", self._frozen)
        self.time.after(_thawed(sent_s + self.way_s(), "requests", self._stalls) - now_s, event)

    def to_caller(self, event: Callable[[], None], further_s: float = 0.0) -> None:
        now_s = self.time.now_s
        at_s = _thawed(now_s + further_s + self.way_s(), "answers", self._stalls)
        self.time.after(_thawed(at_s, "answers", self._frozen) - now_s, event)


def _thawed(at_s: float, way: str, stalls: Sequence[Stall]) -> float:
    """The end of the stall that holds messages of this way at ``at_s``; ``at_s`` if there is none."""
    return max(
        (stall.to_s for stall in stalls if way in stall.ways and stall.from_s <= at_s < stall.to_s), default=at_s
    )


class ProcessClock:
    """The clock of a process: ahead of the simulation's by a constant, and standing still while the process is suspended.

    Timers of a frozen process fire at the end of the freeze.
    """

    def __init__(self, time: Timeline, skew_ns: int, freezes: Sequence[Freeze]) -> None:
        self._clock, self._skew_ns = time.clock, skew_ns
        self._freezes = [
            (time.start_ns + round(one.from_s * NS), time.start_ns + round(one.to_s * NS), one.clock_stops)
            for one in sorted(freezes, key=lambda one: one.from_s)
        ]

    def now_ns(self) -> int:
        """See :class:`~paceline.pacing.clock.Clock`."""
        now_ns = self._clock.now_ns()
        stood_ns = sum(
            min(now_ns, to_ns) - from_ns for from_ns, to_ns, stops in self._freezes if stops and now_ns > from_ns
        )
        return now_ns + self._skew_ns - stood_ns

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """See :class:`~paceline.pacing.clock.Clock`."""
        then_ns = at_ns - self._skew_ns
        for from_ns, to_ns, stops in self._freezes:
            if then_ns >= from_ns:
                then_ns = then_ns + to_ns - from_ns if stops else max(then_ns, to_ns)
        return self._clock.call_at(then_ns, callback)


class Process(simulation.Process):
    """A process that may be frozen, and may share its quotas by a store, in which it has a name."""

    def __init__(self, name: str, frozen: Sequence[Stall], network: Network, *args: Any, **options: Any) -> None:
        super().__init__(network, *args, **options)
        self.name, self._frozen, self._time = name, frozen, network.time

    def crash(self) -> None:
        """End the process: it sends nothing more to the store. Its tasks have to be cancelled."""
        self.limiter.close()

    async def send(self, request: Request) -> simulation.Sent:
        """Make one call, if need be at the end of a freeze."""
        for stall in self._frozen:
            if stall.from_s <= self._time.now_s < stall.to_s:
                await self._time.sleep(stall.to_s - self._time.now_s)
        return await super().send(request)


class Simulation(simulation.Simulation):
    """One with troubles: ``stalls`` of the network, and a ``store`` (arguments of ``SimulatedStore``)."""

    def __init__(self, limits, *, stalls: Sequence[Stall] = (), store=None, **options: Any) -> None:
        super().__init__(limits, **options)
        self.stalls, self.store = stalls, SimulatedStore(self.time, **store or {})
        self.processes: list[Process] = []

    def process(
        self, *, skew_s=0.0, freezes: Sequence[Freeze] = (), shared=False, on_store_failure="fail_safe", lease_s=None,
        source=SourceKind.GIVEN, **options: Any,
    ) -> Process:  # fmt: skip
        """A further process, whose clock is ahead by ``skew_s``; ``shared``: with the other such processes."""
        clock = ProcessClock(self.time, round(skew_s * NS), freezes) if skew_s or freezes else self.time.clock
        frozen = [Stall(one.from_s, one.to_s) for one in freezes]
        network = HeldNetwork(self.network, self.stalls, frozen) if self.stalls or frozen else self.network
        one = Process(f"p{len(self.processes)}", frozen, network, self.sent, source=source, clock=clock, **options)
        if shared:
            one.limiter.pacer.pools.maker.worker = SimulatedWorker(
                self.store, one.name, clock, on_store_failure=on_store_failure, lease_s=lease_s
            )
        self.processes.append(one)
        return one


TRIP_S = (0.0002, 0.002)
"""The shortest and the longest way of a message to the store or back, in seconds."""

TIMEOUT_S = 1.0
"""How long a process waits for a store that does not answer."""

STALE_S = 2.0
"""How old a message is when the store drops it, as the Redis store does: the timeout, and a second."""


class SimulatedStore:
    """The store of the shared quotas.

    Args:
        time: The time of the time.
        away: From when to when it answers no process, in seconds since the start.
        hangs: Whether messages wait for it meanwhile, as in a socket; else they are lost.
        lost: The probability that a message or its reply is lost.
        cost_s: How long it takes for a call; it serves one after the other.
        stale_cost_s: The same for a message that it drops.
        steps: When its clock is set, in seconds since the start, and by how many seconds.
        sees_ends: Whether it knows when a process has ended, as a Redis does whose connection closes.

    Attributes:
        cut: By the name of a process, from when to when the store does not answer that one.
        calls_s: When the messages were sent, in seconds since the start.
        lost: The probability that a message or its reply is lost, from now on.
        ended: The names of the processes that have crashed.
    """

    def __init__(
        self,
        time: Timeline,
        *,
        away: Sequence[tuple[float, float]] = (),
        hangs: bool = False,
        lost: float = 0.0,
        cost_s: float = 0.0,
        stale_cost_s: float = 0.0,
        steps: Sequence[tuple[float, float]] = (),
        sees_ends: bool = True,
    ) -> None:
        self.cut = dict[str, Sequence[tuple[float, float]]]()
        self.calls_s = list[float]()
        self.ended = set[str]()
        self._sees_ends = sees_ends
        self._time, self._away, self._hangs, self.lost = time, away, hangs, lost
        self._cost_s, self._stale_cost_s, self._steps = cost_s, stale_cost_s, steps
        self._free_s = 0.0  # when it has served the messages that have arrived
        self._ledgers: dict[str, SharedLedger] = {}

    def forget(self) -> None:
        """Lose the ledgers of all pools."""
        self._ledgers.clear()

    def exchange(self, process: str, pool: str, message: Message, take: Callable[[StoreReply | str], None]) -> None:
        """Carry ``message`` to the store, and call ``take`` once: with its reply, or with the reason for none."""
        time, sent_s = self._time, self._time.now_s
        self.calls_s.append(sent_s)
        timer = time.after(TIMEOUT_S, lambda: once("no answer"))
        done = False

        def once(reply: StoreReply | str) -> None:
            nonlocal done
            if not done:
                done = True
                timer.cancel()
                take(reply)

        def arrive() -> None:
            until_s = self._away_until(process)
            if until_s is not None and self._hangs:
                time.after(until_s - time.now_s, arrive)
            elif until_s is None and not self._loses():
                stale = max(self._free_s, time.now_s) - sent_s > STALE_S
                self._free_s = max(self._free_s, time.now_s) + (self._stale_cost_s if stale else self._cost_s)
                if not stale:
                    time.after(self._free_s - time.now_s, serve)

        def serve() -> None:
            reply = self._ledgers.setdefault(pool, SharedLedger()).apply(self._now_ns(), message, self._has_ended)
            if not self._loses():
                time.after(time.random.uniform(*TRIP_S), lambda: once(reply))

        time.after(time.random.uniform(*TRIP_S), arrive)

    def _has_ended(self, process: str, was_there: bool) -> bool:
        return was_there and self._sees_ends and process in self.ended

    def _now_ns(self) -> int:
        """Its own clock."""
        now_s = self._time.now_s
        return self._time.clock.now_ns() + round(sum(by_s for at_s, by_s in self._steps if at_s <= now_s) * NS)

    def _away_until(self, process: str) -> float | None:
        now_s = self._time.now_s
        times = (*self._away, *self.cut.get(process, ()))
        return max((to_s for from_s, to_s in times if from_s <= now_s < to_s), default=None)

    def _loses(self) -> bool:
        return self.lost > 0 and self._time.random.random() < self.lost


class SimulatedWorker:
    """Makes the exchanges of one process with the simulated store, one after the other, as the thread of a program does.

    Args:
        store: The store.
        process: The name of the process.
        clock: Its clock.
        **options: Arguments of :class:`~paceline.shared.capacity.SharedCapacity`.
    """

    def __init__(self, store: SimulatedStore, process: str, clock: Clock, **options: Any) -> None:
        self._store, self._process, self._clock, self._options = store, process, clock, options
        self._due: list[Scheduler] = []
        self.schedulers = WeakSet[Scheduler]()
        self._busy = False
        self.dead = False

    @property
    def running(self) -> bool:
        """See :class:`~paceline.pacing.scheduler.Worker`."""
        return not self.dead

    def capacity(self, ledger: Ledger, queue: Queue, now_ns: int, *, learns: Learns) -> SharedCapacity:
        """See :class:`~paceline.pacing.scheduler.Worker`."""
        return SharedCapacity(ledger, queue, now_ns, who=self._process, learns=learns, **self._options)

    def plan(self, plan: Plan, ledger: Ledger, queue: Queue, now_ns: int) -> SharedPlan:
        """See :class:`~paceline.pacing.scheduler.Worker`."""
        return SharedPlan(plan, ledger, queue, now_ns, who=self._process, **self._options)

    def agreed(self, pool: str, text: str) -> str:
        """See :class:`~paceline.pacing.scheduler.Worker`."""
        return text

    def close(self) -> None:
        """See :class:`~paceline.pacing.scheduler.Worker`."""
        self.dead = True
        self._store.ended.add(self._process)

    def poke(self, scheduler: Scheduler) -> bool:
        """See :class:`~paceline.pacing.scheduler.Worker`."""
        self._due.append(scheduler)
        if not self._busy:
            self._busy = True
            self._soon(self._next)
        return True

    def _soon(self, event: Callable[[], None]) -> None:
        """Do it now, or at the end of a freeze of the process."""
        self._clock.call_at(self._clock.now_ns(), event)

    def _next(self) -> None:
        while self._due and not self.dead:
            scheduler = self._due.pop(0)
            scheduler.section.transact(partial(ask, scheduler.pool))
            asked = side_of(scheduler.pool).asked
            if asked is not None:
                self._store.exchange(self._process, scheduler.pool.name, asked, partial(self._take, scheduler))
                return
        self._busy = False

    def _take(self, scheduler: Scheduler, reply: StoreReply | str) -> None:
        def taken() -> None:
            if not self.dead:
                scheduler.section.transact(partial(answer, scheduler.pool, reply=reply))
                self._next()

        self._soon(taken)
