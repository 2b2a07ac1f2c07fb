"""``paceline limits``: the limits that are used, and where they come from; the facts about providers that they are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any, Final

import click

from paceline import facts
from paceline.cli import options
from paceline.cli.guides import HelpedGroup
from paceline.cli.options import print_table
from paceline.core.hints import did_you_mean
from paceline.core.quota import Quota, parse_quotas
from paceline.core.results import PacelineError, SettingsError, Source, SourceKind
from paceline.pacing.limits import Limits
from paceline.pacing.settings import PacingSettings
from paceline.providers.registry import ALIASES, PROVIDERS, is_provider, maker, provider_named
from paceline.providers.tables import DEFAULT, Published, known_providers, listing, lookup, models, stated_tiers, tiers
from paceline.stores import as_store

if TYPE_CHECKING:
    from paceline.config import Config

OLD_DAYS: Final = 120
"""The age from which a row is shown with it."""

STORE_S: Final = 3.0
"""The longest wait for the store, in seconds."""

SET, STATED, YOURS, TABLE, ASSUMED = "set", "stated by an answer", "your file", "table", "assumed"
"""Where a limit comes from."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The limits of a model as they are used.

    Attributes:
        published: What the data set or the user's facts say of the model.
        origins: The limits that are used, and where each comes from.
        place: The file or the store that has them; empty for the data set.
    """

    published: Published
    origins: dict[Quota, str]
    place: str = ""

    @property
    def quotas(self) -> str:
        """The limits that are used."""
        return ", ".join(map(str, self.origins))

    @property
    def origin(self) -> str:
        """Where they come from: the first that says more than a row does."""
        return next((one for one in (STATED, SET, YOURS, ASSUMED) if one in self.origins.values()), TABLE)

    @property
    def where_from(self) -> str:
        """Where they come from, in the order of the limits if they differ."""
        names = [f"{TABLE} of {self.published.as_of}" if one == TABLE else one for one in self.origins.values()]
        return names[0] if len(set(names)) == 1 else ", ".join(names)

    @property
    def tier(self) -> str:
        """The tier of a row; empty for limits that no row states."""
        return self.published.tier if self.is_row else ""

    @property
    def is_row(self) -> bool:
        """Whether a row of facts states them."""
        return self.origin not in (SET, STATED)

    def about(self, today: date) -> str:
        """Where they come from, in one line."""
        if not self.is_row:
            return f"{self.where_from}: {self.place}"
        row, as_of = self.published, _as_of(self.published, today)
        of = f"{YOURS} {self.place}, {as_of}" if self.place else f"{TABLE} of {as_of}"
        return f"{of}, {ASSUMED if self.origin == ASSUMED else row.confidence}: {row.source}"


class Group(HelpedGroup):
    """A group whose first word can be an argument of :func:`show`, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take ``show`` for the command where none is named."""
        if not args or args[0] not in (*self.commands, "-h", "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(name="limits", cls=Group)
def command() -> None:
    """Show limits; check and update facts about providers.

    `paceline limits openai gpt-6-luna` is short for `paceline limits show openai gpt-6-luna`.
    """


@command.command(name="check")
@click.argument("file", type=options.FILE)
def check_facts(file: Path) -> None:
    """Check a file of facts about providers.

    The file has the form of tables/providers.toml, or contains settings with [providers.NAME].
    """
    from paceline.config import Config
    from paceline.config.sources import FILES

    if file.name in FILES or file.suffix in (".yaml", ".yml"):
        found: dict[str, Any] = {"day": "", "providers": Config.load(file, {}, named=True).providers}
    else:
        found = facts.read(file)
    facts.check_sense(found, str(file), date.today())  # noqa: DTZ011  (zones differ by a day)
    rows = [row for head in found["providers"].values() for kind in facts.KINDS for row in head.get(kind, ())]
    weak = sum(len(row["as_of"]) < len("2026-11-28") for row in rows)
    click.echo(
        f"{file}: right. Providers: {len(found['providers'])}, rows: {len(rows)}{f', without a day: {weak}' if weak else ''}"
        f"{', of ' + found['day'] if found['day'] else ''}"
    )


@command.command(name="update")
@click.argument("source", metavar="FILE|URL", required=False)
@click.option("--sha256", help="The SHA-256 of the data set. A URL needs it.")
@click.option("--undo", is_flag=True, help="Go back to the data set before.")
def update(source: str | None, sha256: str | None, *, undo: bool) -> None:
    """Install a newer data set for this user.

    The data set never changes the address of a known provider.
    """
    from paceline.config import data_set

    if undo == (source is not None):
        raise click.UsageError("name a FILE or a URL, or give --undo")
    click.echo(data_set.undo() if source is None else data_set.install(source, sha256))


@command.command(name="show")
@click.argument("provider", required=False)
@click.argument("model", required=False)
@click.option("--tier", help="Your tier, such as 2 or build. [default: the lowest]")
@options.CONFIG
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def show(provider: str | None, model: str | None, tier: str | None, file: Path | None, *, as_json: bool) -> None:
    """Show the limits in use, and where each comes from.

    A limit comes from a setting, a response, your file or a table. PROVIDER: every model of its table. MODEL: the limits of this model. If you give
    neither: every provider with a table. PROVIDER can be PROVIDER/MODEL, or a model alone, for every provider that lists it.
    """
    from paceline.config import Config, find_file

    config = Config.load(find_file(file), given={}, named=file is not None)
    asked = _asked(provider, model)
    if tier is not None and len(asked) > 1:
        asked = [one for one in asked if one[0] == maker(one[1] or "")]  # a model alone: its maker's tier
    if not asked:
        raise click.UsageError("--tier needs a PROVIDER: each provider has its own tiers")
    today = date.today()  # noqa: DTZ011  (the age in days needs no zone)
    known = Known(config)
    try:
        rows = [row for name, one in asked for row in known.rows(name, one, tier)]
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        for name, shown in rows:
            click.echo(json.dumps(_record(name, shown, today)))
        return
    _print(rows, today)
    if assumed := [name for name, row in rows if row.origin == ASSUMED]:
        _say_assumed(assumed, tier, config)
    if remark := facts.standing()["remark"]:
        click.echo(remark, err=True)


def _print(rows: Sequence[tuple[str, Shown]], today: date) -> None:
    """The rows for a terminal, or with all of their columns for a program."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        _show(rows, today, console.width)
        return
    cells = []
    for name, row in rows:
        as_of = (_as_of(row.published, today), row.published.source) if row.is_row else ("", row.place)
        cells.append((name, row.tier, row.quotas, row.published.pool, row.where_from, *as_of))
    print_table(("model", "tier", "limits", "pool", "from", "as of", "source"), cells)


