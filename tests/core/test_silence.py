"""A pool whose attempts in flight get no answer sends one probe at a time."""

import pytest
from core_pools import RATE, ask, pool_of, pump_at_wake
from core_worlds import T0

from paceline.core.pause import PROBE_NS
from paceline.core.queue import Estimate, Waiter
from paceline.core.quota import NS
from paceline.core.results import COOL_DOWN, NO_ANSWER, Reservation, WaitUntil
from paceline.core.silence import SILENT_MAX_NS, SILENT_MIN
from paceline.pacing.status import report

USED = {"requests": 1}


def sent(pool, now_ns):
    outcome = pool.try_grant(now_ns, Waiter({}))
    assert isinstance(outcome, Reservation), outcome
    return outcome


def silent_pool(took_s=0.1):
    """A pool that was answered after ``took_s``, has sent five requests since, and is 10 s without an answer."""
    pool = pool_of("6000 requests/min")
    pool.settle(T0 + round(took_s * NS), sent(pool, T0), USED)
    began_ns = T0 + round(took_s * NS)
    flying = [sent(pool, began_ns + i) for i in range(SILENT_MIN)]
    return pool, flying, began_ns + 10 * NS


def test_one_probe_goes_and_the_others_after_an_answer():
    pool, flying, now_ns = silent_pool()
    assert isinstance(ask(pool, now_ns)[1], Reservation)
    waiters = [ask(pool, now_ns)[0] for _ in range(3)]
    assert (report(pool, now_ns)["binds"], pool.wake_ns) == (NO_ANSWER, now_ns + PROBE_NS)
    assert pool.place(now_ns, waiters[2]) == (2, now_ns + PROBE_NS, NO_ANSWER)
    pool.settle(now_ns + 1, flying[0], USED)
    assert pool.pump(now_ns + 1) == waiters
    assert not pool.notices


def test_a_silence_that_the_first_probe_does_not_end_is_told():
    pool, flying, now_ns = silent_pool(1.5)
    ask(pool, now_ns)
    waiters = [ask(pool, now_ns)[0] for _ in range(3)]
    assert pump_at_wake(pool) == (now_ns + PROBE_NS, waiters[:1])
    pool.settle(now_ns + 3 * NS, flying[0], USED)
    line = (
        "no answer for 12.0 s, with 6 requests in flight (the longest recent answer took 1.5 s); sending one request every 2 s"
        " until an answer comes"
    )
    assert list(pool.notices) == [line, "answers come again"]


def test_it_begins_before_one_that_waited_in_a_pause_and_is_estimated_again_goes():
    pool, _, now_ns = silent_pool()
    pool.capacity.pause(now_ns - NS)
    waiter, _ = ask(pool, now_ns - 2 * NS)
    waiter.estimate = lambda: Estimate({"requests": 1.0})
    assert pool.pump(now_ns) == [waiter]
    assert pool.silence.since_ns == now_ns


def test_who_does_not_wait_hears_that_no_answer_comes():
    pool, _, now_ns = silent_pool()
    sent(pool, now_ns)
    assert pool.try_grant(now_ns, Waiter({})) == WaitUntil(now_ns + PROBE_NS, NO_ANSWER)


def test_a_longer_pause_of_another_reason_is_the_one_that_binds_and_outlasts_the_silence():
    pool, flying, now_ns = silent_pool()
    sent(pool, now_ns)
    waiter, _ = ask(pool, now_ns)
    pool.capacity.pause(now_ns + 94 * NS)
    assert (pool.place(now_ns, waiter)[1:], report(pool, now_ns)["binds"]) == ((now_ns + 94 * NS, COOL_DOWN), COOL_DOWN)
    pool.settle(now_ns + NS, flying[0], USED)
    assert (pool.silence.since_ns, pool.capacity.cool_down_ns(now_ns + NS)) == (0, 93 * NS)
    assert pool.pump(now_ns + NS) == []
    assert pump_at_wake(pool) == (now_ns + 94 * NS, [waiter])


def test_a_refusal_is_an_answer():
    pool, flying, now_ns = silent_pool()
    sent(pool, now_ns)
    pool.refuse(now_ns + 1, flying[0], RATE, 0.0)
    assert not pool.silence.since_ns
    sent(pool, now_ns + 2)


def test_long_answers_that_have_begun_are_no_silence():
    pool, flying, now_ns = silent_pool()
    flying[0].begun = True
    waiters = [ask(pool, now_ns + i) for i in range(20)]
    assert all(isinstance(outcome, Reservation) for _, outcome in waiters)
    assert not pool.silence.since_ns


def test_another_probe_goes_every_two_seconds_and_all_after_a_time():
    pool, _, now_ns = silent_pool()
    sent(pool, now_ns)
    waiters = [ask(pool, now_ns)[0] for _ in range(30)]
    for number in range(1, SILENT_MAX_NS // PROBE_NS):
        assert pump_at_wake(pool) == (now_ns + number * PROBE_NS, [waiters.pop(0)])
    assert pump_at_wake(pool) == (now_ns + SILENT_MAX_NS, waiters)


@pytest.mark.parametrize("took_s", [5.01, 20.0, 60.0])
def test_a_pool_whose_answers_take_long_is_not_silent(took_s):
    pool, _, now_ns = silent_pool(took_s)
    for _ in range(10):
        sent(pool, now_ns)
    assert not pool.silence.since_ns


def test_before_the_first_answer_nothing_is_known_about_the_time_it_takes():
    pool = pool_of("6000 requests/min")
    for second in range(20):
        sent(pool, T0 + second * NS)


def test_forgotten_permits_do_not_make_a_pool_silent():
    pool, _, now_ns = silent_pool()
    pool.settle(now_ns, sent(pool, now_ns), USED)  # the five others are never settled
    for _ in range(4 * 100):
        pool.settle(now_ns, sent(pool, now_ns), USED)
        now_ns += NS // 10
    sent(pool, now_ns + 60 * NS)
    sent(pool, now_ns + 60 * NS)


def test_those_sent_long_before_the_beginning_of_an_answer_are_not_waited_for():
    pool, _, now_ns = silent_pool()
    pool.answered(now_ns - NS)
    for _ in range(10):
        sent(pool, now_ns)
    assert not pool.silence.since_ns


def test_a_pause_is_no_silence_and_ends_with_its_own_probe():
    pool, flying, now_ns = silent_pool()
    pool.capacity.pause(now_ns + 5 * NS)
    waiters = [ask(pool, now_ns)[0] for _ in range(3)]
    assert (pool.silence.since_ns, pool.wake_ns) == (0, now_ns + 5 * NS)
    assert pump_at_wake(pool) == (now_ns + 5 * NS, waiters[:1])
    assert pool.silence.since_ns == now_ns + 5 * NS
    pool.settle(now_ns + 5 * NS + 1, flying[0], USED)
    assert pool.pump(now_ns + 5 * NS + 1) == waiters[1:]
