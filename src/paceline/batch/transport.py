"""One HTTP attempt: a deadline for the whole answer, bounded memory, and the tasks in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import aiohttp
import httpx2
from aiohttp.http_exceptions import ContentEncodingError
from yarl import URL

from paceline.batch.files import filled, refers
from paceline.batch.reach import Reach, origin, system_words
from paceline.batch.redact import Secrets
from paceline.batch.results import read_body
from paceline.batch.summary import Calls
from paceline.http.binding import Binding, Exchanged, UnsentError
from paceline.http.tap import Tap
from paceline.pacing.lack import lack_of
from paceline.pacing.permit import Permit
from paceline.providers.roots import joined
from paceline.providers.verdict import Beginning

ANSWER_MAX: Final = 256 * 2**20
"""Bytes in an answer's body."""

ENCODED_MAX: Final = 32 * 2**20
"""The same for a body that the server has compressed, though no request asks for it; counted after decoding."""

ANSWERS_MAX: Final = 128 * 2**20
"""Bytes of all answers that are being read. Beyond them one answer is read at a time."""

ERROR_MAX: Final = 2**20
"""Bytes that are kept of the body of an error."""

CONNECT_S: Final = 30.0

KEEP_S: Final = 30.0
"""How long a connection is kept that has no request."""

HEADER_MAX: Final = 65_536
"""Bytes in one header of an answer."""

HEADERS_MAX: Final = 1_000
"""Headers of an answer."""

NO_CONNECTION: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)

_OF_BODY: Final = ("content-encoding", "content-length", "transfer-encoding")

Post = Callable[..., Awaitable[Any]]
"""Sends a POST to a URL with ``headers`` and ``data``, and returns its response, whose body is still to be read."""


class AnswerTooLargeError(Exception):
    """An answer is larger than what is kept of one; another attempt would bring it again."""


class NotDecodedError(Exception):
    """An answer is not what its content encoding says; another attempt would bring it again."""


class DistrustedError(UnsentError):
    """The certificate of the address, or of each in a group, is not trusted; the message says why."""


class PausedError(UnsentError):
    """A request was not sent, because answers cannot be written."""


@dataclass
class WholeAnswer:
    """A whole answer, without keys.

    Attributes:
        headers: By names in lower case, without those that describe the body as it was sent.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    record: Exchanged | None = None

    @cached_property
    def payload(self) -> Any:
        """The JSON value of the body; if it is not JSON, its text, shortened."""
        try:
            return read_body(self.body)
        except (ValueError, RecursionError):
            return self.body[:10_000].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class RunTarget:
    """Where requests of one kind go.

    Attributes:
        url: The whole URL.
        origin: Its scheme, host and port.
        key: Its host and path, as an exchange names a target.
        others: The origins of a group: its requests can go to each of them.
    """

    url: URL
    origin: str
    key: tuple[str, str]
    others: Collection[str] = ()

    @classmethod
    def of(cls, root: str, path: str, others: Collection[str] = ()) -> Self:
        """The target at ``path`` below the server's ``root``."""
        url = URL(joined(root, path))
        return cls(url, origin(str(url)), (url.host or "", url.path), others)


