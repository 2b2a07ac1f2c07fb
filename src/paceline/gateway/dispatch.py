"""A request to a server, from its head to the end of its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from paceline.core.hints import did_you_mean
from paceline.gateway.admission import Admission, refuse_unmetered
from paceline.gateway.asked import StreamUsage
from paceline.gateway.client import HttpClient, Upload
from paceline.gateway.errors import RequestError, as_event, come_back, no_answer, own, stopping
from paceline.gateway.fallback import tell, told, why_failed
from paceline.gateway.held import HeldRequests
from paceline.gateway.incoming import OPTION, Bodies, Incoming, number
from paceline.gateway.keys import ClientKey, lists
from paceline.gateway.life import Life
from paceline.gateway.listing import own_list
from paceline.gateway.metering import Metering
from paceline.gateway.names import name_asked, renamed_path
from paceline.gateway.passing import Passing
from paceline.gateway.protocol import HttpProtocol
from paceline.gateway.reading import STICKY, Seen
from paceline.gateway.refusals import Refusals, RequestRefusals
from paceline.gateway.relay import HOP_BY_HOP, ClientReply, Relayed, forwarded, readable
from paceline.gateway.settings import GatewaySettings
from paceline.gateway.shares import Shares
from paceline.gateway.unmetered import send_unmetered
from paceline.gateway.upstreams import ACCOUNT, JUDGED_HEADERS, LITELLM_KEY, OF_CLIENT, Upstream, path_at, without_key
from paceline.gateway.waiting import Further, HeldRequest, KeptExchange, KeptRoutedExchange, Rhythm, rhythm_of
from paceline.gateway.windows import bound, has_login, shut, shut_meanwhile
from paceline.http.exchange import Way
from paceline.http.unpaced import announce
from paceline.limiter.limiter import Limiter
from paceline.pacing.pacer import NAME_MAX, current_lane
from paceline.pacing.settings import TIMEOUT_MAX_S
from paceline.providers.registry import no_keys

NOTES_S: Final = (1.0, 600.0)
"""The bounds of ``x-paceline-keepalive``, beside 0."""

_TIMEOUT, _LANE, _PRIORITY = OPTION + b"timeout", OPTION + b"lane", OPTION + b"priority"
_NAME, _KEEPALIVE, _ID = OPTION + b"name", OPTION + b"keepalive", OPTION + b"id"
_STICKY = OPTION + b"sticky"
_NEVER: Final = JUDGED_HEADERS | {LITELLM_KEY}

_DROPPED: Final = HOP_BY_HOP | {_TIMEOUT, _LANE, _PRIORITY, _NAME, _KEEPALIVE, _ID, _STICKY, b"accept-encoding"}

_WAITING: Final = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
"""The headers of a stream that begins before its answer is there."""


class Dispatch:
    """Passes the requests of clients on, each when its permit is there, and their answers back.

    Args:
        limiter: The limiter.
        life: What the gateway does with requests.
        client: The HTTP client.
        admission: Knows which keys are revoked.
        settings: What the gateway does beside passing requests on.
    """

    def __init__(
        self, limiter: Limiter, life: Life, client: HttpClient, admission: Admission, settings: GatewaySettings
    ) -> None:
        self._limiter, self._life, self._client, self._admission = limiter, life, client, admission
        self._passing = Passing(limiter.pacer, tells_quotas=settings.tells_quotas)
        self._not_with_key = JUDGED_HEADERS | (OF_CLIENT - ACCOUNT if settings.names_account else OF_CLIENT)
        self._metering = Metering(limiter)
        admission.tell(self._metering.lanes.read_again)
        self._refusals = Refusals()
        limiter.pacer.accounts.forgotten = self._metering.models.forget
        self._usage = StreamUsage()
        self._bodies = Bodies()
        self.held = HeldRequests(life, self._bodies)
        self._under_way = Shares()  # of the connections: one for each request

    async def close(self) -> None:
        """End what it has begun."""
        await self._client.close()
        await self._bodies.close()

    def expire(self, now_s: float) -> None:
        """Forget what was kept too long."""
        self.held.expire(now_s)
        self._metering.models.expire(now_s)

    async def relay(self, request: Incoming) -> None:
        """Pass a request on, and its answer back.

        Raises:
            RequestError: It is not sent, and nothing of an answer either.
        """
        owner = request.owner
        if not self._under_way.fits(owner, 1, request.connection.most):
            raise RequestError(503, "busy", "this key has too many requests under way: send this one later")
        self._under_way.use(owner, 1)
        try:
            await self._relay(request)
        finally:
            self._under_way.use(owner, -1)

    async def _relay(self, request: Incoming) -> None:
        _check_keys(request)
        reply: ClientReply | None = None
        try:
            body = await self._bodies.read(request, partial(_is_unread, request))
            if body is None:
                reply = await self._upload(request)
            elif request.place.routes is not None and lists(request.head.method, request.decoded_path):
                refuse_unmetered(request.key, request.head.method, request.path)
                reply = own_list(request, request.place.routes)
            else:
                first, *others = await self._routed(request, body)
                if first is not request:
                    _check_keys(first)
                requests, exchange = await self._prepared(first, body)
                if self._life.draining:  # the body ended after the signal
                    raise stopping()
                if exchange is None:
                    refuse_unmetered(request.key, first.head.method, first.path)
                    reply = await send_unmetered(self._limiter.pacer, first, requests[0])
                else:
                    # Before a place is claimed: nothing may fail after that.
                    asked_s = number(request.options, _KEEPALIVE, *NOTES_S, also=0.0)
                    found = await self.held.claim(request, exchange)
                    if isinstance(found, HeldRequest):
                        if found.task is None and others:
                            found.further = self._further(found, [first, *others], body)
                        await self._relay_held(request, found, asked_s)
                        return
                    reply = found
            await self._passing.send(request, reply)
        finally:
            self._bodies.release(request.owner, request.parts)
            if reply is not None:
                reply.close()
                _note(request, reply)

    async def _routed(self, request: Incoming, body: bytes) -> list[Incoming]:
        """The request at each place of its model, in their order; as it is where its path has named the place."""
        routes = request.place.routes
        if routes is None:
            return [request]
        name = name_asked(request.decoded_path, (await self._bodies.look(request, body, ())).fields)
        request.entry.model = name[:NAME_MAX]
        places = routes.find(name)
        if not places:
            why = "the request names no model, and its path no server"
            if name:
                why = f"no server has the model {name[:100]!r}{did_you_mean(name, routes)}"
            raise RequestError(404, "model", f"{why}: GET /v1/models lists the names of this address")
        return [request.at(place) for place in places]

    def _further(self, held: HeldRequest, at: list[Incoming], body: bytes) -> Further:
        """What makes the exchange of a request at the next of its places, ``at``, when the one before has failed."""
        others, failed, began_s = at[1:], dict[str, str](), time.monotonic()
        target = at[0].place.target
        held.exchange.try_once()

        async def further(present: KeptExchange, outcome: ClientReply | Exception | None) -> KeptExchange | None:
            nonlocal target
            why = present.why_out() if outcome is None else why_failed(outcome)
            while why and others:
                request = others.pop(0)
                failed[target] = why
                tell(request.place.asked, target, request.place.target, why)
                target = request.place.target
                try:
                    _check_keys(request)
                    _, exchange = await self._prepared(_in_time(request, began_s), body)
                except RequestError as refused:
                    why = refused.word
                    continue
                if exchange is not None:
                    if others:
                        exchange.try_once()
                    return exchange
                why = "its API has no such call"
            if isinstance(outcome, ClientReply):
                outcome.fallback = told(target, failed)
            return None

        return further

    async def _prepared(self, request: Incoming, body: bytes) -> tuple[list[Relayed], KeptExchange | None]:
        """What is sent to each member of the place of a request, and its exchange; ``None`` for one that costs nothing."""
        members = request.place.members if request.head.method == "POST" else request.place.members[:1]
        seen = await self._bodies.look(request, body, members)
        requests = [
            self._relayed(request, upstream, own or body, renamed=own is not None)
            for upstream, own in zip(members, seen.bodies, strict=True)
        ]
        exchange = self._exchange(request, requests, seen)
        if exchange is not None:
            exchange.denied = partial(self._admission.denied, request.key)
        return requests, exchange

    async def _relay_held(self, request: Incoming, held: HeldRequest, asked_s: float | None) -> None:
        """Relay a metered request, whose place or answer is kept if its client leaves."""
        reply: ClientReply | None = None
        try:
            reply = await self._send(request, held, asked_s)
            if held.named is not None and reply.is_good:
                reply.start(self.held.answers.noted(held.named))
            await self._passing.send(request, reply)
            self.held.keep_answer(held, reply)
            if held.exchange.metered.call.stream and reply.is_good and not reply.broken:
                self._usage.look(request.key, reply.record)
        except asyncio.CancelledError:
            if reply is not None and reply.seen is not None and request.connection.gone:
                self.held.keep(held, request.parts)
            raise
        finally:
            _note(request, reply, held.server)
            request.entry.record = held.exchange.record  # also of what was not answered
            if held not in self.held.places:
                if reply is not None:
                    reply.close()
                if held.named is not None:
                    self.held.answers.end(held.named)

    async def _upload(self, request: Incoming) -> ClientReply:
        """The answer to a request whose body is passed on as it comes."""
        first = request.place.members[0]
        if request.head.method == "POST":
            announce(first.provider.name, first.host, request.path)
        body = Upload(request.head.length, self._bodies.coming(request))
        return await send_unmetered(self._limiter.pacer, request, self._relayed(request, first, body, renamed=False))

    def _relayed(self, request: Incoming, upstream: Upstream, body: bytes | Upload, *, renamed: bool) -> Relayed:
        """The request as it is sent; ``renamed``: its body is not encoded as the client's."""
        sent = forwarded(request.head.headers, _DROPPED | {b"content-encoding"} if renamed else _DROPPED)
        if b"accept-encoding" in request.head.first:
            sent += [(name, readable(value)) for name, value in request.head.headers if name == b"accept-encoding"]
        query, never = request.head.query, _NEVER
        if upstream.key or request.open_path:  # the client cannot know to which provider a name leads
            client, never = request.given.encode("latin-1"), self._not_with_key
            sent = [pair for pair in sent if not (client and client in pair[1])]
            query = without_key(query, request.given)
        sent = [pair for pair in sent if pair[0].replace(b"_", b"-") not in never]  # the same name for many servers
        path = path_at(upstream, request.open_path) if request.open_path else request.path
        path = renamed_path(path, upstream.models)
        return Relayed(self._client, upstream, request.head.method, path, query, sent, body)

    def _exchange(self, request: Incoming, requests: list[Relayed], seen: Seen) -> KeptExchange | None:
        """The exchange of a request that costs something; ``None`` for another one.

        Args:
            request: The request.
            requests: What is sent to each member of its place.
            seen: What was read in its body.
        """
        if request.head.method != "POST":
            return None
        place, pacer, options = request.place, self._limiter.pacer, request.options
        name, timeout_s = options.get(_NAME), number(options, _TIMEOUT, 0, TIMEOUT_MAX_S)
        _take_lane(request.key, options)
        found = self._metering.of(request, seen)
        if not found:
            announce(place.members[0].provider.name, place.members[0].host, request.path)
            return None
        self._metering.admit(request, found, seen)
        if pacer.allowances.bounds_money(pacer.lanes.of()):
            for i, sent in enumerate(requests):
                sent.ask_usage(self._usage.takes, partial(seen.asks, i))
        for sent, one in zip(requests, found, strict=True):
            if one.payer is not None:
                about = one.scheduler, one.payer.account
                sent.refusals = RequestRefusals(self._refusals, about, one.payer.credential)
        ways = [Way(sent, one) for sent, one in zip(requests, found, strict=True)]
        if place.choice is None:
            return KeptExchange(pacer, *ways[0], timeout_s=timeout_s, name=name)
        sticky = options.get(_STICKY) or seen.fields.get(STICKY)
        named = {member.name: way for member, way in zip(place.members, ways, strict=True)}
        sticky = str(sticky)[:NAME_MAX] if sticky else None
        return KeptRoutedExchange(pacer, named, place.choice, sticky=sticky, timeout_s=timeout_s, name=name)

    async def _send(self, request: Incoming, held: HeldRequest, asked_s: float | None) -> ClientReply:
        """The answer to a request, from the queue and the server. If its head has been sent, an error is an event."""
        exchange, connection = held.exchange, request.connection
        for sent in held.requests:
            sent.pass_on = partial(self._passing.begin, request)
        rhythm = rhythm_of(exchange, request.head.query, request.head.headers, asked_s)
        bounded = held.task is None and has_login(held) and bound(request, held, is_fed=rhythm.note is not None)
        if bounded and (refusal := shut(held)) is not None:
            return refusal
        task = connection.task
        assert task is not None
        self.held.waiting[task] = held
        called = request.options.get(_ID)
        held.called = called and called[:NAME_MAX]
        try:
            reply = await self._waited(request, held, rhythm, bounded=bounded)
        except asyncio.CancelledError:
            if not (self._life.state.closed and held.exchange.waits):
                raise
            # Cancelled by ``hand_back``, and not because its client has left: the task goes on, and answers.
            task.uncancel()
            reply = _of_its_own(stopping(), connection)
        except RequestError as refusal:
            reply = _of_its_own(refusal, connection)
        except Exception as error:  # noqa: BLE001  (it is answered)
            reply = _of_its_own(no_answer(error, held.server), connection, error)
        finally:
            del self.held.waiting[task]
        begun = connection.answering and reply.status >= 400
        return await as_event(reply, exchange.metered.call) if begun else reply

    async def _waited(self, request: Incoming, held: HeldRequest, rhythm: Rhythm, *, bounded: bool) -> ClientReply:
        """The answer to a request whose stream is kept alive, or whose place is kept if its client leaves.

        ``bounded``: it may not wait for a window of a plan that is shut for long, which other processes may know of.
        """
        task = held.task = held.task or asyncio.create_task(held.run())
        due_s, connection = rhythm.due_s, request.connection
        answered = kept = False
        try:
            if bounded:
                if (refusal := await shut_meanwhile(held, task, due_s)) is not None:
                    return refusal
                # It was waited for until then already.
                due_s = 0.0
            while not (await asyncio.wait([task], timeout=due_s))[0]:
                due_s = rhythm.every_s
                if rhythm.note is None:
                    if kept := self.held.keep(held, request.parts):
                        # Claude Code 2.1.197 takes each 429 to its login for the end of a window, and ends.
                        raise come_back(503 if has_login(held) else 429)
                    continue  # no place is left for it, so it waits for as long as its client does
                await self._passing.begin(request, ClientReply(200, _WAITING), rhythm.note)
            answered = True
        except asyncio.CancelledError:
            kept = connection.gone and self.held.keep(held, request.parts)
            raise
        finally:
            if not (answered or kept):  # the client is gone
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    (await task).close()
        reply: ClientReply = task.result()  # once: its error has no traceback the second time
        return reply


