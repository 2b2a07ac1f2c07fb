"""The batches of an emulated provider without their HTTP side: their states over time, their queue and their tally.

    batches = EmulatedBatches(Settings(batches={"turnaround_s": 420}))
    batch = batches.create(now, "openai", requests)
    batches.catch_up(now + 600)
    batch.state   # "completed"

Time is an argument (float seconds), so a test can run a day in milliseconds. The quotas of :class:`World` are not touched:
batches have quotas of their own. Not thread-safe.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any, NamedTuple

from paceline.emulator.settings import NINE_OF_TEN, BatchSettings, Settings
from paceline.emulator.tally import AnswerCounts
from paceline.emulator.wire import Ask

MOST_BATCHES = 10_000
"""Batches that one emulator keeps; none is forgotten, so that a client can list all of them."""

MOST_REQUESTS = 2_000_000
"""Requests of all these batches, about 600 bytes each in memory."""

ROUNDING_S = 1e-5
"""Far above the rounding of float seconds since 1970."""

ENDED = ("completed", "failed", "expired", "cancelled")
_HOUR_S = 3_600.0


class BatchProblem(NamedTuple):
    """What is wrong with a batch or with one of its lines, as OpenAI's ``errors.data`` lists it."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(slots=True)
class BatchEntry:
    """One request of a batch.

    Attributes:
        custom_id: Its id, as the client gave it.
        ask: Its body, as the server read it.
        content: A hash of the body.
        outcome: ``succeeded``, ``errored``, ``expired`` or ``canceled``; empty before.
        status: The HTTP status of the answer; 0 without one.
        output_tokens: The output of the answer.
    """

    custom_id: str
    ask: Ask
    content: str
    outcome: str = ""
    status: int = 0
    output_tokens: int = 0


@dataclass(slots=True, eq=False)
class EmulatedBatch:
    """One batch.

    Attributes:
        serial: Its number, from 1.
        style: ``openai``, ``mistral``, ``together``, ``gemini`` or ``anthropic``.
        entries: The requests, in the order of the input.
        model: The model of the queue, which the first request has.
        about: What the client said beside the requests: endpoint, metadata, the input file.
        created_s: The time of creation.
        expires_s: The time of expiry.
        state: OpenAI's status.
        times: When each state began.
        problems: Why the batch failed.
        order: The numbers of the requests, in the order in which they end.
        ended: How many of these have ended.
        lasts_s: Seconds from ``in_progress`` to the end of the last request.
        holds_tokens: The part of the queue that the batch holds.
        counts: How many requests have each outcome.
        input_tokens: The input of the answered requests.
        output_tokens: Their output.
        read: Whether its results were read to the end.
        deleted: Whether the client has deleted it; it stays in the tally.
    """

    serial: int
    style: str
    entries: Sequence[BatchEntry]
    model: str
    about: Mapping[str, Any]
    created_s: float
    expires_s: float
    random: Random
    state: str = "validating"
    times: dict[str, float] = field(default_factory=dict)
    problems: list[BatchProblem] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    ended: int = 0
    lasts_s: float = 0.0
    holds_tokens: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    input_tokens: int = 0
    output_tokens: int = 0
    read: bool = False
    deleted: bool = False

    def enter(self, now: float, state: str) -> None:
        """Enter a state."""
        self.state = state
        self.times[state] = now

    @property
    def readable(self) -> bool:
        """Whether its results can be read: Gemini has none of a batch that has expired."""
        return (self.style, self.state) != ("gemini", "expired")

    def results(self, *outcomes: str) -> Iterable[tuple[int, BatchEntry]]:
        """The requests with these outcomes and their numbers, in the order of the output."""
        numbers = self.order or range(len(self.entries))
        return ((number, self.entries[number]) for number in numbers if self.entries[number].outcome in outcomes)


class Full(NamedTuple):
    """A creation that was refused: ``rate`` (too many in an hour), ``queue`` or ``memory``."""

    kind: str
    limit: float


