"""The published limits: the rows ``limits`` of the data set, each with its source, date and confidence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from typing import Any, Final

from paceline import facts
from paceline.core.hints import did_you_mean
from paceline.core.quota import KNOWN_UNITS, Quota, parse_quotas
from paceline.core.results import SettingsError, Source, SourceKind, warn
from paceline.facts.lives import Life, newer_row
from paceline.providers.base import COUNTING
from paceline.providers.naming import plain
from paceline.providers.parse import spelled, undated
from paceline.providers.quota_headers import UNITS
from paceline.providers.registry import ALIASES, PROVIDERS, base_of, is_provider, maker, provider_named

UNKNOWN: Final = parse_quotas("8 concurrency")
"""What is assumed for a provider without a table if answers teach nothing (``learn=False``). Else its rate is measured."""

DEFAULT: Final = "default"
"""The model name of a table's row for all models that the table does not list."""

ASSUMED: Final = "assumed"

_Found = tuple[dict[str, Any], str, str]  # a row, its pattern that matched, the tier that it states


@dataclass(frozen=True, slots=True)
class Published:
    """The published limits for one model and tier.

    Attributes:
        sources: The limits, and the source of each.
        pool: The pool that the model is charged to, without the provider.
        tier: The tier that the quotas are published for; ``""`` without a table.
        source: Where they were read.
        as_of: The date of that copy.
        confidence: ``documented`` (the provider's page states it), ``third_party`` or ``assumed``.
        matched: The table's name or pattern that matched the model; ``default`` when none did.
        where: The user's file that has the row; empty for the data set.
    """

    sources: dict[Quota, Source]
    pool: str
    tier: str
    source: str
    as_of: str
    confidence: str
    matched: str
    where: str = ""

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """The limits."""
        return tuple(self.sources)


def lookup(provider: str, model: str, tier: str | int | None = None) -> Published:
    """The limits that ``provider`` publishes for ``model``.

    The longest pattern that matches wins. A row without the tier stands in with an equal tier, or with the next lower
    one; a unit that a row does not state is taken from the table's default. For a provider without a table,
    :data:`UNKNOWN` is assumed, with a warning.

    Args:
        provider: A provider's name or alias.
        model: The model as requests name it, a dated snapshot too.
        tier: ``2``, ``"2"``, ``"T2"``, ``"tier_2"``, ``"build"``; the table's lowest when not given.

    Raises:
        SettingsError: The provider has no such tier; the message lists those it has.
    """
    full = provider_named(provider).name
    name = base_of(full)
    if name in known_providers():
        return _lookup(name, model, tier, full == name)
    near = "" if is_provider(name) else did_you_mean(name, [*PROVIDERS, *ALIASES], cutoff=0.75).removeprefix("; ")
    if tier is not None:
        raise SettingsError(f"no tiers of {name} are known{f' ({near})' if near else ''}: leave out tier={tier!r}")
    warn(
        f"no published limits are known for provider {name!r}{f' ({near})' if near else ''}: a rate is measured"
        f" until an answer states one. Set the real ones: Limiter({{'{name}/*': '500 requests/min'}}), or --limit '{name}/*=500 requests/min'"
    )
    return _without_table(provider, model)


def _without_table(provider: str, model: str) -> Published:
    sources = dict.fromkeys(UNKNOWN, Source(SourceKind.ASSUMED, "no table"))
    return Published(sources, provider_named(provider).pool(model), "", "no table", "", ASSUMED, DEFAULT)


@facts.cached
def _lookup(provider: str, model: str, tier: str | int | None, is_first: bool) -> Published:
    table = _table(provider)
    asked, named = _asked(provider, table, tier, is_first)
    names = _spellings(provider, model)
    found = _best(table, names, asked)
    if found is None and (model != COUNTING or COUNTING in models(provider)):  # the default is of models
        found = _best(table, (DEFAULT,), asked)
    if found is None:  # also of a user's file: a table's default states every tier or a lower one
        return _without_table(provider, model)
    row, matched, stated = found
    if remark := newer_row(table["limits"], row, matched, stated):
        warn(f"{provider}/{matched}: {remark}")
    about = _is_about(provider, model, row, matched)
    confidence = row["confidence"] if stated == asked and (about or model == DEFAULT) else ASSUMED
    sure = named and about and row["confidence"] != ASSUMED and stated in _rungs(table, asked)[0]
    kind = SourceKind.PUBLISHED if sure else SourceKind.ASSUMED
    sources = dict.fromkeys(parse_quotas(row[stated]), _source(kind, row, stated))
    if matched != DEFAULT and not row.get("complete"):
        sources = _with_rest(sources, _best(table, (DEFAULT,), asked))
    pool, where = provider_named(provider).pool(model), row.get("where", "")
    return Published(sources, pool, stated, row["source"], row["as_of"], confidence, matched, where)


