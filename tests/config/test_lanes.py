"""Lanes from the configuration; and why three phases over two models need weights and nothing else."""

import pytest

import paceline
from paceline import Limiter
from paceline.config import Config
from paceline.core.queue import LANES_MAX, Lanes, LaneSpec
from paceline.core.results import SettingsError
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

    def test_a_limiter_takes_specs(self):
        limiter = paceline.Limiter({"jobs": "1 requests/s"}, lanes=[LaneSpec("wrap", 4)])
        with paceline.lane("wrap"):
            assert lane_of(limiter) == LaneSpec("wrap", 4)

    def test_the_same_words_give_the_same_object(self):
        lanes = Lanes([LaneSpec("wrap", 4)])
        assert lanes["wrap", None, None] is lanes["wrap", None, None]
        for number in range(3 * LANES_MAX):
            assert lanes[f"lane-{number}", None, None].weight == 1
        assert len(lanes) <= LANES_MAX

    @pytest.mark.parametrize("priority", ["1", float("nan"), 0.5, None])
    def test_a_priority_that_is_none_is_refused_where_it_is_said(self, priority):
        with pytest.raises(SettingsError, match=f"priority of lane 'wrap' is {priority!r}: it must be a whole number"):
            LaneSpec("wrap", priority=priority)

    def test_a_weight_that_gives_no_share_is_refused_where_it_is_said(self):
        with pytest.raises(SettingsError, match="weight of lane 'wrap' is '2'"):
            LaneSpec("wrap", "2")
        with pytest.raises(SettingsError, match="weight of lane 'wrap'"), paceline.lane("wrap", weight=0):
            pass
