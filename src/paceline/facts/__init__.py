"""What is known of providers: ``providers/tables/providers.toml`` has the form, and the day and the heads of the data set of this version.

A *head* is what is known of a provider as a whole: its hosts, the root of its paths, its tiers. The *rows* are about models: ``limits``
and ``models``, which are their lives. Five places have them. Of two rows that fit equally, the one of the later place holds:

1. the data set of this version, or a newer one that ``paceline limits update`` has installed
2. what ``paceline check --admin`` was told of the organization of a key, while that key is in the environment
3. ``facts.toml`` in :func:`folder`
4. ``[providers.NAME]`` of a project's settings

Keys go nowhere new by data. An installed data set, and settings that the user has not named, cannot change where requests to a known
provider go (all of its head but ``FREE``), and a new provider of theirs is recognised by its hosts only: it has no root.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

from paceline.core.results import SettingsError
from paceline.facts import form

TABLES: Final = Path(__file__).parents[1] / "providers" / "tables"
"""The folder of the data set that comes with paceline."""

VARIABLE: Final = "PACELINE_FACTS"
"""The environment variable with another :func:`folder`."""

USERS, INSTALLED, BEFORE = "facts.toml", "installed.json", "installed_before.json"
"""The files in :func:`folder`: the user's own, the installed data set, and the one that it has replaced."""

ORGANIZATIONS: Final = "organizations"
"""The folder in :func:`folder` with a file for each organization that an administrator's key has asked about."""

ORGANIZATION: Final = "organization"
"""The tier of the limits that an organization has, which holds where no tier is named."""

KINDS: Final = form.ROWS
LIMITS, MODELS = KINDS
FREE: Final = frozenset({*KINDS, "default_tier", "ladders", "day_zone", "cache_s", "prices"})
"""What of a head does not say where requests or keys go."""

FILE_MAX: Final = 2_000_000
"""Bytes of a file; all tables have 70,000."""

OLD_DAYS: Final = 90
"""The age from which a data set is called old. A third of its 58 facts that were checked was stale after some months."""

Row = dict[str, Any]
_T = TypeVar("_T")
_P = ParamSpec("_P")


class Lazy(Mapping[str, _T]):
    """A mapping that is made when it is first asked for: importing a module reads no file."""

    def __init__(self, make: Callable[[], Mapping[str, _T]]) -> None:
        self._make = make

    def __getitem__(self, key: str) -> _T:
        return self._make()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._make())

    def __len__(self) -> int:
        return len(self._make())


@dataclass(frozen=True, slots=True)
class Layer:
    """The facts of one place.

    Attributes:
        where: Its file.
        providers: Heads with their rows, as :func:`~paceline.facts.form.checked` has made them.
        trusted: Whether they may say where requests go.
    """

    where: str
    providers: Mapping[str, Mapping[str, Any]]
    trusted: bool


_projects: dict[str, Layer] = {}  # by place, the last one holds
_caches: list[Callable[[], None]] = []  # what was made of the facts, in other modules, too


def cached(make: Callable[_P, _T]) -> Callable[_P, _T]:
    """Call ``make`` once with the same arguments, and again after a change of the facts."""
    made = lru_cache(maxsize=1_024)(make)
    _caches.append(made.cache_clear)
    return cast("Callable[_P, _T]", made)


def forget() -> None:
    """Read all files again when they are next needed."""
    for clear in _caches:
        clear()


def add_project(where: str, providers: Mapping[str, Any], *, trusted: bool) -> None:
    """Use the facts of a project's settings in this process, in place of those that ``where`` had before.

    They are about the world, not about one limiter: all of the process sees them.
    """
    before = list(_projects.values())
    _projects.pop(where, None)
    if providers:
        _projects[where] = Layer(where, providers, trusted)
    if list(_projects.values()) != before:
        forget()


def projects() -> list[tuple[str, Mapping[str, Any], bool]]:
    """The arguments of :func:`add_project`, for another process."""
    return [(one.where, one.providers, one.trusted) for one in _projects.values()]


def folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the user's facts: ``PACELINE_FACTS``, or ``paceline`` in the user's configuration folder; ``None``: no home."""
    homes = {"win32": ("APPDATA", "~/AppData/Roaming"), "darwin": ("", "~/Library/Application Support")}
    variable, usual = homes.get(sys.platform, ("XDG_CONFIG_HOME", "~/.config"))
    named, home = environ.get(VARIABLE, "").strip(), environ.get(variable, "").strip() or usual
    try:
        return Path(named).expanduser() if named else Path(home).expanduser() / "paceline"
    except RuntimeError:
        return None


def _home() -> Path | None:
    """:func:`folder`, to read from.

    Raises:
        SettingsError: The user has named one that is none.
    """
    home = folder()
    if os.environ.get(VARIABLE, "").strip() and home is not None and not home.is_dir():
        why = f"it is a file: name the folder with {USERS}" if home.exists() else "there is no such folder: create it"
        raise SettingsError(f"{VARIABLE}: {home}: {why}, or remove the variable")
    return home


def _read_in_folder(name: str) -> dict[str, Any] | None:
    """The facts in a file of :func:`folder`; ``None`` if there is none."""
    home = _home()
    return read(home / name) if home is not None and (home / name).exists() else None


def checked(data: Any, where: str) -> dict[str, Any]:
    """The facts in ``data``, with days as text and ``as_of`` in each row; ``where`` is their place in messages.

    Raises:
        SettingsError: With the first field that has another form.
    """
    return form.checked(data, where, _shipped())


def check_sense(found: Mapping[str, Any], where: str, today: date) -> None:
    """Look for contradictions in facts of the right form: see :func:`paceline.facts.form.check_sense`."""
    form.check_sense(found, where, _shipped(), today)


def read(file: Path) -> dict[str, Any]:
    """The facts in a file of TOML or JSON, checked; the day as text.

    Raises:
        SettingsError: The file cannot be read, or has another form; the message names the field.
    """
    return of_text(text_in(file), str(file))[0]


def text_in(file: Path) -> str:
    """The text of a file.

    Raises:
        SettingsError: It cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{file}: cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}"
        ) from None


def of_text(text: str, where: str) -> tuple[dict[str, Any], Any]:
    """The facts in a text of TOML or JSON, checked, and the values as they were written; ``where`` is its place in messages.

    Raises:
        SettingsError: It has another form.
    """
    values = values_in(text, where, FILE_MAX, _parsed)
    return checked(values, where), values


def values_in(text: str, where: str, most: int, parse: Callable[[str], Any]) -> Any:
    """What ``parse`` makes of a text of at most so many characters; ``where`` is its place in messages.

    Raises:
        SettingsError: It is too long, or has another form.
    """
    if len(text) > most:
        raise SettingsError(f"{where}: {len(text):,} characters are too many: {most:,} at most")
    try:
        return parse(text)
    except RecursionError:
        raise SettingsError(f"{where}: it is nested too deeply") from None
    except SettingsError:
        raise
    except ValueError as error:  # a syntax error, a number of thousands of digits, or a date that does not exist
        raise SettingsError(f"{where}: {error}") from None


def _parsed(text: str) -> Any:
    import tomllib

    return json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)


@cache
def _table(name: str) -> dict[str, Any]:
    found: dict[str, Any] = _parsed(TABLES.joinpath(f"{name}.toml").read_text("utf-8"))
    return found


def _shipped() -> dict[str, dict[str, Any]]:
    """The heads that come with paceline."""
    heads: dict[str, dict[str, Any]] = _table("providers")["providers"]
    return heads


def shipped_day() -> str:
    """The day of the data set that comes with paceline, as ``2026-11-28``."""
    return str(_table("providers")["day"])


@cached
def installed() -> dict[str, Any] | None:
    """The installed data set, used or not."""
    try:
        return _read_in_folder(INSTALLED)
    except SettingsError as error:
        hint = "" if str(error).startswith(VARIABLE) else ". `paceline limits update --undo` takes this file away"
        raise SettingsError(f"{error}{hint}") from None


@cached
def _newer() -> dict[str, Any]:
    """The installed data set, if it is newer than the one that comes with paceline; else one without a day."""
    found = installed()
    return found if found is not None and found["day"] > shipped_day() else {"day": "", "providers": {}}


def day() -> str:
    """The day of the data set that is used."""
    return str(_newer()["day"] or shipped_day())


def standing(today: date | None = None) -> dict[str, Any]:
    """The data set that is used, as JSON values: its day and age, the user's places beside it, and what is to be said of them."""
    today, remark = today or date.today(), None  # noqa: DTZ011  (an age in days needs no zone)
    try:
        age_days, is_used = (today - date.fromisoformat(day())).days, bool(_newer()["day"])
        places = [layer.where for layer in _layers()]
        if installed() is not None and not is_used:
            remark = "the installed data set is older than the one of this version, and not used: paceline limits update --undo"
        elif age_days > OLD_DAYS:
            remark = f"the facts about providers are {age_days} days old: install a newer paceline, or paceline limits update"
    except SettingsError as error:
        return {"day": shipped_day(), "age_days": None, "installed": False, "places": [], "remark": str(error)}
    return {"day": day(), "age_days": age_days, "installed": is_used, "places": places, "remark": remark}


