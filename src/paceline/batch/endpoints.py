"""The Batch APIs of the providers: OpenAI's, which Groq and Azure have too, Mistral's and Anthropic's.

Sequences and limits: developers.openai.com/api/docs/guides/batch; platform.claude.com, batch processing; Azure:
learn.microsoft.com/azure/ai-foundry/openai/how-to/batch and /azure/foundry/reference/rest/batches-create-batch;
docs.mistral.ai/capabilities/batch (2026-11).
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import IO, Any, ClassVar, Final, NamedTuple
from urllib.parse import quote

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from paceline.batch.address import Address
from paceline.batch.chunks import Chunk
from paceline.batch.client import error_of, one_line
from paceline.batch.index import Index
from paceline.batch.redact import Secrets
from paceline.batch.requests import BadLineError, Request

SMALL_MAX: Final = 16 * 2**20
"""Bytes of an answer that is not a file of results."""

SMALL_S: Final = 120.0
"""Seconds for such an answer."""

RESULTS_MAX: Final = 16 * 2**30
"""Bytes of a file of results, which is copied to a temporary file before it is read."""

RESULT_MAX: Final = 64 * 2**20
"""Bytes of one result."""

PAGES_MAX: Final = 500
"""Pages of a list that are read; with 100 batches each, what a provider can create in a day."""

SKEW_S: Final = 3_600.0
"""How much earlier than on this machine a batch can have been created on the provider's clock."""

FULL: Final = "token_limit_exceeded"
_BROKEN: Final = (aiohttp.ClientError, HttpProcessingError, OSError)
_ID: Final = re.compile(rb'"custom_id"\s*:\s*("(?:[^"\\]|\\.){1,2000}")')
_PLAIN_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)


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


class Problem(NamedTuple):
    """Why a batch failed: OpenAI's ``errors.data``; ``line`` counts from 1 in the batch."""

    code: str
    message: str
    line: int | None


@dataclass(slots=True)
class Seen:
    """A batch as the provider shows it.

    Attributes:
        id: Its id.
        state: The provider's word.
        ended: Whether nothing in it will change any more.
        total: Its requests.
        done: Those that have ended.
        created_s: When it was created, on the provider's clock.
        files: Where its results are.
        problems: Why it failed.
        mark: The run and the chunk in its metadata.
    """

    id: str
    state: str
    ended: bool
    total: int = 0
    done: int = 0
    created_s: float = 0.0
    files: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    mark: tuple[str, str] | None = None


class Result(NamedTuple):
    """The result of one request.

    Attributes:
        custom_id: The id that the batch has for it.
        response: Status, id and body of the answer; ``None`` without one.
        error: Code and message; ``None`` for an answer with status 200.
        again: Whether the provider has not worked on it, so that it can be sent again.
    """

    custom_id: str
    response: dict[str, Any] | None
    error: dict[str, str] | None
    again: bool = False


class Web:
    """Calls of one provider's endpoints, without keys in what they return.

    Args:
        client: The HTTP client.
        address: The provider's root and headers.
        secrets: Removes the keys.
        timeout_s: The longest time of one call; that of a large file.
        proxy: The proxy's URL.
    """

    def __init__(
        self, client: aiohttp.ClientSession, address: Address, secrets: Secrets, timeout_s: float, proxy: str | None
    ) -> None:
        self._client, self._address, self._secrets, self._timeout_s, self._proxy = (
            client, address, secrets, timeout_s, proxy,
        )  # fmt: skip
        self.calls = self.refused = 0

    async def call(self, method: str, path: str, **options: Any) -> Any:
        """The JSON value of an answer.

        Raises:
            RefusedError: The status is not 2xx.
            BrokenError: There is no answer, or none that can be read.
        """
        status, body = await self._send(method, path, SMALL_MAX, None, **options)
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = body[:1_000].decode("utf-8", "replace")
        if status >= 500 or status == 408:
            raise BrokenError(f"status {status}")
        if not 200 <= status < 300:
            self.refused += status == 429
            code, words = error_of(value)
            raise RefusedError(status, code, one_line(words))
        if not isinstance(value, dict):
            raise BrokenError("the answer is not a JSON object")
        return value

    async def fetch(self, path: str, file: IO[bytes]) -> None:
        """Copy an answer to ``file``.

        Raises:
            RefusedError: The status is not 2xx.
            BrokenError: The answer is not complete.
        """
        status, body = await self._send("GET", path, RESULTS_MAX, file)
        if status >= 500 or status == 408:
            raise BrokenError(f"status {status}")
        if not 200 <= status < 300:
            code, words = error_of(body.decode("utf-8", "replace"))
            raise RefusedError(status, code, one_line(words))

    async def _send(
        self, method: str, path: str, most: int, file: IO[bytes] | None, **options: Any
    ) -> tuple[int, bytes]:
        self.calls += 1
        headers = dict(self._address.headers)
        if "json" not in options:
            headers.pop("content-type", None)
        headers |= options.pop("headers", {})
        large = file is not None or "data" in options
        timeout_s = self._timeout_s if large else min(self._timeout_s, SMALL_S)
        parts, size = list[bytes](), 0
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._client.request(
                    method,
                    self._address.root + path,
                    headers=headers,
                    proxy=self._proxy,
                    allow_redirects=False,
                    **options,
                ) as response,
            ):
                async for part in response.content.iter_any():
                    size += len(part)
                    if size > most:
                        raise BrokenError(f"the answer is larger than {most // 2**20} MB")
                    if file is not None and 200 <= response.status < 300:
                        file.write(part)
                    elif size <= SMALL_MAX:
                        parts.append(part)
                return response.status, self._secrets(b"".join(parts))
        except TimeoutError:
            raise BrokenError(f"no answer within {timeout_s:g} s") from None
        except _BROKEN as error:
            raise BrokenError(one_line(self._secrets.text(type(error).__name__))) from None

    def clean(self, raw: bytes) -> bytes:
        """``raw`` without keys."""
        return self._secrets(raw)


