"""How clients wait: what keeps a connection, when a client gives up, and the places that are kept for those that come back."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from paceline.core.progress import Row
from paceline.core.results import PoolStoppedError, Refusal
from paceline.gateway.connection import Headers
from paceline.gateway.relay import ClientReply, let_go
from paceline.gateway.upstreams import KEY_HEADERS
from paceline.http.exchange import Exchange
from paceline.http.routed import RoutedExchange
from paceline.pacing.permit import Permit
from paceline.pacing.retry import varied
from paceline.pacing.tries import Tries
from paceline.providers.parse import number
from paceline.providers.registry import base_of

NOTES_FROM_S: Final = 30.0
"""The wait after which a stream is kept alive by default; answers to shorter waits have the status of the server. Load
balancers close what is quiet for 60 s (nginx, AWS ALB; 2026-11)."""

NOTES_EVERY_S: Final = 15.0
"""The time between two notes then: a proxy with a limit of 30 s passes one in time."""

PLACE_S: Final = 60.0
"""How long a place is kept after its connection has closed."""

PLACES_MAX: Final = 1_000
"""The places that are kept for one client key, or without client keys: as many agents as a program runs."""

FRESH_S: Final = 60.0
"""Without client keys, a client that leaves sooner leaves the queue: the user has stopped it, or it has a deadline of its own."""

LIFTED_S: Final = 86_400.0
"""The timeout that says so where a client's limits are lifted: ``PATIENCE`` in ``gateway/private.py``."""

SOON: Final = 0.9
"""The share of a client's patience after which the gateway answers."""

PATIENCE_MIN_S: Final = 60.0
"""A shorter patience is the user's own deadline, and left to the client."""

IDEMPOTENCY: Final = b"idempotency-key"
"""The header by which a request is known when it is sent again (draft-ietf-httpapi-idempotency-key-header-06, 2025-02)."""

_HEAD_S: Final = 300.0
"""The time without a head after which the ``fetch`` of Node gives up (302 s under openai 6.49, @anthropic-ai/sdk 1.14 and Vercel's
ai 6.0), and the ``fetch`` of Bun."""


class Manner(NamedTuple):
    """How a client waits. Each number was measured with the client itself (tests/frameworks/patience.py, 2026-11).

    Attributes:
        part: The part of the header ``user-agent`` that names it, before its version.
        since: Its first version that waits so.
        silent_s: After which time without the head of an answer it gives up.
        fed_s: The same while its stream is kept alive; ``None``: it waits on.
        lifted_s: The same without a head where its limits are lifted, by which its stream waits on.
        returns: Whether it asks again, ten times, when it is told to; others do so twice.
        resumes: What the header has of a client that shows its user the end of a plan's window, and goes on by itself then.
    """

    part: bytes
    since: tuple[int, ...]
    silent_s: float
    fed_s: float | None = None
    lifted_s: float | None = None
    returns: bool = False
    resumes: bytes = b""


_MANNERS: Final = (
    Manner(b"claude-cli/", (2, 1, 332), 360.0, 750.0, returns=True, resumes=b", cli)"),
    Manner(b"claude-cli/", (), 300.0, 300.0, 300.0, returns=True),  # 2.1.197
    Manner(b"runtime/node", (), _HEAD_S, None, _HEAD_S),  # Vercel's SDK
    Manner(b"runtime/bun", (), _HEAD_S, None, _HEAD_S),  # opencode 1.18.33 too, which asks again five times and more
    Manner(b"geminicli-tui/", (), 60.0, None, 60.0),  # 0.61.0, which asks ten times, and ends
)
"""The first row of a client that its version fits counts. Codex 0.171 waits on in any case: 1,300 s without a head, and with an event
``keepalive``. Comments alone it does not count: after 300 s it asks again, five times."""

_VERSION: Final = re.compile(rb"\d{1,9}(?:\.\d{1,9}){0,3}")

_SUBAGENT: Final = b"x-claude-code-agent-id"
"""The header of requests of Claude Code that no person waits for (2.1.332)."""

_STATED: Final = (b"x-stainless-read-timeout", b"x-stainless-timeout")
"""The headers in which SDKs state their timeouts, in seconds (openai 3.57 and anthropic 2.14 for Python, @anthropic-ai/sdk 1.14)."""

