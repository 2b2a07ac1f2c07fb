"""A simulation: limiters, callers, a provider and a store in virtual time; one seed gives the same run every time.

    simulation = Simulation({"gpt-5": "500 requests/min,400k tokens/min"}, latency_s=4.0, seed=1)
    client = simulation.client(quotas={"gpt-5": "500 requests/min,400k tokens/min"})
    simulation.run(lambda: client.send(Request("gpt-5", input_tokens=1_200, output_tokens=300)))

The limiters are those of programs: :class:`~paceline.Limiter` with its queues, learning, retries and store. Only the clock,
the network, the provider (:class:`~paceline.emulator.world.World`) and the time that the store takes are simulated.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from typing import Any, TypeVar

from paceline.core.capacity import Learns
from paceline.core.ledger import Ledger
from paceline.core.queue import Queue, Waiter
from paceline.core.quota import (
    CONCURRENCY,
    INPUT_TOKENS,
    KNOWN_UNITS,
    NS,
    OUTPUT_TOKENS,
    REQUESTS,
    TOKENS,
    Cost,
    Quota,
    Rule,
)
from paceline.core.results import PacelineError, Reading, Refusal, RefusalKind
from paceline.emulator.settings import Settings
from paceline.emulator.world import Level, Refused, World
from paceline.limiter.limiter import Limiter
from paceline.pacing.breaker import is_server_fault
from paceline.pacing.clock import Clock, Timer
from paceline.pacing.permit import Permit
from paceline.pacing.retry import Again
from paceline.pacing.scheduler import Scheduler
from paceline.providers.base import Call, Provider, Usage
from paceline.providers.common import token_cost
from paceline.providers.registry import is_provider, provider_named
from paceline.shared.capacity import SharedCapacity, answer, ask
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import Message, Reply
from paceline.testing.clock import START_S, ManualClock, run_virtual

T = TypeVar("T")

NET_S = (0.001, 0.02)
"""The shortest and the longest way of a message to the provider or back, in seconds."""

TRIP_S = (0.0002, 0.002)
"""The same for a message to the store or back."""

STORE_TIMEOUT_S = 1.0
"""How long a process waits for a store that does not answer."""

UNITS = frozenset({REQUESTS, TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, CONCURRENCY})
"""The units that the simulated provider counts."""

PERIOD_MAX_S = 3_600.0
"""Quotas of a longer period restart at an instant of the provider's own, and only the limiter counts them."""

UNLIMITED = "1b requests/s"
"""What a model without limits that the provider counts has."""