def _show(rows: Sequence[tuple[str, Shown]], today: date, width: int) -> None:
    """A table that fits a terminal of 80 columns: what all rows share stands above it once, where they come from below it."""
    origins = [row.about(today) for _, row in rows]
    notes = {origin: number for number, origin in enumerate(dict.fromkeys(origins), 1)}
    providers, tiers = {name.partition("/")[0] for name, _ in rows}, {row.tier for _, row in rows}
    cells = []
    for (name, row), origin in zip(rows, origins, strict=True):
        model = name.partition("/")[2]
        shown = f"{name if len(providers) > 1 else model}{'' if row.published.pool == model else f' (of {row.published.pool})'}"
        tier = [row.tier] if len(tiers) > 1 else []
        cells.append((shown, *tier, row.quotas, f"[{notes[origin]}]"))
    if len(providers) == 1:
        click.echo(", ".join([*providers, *(tiers if len(tiers) == 1 else [])]))
    print_table(("model", *(["tier"] if len(tiers) > 1 else []), "limits", "from"), cells)
    click.echo()
    wrapper = TextWrapper(width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)  # whole URLs
    for origin, number in notes.items():
        click.echo(wrapper.fill(f"[{number}] {origin}"))
    click.echo("Answers correct these limits while a program runs.")


def _asked(provider: str | None, model: str | None) -> list[tuple[str, str | None]]:
    """The providers and models that the arguments name; no model for a whole table."""
    known = known_providers()
    if provider is None:
        return [(name, DEFAULT) for name in known]
    prefix, _, rest = provider.partition("/")
    if model is None and rest and is_provider(prefix):
        provider, model = prefix, rest
    name = provider_named(provider).name
    if name in known:
        prefix, _, rest = (model or "").partition("/")
        return [(name, rest if rest and provider_named(prefix).name == name else model)]
    if is_provider(provider):
        raise click.UsageError(f"no published limits of {name} are known: its rate is measured")
    found = [] if model is not None else listing(provider)
    if found:
        return list(found)
    hint = did_you_mean(name, [*PROVIDERS, *ALIASES, *_all_models()])
    raise click.UsageError(
        f"{provider!r} is no provider (known: {', '.join(known)}), and no table lists such a model{hint}"
    )


def _all_models() -> list[str]:
    names = dict.fromkeys(model for provider in known_providers() for model in models(provider))
    return [name for name in names if "*" not in name and name != DEFAULT]  # no patterns


