"""What is public: names, signatures, commands with their options, settings. The record is ``tests/public.txt``.

``python -m tests.public`` writes the record again. Its difference in a commit is what a release note has to say.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import paceline
from paceline.cli.app import app
from paceline.config.schema import KEYS, SettingsTable
from paceline.config.settings import reference

RECORD = Path(__file__).with_suffix(".txt")
PAGE = RECORD.parents[1] / "docs" / "config.md"
MODULES = ("paceline.testing", "paceline.stores", "paceline.planner.forecast", "paceline.providers.base")
"""Modules whose names are public, too."""
GIVEN = ("Acquisition", "Permit")
"""Classes whose objects users get and never make: the arguments of their constructors are internal."""


def signature(value: Any) -> str:
    """Parameters and result as they are written; nothing for an enumeration and for what users don't make, and where a class is made by its base alone."""
    if inspect.isclass(value) and (issubclass(value, Enum) or value.__name__ in GIVEN):
        return ""
    try:
        return re.sub(r"<[\w.]+\.(\w+) object at \w+>", r"\1()", str(inspect.signature(value)))
    except ValueError:
        return ""


def members(name: str, value: Any) -> Iterator[str]:
    """A line for ``value`` and one for each public member that it or a base of paceline's defines."""
    yield f"{name}{signature(value)}" if callable(value) else name
    bases = [base for base in getattr(value, "__mro__", ()) if base.__module__.startswith("paceline")]
    found: dict[str, str] = {}
    for base in bases:
        annotated = inspect.get_annotations(base) | {
            one.name: one.type for one in vars(base).get("__dataclass_fields__", {}).values()
        }  # as written
        for member, what in {**dict.fromkeys(annotated), **vars(base)}.items():
            function = getattr(what, "__func__", what)
            shown = signature(function) if inspect.isfunction(function) else ""
            found.setdefault(member, f": {annotated[member]}" if member in annotated else shown)
    yield from (f"{name}.{member}{shown}" for member, shown in sorted(found.items()) if not member.startswith("_"))


def options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """A line for each argument and option of a command and of those below it."""
    for param in command.params:
        words = ", ".join((*param.opts, *param.secondary_opts)) if isinstance(param, click.Option) else param.name
        yield f"{ctx.command_path} {words} ({param.type.name})"
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield f"{ctx.command_path} {name}"
            yield from options(below, click.Context(below, info_name=name, parent=ctx))


def own(module: Any) -> list[str]:
    """The public classes and functions that ``module`` defines."""
    return [name for name, value in vars(module).items() if not name.startswith("_") and is_from(module, value)]


def is_from(module: Any, value: object) -> bool:
    """Whether ``value`` is a class or function of ``module``, and nothing that it imports."""
    return (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module.__name__


def settings() -> Iterator[str]:
    """A line for each setting of a file, and for the keys of its tables."""
    for name in SettingsTable.__annotations__:
        yield f"{name} =" if name not in KEYS else f"[{name}] " + " ".join(sorted(KEYS[name].__annotations__))


def public() -> str:
    """The whole record."""
    lines = ["# names"]
    for name in paceline.__all__:
        lines += members(f"paceline.{name}", getattr(paceline, name))
    for module in map(import_module, MODULES):
        for name in sorted(getattr(module, "__all__", None) or own(module)):
            lines += members(f"{module.__name__}.{name}", getattr(module, name))
    lines += ["", "# commands", *options(app, click.Context(app, info_name="paceline"))]
    lines += ["", "# settings of paceline.toml", *settings()]
    return "\n".join(lines).replace("'", "") + "\n"


def with_settings(page: str) -> str:
    """docs/config.md with the table of all settings, as they are declared."""
    before, start, rest = page.partition("<!-- settings, by python -m tests.public -->\n")
    _, end, after = rest.partition("<!-- end of settings -->\n")
    told = reference(bounds=False)
    rows = [f"| `{name}` | {default} | {text.replace('|', chr(92) + '|')} |" for name, default, text in told]
    return "\n".join([before + start + "| setting | default | what it does |", "|---|---|---|", *rows, end + after])


if __name__ == "__main__":
    RECORD.write_text(public(), "utf-8")
    PAGE.write_text(with_settings(PAGE.read_text("utf-8")), "utf-8")
