"""Configured and learned quotas: the same for all processes, and each change applied once."""

from __future__ import annotations

import math

import pytest
from core_shared_ledger import Member, Shared, reloaded, wait_s

from paceline.core.changes import Change
from paceline.core.meters import FULL_WAIT_NS
from paceline.core.queue import LaneSpec, Waiter
from paceline.core.quota import NS, Quota, Rule, parse_quotas
from paceline.core.results import Expired, WaitUntil
from paceline.shared.exchange import RENEW_NS, answer, ask
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import REJOIN_NS, Charged, Settled
from paceline.shared.peers import LEFT_US


@pytest.fixture
def pool():
    return Shared("60 tokens/min")


class TestConfiguration:
    @pytest.mark.parametrize(
        ("before", "after", "used"),
        [
            ("100 tokens/min", "200 tokens/min", 40.0),
            ("100 tokens/day window utc", "60 tokens/day window utc", 40.0),
            ("100 tokens/min sliding", "80 tokens/min sliding", 40.0),
            ("100 tokens/min window", "80 tokens/min window", 40.0),
            ("100 tokens slots", "60 tokens slots", 40.0),
        ],
    )
    def test_a_newcomers_replaces_it_and_what_is_used_stays_used(self, before, after, used):
        pool = Shared(before)
        pool.wait(6 * 3_600)
        pool.take("a", used)
        standing = pool.standing()
        now = pool.tell("b", quotas=parse_quotas(after), fresh=True).standings[0]
        assert (now.lack_ns, now.used, now.spent) == (standing.lack_ns, standing.used, used)
        assert (now.learned.version, now.learned.quota, now.learned.epoch) == (1, parse_quotas(after)[0], 1)
        assert pool.tell("a", held=[used]).standings[0].used == standing.used

    def test_the_log_of_a_spread_quota_goes_with_it(self):
        pool = Shared("100 tokens/min sliding")
        pool.take("a", 100)
        pool.tell("b", quotas=parse_quotas("90 tokens/min sliding"), fresh=True)
        pool.wait(59)
        assert pool.ask("a", 1).wait_ns

    def test_a_refund_stays_guarded(self, pool):
        marks = pool.take("a", 10)
        pool.wait(3_600)  # full again: what it was charged has long come back
        pool.take("a", 50)
        pool.tell("b", quotas=parse_quotas("60 tokens/min burst 50"), fresh=True)
        assert pool.tell("a", Settled([10.0], marks, [0.0])).standings[0].lack_ns == 50 * NS

    def test_one_that_opens_gently_refills_evenly_from_what_is_used(self):
        pool = Shared("120 tokens/min")
        pool.take("a", 100)
        reply = pool.tell("b", quotas=parse_quotas("240 tokens/min"), fresh=True, gentle=True)
        assert reply.standings[0].opened == 200
        assert pool.ask("b", 1).wait_ns == NS // 4

    def test_it_takes_as_long_to_be_full_at_its_whole_rate(self):
        """A ceiling that refusals have taught does not stay: what is used refills at the new rate."""
        pool = Shared("100 tokens/min")
        pool.tell("a", Change(0, "set_ceiling", 0.05))
        marks = pool.take("a", 40)
        pool.take("a", 20)
        assert pool.standing().lack_ns == 20 * 36 * NS
        assert pool.tell("b", quotas=parse_quotas("200 tokens/min"), fresh=True).standings[0].lack_ns == 36 * NS
        assert pool.tell("a", Settled([40.0], marks, [0.0])).standings[0].lack_ns == 24 * NS

    def test_it_is_a_newcomers_word_only(self):
        pool = Shared("100 tokens/min")
        pool.tell("a", fresh=True)
        reply = pool.tell("b", quotas=parse_quotas("200 tokens/min"), versions=[-1])
        assert reply.standings[0].learned.quota.amount == 100

    def test_the_same_again_changes_nothing(self):
        pool = Shared("100 tokens/min")
        pool.tell("a", Change(0, "set_ceiling", 0.5), fresh=True)
        for who in "bc":
            assert pool.tell(who, versions=[-1], fresh=True).standings[0].learned.ceiling == 0.5
        assert pool.tell("d", versions=[1]).standings[0].learned is None

    def test_quotas_of_another_process_come_last(self):
        pool = Shared("60 requests/min, 600 tokens/min")
        pool.take("a", 1, 100)
        tokens, requests = pool.tell("b", quotas=(Quota("tokens", 600),)).standings
        assert (tokens.lack_ns, tokens.learned) == (10 * NS, None)
        assert (requests.lack_ns, requests.learned.quota) == (NS, Quota("requests", 60))


