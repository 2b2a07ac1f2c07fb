"""What one window's requests weigh: alone, beside others, and where nothing can be told apart."""

import random

import pytest

from paceline.estimation.plan_weight import PlanWeight

W = 0.0004  # of a window, for one unit


def played(weight, *, minutes, own, others, seed=7):
    """Let a window be used for some minutes, and return the shares that are stated of it, and what the process has used."""
    chance, used, mine = random.Random(seed), 0.0, 0.0
    weight.begin(0.0, 0.0)
    for second in range(0, minutes * 60, 20):
        if chance.random() < own(second):
            amount = chance.expovariate(1.0)
            weight.use(amount)
            used, mine = used + W * amount, mine + W * amount
        used += others(second) * W * 20
        weight.read(int(used * 100) / 100, second + 20.0)
    return used, mine


@pytest.fixture
def weight():
    return PlanWeight()


def test_alone_all_that_rises_is_our_own(weight):
    _, mine = played(weight, minutes=300, own=lambda _: 0.9, others=lambda _: 0.0)
    assert weight.weight == pytest.approx(W, rel=0.06)
    assert mine > 0.2
    assert weight.is_known


@pytest.mark.parametrize("seed", range(6))
def test_others_are_told_apart_where_our_own_traffic_comes_in_turns(weight, seed):
    played(weight, minutes=300, own=lambda s: 0.9 * (s // 1800 % 2), others=lambda _: 0.02, seed=seed)
    assert weight.weight == pytest.approx(W, rel=0.25)


def test_of_a_window_that_others_alone_use_nothing_is_ours(weight):
    played(weight, minutes=120, own=lambda _: 0.0, others=lambda _: 0.05)
    assert (weight.weight, weight.is_known) == (0.0, False)


def test_the_next_window_begins_with_what_the_last_one_has_shown(weight):
    played(weight, minutes=300, own=lambda _: 0.9, others=lambda _: 0.0)
    before = weight.weight
    weight.begin(0.0, 20_000.0)
    weight.use(1.0)
    weight.read(0.0, 20_010.0)
    assert weight.weight == pytest.approx(before, rel=0.05)
    assert weight.is_known


def test_little_that_was_seen_says_nothing_of_what_a_request_weighs(weight):
    weight.begin(0.62, 0.0)
    weight.use(9.0)
    weight.read(0.63, 60.0)
    assert (weight.weight, weight.is_known) == (pytest.approx(0.01 / 9), False)
