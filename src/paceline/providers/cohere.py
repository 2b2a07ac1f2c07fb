"""Cohere: chat, embeddings and reranking, each limited in its own way. Facts and sources: ``tables/cohere.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from paceline.core.quota import MONTH_S
from paceline.core.results import Refusal, RefusalKind
from paceline.providers import parse
from paceline.providers.base import Call, Headers, Usage
from paceline.providers.common import IMAGES, INPUTS, CostRule
from paceline.providers.forms import dialect, endpoint_of
from paceline.providers.openai import OpenAIDialect
from paceline.providers.parse import as_mapping
from paceline.providers.prompt import MediaTokens

_OWN: Final = dialect("cohere")
MEDIA: Final = MediaTokens(image=1_600, small_image=256, audio=600, file=4_500)  # assumption


class Cohere(OpenAIDialect):
    """The Cohere API, and OpenAI's paths under ``/compatibility/``."""

    costs = CostRule(holds_maximum=True)
    units = frozenset({INPUTS, IMAGES})
    media = MEDIA
    events = (b'"usage"', b'"error"', b"message-end", b"[DONE]")
    lines = frozenset({"chat_v1"})
    usages = ("usage", "meta")  # before v2 and of embeddings
    wait_header = "x-ratelimit-reset"

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        endpoint = endpoint_of("cohere", path)
        if endpoint is None:
            call = super().describe(path, body)
            if call is None or call.endpoint != "embeddings":
                return call
            return replace(call, inputs=parse.inputs_in(body.get("input")))
        call = self._call(_OWN, endpoint, parse.model_of(body), body)
        if endpoint != "embed":
            return call
        inputs = sum(len(found) for key in ("texts", "images", "inputs") if isinstance(found := body.get(key), list))
        return replace(call, inputs=inputs, images=_images(body))

    def _refined(self, refusal: Refusal, error: Mapping[str, Any], text: str, headers: Headers) -> Refusal:  # noqa: ARG002
        """A month's calls are a balance that is used up."""
        month = refusal.kind is RefusalKind.RATE and (refusal.period_s or 0) >= MONTH_S
        return replace(refusal, kind=RefusalKind.MONEY) if month else refusal

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """``billed_units`` (without them ``tokens``) of ``usage`` or ``meta``; OpenAI's form on its paths."""
        found = parse.usage_of(payload, _OWN["usages"])
        for name in ("billed_units", "tokens"):
            if usage := parse.usage_by(_OWN["counts"], as_mapping(found.get(name))):
                return usage
        return super().usage(payload)


def _images(body: Mapping[str, Any]) -> int:
    """The images that a request embeds: in ``images``, or an input with one among its parts."""
    parts = [parse.items_of(one.get("content")) for one in parse.items_of(body.get("inputs"))]
    with_image = sum(any(part.get("type") == "image_url" for part in one) for one in parts)
    return len(parse.items_of(body.get("images"))) + with_image
