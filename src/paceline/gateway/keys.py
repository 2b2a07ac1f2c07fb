"""The keys of the gateway's clients: a file of hashes, each with what its key may do."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from paceline.core.queue import LaneSpec
from paceline.core.quota import parse_quotas
from paceline.core.results import PacelineError, SettingsError, explaining
from paceline.gateway.stamps import Watched
from paceline.gateway.upstreams import KEY_HEADERS
from paceline.pacing.allowances import check_limits
from paceline.pacing.durable import WriteTurn, open_binary, replacing
from paceline.providers.registry import base_of

log = logging.getLogger("paceline.gateway")

PREFIX: Final = "pk-"
"""The beginning of every key."""

SALT_BYTES: Final = 32

SECRET_MIN: Final = 22
"""Characters of a secret of another proxy behind its prefix: so many of base64 have 128 bits, as litellm's own have (1.106, 2026-11)."""

_VARIETY: Final = 8
"""The different characters of a random secret: of 32 hex digits, one in 20 million has less."""

HASHED: Final = "sha256:"
"""What the hash of a secret has before its hex digits."""

_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")
_SECRET: Final = re.compile(r"[!-~]{1,1000}")
_DRESSED: Final = re.compile(r"(['\"`]).*\1$|[A-Za-z_]\w*=[^=]")  # in quotes, or a line of an .env
_PREFIXED: Final = re.compile(r"[A-Za-z]{1,8}[-_]")
_WORDS: Final = re.compile(r"[A-Za-z][a-z]{3,}|[A-Z]{4,}")
_NO_WORD: Final = re.compile(r"[bcdfghjklmnpqrstvwxz]{4}", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}")
_ENDPOINT: Final = re.compile(r"([A-Z]+ )?/[!-~]{0,200}")
_USERS: Final = re.compile(r"[Xx]-(?!(?i:paceline-))[A-Za-z0-9-]{1,98}")
_LISTED: Final = re.compile(r"(?:GET|HEAD) (?:/[\w.-]+)*?(?:/models(?:/(?P<model>[\w.:-]{1,200}))?|/api/tags)/?")
_TOLD: Final = re.compile(r"(?:GET|HEAD) (?:/[\w.-]+)*?/api/version/?")
"""What each key may ask for, unless its endpoints are named: the list of models, and one of them (Ollama's list is ``/api/tags``); and
Ollama's version, for which its clients ask first."""
_FREE: Final = re.compile(r"(?:GET|HEAD) (?:/[\w.-]+)*(?:/models(?:/[\w.:/*-]*)?|/api/(?:tags|version))")
"""Such endpoints, as a key names them: they cost nothing and show nothing of other clients."""


class KeyFileError(PacelineError):
    """The file of keys cannot be used; the message names it and the reason."""


@dataclass(frozen=True, slots=True)
class KeySecret:
    """The secret of a key, as it is kept.

    Attributes:
        digest: The SHA-256 of the key, as hex digits. A key has 256 random bits, so a slower hash would not be safer.
        former: The SHA-256 of the secret before, which is valid for some time after a rotation; empty: none.
        former_until: Until when, in UTC.
        first: The SHA-256 of its first secret, where it has another one by now; empty otherwise.
    """

    digest: str
    former: str = ""
    former_until: str = ""
    first: str = ""

    @property
    def identity(self) -> str:
        """What no other key has; a rotation leaves it."""
        return self.first or self.digest

    def admits(self, hashed: str) -> bool:
        """Whether the secret with this hash, which is the present one or the one before, is valid now."""
        return hashed == self.digest or _utc() < self.former_until

    def rotated(self, hashed: str, overlap_s: float) -> KeySecret:
        """A new one, beside which this one is valid for ``overlap_s`` more."""
        return KeySecret(hashed, self.digest, _utc(overlap_s), self.identity)