class Endpoints(ABC):
    """The Batch API of one provider.

    Attributes:
        LINES_MAX: The most requests of a batch.
        BYTES_MAX: The most bytes of one that are sent.
        SELDOM: Whether the provider asks for a minute between two looks at a batch, from the first on.
        APART: Whether a name in ``body.model`` takes either batches or requests one by one.
        pause_s: The seconds between two looks at a file that is not ready.
    """

    LINES_MAX: ClassVar[int]
    BYTES_MAX: ClassVar[int] = 100_000_000
    SELDOM: ClassVar[bool] = False
    APART: ClassVar[bool] = False

    def __init__(self, web: Web, pause_s: float = 5.0) -> None:
        self.web, self.pause_s = web, pause_s

    @abstractmethod
    def encode(self, request: Request) -> bytes:
        """A request as the batch has it, without the end of the line.

        Raises:
            BadLineError: Its path cannot be part of a batch.
        """

    @abstractmethod
    def know(self, ids: Iterable[str]) -> None:
        """Prepare for results of requests with these ids, which another process has sent."""

    @abstractmethod
    async def create(self, chunk: Chunk, run: str, content: list[bytes]) -> str:
        """Create a batch; return its id.

        Raises:
            RefusedError: It was refused: there is no batch.
            BrokenError: It is not known whether there is one.
        """

    @abstractmethod
    async def find(self, chunk: Chunk, run: str, known: set[str], index: Index) -> str | None:
        """The id of a batch that may have been created.

        Args:
            chunk: Its requests.
            run: The run's id.
            known: Ids of other batches of this run.
            index: Has the input's ids.

        Raises:
            RefusedError: The list was refused.
            BrokenError: There is no answer.
            NotYetError: It cannot be known yet.
        """

    @abstractmethod
    async def look(self, chunk: Chunk) -> Seen:
        """A batch as it is now."""

    @abstractmethod
    async def cancel(self, chunk: Chunk) -> None:
        """Ask for the end of a batch; nothing if it has ended.

        Raises:
            BrokenError: It is not known whether that was heard.
        """

    async def results(self, place: str, file: IO[bytes]) -> Iterator[Result]:
        """The results at one of the places of :attr:`Seen.files`, by way of a temporary ``file``.

        Raises:
            RefusedError: They cannot be read.
            BrokenError: They could not be read to the end.
        """
        await self.web.fetch(place, file)
        file.seek(0)
        return self._read(file)

    def _read(self, file: IO[bytes]) -> Iterator[Result]:
        while raw := file.readline(RESULT_MAX):
            if not raw.strip():
                continue
            try:
                yield self.result(json.loads(self.web.clean(raw)))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                found = _ID.search(raw)  # a paid result that cannot be read must not be sent again
                if found is not None:
                    text = "the provider's line for this request cannot be read"
                    yield Result(str(json.loads(found[1])), None, {"code": "not_json", "message": text})

    @abstractmethod
    def result(self, value: dict[str, Any]) -> Result:
        """One line of results."""


async def _cancel(web: Web, path: str) -> None:
    try:
        await web.call("POST", path)
    except RefusedError as error:
        if error.status == 429:
            raise BrokenError("too many calls") from None  # any other refusal: it has ended


