"""The shared ledger of a pool: grants and waits of several processes, and processes that end."""

from __future__ import annotations

import math

import pytest
from core_shared_ledger import Shared, wait_s

from paceline.core.pause import PROBE_NS
from paceline.core.quota import NS
from paceline.shared.ledger import GRACE_NS, WAIT_MAX_NS
from paceline.shared.messages import Charged, Refused, Settled
from paceline.shared.peers import BILLION, FORGET_US, LEASE_US, LEFT_US

FORGET_NS, LEASE_NS = FORGET_US * 1_000, LEASE_US * 1_000


@pytest.fixture
def pool():
    return Shared("60 tokens/min")


class TestGrants:
    def test_what_one_process_takes_is_gone_for_the_others(self):
        pool = Shared("10 requests/min")
        reply = pool.tell("a", wants=[[1.0]] * 12)
        assert (len(reply.grants), wait_s(reply), reply.binds) == (10, 6.0, 0)
        assert wait_s(pool.ask("b", 1)) == 6.0
        pool.wait(6)
        assert pool.take("b", 1)
        assert wait_s(pool.ask("a", 1)) == 6.0

    def test_of_several_requests_the_first_that_does_not_fit_stops_the_others(self):
        reply = Shared("100 tokens/min").tell("a", wants=[[60.0], [60.0], [1.0]])
        assert (len(reply.grants), wait_s(reply)) == (1, 12.0)

    def test_a_refund_of_one_is_there_for_the_others(self):
        pool = Shared("100 tokens/min")
        marks = pool.take("a", 100)
        pool.tell("a", Settled([100.0], marks, [40.0]))
        assert pool.take("b", 60)
        assert (pool.standing().spent, pool.standing().charged) == (100, 160)

    def test_a_settle_without_a_cost_leaves_the_charge(self, pool):
        marks = pool.take("a", 60)
        assert pool.tell("a", Settled([60.0], marks, [None])).standings[0].spent == 60

    @pytest.mark.parametrize("set_s", [0, 3_600])
    def test_what_was_not_charged_and_is_used_leaves_less_of_a_period(self, set_s):
        pool = Shared("10 requests/min, 62 tokens/min sliding")
        marks = pool.take("a", 1, 0)
        pool.ledger.clock_was_set(set_s * NS)
        pool.wait(set_s)
        pool.tell("a", Settled([1.0, 0.0], marks, [1.0, 40.0]))
        assert pool.standing(1).used == 40

    def test_what_binds_is_named_by_its_place_in_the_message(self):
        pool = Shared("60 requests/min, 60 tokens/min")
        pool.take("a", 1, 60)
        reply = pool.ask("b", 1, quotas=pool.quotas[1:])
        assert (reply.wait_ns, reply.binds) == (NS, 0)

    def test_slack_is_kept_unused(self, pool):
        assert len(pool.tell("a", wants=[[1.0]] * 100, slack_s=10.0).grants) == 50
        assert pool.take("b", 10)

    def test_one_that_opens_gently_opens_for_all(self):
        pool = Shared("600 requests/min", gentle=True)
        reply = pool.tell("a", wants=[[1.0]] * 30)
        assert (len(reply.grants), reply.standings[0].opened) == (20, 20)
        pool.tell("a", *(Settled([1.0], marks, [None]) for marks in reply.grants))
        assert len(pool.tell("b", wants=[[1.0]] * 30).grants) == 20

    def test_peers_are_those_heard_of_lately(self, pool):
        assert [pool.tell(who).peers for who in "abb"] == [1, 2, 2]
        pool.now_ns += LEASE_NS
        assert pool.tell("b").peers == 2
        pool.now_ns += 1_000
        assert pool.tell("b").peers == 1


