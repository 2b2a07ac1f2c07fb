"""The batches of an emulated provider without their HTTP side: their states over time, their queue and their tally.

    batches = EmulatedBatches(World(Settings(batches={"turnaround_s": 420})))
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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any, NamedTuple

from paceline.emulator.settings import BatchSettings
from paceline.emulator.tally import AnswerCounts
from paceline.emulator.wire import Ask
from paceline.emulator.world import World

MOST_BATCHES = 10_000
"""Batches that one emulator keeps; none is forgotten, so that a client can list all of them."""

MOST_REQUESTS = 2_000_000
"""Requests of all these batches, about 600 bytes each in memory."""

ROUNDING_S = 1e-5
"""Far above the rounding of float seconds since 1970."""

ENDED = ("completed", "failed", "expired", "cancelled")
_HOUR_S = 3_600.0
_Event = Callable[[float, "EmulatedBatch"], None]


class BatchProblem(NamedTuple):
    """What is wrong with a batch or with one of its lines, as OpenAI's ``errors.data`` lists it."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


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


IDS = {
    "openai": "batch_{:032x}", "together": "together-{:x}", "mistral": "job-{:x}", "gemini": "batches/{:024x}",
    "anthropic": "msgbatch_{:024x}",
}  # fmt: skip
"""The styles of Batch APIs, and the form of their ids."""


