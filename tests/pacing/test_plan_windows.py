"""What is kept of the windows of plans: the newest reading of each, until it ends, and a bounded number."""

import pytest

from paceline.core.allowance import Shut
from paceline.pacing import plans
from paceline.pacing.plans import Plans
from paceline.providers.base import Usage
from paceline.providers.plan_headers import PlanReading

NOW_S = 1_790_000_000.0
H = 3_600.0


def ns(seconds):
    return round(seconds * 1e9)


@pytest.fixture
def kept():
    return Plans()


def test_the_newest_reading_counts_until_its_window_ends(kept):
    kept.read(
        "b", [PlanReading("7d", 0.3, None, read_s=NOW_S), PlanReading("5h", 0.9, 60.0, length_s=5 * H, read_s=NOW_S)]
    )
    kept.read("a", [PlanReading("5h", 0.1, 1e13, read_s=NOW_S)])
    kept.read("b", [PlanReading("5h", 0.2, 30.0, length_s=5 * H, read_s=NOW_S + 10)])
    rows = kept.status(ns(NOW_S + 12))
    assert [(row["account"], row["window"], row["used"], row["ends_s"], row["ends_at"]) for row in rows] == [
        ("a", "5h", 0.1, 1e13 - 12, None),
        ("b", "5h", 0.2, 28.0, "2026-09-21T14:14:00Z"),
        ("b", "7d", 0.3, None, None),
    ]
    assert [row["window"] for row in kept.status(ns(NOW_S + 40))] == ["5h", "7d"]
    kept.forget("b")
    assert len(kept.status(ns(NOW_S))) == 1


def test_a_window_of_which_only_a_status_is_stated_is_shown_when_it_is_used_up(kept):
    kept.read("a", [PlanReading("overage", status="rejected", scope="money", read_s=NOW_S)])
    assert kept.status(ns(NOW_S)) == []
    shut = Shut("overage", "shut", ns(NOW_S), 0, ns(NOW_S + 60), 1)
    [row] = kept.status(ns(NOW_S), [("a", None, shut)])
    assert (row["window"], row["state"], row["status"]) == ("overage", "shut", "rejected")


def test_what_went_through_here_is_of_the_present_window_only(kept):
    for used in (0.5, 0.7):
        kept.read("a", [PlanReading("5h", used, 60.0, length_s=5 * H, read_s=NOW_S)])
        kept.charge("a", ["5h"], Usage(input_tokens=100))
    shut = Shut("5h", "shut", ns(NOW_S), 0, ns(NOW_S + 60), 3)
    rows = [kept.status(ns(NOW_S + at_s), [("a", None, shut)])[0] for at_s in (1, 61)]
    assert [(row["own"], len(row["sessions"]), row["state"]) for row in rows] == [(0.2, 1, "shut"), (None, 0, "shut")]


def test_an_answer_that_is_older_than_what_is_known_changes_nothing(kept):
    used = (0.5, 1.0, 0.96)
    told = [[PlanReading("5h", one, 60.0, read_s=NOW_S + n)] for n, one in enumerate(used)]
    assert [kept.read("a", one, sent_s=NOW_S - 1) for one in told] == [*told[:2], []]
    assert [row["used"] for row in kept.status(ns(NOW_S + 3))] == [1.0]


def test_a_note_of_another_version_leaves_no_window_behind(kept):
    with pytest.raises(TypeError):
        kept.hear("a", "5h", '[0.5, "soon", 18000, "allowed", null, false]', ns(NOW_S))
    assert kept.status(ns(NOW_S)) == []
    kept.hear("a", "5h", '[0.5, 60, 18000, "allowed", null, false]', ns(NOW_S))
    assert [row["used"] for row in kept.status(ns(NOW_S))] == [0.5]


def test_no_more_is_kept_than_is_bounded(monkeypatch):
    monkeypatch.setattr(plans, "WINDOWS_MAX", 3)
    monkeypatch.setattr(plans, "KEPT_MAX", 2)
    kept = Plans()
    for account in "abc":
        kept.read(account, [PlanReading(f"{n}h", 0.1, read_s=NOW_S) for n in range(5)])
    assert [(row["account"], row["window"]) for row in kept.status(ns(NOW_S))] == [
        (account, f"{n}h") for account in "bc" for n in (2, 3, 4)
    ]
