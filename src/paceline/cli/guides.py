"""The help of every command beyond the words of its options: their groups, two examples, its exit codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import click
from click.formatting import wrap_text

from paceline.core.hints import did_you_mean


class Guide(NamedTuple):
    """What the help of a command says.

    Attributes:
        groups: The names of options by the title of their group.
        examples: Commands that work as they are printed.
        exits: The meaning of each exit code.
    """

    groups: Mapping[str, str]
    examples: tuple[str, ...]
    exits: str


_LIMITS: Final = {
    "Provider and limits": "provider base-url group tier limit rpm-override tpm-override usable config store on-store-failure"
}
_ROWS: Final = {"Rows of the input": "model column template key files no-header task lines max-tokens schema"}
_RIGHTS: Final = {"Rights": "model endpoint may-read may-resume users", "Share": "weight priority limit team"}
_READ: Final = "0 shown, 1 nothing could be read there, 2 a wrong option."
_CHANGED: Final = "0 done, 2 nothing was changed."

GUIDES: Final[Mapping[str, Guide]] = {
    "run": Guide(
        {
            "Answers": "output into cut-off again",
            **_ROWS,
            "Sending": "workers max-attempts timeout check strict restart repair shard",
            "Batches": "mode deadline batch-lines batch-queue",
            **_LIMITS,
            "Progress": "page json quiet",
        },
        (
            "paceline run prompts.csv --model gpt-6-luna --column text -o answers.csv",
            "paceline run requests.jsonl --limit 'gpt-6-luna=500 requests/min'",
        ),
        "0 all answered, 1 some failed, 2 nothing could be sent, 130 interrupted.",
    ),
    "plan": Guide(
        {
            "Agents": "agents turns prompt shared grows answer think cache-misses",
            **_ROWS,
            **_LIMITS,
            "Simulation": "workers latency-s latency-per-token-s seed",
            "Result": "by within picture json",
        },
        (
            "paceline plan prompts.csv --model gpt-6-luna --column text --within 6h",
            "paceline plan claude-sonnet-5 --agents 10 --turns 10 --tier all",
        ),
        "0 planned, 1 no variant ends by the time of --by or --within, 2 nothing could be planned.",
    ),
    "replay": Guide(
        {**_LIMITS, "Result": "speed picture json"},
        ("paceline replay traffic.jsonl", "paceline replay traffic.jsonl --tier all --speed 2"),
        "0 replayed, 2 the log or an option can't be used.",
    ),
    "merge": Guide(
        {"Result": "output overwrite json"},
        (
            "paceline merge requests.jsonl shard1.jsonl shard2.jsonl",
            "paceline merge requests.jsonl shard1.jsonl shard2.jsonl -o answers.jsonl --overwrite",
        ),
        "0 every request has its answer, 1 some are missing or failed, 2 nothing was written.",
    ),
    "exec": Guide(
        {"Program": "gateway login strict quiet", **_LIMITS},
        ("paceline exec python app.py", "paceline exec --login -- claude"),
        "the command's own, 2 a setting is invalid, 125 with --strict: something was not paced, 126 or 127 the command can't be started.",
    ),
    "serve": Guide(
        {
            "Address": "host port tls-cert tls-key workers",
            "Clients": "keys access-log",
            **_LIMITS,
            "Times": "timeout drain finish",
            "Logs and restarts": "log-level log-format otel watch",
            "Trial": "demo",
        },
        ("paceline serve --demo", "paceline serve --port 8081 --tier 2 --store sqlite:quotas.db"),
        "0 ended by a signal, 2 it could not start.",
    ),
    "keys add": Guide(
        {**_RIGHTS, "Secret and file": "secret-file keys"},
        ("paceline keys add alice --limit '60 requests/min'", "paceline keys add monitor --may-read"),
        _CHANGED,
    ),
    "keys change": Guide(
        {**_RIGHTS, "File": "keys"},
        ("paceline keys change alice --weight 2", "paceline keys change alice --limit none --keys keys.json"),
        _CHANGED,
    ),
    "keys list": Guide(
        {"File": "keys"}, ("paceline keys list", "paceline keys list --keys keys.json"), "0 shown, 2 it can't be read."
    ),
    "keys revoke": Guide(
        {"File": "keys"}, ("paceline keys revoke alice", "paceline keys revoke alice --keys keys.json"), _CHANGED
    ),
    "keys rotate": Guide(
        {"Secret and file": "overlap-hours keys"},
        ("paceline keys rotate alice", "paceline keys rotate alice --overlap-hours 0"),
        _CHANGED,
    ),
    "usage": Guide(
        {"Gateway": "key timeout", "Table": "by month csv"},
        (
            "paceline usage --by team",
            "paceline usage http://127.0.0.1:8080 --by user --month 2026-11 --csv > november.csv",
        ),
        _READ,
    ),
    "init": Guide(
        {"File": "output from", "Limits of your key": "check yes"},
        ("paceline init", "paceline init --output -"),
        "0 written, 2 nothing was written.",
    ),
    "check": Guide(
        {**_LIMITS, "Organization": "admin project workspace", "Sending and result": "yes json"},
        ("paceline check gpt-6-luna", "paceline check openai/gpt-6-luna --tier 2 --yes --json"),
        "0 every model answered, 1 a provider refused or did not answer, 2 nothing was sent.",
    ),
    "status": Guide(
        {"Where": "key store timeout", "Form": "page json line"},
        ("paceline status", "paceline status --store sqlite:quotas.db --json"),
        _READ,
    ),
    "top": Guide({"Where": "key"}, ("paceline top", "paceline top http://127.0.0.1:8000"), "0 ended by q, 2 nothing to show."),
    "resume": Guide(
        {"Gateway": "key timeout"},
        ("paceline resume openai/gpt-6-luna", "paceline resume 'openai/*' http://127.0.0.1:8080"),
        "0 the pool continues, 1 the gateway has no such pool or did not allow it, 2 a wrong option.",
    ),
    "config": Guide(
        {**_LIMITS, "Form": "show schema json"},
        ("paceline config", "paceline config --schema > paceline.schema.json"),
        "0 shown, 2 settings are invalid: all of them are reported.",
    ),
    "doctor": Guide(
        {"Report": "config timeout json"},
        ("paceline doctor", "paceline doctor --json > report.json"),
        "0 nothing is wrong, 1 something is.",
    ),
    "limits show": Guide(
        {"What": "tier config json"},
        ("paceline limits show openai", "paceline limits show openai gpt-6-luna --tier 2"),
        "0 shown, 2 a name or a setting is invalid.",
    ),
    "limits check": Guide(
        {}, ("paceline limits check paceline.toml", "paceline limits check facts.toml"), "0 right, 2 an error, with its place."
    ),
    "limits update": Guide(
        {"Data set": "sha256 undo"},
        ("paceline limits update facts.toml", "paceline limits update --undo"),
        "0 installed or removed, 2 nothing was changed.",
    ),
    "emulate": Guide(
        {
            "Address": "host port valid-key",
            "Limits": "limit rule quantum offset settle failed-count other-users money-after",
            "Answers": "dialect latency faults batches no-headers no-numbers seed",
            "Prompt cache": "cache cache-life cache-misses cache-held",
            "Scenarios": "scenario scenarios",
        },
        (
            "paceline emulate --limit 'gpt-6-luna=500 requests/min,400k tokens/min'",
            "paceline emulate --scenarios",
        ),
        "0 ended by Ctrl-C, 2 it could not start.",
    ),
    "demo": Guide(
        {"Picture": "out"}, ("paceline demo", "paceline demo --out pictures"), "0 shown, 130 interrupted."
    ),
}  # fmt: skip
"""By the words of a command after ``paceline``."""


def guide_of(command: click.Command) -> Guide:
    """The guide of a command, which is found by its module: a command may be called outside of its group."""
    group = getattr(command.callback, "__module__", "").rpartition(".")[2]
    return GUIDES[group] if group in GUIDES else GUIDES[f"{group} {command.name}"]


class Helped(click.Command):
    """A command whose help has groups of options, examples and exit codes."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each group of options, and then those without one."""
        titles = guide_of(self).groups
        title_of = {name: title for title, names in titles.items() for name in names.split()}
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in (*titles, "Help")}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                name = max(param.opts, key=len).removeprefix("--")
                groups[title_of.get(name, "Help")].append(record)
        for title, rows in groups.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the remarks, the examples and the exit codes."""
        super().format_epilog(ctx, formatter)
        guide = guide_of(self)
        with formatter.section("Examples"):
            formatter.write("".join(f"  {example}\n" for example in guide.examples))
        formatter.write(f"\n{wrap_text(f'Exit codes: {guide.exits}', formatter.width)}\n")


class HelpedGroup(click.Group):
    """A group of such commands, which suggests a name for a misspelled one."""

    command_class = Helped

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that ``args`` begin with.

        Raises:
            click.UsageError: There is none of that name.
        """
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing and not args[0].startswith("-"):
            raise click.UsageError(f"no such command: {args[0]!r}{did_you_mean(args[0], self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)
