"""Who uses a plan: the share that went through this process, by what clients claim, in one window after the other."""

import pytest

from paceline.pacing import plan_use
from paceline.pacing.plan_use import Client, WindowUse, amount_of
from paceline.providers.base import Usage
from paceline.providers.plan_headers import PlanReading
from paceline.telemetry.merged import merged

NOW_S = 1_790_000_000.0
MAIN, SUB, OTHER = Client("claude", "19778304"), Client("claude", "19778304", "aa"), Client("codex", "01a2203c")


def read(use, used, at_s=0.0, until_s=18_000.0):
    use.read(PlanReading("5h", used, until_s - at_s, read_s=NOW_S + at_s))


@pytest.fixture
def use():
    """A window of which 60 % were used when it was seen first, and 20 % went through here since."""
    use = WindowUse()
    read(use, 0.6)
    for n in range(1, 21):
        use.charge((MAIN, SUB, SUB, OTHER)[n % 4], 100.0)
        read(use, 0.6 + n / 100, 600.0 * n)
    return use


def test_what_was_used_before_is_nobodys_here(use):
    assert (use.own, use.requests_left) == (pytest.approx(0.2), 20)
    assert [(one["program"], one["own"], one["subagents"], one["subagents_own"]) for one in use.sessions()] == [
        ("claude", pytest.approx(0.05), 1, pytest.approx(0.1)),
        ("codex", pytest.approx(0.05), 0, 0.0),
    ]


def test_what_has_ended_counts_until_the_share_rises_and_at_most_as_far_as_it_is_rounded(use):
    ended = []
    for amount in (50.0, 100.0):
        use.charge(MAIN, amount)
        ended.append(use.weighed.ended)
    read(use, 0.81, 12_001.0)
    assert [*ended, use.weighed.ended] == [pytest.approx(0.005), 0.01, 0.0]
    assert use.weighed.each == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(("used", "until_s"), [(0.0, None), (0.8, 36_000.0), (0.5, 18_000.0)])
def test_another_window_begins_anew_with_the_weight_of_the_last_one(use, used, until_s):
    if until_s is None:
        use.read(PlanReading("5h", used, None, read_s=NOW_S + 12_000))
    else:
        read(use, used, 12_000.0, until_s)
    assert (use.own, use.sessions(), use.requests_left) == (0.0, [], None)
    use.charge(MAIN, 100.0)
    read(use, used + 0.01, 12_100.0, until_s or 18_000.0)
    assert use.own == pytest.approx(0.01)
    assert use.requests_left == pytest.approx((0.99 - used) * 100, abs=2)


def test_the_first_answer_of_the_next_window_is_ours():
    use = WindowUse()
    for window in range(3):
        for n in range(1, 3):
            read(use, 0.25 * n, 20_000.0 * window + n, 20_000.0 * window + 18_000.0)
            use.charge(MAIN, 100.0)
        assert use.own == (0.5 if window else 0.25)  # of the first window nobody saw the beginning


def test_a_window_of_seconds_is_another_one_after_its_end():
    use = WindowUse()
    for at_s, until_s in ((1.0, 20.0), (21.0, 40.0)):  # both used up by the first answer that this process sees
        read(use, 0.8, at_s, until_s)
        use.charge(MAIN, 100.0)
        read(use, 1.0, at_s + 1, until_s)
        assert use.own == pytest.approx(0.2)
    read(use, 1.0, 41.0, 60.0)  # as another process has heard
    assert (use.own, use.sessions()) == (0.0, [])


def test_answers_of_requests_that_were_under_way_together_come_in_any_order():
    use = WindowUse()
    read(use, 0.0)
    for n, used in enumerate((0.33, 1.0, 0.67)):
        assert use.read(PlanReading("5h", used, 18_000.0, read_s=NOW_S + 10 + n), sent_s=NOW_S + 9) == (n < 2)
        use.charge(Client("claude", f"s{n}"), 100.0)
    assert (use.own, len(use.sessions())) == (1.0, 3)
    use.read(PlanReading("5h", 0.67, 18_000.0, read_s=NOW_S + 20), sent_s=NOW_S + 19)  # a window that has opened early
    assert use.sessions() == []


def test_stated_numbers_may_tremble(use):
    read(use, 0.79, 12_010.0, 18_050.0)
    assert (use.own, len(use.sessions())) == (pytest.approx(0.19), 2)


def test_without_a_share_nothing_is_told():
    use = WindowUse()
    use.read(PlanReading("5h", None, 60.0, read_s=NOW_S))
    use.charge(MAIN, 5.0)
    assert (use.own, use.requests_left, [one["own"] for one in use.sessions()]) == (None, None, [None])


def test_few_requests_say_nothing_of_what_is_left():
    use = WindowUse()
    read(use, 0.62)
    use.charge(MAIN, 5.0)
    read(use, 0.63, 60.0)
    assert (use.own, use.requests_left) == (0.01, None)


def test_the_sessions_are_bounded_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(plan_use, "SESSIONS_MAX", 4)
    use = WindowUse()
    read(use, 0.0)
    for n in range(1, 11):
        use.charge(Client("claude", f"s{n}", "a" * (n % 2)), float(n))
    read(use, 0.55, 60.0)
    found = use.sessions()
    assert len(found) <= 5
    assert {"s8", "s9", "s10"} < {one["session"] for one in found}
    assert found[-1]["session"] == ""
    assert sum(one["own"] + one["subagents_own"] for one in found) == pytest.approx(0.55, abs=0.001)


def test_cached_tokens_are_worth_little_and_output_much():
    assert amount_of(Usage(input_tokens=1_000, cached_tokens=800, output_tokens=10)) == 200 + 80 + 50


def test_processes_of_one_gateway_are_added_up():
    def row(own, ago_s, session, test_s=None):
        one = {"program": "claude", "session": session, "own": own, "subagents": 1, "subagents_own": 0.0}
        about = {"account": "a", "window": "5h", "used": 0.5 + ago_s, "stated_ago_s": ago_s}
        return {"pools": {}, "plans": [about | {"waiting": 2, "test_s": test_s, "own": own, "sessions": [one]}]}

    (plan,) = merged([row(0.5, 0.2, "x"), row(0.7, 0.1, "y")])["plans"]  # each takes the other's part for its own
    assert (plan["used"], plan["own"], [one["own"] for one in plan["sessions"]]) == (0.6, 0.6, [0.35, 0.25])
    (plan,) = merged([row(0.1, 0.2, "x", 9.0), row(0.2, 0.1, "x"), row(None, 0.3, "y", 7.0)])["plans"]
    assert (plan["used"], plan["own"], plan["waiting"], plan["test_s"]) == (0.6, 0.3, 6, 7.0)
    sessions = [(one["session"], one["own"], one["subagents"]) for one in plan["sessions"]]
    assert sessions == [("x", 0.3, 2), ("y", None, 1)]
