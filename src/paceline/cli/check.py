"""``paceline check``: ask a provider for the real limits of a key, with one small request per model."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from paceline.cli import options
from paceline.cli.guides import Helped
from paceline.core.results import PacelineError, SettingsError
from paceline.providers.registry import base_of

if TYPE_CHECKING:
    from paceline.check.probe import Checked, ProbeTarget
    from paceline.config import Config

REFUSED, USAGE = 1, 2


@click.command(cls=Helped)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--provider", help="The provider. [default: by the address or the model]")
@options.TIER
@options.LIMIT
@options.CONFIG
@options.BASE_URL
@click.option(
    "--admin", is_flag=True, help="Read the organization's limits and models' ends with an administrator's key."
)
@click.option("--project", help="With --admin: also read the limits of this OpenAI project.")
@click.option(
    "--workspace", help="With --admin: read the limits of this Anthropic workspace instead of the organization's."
)
@click.option("--yes", is_flag=True, help="Send without asking you first.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON on standard output.")
def command(*, models: tuple[str, ...], admin: bool, yes: bool, as_json: bool, **given: Any) -> None:
    """Ask a provider for the limits of your key.

    Sends one tiny request per MODEL, and compares the limits in the responses with your settings. If you name no MODEL: every model with limits in your settings. paceline asks you before it sends.

    --admin sends no request to a model. It reads the limits with an administrator's key (ANTHROPIC_ADMIN_KEY, OPENAI_ADMIN_KEY), which paceline
    doesn't store, and saves them for requests with your usual key.
    """
    of_organization = options.taken(given, "project", "workspace")
    if admin:
        _require_none(models, given)
        _ask_as_administrator(given["provider"], given["base_url"], of_organization, yes=yes, as_json=as_json)
        return
    if any(of_organization.values()):
        raise click.UsageError("--project and --workspace need --admin")
    config = options.settings(given)
    checked = ask(models, config, yes=yes)
    toml = _toml(checked, config)
    if as_json:
        click.echo(json.dumps({"models": [one.record() for one in checked], "config": toml}))
    else:
        _print(checked, toml)
    sys.exit(REFUSED if any(one.problem for one in checked) else 0)


def _require_none(models: tuple[str, ...], given: Mapping[str, Any]) -> None:
    """Refuse options that have no effect beside --admin."""
    if models or given["limits"] or given["tier"]:
        raise click.UsageError("--admin asks for all models: leave out MODEL, --limit and --tier")
    if given["base_url"] and not given["provider"]:
        raise click.UsageError("--base-url needs --provider with --admin: only the keys of that provider go there")


def _targets(models: tuple[str, ...], config: Config) -> list[ProbeTarget]:
    """What is asked: the models that are named, or the configured ones."""
    from paceline.check.probe import configured, target

    names, unknown = (models, []) if models else configured(config)
    for name in unknown:
        click.echo(
            f"not asked: {name!r}, because no provider is known of it; a model is written like 'openai/{name}'",
            err=True,
        )
    if not names:
        raise click.UsageError("name a model, e.g. 'paceline check gpt-6-luna'")
    targets = [target(name, config, os.environ) for name in dict.fromkeys(names)]
    providers = dict.fromkeys(one.provider.name for one in targets if not one.is_member)
    if config.base_url and len(providers) > 1:
        raise SettingsError(
            f"base_url would get the keys of {', '.join(providers)}: check the models of each one apart"
        )
    return targets


def _with_keys() -> list[str]:
    """The providers whose administration API has a key in the environment."""
    keys = {"anthropic": "ANTHROPIC_ADMIN_KEY", "openai": "OPENAI_API_KEY"}
    names = [name for name, key in keys.items() if os.environ.get(key)]
    if not names:
        raise SettingsError(
            "no key to ask with: set ANTHROPIC_ADMIN_KEY, or OPENAI_API_KEY for the ends of OpenAI's models"
        )
    return names


def _ask_as_administrator(
    provider: str | None, base_url: str | None, of: Mapping[str, str | None], *, yes: bool, as_json: bool
) -> None:
    """Read what the provider's administration API tells, and keep it."""
    from paceline.check.admin import keep, questions, told

    today, report, stayed = date.today(), [], list[str]()  # noqa: DTZ011  (the user's calendar)
    try:
        names = [base_of(provider)] if provider else _with_keys()
        asked = [questions(name, os.environ, base_url=base_url, **of) for name in names]
        places = [f"{one.url}  ({one.key_env})" for some in asked for one in some]
        if not yes and not _confirmed("This reads with GET, and changes nothing there:", places, "Send?"):
            sys.exit(USAGE)
        for name, some in zip(names, asked, strict=True):
            rows = told(some, today)
            counts = {kind: len(rows.get(kind, ())) for kind in ("limits", "models")}
            file, problems = keep(name, os.environ, rows, today)
            stayed += problems
            report.append({"provider": name, "file": str(file), **counts})
    except PacelineError as error:
        click.echo(f"paceline check: {error}", err=True)
        sys.exit(REFUSED)
    rows_of = "{provider}: {limits} rows of limits, {models} of ends of models, in {file}".format
    said = [rows_of(**kept) for kept in report]
    said.append("They apply to requests with the usual key in the environment, if you name no tier.")
    click.echo(json.dumps({"organizations": report}) if as_json else "\n".join(said))
    for line in stayed:
        click.echo(f"paceline check: {line}", err=True)
    sys.exit(REFUSED if stayed else 0)