@dataclass(frozen=True, slots=True)
class ClientKey:
    """What a key may do.

    Attributes:
        name: The name of the key, and of its lane.
        secret: Its secret.
        created: When it was made, in UTC.
        weight: The weight of its lane; 1: as in the settings.
        priority: The priority of its lane; 0: as in the settings.
        models: Shell patterns of the models that it may use, with or without their provider; empty: all.
        limits: Quotas that hold for the key over all models, as texts; empty: as in the settings.
        may_read: Whether it may read the page, the status and the metrics.
        may_resume: Whether it may end the stop of a pool.
        endpoints: Shell patterns of the unmetered endpoints that it may use: a path at the provider, after a method or for all
            methods; empty: the list of models. Beside ``models`` or ``limits``, which do not hold there, only those that list models are possible.
        team: The team whose share and limits the key has a part of; empty: none.
        users: The header in which the client, a front end for many people, names the one who asks; empty: it is for one client.
    """

    name: str
    secret: KeySecret
    created: str
    weight: float = 1.0
    priority: int = 0
    models: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    may_read: bool = False
    may_resume: bool = False
    endpoints: tuple[str, ...] = ()
    team: str = ""
    users: str = ""

    def __post_init__(self) -> None:
        """Refuse invalid values.

        Raises:
            SettingsError: A value is invalid.
        """
        for what, name in (("key", self.name), *([("team", self.team)] if self.team else [])):
            if not _NAME.fullmatch(name):
                raise SettingsError(
                    f"invalid name of a {what} {name[:100]!r}: use letters, digits, '.', '_', '@' and '-'"
                )
        if self.users and (not _USERS.fullmatch(self.users) or self.users.lower().encode() in KEY_HEADERS):
            raise SettingsError(
                f"invalid header of users {self.users[:100]!r}: name one that begins with X-, such as X-OpenWebUI-User-Id"
            )
        LaneSpec(self.name, self.weight, self.priority)
        if self.limits:
            check_limits(self.name, parse_quotas(list(self.limits)))
        for pattern in self.endpoints:
            if not _ENDPOINT.fullmatch(pattern):
                raise SettingsError(
                    f"invalid endpoint {pattern[:100]!r} of the key {self.name}: use a path at the provider, or a method and a path,"
                    " such as 'GET /v1/models'"
                )
        if self.is_bounded and not all(map(is_free, self.endpoints)):
            raise SettingsError(
                f"the key {self.name} has limits or a list of models, which don't apply at unmetered endpoints other than lists of models,"
                " such as 'GET /v1/models': leave one of them out, or make two keys"
            )

    @property
    def is_bounded(self) -> bool:
        """Whether it has limits or a list of models."""
        return bool(self.models or self.limits)

    @property
    def identity(self) -> str:
        """What no other key has, also of the same name; a rotation leaves it."""
        return self.secret.identity

    def allows(self, provider: str, model: str) -> bool:
        """Whether the key may use ``model`` of ``provider``."""
        names = (model, f"{provider}/{model}", f"{base_of(provider)}/{model}")
        return not self.models or any(fnmatchcase(name, pattern) for pattern in self.models for name in names)

    def may_use(self, method: str, path: str) -> bool:
        """Whether the key may use the unmetered endpoint at ``path``, decoded, of a provider."""
        names = (path, f"{method} {path}")
        if not self.endpoints:
            return lists(method, path) or _TOLD.fullmatch(f"{method} {path}") is not None
        return any(fnmatchcase(name, pattern) for pattern in self.endpoints for name in names)


def lists(method: str, path: str) -> bool:
    """Whether a request lists models, or asks for one of them."""
    return _LISTED.fullmatch(f"{method} {path}") is not None


def model_listed(method: str, path: str) -> str:
    """The one model that a request asks for; empty for a list."""
    found = _LISTED.fullmatch(f"{method} {path}")
    return found["model"] or "" if found else ""


def is_free(endpoint: str) -> bool:
    """Whether an unmetered endpoint, with its method, costs nothing and shows nothing of other clients."""
    return _FREE.fullmatch(endpoint) is not None


