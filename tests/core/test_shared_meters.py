"""What sharing needs of single meters: what was used, what others may have spent, what of it a process may spend alone."""

from __future__ import annotations

import math

import pytest
from core_worlds import T0, quota

from paceline.core.meters import new_meter
from paceline.core.quota import NS
from paceline.shared.meters import OTHERS_SPEED, of


@pytest.fixture
def spread():
    return new_meter(quota("60 requests/min sliding"), T0, 0.0)


def test_what_was_charged_just_now_is_of_the_latest_eighth(spread):
    spread.charge(T0, 5.0)
    assert of(spread).recalled(spread, T0) == [5.0] + [0.0] * 7


def test_the_stores_sum_is_taken_to_the_last_digit(spread):
    for second, amount in enumerate((0.1, 0.2)):
        spread.charge(T0 + second * NS, amount)
    of(spread).stand(spread, T0 + 2 * NS, 0, 0.2, math.inf)
    assert spread.log.used == 0.2


@pytest.mark.parametrize(("share", "used"), [(7 / 8, 5), (1.0, 2)])
def test_with_the_whole_share_the_slots_of_others_do_not_count(share, used):
    m = new_meter(quota("10 concurrency"), T0, 0.0)
    m.charge(T0, 5.0)
    assert of(m).alone(m, T0, share, 2.0, T0, T0).used == used


def test_others_have_spent_what_a_burst_may_since_the_last_reply():
    m = new_meter(quota("60 units/min"), T0, 0.0)
    assert of(m).alone(m, T0 + NS, 1.0, 0.0, T0, T0 + NS).level(T0 + NS) == 60 - OTHERS_SPEED


def test_a_cost_that_fits_the_whole_fits_a_part_later():
    m = new_meter(quota("60 units/min"), T0, 0.0)
    assert of(m).part(m, T0, 0.5).most == 60