class TestPlaces:
    @pytest.fixture
    def pool(self) -> Shared:
        """One token comes back a second, and none is there."""
        pool = Shared("60 tokens/min")
        pool.take("z", 60)
        return pool

    def test_a_large_request_goes_before_later_small_ones(self, pool):
        assert wait_s(pool.ask("a", 30, place_s=60)) == 30
        assert wait_s(pool.ask("b", 1, place_s=60)) == 31
        pool.wait(29)
        assert wait_s(pool.ask("b", 1, place_s=60)) == 2  # 29 are there, and they are not for b
        pool.wait(1)
        assert wait_s(pool.ask("b", 1, place_s=60)) == 1
        pool.take("a", 30)
        assert wait_s(pool.ask("b", 1, place_s=60)) == 1

    def test_who_came_first_stays_first(self, pool):
        waits = [wait_s(pool.ask(who, 10, place_s=60)) for who in "abc"]
        assert waits == [10, 20, 30]
        pool.wait(5)
        for _ in range(2):
            assert [wait_s(pool.ask(who, 10, place_s=60)) for who in "acb"] == [5, 25, 15]

    def test_those_whose_turn_it_is_go_in_any_order(self, pool):
        pool.ask("a", 1.5, place_s=60)
        pool.ask("b", 1.5, place_s=60)
        pool.wait(3)
        assert pool.take("b", 1.5)
        assert pool.take("a", 1.5)

    def test_after_a_grant_the_next_is_behind_all(self, pool):
        pool.tell("a", wants=[[10.0], [10.0]], place_s=60)
        pool.ask("b", 10, place_s=60)
        pool.wait(10)
        reply = pool.tell("a", wants=[[10.0], [10.0]], place_s=60)
        assert (len(reply.grants), wait_s(reply)) == (1, 20)
        assert wait_s(pool.ask("b", 10, place_s=60)) == 10

    def test_a_process_alone_takes_all_that_fits(self, pool):
        pool.tell("a", wants=[[10.0]] * 3, place_s=60)
        pool.wait(30)
        assert len(pool.tell("a", wants=[[10.0]] * 3, place_s=60).grants) == 3

    def test_who_does_not_come_back_loses_it(self, pool):
        pool.ask("a", 60, place_s=5)
        pool.wait(5)
        pool.now_ns += GRACE_NS
        assert wait_s(pool.ask("b", 1)) == 54  # the very last moment
        pool.now_ns += 1_000
        assert pool.take("b", 1)
        assert pool.ask("a", 60, place_s=5).wait_ns

    def test_who_waits_for_a_second_loses_it_soon(self):
        """Of a small burst nothing else fits beside it, and its process may have been killed."""
        pool = Shared("60 requests/min burst 1")
        pool.take("z", 1)
        assert wait_s(pool.ask("a", 1, place_s=5)) == 1
        pool.wait(1)
        pool.now_ns += GRACE_NS
        assert pool.ask("b", 1).wait_ns
        pool.now_ns += 1_000
        assert pool.take("b", 1)

    def test_who_has_nothing_to_wait_for_gives_it_up(self, pool):
        pool.ask("a", 30, place_s=60)
        pool.wait(1)
        assert pool.ask("b", 1).wait_ns
        pool.tell("a")
        assert pool.take("b", 1)

    def test_a_place_counts_in_the_quotas_that_it_needs(self):
        pool = Shared("60 requests/min, 60 tokens/min")
        pool.take("z", 0, 60)
        pool.ask("a", 20, 30, place_s=60)
        assert len(pool.tell("b", wants=[[10.0, 0.0]] * 9, place_s=60).grants) == 4  # 20 of 60 are a's

    def test_none_outlasts_a_clock_that_is_set_back(self, pool):
        pool.ask("a", 60, place_s=5)
        pool.wait(-3_600)
        assert pool.ask("b", 1).wait_ns
        pool.wait(4)
        assert pool.ask("b", 1).wait_ns
        pool.wait(3.1)
        assert pool.take("b", 1)


class TestSlots:
    def test_who_is_gone_holds_none(self):
        pool = Shared("2 concurrency")
        pool.take("a", 2)
        pool.now_ns += LEASE_NS
        assert pool.ask("b", 1).wait_ns == WAIT_MAX_NS
        pool.now_ns += 1_000
        assert pool.take("b", 1)

    def test_who_comes_back_holds_what_it_says(self):
        pool = Shared("2 concurrency")
        pool.take("a", 2)
        pool.now_ns += LEASE_NS + 1_000
        pool.take("b", 1)
        assert pool.tell("a", held=[2.0]).standings[0].used == 3
        assert pool.ask("b", 1, held=[0.0]).wait_ns
        pool.tell("a", held=[1.0])
        assert pool.take("b", 1, held=[0.0])

    def test_a_message_keeps_them(self):
        pool = Shared("1 concurrency")
        pool.take("a", 1)
        for _ in range(10):
            pool.now_ns += LEASE_NS
            pool.tell("a", held=[1.0])
        pool.now_ns += LEASE_NS
        assert pool.ask("b", 1).wait_ns

    def test_places_hold_for_them_too(self):
        pool = Shared("2 concurrency")
        pool.take("z", 2)
        pool.ask("a", 2, place_s=60)
        pool.tell("z", held=[1.0])
        assert pool.ask("b", 1, place_s=60).wait_ns
        pool.tell("z")
        assert pool.take("a", 2)


