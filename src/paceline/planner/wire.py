"""The requests of a simulation on their way to the provider and back, as an HTTP library would carry them.

The answers are the emulator's: its status, headers and bodies, which the limiter reads as it reads a provider's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from paceline.core.quota import KNOWN_UNITS, TOKENS, Cost
from paceline.core.results import SettingsError
from paceline.emulator.dialects import BY_PROVIDER, OPENAI_LIKE
from paceline.emulator.prompt_cache import PromptPart
from paceline.emulator.wire import Ask, Dialect, Header, HttpAnswer
from paceline.emulator.world import INPUT, Admitted, Level, Refused, World
from paceline.http.binding import Exchanged
from paceline.http.tap import Tap
from paceline.limiter.limiter import Limiter
from paceline.pacing.permit import Permit
from paceline.pacing.scheduler import Scheduler
from paceline.planner.timeline import Timeline, end
from paceline.providers.base import Call, Provider, Usage
from paceline.providers.registry import is_provider, provider_named
from paceline.providers.verdict import Beginning

PATHS: Final = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "generate": "/v1beta/models/m:generateContent",
}
KINDS: Final = {"anthropic": "messages", "gemini": "generate"}
"""The kinds of request: of most providers a chat."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a model, and how large that is for the provider and for the client.

    Attributes:
        model: The pool, as for :meth:`Limiter.acquire <paceline.Limiter.acquire>`.
        input_tokens: The input as the provider counts it.
        output_tokens: The output that the model will produce.
        max_output_tokens: The most output that the request allows; ``None``: it does not say.
        estimated: The input as the client estimates it; ``None``: exactly.
        parts: The parts of its prompt as the provider's cache sees them; empty: nothing of it is cached.
    """

    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    max_output_tokens: int | None = None
    estimated: float | None = None
    parts: Sequence[PromptPart] = ()

    @property
    def body(self) -> dict[str, Any]:
        """The parts of its prompt as the messages of a body."""
        return {"messages": [{"role": part.role, "content": part.content} for part in self.parts]}

    def __post_init__(self) -> None:
        """Refuse negative sizes."""
        if self.input_tokens < 0 or self.output_tokens < 0 or (self.max_output_tokens or 0) < 0:
            raise SettingsError(f"a call of {self.model} has a negative number of tokens")


@dataclass(frozen=True, slots=True)
class Request(Asked):
    """One call of a model: what is asked, and how the call is made and answered.

    Attributes:
        lane: The lane.
        timeout_s: The longest wait in the queue, in seconds.
        name: The name of its waiter.
        invalid: Whether the provider answers with an error of the caller (a 400).
        stream: Whether the answer is streamed.
        duration_s: Seconds from the admission to the end of the answer; ``None``: as the provider's settings have it.
        after_s: Seconds from the answer to the call before it in its item of work, until this call is made.
    """

    lane: str | None = None
    timeout_s: float | None = None
    name: str | None = None
    invalid: bool = False
    stream: bool = False
    duration_s: float | None = None
    after_s: float = 0.0


class Network:
    """The provider, and the way to it.

    Args:
        time: The time of the simulation.
        world: The provider.
        net_s: The bounds of the way of a message, in seconds.

    Attributes:
        on_admit: Called with the pool of each admitted request, and the cost that the provider holds, without what it reads from
            its cache and does not count.
    """

    def __init__(self, time: Timeline, world: World, net_s: tuple[float, float]) -> None:
        self.time, self.world = time, world
        self.on_admit: Callable[[str, Cost], None] | None = None
        self._net_s = net_s

    def to_provider(self, event: Callable[[], None]) -> None:
        """Do ``event`` when a request arrives that is sent now."""
        self.time.after(self.way_s(), event)

    def to_caller(self, event: Callable[[], None], further_s: float = 0.0) -> None:
        """Do ``event`` when an answer arrives that is sent in ``further_s`` seconds."""
        self.time.after(further_s + self.way_s(), event)

    def way_s(self) -> float:
        """How long a message is on its way, in seconds."""
        return self.time.random.uniform(*self._net_s)


SERIAL: Final = 0
"""The number of an answer, which only people read."""


class Sized(NamedTuple):
    """A request as both sides see it.

    Attributes:
        call: The request as the process describes it.
        ask: The request as the provider reads it.
        held: What the provider holds at admission.
        charged: What it charges in the end.
    """

    call: Call
    ask: Ask
    held: Cost
    charged: Cost


class Route:
    """What the requests of one process to one model have in common.

    Attributes:
        scheduler: The scheduler of the pool.
        provider: The provider whose API they use: the one in the pool's name, else a host that speaks OpenAI's.
        dialect: The emulator's side of it; of a provider on OpenAI's paths the one of the emulator's settings, if it has one.
        kind: The kind of request.
        target: Its host and path.
    """

    __slots__ = ("dialect", "kind", "model", "provider", "scheduler", "target")

    def __init__(self, limiter: Limiter, model: str, dialect: str) -> None:
        self.scheduler: Scheduler = limiter.pacer.pools.scheduler(model)
        prefix, slash, rest = self.scheduler.pool.name.partition("/")
        self.model = rest or prefix
        name = prefix if slash and is_provider(prefix) else "generic"
        self.provider: Provider = provider_named(name)
        if own := set(self.scheduler.pool.ledger.entries.units).difference(KNOWN_UNITS):
            self.provider = _with_own_units(self.provider, own)
        usual = BY_PROVIDER.get(name, BY_PROVIDER["openai"])
        self.dialect: Dialect = OPENAI_LIKE[dialect] if dialect and usual in OPENAI_LIKE.values() else usual
        self.kind = KINDS.get(name, "chat")
        self.target = prefix, PATHS[self.kind]

    def sized(self, request: Request) -> Sized:
        """The request as both sides see it."""
        asked, most = request.input_tokens, request.max_output_tokens
        output, stream, provider = request.output_tokens, request.stream, self.provider
        estimated = asked if request.estimated is None else round(request.estimated)
        call = Call(provider.name, self.kind, self.model, estimated, most, stream)
        ask = Ask(self.kind, self.model, asked, most, stream, include_usage=True)
        return Sized(call, ask, provider.held(call, asked, output), provider.charged(call, Usage(asked, output)))


def _with_own_units(provider: Provider, units: Iterable[str]) -> Provider:
    """``provider`` with 1 of each of ``units``, the user's own, in the cost of a request."""
    charging: Any = copy(provider)
    held, own = provider.held, dict.fromkeys(units, 1.0)
    charging.held = lambda call, asked, output: held(call, asked, output) | own
    return charging  # type: ignore[no-any-return]


