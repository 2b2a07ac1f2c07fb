"""Docstrings name other objects as Sphinx does, :class:`~a.b.C`; the site shows `C`."""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

import paceline

ROLE = re.compile(r":(?:class|meth|func|data|mod|attr|exc):`(?:([^`<]+?) <[^`>]+>|~[\w.]*?(\w+)|([\w.]+))`")
EXAMPLE = re.compile(r"^Example:\n((?: {4}.*\n?|\n)+)", re.MULTILINE)


def shown(text: str) -> str:
    """A docstring with its roles as code, and its example as a block of Python."""
    text = ROLE.sub(lambda found: f"`{found[1] or found[2] or found[3]}`", text)
    return EXAMPLE.sub(lambda found: f"Example:\n    ```python\n{found[1].rstrip()}\n    ```\n", text)


def _argument(one: inspect.Parameter) -> griffe.Parameter:
    """A parameter as it is at run time."""
    default = re.sub(r"<[\w.]+\.(\w+) object at \w+>", r"\1()", repr(one.default))
    return griffe.Parameter(
        one.name, annotation=str(one.annotation), kind=griffe.ParameterKind(one.kind.description), default=default
    )


class Roles(griffe.Extension):
    """Turns the roles of docstrings into code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object that has been read."""
        limiter = "paceline.limiter.limiter.Limiter"  # its arguments are declared elsewhere
        if obj.path == limiter and obj.docstring is not None:
            obj.docstring.value = inspect.getdoc(paceline.Limiter) or ""
        if obj.path == f"{limiter}.__init__" and isinstance(obj, griffe.Function):
            obj.parameters = griffe.Parameters(*map(_argument, inspect.signature(paceline.Limiter).parameters.values()))
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)
