"""What a process knows of its store: the states, and what follows on each."""

import pytest
from core_shared_ledger import Shared

from paceline.core.meters import Slots
from paceline.core.queue import Waiter
from paceline.core.quota import NS, Quota, Rule, parse_quotas
from paceline.core.results import StoreFormatError
from paceline.shared.exchange import answer, ask, side_of
from paceline.shared.holdings import Outbox
from paceline.shared.ledger import SharedLedger
from paceline.shared.membership import Membership, State
from paceline.shared.messages import POLL_NS, SHARED_PART, Message, StoreReply
from paceline.shared.meters import of
from shared_pools import shared_pool

START = 1_000 * NS


class Process:
    """A process whose exchanges end as the test says; five seconds pass before each."""

    def __init__(self, mode):
        self.now_ns = START
        self.pool = shared_pool("jobs", parse_quotas("60 requests/min"), START, who="a", on_store_failure=mode)
        self.ledger = SharedLedger()

    def exchange(self, reply=None):
        self.now_ns += 5 * NS
        self.pool.submit(self.now_ns, Waiter({"requests": 1}))
        message = ask(self.pool, self.now_ns, at_once=True)
        answer(self.pool, self.now_ns, self.ledger.apply(self.now_ns, message) if reply is None else reply)

    @property
    def state(self):
        return self.pool.capacity.membership.state


NEWER = StoreFormatError("a newer version")
LIVES = {
    "fail_safe": [(None, State.JOINED), ("away", State.LOST), (None, State.BACK), (None, State.JOINED)],
    "fail_closed": [("away", State.MISSED), (NEWER, State.STOPPED), ("away", State.MISSED), (None, State.JOINED)],
    "fail_open": [("away", State.OPEN), (None, State.BACK), ("away", State.LOST), (NEWER, State.STOPPED),
                  ("away", State.OPEN), ("away", State.OPEN), (None, State.BACK)],
}  # fmt: skip


@pytest.mark.parametrize("mode", LIVES)
def test_the_life_of_a_process(mode):
    process = Process(mode)
    for reply, state in LIVES[mode]:
        process.exchange(reply)
        assert process.state is state


@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_what_follows_on_each_state(state):
    def after(mode, *, final=False):
        membership = Membership(START, mode, "a")
        membership.state = state
        membership.failed(START, "away", final=final)
        return membership.state

    assert after("fail_safe", final=True) is after("fail_open", final=True) is State.STOPPED
    assert after("fail_safe") is (State.LOST if state.known else State.MISSED)
    assert after("fail_open").alone

    membership = Membership(START, "fail_safe", "a")
    membership.state, membership.back_ns = state, START
    membership.replied(START, Message("a", 1), START, StoreReply([], False, 0, -1, 0, 1, 0.5, []))
    assert membership.state is (State.BACK if state.alone else State.JOINED)


def test_what_was_in_flight_when_a_newer_version_stopped_the_process_is_settled():
    process = Process("fail_safe")
    for reply in (None, "away", "away"):
        process.exchange(reply)
    pool, [*_, granted] = process.pool, process.pool.capacity.ledger.open_reservations
    process.exchange(NEWER)
    pool.settle(process.now_ns, granted, {"requests": 1})
    assert granted not in pool.capacity.ledger.open_reservations


def test_a_process_that_a_newer_version_stopped_tries_once_in_a_second():
    process = Process("fail_safe")
    process.exchange()
    pool, [granted] = process.pool, process.pool.capacity.ledger.open_reservations
    process.exchange(NEWER)
    pool.settle(process.now_ns, granted, {"requests": 1})  # news that no store takes
    started_ns = now_ns = process.now_ns
    messages = 0
    while (now_ns := max(now_ns, pool.capacity.exchange_ns)) < started_ns + 10 * NS:
        assert ask(pool, now_ns) is not None
        answer(pool, now_ns, NEWER)
        messages += 1
    assert messages <= 10


def test_an_exchange_that_was_asked_for_too_early_is_planned_again():
    pool = shared_pool("jobs", parse_quotas("60 requests/min"), START, who="a")
    assert ask(pool, START) is None
    assert side_of(pool).exchange_due