def _check_keys(request: Incoming) -> None:
    """Refuse a request that the gateway has no key for: the key of a client reaches no server, and by a name no credential of it does.

    A name can lead to a machine that asks for no key.
    """
    for upstream in request.place.members:
        needs = upstream.is_home if request.open_path else request.key is not None
        if needs and not upstream.key:
            variable = upstream.provider.key_env
            why = f"set {variable} for it" if variable else no_keys(upstream.provider.name)
            if not upstream.is_home:  # a server of the user's own
                why += ', or write key_env = "" for it in [upstreams] if it needs none'
            raise RequestError(503, "no_key", f"the gateway has no key for {upstream.name}: {why}")


def _take_lane(key: ClientKey | None, options: Mapping[bytes, str]) -> None:
    """Wait in the lane that a client without a key names."""
    lane, priority = options.get(_LANE), number(options, _PRIORITY, -1_000_000, 1_000_000)
    for text in (lane, options.get(_NAME), options.get(_STICKY)):
        if text is not None and not 0 < len(text) <= NAME_MAX:
            raise RequestError(400, "option", f"a lane, a name or a key must have 1 to {NAME_MAX} characters")
    if key is None and (lane is not None or priority is not None):
        current_lane.set((lane or f"priority {priority:g}", None, None if priority is None else int(priority)))