@dataclass(slots=True)
class CallReply:
    """An answer on its way to the caller: of the provider, or of paceline itself.

    Attributes:
        status: Its status.
        headers: Its headers.
        body: The body of an error.
        admitted: The request that it answers; ``None`` for an error.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    admitted: Admitted | None = None


class SimulatedHttp:
    """One request of a simulated process; see :class:`~paceline.http.binding.Binding`.

    Args:
        network: The way to the provider.
        route: Where the request goes.
        request: The request.
        sized: The same as both sides see it.

    Attributes:
        network: The way to the provider.
        request: The request.
        route: Where it goes.
        target: See ``Binding``.
        address: See ``Binding``.
    """

    is_async = True
    __slots__ = ("_levels", "_sized", "_tap", "address", "network", "request", "route", "target")

    def __init__(self, network: Network, route: Route, request: Request, sized: Sized) -> None:
        self.network, self.route, self.request, self._sized = network, route, request, sized
        self.target, self.address = route.target, route.target[0]
        self._levels: tuple[list[Level], float] = ([], 0.0)  # at the admission, and when that was
        self._tap: Tap | None = None

    async def send(self, permit: Permit | None = None) -> CallReply:  # noqa: ARG002
        """Carry the request to the provider, and its answer back; it goes on when the caller has left."""
        outcome: asyncio.Future[CallReply] = asyncio.Future()
        self.network.to_provider(partial(self._arrive, outcome))
        return await outcome

    def _arrive(self, outcome: asyncio.Future[CallReply]) -> None:
        """The provider gets the request, and answers."""
        request, pool = self.request, self.route.scheduler.pool.name
        network, time, world = self.network, self.network.time, self.network.world
        now_s = time.epoch_s
        if request.invalid:
            self._refuse(outcome, world.refuse(now_s, Refused("invalid", pool, detail="invalid request")), [])
            return
        _, _, held, charged = self._sized
        most = round(held[TOKENS]) - request.input_tokens
        dialect = self.route.dialect
        prompt = dialect.prompt(pool, request.parts) if request.parts else None
        admitted = world.admit(
            now_s, pool, request.input_tokens, most, prompt=prompt,
            counting=dialect.COUNTING._replace(holds_output=True, settles=charged[TOKENS] < held[TOKENS]),
        )  # fmt: skip
        levels = world.levels(now_s, pool) if world.settings.headers else []
        if isinstance(admitted, Refused):
            self._refuse(outcome, admitted, levels)
            return
        if network.on_admit is not None:
            free = 0 if dialect.COUNTING.counts_cached else admitted.cache.read
            held = {unit: cost - free * (unit in INPUT) for unit, cost in held.items()} if free else held
            network.on_admit(pool, held)
        if admitted.fault not in ("500", "drop"):  # the output of the request in place of the one that was drawn
            factor = admitted.first_s / world.settings.latency_s if world.settings.latency_s else 1.0
            admitted.output_tokens = request.output_tokens
            admitted.duration_s = admitted.first_s + world.settings.latency_per_token_s * factor * request.output_tokens
            if request.duration_s is not None:
                admitted.duration_s = max(request.duration_s, admitted.first_s)
            if prompt is not None:
                time.after(admitted.first_s, lambda: world.begin(time.epoch_s, admitted))
        time.after(admitted.duration_s, lambda: world.finish(time.epoch_s, admitted))
        self._levels = levels, now_s
        after_s = admitted.first_s if request.stream else admitted.duration_s
        network.to_caller(partial(self._answer, outcome, admitted), after_s)

    def _answer(self, outcome: asyncio.Future[CallReply], admitted: Admitted) -> None:
        """The process gets the answer, or the beginning of it."""
        if admitted.fault == "drop":
            if not outcome.done():
                outcome.set_exception(ConnectionResetError("the connection was closed"))
        elif admitted.fault == "500":
            end(outcome, self._reply(self.route.dialect.failure(SERIAL)))
        else:
            end(outcome, CallReply(200, {}, admitted=admitted))

    def _refuse(self, outcome: asyncio.Future[CallReply], refused: Refused, levels: list[Level]) -> None:
        """Send the refusal as the provider writes it."""
        dialect = self.route.dialect
        answer = dialect.refusal(refused, self.network.world.settings, SERIAL)
        if levels:
            answer.headers.extend(dialect.rate_headers(levels, self.network.time.epoch_s))
        self.network.to_caller(lambda: end(outcome, self._reply(answer)))

    def _reply(self, answer: HttpAnswer) -> CallReply:
        return CallReply(answer.status, self._decoded(answer.headers), answer.body)

    def _decoded(self, headers: Iterable[Header]) -> dict[str, str]:
        found = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        return {"date": _date(int(self.network.time.epoch_s))} | found

    def head(self, response: CallReply) -> tuple[int, Mapping[str, str]]:
        """See ``Binding``. The headers of an answer are written if the pool reads them."""
        if response.status == 200 and self._levels[0] and self.route.scheduler.reads_at(self.route.scheduler.now_ns()):
            response.headers = self._decoded(self.route.dialect.rate_headers(*self._levels))
        return response.status, response.headers

    async def peek(self, response: CallReply, headers: Mapping[str, str], beginning: Beginning) -> None:  # noqa: ARG002
        """See ``Binding``. A stream is taken for a result.

        Raises:
            ConnectionResetError: The body breaks off.
        """
        admitted = response.admitted
        if admitted is None:
            beginning.take(response.body)
        elif self.request.stream:
            beginning.accept()
        elif admitted.fault == "stream":
            raise ConnectionResetError("the answer breaks off")
        else:
            beginning.take(b"", self.route.dialect.answer(self._sized.ask, admitted, SERIAL))

    def tap(self, response: CallReply, headers: Mapping[str, str], tap: Tap) -> None:  # noqa: ARG002
        """See ``Binding``."""
        self._tap = tap

    async def read(self, reply: CallReply) -> None:
        """Read the body of an answer to its end; the rest of a stream comes later.

        Raises:
            ConnectionResetError: It breaks off.
        """
        tap, admitted = self._tap, reply.admitted
        if tap is None or admitted is None:
            return
        try:
            pieces = self.route.dialect.events(self._sized.ask, admitted, SERIAL)
            if self.request.stream and (rest_s := admitted.duration_s - admitted.first_s):
                tap.feed(next(pieces)[1])
                rest: asyncio.Future[None] = asyncio.Future()
                self.network.to_caller(partial(end, rest, None), rest_s)
                await rest
            if admitted.fault == "stream":
                raise ConnectionResetError("the answer breaks off")
            for _, piece in pieces:
                tap.feed(piece)
        finally:
            tap.finish()

    def note(self, response: CallReply, record: Exchanged) -> None:
        """See ``Binding``; the exchange has its record."""

    async def close(self, response: CallReply) -> None:
        """See ``Binding``; an error has been read."""

    def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> CallReply:
        """See ``Binding``."""
        return CallReply(status, headers, body)


@lru_cache(maxsize=16)
def _date(at_s: int) -> str:
    return formatdate(at_s, usegmt=True)
