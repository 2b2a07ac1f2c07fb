"""Answers that are kept for requests with an ``Idempotency-Key``: for each client key, in memory, and for some minutes."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from paceline.gateway.connection import Headers
from paceline.gateway.relay import ClientReply, Noted, decoded, decoder
from paceline.gateway.shares import Shares
from paceline.gateway.waiting import Identity
from paceline.responses.events import JsonLines, ServerSent, StreamEventKind, splitter_of

ANSWER_S: Final = 600.0
"""How long an answer is kept: the clients that repeat a request do so within minutes."""

ANSWER_MAX: Final = 4 * 2**20
"""Bytes of an answer that is kept: 13,000 tokens of a streamed chat, with 300 bytes for each."""

ANSWERS_MAX: Final = 1_000
"""Answers that are kept for one client key."""

OF_KEY_MAX: Final = 32 * 2**20
"""Bytes of the answers that are kept for one client key."""

ALL_MAX: Final = 256 * 2**20
"""The same of all client keys; and of all answers that are being read, which client keys share."""

_BESIDE: Final = 1_000
"""Bytes that the objects of an answer take beside its body and its headers."""

_END: Final = 16_384
"""Bytes at the end of a stream in which an error is looked for."""


class KeptAnswer(NamedTuple):
    """An answer that is kept."""

    content: bytes
    status: int
    headers: Headers
    body: bytes
    kept_s: float
    fallback: bytes

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return len(self.body) + sum(len(name) + len(value) for name, value in self.headers) + _BESIDE

    def reply(self, accepted: str) -> ClientReply:
        """The answer for a request that comes again, whose client accepts these encodings."""
        reply = ClientReply(self.status, [*self.headers, (b"idempotent-replayed", b"true")], self.body)
        reply.fallback = self.fallback
        if (encoding := reply.encoding) and encoding not in accepted.lower():
            reply.decode()
        return reply


class KeptAnswers:
    """The requests with an ``Idempotency-Key`` that are under way, and the answers to those that are over."""

    def __init__(self) -> None:
        self._read = Shares()
        self._under_way: dict[tuple[str, bytes], bytes] = {}  # by client key and digest: the content
        self._kept: dict[str, dict[bytes, KeptAnswer]] = {}  # by client key; the longest kept first
        self._sizes: Counter[str] = Counter()

    def noted(self, same: Identity) -> Noted:
        """For what is noted of the answer to the request, while it is read."""
        return Noted(ANSWER_MAX, ALL_MAX, same.key, self._read)

    def content(self, same: Identity) -> bytes | None:
        """The content of the request with this ``Idempotency-Key``; ``None`` for a new one."""
        answer = self.get(same)
        return self._under_way.get(same[:2]) if answer is None else answer.content

    def get(self, same: Identity) -> KeptAnswer | None:
        """The answer that is kept for the request."""
        return self._kept.get(same.key, {}).get(same.digest)

    def begin(self, same: Identity) -> None:
        """The request is under way."""
        self._under_way[same[:2]] = same.content

    def end(self, same: Identity) -> None:
        """The request is under way no more."""
        self._under_way.pop(same[:2], None)

    def keep(self, same: Identity, reply: ClientReply, now_s: float, *, stream: bool) -> None:
        """Keep an answer that was seen to its end, unless it says that the request failed; ``stream``: one was asked for."""
        if reply.seen is None or not reply.is_good or _failed(reply, bytes(reply.seen), stream=stream):
            return
        answer = KeptAnswer(same.content, reply.status, reply.headers, bytes(reply.seen), now_s, reply.fallback)
        self._kept.setdefault(same.key, {})[same.digest] = answer
        self._sizes[same.key] += answer.size
        while self._sizes[same.key] > OF_KEY_MAX or len(self._kept[same.key]) > ANSWERS_MAX:
            self._drop_oldest(same.key)
        while self._sizes.total() > ALL_MAX:
            self._drop_oldest(max(self._sizes, key=self._sizes.__getitem__))

    def expire(self, now_s: float) -> None:
        """Forget the answers whose time is over."""
        for key in list(self._kept):
            while (kept := self._kept.get(key)) and next(iter(kept.values())).kept_s + ANSWER_S < now_s:
                self._drop_oldest(key)

    def _drop_oldest(self, key: str) -> None:
        kept = self._kept[key]
        self._sizes[key] -= kept.pop(next(iter(kept))).size
        if not kept:
            del self._kept[key], self._sizes[key]


def _failed(reply: ClientReply, body: bytes, *, stream: bool) -> bool:
    """Whether a stream ends with an error: another attempt may have a better answer. Others were judged as a whole."""
    if (decode := decoder(reply.encoding)) is not None:
        body = decoded(decode, body, 4 * ANSWER_MAX)
    splitter = splitter_of(reply.texts, body[:_END], stream=stream)
    if splitter is None:
        return False
    if len(body) > _END and isinstance(splitter, ServerSent | JsonLines):
        # From a whole line on: the first one is cut.
        body = body[-_END:].partition(b"\n")[2]
    return any(not isinstance(event, StreamEventKind) for event in splitter.feed(body + b"\n\n"))