class KeyFile:
    """The keys in a file, read again when it changes.

    Args:
        file: The file; it need not exist.

    Attributes:
        identities: The identity of each key.
        user_headers: The headers, in small letters, in which any key names users.
        taken: Called with all keys when they were read again.

    Raises:
        KeyFileError: The file cannot be read.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.taken: Callable[[list[ClientKey]], None] = lambda _: None
        self._take([])
        self._watched = Watched("the earlier keys stay valid", file)
        self._read()

    def __len__(self) -> int:
        return len(self._all)

    def look(self) -> None:
        """Read the file again if it has changed."""
        self._watched.look(self._read)

    def find(self, key: str) -> ClientKey | None:
        """What ``key`` may do; ``None`` for an unknown one."""
        # By its hash, because the time of such a look-up tells nothing of a key.
        hashed = digest(key)
        found = self._by_digest.get(hashed)
        return found if found is not None and found.secret.admits(hashed) else None

    def all(self) -> list[ClientKey]:
        """All keys by name."""
        return sorted(self._all, key=lambda one: one.name)

    def add(self, name: str, hashed: str = "", **fields: Any) -> str:
        """Make a key and write the file; returns the key, which is kept nowhere, or nothing for a secret that its client has.

        Args:
            name: The name of the key.
            hashed: The hash of the secret that its client has; see :func:`taken_over`.
            **fields: Fields of :class:`ClientKey`.

        Raises:
            SettingsError: A value is invalid, or there is a key of that name or with that secret.
            KeyFileError: The file cannot be written.
        """
        key = "" if hashed else _secret()
        made = ClientKey(name, KeySecret(hashed or digest(key)), _utc(), **fields)
        with self._only_writer():
            if any(one.name == name for one in self._all):
                raise SettingsError(
                    f"there is a key named {name!r} already: `paceline keys change` gives it other rights"
                )
            if (other := self._by_digest.get(made.secret.digest)) is not None:
                raise SettingsError(
                    f"the key {other.name} has this secret already: the gateway tells clients apart by it"
                )
            self._write([*self._all, made])
        return key

    def change(self, name: str, **fields: Any) -> None:
        """Give the key ``name`` other values of some fields; its secret and the other fields stay.

        Raises:
            SettingsError: There is no such key, or a value is invalid.
            KeyFileError: The file cannot be written.
        """
        self._replace(name, lambda old: replace(old, **fields))

    def rotate(self, name: str, overlap_s: float) -> str:
        """Give the key ``name`` a new secret, which is returned and kept nowhere; the present one is valid for ``overlap_s`` more.

        One that was replaced before is valid no more.

        Raises:
            SettingsError: There is no such key.
            KeyFileError: The file cannot be written.
        """
        key = _secret()
        self._replace(name, lambda old: replace(old, secret=old.secret.rotated(digest(key), overlap_s)))
        return key

    def _replace(self, name: str, make: Callable[[ClientKey], ClientKey | None]) -> None:
        with self._only_writer():
            old = self._named(name)
            self._write([new for one in self._all if (new := make(one) if one is old else one)])

    def salt(self) -> bytes:
        """The key of the digests by which accounts are known: 32 random bytes, made once and kept beside the file of keys.

        Where it cannot be kept it lasts as long as this process.
        """
        made, salt_file = secrets.token_bytes(SALT_BYTES), self.file.with_name("accounts.salt")
        try:
            with self._only_writer():
                with suppress(FileNotFoundError):
                    found = bytes.fromhex(salt_file.read_text("ascii"))
                    if len(found) == SALT_BYTES:
                        return found
                with replacing(str(salt_file)) as file:
                    file.write(made.hex().encode())
        except (KeyFileError, ValueError) as error:
            log.warning("%s cannot be used: accounts have other names after the next start: %s", salt_file, error)
        return made

    def revoke(self, name: str) -> None:
        """Remove the key ``name`` from the file.

        Raises:
            SettingsError: There is no such key.
            KeyFileError: The file cannot be written.
        """
        self._replace(name, lambda _: None)

    def _named(self, name: str) -> ClientKey:
        found = next((one for one in self._all if one.name == name), None)
        if found is None:
            known = ", ".join(one.name for one in self.all()) or "none"
            raise SettingsError(f"there is no key named {name!r}; known: {known}")
        return found

    @contextmanager
    def _only_writer(self) -> Iterator[None]:
        """Read the file, and keep other processes from writing it meanwhile."""
        with explaining(f"{self.file}: the keys cannot be written", kind=KeyFileError):
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Not the file itself: it is replaced, and a lock would be on the old one.
            if sys.platform == "win32":  # which opens no folder
                fd = open_binary(f"{self.file}.lock", os.O_RDWR | os.O_CREAT)
            else:
                fd = os.open(self.file.parent, os.O_RDONLY)
            try:
                with WriteTurn(fd):
                    self._read()
                    yield
            finally:
                os.close(fd)

    def _read(self) -> None:
        try:
            self._take(list(map(_client_key, json.loads(self.file.read_text(encoding="utf-8"))["keys"])))
        except FileNotFoundError:
            if self._all:
                log.warning("%s is gone: no client has a valid key until it is back", self.file)
            self._take([])
        except OSError as error:
            raise KeyFileError(f"{self.file}: the keys cannot be read: {error.strerror}") from None
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise KeyFileError(f"{self.file}: this is no file of keys: {error}") from None

    def _take(self, keys: list[ClientKey]) -> None:
        self._all = keys
        self._by_digest = {one.secret.former: one for one in keys if one.secret.former}
        # Last, because a present secret goes before a former one.
        self._by_digest |= {one.secret.digest: one for one in keys}
        self.identities = frozenset(one.identity for one in keys)
        self.user_headers = frozenset(one.users.lower().encode("ascii") for one in keys if one.users)
        self.taken(keys)

    def _write(self, keys: Iterable[ClientKey]) -> None:
        text = json.dumps({"keys": list(map(_row, keys))}, indent=2) + "\n"
        with replacing(str(self.file)) as file:
            file.write(text.encode())
        self._read()


def _client_key(row: Mapping[str, Any]) -> ClientKey:
    """A key, as a row of the file has it."""
    parts = {one.name for one in fields(KeySecret)}
    lists = {name: tuple(row.get(name, ())) for name in ("models", "limits", "endpoints")}
    secret = KeySecret(**{name: value for name, value in row.items() if name in parts})
    return ClientKey(secret=secret, **{name: value for name, value in row.items() if name not in parts} | lists)


def _row(key: ClientKey) -> dict[str, Any]:
    """A key, as the file has it."""
    row = asdict(key)
    row |= row.pop("secret")
    return row


def _secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _utc(later_s: float = 0.0) -> str:
    """The time in so many seconds; two such texts compare as the times do."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + later_s))