KINDS = {"too_large": RefusalKind.NEVER_FITS}
"""Refusals that the emulator names otherwise."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a model.

    Attributes:
        model: The pool, as for :meth:`Limiter.acquire <paceline.Limiter.acquire>`.
        input_tokens: The input as the provider counts it.
        output_tokens: The output that the model will produce.
        max_output_tokens: The most output that the request allows; ``None``: it does not say.
        estimated: The input as the client estimates it; ``None``: exactly.
        lane: The lane.
        timeout_s: The longest wait in the queue, in seconds.
        name: The name of its waiter.
        invalid: Whether the provider answers with an error of the caller (a 400).
    """

    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    max_output_tokens: int | None = None
    estimated: float | None = None
    lane: str | None = None
    timeout_s: float | None = None
    name: str | None = None
    invalid: bool = False


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
    """

    request: Request
    pool: str
    arrived_s: float
    waited_s: float = 0.0
    attempts: int = 0
    ended_s: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Stall:
    """A time in which the network holds messages, and delivers them all at its end.

    Attributes:
        from_s: The start, in seconds since the start of the simulation.
        to_s: The end.
        ways: What is held: ``requests``, ``answers``, or both.
    """

    from_s: float
    to_s: float
    ways: Collection[str] = ("requests", "answers")


class Simulation:
    """A provider, a store, and the processes that use both.

    Args:
        limits: The true limits by model, as the provider counts them; quotas that it cannot count are left out.
        seed: Makes every random choice repeatable.
        net_s: The bounds of the way to the provider, in seconds.
        start_s: The time at the start, in seconds since the Unix epoch: days and windows end at times of their own.
        stalls: When the network holds messages.
        store_away: From when to when the store does not answer any process, in seconds since the start.
        **settings: Further settings of the provider (:class:`~paceline.emulator.Settings`): ``latency_s``, ``rule``, ...

    Attributes:
        clock: The virtual clock.
        world: The provider; its ``tally()`` has what it admitted and refused.
        clients: The processes.
        sent: The calls that have ended, in the order of their ends.
        on_admit: Called with each admitted request and the cost that the provider held, in virtual order.
    """

    def __init__(
        self,
        limits: Mapping[str, str | Sequence[Quota]],
        *,
        seed: int = 0,
        start_s: float = START_S,
        net_s: tuple[float, float] = NET_S,
        stalls: Sequence[Stall] = (),
        store_away: Sequence[tuple[float, float]] = (),
        **settings: Any,
    ) -> None:
        self.clock = ManualClock(start_s)
        self.start_ns = self.clock.now_ns()
        texts = {name: text for name, own in limits.items() if (text := own if isinstance(own, str) else counted(own))}
        self.settings = Settings.of({"seed": seed, **settings, "limits": {"*": UNLIMITED, **texts}})
        self.world = World(self.settings, self.start_ns / NS)
        self.random = Random(seed)
        self.store = SimulatedStore(self, store_away)
        self.clients: list[Client] = []
        self.sent: list[Sent] = []
        self.on_admit: Callable[[str, Cost], None] | None = None
        self._net_s = net_s
        self._stalls = stalls

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return (self.clock.now_ns() - self.start_ns) / NS

    @property
    def world_s(self) -> float:
        """The provider's time, in seconds since the epoch."""
        return self.clock.now_ns() / NS

    def client(self, *, skew_s: float = 0.0, shared: bool = False, **options: Any) -> Client:
        """A further process, with a limiter of its own.

        Args:
            skew_s: How far its clock is ahead of the others', in seconds.
            shared: Whether it shares its quotas with the other such processes, by the simulated store.
            **options: The arguments of its :class:`~paceline.Limiter`.
        """
        client = Client(self, f"p{len(self.clients)}", skew_s=skew_s, shared=shared, **options)
        self.clients.append(client)
        return client

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``main()`` in virtual time, and return its result.

        Raises:
            DeadlockError: No event can occur, and tasks wait.
        """
        return run_virtual(main(), self.clock)

    async def over_net(self, way: str, further_s: float = 0.0) -> None:
        """Pass ``further_s`` seconds and the way of a message; a stalled network delivers at its end."""
        at_s = self.now_s + further_s + self.random.uniform(*self._net_s)
        for stall in self._stalls:
            if way in stall.ways and stall.from_s <= at_s < stall.to_s:
                at_s = stall.to_s
        await asyncio.sleep(at_s - self.now_s)


class Client:
    """One process: a limiter and its callers. Use :meth:`Simulation.client`.

    Attributes:
        limiter: The limiter.
        name: Its name in the store.
        clock: Its clock, which may be skewed.
    """

    def __init__(self, simulation: Simulation, name: str, *, skew_s: float, shared: bool, **options: Any) -> None:
        self.simulation, self.name = simulation, name
        self.clock: Clock = SkewedClock(simulation.clock, round(skew_s * NS)) if skew_s else simulation.clock
        on_failure, lease_s = options.pop("on_store_failure", "fail_safe"), options.pop("lease_s", None)
        self.limiter = Limiter(**options, clock=self.clock)
        if shared:
            self.limiter.worker = SimulatedWorker(self, on_store_failure=on_failure, lease_s=lease_s)

    def crash(self) -> None:
        """End the process: it sends nothing more to the store. Its tasks have to be cancelled."""
        if self.limiter.worker is not None:
            self.limiter.worker.close()

    async def send(self, request: Request) -> Sent:
        """Make one call, with further attempts after refusals and faults as the limiter's policy has it."""
        simulation = self.simulation
        scheduler = self.limiter.scheduler(request.model)
        sent = Sent(request, scheduler.pool.name, simulation.now_s)
        try:
            await self._attempts(request, sent, scheduler)
        except PacelineError as error:
            sent.error = str(error)
        sent.ended_s = simulation.now_s
        simulation.sent.append(sent)
        return sent

    async def _attempts(self, request: Request, sent: Sent, scheduler: Scheduler) -> None:
        cost, held, charged = costs(request, scheduler, self.simulation.settings.settle)
        permit: Permit | None = None
        policy, health, began_ns = self.limiter.retry, self.limiter.health, 0
        host = sent.pool.partition("/")[0]
        while True:
            permit = await self.limiter.acquire(
                request.model, timeout=request.timeout_s, lane=request.lane, again=permit, name=request.name, **cost
            )
            sent.attempts += 1
            sent.waited_s += permit.waited_s
            if sent.attempts == 1:
                health.first_attempt(scheduler)
                began_ns = permit.reservation.granted_ns
            try:
                refusal, fault = await self._attempt(request, permit, scheduler, held, charged)
            except BaseException:  # cancelled: the provider may have counted it
                permit.close()
                raise
            if is_server_fault(fault, refusal):
                health.failed(host, scheduler, permit.reservation.granted_ns, f"status {fault}")
            else:
                health.succeeded(host, scheduler)
            if refusal is None and fault < 500:
                sent.error = f"status {fault}" if fault >= 400 else None
                permit.close()
                return
            elapsed_s = (self.clock.now_ns() - began_ns) / NS
            luck, in_row = self.simulation.random.random(), scheduler.pool.refused_in_row
            decision = policy.after(sent.attempts, elapsed_s, refusal, luck, in_row=in_row)
            if refusal is not None:
                permit.refuse(refusal, policy.pause_s(refusal, decision))
            else:
                permit.close()
            if not isinstance(decision, Again):
                sent.error = f"{refusal.kind.value if refusal else fault}: {decision.reason}"
                return
            if not decision.pool_wide:
                await asyncio.sleep(max(decision.delay_s, health.retry_delay_s(scheduler)))

    async def _attempt(
        self, request: Request, permit: Permit, scheduler: Scheduler, held: Cost, charged: Cost
    ) -> tuple[Refusal | None, int]:
        """Send the request once: the refusal, if any, and the status."""
        simulation, world, model = self.simulation, self.simulation.world, scheduler.pool.name
        await simulation.over_net("requests")
        if request.invalid:
            world.refuse(simulation.world_s, Refused("invalid", model))
            await simulation.over_net("answers")
            return None, 400
        most = round(held[TOKENS]) - request.input_tokens
        outcome = world.admit(
            simulation.world_s, model, request.input_tokens, most, settles=charged[TOKENS] < held[TOKENS]
        )
        levels = (
            world.levels(simulation.world_s, model) if scheduler.reads_now() or isinstance(outcome, Refused) else []
        )
        if isinstance(outcome, Refused):
            await simulation.over_net("answers")
            self._observe(scheduler, levels, permit)
            return self._refusal(outcome), outcome.status or 429
        if simulation.on_admit is not None:
            simulation.on_admit(model, held)
        settings = simulation.settings
        factor = outcome.first_s / settings.latency_s if settings.latency_s else 1.0
        duration_s = outcome.first_s + settings.latency_per_token_s * factor * request.output_tokens
        simulation.clock.call_at(
            simulation.clock.now_ns() + round(duration_s * NS),
            lambda: world.finish(simulation.world_s, outcome, request.output_tokens),
        )
        await simulation.over_net("answers", duration_s)
        self._observe(scheduler, levels, permit)
        if outcome.fault is not None:
            return None, 500
        permit.settle(**charged)
        return None, 200

    def _observe(self, scheduler: Scheduler, levels: Iterable[Level], permit: Permit) -> None:
        if self.simulation.settings.headers and levels:
            readings = [
                Reading(one.unit, one.limit, math.floor(one.remaining), round(one.reset_s, 3)) for one in levels
            ]
            scheduler.observe(readings, permit.reservation)

    def _refusal(self, refused: Refused) -> Refusal:
        """The refusal as the provider writes it: whole seconds to wait, and the numbers if it states them."""
        settings, kind = self.simulation.settings, KINDS.get(refused.kind) or RefusalKind(refused.kind)
        stated = settings.headers and 0 < refused.wait_s < math.inf
        wait_s = float(math.ceil(refused.wait_s)) if stated else None
        if settings.body_numbers and kind is RefusalKind.RATE:
            return Refusal(
                kind, retry_after_s=wait_s, unit=refused.unit, period_s=refused.period_s, limit=refused.limit,
                used=refused.used, requested=refused.requested,
            )  # fmt: skip
        return Refusal(kind, retry_after_s=wait_s, unit=refused.unit or None, period_s=refused.period_s or None)


