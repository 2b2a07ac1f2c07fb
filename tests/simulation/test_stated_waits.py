"""One process before a provider whose refusals state waits that are absurd, or that contradict each other."""

import re

import pytest
from tests.simulation.fleet import UNKNOWN, Fleet

from grids import some
from paceline.emulator.wire import Dialect, HttpAnswer
from paceline.emulator.world import World

WINDOW = "30 requests/15s window"
BUCKET = "10 requests/10s"


def run(monkeypatch, told, true, jobs, seed, header_s, text_s=None):
    """The refusals, and the seconds; ``header_s`` and ``text_s``: the waits that a refusal states, from the true one."""

    def refusal(self, refused, settings, serial):
        status, headers, body = refusal_as_written(self, refused, settings, serial)
        if text_s is not None:
            said = rb'\1 Please try again in %.1fs."' % text_s(refused.wait_s)
            body = re.sub(rb'(Rate limit reached[^"]*)"', said, body)
        wait_s, other = header_s(refused.wait_s), [one for one in headers if not one[0].startswith(b"retry-after")]
        in_s, in_ms = (b"retry-after", b"%d" % wait_s), (b"retry-after-ms", b"%d" % (1_000 * wait_s + 1))
        return HttpAnswer(status, [*other, in_s if wait_s >= 60 else in_ms], body)

    refusal_as_written = Dialect.refusal
    monkeypatch.setattr(Dialect, "refusal", refusal)
    monkeypatch.setattr(World, "levels", lambda *_: [])  # the headers state nothing but the waits
    settings = {"limits": {"m": true}, "body_numbers": False, "latency_s": 1.0, "jitter": 0.3}
    source = "assumed" if told == UNKNOWN else "given"
    fleet = Fleet(told, settings, source=source, jobs=jobs, workers=40, seed=seed, words=(20, 200))
    fleet.run(3_600)
    assert fleet.lost == 0
    return len(fleet.refused), fleet.admitted[-1][0]


@pytest.mark.parametrize("seed", some([1, 2], 1))
@pytest.mark.parametrize("told", [UNKNOWN, "600 requests/min", "120 requests/min"])
def test_a_day_that_a_window_of_15_s_states_costs_little(monkeypatch, told, seed):
    refused, took_s = run(monkeypatch, told, WINDOW, 150, seed, lambda _: 86_400.0)
    said = f"{refused} refused, {took_s:.1f} s"
    assert refused <= 5, said
    assert took_s <= 1.8 * 60, said


@pytest.mark.parametrize("seed", some([1, 2], 1))
@pytest.mark.parametrize(
    "told", [UNKNOWN, "6000 requests/min", "600 requests/min", "120 requests/min", "60 requests/min"]
)
def test_the_shorter_one_of_two_waits_is_kept_while_it_is_true(monkeypatch, told, seed):
    _, took_s = run(monkeypatch, told, BUCKET, 53, seed, lambda wait_s: wait_s, lambda _: 59.7)
    assert took_s <= 60, f"{took_s:.1f} s, where 43 s are ideal"


@pytest.mark.parametrize("seed", some([1, 2], 1))
def test_the_longer_one_of_two_waits_is_kept_where_the_shorter_one_is_too_short(monkeypatch, seed):
    """The first refusals look as if a bucket were refilled in a second, so that the rate of the window is measured."""
    true = "60 requests/min window"
    refused, took_s = run(monkeypatch, "600 requests/min", true, 200, seed, lambda _: 1.0, lambda wait_s: wait_s)
    said = f"{refused} refused, {took_s:.1f} s"
    assert refused <= 20, said
    assert took_s <= 215, said
