"""The Batch API of Gemini over HTTP, and of its files as much as batches need.

Shapes follow the SDK ``google-genai`` 3, ai.google.dev/api/batch-api and ai.google.dev/api/files (2026-11).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from paceline.emulator.batch_files import StoredFile, StoredFiles, read_bodies
from paceline.emulator.batch_wire import BatchCall, BatchError, BatchReply, answer_to, iso
from paceline.emulator.batches import EmulatedBatch, EmulatedBatches, Full
from paceline.emulator.dialects import GEMINI
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
        world: Knows the models.
        files: The files of all dialects.
        batches: The batches of all dialects.
    """

    def __init__(self, world: World, files: StoredFiles, batches: EmulatedBatches) -> None:
        self._world, self._files, self._batches = world, files, batches
        self._started: dict[str, str] = {}  # the display name by the id of an upload
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

    def serve(self, call: BatchCall, body: bytes) -> BatchReply:
        """Answer a call."""
        if call.verb == "upload":
            return self._upload(call, body)
        if call.what == "models":
            return self._create(call, body)
        if call.what == "files":
            file = self._files.by_id.get(call.id)
            if file is None or call.method not in ("GET", "DELETE"):
                raise BatchError(404, f"The file {call.id} does not exist.")
            if call.method == "DELETE":
                self._files.delete(file)
                return BatchReply({})
            return BatchReply(pieces=file.pieces(), reads=file.batch) if call.verb else BatchReply(_file(file))
        if not call.id:
            return self._list(call)
        batch = self._batches.by_id.get(f"batches/{call.id}")
        if batch is None:
            raise BatchError(404, f"The batch {call.id} does not exist.")
        if call.verb == "cancel" and call.method == "POST":
            self._batches.cancel(call.now, batch)
            return BatchReply({})
        return BatchReply(self._operation(call.now, batch))

    def _upload(self, call: BatchCall, body: bytes) -> BatchReply:
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
            raise BatchError(400, "Invalid upload.")
        file = self._files.upload(call.now, name, "batch", body)
        if file is None:
            raise BatchError(429, "The emulator keeps no more files: delete some.")
        done = HttpAnswer(200, [JSON, (b"x-goog-upload-status", b"final")], dump({"file": _file(file)}))
        return BatchReply(answer=done, creates=True)

    def _create(self, call: BatchCall, body: bytes) -> BatchReply:
        about = (load(body) or {}).get("batch") or {}
        named = (about.get("inputConfig") or {}).get("fileName") or ""
        file = self._files.by_id.get(str(named).removeprefix("files/"))
        if not about.get("displayName"):
            raise BatchError(400, "batch.display_name is required.")
        if file is None:
            raise BatchError(404, f"The file {named} does not exist.")
        if not self._world.knows(call.id):
            raise BatchError(404, f"models/{call.id} is not found for API version v1beta.")
        most = self._batches.rules.most_requests
        entries, problems = read_bodies([file.content], "generate", call.id, GEMINI, most, ("key", "request"))
        given = {"displayName": about["displayName"], "model": f"models/{call.id}", "inputConfig": {"fileName": named}}
        batch = self._batches.create(call.now, "gemini", entries, given, problems)
        if isinstance(batch, Full):
            raise BatchError(429, "Resource has been exhausted (e.g. check quota).")
        return BatchReply(self._operation(call.now, batch), creates=True)

    def _list(self, call: BatchCall) -> BatchReply:
        found = self._batches.of("gemini")
        size, start = call.number("pageSize", 50, 100), call.number("pageToken", 0, len(found))
        more = {"nextPageToken": str(start + size)} if start + size < len(found) else {}
        return BatchReply(
            {"operations": [self._operation(0.0, batch) for batch in found[start : start + size]], **more}
        )

    def _operation(self, now: float, batch: EmulatedBatch) -> dict[str, Any]:
        counts = batch.counts
        stats = {
            "requestCount": len(batch.entries), "successfulRequestCount": counts["succeeded"],
            "failedRequestCount": counts["errored"], "pendingRequestCount": len(batch.entries) - batch.done,
        }  # fmt: skip
        about: dict[str, Any] = {
            "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
            **batch.about, "name": batch.id, "state": f"BATCH_STATE_{_STATES[batch.state]}",
            "createTime": iso(batch.created_s), "updateTime": iso(max(now, batch.created_s)),
            "batchStats": {kind: str(count) for kind, count in stats.items() if count},
        }  # fmt: skip
        value: dict[str, Any] = {"name": batch.id, "metadata": about}
        if batch.ended_s is not None:
            about["endTime"], value["done"] = iso(batch.ended_s), True
            if batch.state == "failed":
                value["error"] = {"code": 3, "message": batch.problems[0].message}
            elif batch.readable and batch.done:
                file = self._files.result(batch, "responses", partial(self._lines, batch))
                about["output"] = value["response"] = {"responsesFile": f"files/{file.id}"}
        return value

    def _lines(self, batch: EmulatedBatch) -> Iterator[bytes]:
        for number, one in batch.results("succeeded", "errored"):
            answer = answer_to(batch, number, GEMINI, self._world.settings)
            said = {"response": answer}
            if one.outcome == "errored":
                said = {"error": {"code": _CODES[one.status], "message": answer["error"]["message"]}}
            yield dump({"key": one.custom_id, **said}) + b"\n"


def _file(file: StoredFile) -> dict[str, Any]:
    return {
        "name": f"files/{file.id}", "displayName": file.name, "mimeType": "application/jsonl",
        "sizeBytes": str(file.size), "createTime": iso(file.created_s), "state": "ACTIVE",
        "uri": f"https://generativelanguage.googleapis.com/v1beta/files/{file.id}",
    }  # fmt: skip