def _is_unread(request: Incoming) -> bool:
    """Whether nothing of the body of a request is read, because it costs nothing."""
    place, path = request.place, request.decoded_path
    if place.routes is None:
        reads = place.members[0].provider.describe(path, {}) is not None
    else:
        reads = place.routes.speaks(path)
    if request.head.method == "POST" and reads:
        return False
    if place.routes is not None:
        raise RequestError(
            404, "model", f"{path[:100]} names no model: begin the path with a server, e.g. /openai{path[:100]}"
        )
    refuse_unmetered(request.key, request.head.method, request.path)
    return True


def _note(request: Incoming, reply: ClientReply | None, server: str = "") -> None:
    """Tell the access log what is known of an answer, where there is one; ``server``: who was to give it."""
    request.entry.server = (reply and reply.server) or server
    if reply is not None:
        request.entry.record, request.entry.fallback = reply.record, reply.fallback.decode()


def _of_its_own(refusal: RequestError, connection: HttpProtocol, cause: Exception | None = None) -> ClientReply:
    """The answer of the gateway to a stream whose head has been sent; else ``refusal`` is raised."""
    if not connection.answering:
        raise refusal from cause
    return own(refusal.status, refusal.word, str(refusal))


def _in_time(request: Incoming, began_s: float) -> Incoming:
    """A request at a further place, where it can wait for what is left of its time."""
    most_s = number(request.options, _TIMEOUT, 0, TIMEOUT_MAX_S)
    if most_s is None:
        return request
    left_s = max(most_s - time.monotonic() + began_s, 0)
    return replace(request, options={**request.options, _TIMEOUT: f"{left_s:.3f}"})
