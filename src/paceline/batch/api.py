"""Calls of a provider's Batch API, and what the APIs of all providers have in common."""

from __future__ import annotations

import asyncio
import json
import math
import re
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import IO, Any, ClassVar, Final, NamedTuple, TypeVar, cast
from urllib.parse import quote

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from paceline.batch.acceptance import UNREAD, is_unpaid
from paceline.batch.chunks import Chunk
from paceline.batch.client import TRUST, error_of, one_line
from paceline.batch.index import Index
from paceline.batch.reach import Reach, origin, reason
from paceline.batch.redact import Secrets
from paceline.batch.requests import BadLineError, RunRequest, keyless
from paceline.batch.results import read_json
from paceline.batch.summary import Calls
from paceline.batch.transport import NO_CONNECTION
from paceline.config.servers import ProviderAddress
from paceline.core.results import explaining
from paceline.pacing.lack import lack_of
from paceline.providers.parse import answered_s
from paceline.providers.roots import joined
from paceline.responses.errors import error_in, is_result

T = TypeVar("T")

SMALL_MAX: Final = 16 * 2**20
"""Bytes of an answer that is not a file of results."""

SMALL_S: Final = 120.0
"""Seconds for such an answer."""

RESULTS_MAX: Final = 16 * 2**30
"""Bytes of a file of results, which is copied to a temporary file before it is read."""

RESULT_MAX: Final = 64 * 2**20
"""Bytes of one result."""

BYTES_MAX: Final = 100_000_000
"""Bytes of a batch that are sent."""

PAGES_MAX: Final = 500
"""Pages of a list that are read; with 100 batches each, what a provider can create in a day."""

SKEW_S: Final = 3_600.0
"""How much earlier than by this machine's clock a batch can have been created, beside what the provider's answers show of it."""

NOT_ON: Final = "the list of batches says that it has more, and does not go on"

REDIRECTS: Final = frozenset([301, 302, 303, 307, 308])
REDIRECTS_MAX: Final = 5
"""Redirects from one place of results to the next."""

STORE_MISSING: Final = frozenset([403, 404, 410])
"""What a store answers, at an URL that was signed a moment ago, for what it does not have: S3 says 403 to those that may not list."""

UNTRUSTED: Final = "untrusted"
"""The code of a refusal by this machine: the certificate of the address is not trusted, and that will not change."""

_MISSED: Final = re.compile(
    r"(?=.*file).*(?:(?:cannot|can't|could not|couldn't) find|not found|(?:do(?:es)?|may)(?: not|n't) exist|no such|not in an active state)",
    re.IGNORECASE,
)
"""What a creation's refusal says of a file that was uploaded a moment ago, or that Gemini has deleted after two days (openai.BadRequestError of
github.com/bespokelabsai/curator/issues/116, 2024-12; "Input file not found" of github.com/mongodb-developer/GenAI-Showcase/issues/175, 2025-12;
"File ... may not exist" of github.com/google-gemini/deprecated-generative-ai-python/issues/692, 2025-02)."""

_BROKEN: Final = (aiohttp.ClientError, HttpProcessingError, OSError)
_ID: Final = rb'"%s"\s*:\s*("(?:[^"\\]|\\.){1,2000}")'


class BrokenError(Exception):
    """A call has no usable answer: whether it took effect is not known. The message holds no key and no address."""


class NotYetError(BrokenError):
    """It cannot be known yet whether a batch exists: one that may be it is in progress."""


class RefusedError(Exception):
    """A call was refused.

    Attributes:
        status: The HTTP status.
        code: The error's code.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class UnreadyError(BrokenError):
    """There is no batch, because its file could not be uploaded, or is not known to the provider yet: both can be tried again."""


class UploadError(RefusedError):
    """The requests may not be uploaded, so that no batch was asked for."""


class NoResultsError(Exception):
    """The place of a batch's results has none: they are gone, are not there yet, or something else is there."""


@contextmanager
def uploading(*passing: int) -> Iterator[None]:
    """A call for a file without an answer is an :class:`UnreadyError`, one refused an :class:`UploadError`: a file is not paid for.

    Args:
        passing: Statuses of refusals that say no more than that it came at the wrong moment, beside those that always do.
    """
    try:
        with known_form():
            yield
    except BrokenError as error:
        raise UnreadyError(str(error)) from None
    except RefusedError as error:
        if error.status in passing or is_unpaid(error.status, error.code, str(error)):
            raise UnreadyError(str(error)) from None
        raise UploadError(error.status, error.code, str(error)) from None


