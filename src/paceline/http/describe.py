"""What a request costs, and at which pool: of a request over HTTP, and of one that the caller acquires by hand."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final

from paceline.core.queue import Estimate
from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS, Cost
from paceline.core.results import QuotaError, Refusal
from paceline.estimation.calibration import TokenCalibration
from paceline.estimation.media import seconds_of
from paceline.estimation.prefixes import Prompt, prompt_of
from paceline.pacing.accounts import Payer
from paceline.pacing.pacer import Pacer
from paceline.pacing.permit import Estimated, check_cost
from paceline.pacing.scheduler import Scheduler
from paceline.pacing.turns import estimated, refused
from paceline.providers.answers import provider_of, unsized_cost
from paceline.providers.base import AUDIO_SECONDS, Call, Provider, Usage
from paceline.providers.embeddings import embeds
from paceline.providers.registry import base_of, method_path, provider_named
from paceline.responses.values import decode

BOOKED_MAX = 1_000_000
"""No provider charges more output tokens at admission."""

Body = Callable[[], Mapping[str, Any]]
"""Returns the JSON value of a body."""

MODEL_MAX: Final = 200
"""The longest name of a model that is looked at, in characters."""


@dataclass(frozen=True, slots=True)
class Metered:
    """A request that costs something."""

    provider: Provider
    call: Call
    scheduler: Scheduler
    calibration: TokenCalibration
    guessed: bool = False
    """Whether the API of its host is a guess."""
    prompt: Prompt | None = None
    """Its prompt, before the cache of the provider; ``None`` for one that is not looked for."""
    payer: Payer | None = None
    """Whose credential it is sent with; ``None`` for the account of the provider's name."""

    def cost(self) -> Cost:
        """The amounts that the provider will hold, by the present calibration."""
        return self.estimate().cost

    def estimate(self) -> Estimate:
        """The amounts that the provider will hold, and what of the prompt it has in its cache, by what is known at present."""
        call, prompt = self.booked_call, self.prompt
        input_tokens, output = self.tokens()
        output = self.scheduler.pool.capacity.ledger.expected_output(input_tokens, output)
        cost = self.provider.held(call, input_tokens, output)
        if prompt is not None and (cached := prompt.look(now_ns := self.scheduler.now_ns())).tokens:
            return estimated(prompt, cached, now_ns, cost, input_tokens, self.provider, self.call)
        return Estimate(cost)

    def tokens(self) -> tuple[float, float]:
        """The input and the expected output, by the present calibration."""
        call, calibration = self.booked_call, self.calibration
        before = 0 if self.prompt is None else self.prompt.before or 0
        return calibration.input.apply(call.input_tokens) + before, calibration.expected_output(call.max_output_tokens)

    def expected(self) -> Usage:
        """What its answer will report, by the present calibration."""
        input_tokens, output = self.tokens()
        return Usage(input_tokens=math.ceil(input_tokens), output_tokens=math.ceil(output), tier=self.call.tier)

    def completed(self, usage: Usage) -> Usage:
        """``usage``, of an answer that has broken off or reports none, with what it leaves open as expected."""
        expected = self.expected()
        output = max(usage.output_tokens, expected.output_tokens)
        return replace(usage, input_tokens=usage.input_tokens or expected.input_tokens, output_tokens=output)

    @property
    def booked_call(self) -> Call:
        """The call; where it names no maximum, with the output that the provider is known to charge in its place."""
        booked = self.calibration.booked if self.call.max_output_tokens is None else 0
        return replace(self.call, max_output_tokens=booked) if booked else self.call

    def refused(self, refusal: Refusal) -> None:
        """Learn from a refusal: that the output may be larger than expected, and what is charged without a maximum."""
        if refusal.unit in (TOKENS, OUTPUT_TOKENS):
            self.calibration.doubt()
        if self.call.max_output_tokens is None and refusal.unit == TOKENS and refusal.requested is not None:
            output = refusal.requested - self.call.input_tokens * self.calibration.input.ratio
            if output > self.calibration.expected_output(None):
                self.calibration.booked = round(min(output, BOOKED_MAX))
        if self.prompt is not None:
            refused(self.prompt, refusal, self.scheduler.now_ns())

    def known(self, usage: Usage) -> Cost:
        """What ``usage``, whose output is not known yet, will be charged in the units that no output changes."""
        charged = self.provider.charged(self.call, usage)
        more = self.provider.charged(self.call, replace(usage, output_tokens=usage.output_tokens + BOOKED_MAX))
        return {unit: amount for unit, amount in charged.items() if more[unit] == amount}

    def learn(self, usage: Usage) -> None:
        """Calibrate with the usage that the answer reports."""
        # Of a prompt whose beginning the server keeps, the estimate has the new part alone, and the usage all of it.
        whole = self.prompt is None or self.prompt.before == 0
        self.calibration.learn(
            input_estimate=self.call.input_tokens if whole else 0,
            input_tokens=usage.input_tokens,
            max_output_tokens=self.call.max_output_tokens,
            output_tokens=usage.output_tokens,
        )


