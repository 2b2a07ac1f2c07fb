"""Lanes from the configuration; and why three phases over two models need weights and nothing else."""

import pytest

import paceline
from paceline import Limiter
from paceline.config import Config
from paceline.core.queue import LaneSpec
from paceline.testing import ManualClock


@pytest.fixture
def limiter():
    lanes = {"wrap": {"weight": 4, "priority": 2}, "default": {"priority": -1}}
    said = {"lanes": lanes, "limits": {"jobs": "60 requests/min"}}
    return Limiter(**Config().having(said, "test").arguments(), clock=ManualClock())


def lane_of(limiter, **options):
    return limiter.acquire("jobs", **options)._waiter.lane


class TestSettings:
    def test_who_only_names_a_lane_gets_what_is_configured(self, limiter):
        with paceline.lane("wrap"):
            assert lane_of(limiter) == LaneSpec("wrap", 4, 2)
        assert lane_of(limiter, lane="wrap") == LaneSpec("wrap", 4, 2)
        with paceline.lane("other"):
            assert lane_of(limiter) == LaneSpec("other", 1, 0)
        assert lane_of(limiter) == LaneSpec("default", 1, -1)

    def test_who_says_more_is_heard(self, limiter):
        for said, spec in (
            ({"weight": 1}, LaneSpec("wrap", 1, 2)),
            ({"priority": 0}, LaneSpec("wrap", 4, 0)),
            ({"weight": 1, "priority": 0}, LaneSpec("wrap", 1, 0)),
        ):
            with paceline.lane("wrap", **said):
                assert lane_of(limiter) == spec
        assert lane_of(limiter, lane=LaneSpec("wrap")) == LaneSpec("wrap", 1, 0)
