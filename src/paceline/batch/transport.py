"""One HTTP attempt: a deadline for the whole answer, the tasks in flight, and which addresses cannot be reached."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import socket
import ssl
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import httpx2

from paceline.http.httpx import decoder_of

ANSWER_MAX: Final = 256 * 2**20
"""Bytes in an answer's body."""

ENCODED_MAX: Final = 32 * 2**20
"""The same for a body that the server has compressed, though no request asks for it; counted after decoding."""

ANSWERS_MAX: Final = 128 * 2**20
"""Bytes of all answers that are being read. Beyond them one answer is read at a time."""

ERROR_MAX: Final = 2**20
"""Bytes that are kept of the body of an error."""

KEY_MIN: Final = 8
"""Characters in a key; a shorter one is a placeholder (``EMPTY``, ``ollama``), and may occur in any text."""

PART_MIN: Final = 16
"""Characters of a key that reveal it; the public prefixes of keys are shorter."""

CONNECT_S: Final = 30.0

WORKER: Final = "paceline.worker"
"""The extension of a request with its worker's number: a worker keeps to one connection pool."""

WORKERS_PER_POOL: Final = 8
"""A connection pool searches all its connections for every request, so the workers are spread over several."""

NO_CONNECTION: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError)

REPORT_EVERY_S: Final = 30.0
"""The least time between two messages that one address cannot be reached."""

REASON_MAX: Final = 200


class AnswerTooLargeError(httpx2.HTTPError):
    """An answer is larger than what is kept of one; another attempt would bring it again."""


class Secrets:
    """Replaces keys in what a server has sent by ``***``: whole keys, and parts of ``PART_MIN`` characters or more.

    A key is found as it is, in a URL's encoding, with the escapes of JSON (also escaped twice), in base64 and as hex digits.

    Args:
        keys: The keys of all addresses of a run; those below ``KEY_MIN`` characters are no secrets.
    """

    _BLOCK: Final = 8
    _ESCAPE: Final = re.compile(rb"\\+(?:u00([2-7][0-9A-Fa-f])|(.))", re.DOTALL)

    def __init__(self, keys: Iterable[str]) -> None:
        forms: set[str] = set()
        for key in keys:
            if len(key) >= KEY_MIN:
                quoted = quote(key, safe="")
                forms |= {key, quoted, re.sub("%..", lambda code: code[0].lower(), quoted), json.dumps(key)[1:-1]}
                forms |= {
                    key.encode().hex(),
                    *(b64encode(before + key.encode()).decode() for before in (b"", b":", b"::")),
                }
        # Every part of PART_MIN characters in a text holds one of the text's aligned words of 8 bytes whole. One look at
        # each word is a tenth of the time of a search for every block.
        encoded = [one.encode() for one in forms]
        words = (form[at : at + 8] for form in encoded if len(form) >= PART_MIN - 1 for at in range(len(form) - 7))
        self._words = {int.from_bytes(word, sys.byteorder) for word in words}
        self._short = [form for form in encoded if len(form) < PART_MIN - 1]
        # Every part of PART_MIN characters holds one of these blocks whole.
        step, size = PART_MIN - self._BLOCK + 1, self._BLOCK
        self._blocks = [
            (form[at : at + size], at, form) for form in sorted(encoded) for at in range(0, len(form) - size + 1, step)
        ]

    def __call__(self, body: bytes) -> bytes:
        """``body`` without keys; the same object if it has none."""
        plain = self._ESCAPE.sub(_unescaped, body) if b"\\u00" in body or b"\\/" in body else body
        if self._words.isdisjoint(memoryview(plain)[: len(plain) & ~7].cast("Q")) and not any(
            key in plain for key in self._short
        ):
            return body
        found = sorted(span for block in self._blocks for span in _spans(plain, *block))
        if not found:
            return body
        parts, end = [], 0
        for left, right in found:
            if left >= end:
                parts += [plain[end:left], b"***"]
            end = max(end, right)
        return b"".join([*parts, plain[end:]])

    def text(self, words: str) -> str:
        """``words`` without keys."""
        return self(words.encode("utf-8", "replace")).decode()


def _unescaped(escape: re.Match[bytes]) -> bytes:
    """The character of an escape in JSON that has no need of one; any other escape as it is."""
    plain = bytes.fromhex(escape[1].decode()) if escape[1] else escape[2] if escape[2] == b"/" else b'"'
    return escape[0] if plain in b'"\\\x7f' else plain