@contextmanager
def known_form() -> Iterator[None]:
    """An answer that has not the form of the provider's is a :class:`BrokenError`."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BrokenError(f"the answer is not one of this API ({type(error).__name__})") from None


def id_in(value: dict[str, Any], name: str = "id") -> str:
    """The id of what an answer shows.

    Raises:
        BrokenError: It has none.
    """
    found = value.get(name)
    if not isinstance(found, str) or not found:
        raise BrokenError(f"the answer has no {name}")
    return found


_spooling: Final = partial(
    explaining, "no temporary file can be made", "; set TMPDIR to a folder with room", kind=BrokenError
)


@contextmanager
def spool() -> Iterator[IO[bytes]]:
    """A temporary file for results.

    Raises:
        BrokenError: This machine cannot have one now; also because of what is written at its end.
    """
    with _spooling(), tempfile.TemporaryFile() as file:
        yield file


class Problem(NamedTuple):
    """Why a batch failed: OpenAI's ``errors.data``; ``line`` counts from 1 in the batch."""

    code: str
    message: str
    line: int | None


@dataclass(slots=True)
class SeenBatch:
    """A batch as the provider shows it.

    Attributes:
        id: Its id.
        state: The provider's word.
        total: Its requests; 0 where no search compares them.
        done: Those that have ended.
        answered: Those that have an answer; ``None`` where the provider does not count them apart.
        stated: The results that its files have, by the provider's own count; 0 before it has ended, or where none is stated.
        created_s: When it was created, on the provider's clock; infinite if that is not known.
        files: Where its results are.
        problems: Why it failed.
        mark: What its run has called it; empty for the batch of another program.
    """

    id: str
    state: str
    total: int = 0
    done: int = 0
    stated: int = 0
    created_s: float = math.inf
    files: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    mark: str = ""
    answered: int | None = None


class Result(NamedTuple):
    """The result of one request.

    Attributes:
        custom_id: The id that the batch has for it.
        response: Status, id and body of the answer; ``None`` without one.
        error: Code and message; ``None`` for an answer with status 200.
        again: Whether it is neither an answer nor paid, so that the request can be sent again.
    """

    custom_id: str
    response: dict[str, Any] | None
    error: dict[str, str] | None
    again: bool = False


def _honest(result: Result) -> Result:
    """``result``, as an error where its answer with status 200 is no result; and whether its request can be sent again."""
    response, error = result.response or {}, result.error
    if error is None:
        if is_result(body := response.get("body")):
            return result
        code, words = error_of({"error": dict(found)} if (found := error_in(body)) is not None else body)
        error = {"code": code or "no_result", "message": words}
    status = response.get("status_code")
    again = result.again or is_unpaid(status if isinstance(status, int) else None, error["code"], error["message"])
    return result._replace(error=error, again=again)


def _following(place: str, location: str) -> str:
    """The URL of a redirect from ``place``.

    Raises:
        BrokenError: It is none, or it leaves TLS.
    """
    try:
        found = URL(place).join(URL(location, encoded=True))
    except ValueError:
        raise BrokenError("the provider redirects to what is no URL") from None
    if found.scheme not in ("https", URL(place).scheme) or not found.host:
        raise BrokenError("the provider redirects to an address without TLS")
    return str(found)


