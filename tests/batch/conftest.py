import os

import pytest
from batch_helpers import FAST, start
from batch_times import KEYS, SOON

import paceline
from paceline.batch import offline
from paceline.batch.index import Index
from paceline.emulator import Emulator


@pytest.fixture(scope="module")
def server():
    with Emulator(limits={"*": FAST}) as emulator:
        yield emulator


@pytest.fixture
def emulator(server):
    """A fresh emulator with fast limits, at no latency."""
    usual = {"faults": {}, "valid_key": None, "money_after": None, "batches": {}, "dialect": "", "limits": {"*": FAST}}
    server.reset(latency_s=0.0, **usual)
    return server


@pytest.fixture
def timing(monkeypatch):
    """Runs in batches that wait for short times; a call changes some of these."""

    def change(**changed):
        monkeypatch.setattr(offline, "TIMING", offline.Timing(**SOON | changed))

    change()
    return change


@pytest.fixture
def ask(emulator, monkeypatch):
    """`paceline.run` at the emulator."""
    monkeypatch.setenv("OPENAI_API_KEY", KEYS["OPENAI_API_KEY"])

    def ask(rows, **options):
        settings = {"base_url": emulator.base_url, "limits": {"*": FAST}, "model": "gpt-5", "progress": False}
        return paceline.run(rows, **settings | options)

    return ask


@pytest.fixture
def command():
    """Start `paceline run` in processes of their own, none of which outlives the test."""
    processes = []

    def run(*args, **options):
        processes.append(start(*args, **options))
        return processes[-1]

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory, monkeypatch):
    """A user with no state and no settings, whoever runs the tests."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    for name in [name for name in os.environ if name.startswith("PACELINE_") and name != "PACELINE_FACTS"]:
        monkeypatch.delenv(name)
    return home / "state"


@pytest.fixture(autouse=True)
def closed_indexes(monkeypatch):
    """Close every index that a test made."""
    made, init = [], Index.__init__

    def remember(self):
        init(self)
        made.append(self)

    monkeypatch.setattr(Index, "__init__", remember)
    yield
    for index in made:
        index.close()
