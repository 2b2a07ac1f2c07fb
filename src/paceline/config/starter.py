"""A configuration to begin with, as TOML: of the environment, or of settings that another program's file has become."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from paceline.providers.registry import PROVIDERS

EDITORS: Final = "# In editors: `paceline config --schema > paceline.schema.json`, and the line `#:schema ./paceline.schema.json` above this one."

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def providers_of(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """The providers whose key or address is in the environment, each with the names of these variables."""
    found: dict[str, list[str]] = {}
    for name, entry in PROVIDERS.items():
        variables = [one for one in (entry.key_env, entry.base_url_env) if environ.get(one, "").strip()]
        if variables:
            found[name] = variables
    return found


def of_environment(environ: Mapping[str, str]) -> str:
    """A commented configuration for the providers of the environment; no value of it is in the text."""
    found = providers_of(environ)
    known = [f"# found: {name} ({', '.join(variables)})" for name, variables in found.items()]
    name, mark = (next(iter(found)), "") if len(found) == 1 else ("openai", "# ")
    lines = [
        EDITORS,
        "# `paceline config` prints every setting and where it comes from, `paceline config --help` explains all.",
        "",
        *(known or ["# No key of a provider is in the environment: set one, e.g. OPENAI_API_KEY."]),
        "",
        f'{mark}provider = "{name}"   # whose tier is given, and of models whose name does not show it',
        "# tier = 2                     # `paceline limits` names the tiers of a provider",
        '# store = "sqlite:quotas.db"   # for several processes on this machine; redis://HOST for several machines',
        "# usable = 0.85                # the share of every limit that is used",
        "",
        "[limits]   # instead of the published ones, which responses correct; `paceline check MODEL` measures yours",
        *(f'# "{name}/*" = ["500 requests/min", "200k tokens/min"]' for name in found),
        "",
        "[concurrency]   # requests in flight at a provider; without an entry there is no bound",
        *(f"# {name} = 50" for name in found),
    ]
    return "\n".join(lines) + "\n"


def of_settings(settings: Mapping[str, Any], source: str, lost: Sequence[str], variables: Iterable[str] = ()) -> str:
    """Settings as TOML, with what was lost as comments.

    Args:
        settings: Tables and values.
        source: The file that they come from.
        lost: What differs or has no counterpart.
        variables: The variables of the keys that its servers need.
    """
    lines = [EDITORS, f"# Converted by `paceline init --from {source}`.", ""]
    if needed := ", ".join(variables):
        lines[2:2] = [f"# The keys that it needs, in variables or files (NAME_FILE): {needed}"]
    lines += toml(settings)
    lines += ["", "# What differs, or has no counterpart:", *(f"# * {one}" for one in lost)] if lost else []
    return "\n".join(lines) + "\n"


def toml(settings: Mapping[str, Any]) -> Iterator[str]:
    """The lines of settings: values, and then tables of values."""
    plain = {name: value for name, value in settings.items() if not isinstance(value, Mapping)}
    yield from (f"{_key(name)} = {_value(value)}" for name, value in plain.items())
    for name, table in settings.items():
        if isinstance(table, Mapping):
            yield from ("", f"[{_key(name)}]", *(f"{_key(entry)} = {_value(value)}" for entry, value in table.items()))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        entries = ", ".join(f"{_key(name)} = {_value(own)}" for name, own in value.items())
        return f"{{ {entries} }}" if entries else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        return f"{int(value):_}"
    return json.dumps(value)