@dataclass(eq=False, repr=False)
class Web:
    """Calls of one provider's endpoints, without keys in what they return.

    Attributes:
        client: The HTTP client.
        address: The provider's root and headers.
        secrets: Removes the keys.
        timeout_s: The longest time of one call, which a large file needs, or from one part of results to the next.
        proxy: The proxy's URL.
        calls: Counts them.
        ahead_s: How far this machine's clock was ahead of the provider's at the last answer; 0 if it was behind.
    """

    client: aiohttp.ClientSession
    address: ProviderAddress
    secrets: Secrets
    timeout_s: float
    proxy: str | None
    calls: Calls = field(default_factory=Calls)
    ahead_s: float = 0.0

    def __post_init__(self) -> None:
        self._reach = Reach(lambda _: None, again=False)  # for certificates; what else fails is said of each batch

    async def call(self, method: str, path: str, expect: type = dict, **options: Any) -> Any:
        """The JSON value of an answer, of the type ``expect``.

        Raises:
            RefusedError: The status is not 2xx.
            BrokenError: There is no answer, or none that can be read.
        """
        value, _ = await self.answer(method, path, **options)
        if not isinstance(value, expect):
            raise BrokenError(f"the answer is not a JSON {'object' if expect is dict else 'array'}")
        return value

    async def answer(self, method: str, path: str, **options: Any) -> tuple[Any, Mapping[str, str]]:
        """The JSON value of an answer, or its text, and its headers. Raises as :meth:`call`."""
        status, headers, body = await self._send(method, path, SMALL_MAX, None, **options)
        return self._checked(status, body), headers

    def _checked(self, status: int, body: bytes) -> Any:
        """The JSON value of a body, or its text."""
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = body[:1_000].decode("utf-8", "replace")
        if status >= 500 or status == 408:
            raise BrokenError(f"status {status}")
        if not 200 <= status < 300:
            self.calls.refused += status == 429
            code, words = error_of(value)
            raise RefusedError(status, code, one_line(words))
        return value

    async def fetch(self, path: str, file: IO[bytes]) -> None:
        """Copy an answer to ``file``. It can be in a store to whose signed URL the provider redirects, which gets no key.

        Raises:
            RefusedError: The status is not 2xx.
            NoResultsError: The store does not have it.
            BrokenError: The answer is not complete, or the store does not give it.
        """
        place = ""
        for _ in range(1 + REDIRECTS_MAX):
            status, headers, body = await self._send("GET", path, RESULTS_MAX, file, place=place)
            if status not in REDIRECTS or "location" not in headers:
                break
            place = _following(place or joined(self.address.root, path), headers["location"])
        if place and not 200 <= status < 300:
            text = f"status {status} from {origin(place)}, to which the provider redirects"
            raise NoResultsError(text) if status in STORE_MISSING else BrokenError(text)
        self._checked(status, body)

    async def _send(
        self, method: str, path: str, most: int, file: IO[bytes] | None, **options: Any
    ) -> tuple[int, Mapping[str, str], bytes]:
        self.calls.made += 1
        root, place = origin(self.address.root), options.pop("place", "")
        own = not place or origin(place) == root
        url = URL(place, encoded=True) if place else URL(joined(self.address.root, path))
        headers = self.address.headers_for(url.raw_path) if own else dict(self.address.headers)
        if "json" not in options:
            headers.pop("content-type", None)
        headers |= options.pop("headers", {})
        large = file is not None or "data" in options
        timeout_s = self.timeout_s if large else min(self.timeout_s, SMALL_S)
        sent_s = time.monotonic()
        try:
            async with (
                asyncio.timeout(timeout_s) as limit,
                self.client.request(
                    method, url, headers=headers, proxy=self.proxy, allow_redirects=False, **options
                ) as response,
            ):
                if own:
                    self._reach.connected(root, time.monotonic())  # few connections are older: calls are rare
                    self._reach.answered(root, sent_s, time.monotonic())
                    now_s = time.time()
                    # A date in the future would hide batches from the search, and they would be created again. It is taken for wrong.
                    self.ahead_s = max(0.0, now_s - answered_s(response.headers, now_s))
                content = await self._parts(response, most, file, limit)
                return response.status, response.headers, self.secrets(content)
        except TimeoutError:
            raise BrokenError(f"no answer within {timeout_s:g} s") from None
        except NO_CONNECTION as error:
            if own and lack_of(error) is None:
                self._unreached(root, error, sent_s)
            raise BrokenError(reason(error)) from None
        except (*_BROKEN, MemoryError, RuntimeError) as error:
            if (lack := lack_of(error)) is not None:
                raise BrokenError(f"{lack}{lack.remedy}") from None
            if not isinstance(error, _BROKEN):
                raise
            raise BrokenError(one_line(self.secrets.text(type(error).__name__))) from None

    def _unreached(self, root: str, error: BaseException, sent_s: float) -> None:
        """Note that the address gave no connection.

        Raises:
            RefusedError: It will not be trusted.
        """
        self._reach.failed(root, error, sent_s, time.monotonic())
        if self._reach.distrusts(root):
            raise RefusedError(0, UNTRUSTED, f"{self._reach.lose(root, error)}; {TRUST}") from None

    async def _parts(self, response: Any, most: int, file: IO[bytes] | None, limit: asyncio.Timeout) -> bytes:
        """The content of an answer, or its beginning; it is written to ``file`` if that is given and the answer is no error.

        The time begins anew with each part of a file: at a later attempt, the file would be as large.
        """
        parts, size = list[bytes](), 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > most:
                raise BrokenError(f"the answer is larger than {most // 2**20} MB")
            if file is not None and 200 <= response.status < 300:
                with _spooling():
                    file.write(part)
                limit.reschedule(asyncio.get_running_loop().time() + self.timeout_s)
            elif size <= SMALL_MAX:
                parts.append(part)
        return b"".join(parts)


