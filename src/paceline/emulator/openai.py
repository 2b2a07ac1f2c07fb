"""The dialect of OpenAI (chat completions, responses, embeddings), and of Azure OpenAI and Groq, which differ in quirks.

Shapes, header families and texts follow the documentation of OpenAI (2026-11), Microsoft (2026-05, 2026-09) and Groq
(2026-08), and captured headers and 429 bodies (2024 to 2026).
"""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from paceline.emulator.parts import prompt_parts
from paceline.emulator.prompt_cache import PromptPart, ServerPrompt, chain
from paceline.emulator.settings import PERIODS, Settings
from paceline.emulator.text import count_content, count_messages, count_tools, write
from paceline.emulator.wire import Ask, Dialect, ErrorParts, Header, HttpAnswer, count_of, load, pieces, sse
from paceline.emulator.world import Admitted, Counting, Level, Refused

CREATED = 1_763_000_000
"""The creation time of every answer: answers of one seed are equal byte for byte."""

CACHE_STEP = 128
"""Cached prefixes grow by so many tokens (OpenAI's guide on prompt caching, 2026)."""

_PERIODS = {1.0: "sec", 60.0: "min", 3_600.0: "hour", 86_400.0: "day"}
_SHORT = {"requests": "RP", "tokens": "TP", "input_tokens": "ITP", "output_tokens": "OTP"}
_MOST_DIMENSIONS = 4_096


def _fields(kind: str, code: str | None = None) -> dict[str, Any]:
    return {"type": kind, "param": None, "code": code}


