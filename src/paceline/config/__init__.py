"""The settings of a program, from arguments, the command line, environment variables and a file.

Each of these takes precedence over the next, and all over the published limits::

    provider = "openai"
    tier = 2

    [limits]
    "gpt-6-luna" = ["500 requests/min", "400k tokens/min"]
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

from paceline import facts
from paceline.config.schema import BREAKER, FACTS, LANES, LIMITS, RUN_S, TABLES, Key, Said, SettingsTable, read
from paceline.config.settings import FileSettings
from paceline.config.sources import (
    ENV_PREFIX,
    FILE_VARIABLE,
    FILES,
    Problems,
    SettingsSource,
    dotted,
    environment,
    find_file,
    models_of,
    read_file,
)
from paceline.core.plan import PlanPolicy
from paceline.core.queue import LaneSpec
from paceline.core.quota import KNOWN_UNITS, REQUESTS, TOKENS, Quota, parse_quotas
from paceline.core.results import SettingsError
from paceline.pacing.breaker import BreakerPolicy
from paceline.pacing.limits import Limits
from paceline.pacing.retry import RetryPolicy
from paceline.pacing.settings import PacingSettings, PlainSettings
from paceline.providers.registry import maker, prefixed, provider_named
from paceline.providers.tables import DEFAULT, counted_units, lookup

__all__ = ["ENV_PREFIX", "Config", "find_file", "load_arguments", "parse_limit"]

OPTIONS = ("clock", "events")
"""Arguments of a limiter that are not settings."""

PATIENT = {"max_retry_after_s": RUN_S, "faults": True}
"""How a batch retries by default: its failed attempts are bounded, and it has time for any wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(FileSettings):
    """The settings of a limiter or a run, by the names that docs/config.md explains.

    Attributes:
        trusted: Whether they may say where requests and keys go: the user has named the file.
        origins: The place of each setting that is set.
    """

    trusted: bool = field(default=True, compare=False)
    origins: Mapping[Key, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(
        cls,
        file: Path | None = None,
        environ: Mapping[str, str] = os.environ,
        given: Mapping[str, Any] | None = None,
        where: str = "command line",
        *,
        named: bool = False,
    ) -> Self:
        """Read all sources.

        Args:
            file: A TOML file, or YAML with the extra ``yaml``.
            environ: ``PACELINE_PROVIDER``, ``PACELINE_RETRY__BACKOFF_S``, ``PACELINE_LIMITS__OPENAI__GPT_6_LUNA`` and so on.
            given: Settings by name; those that are ``None`` or empty are left out.
            where: The name of ``given`` in messages.
            named: Whether the user has named ``file``, and it was not found; one that ``PACELINE_CONFIG`` names is named, too.

        Raises:
            SettingsError: A setting is invalid; the message has a line for each, with its place and what would be right.
        """
        problems, config = Problems(), cls(trusted=named or file is None or environ.get(FILE_VARIABLE) == str(file))
        if file is not None:
            config = config.updated(read(read_file(file, problems), problems))
        names = [*models_of(config.provider or ""), *config.limits, *config.lanes]
        chosen = {name: value for name, value in (given or {}).items() if value not in (None, {}, ())}
        for source in [*environment(environ, SettingsTable.__annotations__, names), SettingsSource(chosen, where)]:
            config = config.updated(read(source, problems, overrides=True))
        config.use_facts()
        _check_units(config, problems)
        try:
            if config.tier is not None and config.home is not None:
                lookup(config.home, DEFAULT, config.tier)
        except SettingsError as error:  # no such tier
            problems.add(config.origins["tier",], error)
        problems.check()
        return config

    def use_facts(self) -> None:
        """Use the facts about providers in this process."""
        places = {re.sub(r":\d+$", "", origin) for key, origin in self.origins.items() if key[0] == FACTS}
        facts.add_project(min(places, default="the settings"), self.providers, trusted=self.trusted)

    @property
    def home(self) -> str | None:
        """The provider to which ``tier`` belongs: the one that is set, or the only one in ``limits``."""
        provider = self.provider and provider_named(self.provider).name
        return Limits(PacingSettings(quotas=self.limits, provider=provider)).home

    def arguments(self, provider: str | None = None, *, patient: bool = True) -> dict[str, Any]:
        """The arguments of a :class:`~paceline.Limiter` with these settings.

        Args:
            provider: The provider, if it is not set.
            patient: The defaults of a batch: server faults are retried, nothing times out in a queue, a day's quota is
                waited for, and the caller chooses the store.
        """
        self.use_facts()
        name = self.provider or provider
        retry = {**(PATIENT if patient else {}), "max_attempts": self.max_attempts, **self.retry}
        least_s = 2 * self.timeout_s if patient and ("ttl_s",) not in self.origins else 0.0
        same = {one.name: getattr(self, one.name) for one in fields(PlainSettings)}
        return same | {
            "quotas": self.limits,
            "provider": provider_named(name).name if name else None,
            "acquire_timeout_s": None if patient else self.acquire_timeout_s,
            "ttl_s": max(self.ttl_s, least_s),
            "breaker": self.breaker,
            "retry": RetryPolicy(**retry),
            "plans": PlanPolicy(**self.plans),
            "lanes": tuple(self.lanes.values()),
            "store": None if patient else self.store,
            "shadow": None if patient else self.shadow,
        }

    def having(self, values: Mapping[str, Any], where: str) -> Self:
        """These settings with ``values`` in their place; ``where`` is their name in messages.

        Raises:
            SettingsError: A value is invalid.
        """
        problems = Problems()
        config = self.updated(read(SettingsSource(values, where), problems))
        problems.check()
        return config

    def updated(self, said: Said) -> Self:
        """These settings, replaced by what one source says."""
        changed: dict[str, Any] = {BREAKER: self.breaker, "origins": dict(self.origins)}
        for name in {key[0] for key in said if len(key) > 1 and key[0] != BREAKER}:
            changed[name] = dict(getattr(self, name) or {})
        for key, (value, origin) in said.items():
            name, rest = key[0], key[1:]
            if name == LIMITS:
                for exact in self._alike(rest[0], said):
                    changed[LIMITS][exact], changed["origins"][LIMITS, exact] = value, origin
            if name == LIMITS and not value:  # starts: off
                changed[LIMITS].pop(rest[0], None)
            elif name == LANES:
                changed[LANES][rest[0]] = replace(changed[LANES].get(rest[0]) or LaneSpec(rest[0]), **{rest[1]: value})
            elif name in (*TABLES, FACTS):
                changed[name] = _merged(changed[name], rest, value)
            elif name == BREAKER:
                changed[BREAKER] = _breaker(changed[BREAKER], rest, value)
            elif rest:
                changed[name][rest[0]] = value
            else:
                changed[name] = value
            changed["origins"][key] = origin
        return replace(self, **changed)

    def _alike(self, model: str, said: Said) -> list[str]:
        """The entries for which a model without its provider stands, too: the model at every provider with an entry."""
        return [other for other in self.limits if other.partition("/")[2] == model and (LIMITS, other) not in said]


def _breaker(breaker: BreakerPolicy | None, field: Key, value: Any) -> BreakerPolicy | None:
    """The breaker with one of its fields, or on, or off."""
    breaker = breaker or BreakerPolicy()
    return replace(breaker, **{field[0]: value}) if field else breaker if value else None


def _check_units(config: Config, problems: Problems) -> None:
    """Report limits of providers' models on units that no provider counts: such a limit would hold nothing back."""
    for name, quotas in config.limits.items():
        own = {quota.unit for quota in quotas}.difference(KNOWN_UNITS)
        is_model = prefixed(name) or maker(name) or name in models_of(config.provider or "")
        if own and is_model and (wrong := sorted(own - counted_units())):
            why = f"no provider counts {wrong[0]!r}, write e.g. {REQUESTS} or {TOKENS}; a quota of your own needs a name of its own"
            problems.add(f"{config.origins[LIMITS, name]}: {dotted((LIMITS, name))}", why)


def _merged(table: Mapping[str, Any], path: Key, value: Any) -> dict[str, Any]:
    """``table`` with ``value`` at ``path``; an empty table changes nothing in it."""
    name, rest = path[0], path[1:]
    if rest:
        value = _merged(table.get(name, {}), rest, value)
    elif isinstance(value, Mapping):
        value = {**table.get(name, {}), **value}
    return {**table, name: value}


def load_arguments(
    path: str | PathLike[str] | None = None, environ: Mapping[str, str] = os.environ, **given: Any
) -> dict[str, Any]:
    """See :meth:`paceline.Limiter.load`; ``given``: settings, which take precedence, and :data:`OPTIONS`."""
    options = {name: given.pop(name) for name in OPTIONS if name in given}
    if not isinstance(given.get("store", ""), str):
        options["store"] = given.pop("store")
    file = find_file(path, environ)
    config = Config.load(file, environ, given, "the arguments", named=path is not None)
    if file is None and not config.origins:
        raise SettingsError(f"there is no configuration: no {', '.join(FILES)} here, and no {ENV_PREFIX}... is set")
    return config.arguments(patient=False) | options


def parse_limit(text: str) -> tuple[str, tuple[Quota, ...]]:
    """Read ``MODEL=500 requests/min,400k tokens/min``.

    Raises:
        SettingsError: ``text`` has another form.
    """
    model, equals, quotas = text.rpartition("=")
    if not equals or not model.strip():
        raise SettingsError(
            f"{text!r}: write it like 'gpt-6-luna=500 requests/min,400k tokens/min' ('*' for every model)"
        )
    return model.strip(), parse_quotas(quotas)