@lru_cache(maxsize=4_096)
def is_metered(provider: Any, path: str) -> bool:  # Any: the protocol does not promise a hash, which the cache needs
    """Whether a request to ``path`` may cost something."""
    return model_named(provider, path, "") is not None


@lru_cache(maxsize=4_096)
def model_named(provider: Any, path: str, model: str) -> str | None:
    """The model of a request to ``path`` whose body names ``model`` or none; ``None`` if such a request costs nothing."""
    call: Call | None = provider.describe(path, {"model": model} if model else {})
    return None if call is None else call.model


def describe(
    pacer: Pacer,
    provider: Provider,
    path: str,
    content: bytes,
    payer: Payer | None = None,
    body: Mapping[str, Any] | None = None,
) -> Metered | None:
    """Describe a request that ``payer`` pays; ``None`` if it costs nothing.

    Args:
        pacer: The pacer.
        provider: The provider, under its own name.
        path: The path.
        content: The body.
        payer: Who pays; ``None`` for the account of the provider's name.
        body: The JSON value of the body, if it is read already.
    """
    body = body_of(content) if body is None else body
    call = call_of(provider, path, body)
    return None if call is None else metered(pacer, provider, call, body, partial(body_of, content), payer)


def call_of(provider: Provider, path: str, body: Mapping[str, Any]) -> Call | None:
    """The call of a request; ``None`` if it costs nothing. If its body is nested too deeply, its path alone is read: the provider will refuse it."""
    try:
        return provider.describe(path, body)
    except RecursionError:
        return provider.describe(path, {})


def at_account(pacer: Pacer, metered: Metered, provider: Provider, payer: Payer | None = None) -> Metered | None:
    """A described request at another account of its provider; ``None`` where it has to be described anew."""
    known, provider = metered.provider, provider if payer is None else payer.account.provider
    # Azure and Bedrock have ``at_host``: the names of their pools have a part of the address.
    if hasattr(known, "at_host") or base_of(known.name) != base_of(provider.name):
        return None
    scheduler = pacer.pools.of_model(provider.name, metered.call.model)
    cache, prompt = scheduler.prompt_cache, metered.prompt
    moved = None if cache is None or prompt is None else prompt.at(cache)
    return replace(metered, provider=provider, scheduler=scheduler, prompt=moved, payer=payer)


FORM_END_MAX: Final = 16_384
"""The bytes at each end of a multipart form in which a recording begins and ends."""
PARTS_MAX: Final = 10_000
"""The parts of a multipart form that are looked at; each takes a microsecond."""
COUNTED: Final = frozenset({"model", "prompt", "stream", "n"})
"""The fields of a form that decide on what a request costs."""
PART_HEAD_MAX: Final = 1_024
"""The bytes of the headers of a part that are looked at."""
_FIELD = re.compile(rb'; ?name=("?)(model|prompt|stream|n)\1\r\n')  # .NET writes no quotes


def body_of(content: bytes) -> dict[str, Any]:
    """The JSON object in ``content``, or what counts of a multipart form; empty for anything else."""
    if content.startswith(b"--"):
        form: dict[str, Any] = {}
        for name, value in _texts_in(content):
            form.setdefault(name, value)
        number = form.get("n", "")
        # ``isdigit`` alone is true of "²", which ``int`` refuses, as it refuses thousands of digits.
        images = int(number) if number.isascii() and number.isdigit() and len(number) < 4 else None
        return form | {"stream": form.get("stream") == "true", "n": images, AUDIO_SECONDS: _seconds_in(content)}
    body = decode(content)
    return body if isinstance(body, dict) else {}


def _texts_in(content: bytes) -> Iterator[tuple[str, str]]:
    """The fields of a multipart form that are counted; its files are passed over."""
    start = content.find(b"\r\n", 0, FORM_END_MAX)
    # Without a first line there is no boundary, and no part is looked for.
    between, at = b"\r\n" + content[: max(start, 0)], start + 2
    for _ in range(PARTS_MAX if start > 0 else 0):
        end = content.find(between, at)
        if end < 0:
            break
        head = content.find(b"\r\n\r\n", at, min(end, at + PART_HEAD_MAX))
        if head >= 0 and (field := _FIELD.search(content, at, head + 2)):
            yield field[2].decode(), content[head + 4 : end].decode("utf-8", "replace")
        at = end + len(between) + 2  # behind the end of its line, or the dashes of the last one


def _seconds_in(content: bytes) -> float:
    """How long the recording in a multipart form is, in seconds; 0 for a form without one."""
    named = content.find(b"; filename=", 0, FORM_END_MAX)
    start = content.find(b"\r\n\r\n", named, named + FORM_END_MAX) + 4 if named >= 0 else 0
    if start < 4:
        return 0.0
    boundary = content[: content.find(b"\r\n", 0, FORM_END_MAX)]
    # From near the end: the bytes of a recording are many, and need not be looked through.
    end = content.find(b"\r\n" + boundary, max(start, len(content) - FORM_END_MAX))
    return seconds_of(memoryview(content)[start : end if end >= 0 else len(content)])