class Sender:
    """Sends requests and reads whole answers, each within a deadline, in bounded memory, and removes keys from them.

    So no key reaches a result, a message or a log: all of them come from these answers.

    Args:
        reach: Reports addresses that cannot be reached.
        calls: Counts the requests sent, and the refusals.
        paused: Whether nothing may be sent now.

    Attributes:
        calls: The same.
        timeout_s: The time from sending a request to the end of its answer.
        secrets: Removes the keys.
        post: The way to send; ``None`` until it is set.
        in_flight: The tasks whose request was sent, or was answered with a 2xx that is not recorded yet.
        last: The number of the last attempt, with those for which this machine lacked something.
        stopping: No new attempt may start: a task that would make another one is cancelled.
    """

    def __init__(
        self, timeout_s: float, reach: Reach, secrets: Secrets, calls: Calls, paused: Callable[[], bool]
    ) -> None:
        self.post: Post | None = None
        self.in_flight: set[asyncio.Task[Any]] = set()
        self.calls, self.last = calls, 0
        self.stopping = False
        self.timeout_s, self._reach, self.secrets, self._paused = timeout_s, reach, secrets, paused
        self._reading = 0  # bytes of the answers that are being read
        self._alone = asyncio.Lock()  # held by the one answer that goes beyond ANSWERS_MAX

    def request(self, target: RunTarget, headers: Mapping[str, str], content: bytes) -> Binding:
        """A request to ``target``, for an exchange, whose response is a :class:`WholeAnswer`."""
        return _Request(self, target, headers, content)

    async def send(self, target: RunTarget, headers: Mapping[str, str], content: bytes) -> WholeAnswer:
        """Send a request, and read the answer to its end.

        Raises:
            aiohttp.ClientError: The connection failed.
            TimeoutError: The deadline passed.
            AnswerTooLargeError: The answer is larger than ``ANSWER_MAX``.
            NotDecodedError: The answer is not what its content encoding says.
            DistrustedError: The certificate is not trusted, and another attempt would not change that.
            PausedError: Nothing may be sent now.
            GoneError: A file of the request cannot be read any more.
        """
        if self._paused():
            raise PausedError
        if refers(content):
            content = await asyncio.to_thread(filled, content)
        assert self.post is not None
        task = asyncio.current_task()
        assert task is not None
        self.calls.made += 1
        self.last += 1
        sent_s = time.monotonic()
        self.in_flight.add(task)
        status = 0
        try:
            async with asyncio.timeout(self.timeout_s):
                response = await self.post(target.url, headers=headers, data=content)
                self._reach.answered(target.origin, sent_s, time.monotonic())
                body = await self._read(response)
            status = response.status
        except NO_CONNECTION as error:
            if not self.stopping and lack_of(error) is None:  # when stopping, there is no further attempt to announce
                self._reach.failed(target.origin, error, sent_s, time.monotonic())
                if all(map(self._reach.distrusts, target.others or [target.origin])):
                    raise DistrustedError(self._reach.lose(target.origin, error)) from None
            raise
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
            raise _without_url(error) from None
        except aiohttp.ClientOSError as error:  # its own text may have the URL
            if lack_of(error) is not None:
                raise
            why = f": {system_words(error)}" if error.errno else ""
            raise aiohttp.ClientOSError(f"the connection broke{why}") from None
        except TimeoutError:
            raise TimeoutError(f"no answer within {self.timeout_s:g} s") from None
        finally:
            if not 200 <= status < 300:
                self.in_flight.discard(task)
                if self.stopping:
                    task.cancel()
        return WholeAnswer(status, self._head(response.headers), self.secrets(body))

    def free(self) -> None:
        """The answer that the present task has received is no result: another attempt may follow."""
        task = asyncio.current_task()
        if task in self.in_flight:
            self.in_flight.discard(task)
            if self.stopping:
                task.cancel()

    def _head(self, headers: Mapping[str, str]) -> dict[str, str]:
        head = {name.lower(): value for name, value in headers.items()}
        values = "\n".join(head.values()).encode("utf-8", "surrogateescape")
        if self.secrets(values) is not values:
            head = {name: self.secrets.text(value) for name, value in head.items()}
        for name in _OF_BODY:
            head.pop(name, None)
        return head

    async def _read(self, response: Any) -> bytes:
        """The body, decoded; of an error its beginning.

        Raises:
            AnswerTooLargeError: It is too large.
        """
        body, alone, stream = b"", False, response.content
        encoded = "content-encoding" in response.headers
        most = ENCODED_MAX if encoded else ANSWER_MAX
        parts: list[bytes] = []
        size = 0
        try:
            while part := await stream.readany():
                if not alone and self._reading + len(part) > ANSWERS_MAX:
                    alone = await self._alone.acquire()
                parts.append(part)
                size += len(part)
                self._reading += len(part)
                if response.status >= 400 and size >= ERROR_MAX:
                    break
                if size > most:
                    how = " when decoded" if encoded else ""
                    raise AnswerTooLargeError(f"the answer is larger than {most // 2**20} MB{how}")
            body = b"".join(parts)
        finally:
            self._reading -= size
            if alone:
                self._alone.release()
            response.close()  # after the end of the body, the connection has been given back already
        return body[:ERROR_MAX] if response.status >= 400 else body


