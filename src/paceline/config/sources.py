"""Where settings stand: a file, variables of the environment, the command line; and the name of every place there."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Final

from paceline.core.results import PacelineWarning, QuotaError
from paceline.providers.registry import ALIASES, suggest
from paceline.providers.tables import known_providers, models

ENV_PREFIX: Final = "PACELINE_"
FILE_VARIABLE: Final = "PACELINE_CONFIG"
FILES: Final = ("paceline.toml", "paceline.yaml", "paceline.yml")
"""What is looked for in the current directory."""

FAULTS_MAX = 20
FILE_MAX, KEYS_MAX, DEPTH_MAX = 1_000_000, 20_000, 6
"""Characters of a file, and keys and levels of a YAML file whose lines are remembered."""

HERE: Final = Path()
PACKAGE: Final = __name__.partition(".")[0]

Place = tuple[str, ...]
"""The names on the way to a setting, outermost first, as they are written."""


class Faults:
    """What is wrong, in the order in which it was found."""

    def __init__(self) -> None:
        self._told: list[str] = []

    def add(self, place: str, message: object) -> None:
        """``message`` says what would be right at ``place``."""
        self._told.append(f"{place}: {message}")

    def check(self) -> None:
        """Tell everything at once, if there is anything.

        Raises:
            QuotaError: With a line for each fault, at most 20.
        """
        if self._told:
            more = len(self._told) - FAULTS_MAX
            raise QuotaError("\n".join([*self._told[:FAULTS_MAX], *([f"and {more} more"] if more > 0 else [])]))


@dataclass(frozen=True, slots=True)
class Source:
    """Nested settings, and where they stand.

    Attributes:
        values: The settings by name.
        where: The file, the variable or the command line.
        lines: The line of each key, where that is known.
        whole: Whether ``where`` says it all.
    """

    values: Mapping[str, Any]
    where: str
    lines: Mapping[Place, int] = field(default_factory=dict)
    whole: bool = False

    def origin(self, path: Place) -> str:
        """Where the setting at ``path`` stands, e.g. ``paceline.yaml:12``."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return f"{self.where}:{self.lines[path[:length]]}"
        return self.where

    def place(self, path: Place) -> str:
        """The same, with the setting's name."""
        return self.where if self.whole else f"{self.origin(path)}: {dotted(path)}"


def dotted(path: Place) -> str:
    """The name of a setting. Models have dots in their names, so limits are written with colons."""
    return (": " if path[0] in ("limits", "defaults") else ".").join(path)


