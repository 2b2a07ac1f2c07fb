"""A gateway in a thread of this process, in front of an emulated provider or of a small server of the test's own."""

import json
from contextlib import ExitStack

import httpx2
import pytest
from attack_helpers import connect, post
from gateway_helpers import chat, start_gateway

from paceline.config import Config
from paceline.emulator import Emulator
from paceline.gateway import dispatch
from paceline.gateway.keys import KeyFile
from paceline.gateway.server import ProcessSettings


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Start gateways; each is stopped at the end of the test."""
    running = []
    for name in ("OPENAI", "ANTHROPIC", "GEMINI"):
        monkeypatch.setenv(f"{name}_API_KEY", f"sk-of-{name.lower()}")

    def start(upstream, *, host="127.0.0.1", stop_s=20.0, store=None, keys=None, folder=None, access_log=None, **given):
        names = ("openai", "anthropic", "gemini")
        given = {"provider": "openai", "upstreams": {name: {"base_url": upstream} for name in names}, **given}
        config = Config.load(environ={}, given=given)
        settings = ProcessSettings(
            config=config,
            keys=keys or tmp_path / "keys.json",
            host=host,
            stop_s=stop_s,
            store=store,
            folder=folder,
            access_log=access_log,
        )
        one = start_gateway(settings)
        running.append(one)
        return one

    yield start
    for one in running:
        one.stop()


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
            connection.sendall(
                post(b"/openai/v1/chat/completions", b"authorization: Bearer " + key.encode(), *lines, body=body)
            )
            return connection

        yield send


@pytest.fixture
def kept(monkeypatch):
    """The header with which a stream that waits is kept alive, more often than a client may ask for."""
    monkeypatch.setattr(dispatch, "NOTES_S", (0.005, 600.0))
    return {"x-paceline-keepalive": "0.005"}  # sooner than any server answers
