"""What holds, and where each value comes from."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from paceline.config import Config
from paceline.config.build import overridden, rates
from paceline.config.schema import ANY, BREAKER, CONCURRENCY, LANE, LANES, LIMITS, OVERRIDES, PLAIN, Key
from paceline.config.sources import dotted
from paceline.core.quota import Quota
from paceline.pacing.limits import Limits
from paceline.pacing.retry import RetryPolicy
from paceline.providers.tables import DEFAULT, Published, known_providers, lookup, models
from paceline.stores import open_store

BY_DEFAULT = "default"
GIVEN = "given"


@dataclass(frozen=True, slots=True)
class Row:
    """One setting.

    Attributes:
        name: Its name, e.g. ``retry.backoff_s``.
        value: A plain JSON value; ``None`` where nothing is set.
        source: The command line, a variable, a file and perhaps a line, a table and its date, or ``default``; and after
            a semicolon, of a limit, for which of the models that it seems to name it does not hold.
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
    home = config.home
    for name, quotas in config.limits.items():
        origin = config.origins.get((LIMITS, name), BY_DEFAULT)
        exact = config.limits.get(f"{home}/{name}", quotas)
        elsewhere = name != ANY and overridden(config, exact) != overridden(config, quotas)
        if config.provider is not None and elsewhere:
            yield _limit(config, name, quotas, origin, f"not at {home}: see {home}/{name}")
        elif "/" in name or config.provider is not None or not rates(config):
            yield _limit(config, name, quotas, origin)
        else:  # by hand it is a pool of one's own, which no override concerns
            yield Row(dotted((LIMITS, name)), [str(quota) for quota in quotas], origin)
            yield _limit(config, f"{ANY}/{name}", quotas, origin)
    if ANY in config.limits:  # nobody looks into a table
        return
    named = {home, *(name.partition("/")[0] for name in (*config.limits, *config.concurrency) if name != ANY)}
    for provider in known_providers():
        if provider in named and f"{provider}/*" not in config.limits:
            tier = config.tier if provider == home else None
            published = lookup(provider, DEFAULT, tier)
            source = f"{published.source} ({published.as_of}{f', {published.tier}' if published.tier else ''})"
            yield _limit(config, f"{provider}/*", published.quotas, source, _others(config, provider, published, tier))


def _others(config: Config, provider: str, default: Published, tier: str | None) -> str:
    """For how many models of a table its ``default`` does not hold, and where to read what does; or nothing."""
    limits, same = Limits(config.limits, provider=provider, tier=tier), set(overridden(config, default.quotas))
    rows = [limits.model(provider, model) for model in models(provider)]
    others = sum(row.source != GIVEN and set(overridden(config, row.quotas)) != same for row in rows)
    if not others:
        return ""
    told = f"not for {others} model{'s' if others > 1 else ''} in the table"
    return f"{told}: see `paceline limits {provider}{f' --tier {shlex.quote(tier)}' if tier is not None else ''}`"


def _limit(config: Config, name: str, quotas: tuple[Quota, ...], source: str, except_for: str = "") -> Row:
    """What a model has: its quotas, and the overrides that take the place of some."""
    held = overridden(config, quotas)
    if rates(config):
        told = [config.origins.get((override,), BY_DEFAULT) for override in OVERRIDES if getattr(config, override)]
        kept = [source] if set(held) & set(quotas) else []
        source = ", ".join(dict.fromkeys([*kept, *told]))
    source = f"{source}; {except_for}" if except_for else source
    return Row(dotted((LIMITS, name)), [str(quota) for quota in held], source)


def _row(config: Config, key: Key, value: Any) -> Row:
    return Row(dotted(key), value, config.origins.get(key, BY_DEFAULT))
