"""Fifty real processes before a provider that counts: ten come late, twelve are ended by a signal."""

import signal
import subprocess
import sys
import textwrap
import time
from contextlib import ExitStack

import pytest

from waits import until

PER_S = 20.0
PROCESSES, LATE, ENDED = 50, 10, 12
LATE_S, ENDED_S, END_S = 10.0, 20.0, 50.0

WORKER = textwrap.dedent("""
    import sys, threading
    import httpx2, paceline

    limiter = paceline.Limiter({"jobs": "1200 requests/min burst 60"}, store=sys.argv[1], on_store_failure=sys.argv[3])
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}

    def work():
        with httpx2.Client(base_url=sys.argv[2], headers={"authorization": "Bearer any"}) as client:
            while True:
                limiter.acquire("jobs", timeout=600).wait().settle()
                client.post("/v1/chat/completions", json=body)

    for _ in range(2):
        threading.Thread(target=work).start()
""")


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["fail_safe", "fail_closed"])
@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_those_that_go_take_nothing_along(kind, mode, paceline_emulator, redis_server, tmp_path):
    limits = {"m": "1200 requests/min quantised"}
    emulator = paceline_emulator(limits=limits, quantum_s=3.0, latency_s=0.0, process=True)  # a burst of 60
    url = redis_server.url if kind == "redis" else f"sqlite:{tmp_path}/quotas.db"
    command = [sys.executable, "-c", WORKER, url, emulator.base_url, mode]
    with ExitStack() as stack:

        def start(count):
            found = [stack.enter_context(subprocess.Popen(command)) for _ in range(count)]
            for one in found:
                stack.callback(one.kill)
            return found

        early = start(PROCESSES - LATE)
        until(lambda: emulator.tally()["admitted"] >= PER_S, "the first second")
        begun_s = time.monotonic()
        time.sleep(LATE_S)
        start(LATE)
        time.sleep(begun_s + ENDED_S - time.monotonic())
        before = emulator.tally()["admitted"]
        for n, one in enumerate(early[:ENDED]):
            one.send_signal(signal.SIGTERM if n % 2 else signal.SIGKILL)
        time.sleep(begun_s + END_S - time.monotonic())
        tally = emulator.tally()
    use = (tally["admitted"] - before) / (PER_S * (END_S - ENDED_S))
    sys.stdout.write(f"{kind}, {mode}: {use:.3f} of the quota used, {tally['refused_total']} refused\n")  # pytest -rP
    assert use >= 0.95
    assert tally["refused_total"] == 0
