"""The gateway's HTTP client against servers that a test scripts byte by byte."""

import asyncio
import errno
import gc
import socket
import ssl
import sys
from contextlib import suppress
from dataclasses import replace
from threading import Thread
from types import SimpleNamespace
from weakref import ref

import aiohttp
import pytest
import trustme

from paceline.gateway import client as module
from paceline.gateway import connection
from paceline.gateway.client import HttpClient, Upload
from paceline.gateway.connection import HELD_MAX, InvalidAnswerError
from paceline.gateway.upstreams import Upstream
from paceline.pacing.faults import Fault, fault_of
from paceline.pacing.lack import Lack, lack_of
from paceline.providers.registry import provider_named
from waits import soon

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Answers each request with the next script: bytes, or a coroutine function of the writer."""

    def __init__(self, *scripts, tls=None):
        self.scripts, self.tls = list(scripts), tls
        self.seen, self.connections, self.closed, self.tasks = [], 0, 0, []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        port = self._server.sockets[0].getsockname()[1]
        name = "localhost" if self.tls else "127.0.0.1"
        self.upstream = Upstream("openai", provider_named("openai"), f"http{'s' * bool(self.tls)}://{name}:{port}/base")
        self.client = HttpClient(1.0, ssl.create_default_context())
        return self

    async def __aexit__(self, *_):
        await self.client.close()
        self._server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for _ in range(5):
            await asyncio.sleep(0)  # the transports close

    async def _serve(self, reader, writer):
        self.connections += 1
        self.tasks.append(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                length = next((int(line[15:]) for line in lines if line[:15] == b"content-length:"), 0)
                self.seen.append(head + await reader.readexactly(length))
                script = self.scripts.pop(0)
                if isinstance(script, bytes):
                    writer.write(script)
                else:
                    await script(writer)
        except (asyncio.IncompleteReadError, ConnectionError, IndexError, asyncio.CancelledError):
            pass
        finally:
            self.closed += 1
            writer.close()

    def answers_in(self, timeout_s):
        """Let the client wait so long for an answer; a connection may take as long as in other tests."""
        self.client._connect = lambda server: server.connect(1.0)
        self.client._timeout_s = timeout_s

    async def ask(self, method="POST", path="/v1/x?a=b", headers=(), body=b"{}"):
        """The status and the whole body."""
        answer = await self.client.fetch(self.upstream, method, path, list(headers), body)
        parts = []
        while part := await answer.read():
            parts.append(part)
        return answer.status, b"".join(parts)


async def test_a_request_is_what_was_given():
    async with Server(OK, OK) as server:
        assert await server.ask(headers=[(b"x-a", b"1"), (b"x-a", b"\xe9")]) == (200, b"ok")
        assert await server.ask("GET", body=b"") == (200, b"ok")
        host = server.upstream.root.partition("//")[2].partition("/")[0].encode()
    assert server.seen == [
        b"POST /base/v1/x?a=b HTTP/1.1\r\nhost: " + host + b"\r\nx-a: 1\r\nx-a: \xe9\r\ncontent-length: 2\r\n\r\n{}",
        b"GET /base/v1/x?a=b HTTP/1.1\r\nhost: " + host + b"\r\n\r\n",
    ]
    assert server.connections == 1


@pytest.mark.parametrize(("path", "target"), [("", b"/"), ("?a=b", b"/?a=b"), ("/x", b"/x")])
async def test_a_target_begins_with_a_slash(path, target):
    async with Server(OK) as server:
        server.upstream = Upstream("openai", server.upstream.provider, server.upstream.root.removesuffix("/base"))
        await server.ask("GET", path, body=b"")
    assert server.seen[0].startswith(b"GET " + target + b" HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "first",
    [
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nother",
        OK + b"garbage",
        OK.replace(b"200 OK", b"200 OK\r\nconnection: close"),
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ],
)
async def test_a_connection_is_not_used_again_after(first):
    async with Server(first, OK) as server:
        assert await server.ask() == (200, b"ok")
        assert await server.ask() == (200, b"ok")
        assert server.connections == 2


async def test_an_old_connection_is_not_used_again(monkeypatch):
    async with Server(OK, OK) as server:
        await server.ask()
        monkeypatch.setattr(connection, "KEEP_S", -1.0)
        await server.ask()
        assert server.connections == 2


async def test_a_server_that_closed_between_two_requests():
    async def close(writer):
        writer.write(OK)
        await writer.drain()
        writer.close()

    async with Server(close, OK) as server:
        await server.ask()
        await soon(lambda: not server.client._servers[server.upstream.root].idle)
        assert await server.ask() == (200, b"ok")


@pytest.mark.parametrize("ends", [True, False])
async def test_a_body_without_a_length_ends_with_the_connection(ends):
    async def answer(writer):
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nsome")
        await writer.drain()
        await asyncio.sleep(0.05)
        if ends:
            writer.write(b" more")
            writer.close()
        else:
            writer.transport.abort()

    async with Server(answer) as server:  # a reset cannot be told from the end on every system
        assert await server.ask() == (200, b"some more" if ends else b"some")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: \x01\r\ncontent-length: 0\r\n\r\n",
        *(b"HTTP/1.1 %s What\r\ncontent-length: 0\r\n\r\n" % status for status in (b"000", b"99")),
        *(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % line for line in (b"x y: 1", b"x\x01y: 1", b"x: a\x00b")),
        *(b"HTTP/1.1 200 OK\r\ncontent-length: %s\r\n\r\n" % length for length in (b"x", b"-1")),
        *(b"SSH-2.0-OpenSSH\r\n", b"\x00\x01\x02", b"HTTP/1.1", b"HTTP/1.1 200 OK\r\n", b""),
        b"HTTP/1.1 100 Continue\r\n\r\n" * 14_000 + OK,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 2_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000,
    ],
)
async def test_broken_answers_are_errors(answer):
    async def send(writer):
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with Server(send) as server:
        with pytest.raises((InvalidAnswerError, aiohttp.ServerDisconnectedError)) as raised:
            await server.ask()
        assert fault_of(raised.value) is Fault.BROKEN


async def test_a_slow_reader_slows_the_server_down():
    size, sent = 20_000_000, 0

    async def pour(writer):
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(b"x" * 100_000)
            sent += 100_000
            await writer.drain()

    async with Server(pour, OK) as server:
        answer = await server.client.fetch(server.upstream, "POST", "/", [], b"")
        await soon(lambda: answer.paused)
        assert sent < size
        read = len(await answer.read())
        assert HELD_MAX < read < HELD_MAX + 300_000
        while part := await answer.read():
            read += len(part)
        assert read == size
        assert await server.ask() == (200, b"ok")
        assert server.connections == 1


@pytest.mark.parametrize("whole", [True, False])
async def test_an_answer_goes_without_a_garbage_collection(whole):
    async with Server(OK if whole else OK[:-1], OK) as server:
        answer = await server.client.fetch(server.upstream, "POST", "/", [], b"")
        while whole and await answer.read():
            pass
        answer.close()
        there = ref(answer)
        gc.disable()
        try:
            del answer
            await server.ask()  # the connection had the answer until now
            await soon(lambda: there() is None)
        finally:
            gc.enable()


async def stop(writer):
    """Answer half, and no more."""
    writer.write(OK[:-1])
    await asyncio.sleep(10)


async def trickle(writer):
    """Send a head byte by byte, which takes longer than a client waits for it."""
    for byte in b"HTTP/1.1 200 OK\r\nx: %b\r\ncontent-length: 0\r\n\r\n" % (100 * b"a"):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.01)


async def test_nothing_comes_for_too_long():
    async with Server(lambda _: asyncio.sleep(10), stop, trickle) as server:
        server.answers_in(0.1)
        for _ in range(3):
            with pytest.raises(TimeoutError, match=r"nothing came for 0\.1 s"):
                await server.ask()


async def test_a_server_may_be_silent_while_nobody_reads():
    go = asyncio.Event()

    async def half(writer):
        writer.write(OK[:-1])
        await go.wait()
        writer.write(OK[-1:])

    async with Server(half) as server:
        server.answers_in(0.1)
        answer = await server.client.fetch(server.upstream, "POST", "/", [], b"")
        await asyncio.sleep(0.3)  # longer than it waits for a part
        go.set()
        assert await answer.read() + await answer.read() == b"ok"


async def test_an_early_end_closes_the_connection():
    async with Server(stop, stop) as server:
        answer = await server.client.fetch(server.upstream, "POST", "/", [], b"")
        assert await answer.read() == b"o"
        answer.close()
        answer.close()
        assert await answer.read() == b""
        task = asyncio.create_task(server.client.fetch(server.upstream, "POST", "/", [], b""))
        await soon(lambda: len(server.seen) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not server.client._servers[server.upstream.root].idle


async def test_a_line_end_in_a_header_is_not_sent():
    async with Server(OK) as server:
        with pytest.raises(InvalidAnswerError, match="line end"):
            await server.ask(headers=[(b"x", b"1\r\ny: 2")])
        assert await server.ask() == (200, b"ok")
        assert (len(server.seen), server.connections) == (1, 1)  # the first request took no connection


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of files")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_without_a_file_there_is_no_fault_of_the_server(host):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with Server(OK) as server:
        upstream = replace(server.upstream, root=server.upstream.root.replace("127.0.0.1", host))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(OSError) as raised:
                await server.client.fetch(upstream, "POST", "/", [], b"")
            assert (lack_of(raised.value), fault_of(raised.value)) == (Lack.FILES, Fault.UNSENT)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def contexts():
    """That of a server with a certificate, and that of a client that trusts it."""
    authority = trustme.CA()
    tls, trusted = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(tls)
    authority.configure_trust(trusted)
    return tls, trusted


async def test_certificates_are_checked():
    tls, trusted = contexts()
    async with Server(OK, tls=tls) as server:
        with pytest.raises(ssl.SSLError) as raised:
            await server.ask()
        assert fault_of(raised.value) is Fault.UNREACHED
        server.client = HttpClient(5.0, trusted)
        assert await server.ask() == (200, b"ok")


async def test_records_of_tls_that_come_together_are_whole():
    (tls, trusted), body = contexts(), bytes(range(256)) * 160  # three records of 16 kB
    async with Server(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body, tls=tls) as server:
        server.client = HttpClient(10.0, trusted)
        assert await server.ask() == (200, body)


async def test_where_files_lack_connections_without_a_request_make_room(monkeypatch):
    async with Server(OK) as idle, Server(OK) as busy:
        await idle.ask()
        connect = connection.Server.connect

        async def lacking(server, timeout_s):
            if idle.client._servers[idle.upstream.root].idle:
                raise connection.NoConnectionError("no") from OSError(errno.EMFILE, "Too many open files")
            return await connect(server, timeout_s)

        monkeypatch.setattr(connection.Server, "connect", lacking)
        busy.client, own = idle.client, busy.client
        assert await busy.ask() == (200, b"ok")
        busy.client = own


class TestUploads:
    """Bodies that are sent while they come."""

    @pytest.fixture
    async def server(self):
        """Counts what comes after a head, until it is let go."""
        seen, go = bytearray(), asyncio.Event()

        async def serve(reader, writer):
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                seen.extend(await reader.readuntil(b"\r\n\r\n"))
                await go.wait()
                while not seen.endswith((b"end", b"0\r\n\r\n")):
                    part = await reader.read(65_536)
                    if not part:
                        raise ConnectionResetError
                    seen.extend(part)
                writer.write(OK)
                await reader.read()
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        upstream = Upstream("openai", provider_named("openai"), f"http://127.0.0.1:{port}")
        client = HttpClient(1.0, ssl.create_default_context())
        yield SimpleNamespace(seen=seen, go=go, upstream=upstream, client=client)
        await client.close()
        listening.close()

    async def ask(self, server, parts, length, client=None):
        async def come():
            for part in parts:
                await asyncio.sleep(0)
                yield part

        client = client or server.client
        answer = await client.fetch(server.upstream, "POST", "/v1/files", [], Upload(length, come()))
        return answer.status, await answer.read()

    @pytest.mark.parametrize(
        ("length", "head", "body"),
        [
            (6, b"content-length: 6\r\n", b"ab-end"),
            (None, b"transfer-encoding: chunked\r\n", b"3\r\nab-\r\n3\r\nend\r\n0\r\n\r\n"),
        ],
    )
    async def test_they_keep_their_framing(self, server, length, head, body):
        server.go.set()
        for client in (server.client, server.client, server.client._proxied):
            server.seen.clear()
            assert await self.ask(server, [b"ab-", b"end"], length, client) == (200, b"ok")
            assert head in server.seen.lower()
            assert server.seen.endswith(b"\r\n\r\n" + body)

    async def test_no_more_is_taken_than_the_server_takes(self, server):
        taken = 0

        def parts():
            nonlocal taken
            for _ in range(1_000):
                taken += 65_536
                yield bytes(65_536)
            yield b"end"

        server.client._timeout_s = 60.0
        asking, before = asyncio.create_task(self.ask(server, parts(), 1_000 * 65_536 + 3)), -1
        while not taken or taken != before:
            before = taken
            await asyncio.sleep(0.1)
        assert taken < 20 * 2**20  # what the system buffers
        server.go.set()
        assert await asking == (200, b"ok")

    async def test_a_server_that_takes_nothing_is_a_timeout(self, server):
        with pytest.raises(TimeoutError):
            await self.ask(server, (bytes(65_536) for _ in range(1_000)), None)

    async def begin(self, server):
        """The answer to a body that does not end."""

        async def come():
            yield b"begun"
            await asyncio.Event().wait()

        return await server.client.fetch(server.upstream, "POST", "/v1/files", [], Upload(None, come()))

    async def test_an_early_answer_ends_it(self):
        async with Server(OK.replace(b"200 OK", b"401 No")) as server:
            answer = await self.begin(server)
            assert (answer.status, await answer.read()) == (401, b"ok")
            assert not server.client._servers[server.upstream.root].idle

    async def test_one_is_read_before_more_is_sent_to_a_server_that_has_closed(self):
        body = bytes(200_000)  # more than is read in one step

        def serve(listener):
            accepted, _ = listener.accept()
            with accepted, accepted.makefile("rb") as file:
                while file.readline() != b"begun\r\n":
                    pass
                accepted.sendall(b"HTTP/1.1 413 No\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

        async def come():
            yield b"begun"
            thread.join()  # the event loop does not run meanwhile
            for _ in range(10):
                yield b"more"

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = Thread(target=serve, args=(listener,))
            thread.start()
            root = f"http://127.0.0.1:{listener.getsockname()[1]}"
            upstream = Upstream("openai", provider_named("openai"), root)
            answer = await HttpClient(10.0, ssl.create_default_context()).fetch(
                upstream, "POST", "/v1/files", [], Upload(None, come())
            )
            parts = []
            while part := await answer.read():
                parts.append(part)
            assert (answer.status, b"".join(parts)) == (413, body)

    async def test_an_answer_that_stalls_after_an_early_head_is_a_timeout(self):
        async with Server(OK.removesuffix(b"ok")) as server:
            server.answers_in(0.1)
            answer = await self.begin(server)
            with pytest.raises(TimeoutError):
                await answer.read()


@pytest.mark.parametrize("answered", [True, False])
async def test_a_connection_that_breaks_as_the_answer_comes(answered):
    """The server answers before the body has ended, and closes: its answer counts. Without one, the break is the error."""
    loop = asyncio.get_running_loop()
    answer = SimpleNamespace(head=loop.create_future(), wait=lambda step: step)

    async def send(_):
        if answered:
            answer.head.set_result(400)
        raise ConnectionResetError(errno.ECONNRESET, "closed")

    async def parts():
        yield b"part"

    sending = module._send_parts(SimpleNamespace(send=send), answer, Upload(100, parts()))
    if answered:
        await sending
    else:
        with pytest.raises(ConnectionResetError):
            await sending
