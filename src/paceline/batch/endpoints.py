"""The Batch APIs of the providers: OpenAI's, which Groq and Azure have too, Mistral's, Together's, Anthropic's and Gemini's.

Sequences and limits: developers.openai.com/api/docs/guides/batch; platform.claude.com, batch processing; Azure:
learn.microsoft.com/azure/ai-foundry/openai/how-to/batch and /azure/foundry/reference/rest/batches-create-batch;
docs.mistral.ai/capabilities/batch; docs.together.ai/docs/inference/batch; ai.google.dev/gemini-api/docs/batch-api (2026-11).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, cast
from urllib.parse import quote, urlsplit

import aiohttp

from paceline.batch.acceptance import is_served
from paceline.batch.api import (
    RESULT_MAX,
    ApiForm,
    BrokenError,
    Endpoints,
    NoResultsError,
    NotYetError,
    Problem,
    RefusedError,
    Result,
    SeenBatch,
    UnreadyError,
    Web,
    hashed,
    id_in,
    readable,
    spool,
    uploading,
)
from paceline.batch.chunks import Chunk
from paceline.batch.client import error_of, one_line
from paceline.batch.index import Index

FULL: Final = "token_limit_exceeded"

_PLAIN_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)


def _objects(found: Any) -> list[dict[str, Any]]:
    """The JSON objects of a list, which may be missing."""
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


class OpenAIEndpoints(Endpoints):
    """``/v1/files`` and ``/v1/batches``."""

    LINES_MAX = 50_000
    GOING: ClassVar[tuple[str, ...]] = ("validating", "in_progress", "finalizing", "cancelling")
    ENDED: ClassVar[tuple[str, ...]] = ("completed", "failed", "expired", "cancelled")
    FORM = ApiForm(re.compile(r"(.*?/v1/)"), "'/v1/chat/completions', with model or deployment in the body", posts=True)
    UPLOADS = "files"

    async def create(self, chunk: Chunk) -> str:
        made = await self._made_of_file(self._at(chunk, self.FORM.batches), self._order(chunk))
        return id_in(made.get("job") or made)  # Together's is in another object

    def _order(self, chunk: Chunk) -> dict[str, Any]:
        """What asks for the batch of an uploaded file."""
        return {
            "input_file_id": chunk.file, "completion_window": "24h", "endpoint": chunk.kind.path.removeprefix("/openai"),
            "metadata": {"paceline_run": self.run, "paceline_chunk": chunk.name},
        }  # fmt: skip

    async def upload(self, chunk: Chunk) -> str:
        name = self._file_of(chunk)
        form = aiohttp.FormData(self._form(name))
        form.add_field("file", _file_of(chunk), filename=name, content_type="application/jsonl")
        return id_in(await self.web.call("POST", self._at(chunk, self.UPLOADS), data=form))

    def _file_of(self, chunk: Chunk) -> str:
        """The name of a batch's file, which a second batch may have if there was no room for the first."""
        return f"paceline-{self.run}-{chunk.digest}.jsonl"

    def _form(self, name: str) -> dict[str, str]:  # noqa: ARG002
        """What is sent beside a file."""
        return {"purpose": "batch"}

    def _seen(self, chunk: Chunk, value: dict[str, Any]) -> SeenBatch:
        counts, errors = value.get("request_counts") or {}, value.get("errors")
        problems = list(map(_problem, _objects(errors.get("data") if isinstance(errors, dict) else errors)))
        done = (counts.get("completed") or 0) + (counts.get("failed") or 0)
        return SeenBatch(
            id_in(value), str(value.get("status")), done=done, created_s=float(value.get("created_at") or "inf"),
            problems=problems, answered=counts.get("completed") or 0,
            files=self._files(chunk, value, "output_file_id", "error_file_id"), mark=_mark_in(value),
        )  # fmt: skip

    def _files(self, chunk: Chunk, value: dict[str, Any], *names: str) -> list[str]:
        """The places of results."""
        return [f"{self._one(chunk, 'files', str(file))}/content" for name in names if (file := value.get(name))]

    def result(self, value: dict[str, Any]) -> Result:
        custom_id, response, error = value["custom_id"], value.get("response"), value.get("error")
        if response is None:
            code, words = error_of({"error": error})
            return Result(custom_id, None, {"code": code or "no_answer", "message": words}, again=not error)
        answer = {name: response.get(name) for name in ("status_code", "request_id", "body")}
        if answer["status_code"] == 0:  # there was no answer (community.openai.com, 2025-11)
            return Result(custom_id, answer, {"code": "no_answer", "message": "the request has no answer"}, again=True)
        if is_served(answer["status_code"]) and not error:
            return Result(custom_id, answer, None)
        code, words = error_of({"error": error} if error else answer["body"])
        return Result(custom_id, answer, {"code": code or f"http_{answer['status_code']}", "message": words})