def ask(models: tuple[str, ...], config: Config, *, yes: bool) -> list[Checked]:
    """Ask the providers for the limits of ``models``, or of the configured ones, if the user agrees.

    Raises:
        SettingsError: The user does not agree, or a model cannot be asked for.
    """
    from paceline.check.probe import MAX_OUTPUT_TOKENS, TEXT, probe

    targets = _targets(models, config)
    what = f"This sends one request ({TEXT!r}, at most {MAX_OUTPUT_TOKENS} tokens of output) for each of:"
    places = [f"{one.model}: {one.url}" for one in targets]
    if not yes and not _confirmed(what, places, "It costs a fraction of a cent. Send?"):
        raise SettingsError("nothing has been sent; --yes sends without a question")
    return [probe(one, config) for one in targets]


def _confirmed(what: str, places: Sequence[str], question: str) -> bool:
    """Ask whether something is done at these places; the end of standard input says no."""
    click.echo("\n  ".join([what, *places]), err=True)
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def _toml(checked: Sequence[Checked], config: Config) -> str:
    """The configuration to use."""
    from paceline.check.verdict import to_toml

    providers = {one.model.partition("/")[0] for one in checked}
    provider = providers.pop() if len(providers) == 1 else ""
    usual = provider if "@" not in provider else None  # a member of a group is no default
    return to_toml(usual, config.base_url, [(one.model, one.findings) for one in checked], config.concurrency)


def _print(checked: Sequence[Checked], toml: str) -> None:
    for one in checked:
        click.echo(f"{one.model}  (pool {one.pool})")
        for line in _table(one):
            click.echo(f"  {line}")
        if one.ending:
            click.echo(f"  the model {one.ending}")
        if one.problem:
            click.echo(f"  {one.problem}")
        if not one.stated:
            click.echo("  the answer says nothing about limits" if one.status else "  nothing was learned")
        click.echo()
    click.echo("# the configuration to use\n" + toml, nl=False)


def _table(one: Checked) -> list[str]:
    rows = [("quota", "source", "stated", "remaining", "verdict")]
    for finding in one.findings:
        source, reading = one.sources.get(str(finding.configured), "the answer"), finding.reading
        amounts = (_amount(reading.limit), _amount(reading.remaining)) if reading else ("-", "-")
        rows.append((str(finding.configured or finding.use), source, *amounts, finding.verdict.value))
    return options.aligned(rows)


def _amount(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:,.0f}"
