"""The OpenAI dialect: chat completions, responses and embeddings, with the provider's headers and refusals.

Shapes, header families and texts follow OpenAI's documentation and captured 429 bodies (as of 2026-11).
"""

from __future__ import annotations

import base64
import math
from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from paceline.emulator.outcome import Admitted
from paceline.emulator.text import count_content, count_messages, count_tools
from paceline.emulator.wire import Answer, Ask, Header, count_of, dump, go_duration, load, pieces, request_id, sse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paceline.emulator.outcome import Level, Refused
    from paceline.emulator.settings import Settings

PATHS = {"/chat/completions": "chat", "/responses": "responses", "/embeddings": "embeddings"}
ID_HEADER = b"x-request-id"
HOLDS_OUTPUT, SETTLES = True, False
CREATED = 1_763_000_000
"""The time that every answer bears: answers of one seed are equal byte for byte."""

_JSON: Header = (b"content-type", b"application/json")
_PERIODS = {1.0: "sec", 60.0: "min", 3_600.0: "hour", 86_400.0: "day"}
_SHORT = {"requests": "R", "tokens": "T", "project_tokens": "T", "input_tokens": "IT", "output_tokens": "OT"}
_DONE = b"data: [DONE]\n\n"
_MOST_DIMENSIONS = 4_096


def key(headers: Mapping[bytes, bytes]) -> str:
    """The bearer key."""
    return headers.get(b"authorization", b"").removeprefix(b"Bearer ").strip().decode("latin-1")


# --- requests ------------------------------------------------------------------------------------------------------


def read(kind: str, body: bytes, named: str = "") -> Ask:
    """Read a request; what is wrong with it is in ``error``."""
    value = load(body)
    if value is None:
        return Ask(kind, error="We could not parse the JSON body of your request.")
    model = named or value.get("model")
    if not isinstance(model, str) or not model:
        return Ask(kind, error="you must provide a model parameter")
    if kind == "embeddings":
        return _read_embeddings(model, value)
    if kind == "responses":
        size = count_messages(value.get("input")) + count_content(value.get("instructions"))
        most = count_of(value.get("max_output_tokens"))
        return Ask(kind, model, size + count_tools(value.get("tools")), most, stream=bool(value.get("stream")))
    if not isinstance(value.get("messages"), list):
        return Ask(kind, model, error="Missing required parameter: 'messages'.")
    choices = min(128, count_of(value.get("n")) or 1)
    most = count_of(value.get("max_completion_tokens")) or count_of(value.get("max_tokens"))
    size = count_messages(value["messages"]) + 3 + count_tools(value.get("tools"))
    return Ask(
        kind,
        model,
        size,
        most and most * choices,
        stream=bool(value.get("stream")),
        include_usage=bool((value.get("stream_options") or {}).get("include_usage")),
        choices=choices,
    )


def _read_embeddings(model: str, value: dict[str, Any]) -> Ask:
    given = value.get("input")
    if not given or not isinstance(given, (str, list)):
        return Ask("embeddings", model, error="Missing required parameter: 'input'.")
    dimensions = count_of(value.get("dimensions")) or 1_536
    if dimensions > _MOST_DIMENSIONS:
        return Ask("embeddings", model, error=f"Invalid 'dimensions': the most is {_MOST_DIMENSIONS}.")
    count = 1 if isinstance(given, str) or isinstance(given[0], int) else len(given)
    packed = value.get("encoding_format") == "base64"
    size = count_content(given)
    return Ask("embeddings", model, size, 0, choices=count, dimensions=dimensions, base64=packed)


# --- headers and refusals --------------------------------------------------------------------------------------------


def rate_headers(levels: list[Level], now: float) -> list[Header]:  # noqa: ARG001
    """``x-ratelimit-{limit,remaining,reset}-{requests,tokens,project-tokens}``; ``reset`` is the time until full.

    With several quotas on one unit the first one shows (which one OpenAI shows is not documented), so a quota of
    requests a day that stands first is what the headers speak of.
    """
    headers: list[Header] = []
    seen: set[str] = set()
    for unit, _, limit, remaining, reset_s in levels:
        if unit not in seen and unit != "concurrency":
            seen.add(unit)
            name = unit.replace("_", "-").encode()
            headers += (
                (b"x-ratelimit-limit-" + name, b"%d" % limit),
                (b"x-ratelimit-remaining-" + name, b"%d" % max(0.0, remaining)),
                (b"x-ratelimit-reset-" + name, go_duration(reset_s).encode()),
            )
    return headers