COMMENT: Final = b": waiting\n\n"
PING: Final = b'event: ping\ndata: {"type": "ping"}\n\n'
KEEPALIVE: Final = b'event: keepalive\ndata: {"type": "keepalive", "sequence_number": 0}\n\n'


class Rhythm(NamedTuple):
    """How a client waits for its answer.

    Attributes:
        note: The bytes that are sent meanwhile; ``None`` for nothing.
        due_s: The seconds until the first note is due, or, without notes, until an answer is; ``None``: the client waits for any time.
        every_s: The seconds between two notes.
    """

    note: bytes | None
    due_s: float | None
    every_s: float | None = None


def note_for(provider: str, path: str, query: str, headers: Headers) -> bytes | None:
    """What keeps the stream of an answer alive in the form that clients of the path count; ``None``: its framing has no such form.

    Args:
        provider: The name of the provider.
        path: The path at the provider.
        query: The query.
        headers: The headers of the client.
    """
    base, end = base_of(provider), path.rstrip("/")
    if base in ("gemini", "vertex"):  # google-genai reads no comments (3.4.0)
        return b"\n" if "alt=sse" in query else None
    if base == "bedrock":  # frames
        return None
    if end.endswith("/messages"):
        return PING
    if end.endswith("/responses") and not any(name == b"x-stainless-lang" for name, _ in headers):
        return KEEPALIVE  # Codex counts events; OpenAI's SDKs take no event before the first one (6.49, 3.57)
    return COMMENT


def hears(headers: Headers) -> bool:
    """Whether what is sent while a stream waits keeps the client from giving up."""
    return all(one.fed_s is None or (one.returns and _is_lifted(headers)) for one in _manners(_agent(headers)))


def returns(headers: Headers) -> bool:
    """Whether a client that is told to come back does so often enough to wait for a plan's window."""
    return any(one.returns for one in _manners(_agent(headers)))


def resumes(headers: Headers) -> bool:
    """Whether a client tells its user when a plan's window ends, and goes on by itself then."""
    agent = _agent(headers)
    shown = any(one.resumes and one.resumes in agent for one in _manners(agent))
    return shown and not any(name == _SUBAGENT for name, _ in headers)


def patience_s(headers: Headers) -> float | None:
    """After which time without the head of an answer the client gives up; ``None`` if it is unknown, or the user's own deadline."""
    rows, lifted = _manners(_agent(headers)), _is_lifted(headers)
    known = [seconds for one in rows if (seconds := one.lifted_s if lifted else one.silent_s) is not None]
    for name, value in headers:
        if name == b"x-stainless-runtime" and value.lower() in (b"node", b"bun") and not rows:
            known.append(_HEAD_S)
        elif name in _STATED and (seconds := number(value.decode("latin-1"))) is not None:
            known.append(seconds)
    least = min(known, default=0.0)
    return least if least >= PATIENCE_MIN_S else None


def _is_lifted(headers: Headers) -> bool:
    """Whether Claude Code states a timeout of a day: ``exec`` sets that with its other limits, and the page of plans tells to set all."""
    return any(name in _STATED and (number(value.decode("latin-1")) or 0.0) >= LIFTED_S for name, value in headers)


@lru_cache(maxsize=256)
def _manners(agent: bytes) -> tuple[Manner, ...]:
    """The row of each client that the header ``user-agent`` names."""
    found: dict[bytes, Manner] = {}
    for row in _MANNERS:
        _, part, rest = agent.partition(row.part)
        version = _VERSION.match(rest)
        if part and tuple(map(int, version[0].split(b"."))) >= row.since if version else part and not row.since:
            found.setdefault(row.part, row)
    return tuple(found.values())


def _agent(headers: Headers) -> bytes:
    return next((value for name, value in headers if name == b"user-agent"), b"").lower()


class Identity(NamedTuple):
    """What a request that comes again is known by.

    Attributes:
        key: The identity of the client's key, whose name another one may have had; empty without client keys.
        digest: The digest of its ``Idempotency-Key``, or else of its target and body.
        content: The digest of its target and body, where the other one is of an ``Idempotency-Key``.
    """

    key: str
    digest: bytes
    content: bytes = b""