class EmulatedOpenAI(Dialect):
    """OpenAI itself."""

    PATHS = {"/chat/completions": "chat", "/responses": "responses", "/embeddings": "embeddings"}  # noqa: RUF012
    ID_HEADER = b"x-request-id"
    REFUSALS = {  # noqa: RUF012
        "growth": (
            429, "Slow down: your traffic grew too quickly. Please keep a consistent rate and increase it gradually.",
            _fields("rate_limit_error", "slow_down"),
        ),
        "capacity": (
            503, "The server is currently overloaded with other requests. Please try again later.",
            _fields("service_unavailable_error", "server_is_overloaded"),
        ),
        "money": (
            429, ("You exceeded your current quota, please check your plan and billing details. For more information on this"
            " error, read the docs: https://platform.openai.com/docs/guides/error-codes/api-errors."),
            _fields("insufficient_quota", "insufficient_quota"),
        ),
        "auth": (
            401, ("Incorrect API key provided: ********. You can find your API key at"
            " https://platform.openai.com/account/api-keys."), _fields("invalid_request_error", "invalid_api_key"),
        ),
        "unknown_model": (
            404, "The model `{refused.model}` does not exist or you do not have access to it.",
            _fields("invalid_request_error", "model_not_found"),
        ),
        "failure": (
            500, ("The server had an error while processing your request. Sorry about that! (Please include the request ID"
            " {id} in your message.)"), _fields("server_error"),
        ),
        "other": (400, "{refused.detail}", _fields("invalid_request_error")),
    }  # fmt: skip
    NO_JSON = "We could not parse the JSON body of your request."
    NO_MODEL = "you must provide a model parameter"

    def ask(self, kind: str, model: str, value: dict[str, Any]) -> Ask:
        if kind == "embeddings":
            return _read_embeddings(model, value)
        stream, tools = bool(value.get("stream")), count_tools(value.get("tools"))
        if kind == "responses":
            size = count_messages(value.get("input")) + count_content(value.get("instructions")) + tools
            return Ask(kind, model, size, count_of(value.get("max_output_tokens")), stream=stream)
        if not isinstance(value.get("messages"), list):
            return Ask(kind, model, error="Missing required parameter: 'messages'.")
        choices = min(128, count_of(value.get("n")) or 1)
        most = count_of(value.get("max_completion_tokens")) or count_of(value.get("max_tokens"))
        size = count_messages(value["messages"]) + 3 + tools
        usage = bool((value.get("stream_options") or {}).get("include_usage"))
        return Ask(kind, model, size, most and most * choices, stream=stream, include_usage=usage, choices=choices)

    def parts(self, kind: str, value: dict[str, Any]) -> Sequence[PromptPart]:
        """Tools, instructions and messages of a chat or of Responses."""
        if kind == "embeddings":
            return ()
        messages = value.get("input" if kind == "responses" else "messages")
        return prompt_parts(value.get("tools"), value.get("instructions"), messages)

    def prompt(self, model: str, parts: Sequence[PromptPart]) -> ServerPrompt:
        """Every prefix is cached, without being asked for."""
        return ServerPrompt(chain(model, (part._replace(life="5m") for part in parts), CACHE_STEP))

    def rate_headers(self, levels: list[Level], now: float) -> list[Header]:  # noqa: ARG002
        """``x-ratelimit-{limit,remaining,reset}-{requests,tokens,project-tokens}``; ``reset`` is the time until full.

        With several quotas on one unit the first one shows (which one OpenAI shows is not documented), so a quota of
        requests a day that stands first is what the headers state.
        """
        headers: dict[bytes, bytes] = {}
        for level in filter(self.shows, levels):
            name = level.unit.replace("_", "-").encode()
            if b"x-ratelimit-limit-" + name not in headers:
                headers[b"x-ratelimit-limit-" + name] = b"%d" % level.limit
                headers[b"x-ratelimit-remaining-" + name] = b"%d" % self.remaining(level)
                headers[b"x-ratelimit-reset-" + name] = self.reset(level).encode()
        return list(headers.items())

    def shows(self, level: Level) -> bool:
        """Whether the headers show this quota."""
        return level.unit != "concurrency"

    def remaining(self, level: Level) -> int:
        """The value of ``x-ratelimit-remaining``."""
        return max(0, math.floor(level.remaining))

    def reset(self, level: Level) -> str:
        """The value of ``x-ratelimit-reset``."""
        return go_duration(level.reset_s)

    def over_limit(self, refused: Refused, settings: Settings) -> ErrorParts:
        never, unit = refused.kind == "too_large", refused.unit.removeprefix("project_")
        text = f"{'Request too large' if never else 'Rate limit reached'} for {refused.model}"
        if settings.body_numbers:
            pool = f" (for limit {refused.pool})" if refused.pool != refused.model else ""
            project = " in project proj_emulated" if refused.unit == "project_tokens" else ""
            period = _PERIODS.get(refused.period_s, f"{refused.period_s:g} sec")
            quota = _quota(unit, period) if refused.period_s else "concurrent requests"
            text += f"{pool}{project} in organization org-emulated on {quota}: {_numbers(refused)}."
            text += " The input or output tokens must be reduced in order to run successfully." if never else ""
            text += " Visit https://platform.openai.com/account/rate-limits to learn more."
        else:
            text += "."
        return 429, text, _fields(unit.replace("_", "-"), "rate_limit_exceeded")

    def error(self, serial: int, status: int, text: str, fields: Mapping[str, Any]) -> Any:  # noqa: ARG002
        return {"error": {"message": text, **fields}}

    def error_event(self, ask: Ask, refusal: HttpAnswer, serial: int) -> bytes:
        """On Responses ``response.failed``; an ``error`` among the chunks of a chat."""
        value = load(refusal.body) or {}
        if ask.kind != "responses":
            return sse(value)
        error = {name: value["error"].get(name) for name in ("code", "message")}
        failed = _response(Admitted(ask.model, 0, 0), serial, "failed") | {"error": error}
        return sse({"type": "response.failed", "sequence_number": 0, "response": failed}, "response.failed")

    def answer(self, ask: Ask, admitted: Admitted, serial: int) -> Any:
        if ask.kind == "embeddings":
            return _embeddings(ask, admitted)
        if ask.kind == "responses":
            return _response(admitted, serial, "completed")
        text = write(max(1, admitted.output_tokens // ask.choices))
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
        choice = {"message": message, "logprobs": None, "finish_reason": ask.finish(admitted, "length", "stop")}
        choices = [{"index": index} | choice for index in range(ask.choices)]
        return _chat(admitted, serial, "chat.completion", choices) | {"usage": _chat_usage(admitted)}

    def events(self, ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
        """The stream of a chat completion (ends with ``[DONE]``) or of a response (ends with ``response.completed``)."""
        return _response_events(admitted, serial) if ask.kind == "responses" else _chat_events(ask, admitted, serial)


class EmulatedAzure(EmulatedOpenAI):
    """Azure OpenAI: OpenAI's bodies, a deployment in the path, whole seconds in the headers.

    Tokens count in a minute's window (``100k tokens/min window``), requests over ten seconds or one (``100 requests/10s
    window``); unused output is not given back and failed requests count (``failed_count``). All of that is settings.
    """

    ID_HEADER = b"apim-request-id"
    KEY_HEADERS = (b"api-key", b"authorization")
    REFUSALS = EmulatedOpenAI.REFUSALS | {
        "auth": (401, "Access denied due to invalid subscription key or wrong API endpoint.", {"code": "401"}),
        "unknown_model": (
            404, "The API deployment for this resource does not exist.", {"code": "DeploymentNotFound"},
        ),
    }  # fmt: skip

    def rate_headers(self, levels: list[Level], now: float) -> list[Header]:
        """OpenAI's, and ``x-ratelimit-renewalperiod-{requests,tokens}`` in seconds (captured from 2025 on)."""
        periods = {level.unit: level.period_s for level in reversed(levels) if self.shows(level)}
        stated = [
            (f"x-ratelimit-renewalperiod-{unit}".encode(), f"{seconds:g}".encode()) for unit, seconds in periods.items()
        ]
        return super().rate_headers(levels, now) + stated

    def shows(self, level: Level) -> bool:
        return level.unit in ("requests", "tokens")

    def remaining(self, level: Level) -> int:
        return math.floor(level.remaining)  # may be negative (captured: -27689)

    def reset(self, level: Level) -> str:
        return str(math.ceil(level.reset_s))

    def over_limit(self, refused: Refused, settings: Settings) -> ErrorParts:
        """The text names the operation and whole seconds, never limit or used."""
        if refused.kind == "too_large":  # the code is the documented subtype's name, the words are an assumption
            text = "The request's max_tokens exceeds what the deployment's rate limit can ever admit."
            return 429, text, {"code": "max_tokens_too_large"}
        what = "call" if refused.unit == "requests" else "token"
        text = (
            "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-10-21 have exceeded"
            f" {what} rate limit of your current OpenAI S0 pricing tier."
        )
        seconds = max(1, math.ceil(refused.wait_s))
        text += f" Please retry after {seconds} seconds." if settings.body_numbers else " Please retry later."
        return 429, text, {"code": "429"}

    def retry_headers(self, refused: Refused, settings: Settings) -> list[Header]:
        """``retry-after``, and for a quota also ``retry-after-ms`` and ``policy-id``."""
        headers = super().retry_headers(refused, settings)
        if headers and refused.kind == "rate":
            unit = b"Request" if refused.unit == "requests" else b"Token"
            headers.append((b"retry-after-ms", b"%d" % math.ceil(max(1.0, refused.wait_s * 1_000))))
            headers.append((b"policy-id", b"DeploymentRatelimit-" + unit))
        return headers

    def error_event(self, ask: Ask, refusal: HttpAnswer, serial: int) -> bytes:
        """On Responses an ``error`` event, as captured (2026-08); in a chat as OpenAI's."""
        if ask.kind != "responses":
            return super().error_event(ask, refusal, serial)
        error = (load(refusal.body) or {})["error"]
        code = "rate_limit_exceeded" if error["code"] == "429" else error["code"]
        event = {"type": "error", "code": code, "message": error["message"], "param": None, "sequence_number": 0}
        return sse(event, "error")


class EmulatedPlain(EmulatedOpenAI):
    """A server of one's own, or a proxy: OpenAI's bodies, no header of a quota, and refusals that name nothing."""

    REFUSALS = EmulatedOpenAI.REFUSALS | {"capacity": (429, "Too many requests.", {})}

    def rate_headers(self, levels: list[Level], now: float) -> list[Header]:  # noqa: ARG002
        return []

    def over_limit(self, refused: Refused, settings: Settings) -> ErrorParts:  # noqa: ARG002
        return self.REFUSALS["capacity"]


class EmulatedGroq(EmulatedOpenAI):
    """Groq: headers state requests per day and tokens per minute; every other quota shows in refusals only.

    Unused output is given back, and so is what was read from the cache.
    """

    COUNTING = Counting(settles=True, counts_cached=False, holds_cached=True)

    def shows(self, level: Level) -> bool:
        return (level.unit, level.period_s) in (("requests", 86_400.0), ("tokens", 60.0))

    def over_limit(self, refused: Refused, settings: Settings) -> ErrorParts:
        """A request that can never fit is a 413, with the code of a rate limit."""
        never = refused.kind == "too_large"
        text = f"{'Request too large' if never else 'Rate limit reached'} for model `{refused.model}`"
        if settings.body_numbers:
            period = PERIODS.get(refused.period_s, "minute")
            quota = _quota(refused.unit, period) if refused.period_s else "concurrent requests"
            text += f" in organization `org_emulated` service tier `on_demand` on {quota}: {_numbers(refused)}"
            text += ", please reduce your message size and try again." if never else "."
        text += " Need more tokens? Upgrade to Dev Tier today at https://console.groq.com/settings/billing"
        kind = "requests" if refused.unit == "requests" else "tokens"
        return 413 if never else 429, text, {"type": kind, "code": "rate_limit_exceeded"}

    def events(self, ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
        """As OpenAI's; the last chunk of a chat bears the usage under ``x_groq``, requested or not."""
        sent = list(super().events(ask, admitted, serial))
        if ask.kind == "chat":
            tokens, last = sent[-2]
            chunk = load(last.removeprefix(b"data: ")) or {}
            chunk["x_groq"] = {"id": f"req_{serial:024x}", "usage": _chat_usage(admitted)}
            sent[-2] = tokens, sse(chunk)
        yield from sent


def _quota(unit: str, period: str) -> str:
    """A quota as OpenAI and Groq name it: ``tokens per min (TPM)``."""
    short = f" ({_SHORT[unit]}{period[0].upper()})" if unit in _SHORT else ""
    return f"{unit.replace('_', ' ')} per {period}{short}"


def _numbers(refused: Refused) -> str:
    """Limit, used, requested and wait, as OpenAI and Groq print them."""
    limit = f"Limit {refused.limit:.0f}"
    if refused.kind == "too_large":
        return f"{limit}, Requested {refused.requested:.0f}"
    used, requested = math.ceil(refused.used - 1e-6), max(1.0, refused.requested)
    wait = go_duration(max(0.001, refused.wait_s))
    return f"{limit}, Used {used}, Requested {requested:.0f}. Please try again in {wait}"


def go_duration(seconds: float) -> str:
    """A duration as Go prints it, cut to milliseconds: ``6m0s``, ``1.768s``, ``84ms``.

    Both of OpenAI's uses (reset headers, "try again in") fit this in every capture seen (2023 to 2026).
    """
    total_ms = math.floor(seconds * 1_000 + 1e-3)
    if total_ms < 1_000:
        return f"{total_ms}ms" if total_ms else "0s"
    minutes, ms = divmod(total_ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{ms / 1_000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


# --- embeddings ------------------------------------------------------------------------------------------------------


def _read_embeddings(model: str, value: dict[str, Any]) -> Ask:
    given = value.get("input")
    if not given or not isinstance(given, (str, list)):
        return Ask("embeddings", model, error="Missing required parameter: 'input'.")
    dimensions = count_of(value.get("dimensions")) or 1_536
    if dimensions > _MOST_DIMENSIONS:
        return Ask("embeddings", model, error=f"Invalid 'dimensions': the most is {_MOST_DIMENSIONS}.")
    count = 1 if isinstance(given, str) or isinstance(given[0], int) else len(given)
    packed = value.get("encoding_format") == "base64"
    return Ask("embeddings", model, count_content(given), 0, choices=count, dimensions=dimensions, base64=packed)


def _embeddings(ask: Ask, admitted: Admitted) -> dict[str, Any]:
    vector = _vector(ask.dimensions, packed=ask.base64)
    data = [{"object": "embedding", "index": index, "embedding": vector} for index in range(ask.choices)]
    usage = {"prompt_tokens": admitted.input_tokens, "total_tokens": admitted.input_tokens}
    return {"object": "list", "data": data, "model": admitted.model, "usage": usage}


@lru_cache(maxsize=32)
def _vector(dimensions: int, *, packed: bool) -> str | list[float]:
    """A unit vector, the same for every text."""
    values = [dimensions**-0.5] * dimensions
    return base64.b64encode(array("f", values).tobytes()).decode() if packed else values


# --- chat completions ------------------------------------------------------------------------------------------------


def _chat(admitted: Admitted, serial: int, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    head = {"id": f"chatcmpl-{serial:024x}", "object": kind, "created": CREATED, "model": admitted.model}
    return head | {"choices": choices, "service_tier": "default", "system_fingerprint": None}


def _chat_usage(admitted: Admitted) -> dict[str, Any]:
    return {
        "prompt_tokens": admitted.input_tokens,
        "completion_tokens": admitted.output_tokens,
        "total_tokens": admitted.input_tokens + admitted.output_tokens,
        "prompt_tokens_details": {"cached_tokens": admitted.cache.read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def _chat_events(ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
    tail = {"usage": None} if ask.include_usage else {}

    def chunk(index: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse(_chat(admitted, serial, "chat.completion.chunk", [choice]) | tail)

    for index in range(ask.choices):
        yield 0, chunk(index, {"role": "assistant", "content": "", "refusal": None})
    for index in range(ask.choices):
        own = admitted.output_tokens * (index + 1) // ask.choices - admitted.output_tokens * index // ask.choices
        for size, text in pieces(own):
            yield size, chunk(index, {"content": text})
        yield 0, chunk(index, {}, ask.finish(admitted, "length", "stop"))
    if ask.include_usage:
        yield 0, sse(_chat(admitted, serial, "chat.completion.chunk", []) | {"usage": _chat_usage(admitted)})
    yield 0, b"data: [DONE]\n\n"


# --- responses -------------------------------------------------------------------------------------------------------


def _response(admitted: Admitted, serial: int, status: str) -> dict[str, Any]:
    done = status == "completed"
    usage = {
        "input_tokens": admitted.input_tokens,
        "input_tokens_details": {"cached_tokens": admitted.cache.read, "cache_write_tokens": 0},
        "output_tokens": admitted.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": admitted.input_tokens + admitted.output_tokens,
    }
    return {
        "id": f"resp_{serial:024x}", "object": "response", "created_at": CREATED, "status": status,
        "model": admitted.model, "output": [_message(serial, write(admitted.output_tokens))] if done else [],
        "usage": usage if done else None, "error": None, "incomplete_details": None, "instructions": None,
        "metadata": {}, "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "tools": [],
        "top_p": 1.0,
    }  # fmt: skip


def _message(serial: int, text: str | None) -> dict[str, Any]:
    content = [] if text is None else [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    status = "in_progress" if text is None else "completed"
    head = {"id": f"msg_{serial:024x}", "type": "message", "role": "assistant"}
    return head | {"status": status, "content": content}


def _response_events(admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
    number = 0

    def event(name: str, **values: Any) -> bytes:
        nonlocal number
        number += 1
        return sse({"type": name, "sequence_number": number - 1} | values, name)

    at = {"item_id": f"msg_{serial:024x}", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    for name in ("response.created", "response.in_progress"):
        yield 0, event(name, response=_response(admitted, serial, "in_progress"))
    yield 0, event("response.output_item.added", output_index=0, item=_message(serial, None))
    yield 0, event("response.content_part.added", **at, part=part)
    for size, text in pieces(admitted.output_tokens):
        yield size, event("response.output_text.delta", **at, delta=text, logprobs=[])
    text = write(admitted.output_tokens)
    yield 0, event("response.output_text.done", **at, text=text, logprobs=[])
    yield 0, event("response.content_part.done", **at, part=part | {"text": text})
    yield 0, event("response.output_item.done", output_index=0, item=_message(serial, text))
    yield 0, event("response.completed", response=_response(admitted, serial, "completed"))
