"""The sources of settings: a file, environment variables, arguments; and the place of each setting there."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Final

from paceline.core.hints import did_you_mean, why_missing
from paceline.core.results import SettingsError, warn
from paceline.facts import text_in, values_in
from paceline.providers.registry import ALIASES
from paceline.providers.tables import known_providers, models

ENV_PREFIX: Final = "PACELINE_"
FILE_VARIABLE: Final = "PACELINE_CONFIG"

NO_SETTINGS: Final = frozenset(
    {FILE_VARIABLE, "PACELINE_KEY", "PACELINE_KEYS", "PACELINE_EXEC", "PACELINE_GATEWAY", "PACELINE_FACTS"}
)
"""Variables of the command line, of the gateway's keys and of ``paceline exec``."""
FILES: Final = ("paceline.toml", "paceline.yaml", "paceline.yml")
"""Names of a configuration file in the current directory."""

PROBLEMS_MAX = 20
FILE_MAX, KEYS_MAX, DEPTH_MAX = 1_000_000, 20_000, 6
"""Characters of a file; keys and levels of a YAML file whose lines are recorded."""

Place = tuple[str, ...]
"""The path of a setting in its source, outermost name first, as written."""


class Problems(list[str]):
    """What is wrong with the configuration, a line for each problem, in the order in which they were found."""

    def add(self, place: str, message: object) -> None:
        """Record that ``message`` holds for the setting at ``place``."""
        self.append(f"{place}: {message}")

    def check(self) -> None:
        """Raise all problems at once, if there are any.

        Raises:
            SettingsError: With a line for each problem, at most 20.
        """
        if self:
            more = len(self) - PROBLEMS_MAX
            raise SettingsError("\n".join([*self[:PROBLEMS_MAX], *([f"and {more} more"] if more > 0 else [])]))


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """Nested settings from one place.

    Attributes:
        values: The settings by name.
        where: The name of the file, the variable or the command line.
        lines: The line of each key, if known.
        single: Whether ``where`` names one setting: a variable does.
    """

    values: Mapping[str, Any]
    where: str
    lines: Mapping[Place, int] = field(default_factory=dict)
    single: bool = False

    def origin(self, path: Place) -> str:
        """The place of the setting at ``path``, e.g. ``paceline.yaml:12``."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return f"{self.where}:{self.lines[path[:length]]}"
        return self.where

    def place(self, path: Place) -> str:
        """The same, with the setting's name."""
        return self.where if self.single else f"{self.origin(path)}: {dotted(path)}"


def nested(path: Place, value: Any) -> Any:
    """Tables of one entry each, with ``value`` at ``path``."""
    for name in reversed(path):
        value = {name: value}
    return value


def dotted(path: Place) -> str:
    """The name of a setting; limits have colons, because the names of models have dots."""
    return (": " if path[0] in ("limits", "joint_limits", "defaults") else ".").join(path)


def find_file(path: str | PathLike[str] | None = None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The configuration file: ``path``, else the one that ``PACELINE_CONFIG`` names, else the one in the current directory.

    Raises:
        SettingsError: There are several.
    """
    if path is not None or environ.get(FILE_VARIABLE):
        return Path(path if path is not None else environ[FILE_VARIABLE])
    here = [Path(name) for name in FILES if Path(name).is_file()]
    if len(here) > 1:
        raise SettingsError(
            f"{here[0].name} and {here[1].name} are both here: keep one, or name one in {FILE_VARIABLE}"
        )
    return here[0] if here else None


def read_file(file: Path, problems: Problems) -> SettingsSource:
    """Read TOML or YAML.

    Raises:
        SettingsError: The file cannot be read or parsed.
    """
    lines: dict[Place, int] = {}
    parse = partial(_yaml, file, lines, problems) if file.suffix in (".yaml", ".yml") else tomllib.loads
    values = values_in(text_in(file), str(file), FILE_MAX, parse)
    if not isinstance(values, dict):
        raise SettingsError(f"{file}: it must hold settings by name, e.g. 'workers'")
    return SettingsSource({str(name): value for name, value in values.items()}, str(file), lines)


def _yaml(file: Path, lines: dict[Place, int], problems: Problems, text: str) -> Any:
    """Parse YAML, record the line of each key in ``lines``, and report duplicate keys."""
    try:
        yaml = import_module("yaml")
    except ImportError as error:
        why = why_missing(error, "YAML", "config")
        raise SettingsError(f"{file}: {why}. TOML needs none") from None
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        if node is None:
            return {}
        for path, line in islice(_keys(node), KEYS_MAX):
            if path in lines:
                problems.add(f"{file}:{line}: {dotted(path)}", f"it is also in line {lines[path]}: keep one")
            lines[path] = line
        return yaml.constructor.SafeConstructor().construct_document(node)
    except yaml.YAMLError as error:  # its own text would quote the line, which may hold a password
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        raise SettingsError(f"{file}{f':{mark.line + 1}' if mark else ''}: {problem or 'it is not YAML'}") from None
    except (AttributeError, KeyError, IndexError):  # a tag that does not fit its value
        raise SettingsError(f"{file}: a tag like !!bool or !!int does not fit its value: remove it") from None


def _keys(node: Any, above: Place = ()) -> Iterator[tuple[Place, int]]:
    """The path and the line of every key, and of every entry of a list; of a duplicate key without the keys below it."""
    seen: set[str] = set()
    for number, entry in enumerate(node.value if node.id == "sequence" else (), 1):
        yield (*above, str(number)), entry.start_mark.line + 1
    for key, value in node.value if node.id == "mapping" and len(above) < DEPTH_MAX else ():
        if key.id == "scalar" and key.value != "<<":
            path = (*above, key.value)
            yield path, key.start_mark.line + 1
            if key.value not in seen:
                yield from _keys(value, path)
            seen.add(key.value)


def environment(environ: Mapping[str, str], known: Iterable[str], names: Iterable[str]) -> Iterator[SettingsSource]:
    """One source for each variable ``PACELINE_...`` that is not empty; ``__`` goes one level down.

    Args:
        environ: The variables.
        known: The names of settings.
        names: Known names of models and lanes: ``GPT_6_LUNA`` in a variable is ``gpt-6-luna``.
    """
    known = list(known)
    written = {_plain(name): name for name in names}
    for variable, value in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in NO_SETTINGS or not value.strip():
            continue
        first, *rest = variable.removeprefix(ENV_PREFIX).lower().split("__")
        if first not in known and not did_you_mean(first, known):  # it may belong to another program
            warn(f"{variable} is not a setting of paceline")
            continue
        if first == "limits" and rest:
            name = "/".join([*rest[:-1], "*" if rest[-1] == "default" else rest[-1]])
            published = {_plain(f"{rest[0]}/{model}"): f"{rest[0]}/{model}" for model in models_of(rest[0])}
            rest = [(published | written).get(_plain(name), name.replace("_", "-"))]
        elif first == "lanes" and rest:
            rest[0] = written.get(_plain(rest[0]), rest[0])
        yield SettingsSource(nested((first, *rest), value.strip()), variable, single=True)


def models_of(provider: str) -> list[str]:
    """The models in the published table of ``provider``, if there is one."""
    name = ALIASES.get(provider.lower(), provider.lower())
    return models(name) if name in known_providers() else []


def _plain(name: str) -> str:
    """``name`` as it is written in a variable."""
    return re.sub(r"[^a-z0-9*]+", "_", name.lower())
