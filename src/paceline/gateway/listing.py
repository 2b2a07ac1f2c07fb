"""The list of models as a client gets it: those alone that its key may use, and the names that the gateway has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from paceline.gateway.errors import RequestError, json_reply
from paceline.gateway.incoming import Incoming
from paceline.gateway.keys import ClientKey, lists, model_listed
from paceline.gateway.relay import ClientReply
from paceline.gateway.upstreams import Destination, Routes
from paceline.pacing.answers import UNREADABLE, cause_of_status
from paceline.providers.refusals import refuses_key
from paceline.responses.errors import error_of
from paceline.responses.values import decode

LIST_MAX: Final = 8 * 2**20
"""The bytes of a list: a router with a thousand models sends one MB."""

_NAMES: Final = ("id", "name", "model")
"""The fields with the name of a model: OpenAI's and Anthropic's, Gemini's and Ollama's."""


def check_listing(request: Incoming) -> None:
    """Refuse a look at one model that the key may not use, as if there were none.

    Raises:
        RequestError: It is refused.
    """
    model = model_listed(request.head.method, request.decoded_path)
    if model and not _may_see(request.key, request.place, model):
        raise RequestError(404, "model", f"there is no model {model!r} for this key")


async def as_listed(request: Incoming, reply: ClientReply) -> ClientReply:
    """The answer to a request for the list of models; any other answer as it is.

    Raises:
        RequestError: It cannot be read, and the key may see a part of it only.
    """
    path = request.decoded_path
    named = {alias: own for one in request.place.members for alias, own in one.models.items()}
    bound = request.key is not None and bool(request.key.models)
    asked = request.head.method == "GET" and lists("GET", path) and not model_listed("GET", path)
    if not (asked and reply.is_good and (bound or named)):
        return reply
    body = await reply.plain(LIST_MAX)
    found = _shown(
        decode(body) if len(body) <= LIST_MAX else None, partial(_may_see, request.key, request.place), named
    )
    if found is not None:
        made = json_reply(reply.status, found)
        made.upstream = reply.upstream
        reply.close()
        return made
    if bound:
        reply.close()
        raise RequestError(502, "list", "the server's list of models cannot be read, and this key may see a part of it")
    return reply


def own_list(request: Incoming, routes: Routes) -> ClientReply:
    """The names that the one address has, those that the key may use; or one of them, if it is asked for.

    Raises:
        RequestError: There is none of that name.
    """
    model = model_listed(request.head.method, request.decoded_path)
    rows = [
        {"id": name, "object": "model", "created": 0, "owned_by": place.target.partition("/")[0]}
        for name, place in ((name, routes.find(name)[0]) for name in routes)
        if _may_see(request.key, place, name)
    ]
    if not model:
        return json_reply(200, {"object": "list", "data": rows})
    if (row := _row(rows, model)) is None:
        raise RequestError(404, "model", f"there is no model {model!r} for this key")
    return json_reply(200, row)


def _may_see(key: ClientKey | None, place: Destination, name: str) -> bool:
    """Whether ``key`` may use a model at ``place``, by its name."""
    server = place.members[0].provider.name if place.choice is None else place.name
    return key is None or any(key.allows(server, one) for one in (name, name.removeprefix("models/")))


async def cause_of(request: Incoming, reply: ClientReply) -> str:
    """What the answer to a request that costs nothing is, as :class:`~paceline.pacing.answers.Answers` counts it."""
    headers = reply.texts
    if reply.status >= 400:
        body, unread = await reply.peek_error()
        refusal = None if unread else request.place.members[0].provider.refusal(reply.status, headers, body)
        if refusal is not None:
            return refusal.kind.value
        if refuses_key(reply.status, error_of(body)[0]):
            return "key"
    is_page = "html" in headers.get("content-type", "").lower()
    if reply.is_good and not reply.encoding and request.head.method == "GET" and lists("GET", request.decoded_path):
        is_page = is_page or not (await reply.peek(1)).lstrip().startswith((b"{", b"["))
    return UNREADABLE if reply.is_good and is_page else cause_of_status(reply.status)


def _shown(value: Any, keeps: Callable[[str], bool], named: Mapping[str, str]) -> Any:
    """A list of models, in the form in which it came; ``None``: it has no known form."""
    field = next(
        (one for one in ("data", "models") if isinstance(value, dict) and isinstance(value.get(one), list)), ""
    )
    rows = value if isinstance(value, list) else value[field] if field else None
    if rows is None or not all(isinstance(row, dict) and _name(row) for row in rows):
        return None
    rows = rows + [_as(alias, _row(rows, own)) for alias, own in named.items() if _row(rows, alias) is None]
    kept = [row for row in rows if keeps(_name(row))]
    if not field:
        return kept
    ends = {name: _name(kept[at]) if kept else None for name, at in (("first_id", 0), ("last_id", -1)) if name in value}
    return {**value, field: kept, **ends}


def _name(row: Mapping[str, Any]) -> str:
    return next((row[name] for name in _NAMES if isinstance(row.get(name), str)), "")


def _row(rows: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((row for row in rows if _name(row).removeprefix("models/") == name), None)


def _as(alias: str, row: Mapping[str, Any] | None) -> dict[str, Any]:
    """The row of a model under another name; ``None``: the server lists it not, and knows it all the same."""
    if row is None:
        return {"id": alias, "object": "model", "created": 0, "owned_by": "paceline"}
    return {field: alias if field in _NAMES and value == _name(row) else value for field, value in row.items()}