class TestCoolDown:
    @pytest.fixture
    def pool(self) -> Shared:
        """Process ``a`` was refused, and all pause for 10 s."""
        pool = Shared("60 requests/min")
        pool.take("a", 1)
        pool.tell("a", Refused([1.0], 10 * NS))
        return pool

    def test_it_is_everybodys(self, pool):
        reply = pool.ask("b", 1)
        assert (wait_s(reply), reply.pause_ns, reply.binds) == (10, 10 * NS, -1)

    def test_one_probe_goes_then_all(self, pool):
        pool.wait(10)
        reply = pool.tell("b", wants=[[1.0], [1.0]])
        assert (len(reply.grants), reply.probe, reply.wait_ns, reply.binds) == (1, True, PROBE_NS, -1)
        assert pool.ask("a", 1).wait_ns == PROBE_NS
        pool.wait(1)
        reply = pool.tell("b", Settled([1.0], reply.grants[0], [None], probe=True), wants=[[1.0]])
        assert (len(reply.grants), reply.probe, reply.pause_ns) == (1, False, 0)
        assert pool.take("a", 1)

    def test_a_probe_that_was_never_sent_lets_another_go(self, pool):
        pool.wait(10)
        marks = pool.take("b", 1)
        pool.tell("b", Settled([1.0], marks, [0.0], answered=False, probe=True))
        assert pool.ask("a", 1).probe
        assert pool.ask("b", 1).wait_ns == PROBE_NS

    def test_somebody_elses_answer_ends_nothing(self, pool):
        pool.wait(10)
        assert pool.ask("b", 1).probe
        pool.tell("a", Settled([1.0], [0], [None], probe=True))
        assert pool.ask("a", 1).wait_ns == PROBE_NS

    def test_without_news_of_the_probe_the_others_go_soon(self, pool):
        pool.wait(10)
        assert pool.ask("b", 1).probe
        pool.now_ns += PROBE_NS
        assert not pool.ask("a", 1).probe

    def test_an_old_probe_ends_no_new_one(self, pool):
        pool.wait(10)
        marks = pool.take("b", 1)
        pool.tell("a", Refused([1.0], 20 * NS))  # sent before the probe
        assert pool.tell("b", Settled([1.0], marks, [None], probe=True)).pause_ns == 20 * NS


class TestMessagesToldAgain:
    def test_their_news_counts_once(self, pool):
        for _ in range(3):
            assert pool.tell("a", Charged([5.0]), number=7).standings[0].spent == 5
        assert pool.tell("a", Charged([5.0]), number=6).standings[0].spent == 5
        assert pool.tell("a", Charged([5.0]), number=8).standings[0].spent == 10

    def test_what_they_want_is_granted_again(self, pool):
        for left in (30, 0):
            reply = pool.ask("a", 30, number=1)
            assert reply.grants
            assert reply.standings[0].lack_ns == (60 - left) * NS

    @pytest.mark.parametrize(("gone_ns", "spent"), [(FORGET_NS, 5), (FORGET_NS + 1_000, 10)])
    def test_a_number_is_remembered_for_an_hour(self, pool, gone_ns, spent):
        pool.tell("a", Charged([5.0]), number=7)
        pool.now_ns += gone_ns
        assert pool.tell("a", Charged([5.0]), number=7).standings[0].spent == spent

    def test_one_that_has_left_is_remembered_for_ten_minutes(self, pool):
        for who, number in (("p0", 7), ("p0", 7), ("p1", 1), ("p0", 7)):
            pool.tell(who, Charged([5.0]), number=number, leaving=True)
            pool.now_ns += LEFT_US * 1_000 // 4
        assert pool.standing().spent == 10
        pool.now_ns += LEFT_US * 1_000
        assert pool.tell("p2").standings[0].spent == 10
        assert list(pool.ledger.dump()["peers"]["peers"]) == ["observer", "p2"]