def _problem(error: dict[str, Any]) -> Problem:
    line = error.get("line")
    return Problem(str(error.get("code")), one_line(str(error.get("message"))), line if type(line) is int else None)


def _mark_in(value: dict[str, Any]) -> str:
    """What a batch is called in its metadata."""
    mark = value.get("metadata") or {}
    return f"paceline-{mark.get('paceline_run')}-{mark.get('paceline_chunk')}"


def _file_of(chunk: Chunk) -> bytes:
    return b"\n".join(chunk.content) + b"\n"


class AzureEndpoints(OpenAIEndpoints):
    """The same below ``/openai/v1``, where the body's model is the name of a batch deployment.

    A batch takes a file only after it was processed (learn.microsoft.com/answers/questions/2203029, 2025-03). The guide
    states 100k requests, the reference of the same endpoints 50k: the less is used.
    """

    SELDOM = True
    APART = True

    async def create(self, chunk: Chunk) -> str:
        with uploading(404):  # it may not be shown yet
            file = await self.web.call("GET", self._one(chunk, "files", chunk.file))
        if (state := str(file.get("status")).lower()) in ("pending", "running", "uploaded"):
            raise UnreadyError(f"the uploaded file is still {state}")
        return await super().create(chunk)


class MistralEndpoints(OpenAIEndpoints):
    """``/v1/files`` and ``/v1/batch/jobs``: the model is the job's, and a line has only an id and a body.

    The documentation states 1M requests and, among the known limitations, 100k (docs.mistral.ai, 2026-11): the less is used.
    """

    LINES_MAX = 100_000
    GOING = ("queued", "running", "cancellation_requested")
    ENDED = ("success", "failed", "timeout_exceeded", "cancelled")
    FORM = OpenAIEndpoints.FORM._replace(batches="batch/jobs", paging=("page_size", ""), posts=False, has_model=False)

    def _order(self, chunk: Chunk) -> dict[str, Any]:
        return {
            "input_files": [chunk.file], "endpoint": chunk.kind.path, "model": chunk.kind.model,
            "metadata": {"paceline_run": self.run, "paceline_chunk": chunk.name},
        }  # fmt: skip

    def _next_page(self, page: Any, found: list[SeenBatch], number: int) -> str:
        total = page.get("total")
        return f"&page={number}" if page["data"] and (total is None or len(found) < total) else ""

    def _seen(self, chunk: Chunk, value: dict[str, Any]) -> SeenBatch:
        errors = _objects(value.get("errors"))
        return SeenBatch(
            id_in(value), str(value.get("status")).lower(), done=value.get("completed_requests") or 0,
            answered=value.get("succeeded_requests") or 0, mark=_mark_in(value),
            files=self._files(chunk, value, "output_file", "error_file"),
            problems=[Problem("batch_error", one_line(str(e.get("message"))), None) for e in errors],
        )  # fmt: skip


