"""Real processes that share a quota before one emulated provider; none of them outlives its ``with``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")
BOUND_S = 60.0


class Crew:
    """``count`` processes of ``workers`` each that send ``requests`` in all.

    Args:
        emulator: Where to; its latency is not counted as waiting.
        store: The URL of the store.
        quotas: What they are told.
        config: Of each worker process, see ``worker.py``.
    """

    def __init__(self, emulator, store, quotas, *, count=4, workers=25, requests=400, bound_s=BOUND_S, **config):
        self.emulator, self.bound_s = emulator, bound_s
        self._stack = ExitStack()
        self._configs = [
            {
                "name": f"p{number}",
                "emulator": emulator.base_url,
                "latency_s": emulator.settings.latency_s,
                "store": store,
                "quotas": quotas,
                "workers": workers,
                "requests": requests // count,
                **config,
            }
            for number in range(count)
        ]
        self.processes = []

    def __enter__(self):
        with self._stack:
            for config in self._configs:
                command = [sys.executable, str(WORKER), json.dumps(config)]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                self.processes.append(process)
                self._stack.callback(end, process)
            for process in self.processes:
                assert process.stdout.readline() == "ready\n"
            for process in self.processes:
                process.stdin.write("go\n")
                process.stdin.flush()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def admitted(self, count):
        """Wait until the provider has let so many in."""
        deadline_s = time.monotonic() + self.bound_s
        while self.emulator.tally()["admitted"] < count:
            assert time.monotonic() < deadline_s, f"{count} were not admitted"
            time.sleep(0.02)

    def kill(self, number):
        self.processes[number].kill()
        self.processes[number].wait()
        return self._configs[number]["requests"]

    def results(self):
        """What each process says that ends by itself, and what the provider has seen; nobody may have lost a request."""
        deadline_s = time.monotonic() + self.bound_s
        alive = [(p, c) for p, c in zip(self.processes, self._configs, strict=True) if p.returncode is None]
        results = []
        for process, config in alive:
            said, _ = process.communicate(timeout=max(deadline_s - time.monotonic(), 0.1))
            assert process.returncode == 0
            result = json.loads(said.splitlines()[-1])
            assert result["failed"] == [], (config["name"], result["failed"][:3], len(result["failed"]))
            assert len(result["waits_s"]) == config["requests"]
            results.append(result)
        tally = self.emulator.tally()
        assert tally["answers"]["most"] == 1
        assert tally["answers"]["distinct"] >= sum(config["requests"] for _, config in alive)
        return results, tally


def end(process):
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