def _without_url(error: aiohttp.ClientPayloadError | aiohttp.ClientResponseError) -> Exception:
    """``error`` without the URL that its text may have; apart, if it is only about the encoding of the content."""
    inner: BaseException | None = error
    for _ in range(3):
        if isinstance(inner, ContentEncodingError):
            return NotDecodedError(inner.message)
        inner = inner and (inner.__cause__ or inner.__context__)
    if isinstance(error, aiohttp.ClientResponseError):
        return aiohttp.ClientPayloadError(f"the answer is not valid HTTP: {error.message}")
    return error


class _Request:
    """A request of a run, through ``sender``; see :class:`~paceline.http.binding.Binding`."""

    __slots__ = ("_content", "_headers", "_sender", "_target", "address", "attempt", "target")
    is_async = True

    def __init__(self, sender: Sender, target: RunTarget, headers: Mapping[str, str], content: bytes) -> None:
        self._sender, self._target, self._headers, self._content = sender, target, headers, content
        self.address, self.target = target.origin, target.key
        self.attempt = 0  # the number of the last attempt

    async def send(self, permit: Permit | None = None) -> WholeAnswer:  # noqa: ARG002
        self.attempt = self._sender.last + 1
        return await self._sender.send(self._target, self._headers, self._content)

    def head(self, response: WholeAnswer) -> tuple[int, Mapping[str, str]]:
        return response.status, response.headers

    async def peek(self, response: WholeAnswer, headers: Mapping[str, str], beginning: Beginning) -> None:  # noqa: ARG002
        payload = response.payload
        beginning.take(response.body, payload if isinstance(payload, dict | list) else None)

    def tap(self, response: WholeAnswer, headers: Mapping[str, str], tap: Tap) -> None:  # noqa: ARG002
        tap.feed(response.body)
        tap.finish()

    def note(self, response: WholeAnswer, record: Exchanged) -> None:
        response.record = record

    async def close(self, response: WholeAnswer) -> None:
        pass

    def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> WholeAnswer:
        return WholeAnswer(status, headers, body)


class _Connector(aiohttp.TCPConnector):
    """Tells of each new connection, by the origin of its address."""

    def __init__(self, connected: Callable[[str], None], **options: Any) -> None:
        super().__init__(**options)
        self._connected = connected

    async def _create_connection(self, req: Any, *given: Any, **options: Any) -> Any:
        made = await super()._create_connection(req, *given, **options)
        self._connected(origin(str(req.url)))
        return made


def session(timeout_s: float, connected: Callable[[str], None] = lambda _: None) -> aiohttp.ClientSession:
    """A session without a limit of connections: the workers are the limit, and a permit must not wait for a connection.

    Args:
        timeout_s: The time for a connection.
        connected: Called with the origin of each new connection.

    Certificates are trusted as by httpx2: by the system's store on every system. Compressed answers are not asked for. Those that come are decoded in small pieces, as they are read.
    """
    return aiohttp.ClientSession(
        connector=_Connector(connected, limit=0, keepalive_timeout=KEEP_S, ssl=httpx2.create_ssl_context()),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=["accept-encoding"],
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=min(CONNECT_S, timeout_s)),
        max_line_size=HEADER_MAX,
        max_field_size=HEADER_MAX,
        max_headers=HEADERS_MAX,
    )