def test_many_processes_report_more_rarely_and_count_as_long():
    ledger = SharedLedger()
    for number in range(2_000):
        ledger.apply(START, Message(f"{number}", 1))
    peers = [ledger.apply(START + 20 * NS, Message("late", number)).peers for number in range(1, 11)]
    assert peers[-1] == 2_001 - 20 * NS // (3 * POLL_NS)


def test_every_lesson_that_is_due_is_learned():
    outbox, learned = Outbox(), []
    for lesson in "ab":
        outbox.teach(START, lambda _, lesson=lesson: learned.append(lesson) or True)
    outbox.take(START, 0, None)
    assert (outbox.learn(START), learned) == (True, ["a", "b"])


def test_a_chain_of_forks_while_the_store_is_lost_keeps_the_least_share():
    process = Process("fail_safe")
    for reply in (None, "away"):
        process.exchange(reply)
    for generation in range(20):
        process.pool.capacity.forked(f"child {generation}", process.now_ns)
    assert process.pool.capacity.fallback.share == process.pool.capacity.membership.share == 1e-6


def test_what_was_spent_while_the_store_is_lost_is_told_by_the_parent_alone():
    process = Process("fail_safe")
    for reply in (None, "away", "away"):
        process.exchange(reply)
    capacity = process.pool.capacity
    assert ask(process.pool, process.now_ns, at_once=True) is not None  # on its way at the fork
    assert not capacity.exchange_due
    capacity.forked("child", process.now_ns)
    assert (capacity.exchange_due, capacity.ledger.open_reservations) == (True, [])
    process.exchange()
    assert [standing.spent for standing in process.ledger.apply(process.now_ns, Message("b", 0)).standings] == [1]


@pytest.mark.parametrize(("held", "slots"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_slots_that_were_free_at_the_last_reply_raise_a_process_to_its_share_of_all(held, slots):
    """Others may have taken them since."""
    meter = Slots(Quota("concurrency", 6.0, 0.0, rule=Rule.SLOTS))
    part = of(meter).alone(meter, START, SHARED_PART / 3, held, START, START)
    part.release(START, 0, held)
    assert part.level(START) == slots


class TestSeen:
    """What a look at the ledger tells of its processes."""

    @pytest.fixture
    def shared(self):
        """One has taken the only request, and another waits for the next."""
        shared = Shared("1 requests/min")
        shared.take("a", 1.0)
        shared.ask("b", 1.0, place_s=1.0)
        return shared

    def states(self, shared):
        return {seen.who: (seen.state, seen.ago_s, seen.waits) for seen in shared.ledger.processes(shared.now_ns)}

    def test_who_is_alive_and_who_waits(self, shared):
        shared.wait(0.5)
        shared.tell("c", leaving=True)
        assert self.states(shared) == {"a": ("alive", 0.5, False), "b": ("alive", 0.5, True), "c": ("left", 0.0, False)}
        parts = {seen.who: seen.part for seen in shared.ledger.processes(shared.now_ns)}
        assert parts["a"] > parts["b"] > parts["c"] == 0.0
        assert sum(parts.values()) < 1

    def test_one_that_does_not_report_is_silent_and_one_with_nothing_to_report_is_idle(self, shared):
        shared.wait(20.0)
        shared.tell("c")
        states = {"a": ("idle", 20.0, False), "b": ("silent", 20.0, False), "c": ("alive", 0.0, False)}
        assert self.states(shared) == states

    def test_one_that_is_known_to_have_ended_while_the_store_had_no_messages(self, shared):
        shared.wait(20.0)
        shared.ledger.apply(shared.now_ns, Message("c", 1), ended=lambda who, was_there: who == "b" and not was_there)
        assert self.states(shared)["b"] == ("idle", 20.0, False)

    def test_one_that_is_known_to_have_ended(self, shared):
        shared.wait(4.0)
        shared.ledger.apply(shared.now_ns, Message("c", 1), ended=lambda who, _: who == "b")
        shared.wait(4.0)
        assert self.states(shared)["b"] == ("idle", 8.0, False)
