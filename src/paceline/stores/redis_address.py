"""Where a Redis is, as its URL says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal
from urllib.parse import parse_qsl, unquote

from paceline.stores.base import StoreError, misplaced

_PORT, _SENTINEL_PORT = 6379, 26379
_TLS_OPTIONS = ("ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_EXAMPLES = {
    "redis": "redis://HOST:PORT/DB",
    "rediss": "rediss://HOST:PORT/DB",
    "unix": "unix:///PATH?db=0",
    "redis+sentinel": "redis+sentinel://HOST:PORT,HOST:PORT/MASTER/DB",
    "rediss+sentinel": "rediss+sentinel://HOST:PORT,HOST:PORT/MASTER/DB",
    "redis+cluster": "redis+cluster://HOST:PORT,HOST:PORT",
    "rediss+cluster": "rediss+cluster://HOST:PORT,HOST:PORT",
}


@dataclass(slots=True)
class Address:
    """What a URL says.

    Attributes:
        url: The same, fit to be shown: without user and passwords.
        kind: What answers there.
        tls: Whether to speak TLS.
        hosts: The server, the Sentinels or some nodes of the cluster.
        path: Of the unix socket, if it is one.
        master: The name that the Sentinels know the master by.
        prefix: What keeps apart several accounts on one server.
        login: ``username`` and ``password``, those that are given.
        options: ``ssl_...``, ``sentinel_username`` and ``sentinel_password``, those that are given.
    """

    url: str
    kind: Literal["server", "sentinel", "cluster"] = "server"
    tls: bool = False
    hosts: list[tuple[str, int]] = field(default_factory=list)
    path: str | None = None
    master: str = ""
    db: int = 0
    prefix: str = ""
    login: dict[str, str] = field(default_factory=dict)
    options: dict[str, str | bool] = field(default_factory=dict)


def read_url(url: str) -> Address:
    """Read a URL of Redis, Sentinel or Redis Cluster.

    Raises:
        StoreError: It cannot be meant; the message says what would be right, and shows no password.
    """
    scheme, slashes, rest = url.partition("://")
    example = _EXAMPLES.get(scheme) if slashes else None
    if example is None:
        kind, _, place = url.partition(":")  # what follows can be a password
        if kind in _EXAMPLES:
            plain = re.fullmatch(r"/?([a-z][a-z0-9.-]*(?::\d{1,5})?(?:/\d*)?)", place)
            meant = (
                f"{kind}://{plain[1]}" if plain and _EXAMPLES[kind].startswith(f"{kind}://HOST") else _EXAMPLES[kind]
            )
            raise StoreError(f"'//' is missing: write {meant!r}")
        raise StoreError(f"{kind!r} is no kind of Redis: write {', '.join(map(repr, _EXAMPLES.values()))}")
    place, _, query = rest.partition("?")
    login, at, rest = place.rpartition("@")
    if at and not (scheme == "unix" and "/" in login):  # that is a path with an '@'
        place = rest
    else:
        login = ""
    options = dict(parse_qsl(query, keep_blank_values=True))
    address = Address("", prefix=options.pop("prefix", ""), tls=scheme.startswith("rediss"), login=_login(login))
    if scheme == "unix":
        address.path, path = unquote(place), options.pop("db", "")
        if not address.path.startswith("/"):
            raise StoreError(f"a unix socket needs its whole path: write {example!r}")
    else:
        address.kind = {"sentinel": "sentinel", "cluster": "cluster"}.get(scheme.partition("+")[2], "server")  # type: ignore[assignment]
        hosts, _, path = place.partition("/")
        port = _SENTINEL_PORT if address.kind == "sentinel" else _PORT
        address.hosts = [_host(host, port, example) for host in hosts.split(",")]
        if address.kind == "sentinel":
            master, _, path = path.partition("/")
            address.master = unquote(master)
            if not address.master:
                raise StoreError(f"Sentinels need to know which master is meant: write {example!r}")
        elif address.kind == "server" and len(address.hosts) > 1:
            raise StoreError(f"{scheme}:// has one host: write {_EXAMPLES[scheme + '+cluster']!r} for several")
    address.db = _db(path, address.kind, example)
    address.options = _options(options, address)
    shown = f"?prefix={address.prefix}" if address.prefix else ""
    address.url = f"{scheme}://{place}{shown}"
    return address


def _login(text: str) -> dict[str, str]:
    username, _, password = text.partition(":")
    login = {"username": unquote(username), "password": unquote(password)}
    return {name: value for name, value in login.items() if value}


def _host(text: str, port: int, example: str) -> tuple[str, int]:
    """Never shows ``text``: what is wrong there can be a part of a password."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:\[\]@/]*))(?::(\d{1,5}))?", text)
    if match is None or int(match[3] or port) > 65_535:
        raise StoreError(
            f"host or port cannot be read: write {example!r}; in a password, '@', '/' and '?' as %40 %2F %3F"
        )
    return match[1] or match[2] or "localhost", int(match[3] or port)


def _db(text: str, kind: str, example: str) -> int:
    if not re.fullmatch(r"\d{0,5}", text):
        raise StoreError(f"the number of the database cannot be read: write {example!r}")
    if kind == "cluster" and int(text or 0):
        raise StoreError(f"a cluster has only database 0: write {example!r}")
    return int(text or 0)


def _options(options: dict[str, str], address: Address) -> dict[str, str | bool]:
    known = ["prefix", *(["db"] if address.path else []), *(_TLS_OPTIONS if address.tls else ())]
    known += _SENTINEL_OPTIONS if address.kind == "sentinel" else ()
    read: dict[str, str | bool] = {}
    for name, value in options.items():
        if name not in known:
            if name in _TLS_OPTIONS:
                raise StoreError(f"the option {name!r} is for TLS: write 'rediss' instead of 'redis'")
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there {'are' if known[1:] else 'is'}: {', '.join(known)}"
            hint = "the number of the database stands in the path, as in redis://HOST:PORT/DB" if name == "db" else hint
            raise StoreError(f"a Redis URL has no option {name!r}: {misplaced(name) or hint}")
        read[name] = value
    if "ssl_cert_reqs" in read and read["ssl_cert_reqs"] not in ("none", "optional", "required"):
        raise StoreError(f"ssl_cert_reqs is {read['ssl_cert_reqs']!r}: write none, optional or required")
    if "ssl_check_hostname" in read:
        if read["ssl_check_hostname"] not in ("true", "false"):
            raise StoreError(f"ssl_check_hostname is {read['ssl_check_hostname']!r}: write true or false")
        read["ssl_check_hostname"] = read["ssl_check_hostname"] == "true"
    return read
