"""Real processes that share a quota before one emulated provider; none of them outlives its ``with``."""

from __future__ import annotations

import multiprocessing
import sys
import time
from contextlib import ExitStack

BOUND_S = 60.0

forks = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
if sys.platform != "win32":  # imported once, in the process that the others are forked from
    ours = (f"paceline.{name}" for name in ("http.attach", "limiter", "stores.redis", "stores.sqlite"))
    forks.set_forkserver_preload(["httpx2", "redis", *ours])


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
        self._processes, self._connections, self._killed = [], [], set()

    def __enter__(self):
        from worker import main

        with self._stack:
            for config in self._configs:
                ours, theirs = forks.Pipe()
                process = forks.Process(target=main, args=(config, theirs))
                self._stack.enter_context(ours)
                with theirs:
                    process.start()
                self._stack.callback(end, process)
                self._processes.append(process)
                self._connections.append(ours)
            for connection in self._connections:
                assert receive(connection, BOUND_S) == "ready"
            for connection in self._connections:
                connection.send("go")
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

    def told(self, state):
        """Wait until each process has said that it stands so with the store, of which it ``tells`` once."""
        for connection in self._connections:
            assert receive(connection, self.bound_s) == state

    def kill(self, number):
        end(self._processes[number])
        self._killed.add(number)
        return self._configs[number]["requests"]

    def results(self):
        """The results of each process that was not killed, and the provider's tally; no process may have lost a request."""
        deadline_s = time.monotonic() + self.bound_s
        alive = [number for number in range(len(self._processes)) if number not in self._killed]
        results = []
        for number in alive:
            process, config = self._processes[number], self._configs[number]
            result = receive(self._connections[number], deadline_s - time.monotonic())
            process.join(max(deadline_s - time.monotonic(), 0.1))
            assert process.exitcode == 0
            assert result["failed"] == [], (config["name"], result["failed"][:3], len(result["failed"]))
            assert len(result["waits_s"]) == config["requests"]
            results.append(result)
        tally = self.emulator.tally()
        assert tally["answers"]["most"] == 1
        assert tally["answers"]["distinct"] >= sum(self._configs[number]["requests"] for number in alive)
        return results, tally


def receive(connection, bound_s):
    assert connection.poll(max(bound_s, 0.1)), f"no message within {bound_s:.1f} s"
    return connection.recv()


def end(process):
    process.kill()
    process.join()