class OpenAIEndpoints(Endpoints):
    """``/v1/files`` and ``/v1/batches``."""

    LINES_MAX = 50_000
    ENDED = ("completed", "failed", "expired", "cancelled")

    def encode(self, request: Request) -> bytes:
        _require_v1(request)
        path = request.path.removeprefix("/openai")
        value = {"custom_id": request.custom_id, "method": "POST", "url": path, "body": request.body}
        return json.dumps(value).encode("ascii")

    def know(self, ids: Iterable[str]) -> None:
        pass  # ids are sent as they are

    @staticmethod
    def _at(chunk: Chunk, what: str) -> str:
        """``what`` beside the path of the requests: ``/v1/files``, or ``/openai/v1/files``."""
        return f"{chunk.kind.path.partition('/v1/')[0]}/v1/{what}"

    async def create(self, chunk: Chunk, run: str, content: list[bytes]) -> str:
        body = {
            "input_file_id": await self._upload(chunk, run, content), "completion_window": "24h",
            "endpoint": chunk.kind.path.removeprefix("/openai"),
            "metadata": {"paceline_run": run, "paceline_chunk": chunk.name},
        }  # fmt: skip
        return str((await self.web.call("POST", self._at(chunk, "batches"), json=body))["id"])

    async def _upload(self, chunk: Chunk, run: str, content: list[bytes]) -> str:
        """Upload the requests; return the id of the file."""
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        name = f"paceline-{run}-{chunk.name}.jsonl"
        form.add_field("file", b"\n".join(content) + b"\n", filename=name, content_type="application/jsonl")
        try:
            file = await self.web.call("POST", self._at(chunk, "files"), data=form)
            await self._ready(chunk, file)
        except BrokenError as error:  # a file is not paid for: there is no batch, and that is known
            raise RefusedError(503, "upload_failed", str(error)) from None
        return str(file["id"])

    async def _ready(self, chunk: Chunk, file: dict[str, Any]) -> None:
        """Wait until a batch can have an uploaded file."""

    async def find(self, chunk: Chunk, run: str, known: set[str], index: Index) -> str | None:  # noqa: ARG002
        after = ""
        for _ in range(PAGES_MAX):
            page = await self.web.call("GET", f"{self._at(chunk, 'batches')}?limit=100{after}")
            batches = [_seen_of_openai(one) for one in page.get("data") or []]
            for seen in batches:
                if seen.mark == (run, chunk.name):
                    return seen.id
            if not batches or not page.get("has_more") or batches[-1].created_s < chunk.at_s - SKEW_S:
                return None
            after = f"&after={quote(batches[-1].id)}"
        raise BrokenError(f"the list of batches has more than {PAGES_MAX} pages")

    async def look(self, chunk: Chunk) -> Seen:
        value = await self.web.call("GET", f"{self._at(chunk, 'batches')}/{quote(chunk.batch)}")
        seen = _seen_of_openai(value)
        seen.files = [f"{self._at(chunk, 'files')}/{quote(one)}/content" for one in seen.files]
        return seen

    async def cancel(self, chunk: Chunk) -> None:
        await _cancel(self.web, f"{self._at(chunk, 'batches')}/{quote(chunk.batch)}/cancel")

    def result(self, value: dict[str, Any]) -> Result:
        custom_id, response, error = value["custom_id"], value.get("response"), value.get("error")
        if response is None:
            code, words = error_of({"error": error})
            return Result(
                custom_id, None, {"code": code or "no_answer", "message": words}, again=code == "batch_expired"
            )
        answer = {name: response.get(name) for name in ("status_code", "request_id", "body")}
        if answer["status_code"] == 200 and not error:
            return Result(custom_id, answer, None)
        code, words = error_of({"error": error} if error else answer["body"])
        return Result(custom_id, answer, {"code": code or f"http_{answer['status_code']}", "message": words})


def _require_v1(request: Request) -> None:
    if "/v1/" not in request.path:
        text = "a batch needs a path like '/v1/chat/completions', with model or deployment in the body"
        raise BadLineError(f"line {request.line}: url is {request.path[:100]!r}: {text}")


