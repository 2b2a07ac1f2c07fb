"""The sections `starts` and `priorities`: limits on the starts of agents, with the words of their author."""

import pytest

import paceline
from paceline.config import Config
from paceline.core.results import SettingsError
from paceline.testing import ManualClock

SEED = """
starts:
  gemini: {max_starts: 7, time_window: 60}
  gemini/gemini-2.5-pro: {max_starts: 2, time_window: 60}
  claude: {max_starts: 20, time_window: 60, mode: even, burst: 5}
  openai: off
priorities:
  "coordinator*": 10
  reviewer: 5
"""


@pytest.fixture
def file(write):
    return write(SEED, "starts.yaml")


def test_each_backend_has_a_limit(file):
    limits = {
        name: [str(quota) for quota in quotas] for name, quotas in paceline.Limiter.load(file).limits.given.items()
    }
    assert limits == {
        "starts/gemini": ["7 starts/min exact"],
        "starts/gemini/gemini-2.5-pro": ["2 starts/min exact"],
        "starts/claude": ["20 starts/min burst 5 even"],
    }


def test_an_argument_removes_a_limit_of_the_file(file):
    limiter = paceline.Limiter.load(file, starts={"gemini": False, "openai": {"max_starts": 1, "time_window": 5}})
    assert "starts/gemini" not in limiter.limits.given
    assert [str(quota) for quota in limiter.limits.given["starts/openai"]] == ["1 starts/5s exact"]


def test_a_name_gives_a_priority_outside_of_lanes(file):
    limiter = paceline.Limiter.load(file, clock=ManualClock())

    def lane_of(**options):
        return limiter.acquire("starts/gemini", starts=1, **options)._waiter.lane

    assert (lane_of(name="coordinator_2").priority, lane_of(name="reviewer").priority) == (10, 5)
    assert lane_of(name="agent") == lane_of() == paceline.LaneSpec()
    with paceline.lane("wrap"):
        assert lane_of(name="coordinator_2") == paceline.LaneSpec("wrap")
    assert lane_of(name="coordinator_2", lane="wrap") == paceline.LaneSpec("wrap")


@pytest.mark.parametrize("priority", ["high", 0.5, True])
def test_a_priority_is_a_whole_number(priority):
    with pytest.raises(SettingsError, match=r"coordinator.*whole number"):
        paceline.Limiter({"starts": "7 starts/min exact"}, priorities={"coordinator*": priority})
    with pytest.raises(SettingsError, match=r"priorities\.coordinator.*a whole number from -1,000,000 to 1,000,000"):
        Config().having({"priorities": {"coordinator": priority}}, "x.yaml")


@pytest.mark.parametrize(
    ("its", "said"),
    [
        (7, r"starts\.gemini: 7: write a table, e.g. max_starts = 7, time_window = 60; or off"),
        ({"max_start": 7}, r"starts\.gemini\.max_start: no such setting; did you mean 'max_starts'"),
        ({"max_starts": 0, "time_window": 60}, r"starts\.gemini\.max_starts: 0: it must be a number from 1 to"),
        ({"max_starts": True, "time_window": 60}, r"starts\.gemini\.max_starts: True: it must be a number"),
        ({"max_starts": 7}, r"starts\.gemini: it has no time_window: write e.g. max_starts = 7, time_window = 60"),
        ({"max_starts": 7, "time_window": "1h"}, r"starts\.gemini\.time_window: '1h': it must be seconds from"),
        ({"max_starts": 7, "time_window": 60, "mode": "odd"}, r"starts\.gemini\.mode: 'odd': it must be 'window' or"),
        ({"max_starts": 7, "time_window": 60, "burst": 3}, r"burst is 3.*: it is for mode even"),
        ({"max_starts": 7, "time_window": 60, "mode": "even", "burst": 8}, r"burst is 8.*at most max_starts"),
    ],
)
def test_an_error_names_the_place_and_what_would_be_right(its, said):
    with pytest.raises(SettingsError, match=said):
        Config().having({"starts": {"gemini": its}}, "x.yaml")
