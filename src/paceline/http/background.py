"""Answers that are made in the background: a request stays charged as held until its answer is asked for and whole."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from paceline.http.tap import BodyReader
from paceline.pacing.pacer import Pacer, Settle
from paceline.responses.events import data_in
from paceline.responses.finish import job_of
from paceline.responses.values import as_mapping, decode

JOBS_MAX: Final = 10_000
"""How many requests are remembered; of more, the oldest stay charged as they were held."""
BODY_MAX: Final = 32 * 2**20


def remember(pacer: Pacer, job: str, settle: Settle) -> None:
    """Settle a request with ``settle`` once its answer ``job`` is whole."""
    jobs = pacer.jobs
    if len(jobs) >= JOBS_MAX:
        # WEAK: without a lock. If two threads are at the bound at once, both may take the same one, and one of them gets a
        # KeyError.
        jobs.pop(next(iter(jobs)))(None)
    jobs[job] = settle


_ENDS: Final = {"GET": "", "POST": "/cancel"}
"""What follows the id of an answer in the path of a request that asks for it, by its method: one that cancels it gets it, too."""


def poll_of(pacer: Pacer, method: str, path: str) -> BodyReader | None:
    """A reader for the answer to a request for ``path``; ``None`` if no request waits for it."""
    ends, path = _ENDS.get(method), path.partition("?")[0].rstrip("/")
    job = path.removesuffix(ends).rpartition("/")[2] if ends is not None and path.endswith(ends) else ""
    return BodyReader(BODY_MAX, partial(_settle, pacer.jobs, job)) if job in pacer.jobs else None


def _settle(jobs: dict[str, Settle], job: str, body: bytes) -> None:
    """Settle the request for ``job``, if this is its whole answer."""
    payload = as_mapping(decode(body)) or _last_event(body)
    # Looked up again: two polls may be answered at once.
    if payload.get("id") == job and job_of(payload) is None and job in jobs:
        jobs.pop(job)(payload)


def _last_event(body: bytes) -> Mapping[str, Any]:
    """The answer in the last event of a stream that has one: an answer can be asked for as events, too."""
    events = map(as_mapping, map(decode, reversed(data_in(body))))
    answers = (as_mapping(event.get("response") or event.get("interaction")) for event in events)
    return next(filter(None, answers), {})
