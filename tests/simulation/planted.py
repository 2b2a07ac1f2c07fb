"""A bug of each kind that the simulated worlds have to find: each is a context in which the engine is wrong."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partialmethod, wraps
from math import ceil
from typing import Any
from unittest.mock import patch

from tests.simulation import troubles

from paceline.core.learning import tracker
from paceline.core.learning.guesses import Guesses
from paceline.core.meters import Bucket
from paceline.core.queue import Queue
from paceline.core.quota import NS
from paceline.core.unstated.rate import MeasuredRate
from paceline.http import exchange
from paceline.pacing.clock import Alarm
from paceline.pacing.retry import GiveUp, RetryPolicy
from paceline.shared.exchange import StoreSide
from paceline.shared.ledger import SharedLedger

Bug = Callable[[], AbstractContextManager[None]]


def in_place_of(owner: type, name: str) -> Callable[[Callable[..., Any]], Bug]:
    """The decorated function takes the place of a method: after ``self`` it gets the method that it replaces."""

    def planted(wrong: Callable[..., Any]) -> Bug:
        @contextmanager
        @wraps(wrong)
        def bug() -> Iterator[None]:
            with patch.object(owner, name, partialmethod(wrong, getattr(owner, name))):
                yield

        return bug

    return planted


@in_place_of(Bucket, "correct")
def plain_refunds(self: Bucket, _: object, now_ns: int, mark: int, charged: float, actual: float) -> None:
    """A refund is added back, although the bucket was full meanwhile."""
    self.full_at_ns += ceil(actual * self.ns_per_unit) - ceil(charged * self.ns_per_unit)


@in_place_of(Alarm, "set")
def lost_wake_up(self: Alarm, original: Callable[..., None], at_ns: int) -> None:
    """A timer that is set to an earlier instant is not moved."""
    if self._timer is None or self._at_ns == at_ns or self._call.__self__._pool.queue.length < 2:
        original(self, at_ns)


@in_place_of(Queue, "push")
def retry_jumps_the_queue(self, original, waiter):
    """A request that returns after a refusal goes before all others, and not to its place."""
    if waiter.returned:
        waiter.number = -self.next_number()
    return original(self, waiter)


@contextmanager
def client_clock_in_the_store() -> Iterator[None]:
    """The store takes the time of the process that sends the message."""
    capacity, apply, clocks = troubles.SimulatedWorker.capacity, SharedLedger.apply, {}

    def opened(self, ledger, queue, now_ns, *, learns):
        clocks[self._process] = self._clock
        return capacity(self, ledger, queue, now_ns, learns=learns)

    def applied(self, _, message):
        return apply(self, clocks[message.who].now_ns(), message)

    with patch.object(troubles.SimulatedWorker, "capacity", opened), patch.object(SharedLedger, "apply", applied):
        yield


@in_place_of(StoreSide, "receive")
def share_of_the_last_exchange(self, original, now_ns, reply):
    """A process that loses the store takes the whole of what the last reply showed, and not its share of it."""
    reply.share = 1.0 if reply.peers < 3 else 1.5 / reply.peers
    return original(self, now_ns, reply)


@contextmanager
def lesson_that_stays() -> Iterator[None]:
    """What was learned from a refusal stays: a ceiling never climbs, and a lowered limit is not tested."""

    def stays(self: Guesses, now_ns: int, index: int, *_: object, **__: object) -> tuple[float, float]:
        return self._ledger.entries[index].meter.quota.amount, 0.0

    with patch.object(tracker.CeilingTracker, "climb", lambda *_: None), patch.object(Guesses, "_raised", stays):
        yield


@contextmanager
def breaker_counts_callers() -> Iterator[None]:
    """An error of the caller (a 400) counts as a failure of the server."""
    with patch.object(exchange, "is_server_fault", lambda status, refusal, _: status >= 400 and refusal is None):
        yield


@in_place_of(troubles.SimulatedStore, "_has_ended")
def share_of_the_dead(*_):
    """The store does not see that a process has ended."""
    return False


@in_place_of(troubles.SimulatedWorker, "_take")
def dead_worker(self, original, *args):
    """The thread that makes the exchanges of a process ends after forty of them, and nobody looks after it."""
    self.taken = getattr(self, "taken", 0) + 1
    if self.taken < 40:
        original(self, *args)


@in_place_of(troubles.SimulatedStore, "exchange")
def two_formats(self, original, process, pool, message, take):
    """Every second process has a ledger of its own in the store, as with a format in the name of its key."""
    original(self, process, f"{int(process[1:]) % 2}:{pool}", message, take)


@in_place_of(RetryPolicy, "_after_pool")
def attempt_counts_for_the_request(self, original, failures, refusal, row, luck):
    """A refusal for the rate of the pool uses up an attempt of its request."""
    if failures.of_pool >= self.max_attempts:
        return GiveUp("too many attempts")
    return original(self, failures, refusal, row, luck)


@in_place_of(MeasuredRate, "_unblock")
def window_taken_for_a_bucket(self, original, now_ns, probe):
    """The rate before a time without admissions is taken for the rate of the provider."""
    before = self.cycle.top
    original(self, now_ns, probe)
    self._begin_cycle(probe.sent_ns, max(self.cycle.top, before), lengthen=True)


@in_place_of(MeasuredRate, "_block")
def probe_that_never_comes(self, original, now_ns, wait_s):
    """Nothing goes any more when nothing was admitted."""
    original(self, now_ns, wait_s)
    self.next_at_ns = now_ns + 10**6 * NS


@in_place_of(MeasuredRate, "_lose")
def refused_attempts_are_measured(self, original, note):
    """A measurement counts the refused attempts as admitted."""
    original(self, note)
    self.tally.lost -= note.amount


@in_place_of(MeasuredRate, "_accept")
def chance_taken_for_a_limit(self, _, *args):
    """Refusals that no limit explains lower the measured rate all the same."""
    return self._uphold(*args)


UNSTATED_BUGS = {
    bug.__name__: bug
    for bug in (
        attempt_counts_for_the_request, window_taken_for_a_bucket, probe_that_never_comes, refused_attempts_are_measured,
        chance_taken_for_a_limit,
    )
}  # fmt: skip
"""Those that the worlds without stated limits have to find."""

BUGS = {
    bug.__name__: bug
    for bug in (
        plain_refunds, lost_wake_up, retry_jumps_the_queue, client_clock_in_the_store, share_of_the_last_exchange,
        lesson_that_stays, breaker_counts_callers, share_of_the_dead, dead_worker, two_formats,
    )
}  # fmt: skip
