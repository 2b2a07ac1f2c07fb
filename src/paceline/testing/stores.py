"""A test suite for stores.

Subclass it in a test file for pytest, with two fixtures: ``store``, and ``second``, another object at the same place, as
in another process::

    import pytest
    from paceline.testing import StoreConformance


    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self, tmp_path):
            store = MyStore(tmp_path / "quotas")
            yield store
            store.close()

        @pytest.fixture
        def second(self, tmp_path):
            ...

Two optional fixtures enable further tests: ``opener``, a function without arguments that opens the place in another
process (it is pickled, as ``functools.partial(MyStore, path)`` can be); and ``broken``, a store with an unusable place.
A store within one process has neither.

The time is the store's own and real: quotas refill in hours where a test needs a constant level, and no wait is longer
than some hundredths of a second. Each test uses its own pools, so the place need not be empty. Long timeouts (of ended
processes, of lost places in the queue) are not tested here; :class:`paceline.shared.ledger.SharedLedger` defines them.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

from paceline.core.changes import Change, What
from paceline.core.pause import PROBE_NS
from paceline.core.quota import NS, Quota, Rule, parse_quotas
from paceline.shared.ledger import WAIT_MAX_NS
from paceline.shared.messages import Charged, Refused, Settled
from paceline.stores.base import Store, StoreError
from paceline.testing.processes import FORKS, TIMES, forked, granted_to_two, needs_forks, optional
from paceline.testing.sharing import History, SharingProcess, period, sleep, times_ns, two, without_times

SLOW = "3600 tokens/hour"
"""Refills 1 per second: a test is much shorter than the refill of 10."""

HOUR_NS = 3_600 * NS


class StoreConformance:
    """Subclass it with the fixtures ``store`` and ``second``; see the module's docstring."""

    def test_what_one_takes_is_gone_for_the_other(self, store: Store, second: Store) -> None:
        """Both objects charge the same ledger."""
        a, b = two(store, second, SLOW)
        a.take(3_000.0)
        reply = b.ask(1_000.0)
        assert reply.grants == []
        assert reply.binds == 0
        assert 390 * NS < reply.wait_ns <= 400 * NS
        b.take(600.0)

    def test_it_fits_after_the_wait_of_the_reply(self, store: Store, second: Store) -> None:
        """A request is granted after the wait of the reply."""
        a, b = two(store, second, "1800 tokens/min burst 60")
        a.take(60.0)
        for _ in range(100):  # on a slow machine some may fit by then
            reply = b.ask(14.0)
            if not reply.grants:
                break
        sleep(reply.wait_ns)
        b.take(14.0)

    def test_all_quotas_or_none(self, store: Store, second: Store) -> None:
        """A request that does not fit into one quota charges none."""
        a, b = two(store, second, f"60 requests/hour, {SLOW}")
        a.take(1.0, 3_500.0)
        reply = b.ask(1.0, 500.0)
        assert (reply.grants, reply.binds) == ([], 1)
        assert [standing.charged for standing in reply.standings] == [1, 3_500]

    def test_of_several_requests_the_first_that_fit_are_granted(self, store: Store, second: Store) -> None:
        """In their order, and none after one that must wait."""
        a, _ = two(store, second, SLOW)
        reply = a.send(wants=[[2_000.0], [1_000.0], [1_000.0], [1.0]])
        assert len(reply.grants) == 2
        assert reply.wait_ns > 390 * NS

    def test_a_large_message(self, store: Store, second: Store) -> None:
        """Hundreds of attempts end and hundreds of requests wait."""
        a, b = two(store, second, "1000 requests/hour, 1M tokens/hour")
        reply = a.send(wants=[[1.0, 10.0]] * 500)
        assert len(reply.grants) == 500
        a.send(*(Settled([1.0, 10.0], marks, [1.0, 7.0]) for marks in reply.grants))
        reply = b.send(wants=[[1.0, 10.0]] * 1_000)
        assert 500 <= len(reply.grants) <= 502
        assert reply.standings[1].spent == 500 * 7 + 10 * len(reply.grants)

    def test_a_refund_and_a_debt(self, store: Store, second: Store) -> None:
        """The true cost is charged, for all processes."""
        a, b = two(store, second, SLOW)
        marks = a.take(3_600.0)
        a.send(Settled([3_600.0], marks, [1_600.0]))
        marks = b.take(2_000.0)
        b.send(Settled([2_000.0], marks, [2_500.0]))
        standing = a.standing()
        assert (standing.charged, standing.spent) == (5_600, 4_100)
        assert 4_090 * NS < standing.lack_ns <= 4_100 * NS

    def test_not_sent_and_not_known(self, store: Store, second: Store) -> None:
        """An unsent request costs nothing; a request of unknown cost stays charged."""
        a, _ = two(store, second, SLOW)
        a.send(Settled([3_600.0], a.take(3_600.0), [0.0], answered=False))
        a.send(Settled([3_000.0], a.take(3_000.0), [None]))
        assert a.standing().spent == 3_000

    def test_a_refund_is_worth_what_it_would_have_been_worth(self, store: Store, second: Store) -> None:
        """The bucket was full in the meantime: a lower cost would not have given it more."""
        a, b = two(store, second, SLOW)
        marks = a.take(0.04)
        time.sleep(0.05)
        from_ns = time.monotonic_ns()
        b.take(100.0)
        lack_ns = a.send(Settled([0.04], marks, [0.0])).standings[0].lack_ns
        assert 100 * NS - (time.monotonic_ns() - from_ns) <= lack_ns <= 100 * NS

    def test_spent_without_the_store(self, store: Store, second: Store) -> None:
        """Grants that a process made without the store are charged later."""
        a, b = two(store, second, SLOW)
        a.send(Charged([5_000.0]))
        assert b.standing().spent == 5_000
        assert b.ask(1.0).wait_ns > 1_390 * NS

    def test_numbers_are_exact(self, store: Store, second: Store) -> None:
        """No digit is lost between process and store."""
        a, b = two(store, second, "1b usd/hour")
        charged = 0.0
        for amount in (0.1, 0.2, 1 / 3, 123_456_789.012345, 1e-9):
            a.take(amount)
            charged += amount
        assert b.standing().charged == charged

    def test_a_repeated_message_brings_no_news(self, store: Store, second: Store) -> None:
        """After a lost reply its news counts once; its requests may be granted again."""
        a, b = two(store, second, SLOW)
        message = a.message(Charged([100.0]), wants=[[1_000.0]])
        spent = [store.exchange(a.pool, message).standings[0].spent for _ in range(3)]
        assert spent == [1_100, 2_100, 3_100]
        assert a.send(Charged([100.0]), number=0).standings[0].spent == 3_100  # nor does a late message
        assert b.send(Charged([100.0])).standings[0].spent == 3_200  # each process has its own numbers

    def test_pools_are_apart(self, store: Store, second: Store) -> None:
        """With any name."""
        quotas, base = SLOW, f"conformance/{uuid4().hex}"
        for name in ("", "/gpt-6-luna", "/gpt-6-luna {x}", ":*%\n\"'", "/\u00fc \u2603 \U0001f40c"):
            SharingProcess(store, base + name, quotas).take(3_600.0)
            assert SharingProcess(second, base + name, quotas, "b \u00fc{}:").standing().spent == 3_600

    def test_who_shares(self, store: Store, second: Store) -> None:
        """The reply has the number of processes."""
        a, b = two(store, second, SLOW)
        assert [a.send().peers, b.send().peers, a.send().peers] == [1, 2, 2]

    def test_any_thread_and_both_at_once(self, store: Store, second: Store) -> None:
        """Under contention exactly the quota is granted."""
        a, b = two(store, second, "60 requests/day")
        pool = a.pool

        def ask(number: int) -> int:
            process = SharingProcess((store, second)[number % 2], pool, "60 requests/day", f"p{number}")
            return sum(len(process.ask(1.0).grants) for _ in range(15))

        with ThreadPoolExecutor(6) as threads:
            assert sum(threads.map(ask, range(6))) == 60
        assert b.standing().charged == 60

    def test_closed_it_opens_again(self, store: Store, second: Store) -> None:
        """The ledger outlives a connection while another object uses the place."""
        a, b = two(store, second, SLOW)
        a.take(10.0)
        b.take(10.0)
        store.close()
        store.close()
        assert a.standing().spent == 20

    def test_it_has_a_url(self, store: Store) -> None:
        """The URL, for logs and errors."""
        assert ":" in store.url

    def test_no_overtaking(self, store: Store, second: Store) -> None:
        """A large waiting request is granted before later small ones of another process."""
        a, b = two(store, second, SLOW)
        a.take(3_500.0)
        large = a.ask(1_000.0, place_s=60)
        small = b.ask(50.0, place_s=60)
        assert small.grants == []
        assert small.wait_ns > large.wait_ns
        assert a.ask(1_000.0, place_s=60).wait_ns < small.wait_ns  # it keeps its place
        a.send()  # it no longer waits
        b.take(50.0)

    def test_slots_are_what_all_hold(self, store: Store, second: Store) -> None:
        """Each message has the number of requests that its process has in flight."""
        a, b = two(store, second, "3 concurrency")
        assert len(a.send(wants=[[1.0]] * 2).grants) == 2
        reply = b.send(wants=[[1.0]] * 2)
        assert (len(reply.grants), reply.wait_ns, reply.binds) == (1, WAIT_MAX_NS, 0)
        assert a.send(held=[1.0]).standings[0].used == 2
        b.take(1.0, held=[1.0])

    def test_shares_never_add_up_to_more_than_one(self, store: Store, second: Store) -> None:
        """A share rises when the other process has reported that its own fell."""
        a, b = two(store, second, SLOW)
        told = [a.send().share, b.send().share]
        for process, index in ((a, 0), (b, 1), (a, 0), (b, 1)):
            told.append(process.send(share=told[index]).share)
            told[index] = told[-1]
        for share, expected in zip(told[2:], (7 / 16, 7 / 64, 7 / 16, 7 / 16), strict=True):
            assert abs(share - expected) < 0.02, told  # the share of a silent process wanes
        a.send(leaving=True)
        assert b.send(share=told[1]).share == 7 / 8

    def test_a_cool_down_is_shared(self, store: Store, second: Store) -> None:
        """A refusal pauses all processes; the refused attempt stays charged."""
        a, b = two(store, second, SLOW)
        a.take(10.0)
        a.send(Refused([10.0], 600 * NS))
        reply = b.ask(1.0)
        assert (reply.grants, reply.binds) == ([], -1)
        assert 590 * NS < reply.wait_ns <= 600 * NS
        assert reply.pause_ns == reply.wait_ns
        assert b.send(Refused([0.0], NS)).pause_ns > 590 * NS  # a shorter pause does not end the longer one
        assert (b.learned().refused, reply.standings[0].spent) == (10, 10)

    def test_after_it_one_probe_then_all(self, store: Store, second: Store) -> None:
        """All other requests wait for the answer to the probe."""
        a, b = two(store, second, SLOW)
        sleep(a.send(Refused([0.0], NS // 50)).pause_ns)
        reply = b.send(wants=[[1.0], [1.0]])
        assert (len(reply.grants), reply.probe) == (1, True)
        assert 0 < a.ask(1.0).wait_ns <= PROBE_NS
        b.send(Settled([1.0], reply.grants[0], [None], probe=True))
        assert not a.ask(1.0).probe
        a.take(1.0)

    def test_a_probe_without_an_answer(self, store: Store, second: Store) -> None:
        """If the probe was not sent, another follows; after a newer refusal it does not end the pause."""
        a, b = two(store, second, SLOW)
        sleep(a.send(Refused([0.0], NS // 50)).pause_ns)
        marks = b.take(1.0)
        b.send(Settled([1.0], marks, [0.0], answered=False, probe=True))
        reply = a.ask(1.0)
        assert reply.probe
        b.send(Refused([0.0], 600 * NS))
        assert a.send(Settled([1.0], reply.grants[0], [None], probe=True)).pause_ns > 590 * NS

    def test_two_who_learn_the_same_move_it_once(self, store: Store, second: Store) -> None:
        """A learned value applies only to the version of the quota that the process knew."""
        a, b = two(store, second, SLOW)
        a.send()
        b.send()
        for process in (a, b):
            process.send(Change(0, What.SHIFT, 1_000.0 * NS))
        assert 990 * NS < b.standing().lack_ns <= 1_000 * NS
        assert (b.learned().version, b.learned().shifted_ns) == (1, 1_000 * NS)
        assert a.send().standings[0].learned is None  # it knows

    def test_every_lesson_is_shared(self, store: Store, second: Store) -> None:
        """Also with processes that start later."""
        a, b = two(store, second, f"{SLOW}, 100 requests/hour, 9 concurrency")
        a.send()
        a.send(
            Change(0, What.CAP_BURST, 500.0),
            Change(0, What.SET_CEILING, 0.5),
            Change(0, What.EPOCH),
            Change(1, What.ADOPT, 200.0),
        )
        a.send(Change(1, What.SPREAD), Change(2, What.ADOPT, 3.0))
        tokens, requests, slots = (b.learned(i) for i in range(3))
        assert (tokens.burst_cap, tokens.ceiling, tokens.epoch, tokens.spread) == (500, 0.5, 1, False)
        assert (requests.quota.amount, requests.spread, requests.burst_cap) == (200, True, float("inf"))
        assert slots.quota == Quota("concurrency", 3, 0.0, rule=Rule.SLOTS)

    def test_quotas_that_a_process_does_not_know_come_last(self, store: Store, second: Store) -> None:
        """With their state and all their learned values."""
        a, b = two(store, second, f"60 requests/hour, {SLOW}")
        a.take(1.0, 100.0)
        b.quotas, b.versions = b.quotas[1:], [-1]
        tokens, requests = b.send().standings
        assert (tokens.charged, requests.charged) == (100, 1)
        assert requests.learned is not None
        assert requests.learned.quota == a.quotas[0]
        assert b.ask(3_600.0).binds == 0

    def test_what_was_forgotten_is_recalled(self, store: Store, second: Store) -> None:
        """By the first process that returns to a place without a ledger; not by the next one."""
        a, b = two(store, second, f"{SLOW}, 100 tokens/{period()} window utc")
        a.send(recalled=[[1_000.0], [30.0]])
        tokens, window = b.send(recalled=[[9_000.0], [90.0]]).standings
        assert 990 * NS < tokens.lack_ns <= 1_000 * NS
        assert window.used == 30

    def test_a_newcomers_configuration_replaces_and_keeps_what_is_used(self, store: Store, second: Store) -> None:
        """Only by the first message of a process."""
        a, b = two(store, second, SLOW)
        a.take(100.0, fresh=True)
        b.quotas = parse_quotas("7200 tokens/hour")
        for version, amount in ((0, 3_600), (1, 7_200)):
            assert 90 * NS < b.send(fresh=version == 1).standings[0].lack_ns <= 100 * NS
            assert (b.learned().version, b.learned().epoch, b.learned().quota.amount) == (version, version, amount)

    def test_a_bucket_that_opens_opens_for_all(self, store: Store, second: Store) -> None:
        """By the answers to all processes."""
        a, b = two(store, second, "3000 tokens/10min", gentle=True)
        reply = a.send(wants=[[20.0]] * 9)
        assert (len(reply.grants), reply.standings[0].opened) == (5, 100)
        a.send(*(Settled([20.0], marks, [None]) for marks in reply.grants))
        assert b.standing().opened == 200
        b.take(100.0)

    def test_windows_that_restart_at_known_instants(self, store: Store, second: Store) -> None:
        """Periods counted from midnight UTC, and days of a time zone; none of them ends during the test."""
        hours = {zone: datetime.now(UTC).astimezone(ZoneInfo(zone)).hour for zone in ("Asia/Tokyo", "Europe/Berlin")}
        zone = next(zone for zone, hour in hours.items() if 2 <= hour <= 21)
        for text in (f"100 tokens/{period()} window utc", f"100 tokens/day window {zone}"):
            a, b = two(store, second, text)
            assert len(a.send(wants=[[10.0]] * 7).grants) == 7
            reply = b.send(wants=[[10.0]] * 7)
            assert (len(reply.grants), reply.standings[0].used) == (3, 100)
            assert HOUR_NS < reply.wait_ns < 25 * HOUR_NS

    def test_windows_go_by_the_wall_clock(self, store: Store, second: Store) -> None:
        """In nanoseconds since 1970: a clock with another epoch would restart them at another time."""
        length = period()
        a, b = two(store, second, f"100 tokens/{length} window utc")
        a.take(100.0)
        wait_ns = b.ask(1.0).wait_ns
        length_ns = int(length.removesuffix("s")) * NS
        assert abs(wait_ns - (length_ns - time.time_ns() % length_ns)) < 60 * NS

    def test_a_quota_that_is_spread(self, store: Store, second: Store) -> None:
        """A small burst, then an even rate; never more than the amount in any period."""
        a, b = two(store, second, "3600 tokens/hour sliding")
        assert 110 <= len(a.send(wants=[[1.0]] * 500).grants) <= 125
        assert b.ask(3_600.0).wait_ns > 3_590 * NS
        assert b.standing().used == a.standing().charged

    def test_histories_are_answered_as_by_the_ledger(self, store: Store, second: Store) -> None:
        """As by the model, except for the time between the two."""
        for seed in range(20):
            history = History((store, second), seed)
            for _ in range(25):
                reply, model = history.step()
                assert without_times(reply) == without_times(model), f"history {seed}"
                for got_ns, model_ns in zip(times_ns(reply), times_ns(model), strict=True):
                    assert abs(got_ns - model_ns) < 10 * NS, f"history {seed}"

    def test_a_forked_child_is_another_process(self, store: Store) -> None:
        """After ``after_fork`` it waits for no lock of the parent, and parent and child receive their own replies only."""
        needs_forks()
        pool = f"conformance/{uuid4().hex}"
        granted, *codes = forked(store, pool, "1M requests/day")
        assert codes == [0] * FORKS, "a child has failed or hangs: see its output on standard error"
        charged = SharingProcess(store, pool, "1M requests/day").standing().charged
        assert charged in (granted, granted + FORKS * TIMES)  # the first: each process has its own in-process ledger

    def test_two_processes_share(self, request: Any) -> None:
        """Exactly the quota is granted. With the fixture ``opener``."""
        opener = optional(request, "opener")
        assert sum(granted_to_two(opener, f"conformance/{uuid4().hex}", "80 requests/day")) == 80

    def test_a_failure_is_a_store_error(self, request: Any) -> None:
        """No other exception is raised, at any call. With the fixture ``broken``."""
        broken = optional(request, "broken")
        for _ in range(2):
            assert _fails(broken, f"conformance/{uuid4().hex}"), "no StoreError was raised, or its message is empty"

    def test_a_name_that_cannot_be_written_is_a_store_error(self, store: Store) -> None:
        """If it cannot be written; other pools still work."""
        _fails(store, f"conformance/{uuid4().hex}\ud800")
        SharingProcess(store, f"conformance/{uuid4().hex}", SLOW).take(1.0)


def _fails(store: Store, pool: str) -> bool:
    try:
        SharingProcess(store, pool, SLOW).take(1.0)
    except StoreError as error:
        return bool(str(error))
    return False
