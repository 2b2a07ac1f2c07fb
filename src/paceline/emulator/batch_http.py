"""The Batch APIs of OpenAI (also for Azure and Groq), Mistral, Together and Anthropic over HTTP.

Shapes follow the types of the SDKs ``openai`` 3, ``anthropic`` 2 and ``together`` 3, and the providers' documentation (2026-11); Mistral's are
taken from docs.mistral.ai/capabilities/batch and from its public API description (2026-11).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any
from urllib.parse import parse_qs

from paceline.emulator.asgi import Receive, Scope, Send, read_body, send_answer
from paceline.emulator.batch_files import StoredFile, StoredFiles, below, entry, read_bodies, read_form, read_lines
from paceline.emulator.batch_gemini import GeminiBatches
from paceline.emulator.batch_shapes import anthropic_batch, file_of, mistral_job, openai_batch, together_job
from paceline.emulator.batch_wire import BatchCall, BatchError, BatchReply, answer_serial, answer_to
from paceline.emulator.batches import BatchEntry, BatchProblem, EmulatedBatch, EmulatedBatches, Full, queue_text
from paceline.emulator.dialects import ANTHROPIC, GEMINI, OPENAI_LIKE, openai_like
from paceline.emulator.wire import JSON, Dialect, Header, HttpAnswer, dump, load, request_id
from paceline.emulator.world import Refused, World

JSONL: Header = (b"content-type", b"application/x-jsonl")
PURPOSES = ("batch", "batch-api", "assistants", "fine-tune", "vision", "user_data", "evals")
"""The purposes that an uploaded file may have."""

_STEP = 200
"""Lines of results that are written before another task of the server has its turn."""

_OPENAI_PATH = re.compile(
    r"(/openai)?(?:/v1)?/(files(?!/[^/]+/cancel)|batches(?!/[^/]+/content))(?:/([\w-]{1,100})(?:/(content|cancel))?)?",
    re.ASCII,
)
_TOGETHER_UPLOAD = "/v1/files/upload"
_MISTRAL_PATH = re.compile(r"/v1/batch/(jobs)(?:/([\w-]{1,100})(?:/(cancel))?)?", re.ASCII)
_ANTHROPIC_PATH = re.compile(r"/v1/messages/(batches)(?:/([\w-]{1,100})(?:/(results|cancel))?)?", re.ASCII)
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
Read = tuple[list[BatchEntry], list[BatchProblem], dict[str, Any]]
"""The body of a creation: the requests, why the batch will fail, and what else the client said."""


class BatchApi:
    """Files and batches of one :class:`World`.

    Args:
        world: Knows the models, and counts the answers to each custom id.
    """

    def __init__(self, world: World) -> None:
        self.files, self._world = StoredFiles(), world
        self.batches = EmulatedBatches(world)
        self._serial = 0
        self._gemini = GeminiBatches(world, self.files, self.batches)

    def find(self, now: float, scope: Scope) -> BatchCall | None:
        """The call of a request at ``now``, in seconds; ``None`` for a path that is not part of a Batch API."""
        path, headers = scope["path"], dict(scope["headers"])
        if path == _TOGETHER_UPLOAD:
            path = "/v1/files"
        dialect: Dialect
        if found := self._gemini.find(path, headers):
            style, dialect, (what, name, verb) = "gemini", GEMINI, found
        elif match := _ANTHROPIC_PATH.fullmatch(path):
            style, dialect, (what, name, verb) = "anthropic", ANTHROPIC, match.groups("")
        elif match := _MISTRAL_PATH.fullmatch(path):
            style, dialect, (what, name, verb) = "mistral", OPENAI_LIKE["openai"], match.groups("")
        elif match := _OPENAI_PATH.fullmatch(path):
            below, what, name, verb = match.groups("")
            dialect = openai_like(self._world.settings.dialect, azures=b"api-key" in headers, below=bool(below))
            style = "together" if dialect is OPENAI_LIKE["together"] else "openai"
        else:
            return None
        query = parse_qs(scope["query_string"][:2_000].decode("latin-1"))
        root = f"{scope.get('scheme', 'http')}://{headers.get(b'host', b'localhost').decode('latin-1')}"
        return BatchCall(style, dialect, what, name, verb, scope["method"], query, headers, root, now)

    def tally(self, now: float) -> dict[str, Any]:
        """See :meth:`EmulatedBatches.tally`; ``files`` counts uploads."""
        return self.batches.tally(now) | {"files": self.files.uploaded}

    async def serve(self, call: BatchCall, receive: Receive, send: Send) -> bool:
        """Answer a call. ``False`` means: close the connection without an answer."""
        self._serial += 1
        body = await read_body(receive, self.batches.rules.most_bytes)
        try:
            reply = self._reply(call, body)
        except BatchError as error:
            value = call.dialect.error(self._serial, error.status, error.text, _error_fields(call, error))
            reply = BatchReply(value, error.status)
        if reply.creates and self.batches.loses_answer():
            return False
        await self._send(call, reply, send)
        return True

    def _reply(self, call: BatchCall, body: bytes | None) -> BatchReply:
        settings = self._world.settings
        if not (self._gemini.needs_no_key(call) or settings.accepts(call.dialect.key(call.headers))):
            return BatchReply(answer=call.dialect.refusal(Refused("auth"), settings, self._serial))
        if body is None:
            most = self.batches.rules.most_bytes
            raise BatchError(413, f"The body is larger than the limit of {most} bytes.", "request_too_large")
        self.batches.catch_up(call.now)
        serve = self._gemini.serve if call.style == "gemini" else self._file if call.what == "files" else self._batch
        return serve(call, body)

    async def _send(self, call: BatchCall, reply: BatchReply, send: Send) -> None:
        name = call.dialect.ID_HEADER
        extra: list[Header] = [(name, request_id(self._serial))] if name else []
        if reply.pieces is None:
            await send_answer(send, reply.answer or HttpAnswer(reply.status, [JSON], dump(reply.value)), extra)
            return
        kind = JSONL if call.verb == "results" else (b"content-type", b"application/octet-stream")
        await send({"type": "http.response.start", "status": 200, "headers": [kind, *extra]})
        pieces = iter(reply.pieces)
        while step := b"".join(islice(pieces, _STEP)):
            await send({"type": "http.response.body", "body": step, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})
        if reply.reads is not None:
            reply.reads.read = True

    # --- files -------------------------------------------------------------------------------------------------------

    def _file(self, call: BatchCall, body: bytes) -> BatchReply:
        if not call.id and call.method == "POST":
            return BatchReply(self._uploaded(call, body), creates=True)
        if not call.id and call.method == "GET":
            files = [file for file in self.files.by_id.values() if call.text("purpose") in ("", file.purpose)]
            limit = call.number("limit", 10_000, 10_000)
            return BatchReply({"object": "list", **_page(files[::-1], file_of, limit, call.text("after"))})
        file = self.files.by_id.get(call.id)
        if call.id and file is None:
            raise _not_found(call)
        match call.method, call.verb:
            case "DELETE", "" if file:
                self.files.delete(file)
                return BatchReply({"id": file.id, "object": "file", "deleted": True})
            case "GET", "" if file:
                return BatchReply(self._described(call, file))
            case "GET", "content" if file:
                return BatchReply(pieces=file.pieces(), reads=file.batch)
        raise _wrong_method(call)

    def _uploaded(self, call: BatchCall, body: bytes) -> dict[str, Any]:
        form = read_form(body, call.headers.get(b"content-type", b"").decode("latin-1"))
        if "file" not in form:
            raise BatchError(400, "'file' is a required property", param="file")
        purpose = form.get("purpose", ("", b""))[1].decode("latin-1")
        if purpose not in PURPOSES:
            raise BatchError(400, f"'{purpose}' is not one of {list(PURPOSES)} - 'purpose'", param="purpose")
        name, content = form["file"]
        file = self.files.upload(call.now, name or "file", purpose, content)
        if file is None:
            raise BatchError(400, "The emulator keeps no more files: delete some.", "storage_full")
        return self._described(call, file)

    def _described(self, call: BatchCall, file: StoredFile) -> dict[str, Any]:
        return file_of(file) | ({"status": "pending"} if self._is_pending(call, file) else {})

    def _is_pending(self, call: BatchCall, file: StoredFile) -> bool:
        """Whether Azure has not processed a file yet."""
        return call.dialect is OPENAI_LIKE["azure"] and call.now < file.created_s + self.batches.rules.pending_s

    # --- batches -----------------------------------------------------------------------------------------------------

    def _batch(self, call: BatchCall, body: bytes) -> BatchReply:
        if not call.id and call.method == "POST":
            return self._created(call, body)
        if not call.id and call.method == "GET":
            return BatchReply(self._listed(call))
        batch = self.batches.by_id.get(call.id)
        if call.id and (batch is None or batch.style != call.style):
            raise _not_found(call)
        match call.method, call.verb:
            case "GET", "" if batch:
                return BatchReply(self._shown(call, batch))
            case "POST", "cancel" if batch:
                self._cancel(call, batch)
                return BatchReply(self._shown(call, batch))
            case "GET", "results" if batch and batch.ended_s is None:
                raise BatchError(400, f"Batch {batch.id} has no results yet: its processing has not ended.")
            case "GET", "results" if batch:
                return BatchReply(pieces=self._result_lines(batch), reads=batch)
        raise _wrong_method(call)

    def _cancel(self, call: BatchCall, batch: EmulatedBatch) -> None:
        if not self.batches.cancel(call.now, batch):
            if call.style in ("openai", "together"):
                raise BatchError(409, f"Cannot cancel a batch with status '{batch.state}'.")
            if call.style == "anthropic" and batch.ended_s is not None:
                raise BatchError(400, f"Batch {batch.id} has ended: it cannot be canceled.")

    def _created(self, call: BatchCall, body: bytes) -> BatchReply:
        value = load(body)
        if value is None:
            raise BatchError(400, call.dialect.NO_JSON)
        read = {
            "openai": self._read_openai, "together": self._read_together, "mistral": self._read_mistral,
            "anthropic": self._read_anthropic,
        }  # fmt: skip
        entries, problems, about = read[call.style](call, value)
        made = self.batches.create(call.now, call.style, entries, about, problems)
        if isinstance(made, Full):
            raise self._full(call, made, entries)
        shown = self._shown(call, made)
        if call.style == "together":
            return BatchReply({"job": shown, "warning": ""}, 201, creates=True)
        return BatchReply(shown, creates=True)

    def _full(self, call: BatchCall, full: Full, entries: Sequence[BatchEntry]) -> BatchError:
        """The error for a creation that is one too many."""
        if full.kind == "memory":
            return BatchError(400, f"The emulator keeps at most {full.limit:,.0f} requests of batches.")
        if full.kind == "rate":
            return BatchError(429, f"Rate limit reached: {full.limit:,.0f} batches per hour.", "rate_limit_exceeded")
        if call.style == "anthropic":
            queue = f"{full.limit:,.0f} batch requests in the queue"
            return BatchError(429, f"This request would exceed your organization's limit of {queue}.")
        status = int(self.batches.rules.queue_full)
        return BatchError(status, queue_text(entries[0].ask.model, full.limit), "token_limit_exceeded")

    def _listed(self, call: BatchCall) -> Any:
        found = self.batches.of(call.style)
        show = partial(self._shown, call)
        if call.style == "together":
            return [*map(show, found)]
        if call.style == "mistral":
            size = call.number("page_size", 100, 1_000)
            start = call.number("page", 0, len(found)) * size
            return {"object": "list", "data": [*map(show, found[start : start + size])], "total": len(found)}
        if call.style == "anthropic":
            return _page(found, show, call.number("limit", 20, 1_000), call.text("after_id"))
        return {"object": "list", **_page(found, show, call.number("limit", 20, 100), call.text("after"))}

    def _shown(self, call: BatchCall, batch: EmulatedBatch) -> dict[str, Any]:
        """A batch as its API shows it."""
        if batch.style == "anthropic":
            return anthropic_batch(batch, call.root)
        output = self._result_id(batch, "output", "succeeded")
        error = self._result_id(batch, "error", "errored", *(("expired",) if batch.style == "openai" else ()))
        show = {"openai": openai_batch, "together": together_job, "mistral": mistral_job}[batch.style]
        return show(batch, output, error)

    def _result_id(self, batch: EmulatedBatch, what: str, *outcomes: str) -> str | None:
        """The id of a file with results of a batch that has ended; ``None`` where it would have no line."""
        if batch.ended_s is None or not any(batch.counts[outcome] for outcome in outcomes):
            return None
        return self.files.result(batch, what, partial(self._lines, batch, *outcomes)).id

    def _lines(self, batch: EmulatedBatch, *outcomes: str) -> Iterator[bytes]:
        for number, one in batch.results(*outcomes):
            serial, response, error = answer_serial(batch, number), None, None
            if one.outcome == "expired":
                text = "This request could not be executed before the completion window expired."
                error = {"code": "batch_expired", "message": text}
            else:
                body = answer_to(batch, number, OPENAI_LIKE["openai"], self._world.settings)
                response = {"status_code": one.status, "request_id": f"req_{serial:024x}", "body": body}
            line = {"id": f"batch_req_{serial:024x}", "custom_id": one.custom_id, "response": response, "error": error}
            yield dump(line) + b"\n"

    def _result_lines(self, batch: EmulatedBatch) -> Iterator[bytes]:
        """The results of Anthropic."""
        names = {"succeeded": "message", "errored": "error"}
        for number, one in batch.results("succeeded", "errored", "expired", "canceled"):
            result = {"type": one.outcome}
            if one.outcome in names:
                result[names[one.outcome]] = answer_to(batch, number, ANTHROPIC, self._world.settings)
            yield dump({"custom_id": one.custom_id, "result": result}) + b"\n"

    # --- the body of a creation --------------------------------------------------------------------------------------

    def _read_openai(self, call: BatchCall, value: dict[str, Any]) -> Read:
        endpoint, window, file = self._input(call, value)
        if file.purpose != "batch":
            hint = " Together's need the dialect 'together'." if file.purpose == "batch-api" else ""
            text = f"The purpose of the file is '{file.purpose}', not 'batch'.{hint}"
            raise BatchError(400, text, param="input_file_id")
        if self._is_pending(call, file):  # the text: learn.microsoft.com/answers/questions/2203029 (2025-03)
            text = f"The input file '{file.id}' is in 'pending' state. Only files with status 'Processed' are accepted"
            raise BatchError(400, f"{text} for batch inferencing. Please check the file status and try again")
        entries, problems = read_lines(file.content, endpoint, call.dialect, self.batches.rules.most_requests)
        if entries and not problems and not self._world.knows(entries[0].ask.model):
            text = f"The provided model '{entries[0].ask.model}' is not supported by the Batch API."
            problems.append(BatchProblem("model_not_found", text, "body.model"))
        about = {"endpoint": endpoint, "metadata": value.get("metadata") or None, "input_file_id": file.id}
        return entries, problems, about | {"completion_window": window}

    def _read_together(self, call: BatchCall, value: dict[str, Any]) -> Read:
        endpoint, __, file = self._input(call, {"completion_window": "24h"} | value)
        if file.purpose != "batch-api":
            raise BatchError(400, f"The purpose of the file is '{file.purpose}', not 'batch-api'.")
        kind, most = call.dialect.PATHS[below(endpoint)], self.batches.rules.most_requests
        entries, problems = read_bodies([file.content], kind, "", call.dialect, most)
        if any(len(one.custom_id) > 64 for one in entries):
            problems.append(BatchProblem("invalid_line", "A custom_id has more than 64 characters."))
        return entries, problems, {"endpoint": endpoint, "input_file_id": file.id}

    def _input(self, call: BatchCall, value: dict[str, Any]) -> tuple[str, str, StoredFile]:
        """The endpoint, the window and the file of a creation in OpenAI's form."""
        endpoint, window, paths = value.get("endpoint"), value.get("completion_window"), call.dialect.PATHS
        if not isinstance(endpoint, str) or below(endpoint) not in paths:
            known = ", ".join(f"'/v1{path}'" for path in paths)
            raise BatchError(400, f"Invalid value: '{endpoint}'. Supported values are: {known}.", param="endpoint")
        if window != "24h" and not (call.dialect is OPENAI_LIKE["groq"] and re.fullmatch(r"\d{1,3}[hd]", str(window))):
            text = f"Invalid value: '{window}'. Value must be '24h'."
            raise BatchError(400, text, "invalid_value", "completion_window")
        if wrong := _wrong_metadata(value.get("metadata") or {}):
            raise BatchError(400, wrong, param="metadata")
        file = self.files.by_id.get(str(value.get("input_file_id")))
        if file is None:
            text = f"Invalid 'input_file_id': no such file '{value.get('input_file_id')}'."
            raise BatchError(400, text, param="input_file_id")
        return endpoint, str(window), file

    def _read_mistral(self, call: BatchCall, value: dict[str, Any]) -> Read:
        kind, model = call.dialect.PATHS.get(below(str(value.get("endpoint")))), value.get("model")
        names, metadata = value.get("input_files"), value.get("metadata") or {}
        if kind is None or not isinstance(model, str) or not isinstance(names, list):
            raise BatchError(422, "endpoint, model and input_files are required.")
        if wrong := _wrong_metadata(metadata):
            raise BatchError(422, wrong)
        files = [self.files.by_id.get(str(name)) for name in names]
        contents = [file.content for file in files if file is not None and file.purpose == "batch"]
        if len(contents) < len(files):
            raise BatchError(400, "input_files: a file does not exist, or its purpose is not 'batch'.")
        if not self._world.knows(model):
            raise BatchError(400, f"Invalid model: {model}", "invalid_model")
        entries, problems = read_bodies(contents, kind, model, call.dialect, self.batches.rules.most_requests)
        about = {"endpoint": value["endpoint"], "metadata": metadata, "input_files": names, "model": model}
        return entries, problems, about

    def _read_anthropic(self, _: BatchCall, value: dict[str, Any]) -> Read:
        requests, most = value.get("requests"), self.batches.rules.most_requests
        if not isinstance(requests, list) or not requests:
            raise BatchError(400, "requests: Field required")
        if len(requests) > most:
            raise BatchError(400, f"requests: at most {most} are allowed")
        entries = dict[str, BatchEntry]()
        for index, one in enumerate(requests):
            custom_id = one.get("custom_id") if isinstance(one, dict) else None
            if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
                text = f"requests.{index}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
                raise BatchError(400, text)
            if custom_id in entries:
                raise BatchError(400, f"requests.{index}.custom_id: duplicate of an earlier one: {custom_id}")
            if not isinstance(one.get("params"), dict):
                raise BatchError(400, f"requests.{index}.params: Field required")
            entries[custom_id] = entry(custom_id, one["params"], "messages", ANTHROPIC)
        return [*entries.values()], [], {}


