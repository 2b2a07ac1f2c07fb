"""Where a Redis is and how to connect to it: from a URL, or with the settings of a client of redis-py."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from paceline.core.hints import why_missing
from paceline.stores.base import TIMEOUT_S, StoreError

Node = tuple[str, int]

_HOST = r"(?:\[[\w:.%]+\]|[\w.-]*)(?::\d{1,5})?"
_HOSTS = rf"(?P<hosts>{_HOST}(?:,{_HOST})*)"
_FORMS = {
    "redis": ("//HOST:PORT/DB (or redis+cluster://HOST:PORT,HOST:PORT)", rf"(?P<hosts>{_HOST})(?:/(?P<db>\d*))?"),
    "unix": ("///PATH?db=0", r"(?P<path>/[^?#]+)"),
    "redis+sentinel": ("//HOST:PORT,HOST:PORT/MASTER/DB", rf"{_HOSTS}/(?P<master>[^/@?#]+)(?:/(?P<db>\d*))?"),
    "redis+cluster": ("//HOST:PORT,HOST:PORT", rf"{_HOSTS}/?0?"),
}
"""By scheme (``rediss`` for TLS): what follows it, and a pattern of that without login and options."""

_LOGIN = ("username", "password")
_NOT_TAKEN = (
    *("retry", "health_check", "encoding", "decode_"),  # a store never retries, and reads bytes
    *("connection_pool", "event_", "himport", "maint", "orig_", "oss_"),  # what a client shares with its connections
)
"""How the settings begin that are not taken over."""


@dataclass(slots=True)
class RedisAddress:
    """Where a Redis is.

    Attributes:
        url: For logs and errors: without user and passwords.
        pool: A connection pool of redis-py: only its settings are used.
        nodes: Some nodes of a cluster; empty if it is none.
        prefix: What keeps apart several accounts on one server.
    """

    url: str
    pool: Any
    nodes: list[Node] = field(default_factory=list)
    prefix: str = ""

    def connection(self, timeout_s: float, node: Node | None = None) -> Any:
        """A new connection of redis-py, not open yet, that neither connects nor sends twice."""
        redis, pool = library(), self.pool
        settings = _settings(pool, timeout_s)
        if node is not None:
            settings["host"], settings["port"] = node
        if not isinstance(pool, redis.SentinelConnectionPool):
            return pool.connection_class(**settings)
        finder = copy(pool.sentinel_manager)
        sentinels = [sentinel.connection_pool for sentinel in finder.sentinels]
        each_s = timeout_s / len(sentinels)  # they are asked one after the other
        finder.sentinels = [
            redis.Redis(connection_pool=redis.ConnectionPool(each.connection_class, **_settings(each, each_s)))
            for each in sentinels
        ]
        return redis.SentinelConnectionPool(pool.service_name, finder, ssl=_has_tls(pool), **settings).make_connection()

    def client(self, timeout_s: float) -> Any:
        """A client of redis-py with connections of its own, for threads."""
        redis, settings = library(), _settings(self.pool, timeout_s)
        if self.nodes:
            nodes = [redis.cluster.ClusterNode(*node) for node in self.nodes]
            own = {name: value for name, value in settings.items() if name not in ("host", "port", "db", "retry")}
            return redis.RedisCluster(startup_nodes=nodes, ssl=_has_tls(self.pool), **own)
        if isinstance(self.pool, redis.SentinelConnectionPool):
            finder = self.pool.sentinel_manager
            pool = redis.SentinelConnectionPool(self.pool.service_name, finder, ssl=_has_tls(self.pool), **settings)
        else:
            pool = redis.ConnectionPool(self.pool.connection_class, **settings)
        return redis.Redis(connection_pool=pool)


def library() -> Any:
    """redis-py.

    Raises:
        StoreError: It is not installed.
    """
    try:
        return import_module("redis")
    except ImportError as error:
        raise StoreError(why_missing(error, "a store in Redis", "redis")) from error


def _found_by_sentinels(urls: list[str], master: str, login: Mapping[str, str], like: Any) -> Any:
    """A pool of connections to the ``master`` that the sentinels at ``urls`` name, with the settings of ``like``."""
    redis = library()
    finder = redis.Sentinel([])
    finder.sentinels = [redis.Redis.from_url(each, port=26_379, **login) for each in urls]
    return redis.SentinelConnectionPool(master, finder, ssl=_has_tls(like), **_settings(like))


def read_url(url: str) -> RedisAddress:
    """The address in a URL, which redis-py reads host by host.

    Raises:
        StoreError: The URL is invalid; the message shows no password.
    """
    library()
    scheme, _, rest = url.partition(":")
    plain, _, kind = scheme.partition("+")
    key = scheme.replace("rediss", "redis", 1)
    if key not in _FORMS:
        raise StoreError(f"invalid Redis URL: write {', '.join(_FORMS)} before '://', with rediss for TLS")
    form, pattern = _FORMS[key]
    advice = (
        f"write {scheme}:{form}; in a user name or a password, write '@' as %40, '/' as %2F, '?' as %3F and '#' as %23"
    )
    match = re.fullmatch(
        rf"//(?:(?P<login>[^/?#]*)@)?(?P<place>{pattern})(?:\?(?P<query>(?:\w+=[^&#]*(?:&|$))*))?", rest
    )
    if match is None:
        raise StoreError(f"invalid Redis URL: {advice}")
    if plain == "unix" and not hasattr(socket, "AF_UNIX"):
        raise StoreError("this system has no sockets of the kind unix: write redis://HOST:PORT")
    fields = match.groupdict("")
    options = dict(parse_qsl(fields["query"]))
    prefix = options.pop("prefix", "")
    sentinel_login = {name: options.pop(f"sentinel_{name}", "") for name in _LOGIN if kind == "sentinel"}
    if any("timeout" in name for name in options):
        raise StoreError(f"a Redis URL has no option for the timeout: the store has {TIMEOUT_S:g} s to answer")
    places = [fields["path"]] if plain == "unix" else fields["hosts"].split(",")
    urls = [f"{plain}://{each}?{urlencode(options)}" for each in places]
    settings = dict(zip(_LOGIN, map(unquote, fields["login"].partition(":")[::2]), strict=True))
    pools = _pools(urls, settings | {"db": fields.get("db") or 0}, advice)
    if kind == "sentinel":
        pools = [_found_by_sentinels(urls, unquote(fields["master"]), sentinel_login, pools[0])]
    shown = f"{scheme}://{fields['place']}" + (f"?prefix={prefix}" if prefix else "")
    return RedisAddress(shown, pools[0], [_node(pool) for pool in pools if kind == "cluster"], prefix)


def _pools(urls: list[str], settings: Mapping[str, Any], advice: str) -> list[Any]:
    """The pool of connections of each URL.

    Raises:
        StoreError: It has an invalid or an unknown option.
    """
    redis = library()
    try:
        pools = [redis.ConnectionPool.from_url(each, **{**settings, "db": int(settings["db"])}) for each in urls]
        pools[0].connection_class(**pools[0].connection_kwargs)  # raises TypeError for unknown options
    except (ValueError, redis.RedisError) as error:
        raise StoreError(f"invalid Redis URL ({error}): {advice}") from None
    except TypeError as error:
        raise StoreError(
            f"unknown option {str(error).rpartition(' ')[2]} in the Redis URL: write prefix, or a setting of redis-py"
            " (those for TLS with rediss:// only); on_store_failure and lease_s are arguments of Limiter"
        ) from None
    return pools


def read_client(client: Any) -> RedisAddress:
    """The address of a client, whose connections are not used.

    Raises:
        StoreError: It is not a client of redis-py that can be used.
    """
    redis = library()
    if isinstance(client, redis.RedisCluster):
        nodes = [(node.host, node.port) for node in client.get_primaries()]
        pool = client.get_redis_connection(client.get_primaries()[0]).connection_pool
        return RedisAddress(_shown(pool, "+cluster", nodes), pool, nodes)
    if not isinstance(client, redis.Redis):
        raise StoreError(
            f"unsupported client {type(client).__module__}.{type(client).__qualname__}: give a redis.Redis,"
            " a redis.RedisCluster, the result of master_for() of a redis.Sentinel, or a URL"
        )
    pool = client.connection_pool
    path = f"/{pool.connection_kwargs.get('db') or 0}"
    if isinstance(pool, redis.SentinelConnectionPool):
        sentinels = [_node(sentinel.connection_pool) for sentinel in pool.sentinel_manager.sentinels]
        return RedisAddress(_shown(pool, "+sentinel", sentinels, f"/{pool.service_name}{path}"), pool)
    if "path" in pool.connection_kwargs:
        return RedisAddress(f"unix://{quote(pool.connection_kwargs['path'])}", pool)
    return RedisAddress(_shown(pool, "", [_node(pool)], path), pool)


def _settings(pool: Any, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The settings of a connection pool, but for those that a store has to choose itself."""
    redis = library()
    once = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    taken = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_NOT_TAKEN)}
    return {**taken, "socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "retry": once, "protocol": 2}


def _has_tls(pool: Any) -> bool:
    return issubclass(pool.connection_class, library().SSLConnection)


def _node(pool: Any) -> Node:
    return pool.connection_kwargs.get("host", "localhost"), pool.connection_kwargs.get("port", 6379)


def _shown(pool: Any, kind: str, nodes: list[Node], path: str = "") -> str:
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in nodes)
    return f"{'rediss' if _has_tls(pool) else 'redis'}{kind}://{hosts}{path}"
