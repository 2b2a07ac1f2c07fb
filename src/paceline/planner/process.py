"""One process of a simulation: a limiter with its clock, and its calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.quota import NS
from paceline.core.results import Source, SourceKind
from paceline.http.describe import metered
from paceline.http.exchange import Exchange
from paceline.limiter.limiter import Limiter
from paceline.pacing.clock import Clock, Timer
from paceline.pacing.pacer import current_lane
from paceline.planner.store import SimulatedStore, SimulatedWorker
from paceline.planner.timeline import Timeline
from paceline.planner.wire import CallReply, Network, Request, Route, SimulatedHttp, Stall
from paceline.providers.base import Usage


@dataclass(slots=True)
class Sent:
    """A call that has ended.

    Attributes:
        request: The call.
        pool: The pool that was charged.
        arrived_s: When the caller asked for the permit, in seconds since the start of the simulation.
        waited_s: Seconds in the queue, over all attempts.
        attempts: The number of attempts.
        ended_s: When the call ended, in seconds since the start.
        error: Why it failed; ``None``: it was answered.
        usage: What the answer reports.
    """

    request: Request
    pool: str
    arrived_s: float
    waited_s: float = 0.0
    attempts: int = 0
    ended_s: float = 0.0
    error: str | None = None
    usage: Usage | None = None


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


class Process:
    """One process: a limiter and its callers. Use :meth:`Simulation.process <paceline.planner.simulation.Simulation.process>`.

    Attributes:
        name: Its name in the store.
        clock: Its clock.
        limiter: The limiter.
        frozen: When it does nothing.
        sent: The calls that have ended.
    """

    def __init__(
        self,
        network: Network,
        name: str,
        sent: list[Sent],
        *,
        skew_s: float,
        freezes: Sequence[Freeze],
        shared_in: SimulatedStore | None,
        source: SourceKind,
        **options: Any,
    ) -> None:
        self.name, self.sent = name, sent
        self.frozen = [Stall(one.from_s, one.to_s) for one in freezes]
        self._network = network
        time = network.time
        self.clock: Clock = ProcessClock(time, round(skew_s * NS), freezes) if skew_s or freezes else time.clock
        on_failure, lease_s = options.pop("on_store_failure", "fail_safe"), options.pop("lease_s", None)
        self.limiter = Limiter(**options, clock=self.clock)
        self.limiter.pacer.luck = time.random.random
        if source is not SourceKind.GIVEN:
            self.limiter.limits.given_source = Source(source)
        if shared_in is not None:
            self.limiter.pacer.pools.worker = SimulatedWorker(
                shared_in, name, self.clock, on_store_failure=on_failure, lease_s=lease_s
            )
        self._routes: dict[str, Route] = {}

    def crash(self) -> None:
        """End the process: it sends nothing more to the store. Its tasks have to be cancelled."""
        self.limiter.close()

    def route(self, model: str) -> Route:
        """What its requests to ``model`` have in common."""
        route = self._routes.get(model)
        if route is None:
            route = self._routes[model] = Route(self.limiter, model, self._network.world.settings.dialect)
        return route

    async def send(self, request: Request) -> Sent:
        """Make one call, with further attempts after refusals and faults as the limiter's policy has it."""
        route = self.route(request.model)
        sized = route.sized(request)
        found = metered(
            self.limiter.pacer, route.provider, sized.call, route.scheduler, request.body if request.parts else None
        )
        exchange = Exchange(
            self.limiter.pacer, SimulatedHttp(self._network, self.frozen, route, request, sized), found, route.target,
            timeout_s=request.timeout_s, name=request.name,
        )  # fmt: skip
        if self.frozen:
            await self._thaw()
        sent = Sent(request, route.scheduler.pool.name, self._network.time.now_s)
        if request.lane is not None:
            current_lane.set((request.lane, None, None))
        try:
            reply: CallReply = await exchange.run()
            await reply.read()
            if reply.status >= 400:
                sent.error = _error(reply)
        except ConnectionResetError as error:
            sent.error = str(error)
        sent.attempts, sent.waited_s = exchange.record.attempts, exchange.record.waited_s
        sent.ended_s, sent.usage = self._network.time.now_s, exchange.record.usage
        self.sent.append(sent)
        return sent

    async def _thaw(self) -> None:
        """Wait for the end of a freeze: a frozen process makes no call."""
        time = self._network.time
        for stall in self.frozen:
            if stall.from_s <= time.now_s < stall.to_s:
                await time.sleep(stall.to_s - time.now_s)


def _error(reply: CallReply) -> str:
    """Why a call failed, from its answer."""
    if "x-paceline" in reply.headers:
        message: str = json.loads(reply.body)["error"]["message"]
        return message.removeprefix("paceline: ")
    return f"status {reply.status}"


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
