"""Whether the JSON value of a response, or of an event of a stream, is a result or an error; and what the error is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from paceline.responses.values import MAPPING, as_mapping, as_text, at, decode, items_of, table_beside

_TABLE: Final = table_beside(__file__, "errors")
_FIELDS: Final = _TABLE["fields"]
_SIGNS: Final = frozenset(_FIELDS["signs"])


def error_in(payload: Any) -> Mapping[str, Any] | None:
    """The error in the JSON value of an answer, or of an event, whose status says nothing; ``None`` for no error.

    Takes the forms of ``_FORMS``, also in a list.
    """
    if isinstance(payload, list):
        payload = payload[0] if payload else None
    if not isinstance(payload, MAPPING):
        return None
    if _SIGNS.isdisjoint(payload) and payload.get("type") != "error":  # nearly all
        return _error_of_choice(payload)
    found = (form(payload) for form in _FORMS)
    return next((error or None for error in found if error is not None), None)


def _plain(payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    response = as_mapping(payload.get("response"))
    for holder in (payload, response, as_mapping(response.get("status_details"))):
        error = holder.get("error")
        if isinstance(error, Mapping) and error:
            return error
        if isinstance(error, str) and error:
            if "id" in payload and payload.get("status") in _FIELDS["outcomes"]:
                return {}  # a job that has failed: the model's error
            beside = {name: payload[name] for name in ("code", "type", "status") if name in payload}
            return {"message": ": ".join(filter(None, (error, as_text(payload.get("message")))))} | beside
    return None


def _error_of_choice(payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    choices = payload.get("choices")
    for one in choices if isinstance(choices, list) else ():
        if isinstance(one, MAPPING) and (error := one.get("error")) and isinstance(error, MAPPING):
            return error
    return None


def _coded(row: Mapping[str, Any], payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """An object whose code says that there is an error, by a row of ``errors.toml``."""
    holder = as_mapping(at(payload, row["at"])) if "at" in row else payload
    code, texts = holder.get(row["code"]), [holder.get(name) for name in row.get("messages", ())]
    if as_text(code) in _FIELDS["fine"]:
        return None
    said = next(filter(None, texts), texts[-1] if texts else None)
    return {"code": row["prefix"] + as_text(code) if "prefix" in row else code, "message": said} if texts else holder


def _first_of_errors(payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    errors = items_of(payload.get("errors"), 1) if payload.get("success") is not True else []
    return errors[0] or None if errors else None


def _bare(payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    said = next((payload[name] for name in ("message", "msg", "errorMsg") if isinstance(payload.get(name), str)), None)
    answers = any(payload.get(name) for name in ("data", "result", "results", "choices", "output", "content"))
    is_error = said is not None and as_text(payload.get("code")).lower() not in _FIELDS["fine"] and not answers
    return {**payload, "message": said} if is_error else None


_FORMS: Final[tuple[Callable[[Mapping[str, Any]], Mapping[str, Any] | None], ...]] = (
    _plain,  # {"error": {...}}; {"error": "..."} with a code beside; both also inside ``response`` (and of Realtime's in its details)
    _error_of_choice,  # {"choices": [{"error": {...}}]}
    lambda payload: payload if payload.get("type") == "error" or as_text(payload.get("__type")) else None,  # AWS
    *(partial(_coded, row) for row in _TABLE["forms"]),
    _first_of_errors,  # Cloudflare
    _bare,  # a ``code`` with a message, where there is no more
)
"""The forms of errors; an empty one is no error, and ends the search."""

_STATUSES: Final = {name.lower(): int(status) for status, names in _TABLE["statuses"].items() for name in names}


def stated_status(error: Mapping[str, Any]) -> int | None:
    """The HTTP status that an error states as a number, or by its type; ``None`` if it states none."""
    fields = [as_text(error.get(name)) for name in ("code", "status", "status_code", "http_code", "type", "__type")]
    for text in fields:
        if len(text) == 3 and text.isascii() and text.isdigit() and 400 <= int(text) <= 599:
            return int(text)
    return next((_STATUSES[text.lower()] for text in fields if text.lower() in _STATUSES), None)


def error_of(body: bytes) -> tuple[Mapping[str, Any], str]:
    """The error object of an answer's body, and the text that may contain numbers.

    Takes ``{"error": {...}}``, ``{"error": "..."}``, the object itself, and any of them in a list. A body that is not
    JSON yields an empty object and its own first 4 096 characters.
    """
    payload = decode(body[:1_000_000])
    if isinstance(payload, list) and payload:
        payload = payload[0]
    if not isinstance(payload, Mapping):
        return {}, body[:4_096].decode("utf-8", "replace")
    named = payload.get("error")
    error = named if isinstance(named, Mapping) else error_in(payload) or payload
    return error, message_of(error)


def message_of(error: Mapping[str, Any]) -> str:
    """The message of an error, in any of the places where providers put it; the first 4,096 characters."""
    for holder in (error, as_mapping(error.get("detail"))):
        for name in filter(holder.__contains__, _FIELDS["messages"]):
            if text := as_text(holder[name]):
                return text[:4_096]
    return ""


def blocks(payload: Any) -> bool:
    """Whether an error of the provider says that its filter has blocked the prompt or the answer."""
    error = error_in(payload) or {}
    inner = as_mapping(error.get("innererror"))
    codes = {str(one.get(name)).lower() for one in (error, inner) for name in ("code", "type")}
    said = as_text(error.get("message")).lower()
    known = _TABLE["blocked"]
    return not codes.isdisjoint(known["codes"]) or any(text in said for text in known["texts"])


_ANSWERS: Final = table_beside(__file__, "answers")
SDKS: Final = frozenset(_ANSWERS["sdks"])
"""The fields of the answers of APIs and of their SDKs, which no usage object has."""


def has_result(payload: Any, *, strict: bool = True) -> bool:
    """Whether a JSON value, which is no error, can be the answer of an LLM's API; ``strict``: not without any known field of a result."""
    if isinstance(payload, list):
        return bool(payload)
    if not isinstance(payload, MAPPING):
        return False
    if "choices" in payload or "candidates" in payload:  # never empty in the answer of an API that has them
        return any(map(payload.get, ("choices", "candidates", "promptFeedback", "prompt_feedback")))
    if any(payload.get(name) is not None for name in _ANSWERS["results"]) or as_mapping(payload.get("message")):
        return True  # a message that is a text may say anything
    if "id" in payload and isinstance(payload.get("status"), str):  # a job, or an answer in the background
        return True
    return not strict or any(as_mapping(payload.get(name)) for name in ("usage", "usageMetadata", "meta"))


def is_result(payload: Any) -> bool:
    """Whether the JSON value of an answer with status 200, of any provider, is a result."""
    error = error_in(payload)
    return (error is None or has_content(payload)) and has_result(payload, strict=False)


def has_content(payload: Any) -> bool:
    """Whether an answer has a text or a call of a tool, so that it is a result, with an error beside it or not."""
    found = as_mapping(payload)
    if any(items_of(found.get(name)) for name in ("content", "output", "data", "embeddings")):
        return True
    parts = [*items_of(found.get("choices")), *items_of(found.get("candidates"))]
    return any(at(one, path) for one in parts for path in _CONTENTS)


_CONTENTS: Final = "message.content", "message.tool_calls", "text", "content.parts"