def identity(key: str, whose: str, asked: str, headers: Headers, body: bytes) -> Identity:
    """The identity of a request, ``whose`` server and user, and what is ``asked`` there: its method and target.

    Without client keys it is by its body and the headers that name a request or have a key: with a provider's key, the
    request that has the place is sent.
    """
    hashed = hashlib.sha256(f"{whose}{asked}\n".encode())
    named = next((value for name, value in headers if name == IDEMPOTENCY), b"")
    for pair in () if key else headers:
        if pair[0] in (*KEY_HEADERS, IDEMPOTENCY):
            hashed.update(b"%b: %b\n" % pair)
    hashed.update(body)
    if key and named:
        return Identity(key, hashlib.sha256(f"key {whose}".encode() + named).digest(), hashed.digest())
    return Identity(key, hashed.digest())


class KeptExchange(Exchange):
    """An exchange that is sent only while a client is connected and has a key; without one, what is granted is given back.

    Attributes:
        present: Set while a client is connected.
        denied: Returns the refusal if the client's key was revoked meanwhile.
        is_last: Whether its model has no other place.
    """

    http: Any
    present: asyncio.Event
    denied: Callable[[], Exception | None]
    is_last = True

    def try_once(self) -> None:
        """Make one attempt at its place, which has others behind it, beside those that wait their turn for its limits."""
        self.tries, self.is_last = Tries(varied(self.pacer.retry, max_attempts=1), self.pacer.health), False

    def why_out(self) -> str:
        """Why nothing is sent to its place now: its servers have failed so often that their pools pause; empty if it is."""
        health, pools = self.pacer.health, [way.metered.scheduler for way in self.ways()]
        return "failed before" if all(health.paused_until_ns(one) > one.now_ns() for one in pools) else ""

    async def _hold(self) -> None:
        await super()._hold()
        if not self.is_last and (why := self.why_out()):  # its servers have failed while it waited for a budget
            raise PoolStoppedError(self.record.pool, why, 0.0)

    async def _acquire(self, last: Permit | None) -> Permit:
        permit = await super()._acquire(last)
        while not self.present.is_set():
            permit.cancel()
            if self.charge is not None:
                self.charge.give_back()
            left_ns = self.pacer.clock.now_ns()
            await self.present.wait()
            self._no_wait(permit, left_ns)
            if self.charge is not None:
                await self._hold()
            permit = await super()._acquire(permit)  # at the front of its lane
        if (refusal := self.denied()) is not None:
            permit.cancel()
            raise refusal
        return permit

    async def _refused(self, response: Any, refusal: Refusal, row: Row | None, permit: Permit) -> Any | None:
        await self.http.keep_refusal(response, refusal)
        return await super()._refused(response, refusal, row, permit)

    def _repeats(self, error: BaseException) -> None:
        let_go(error)  # no client and no log gets it


class KeptRoutedExchange(KeptExchange, RoutedExchange):
    """The same of a group; see :class:`~paceline.http.routed.RoutedExchange`."""


def rhythm_of(exchange: KeptExchange, query: str, headers: Headers, asked_s: float | None) -> Rhythm:
    """How the client of a request waits; ``asked_s``: how often it asks for something to be sent."""
    note, metered = None, exchange.metered
    framed = metered.call.stream and metered.call.endpoint not in metered.provider.lines
    if framed and (hears(headers) if asked_s is None else asked_s != 0):
        note = note_for(metered.provider.name, exchange.http.target[1], query, headers)
    if note is None:
        until_s = patience_s(headers)
        return Rhythm(None, until_s and until_s * SOON)
    return Rhythm(note, *((NOTES_FROM_S, NOTES_EVERY_S) if asked_s is None else (asked_s, asked_s)))


Further = Callable[[KeptExchange, ClientReply | Exception | None], Awaitable[KeptExchange | None]]
"""What makes the exchange at another place than the present one's, after an answer or an error, or before both where nothing is sent to a
place now; ``None``: the present one is good."""