def warn(message: str) -> None:
    """Warn at the line that called this package, however deep in it that was noticed."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, PacelineWarning, stacklevel=level)


def find_file(
    path: str | PathLike[str] | None = None, environ: Mapping[str, str] = os.environ, folder: Path = HERE
) -> Path | None:
    """The file that holds: the one given, else the one that ``PACELINE_CONFIG`` names, else the one in ``folder``.

    Raises:
        QuotaError: There are several in ``folder``.
    """
    if path is not None or environ.get(FILE_VARIABLE):
        return Path(path if path is not None else environ[FILE_VARIABLE])
    here = [folder / name for name in FILES if (folder / name).is_file()]
    if len(here) > 1:
        raise QuotaError(f"{here[0].name} and {here[1].name} are both here: keep one, or say which is meant")
    return here[0] if here else None


def read_file(file: Path, faults: Faults) -> Source:
    """Read TOML (``[tool.paceline]`` of a ``pyproject.toml``) or YAML.

    Raises:
        QuotaError: It cannot be read at all.
    """
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise QuotaError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None
    if len(text) > FILE_MAX:
        raise QuotaError(f"{file}: {len(text):,} characters are no configuration: {FILE_MAX:,} at most")
    where, lines = str(file), dict[Place, int]()
    try:
        values = _yaml(file, text, lines, faults) if file.suffix in (".yaml", ".yml") else _toml(file, text)
    except RecursionError:
        raise QuotaError(f"{file}: it is nested too deeply") from None
    if file.name == "pyproject.toml":
        tool = values.get("tool")
        where, values = f"{file} [tool.paceline]", tool.get("paceline") if isinstance(tool, dict) else None
        if values is None:
            raise QuotaError(f"{file}: it has no [tool.paceline]")
    if not isinstance(values, dict):
        raise QuotaError(f"{where}: it must hold settings by name, e.g. 'workers'")
    return Source({str(name): value for name, value in values.items()}, where, lines)


def _toml(file: Path, text: str) -> Any:
    toml = import_module("tomllib")
    try:
        return toml.loads(text)
    except ValueError as error:  # a syntax error, or a number of thousands of digits
        raise QuotaError(f"{file}: {error}") from None


def _yaml(file: Path, text: str, lines: dict[Place, int], faults: Faults) -> Any:
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise QuotaError(
            f"{file}: YAML needs an extra: pip install 'paceline[yaml]', or write the settings as TOML"
        ) from None
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return {}
        twice: set[Place] = set()
        for path, line in _keys(node, (), [KEYS_MAX]):
            if path in lines and path[:-1] not in twice:
                faults.add(f"{file}:{line}: {dotted(path)}", f"it stands in line {lines[path]}, too: keep one")
            if path in lines:
                twice.add(path)
            lines[path] = line
        return loader.construct_document(node)
    except yaml.YAMLError as error:  # its own words would show what stands there
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        raise QuotaError(f"{file}{f':{mark.line + 1}' if mark else ''}: {problem or 'it is no YAML'}") from None
    except ValueError as error:  # a date that does not exist
        raise QuotaError(f"{file}: {error}") from None
    except (AttributeError, KeyError, IndexError):  # a tag that does not fit its value
        raise QuotaError(f"{file}: a tag like !!bool or !!int stands before what is none: leave it out") from None
    finally:
        if loader is not None:
            loader.dispose()


def _keys(node: Any, above: Place, left: list[int]) -> Iterator[tuple[Place, int]]:
    """Every key's path and line; of aliases that multiply, only so many."""
    if node.id != "mapping" or len(above) >= DEPTH_MAX:
        return
    for key, value in node.value:
        left[0] -= 1
        if key.id == "scalar" and left[0] >= 0:
            path = (*above, key.value)
            if key.value != "<<":
                yield path, key.start_mark.line + 1
            yield from _keys(value, path, left)


def environment(environ: Mapping[str, str], known: Iterable[str], names: Iterable[str]) -> Iterator[Source]:
    """Each variable ``PACELINE_...`` that says something; ``__`` goes one level down.

    Args:
        environ: The variables.
        known: The names of settings.
        names: Models and lanes whose names are known: a variable says ``GPT_5`` for ``gpt-5``.
    """
    known = list(known)
    meant = {_plain(name): name for name in names}
    for variable, said in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable == FILE_VARIABLE or not said.strip():
            continue
        first, *rest = variable[len(ENV_PREFIX) :].lower().split("__")
        if first not in known and not suggest(first, known):  # nobody knows what else is called so
            warn(f"{variable} is no setting of paceline's")
            continue
        if first == "limits" and rest:
            name = "/".join([*rest[:-1], "*" if rest[-1] == "default" else rest[-1]])
            table = {_plain(f"{rest[0]}/{model}"): f"{rest[0]}/{model}" for model in models_of(rest[0])}
            rest = [(table | meant).get(_plain(name), name.replace("_", "-"))]
        elif first == "lanes" and rest:
            rest[0] = meant.get(_plain(rest[0]), rest[0])
        value: Any = said
        for name in reversed(rest):
            value = {name: value}
        yield Source({first: value}, variable, whole=True)


def models_of(provider: str) -> list[str]:
    """The models that the table of ``provider`` names, if it has one."""
    name = ALIASES.get(provider.lower(), provider.lower())
    return models(name) if name in known_providers() else []


def _plain(name: str) -> str:
    """A name as a variable can say it."""
    return re.sub(r"[^a-z0-9*]+", "_", name.lower())
