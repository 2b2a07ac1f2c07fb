"""The file ``starts.yaml``: limits on the starts of agents by backend and model, and priorities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

import paceline

MODES = ("even", "window")


class StartsError(ValueError):
    """An invalid setting; the message states its place and the valid values."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most ``max_starts`` in ``time_window`` seconds.

    Attributes:
        max_starts: The number of starts.
        time_window: The window in seconds.
        mode: ``even``: ``burst`` at once, then one each ``time_window / max_starts``; ``window``: as soon as fewer
            than ``max_starts`` lie in the last ``time_window``.
        burst: The most starts at once in mode ``even``; 0 stands for ``max_starts``.
    """

    max_starts: int
    time_window: float
    mode: str = "even"
    burst: int = 0

    @property
    def quota(self) -> paceline.Quota:
        """The quota of a pool. In mode ``window`` each start holds a slot for ``time_window`` seconds."""
        if self.mode == "window":
            return paceline.Quota("starts", self.max_starts, 0, rule=paceline.Rule.SLOTS)
        # Slightly more than the burst: a pool rounds each start up to whole nanoseconds, and the last of 7 must not wait 4 ns.
        return paceline.Quota("starts", self.max_starts, self.time_window, self.burst + 1e-6)

    def __str__(self) -> str:
        return f"{self.max_starts} in {self.time_window:g} s"


@dataclass(frozen=True, slots=True)
class StartsFile:
    """Limits by pool, ``starts/BACKEND`` or ``starts/BACKEND/MODEL``, and priorities by pattern of agents' names."""

    limits: Mapping[str, Limit] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, *, speed: float = 1.0, mode: str | None = None) -> StartsFile:
        """Read a file.

        Args:
            path: The file.
            speed: The divisor of every window: with 60, a minute becomes a second.
            mode: Replaces the mode of every backend in the file.

        Raises:
            StartsError: A setting is invalid.
        """
        try:
            values = yaml.safe_load(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise StartsError(f"{path}: {error}") from None
        return cls.of(values or {}, str(path), speed=speed, mode=mode)

    @classmethod
    def of(cls, values: Any, where: str = "starts", *, speed: float = 1.0, mode: str | None = None) -> StartsFile:
        """Read plain values."""
        top = _mapping(values, where, ("backends", "priorities"))
        limits: dict[str, Limit] = {}
        for backend, settings in _mapping(top.get("backends"), f"{where}: backends").items():
            if settings in (None, False):  # `off`: removed
                continue
            place = f"{where}: backends.{backend}"
            own = dict(_mapping(settings, place, ("max_starts", "time_window", "mode", "burst", "models")))
            models = _mapping(own.pop("models", None), f"{place}.models")
            if own:
                limits[f"starts/{backend}"] = _limit(own | ({"mode": mode} if mode else {}), place, speed)
            for model, its in models.items():
                if its not in (None, False):
                    name = f"{place}.models.{model}"
                    limits[f"starts/{backend}/{model}"] = _limit(_mapping(its, name, tuple(_FIELDS)), name, speed)
        priorities = _mapping(top.get("priorities"), f"{where}: priorities")
        for pattern, number in priorities.items():
            if not isinstance(number, int) or isinstance(number, bool):
                raise StartsError(f"{where}: priorities.{pattern} is {number!r}: it must be a whole number, e.g. 10")
        return cls(limits, priorities)

    def pool(self, backend: str, model: str) -> str | None:
        """The pool of an agent's backend and model; ``None`` if it starts at once."""
        return next((name for name in (f"starts/{backend}/{model}", f"starts/{backend}") if name in self.limits), None)

    def priority(self, agent: str) -> int:
        """The priority of the first matching pattern, in the file's order."""
        return next((number for pattern, number in self.priorities.items() if fnmatchcase(agent, pattern)), 0)


_FIELDS = {"max_starts": "a whole number above 0", "time_window": "seconds above 0", "mode": "even or window"}
_FIELDS["burst"] = "a whole number from 1 to max_starts"


def _limit(values: Mapping[str, Any], where: str, speed: float) -> Limit:
    most, window_s = values.get("max_starts"), values.get("time_window")
    mode, burst = values.get("mode", "even"), values.get("burst", most)
    right = {
        "max_starts": isinstance(most, int) and most > 0,
        "time_window": isinstance(window_s, int | float) and 0 < window_s < float("inf"),
        "mode": mode in MODES,
        "burst": isinstance(burst, int) and isinstance(most, int) and 0 < burst <= most,
    }
    for name, fits in right.items():
        if not fits or isinstance(values.get(name), bool):
            raise StartsError(f"{where}.{name} is {values.get(name)!r}: it must be {_FIELDS[name]}")
    return Limit(int(most or 0), float(window_s or 0) / speed, mode, int(burst or 0))


def _mapping(value: Any, where: str, names: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """``value`` if it is a mapping with no other names than ``names``; ``None`` is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise StartsError(f"{where} is {value!r}: write names and their settings")
    for name in value:
        if names and name not in names:
            near = get_close_matches(str(name), names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
            raise StartsError(f"{where}: no such setting: {name!r}; {hint}")
    return {str(name): its for name, its in value.items()}