class EmulatedBatches:
    """All batches of a provider.

    Args:
        settings: The provider's properties; ``settings.batches`` has the properties of its batches.
        answers: The number of answers to each custom id, by batch and one by one together.
        knows: Whether the provider has a model.
    """

    def __init__(
        self, settings: Settings, answers: AnswerCounts | None = None, knows: Callable[[str], bool] = lambda _: True
    ) -> None:
        self.settings, self.rules = settings, BatchSettings.of(settings.batches)
        self.by_serial: dict[int, EmulatedBatch] = {}
        self.refused: Counter[str] = Counter()
        self.lost = 0
        self._knows = knows
        self._events: list[tuple[float, int, str, EmulatedBatch]] = []
        self._serials, self._moves = itertools.count(1), itertools.count()
        self._created: deque[float] = deque()
        self._held: Counter[str] = Counter()
        self._waiting = self._requests = 0
        self._running: dict[int, EmulatedBatch] = {}
        self._answers = answers or AnswerCounts()
        self._ids, self._contents, self._whole = AnswerCounts(), AnswerCounts(), AnswerCounts()
        self._losses = Random(f"{settings.seed}/lost")

    # --- what a client does ------------------------------------------------------------------------------------------

    def create(
        self,
        now: float,
        style: str,
        entries: Sequence[BatchEntry],
        about: Mapping[str, Any] | None = None,
        problems: Iterable[BatchProblem] = (),
    ) -> EmulatedBatch | Full:
        """Create a batch.

        Args:
            now: The time in seconds.
            style: See :class:`EmulatedBatch`; only ``anthropic`` is in progress at once, all others are validated later.
            entries: The requests.
            about: What the client said beside them.
            problems: Why the batch will fail after its validation.
        """
        self.catch_up(now)
        full = self._full(now, style, entries)
        if full is not None:
            self.refused[full.kind] += 1
            return full
        serial = next(self._serials)
        random = Random(f"{self.settings.seed}/{serial}")
        model = entries[0].ask.model if entries else ""
        batch = EmulatedBatch(serial, style, entries, model, about or {}, now, now + self.rules.expires_s, random)
        batch.problems += problems
        self.by_serial[serial] = batch
        self._created.append(now)
        self._requests += len(entries)
        self._whole.add(_hash(sorted(f"{entry.custom_id} {entry.content}" for entry in entries)))
        if style == "anthropic":
            self._waiting += len(entries)
            self._validate(now, batch)
        else:
            self._later(now + self.rules.validating_s, "validate", batch)
        self.catch_up(now)
        return batch

    def cancel(self, now: float, batch: EmulatedBatch) -> bool:
        """Begin to cancel a batch; whether that is possible. Until it is cancelled its requests go on."""
        self.catch_up(now)
        if batch.state not in ("validating", "in_progress"):
            return batch.state == "cancelling"
        batch.enter(now, "cancelling")
        self._later(now + self.rules.cancel_s, "cancelled", batch)
        self.catch_up(now)
        return True

    def loses_answer(self) -> bool:
        """Whether the answer to a creation is lost."""
        lost = bool(self.rules.lost_answers) and self._losses.random() < self.rules.lost_answers
        self.lost += lost
        return lost

    # --- time --------------------------------------------------------------------------------------------------------

    def catch_up(self, now: float) -> None:
        """Let everything happen that is due."""
        while self._events and self._events[0][0] <= now:
            at, _, event, batch = heapq.heappop(self._events)
            getattr(self, f"_{event}")(at, batch)
        for batch in self._running.values():
            self._work(now, batch)

    def _later(self, at: float, event: str, batch: EmulatedBatch) -> None:
        heapq.heappush(self._events, (at, next(self._moves), event, batch))

    def _validate(self, now: float, batch: EmulatedBatch) -> None:
        if batch.state != "validating":
            return
        if not batch.problems:
            batch.problems += self._over_queue(batch)
        if batch.problems:
            batch.enter(now, "failed")
            return
        rules, random = self.rules, batch.random
        batch.enter(now, "in_progress")
        batch.holds_tokens = _tokens(batch.entries)
        self._held[batch.model] += batch.holds_tokens
        batch.order = list(range(len(batch.entries)))
        random.shuffle(batch.order)
        sigma = math.log(rules.turnaround_spread) / NINE_OF_TEN
        batch.lasts_s = rules.turnaround_s * math.exp(random.gauss(0, sigma))
        self._running[batch.serial] = batch
        self._later(now + batch.lasts_s, "finish", batch)
        self._later(batch.expires_s, "expire", batch)

    def _finish(self, now: float, batch: EmulatedBatch) -> None:
        if batch.state == "in_progress":
            self._work(now, batch)
            batch.enter(now, "finalizing")
            self._later(now + self.rules.finalizing_s, "complete", batch)

    def _complete(self, now: float, batch: EmulatedBatch) -> None:
        if batch.state == "finalizing":
            self._end(now, batch, "completed", "")

    def _expire(self, now: float, batch: EmulatedBatch) -> None:
        if batch.state == "in_progress":
            self._end(now, batch, "expired", "expired")

    def _cancelled(self, now: float, batch: EmulatedBatch) -> None:
        self._end(now, batch, "cancelled", "canceled")

    def _end(self, now: float, batch: EmulatedBatch, state: str, outcome: str) -> None:
        if batch.serial in self._running:
            self._work(now, batch)
            del self._running[batch.serial]
        for entry in batch.entries:
            if not entry.outcome:
                entry.outcome = outcome
                batch.counts[outcome] += 1
        if self.rules.in_order:
            batch.order.sort()
        batch.enter(now, state)
        self._later(now + self.rules.release_s, "release", batch)

    def _release(self, _: float, batch: EmulatedBatch) -> None:
        self._held[batch.model] -= batch.holds_tokens
        batch.holds_tokens = 0
        if batch.style == "anthropic":
            self._waiting -= len(batch.entries)

    def _work(self, now: float, batch: EmulatedBatch) -> None:
        """End the requests that are due: evenly over the time that the batch lasts."""
        spent_s = min(now, batch.expires_s) - batch.times.get("in_progress", now)
        over = spent_s >= batch.lasts_s - ROUNDING_S
        share = 1.0 if over else spent_s / batch.lasts_s
        due = math.floor(len(batch.order) * share + 1e-9)
        for number in batch.order[batch.ended : due]:
            self._run(batch, batch.entries[number])
        batch.ended = max(batch.ended, due)

    def _run(self, batch: EmulatedBatch, entry: BatchEntry) -> None:
        settings, random, ask = self.settings, batch.random, entry.ask
        spread = random.uniform(-settings.output_spread, settings.output_spread)
        fails = random.random() < self.rules.failed_requests
        entry.status = 400 if ask.error else 404 if not self._knows(ask.model) else 500 if fails else 200
        entry.outcome = "succeeded" if entry.status == 200 else "errored"
        batch.counts[entry.outcome] += 1
        if entry.status != 200:
            return
        if ask.kind != "embeddings":
            most = ask.max_output_tokens or settings.default_output_tokens
            entry.output_tokens = min(most, max(1, round(most * settings.output_share * (1 + spread))))
        batch.input_tokens += ask.input_tokens
        batch.output_tokens += entry.output_tokens
        for answers in (self._answers, self._ids):
            answers.add(entry.custom_id)
        self._contents.add(entry.content)

    # --- the queue ---------------------------------------------------------------------------------------------------

    def _full(self, now: float, style: str, entries: Sequence[BatchEntry]) -> Full | None:
        rules = self.rules
        while self._created and self._created[0] <= now - _HOUR_S:
            self._created.popleft()
        if len(self._created) >= rules.creations_per_hour:
            return Full("rate", rules.creations_per_hour)
        if len(self.by_serial) >= MOST_BATCHES or self._requests + len(entries) > MOST_REQUESTS:
            return Full("memory", MOST_REQUESTS)
        if style == "anthropic":
            most: float | None = rules.queued_requests
            if most is not None and self._waiting + len(entries) > most:
                return Full("queue", most)
        elif entries and (style == "gemini" or (style == "openai" and rules.queue_full != "late")):
            model = entries[0].ask.model
            most = rules.tokens_for(model)
            if most is not None and self._held[model] + self._validating(model) + _tokens(entries) > most:
                return Full("queue", most)
        return None

    def _validating(self, model: str) -> int:
        """The tokens of the batches of a model that are read, and not held yet."""
        return sum(_tokens(b.entries) for b in self.by_serial.values() if b.state == "validating" and b.model == model)

    def _over_queue(self, batch: EmulatedBatch) -> Iterable[BatchProblem]:
        most = self.rules.tokens_for(batch.model)
        if batch.style != "openai" or most is None:
            return
        fits = self._held[batch.model] + _tokens(batch.entries) <= most
        if not fits or batch.random.random() < self.rules.full_by_mistake:
            yield BatchProblem("token_limit_exceeded", queue_text(batch.model, most))

    # --- the tally ---------------------------------------------------------------------------------------------------

    def tally(self, now: float) -> dict[str, Any]:
        """What was created, what was paid, and what happened twice.

        ``paid`` is the number of answered requests; ``custom_ids`` and ``contents`` say how often the same one was paid;
        ``same`` says how often the same set of requests became a batch. ``unread`` counts batches that have ended, with
        paid results which no client has read.
        """
        self.catch_up(now)
        batches = self.by_serial.values()
        outcomes = sum((batch.counts for batch in batches), Counter[str]())
        return {
            "created": len(batches),
            "refused": dict(self.refused),
            "lost_answers": self.lost,
            "states": dict(Counter(batch.state for batch in batches)),
            "requests": sum(len(batch.entries) for batch in batches),
            "paid": outcomes["succeeded"],
            "outcomes": dict(outcomes),
            "input_tokens": sum(batch.input_tokens for batch in batches),
            "output_tokens": sum(batch.output_tokens for batch in batches),
            "enqueued_tokens": {model: tokens for model, tokens in self._held.items() if tokens},
            "custom_ids": self._ids.report(),
            "contents": self._contents.report(),
            "same": self._whole.report(),
            "unread": sum(
                b.state in ENDED and b.counts["succeeded"] > 0 and not b.read and b.readable for b in batches
            ),
        }


def queue_text(model: str, limit: float) -> str:
    """OpenAI's text for a queue that is full, as captured (openai-python#2084)."""
    return (
        f"Enqueued token limit reached for {model} in organization org-emulated. Limit: {limit:,.0f} enqueued tokens."
        " Please try again once some in_progress batches have been completed."
    )


def _tokens(entries: Sequence[BatchEntry]) -> int:
    return sum(entry.ask.input_tokens for entry in entries)


def _hash(parts: Iterable[str]) -> str:
    whole = sha256()
    for part in parts:
        whole.update(part.encode("utf-8", "surrogatepass") + b"\n")
    return whole.hexdigest()[:16]