def counted(quotas: Iterable[Quota]) -> str:
    """The quotas that the simulated provider counts, in the emulator's notation; empty for none."""
    texts = []
    for quota in quotas:
        if quota.unit == CONCURRENCY and not quota.period_s:
            texts.append(f"{math.floor(quota.amount)} concurrency")
        elif quota.unit in UNITS and 1 <= quota.period_s <= PERIOD_MAX_S and quota.rule in _COUNTED:
            texts.append(f"{quota.amount:.9f} {quota.unit}/{round(quota.period_s)}s {quota.rule.value}")
    return ",".join(texts)


_COUNTED = frozenset({Rule.BUCKET, Rule.WINDOW, Rule.SLIDING})


def costs(request: Request, scheduler: Scheduler, settle: str) -> tuple[Cost, Cost, Cost]:
    """What the client reserves for a call, what the provider holds at admission, and what it charges in the end.

    ``settle`` is the setting of the provider: whether it gives back output that was held and not produced.
    """
    estimated = request.input_tokens if request.estimated is None else request.estimated
    provider, call = _called(scheduler.pool.name, request.max_output_tokens)
    if provider is None:
        most = max(request.output_tokens, request.max_output_tokens or 0)
        reserved, held = token_cost(estimated, most), token_cost(request.input_tokens, most)
        charged = token_cost(request.input_tokens, request.output_tokens)
    else:
        reserved = provider.held(call, estimated, request.output_tokens)
        held = provider.held(call, request.input_tokens, request.output_tokens)
        charged = provider.charged(call, Usage(request.input_tokens, request.output_tokens))
    if settle == "never":
        charged = charged | {TOKENS: held[TOKENS]}
    if own := set(scheduler.pool.ledger.units).difference(KNOWN_UNITS):
        reserved = reserved | dict.fromkeys(own, 1.0)
    charged = {unit: amount for unit, amount in charged.items() if unit != REQUESTS}
    return reserved, held, charged