class TestLessons:
    def learned(self, text: str, *lessons: tuple):
        pool = Shared(text)
        pool.tell("a", *(Change(0, what, value) for what, value in lessons))
        return pool.standing().learned

    def test_two_who_learn_the_same_move_it_once(self, pool):
        pool.tell("z")
        for who in "ab":
            reply = pool.tell(who, Change(0, "shift", 5.0 * NS), versions=[0])
        assert reply.standings[0].lack_ns == 5 * NS - FULL_WAIT_NS
        assert (reply.standings[0].learned.version, reply.standings[0].learned.shifted_ns) == (1, 5 * NS)
        pool.tell("b", Change(0, "shift", 1.0 * NS), versions=[1])
        assert pool.standing().learned.shifted_ns == 6 * NS

    def test_all_lessons_of_one_message_count(self):
        lessons = ("shift", 2.0 * NS), ("cap_burst", 20.0), ("set_ceiling", 0.5), ("epoch", 0.0)
        learned = self.learned("60 tokens/min", *lessons)
        assert (learned.shifted_ns, learned.burst_cap, learned.ceiling, learned.epoch) == (2 * NS, 20, 0.5, 1)
        assert learned.version == 4

    def test_an_adopted_amount(self):
        learned = self.learned("60 tokens/min", ("set_ceiling", 0.5), ("adopt", 120.0))
        assert (learned.quota, learned.ceiling) == (Quota("tokens", 120), 1)
        for text in ("60 tokens/min sliding", "60 tokens/day window utc", "60 concurrency"):
            assert self.learned(text, ("adopt", 120.0)).quota.amount == 120

    def test_what_a_window_has_left(self):
        pool = Shared("60 tokens/day window utc")
        pool.wait(6 * 3_600)
        assert pool.tell("a", Change(0, "seen", 10.0)).standings[0].used == 50
        assert wait_s(pool.ask("b", 11)) > 3_600
        assert pool.take("b", 10)

    def test_a_bucket_that_must_be_spread(self, pool):
        pool.take("a", 30)
        reply = pool.tell("a", Change(0, "spread"))
        assert reply.standings[0].learned.spread
        assert reply.standings[0].lack_ns == 30 * NS
        assert wait_s(pool.ask("b", 5)) >= 28
        pool.tell("a", Change(0, "spread"), versions=[1])  # again: it is one already
        assert pool.standing().lack_ns == 30 * NS

    def test_a_rule_that_has_no_such_thing_is_left_as_it_was(self):
        for what in ("shift", "cap_burst", "set_ceiling", "spread"):
            pool = Shared("9 concurrency, 60 tokens/day window utc")
            pool.tell("a", Change(0, what, 5.0), Change(1, what, 5.0))
            assert pool.standing(0).learned.quota == pool.quotas[0]
            assert pool.standing(1).learned.quota.rule is Rule.WINDOW
        pool = Shared("9 requests/min")
        pool.tell("a", Change(0, "seen", 3.0))
        assert pool.standing().lack_ns == 0

    def test_nothing_learned_is_infinite_and_whole(self):
        learned = self.learned("60 tokens/min")
        assert (learned.burst_cap, learned.ceiling, learned.shifted_ns, learned.refused) == (math.inf, 1, 0, 0)
        assert not learned.spread


class TestLostLedger:
    def pool(self, **options) -> Shared:
        pool = Shared("60 tokens/min, 90 images/day window utc, 60 pages/min sliding, 5 concurrency", **options)
        pool.tell("a", recalled=[[20.0], [30.0], [40.0], [3.0]])
        return pool

    def test_they_start_where_a_process_remembers(self):
        tokens, images, pages, slots = self.pool().tell("b").standings
        assert (tokens.lack_ns, images.used, pages.used, slots.used) == (20 * NS, 30, 40, 0)
        assert [s.charged for s in (tokens, images, pages)] == [0, 0, 0]

    def test_a_process_that_comes_later_restores_what_the_first_one_did_not_know(self):
        pool = Shared("90 images/day window utc")
        pool.numbers.update("abc")
        pool.tell("a", recalled=[[30.0]])
        pool.tell("b", recalled=[[50.0]])
        assert pool.tell("d", recalled=[[80.0]]).standings[0].used == 50  # its first message: it has met no ledger
        pool.wait(LEFT_US / 1e6)
        assert pool.tell("c", recalled=[[80.0]]).standings[0].used == 50  # maybe forgotten, and its memory is old

    def test_a_process_remembers_it_at_its_whole_rate(self):
        member = Member("60 tokens/min", gentle=False)
        member.take(30)
        member.other_process_says("set_ceiling", 0.05)
        member.exchange_soon()
        member.take(1)
        member.ledger = SharedLedger()
        member.take(1)
        assert 28 < member.ledger._accounts[0].meter.lack(member.now_ns) <= 32

    @pytest.mark.parametrize("text", ["60 tokens/min", "62 tokens/min sliding"])
    def test_its_share_goes_at_the_learned_rate(self, text):
        member = Member(text, gentle=False)
        member.take(1)
        member.other_process_says("set_ceiling", 0.5)
        member.take(1)
        assert ask(member.pool, member.now_ns, at_once=True) is not None
        assert answer(member.pool, member.now_ns, "gone") == []
        assert (member.pool.capacity.membership.state.alone, member.meter.ceiling) == (True, 0.5)

    def test_what_is_recalled_is_used(self):
        pool = self.pool()
        pool.wait(3)
        assert pool.ask("b", 44, 0, 0).binds == 0
        assert pool.ask("b", 0, 61, 0).binds == 1
        assert pool.ask("b", 0, 0, 21).binds == 2
        assert pool.take("b", 43, 60, 1)

    def test_slots_are_free_again_when_those_that_hold_them_have_reported(self):
        pool = Shared("5 concurrency")
        pool.tell("a", recalled=[[4.0]])
        reply = pool.ask("a", 1)
        assert reply.wait_ns == REJOIN_NS
        pool.wait(RENEW_NS / NS)  # by then a process has reported that waits for nothing
        pool.tell("b", held=[4.0])
        pool.wait((reply.wait_ns - RENEW_NS) / NS)
        assert pool.take("a", 1)
        assert pool.ask("c", 1).binds == 0