def _error(status: int, message: str, kind: str | None, code: str | None, headers: tuple[Header, ...] = ()) -> Answer:
    body = dump({"error": {"message": message, "type": kind, "param": None, "code": code}})
    return Answer(status, [_JSON, *headers], body)


def refusal(refused: Refused, settings: Settings, serial: int) -> Answer:
    """Status, headers and text for every kind of refusal."""
    if refused.kind in ("rate", "too_large"):
        return _rate_refusal(refused, settings)
    retry: tuple[Header, ...] = ()
    if settings.headers and refused.wait_s:
        retry = ((b"retry-after", b"%d" % math.ceil(refused.wait_s)),)
    kind = refused.kind
    if kind == "growth":
        text = "Slow down: your traffic grew too quickly. Please keep a consistent rate and increase it gradually."
        return _error(429, text, "rate_limit_error", "slow_down", retry)
    if kind == "capacity":
        text = "The server is currently overloaded with other requests. Please try again later."
        return _error(refused.status, text, "service_unavailable_error", "server_is_overloaded", retry)
    if kind == "money":
        text = (
            "You exceeded your current quota, please check your plan and billing details. For more information on this"
            " error, read the docs: https://platform.openai.com/docs/guides/error-codes/api-errors."
        )
        return _error(429, text, "insufficient_quota", "insufficient_quota")
    if kind == "auth":
        text = (
            "Incorrect API key provided: ********. You can find your API key at"
            " https://platform.openai.com/account/api-keys."
        )
        return _error(401, text, "invalid_request_error", "invalid_api_key")
    if kind == "unknown_model":
        text = f"The model `{refused.model}` does not exist or you do not have access to it."
        return _error(404, text, "invalid_request_error", "model_not_found")
    return _error(400, refused.detail or f"invalid request {serial}", "invalid_request_error", None)


def _rate_refusal(refused: Refused, settings: Settings) -> Answer:
    project = " in project proj_emulated" if refused.unit == "project_tokens" else ""
    unit = refused.unit.removeprefix("project_")
    period = _PERIODS.get(refused.period_s) or f"{refused.period_s:g} sec"
    never = refused.kind == "too_large"
    retry: tuple[Header, ...] = ()
    if settings.headers and not never:
        retry = ((b"retry-after", b"%d" % max(1, math.ceil(refused.wait_s))),)
    kind = unit.replace("_", "-")
    if not settings.body_numbers:
        text = f"Request too large for {refused.model}." if never else f"Rate limit reached for {refused.model}."
        return _error(429, text, kind, "rate_limit_exceeded", retry)
    pool = f" (for limit {refused.pool})" if refused.pool != refused.model else ""
    quota = f"{unit.replace('_', ' ')} per {period}" if refused.period_s else "concurrent requests"
    short = f" ({_SHORT[unit]}P{period[0].upper()})" if unit in _SHORT else ""
    where = f"{refused.model}{pool}{project} in organization org-emulated on {quota}{short}: Limit {refused.limit:.0f}"
    visit = " Visit https://platform.openai.com/account/rate-limits to learn more."
    if never:
        cure = "The input or output tokens must be reduced in order to run successfully."
        text = f"Request too large for {where}, Requested {refused.requested:.0f}. {cure}{visit}"
    else:
        wait = go_duration(max(0.001, refused.wait_s))
        used = math.ceil(refused.used - 1e-6)
        numbers = f"Used {used}, Requested {max(1.0, refused.requested):.0f}"
        text = f"Rate limit reached for {where}, {numbers}. Please try again in {wait}.{visit}"
    return _error(429, text, kind, "rate_limit_exceeded", retry)


def error_event(ask: Ask, refusal: Answer, serial: int) -> bytes:
    """A refusal inside a stream: ``response.failed``, or an ``error`` among the chunks of a chat."""
    value = load(refusal.body) or {}
    if ask.kind != "responses":
        return sse(value)
    error = {name: value["error"][name] for name in ("code", "message")}
    failed = _response(Admitted(ask.model, "", 0, 0, 0, 0.0), serial, "failed") | {"error": error}
    return sse({"type": "response.failed", "sequence_number": 0, "response": failed}, "response.failed")


def failure(serial: int) -> Answer:
    """A 500."""
    text = (
        "The server had an error while processing your request. Sorry about that! (Please include the request ID"
        f" {request_id(serial).decode()} in your message.)"
    )
    return _error(500, text, "server_error", None)


# --- answers ---------------------------------------------------------------------------------------------------------