def _error_fields(call: BatchCall, error: BatchError) -> dict[str, Any]:
    if call.style == "anthropic":
        kinds = {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
        return {"type": kinds.get(error.status, "invalid_request_error")}
    if call.style == "gemini":
        return {"status": {404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}.get(error.status, "INVALID_ARGUMENT")}
    return {"type": "invalid_request_error", "param": error.param, "code": error.code}


def _not_found(call: BatchCall) -> BatchError:
    kind = {"files": "file", "batches": "batch", "jobs": "job"}[call.what]
    return BatchError(404, f"No {kind} found with id '{call.id}'.")


def _wrong_method(call: BatchCall) -> BatchError:
    return BatchError(405, f"Not allowed to {call.method} on this path.", "method_not_supported")


def _wrong_metadata(metadata: Any) -> str:
    if not isinstance(metadata, dict):
        return "Invalid type for 'metadata': expected an object with string values."
    if len(metadata) > 16:
        return "Invalid 'metadata': too many properties. Expected an object with at most 16 properties."
    for name, value in metadata.items():
        if not isinstance(value, str):
            return f"Invalid type for 'metadata.{name[:64]}': expected a string."
        if len(name) > 64 or len(value) > 512:
            return "Invalid 'metadata': keys have at most 64 characters, and values 512."
    return ""


def _page(
    found: Sequence[StoredFile | EmulatedBatch], show: Callable[[Any], dict[str, Any]], limit: int, after: str
) -> dict[str, Any]:
    """A page of a list that follows the id ``after``, the ids of its ends, and whether more follow."""
    names = [item.id for item in found]
    start = names.index(after) + 1 if after in names else 0
    end = start + limit
    first, last = (names[start:end][at] if names[start:end] else None for at in (0, -1))
    return {"data": [*map(show, found[start:end])], "first_id": first, "last_id": last, "has_more": len(found) > end}
