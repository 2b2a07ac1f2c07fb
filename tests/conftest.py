"""Property tests play the same examples every time, `make test-all` more of them; the profile `soak` looks for new ones."""

import asyncio
import gc
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvicorn.server
from hypothesis import HealthCheck, settings

from cost import Costs
from grids import sample

settings.register_profile(
    "paceline", deadline=None, derandomize=True, max_examples=20, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("all", settings.get_profile("paceline"), max_examples=50)
settings.register_profile("soak", settings.get_profile("paceline"), derandomize=False, max_examples=5_000)
# `make mutants`: a test runs several times in one process.
again = [HealthCheck.too_slow, HealthCheck.differing_executors]
settings.register_profile("mutants", settings.get_profile("paceline"), max_examples=25, suppress_health_check=again)
settings.load_profile("paceline")

# Tests are rewritten once, and not by each worker of each run: that takes two thirds of a collection.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # for the processes that a test starts

# A shell's background job ignores Ctrl-C, and so would every process that these tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["frameworks"]  # each in an environment of its own: `make frameworks`

# No test leaves the machine: a client reads one certificate, in 0.3 ms, and not those of the system, in 20 ms.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority.pem"))

# No test outlives a loss of power: the disk would be waited for 5,000 times, 3 ms each.
os.fsync = lambda _: None

# uvicorn looks every 0.1 s whether it is to stop, and then waits as long: here a twentieth, in each of 1,000 tests.
uvicorn.server.asyncio = SimpleNamespace(**vars(asyncio) | {"sleep": lambda delay: asyncio.sleep(delay / 20)})


def pytest_addoption(parser):
    parser.addoption("--cpu-limit", type=float, default=0.0, help="CPU seconds that a test without a marker may take")


def pytest_configure(config):
    config.pluginmanager.register(Costs(config.getoption("--cpu-limit")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    sample(items)  # before those are left out that are marked


def pytest_collection_finish():
    gc.collect()
    gc.freeze()


# No test sees the settings and the facts of the user who runs it, and its processes inherit these.
for name in [name for name in os.environ if name.startswith("PACELINE_")]:
    del os.environ[name]
os.environ["PACELINE_FACTS"] = str(Path(__file__).with_name("facts"))


@pytest.fixture(autouse=True)
def own_state():
    """What paceline keeps for a process, and what a test has left open, ends with that test."""
    yield
    facts = sys.modules.get("paceline.facts")
    if facts is not None and facts._projects:  # of a project's settings
        facts._projects.clear()
        facts.forget()
    if (partitions := sys.modules.get("paceline.data.partition")) is not None and partitions._current:
        for one in partitions._current:
            one.close()
        partitions._current.clear()
        partitions._Paced.instrumented = None
        sys.modules["paceline.http.instrument"].newest("all")
    if "paceline.http.unpaced" in sys.modules:  # announced once in a process, and counted in the status
        sys.modules["paceline.http.unpaced"].kinds.clear()
    if (lines := sys.modules.get("paceline.pacing.lines")) is not None:  # summed up a minute later, in another test
        for one in list(lines._summing):
            one._refusals.clear()
        lines._summing.clear()
    # What is open is this test's failure, not the next one's. What is alive by now is not looked at again: a collection
    # takes as long as the test has made objects.
    gc.collect()
    gc.freeze()


@pytest.fixture
def clock():
    """A clock that stands still until the test moves it, or ``virtual`` of ``virtual_time.py`` does."""
    from paceline.testing import ManualClock

    return ManualClock()


@pytest.fixture
def short_probes(monkeypatch):
    """A probe that is refused holds its pool for 10 ms, and not for 2 s."""
    from paceline.core.pause import Pause  # not before coverage is measured
    from paceline.core.quota import NS

    monkeypatch.setattr(Pause.granted, "__defaults__", (NS // 100,))
