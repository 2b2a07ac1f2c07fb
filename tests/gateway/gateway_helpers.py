"""Servers and requests that the tests of the gateway share."""

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from paceline.gateway.handover import listen
from paceline.gateway.protocol import CONNECTION
from paceline.gateway.server import server_config
from waits import join, until

CHAT = "/openai/v1/chat/completions"
"""The path of a chat at a gateway."""


@dataclass
class Running:
    url: str
    server: uvicorn.Server
    thread: threading.Thread

    @property
    def gateway(self) -> Any:
        return self.server.lifespan.state[CONNECTION]

    @property
    def dispatch(self) -> Any:
        return self.gateway._dispatch

    @property
    def loop(self):
        return self.server.servers[0].get_loop()

    @property
    def limiter(self):
        return self.gateway.limiter

    def pool(self, name="openai/gpt-5"):
        return self.limiter.status()["pools"][name]

    def stop(self):
        self.server.should_exit = True
        join(self.thread)


def started(config):
    """A server of uvicorn in a thread."""
    server, listener = uvicorn.Server(config), listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    return Running(f"http://127.0.0.1:{listener.getsockname()[1]}", server, thread)


@contextmanager
def running_gateway(settings):
    settings.check()
    running = started(server_config(settings, settings.gateway))
    until(lambda: running.server.started)
    try:
        yield running
    finally:
        running.stop()


@contextmanager
def stub(app):
    """A server of the test's own: an ASGI application."""
    options = {"lifespan": "off", "ws": "none", "timeout_graceful_shutdown": 0}  # no call meets its end
    running = started(uvicorn.Config(app, log_config=None, log_level="critical", timeout_keep_alive=600, **options))
    try:
        yield running.url
    finally:
        running.stop()


async def read_body(receive):
    """The whole body of a request to such a server."""
    body = b""
    while (event := await receive())["type"] == "http.request":
        body += event["body"]
        if not event["more_body"]:
            break
    return body


async def tell(send, content, status=200, headers=()):
    """Its answer: bytes, or a JSON value."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = {"content-type": "application/json", "content-length": str(len(data)), **dict(headers)}
    lines = [(name.encode(), str(value).encode()) for name, value in lines.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": data})


class Stub:
    """Such a server: ``answer`` makes a content, a status and headers of a path, the headers and the body."""

    def __init__(self, answer=None):
        if answer is not None:
            self.answer = answer

    async def __call__(self, scope, receive, send):
        body = await read_body(receive)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        await tell(send, *self.answer(scope["path"], headers, body))


def bearer(key, **more):
    """The headers of a client with this key, and more."""
    return {"authorization": f"Bearer {key}", **{name.replace("_", "-"): value for name, value in more.items()}}


def samples_in(text):
    """The samples of a page of metrics, by their names and labels."""
    families = text_string_to_metric_families(text)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n\x00RIFF\r\n'
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%s\r\n--b--\r\n'
)
"""A form with a recording and the name of a model."""
FORM_KIND = {"content-type": "multipart/form-data; boundary=b"}


def chat(**fields):
    return {"model": "gpt-5", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}], **fields}
