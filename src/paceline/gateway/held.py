"""The metered requests of a process, from their arrival to the end of their answers, and what is kept of them for clients that come back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

from paceline.gateway.answers import KeptAnswers
from paceline.gateway.errors import RequestError
from paceline.gateway.incoming import Bodies, Incoming
from paceline.gateway.life import Life
from paceline.gateway.reading import LARGE
from paceline.gateway.relay import ClientReply
from paceline.gateway.waiting import IDEMPOTENCY, HeldRequest, Identity, KeptExchange, KeptPlaces, identity


class HeldRequests:
    """The metered requests of a process.

    Args:
        life: What the gateway does with requests.
        bodies: The bodies of all requests.

    Attributes:
        waiting: The requests that wait for a permit or an answer, by the tasks of their clients.
        places: The places that are kept.
        answers: The answers that are kept.
    """

    def __init__(self, life: Life, bodies: Bodies) -> None:
        self._life, self._bodies = life, bodies
        self.waiting: dict[asyncio.Task[Any], HeldRequest] = {}
        self.places = KeptPlaces(self._end)
        self.answers = KeptAnswers()

    def leave(self) -> None:
        """The listener is closed: keep no place, and nothing that waits unless it may."""
        self.places.clear()
        self.hand_back()

    def hand_back(self) -> None:
        """Turn away the requests that wait, if the gateway lets none wait any more."""
        if self._life.draining:
            for task, held in list(self.waiting.items()):
                if held.exchange.waits:
                    task.cancel()

    def expire(self, now_s: float) -> None:
        """Forget what was kept too long."""
        self.places.expire(now_s)
        self.answers.expire(now_s)

    def place(self, called: str) -> dict[str, Any] | None:
        """The place in the queue of the request with this id; ``None`` for an unknown one."""
        those = reversed(list(self.waiting.values()))  # at once: this is another thread
        exchange = next((one.exchange for one in those if one.called == called), None)
        if exchange is None:
            return None
        why = exchange.acquisition.why() if exchange.acquisition is not None else None
        asked = {"id": called, "pool": exchange.record.pool}
        if why is None:
            return asked | {"state": "in flight"}
        wait = {"ahead": why.ahead, "binds": why.quota, "expected_wait_s": why.expected_wait_s}
        return asked | {"state": "waiting"} | wait

    async def claim(self, request: Incoming, exchange: KeptExchange) -> HeldRequest | ClientReply:
        """The request in the place that was kept for it, or else in a new one; or the answer that was kept for it."""
        identify = _identity_of(request)
        if sum(map(len, request.parts)) > LARGE:
            identify = cache(identify)
            await asyncio.to_thread(identify)
        # From here to ``begin`` nothing is awaited: of two requests that come at once with one key, both would begin.
        headers, owner, now_s = request.head.headers, request.owner, time.monotonic()
        named: Identity | None = None
        if request.key is not None and request.head.first.get(IDEMPOTENCY):
            named = identify()
            content = self.answers.content(named)
            if content not in (None, named.content):
                raise RequestError(422, "reused", "this Idempotency-Key was used for another request: each has its own")
            if (answer := self.answers.get(named)) is not None:
                accepted = b",".join([value for one, value in headers if one == b"accept-encoding"])
                return answer.reply(accepted.decode("latin-1"))
        kept = self.places.claim(owner, identify, request.connection.opened_s, now_s)
        if kept is None:
            if named is not None:
                if content is not None:
                    raise RequestError(409, "under_way", "a request with this Idempotency-Key is being answered")
                self.answers.begin(named)
            return HeldRequest(exchange, identify, now_s, named)
        if kept.reader is not None:
            kept.reader.cancel()
        self._bodies.release(owner, request.parts)
        request.parts[:] = kept.parts
        return kept

    def keep(self, held: HeldRequest, parts: list[bytes]) -> bool:
        """Keep the place of a request whose connection closes now; returns whether it is kept."""
        kept = not self._life.state.closed and self.places.keep(held, parts, time.monotonic())
        if kept and held.named is not None:
            held.reader = asyncio.create_task(self._read_on(held))
        return kept

    async def _read_on(self, held: HeldRequest) -> None:
        """Read the answer to a request whose client has left, and may come back for it."""
        assert held.task is not None
        try:
            # Shielded, because a client that comes back ends this reader, and takes the task.
            reply: ClientReply = await asyncio.shield(held.task)
        except Exception:  # noqa: BLE001  (for the client that comes back)
            return
        if reply.is_good and held.named is not None:
            reply.start(self.answers.noted(held.named))
            with suppress(Exception):
                while await reply.read() and reply.seen is not None:
                    pass
                self.keep_answer(held, reply)
            self.places.end(held)

    def keep_answer(self, held: HeldRequest, reply: ClientReply) -> None:
        """Keep the answer to a request with an ``Idempotency-Key``, which is over."""
        if held.named is not None and not reply.broken:
            self.answers.keep(held.named, reply, time.monotonic(), stream=held.exchange.metered.call.stream)

    def _end(self, held: HeldRequest, same: Identity) -> None:
        """End a request whose client has not come back."""
        self._bodies.release(same.key, held.parts)
        if held.named is not None:
            self.answers.end(held.named)
        if held.reader is not None and held.reader is not asyncio.current_task():
            held.reader.cancel()
        task, held.task = held.task, None  # which has the request, once it is cancelled
        if task is not None and not task.cancel() and not task.cancelled() and task.exception() is None:
            task.result().close()


def _identity_of(request: Incoming) -> Callable[[], Identity]:
    body = b"".join(request.parts)
    whose = f"{request.user} {request.place.name} "  # a place and an answer are one user's, at one server
    asked = f"{request.head.method} {request.path}?{request.head.query}"
    return partial(identity, request.owner, whose, asked, request.head.headers, body)
