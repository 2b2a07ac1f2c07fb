"""A limiter before plans whose windows are used up: how much of them is used, with how many refusals, and how it goes on after them."""

from dataclasses import replace

import pytest
from tests.simulation.plans import DAY, HOUR, LARGE, Row, run

from grids import some

FIVE = (("5h", 5 * HOUR, 1.0, ()),)
BOTH = (*FIVE, ("7d", 7 * DAY, 8.0, ()))
SCOPED = (("5h", 5 * HOUR, 2.0, ()), ("7d", 7 * DAY, 16.0, ()), ("7d_oi", 7 * DAY, 4.0, (LARGE,)))
ONE_DAY = (*FIVE, ("1d", DAY, 2.5, ()))
ONE_DAY_SCOPED = (("5h", 5 * HOUR, 2.0, ()), ("1d_oi", DAY, 1.0, (LARGE,)))

# The share of the work that one does who knows the provider; at most: the refusals of a week, the seconds from an opening to the tenth
# request after it, and the requests in one of these seconds.
WORLDS = {
    "one window": (Row(), 0.98, 595, 17, 14),
    "one window, as Codex states it": (Row(form="codex"), 0.98, 595, 17, 14),
    "refusals alone": (Row(form="unnamed"), 0.98, 595, 17, 14),
    "one window by the clock": (Row(first=False), 0.98, 595, 17, 14),
    "both windows": (Row(BOTH, days=14), 0.98, 304, 15, 14),
    "142 agents each 6 hours": (Row(agents=142, burst=True), 0.98, 466, 15, 27),
    "another device uses a third": (Row(others=1 / 3), 0.98, 596, 15, 14),
    "a tenth of a percent": (Row(step=0.001), 0.98, 595, 17, 14),
    "a clock two minutes ahead": (Row(ahead_s=120.0), 0.98, 595, 17, 14),
    "twice the true wait": (Row(form="unnamed", says_s=lambda wait_s: 2 * wait_s), 0.92, 432, 1_404, 14),
    "half of the true wait": (Row(form="unnamed", says_s=lambda wait_s: wait_s / 2), 0.98, 1_287, 17, 14),
    "always one hour": (Row(form="unnamed", says_s=lambda _: HOUR), 0.95, 1_380, 780, 14),
    "new windows for all": (Row(BOTH, days=14, early=(2.1, 4.6)), 0.98, 388, 3_978, 14),
    "a window of one model": (Row(SCOPED, days=14, scoped=0.3), 0.98, 317, 15, 15),
    "a rate beside the window": (Row(rate="60 requests"), 0.98, 595, 30, 14),
}
# Two windows of a few requests.
SHORT = {
    "one window": {},
    "one window, as Codex states it": {},
    "refusals alone": {},
    "142 agents each 6 hours": {"cap": 250.0},
    "twice the true wait": {},
    "half of the true wait": {},
    "new windows for all": {"windows": ONE_DAY, "days": 0.8, "early": (0.7,)},
    "a window of one model": {"windows": ONE_DAY_SCOPED, "days": 1.1, "cap": 200.0, "agents": 24},
    "a rate beside the window": {},
}


def check(row, work, late_s, herd, looks=()):
    known, ours = run(row, paced=False), run(row, looks=looks)
    (resumed_s, at_once), share = ours.resumed(), ours.provider.charged / known.provider.charged
    opened = sum(len(one.opened_s) for one in ours.provider.windows)
    said = f"{share:.3f} of the work, {ours.refused_a_week:.0f} refused a week, {resumed_s:.0f} s, {at_once} at once, {opened} openings"
    assert opened >= 2, said
    assert share >= work, said
    assert resumed_s <= late_s, said
    assert at_once <= herd, said
    return ours.refused_a_week, ours.provider.refused / (opened + 1), said


@pytest.mark.soak
@pytest.mark.parametrize("name", WORLDS)
def test_some_days(name):
    row, work, refused, *bounds = WORLDS[name]
    cap = 1_500.0 if row.burst else 600.0  # with less, bursts ask for more than the plan has, and ever more wait
    a_week, _, said = check(replace(row, cap=cap, days=9.0 if row.days > 1 else 3.0), work, *bounds)
    assert a_week <= refused, said


