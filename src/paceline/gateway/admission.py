"""Who a client is, by its key or as a program of this machine, and what it may ask for."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import unquote, urlsplit

from paceline.gateway.connection import Headers
from paceline.gateway.errors import RequestError
from paceline.gateway.keys import PREFIX, ClientKey, KeyFile, is_free
from paceline.gateway.upstreams import KEY_HEADERS
from paceline.http.account import key_in_query
from paceline.providers.registry import is_loopback


class Admission:
    """Admits the clients of a gateway.

    Args:
        keys: The keys of clients.
        host: The address at which it listens. On loopback, clients need no key as long as there are none.
        key_in_path: Whether a key may be the first part of a path, where the headers have a credential for the server.

    Attributes:
        needs_key: Whether clients need keys.
    """

    def __init__(self, keys: KeyFile, host: str, *, key_in_path: bool) -> None:
        self._keys, self._key_in_path = keys, key_in_path
        # In the header ``host``. A browser that was led here by another name sends that name.
        self._hosts = frozenset({host, "localhost", "127.0.0.1", "::1"})
        self.needs_key = not is_loopback(host) or len(keys) > 0

    def admit(self, headers: Headers, query: str) -> tuple[ClientKey | None, str]:
        """What the client may do, and its key; ``None``: everything, because no keys are needed.

        Raises:
            RequestError: It is not admitted.
        """
        self._keys.look()
        # Never back to no keys: a file of keys that is gone for a moment must not open the gateway to everyone.
        self.needs_key = self.needs_key or len(self._keys) > 0
        if not self.needs_key:
            self._refuse_browsers(headers)
            return None, ""
        sent = [_bearer(value.decode("latin-1")) for name, value in headers if name in KEY_HEADERS]
        given = [one for one in (*sent, key_in_query(query)) if one]
        for one in given:  # some clients send a key of another server, too
            if (key := self._keys.find(one)) is not None:
                return key, one
        raise _no_key("this key is unknown or revoked" if given else "a key is missing")

    def look(self) -> None:
        """Read the keys again if they have changed."""
        self._keys.look()

    def tell(self, taken: Callable[[list[ClientKey]], None]) -> None:
        """Call ``taken`` with all keys whenever they were read again."""
        self._keys.taken = taken

    def denied(self, key: ClientKey | None) -> RequestError | None:
        """The refusal of a request whose ``key`` was revoked while it waited; ``None``: it may be sent."""
        self._keys.look()
        if key is None or key.identity in self._keys.identities:
            return None
        return _no_key("this key was revoked while its request waited")

    def without_users(self, headers: Headers) -> Headers:
        """What is passed on: no header in which any key names users, also of a client whose key does not."""
        users = self._keys.user_headers
        return [pair for pair in headers if pair[0] not in users] if users else headers

    def behind_key(self, path: str) -> str | None:
        """What follows the key in a path that begins with one; ``None`` for any other path.

        Raises:
            RequestError: The key is unknown. A program would take a 401 for one about its login.
        """
        first, slash, rest = path[1:].partition("/")
        if not (self._key_in_path and slash and first.startswith(PREFIX)):
            return None
        if self._keys.find(first) is None:
            raise RequestError(404, "key", "the key in the path is unknown")
        return slash + rest

    def _refuse_browsers(self, headers: Headers) -> None:
        """Refuse what a web page of another server sends through the user's browser."""
        for name, value in headers:
            if name == b"host" and _address_in(b"//" + value)[0] not in self._hosts:
                raise RequestError(
                    403, "host", "without client keys, this gateway answers only under the names of this machine"
                )
            other = name == b"sec-fetch-site" and value not in (b"same-origin", b"none")
            if other or (name == b"origin" and not self._is_own(_address_in(value), headers)):
                raise RequestError(403, "origin", "without client keys, web pages of other servers are refused")

    def _is_own(self, origin: tuple[str | None, int | None], headers: Headers) -> bool:
        """Whether a page comes from this server, under the port of the header ``host``."""
        port = next((_address_in(b"//" + value)[1] for name, value in headers if name == b"host"), None)
        return origin[0] in self._hosts and origin[1] == port


def refuse_unmetered(key: ClientKey | None, method: str, path: str) -> None:
    """Refuse what a key may not use: at unmetered endpoints it would have all rights of the provider's key.

    Raises:
        RequestError: The key may not use it.
    """
    if key is not None and not key.may_use(method, unquote(path)):
        endpoint = f"{method} {unquote(path)[:200]}"
        all_of_it = " ".join(f"--endpoint {shlex.quote(one)}" for one in (*key.endpoints, endpoint))  # it replaces them
        more = f"; to allow it: `paceline keys change {key.name} {all_of_it}`"
        if key.is_bounded and not is_free(endpoint):
            more = ": it has limits or a list of models, which don't apply there: make a second key for it"
        raise RequestError(403, "endpoint", f"this key may not use {method} {path[:100]}{more}")


def _no_key(why: str) -> RequestError:
    return RequestError(401, "key", f"{why}: send one of `paceline keys add` as the API key")


@lru_cache(maxsize=64)
def _address_in(url: bytes) -> tuple[str | None, int | None]:
    """The host and the port in an URL; ``None`` for none, or in an invalid one."""
    try:
        parts = urlsplit(url.decode("latin-1"))
        port = parts.port
    except ValueError:
        return None, None
    return parts.hostname, port


def _bearer(value: str) -> str:
    """The key in the value of a header, which may begin with the name of a scheme."""
    scheme, _, rest = value.partition(" ")
    return (rest if scheme.lower() == "bearer" else value).strip()
