"""The names that a server of the settings has for models: where a request names one, and the request with the server's own name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from paceline.http.describe import model_named
from paceline.providers.naming import rename
from paceline.providers.parse import UNKNOWN

_IN_PATH: Final = re.compile(r"(?<=/)((?:models|model|deployments|engines)/)([^/:]+)")
"""The name in the paths of Gemini, Vertex, Bedrock and Azure, and of a look at one model."""

_IN_FORM: Final = re.compile(
    rb'(\r\ncontent-disposition: ?form-data; ?name="?model"?[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n)([^\r\n]{1,200})(?=\r\n--)',
    re.IGNORECASE,
)
"""The name in a form: of a recording or a picture."""


def model_asked(provider: Any, path: str, named: Mapping[str, Any], model: str) -> str:
    """The model that a request asks for, by the client's name.

    Args:
        provider: The provider.
        path: The path at the provider, decoded, as the client has sent it.
        named: The fields of the body.
        model: The model by which the request is metered.
    """
    asked, in_path = named.get("model"), model_named(provider, path, "")
    if asked and in_path == UNKNOWN:
        return str(asked)
    return model if in_path in (None, UNKNOWN) else str(in_path)


def name_asked(path: str, named: Mapping[str, Any]) -> str:
    """The name of a model that decides on the server: in the path, decoded, or else in the body; empty for none."""
    found = _IN_PATH.search(path)
    return found[2] if found else str(named.get("model") or "")


def renamed(body: bytes, asked: Mapping[str, Any], models: Mapping[str, str]) -> bytes | None:
    """The body with a server's own names of models; ``None`` where it has no other.

    Args:
        body: The body, without its content encoding.
        asked: Its fields.
        models: The server's names, by the clients' names.
    """
    if not models:
        return None
    if body.startswith(b"--"):
        name = models.get(str(asked.get("model")))
        return None if name is None else _IN_FORM.sub(lambda found: found[1] + name.encode(), body, count=1)
    own = json.loads(body) if asked else {}
    return json.dumps(own).encode() if rename(own, models) else None


def renamed_path(path: str, models: Mapping[str, str]) -> str:
    """The undecoded path with a server's own name of the model."""
    if not models:
        return path

    def own(found: re.Match[str]) -> str:
        name = models.get(unquote(found[2]))
        return found[0] if name is None else found[1] + quote(name, safe="")

    return _IN_PATH.sub(own, path)
