"""A store in Redis or Valkey, for the processes of many machines: one script call for each exchange.

Nothing is sent twice: who does not know whether a message arrived says so with a :class:`StoreError`, and the caller
decides. Time is the server's own; the clocks of the processes play no part.

Needs a server of version 5 or later, and ``pip install "paceline[redis]"``.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from hashlib import sha1
from importlib import import_module
from typing import Any

from paceline.shared.messages import Message, Reply
from paceline.stores.base import TIMEOUT_S, StoreError
from paceline.stores.redis_address import Address, read_url
from paceline.stores.redis_cluster import ClusterClient
from paceline.stores.redis_errors import explain
from paceline.stores.redis_wire import decode, encode, quota_set, script

FORMAT = 1
"""Of the state; another format has other keys, so that old and new processes do not read each other's."""


IDLE_S = 0.05
"""A connection that was not used for longer is looked at before it is used again."""


class RedisStore:
    """Keeps books in Redis, one key for each pool; a key that nobody uses expires after days.

    Args:
        url: See :func:`paceline.stores.open_store`. For TLS, the options ``ssl_cert_reqs``, ``ssl_ca_certs``,
            ``ssl_certfile``, ``ssl_keyfile`` and ``ssl_check_hostname`` may follow; for Sentinels with a password
            ``sentinel_username`` and ``sentinel_password``.
        timeout_s: How long to wait for a connection, and then for the answer. To look up a host's name takes as long
            as the system takes.

    Attributes:
        url: The same without user and passwords.

    Raises:
        StoreError: The URL cannot be meant, the timeout is not above 0, or redis-py is not installed.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._address = read_url(url)
        self.url = self._address.url
        if not timeout_s > 0:
            raise StoreError(f"timeout_s is {timeout_s!r}: it must be above 0")
        self._timeout_s = timeout_s
        self._errors = _library().exceptions
        self._sha = sha1(script().encode(), usedforsecurity=False).hexdigest()
        self._client: Any = None
        self._inherited: list[Any] = []
        self._lock = threading.Lock()

    def exchange(self, pool: str, message: Message) -> Reply:
        """See :meth:`Store.exchange`."""
        arguments = (self.key(pool), encode(message), *quota_set(message.quotas))
        try:
            return decode(self._call(*arguments), message)
        except Exception as error:  # whatever redis-py or the system fails with
            if isinstance(error, self._errors.ReadOnlyError):
                self.close()  # its name may lead to another server now
            raise StoreError(f"{self.url}: {explain(error)}") from error

    def key(self, pool: str) -> str:
        """Where the books of ``pool`` are."""
        prefix = self._address.prefix
        return f"paceline:{FORMAT}:{{{prefix}/{pool}}}"

    def _call(self, key: str, *arguments: str) -> Any:
        client = self._connected()
        try:
            return client.execute_command("EVALSHA", self._sha, 1, key, *arguments)
        except self._errors.NoScriptError:  # a new server, or SCRIPT FLUSH; nothing has happened
            return client.execute_command("EVAL", script(), 1, key, *arguments)

    def _connected(self) -> Any:
        client = self._client
        if client is None:
            with self._lock:
                if self._client is None:
                    self._client = _open(self._address, self._timeout_s)
                client = self._client
        return client

    def after_fork(self) -> None:
        """See :meth:`Store.after_fork`."""
        # Kept, not closed: closing takes locks, which a thread of the parent may have held.
        self._inherited.append(self._client)
        self._client, self._lock = None, threading.Lock()

    def close(self) -> None:
        """See :meth:`Store.close`."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


class OneConnection:
    """One server over one connection that is kept: to take it from a pool each time costs as much as the script."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._connection = client.connection_pool.make_connection()
        self._lock = threading.Lock()
        self._used_s = 0.0  # when it was used last; 0.0: it is not open

    def execute_command(self, *command: Any) -> Any:
        """Send a command and read the answer. Whatever fails, what was sent is not sent again."""
        connection = self._connection
        with self._lock:
            if self._used_s and time.monotonic() - self._used_s > IDLE_S and self._gone():
                connection.disconnect()
            self._used_s = 0.0
            try:
                connection.send_command(*command)
                answer = connection.read_response()
            except BaseException as error:
                if not _is_answer(error):
                    connection.disconnect()  # an answer may still be on its way
                raise
            self._used_s = time.monotonic()
            return answer

    def _gone(self) -> bool:
        """Whether the server has hung up meanwhile: then nothing needs to be lost."""
        try:
            return bool(self._connection.can_read(0))  # there is nothing to read but the end
        except Exception:  # noqa: BLE001  (whatever the system says to a closed socket)
            return True

    def close(self) -> None:
        """Hang up."""
        self._connection.disconnect()
        self._client.close()


def _is_answer(error: BaseException) -> bool:
    """Whether the server itself said that it is an error: the connection is as good as before."""
    return any(cls.__name__ == "ResponseError" for cls in type(error).__mro__)


def _library() -> Any:
    try:
        return import_module("redis")
    except ImportError as error:
        raise StoreError('a store in Redis needs redis-py: pip install "paceline[redis]"') from error


def _open(address: Address, timeout_s: float) -> Any:
    """A client that sends nothing twice."""
    redis, options = _library(), address.options
    once = import_module("redis.retry").Retry(import_module("redis.backoff").NoBackoff(), 0)
    common: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "protocol": 2}
    common |= {"retry": once, "db": address.db}
    if address.tls:
        common |= {"ssl": True} | {name: value for name, value in options.items() if name.startswith("ssl_")}
    if address.kind == "sentinel":
        each_s = timeout_s / len(address.hosts)  # they are asked one after the other
        login = {name[9:]: value for name, value in options.items() if name.startswith("sentinel_")}
        asking = {**common, "db": 0, "socket_timeout": each_s, "socket_connect_timeout": each_s, **login}
        finder = import_module("redis.sentinel").Sentinel(address.hosts, sentinel_kwargs=asking)
        return finder.master_for(address.master, **common, **address.login)
    common |= address.login
    if address.kind == "cluster":
        return ClusterClient(partial(redis.Redis, **common), address.hosts)
    if address.path:
        return OneConnection(redis.Redis(unix_socket_path=address.path, **common))
    return OneConnection(redis.Redis(*address.hosts[0], **common))
