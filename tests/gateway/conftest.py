"""A gateway in a thread of this process, in front of an emulated provider or of a small server of the test's own."""

import json
import socket
from contextlib import ExitStack

import httpx2
import pytest
from attack_helpers import Process, connect, post, raw_server
from gateway_helpers import chat, running_gateway, stub

from grids import some
from paceline.config import Config
from paceline.emulator import Emulator
from paceline.gateway import dispatch, incoming, reading, stamps
from paceline.gateway.keys import KeyFile
from paceline.gateway.server import ProcessSettings


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Start gateways in front of an address, or of an ASGI application; each is stopped at the end of the test."""
    for name in ("OPENAI", "ANTHROPIC", "GEMINI"):
        monkeypatch.setenv(f"{name}_API_KEY", f"sk-of-{name.lower()}")
    process = ("stop_s", "store", "folder", "access_log", "key_in_path")
    with ExitStack() as ends:

        def start(upstream, *, host="127.0.0.1", keys=None, **given):
            if callable(upstream):
                upstream = ends.enter_context(stub(upstream))
            names = ("openai", "anthropic", "gemini")
            own = {name: given.pop(name) for name in process if name in given}
            given = {"provider": "openai", "upstreams": {name: {"base_url": upstream} for name in names}, **given}
            config = Config.load(environ={}, given=given)
            settings = ProcessSettings(config=config, keys=keys or tmp_path / "keys.json", host=host, **own)
            return ends.enter_context(running_gateway(settings))

        yield start


@pytest.fixture
def process(tmp_path):
    """Start gateways in processes of their own."""
    with ExitStack() as ends:

        def start(*arguments, **given):
            one = Process(*arguments, folder=tmp_path, **given)
            ends.callback(one.stop)
            return one

        yield start


@pytest.fixture
def own_upstream():
    """A server that no other test has."""
    with raw_server() as running:
        yield running


@pytest.fixture
def nowhere():
    """An address at which nothing answers."""
    with socket.socket() as free:  # bound and not listening
        free.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture(params=some([False, True], False, mark=pytest.mark.long("starts a process")), ids=["small", "large"])
def large(request, monkeypatch):
    """Whether another process reads the bodies, as it does large ones."""
    if request.param:
        monkeypatch.setattr(reading, "LARGE", 1)
        monkeypatch.setattr(incoming, "LARGE", 1)
    return request.param


@pytest.fixture
def no_keys(serve, monkeypatch):
    """The gateway has no keys of its own: the clients' are passed on."""
    for name in ("OPENAI", "ANTHROPIC", "GEMINI"):
        monkeypatch.delenv(f"{name}_API_KEY")


@pytest.fixture
def keys(tmp_path):
    """The keys of the clients of the gateways that `serve` starts: none yet."""
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture(scope="module")
def provider():
    with Emulator() as provider:
        yield provider


@pytest.fixture
def emulator(provider):
    """A fresh emulator with fast limits, at no latency."""
    provider.reset(limits={"*": "100k requests/min"}, latency_s=0.0, valid_key=None, start_level=1.0)
    return provider


@pytest.fixture
def at_once(monkeypatch):
    """The files of keys and certificates are looked at each time, and not once a second."""
    monkeypatch.setattr(stamps, "LOOK_S", 0.0)


@pytest.fixture
def client():
    with httpx2.Client(timeout=30, trust_env=False, verify=False) as client:  # no certificates are read
        yield client


@pytest.fixture
def send_chat():
    """Send a chat with a client's key on a connection of its own, which is open until the end of the test."""
    with ExitStack() as stack:

        def send(running, key, *lines, **fields):
            connection = stack.enter_context(connect(running.url))
            body = json.dumps(chat(**fields)).encode()
            own = b"authorization: Bearer " + key.encode()
            connection.sendall(post(b"/openai/v1/chat/completions", own, *lines, body=body))
            return connection

        yield send


@pytest.fixture
def kept(monkeypatch):
    """The header with which a stream that waits is kept alive, more often than a client may ask for."""
    monkeypatch.setattr(dispatch, "NOTES_S", (0.005, 600.0))
    return {"x-paceline-keepalive": "0.005"}  # sooner than any server answers