class Known:
    """The limits of models by the settings, by the store and by the tables.

    Args:
        config: The settings.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._limits = Limits(PacingSettings(quotas=config.limits, provider=config.provider))
        self._pools = _pools_in(config.store) if config.store else {}

    def rows(self, provider: str, model: str | None, tier: str | int | None) -> list[tuple[str, Shown]]:
        """The models with their limits: all of the provider's table, or one."""
        tier = tier if tier is not None or provider != self._config.home else self._config.tier
        named = models(provider) if model is None else [model]
        rows = [(f"{provider}/{one}", self._shown(provider, one, tier)) for one in named]
        if model is not None and rows[0][1].is_row and rows[0][1].published.matched == DEFAULT and model != DEFAULT:
            others = ", ".join(stated_tiers(provider, model))
            why = f" in {rows[0][1].tier}: name a tier that has one ({others})" if others else ""
            hint = "" if others else did_you_mean(model, [name for name in models(provider) if "*" not in name])
            click.echo(f"{provider}: no row for {model!r}{why}; the default is used{hint}", err=True)
        return rows

    def _shown(self, provider: str, model: str, tier: str | int | None) -> Shown:
        from paceline.config.schema import LIMITS

        published, origins = lookup(provider, model, tier), self._config.origins
        given = self._limits.given_for(provider, model, published.pool)
        if given is not None:
            names = [key[1] for key in origins if key[0] == LIMITS and self._limits.given.get(key[1]) is not None]
            exact = next((one for one in (f"{provider}/{model}", model, f"{provider}/*", "*") if one in names), "")
            return Shown(published, dict.fromkeys(given, SET), origins.get((LIMITS, exact), "the settings"))
        sources = {quota: _origin(source, published.where) for quota, source in published.sources.items()}
        learned = self._learned(f"{provider}/{published.pool}")
        if any(learned.values()):
            store = as_store(self._config.store or "")
            known = {quota: STATED if is_stated else sources.get(quota, SET) for quota, is_stated in learned.items()}
            return Shown(published, known, f"the store {store.url if store else ''}")
        return Shown(published, sources, published.where)

    def _learned(self, pool: str) -> dict[Quota, bool]:
        """The limits of a pool in the store, and whether answers have changed each."""
        quotas = self._pools.get(pool, {"quotas": ()})["quotas"]
        with suppress(PacelineError):
            return {parse_quotas(one["quota"])[0]: one["learned"] for one in quotas}
        return {}


def _pools_in(store: str) -> Mapping[str, Any]:
    """The pools in the store of the settings."""
    from paceline.cli.standing import read_store

    with suppress(PacelineError, click.UsageError):  # `paceline doctor` says why it cannot be read
        pools: Mapping[str, Any] = read_store(store, STORE_S)[0]["pools"]
        return pools
    return {}


def _origin(source: Source, where: str) -> str:
    """Where a limit of a row comes from; ``where``: the user's file that has the row."""
    if where and source.detail.startswith(where):
        return YOURS
    return TABLE if source.kind is SourceKind.PUBLISHED else ASSUMED


def _age_days(published: Published, today: date) -> int:
    """The age of a row in days, from the first day of its date: ``2026`` counts from January."""
    year, month, day = map(int, f"{published.as_of or today}-1-1".split("-")[:3])
    return (today - date(year, month, day)).days


def _as_of(published: Published, today: date) -> str:
    days = _age_days(published, today)
    if days <= OLD_DAYS:
        return published.as_of
    return f"{published.as_of} ({'' if published.as_of.count('-') == 2 else 'up to '}{days} days old)"


def _record(name: str, shown: Shown, today: date) -> dict[str, Any]:
    provider, published = name.partition("/")[0], shown.published
    kinds = {SET: SourceKind.GIVEN, STATED: SourceKind.LEARNED, ASSUMED: SourceKind.ASSUMED}
    row = {
        "matched": published.matched,
        "confidence": published.confidence,
        "as_of": published.as_of,
        "age_days": _age_days(published, today),
        "source": published.source,
    }
    return {
        "model": name,
        "pool": f"{provider}/{published.pool}",
        "tier": shown.tier,
        "quotas": [str(quota) for quota in shown.origins],
        "kind": kinds.get(shown.origin, SourceKind.PUBLISHED),
        "sources": {str(quota): origin for quota, origin in shown.origins.items()},
        "from": shown.origin,
        "place": shown.place,
        **(row if shown.is_row else dict.fromkeys(row)),
    }


def _say_assumed(assumed: list[str], tier: str | None, config: Config) -> None:
    """Say which limits nothing confirms, and how to find them."""
    home = config.home if config.tier is not None else None
    of = {name.partition("/")[0] for name in assumed} - {home}
    lowest = tier is None and any(len(tiers(provider)) > 1 for provider in of)
    which = assumed[0] if len(assumed) == 1 else "MODEL"
    why = "no --tier was named, so the lowest is assumed; " if lowest else ""
    click.echo(f"{why}`paceline check {which}` asks the provider for the limits of your key", err=True)
