"""A pause after which others follow the beginning and the end of each answer: what may go, and when."""

import pytest

from paceline.core.pause import PROBE_NS, Pause, PausePhase
from paceline.core.quota import NS

MINUTE_NS = 60 * NS


@pytest.fixture
def pause():
    pause = Pause()
    pause.begin(100, opens_ns=MINUTE_NS)
    return pause


def go(pause, now_ns, count):
    """Let as many go as may, at most ``count``; returns them."""
    gone = []
    while len(gone) < count and now_ns >= pause.until_ns:
        gone.append(object())
        if pause.counts:
            pause.granted(now_ns, gone[-1])
    return gone


@pytest.mark.parametrize(
    ("ends", "expected"),
    [((True,), [1, 2, 4, 8, 16]), ((False,), [1, 2, 2, 2, 2]), ((False, False, True), [1, 3, 6, 12, 24])],
)
def test_one_follows_the_beginning_of_an_answer_and_one_its_end(pause, ends, expected):
    """Two the beginning of the first one's."""
    assert not go(pause, 99, 9)
    waves, now_ns = [go(pause, 100, 99)], 100
    for _ in range(4):
        now_ns += NS
        waves.append([])
        for attempt in waves[-2]:
            for ended in ends:
                pause.answered(now_ns, attempt, ended=ended)
                waves[-1] += go(pause, now_ns, 99)
    assert ([len(wave) for wave in waves], pause.phase) == (expected, PausePhase.OPENING)


def test_it_is_over_when_none_waits(pause):
    [probe] = go(pause, 100, 9)
    pause.answered(200, probe)
    [one] = go(pause, 200, 1)
    pause.answered(300, one)
    assert len(go(pause, 300, 99)) == 2  # what was unused does not add up
    pause.empty()
    assert pause.phase is PausePhase.OPEN
    assert len(go(pause, 300, 99)) == 99
    pause.begin(400)  # a common pause follows
    assert len(go(pause, 400, 99)) == 1
    assert pause.until_ns == 400 + PROBE_NS


def test_another_goes_in_the_place_of_one_that_was_not_sent(pause):
    pause.unsent(101, *go(pause, 100, 1))
    assert pause.phase is PausePhase.CLOSED
    [probe] = go(pause, 101, 9)
    pause.answered(200, probe)
    one, _ = go(pause, 200, 9)
    pause.unsent(201, one)
    assert len(go(pause, 201, 9)) == 1


def test_an_answer_that_does_not_come_holds_the_others_back_for_a_minute(pause):
    [probe] = go(pause, 100, 9)
    [second] = go(pause, 100 + MINUTE_NS, 9)
    assert pause.probe is second
    pause.answered(101 + MINUTE_NS, probe)  # late
    assert len(go(pause, 101 + MINUTE_NS, 9)) == 2
    assert len(go(pause, 101 + 2 * MINUTE_NS, 9)) == 1


def test_a_short_pause_in_between_lets_one_go_at_its_end(pause):
    """As a silence: it is over without a probe."""
    [probe] = go(pause, 100, 9)
    pause.answered(200, probe)
    pause.begin(300)
    pause.lift(250, 300)
    assert len(go(pause, 250, 9)) == 1


@pytest.mark.parametrize(("first", "second"), [((4, 200), (1, 10)), ((1, 200), (4, 10)), ((1, 10), (4, 200))])
def test_of_pauses_in_force_together_the_probe_has_the_longest_time(first, second):
    pause = Pause()
    for until_s, probe_ns in (first, second):
        pause.begin(until_s * NS, probe_ns=probe_ns)
    pause.granted(4 * NS, "probe")
    assert pause.until_ns == 4 * NS + 200
    pause.begin(6 * NS, probe_ns=10)  # the probe is out, so that this pause is another one
    pause.granted(6 * NS, "next")
    assert pause.until_ns == 6 * NS + 10
