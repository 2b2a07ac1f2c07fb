"""Asking a server for the usage of a chat stream, for a client that has not: its budget needs it.

A chat stream of OpenAI's form reports its usage in a further chunk, and only if it is asked to (OpenAI's API reference, ``stream_options``;
2025-11). The client gets the stream without that chunk.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from paceline.gateway.keys import ClientKey
from paceline.http.binding import Exchanged
from paceline.providers.base import Provider
from paceline.providers.verdict import Decode
from paceline.responses.events import MAX_EVENT, whole_events
from paceline.responses.values import as_mapping, decode

log = logging.getLogger("paceline.gateway")

OPTIONS: Final = "stream_options"

UNREPORTED_MAX: Final = 1_000
"""The keys and pools whose streams without usage are told."""

REFUSES: Final = (400, 422)
"""The statuses with which a server refuses a field that it does not know."""

# Inside of a text the quotes have backslashes, so that no text of an answer is changed.
_NULL = re.compile(rb',\s*"usage"\s*:\s*null(?=\s*[,}])')


class Asking(NamedTuple):
    """A body with the field that asks for the usage.

    Attributes:
        kept: How many bytes of the client's body it begins with.
        more: What follows.
    """

    kept: int
    more: bytes

    def of(self, body: bytes) -> bytes:
        """It, from the client's body."""
        return b"".join((memoryview(body)[: self.kept], self.more))


def may_ask(provider: Provider, path: str) -> bool:
    """Whether the server of ``provider`` can be asked for the usage of a stream at ``path``."""
    return provider.asks_usage and path.rstrip("/").endswith("/completions")


def asking(body: bytes) -> Asking | None:
    """What asks for the usage in ``body``; ``None`` where it does itself, or is no request for a stream."""
    fields = decode(body)
    if not isinstance(fields, dict) or fields.get("stream") is not True:
        return None
    if OPTIONS in fields:
        options = as_mapping(fields[OPTIONS])
        if options.get("include_usage") is True:
            return None
        return Asking(0, json.dumps({**fields, OPTIONS: {**options, "include_usage": True}}).encode())
    end = len(body.rstrip()) - 1
    return Asking(end, b', "stream_options": {"include_usage": true}}')  # the rest as the client has written it


class StreamUsage:
    """What is known of the usage of streams.

    Attributes:
        takes: Whether a server can be asked for it, by its address.
    """

    def __init__(self) -> None:
        self.takes: dict[str, bool] = {}
        self._told: set[tuple[str, str]] = set()  # the keys and pools of streams without usage

    def look(self, key: ClientKey | None, record: Exchanged | None) -> None:
        """Log once for each key and pool that a whole stream has reported no usage: sums have an estimate of it, and budgets what was reserved."""
        if record is None or record.settled is None or record.usage is not None or len(self._told) >= UNREPORTED_MAX:
            return
        if record.failed:  # so that it has not come to its usage
            return
        whose = "" if key is None else f", key {key.name}"
        if (whose, record.pool) not in self._told:
            self._told.add((whose, record.pool))
            log.warning(
                "%s%s: its streams report no usage, so that usage counts them as estimated, and a budget as reserved: chats of OpenAI's form"
                ' report it with "stream_options": {"include_usage": true}, and streams of Gemini where the query has alt=sse',
                record.pool,
                whose,
            )


class Unasked:
    """Removes from a stream what its client has not asked for: the chunk of the usage, and ``"usage": null`` in all others.

    Args:
        decode: Removes its encoding; ``None`` for a plain one.
    """

    __slots__ = ("_decode", "_rest")

    def __init__(self, decode: Decode | None = None) -> None:
        self._decode, self._rest = decode, bytearray()

    def feed(self, part: bytes) -> Iterator[bytes]:
        """The whole events in what has come; the rest is kept for the next call, and comes at the end, with an empty part."""
        data = part if self._decode is None else b"".join(self._decode(part))
        yield from map(_without_usage, whole_events(self._rest, data))
        if not part or len(self._rest) > MAX_EVENT:
            yield _without_usage(bytes(self._rest))
            self._rest.clear()


def _without_usage(event: bytes) -> bytes:
    if b'"usage"' not in event:
        return event
    event = _NULL.sub(b"", event)
    data = event.partition(b"data:")[2]
    if b'"usage"' in event and data:
        chunk = decode(data)
        if isinstance(chunk, dict) and chunk.get("choices") == [] and chunk.get("usage"):
            return b""
    return event