class TogetherEndpoints(OpenAIEndpoints):
    """``/v1/batches`` with lines that have only an id and a body; a batch has no metadata, but the name of its file.

    docs.together.ai/docs/inference/batch and /reference (2026-11), which ask for half a minute between two looks.
    """

    SELDOM = True
    FORM = OpenAIEndpoints.FORM._replace(posts=False)
    MAPS_IDS = True
    UPLOADS = "files/upload"

    def __init__(self, web: Web, run: str = "") -> None:
        super().__init__(web, run)
        self._names: dict[str, str] = {}  # of input files

    def id_for(self, custom_id: str) -> str:
        return custom_id if _PLAIN_ID.fullmatch(custom_id) else f"paceline-{hashed(custom_id)}"

    def _form(self, name: str) -> dict[str, str]:
        return {"purpose": "batch-api", "file_name": name, "file_type": "jsonl"}

    def _order(self, chunk: Chunk) -> dict[str, Any]:
        return {"input_file_id": chunk.file, "endpoint": chunk.kind.path, "completion_window": "24h"}

    async def find(self, chunk: Chunk, known: set[str], index: Index) -> str | None:  # noqa: ARG002
        jobs = await self.web.call("GET", self._at(chunk, self.FORM.batches), list)
        for batch, file, created_s in readable(jobs, self.run, _job_of_together):
            recent = created_s >= self._oldest_s(chunk)
            if recent and batch not in known and await self._file_name(chunk, file) == self._file_of(chunk):
                return batch
        return None

    async def _file_name(self, chunk: Chunk, file: str) -> str:
        """The name of a file; empty for one that was deleted."""
        if file not in self._names:
            try:
                about = await self.web.call("GET", self._one(chunk, "files", file))
                self._names[file] = id_in(about, "filename")
            except RefusedError as error:
                if error.status != 404:
                    raise
                self._names[file] = ""
        return self._names[file]

    def _seen(self, chunk: Chunk, value: dict[str, Any]) -> SeenBatch:
        state, why = str(value.get("status")).lower(), value.get("error")
        done = round(len(chunk.lines) * float(value.get("progress") or 0) / 100)
        return SeenBatch(
            id_in(value), state, done=min(done, len(chunk.lines)),
            files=self._files(chunk, value, "output_file_id", "error_file_id"),
            problems=[Problem("batch_error", one_line(str(why)), None)] if why and state == "failed" else [],
        )  # fmt: skip

    def result(self, value: dict[str, Any]) -> Result:
        if isinstance(value.get("response"), dict) and not value.get("error"):
            value["response"].setdefault("status_code", 200)  # failed requests are in a file of their own
        return super().result(value)


def _job_of_together(value: dict[str, Any]) -> tuple[str, str, float]:
    """The ids of a batch and of its file, and when it was created, in seconds since 1970."""
    return id_in(value), id_in(value, "input_file_id"), time_of(value.get("created_at"))