def metered(
    pacer: Pacer,
    provider: Provider,
    call: Call,
    body: Mapping[str, Any] | None = None,
    again: Body | None = None,
    payer: Payer | None = None,
    scheduler: Scheduler | None = None,
) -> Metered:
    """The call, with what is known of the tokens of such calls, and of its prompt, if there is a ``body``.

    Args:
        pacer: The pacer.
        provider: The provider, under its own name.
        call: The call.
        body: The JSON value of its body.
        again: Returns the body once more, when the prompt is looked at later.
        payer: Who pays; ``None`` for the account of the provider's name.
        scheduler: Of its pool; ``None`` for the pool of its model.
    """
    if payer is not None:
        provider = payer.account.provider
    if call.provider != provider.name:
        call = replace(call, provider=provider.name)
    if scheduler is None:
        scheduler = pacer.pools.of_model(provider.name, call.model)
    # Of the provider, not of the account: who pays changes no count of tokens.
    calibration = pacer.calibrations.of(pacer.pools.base(call.provider), call.model, call.endpoint)
    cache, prompt = scheduler.prompt_cache, None
    if cache is not None and body is not None and call.max_output_tokens != 0:  # an embedding reads no cache
        prompt = prompt_of(cache, call.model, body, again)
    return Metered(provider, call, scheduler, calibration, prompt=prompt, payer=payer)


def estimate(pacer: Pacer, pool: str, asked: object, output_tokens: int | None) -> Cost:
    """See :meth:`Limiter.estimate <paceline.Limiter.estimate>`."""
    scheduler = pacer.pools.scheduler(pool)
    if output_tokens is not None:
        check_cost({"output_tokens": output_tokens})
    most = None if output_tokens is None else int(output_tokens)
    if asked is None:
        return unsized_cost(scheduler.pool.name, scheduler.pool.ledger.entries.units, most)
    provider = provider_of(scheduler.pool.name)
    prefix, slash, model = pool.partition("/")
    if not slash or provider_named(prefix).name != provider.name:  # the slash is in the name of the model
        model = pool
    call = call_by_hand(provider, model, _body(model, asked))
    if most is not None:
        call = replace(call, max_output_tokens=most)
    found = metered(pacer, provider, call, scheduler=scheduler)
    several = call.units.keys() & {REQUESTS}  # texts, each of them a request
    units = {INPUT_TOKENS, OUTPUT_TOKENS, *scheduler.pool.ledger.entries.units} - {REQUESTS, CONCURRENCY} | several
    # Rounded: 7.7, not 7.7000...01.
    cost = {unit: round(float(amount), 3) for unit, amount in found.cost().items() if unit in units}
    if INPUT_TOKENS in cost:
        sized = cost[INPUT_TOKENS] = Estimated(cost[INPUT_TOKENS])
        sized.learn = found.learn
    return cost


def _body(model: str, asked: object) -> Mapping[str, Any]:
    """The body of a request that holds ``asked``, for the APIs of all providers at once."""
    texts = [asked] if isinstance(asked, str) else asked
    if embeds(model) and isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        return {"model": model, "input": asked, "texts": texts}
    if isinstance(asked, str):
        asked = [{"role": "user", "content": asked}]
    if isinstance(asked, Mapping):
        return {"model": model, **asked}
    if isinstance(asked, Sequence) and not isinstance(asked, bytes | bytearray):
        return {"model": model, "messages": asked, "contents": asked}
    raise QuotaError(
        f"{type(asked).__name__} cannot be estimated: give a text, a list of messages, or a request's body as a mapping"
    )


def call_by_hand(provider: Provider, model: str, body: Mapping[str, Any]) -> Call:
    """The body as a request to the first of the usual paths that the provider meters."""
    for path in _paths(model, body):
        call = provider.describe(path, body)
        if call is not None:
            return call
    call = provider_named("generic").describe("/v1/chat/completions", body)
    assert call is not None
    return replace(call, provider=provider.name)


_EMBED_METHODS: Final = {"requests": "batchEmbedContents", "content": "embedContent", "contents": "embedContent"}
"""Gemini's methods for embeddings, by the field that holds the texts."""


def _paths(model: str, body: Mapping[str, Any]) -> Iterator[str]:
    if embeds(model) and "messages" not in body:
        for name, method in _EMBED_METHODS.items():
            if name in body:
                yield method_path(model.removeprefix("models/"), method)
        if "texts" in body:
            yield "/v2/embed"
        yield "/v1/embeddings"
    if "contents" in body:
        yield f"/v1beta/models/{model}:generateContent"
    if "input" in body and "messages" not in body:
        yield "/v1/responses"
    yield f"/model/{model}/converse"
    yield "/v2/chat"
    yield "/v1/chat/completions"
    yield "/v1/messages"
