"""Batches and files as the providers show them."""

from __future__ import annotations

from typing import Any

from paceline.emulator.batch_files import StoredFile
from paceline.emulator.batch_wire import iso
from paceline.emulator.batches import EmulatedBatch

_MISTRAL_STATES = {
    "validating": "QUEUED", "in_progress": "RUNNING", "finalizing": "RUNNING", "completed": "SUCCESS", "failed": "FAILED",
    "expired": "TIMEOUT_EXCEEDED", "cancelling": "CANCELLATION_REQUESTED", "cancelled": "CANCELLED",
}  # fmt: skip
_STATES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


def openai_batch(batch: EmulatedBatch, output: str | None, error: str | None) -> dict[str, Any]:
    """A batch of OpenAI, with the ids of its files."""
    failed = batch.state == "failed"
    total = 0 if failed or batch.state == "validating" else len(batch.entries)
    input_tokens, output_tokens = batch.used
    usage = {
        "input_tokens": input_tokens, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output_tokens, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }  # fmt: skip
    return {
        "id": batch.id, "object": "batch", **batch.about, "model": batch.model or None,
        "errors": {"object": "list", "data": [one._asdict() for one in batch.problems]} if failed else None,
        "status": batch.state,
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


def together_job(batch: EmulatedBatch, output: str | None, error: str | None) -> dict[str, Any]:
    """A batch of Together, with the ids of its files."""
    running = {"finalizing": "in_progress", "cancelling": "in_progress"}
    return {
        "id": batch.id, **batch.about, "user_id": "emulated", "model_id": batch.model,
        "status": running.get(batch.state, batch.state).upper(),
        "progress": 100.0 * batch.done / max(len(batch.entries), 1),
        "output_file_id": output,
        "error_file_id": error,
        "error": batch.problems[0].message if batch.problems else None,
        "created_at": iso(batch.created_s), "job_deadline": iso(batch.expires_s), "completed_at": iso(batch.ended_s),
    }  # fmt: skip


def mistral_job(batch: EmulatedBatch, output: str | None, error: str | None) -> dict[str, Any]:
    """A job of Mistral, with the ids of its files."""
    failed, ended_s = batch.state == "failed", batch.ended_s
    return {
        "id": batch.id, "object": "batch", **batch.about, "status": _MISTRAL_STATES[batch.state],
        "errors": [{"message": problem.message, "count": 1} for problem in batch.problems] if failed else [],
        "output_file": output,
        "error_file": error,
        "created_at": int(batch.created_s), "started_at": int(batch.times.get("in_progress", 0)) or None,
        "completed_at": None if ended_s is None else int(ended_s), "total_requests": len(batch.entries),
        "completed_requests": batch.done, "succeeded_requests": batch.counts["succeeded"],
        "failed_requests": batch.counts["errored"],
    }  # fmt: skip


def anthropic_batch(batch: EmulatedBatch, root: str) -> dict[str, Any]:
    """A batch of Anthropic. Its counts move only when it has ended, as the documentation says."""
    ended, counts = batch.ended_s is not None, batch.counts
    status = "ended" if ended else "canceling" if batch.state == "cancelling" else "in_progress"
    outcomes = {kind: counts[kind] if ended else 0 for kind in ("succeeded", "errored", "canceled", "expired")}
    return {
        "id": batch.id, "type": "message_batch", "processing_status": status,
        "request_counts": {"processing": 0 if ended else len(batch.entries), **outcomes},
        "created_at": iso(batch.created_s), "expires_at": iso(batch.expires_s), "archived_at": None,
        "ended_at": iso(batch.ended_s), "cancel_initiated_at": iso(batch.times.get("cancelling")),
        "results_url": f"{root}/v1/messages/batches/{batch.id}/results" if ended else None,
    }  # fmt: skip


def file_of(file: StoredFile) -> dict[str, Any]:
    """A file, in the same form for all of them."""
    return {
        "id": file.id, "object": "file", "bytes": file.size, "created_at": int(file.created_s), "filename": file.name,
        "purpose": file.purpose, "status": "processed", "status_details": None, "expires_at": None,
    }  # fmt: skip