@dataclass(slots=True, eq=False)
class EmulatedBatch:
    """One batch.

    Attributes:
        serial: Its number, from 1.
        style: One of :data:`IDS`.
        entries: The requests, in the order of the input.
        about: What the client said beside the requests: endpoint, metadata, the input file.
        expires_s: The time of expiry.
        random: Its dice.
        times: When each state began, by OpenAI's names of them; the last one is the state now.
        problems: Why the batch failed.
        order: The numbers of the requests, in the order in which they end.
        lasts_s: Seconds from ``in_progress`` to the end of the last request.
        counts: How many requests have each outcome.
        read: Whether its results were read to the end.
    """

    serial: int
    style: str
    entries: Sequence[BatchEntry]
    about: Mapping[str, Any]
    expires_s: float
    random: Random
    times: dict[str, float]
    problems: list[BatchProblem]
    order: list[int] = field(default_factory=list)
    lasts_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    read: bool = False

    @property
    def id(self) -> str:
        """Its id in the form of its API."""
        return IDS[self.style].format(self.serial)

    @property
    def model(self) -> str:
        """The model of its queue, which the first request has."""
        return self.entries[0].ask.model if self.entries else ""

    @property
    def tokens(self) -> int:
        """The input of all requests: its part of the queue."""
        return sum(entry.ask.input_tokens for entry in self.entries)

    @property
    def state(self) -> str:
        """OpenAI's status."""
        return next(reversed(self.times))

    @property
    def created_s(self) -> float:
        """The time of creation."""
        return self.times["validating"]

    @property
    def ended_s(self) -> float | None:
        """The time of its end; ``None`` before."""
        return self.times[self.state] if self.state in ENDED else None

    @property
    def done(self) -> int:
        """How many requests have been answered, with a result or an error."""
        return self.counts["succeeded"] + self.counts["errored"]

    @property
    def used(self) -> tuple[int, int]:
        """The tokens of input and of output of the requests that were answered with a result."""
        paid = [entry for entry in self.entries if entry.outcome == "succeeded"]
        return sum(entry.ask.input_tokens for entry in paid), sum(entry.output_tokens for entry in paid)

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
        world: The provider: its properties, its models, and the number of answers to each custom id, by batch and one by
            one together.

    Attributes:
        rules: The properties of its batches.
        by_id: The batches by their ids, the oldest first.
        queued: Those that hold a place in the queue.
        refused: How many creations were refused, by kind.
        lost: How many answers to creations were lost.
    """

    def __init__(self, world: World) -> None:
        self._world, self.rules = world, BatchSettings.of(world.settings.batches)
        self.by_id: dict[str, EmulatedBatch] = {}
        self.queued: list[EmulatedBatch] = []
        self.refused: Counter[str] = Counter()
        self.lost = 0
        self._due: list[tuple[float, int, str, _Event, EmulatedBatch]] = []
        self._moves = itertools.count()
        self._paid = {name: AnswerCounts() for name in ("custom_ids", "contents", "same")}
        self._losses = Random(f"{world.settings.seed}/lost")

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
            style: See :data:`IDS`; only a batch of ``anthropic`` is in progress at once, all others are validated later.
            entries: The requests.
            about: What the client said beside them.
            problems: Why the batch will fail after its validation.
        """
        self.catch_up(now)
        serial, expires_s = len(self.by_id) + 1, now + self.rules.expires_s
        random = Random(f"{self._world.settings.seed}/{serial}")
        times = {"validating": now}
        batch = EmulatedBatch(serial, style, entries, about or {}, expires_s, random, times, list(problems))
        full = self._full(now, batch)
        if full is not None:
            self.refused[full.kind] += 1
            return full
        self.by_id[batch.id] = batch
        requests = "\n".join(sorted(f"{entry.custom_id} {entry.content}" for entry in entries))
        self._paid["same"].add(sha256(requests.encode("utf-8", "surrogatepass")).hexdigest()[:16])
        if style == "anthropic":
            self._validate(now, batch)
        else:
            self._later(now + self.rules.validating_s, self._validate, batch)
        self.catch_up(now)
        return batch

    def cancel(self, now: float, batch: EmulatedBatch) -> bool:
        """Begin to cancel a batch; whether that is possible. Until it is cancelled its requests go on."""
        self.catch_up(now)
        if batch.state not in ("validating", "in_progress"):
            return batch.state == "cancelling"
        batch.times["cancelling"] = now
        self._later(now + self.rules.cancel_s, partial(self._end, "cancelled"), batch)
        self.catch_up(now)
        return True

    def of(self, style: str) -> list[EmulatedBatch]:
        """The batches of one style, the newest first."""
        return [batch for batch in reversed(self.by_id.values()) if batch.style == style]

    def loses_answer(self) -> bool:
        """Whether the answer to a creation is lost."""
        lost = bool(self.rules.lost_answers) and self._losses.random() < self.rules.lost_answers
        self.lost += lost
        return lost

    # --- time --------------------------------------------------------------------------------------------------------

    def catch_up(self, now: float) -> None:
        """Let everything happen that is due."""
        while self._due and self._due[0][0] <= now:
            at, _, state, event, batch = heapq.heappop(self._due)
            if batch.state == state:
                event(at, batch)
        for batch in self.queued:
            self._work(now, batch)

    def _later(self, at: float, event: _Event, batch: EmulatedBatch) -> None:
        """Let an event happen, if the batch is in the same state then."""
        heapq.heappush(self._due, (at, next(self._moves), batch.state, event, batch))

    def _validate(self, now: float, batch: EmulatedBatch) -> None:
        if not batch.problems:
            batch.problems += self._over_queue(batch)
        if batch.problems:
            batch.times["failed"] = now
            return
        batch.times["in_progress"] = now
        self.queued.append(batch)
        batch.order = list(range(len(batch.entries)))
        batch.random.shuffle(batch.order)
        batch.lasts_s = self.rules.lasts_s(batch.random)
        self._later(now + batch.lasts_s, self._finish, batch)
        self._later(batch.expires_s, partial(self._end, "expired"), batch)

    def _finish(self, now: float, batch: EmulatedBatch) -> None:
        self._work(now, batch)
        batch.times["finalizing"] = now
        self._later(now + self.rules.finalizing_s, partial(self._end, "completed"), batch)

    def _end(self, state: str, now: float, batch: EmulatedBatch) -> None:
        self._work(now, batch)
        for entry in batch.entries:
            if not entry.outcome:
                entry.outcome = "canceled" if state == "cancelled" else state
                batch.counts[entry.outcome] += 1
        if self.rules.in_order:
            batch.order.sort()
        batch.times[state] = now
        if batch in self.queued:
            self._later(now + self.rules.release_s, self._release, batch)

    def _release(self, _: float, batch: EmulatedBatch) -> None:
        self.queued.remove(batch)

    def _work(self, now: float, batch: EmulatedBatch) -> None:
        """End the requests that are due: evenly over the time that the batch lasts."""
        if batch.ended_s is not None:
            return
        spent_s = min(now, batch.expires_s) - batch.times.get("in_progress", now)
        over = spent_s >= batch.lasts_s - ROUNDING_S
        share = 1.0 if over else spent_s / batch.lasts_s
        for number in batch.order[batch.done : math.floor(len(batch.order) * share + 1e-9)]:
            self._run(batch, batch.entries[number])

    def _run(self, batch: EmulatedBatch, entry: BatchEntry) -> None:
        settings, random, ask = self._world.settings, batch.random, entry.ask
        spread = random.uniform(-settings.output_spread, settings.output_spread)
        fails = random.random() < self.rules.failed_requests
        entry.status = 400 if ask.error else 404 if not self._world.knows(ask.model) else 500 if fails else 200
        entry.outcome = "succeeded" if entry.status == 200 else "errored"
        batch.counts[entry.outcome] += 1
        if entry.status != 200:
            return
        if ask.kind != "embeddings":
            entry.output_tokens = settings.output_of(ask.max_output_tokens, spread)
        for answers in (self._world.answers, self._paid["custom_ids"]):
            answers.add(entry.custom_id)
        self._paid["contents"].add(entry.content)

    # --- the queue ---------------------------------------------------------------------------------------------------

    def _full(self, now: float, batch: EmulatedBatch) -> Full | None:
        rules, known = self.rules, self.by_id.values()
        if sum(one.created_s > now - _HOUR_S for one in known) >= rules.creations_per_hour:
            return Full("rate", rules.creations_per_hour)
        if len(known) >= MOST_BATCHES or sum(len(one.entries) for one in (*known, batch)) > MOST_REQUESTS:
            return Full("memory", MOST_REQUESTS)
        most, taken = self._queue(batch)
        return Full("queue", most) if most is not None and taken > most else None

    def _queue(self, batch: EmulatedBatch) -> tuple[float | None, int]:
        """The size of the queue that a batch joins, and how much of it is taken then; ``None``: the creation is not bounded."""
        rules = self.rules
        if batch.style == "anthropic":
            waiting = [one for one in self.queued if one.style == "anthropic"]
            return rules.queued_requests, sum(len(one.entries) for one in (*waiting, batch))
        if batch.style == "gemini" or (batch.style == "openai" and rules.queue_full != "late"):
            read = [one for one in self.by_id.values() if one.state == "validating" and one.model == batch.model]
            return rules.tokens_for(batch.model), self._held()[batch.model] + sum(one.tokens for one in (*read, batch))
        return None, 0

    def _held(self) -> Counter[str]:
        """The tokens of the batches that hold a place in the queue, by model."""
        held = Counter[str]()
        for batch in self.queued:
            held[batch.model] += batch.tokens
        return held

    def _over_queue(self, batch: EmulatedBatch) -> Iterable[BatchProblem]:
        most = self.rules.tokens_for(batch.model)
        if batch.style != "openai" or most is None:
            return
        fits = self._held()[batch.model] + batch.tokens <= most
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
        batches = self.by_id.values()
        outcomes = sum((batch.counts for batch in batches), Counter[str]())
        used = [batch.used for batch in batches]
        unread = [b for b in batches if b.ended_s is not None and b.counts["succeeded"] and not b.read and b.readable]
        return {
            "created": len(batches),
            "refused": dict(self.refused),
            "lost_answers": self.lost,
            "states": dict(Counter(batch.state for batch in batches)),
            "requests": sum(len(batch.entries) for batch in batches),
            "paid": outcomes["succeeded"],
            "outcomes": dict(outcomes),
            "input_tokens": sum(tokens for tokens, _ in used),
            "output_tokens": sum(tokens for _, tokens in used),
            "enqueued_tokens": dict(+self._held()),
            **{name: counts.report() for name, counts in self._paid.items()},
            "unread": len(unread),
        }


def queue_text(model: str, limit: float) -> str:
    """OpenAI's text for a queue that is full, as captured (openai-python#2084)."""
    return (
        f"Enqueued token limit reached for {model} in organization org-emulated. Limit: {limit:,.0f} enqueued tokens."
        " Please try again once some in_progress batches have been completed."
    )
