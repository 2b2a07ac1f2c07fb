"""What a long wait is about, when it is tested, and what its end shows."""

from itertools import pairwise

import pytest
from core_worlds import T0

from paceline.core.allowance import Allowance, is_believed
from paceline.core.progress import Progress
from paceline.core.quota import NS
from paceline.core.results import Refusal, RefusalKind, RefusalScope
from paceline.pacing.retry import Failures

RATE = RefusalKind.RATE


def asks(wait_s, **named):
    return Refusal(RATE, retry_after_s=wait_s, **named)


def at(seconds):
    return T0 + round(seconds * NS)


def instants_s(allowance, wait_s, since_s=0.0):
    """When a wait is tested until its end, in seconds from its beginning."""
    found, passed_s = [], 0.0
    while passed_s < wait_s:
        now_ns, left = at(since_s + passed_s), asks(wait_s - passed_s)
        pause_s = min(allowance.test_s(now_ns, now_ns, left), wait_s - passed_s)
        allowance.refuse(now_ns, now_ns, left)
        passed_s += pause_s
        found.append(passed_s)
    return found


def lived_through(allowance, stated_s, lasted_s, since_s=0.0):
    """A wait of ``stated_s`` was over after ``lasted_s``; returns when."""
    allowance.refuse(at(since_s), at(since_s), asks(stated_s))
    allowance.admit(at(since_s + lasted_s))
    return since_s + lasted_s + 1


@pytest.fixture
def allowance():
    return Allowance()


class TestWhatIsOne:
    @pytest.mark.parametrize(
        ("refusal", "expected"),
        [
            (asks(601.0), True),
            (asks(600.0), False),
            (asks(None), False),
            (asks(float("inf")), False),
            (asks(9_000.0, unit="tokens"), False),
            (asks(9_000.0, sooner_s=3.0), False),  # until a probe after it is refused
            (asks(9_000.0, sooner_s=8_999.0), True),
        ],
    )
    def test_an_unnamed_wait_that_is_longer_than_any_rate_asks_for(self, refusal, expected):
        assert Allowance().covers(refusal) is expected

    def test_while_one_is_shut_each_unnamed_refusal_is_about_it(self, allowance):
        allowance.refuse(T0, T0, asks(9_000.0))
        assert [allowance.covers(asks(wait_s)) for wait_s in (3.0, 0.0, None)] == [True] * 3
        assert not allowance.covers(asks(3.0, unit="tokens"))
        allowance.admit(at(9_000))
        assert not allowance.covers(asks(3.0))

    def test_a_minute_is_enough_where_one_was_true(self, allowance):
        """The next one may be used up near its end."""
        assert not allowance.covers(asks(61.0))
        lived_through(allowance, 9_000, 2_250)
        assert [allowance.covers(asks(wait_s)) for wait_s in (61.0, 60.0)] == [True, False]

    def test_three_in_a_row_that_were_far_too_long_are_none(self):
        allowance, now_s = Allowance(), 0.0
        for _ in range(3):
            assert allowance.covers(asks(9_000.0))
            now_s = lived_through(allowance, 9_000, 2_249, now_s)
        allowance.refuse(at(now_s), at(now_s), asks(9_000.0))
        assert not allowance.covers(asks(9_000.0))
        assert allowance.ends_ns == 0
        allowance.admit(at(now_s + 2_250))  # that one was true
        assert allowance.covers(asks(9_000.0))

    def test_early_openings_between_true_ends_are_no_lies(self):
        allowance, now_s = Allowance(), 0.0
        for lasted_s in (9_000, 60, 60, 9_000, 60, 60):
            now_s = lived_through(allowance, 9_000, lasted_s, now_s)
        assert allowance.covers(asks(61.0))

    def test_named_waits_and_short_ones_prove_nothing(self):
        allowance, now_s = Allowance(), 0.0
        for refusal in (asks(9_000.0, unit="tokens"), asks(300.0)) * 3:
            allowance.refuse(at(now_s), at(now_s), refusal)
            assert allowance.ends_ns == 0
            allowance.admit(at(now_s + 15))
            now_s += 20
        assert [allowance.covers(asks(wait_s)) for wait_s in (601.0, 300.0)] == [True, False]

    def test_what_was_sent_before_its_first_refusal_opens_nothing(self, allowance):
        allowance.refuse(at(1), T0, asks(9_000.0))
        allowance.admit(T0)
        assert allowance.ends_ns == at(9_001)

    def test_a_newer_end_counts_also_a_shorter_one(self, allowance):
        allowance.refuse(T0, T0, asks(9_000.0))
        for sent_s, wait_s, end_s in ((60, 20.0, 80), (80, None, 80), (81, 9_000.0, 9_081)):
            allowance.refuse(at(sent_s), at(sent_s), asks(wait_s))
            assert allowance.ends_ns == at(end_s)


