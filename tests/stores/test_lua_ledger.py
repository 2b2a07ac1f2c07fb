"""The Lua script replies as the ledger in Python: all numbers are equal, in any history."""

from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest
from lua_worlds import DAY_US, EPOCH_US, GRID_US, LuaLedger, World

from paceline.core.meters import window_starts
from paceline.core.quota import NS, Quota, Rule
from paceline.core.unstated.measured import InFlightMeter, RateMeter
from paceline.shared.ledger import GRACE_NS, SharedLedger
from paceline.shared.messages import Refused, Settled
from paceline.shared.meters import BOUNDLESS, of
from shared_pools import message_of

STEPS = 200
SEEDS = range(3, 451)  # from the third on, each tenth and each 90th world come to all that must happen
"""90 000 commands in all; `make soak` plays them all, `make test-all` every tenth world, `make test` every 90th."""

HAPPENS = {
    "granted": 10_000, "waits": 10_000, "settled": 10_000, "opening": 5_000, "paused": 2_000, "spread": 2_000,
    "told again": 1_000, "charged": 1_000, "gone": 1_000, "refused": 500, "notes": 500, "set back": 500, "reconfigured": 500,
    "vanished": 200, "ended": 100, "awaited": 500, "probe": 200, "set_ceiling": 500, "shift": 500, "adopt": 500, "epoch": 500, "cap_burst": 500, "seen": 500, "slices": 50, "behind": 500,
    "epoch moved": 50, "low points merged": 10, "time zone": 20, "month": 10,
}  # fmt: skip
"""What must happen how often at least in all worlds, that the comparison is worth something."""

every = pytest.mark.parametrize(
    "every",
    [90, pytest.param(10, marks=pytest.mark.long("thousands of commands")), pytest.param(1, marks=pytest.mark.soak)],
)


@pytest.fixture
def lua(redis_server):
    with closing(LuaLedger(redis_server)) as lua:
        yield lua


def play(seed, other):
    world = World(seed)
    for step in range(STEPS):
        try:
            world.step(other)
        except AssertionError as error:
            error.add_note(f"World({seed}), command {step}")
            raise
    world.end()
    return world.seen


def test_the_sum_of_what_processes_have_measured_is_the_same(lua):
    ledger, now_us = SharedLedger(), 1_800_000_000_000_000
    quotas = tuple(of(m).told(m) for m in (RateMeter(0, "requests", 0), InFlightMeter(1)))
    for number, (who, rate) in enumerate([("a", 61.25), ("b", 0.0625), ("c", 1e6), ("a", 12.5)]):
        message = message_of(who, number, quotas, [-1, -1], held=[rate, 3.0])
        reply = lua(now_us + number, message)
        assert reply == ledger.apply((now_us + number) * 1_000, message)
    assert [one.used for one in reply.standings] == [12.5 + 0.0625 + 1e6, 9.0]
    assert reply.peers == 3
    assert all(one.learned.quota.amount == BOUNDLESS for one in reply.standings)


