"""The Batch API of Gemini over HTTP, and of its files as much as batches need.

Shapes follow the SDK ``google-genai`` 3, ai.google.dev/api/batch-api and ai.google.dev/api/files (2026-11).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.emulator.batch_files import StoredFile, StoredFiles, read_bodies
from paceline.emulator.batch_wire import BatchCall, BatchReply, admitted, answer_serial, iso, refused
from paceline.emulator.batches import ENDED, EmulatedBatch, EmulatedBatches, Full
from paceline.emulator.dialects import GEMINI
from paceline.emulator.settings import Settings
from paceline.emulator.wire import JSON, HttpAnswer, dump, load
from paceline.emulator.world import World

_UPLOAD = re.compile(r"/upload/v1(?:alpha|beta)?/files")
_PATH = re.compile(
    r"(?:/download)?/v1(?:alpha|beta)?/(files|batches)(?:/([\w-]{1,100})(?::(cancel|download))?)?", re.ASCII
)
_CREATE = re.compile(r"/v1(?:alpha|beta)?/models/([^/:]{1,200}):(batchGenerateContent)")
_STATES = {
    "validating": "PENDING", "in_progress": "RUNNING", "finalizing": "RUNNING", "cancelling": "RUNNING",
    "completed": "SUCCEEDED", "failed": "FAILED", "expired": "EXPIRED", "cancelled": "CANCELLED",
}  # fmt: skip
_CODES = {400: 3, 404: 5, 500: 13}
"""The codes of gRPC, by HTTP status."""

_MOST_STARTED = 1_000
"""Uploads that have begun and are not complete."""


class GeminiBatches:
    """Batches and files below ``/v1beta``, ``/v1`` and ``/v1alpha``.

    Args:
        settings: The provider's properties.
        world: Knows the models.
        files: The files of all dialects.
        batches: The batches of all dialects.
    """

    def __init__(self, settings: Settings, world: World, files: StoredFiles, batches: EmulatedBatches) -> None:
        self._settings, self._world, self._files, self._batches = settings, world, files, batches
        self._started: dict[str, str] = {}  # the display name by the id of an upload
        self._results: dict[EmulatedBatch, StoredFile] = {}
        self._uploads = itertools.count(1)

    def find(self, path: str, headers: Mapping[bytes, bytes]) -> tuple[str, str, str] | None:
        """What the path names: ``files``, ``batches`` or ``models``; its id; and a verb."""
        if _UPLOAD.fullmatch(path):
            return "files", "", "upload"
        if made := _CREATE.fullmatch(path):
            return "models", made[1], made[2]
        match = _PATH.fullmatch(path)
        if path.startswith("/v1/") and GEMINI.KEY_HEADERS[0] not in headers:  # OpenAI's
            return None
        return (match[1], match[2] or "", match[3] or "") if match else None

    def needs_no_key(self, call: BatchCall) -> bool:
        """Whether the id of an upload stands for the key."""
        return call.verb == "upload" and call.text("upload_id") in self._started

    def serve(self, now: float, call: BatchCall, body: bytes) -> BatchReply:
        """Answer a call."""
        if call.verb == "upload":
            return self._upload(now, call, body)
        if call.what == "models":
            return self._create(now, call, body)
        if call.what == "files":
            file = self._files.by_id.get(call.id)
            if file is None or call.method != "GET":
                return self._error(404, f"The file {call.id} does not exist.", "NOT_FOUND")
            return BatchReply(pieces=file.pieces(), reads=file.batch) if call.verb else BatchReply(value=_file(file))
        if not call.id:
            return self._list(call)
        batch = self._batch(call.id)
        if batch is None:
            return self._error(404, f"The batch {call.id} does not exist.", "NOT_FOUND")
        if call.verb == "cancel" and call.method == "POST":
            self._batches.cancel(now, batch)
            return BatchReply(value={})
        return BatchReply(value=self._operation(now, batch))

    def _error(self, status: int, text: str, kind: str) -> BatchReply:
        return BatchReply(status, GEMINI.error(0, status, text, {"status": kind}))

    def _upload(self, now: float, call: BatchCall, body: bytes) -> BatchReply:
        command = call.headers.get(b"x-goog-upload-command", b"").decode("latin-1")
        if command == "start":
            about = (load(body) or {}).get("file") or {}
            upload = str(next(self._uploads))
            self._started[upload] = str(about.get("displayName") or about.get("display_name") or "")
            while len(self._started) > _MOST_STARTED:
                del self._started[next(iter(self._started))]
            place = f"{call.root}/upload/v1beta/files?upload_id={upload}".encode()
            return BatchReply(
                answer=HttpAnswer(200, [JSON, (b"x-goog-upload-url", place), (b"x-goog-upload-status", b"active")], b"")
            )
        name = self._started.pop(call.text("upload_id"), None)
        if command != "upload, finalize" or name is None:
            return self._error(400, "Invalid upload.", "INVALID_ARGUMENT")
        file = self._files.upload(now, name, "batch", body)
        if file is None:
            return self._error(429, "The emulator keeps no more files: delete some.", "RESOURCE_EXHAUSTED")
        done = HttpAnswer(200, [JSON, (b"x-goog-upload-status", b"final")], dump({"file": _file(file)}))
        return BatchReply(answer=done, creates=True)

    def _create(self, now: float, call: BatchCall, body: bytes) -> BatchReply:
        about = (load(body) or {}).get("batch") or {}
        named = (about.get("inputConfig") or {}).get("fileName") or ""
        file = self._files.by_id.get(str(named).removeprefix("files/"))
        if not about.get("displayName"):
            return self._error(400, "batch.display_name is required.", "INVALID_ARGUMENT")
        if file is None:
            return self._error(404, f"The file {named} does not exist.", "NOT_FOUND")
        if not self._world.knows(call.id):
            return self._error(404, f"models/{call.id} is not found for API version v1beta.", "NOT_FOUND")
        most = self._batches.rules.most_requests
        entries, problems = read_bodies([file.content], "generate", call.id, GEMINI, most, ("key", "request"))
        given = {"displayName": about["displayName"], "model": f"models/{call.id}", "inputConfig": {"fileName": named}}
        batch = self._batches.create(now, "gemini", entries, given, problems)
        if isinstance(batch, Full):
            return self._error(429, "Resource has been exhausted (e.g. check quota).", "RESOURCE_EXHAUSTED")
        return BatchReply(value=self._operation(now, batch), creates=True)

    def _batch(self, name: str) -> EmulatedBatch | None:
        try:
            batch = self._batches.by_serial.get(int(name, 16))
        except ValueError:
            return None
        return batch if batch is not None and batch.style == "gemini" else None

    def _list(self, call: BatchCall) -> BatchReply:
        found = [batch for batch in self._batches.by_serial.values() if batch.style == "gemini"][::-1]
        size, start = call.number("pageSize", 50, 100), call.number("pageToken", 0, len(found))
        more = {"nextPageToken": str(start + size)} if start + size < len(found) else {}
        return BatchReply(value={"operations": [self._operation(0.0, b) for b in found[start : start + size]], **more})

    def _operation(self, now: float, batch: EmulatedBatch) -> dict[str, Any]:
        ended, counts = batch.state in ENDED, batch.counts
        stats = {
            "requestCount": len(batch.entries), "successfulRequestCount": counts["succeeded"],
            "failedRequestCount": counts["errored"],
            "pendingRequestCount": len(batch.entries) - counts["succeeded"] - counts["errored"],
        }  # fmt: skip
        name = f"batches/{batch.serial:024x}"
        about: dict[str, Any] = {
            "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
            **batch.about, "name": name, "state": f"BATCH_STATE_{_STATES[batch.state]}",
            "createTime": iso(batch.created_s), "updateTime": iso(max(now, batch.created_s)),
            "batchStats": {kind: str(count) for kind, count in stats.items() if count},
        }  # fmt: skip
        value = {"name": name, "metadata": about} | ({"done": True} if ended else {})
        if ended:
            about["endTime"] = iso(batch.times[batch.state])
        if batch.state == "failed":
            value["error"] = {"code": 3, "message": batch.problems[0].message}
        elif ended and batch.readable and (counts["succeeded"] or counts["errored"]):
            made = {"responsesFile": f"files/{self._file_of(batch).id}"}
            about["output"] = made
            value["response"] = made
        return value

    def _file_of(self, batch: EmulatedBatch) -> StoredFile:
        if batch not in self._results:
            ended_s = batch.times[batch.state]
            self._results[batch] = self._files.result(ended_s, batch, "responses", lambda: self._lines(batch))
        return self._results[batch]

    def _lines(self, batch: EmulatedBatch) -> Iterator[bytes]:
        for number, one in batch.results("succeeded", "errored"):
            if one.outcome == "succeeded":
                answer = GEMINI.answer(one.ask, admitted(one), answer_serial(batch, number))
                yield dump({"key": one.custom_id, "response": answer}) + b"\n"
            else:
                error = (load(GEMINI.refusal(refused(one), self._settings, 0).body) or {})["error"]
                status = {"code": _CODES[one.status], "message": error["message"]}
                yield dump({"key": one.custom_id, "error": status}) + b"\n"


def _file(file: StoredFile) -> dict[str, Any]:
    return {
        "name": f"files/{file.id}", "displayName": file.name, "mimeType": "application/jsonl",
        "sizeBytes": str(file.size()), "createTime": iso(file.created_s), "state": "ACTIVE",
        "uri": f"https://generativelanguage.googleapis.com/v1beta/files/{file.id}",
    }  # fmt: skip