def share_of(pool, who):
    return pool.ledger.dump()["peers"]["peers"][who][2] / BILLION


class TestVanished:
    """A process that waited, and did not ask again: it may have lost the store and spend its share."""

    def vanished(self, **options):
        pool = Shared("60 tokens/min")
        pool.tell("b")
        pool.take("a", 60, **options)
        pool.ask("a", 10, place_s=5, **options)  # "a" has 7/8, "b" the rest
        for _ in range(10):
            pool.wait(2)
            pool.tell("b")
        return pool

    def test_its_share_is_charged_until_it_returns(self):
        pool = self.vanished()
        share = share_of(pool, "a")
        assert 0 < share < 1
        lack_s = pool.standing().lack_ns / NS
        assert lack_s == pytest.approx(60 - 20 + share * 13, abs=0.01)  # it was expected after 7 s

    def test_it_is_expected_when_its_wait_is_over(self, pool):
        pool.take("a", 60)
        pool.ask("a", 1, place_s=5)  # waits for a second
        pool.wait(5)
        assert pool.standing().lack_ns / NS == pytest.approx(60 - 5 + share_of(pool, "a") * 2, abs=0.01)

    @pytest.mark.parametrize("reports", [True, False])
    def test_after_an_outage_its_report_is_awaited_and_not_for_long(self, pool, reports):
        pool.ask("a", 60, place_s=5)
        pool.ask("a", 1, place_s=5)
        pool.wait(20)  # no message of any process
        reply = pool.ask("new", 1)
        assert (wait_s(reply), reply.pause_ns / NS) == (2.5, 2.5)
        pool.wait(0.5)
        assert wait_s(pool.ask("new", 1)) == 2
        pool.tell("a", Charged([15.0]), alone=True) if reports else pool.wait(2)
        assert pool.take("new", 1)

    def test_after_an_outage_one_that_has_left_is_not_awaited(self, pool):
        pool.ask("a", 60, place_s=5)
        pool.ask("a", 10, place_s=5, leaving=True)
        pool.wait(20)
        assert pool.take("new", 1)

    def test_who_asks_seldom_waits_once_for_one_that_has_ended(self, pool):
        pool.ask("a", 60, place_s=5)
        pool.ask("a", 1, place_s=5)  # and is killed
        waits = []
        for _ in range(5):
            pool.wait(10)
            waits.append(wait_s(pool.ask("b", 1)))
        assert waits == [2.5, 0, 0, 0, 0]

    def test_what_a_late_one_may_have_spent_comes_back_but_once(self):
        pool = self.vanished()
        for _ in range(3):
            pool.tell("a")
            pool.tell("a", wants=[[100.0]])
        assert pool.standing().lack_ns / NS == pytest.approx(40, abs=0.01)

    def test_of_one_that_was_alone_nothing_comes_back(self):
        pool = self.vanished()
        lack_ns = pool.standing().lack_ns
        pool.tell("a", alone=True)
        pool.tell("a")
        pool.tell("a", wants=[[100.0]])
        assert pool.standing().lack_ns == lack_ns

    def test_one_that_spends_nothing_without_the_store_costs_nothing(self):
        pool = self.vanished(closed=True)
        assert (share_of(pool, "a"), pool.standing().lack_ns) == (0, 40 * NS)

    def test_what_it_reports_is_counted_once(self):
        pool = self.vanished()
        share, before = share_of(pool, "a"), pool.standing().lack_ns / NS
        reply = pool.tell("a", Charged([15.0]), alone=True)
        assert reply.standings[0].lack_ns / NS - before == pytest.approx(15 - share * 13, abs=0.01)

    def test_it_is_not_charged_while_the_store_was_away(self, pool):
        pool.take("a", 60)
        pool.ask("a", 10, place_s=5)
        pool.wait(20)  # no message of any process
        assert pool.standing().lack_ns == 40 * NS

    def test_a_window_is_reserved_from_its_start(self):
        pool = Shared("60 tokens/min window utc")
        pool.take("b", 60)
        pool.ask("a", 10, place_s=5)
        share = share_of(pool, "a")
        granted = 0
        for _ in range(35):
            pool.wait(2)
            granted += len(pool.tell("b", wants=[[1.0]] * 60, place_s=5).grants)
        assert granted == math.floor(60 * (1 - share))
