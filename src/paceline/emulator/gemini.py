"""The Gemini dialect: ``generateContent`` in one piece and streamed. No header tells of any quota.

Shapes and texts follow Google's documentation (2026-08) and captured refusals (2025, 2026) of the free tier, whose
``retryDelay`` is short even where the day's quota is gone. Quotas count input: write ``input_tokens`` (or ``tokens``).
"""

from __future__ import annotations

from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from paceline.emulator.text import PER_MESSAGE, count_content, count_tools
from paceline.emulator.wire import Answer, Ask, Header, count_of, dump, load, pieces, sse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paceline.emulator.outcome import Admitted, Level, Refused
    from paceline.emulator.settings import Settings

ID_HEADER = b""
HOLDS_OUTPUT, SETTLES = False, False

_JSON: Header = (b"content-type", b"application/json; charset=UTF-8")
_RPC = "type.googleapis.com/google.rpc."
_METRIC = "generativelanguage.googleapis.com/generate_content_free_tier_"
_SHORTEST_S = 38.238400923
"""What a refusal of a day's quota asks to wait (captured), though waiting that long does not help."""

_PER = {60.0: "Minute", 3_600.0: "Hour", 86_400.0: "Day"}


def key(headers: Mapping[bytes, bytes]) -> str:
    """The ``x-goog-api-key``."""
    return headers.get(b"x-goog-api-key", b"").strip().decode("latin-1")


def read(kind: str, body: bytes, named: str = "") -> Ask:
    """Read a request; the model comes from the path."""
    value = load(body)
    if value is None:
        return Ask(kind, named, error="Invalid JSON payload received.")
    contents = value.get("contents")
    if not contents or not isinstance(contents, list):
        return Ask(kind, named, error="* GenerateContentRequest.contents: contents is not specified")
    settings = value.get("generationConfig") or value.get("generation_config") or {}
    system = value.get("systemInstruction") or value.get("system_instruction") or []
    size = sum(_size(content) + PER_MESSAGE for content in contents) + _size(system) + count_tools(value.get("tools"))
    if not isinstance(settings, dict):
        return Ask(kind, named, error="Invalid value at 'generation_config'")
    choices = min(8, count_of(settings.get("candidateCount")) or 1)
    most = count_of(settings.get("maxOutputTokens"))
    return Ask(kind, named, size, most and most * choices, stream=kind == "stream", choices=choices)


def _size(content: Any) -> int:
    return count_content(content.get("parts") if isinstance(content, dict) else content)


# --- headers and refusals --------------------------------------------------------------------------------------------


def rate_headers(levels: list[Level], now: float) -> list[Header]:  # noqa: ARG001
    """None of any quota; only the server's clock, which says how far midnight is."""
    return [(b"date", formatdate(now, usegmt=True).encode())]


def refusal(refused: Refused, settings: Settings, serial: int) -> Answer:  # noqa: ARG001
    """Google's error objects; only a rate refusal has details."""
    kind = refused.kind
    if kind in ("rate", "too_large") and settings.body_numbers:
        return _rate_refusal(refused)
    if kind == "capacity":
        return _error(refused.status, "UNAVAILABLE", "The model is overloaded. Please try again later.")
    if kind == "money":
        return _error(429, "RESOURCE_EXHAUSTED", "Your project has exceeded its spending cap.")  # the words are assumed
    if kind == "auth":
        info: dict[str, Any] = {"@type": _RPC + "ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
        return _error(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", [info])
    if kind == "unknown_model":
        text = f"models/{refused.model} is not found for API version v1beta, or is not supported for generateContent."
        return _error(404, "NOT_FOUND", text)
    if kind == "invalid":
        return _error(400, "INVALID_ARGUMENT", refused.detail)
    return _error(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).")


def _rate_refusal(refused: Refused) -> Answer:
    requests, per = refused.unit == "requests", _PER.get(refused.period_s, "Minute")
    metric = _METRIC + ("requests" if requests else "input_token_count")
    name = f"GenerateRequestsPer{per}PerProjectPerModel" if requests else f"GenerateContentInputTokensPerModelPer{per}"
    delay_s = _SHORTEST_S if refused.period_s > 3_600 or refused.kind == "too_large" else max(0.01, refused.wait_s)
    violation = {
        "quotaMetric": metric,
        "quotaId": f"{name}-FreeTier",
        "quotaDimensions": {"location": "global", "model": refused.model},
        "quotaValue": f"{refused.limit:.0f}",
    }
    text = (
        "You exceeded your current quota, please check your plan and billing details. For more information on this"
        " error, head to: https://ai.google.dev/gemini-api/docs/rate-limits.\n"
        f"* Quota exceeded for metric: {metric}, limit: {refused.limit:.0f}, model: {refused.model}\n"
        f"Please retry in {delay_s:.9f}s."
    )
    details: list[dict[str, Any]] = [
        {"@type": _RPC + "QuotaFailure", "violations": [violation]},
        {"@type": _RPC + "RetryInfo", "retryDelay": f"{delay_s:.1f}s"},
    ]
    return _error(429, "RESOURCE_EXHAUSTED", text, details)


def _error(status: int, name: str, message: str, details: list[dict[str, Any]] | None = None) -> Answer:
    error: dict[str, Any] = {"code": status, "message": message, "status": name}
    if details:
        error["details"] = details
    return Answer(status, [_JSON], dump({"error": error}))


def error_event(ask: Ask, refusal: Answer, serial: int) -> bytes:  # noqa: ARG001
    """The error object as an event."""
    return b"data: " + refusal.body + b"\r\n\r\n"


def failure(serial: int) -> Answer:  # noqa: ARG001
    """A 500."""
    return _error(500, "INTERNAL", "An internal error has occurred. Please retry.")


# --- answers ---------------------------------------------------------------------------------------------------------


def _chunk(
    ask: Ask, admitted: Admitted, serial: int, texts: list[tuple[int, str]], done: int, *, last: bool
) -> dict[str, Any]:
    """One answer, or a piece of one; ``done`` tokens have come by its end."""
    candidates = []
    for index, text in texts:
        candidate: dict[str, Any] = {"content": {"parts": [{"text": text}], "role": "model"}, "index": index}
        if last:
            candidate["finishReason"] = "MAX_TOKENS" if admitted.output_tokens == ask.max_output_tokens else "STOP"
        candidates.append(candidate)
    usage = {
        "promptTokenCount": admitted.input_tokens,
        "candidatesTokenCount": done,
        "totalTokenCount": admitted.input_tokens + done,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": admitted.input_tokens}],
    }
    name = {"modelVersion": admitted.model, "responseId": f"emulated{serial:014x}"}
    return {"candidates": candidates, "usageMetadata": usage} | name


def answer(ask: Ask, admitted: Admitted, serial: int) -> bytes:
    """The whole answer; a stream that was not asked for with ``alt=sse`` is an array of one."""
    text = "".join(text for _, text in pieces(max(1, admitted.output_tokens // ask.choices)))
    texts = [(index, text) for index in range(ask.choices)]
    value = _chunk(ask, admitted, serial, texts, admitted.output_tokens, last=True)
    return dump([value] if ask.kind == "array" else value)


def events(ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
    """Chunks with the usage so far; no event marks the end."""
    cut, done = pieces(admitted.output_tokens), 0
    for number, (size, text) in enumerate(cut, 1):
        done += size
        value = _chunk(ask, admitted, serial, [(0, text)], done, last=number == len(cut))
        yield size, sse(value).replace(b"\n\n", b"\r\n\r\n")
