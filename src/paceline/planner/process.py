"""One process of a simulation: a limiter with its clock, and its calls."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from paceline.core.results import Source, SourceKind
from paceline.http.describe import metered
from paceline.http.exchange import Exchange
from paceline.limiter.limiter import Limiter
from paceline.pacing.clock import Clock
from paceline.pacing.pacer import current_lane
from paceline.planner.wire import CallReply, Network, Request, Route, SimulatedHttp
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


class Process:
    """One process: a limiter and its callers. Use :meth:`Simulation.process <paceline.planner.simulation.Simulation.process>`.

    Attributes:
        limiter: The limiter.
        sent: The calls that have ended.
        route: What its requests to a model have in common.
    """

    def __init__(
        self,
        network: Network,
        sent: list[Sent],
        *,
        source: SourceKind,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        self.sent, self._network = sent, network
        self.limiter = Limiter(**options, clock=clock or network.time.clock)
        self.limiter.pacer.health.luck = network.time.random.random
        if source is not SourceKind.GIVEN:
            self.limiter.limits.given_source = Source(source)
        self.route = cache(lambda model: Route(self.limiter, model, network.world.settings.dialect))

    async def send(self, request: Request) -> Sent:
        """Make one call, with further attempts after refusals and faults as the limiter's policy has it."""
        route = self.route(request.model)
        sized = route.sized(request)
        found = metered(
            self.limiter.pacer, route.provider, sized.call, route.scheduler, request.body if request.parts else None
        )
        http = SimulatedHttp(self._network, route, request, sized)
        exchange = Exchange(self.limiter.pacer, http, found, timeout_s=request.timeout_s, name=request.name)
        sent = Sent(request, route.scheduler.pool.name, self._network.time.now_s)
        if request.lane is not None:
            current_lane.set((request.lane, None, None))
        try:
            reply: CallReply = await exchange.run()
            await http.read(reply)
            if reply.status >= 400:
                sent.error = _error(reply)
        except ConnectionResetError as error:
            sent.error = str(error)
        sent.attempts, sent.waited_s = exchange.record.attempts, exchange.record.waited_s
        sent.ended_s, sent.usage = self._network.time.now_s, exchange.record.usage
        self.sent.append(sent)
        return sent


def _error(reply: CallReply) -> str:
    """Why a call failed, from its answer."""
    if "x-paceline" in reply.headers:
        message: str = json.loads(reply.body)["error"]["message"]
        return message.removeprefix("paceline: ")
    return f"status {reply.status}"