class AnthropicEndpoints(Endpoints):
    """``/v1/messages/batches``. Batches have no metadata: one whose id was lost is found by the ids in its results.

    So these begin with the id of the run, and a batch of another run is never taken for its own. An id has at most 64
    letters, digits, ``-`` and ``_`` (platform.claude.com, batch processing, 2026-11).
    """

    LINES_MAX = 100_000
    GOING = ("in_progress", "canceling")
    ENDED = ("ended",)
    FORM = ApiForm(re.compile("(/)"), batches="v1/messages/batches", paging=("limit", "after_id"), body="params")
    MAPS_IDS = True

    def id_for(self, custom_id: str) -> str:
        return f"{self.run}-{hashed(custom_id)}"

    async def create(self, chunk: Chunk) -> str:
        body = b'{"requests":[' + b",".join(chunk.content) + b"]}"
        headers = {"content-type": "application/json"}
        return id_in(await self.web.call("POST", self._at(chunk, self.FORM.batches), data=body, headers=headers))

    async def find(self, chunk: Chunk, known: set[str], index: Index) -> str | None:
        unknown = cast("BrokenError | None", None)
        for seen in await self._list(chunk):
            if seen.created_s < self._oldest_s(chunk) or seen.total not in (0, len(chunk.lines)) or seen.id in known:
                continue
            try:
                name = await self._first_id(seen)
            except BrokenError as error:
                unknown = error
                continue
            if name.startswith(f"{self.run}-") and name in self.own_ids(chunk.ids(index)):
                return seen.id
        if unknown is not None:
            raise unknown
        return None

    async def _first_id(self, seen: SeenBatch) -> str:
        """The id in the first line of a batch's results.

        Raises:
            NotYetError: The batch is in progress.
            BrokenError: Its results cannot be read.
        """
        if not seen.files:
            raise NotYetError("a batch of the same size is in progress: its results will tell whether it is this one")
        with spool() as file:
            try:
                await self.web.fetch(seen.files[0], file)
                file.seek(0)
                return id_in(json.loads(file.readline(RESULT_MAX)), "custom_id")
            except (RefusedError, NoResultsError, ValueError, AttributeError, RecursionError) as error:
                if isinstance(error, RefusedError) and error.status not in (*self.MISSING, 429):
                    raise
                raise BrokenError(f"the results of batch {seen.id} cannot be read") from None

    def _seen(self, chunk: Chunk, value: dict[str, Any]) -> SeenBatch:
        state, counts, batch = str(value.get("processing_status")), value.get("request_counts") or {}, id_in(value)
        total = sum(count for count in counts.values() if isinstance(count, int))
        return SeenBatch(
            batch, state, total, total - (counts.get("processing") or 0),
            created_s=time_of(value.get("created_at")), answered=counts.get("succeeded") or 0,
            files=[f"{self._one(chunk, self.FORM.batches, batch)}/results"] if state == "ended" else [],
        )  # fmt: skip

    def result(self, value: dict[str, Any]) -> Result:
        custom_id, result = value["custom_id"], value["result"]
        kind = result["type"]
        if kind == "succeeded":
            return Result(custom_id, {"status_code": 200, "request_id": None, "body": result["message"]}, None)
        if kind != "errored":
            error = {"code": f"batch_{kind}", "message": f"the request was {kind} before the provider worked on it"}
            return Result(custom_id, None, error, again=kind in ("canceled", "expired"))
        error = result["error"]  # as of a request of its own, or what is inside of that
        code, words = error_of(error if isinstance(error.get("error"), dict) else {"error": error})
        return Result(custom_id, None, {"code": code or "errored", "message": words})