class ApiForm(NamedTuple):
    """How a Batch API writes what all of them have.

    Attributes:
        paths: The paths of requests that can be part of a batch; the paths of files and batches begin with its first group.
        like: One of them, for a message.
        batches: What the path of a batch has before its id.
        cancel: What the path at which it is cancelled has after that.
        paging: What the query of a list calls the most batches of a page, and the id of the batch after which the page begins.
        id: What the line of a request, and the line of its result, call the id.
        body: What the line of a request calls the body.
        posts: Whether it has the method and the path.
        has_model: Whether its body has the model.
    """

    paths: re.Pattern[str]
    like: str = ""
    batches: str = "batches"
    cancel: str = "/cancel"
    paging: tuple[str, str] = ("limit", "after")
    id: str = "custom_id"
    body: str = "body"
    posts: bool = False
    has_model: bool = True


class Endpoints(ABC):
    """The Batch API of one provider.

    Attributes:
        LINES_MAX: The most requests of a batch, and the most texts that they embed (OpenAI's guide, 2026-11: 50,000 for both).
        SELDOM: Whether the provider asks for a minute between two looks at a batch, from the first on.
        APART: Whether a name in ``body.model`` takes either batches or requests one by one.
        GOING: The states of a batch that goes on.
        ENDED: The states of one that has ended. In the first it has a result for every request.
        FORM: Its paths, and its lines.
        MISSING: The statuses for results that are not there, although the key can see the batch.
        MAPS_IDS: Whether requests have other ids in a batch than in the input.
        run: The id of the run.
    """

    LINES_MAX: ClassVar[int]
    SELDOM: ClassVar[bool] = False
    APART: ClassVar[bool] = False
    GOING: ClassVar[tuple[str, ...]]
    ENDED: ClassVar[tuple[str, ...]]
    FORM: ClassVar[ApiForm]
    MISSING: ClassVar[frozenset[int]] = frozenset([404, 410])
    MAPS_IDS: ClassVar[bool] = False

    def __init__(self, web: Web, run: str = "") -> None:
        self.web, self.run = web, run

    def encode(self, request: RunRequest) -> bytes:
        """A request as the batch has it, without the end of the line.

        Raises:
            BadLineError: Its path cannot be part of a batch.
        """
        form = self.FORM
        if not form.paths.match(request.path):
            wrong = f"url is {keyless(request.path)[:100]!r}: a batch needs a path like {form.like}"
            raise BadLineError(f"line {request.line}: {wrong}")
        posted = {"method": "POST", "url": request.path.removeprefix("/openai")} if form.posts else {}
        body = {name: value for name, value in request.body.items() if form.has_model or name != "model"}
        return json.dumps({form.id: self.id_for(request.custom_id), **posted, form.body: body}).encode("ascii")

    def is_whole(self, state: str) -> bool:
        """Whether a batch in this state has a result for every request."""
        return state == self.ENDED[0]

    def own_ids(self, ids: Iterable[str]) -> dict[str, str]:
        """The input's id for each id that requests with ``ids`` have in a batch, where they are others."""
        return {self.id_for(one): one for one in ids} if self.MAPS_IDS else {}

    def id_for(self, custom_id: str) -> str:
        """The id that a request has in a batch."""
        return custom_id

    def mark(self, chunk: Chunk) -> str:
        """What a batch is called, so that it is found again."""
        return f"paceline-{self.run}-{chunk.name}"

    async def upload(self, chunk: Chunk) -> str:  # noqa: ARG002
        """Upload the requests of a batch; return the id of their file, or nothing where its creation has them.

        Raises:
            RefusedError: They were refused.
            BrokenError: There is no answer.
        """
        return ""

    async def delete(self, chunk: Chunk) -> None:
        """Delete the file of a batch, if it has one; a file that stays costs nothing."""
        if chunk.file:
            with suppress(BrokenError, RefusedError):
                await self.web.call("DELETE", self._one(chunk, "files", chunk.file))

    @abstractmethod
    async def create(self, chunk: Chunk) -> str:
        """Create a batch of its file, or of its content; return its id.

        Raises:
            UnreadyError: The file is not ready: there is no batch.
            UploadError: The file may not be used: there is no batch.
            RefusedError: It was refused.
            BrokenError: It is not known whether there is one.
        """

    async def _made_of_file(self, path: str, order: dict[str, Any]) -> dict[str, Any]:
        """What a creation of a batch of a file answers."""
        try:
            return cast("dict[str, Any]", await self.web.call("POST", path, json=order))
        except RefusedError as error:
            if _MISSED.match(str(error)):
                raise UnreadyError(str(error)) from None
            raise

    async def find(self, chunk: Chunk, known: set[str], index: Index) -> str | None:  # noqa: ARG002
        """The id of a batch that may have been created, by what it is called in the provider's list.

        Args:
            chunk: Its requests.
            known: Ids of other batches of this run.
            index: Has the input's ids.

        Raises:
            RefusedError: The list was refused.
            BrokenError: There is no answer.
            NotYetError: It cannot be known yet.
        """
        mark = self.mark(chunk)
        found = await self._list(chunk, lambda batches: any(seen.mark == mark for seen in batches))
        return next((seen.id for seen in found if seen.mark == mark), None)

    @abstractmethod
    def _seen(self, chunk: Chunk, value: dict[str, Any]) -> SeenBatch:
        """A batch as the provider shows it: the one of ``chunk``, or one of a list beside it."""

    def _at(self, chunk: Chunk, what: str) -> str:
        """``what`` beside the path of the requests: ``/v1/files``, ``/openai/v1/files``, ``/v1beta/files``."""
        found = self.FORM.paths.match(chunk.kind.path)
        return f"{found[1] if found else '/'}{what}"

    def _one(self, chunk: Chunk, of: str, name: str) -> str:
        """The path of a batch or a file, by what it is one ``of``; Gemini's names begin with that."""
        return self._at(chunk, quote(name if name.startswith(f"{of}/") else f"{of}/{name}"))

    def _next_page(self, page: Any, found: list[SeenBatch], number: int) -> str:  # noqa: ARG002
        """What the path of the page after one has in addition, given that page, all batches so far and how many pages they are; empty at the end.

        Raises:
            BrokenError: The page says that there are more, and not where.
        """
        if page.get("has_more") and not found:
            raise BrokenError(NOT_ON)
        return f"&{self.FORM.paging[1]}={quote(found[-1].id)}" if page.get("has_more") else ""

    def _entries(self, page: Any) -> Iterable[Any]:
        """The batches of a page."""
        return page["data"] or ()

    async def _list(self, chunk: Chunk, enough: Callable[[list[SeenBatch]], bool] = lambda _: False) -> list[SeenBatch]:
        """The batches in the provider's list, page by page, until a page has ``enough`` or ends with one that is too old for ``chunk``.

        Raises:
            BrokenError: A batch with the id of the run cannot be read, or none of a page can; or the list has no end.
        """
        path, found, query = f"{self._at(chunk, self.FORM.batches)}?{self.FORM.paging[0]}=100", list[SeenBatch](), ""
        for number in range(PAGES_MAX):
            page = await self.web.call("GET", path + query)
            batches = readable(self._entries(page), self.run, partial(self._seen, chunk))
            found += batches
            before, query = query, self._next_page(page, found, number + 1)
            # A server may show an old batch among new ones: only an old one at the end says that older ones follow.
            if not query or (batches and (batches[-1].created_s < self._oldest_s(chunk) or enough(batches))):
                return found
            if query == before:
                raise BrokenError(NOT_ON)
        raise BrokenError(f"the list of batches has more than {PAGES_MAX} pages")

    def _oldest_s(self, chunk: Chunk) -> float:
        """When a batch was created at the earliest, on the provider's clock."""
        return chunk.at_s - self.web.ahead_s - SKEW_S

    async def look(self, chunk: Chunk) -> SeenBatch:
        """A batch as it is now.

        Raises:
            BrokenError: Its state is not documented.
        """
        seen = self._seen(chunk, await self.web.call("GET", self._one(chunk, self.FORM.batches, chunk.batch)))
        if seen.state not in (*self.ENDED, *self.GOING):
            raise BrokenError(f"its state is {one_line(seen.state)!r}, which is not known here")
        if seen.state in self.ENDED:
            counted = 0 if seen.answered is None else seen.done
            seen.stated = len(chunk.lines) if self.is_whole(seen.state) else counted
        return seen

    async def cancel(self, chunk: Chunk) -> None:
        """Ask for the end of a batch; nothing if it has ended.

        Raises:
            BrokenError: It is not known whether that was heard.
        """
        try:
            await self.web.call("POST", self._one(chunk, self.FORM.batches, chunk.batch) + self.FORM.cancel)
        except RefusedError as error:
            if error.status == 429:
                raise BrokenError("too many calls") from None  # any other refusal: it has ended

    async def results(self, place: str, file: IO[bytes], own_ids: Mapping[str, str]) -> Iterator[Result]:
        """The results at one of the places of :attr:`SeenBatch.files`, by way of a temporary ``file``.

        Args:
            place: The place.
            file: The file.
            own_ids: The ids of the batch's requests, see :meth:`own_ids`.

        Raises:
            RefusedError: They cannot be read.
            NoResultsError: They are not there.
            BrokenError: They could not be read to the end.
        """
        try:
            await self.web.fetch(place, file)
        except RefusedError as error:
            if error.status not in self.MISSING:
                raise
            raise NoResultsError(f"status {error.status}: {error}") from None
        file.seek(0)
        return self._read(file, own_ids)

    def _read(self, file: IO[bytes], own_ids: Mapping[str, str]) -> Iterator[Result]:
        lines, results, is_cut = 0, 0, False
        while raw := file.readline(RESULT_MAX):
            if not raw.strip():
                continue
            lines += 1
            try:
                result = self.result(read_json(self.web.secrets(raw)))
                yield _honest(result)._replace(custom_id=self._own_id(result.custom_id, own_ids))
                results += 1
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                found = re.search(_ID % self.FORM.id.encode(), raw)
                if not raw.endswith(b"\n"):
                    is_cut = True
                elif found is not None:
                    text = "the provider's line for this request cannot be read; --repair sends it again"
                    with suppress(ValueError):
                        name = self._own_id(json.loads(found[1]), own_ids)
                        yield Result(name, None, {"code": UNREAD, "message": text})
                        results += 1
        if lines and not results:  # an error page with status 200: the results are paid, and somewhere else
            raise NoResultsError("no line of the results can be read")
        if is_cut:
            raise NoResultsError("the results end within a line")

    def _own_id(self, name: Any, own_ids: Mapping[str, str]) -> str:
        """The input's id for one in the results, which can be of any form there.

        Raises:
            ValueError: It is no id.
        """
        if isinstance(name, int) and not isinstance(name, bool):
            name = str(name)
        if not isinstance(name, str):
            raise ValueError("not an id")  # noqa: TRY004  (of a server's answer, not of an argument)
        name.encode()  # half a surrogate pair is in no input
        return own_ids.get(name, name)

    @abstractmethod
    def result(self, value: dict[str, Any]) -> Result:
        """One line of results."""


def readable(found: Iterable[Any], run: str, read: Callable[[dict[str, Any]], T]) -> list[T]:
    """The batches of a list; some of those that are not of this run may have another form.

    Raises:
        BrokenError: One with the id of the run cannot be read, or none can.
    """
    batches = []
    for one in found:
        try:
            with known_form():
                batches.append(read(one))
        except BrokenError:
            if run in json.dumps(one):
                raise
    if found and not batches:
        raise BrokenError("no entry in the list of batches can be read")
    return batches


def hashed(custom_id: str) -> str:
    """A hash of an id, which every provider takes."""
    return sha256(custom_id.encode("utf-8", "surrogatepass")).hexdigest()[:40]
