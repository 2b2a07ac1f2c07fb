"""The models that a body names, in any field of any API.

Beside ``model``, APIs have fields that name what answers, or works for it, and is billed. They are told by their names, which are alike,
and not by their places, which are many and change: all is looked at that is not said to a model. So a new field is found, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice, repeat
from typing import Any, Final

from paceline.providers.base import NO_OTHERS, Others
from paceline.providers.forms import table
from paceline.providers.parse import UNKNOWN
from paceline.responses.values import as_mapping

NAME_MAX: Final = 200
"""The longest name of a field that is looked at, in characters."""

_FIELDS: Final = table("requests")["naming"]
_NAMING = re.compile(f"{_FIELDS['ending']}|{_FIELDS['whole']}", re.DOTALL)
NAMING_HEADER = re.compile(_FIELDS["ending"])
_SAID, _SCHEMAS = frozenset(_FIELDS["said"]), frozenset(_FIELDS["schemas"])


def named(body: Any) -> Iterator[str]:
    """What the fields of a body name."""
    for fields in _looked_at(body):
        yield from _chosen_by_server(fields)
        for name in fields:
            if is_naming(plain(name)):
                yield from texts_in(fields[name])


def rename(body: Any, models: Mapping[str, str]) -> bool:
    """Put a server's own names of models in the place of other names, wherever a body has them; return whether it has any.

    Agents, presets and the like keep theirs: they are no models, and may be called as one is.
    """
    found = False
    for fields in _looked_at(body):
        for name in filter(_is_of_models, fields):
            for holder, place in _places(fields, name):
                if (own := _own_name(holder[place], models)) is not None:
                    holder[place] = own
                    found = True
    return found


def _is_of_models(name: str) -> bool:
    return NAMING_HEADER.fullmatch(plain(name)) is not None


def _own_name(name: str, models: Mapping[str, str]) -> str | None:
    """A server's own name of a model, which Gemini's bodies have behind ``models/``; ``None`` if there is none."""
    model = name.removeprefix(_COLLECTION)
    if name in models or model not in models:
        return models.get(name)
    return _COLLECTION + models[model].removeprefix(_COLLECTION)


_COLLECTION: Final = "models/"


def _looked_at(body: Any) -> Iterator[dict[str, Any]]:
    """The objects in a body that are not said to a model."""
    stack = [(body, False)]
    while stack:
        value, said = stack.pop()
        if isinstance(value, list):
            stack += zip(value, repeat(said))
        elif isinstance(value, dict) and said:
            stack += [(one, False) for name, one in value.items() if plain(name) == "tools"]
        elif isinstance(value, dict):
            yield value
            schemas = _SCHEMAS | {"parameters"} if value is not body and _is_function(value) else _SCHEMAS
            for name, one in value.items():
                bare = plain(name)
                if is_naming(bare) or bare not in schemas:
                    stack.append((one, bare in _SAID))


def _is_function(value: dict[str, Any]) -> bool:
    return isinstance(value.get("name"), str) and value.get("type", "function") == "function"


def _chosen_by_server(tool: dict[str, Any]) -> Iterator[str]:
    """The name of a tool or a plugin for which the server chooses a model."""
    for name in (tool.get("type"), tool.get("id")):
        settings = _FIELDS["own_models"].get(name) if isinstance(name, str) else None
        if settings is not None:
            given = {**as_mapping(tool.get("parameters")), **tool}
            if not all(map(given.get, settings)):
                yield str(name)


def texts_in(value: Any) -> Iterator[str]:
    """The texts in a value, without those in objects that have fields which name models."""
    return (holder[place] for holder, place in _places([value], 0))


def _places(holder: Any, place: Any) -> Iterator[tuple[Any, Any]]:
    """Where those texts are, of a value in a list or an object."""
    stack = [(holder, place)]
    while stack:
        holder, place = stack.pop()
        value = holder[place]
        if isinstance(value, str):
            if value:
                yield holder, place
        elif isinstance(value, list):
            stack += zip(repeat(value), range(len(value)))
        elif isinstance(value, dict) and not any(is_naming(plain(name)) for name in value):
            stack += [(value, name) for name in value if name != "type"]


@lru_cache(maxsize=4_096)
def plain(name: str) -> str:
    """A name without case and marks; servers in Go compare names so."""
    return "".join(filter(str.isalnum, name[:NAME_MAX].casefold()))


@lru_cache(maxsize=4_096)
def is_naming(plain_name: str) -> bool:
    """Whether a field with this name, as :func:`plain` has it, names a model."""
    return _NAMING.fullmatch(plain_name) is not None


OTHERS_MAX: Final = 50
"""The models beside the first that are looked at. Of more, one that is not known stands for the rest."""


def others_of(body: Mapping[str, Any], model: str) -> Others:
    """The models that a body names beside ``model``.

    In its place: what a field at the top names (``models``, ``fallbacks``). Beside it: the models of tools and plugins.
    """
    fields = dict(body)
    fields.pop("model", None)
    names = [*islice(named(fields), OTHERS_MAX + 1)]
    if not names:
        return NO_OTHERS
    found = dict.fromkeys(name[:NAME_MAX] for name in names)
    found.pop(model, None)
    deep = {name: one for name, one in fields.items() if not is_naming(plain(name))}
    others = (*found,) if len(found) <= OTHERS_MAX else (*list(found)[:OTHERS_MAX], UNKNOWN)
    return Others(others, any(name != model for name in named(deep)))
