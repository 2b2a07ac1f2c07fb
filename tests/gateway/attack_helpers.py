"""Clients and servers that do not keep to HTTP."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from waits import BOUND_S, until

GOOD = b'{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(GOOD), GOOD)
BODY = b'{"model": "gpt-5", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}'


def post(path=b"/openai/v1/chat/completions", *headers, body=BODY, version=b"1.1", length=True):
    """The bytes of a request."""
    lines = [b"POST %s HTTP/%s" % (path, version), b"host: localhost", *headers]
    if length:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def connect(url):
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=20)


def refused(url):
    """Whether nothing listens there any more."""
    try:
        connect(url).close()
    except OSError:
        return True
    return False


def read(connection, count=10**9, quiet_s=BOUND_S):
    """What comes until the end of the connection; after ``count`` whole answers, only what comes at once."""
    got = b""
    with suppress(ConnectionResetError, BrokenPipeError, TimeoutError):
        while True:
            more_s = 0.02 if whole(got) else 0.1
            connection.settimeout(quiet_s if len(answers(got)) < count else more_s)
            part = connection.recv(65_536)
            if not part:
                break
            got += part
    connection.settimeout(20)
    return got


def read_until(connection, wanted):
    """What comes until ``wanted`` has; a connection that ends before gives nothing, again and again."""
    got = b""
    while wanted not in got:
        part = connection.recv(65_536)
        assert part, got
        got += part
    return got


def talk(url, sent, count=1):
    """Send bytes on a connection of their own; return what :func:`read` does."""
    with connect(url) as connection:
        with suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(sent)
        return read(connection, count)


def answers(got):
    """The status of each answer in what a connection has sent."""
    return [int(part[:3]) for part in got.split(b"HTTP/1.1 ")[1:]]


def whole(got):
    """Whether the last answer has come to its end, by its head; that to a HEAD request never has."""
    head, _, body = got.rpartition(b"HTTP/1.1 ")[2].partition(b"\r\n\r\n")
    lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    if b"transfer-encoding" in lines:
        return body.endswith(b"0\r\n\r\n")
    return len(body) >= int(lines.get(b"content-length", 10**9))


def leave(running, connection):
    """Close a connection whose request waits in a gateway of this process, which keeps its place."""
    kept = len(running.dispatch.held.places)
    connection.shutdown(socket.SHUT_RDWR)
    connection.close()
    until(lambda: len(running.dispatch.held.places) == kept + 1)


class RawServer:
    """A server that keeps the bytes of all requests, and sends prepared bytes after the head of each request."""

    def __init__(self, answer=ANSWER, *, then=None):
        self.answer, self.then = answer, then
        self.raw, self.open = bytearray(), 0
        self._lock, self._reading = threading.Lock(), set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4_096)
        self._listener.settimeout(0.1)  # a connection may have gone since select() has seen it
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError, ValueError):
            while select.select([self._listener], [], []):
                with self._lock:
                    try:
                        connection, _ = self._listener.accept()
                    except TimeoutError:
                        continue
                    self._reading.add(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        self.open += 1
        with connection, suppress(OSError):
            try:
                then = self._read(connection)
            finally:
                with self._lock:
                    self._reading.remove(connection)
            if then is not None:
                then(connection)
        self.open -= 1

    def _read(self, connection):
        """Answer requests until the client leaves, or something is to be done ``then``, which is returned."""
        pending = b""
        while connection.recv(1, socket.MSG_PEEK):
            with self._lock:
                part = connection.recv(65_536)
                self.raw += part
            pending += part
            if (request := _end_of_request(pending)) is None:
                continue
            pending = pending[request:]
            connection.sendall(self.answer)
            if self.then is not None:
                return self.then
        return None

    def has_read_all(self):
        """Whether nothing that clients have sent by now is still to be added to ``raw``."""
        with self._lock:
            return not select.select([self._listener, *self._reading], [], [], 0)[0]

    def close(self):
        self._listener.close()


def _end_of_request(data):
    head, found, rest = data.partition(b"\r\n\r\n")
    if not found:
        return None
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return len(head) + 4 + length if len(rest) >= length else None


@contextmanager
def raw_server(answer=ANSWER, *, then=None):
    server = RawServer(answer, then=then)
    try:
        yield server
    finally:
        server.close()


class Process:
    """``paceline serve`` in a process of its own."""

    def __init__(self, *arguments, upstream, folder, keys=None, files=None, **environ):
        command = [str(Path(sys.executable).with_name("paceline")), "serve", "--port", "0", "--provider", "openai"]
        command += ["--base-url", upstream, "--keys", str(keys or folder / "keys.json"), *map(str, arguments)]
        env = {"PATH": os.environ["PATH"], "HOME": str(folder), "OPENAI_API_KEY": "sk-of-openai", **environ}
        env |= {name: os.environ[name] for name in ("PYTHONPATH", "SSL_CERT_FILE") if name in os.environ}

        if files is not None:
            command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        number = time.monotonic_ns()
        self._said, self._log = folder / f"said{number}", folder / f"log{number}"
        with self._said.open("ab") as said, self._log.open("ab") as log:  # who reads must not move where they write
            self.process = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=log)
        try:
            until(lambda: "\n" in self._said.read_text() or self.process.poll() is not None)
            line = self._said.read_text().partition("\n")[0]
            assert "gateway at" in line, line + self.log()
        except AssertionError:
            self.stop()
            raise
        self.url = line.split()[3]

    def log(self):
        return self._log.read_text()

    def memory(self):
        """Bytes in use by the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def workers(self):
        """The ids of its processes that serve."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        children = [int(number) for number in text.split()]
        return [one for one in children if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=30):
        return self.process.wait(seconds)

    def end_next(self):
        """End the process that has said to serve in the place of this one."""
        (line,) = [line for line in self.log().splitlines() if "serves in the place of this one" in line]
        os.kill(int(line.split("process ")[1].split()[0]), signal.SIGTERM)

    def stop(self):
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.wait(45)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.wait()
