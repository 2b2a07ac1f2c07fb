"""What the tests of engines share: a provider that is not ours, the environment of workers, a worker that is killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

HERE = Path(__file__).parent
RATE, LATENCY_S = 20, 1.0
KILL_AT = 200


class Provider:
    """The process of ``provider.py``."""

    def __init__(self):
        command = [sys.executable, str(HERE / "engine_provider.py"), str(RATE), str(LATENCY_S)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def tally(self):
        with urlopen(f"{self.url}/tally") as answer:
            return json.load(answer)

    def close(self):
        self.process.kill()
        self.process.communicate()


@contextmanager
def provider_for_workers(store):
    """A provider whose address, key and limit are in the environment, as is the store."""
    with closing(Provider()) as one:
        environment = {
            "PACELINE_STORE": store,
            "PACELINE_LIMITS__OPENAI__GPT_5": f"{RATE} requests/s",
            "PACELINE_PROVIDER": "openai",
            "OPENAI_API_KEY": "sk-a-key",
            "OPENAI_BASE_URL": f"{one.url}/v1",
            "PYTHONPATH": str(HERE),
            "JOURNAL": uuid.uuid4().hex,
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            yield one


def until(condition, most_s=120):
    deadline_s = time.monotonic() + most_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return value


class Killer(threading.Thread):
    """Kills one of the processes of ``victims()`` in the middle of the job.

    Attributes:
        in_flight: What was in flight then, in all of them.
        calls: How many requests the provider had admitted by then.
    """

    def __init__(self, provider, victims):
        super().__init__(daemon=True)
        self.provider, self.victims, self.in_flight, self.calls = provider, victims, None, None

    def run(self):
        until(lambda: self.provider.tally()["calls"] >= KILL_AT)
        tally = self.provider.tally()
        self.in_flight, self.calls = tally["in_flight"], tally["calls"]
        os.kill(self.victims()[0], signal.SIGKILL)


def check(provider, killer, rows, results, capsys, name, started_s):
    """Each row once in the results, next to no refusal, and no more paid twice than was in flight."""
    tally = provider.tally()
    with capsys.disabled():
        print(f"\n{name}: {time.monotonic() - started_s:.0f} s, {killer.in_flight} in flight at the kill, {tally}")  # noqa: T201
    assert sorted(row["id"] for row in results) == list(range(rows))
    assert all(row["answer"] == f"answer to row {row['id']}" for row in results)
    assert tally["rows"] == rows
    assert tally["refused"] <= rows // 50  # 0; 6 where a machine with two cores has twenty processes that work
    assert killer.in_flight is not None
    assert tally["twice"] <= killer.in_flight
    assert tally["used"] > 0.5  # 0.92 on a quiet machine


def children(pid):
    """The processes below one, the oldest first."""
    own = [int(one) for path in Path(f"/proc/{pid}/task").iterdir() for one in (path / "children").read_text().split()]
    return own + [below for one in own for below in children(one)]


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return ""
