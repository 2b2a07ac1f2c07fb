"""Docstrings name other objects as Sphinx does, :class:`~a.b.C`; the site shows `C`."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|meth|func|data|mod|attr|exc):`(?:([^`<]+?) <[^`>]+>|~[\w.]*?(\w+)|([\w.]+))`")


class Roles(griffe.Extension):
    """Turns the roles of docstrings into code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object that has been read."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(lambda found: f"`{found[1] or found[2] or found[3]}`", obj.docstring.value)
