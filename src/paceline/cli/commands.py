"""The table of commands, and what the command line says without the packages of an extra: the standard library alone."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final, NamedTuple

from paceline.core.hints import did_you_mean, needs

VERSION: Final = str(sys.modules["paceline"].__version__)  # a checkout has no metadata


class Command(NamedTuple):
    """A command.

    Attributes:
        about: What it does.
        extra: The extra with the packages that it imports.
    """

    about: str
    extra: str = "cli"


COMMANDS: Final = {
    "run": Command("send a file of requests and write a file of answers"),
    "plan": Command("say how long work will take, what binds it and what it costs"),
    "replay": Command("show recorded traffic under other limits"),
    "merge": Command("join the outputs of shards, and check that none is missing"),
    "exec": Command("run a program unchanged, with its requests paced"),
    "serve": Command("serve the APIs of providers, with a queue instead of 429s", "gateway"),
    "keys": Command("make and revoke the keys of the gateway's clients"),
    "usage": Command("show what keys, teams and users of a gateway have used"),
    "init": Command("write a first configuration, or convert a litellm proxy's"),
    "check": Command("ask a provider for the limits of a key, and compare"),
    "status": Command("show the pools of a running program, or of a store"),
    "top": Command("show the pools of a gateway or a program, live", "top"),
    "resume": Command("end the stop of a pool of a gateway"),
    "config": Command("show the settings in effect, and where each comes from"),
    "doctor": Command("print one page for a bug report, without secrets"),
    "limits": Command("show the limits in use, check and update facts of providers"),
    "emulate": Command("serve an API that limits like a provider", "emulator"),
    "demo": Command("send one batch with and without paceline, live", "demo"),
}

_CLI: Final = ("click", "rich", "httpx2", "aiohttp", "pydantic", "yaml")
MODULES: Final = {
    "cli": _CLI,
    "gateway": (*_CLI, "uvicorn", "httptools", "aiohappyeyeballs"),
    "top": (*_CLI, "textual"),
    "emulator": ("click", "uvicorn", "httptools"),
    "demo": (*_CLI, "uvicorn", "httptools", "openai"),
}
"""The modules without which no command of an extra starts."""

HELP: Final = """Usage: paceline [OPTIONS] COMMAND [ARGS]...

  Send many requests to an LLM API at the full speed that the provider allows.

Options:
  --version   Show the version and exit; with --verbose the day of the facts about providers, too.
  -h, --help  Show this message and exit.

Commands, each with the extra that it needs:
{commands}

To install an extra: pip install 'paceline[cli]'. The extra 'all' brings all.
To see the options of a command: paceline COMMAND --help
"""


def help_text() -> str:
    """What ``paceline --help`` prints."""
    return HELP.format(commands="\n".join(f"  {name:9}{c.about:61}{c.extra}" for name, c in COMMANDS.items()))


def version_text(*, verbose: bool) -> str:
    """What ``paceline --version`` prints."""
    text = f"paceline, version {VERSION}\n"
    if not verbose:
        return text
    from paceline.facts import standing

    known = standing()
    lines = [
        f"facts about providers: of {known['day']}{', installed' if known['installed'] else ''}",
        *known["places"],
        *filter(None, [known["remark"]]),
    ]
    return text + "".join(f"{line}\n" for line in lines)


def objection(name: str) -> str | None:
    """Why the command ``name`` can't run: there is none, or its extra is not installed. ``None`` if it can, and for an option."""
    if name.startswith("-"):
        return None
    if name not in COMMANDS:
        return f"no such command: {name!r}{did_you_mean(name, COMMANDS) or '.'} `paceline --help` lists the commands"
    about, extra = COMMANDS[name]
    if all(map(_present, MODULES[extra])):
        return None
    return f"`paceline {name}` ({about}) {needs(extra)}"


def _present(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a module without a spec, as tests make them
        return False


def plain(option: str) -> str:
    """The answer to the first argument where click is missing.

    Raises:
        ValueError: There is no such option.
    """
    if option not in ("-h", "--help", "--version"):
        raise ValueError(f"no such option: {option!r}. `paceline --help` lists the options")
    return version_text(verbose="--verbose" in sys.argv) if option == "--version" else help_text()
