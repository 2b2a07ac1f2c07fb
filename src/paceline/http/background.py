"""Answers that are made in the background: a request stays charged as held until its answer is asked for and whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from paceline.core.results import Refusal
from paceline.pacing.pacer import Pacer, Settle
from paceline.providers.base import Usage
from paceline.responses.events import data_in
from paceline.responses.values import MAPPING, as_mapping, decode

JOBS_MAX: Final = 10_000
"""How many requests are remembered; of more, the oldest stay charged as they were held."""
BODY_MAX: Final = 32 * 2**20
PENDING: Final = ("queued", "in_progress", "CREATED", "IN_PROGRESS")
"""The states of an answer before it is whole (https://developers.openai.com/api/docs/guides/background, 2026), and of Perplexity's
asynchronous ones (its API reference, 2026)."""


def job_of(payload: Any) -> str | None:
    """The id of an answer that is not made yet; ``None`` for any other answer."""
    if not isinstance(payload, MAPPING) or payload.get("status") not in PENDING:
        return None
    job = payload.get("id")
    return job if isinstance(job, str) and job else None


def remember(pacer: Pacer, job: str, settle: Settle) -> None:
    """Settle a request with ``settle`` once its answer ``job`` is whole."""
    jobs = pacer.jobs
    if len(jobs) >= JOBS_MAX:
        jobs.pop(next(iter(jobs)))(None)
    jobs[job] = settle


_ENDS: Final = {"GET": "", "POST": "/cancel"}
"""What follows the id of an answer in the path of a request that asks for it, by its method: one that cancels it gets it, too."""


def poll_of(pacer: Pacer, method: str, path: str) -> Poll | None:
    """A reader for the answer to a request for ``path``; ``None`` if no request waits for it."""
    ends, path = _ENDS.get(method), path.partition("?")[0].rstrip("/")
    job = path.removesuffix(ends).rpartition("/")[2] if ends is not None and path.endswith(ends) else ""
    return Poll(pacer, job) if job in pacer.jobs else None


class Poll:
    """Reads an answer that was made in the background, as a reader of usage does."""

    usage: Usage | None = None
    refusal: Refusal | None = None
    done = False

    def __init__(self, pacer: Pacer, job: str) -> None:
        self._jobs, self._job, self._body = pacer.jobs, job, bytearray()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body."""
        self._body += chunk[: BODY_MAX - len(self._body)]

    def close(self) -> None:
        """Settle the request, if this is its whole answer."""
        payload = as_mapping(decode(self._body)) or _last_event(self._body)
        if payload.get("id") == self._job and job_of(payload) is None and self._job in self._jobs:
            self._jobs.pop(self._job)(payload)


def _last_event(body: bytearray) -> Mapping[str, Any]:
    """The answer in the last event of a stream that has one: an answer can be asked for as events, too."""
    events = map(as_mapping, map(decode, reversed(data_in(bytes(body)))))
    answers = (as_mapping(event.get("response") or event.get("interaction")) for event in events)
    return next(filter(None, answers), {})
