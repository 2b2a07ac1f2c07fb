"""What a request would cost, for callers who acquire by hand: described and corrected as those that pass by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, Cost
from paceline.core.results import QuotaError
from paceline.http.describe import Metered
from paceline.pacing.permit import check_cost
from paceline.providers.base import Call, Provider
from paceline.providers.registry import provider_named

if TYPE_CHECKING:
    from paceline.limiter.limiter import Limiter


def estimate(limiter: Limiter, pool: str, asked: object, output_tokens: int | None) -> Cost:
    """See :meth:`Limiter.estimate <paceline.Limiter.estimate>`."""
    scheduler = limiter.scheduler(pool)
    name, slash, _ = scheduler.pool.name.partition("/")
    page = provider_named(name if slash else "generic")
    head, slash, model = pool.partition("/")
    if not slash or provider_named(head).name != page.name:
        model = pool
    call = _described(page, model, _body(model, asked))
    if output_tokens is not None:
        check_cost({"output_tokens": output_tokens})
        call = replace(call, max_output_tokens=int(output_tokens))
    cost = Metered(page, call, scheduler, limiter.calibrations.of(call.provider, call.model, call.endpoint)).cost()
    units = {INPUT_TOKENS, OUTPUT_TOKENS, *scheduler.pool.ledger.units} - {REQUESTS, CONCURRENCY}
    return {unit: float(amount) for unit, amount in cost.items() if unit in units}


def _body(model: str, asked: object) -> Mapping[str, Any]:
    """A request's body that says what ``asked`` does, in every dialect at once."""
    if isinstance(asked, str):
        asked = [{"role": "user", "content": asked}]
    if isinstance(asked, Mapping):
        return {"model": model, **asked}
    if isinstance(asked, Sequence) and not isinstance(asked, bytes | bytearray):
        return {"model": model, "messages": asked, "contents": asked}
    raise QuotaError(
        f"{type(asked).__name__} cannot be estimated: give a text, a list of messages, or a request's body as a mapping"
    )


def _described(page: Provider, model: str, body: Mapping[str, Any]) -> Call:
    """The body as a request to the first of the paths that the provider would charge for."""
    for path in _paths(model, body):
        call = page.describe(path, body)
        if call is not None:
            return call
    call = provider_named("generic").describe("/v1/chat/completions", body)
    assert call is not None
    return replace(call, provider=page.name)


def _paths(model: str, body: Mapping[str, Any]) -> Iterator[str]:
    if "contents" in body:
        yield f"/v1beta/models/{model}:generateContent"
    if "input" in body and "messages" not in body:
        yield "/v1/responses"
    yield f"/model/{model}/converse"
    yield "/v1/messages"
    yield "/v2/chat"
    yield "/v1/chat/completions"
