"""Planted bugs, one of each kind that the simulated worlds have to find: each is a context in which the engine is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
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


@contextmanager
def plain_refunds() -> Iterator[None]:
    """A refund is added back, although the bucket was full meanwhile."""

    def correct(self: Bucket, now_ns: int, mark: int, charged: float, actual: float) -> None:
        self.full_at_ns += ceil(actual * self.ns_per_unit) - ceil(charged * self.ns_per_unit)

    with patch.object(Bucket, "correct", correct):
        yield


@contextmanager
def lost_wake_up() -> Iterator[None]:
    """A timer that is set to an earlier instant is not moved."""
    original = Alarm.set

    def unmoved(self: Alarm, at_ns: int) -> None:
        if self._timer is None or self._at_ns == at_ns or self._call.__self__._pool.queue.length < 2:
            original(self, at_ns)

    with patch.object(Alarm, "set", unmoved):
        yield


@contextmanager
def retry_jumps_the_queue() -> Iterator[None]:
    """A request that returns after a refusal goes before all others, and not to its place."""
    original = Queue.push

    def push(self, waiter):
        if waiter.returned:
            waiter.number = -self.next_number()
        return original(self, waiter)

    with patch.object(Queue, "push", push):
        yield


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


@contextmanager
def share_of_the_last_exchange() -> Iterator[None]:
    """A process that loses the store takes the whole of what the last reply showed, and not its share of it."""
    original = StoreSide.receive

    def receive(self, now_ns, reply):
        reply.share = 1.0 if reply.peers < 3 else 1.5 / reply.peers
        return original(self, now_ns, reply)

    with patch.object(StoreSide, "receive", receive):
        yield


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


@contextmanager
def share_of_the_dead() -> Iterator[None]:
    """The store does not see that a process has ended."""
    with patch.object(troubles.SimulatedStore, "_has_ended", lambda *_: False):
        yield


@contextmanager
def dead_worker() -> Iterator[None]:
    """The thread that makes the exchanges of a process ends after forty of them, and nobody looks after it."""
    original = troubles.SimulatedWorker._take

    def take(self, *args):
        self.taken = getattr(self, "taken", 0) + 1
        if self.taken < 40:
            original(self, *args)

    with patch.object(troubles.SimulatedWorker, "_take", take):
        yield


@contextmanager
def two_formats() -> Iterator[None]:
    """Every second process has a ledger of its own in the store, as with a format in the name of its key."""
    original = troubles.SimulatedStore.exchange

    def exchange(self, process, pool, message, take):
        original(self, process, f"{int(process[1:]) % 2}:{pool}", message, take)

    with patch.object(troubles.SimulatedStore, "exchange", exchange):
        yield


@contextmanager
def attempt_counts_for_the_request() -> Iterator[None]:
    """A refusal for the rate of the pool uses up an attempt of its request."""
    original = RetryPolicy._after_pool

    def after_pool(self, failures, refusal, row, luck):
        if failures.of_pool >= self.max_attempts:
            return GiveUp("too many attempts")
        return original(self, failures, refusal, row, luck)

    with patch.object(RetryPolicy, "_after_pool", after_pool):
        yield


@contextmanager
def window_taken_for_a_bucket() -> Iterator[None]:
    """The rate before a time without admissions is taken for the rate of the provider."""
    original = MeasuredRate._unblock

    def unblock(self, now_ns, probe):
        before = self.cycle.top
        original(self, now_ns, probe)
        self._begin_cycle(probe.sent_ns, max(self.cycle.top, before), lengthen=True)

    with patch.object(MeasuredRate, "_unblock", unblock):
        yield


@contextmanager
def probe_that_never_comes() -> Iterator[None]:
    """Nothing goes any more when nothing was admitted."""
    original = MeasuredRate._block

    def block(self, now_ns, wait_s):
        original(self, now_ns, wait_s)
        self.next_at_ns = now_ns + 10**6 * NS

    with patch.object(MeasuredRate, "_block", block):
        yield


@contextmanager
def refused_attempts_are_measured() -> Iterator[None]:
    """A measurement counts the refused attempts as admitted."""
    original = MeasuredRate._lose

    def lose(self, note):
        original(self, note)
        self.tally.lost -= note.amount

    with patch.object(MeasuredRate, "_lose", lose):
        yield


@contextmanager
def chance_taken_for_a_limit() -> Iterator[None]:
    """Refusals that no limit explains lower the measured rate all the same."""
    with patch.object(MeasuredRate, "_accept", MeasuredRate._uphold):
        yield


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
