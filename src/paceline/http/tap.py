"""Reads what an answer says of its usage from the bytes that pass to the caller."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from paceline.core.results import Refusal
from paceline.pacing.faults import is_timeout
from paceline.providers.base import Usage, UsageReader
from paceline.providers.verdict import Decode

log = logging.getLogger("paceline.http")

Settle = Callable[[Usage | None, Refusal | None], None]


class Tap:
    """Reads usage from the raw chunks of a body and settles once: at the terminal event, else at the body's end.

    The end may be an early close, and a body may be iterated again after it. What it does not report is counted by the text that has passed.

    Args:
        reader: Reads the usage.
        settle: Called once, with the usage and a refusal inside of the answer.
        begin: Called once, with the first usage, if the answer reports it before its end.
        late: Called before it settles if the caller has waited for too long for the next chunk.

    Attributes:
        decode: Removes the content encoding, chunk by chunk; ``None`` for a plain body.
    """

    __slots__ = ("_begin", "_beginning", "_bytes", "_late", "_reader", "_settle", "decode")

    @property
    def done(self) -> bool:
        """Whether it has settled."""
        return self._settle is None

    def __init__(
        self,
        reader: UsageReader,
        settle: Settle,
        begin: Callable[[Usage], None] | None = None,
        late: Callable[[], object] | None = None,
    ) -> None:
        self._reader, self._begin, self._late = reader, begin, late
        self._settle: Settle | None = settle  # until it is called
        self.decode: Decode | None = None
        self._beginning, self._bytes = bytearray(), 0

    def feed(self, chunk: bytes) -> None:
        """Take the next raw bytes. Never raises: an invalid body is for the caller's own reader to report."""
        if self._settle is None:
            return
        try:
            for piece in (chunk,) if self.decode is None else self.decode(chunk):
                self._reader.feed(piece)
                self._bytes += len(piece)
                if len(self._beginning) < SAMPLE:
                    self._beginning += piece[:SAMPLE]
            done = self._reader.done
        except Exception as error:  # noqa: BLE001
            log.debug("usage cannot be read: %s", type(error).__name__)
            done = True  # the rest would be misread, too
        if done:
            self.finish()
        elif self._begin is not None and self._reader.usage is not None:
            begin, self._begin = self._begin, None
            begin(self._reader.usage)

    def broke(self, error: BaseException) -> None:
        """The body has broken off with ``error``."""
        if self._settle is not None and self._late is not None and is_timeout(error):
            self._late()
        self.finish()

    def finish(self) -> None:
        """The body is over: settle, unless that is done."""
        settle, self._settle = self._settle, None
        if settle is None:
            return
        usage, refusal = None, None
        try:
            self._reader.close()
            usage, refusal = self._reader.usage, self._reader.refusal
        except Exception as error:  # noqa: BLE001
            log.debug("usage cannot be read: %s", type(error).__name__)
        if usage is None or usage.partial:  # broken off, or an API that reports none: the text is a lower bound
            tokens = self._tokens()
            if tokens and (usage is None or usage.output_tokens < tokens):
                usage = replace(usage or Usage(), output_tokens=tokens, partial=True)
        settle(usage, refusal)

    def _tokens(self) -> int:
        """The tokens of the text that has passed, by the part of its beginning that is text."""
        seen, text = len(self._beginning), sum(map(len, _TEXT.findall(self._beginning)))
        return text * self._bytes // (seen * TOKEN_BYTES) if seen else 0


class BodyReader:
    """Reads a body as a reader of usage does, and gives so much of its beginning to ``take`` at the end."""

    usage: Usage | None = None
    refusal: Refusal | None = None
    done = False

    def __init__(self, most: int, take: Callable[[bytes], object]) -> None:
        self._most, self._take, self._body = most, take, bytearray()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body."""
        self._body += chunk[: self._most - len(self._body)]
        self.done = len(self._body) >= self._most

    def close(self) -> None:
        """It is over, or long enough."""
        self._take(bytes(self._body))


_TEXT: Final = re.compile(
    rb'"(?:text|content|thinking|reasoning|reasoning_content|arguments|partial_json|input|delta)":\s*"((?:[^"\\]|\\.)*)'
)
"""The texts of an answer, in the streams of all APIs."""

SAMPLE: Final = 16_384
"""Bytes of the beginning that are kept: some hundred events, each with as much text as the later ones."""

TOKEN_BYTES: Final = 4
"""The bytes of a token of text, on average (OpenAI's guide to tokens, 2025)."""