@dataclass(slots=True, eq=False, repr=False)
class HeldRequest:
    """A metered request from its arrival to the beginning of its answer, over one connection or several.

    Attributes:
        exchange: Its exchange.
        identify: Returns its identity.
        begun_s: When it came.
        named: Its identity by an ``Idempotency-Key``, by which its answer is kept; ``None`` without one.
        further: Makes the exchange at the next place of its model, after one that has failed; ``None``: there are no others.
        parts: Its body, as it is counted, while no client is connected.
        called: The id by which its client asks for its place; ``None`` without one.
        task: Runs the exchange.
        reader: Reads its answer while no client is connected.
        left_s: When the last connection was closed.
    """

    exchange: KeptExchange
    identify: Callable[[], Identity]
    begun_s: float
    named: Identity | None = None
    further: Further | None = None
    parts: list[bytes] = field(default_factory=list)
    called: str | None = None
    task: asyncio.Task[Any] | None = None
    reader: asyncio.Task[None] | None = None
    left_s: float = 0.0
    _present: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.exchange.present = self._present
        self._present.set()

    @property
    def requests(self) -> list[Any]:
        """The request to each server that may answer it."""
        return [way.http for way in self.exchange.ways()]

    @property
    def server(self) -> str:
        """The name of the server that may answer it, or each name in a group."""
        return " or ".join(sent.server for sent in self.requests)

    async def run(self) -> ClientReply:
        """Its answer, from the first place of its model that has one; or else what the last one has answered."""
        await self._moves_on(None)
        while True:
            try:
                reply: ClientReply = await self.exchange.run()
            except Exception as error:
                if not await self._moves_on(error):
                    raise
                let_go(error)
            else:
                if not await self._moves_on(reply):
                    return reply

    async def _moves_on(self, outcome: ClientReply | Exception | None) -> bool:
        """Whether another place is to answer, after an answer or an error of the present one, or before both."""
        moves = False
        while self.further is not None and (after := await self.further(self.exchange, outcome)) is not None:
            if isinstance(outcome, ClientReply):
                outcome.close()
            pass_on, self.exchange = self.requests[0].pass_on, after
            for sent in self.requests:
                sent.pass_on = pass_on
            after.present, outcome = self._present, None
            moves = True  # the next place may be out, too
        return moves


class KeptPlaces:
    """The places of requests whose clients have left and may come back.

    Args:
        end: Called with each one whose client has not come back, and its identity.
    """

    def __init__(self, end: Callable[[HeldRequest, Identity], None]) -> None:
        self._end = end
        self._order: dict[HeldRequest, Identity] = {}  # the longest kept first; a hash of 4 MB takes 3 ms
        self._of_key: dict[str, dict[HeldRequest, Identity]] = {}  # the same by client key

    def __len__(self) -> int:
        return len(self._order)

    def keep(self, held: HeldRequest, parts: list[bytes], now_s: float) -> bool:
        """Keep the place of ``held``, whose connection closes now, and its body, which is taken from ``parts``.

        Returns:
            Whether it is kept: only while it waits, or where its answer will be kept.
        """
        if not held.exchange.waits and held.named is None:
            return False
        same = held.identify()
        if len(self._of_key.get(same.key, ())) >= PLACES_MAX or (not same.key and now_s - held.begun_s < FRESH_S):
            return False
        held.left_s, held.parts[:] = now_s, parts
        parts.clear()
        held.exchange.present.clear()
        self._order[held] = self._of_key.setdefault(same.key, {})[held] = same
        return True

    def claim(self, key: str, identify: Callable[[], Identity], opened_s: float, now_s: float) -> HeldRequest | None:
        """The place for a request that comes again over a connection opened at ``opened_s``; ``None`` for none.

        A request over a connection that was open already is another one, unless an ``Idempotency-Key`` says that it is the same: a
        program may send the same body several times.
        """
        self.expire(now_s)
        kept, same = self._of_key.get(key, {}), identify() if key in self._of_key else None
        held = next((one for one, its in kept.items() if its == same), None)
        if held is None or (held.named is None and held.left_s > opened_s):
            return None
        self._remove(held)
        held.exchange.present.set()
        return held

    def expire(self, now_s: float) -> None:
        """End those whose time is over."""
        while self._order and (oldest := next(iter(self._order))).left_s + PLACE_S < now_s:
            self.end(oldest)

    def __contains__(self, held: HeldRequest) -> bool:
        return held in self._order

    def end(self, held: HeldRequest) -> None:
        """End one."""
        self._end(held, self._remove(held))

    def clear(self) -> None:
        """End all."""
        while self._order:
            self.end(next(iter(self._order)))

    def _remove(self, held: HeldRequest) -> Identity:
        same = self._order.pop(held)
        kept = self._of_key[same.key]
        del kept[held]
        if not kept:
            del self._of_key[same.key]
        return same
