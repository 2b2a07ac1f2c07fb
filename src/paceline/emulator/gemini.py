"""The dialect of Gemini: ``generateContent`` in one piece and streamed. No header shows any quota.

Shapes and texts follow Google's documentation (2026-08) and captured refusals (2025, 2026) of the free tier, whose
``retryDelay`` is short even where the day's quota is gone. Quotas count input: write ``input_tokens`` (or ``tokens``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from email.utils import formatdate
from typing import Any

from paceline.emulator.settings import PERIODS, Settings
from paceline.emulator.text import PER_MESSAGE, count_content, count_tools, write
from paceline.emulator.wire import Ask, Dialect, ErrorParts, Header, HttpAnswer, count_of, pieces, sse
from paceline.emulator.world import Admitted, Counting, Level, Refused

_RPC = "type.googleapis.com/google.rpc."
_WRONG_KEY = {"@type": _RPC + "ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
_METRIC = "generativelanguage.googleapis.com/generate_content_free_tier_"
_SHORTEST_S = 38.238400923
"""The wait that a refusal by a day's quota states (captured), though it is far too short."""


class EmulatedGemini(Dialect):
    """Google's Gemini API; the path names the model."""

    KEY_HEADERS = (b"x-goog-api-key",)
    COUNTING = Counting(holds_output=False)
    ERROR_TYPE = b"application/json; charset=UTF-8"
    STATES_WAIT = False  # it is in the error's details
    REFUSALS = {  # noqa: RUF012
        "capacity": (503, "The model is overloaded. Please try again later.", {"status": "UNAVAILABLE"}),
        "money": (429, "Your project has exceeded its spending cap.", {"status": "RESOURCE_EXHAUSTED"}),  # text assumed
        "auth": (
            400, "API key not valid. Please pass a valid API key.",
            {"status": "INVALID_ARGUMENT", "details": [_WRONG_KEY]},
        ),
        "unknown_model": (
            404, "models/{refused.model} is not found for API version v1beta, or is not supported for generateContent.",
            {"status": "NOT_FOUND"},
        ),
        "invalid": (400, "{refused.detail}", {"status": "INVALID_ARGUMENT"}),
        "failure": (500, "An internal error has occurred. Please retry.", {"status": "INTERNAL"}),
        "other": (429, "Resource has been exhausted (e.g. check quota).", {"status": "RESOURCE_EXHAUSTED"}),
    }  # fmt: skip
    NO_JSON = "Invalid JSON payload received."

    def ask(self, kind: str, model: str, value: dict[str, Any]) -> Ask:
        contents = value.get("contents")
        if not contents or not isinstance(contents, list):
            return Ask(kind, model, error="* GenerateContentRequest.contents: contents is not specified")
        settings = value.get("generationConfig") or value.get("generation_config") or {}
        if not isinstance(settings, dict):
            return Ask(kind, model, error="Invalid value at 'generation_config'")
        system = value.get("systemInstruction") or value.get("system_instruction") or []
        size = sum(_size(content) + PER_MESSAGE for content in contents) + _size(system)
        choices = min(8, count_of(settings.get("candidateCount")) or 1)
        most = count_of(settings.get("maxOutputTokens"))
        size += count_tools(value.get("tools"))
        return Ask(kind, model, size, most and most * choices, stream=kind == "stream", choices=choices)

    def rate_headers(self, levels: list[Level], now: float) -> list[Header]:  # noqa: ARG002
        """None of any quota; only the server's clock, which shows how far midnight is."""
        return [(b"date", formatdate(now, usegmt=True).encode())]

    def over_limit(self, refused: Refused, settings: Settings) -> ErrorParts:
        if not settings.body_numbers or not refused.period_s:
            return self.REFUSALS["other"]
        requests, per = refused.unit == "requests", PERIODS.get(refused.period_s, "minute").capitalize()
        metric = _METRIC + ("requests" if requests else "input_token_count")
        quota = f"RequestsPer{per}PerProjectPerModel" if requests else f"ContentInputTokensPerModelPer{per}"
        delay_s = _SHORTEST_S if refused.period_s > 3_600 or refused.kind == "too_large" else max(0.01, refused.wait_s)
        violation = {
            "quotaMetric": metric,
            "quotaId": f"Generate{quota}-FreeTier",
            "quotaDimensions": {"location": "global", "model": refused.model},
            "quotaValue": f"{refused.limit:.0f}",
        }
        text = (
            "You exceeded your current quota, please check your plan and billing details. For more information on this"
            " error, head to: https://ai.google.dev/gemini-api/docs/rate-limits.\n"
            f"* Quota exceeded for metric: {metric}, limit: {refused.limit:.0f}, model: {refused.model}\n"
            f"Please retry in {delay_s:.9f}s."
        )
        details = [
            {"@type": _RPC + "QuotaFailure", "violations": [violation]},
            {"@type": _RPC + "RetryInfo", "retryDelay": f"{delay_s:.1f}s"},
        ]
        return 429, text, {"status": "RESOURCE_EXHAUSTED", "details": details}

    def error(self, serial: int, status: int, text: str, fields: Mapping[str, Any]) -> Any:  # noqa: ARG002
        return {"error": {"code": status, "message": text, **fields}}

    def error_event(self, ask: Ask, refusal: HttpAnswer, serial: int) -> bytes:  # noqa: ARG002
        return b"data: " + refusal.body + b"\r\n\r\n"

    def answer(self, ask: Ask, admitted: Admitted, serial: int) -> Any:
        """The whole answer; a stream that was not requested with ``alt=sse`` is an array of one."""
        texts = [write(max(1, admitted.output_tokens // ask.choices))] * ask.choices
        value = _chunk(ask, admitted, serial, texts, admitted.output_tokens, last=True)
        return [value] if ask.kind == "array" else value

    def events(self, ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
        """Chunks with the usage so far; no event marks the end."""
        cut, done = pieces(admitted.output_tokens), 0
        for number, (size, text) in enumerate(cut, 1):
            done += size
            value = _chunk(ask, admitted, serial, [text], done, last=number == len(cut))
            yield size, sse(value).replace(b"\n\n", b"\r\n\r\n")


def _size(content: Any) -> int:
    return count_content(content.get("parts") if isinstance(content, dict) else content)


def _chunk(ask: Ask, admitted: Admitted, serial: int, texts: list[str], done: int, *, last: bool) -> dict[str, Any]:
    """One answer, or a piece of one; ``done`` tokens have come by its end."""
    end = {"finishReason": ask.finish(admitted, "MAX_TOKENS", "STOP")} if last else {}
    candidates = [
        {"content": {"parts": [{"text": text}], "role": "model"}, "index": index} | end
        for index, text in enumerate(texts)
    ]
    usage = {
        "promptTokenCount": admitted.input_tokens,
        "candidatesTokenCount": done,
        "totalTokenCount": admitted.input_tokens + done,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": admitted.input_tokens}],
    }
    name = {"modelVersion": admitted.model, "responseId": f"emulated{serial:014x}"}
    return {"candidates": candidates, "usageMetadata": usage} | name