def digest(key: str) -> str:
    """The form in which a key is kept."""
    return hashlib.sha256(key.encode()).hexdigest()


def taken_over(text: str) -> str:
    """The hash of a secret that a client has of another proxy: of the secret itself, or as given behind ``sha256:``.

    Raises:
        SettingsError: It is no secret, or one that can be guessed; the message does not quote it.
    """
    secret = text.removeprefix("\ufeff").strip()  # editors of Windows begin a file with this mark
    if secret.lower().startswith(HASHED):
        hashed = secret[len(HASHED) :].strip()
        if not _HEX.fullmatch(hashed):
            raise SettingsError(f"after {HASHED}, write the 64 hex digits of the SHA-256 of one secret")
        if len(set(hashed)) < _VARIETY or hashed.lower() == digest(""):
            raise SettingsError(f"the text after {HASHED} is not the SHA-256 of a secret, or the secret is empty")
        return hashed.lower()
    if not _SECRET.fullmatch(secret):
        raise SettingsError("write one secret, in one line of ASCII characters without spaces")
    if _DRESSED.match(secret):
        raise SettingsError("it is in quotes or after NAME=: write only the secret, as its client sends it")
    if _HEX.fullmatch(secret):
        raise SettingsError(
            f"64 hex digits can be a secret or its hash, and a stolen hash must not work as a secret: write {HASHED} before a hash, and for a"
            f" secret {HASHED} with its SHA-256"
        )
    random = _PREFIXED.sub("", secret, count=1)
    in_words = sum(len(word) for word in _WORDS.findall(random) if not _NO_WORD.search(word))
    if len(random) < SECRET_MIN or len(set(random)) < _VARIETY or 2 * in_words > len(random):
        raise SettingsError(
            f"this secret can be guessed: it has less than {SECRET_MIN} characters after its prefix, or few different ones, or is made of words."
            " paceline stores a SHA-256, which protects random secrets only. Leave out the option, and give this client the new key;"
            f" if you know that the secret is random, write {HASHED} and its SHA-256"
        )
    return digest(secret)


def keys_file(environ: Mapping[str, str]) -> Path:
    """The file of keys of this user: ``$PACELINE_KEYS``, else ``paceline/keys.json`` in the folder of settings.

    Raises:
        KeyFileError: This user has no home folder.
    """
    if given := environ.get("PACELINE_KEYS"):
        return Path(given)
    home = environ.get("XDG_CONFIG_HOME")
    try:
        return Path(home) / "paceline/keys.json" if home else Path("~/.config/paceline/keys.json").expanduser()
    except RuntimeError:
        raise KeyFileError("this user has no home folder: name the file of keys with --keys") from None