@lru_cache(maxsize=1_024)
def _called(pool: str, most: int | None) -> tuple[Provider | None, Call]:
    prefix, _, model = pool.partition("/")
    call = Call(prefix, "chat", model, 0, most)
    return (provider_named(prefix) if model and is_provider(prefix) else None), call


class SkewedClock:
    """A clock that is ahead of another one by a constant."""

    def __init__(self, clock: ManualClock, skew_ns: int) -> None:
        self._clock, self._skew_ns = clock, skew_ns

    def now_ns(self) -> int:
        """See :class:`~paceline.pacing.clock.Clock`."""
        return self._clock.now_ns() + self._skew_ns

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """See :class:`~paceline.pacing.clock.Clock`."""
        return self._clock.call_at(at_ns - self._skew_ns, callback)


class SimulatedStore:
    """The store of the shared quotas: the real ledger, behind a network that takes time and may be away.

    Attributes:
        away: From when to when it answers no process, in seconds since the start.
        cut: By the name of a process the same for that process.
    """

    def __init__(self, simulation: Simulation, away: Sequence[tuple[float, float]]) -> None:
        self.away, self.cut = list(away), dict[str, Sequence[tuple[float, float]]]()
        self._simulation = simulation
        self._ledgers: dict[str, SharedLedger] = {}

    def forget(self) -> None:
        """Lose the ledgers of all pools."""
        self._ledgers.clear()

    def exchange(self, process: str, pool: str, message: Message, reply: Callable[[Reply | str], None]) -> None:
        """Carry ``message`` to the store, and call ``reply`` when its answer is back, or with the reason for none."""
        if self._is_away(process):
            self._after(STORE_TIMEOUT_S, lambda: reply("no answer"))
        else:
            self._after(self._simulation.random.uniform(*TRIP_S), lambda: self._serve(process, pool, message, reply))

    def _serve(self, process: str, pool: str, message: Message, reply: Callable[[Reply | str], None]) -> None:
        if self._is_away(process):
            self._after(STORE_TIMEOUT_S, lambda: reply("no answer"))
            return
        ledger = self._ledgers.setdefault(pool, SharedLedger())
        told = ledger.apply(self._simulation.clock.now_ns(), message)
        self._after(self._simulation.random.uniform(*TRIP_S), lambda: reply(told))

    def _is_away(self, process: str) -> bool:
        now_s = self._simulation.now_s
        return any(a <= now_s < b for a, b in (*self.away, *self.cut.get(process, ())))

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        clock = self._simulation.clock
        clock.call_at(clock.now_ns() + round(seconds * NS), event)


