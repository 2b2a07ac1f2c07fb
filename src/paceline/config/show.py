"""Every setting with its value and its origin, for ``paceline config``."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline.config import Config
from paceline.config.schema import ANY, BREAKER, CONCURRENCY, FACTS, JOINT, LANES, LIMITS, OVERRIDES, PRICES, leaves
from paceline.config.sources import dotted
from paceline.core.quota import Quota
from paceline.facts import KINDS
from paceline.pacing.limits import overridden, overrides
from paceline.pacing.periods import in_days
from paceline.pacing.retry import RetryPolicy
from paceline.pacing.settings import parsed
from paceline.providers.registry import maker
from paceline.providers.tables import DEFAULT, known_providers, lookup, models
from paceline.stores import as_store

BY_DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting.

    Attributes:
        name: Its name, e.g. ``retry.backoff_s``.
        value: A plain JSON value; ``None`` if not set.
        source: Its origin: the command line, a variable, a file with or without a line, a published table with its
            date, or ``default``. For a limit, where it does not apply follows after a semicolon.
    """

    name: str
    value: Any
    source: str


def rows(config: Config, used: Collection[str] = ()) -> list[SettingRow]:
    """Every setting, without passwords; published limits last, also of the providers that are ``used``."""
    return [*_settings(config), *_limits(config, used)]


def _values(config: Config) -> dict[str, Any]:
    """The settings as JSON values, without passwords."""
    values = asdict(replace(config, limits={}, origins={}))
    store = as_store(config.store) if config.store else None
    del values["trusted"]
    for head in values[FACTS].values():
        head.update(_models(head))
    values["store"] = config.store if store is None else store.url  # without a password
    values[JOINT] = {name: list(map(str, parsed(quotas))) for name, quotas in (config.joint_limits or {}).items()}
    values["budget"] = list(map(str, parsed(config.budget)))
    values["models"] = {name: list(targets) for name, targets in config.models.items()}
    for name, lane in config.lanes.items():
        values[LANES][name]["limits"] = [str(quota) for quota in parsed(lane.limits)]
    values["retry"] = asdict(RetryPolicy()) | values["retry"]
    values[BREAKER] = values[BREAKER] or False
    return values


def _settings(config: Config) -> Iterator[SettingRow]:
    values = _values(config)
    left_out = {("retry", "max_attempts"), *((LANES, lane, of) for lane in config.lanes for of in ("name", "parent"))}
    left_out |= {(name,) for name in (*OVERRIDES, CONCURRENCY, PRICES, "priorities") if not values[name]}
    for path, value in leaves(values):
        if path not in left_out and value != {}:
            yield SettingRow(dotted(path), value, config.origins.get(path, BY_DEFAULT))


def _models(head: Mapping[str, Any]) -> dict[str, list[str]]:
    """The models of the rows of a provider's facts; `paceline limits` shows the limits."""
    return {kind: [name for row in head[kind] for name in row["match"]] for kind in KINDS if kind in head}


def _limits(config: Config, used: Collection[str]) -> Iterator[SettingRow]:
    home = config.home
    for name, quotas in config.limits.items():
        origin = config.origins.get((LIMITS, name), BY_DEFAULT)
        exact = config.limits.get(f"{home}/{name}", quotas)
        elsewhere = name != ANY and overridden(exact, rates(config)) != overridden(quotas, rates(config))
        if config.provider is not None and elsewhere:
            yield _limit(config, name, quotas, origin, f"not at {home}: see {home}/{name}")
        elif "/" in name or config.provider is not None or not rates(config) or maker(name):
            yield _limit(config, name, quotas, origin)
        else:  # acquired by hand, it is a pool of the program's own, to which no override applies
            yield SettingRow(dotted((LIMITS, name)), [str(quota) for quota in in_days(quotas)], origin)
            yield _limit(config, f"{ANY}/{name}", quotas, origin)
    if ANY not in config.limits:  # else the published tables have no effect
        yield from _published(config, {home, *used})


def _published(config: Config, used: Collection[str | None]) -> Iterator[SettingRow]:
    """The limits in the tables of the providers that are ``used`` or named."""
    named = {*used, *(name.partition("/")[0] for name in (*config.limits, *(config.concurrency or ())) if name != ANY)}
    for provider in known_providers():
        if provider in named and f"{provider}/*" not in config.limits:
            tier = config.tier if provider == config.home else None
            published = lookup(provider, DEFAULT, tier)
            source = f"{published.source} ({published.as_of}{f', {published.tier}' if published.tier else ''})"
            words = ["paceline", "limits", provider, *([] if tier is None else ["--tier", str(tier)])]
            others = f"models of the table: see `{shlex.join(words)}`" if len(models(provider)) > 1 else ""
            yield _limit(config, f"{provider}/*", published.quotas, source, others, given=False)


def _limit(
    config: Config, name: str, quotas: tuple[Quota, ...], source: str, except_for: str = "", *, given: bool = True
) -> SettingRow:
    """A model's quotas, with the overrides that replace some of them."""
    provider, slash, _ = name.partition("/")
    effective = overridden(quotas, rates(config))
    if given:
        effective = in_days(effective, provider if slash else maker(name) or config.provider or "")
    if rates(config):
        overrides = [config.origins.get((name,), BY_DEFAULT) for name in OVERRIDES if getattr(config, name)]
        kept = [source] if set(effective) & set(quotas) else []
        source = ", ".join(dict.fromkeys([*kept, *overrides]))
    source = f"{source}; {except_for}" if except_for else source
    return SettingRow(dotted((LIMITS, name)), [str(quota) for quota in effective], source)


def rates(config: Config) -> dict[str, float]:
    """Amounts a minute by unit that hold for every model."""
    return overrides(config.rpm_override, config.tpm_override)
