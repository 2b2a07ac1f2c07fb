"""The installed data set of facts about providers: a newer one takes its place, and the one before comes back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from paceline import facts
from paceline.core.results import SettingsError, explaining
from paceline.pacing.durable import replace, replacing
from paceline.providers.registry import is_loopback

TIMEOUT_S: Final = 30.0
"""How long a server has for each part of an answer."""


def contents(source: str, sha256: str | None) -> bytes:
    """What is in a file or at a URL.

    Raises:
        SettingsError: It cannot be read, or has another SHA-256; a URL without one is not asked for.
    """
    url = urlsplit(source)
    is_url = url.scheme in ("http", "https")
    if is_url and not sha256:
        raise SettingsError(
            f"{source}: give its --sha256, as the place that you trust states it: a server can send anything"
        )
    if url.scheme == "http" and not is_loopback(url.hostname or ""):
        raise SettingsError(f"{source}: use https")
    with explaining(f"{source}: cannot be read", of=(OSError, ValueError)):  # of a server or a file, of a malformed URL
        found = _fetched(source) if is_url else Path(source).read_bytes()
    actual = hashlib.sha256(found).hexdigest()
    if sha256 and actual != sha256.strip().lower():
        raise SettingsError(
            f"{source}: its SHA-256 is {actual}, and not {sha256.strip().lower()}: nothing is installed"
        )
    return found


def _folder() -> Path:
    folder = facts.folder()
    if folder is None:
        raise SettingsError(f"this user has no home folder: name a folder for facts in {facts.VARIABLE}")
    return folder


def _fetched(url: str) -> bytes:
    from urllib.request import Request, urlopen

    request = Request(url, headers={"user-agent": "paceline"})  # noqa: S310  (the scheme was looked at)
    with urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        found: bytes = answer.read(facts.FILE_MAX + 1)
    return found


def install(source: str, sha256: str | None = None) -> str:
    """Install the data set at ``source`` for this user; the one before stays beside it.

    Args:
        source: A file of TOML or JSON, or a URL.
        sha256: The SHA-256 of its bytes; needed for a URL.

    Returns:
        What has changed, in a line.

    Raises:
        SettingsError: It cannot be read, has another form, is not whole, or is not newer than the data set in use.
    """
    folder = _folder()
    try:
        text = contents(source, sha256).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingsError(f"{source}: cannot be read: it is not UTF-8") from None
    data, values = facts.of_text(text, source)
    if not data["day"]:
        raise SettingsError(f"{source}: day: it is missing: a data set has its day")
    if date.fromisoformat(data["day"]) > date.today() + timedelta(days=1):  # noqa: DTZ011  (zones differ by a day)
        raise SettingsError(f"{source}: day: {data['day']} has not come yet")
    if data["day"] <= facts.day():
        raise SettingsError(
            f"{source}: it is of {data['day']}, and the data set in use is of {facts.day()}: nothing is installed"
        )
    _require_whole(source, data["providers"])
    with explaining(f"{folder}: cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        if (old := folder / facts.INSTALLED).exists():
            with replacing(str(folder / facts.BEFORE)) as file:
                file.write(old.read_bytes())
        with replacing(str(old)) as file:
            file.write(json.dumps(values, default=str).encode())
    before = facts.day()
    facts.forget()
    return f"the data set of {data['day']} is in use, instead of the one of {before}"


def _require_whole(source: str, providers: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a file of additions, which would take all other rows away.

    Raises:
        SettingsError: A provider that comes with paceline has none of its rows.
    """
    for name in facts.shipped_names():
        if (had := facts.data_rows(name, facts.LIMITS)) and not providers.get(name, {}).get(facts.LIMITS):
            raise SettingsError(
                f"{source}: it is no whole data set: {name} had {len(had)} rows of limits, and has none: nothing is installed."
                f" Additions belong into {_folder() / facts.USERS}"
            )


def undo() -> str:
    """Take the installed data set away; the one before it, or the one of this version, is in use again.

    Raises:
        SettingsError: None is installed, or the folder cannot be written.
    """
    folder = _folder()
    installed, before = folder / facts.INSTALLED, folder / facts.BEFORE
    with explaining(f"{folder}: cannot be written"):
        try:
            if before.exists():
                replace(str(before), str(installed))
            else:
                installed.unlink()
        except FileNotFoundError:
            raise SettingsError(
                f"{installed}: no data set is installed: the one of this version is in use, of {facts.day()}"
            ) from None
    facts.forget()
    return f"the data set of {facts.day()} is in use again"
