"""The file of the settings, while it is watched: whether it has changed, and what is different."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Final

from paceline.config import Config
from paceline.gateway.stamps import stamp

NAMES_MAX: Final = 10
"""The settings that a line of the log names."""


class SettingsFile:
    """Looks for changes of the settings.

    Args:
        file: The file.
        load: Reads the settings.

    Raises:
        PacelineError: They are invalid.
    """

    def __init__(self, file: Path, load: Callable[[], Config]) -> None:
        self._file, self._load = file, load
        self._seen = self._last = stamp(file)
        self._config = load()

    def look(self) -> str | None:
        """What is different since the last time, in words; ``None`` for nothing.

        The file must be the same at two looks: a program may write it in several steps.

        Raises:
            PacelineError: The settings are invalid now; those before hold.
        """
        before, self._last = self._last, stamp(self._file)
        if self._last == self._seen or self._last != before:
            return None
        self._seen = self._last
        config = self._load()
        names = list(_different(self._config, config))
        self._config = config
        if not names:
            return None
        more = f", and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        return f"{self._file}: {', '.join(names[:NAMES_MAX])}{more}"


def _different(before: Config, after: Config) -> list[str]:
    """The names of the settings that differ; no value of them."""
    found: list[str] = []
    for one in (field.name for field in fields(Config) if field.compare):
        old, new = getattr(before, one), getattr(after, one)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            names = (name for name in {**old, **new} if old.get(name) != new.get(name))
            found += [f"{one}.{name}" for name in names]
        elif old != new:
            found.append(one)
    return found
