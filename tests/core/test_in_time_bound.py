"""The bound on the number in flight that time-outs and full queues show, before servers of one's own."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from math import ceil, inf

import pytest

from paceline.core.ledger import Ledger
from paceline.core.local import LocalCapacity
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import CONCURRENCY, FAR_NS, NS, parse_quotas
from paceline.core.results import Refusal, RefusalKind, Reservation
from paceline.core.unstated.chance import LASTS_NS
from paceline.core.unstated.in_flight import FULL_MAX_N, FULL_N, Flight
from paceline.core.unstated.in_time import InTimeBound

T0 = 1_000 * NS
QUEUE_FULL = Refusal(RefusalKind.CAPACITY, unit=CONCURRENCY)


def pool_of(quotas: str = "") -> Pool:
    pool = Pool("own/m", LocalCapacity(Ledger(parse_quotas(quotas) if quotas else (), T0, gentle=True), learns=True))
    if not quotas:
        pool.capacity.learning.measure(T0)
    return pool


class Server:
    """Requests, all there at the beginning, before a server with slots and a queue that does not notice who gives up.

    Args:
        slots: So many requests are worked on at once.
        queue: So many wait; one more is refused.
        timeout_s: When a caller gives up; its request is sent again.
        work_s: The bounds of the time of the work.
        workers: How many requests are in flight at most.
        hangs_s: From when to when no work ends.
    """

    def __init__(
        self, slots, queue, timeout_s, requests, *, work_s=(1.0, 1.0), workers=10**6, hangs_s=(0.0, 0.0), seed=1
    ):
        self.slots, self.queue, self.timeout_ns, self.work_s = slots, queue, round(timeout_s * NS), work_s
        self.left, self.requests, self.workers, self.hangs_s = requests, requests, workers, hangs_s
        self.pool, self.now_ns, self.dice = pool_of(), T0, random.Random(seed)
        self.events, self.order, self.waiting, self.busy = [], itertools.count(), [], 0
        self.served = self.thrown = self.full = self.most = 0
        self.explained = []

    def later(self, after_ns, what, *args):
        heapq.heappush(self.events, (self.now_ns + after_ns, next(self.order), what, args))

    def run(self, hours=2):
        self.send()
        while self.served < self.requests and self.now_ns < T0 + hours * 3_600 * NS:
            self.now_ns, _, what, args = heapq.heappop(self.events)
            what(*args)
            self.send()
        self.took_s = (self.now_ns - T0) / NS
        self.in_time = self.pool.ledger.meters[1].in_time
        return self

    def send(self):
        while self.left and self.pool.ledger.in_flight < self.workers:
            outcome = self.pool.try_grant(self.now_ns, Waiter({}))
            if not isinstance(outcome, Reservation):
                if outcome.at_ns < FAR_NS:
                    self.later(outcome.at_ns - self.now_ns, lambda: None)
                return
            self.left -= 1
            self.later(NS // 100, self.arrive, outcome)
            self.later(self.timeout_ns, self.give_up, outcome)

    def arrive(self, attempt):
        if self.busy + len(self.waiting) >= self.slots + self.queue:
            self.full += 1
            self.left += 1
            self.pool.refuse(self.now_ns, attempt, QUEUE_FULL, 0.0)
            return
        self.waiting.append(attempt)
        self.most = max(self.most, self.busy + len(self.waiting))
        self.start()

    def start(self):
        while self.waiting and self.busy < self.slots:
            self.busy += 1
            took_s, since_s = self.dice.uniform(*self.work_s), (self.now_ns - T0) / NS
            if self.hangs_s[0] < since_s + took_s < self.hangs_s[1]:
                took_s = self.hangs_s[1] - since_s
            self.later(round(took_s * NS), self.end, self.waiting.pop(0))

    def end(self, attempt):
        self.busy -= 1
        if attempt.open:
            self.served += 1
            self.pool.settle(self.now_ns, attempt, {"requests": 1})
        else:
            self.thrown += 1
        self.start()

    def give_up(self, attempt):
        if attempt.open:
            self.explained.append(self.pool.timed_out(self.now_ns, attempt))
            self.pool.settle(self.now_ns, attempt, None)
            self.left += 1


CASES = {
    # the server; the most work that is thrown away, and the time as a multiple of the time of its work
    "8 slots, queue of 24": ((8, 24, 2.5, 160), {}, 20, 1.25),
    "8 slots, queue of 24, patient callers": ((8, 24, 5.0, 400), {}, 0, 1.1),
    "8 slots, queue of 24, short time-out": ((8, 24, 1.8, 160), {}, 30, 1.3),
    "8 slots, queue without a bound": ((8, inf, 2.5, 160), {}, 160, 2.2),
    "64 slots, queue of 128": ((64, 128, 10.0, 600), {"work_s": (1.0, 4.0)}, 0, 1.25),
    "64 slots, queue of 128, shorter time-out": ((64, 128, 6.0, 600), {"work_s": (1.0, 4.0)}, 60, 1.35),
    "64 slots, short queue": ((64, 16, 10.0, 600), {"work_s": (1.0, 4.0)}, 0, 1.4),
    "32 slots, no queue, work of any length": ((32, 0, 60.0, 600), {"work_s": (0.5, 5.0)}, 0, 1.3),
    "1 slot, 4 workers": ((1, inf, 10.0, 100), {"work_s": (4.0, 4.0), "workers": 4}, 12, 1.15),
    "8 slots, 40 workers": ((8, inf, 4.0, 400), {"workers": 40}, 70, 1.3),
}


@pytest.mark.parametrize("name", CASES)
def test_a_server_of_ones_own_is_used_in_full_and_little_work_is_thrown_away(name):
    (slots, *_, requests), options, thrown, slower = CASES[name]
    server = Server(*CASES[name][0], **options).run()
    ideal_s = requests / slots * sum(server.work_s) / 2
    found = f"{server.thrown} thrown away, {server.took_s / ideal_s:.2f} times the ideal, {server.full} refused"
    assert server.served == requests, found
    assert server.thrown <= thrown, found
    assert server.took_s <= slower * ideal_s, found
    assert server.full <= 5, found


def test_the_status_names_what_is_answered_in_time():
    server = Server(8, 24, 2.5, 160).run()
    assert server.pool.ledger.meters[1].is_limiting
    assert 8 <= server.pool.ledger.meters[1].found <= 13


def test_time_outs_of_a_host_that_answers_many_others_bound_nothing():
    server = Server(10_000, 0, 3.0, 2_000, work_s=(0.5, 3.2), workers=100).run()
    assert len(server.explained) > 100
    assert server.in_time.size == inf


def test_time_outs_while_nothing_is_answered_are_failures_of_the_host():
    server = Server(10_000, 0, 20.0, 500, work_s=(2.0, 4.0), workers=50, hangs_s=(30.0, 60.0)).run()
    assert len(server.explained) >= 40
    assert not any(server.explained)
    assert server.in_time.size == inf


@pytest.mark.parametrize(("until_s", "most_s"), [(24.0, 100), (35.0, 115)])
def test_the_bound_after_a_stall_grows_where_answers_take_more_than_half_of_the_time_out(until_s, most_s):
    server = Server(10_000, 0, 5.0, 1_500, work_s=(2.0, 4.0), workers=60, hangs_s=(20.0, until_s)).run()
    assert server.in_time.size > 60  # as many as there are workers
    assert server.took_s <= most_s


def test_a_pool_whose_limits_are_stated_takes_no_time_out_for_a_sign():
    pool = pool_of("600 requests/min")
    attempt = pool.try_grant(T0, Waiter({}))
    assert not pool.timed_out(T0 + NS, attempt)
    pool.settle(T0 + NS, attempt, None)
    assert not pool.timed_out(T0 + NS, attempt)
    assert not Pool("m", LocalCapacity(Ledger((), T0))).timed_out(T0 + NS, attempt)


def test_a_full_queue_counts_once_and_only_if_others_are_in_flight():
    pool = pool_of()
    attempts = [pool.try_grant(T0 + n * NS // 10, Waiter({})) for n in range(10)]
    now_ns, in_flight = T0 + NS, pool.ledger.meters[1]
    assert [pool.row(now_ns, attempt, QUEUE_FULL).is_paced for attempt in attempts] == [False] + 9 * [True]
    pool.refuse(now_ns, attempts[0], QUEUE_FULL, 0.0)
    assert in_flight.in_time.size == inf
    pool.refuse(now_ns, attempts[9], QUEUE_FULL, 0.0)
    pool.refuse(now_ns, attempts[8], QUEUE_FULL, 0.0)
    assert (in_flight.in_time.size, in_flight.bound.flight.in_flight) == (4, 7)
    pool.capacity.learning.unstated.explained(now_ns, attempts[1])
    assert not pool.timed_out(now_ns, attempts[1])  # it counts once


class Bound:
    """A bound whose attempts are sent, answered and given up by hand."""

    def __init__(self):
        self.flight, self.now_ns = Flight(), T0
        self.in_time = InTimeBound(self.flight)

    def send(self, n=1):
        notes = [self.flight.sent(self.now_ns) for _ in range(n)]
        for note in notes:
            note.is_behind = self.in_time.busy_ns > 0
        return notes

    def answer(self, notes, after_s=0.0):
        self.now_ns += round(after_s * NS)
        for note in notes:
            self.flight.ended(self.now_ns, answered=True)
            self.in_time.answered(self.now_ns, note)

    def give_up(self, notes, after_s=0.0):
        self.now_ns += round(after_s * NS)
        found = []
        for note in notes:
            self.flight.ended(self.now_ns, answered=False)
            found.append(self.in_time.timed_out(self.now_ns, note))
        return found

    def time_out(self, answered_s=8.0):
        """Send 48, answer 8 of them after ``answered_s``, and give up the others after 10 s."""
        notes = self.send(48)
        self.answer(notes[:8], answered_s)
        return self.give_up(notes[8:], 10.0 - answered_s)

    def rounds(self, n, took_s):
        """Rounds that fill the bound, in which an answer takes so long; attempts are answered in order."""
        notes = deque()
        for _ in range(n):
            before = self.in_time.round.cut_count
            while self.in_time.round.cut_count == before and self.in_time.size < inf:
                while self.flight.in_flight < self.in_time.size:
                    notes += self.send()
                self.answer([notes.popleft()], took_s / ceil(self.in_time.size))
        self.answer(notes)


@pytest.fixture
def signed():
    """A bound after a time-out of 10 s: 8 were answered in it, and 40 others were in flight and timed out."""
    bound = Bound()
    assert all(bound.time_out())
    assert bound.in_time.timed_out_ns == 10 * NS
    return bound


def test_half_of_what_was_answered_is_in_flight_after_a_sign(signed):
    assert (signed.in_time.size, signed.in_time.rate) == (4, pytest.approx(0.8 / NS))


def test_what_has_timed_out_keeps_its_place_until_the_server_has_worked_on_it(signed):
    busy_ns, each_ns = signed.in_time.busy_ns, round(1.25 * NS)
    assert busy_ns == signed.now_ns + 35 * each_ns  # the first five were the sign
    assert signed.in_time.earliest_ns(signed.now_ns, 0) == signed.now_ns  # one may try
    signed.send()
    two_left_ns = busy_ns - 2 * each_ns
    assert signed.in_time.earliest_ns(signed.now_ns, 0) == two_left_ns
    assert signed.in_time.earliest_ns(two_left_ns, 0) == two_left_ns
    signed.send(3)
    assert signed.in_time.earliest_ns(busy_ns, 0) == FAR_NS


def test_after_a_sign_without_an_answer_all_that_has_timed_out_keeps_its_place(signed):
    signed.in_time._begin(0.0, 4, 40)
    signed.send()
    assert signed.in_time.earliest_ns(signed.now_ns, 0) == signed.in_time.busy_ns


def test_an_answer_to_a_later_attempt_shows_that_what_has_timed_out_has_left(signed):
    signed.answer(signed.send(), 1.0)
    assert signed.in_time.earliest_ns(signed.now_ns, 3) == signed.now_ns


def test_an_attempt_that_tries_and_times_out_behind_the_others_refutes_nothing(signed):
    assert signed.give_up(signed.send(), 10.0) == [True]
    assert signed.in_time.size == 4


@pytest.fixture
def free(signed):
    """The same, when the server has worked on all that had timed out."""
    signed.now_ns = signed.in_time.busy_ns
    assert signed.in_time.earliest_ns(signed.now_ns, 1) == signed.now_ns
    assert not signed.in_time.busy_ns
    return signed


def test_the_first_round_shows_the_number_at_work(free):
    free.rounds(1, 10.0)  # 0.8 per second, each of 10 s
    assert free.in_time.usual == pytest.approx(8, rel=0.3)


def test_it_grows_while_the_answers_per_second_grow(free):
    free.rounds(1, 1.0)
    sizes = []
    for _ in range(6):
        free.rounds(1, 1.0)
        sizes.append(free.in_time.size)
    assert sizes == [6, 9, 14, 21, 32, 48]


def test_a_test_without_more_answers_per_second_is_repeated_ever_later(free):
    free.rounds(1, 1.0)
    rests = []
    for _ in range(8):
        free.rounds(1, 1.0)
        assert free.in_time.size == 6
        free.rounds(1, 1.5)
        assert free.in_time.size == free.in_time.usual == pytest.approx(4)
        rests.append(free.in_time.rest)
    assert rests == [2, 4, 8, 16, 30, 30, 30, 30]
    assert rests[-1] == FULL_MAX_N // FULL_N


@pytest.mark.parametrize(("took_s", "size"), [(5.0, 6), (5.5, 6), (6.5, 6), (8.0, 7)])
def test_in_a_test_answers_take_three_quarters_of_the_time_out_at_most_or_one_more_is_tested(took_s, size, free):
    free.rounds(2, took_s)
    assert (free.in_time.usual, free.in_time.size) == (round(0.8 * took_s), size)


def test_time_outs_in_a_round_count_as_time_without_an_answer(free):
    free.send(3)
    for _ in range(FULL_N - 1):
        free.answer(free.send(), 1.0)
        assert free.give_up(free.send(), 9.0) == [False]
    free.answer(free.send(), 1.0)
    assert free.in_time.usual == round(0.8 * 31 / 4)  # 0.8 per second, and 4 answers in 31 s


def test_an_attempt_that_was_alone_and_timed_out_refutes_the_bound_for_a_while(free):
    for n in range(2):
        assert free.give_up(free.send(), 10.0) == [False]
        assert free.in_time.size == inf
        assert not any(free.time_out())
        assert free.in_time.size == inf
        free.now_ns += 2**n * LASTS_NS
        assert all(free.time_out())
        assert free.in_time.size == 4
        free.in_time.busy_ns = 0


def test_an_attempt_that_was_alone_says_nothing_where_there_is_no_bound():
    bound = Bound()
    assert bound.give_up(bound.send(), 10.0) == [False]
    assert not bound.in_time.time_outs.until_ns


def test_time_outs_after_quick_answers_say_nothing():
    bound = Bound()
    assert not any(bound.time_out(4.0))
    assert bound.in_time.size == inf


def filled() -> Bound:
    """A bound after 13 attempts. A full queue has refused the last one. Answers take 1 s."""
    bound = Bound()
    [*notes, last] = bound.send(13)
    bound.answer(notes[:4], 1.0)
    bound.flight.lost(last)
    bound.in_time.refused(last)
    bound.answer(notes[4:])
    assert (bound.in_time.size, bound.in_time.full) == (6, 12)
    return bound


def test_a_queue_that_is_filled_by_a_test_ends_it():
    bound = filled()
    bound.rounds(2, 1.0)
    usual = bound.in_time.usual
    assert bound.in_time.size > usual
    last = bound.send(8)[-1]
    bound.in_time.refused(last)
    assert (bound.in_time.size, bound.in_time.full) == (usual, 7)
    bound.in_time.refused(last)  # it was sent in the test
    assert (bound.in_time.size, bound.in_time.rest) == (usual, 2)


def test_a_full_queue_before_the_first_answer_is_left_at_once_by_what_times_out():
    bound = Bound()
    [*notes, last] = bound.send(41)
    bound.flight.lost(last)
    bound.in_time.refused(last)
    assert all(bound.give_up(notes, 10.0))
    assert (bound.in_time.size, bound.in_time.earliest_ns(bound.now_ns, 0)) == (1, bound.now_ns)


@pytest.mark.parametrize("took_ns", [0, 10 * NS])
def test_an_attempt_may_time_out_before_any_other_is_sent_or_ends(took_ns):
    flight = Flight()
    bound = InTimeBound(flight)
    answered = flight.sent(T0)
    flight.ended(T0 + 10 * NS, answered=True)
    bound.answered(T0 + 10 * NS, answered)
    flight.sent(T0 + 10 * NS)
    late = flight.sent(T0 + 10 * NS)

    assert bound.timed_out(T0 + 10 * NS + took_ns, late)

    assert bound.time_outs.weight == 1