@cached
def _own() -> list[Layer]:
    """The layers of the user; the last one holds."""
    found = _read_in_folder(USERS)
    own = [] if found is None else [Layer(f"{folder()}{os.sep}{USERS}", found["providers"], trusted=True)]
    return [*_organizations(), *own]


def organization_file(provider: str, key: str) -> str:
    """The name of the file of the organization of ``key``, with a digest of the key, which is long and random."""
    digest = hashlib.sha256(f"paceline\n{provider}\n{key}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{provider}-{digest}.json"


def _organizations() -> Iterator[Layer]:
    """What is known of the organizations of the keys in the environment."""
    home = _home()
    try:
        files = {} if home is None else {file.name: file for file in (home / ORGANIZATIONS).iterdir()}
    except OSError:  # there is none, as a rule
        return
    for name in sorted({file.rpartition("-")[0] for file in files} & _shipped().keys()):
        key = os.environ.get(_shipped()[name]["key_env"], "").strip()
        file = files.get(organization_file(name, key)) if key else None
        if file is not None:
            try:
                found = of_organization(name, text_in(file), str(file))
            except SettingsError as error:
                raise SettingsError(f"{error}. Delete this file, and run `paceline check --admin` again") from None
            yield Layer(str(file), found, trusted=False)


def of_organization(provider: str, text: str, where: str) -> dict[str, dict[str, Any]]:
    """The facts about an organization, checked, with its tier: the default one, next above the tier for accounts that name none.

    Args:
        provider: Whose organization.
        text: What is in its file.
        where: The place of the text in messages.

    Raises:
        SettingsError: They have another form, or are too many.
    """
    values = values_in(text, where, FILE_MAX, _parsed)
    head = _shipped()[provider] | _newer()["providers"].get(provider, {})
    ladders = [
        [rung for one in ladder for rung in ([one, [ORGANIZATION]] if head["default_tier"] in one else [one])]
        for ladder in head["ladders"]
    ]
    found = form.checked(values, where, {provider: head | {"ladders": ladders}})["providers"].get(provider, {})
    tiers = {"ladders": ladders, "default_tier": ORGANIZATION} if found.get(LIMITS) else {}
    return {provider: found | tiers}


def _layers() -> list[Layer]:
    return [*_own(), *_projects.values()]


@cached
def heads() -> dict[str, dict[str, Any]]:
    """What is known of each provider as a whole, by its name."""
    found = {name: dict(head) for name, head in _shipped().items()}
    for layer in [Layer("", _newer()["providers"], trusted=False), *_layers()]:
        for name, head in layer.providers.items():
            found[name] = _joined(name, found.get(name), head, trusted=layer.trusted)
    return found


def _joined(name: str, known: dict[str, Any] | None, head: Mapping[str, Any], *, trusted: bool) -> dict[str, Any]:
    """The head ``known`` with what another place says of it."""
    if known is None:
        key_env = f"{re.sub(r'[^A-Z0-9]+', '_', name.upper()).strip('_')}_API_KEY"
        joined = {"key_env": key_env} | _without(head, *KINDS, *(() if trusted else _SENDS))
        joined |= {} if trusted else {"rootless": True}
    else:
        joined = known | (_without(head, *KINDS) if trusted else _without(head, *(head.keys() - FREE), *KINDS))
    tiers = list(dict.fromkeys(tier for row in head.get(LIMITS, ()) for tier in form.tiers_of(row)))
    if tiers and "ladders" not in joined:
        joined["ladders"] = [[[tier] for tier in tiers]]
    names = [tier for ladder in joined.get("ladders", ()) for rung in ladder for tier in rung]
    if names and joined.get("default_tier") not in names:
        joined["default_tier"] = names[0]
    return joined


_SENDS: Final = "key_env", "base_url_env", "aliases", "makes"
"""What of a new provider leads requests or keys to it."""


def _without(head: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in head.items() if key not in keys}


@cached
def rows(provider: str, kind: str) -> list[Row]:
    """The rows of ``provider`` of one kind, those that hold first; ``as_of`` is the text of the day, ``where`` the user's file."""
    found = [
        row | {"where": layer.where}
        for layer in reversed(_layers())
        for row in layer.providers.get(provider, {}).get(kind, ())
    ]
    return found + data_rows(provider, kind)


def data_rows(provider: str, kind: str) -> list[Row]:
    """The rows of the data set that is used."""
    newer = _newer()["providers"]
    if provider in newer:
        return list(newer[provider].get(kind, ()))
    has_table = TABLES.joinpath(f"{provider}.toml").exists()
    shipped: list[Row] = _table(provider)["providers"][provider].get(kind, []) if has_table else []
    return [row | {"as_of": str(row.get("day", row.get("about")))} for row in shipped]


def shipped_names() -> list[str]:
    """The names of the providers that come with paceline."""
    return list(_shipped())
