"""The Batch APIs of OpenAI (also for Azure and Groq), Mistral, Together and Anthropic over HTTP.

Shapes follow the types of the SDKs ``openai`` 3, ``anthropic`` 2 and ``together`` 3, and the providers' documentation (2026-11); Mistral's are
taken from docs.mistral.ai/capabilities/batch and from its public API description (2026-11).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from paceline.emulator.batch_files import PURPOSES, StoredFile, StoredFiles, entry, read_bodies, read_form, read_lines
from paceline.emulator.batch_gemini import GeminiBatches
from paceline.emulator.batch_wire import BatchCall, BatchReply, admitted, answer_serial, iso, refused
from paceline.emulator.batches import (
    ENDED,
    MOST_BATCHES,
    BatchEntry,
    BatchProblem,
    EmulatedBatch,
    EmulatedBatches,
    Full,
    queue_text,
)
from paceline.emulator.dialects import ANTHROPIC, GEMINI, OPENAI_LIKE
from paceline.emulator.settings import Settings
from paceline.emulator.wire import JSON, Dialect, Header, HttpAnswer, dump, load, read_body, request_id, send_answer
from paceline.emulator.world import Refused, World

JSONL: Header = (b"content-type", b"application/x-jsonl")
_STEP = 200
"""Lines of results that are written before another task of the server has its turn."""

_OPENAI_PATH = re.compile(r"(/openai)?(?:/v1)?/(files|batches)(?:/([\w-]{1,100})(?:/(content|cancel))?)?", re.ASCII)
_TOGETHER_UPLOAD = "/v1/files/upload"
_MISTRAL_PATH = re.compile(r"/v1/batch/(jobs)(?:/([\w-]{1,100})(?:/(cancel))?)?", re.ASCII)
_ANTHROPIC_PATH = re.compile(r"/v1/messages/(batches)(?:/([\w-]{1,100})(?:/(results|cancel))?)?", re.ASCII)
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_Item = TypeVar("_Item")
_MISTRAL_STATES = {
    "validating": "QUEUED", "in_progress": "RUNNING", "finalizing": "RUNNING", "completed": "SUCCESS", "failed": "FAILED",
    "expired": "TIMEOUT_EXCEEDED", "cancelling": "CANCELLATION_REQUESTED", "cancelled": "CANCELLED",
}  # fmt: skip
_STATES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


class BatchApi:
    """Files and batches of one :class:`World`.

    Args:
        settings: The provider's properties.
        world: Knows the models, and counts the answers to each custom id.
    """

    def __init__(self, settings: Settings, world: World) -> None:
        self.settings, self.files, self._world = settings, StoredFiles(), world
        self.batches = EmulatedBatches(settings, world.answers, world.knows)
        self._results: dict[EmulatedBatch, dict[str, StoredFile]] = {}
        self._serial = 0
        self._gemini = GeminiBatches(settings, world, self.files, self.batches)

    def find(self, scope: Scope) -> BatchCall | None:
        """The call of a request; ``None`` for a path that is not part of a Batch API."""
        path, headers = scope["path"], dict(scope["headers"])
        if path == _TOGETHER_UPLOAD:
            path = "/v1/files"
        anthropics = _ANTHROPIC_PATH.fullmatch(path)
        mistrals = _MISTRAL_PATH.fullmatch(path)
        query = parse_qs(scope["query_string"][:2_000].decode("latin-1"))
        root = f"{scope.get('scheme', 'http')}://{headers.get(b'host', b'localhost').decode('latin-1')}"
        if found := self._gemini.find(path, headers):
            return BatchCall(GEMINI, *found, scope["method"], query, headers, root)
        match = anthropics or mistrals or _OPENAI_PATH.fullmatch(path)
        if match is None:
            return None
        dialect: Dialect = ANTHROPIC
        if anthropics:
            what, name, verb = match.groups()
        elif mistrals:
            dialect, (what, name, verb) = OPENAI_LIKE["openai"], match.groups()
        else:
            below, what, name, verb = match.groups()
            by_path = "openai" if not below else "azure" if b"api-key" in headers else "groq"
            dialect = OPENAI_LIKE[self.settings.dialect or by_path]
            if (what, verb) in (("files", "cancel"), ("batches", "content")):
                return None
        return BatchCall(dialect, what, name or "", verb or "", scope["method"], query, headers, root)

    def tally(self, now: float) -> dict[str, Any]:
        """See :meth:`EmulatedBatches.tally`; ``files`` counts uploads."""
        return self.batches.tally(now) | {"files": self.files.uploaded}

    async def serve(self, now: float, call: BatchCall, receive: Receive, send: Send) -> bool:
        """Answer a call. ``False`` means: close the connection without an answer."""
        self._serial += 1
        most = self.batches.rules.most_bytes
        body = await read_body(receive, most)
        key, valid = call.dialect.key(call.headers), self.settings.valid_key
        if self._gemini.needs_no_key(call):
            key = valid or "any"
        if not key or (valid is not None and key != valid):
            reply = BatchReply(answer=call.dialect.refusal(Refused("auth"), self.settings, self._serial))
        elif body is None:
            reply = self._error(call, 413, f"The body is larger than the limit of {most} bytes.", "request_too_large")
        else:
            self.batches.catch_up(now)
            answers = {ANTHROPIC: self._anthropic, GEMINI: self._gemini.serve}
            reply = (self._mistral if call.what == "jobs" else answers.get(call.dialect, self._openai))(now, call, body)
        if reply.creates and self.batches.loses_answer():
            return False
        await self._send(call, reply, send)
        return True

    async def _send(self, call: BatchCall, reply: BatchReply, send: Send) -> None:
        name = call.dialect.ID_HEADER
        extra: list[Header] = [(name, request_id(self._serial))] if name else []
        if reply.pieces is None:
            await send_answer(send, reply.answer or HttpAnswer(reply.status, [JSON], dump(reply.value)), extra)
            return
        kind = JSONL if call.verb == "results" else (b"content-type", b"application/octet-stream")
        await send({"type": "http.response.start", "status": 200, "headers": [kind, *extra]})
        pieces = iter(reply.pieces)
        while step := b"".join(_take(pieces, _STEP)):
            await send({"type": "http.response.body", "body": step, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})
        if reply.reads is not None:
            reply.reads.read = True

    def _error(
        self, call: BatchCall, status: int, text: str, code: str | None = None, param: str | None = None
    ) -> BatchReply:
        if call.dialect is ANTHROPIC:
            kinds = {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
            fields: dict[str, Any] = {"type": kinds.get(status, "invalid_request_error")}
        elif call.dialect is GEMINI:
            fields = {"status": "INVALID_ARGUMENT"}
        else:
            fields = {"type": "invalid_request_error", "param": param, "code": code}
        return BatchReply(status, call.dialect.error(self._serial, status, text, fields))

    def _not_found(self, call: BatchCall) -> BatchReply:
        kind = {"files": "file", "batches": "batch", "jobs": "job"}[call.what]
        return self._error(call, 404, f"No {kind} found with id '{call.id}'.")

    def _wrong(self, call: BatchCall) -> BatchReply:
        return self._error(call, 405, f"Not allowed to {call.method} on this path.", "method_not_supported")

    # --- OpenAI ------------------------------------------------------------------------------------------------------

    def _openai(self, now: float, call: BatchCall, body: bytes) -> BatchReply:
        if not call.id:
            if call.method == "POST":
                return (self._upload if call.what == "files" else self._create)(now, call, body)
            return self._wrong(call) if call.method != "GET" else self._list(call)
        if call.what == "files":
            file = self.files.by_id.get(call.id)
            return self._not_found(call) if file is None else self._file(now, call, file)
        together = call.dialect is OPENAI_LIKE["together"]
        batch = self._batch(call.id, "together-" if together else "batch_", "together" if together else "openai")
        if batch is None:
            return self._not_found(call)
        if call.verb == "cancel":
            if call.method != "POST":
                return self._wrong(call)
            if not self.batches.cancel(now, batch):
                return self._error(call, 409, f"Cannot cancel a batch with status '{batch.state}'.")
        elif call.method != "GET":
            return self._wrong(call)
        return BatchReply(value=self._shown(batch, call))

    def _batch(self, name: str, prefix: str, style: str) -> EmulatedBatch | None:
        digits = name.removeprefix(prefix)
        try:
            batch = self.batches.by_serial.get(int(digits, 16)) if digits != name else None
        except ValueError:
            return None
        return batch if batch is not None and batch.style == style and not batch.deleted else None

    def _upload(self, now: float, call: BatchCall, body: bytes) -> BatchReply:
        form = read_form(body, call.headers.get(b"content-type", b"").decode("latin-1"))
        if "file" not in form:
            return self._error(call, 400, "'file' is a required property", None, "file")
        purpose = form.get("purpose", ("", b""))[1].decode("latin-1")
        if purpose not in PURPOSES:
            return self._error(call, 400, f"'{purpose}' is not one of {list(PURPOSES)} - 'purpose'", None, "purpose")
        name, content = form["file"]
        file = self.files.upload(now, name or "file", purpose, content)
        if file is None:
            return self._error(call, 400, "The emulator keeps no more files: delete some.", "storage_full")
        return BatchReply(value=self._described(now, call, file), creates=True)

    def _described(self, now: float, call: BatchCall, file: StoredFile) -> dict[str, Any]:
        return _file(file) | ({"status": "pending"} if self._is_pending(now, call, file) else {})

    def _is_pending(self, now: float, call: BatchCall, file: StoredFile) -> bool:
        """Whether Azure has not processed a file yet."""
        return call.dialect is OPENAI_LIKE["azure"] and now < file.created_s + self.batches.rules.pending_s

    def _file(self, now: float, call: BatchCall, file: StoredFile) -> BatchReply:
        if call.method == "DELETE" and not call.verb:
            self.files.delete(file)
            return BatchReply(value={"id": file.id, "object": "file", "deleted": True})
        if call.method != "GET":
            return self._wrong(call)
        if not call.verb:
            return BatchReply(value=self._described(now, call, file))
        batch = file.batch
        is_output = batch is not None and file is self._results[batch].get("output")
        return BatchReply(pieces=file.pieces(), reads=batch if is_output else None)

    def _create(self, now: float, call: BatchCall, body: bytes) -> BatchReply:
        value = load(body)
        if value is None:
            return self._error(call, 400, OPENAI_LIKE["openai"].NO_JSON)
        kinds = dict(OPENAI_LIKE["openai"].PATHS)
        if (wrong := self._wrong_fields(call, value, kinds)) is not None:
            return wrong
        file = self.files.by_id.get(str(value.get("input_file_id")))
        if file is None:
            text = f"Invalid 'input_file_id': no such file '{value.get('input_file_id')}'."
            return self._error(call, 400, text, None, "input_file_id")
        if call.dialect is OPENAI_LIKE["together"]:
            return self._together_create(now, call, value, file)
        if (unusable := self._unusable(now, call, file)) is not None:
            return unusable
        entries, problems = read_lines(
            file.content, value["endpoint"], call.dialect, kinds, self.batches.rules.most_requests
        )
        if entries and not problems and not self._world.knows(entries[0].ask.model):
            text = f"The provided model '{entries[0].ask.model}' is not supported by the Batch API."
            problems.append(BatchProblem("model_not_found", text, None, "body.model"))
        about = {
            "endpoint": value["endpoint"],
            "metadata": value.get("metadata") or None,
            "input_file_id": file.id,
            "completion_window": value["completion_window"],
        }
        return self._made(call, self.batches.create(now, "openai", entries, about, problems), entries)

    def _wrong_fields(self, call: BatchCall, value: dict[str, Any], kinds: Mapping[str, str]) -> BatchReply | None:
        """The error for a creation with an invalid field."""
        endpoint = value.get("endpoint")
        if not isinstance(endpoint, str) or endpoint.removeprefix("/v1") not in kinds:
            known = ", ".join(f"'/v1{path}'" for path in kinds)
            return self._error(
                call, 400, f"Invalid value: '{endpoint}'. Supported values are: {known}.", None, "endpoint"
            )
        window = value.get("completion_window", "24h" if call.dialect is OPENAI_LIKE["together"] else None)
        if window != "24h" and not (call.dialect is OPENAI_LIKE["groq"] and re.fullmatch(r"\d{1,3}[hd]", str(window))):
            text = f"Invalid value: '{window}'. Value must be '24h'."
            return self._error(call, 400, text, "invalid_value", "completion_window")
        wrong = _wrong_metadata(value.get("metadata") or {})
        return self._error(call, 400, wrong, None, "metadata") if wrong else None

    def _unusable(self, now: float, call: BatchCall, file: StoredFile) -> BatchReply | None:
        """The error for a file that no batch can be made of now."""
        if file.purpose != "batch":
            hint = " Together's need the dialect 'together'." if file.purpose == "batch-api" else ""
            text = f"The purpose of the file is '{file.purpose}', not 'batch'.{hint}"
            return self._error(call, 400, text, None, "input_file_id")
        if self._is_pending(now, call, file):  # the text: learn.microsoft.com/answers/questions/2203029 (2025-03)
            text = f"The input file '{file.id}' is in 'pending' state. Only files with status 'Processed' are accepted"
            return self._error(call, 400, f"{text} for batch inferencing. Please check the file status and try again")
        return None

    def _made(self, call: BatchCall, made: EmulatedBatch | Full, entries: list[BatchEntry]) -> BatchReply:
        """The answer to a creation."""
        if isinstance(made, Full):
            return self._full(call, made, entries)
        shown = self._shown(made, call)
        if made.style == "together":
            return BatchReply(201, {"job": shown, "warning": ""}, creates=True)
        return BatchReply(value=shown, creates=True)

    def _shown(self, batch: EmulatedBatch, call: BatchCall) -> dict[str, Any]:
        """A batch as its API shows it."""
        if batch.style == "anthropic":
            return _anthropic_batch(batch, call.root)
        output, error = (file.id if file else None for file in map(self._files_of(batch).get, ("output", "error")))
        show = {"openai": _openai_batch, "together": _together_job, "mistral": _mistral_job}[batch.style]
        return show(batch, output, error)

    def _full(self, call: BatchCall, full: Full, entries: list[BatchEntry]) -> BatchReply:
        if full.kind == "memory":
            return self._error(call, 400, f"The emulator keeps at most {full.limit:,.0f} requests of batches.")
        if full.kind == "rate":
            return self._error(
                call, 429, f"Rate limit reached: {full.limit:,.0f} batches per hour.", "rate_limit_exceeded"
            )
        if call.dialect is ANTHROPIC:
            text = (
                f"This request would exceed your organization's limit of {full.limit:,.0f} batch requests in the queue."
            )
            return self._error(call, 429, text)
        status = int(self.batches.rules.queue_full)
        return self._error(call, status, queue_text(entries[0].ask.model, full.limit), "token_limit_exceeded")

    def _list(self, call: BatchCall) -> BatchReply:
        if call.what == "files":
            files = [f for f in self.files.by_id.values() if call.text("purpose") in ("", f.purpose)]
            page, more = _page(files[::-1], lambda f: f.id, call, 10_000, 10_000)
            data = [_file(file) for file in page]
        elif call.dialect is OPENAI_LIKE["together"]:
            return BatchReply(value=[self._shown(batch, call) for batch in self._all("together")])
        else:
            batches, more = _page(self._all("openai"), _openai_id, call, 20, 100)
            data = [self._shown(batch, call) for batch in batches]
        return BatchReply(value={"object": "list", **_listed(data), "has_more": more})

    def _all(self, style: str) -> list[EmulatedBatch]:
        found = [b for b in self.batches.by_serial.values() if b.style == style and not b.deleted]
        return found[::-1]

    def _files_of(self, batch: EmulatedBatch) -> dict[str, StoredFile]:
        """The result files of a batch that has ended: only those that have a line."""
        if batch.state not in ("completed", "expired", "cancelled"):
            return {}
        files = self._results.get(batch)
        if files is None:
            files = self._results[batch] = {}
            ended_s = batch.times[batch.state]
            if batch.counts["succeeded"]:
                files["output"] = self.files.result(ended_s, batch, "output", lambda: self._lines(batch, "succeeded"))
            failed = ("errored", "expired") if batch.style == "openai" else ("errored",)
            if any(batch.counts[outcome] for outcome in failed):
                files["error"] = self.files.result(ended_s, batch, "error", lambda: self._lines(batch, *failed))
        return files

    def _lines(self, batch: EmulatedBatch, *outcomes: str) -> Iterator[bytes]:
        dialect = OPENAI_LIKE["openai"]
        for number, one in batch.results(*outcomes):
            serial = answer_serial(batch, number)
            line: dict[str, Any] = {"id": f"batch_req_{serial:024x}", "custom_id": one.custom_id}
            if one.outcome == "expired":
                text = "This request could not be executed before the completion window expired."
                yield dump(line | {"response": None, "error": {"code": "batch_expired", "message": text}}) + b"\n"
                continue
            body = dialect.answer(one.ask, admitted(one), serial) if one.status == 200 else None
            if body is None:
                body = load(dialect.refusal(refused(one), self.settings, serial).body)
            response = {"status_code": one.status, "request_id": f"req_{serial:024x}", "body": body}
            yield dump(line | {"response": response, "error": None}) + b"\n"

    # --- Together ----------------------------------------------------------------------------------------------------

    def _together_create(self, now: float, call: BatchCall, value: dict[str, Any], file: StoredFile) -> BatchReply:
        if file.purpose != "batch-api":
            return self._error(call, 400, f"The purpose of the file is '{file.purpose}', not 'batch-api'.")
        kind = OPENAI_LIKE["openai"].PATHS[value["endpoint"].removeprefix("/v1")]
        entries, problems = read_bodies([file.content], kind, "", call.dialect, self.batches.rules.most_requests)
        if any(len(one.custom_id) > 64 for one in entries):
            problems.append(BatchProblem("invalid_line", "A custom_id has more than 64 characters."))
        about = {"endpoint": value["endpoint"], "input_file_id": file.id}
        return self._made(call, self.batches.create(now, "together", entries, about, problems), entries)

    # --- Mistral -----------------------------------------------------------------------------------------------------

    def _mistral(self, now: float, call: BatchCall, body: bytes) -> BatchReply:
        if not call.id and call.method == "POST":
            return self._mistral_create(now, call, body)
        batch = self._batch(call.id, "job-", "mistral")
        if call.id and batch is None:
            return self._not_found(call)
        if call.method != ("POST" if call.verb else "GET"):
            return self._wrong(call)
        if batch is None:
            size, jobs = call.number("page_size", 100, 1_000), self._all("mistral")
            start = call.number("page", 0, MOST_BATCHES) * size
            data = [self._shown(job, call) for job in jobs[start : start + size]]
            return BatchReply(value={"object": "list", "data": data, "total": len(jobs)})
        if call.verb:
            self.batches.cancel(now, batch)
        return BatchReply(value=self._shown(batch, call))

    def _mistral_create(self, now: float, call: BatchCall, body: bytes) -> BatchReply:
        value = load(body)
        if value is None:
            return self._error(call, 400, call.dialect.NO_JSON)
        kind, model = (
            OPENAI_LIKE["openai"].PATHS.get(str(value.get("endpoint")).removeprefix("/v1")),
            value.get("model"),
        )
        names, metadata = value.get("input_files"), value.get("metadata") or {}
        if kind is None or not isinstance(model, str) or not isinstance(names, list):
            return self._error(call, 422, "endpoint, model and input_files are required.")
        wrong = _wrong_metadata(metadata)
        if wrong:
            return self._error(call, 422, wrong)
        files = [self.files.by_id.get(str(name)) for name in names]
        if any(file is None or file.purpose != "batch" for file in files):
            return self._error(call, 400, "input_files: a file does not exist, or its purpose is not 'batch'.")
        contents = [file.content for file in files if file is not None]
        entries, problems = read_bodies(contents, kind, model, call.dialect, self.batches.rules.most_requests)
        if not self._world.knows(model):
            return self._error(call, 400, f"Invalid model: {model}", "invalid_model")
        about = {"endpoint": value["endpoint"], "metadata": metadata, "input_files": names, "model": model}
        return self._made(call, self.batches.create(now, "mistral", entries, about, problems), entries)

    # --- Anthropic ---------------------------------------------------------------------------------------------------

    def _anthropic(self, now: float, call: BatchCall, body: bytes) -> BatchReply:
        if not call.id:
            if call.method == "POST":
                return self._anthropic_create(now, call, body)
            return self._wrong(call) if call.method != "GET" else self._anthropic_list(call)
        batch = self._batch(call.id, "msgbatch_", "anthropic")
        if batch is None:
            return self._not_found(call)
        ended = _status(batch) == "ended"
        if call.verb == "cancel" and call.method == "POST":
            if not self.batches.cancel(now, batch) and ended:
                return self._error(call, 400, f"Batch {call.id} has ended: it cannot be canceled.")
            return BatchReply(value=_anthropic_batch(batch, call.root))
        if call.method == "DELETE" and not call.verb:
            return self._anthropic_delete(call, batch, ended=ended)
        if call.method != "GET" or call.verb == "cancel":
            return self._wrong(call)
        if call.verb != "results":
            return BatchReply(value=_anthropic_batch(batch, call.root))
        if not ended:
            return self._error(call, 400, f"Batch {call.id} has no results yet: its processing has not ended.")
        return BatchReply(pieces=self._result_lines(batch), reads=batch)

    def _anthropic_delete(self, call: BatchCall, batch: EmulatedBatch, *, ended: bool) -> BatchReply:
        if not ended:
            return self._error(call, 400, f"Batch {call.id} is in progress: cancel it before it is deleted.")
        batch.deleted = True
        return BatchReply(value={"id": call.id, "type": "message_batch_deleted"})

    def _anthropic_create(self, now: float, call: BatchCall, body: bytes) -> BatchReply:
        value = load(body)
        if value is None:
            return self._error(call, 400, ANTHROPIC.NO_JSON)
        requests = value.get("requests")
        if not isinstance(requests, list) or not requests:
            return self._error(call, 400, "requests: Field required")
        if len(requests) > self.batches.rules.most_requests:
            return self._error(call, 400, f"requests: at most {self.batches.rules.most_requests} are allowed")
        entries, seen = list[BatchEntry](), set[str]()
        for index, one in enumerate(requests):
            custom_id = one.get("custom_id") if isinstance(one, dict) else None
            if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
                text = f"requests.{index}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
                return self._error(call, 400, text)
            if custom_id in seen:
                return self._error(call, 400, f"requests.{index}.custom_id: duplicate of an earlier one: {custom_id}")
            if not isinstance(one.get("params"), dict):
                return self._error(call, 400, f"requests.{index}.params: Field required")
            seen.add(custom_id)
            entries.append(entry(custom_id, one["params"], "messages", ANTHROPIC))
        return self._made(call, self.batches.create(now, "anthropic", entries), entries)

    def _anthropic_list(self, call: BatchCall) -> BatchReply:
        newest_first = self._all("anthropic")
        page, more = _page(newest_first, _anthropic_id, call, 20, 1_000, after="after_id", before="before_id")
        return BatchReply(value={**_listed([_anthropic_batch(batch, call.root) for batch in page]), "has_more": more})

    def _result_lines(self, batch: EmulatedBatch) -> Iterator[bytes]:
        for number, one in batch.results("succeeded", "errored", "expired", "canceled"):
            serial, result = answer_serial(batch, number), dict[str, Any](type=one.outcome)
            if one.outcome == "succeeded":
                result["message"] = ANTHROPIC.answer(one.ask, admitted(one), serial)
            elif one.outcome == "errored":
                result["error"] = load(ANTHROPIC.refusal(refused(one), self.settings, serial).body)
            yield dump({"custom_id": one.custom_id, "result": result}) + b"\n"


def _openai_id(batch: EmulatedBatch) -> str:
    return f"batch_{batch.serial:032x}"


def _anthropic_id(batch: EmulatedBatch) -> str:
    return f"msgbatch_{batch.serial:024x}"


def _openai_batch(batch: EmulatedBatch, output: str | None, error: str | None) -> dict[str, Any]:
    errors = [{"code": p.code, "line": p.line, "message": p.message, "param": p.param} for p in batch.problems]
    failed = batch.state == "failed"
    total = 0 if failed or batch.state == "validating" else len(batch.entries)
    usage = {
        "input_tokens": batch.input_tokens, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": batch.output_tokens, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": batch.input_tokens + batch.output_tokens,
    }  # fmt: skip
    return {
        "id": _openai_id(batch), "object": "batch", **batch.about, "model": batch.model or None,
        "errors": {"object": "list", "data": errors} if failed else None, "status": batch.state,
        "output_file_id": output,
        "error_file_id": error,
        "created_at": int(batch.created_s), "expires_at": int(batch.expires_s),
        **{f"{state}_at": int(batch.times[state]) if state in batch.times else None for state in _STATES},
        "request_counts": {
            "total": total, "completed": batch.counts["succeeded"],
            "failed": batch.counts["errored"] + batch.counts["expired"],
        },
        "usage": usage,
    }  # fmt: skip


def _together_job(batch: EmulatedBatch, output: str | None, error: str | None) -> dict[str, Any]:
    done = batch.counts["succeeded"] + batch.counts["errored"]
    running = {"finalizing": "in_progress", "cancelling": "in_progress"}
    return {
        "id": f"together-{batch.serial:x}", **batch.about, "user_id": "emulated", "model_id": batch.model,
        "status": running.get(batch.state, batch.state).upper(),
        "progress": 100.0 * done / max(len(batch.entries), 1),
        "output_file_id": output,
        "error_file_id": error,
        "error": batch.problems[0].message if batch.problems else None,
        "created_at": iso(batch.created_s), "job_deadline": iso(batch.expires_s),
        "completed_at": iso(batch.times[batch.state]) if batch.state in ENDED else None,
    }  # fmt: skip


def _mistral_job(batch: EmulatedBatch, output: str | None, error: str | None) -> dict[str, Any]:
    counts, failed = batch.counts, batch.state == "failed"
    ended_s = batch.times[batch.state] if batch.state in ENDED else None
    return {
        "id": f"job-{batch.serial:x}", "object": "batch", **batch.about, "status": _MISTRAL_STATES[batch.state],
        "errors": [{"message": problem.message, "count": 1} for problem in batch.problems] if failed else [],
        "output_file": output,
        "error_file": error,
        "created_at": int(batch.created_s), "started_at": int(batch.times.get("in_progress", 0)) or None,
        "completed_at": int(ended_s) if ended_s is not None else None, "total_requests": len(batch.entries),
        "completed_requests": counts["succeeded"] + counts["errored"], "succeeded_requests": counts["succeeded"],
        "failed_requests": counts["errored"],
    }  # fmt: skip


def _status(batch: EmulatedBatch) -> str:
    return {"in_progress": "in_progress", "finalizing": "in_progress", "cancelling": "canceling"}.get(
        batch.state, "ended"
    )


def _anthropic_batch(batch: EmulatedBatch, root: str) -> dict[str, Any]:
    """The counts move only when the whole batch has ended, as the documentation says."""
    status, name = _status(batch), _anthropic_id(batch)
    ended, counts = status == "ended", batch.counts
    outcomes = {kind: counts[kind] if ended else 0 for kind in ("succeeded", "errored", "canceled", "expired")}
    return {
        "id": name, "type": "message_batch", "processing_status": status,
        "request_counts": {"processing": 0 if ended else len(batch.entries), **outcomes},
        "created_at": iso(batch.created_s), "expires_at": iso(batch.expires_s), "archived_at": None,
        "ended_at": iso(batch.times[batch.state]) if ended else None,
        "cancel_initiated_at": iso(batch.times["cancelling"]) if "cancelling" in batch.times else None,
        "results_url": f"{root}/v1/messages/batches/{name}/results" if ended else None,
    }  # fmt: skip


def _file(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id, "object": "file", "bytes": file.size(), "created_at": int(file.created_s), "filename": file.name,
        "purpose": file.purpose, "status": "processed", "status_details": None, "expires_at": None,
    }  # fmt: skip


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
    found: list[_Item],
    name: Callable[[_Item], str],
    call: BatchCall,
    default: int,
    most: int,
    after: str = "after",
    before: str = "",
) -> tuple[list[_Item], bool]:
    """A page of a list, and whether more follow."""
    limit, names = call.number("limit", default, most), [name(item) for item in found]
    if before and call.text(before) in names:
        end = names.index(call.text(before))
        start = max(0, end - limit)
        return found[start:end], start > 0
    start = names.index(call.text(after)) + 1 if call.text(after) in names else 0
    return found[start : start + limit], len(found) > start + limit


def _listed(data: list[dict[str, Any]]) -> dict[str, Any]:
    """A page with the ids of its ends."""
    first, last = (data[end]["id"] if data else None for end in (0, -1))
    return {"data": data, "first_id": first, "last_id": last}


def _take(pieces: Iterator[bytes], count: int) -> Iterator[bytes]:
    for _, piece in zip(range(count), pieces, strict=False):
        yield piece