def _spans(text: bytes, block: bytes, at: int, key: bytes) -> Iterator[tuple[int, int]]:
    """Where ``text`` has ``block``, which begins at ``at`` in ``key``, with enough of the key around it."""
    least, left = min(len(key), PART_MIN), text.find(block)
    while left >= 0:
        start, begin, right, end = left, at, left + len(block), at + len(block)
        while begin and start and text[start - 1] == key[begin - 1]:
            start, begin = start - 1, begin - 1
        while end < len(key) and right < len(text) and text[right] == key[end]:
            right, end = right + 1, end + 1
        if right - start >= least:
            yield start, right
        left = text.find(block, left + 1)


class AnswerTransport(httpx2.AsyncBaseTransport):
    """A transport that reads whole answers, each within a deadline, in bounded memory, and removes keys from them.

    So no key reaches a result, a message or a log: all of them come from these answers.

    Args:
        pools: Connection pools, for ``WORKERS_PER_POOL`` workers each.
        timeout_s: The time from sending a request to the end of its answer.
        reach: Reports addresses that cannot be reached.
        secrets: Removes the keys.

    Attributes:
        in_flight: The tasks whose request was sent, or was answered with a 2xx that is not recorded yet.
        attempts: The number of requests sent.
        refused: The number of answers with status 429.
        first_s: When the first request was sent, on the monotonic clock.
        last_s: When the last request was sent.
        stopping: No new attempt may start: a task that would make another one is cancelled.
    """

    def __init__(
        self, pools: Sequence[httpx2.AsyncBaseTransport], timeout_s: float, reach: Reach, secrets: Secrets
    ) -> None:
        self.in_flight: set[asyncio.Task[None]] = set()
        self.attempts = self.refused = 0
        self.stopping = False
        self.first_s = self.last_s = 0.0
        self._pools, self._timeout_s, self._reach, self._secrets = pools, timeout_s, reach, secrets
        self._reading = 0  # bytes of the answers that are being read
        self._alone = asyncio.Lock()  # held by the one answer that goes beyond ANSWERS_MAX
        connect_s = min(CONNECT_S, timeout_s)
        self._timeout = {"connect": connect_s, "read": timeout_s, "write": timeout_s, "pool": timeout_s}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request, and read the answer to its end.

        Raises:
            httpx2.TransportError: The connection failed, or the deadline passed.
            AnswerTooLargeError: The answer is larger than ``ANSWER_MAX``.
        """
        task = asyncio.current_task()
        assert task is not None
        request.extensions = {**request.extensions, "timeout": self._timeout}
        self.attempts += 1
        self.last_s = sent_s = time.monotonic()
        self.first_s = self.first_s or sent_s
        self.in_flight.add(task)
        pool = self._pools[request.extensions.get(WORKER, 0) // WORKERS_PER_POOL % len(self._pools)]
        status = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await pool.handle_async_request(request)
                self._reach.answered(request.url, sent_s, time.monotonic())
                body = await self._read(response)
            status = response.status_code
        except TimeoutError:
            raise httpx2.ReadTimeout(f"no answer within {self._timeout_s:g} s", request=request) from None
        except NO_CONNECTION as error:
            if not self.stopping:  # otherwise there is no further attempt to announce
                self._reach.failed(request.url, error, sent_s, time.monotonic())
            raise
        finally:
            if not 200 <= status < 300:
                self.in_flight.discard(task)
                if self.stopping:
                    task.cancel()
        self.refused += status == 429
        return httpx2.Response(
            status,
            headers=self._head(response.headers.raw),
            stream=httpx2.ByteStream(self._secrets(body)),
            request=request,
            extensions={k: v for k, v in response.extensions.items() if k != "network_stream"},
        )

    def _head(self, raw: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The headers without keys, and without those that describe the body as it was sent."""
        values = b"\n".join([value for _, value in raw])
        if self._secrets(values) is not values:
            raw = [(name, self._secrets(value)) for name, value in raw]
        return [pair for pair in raw if pair[0].lower() not in _OF_BODY]

    async def _read(self, response: httpx2.Response) -> bytes:
        """The body, decoded; of an error its beginning.

        Raises:
            AnswerTooLargeError: It is too large.
        """
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        body, alone = bytearray(), False
        decode = decoder_of(response, response.headers)
        most = ANSWER_MAX if decode is None else ENCODED_MAX
        try:
            async for part in response.stream:
                for piece in (part,) if decode is None else decode(part):
                    if not alone and self._reading + len(piece) > ANSWERS_MAX:
                        alone = await self._alone.acquire()
                    body += piece
                    self._reading += len(piece)
                    if response.status_code >= 400 and len(body) >= ERROR_MAX:
                        return bytes(body[:ERROR_MAX])
                    if len(body) > most:
                        how = "" if decode is None else " when decoded"
                        raise AnswerTooLargeError(f"the answer is larger than {most // 2**20} MB{how}")
        finally:
            self._reading -= len(body)
            if alone:
                self._alone.release()
            await response.stream.aclose()
        return bytes(body)

    async def aclose(self) -> None:
        """Close the connections."""
        for pool in self._pools:
            await pool.aclose()