@every
def test_script_and_ledger_answer_the_same(lua, every):
    seen = Counter()
    for seed in SEEDS[::every]:
        lua.flush()
        seen += play(seed, lua)
    assert {what: seen[what] for what, often in HAPPENS.items() if seen[what] < often // every} == {}


QUOTAS = (Quota("tokens", 6_000.0),)  # a hundred a second


def spend(lua, now_us, number, amount):
    return lua(now_us, message_of("a", number, QUOTAS, [-1], fresh=number == 1, headroom_s=0.0, wants=[[amount]]))


def refund(lua, now_us, number, mark):
    news = [Settled([1_000.0], [mark], [0.0])]
    return lua(now_us, message_of("a", number, QUOTAS, [-1], headroom_s=0.0, news=news)).standings[0].lack_ns


def test_when_the_time_of_a_probe_is_over_the_others_go_and_are_none(lua):
    refused = message_of("a", 1, QUOTAS, [-1], news=[Refused([0.0], NS)])
    lua(EPOCH_US, refused)
    assert [spend(lua, EPOCH_US + s * 1_000_000, 1 + s, 1.0).probe for s in (2, 5, 6)] == [True, False, False]


UNSENT, ANSWERED = (Settled([1.0], [0], [1.0], answered=answered, probe=True) for answered in (False, True))


@pytest.mark.parametrize(
    ("told", "after_s", "granted", "probe"),
    [
        ([("a", ANSWERED)], 2.3, 1, False),
        ([("a", UNSENT)], 2.3, 1, True),
        ([("b", ANSWERED)], 2.3, 0, False),  # the probe is not its own
        ([("a", Refused([0.0], 2 * NS)), ("a", ANSWERED)], 4.2, 1, True),  # the answer is of the pause before
    ],
)
def test_what_follows_on_a_probe_is_the_same(lua, told, after_s, granted, probe):
    ledger, numbers = SharedLedger(), Counter()

    def say(after_s, who, *news, wants=()):
        numbers[who] += 1
        now_us = EPOCH_US + round(after_s * 1_000_000)
        message = message_of(who, numbers[who], QUOTAS, [-1], news=list(news), wants=list(wants))
        theirs, ours = lua(now_us, message), ledger.apply(now_us * 1_000, message)
        marks = {"grants": []}  # which count from another instant
        assert replace(theirs, **marks) == replace(ours, **marks)
        assert len(theirs.grants) == len(ours.grants)
        return theirs

    say(0, "a", Refused([0.0], NS))
    assert say(2, "a", wants=[[1.0]]).probe
    for who, news in told:
        say(2.1, who, news)
    reply = say(after_s, "c", wants=[[1.0]])
    assert (len(reply.grants), reply.probe) == (granted, probe)


@pytest.mark.parametrize("times_ns", [(NS, NS // 10), (NS // 10, NS)])
def test_the_probe_after_two_refusals_is_waited_for_as_the_slower_one_took(lua, times_ns):
    ledger, granted = SharedLedger(), []
    refused = [Refused([0.0], NS, probe_ns) for probe_ns in times_ns]
    for number, (after_s, news) in enumerate([(0, refused), (2, []), (2.5, []), (3.5, [])], 1):
        message = message_of("a", number, QUOTAS, [-1], news=news, wants=[[1.0]] if after_s else [])
        now_us = EPOCH_US + round(after_s * 1_000_000)
        theirs, ours = lua(now_us, message), ledger.apply(now_us * 1_000, message)
        granted.append((len(theirs.grants), len(ours.grants)))
    assert granted == [(0, 0), (1, 1), (0, 0), (1, 1)]


def test_a_place_ends_at_the_same_moment_when_its_process_is_overdue(lua):
    ledger, quotas = SharedLedger(), (Quota.parse("60 requests/min burst 1"),)
    due_us, asked = 1_000_000 + GRACE_NS // 1_000, []
    for after_us, who in ((0, "z"), (0, "a"), (due_us, "b"), (due_us + 1, "c")):
        message = message_of(who, 1, quotas, [-1], headroom_s=0.0, wants=[[1.0]], place_ns=5 * NS * (who == "a"))
        theirs, ours = lua(EPOCH_US + after_us, message), ledger.apply((EPOCH_US + after_us) * 1_000, message)
        asked.append((len(theirs.grants), len(ours.grants)))
    assert asked == [(1, 1), (0, 0), (0, 0), (1, 1)]


def test_what_was_used_a_month_ago_counts_no_longer_when_the_epoch_has_moved_twice(lua):
    ledger = SharedLedger()
    quotas = (Quota("tokens", 6_000.0, 30 * 86_400.0, rule=Rule.SLIDING),)
    first_us = (EPOCH_US // GRID_US + 1) * GRID_US  # when the epoch moves; the second time 25.5 days later
    used = []
    for number, (days, wants) in enumerate([(-3.0, [[100.0]]), (0.1, []), (25.5, []), (27.2, [])]):
        now_us = first_us + round(days * DAY_US)
        message = message_of("a", number, quotas, [-1], fresh=number == 0, headroom_s=0.0, wants=wants)
        theirs, ours = lua(now_us, message), ledger.apply(now_us * 1_000, message)
        assert theirs.standings == ours.standings
        used.append(theirs.standings[0].used)
    assert used == [100.0, 100.0, 100.0, 0.0]


@pytest.mark.parametrize("moves", [False, True])
def test_refund_is_exact_when_the_epoch_moved_in_between(lua, moves):
    start_us = (EPOCH_US // GRID_US + 1) * GRID_US - 1_000_000 * moves
    spend(lua, start_us, 1, 1_000.0)
    mark = spend(lua, start_us, 2, 1_000.0).grants[0][0]
    assert refund(lua, start_us + 2_000_000, 3, mark) == 8_000_000_000  # 20 s were lacking, 2 passed, 10 came back


def test_refund_of_what_a_forgotten_ledger_was_charged_is_worth_nothing(lua):
    spend(lua, EPOCH_US, 1, 1_000.0)
    mark = spend(lua, EPOCH_US + 1, 2, 1_000.0).grants[0][0]
    lua.flush()
    spend(lua, EPOCH_US + 1_000_000, 1, 3_000.0)
    assert refund(lua, EPOCH_US + 1_000_000, 2, mark) == 30_000_000_000


def test_refund_is_exact_when_the_clock_was_set_back_in_between(lua):
    spend(lua, EPOCH_US, 1, 1_000.0)
    mark = spend(lua, EPOCH_US, 2, 1_000.0).grants[0][0]
    spend(lua, EPOCH_US + 15_000_000, 3, 10.0)  # 5 s were lacking then, and now 5.1
    assert refund(lua, EPOCH_US - 3_600_000_000, 4, mark) == 100_000_000


def test_process_whose_clock_is_days_off_ends_no_day_early(lua):
    quotas = (Quota("requests", 10.0, 86_400.0, rule=Rule.WINDOW, anchor="Asia/Kolkata"),)
    midnight_us = EPOCH_US - 19_800_000_000  # 5.5 hours before UTC's

    def spend(now_us, number, days_off):
        windows = [window_starts("Asia/Kolkata", (now_us + days_off * DAY_US) * 1_000)]
        asked = message_of("a", number, quotas, [-1], fresh=number == 1, wants=[[4.0]], windows=windows)
        return lua(now_us, asked).standings[0].used

    used = [spend(midnight_us + 60_000_000, 1, -9), spend(midnight_us + DAY_US - 60_000_000, 2, 30)]
    assert [*used, spend(midnight_us + DAY_US + 60_000_000, 3, -30)] == [4.0, 8.0, 4.0]


def test_debt_of_ages_is_one(lua):
    quotas = (Quota("tokens", 1_000.0, 86_400.0),)
    mark = lua(EPOCH_US, message_of("a", 1, quotas, [-1], headroom_s=0.0, wants=[[1.0]])).grants[0][0]
    reply = lua(EPOCH_US, message_of("a", 2, quotas, [-1], news=[Settled([1.0], [mark], [1e12])], wants=[[1.0]]))
    assert reply.standings[0].lack_ns == pytest.approx(86.4e21)
    assert reply.wait_ns == 86_400 * NS


def test_of_two_quotas_with_one_unit_and_period_the_last_one_counts(lua):
    ledger, quotas = SharedLedger(), (Quota("tokens", 1_000.0), Quota("tokens", 2_000.0))
    for number in (1, 2):
        message = message_of("a", number, quotas, [-1, -1], fresh=True)
        theirs, ours = lua(EPOCH_US, message), ledger.apply(EPOCH_US * 1_000, message)
        assert theirs == ours
        assert theirs.standings[0].learned.quota == quotas[1]