def time_of(text: Any) -> float:
    """Seconds since 1970 of a time as text, of UTC if it names no zone. No time counts as late: such a batch may be any."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return float("inf")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class GeminiEndpoints(Endpoints):
    """``models/*:batchGenerateContent`` of a file; the run and the chunk are in the batch's display name.

    ai.google.dev/gemini-api/docs/batch-api and ai.google.dev/api/{batch-api,files} (2026-11), which state no limit of
    requests: OpenAI's is used. A batch that has expired has no results.
    """

    LINES_MAX = 50_000
    FORM = ApiForm(
        re.compile(r"(.*?/)models/.*:generateContent\Z"), "'/v1beta/models/gemini-3.8-flash:generateContent'",
        cancel=":cancel", paging=("pageSize", ""), id="key", body="request", has_model=False,
    )  # fmt: skip
    MISSING = frozenset([403, 404, 410])  # 403: "or it may not exist" (ai.google.dev/gemini-api/docs/troubleshooting)
    GOING = ("unspecified", "queued", "pending", "running", "cancelling", "paused", "updating")
    ENDED = ("succeeded", "failed", "cancelled", "expired")

    async def create(self, chunk: Chunk) -> str:
        body = {"batch": {"displayName": self.mark(chunk), "inputConfig": {"fileName": chunk.file}}}
        path = chunk.kind.path.removesuffix(":generateContent") + ":batchGenerateContent"
        return id_in(await self._made_of_file(path, body), "name")

    async def upload(self, chunk: Chunk) -> str:
        content = _file_of(chunk)
        about = {"file": {"displayName": f"{self.mark(chunk)}.jsonl", "mimeType": "application/jsonl"}}
        start = {
            "x-goog-upload-protocol": "resumable", "x-goog-upload-command": "start",
            "x-goog-upload-header-content-length": str(len(content)),
            "x-goog-upload-header-content-type": "application/jsonl",
        }  # fmt: skip
        _, given = await self.web.answer("POST", f"/upload{self._at(chunk, 'files')}", json=about, headers=start)
        place = urlsplit(given.get("x-goog-upload-url", ""))  # on the same server: the key goes nowhere else
        if not place.path.startswith("/"):  # without the slash it could become part of the host's name
            raise BrokenError("the answer has no usable x-goog-upload-url")
        path = f"{place.path}?{place.query}"
        all_of_it = {"x-goog-upload-command": "upload, finalize", "x-goog-upload-offset": "0"}
        file = (await self.web.call("POST", path, data=content, headers=all_of_it)).get("file") or {}
        return id_in(file, "name")

    def _next_page(self, page: Any, found: list[SeenBatch], number: int) -> str:  # noqa: ARG002
        token = page.get("nextPageToken")
        return f"&pageToken={quote(str(token), safe='')}" if token else ""

    def _entries(self, page: Any) -> Iterable[Any]:
        return page.get("operations") or ()

    def _seen(self, chunk: Chunk, value: dict[str, Any]) -> SeenBatch:
        about, state, why = value.get("metadata") or {}, self._state(value), value.get("error")
        counts = about.get("batchStats") or {}
        succeeded, failed = (int(counts.get(f"{name}RequestCount") or 0) for name in ("successful", "failed"))
        file = (about.get("output") or value.get("response") or {}).get("responsesFile")
        if state in self.ENDED and not file:
            succeeded = failed = 0
        return SeenBatch(
            id_in(value, "name"), state, done=succeeded + failed, answered=succeeded, mark=str(about.get("displayName")),
            files=[f"{self._one(chunk, 'files', str(file))}:download?alt=media"] if file else [],
            problems=[Problem(*_error_of(why), None)] if why and state == "failed" else [],
        )  # fmt: skip

    def _state(self, operation: dict[str, Any]) -> str:
        """The state of a batch, in lower case without its prefix; an operation that is done has ended in any case."""
        state = str((operation.get("metadata") or {}).get("state")).rpartition("STATE_")[2].lower()
        if operation.get("done") is True and state not in self.ENDED:
            return "failed" if operation.get("error") else "succeeded"
        return state

    def result(self, value: dict[str, Any]) -> Result:
        if (body := value.get("response")) is not None:
            return Result(value["key"], {"status_code": 200, "request_id": None, "body": body}, None)
        code, words = _error_of(value["error"])
        return Result(value["key"], None, {"code": code, "message": words})


_CODES: Final = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip


def _error_of(status: dict[str, Any]) -> tuple[str, str]:
    """The name of the code, and the message, of a ``google.rpc.Status``."""
    code, words = error_of({"error": status})
    number = int(code) if code.isdecimal() else len(_CODES)
    return _CODES[number] if number < len(_CODES) else code or "batch_error", one_line(words)


ENDPOINTS: Final[dict[str, type[Endpoints]]] = {
    "openai": OpenAIEndpoints,
    "groq": OpenAIEndpoints,
    "azure": AzureEndpoints,
    "mistral": MistralEndpoints,
    "together": TogetherEndpoints,
    "gemini": GeminiEndpoints,
    "anthropic": AnthropicEndpoints,
}
"""The Batch APIs that are known here, by the provider's name."""
