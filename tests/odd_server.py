"""A server whose answers each test writes, byte by byte: none of the emulator's code and manners."""

from __future__ import annotations

import base64
import json
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SSE, JSON, HTML = ({"content-type": kind} for kind in ("text/event-stream", "application/json", "text/html"))


class Loopback(ThreadingHTTPServer):
    """A server on this machine that runs in a thread, as a context manager."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.lock, self.base_url = threading.Lock(), f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, *_):
        """A client may go."""


class OddServer(Loopback):
    """Answers the n-th POST or GET, from 0 on, with ``answer(n, body)``: a status, headers, and a body.

    A body is bytes, a JSON value, or a list of parts: bytes, and events that are waited for.

    Attributes:
        asked: The bodies of the requests; bytes of one that is no JSON.
        paths: The paths of the requests.
        headers: Their headers.
        methods: Their methods.
    """

    def __init__(self, answer):
        super().__init__(_Handler)
        self.answer, self.asked, self.paths, self.headers, self.methods = answer, [], [], [], []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with self.server.lock:
            number = len(self.server.asked)
            self.server.asked.append(json.loads(body) if body[:1] in (b"{", b"[") else body)
            self.server.paths.append(self.path)
            self.server.headers.append(self.headers)
            self.server.methods.append(self.command)
        status, headers, parts = self.server.answer(number, self.server.asked[number])
        if not isinstance(parts, bytes | list) or (isinstance(parts, list) and not _are_parts(parts)):
            parts = json.dumps(parts).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if isinstance(parts, bytes):
            self.send_header("content-length", str(len(parts)))
            self.end_headers()
            self.wfile.write(parts)
            return
        plain = "content-length" in headers
        if not plain:
            self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in parts:
            if isinstance(part, threading.Event):
                part.wait(20)
            else:
                self.wfile.write(part if plain else b"%x\r\n%b\r\n" % (len(part), part))
        self.wfile.write(b"" if plain else b"0\r\n\r\n")

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_):
        pass


def _are_parts(parts):
    return bool(parts) and all(isinstance(part, bytes | threading.Event) for part in parts)


class Gate(threading.Event):
    """What a server waits for between two parts of an answer; ``waited``: whether it came, each time."""

    def __init__(self):
        super().__init__()
        self.waited = []

    def wait(self, timeout=None):
        self.waited.append(super().wait(timeout))


def sse(*events, name=False):
    """Server-sent events of JSON values; with ``name``, their types are in lines of their own."""
    lines = [f"event: {one['type']}\n" if name else "" for one in events]
    return [f"{line}data: {json.dumps(one)}\n\n".encode() for line, one in zip(lines, events, strict=True)]


def frame(payload, **headers):
    """A frame of an event stream as AWS encodes it, checksums included; among its headers one of every other type."""
    packed = b"\x01b\x00" + b"\x01n\x04\x00\x00\x00\x07" + b"\x01t\x08" + bytes(8) + b"\x01x\x06\x00\x02ab"
    for name, value in headers.items():
        label = f":{name.replace('_', '-')}".encode()
        packed += bytes([len(label)]) + label + b"\x07" + len(value).to_bytes(2, "big") + value.encode()
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    prelude = (16 + len(packed) + len(body)).to_bytes(4, "big") + len(packed).to_bytes(4, "big")
    message = prelude + zlib.crc32(prelude).to_bytes(4, "big") + packed + body
    return message + zlib.crc32(message).to_bytes(4, "big")


def frame_of(kind, payload):
    """A frame with an event of this kind."""
    return frame(payload, message_type="event", event_type=kind, content_type="application/json")


def chunk_of(payload):
    """A frame with an event of the model's own API."""
    return frame_of("chunk", {"bytes": base64.b64encode(json.dumps(payload).encode()).decode(), "p": "abc"})