# A part of each window is left: the world, the policy, the share of the work, and at most the part of a person's requests that wait for more than
# ten minutes. A window holds what 50 agents ask for in 14 minutes: with less of it, what is in flight is more than a twentieth.
THREE_DAYS, TWO_WEEKS = Row(cap=1_500.0, days=3.0), Row(BOTH, cap=1_500.0, days=14.0)
A_THIRD = replace(TWO_WEEKS, others=1 / 3)
PARTS = {
    "5 %": (replace(THREE_DAYS, days=7.0), {"keep": 0.05}, 0.96, 0.009),
    "10 %": (THREE_DAYS, {"keep": 0.1}, 0.95, 0.0),
    "20 %": (THREE_DAYS, {"keep": 0.2}, 0.95, 0.0),
    "stop at 80 %": (THREE_DAYS, {"keep": 0.0, "stop_at": 0.8}, 0.76, 1.0),
    "5 % of both": (TWO_WEEKS, {"keep": 0.05}, 0.98, 0.003),
    "10 % of both": (TWO_WEEKS, {"keep": 0.1}, 0.98, 0.0),
    "20 % of both": (TWO_WEEKS, {"keep": 0.2}, 0.98, 0.0),
    "both, spread": (TWO_WEEKS, {"keep": 0.0, "spread": "7d"}, 0.98, 0.001),
    "both, stop at 80 %": (TWO_WEEKS, {"keep": 0.0, "stop_at": 0.8}, 0.78, 1.0),
    "5 % beside a third": (A_THIRD, {"keep": 0.05}, 0.90, 0.027),
    "10 % beside a third": (A_THIRD, {"keep": 0.1}, 0.84, 0.01),
    "20 % beside a third": (A_THIRD, {"keep": 0.2}, 0.76, 0.001),
    "spread beside a third": (A_THIRD, {"keep": 0.0, "spread": "7d"}, 0.70, 0.001),
    "stop beside a third": (A_THIRD, {"keep": 0.0, "stop_at": 0.8}, 0.71, 1.0),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_each_window_is_left(name):
    """To a person, whose very first request alone may meet a window that is used up; or to another device."""
    row, plans, work, late = PARTS[name]
    known, ours = run(row, paced=False), run(replace(row, plans=plans))
    share, waited = ours.provider.charged / known.provider.charged, sum(wait_s > 600 for wait_s in ours.person_s[1:])
    said = f"{share:.3f} of the work, {ours.refused_a_week:.0f} refused a week, {waited} of {len(ours.person_s)} waited"
    assert work <= share <= (0.82 if "stop_at" in plans else 1.01), said
    assert waited <= late * len(ours.person_s), said


@pytest.mark.soak
def test_a_rate_whose_refusals_ask_for_a_quarter_of_an_hour():
    """60 a minute: its refusals teach a rate, once three waits were far too long."""
    row = Row((("1m", 60.0, 1.0, ()),), form="unnamed", first=False, cap=60.0, days=0.5, says_s=lambda _: 900.0)
    known, ours = run(row, paced=False), run(row)
    assert ours.provider.charged / known.provider.charged >= 0.81


@pytest.mark.parametrize("name", some([*SHORT], "one window", "refusals alone"))
def test_a_few_requests_in_each_window(name):
    row, work, _, *bounds = WORLDS[name]
    row = replace(row, **{"days": 0.45, "cap": 120.0, "person": False} | SHORT[name])
    *_, a_window, said = check(row, work - 0.03, *bounds)
    assert a_window <= (35 if "half" in name else 22), said


@pytest.mark.long("a world of thousands of requests")
def test_a_clock_that_is_set_moves_no_end():
    """Back by two hours: this machine's, or the provider's forward."""
    left_s = []

    def is_set(_, provider):
        provider.row = replace(row, ahead_s=2 * HOUR)

    def look(limiter, provider):
        (shown,) = limiter.status()["plans"]
        left_s.append((shown["ends_s"], provider.windows[0].ends_s - provider.now_s))

    row = Row(days=0.45, cap=120.0, person=False)
    *_, a_window, said = check(row, 0.95, 17, 14, [(19, look), (20, is_set), (29, look), (2 * HOUR, look)])
    assert a_window <= 22, said
    assert [shown_s for shown_s, _ in left_s] == [pytest.approx(true_s, abs=5) for _, true_s in left_s]
