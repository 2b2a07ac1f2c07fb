"""Servers and workers of other packages, with a client of the module that they serve: all is answered, and nothing refused."""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).parent

LIMIT = "600 requests/min burst 3"
"""12 requests take 0.9 s, and 9 of them wait."""

WORLD = {"rule": "quantised", "quantum_s": 0.6, "headers": False}
"""A world that holds 6 of them: requests that went at once would be refused."""

CALLS = 12
BOUND_S = 30
"""No test takes as long, but for one that hangs."""


@pytest.fixture
def provider(request, paceline_emulator, tmp_path, monkeypatch):
    """An independent count of what arrives; the environment of the programs, for one process or with a store for several."""
    slots = getattr(request, "param", [])
    limits = {"m": ["600 requests/min", *slots]}
    world = paceline_emulator(limits=limits, latency_s=0.25 if slots else 0, **WORLD)
    environment = {
        "PROVIDER": world.base_url,
        "LIMIT": ", ".join([LIMIT, *slots]),
        "PYTHONPATH": str(HERE),
        "TMPDIR": str(tmp_path),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    yield world
    tally = world.tally()
    assert (tally["admitted"], tally["refused_total"]) == (CALLS, 0)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("STORE", f"sqlite:{tmp_path}/quotas.db")


@pytest.fixture
def broker(redis_server, monkeypatch):
    redis_server.clear()
    monkeypatch.setenv("BROKER", redis_server.url)
    return redis_server.url


@contextmanager
def running(*module):
    """``python -m MODULE`` while the block runs. It must end by itself when it is asked to."""
    with subprocess.Popen([sys.executable, "-m", *module], cwd=HERE, start_new_session=True) as process:
        try:
            yield process
            process.terminate()
            process.wait(BOUND_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def served(process, path):
    """The statuses of :data:`CALLS` requests that are sent at once to the server on the socket ``path``."""
    deadline_s = time.monotonic() + BOUND_S
    while True:
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(path))
            break
        except OSError:
            time.sleep(0.02)

    def get(_):
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=BOUND_S) as client:
            return client.get("http://server/").status_code

    with ThreadPoolExecutor(CALLS) as threads:
        return list(threads.map(get, range(CALLS)))


GUNICORN = {
    "gevent --preload": ("-k", "gevent", "--preload", "app:wsgi"),
    "gthread": ("-k", "gthread", "--threads", "12", "app:wsgi"),
}


@pytest.mark.parametrize("options", GUNICORN.values(), ids=GUNICORN)
def test_gunicorn(provider, tmp_path, options):
    path = tmp_path / "socket"
    with running("gunicorn", *options, "--bind", f"unix:{path}") as process:
        assert served(process, path) == [200] * CALLS
    assert process.returncode == 0


@pytest.mark.parametrize("options", GUNICORN.values(), ids=GUNICORN)
def test_workers_of_gunicorn_share_a_store(provider, store, tmp_path, options):
    path = tmp_path / "socket"
    with running("gunicorn", "-w", "2", *options, "--bind", f"unix:{path}") as process:
        assert served(process, path) == [200] * CALLS
    assert process.returncode == 0


def test_workers_of_uvicorn_share_a_store(provider, store, tmp_path):
    path = tmp_path / "socket"
    options = ("--workers", "2", "--loop", "uvloop", "--uds", str(path), "--log-level", "warning")
    with running("uvicorn", *options, "app:asgi") as process:
        assert served(process, path) == [200] * CALLS


@pytest.mark.parametrize("pool", [("prefork", "-c", "3"), ("gevent", "-c", "12")], ids=lambda pool: pool[0])
def test_celery(provider, store, broker, pool):
    from jobs import ask

    with running("celery", "-A", "jobs", "worker", "-l", "ERROR", "-P", *pool):
        assert [one.get(timeout=BOUND_S) for one in [ask.delay() for _ in range(CALLS)]] == [200] * CALLS


def test_rq(provider, store, broker, redis_server):
    """Each job is a process of its own, which ends without the functions of atexit."""
    import app
    from redis import Redis
    from rq import Queue

    queue = Queue(connection=Redis.from_url(broker))
    jobs = [queue.enqueue(app.ask_often, 4) for _ in range(3)]
    with running("rq.cli", "worker-pool", "--burst", "-n", "3", "--url", broker, "--quiet") as process:
        process.wait(BOUND_S)
    assert [job.return_value() for job in jobs] == [[200] * 4] * 3


CELLS = (
    "import app\nfrom concurrent.futures import ThreadPoolExecutor",
    "with ThreadPoolExecutor(4) as threads:\n    first = list(threads.map(lambda _: app.ask(), range(4)))",
    "import asyncio\nsecond = await asyncio.gather(*[app.ask_async() for _ in range(4)])",
    "third = [app.ask() for _ in range(2)] + [await app.ask_async() for _ in range(2)]",
    "assert first + second + third == [200] * 12",
)
"""Threads, tasks of the kernel's loop, and a call that blocks that loop."""


def test_a_notebook(provider):
    import nbformat
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    NotebookClient(
        nbformat.v4.new_notebook(cells=cells), timeout=BOUND_S, resources={"metadata": {"path": HERE}}
    ).execute()


def test_uvloop(provider):
    code = (
        "import app, asyncio, uvloop\nasync def all(): return await asyncio.gather(*[app.ask_async() for _ in range(6)])"
        "\nassert uvloop.run(all()) + uvloop.run(all()) == [200] * 12"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=BOUND_S)


SLOTS = pytest.mark.parametrize("provider", [["2 concurrency"]], indirect=True, ids=[""])
"""So that a slot which is given back early is refused."""


@SLOTS
@pytest.mark.parametrize(("library", "shared"), [("httpx", False), ("httpx", True), ("requests", True)])
@pytest.mark.parametrize("before", [(), ("waited",)], ids=["", "waited"])
def test_gevent_patches_late(provider, request, library, shared, before):
    if shared:
        request.getfixturevalue("store")
    subprocess.run([sys.executable, "late.py", library, *before], cwd=HERE, check=True, timeout=BOUND_S)


def test_an_event_loop_in_a_program_that_gevent_patches():
    subprocess.run([sys.executable, "patched_loop.py"], cwd=HERE, check=True, timeout=BOUND_S)


def test_gevent_patches_late_before_partitions(provider, store):
    subprocess.run([sys.executable, "late_partitions.py"], cwd=HERE, check=True, timeout=BOUND_S)


@SLOTS
@pytest.mark.parametrize("library", ["httpx", "requests"])
def test_gevent_patches_late_under_exec(provider, library):
    limit = f"*={LIMIT},2 concurrency"
    paceline = [sys.executable, "-m", "paceline", "exec", "--strict", "--provider", "openai", "--limit", limit, "--"]
    subprocess.run([*paceline, sys.executable, "late.py", library], cwd=HERE, check=True, timeout=BOUND_S)