class TestTests:
    @pytest.mark.parametrize(("hours", "most"), [(1, 20), (5, 20), (24, 32), (168, 176)])
    def test_they_are_few_and_the_last_one_is_at_the_end(self, hours, most):
        allowance, wait_s = Allowance(), hours * 3_600.0
        first = instants_s(allowance, wait_s)
        assert first[:6] == [15, 30, 45, 60, 180, 420]
        assert (first[-1], len(first) <= most) == (wait_s, True)
        allowance.admit(at(wait_s))
        later = instants_s(allowance, wait_s, since_s=10 * wait_s)
        assert later[:3] == [60, 180, 420]
        gaps = [b - a for a, b in pairwise(later)]
        assert max(gaps) <= min(3_600, max(600, wait_s / 8))

    def test_a_wait_is_believed_if_it_is_short_or_of_a_named_period(self):
        assert [is_believed(asks(*wait)) for wait in ((60.0,), (61.0,), (None,))] == [True, False, True]
        assert is_believed(asks(80_000.0, period_s=86_400.0))

    def test_tests_before_the_stated_end_are_no_row(self):
        progress = Progress()
        for sent_s, left_s in ((0, 900.0), (15, 885.0), (60, 840.0), (899, 0.0)):
            row = progress.row(at(sent_s), at(sent_s), asks(left_s))
            assert (row.number, row.is_test, row.is_allowance) == (1, sent_s > 0, True)
            progress.refuse(at(sent_s), at(sent_s), asks(left_s))
        assert progress.row(at(901), at(901), asks(0.0)).number == 2  # it was obeyed in vain

    def test_each_stated_wait_that_is_shorter_brings_the_end_nearer(self):
        progress, seen = Progress(), []
        for at_s, wait_s in ((0, 900.0), (900, 40.0), (940, 20.0), (960, 10.0), (970, 10.0), (980, 10.0)):
            seen.append(progress.row(at(at_s), at(at_s), asks(wait_s)).number)
            progress.refuse(at(at_s), at(at_s), asks(wait_s))
        assert seen == [1, 1, 1, 1, 2, 3]


def test_its_refusals_tell_nothing_of_a_request():
    failures, progress = Failures(), Progress()
    progress.refuse(T0, T0, asks(9_000.0))
    for n in range(1, 9):
        for _ in range(300):
            progress.admit(T0, T0 - 1)
        judged = failures.count(progress.row(at(n), at(n), asks(9_000.0)), asks(9_000.0))
        assert judged.scope is RefusalScope.POOL
        progress.refuse(at(n), at(n), judged)
    assert (failures.of_pool, failures.admitted, failures.alone.chance) == (8, progress.admitted, 1.0)


def test_what_another_process_has_told_is_known_from_its_instant():
    told, heard = Allowance(), Allowance()
    heard.adopt(at(5), told.told(at(5)))
    assert heard.told(0) == told.told(0)  # nothing is shut
    told.refuse(at(0), at(0), asks(18_000, window="5h"))
    heard.adopt(at(10), told.told(at(10)))
    assert heard.told(0) == told.told(0)
    assert (heard.is_shut, heard.window, heard.ends_ns) == (True, "5h", at(18_000))


def test_two_are_the_same_where_their_ends_agree_and_no_window_is_named():
    one, other, later, named = (Allowance() for _ in range(4))
    told = (one, 3_600, None), (other, 3_630, None), (later, 3_700, None), (named, 3_600, "5h")
    for allowance, wait_s, window in told:
        allowance.refuse(at(0), at(0), asks(wait_s, window=window))
    assert [one.is_same(each) for each in (other, later, named, Allowance())] == [True, False, False, False]


def test_a_refusal_for_a_rate_beside_a_shut_window_says_nothing_of_it(allowance):
    allowance.refuse(at(0), at(0), asks(18_000, window="5h"))
    before = allowance.told(0)
    allowance.refuse(at(10), at(9), asks(120, unit="requests"))
    assert allowance.told(0) == before
