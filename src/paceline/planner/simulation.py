"""A simulation: limiters, callers and a provider in virtual time; one seed gives the same run every time.

    simulation = Simulation({"gpt-6-luna": "500 requests/min,400k tokens/min"}, latency_s=4.0, seed=1)
    process = simulation.process(quotas={"gpt-6-luna": "500 requests/min,400k tokens/min"})
    simulation.run(lambda: process.send(Request("gpt-6-luna", input_tokens=1_200, output_tokens=300)))

The limiters are what programs use: :class:`~paceline.Limiter` with its queues, learning and retries, and the exchange
that an attached client makes. Only the clock, the network and the provider (the emulator's
:class:`~paceline.emulator.world.World`) are simulated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import floor
from typing import Any, TypeVar

from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS, Quota, Rule
from paceline.core.results import Source, SourceKind
from paceline.emulator.settings import Settings
from paceline.emulator.world import World
from paceline.http.describe import metered
from paceline.http.exchange import Exchange
from paceline.limiter.limiter import Limiter
from paceline.pacing.clock import Clock
from paceline.pacing.pacer import current_lane
from paceline.planner.timeline import Timeline
from paceline.planner.wire import CallReply, Network, Request, Route, SimulatedHttp
from paceline.providers.base import Usage
from paceline.testing.clock import START_S, run_virtual

__all__ = ["Process", "Request", "Sent", "Simulation", "counted"]

T = TypeVar("T")

NET_S = (0.001, 0.02)
"""The shortest and the longest way of a message to the provider or back, in seconds."""

UNITS = frozenset({REQUESTS, TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, CONCURRENCY})
"""The units that the simulated provider counts."""

PERIOD_MAX_S = 3_600.0
"""Quotas of a longer period restart at an instant of the provider's own, and only the limiter counts them."""

UNLIMITED = "1b requests/s"
"""What a model without limits that the provider counts has."""


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
    """One process: a limiter and its callers. Use :meth:`Simulation.process`.

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
        body = request.body if request.parts else None
        found = metered(self.limiter.pacer, route.provider, sized.call, body, scheduler=route.scheduler)
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


class Simulation:
    """A provider, and the processes that use it.

    Args:
        limits: The true limits by model, as the provider counts them; quotas that it cannot count are left out.
        seed: Makes every random choice repeatable.
        net_s: The bounds of the way to the provider, in seconds.
        start_s: The time at the start, in seconds since the Unix epoch: days and windows end at times of their own.
        **settings: Further settings of the provider (:class:`~paceline.emulator.Settings`): ``latency_s``, ``rule``, ...

    Attributes:
        time: The virtual time.
        world: The provider; its ``tally()`` has what it admitted and refused.
        network: The way to it.
        sent: The calls that have ended, in the order of their ends.
    """

    def __init__(
        self,
        limits: Mapping[str, str | Sequence[Quota]],
        *,
        seed: int = 0,
        start_s: float = START_S,
        net_s: tuple[float, float] = NET_S,
        **settings: Any,
    ) -> None:
        self.time = Timeline(seed, start_s)
        texts = {name: text for name, own in limits.items() if (text := own if isinstance(own, str) else counted(own))}
        true = Settings.of({"seed": seed, **settings, "limits": {"*": UNLIMITED, **texts}})
        self.world = World(true, self.time.epoch_s)
        self.network = Network(self.time, self.world, net_s)
        self.sent: list[Sent] = []

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return self.time.now_s

    def process(self, *, source: SourceKind = SourceKind.GIVEN, **options: Any) -> Process:
        """A further process, with a limiter of its own.

        Args:
            source: What the limiter takes its ``quotas`` for: the user's word, or a guess of a table.
            **options: The arguments of its :class:`~paceline.Limiter`.
        """
        return Process(self.network, self.sent, source=source, **options)

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``main()`` in virtual time, and return its result.

        Raises:
            DeadlockError: No event can occur, and tasks wait.
        """
        return run_virtual(main(), self.time.clock)


_COUNTED = frozenset({Rule.BUCKET, Rule.WINDOW, Rule.SLIDING})


def counted(quotas: Iterable[Quota]) -> str:
    """The quotas that the simulated provider counts, in the emulator's notation; empty for none."""
    texts = []
    for quota in quotas:
        if quota.unit == CONCURRENCY and not quota.period_s:
            texts.append(f"{floor(quota.amount)} concurrency")
        elif quota.unit in UNITS and 1 <= quota.period_s <= PERIOD_MAX_S and quota.rule in _COUNTED:
            texts.append(f"{quota.amount:.9f} {quota.unit}/{round(quota.period_s)}s {quota.rule.value}")
    return ",".join(texts)
