"""Usage from whatever a caller holds in hand: an SDK's answer, its usage object, or either as a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.core.quota import Cost
from paceline.core.results import QuotaError
from paceline.providers.base import Call, Usage
from paceline.providers.registry import provider_named


def usage_cost(pool: str, usage: object) -> Cost:
    """What the provider of ``pool`` has charged, per unit, for an answer.

    Args:
        pool: The pool's name, e.g. ``openai/gpt-5``; one without a provider counts as OpenAI-compatible.
        usage: An SDK's answer, its usage object, either as a mapping, or a ``Usage``.

    Raises:
        QuotaError: ``usage`` names no usage that this provider reports.
    """
    name, slash, model = pool.partition("/")  # a model's own name may hold more of them
    provider = provider_named(name if slash else "generic")
    found = usage if isinstance(usage, Usage) else provider.usage(_mapping(usage))
    if found is None:
        raise QuotaError(
            f"{pool}: no usage in {type(usage).__name__}: settle with an answer that reports it, with a mapping like"
            " {'input_tokens': 812, 'output_tokens': 64}, or with amounts: settle(input_tokens=812, output_tokens=64)"
        )
    return provider.charged(Call(provider.name, "", model, found.input_tokens), found)


def _mapping(value: object, depth: int = 3) -> Mapping[str, Any]:
    """``value`` as a mapping: as it is, as its SDK dumps it, or by its attributes, ``depth`` levels down."""
    if isinstance(value, Mapping):
        return value
    inner = getattr(value, "usage", None) or getattr(value, "usage_metadata", None)
    if inner is not None and depth:
        return {"usage": _mapping(inner, depth - 1)}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        dumped = dump()
        return dumped if isinstance(dumped, Mapping) else {}
    if not depth:
        return {}
    listed = getattr(value, "ListFields", None)  # a protobuf message, as gRPC SDKs return them
    if callable(listed):
        fields = {field.name: item for field, item in listed()}
    else:
        fields = {key: item for key, item in getattr(value, "__dict__", {}).items() if not key.startswith("_")}
    plain = (int, float, str, Mapping, type(None))
    return {key: item if isinstance(item, plain) else _mapping(item, depth - 1) for key, item in fields.items()}