class AzureEndpoints(OpenAIEndpoints):
    """The same below ``/openai/v1``, where the body's model is the name of a batch deployment.

    A batch takes a file only after it was processed (learn.microsoft.com/answers/questions/2203029, 2025-03). The guide
    states 100k requests, the reference of the same endpoints 50k: the less is used.
    """

    SELDOM = True
    APART = True
    READY_S = 600.0

    async def _ready(self, chunk: Chunk, file: dict[str, Any]) -> None:
        since_s = time.monotonic()
        while (state := str(file.get("status", "processed")).lower()) in ("pending", "running", "uploaded"):
            if time.monotonic() - since_s > self.READY_S:
                raise BrokenError(f"the uploaded file is still {state} after {self.READY_S:g} s")
            await asyncio.sleep(self.pause_s)
            try:
                file = await self.web.call("GET", f"{self._at(chunk, 'files')}/{quote(str(file['id']))}")
            except RefusedError as error:
                if error.status not in (404, 429):  # it may not be shown yet
                    raise


def _seen_of_openai(value: dict[str, Any]) -> Seen:
    state = str(value.get("status"))
    counts, mark = value.get("request_counts") or {}, value.get("metadata") or {}
    listed = (value.get("errors") or {}).get("data") or []
    problems = [Problem(str(e.get("code")), one_line(str(e.get("message"))), e.get("line")) for e in listed]
    done = (counts.get("completed") or 0) + (counts.get("failed") or 0)
    return Seen(
        str(value["id"]), state, state in OpenAIEndpoints.ENDED, counts.get("total") or 0, done,
        float(value.get("created_at") or 0), [str(f) for n in ("output", "error") if (f := value.get(f"{n}_file_id"))],
        problems, (str(mark.get("paceline_run")), str(mark.get("paceline_chunk"))),
    )  # fmt: skip


class MistralEndpoints(OpenAIEndpoints):
    """``/v1/files`` and ``/v1/batch/jobs``: the model is the job's, and a line has only an id and a body.

    The documentation states 1M requests and, among the known limitations, 100k (docs.mistral.ai, 2026-11): the less is used.
    """

    LINES_MAX = 100_000
    ENDED = ("SUCCESS", "FAILED", "TIMEOUT_EXCEEDED", "CANCELLED")

    def encode(self, request: Request) -> bytes:
        _require_v1(request)
        body = {name: value for name, value in request.body.items() if name != "model"}
        return json.dumps({"custom_id": request.custom_id, "body": body}).encode("ascii")

    async def create(self, chunk: Chunk, run: str, content: list[bytes]) -> str:
        body = {
            "input_files": [await self._upload(chunk, run, content)], "endpoint": chunk.kind.path, "model": chunk.kind.model,
            "metadata": {"paceline_run": run, "paceline_chunk": chunk.name},
        }  # fmt: skip
        return str((await self.web.call("POST", self._at(chunk, "batch/jobs"), json=body))["id"])

    async def find(self, chunk: Chunk, run: str, known: set[str], index: Index) -> str | None:  # noqa: ARG002
        read = 0
        for number in range(PAGES_MAX):
            page = await self.web.call("GET", f"{self._at(chunk, 'batch/jobs')}?page={number}&page_size=100")
            jobs = page.get("data") or []
            for seen in map(_seen_of_mistral, jobs):
                if seen.mark == (run, chunk.name):
                    return seen.id
            read += len(jobs)
            if not jobs or read >= (page.get("total") or 0):
                return None
        raise BrokenError(f"the list of batches has more than {PAGES_MAX} pages")

    async def look(self, chunk: Chunk) -> Seen:
        seen = _seen_of_mistral(await self.web.call("GET", f"{self._at(chunk, 'batch/jobs')}/{quote(chunk.batch)}"))
        seen.files = [f"{self._at(chunk, 'files')}/{quote(one)}/content" for one in seen.files]
        return seen

    async def cancel(self, chunk: Chunk) -> None:
        await _cancel(self.web, f"{self._at(chunk, 'batch/jobs')}/{quote(chunk.batch)}/cancel")


def _seen_of_mistral(value: dict[str, Any]) -> Seen:
    state, mark = str(value.get("status")), value.get("metadata") or {}
    problems = [Problem("batch_error", one_line(str(e.get("message"))), None) for e in value.get("errors") or []]
    return Seen(
        str(value["id"]), state.lower(), state in MistralEndpoints.ENDED, value.get("total_requests") or 0,
        value.get("completed_requests") or 0, float(value.get("created_at") or 0),
        [str(f) for name in ("output_file", "error_file") if (f := value.get(name))], problems,
        (str(mark.get("paceline_run")), str(mark.get("paceline_chunk"))),
    )  # fmt: skip


