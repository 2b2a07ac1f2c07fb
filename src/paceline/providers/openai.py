"""OpenAI, and the dialect that most other providers copied. What OpenAI counts, with sources: ``tables/openai.toml``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from paceline.providers import parse
from paceline.providers.anthropic import Anthropic
from paceline.providers.base import AUDIO_SECONDS, Call, Usage, UsageReader
from paceline.providers.common import IMAGES, BaseProvider, CostRule
from paceline.providers.forms import about, dialect, endpoint_of, is_long, pool_in
from paceline.providers.plan_headers import EVENT
from paceline.providers.prompt import MediaTokens
from paceline.providers.quota_headers import Documented
from paceline.providers.streams import Found, TranscriptReader
from paceline.responses.finish import is_last
from paceline.responses.values import MAPPING, as_mapping, as_text, count, items_of

MESSAGES: Final = "messages"
"""Anthropic's path, which many hosts with OpenAI's dialect serve, too (their documentation, 2026)."""

_OWN: Final = dialect("openai")
_DETAILS: Final = _OWN["details"]

SPEECH_TOKENS: Final = 10
"""The most tokens of speech for a character of text. WEAK: not documented. At 20 tokens a second (the guide to Realtime's costs, 2026) it is
half a second for a character, seven times as slow as speech."""

MEDIA: Final = MediaTokens(**_OWN["media"])

_ANTHROPIC: Final = Anthropic("anthropic", "", (), "")

_CACHES: Final = frozenset({"cache_read_input_tokens", "cache_creation_input_tokens"})
"""What Anthropic's ``input_tokens`` leave out, at any host that has its path. OpenAI's and litellm's ``prompt_tokens`` have it, and so
have ``input_tokens`` whose details are stated beside them."""


def _goes_on(event: Mapping[str, Any]) -> bool:
    """Whether the answer goes on after an event with a usage, as with vLLM's ``continuous_usage_stats`` and Gemini: the usage is partial."""
    kind, parts = as_text(event.get("type")), items_of(event.get("choices") or event.get("candidates"))
    if kind.startswith("response."):
        return not is_last(event)
    return bool(parts) and not any(part.get("finish_reason") or part.get("finishReason") for part in parts)


class OpenAIDialect(BaseProvider):
    """OpenAI's paths, bodies, errors and usage, without OpenAI's limits."""

    media = MEDIA
    units = frozenset({IMAGES, AUDIO_SECONDS})
    events = (*BaseProvider.events, EVENT.encode())
    # By ``stream_options`` (WEAK: checked for OpenAI; a host that refuses it gets the request without it).
    asks_usage = True
    counts: parse.Counts = _OWN["counts"]
    refines = _OWN["refines"]
    prompts = "prompt"
    paths: tuple[tuple[re.Pattern[str], str], ...] = ()
    """Further paths, each with its endpoint; a group ``model`` names the model, which the body then does not."""

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        endpoint, model = endpoint_of("openai", path), None
        for pattern, kind in self.paths:
            match = pattern.search(path.partition("?")[0].rstrip("/"))
            if match:
                endpoint, model = kind, match.groupdict().get("model")
        return None if endpoint is None else self._described(endpoint, model or parse.model_of(body), body)

    def _described(self, endpoint: str, model: str, body: Mapping[str, Any]) -> Call:
        call = self._call(_OWN, endpoint, model[:200], body)
        return replace(call, **_media(endpoint, body)) if endpoint in _OWN["billed"] else call

    def usage_reader(self, call: Call) -> UsageReader:
        if call.endpoint == "transcriptions" and not call.stream:
            return TranscriptReader(self.usage, *self.usages)
        return _ANTHROPIC.usage_reader(call) if call.endpoint == MESSAGES else super().usage_reader(call)

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        found = parse.usage_of(payload)
        inputs, outputs = _first_of(found, _DETAILS["input"]), _first_of(found, _DETAILS["output"])
        if not (inputs or found.get("prompt_tokens")) and (
            payload.get("type") == "message" or ("input_tokens" in found and not _CACHES.isdisjoint(found))
        ):
            return _ANTHROPIC.usage(payload)
        audio, spoken = count(inputs.get("audio_tokens")), count(outputs.get("audio_tokens"))
        tier, answer = parse.tier_of(payload), _answer_of(payload)
        stated = {name: value for name, value in inputs.items() if value}  # a 0 says less than the sums beside it
        usage = parse.usage_by(
            self.counts, {**found, **stated}, audio_tokens=audio, audio_output_tokens=spoken, tier=tier, answer=answer
        )
        return usage or _recording(payload)

    def _on_event(self, event: dict[str, Any], known: Usage | None) -> Found:  # noqa: ARG002
        usage = self.usage(event)
        if usage is not None and _goes_on(event):
            usage = replace(usage, partial=True)
        return usage, self._refused(event), is_last(event)


class OpenAI(OpenAIDialect):
    """The OpenAI API.

    Output that was held and not produced is not known to be given back (documented for Realtime only), so a request
    with a maximum stays charged with it. Where OpenAI gives it back, ``x-ratelimit-remaining-tokens`` of the next
    answers shows it, and the pool's level follows.
    """

    costs = CostRule(holds_maximum=True, refunds=False)
    documented = Documented(alone=True)

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe a request; its mode is ``ultrafast`` by its ``service_tier``, or ``long_context`` by its length."""
        call = super().describe(path, body)
        if call is None:
            return None
        if body.get("service_tier") == "ultrafast":
            return replace(call, mode="ultrafast")
        return replace(call, mode="long_context") if is_long("openai", call.model, call.input_tokens) else call

    def keeps_s(self, model: str) -> float:
        """Half an hour at least from GPT-5.6 on, else five minutes."""
        [kept_s] = about("openai", "keeps", model.removeprefix("ft:")) or [self.cache_s]
        return float(kept_s)

    def pool(self, model: str) -> str:
        """A dated snapshot shares its alias's pool, a fine-tuned model its base's (assumed); some have a family's."""
        base = model.split(":")[1] if model.startswith("ft:") else model
        return pool_in("openai", parse.undated(base)) or model


def _first_of(found: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    """The first mapping with one of ``names``; an empty one for none."""
    for name in names:
        if (value := found.get(name)) is not None and isinstance(value, MAPPING):
            return value
    return {}


def _answer_of(payload: Mapping[str, Any]) -> str:
    """The id of a Responses answer, which the next request may name in place of its messages; empty for any other answer."""
    response = payload if payload.get("object") == "response" else payload.get("response")
    return as_text(response.get("id"))[: parse.ANSWER_MAX] if isinstance(response, MAPPING) else ""


def _media(endpoint: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """What a request for pictures, speech or a transcription says of their amount."""
    if endpoint == "images":
        return {"units": {IMAGES: max(count(body.get("n")), 1)}, "billed_max": None}
    if endpoint == "speech":
        return {"billed_max": SPEECH_TOKENS * max(len(as_text(body.get("input"))), 1)}
    return {
        "units": {AUDIO_SECONDS: parse.seconds(body.get(AUDIO_SECONDS))},
        "billed_max": None,
    }  # as the form was read


def _recording(payload: Mapping[str, Any]) -> Usage | None:
    """The usage of a transcription that counts seconds: in ``usage``, or as the ``duration`` beside the text."""
    found = as_mapping(payload.get("usage"))
    counted = found.get("seconds") if found.get("type") == "duration" else None
    audio_s = parse.seconds(counted or ("text" in payload and payload.get("duration")))
    return Usage(audio_s=audio_s) if audio_s else None
