"""The windows of plans in words."""

import time

import pytest

from paceline.cli import plan_words

NOW_S = time.mktime((2026, 11, 28, 10, 28, 0, 0, 0, -1))
ROW = {
    "account": "anthropic@7f3a91", "window": "5h", "used": 0.62, "own": 0.41, "ends_s": 4_320.0, "status": "allowed", "scope": None,
    "requests_left": 210, "waiting": 0, "sessions": [],
}  # fmt: skip
FABLE = ROW | {
    "window": "7d_oi",
    "scope": "Fable",
    "used": 1.0,
    "own": 0.8,
    "ends_s": 426_720.0,
    "status": "rejected",
    "waiting": 2,
}


def test_a_window():
    assert (plan_words.name(ROW), plan_words.name(FABLE)) == ("5 h", "7 d, Fable")
    assert [plan_words.name(ROW | {"window": one}) for one in ("codex 7d", "7d_new", "overage")] == ["codex 7 d", "7d_new", "overage"]  # fmt: skip
    assert (plan_words.ends(ROW, NOW_S), plan_words.ends(FABLE, NOW_S)) == ("11:40, in 1 h 12 min", "Thu 09:00")
    for ends_s, said in ((None, "-"), (1e18, "-"), (864_000.0, "8 Dec 10:28"), (20.0, "10:28, in 20 s")):
        assert plan_words.ends(ROW | {"ends_s": ends_s}, NOW_S) == said
    past = ROW | {"ends_s": -70.0, "state": "shut", "waiting": 1}
    assert plan_words.ends(past, NOW_S) == "10:26, past"
    assert plan_words.line([past], NOW_S) == "5 h used up (41% here), 1 wait"
    assert plan_words.line([past | {"state": "probing"}], NOW_S) == "5 h used up (41% here), 1 wait, tested now"
    assert plan_words.used_up(past, NOW_S) == "anthropic@7f3a91: 5 h used up, 1 request waits"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "about 210 requests like these"),
        ({"requests_left": 1}, "about 1 request like these"),
        ({"requests_left": None}, "-"),
        ({"status": "rejected"}, "used up"),
        ({"status": "rejected", "waiting": 1}, "used up: 1 request waits"),
        ({"state": "shut", "waiting": 3, "test_s": 600.0}, "used up: 3 requests wait, tested next at 10:38"),
        ({"state": "probing", "waiting": 3}, "used up: 3 requests wait, tested now"),
        ({"state": "probing"}, "used up, tested now"),
        ({"state": "held", "waiting": 2, "test_s": 600.0}, "2 requests wait until 10:38, as [plans] says"),
        ({"state": "opening", "status": "rejected"}, "about 210 requests like these"),
    ],
)
def test_what_is_left(more, said):
    assert plan_words.left(ROW | more, NOW_S) == said


def test_a_line():
    week = ROW | {"window": "7d", "used": 0.31, "own": None, "ends_s": 426_720.0}
    assert plan_words.line([ROW, week, FABLE], NOW_S) == (
        "7 d, Fable used up (80% here), 2 wait until Thu 09:00 · 5 h 62% (41% here) until 11:40 · 7 d 31%"
    )
    held = ROW | {"used": 0.93, "own": None, "state": "held", "waiting": 2, "test_s": 600.0}
    assert plan_words.line([held], NOW_S) == "5 h 93%, 2 held back until 10:38"
    both = plan_words.line([ROW, week | {"account": "openai@01a2203c"}], NOW_S)
    assert both == "anthropic@7f3a91 5 h 62% (41% here) until 11:40 · openai@01a2203c 7 d 31%"


def test_a_line_that_is_too_long_ends_with_a_whole_window():
    many = [ROW | {"account": f"anthropic@{n:06x}"} for n in range(40)]
    line = plan_words.line([*many, FABLE], NOW_S, most=200)
    assert line.startswith("anthropic@7f3a91 7 d, Fable used up (80% here), 2 wait until Thu 09:00 · ")
    assert line.endswith("anthropic@000001 5 h 62% (41% here) until 11:40 · and 38 more")
    assert plan_words.line(many, NOW_S, most=5) == "40 windows"


def test_a_window_that_is_used_up():
    row = ROW | {"status": "rejected", "waiting": 3, "ends_s": 9_060.0}
    assert plan_words.used_up(row, NOW_S) == "anthropic@7f3a91: 5 h used up, 3 requests wait until 12:59 (2 h 31 min)"
    assert plan_words.used_up(row | {"ends_s": None, "waiting": 0}, NOW_S) == "anthropic@7f3a91: 5 h used up"


def test_who_has_used_it():
    def one(session, own, agents=0, by_agents=0.0):
        program = "claude" if session else ""
        return {"program": program, "session": session, "own": own, "subagents": agents, "subagents_own": by_agents}

    row = ROW | {"sessions": [one("19778304", 0.18, 142, 0.21), one("", 0.02)]}
    assert plan_words.sessions(row) == "19778304 (claude) 18%, its 142 subagents 21%; others 2%"
    row["sessions"] = [one(f"{n}", 0.01) for n in range(13)]
    assert plan_words.sessions(row).endswith("; 9 (claude) 1%; 3 more")
    nothing = ROW | {"sessions": [one("19778304", 0.0), one("01a2203c", None)]}
    assert plan_words.by_account([nothing]) == []
    assert plan_words.by_account([FABLE | {"sessions": row["sessions"]}, row, row]) == [row]
