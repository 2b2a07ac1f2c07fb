"""A lack of this machine (files, memory, threads) is no fault of the host, under every HTTP library."""

import asyncio
import errno
import socket
import sys
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import aiohttp
import httpx
import httpx2
import pytest
import requests
import urllib3

import paceline
from paceline.pacing import lack as lack_module
from paceline.pacing.faults import Fault, fault_of
from paceline.pacing.lack import FILES_WANTED, Lack, lack_of, raise_files

resource = pytest.importorskip("resource")

BODY = {"model": "gpt-5", "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 5}
FULL = OSError(errno.EMFILE, "Too many open files")


@contextmanager
def no_files():
    """No file can be opened meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


SYNC = {"httpx": httpx.Client, "httpx2": httpx2.Client, "requests": requests.Session, "urllib3": urllib3.PoolManager}
ASYNC = {"async httpx": httpx.AsyncClient, "async httpx2": httpx2.AsyncClient, "aiohttp": aiohttp.ClientSession}


def send(library, url, files):
    """Send a request with a new client, and take ``files`` away before."""
    options = {"retries": False} if library == "urllib3" else {}

    async def ask():
        async with ASYNC[library]() as client:
            with files():
                answer = await client.post(url, json=BODY)
            if library == "aiohttp":
                await answer.read()

    if library in ASYNC:
        asyncio.run(ask())
        return
    with SYNC[library]() as client, files():
        client.request("POST", url, json=BODY, **options)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("library", [*SYNC, *ASYNC])
def test_a_lack_of_files_counts_nothing_against_the_host(paceline_emulator, library, host):
    world = paceline_emulator(limits={"gpt-5": "6000 requests/min"}, latency_s=0.0)
    strict = paceline.BreakerPolicy(failures=1, first_pause_s=60)
    limiter = paceline.Limiter({"openai/*": ["6000 requests/min"]}, breaker=strict)
    url = f"http://{host}:{world.base_url.rpartition(':')[2]}/v1/chat/completions"
    with paceline.instrument(limiter, provider="openai"):
        send(library, url, nullcontext)
        with pytest.raises(Exception) as raised:
            send(library, url, no_files)
        pool = limiter.status()["pools"]["openai/gpt-5"]
    assert lack_of(raised.value) in (Lack.FILES, None)  # not seen through the error of a resolver any more
    assert (pool["cool_down_s"], pool["counts"]) == (0, {"granted": 2, "settled": 1, "cancelled": 1})


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(socket.EAI_NONAME, "no such host"),
        OSError(errno.EBUSY, "busy"),
        OSError(errno.EINVAL, "Invalid argument"),
    ],
)
def test_what_a_resolver_says_without_a_file_is_believed_when_files_are_left(error):
    with no_files():
        without = lack_of(error)
    assert (without, lack_of(error)) == (Lack.FILES, None)


KEY = SimpleNamespace(ssl=True, host="host", port=1)
STALE = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
STALE.__context__ = FULL


def because(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "lack", "fault"),
    [
        (FULL, Lack.FILES, Fault.UNSENT),
        (OSError(errno.ENFILE, "File table overflow"), Lack.SYSTEM_FILES, Fault.UNSENT),
        (RuntimeError("can't start new thread"), Lack.THREADS, Fault.UNSENT),
        (MemoryError(), Lack.MEMORY, None),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Lack.MEMORY, None),
        (aiohttp.ClientOSError(errno.ENOBUFS, "No buffer space available"), Lack.BUFFERS, None),
        (aiohttp.ClientConnectorError(KEY, OSError(errno.ENOBUFS, "no")), Lack.BUFFERS, Fault.UNSENT),
        (aiohttp.ClientConnectorError(KEY, FULL), Lack.FILES, Fault.UNSENT),
        (aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_MEMORY, "no")), Lack.MEMORY, Fault.UNSENT),
        (because(httpx2.ConnectError("no"), because(OSError("no"), ExceptionGroup("", [STALE, FULL]))), Lack.FILES, Fault.UNSENT),
        (urllib3.exceptions.MaxRetryError(None, "/", because(urllib3.exceptions.NewConnectionError(None, "no"), FULL)), Lack.FILES, Fault.UNSENT),
        (STALE, None, Fault.UNREACHED),
        (aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(socket.EAI_NONAME, "no")), None, Fault.UNREACHED),
        (aiohttp.ServerDisconnectedError(), None, Fault.BROKEN),
        (RuntimeError("no"), None, None),
        (OSError(errno.EACCES, "no"), None, None),
    ],
)  # fmt: skip
def test_what_is_a_lack(error, lack, fault):
    assert (lack_of(error), fault_of(error)) == (lack, fault)


@pytest.mark.parametrize(
    ("soft", "hard", "accepted", "least", "most"),
    [
        (256, 256, 256, 256, 256),
        (256, 4_096, 4_096, 4_096, 4_096),
        (256, -1, FILES_WANTED, None, FILES_WANTED),
        (256, -1, 10_240, 10_000, 10_240),  # macOS
        (256, -1, 256, 256, 256),
        (40_000, -1, 40_000, None, 40_000),
        (-1, -1, 0, None, -1),
    ],
)
def test_a_command_raises_its_limit_as_far_as_it_may(monkeypatch, soft, hard, accepted, least, most):
    now = [soft]

    def setrlimit(_, pair):
        if pair[0] > accepted:
            raise ValueError("not allowed to raise maximum limit")
        now[0] = pair[0]

    fake = SimpleNamespace(RLIMIT_NOFILE=7, RLIM_INFINITY=-1, getrlimit=lambda _: (now[0], hard), setrlimit=setrlimit)
    monkeypatch.setitem(sys.modules, "resource", fake)
    found = raise_files()
    assert least == found == None if least is None else least <= found <= most  # noqa: E711
    assert now[0] == (most if least is None else found)


def test_windows_has_no_limit_to_raise(monkeypatch):
    monkeypatch.setattr(lack_module.sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "resource", None)
    assert raise_files() is None