def _asked(provider: str, table: dict[str, Any], tier: str | int | None, is_first: bool) -> tuple[str, bool]:
    """The tier whose limits are looked for, and whether it is known to be the account's."""
    asked = _tier(provider, table, tier)
    if tier is not None or (is_first and asked == facts.ORGANIZATION):
        return asked, True
    if asked == facts.ORGANIZATION:  # it is of the key in the environment, and not of another account
        asked = _nearest_first(table, asked)[1]
    return asked, len(tiers(provider)) == 1


def _with_rest(sources: dict[Quota, Source], rest: _Found | None) -> dict[Quota, Source]:
    """The limits, with the limits of the table's default on other units."""
    if rest is None:
        return sources
    (row, _, tier), units = rest, {quota.unit for quota in sources}
    left_out = [quota for quota in parse_quotas(row[tier]) if quota.unit not in units]
    return sources | dict.fromkeys(left_out, _source(SourceKind.ASSUMED, row, tier))


def _source(kind: SourceKind, row: dict[str, Any], tier: str) -> Source:
    place = f"{row['where']}: " if row.get("where") else ""
    return Source(kind, f"{place}{row['source']} ({row['as_of']})", tier)


_VERSION = re.compile(r"-v\d+(?::\d+)*$")
_SNAPSHOT = re.compile(r"(20\d\d)-?([01]\d)-?([0-3]\d)(?!\d)|(?<!\d)([01]\d)-(20\d\d)$")


def _is_about(provider: str, model: str, row: dict[str, Any], matched: str) -> bool:
    """Whether a row is about ``model`` itself: it has its name, or the model is known to be no newer than the row's pattern."""
    if "*" not in matched or matched == model:
        return matched != DEFAULT
    if _VERSION.sub("", model).endswith(matched.strip("*")):  # "*" stands for a region and a version
        return True
    life, dated = life_of(provider, model), _SNAPSHOT.search(model)
    born = life.born if life is not None else ""
    if not born and dated is not None:
        born = "-".join(dated.group(1, 2, 3)) if dated[1] else f"{dated[5]}-{dated[4]}-31"
    return bool(born) and born <= row["as_of"]  # a day that is not known counts from its beginning


@facts.cached
def about_model(provider: str, model: str, *fields: str) -> dict[str, Any] | None:
    """The row about ``model`` itself that states one of these fields, if the data set has one."""
    rows = _matching(facts.rows(base_of(provider), facts.MODELS), _spellings(provider, model))
    return next((row for row, _ in rows if not row.keys().isdisjoint(fields)), None)


def stated(provider: str, model: str, field: str) -> Any:
    """What the data set states of ``model`` at this provider, or else of its maker's model of this name; ``None`` for nothing."""
    bare = model.rpartition("/")[2]
    row = about_model(provider, model, field) or about_model(maker(bare) or provider, bare, field)
    return row and row[field]


def life_of(provider: str, model: str) -> Life | None:
    """The life of a model, if the data set knows it."""
    row = about_model(provider, model, "from", "until")
    return None if row is None else Life.of(row)


def ending(provider: str, model: str) -> str:
    """What to say of a model that has ended or ends soon; else an empty text."""
    life = life_of(provider, model)
    return "" if life is None else life.ending(date.today())  # noqa: DTZ011  (days of the provider's calendar)


@facts.cached
def known_providers() -> tuple[str, ...]:
    """The providers that have a table."""
    return tuple(sorted(name for name, head in facts.heads().items() if "ladders" in head))


@facts.cached
def counted_units() -> frozenset[str]:
    """The units that providers count, by their tables and headers."""
    found = (quota.unit for name in known_providers() for one in models(name) for quota in lookup(name, one).quotas)
    return frozenset((*KNOWN_UNITS, *UNITS, *found))


def tiers(provider: str) -> list[str]:
    """The tiers of a provider that has a table, lowest first."""
    return [name for ladder in _table(provider)["ladders"] for rung in ladder for name in rung]


