"""Fifty real processes before a server that counts by itself: ten come late, twelve are ended by a signal."""

import signal
import socketserver
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import ExitStack

import pytest

from waits import join, started

PER_S, BURST = 20.0, 60.0
PROCESSES, LATE, ENDED = 50, 10, 12
LATE_S, ENDED_S, END_S = 10.0, 20.0, 50.0

WORKER = textwrap.dedent("""
    import socket, sys, threading
    import paceline

    limiter = paceline.Limiter({"jobs": "1200 requests/min burst 60"}, store=sys.argv[1], on_store_failure=sys.argv[3])

    def work():
        while True:
            limiter.acquire("jobs", timeout=600).wait().settle()
            with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as connection:
                connection.recv(1)

    for _ in range(2):
        threading.Thread(target=work).start()
""")


class Counting(socketserver.ThreadingTCPServer):
    """A token bucket, written here: a connection is a request."""

    daemon_threads = True
    request_queue_size = 1_000

    def __init__(self):
        super().__init__(("127.0.0.1", 0), None)
        self.level, self.at_s, self.guard = BURST, time.monotonic(), threading.Lock()
        self.admitted, self.refused = [], []

    def finish_request(self, request, _):
        now_s = time.monotonic()
        with self.guard:
            self.level, self.at_s = min(self.level + PER_S * (now_s - self.at_s), BURST), now_s
            fits = self.level >= 1
            self.level -= fits
            (self.admitted if fits else self.refused).append(now_s)
        request.sendall(b"1" if fits else b"0")


@pytest.fixture
def server():
    with Counting() as server:
        thread = started(server.serve_forever)
        yield server
        server.shutdown()
        join(thread)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["fail_safe", "fail_closed"])
@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_those_that_go_take_nothing_along(kind, mode, server, redis_server, tmp_path):
    url = redis_server.url if kind == "redis" else f"sqlite:{tmp_path}/quotas.db"
    command = [sys.executable, "-c", WORKER, url, str(server.server_address[1]), mode]
    with ExitStack() as stack:

        def start(count):
            found = [stack.enter_context(subprocess.Popen(command)) for _ in range(count)]
            for one in found:
                stack.callback(one.kill)
            return found

        early = start(PROCESSES - LATE)
        while len(server.admitted) < PER_S:
            time.sleep(0.1)
        begun_s = time.monotonic()
        time.sleep(LATE_S)
        start(LATE)
        time.sleep(begun_s + ENDED_S - time.monotonic())
        for n, one in enumerate(early[:ENDED]):
            one.send_signal(signal.SIGTERM if n % 2 else signal.SIGKILL)
        time.sleep(begun_s + END_S - time.monotonic())
        sent = sum(begun_s + ENDED_S <= at_s < begun_s + END_S for at_s in server.admitted)
    use = sent / (PER_S * (END_S - ENDED_S))
    sys.stdout.write(f"{kind}, {mode}: {use:.3f} of the quota used, {len(server.refused)} refused\n")  # pytest -rP
    assert use >= 0.95
    assert len(server.refused) == 0