class SimulatedWorker:
    """Makes the exchanges of one process with the simulated store, one after the other, as the thread of a program does."""

    def __init__(self, client: Client, **options: Any) -> None:
        self._client, self._options = client, options
        self._due: list[Scheduler] = []
        self._busy = False
        self.dead = False

    def capacity(self, ledger: Ledger, queue: Queue, now_ns: int, *, learns: Learns) -> SharedCapacity:
        """See :class:`~paceline.pacing.scheduler.Worker`."""
        return SharedCapacity(ledger, queue, now_ns, who=self._client.name, learns=learns, **self._options)

    def add(self, scheduler: Scheduler) -> None:
        """See :class:`~paceline.pacing.scheduler.Worker`."""

    def close(self) -> None:
        """See :class:`~paceline.pacing.scheduler.Worker`."""
        self.dead = True

    def poke(self, scheduler: Scheduler) -> bool:
        """See :class:`~paceline.pacing.scheduler.Worker`."""
        self._due.append(scheduler)
        if not self._busy:
            self._busy = True
            clock = self._client.simulation.clock
            clock.call_at(clock.now_ns(), self._next)
        return True

    def _next(self) -> None:
        while self._due and not self.dead:
            scheduler = self._due.pop(0)
            message = scheduler.transact(partial(_asked, scheduler))
            if message is not None:
                store, pool = self._client.simulation.store, scheduler.pool.name
                store.exchange(self._client.name, pool, message, partial(self._take, scheduler))
                return
        self._busy = False

    def _take(self, scheduler: Scheduler, reply: Reply | str) -> None:
        if not self.dead:
            scheduler.transact(lambda now_ns: (None, answer(scheduler.pool, now_ns, reply)))
            self._next()


def _asked(scheduler: Scheduler, now_ns: int) -> tuple[Message | None, list[Waiter]]:
    return ask(scheduler.pool, now_ns), []
