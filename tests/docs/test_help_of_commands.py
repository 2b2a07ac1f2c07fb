"""The help of every command: a short first line, options in groups, two examples that work as printed, exit codes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from test_commands_and_settings import parse

import paceline
from paceline.batch.results import encode_answer
from paceline.cli.app import app
from paceline.cli.guides import GUIDES


def below(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Each command that is no group, by its words after ``paceline``."""
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from below(inner, click.Context(inner, info_name=name, parent=ctx))
    else:
        yield ctx.command_path.removeprefix("paceline "), command


COMMANDS = dict(below(app, click.Context(app, info_name="paceline")))
EXAMPLES = [example for guide in GUIDES.values() for example in guide.examples]
ALONE = {"plan", "replay", "merge", "keys", "init", "config", "limits"}
WITHOUT_A_SERVER = [
    *(one for one in EXAMPLES if one.split()[1] in ALONE and "update" not in one),  # to a newer data set
    *(one for one in EXAMPLES if "emulate --scenarios" in one or "status --store sqlite:" in one),
]


def run(words: list[str]) -> tuple[int, str]:
    done = CliRunner().invoke(app, words, prog_name="paceline")
    return done.exit_code, done.output


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_has_all_its_parts(name):
    command, guide = COMMANDS[name], GUIDES[name]
    code, text = run([*name.split(), "--help"])
    first = text.split("\n\n")[1].strip()
    assert code == 0
    assert len(first.split()) <= 10
    assert first.endswith(".")
    assert len(guide.examples) == 2
    assert all(f"  {example}\n" in text for example in guide.examples)
    assert "Exit codes: " in text
    shown = [f"--{option}" for options in guide.groups.values() for option in options.split()]
    assert len(shown) == len(set(shown))
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            assert set(shown) & {*param.opts, *param.secondary_opts}, f"{param.opts} is in no group"
    assert all(title in text for title, options in guide.groups.items() if set(options.split()) & known(command))
    alone = CliRunner().invoke(command, ["--help"])  # outside of its group
    assert (alone.exit_code, alone.output.partition("Examples:")[2]) == (0, text.partition("Examples:")[2])


def known(command: click.Command) -> set[str]:
    return {name.removeprefix("--") for param in command.params for name in param.opts}


def test_every_command_has_its_guide():
    assert GUIDES.keys() == COMMANDS.keys()


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_right(example):
    parse(shlex.split(example.partition(" > ")[0])[1:])
    assert len(example) <= 92


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, and the one of every setting."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


def prepare(example: str, tmp_path: Path) -> None:
    """Make the files that ``example`` names."""
    (tmp_path / "prompts.csv").write_text("text\nHello\n", "utf-8")
    request = {"method": "POST", "url": "/v1/responses", "body": {"model": "gpt-6-luna", "input": "Hi"}}
    lines = [json.dumps(request | {"custom_id": str(number)}) for number in (1, 2)]
    (tmp_path / "requests.jsonl").write_text("\n".join(lines), "utf-8")
    for number in (1, 2):
        answer = encode_answer(str(number), {"status_code": 200, "request_id": "r", "body": {"text": "Yes."}}, None)
        (tmp_path / f"shard{number}.jsonl").write_bytes(answer)
    (tmp_path / "facts.toml").write_text('day = "2026-11-28"\n', "utf-8")
    if "traffic" in example:
        told = paceline.Limiter({"openai/gpt-6-luna": "600 requests/min"}, traffic_log="traffic.jsonl")
        told.acquire("openai/gpt-6-luna", input_tokens=5, output_tokens=5).wait().settle()
    if "quotas" in example:
        with paceline.Limiter({"jobs": "5 requests/min"}, store="sqlite:quotas.db") as shared:
            shared.acquire("jobs").wait().settle()
    if "check paceline.toml" in example:
        run(["init"])
    if example.startswith("paceline keys") and "add" not in example:
        run(["keys", "add", "alice"])
        run(["keys", "add", "alice", "--keys", "keys.json"])


@pytest.mark.parametrize("example", WITHOUT_A_SERVER)
def test_an_example_works_as_printed(folder, example):
    prepare(example, folder)
    code, output = run(shlex.split(example.partition(" > ")[0])[1:])
    assert code == 0, output


MISUSED = [
    ("run --modle m in", "paceline run: no such option: '--modle'; did you mean '--mode'? `paceline run --help` lists the options"),
    ("run", "paceline run: missing argument 'INPUT'. `paceline run --help` lists the options"),
    ("keys ad", "paceline keys: no such command: 'ad'; did you mean 'add'? `paceline keys --help` lists the commands"),
    ("rnu", "paceline: no such command: 'rnu'; did you mean 'run'? `paceline --help` lists the commands"),
    ("serve --workers no", "paceline serve: invalid value for '--workers': 'no' is not a valid integer range. `paceline serve --help` lists the options"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), MISUSED)
def test_a_wrong_command_line_is_answered_in_one_manner(words, said):
    assert run(words.split()) == (2, f"{said}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_prints_another_manner(name):
    code, output = run([*name.split(), "--not-an-option"])
    if name != "exec":
        assert (code, output.count("\n")) == (2, 1)
        assert output.startswith(f"paceline {name}: no such option: '--not-an-option'")
