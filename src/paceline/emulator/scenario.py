"""Scenarios: settings with a summary and the client's limits, in ``scenarios/<name>.toml`` or a file of your own."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.emulator.settings import Settings, SettingsError, near, parse_limits

_SHIPPED = Path(__file__).with_name("scenarios")


@dataclass(frozen=True, slots=True)
class Scenario:
    """An emulated provider, and what a client knows of it.

    Attributes:
        name: Its name, or the file's path.
        summary: Its particular property, in one line.
        client_limits: The limits that a client is configured with, e.g. ``500 requests/min,400k tokens/min``; empty where they
            are the true ones.
        settings: The server's :class:`Settings`, as plain values.
    """

    name: str
    summary: str
    client_limits: str
    settings: dict[str, Any]


def scenarios() -> list[str]:
    """The names of the shipped scenarios."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def load(name: str) -> Scenario:
    """A shipped scenario by its name, or a TOML file by its path.

    Raises:
        SettingsError: There is none, or it is invalid; the message states the place and the valid values.
    """
    shipped = name in scenarios()
    path = _SHIPPED / f"{name}.toml" if shipped else Path(name)
    if not shipped and not path.is_file():
        raise SettingsError(f"scenario {name!r}: no such file, and no scenario of that name; {near(name, scenarios())}")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        summary, client_limits = values.pop("summary", ""), values.pop("client_limits", "")
        if not isinstance(summary, str) or not isinstance(client_limits, str):
            raise SettingsError("summary and client_limits must be strings")
        if client_limits:
            parse_limits(client_limits)
        Settings.of(values)
    except (OSError, ValueError) as error:  # of the file, its encoding, its form or its settings
        raise SettingsError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
    return Scenario(name, summary, client_limits, values)
