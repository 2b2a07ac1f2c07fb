"""What holds, and where each value comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from paceline.config import Config
from paceline.config.build import overridden, rates
from paceline.config.schema import ANY, BREAKER, CONCURRENCY, LANE, LANES, LIMITS, OVERRIDES, PLAIN, Key
from paceline.config.sources import dotted
from paceline.core.quota import Quota
from paceline.core.retry import RetryPolicy
from paceline.providers.tables import DEFAULT, known_providers, lookup
from paceline.stores import open_store

BY_DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Row:
    """One setting.

    Attributes:
        name: Its name, e.g. ``retry.backoff_s``.
        value: A plain JSON value; ``None`` where nothing is set.
        source: The command line, a variable, a file and perhaps a line, a table and its date, or ``default``.
    """

    name: str
    value: Any
    source: str


def rows(config: Config) -> list[Row]:
    """Every setting, in the order of the documentation; published limits last. No password is in it."""
    return [*_settings(config), *_limits(config)]


def _settings(config: Config) -> Iterator[Row]:
    for name in PLAIN:
        value = getattr(config, name)
        yield _row(config, (name,), open_store(value).url if name == "store" and value is not None else value)
    for name in OVERRIDES:
        if getattr(config, name) is not None:
            yield _row(config, (name,), getattr(config, name))
    for field in fields(RetryPolicy):
        if field.name not in PLAIN:
            yield _row(config, ("retry", field.name), config.retry.get(field.name, field.default))
    if config.breaker is None:
        yield _row(config, (BREAKER,), value=False)
    else:
        for field in fields(config.breaker):
            yield _row(config, (BREAKER, field.name), getattr(config.breaker, field.name))
    for provider, most in config.concurrency.items():
        yield _row(config, (CONCURRENCY, provider), most)
    for lane in config.lanes.values():
        for name in LANE:
            yield _row(config, (LANES, lane.name, name), getattr(lane, name))


def _limits(config: Config) -> Iterator[Row]:
    for name, quotas in config.limits.items():
        origin = config.origins.get((LIMITS, name), BY_DEFAULT)
        if "/" in name or config.provider is not None or not rates(config):
            yield _limit(config, name, quotas, origin)
        else:  # by hand it is a pool of one's own, which no override concerns
            yield Row(dotted((LIMITS, name)), [str(quota) for quota in quotas], origin)
            yield _limit(config, f"{ANY}/{name}", quotas, origin)
    if ANY in config.limits:  # nobody looks into a table
        return
    home = config.home
    named = {home, *(name.partition("/")[0] for name in (*config.limits, *config.concurrency) if name != ANY)}
    for provider in known_providers():
        if provider in named and f"{provider}/*" not in config.limits:
            published = lookup(provider, DEFAULT, config.tier if provider == home else None)
            source = f"{published.source} ({published.as_of}{f', {published.tier}' if published.tier else ''})"
            yield _limit(config, f"{provider}/*", published.quotas, source)


def _limit(config: Config, name: str, quotas: tuple[Quota, ...], source: str) -> Row:
    """What a model has: its quotas, and the overrides that take the place of some."""
    held = overridden(config, quotas)
    if rates(config):
        told = [config.origins.get((override,), BY_DEFAULT) for override in OVERRIDES if getattr(config, override)]
        kept = [source] if set(held) & set(quotas) else []
        source = ", ".join(dict.fromkeys([*kept, *told]))
    return Row(dotted((LIMITS, name)), [str(quota) for quota in held], source)


def _row(config: Config, key: Key, value: Any) -> Row:
    return Row(dotted(key), value, config.origins.get(key, BY_DEFAULT))
