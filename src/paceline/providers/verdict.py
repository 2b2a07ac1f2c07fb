"""What an answer is, by its bytes: a result, a refusal, another error, or no answer of the API that was asked.

A status of 400 and more says so itself. A status of 200 does not: hosts and proxies answer with an error object, with an
error before the first content of a stream, or with a page. A :class:`Beginning` judges every answer, for every door.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

from paceline.core.results import Refusal
from paceline.providers.base import Call, Headers, Provider
from paceline.responses.errors import error_in, error_of, has_content, has_result, stated_status
from paceline.responses.events import Splitter, StreamEventKind, is_stream, splitter_of
from paceline.responses.values import BOM, as_mapping, decode

log = logging.getLogger("paceline.providers")

Decode = Callable[[bytes], Iterable[bytes]]
"""Decodes a body, chunk by chunk."""

HELD_MAX: Final = 65_536
"""Bytes of a body that are read before it is judged: of an error, of a stream without content, of a longer body."""

HELD_S: Final = 1.0
"""Seconds that bytes of a stream are held before they are judged, at most.

A provider that refuses inside a stream decides before it generates, and says so with the first event or soon after:
the time is ten round trips between two continents (0.1 s each). The first event comes late by it, where its content does,
and nothing else. No provider says how soon it refuses.
"""

WHOLE_MAX: Final = 8 * 2**20
"""The same of a JSON answer, which may be cut: a longer one is taken for whole."""

START_KEPT: Final = 10_000
"""Bytes of an unreadable body that are kept."""

REQUEST_FAULT: Final = 400
"""The status of an error of the request itself: another attempt at the same account would not mend it."""

SERVER_FAULT: Final = 500
"""The status of an error that names none."""

UNREADABLE_STATUS: Final = 502
"""The status of an answer that is none of its API."""


class Verdict(StrEnum):
    """What an answer is."""

    RESULT = "result"
    """What was asked for, or the beginning of it."""
    REFUSAL = "refusal"
    """The provider refuses the request."""
    FAULT = "fault"
    """Another error: of the request, or of the server."""
    UNREADABLE = "unreadable"
    """No answer of the API that was asked: a page, nothing, or a result without content."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on an answer.

    Attributes:
        verdict: What it is.
        status: The status that says so: the answer's own, the one that the error in it states, or 502 if it is unreadable.
        refusal: The refusal in it.
        error: The error in an answer whose status is below 400, or 400.
        why: Why it is unreadable, in words that quote nothing of it.
        start: The beginning of an unreadable body.
        payload: The JSON value of the body, where all of it was read; of what is no result, only an object.
    """

    verdict: Verdict
    status: int
    refusal: Refusal | None = None
    error: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    start: bytes = b""
    payload: Any = None


def judge(provider: Provider, call: Call, status: int, headers: Headers, body: bytes, *, strict: bool = True) -> Judged:
    """The verdict on a whole answer; for the arguments see :class:`Beginning`."""
    beginning = Beginning(provider, call, status, headers, strict=strict)
    beginning.take(body)
    return beginning.judged()


@dataclass(slots=True, eq=False, repr=False)
class Beginning:
    """Judges an answer by its first bytes.

    Args:
        provider: The provider that was asked.
        call: What it was asked for.
        status: The status of the answer.
        headers: Its headers.
        strict: Whether a JSON object without any field of a known result is unreadable; not where the API is a guess.
        held_s: For how long a part of a stream is held; by default ``HELD_S``.

    Attributes:
        body: The decoded bytes so far.
        held_s: For how long a part of a stream is held.
        payload: The JSON value of the body, where it is known already.
        enough: Whether the bytes so far are enough for a verdict.
        ended: Whether the body is over.
    """

    provider: Provider
    call: Call
    status: int
    headers: Headers
    strict: bool = field(default=True, kw_only=True)
    held_s: float = field(default=HELD_S, kw_only=True)
    body: bytearray = field(default_factory=bytearray, init=False)
    payload: Any = field(default=None, init=False)
    enough: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)
    _splitter: Splitter | None = field(default=None, init=False)  # of a stream, once its form is known
    _told: Mapping[str, Any] | None = field(default=None, init=False)  # the error with which a stream begins
    _accepted: bool = field(default=False, init=False)

    @property
    def _streams(self) -> bool:
        return self.status < 300 and (self.call.stream or is_stream(self.headers.get("content-type", "")))

    @property
    def held(self) -> bool:
        """Whether a part of a stream is there that the caller could have: it is held for ``held_s`` at most."""
        return self._splitter is not None and bool(self.body)

    @property
    def open(self) -> bool:
        """Whether a stream is passed on without a verdict: its hold is over, and it has begun, and says no more."""
        return self.held and not (self.enough or self.ended)

    def feed(self, piece: bytes) -> bool:
        """Take the next decoded bytes of the body; return whether they are enough for a verdict."""
        first = not self.body
        self.body += piece
        if self._splitter is None and self._streams:
            piece = bytes(self.body)
            self._splitter = splitter_of(self.headers, piece[:4_096], stream=self.call.stream)
        if self._splitter is not None:
            self._split(self._splitter, piece)
        elif first and self.status < 300 and not piece.startswith(b"<") and _BINARY.search(piece, 0, 64):
            self.accept()  # a sound, a picture, or an encoding that is not known
        self.enough = self.enough or (len(self.body) > HELD_MAX and self._is_long())
        return self.enough

    def _split(self, splitter: Splitter, piece: bytes) -> None:
        """Look for the first event in the next bytes of a stream that is content or an error: it is enough."""
        for event in splitter.feed(piece):
            if event not in (StreamEventKind.IDLE, StreamEventKind.START):
                self._told, self.enough = event if isinstance(event, Mapping) else None, True
                return

    def _is_long(self) -> bool:
        """Whether a body above ``HELD_MAX`` is judged without the rest."""
        return len(self.body) > WHOLE_MAX or self.status >= 300 or self._streams or not _is_json(self.body)

    def take_encoded(self, chunk: bytes, decode: Decode | None) -> None:
        """Take bytes that ``decode`` decodes. What cannot be decoded is for the caller's own reader to report."""
        try:
            for piece in (chunk,) if decode is None else decode(chunk):
                if self.feed(piece):
                    return
        except Exception as error:  # noqa: BLE001  (each library has an error of its own)
            log.debug("an answer cannot be decoded: %s", type(error).__name__)
            self.accept()

    def take(self, body: bytes, payload: Any = None) -> None:
        """Take a whole body, and its JSON value if that is known."""
        self.payload = payload
        self.feed(body)
        self.end()

    def accept(self) -> None:
        """Take an answer with a status below 300 for a result, of any body."""
        self.enough = self._accepted = True

    def end(self) -> None:
        """The body is over."""
        self.ended = True
        if self._splitter is not None and not self.enough:
            self._split(self._splitter, b"\n\n")  # the last event may lack its blank line

    def take_idle(self) -> bytes:
        """Remove the comments and pings before an answer, and return them: the client may get them now.

        A ping inside of an answer, as Anthropic's streams have one before their first text, comes with the rest of what is held.
        """
        idle, others = (b"", b"") if self._splitter is None else self._splitter.take_idle()
        if idle:
            self.body = bytearray(others)
        return idle

    def judged(self) -> Judged:
        """The verdict."""
        if self.status >= 400:
            refusal = self.provider.refusal(self.status, self.headers, bytes(self.body))
            error = error_of(bytes(self.body))[0] if self.status == 400 else {}
            return Judged(Verdict.FAULT if refusal is None else Verdict.REFUSAL, self.status, refusal, error)
        if self.status >= 300:  # a redirect is the caller's to follow
            return Judged(Verdict.FAULT, self.status)
        if self._accepted:
            return Judged(Verdict.RESULT, self.status)
        if self._splitter is None:
            return self._whole(self.body)
        if self._told is not None:
            return self._of_error(json.dumps({"error": dict(self._told)}).encode(), self._told)
        if self.ended and not self.enough:
            return _unreadable(self.body, f"a stream without content, of {len(self.body):,} bytes")
        return Judged(Verdict.RESULT, self.status)

    def _whole(self, body: bytearray) -> Judged:
        """The verdict on a body that is no stream."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind.startswith(_MEDIA):
            return Judged(Verdict.RESULT, self.status)
        payload = self.payload
        if payload is None and len(body) <= HELD_MAX:
            payload = decode(body.removeprefix(BOM))
        if isinstance(payload, dict | list):
            return self._of_json(body, payload)
        if payload is None and len(body) > HELD_MAX and self._is_whole(body):
            return Judged(Verdict.RESULT, self.status)  # too long for an error
        is_text = kind in _TEXT or (body and not body.lstrip().startswith(b"<"))
        if self.call.endpoint in TEXTS and is_text:
            return Judged(Verdict.RESULT, self.status)
        return _unreadable(body, f"{_form(body)} of {len(body):,} bytes, and no JSON object")

    def _is_whole(self, body: bytearray) -> bool:
        """Whether a long body is JSON, and ends as JSON does."""
        return _is_json(body) and (not self.ended or body[-64:].rstrip().endswith((b"}", b"]")))

    def _of_json(self, body: bytearray, payload: Any) -> Judged:
        """The verdict on a JSON object, or a list of them."""
        error = error_in(payload)
        if error is None and not has_result(payload, strict=self.strict):
            return replace(_unreadable(body, "a JSON value without a result"), payload=as_mapping(payload))
        if error is not None:
            if getattr(self.provider, "errors_outrank", False) or not has_content(payload):
                return replace(self._of_error(bytes(body), error), payload=as_mapping(payload))
            _log_both(self.provider.name)
        return Judged(Verdict.RESULT, self.status, payload=payload)

    def _of_error(self, body: bytes, error: Mapping[str, Any]) -> Judged:
        """The verdict on an error in an answer whose status is below 400."""
        status = stated_status(error)
        refusal = self.provider.refusal(status or self.status, self.headers, body)
        if refusal is not None:
            return Judged(Verdict.REFUSAL, status or 429, refusal, error)
        return Judged(Verdict.FAULT, status or SERVER_FAULT, error=error)


class Patience:
    """How long the streams of a pool are held.

    Where they are silent after their first event, each hold costs its whole time and shows nothing. After ``n`` such
    holds the next one shows a refusal with a chance of 1 in ``n + 2`` (the rule of succession), so that it lasts as
    much less. A refusal that comes later is the stream's, and the next stream is held for the whole time again.

    WEAK: streams whose content comes in time count for nothing here, because their holds cost nothing.

    Attributes:
        seconds: For how long the next stream is held at most.
    """

    __slots__ = ("_in_vain", "seconds")

    def __init__(self) -> None:
        self.refused()

    def judged(self, beginning: Beginning, refusal: Refusal | None) -> None:
        """A stream was judged by its ``beginning``, or was not when the hold ended."""
        if refusal is not None:
            self.refused()
        elif beginning.open:
            self._in_vain += 1
            self.seconds = HELD_S / (1 + self._in_vain)

    def refused(self) -> None:
        """A stream has a refusal inside of it: the next ones may."""
        self._in_vain = 0  # holds that have ended without a verdict since then
        self.seconds = HELD_S


_MEDIA: Final = "audio/", "image/", "video/", "application/octet-stream"
_TEXT: Final = "text/plain", "text/vtt", "application/x-subrip"
TEXTS: Final = frozenset({"transcriptions", "speech"})
"""The endpoints whose answer can be a text."""


def _is_json(body: bytearray) -> bool:
    return body[:64].removeprefix(BOM).lstrip().startswith((b"{", b"["))


_BINARY: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")  # in a terminal, a text may have an escape


def _form(body: bytearray) -> str:
    start = body[:512].lstrip().lower()
    if not start:
        return "an empty body"
    return "a page" if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<")) else "a text"


def _unreadable(body: bytearray, why: str) -> Judged:
    return Judged(Verdict.UNREADABLE, UNREADABLE_STATUS, why=why, start=bytes(body[:START_KEPT]))


@lru_cache(maxsize=1_000)  # once for each provider
def _log_both(provider: str) -> None:
    log.warning("%s: an answer with status 200 has a result and an error: it is taken for a result", provider)