_OF_BODY: Final = frozenset([b"content-encoding", b"content-length", b"transfer-encoding"])


@dataclass(slots=True)
class _Address:
    """The state of one address; instants in seconds of one clock."""

    answered_s: float = -math.inf
    failed_s: float = -math.inf
    reported_s: float = -math.inf
    reported: bool = False  # as an address that cannot be reached
    why: str = ""  # why it cannot be reached; empty while it can
    lost: str = ""  # why a request failed that is not retried


class Reach:
    """Reports, once, that an address cannot be reached, and when it can be reached again.

    Args:
        say: Takes a line for the user.
        again: Whether a request without a connection is retried.
        proxy: The proxy's URL, if there is one; it may hold a password.
    """

    def __init__(self, say: Callable[[str], None], *, again: bool, proxy: str | None = None) -> None:
        self._say, self._again = say, "; trying again" if again else ""
        self._via = f" through the proxy {origin(httpx2.URL(proxy))}" if proxy else ""
        self._addresses: dict[str, _Address] = {}

    def failed(self, url: httpx2.URL, error: Exception, sent_s: float, now_s: float) -> None:
        """An attempt sent at ``sent_s`` got no connection; ignored if another was answered since."""
        address = self._address(url)
        if address.answered_s > sent_s:
            return
        address.why, address.failed_s = reason(error), now_s
        if not address.reported and now_s - address.reported_s >= REPORT_EVERY_S:
            address.reported, address.reported_s = True, now_s
            self._say(f"{self._unreached(origin(url), address.why)}{self._again}")

    def answered(self, url: httpx2.URL, sent_s: float, now_s: float) -> None:
        """An attempt sent at ``sent_s`` was answered; over an older connection that says nothing of new ones."""
        address = self._address(url)
        address.answered_s = now_s
        if address.why and sent_s >= address.failed_s:
            address.why = ""
            if address.reported:
                address.reported = False
                self._say(f"{origin(url)} can be reached again")

    def lose(self, url: httpx2.URL, error: Exception) -> str:
        """A request got no connection and is not retried; returns the message for its record."""
        self._address(url).lost = reason(error)
        return self._unreached(origin(url), reason(error))

    def at_end(self) -> list[str]:
        """A line for each address that cannot be reached now, or because of which requests failed."""
        down = [self._unreached(name, one.why) for name, one in self._addresses.items() if one.why]
        was = [(name, one.lost) for name, one in self._addresses.items() if one.lost and not one.why]
        return down + [f"{name} could not be reached for a while{self._via}: {lost}" for name, lost in was]

    def _unreached(self, name: str, why: str) -> str:
        return f"cannot reach {name}{self._via}: {why}"

    def _address(self, url: httpx2.URL) -> _Address:
        return self._addresses.setdefault(origin(url), _Address())


def origin(url: httpx2.URL) -> str:
    """Scheme, host and port: paths, queries and user names can hold keys."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def reason(error: Exception) -> str:
    """Why there was no connection, in a few words, from the system's error inside the library's."""
    if isinstance(error, httpx2.ConnectTimeout):
        return "connection timed out"
    inner: BaseException | None = error
    while inner is not None and not (isinstance(inner, OSError) and inner.errno is not None):
        nested = inner.exceptions[0] if isinstance(inner, BaseExceptionGroup) else None
        inner = nested or inner.__cause__ or inner.__context__
    words = str(error) or type(error).__name__
    match inner:
        case ConnectionRefusedError():
            words = "connection refused"
        case socket.gaierror(errno=socket.EAI_NONAME):
            words = "no such host"
        case socket.gaierror():
            words = f"its name cannot be resolved: {inner.strerror}"
        case ssl.SSLCertVerificationError():
            words = f"its certificate is not trusted: {inner.verify_message}"
        case ssl.SSLError():
            words = f"TLS failed: {(inner.reason or str(inner)).replace('_', ' ').lower()}"
        case OSError():
            system = os.strerror(inner.errno or 0)
            words = system[:1].lower() + system[1:]
    return "".join(c for c in words if c.isprintable())[:REASON_MAX]
