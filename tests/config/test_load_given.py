"""Settings that a program passes when it loads its limiter: they beat the environment and the file."""

import pytest
from config_helpers import load_limiter

import paceline
from paceline.stores import open_store
from paceline.testing import ManualClock

FILE = """
provider = "openai"
acquire_timeout_s = 300
[limits]
"gpt-5" = "500 requests/min"
"gpt-5-mini" = "500 requests/min"
[concurrency]
openai = 10
default = 3
"""


def quotas(limiter, name):
    return [str(quota) for quota in limiter.limits.resolve(name).quotas]


def test_limits_and_slots_are_added_entry_by_entry(write):
    given = {"limits": {"gpt-5": "7 requests/min"}, "concurrency": {"openai": 2}}
    limiter = load_limiter(write(FILE), {}, **given)
    assert quotas(limiter, "gpt-5") == ["7 requests/min", "2 concurrency"]
    assert quotas(limiter, "gpt-5-mini") == ["500 requests/min", "2 concurrency"]


def test_a_store_itself(write, tmp_path):
    limiter = load_limiter(write(FILE), {}, store=open_store(f"sqlite:{tmp_path}/quotas.db"))
    limiter.acquire("gpt-5").wait().settle()
    assert limiter.status()["pools"]["openai/gpt-5"]["store"]["state"] == "joined"
    limiter.close()
    assert (tmp_path / "quotas.db").exists()


def test_a_clock_and_a_listener(write):
    told = []
    clock = ManualClock()
    limiter = load_limiter(write(FILE), {}, clock=clock, events=told.append)
    assert limiter.pacer.clock is clock
    limiter.acquire("gpt-5").wait().settle()
    assert [(event.kind, event.pool) for event in told] == [("acquired", "openai/gpt-5"), ("settled", "openai/gpt-5")]


def test_without_a_file_they_are_the_configuration():
    assert quotas(load_limiter(None, {}, limits={"jobs": "5 requests/min"}), "jobs") == ["5 requests/min"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"teir": 2}, "the arguments: teir: no such setting; did you mean 'tier'?"),
        ({"store": "mysql://host"}, "the arguments: store: no store is called 'mysql'"),
    ],
)
def test_what_cannot_be_meant_is_said(write, given, said):
    with pytest.raises(paceline.SettingsError) as error:
        load_limiter(write(FILE), {}, **given)
    assert said in str(error.value)