class TestEarlierLedger:
    """The ledger that a crashed server comes back with, or a replica that takes over."""

    TEXT = "60 tokens/min, 90 images/day window utc, 60 pages/min sliding, 5 concurrency"

    def pool(self) -> Shared:
        pool = Shared(self.TEXT)
        pool.tell("a", Charged([10.0, 10.0, 10.0, 0.0]))
        pool.tell("b", Charged([1.0, 1.0, 1.0, 0.0]))
        earlier = reloaded(pool.ledger)
        for _ in range(2):
            pool.tell("a", Charged([10.0, 10.0, 10.0, 0.0]))
        pool.ledger = earlier
        return pool

    @staticmethod
    def used(pool: Shared) -> list[float]:
        tokens, images, pages, _ = pool.tell("observer").standings
        return [tokens.lack_ns / NS, images.used, pages.used]

    def test_a_process_restores_what_it_remembers_once(self):
        pool = self.pool()
        pool.tell("a", recalled=[[31.0], [31.0], [31.0], [2.0]])
        assert self.used(pool) == [31, 31, 31]
        pool.tell("a", recalled=[[40.0], [40.0], [40.0], [2.0]])
        assert self.used(pool) == [31, 31, 31]

    def test_the_processes_together_restore_the_most_that_one_remembers(self):
        pool = self.pool()
        pool.numbers["b"] += 2
        for who, amount in (("a", 31.0), ("b", 26.0)):
            pool.tell(who, recalled=[[amount], [amount], [amount], [0.0]])
        assert self.used(pool) == [31, 31, 31]

    def test_one_whose_messages_it_has_restores_nothing(self):
        pool = self.pool()
        pool.tell("b", recalled=[[40.0], [40.0], [40.0], [2.0]])
        assert self.used(pool) == [11, 11, 11]


class TestClockSetBack:
    def test_a_window_does_not_start_again(self):
        pool = Shared("60 tokens/day window utc")
        pool.wait(20 * 3_600)
        pool.take("a", 60)
        pool.wait(-21 * 3_600)
        assert pool.ask("b", 1).wait_ns

    def test_many_small_steps_back_gain_nothing(self, pool):
        pool.tell("a", Charged([60.0]))
        for _ in range(1_000):
            pool.wait(-0.001)
            pool.tell("a")
        assert wait_s(pool.ask("a", 1)) == 1


class TestDeadlines:
    def test_one_that_cannot_be_met_ends_with_the_reply(self):
        """What the process knew had grown old, so that the request joined the queue."""
        member = Member("60 tokens/hour")
        member.take(60)
        member.wait(10)
        late, patient = (
            Waiter({"tokens": 1}, LaneSpec("default"), member.now_ns + round(wait_s * NS)) for wait_s in (5, 3_600)
        )
        for waiter in (late, patient):
            assert isinstance(member.pool.submit(member.now_ns, waiter), WaitUntil)
        member.exchange()
        assert isinstance(late.outcome, Expired)
        assert 50 <= (late.outcome.at_ns - member.now_ns) / NS <= 52
        assert (patient.outcome, member.pool.queue.length) == (None, 1)

    def test_it_gives_up_its_place(self):
        """Else the requests of other processes would wait behind it, until the place is forgotten."""
        member = Member("60 tokens/hour")
        member.take(60)
        member.wait(10)
        member.pool.submit(member.now_ns, Waiter({"tokens": 1}, LaneSpec("default"), member.now_ns + NS))
        member.exchange()
        assert [len(member.ledger._peers.places.dump()), member.pool.queue.length] == [1, 0]
        member.wait(0.2)
        message = ask(member.pool, member.now_ns)  # it is due by itself
        assert message is not None
        member.ledger.apply(member.now_ns, message)
        assert not member.ledger._peers.places.dump()