def answer(ask: Ask, admitted: Admitted, serial: int) -> bytes:
    """The whole answer."""
    if ask.kind == "embeddings":
        return _embeddings(ask, admitted)
    if ask.kind == "responses":
        return dump(_response(admitted, serial, "completed"))
    own = max(1, admitted.output_tokens // ask.choices)
    text = "".join(text for _, text in pieces(own))
    choices: list[dict[str, Any]] = [
        {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": _finish(ask, admitted),
        }
        for index in range(ask.choices)
    ]
    head = {"id": f"chatcmpl-{serial:024x}", "object": "chat.completion", "created": CREATED, "model": admitted.model}
    tail = {"choices": choices, "usage": chat_usage(admitted), "service_tier": "default", "system_fingerprint": None}
    return dump(head | tail)


def _finish(ask: Ask, admitted: Admitted) -> str:
    return "length" if admitted.output_tokens == ask.max_output_tokens else "stop"


def chat_usage(admitted: Admitted) -> dict[str, Any]:
    """A chat's usage."""
    return {
        "prompt_tokens": admitted.input_tokens,
        "completion_tokens": admitted.output_tokens,
        "total_tokens": admitted.input_tokens + admitted.output_tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def _embeddings(ask: Ask, admitted: Admitted) -> bytes:
    vector = _vector(ask.dimensions, packed=ask.base64)
    data = [{"object": "embedding", "index": index, "embedding": vector} for index in range(ask.choices)]
    usage = {"prompt_tokens": admitted.input_tokens, "total_tokens": admitted.input_tokens}
    return dump({"object": "list", "data": data, "model": admitted.model, "usage": usage})


@lru_cache(maxsize=32)
def _vector(dimensions: int, *, packed: bool) -> str | list[float]:
    """A unit vector, the same for every text."""
    values = [dimensions**-0.5] * dimensions
    return base64.b64encode(array("f", values).tobytes()).decode() if packed else values


def _message(serial: int, text: str | None) -> dict[str, Any]:
    content = [] if text is None else [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    status = "in_progress" if text is None else "completed"
    return {
        "id": f"msg_{serial:024x}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def _response(admitted: Admitted, serial: int, status: str) -> dict[str, Any]:
    done = status == "completed"
    text = "".join(text for _, text in pieces(admitted.output_tokens)) if done else ""
    usage = {
        "input_tokens": admitted.input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": admitted.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": admitted.input_tokens + admitted.output_tokens,
    }
    return {
        "id": f"resp_{serial:024x}",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "model": admitted.model,
        "output": [_message(serial, text)] if done else [],
        "usage": usage if done else None,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }


def events(ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
    """The stream of a chat completion (ends with ``[DONE]``) or of a response (ends with ``response.completed``)."""
    return _response_events(admitted, serial) if ask.kind == "responses" else _chat_events(ask, admitted, serial)


def _chat_events(ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
    head = {"id": f"chatcmpl-{serial:024x}", "object": "chat.completion.chunk", "created": CREATED}
    head |= {"model": admitted.model, "service_tier": "default", "system_fingerprint": None}
    tail = {"usage": None} if ask.include_usage else {}

    def chunk(index: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse(head | {"choices": [choice]} | tail)

    for index in range(ask.choices):
        yield 0, chunk(index, {"role": "assistant", "content": "", "refusal": None})
    for index in range(ask.choices):
        own = admitted.output_tokens * (index + 1) // ask.choices - admitted.output_tokens * index // ask.choices
        for size, text in pieces(own):
            yield size, chunk(index, {"content": text})
        yield 0, chunk(index, {}, _finish(ask, admitted))
    if ask.include_usage:
        yield 0, sse(head | {"choices": [], "usage": chat_usage(admitted)})
    yield 0, _DONE


def _response_events(admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
    number = 0

    def event(name: str, **values: Any) -> bytes:
        nonlocal number
        number += 1
        return sse({"type": name, "sequence_number": number - 1} | values, name)

    at = {"item_id": f"msg_{serial:024x}", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    yield 0, event("response.created", response=_response(admitted, serial, "in_progress"))
    yield 0, event("response.in_progress", response=_response(admitted, serial, "in_progress"))
    yield 0, event("response.output_item.added", output_index=0, item=_message(serial, None))
    yield 0, event("response.content_part.added", **at, part=part)
    for size, text in pieces(admitted.output_tokens):
        yield size, event("response.output_text.delta", **at, delta=text, logprobs=[])
    text = "".join(text for _, text in pieces(admitted.output_tokens))
    yield 0, event("response.output_text.done", **at, text=text, logprobs=[])
    yield 0, event("response.content_part.done", **at, part=part | {"text": text})
    yield 0, event("response.output_item.done", output_index=0, item=_message(serial, text))
    yield 0, event("response.completed", response=_response(admitted, serial, "completed"))
