"""What a policy lets go of a plan's windows: by the share that is used, the time that is left, and whose request it is."""

import pytest

from paceline.core.ledger import Ledger
from paceline.core.plan import INTERACTIVE, THERE_NS, Plan, PlanCapacity, PlanPolicy, Weighed, Window
from paceline.core.queue import LaneSpec, Waiter
from paceline.core.quota import NS
from paceline.core.results import Refusal, RefusalKind, Reservation, SettingsError, WaitUntil

T0 = 1_800_000_000 * NS
HOUR_NS = 3_600 * NS
PERSON, AGENT = LaneSpec(INTERACTIVE, priority=1), LaneSpec("agent")


def plan_of(used, ends_h, *, length_h=5.0, name="5h", person=True, **policy):
    plan = Plan(PlanPolicy(**policy))
    plan.windows[name] = Window(name, used, round(T0 + ends_h * HOUR_NS), round(length_h * HOUR_NS))
    if person:
        plan.held(T0, PERSON)
    return plan


def held_h(plan, lane=AGENT):
    return round((plan.held(T0, lane)[0] - T0) / HOUR_NS, 3)


@pytest.mark.parametrize(
    ("used", "ends_h", "expected"),
    [
        (0.89, 5, 0),
        (0.9, 5, 4),  # until the last fifth
        (0.9, 0.99, 0),
        (0.95, 5, 4.5),  # of which half is left then
        (0.99, 1, 0.9),
        (1.0, 5, 0),  # the provider says whether it goes on
    ],
)
def test_a_tenth_is_kept_and_melts_in_the_last_fifth(used, ends_h, expected):
    plan = plan_of(used, ends_h)
    assert (held_h(plan), held_h(plan, PERSON)) == (expected, 0)


def test_it_is_kept_while_a_person_was_there_of_late():
    assert held_h(plan_of(0.95, 5, person=False)) == 0
    plan = plan_of(0.95, 100, length_h=168)
    assert (held_h(plan), plan.held(T0 + THERE_NS, AGENT)[0]) == (THERE_NS / HOUR_NS, T0 + THERE_NS)


def test_a_window_without_a_length_is_kept_to_its_end():
    assert held_h(plan_of(0.95, 3, length_h=0)) == 3


def test_a_week_is_spread_over_its_days():
    week = {"length_h": 168, "name": "7d", "keep": 0.0, "spread": "7d"}
    assert [held_h(plan_of(days / 7, 168, **week)) for days in (1, 2)] == [0, 24]
    assert held_h(plan_of(2 / 7, 168, **week), PERSON) == 0
    assert held_h(plan_of(2 / 7, 168, **week | {"name": "5h"})) == 0


@pytest.mark.parametrize(("policy", "used"), [({"stop_at": 0.8}, 0.8), ({"overage": "wait"}, 1.0)])
def test_nothing_goes_above_what_is_to_be_used(policy, used):
    assert [held_h(plan_of(used, 3, **policy), lane) for lane in (AGENT, PERSON)] == [3, 3]
    assert held_h(plan_of(used - 0.01, 3, keep=0.0, **policy)) == 0
    assert plan_of(used, -1, **policy).held(T0, AGENT)[0] == T0  # it has ended


def test_those_that_were_held_back_do_not_go_at_once():
    capacity = PlanCapacity(plan_of(0.9, 1.5), Ledger((), T0))
    waiters = [Waiter({}, AGENT) for _ in range(4)]
    decision = capacity.reserve(T0, waiters[0])
    assert isinstance(decision, WaitUntil)
    assert (decision.at_ns - T0, decision.quota) == (HOUR_NS // 2, "the share of 5h that is left")
    assert capacity.wake_ns(T0, waiters[0]) == decision.at_ns
    assert isinstance(capacity.reserve(T0, Waiter({}, PERSON)), Reservation)
    at_ns = decision.at_ns
    probe = capacity.reserve(at_ns, waiters[0])
    assert [type(capacity.reserve(at_ns, one)) for one in waiters[1:]] == [WaitUntil] * 3
    capacity.admitted(at_ns, probe)
    assert [type(capacity.reserve(at_ns, one)) for one in waiters[1:]] == [Reservation] * 2 + [WaitUntil]


def test_those_that_were_held_back_wait_for_the_probe_of_a_pause_that_began_meanwhile():
    capacity = PlanCapacity(plan_of(0.9, 1.5), Ledger((), T0))
    held, at_ns = Waiter({}, AGENT), T0 + HOUR_NS // 2
    assert (capacity.is_free(T0, PERSON), capacity.is_free(T0, AGENT)) == (True, False)
    assert capacity.reserve(T0, held).at_ns == at_ns
    refused = capacity.reserve(T0, Waiter({}, PERSON))
    capacity.refuse(T0, refused, Refusal(RefusalKind.RATE), at_ns - NS - T0)
    probe = capacity.reserve(at_ns - NS, Waiter({}, PERSON))
    assert isinstance(capacity.reserve(at_ns, held), WaitUntil)
    assert not capacity.is_free(at_ns, AGENT)
    capacity.settle(at_ns, probe, None)
    assert capacity.is_free(at_ns, AGENT)
    assert isinstance(capacity.reserve(at_ns, held), Reservation)


def test_what_no_answer_has_in_its_share_yet_counts():
    """What is in flight, by the share of one request, and what has ended since the stated share has risen."""
    plan, beside = plan_of(0.88, 5), []
    plan.weighed = {"5h": Weighed(0.004, 0.01)}
    capacity = PlanCapacity(plan, Ledger((), T0))
    capacity.of_pools = lambda: len(beside)
    free = []
    for _ in range(4):
        free.append(capacity.is_free(T0, AGENT))
        beside.append("a request that took no turn of the account")
    assert free == [True, True, True, False]
    beside.clear()
    went = [capacity.reserve(T0, Waiter({}, AGENT)) for _ in range(5)]
    assert [type(one) for one in went] == [Reservation] * 3 + [WaitUntil] * 2
    assert isinstance(capacity.reserve(T0, Waiter({}, PERSON)), Reservation)
    for one in went[:3]:
        capacity.settle(T0, one, None)
    assert isinstance(capacity.reserve(T0, Waiter({}, AGENT)), Reservation)


@pytest.mark.parametrize(
    "policy", [{"keep": 1}, {"keep": -0.1}, {"stop_at": 0}, {"stop_at": 80}, {"overage": "no"}, {"when_shut": "x"}]
)
def test_a_value_out_of_its_range_is_refused(policy):
    [name] = policy
    with pytest.raises(SettingsError, match=f"{name} is {policy[name]!r}"):
        PlanPolicy(**policy)


def test_a_policy_holds_where_one_of_its_settings_does():
    nothing = {"keep": 0.0}
    held = [{}, {**nothing, "spread": "7d"}, {**nothing, "stop_at": 0.8}, {**nothing, "overage": "wait"}, nothing]
    assert [PlanPolicy(**policy).holds for policy in held] == [True, True, True, True, False]