def models(provider: str) -> list[str]:
    """The names and patterns that a provider's table lists, ``default`` first."""
    names = dict.fromkeys(name for row in _table(provider)["limits"] for name in row["match"])
    return [DEFAULT, *(name for name in names if name != DEFAULT)]


def stated_tiers(provider: str, model: str) -> list[str]:
    """The tiers for which a table's row is about ``model`` itself, lowest first; empty for an unlisted model."""
    rows = _matching(_table(provider)["limits"], _spellings(provider, model))
    return [tier for tier in tiers(provider) if any(tier in row for row, _ in rows)]


def is_listed(provider: str, model: str) -> bool:
    """Whether a table lists ``model`` by its full name."""
    provider = base_of(provider)
    return provider in known_providers() and model in models(provider)


def listing(model: str) -> list[tuple[str, str]]:
    """The providers whose tables list ``model``, its maker first, each with the model's name there."""
    found = [(name, model) for name in known_providers() if stated_tiers(name, model)]
    found += [(name, full) for name in known_providers() for full in models(name) if full.endswith(f"/{model}")]
    return sorted(found, key=lambda one: one[0] != maker(model))


def near_model(provider: str, model: str) -> str | None:
    """The model of a table whose name differs from ``model`` in punctuation and case only."""
    provider = base_of(provider)
    if provider not in known_providers() or stated_tiers(provider, model):
        return None
    return next((name for name in models(provider) if "*" not in name and plain(name) == plain(model)), None)


@facts.cached
def _table(provider: str) -> dict[str, Any]:
    return facts.heads()[provider] | {"limits": facts.rows(provider, facts.LIMITS)}


def _tier(provider: str, table: dict[str, Any], tier: str | int | None) -> str:
    """The table's name for a tier as a user may write it."""
    if tier is None:
        return str(table["default_tier"])
    written = str(tier).strip().lower().replace("-", "_").replace(" ", "_")
    number = written.removeprefix("tier").removeprefix("t").lstrip("_")
    name = f"tier_{number}" if number.isdigit() else written
    known = tiers(provider)
    if name not in known:
        raise SettingsError(
            f"tier {tier!r} of {provider} is unknown (known: {', '.join(known)}){did_you_mean(name, known)}"
        )
    return name


def _best(table: dict[str, Any], names: tuple[str, ...], tier: str) -> _Found | None:
    """The row with the longest match, then the nearest tier; with its pattern that matched and the tier it states."""
    order, rows = _nearest_first(table, tier), _matching(table["limits"], names)
    found = [(row, pattern, stated) for row, pattern in rows for stated in order if stated in row]
    return max(found, key=lambda one: (_length(one[1]), -order.index(one[2])), default=None)


def _spellings(provider: str, model: str) -> tuple[str, ...]:
    """The names under which a table may list ``model``: its own, its alias, its pool, and with ``-`` for ``.``."""
    if model == DEFAULT:
        return (DEFAULT,)
    pool = provider_named(provider).pool(model)
    return model, undated(model), pool, undated(pool), spelled(model)


def _matching(rows: Iterable[dict[str, Any]], names: tuple[str, ...]) -> list[tuple[dict[str, Any], str]]:
    """The rows about one of ``names``, each with the name or pattern that matches, the longest first."""
    found = [(row, pattern) for row in rows for pattern in row["match"] if _matches(names, pattern)]
    return sorted(found, key=lambda one: -_length(one[1]))


def _length(pattern: str) -> int:
    return len(pattern.rstrip("*"))


def _matches(names: tuple[str, ...], pattern: str) -> bool:
    if pattern == DEFAULT:
        return names == (DEFAULT,)
    return any(name == pattern or fnmatchcase(name, pattern) for name in names)


def _rungs(table: dict[str, Any], tier: str) -> list[list[str]]:
    """The rung of ``tier``, which has its other names, and the lower ones of its ladder."""
    ladders = (ladder[height::-1] for ladder in table["ladders"] for height, rung in enumerate(ladder) if tier in rung)
    return next(ladders, [[tier]])


def _nearest_first(table: dict[str, Any], tier: str) -> list[str]:
    """``tier``, then its equals, then the lower tiers of its ladder."""
    return list(dict.fromkeys((tier, *(name for rung in _rungs(table, tier) for name in rung))))