class AnthropicEndpoints(Endpoints):
    """``/v1/messages/batches``. Batches have no metadata: one whose id was lost is found by the ids in its results."""

    LINES_MAX = 100_000
    PATH = "/v1/messages/batches"

    def __init__(self, web: Web, pause_s: float = 5.0) -> None:
        super().__init__(web, pause_s)
        self._given: dict[str, str] = {}  # the user's id for each id that had to be replaced

    def encode(self, request: Request) -> bytes:
        self.know((request.custom_id,))
        return json.dumps({"custom_id": plain_id(request.custom_id), "params": request.body}).encode("ascii")

    def know(self, ids: Iterable[str]) -> None:
        self._given.update((plain_id(one), one) for one in ids if plain_id(one) != one)

    async def create(self, chunk: Chunk, run: str, content: list[bytes]) -> str:  # noqa: ARG002
        body = b'{"requests":[' + b",".join(content) + b"]}"
        headers = {"content-type": "application/json"}
        return str((await self.web.call("POST", self.PATH, data=body, headers=headers))["id"])

    async def find(self, chunk: Chunk, run: str, known: set[str], index: Index) -> str | None:  # noqa: ARG002
        after, candidates = "", list[Seen]()
        for _ in range(PAGES_MAX):
            page = await self.web.call("GET", f"{self.PATH}?limit=100{after}")
            batches = [_seen_of_anthropic(one) for one in page.get("data") or []]
            recent = [seen for seen in batches if seen.created_s >= chunk.at_s - SKEW_S]
            candidates += [s for s in recent if s.total == len(chunk.lines) and s.id not in known]
            if not page.get("has_more") or len(recent) < len(batches) or not batches:
                break
            after = f"&after_id={quote(batches[-1].id)}"
        else:
            raise BrokenError(f"the list of batches has more than {PAGES_MAX} pages")
        waits = False
        for seen in candidates:
            if not seen.ended:
                waits = True
                continue
            with tempfile.TemporaryFile() as file:
                found = next(await self.results(seen.files[0], file), None)
            if found is not None and (index.line_of(found.custom_id) or -1) in chunk.lines:
                return seen.id
        if waits:
            raise NotYetError("a batch of the same size is in progress: its results will tell whether it is this one")
        return None

    async def look(self, chunk: Chunk) -> Seen:
        return _seen_of_anthropic(await self.web.call("GET", f"{self.PATH}/{quote(chunk.batch)}"))

    async def cancel(self, chunk: Chunk) -> None:
        await _cancel(self.web, f"{self.PATH}/{quote(chunk.batch)}/cancel")

    def result(self, value: dict[str, Any]) -> Result:
        custom_id, result = self._given.get(value["custom_id"], value["custom_id"]), value["result"]
        kind = result["type"]
        if kind == "succeeded":
            return Result(custom_id, {"status_code": 200, "request_id": None, "body": result["message"]}, None)
        if kind != "errored":
            error = {"code": f"batch_{kind}", "message": f"the request was {kind} before the provider worked on it"}
            return Result(custom_id, None, error, again=True)
        code, words = error_of(result["error"])
        return Result(custom_id, None, {"code": code or "errored", "message": words})


def plain_id(custom_id: str) -> str:
    """An id that Anthropic's batches take: ``custom_id`` itself, or a hash of it."""
    if _PLAIN_ID.fullmatch(custom_id):
        return custom_id
    return f"paceline-{sha256(custom_id.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


def _seen_of_anthropic(value: dict[str, Any]) -> Seen:
    state, counts = str(value.get("processing_status")), value.get("request_counts") or {}
    total = sum(count for count in counts.values() if isinstance(count, int))
    ended = state == "ended"
    try:
        created_s = datetime.fromisoformat(str(value.get("created_at"))).timestamp()
    except ValueError:
        created_s = float("inf")
    batch = str(value["id"])
    files = [f"{AnthropicEndpoints.PATH}/{quote(batch)}/results"] if ended else []
    return Seen(batch, state, ended, total, total - (counts.get("processing") or 0), created_s, files)


_ENDPOINTS: Final[dict[str, type[Endpoints]]] = {
    "openai": OpenAIEndpoints,
    "groq": OpenAIEndpoints,
    "azure": AzureEndpoints,
    "mistral": MistralEndpoints,
    "anthropic": AnthropicEndpoints,
}


def endpoints(provider: str, web: Web, pause_s: float = 5.0) -> Endpoints:
    """The Batch API of a provider; ``pause_s`` as in :class:`Endpoints`."""
    return _ENDPOINTS[provider](web, pause_s)


def has_batches(provider: str) -> bool:
    """Whether the Batch API of a provider is known here."""
    return provider in _ENDPOINTS


def is_apart(provider: str) -> bool:
    """Whether requests that were made for batches of a provider cannot be sent one by one; see :class:`Endpoints`."""
    return provider in _ENDPOINTS and _ENDPOINTS[provider].APART
