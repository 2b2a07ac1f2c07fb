"""A store in Redis or Valkey, for the processes of many machines: each exchange is one call of a script.

Nothing is sent twice: when it is not known whether a message arrived, the store raises :class:`StoreError` and the
caller decides. Time is the clock of the server; the clocks of the processes play no part.

Needs a server of version 5 or later, and ``pip install 'paceline[redis]'``.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha1
from typing import TYPE_CHECKING, Any

from paceline.core.results import StoreFormatError
from paceline.shared.messages import Message, StoreReply
from paceline.shared.peers import Seen
from paceline.stores.base import TIMEOUT_S, InTurn, StoreError
from paceline.stores.redis_address import Node, library, read_client, read_url
from paceline.stores.redis_health import remarks
from paceline.stores.redis_presence import Presence, is_closed
from paceline.stores.redis_wire import CLOCK, LATE, NEWER, decode, encode, lua, quota_lines, script

if TYPE_CHECKING:
    from redis import Redis, RedisCluster

KEYS = ":peers", ":events", ":places"
"""What follows the key of the ledger in those beside it, see peers.lua."""

IDLE_S = 0.05
"""A connection that has been idle for longer is checked before it is used again."""

LATE_S = 1.0
"""A message that the server reads so long after it has timed out here is not applied: no process awaits its grants."""

PRESENCE_PART = 4
"""Which part of the timeout the connection may take that shows that the process lives: the answer waits for it, once a minute."""

HOPS_MAX = 5
"""How many nodes of a cluster are asked for one key before it is an error: they may disagree, or be down."""

NODES_MAX = 100
"""How many nodes of a cluster are remembered."""

SAID_MAX = 300

PROCESSES_MAX = 1_000
"""How many processes of a pool are read."""

_REDIRECT = re.compile(r"(?:(MOVED|ASK) )?\d+ (\S*):(\d+)")

_ADVICE = {
    "surrogates not allowed": "the name of the pool, or of a unit, contains half of a surrogate pair: rename it",
    "Authentication|NOAUTH": "write redis://:PASSWORD@HOST or redis://USER:PASSWORD@HOST with the right password",
    "NoPermission|NOPERM|no permissions": "allow this user ~paceline:* &paceline:* and +subscribe +pubsub +eval +evalsha +info +get +set +time +del +pexpire +hget +hset"
    " +hdel +hlen +zadd +zrem +zcard +zrangebyscore +zpopmin, also +select for another database than 0, and +scan for the pools of paceline status",
    "OutOfMemory|OOM": "raise the server's maxmemory",
    "ReadOnly|READONLY": "give the address of the master, or let Sentinels find it with redis+sentinel://",
    "Moved|MOVED": "this is one node of a cluster: write redis+cluster:// instead of redis://",
    "TRYAGAIN|TryAgain": "a slot of the cluster moves to another node: the pool is back when it has moved",
    "MasterNotFound": "check the name of the master, the addresses of the Sentinels, and their sentinel_password",
    "unknown command": "write redis+sentinel://HOST:PORT/MASTER for Sentinels, and redis://HOST:PORT for a Redis",
    "DB index|SELECT": "give the number of a database that exists, and keep accounts apart with ?prefix=NAME",
    "WRONGTYPE": "the key is in use for something else: keep them apart with ?prefix=NAME",
    "InvalidResponse": "this server is not a Redis: check the port",
    "SSL|handshake": "check that the server uses TLS (otherwise write redis instead of rediss), and give the authority of"
    " its certificate with ?ssl_ca_certs=FILE",
    "TimeoutError": "check whether the server is overloaded or stopped, or the network slow",
    r"\bConnectionError|idna": "check the address, and that the server runs and can be reached from this machine; if it"
    " uses TLS, write rediss instead of redis",
    "running script|user_script": "if this stays, delete the keys paceline:* (the store then starts with full quotas)",
}
"""What to do about an error, by a pattern of its class or text: the first that is found. Others need no more words."""


class RedisStore:
    """Keeps shared ledgers in Redis, five keys for each pool, which expire when it has not been used for days.

    Args:
        client: A URL, see :func:`paceline.stores.open_store`; or a ``redis.Redis``, a ``redis.RedisCluster``, or the
            client that ``master_for`` of a ``redis.Sentinel`` returns. Of a client the connection settings are used
            (login, TLS, database, ...), not its connections, timeouts and retries.
        timeout_s: How long to wait for a connection, and then for the answer. To look up the name of a host takes as
            long as the system takes.
        prefix: What keeps apart several accounts on one server; as ``?prefix=`` in a URL.

    Attributes:
        url: Where the store is, without user and passwords.
        prefix: What keeps apart several accounts on one server.

    Raises:
        StoreError: The URL is invalid, the client is unsupported, the timeout is not above 0, or redis-py is not
            installed.
    """

    def __init__(self, client: str | Redis | RedisCluster, *, timeout_s: float = TIMEOUT_S, prefix: str = "") -> None:
        self._address = read_url(client) if isinstance(client, str) else read_client(client)
        self.url = self._address.url
        if not timeout_s > 0:
            raise StoreError(f"timeout_s is {timeout_s!r}: it must be above 0")
        self.prefix = prefix or self._address.prefix
        self._timeout_s = timeout_s
        self._errors = library().exceptions
        self._sha = sha1(script().encode(), usedforsecurity=False).hexdigest()
        self._made: dict[str, str] = {}  # when the keys of each pool were
        self._ahead_us: int | None = None  # the server's clock, beyond this process's
        self._client: _Connection | _Cluster | None = None
        self._inherited: list[Any] = []
        self._lock = threading.RLock()  # a finalizer in this thread may close the store

    def exchange(self, pool: str, message: Message) -> StoreReply:
        try:
            answer = self._ask(pool, message)
            if answer[0] == LATE:  # the server's clock was set forward: nothing was applied
                answer = self._ask(pool, message)
            if answer[0] != NEWER:
                return decode(answer, message)
        except Exception as error:
            if isinstance(error, self._errors.ReadOnlyError):
                self.close()  # its name may lead to another server now
            raise StoreError(f"{self.url}: {explain(error)}") from error
        raise StoreFormatError(f"{self.url}: written by a newer paceline: update this one")

    def ping(self) -> None:
        """See :func:`~paceline.shared.messages.ping`: a key that the server forgets at once."""
        self.run_script("redis.call('SET', KEYS[1], '', 'PX', 1)", [f"paceline:ping:{{{self.prefix}/}}"])

    def remarks(self, pool: str) -> list[str]:
        key = f"paceline:made:{{{self.prefix}/{pool}}}"
        answer = self.run_script(lua("health"), [key], self._made.get(pool, ""))
        if answer[0]:
            self._made[pool] = answer[0].decode()
        return list(remarks(answer))

    def _ask(self, pool: str, message: Message) -> list[Any]:
        sent_us = time.monotonic_ns() // 1_000
        ahead_us = self._ahead_us
        late_us = 0 if ahead_us is None else sent_us + ahead_us + round((self._timeout_s + LATE_S) * 1e6)
        client, key = self._connected(), self.key(pool)
        text = encode(message, late_us, present=message.who in client.presence_of(key))
        answer: list[Any] = self._call(pool, text, quota_lines(message.known.quotas))
        self._ahead_us = int(answer[CLOCK]) - sent_us
        client.presence_of(key).join(message.who)  # at the node that has answered
        return answer

    def key(self, pool: str) -> str:
        """The key of the ledger of ``pool``."""
        return f"paceline:3:{{{self.prefix}/{pool}}}"  # in all formats, see ledger.lua

    def pools(self) -> list[str]:
        """The names of the pools that there are, by a look at all keys of the server.

        Raises:
            StoreError: They cannot be listed.
        """
        start = self.key("").removesuffix("}")
        pattern = re.sub(r"([\\*?\[\]])", r"\\\1", start) + "*}"
        try:
            client = self._address.client(self._timeout_s)
            try:
                found = {key.decode("utf-8", "replace") for key in client.scan_iter(match=pattern, count=1_000)}
            finally:
                client.close() if self._address.nodes else client.connection_pool.disconnect()
        except Exception as error:
            raise StoreError(f"{self.url}: {explain(error)}") from error
        return sorted(key.removeprefix(start).removesuffix("}") for key in found)

    def processes(self, pool: str) -> list[Seen]:
        """The processes that share ``pool``, the first ``PROCESSES_MAX`` of them to change.

        Raises:
            StoreError: They cannot be read.
        """
        key = self.key(pool)
        rows = json.loads(self.run_script(lua("processes"), [key, *(key + name for name in KEYS)], str(PROCESSES_MAX)))
        return [Seen.of(*row) for row in rows]

    def run_script(self, text: str, keys: Sequence[str], *arguments: str) -> Any:
        """Run a short script of another use on the node that has ``keys``; each call sends its text.

        Raises:
            StoreError: It did not run, or it is not known whether it did.
        """
        try:
            return self._connected().execute("EVAL", text, str(len(keys)), *keys, *arguments)
        except Exception as error:
            raise StoreError(f"{self.url}: {explain(error)}") from error

    def _call(self, pool: str, *arguments: str) -> Any:
        client, key = self._connected(), self.key(pool)
        words = (str(1 + len(KEYS)), key, *(key + name for name in KEYS), *arguments)
        with suppress(self._errors.NoScriptError):  # a new server, or SCRIPT FLUSH: nothing was applied
            return client.execute("EVALSHA", self._sha, *words)
        return client.execute("EVAL", script(), *words)

    def _connected(self) -> _Connection | _Cluster:
        with self._lock:
            if self._client is None:
                nodes = self._address.nodes
                self._client = _Cluster(self._connection, nodes) if nodes else self._connection()
            return self._client

    def _connection(self, node: Node | None = None) -> _Connection:
        presence = Presence(partial(self._address.connection, self._timeout_s / PRESENCE_PART, node))
        return _Connection(self._address.connection(self._timeout_s, node), presence)

    def after_fork(self) -> None:
        # Kept, not closed: to close it takes locks that a thread of the parent may have held.
        self._inherited.append(self._client)
        if self._client is not None:
            self._client.after_fork()
        self._client, self._lock = None, threading.RLock()

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


class _Connection:
    """One connection that is kept: to take one from a pool for each exchange costs as much as the script."""

    def __init__(self, connection: Any, presence: Presence) -> None:
        self._connection, self._presence = connection, presence
        self._answers = library().ResponseError
        self._in_turn = InTurn()
        self._used_s = 0.0  # when it was used last; 0.0: it is not open

    def execute(self, *command: str, asking: bool = False) -> Any:
        """Send a command, after ``ASKING`` where a node imports its key, and read the answer. Nothing is sent again."""
        return self._in_turn.run(lambda: self._ask(command, asking))

    def _ask(self, command: tuple[str, ...], asking: bool) -> Any:
        connection = self._connection
        try:
            if self._used_s and time.monotonic() - self._used_s > IDLE_S and is_closed(connection):
                connection.disconnect()
            self._used_s = 0.0
            connection.connect()  # unless it is open; sending would, too, but asks no Sentinels
            if asking:
                connection.send_command("ASKING")
                connection.read_response()
            connection.send_command(*command)
            answer = connection.read_response()
        except BaseException as error:
            if not isinstance(error, self._answers):
                connection.disconnect()  # an answer may still be on its way
            raise
        self._used_s = time.monotonic()
        return answer

    def close(self) -> None:
        """Close the connection, and those to Sentinels; the next command opens them again."""
        self._connection.disconnect()
        finder = getattr(getattr(self._connection, "connection_pool", None), "sentinel_manager", None)
        for sentinel in finder.sentinels if finder is not None else ():
            sentinel.connection_pool.disconnect()
        self._presence.close()

    def presence_of(self, key: str) -> Presence:  # noqa: ARG002
        """What shows the server of ``key`` that this process lives."""
        return self._presence

    def after_fork(self) -> None:
        """In a forked child: leave the presence to the parent."""
        self._presence.after_fork()


class _Cluster:
    """Sends each command to the node that has its key: asks any node, and remembers where that redirects to.

    The client of redis-py sends a command again when a connection breaks, and asks all nodes about all slots before
    it reports that one is silent. Here only what a node has certainly not applied is sent to another one, and a silent
    node costs one timeout.
    """

    def __init__(self, connect: Callable[[Node], _Connection], nodes: list[Node]) -> None:
        self._connect = connect
        self._given = nodes
        self._nodes = list(nodes)  # the first is asked where a key is
        self._node_of: dict[str, Node] = {}
        self._connections: dict[Node, _Connection] = {}

    def execute(self, *command: str) -> Any:
        """Run a script (EVAL or EVALSHA, script, number of keys, key, ...) on the node that has the key."""
        key, hops = command[3], 0
        node, asking = self._node_of.get(key, self._nodes[0]), False
        while True:
            hops += 1
            try:
                return self._at(node).execute(*command, asking=asking)
            except Exception as error:
                redirect = _REDIRECT.fullmatch(str(error))
                if redirect is not None:
                    node = redirect[2] or node[0], int(redirect[3])  # a host that is left out is the node's own
                    asking = redirect[1] == "ASK" or type(error).__name__ == "AskError"
                    if not asking:
                        self._remember(key, node)
                else:
                    if type(error).__name__ != "NoScriptError":  # the key may move, and another node knows where
                        self._node_of.pop(key, None)
                        if self._nodes[0] == node:
                            self._nodes = [*self._nodes[1:], node]
                    not_sent = isinstance(error.__context__, ConnectionRefusedError | socket.gaierror)
                    if not not_sent or node == self._nodes[0]:
                        raise
                    node, asking = self._nodes[0], False
                if hops == HOPS_MAX:
                    raise

    def _remember(self, key: str, node: Node) -> None:
        self._node_of[key] = node
        if node not in self._nodes:
            if len(self._nodes) >= NODES_MAX:  # a cluster whose addresses change
                self._nodes, self._connections = list(self._given), {}
            self._nodes.append(node)

    def presence_of(self, key: str) -> Presence:
        """What shows the node that is taken to have ``key`` that this process lives."""
        return self._at(self._node_of.get(key, self._nodes[0])).presence_of(key)

    def _at(self, node: Node) -> _Connection:
        """The connection to a node, which is opened at its first use."""
        return self._connections.get(node) or self._connections.setdefault(node, self._connect(node))

    def after_fork(self) -> None:
        """In a forked child: leave the presence to the parent."""
        for connection in self._connections.values():
            connection.after_fork()

    def close(self) -> None:
        """Close all connections."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()


def explain(error: BaseException) -> str:
    """What an error of redis-py says, and what to do where that is known."""
    causes, link = "", error.__cause__ or error.__context__
    while link is not None:
        causes, link = f"{causes} {type(link).__name__} {link}", link.__cause__ or link.__context__
    said = str(error).partition(" : <")[0]  # not redis-py's objects,
    said = said.partition(", with args")[0][:SAID_MAX] or type(error).__name__  # nor what was sent
    found = f"{type(error).__name__} {said}{causes}"
    advice = next((advice for pattern, advice in _ADVICE.items() if re.search(pattern, found)), None)
    return f"{said.rstrip('. ')}: {advice}" if advice else said
