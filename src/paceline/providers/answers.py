"""Usage, refusals and limits out of the objects of SDKs: answers, usage objects, exceptions, responses, headers."""

from __future__ import annotations

import json
import logging
import re
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from paceline.core.quota import INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS, Cost
from paceline.core.results import PacelineError, QuotaError, Reading, Refusal, RefusalKind, public
from paceline.estimation.calibration import UNKNOWN_INPUT_TOKENS, UNKNOWN_OUTPUT_TOKENS
from paceline.providers import parse
from paceline.providers.base import Call, Provider, Usage
from paceline.providers.forms import table
from paceline.providers.registry import is_provider, provider_for_host, provider_named
from paceline.providers.verdict import Verdict, judge
from paceline.responses.errors import SDKS, error_in, has_content
from paceline.responses.finish import Finish, form_of, promises_end
from paceline.responses.finish import finish_of as finished
from paceline.responses.values import as_mapping, count, decode

log = logging.getLogger("paceline.providers")

BODY_MAX: Final = 64_000  # bytes of a body that are read


def usage_cost(pool: str, answer: object, reserved: Cost | None = None) -> tuple[Cost, Usage | None]:
    """The cost per unit that the provider of ``pool`` has charged for an answer, and the usage that it reports.

    Args:
        pool: The pool's name, e.g. ``openai/gpt-6-luna``; one without a provider counts as OpenAI-compatible.
        answer: An SDK's answer, its usage object, either as a mapping, a ``Usage``; an HTTP response whose body is JSON or
            server-sent events; or an object or mapping with ``tokens_used``, input and output together.
        reserved: The reserved cost per unit; its ``output_tokens`` are the maximum that the request allowed.

    Returns:
        The cost, which is empty for an answer that reports no usage, as answers with pictures and speech do; and the
        usage, within the bounds of :func:`~paceline.providers.parse.plausible`.

    Raises:
        QuotaError: ``answer`` is no answer and contains no usage in this provider's form, or is an error.
    """
    provider, reserved = provider_of(pool), reserved or {}
    found = reported(pool, answer)
    if found is None:
        total = count(answer.get("tokens_used") if isinstance(answer, Mapping) else _get(answer, "tokens_used"))
        if total:
            return {TOKENS: float(parse.plausible(pool, Usage(total), reserved).input_tokens)}, None
        if _is_answer(answer):
            return {}, None
        raise QuotaError(
            f"{pool}: no usage in {type(answer).__name__}: settle with an answer that reports it, with a mapping like"
            " {'input_tokens': 812, 'output_tokens': 64}, or with amounts: settle(input_tokens=812, output_tokens=64)"
        )
    found, most = parse.plausible(pool, found, reserved), int(reserved.get(OUTPUT_TOKENS, 0)) or None
    number = reserved.get(REQUESTS, 1)
    several = {REQUESTS: number} if number > 1 else {}  # texts, each of them a request
    call = Call(provider.name, "", pool.partition("/")[2], found.input_tokens, most, units=several)
    return provider.charged(call, found), found


def reported(pool: str, answer: object) -> Usage | None:
    """The usage that ``answer`` reports; the arguments as for :func:`usage_cost`.

    Raises:
        QuotaError: ``answer`` is an HTTP response with an error.
    """
    if isinstance(answer, Usage):
        return answer
    provider = provider_of(pool)
    response, status = _response_in(answer)
    if response is None or status is None:
        if _is_error(answer):
            raise _no_usage(pool, f"error ({type(answer).__name__})")
        usage = provider.usage(_usage_in(answer))
    else:
        headers, body = _headers(response), _body(response, most=None)
        call = Call(provider.name, "", pool.partition("/")[2], 0, stream="event" in headers.get("content-type", ""))
        judged = judge(provider, call, status, headers, body, strict=False)
        if judged.verdict is Verdict.REFUSAL or status >= 400 or judged.error:
            raise _no_usage(pool, f"answer with status {status}" + " and an error" * (status < 400))
        reader = provider.usage_reader(call)
        reader.feed(body)
        reader.close()
        usage = reader.usage
    return usage or parse.usage_in_headers(headers_in(answer))  # boto3 returns the body of a model's own unread


def _is_answer(answer: object) -> bool:
    """Whether it is an HTTP response, or an SDK's answer or its mapping."""
    found: Any = answer if isinstance(answer, Mapping) else getattr(answer, "__dict__", {})
    return _response_in(answer)[0] is not None or not found.keys().isdisjoint(SDKS)


def _no_usage(pool: str, what: str) -> QuotaError:
    return QuotaError(
        f"{pool}: an {what} reports no usage: call permit.refused(response) for a refusal, and permit.settle() for another"
        " error, because the provider may have counted the request"
    )


def _is_error(answer: object) -> bool:
    """Whether an SDK's answer, or its mapping, is an error that came with status 200."""
    if not isinstance(answer, Mapping):
        if not _get(answer, "error"):
            return False
        dump = getattr(answer, "model_dump", None)
        answer = dump() if callable(dump) else {"error": str(_get(answer, "error"))}
    return error_in(answer) is not None and not has_content(answer)


def provider_of(pool: str) -> Provider:
    """The provider of a pool, by its name; without one, an OpenAI-compatible one."""
    name, slash, _ = pool.partition("/")  # a model's own name may contain more of them
    return provider_named(name if slash else "generic")


def unsized_cost(pool: str, units: Collection[str], output_tokens: int | None = None) -> Cost:
    """What the provider of ``pool`` holds of the tokens of a request of unknown size.

    ``units``: the units of the pool. ``output_tokens``: its maximum output; ``None`` for unknown.
    """
    provider, most = provider_of(pool), UNKNOWN_OUTPUT_TOKENS if output_tokens is None else output_tokens
    call = Call(provider.name, "", pool.partition("/")[2], UNKNOWN_INPUT_TOKENS, most)
    held = provider.held(call, UNKNOWN_INPUT_TOKENS, most)
    sides = (INPUT_TOKENS, OUTPUT_TOKENS)
    return {unit: float(amount) for unit, amount in held.items() if unit in sides or (unit in units and TOKENS in unit)}


def _usage_in(answer: object) -> Mapping[str, Any]:
    """An SDK's answer as a mapping, with its usage alone if it names one; or its usage object."""
    if isinstance(answer, Mapping):
        return answer
    inner = getattr(answer, "usage", None) or getattr(answer, "usage_metadata", None)
    found = _dumped(answer if inner is None else inner)
    return {"usage": found} if inner is not None else found if isinstance(found, Mapping) else {}


class Answer(NamedTuple):
    """An HTTP answer; ``host``: the host that gave it, or empty."""

    status: int
    headers: dict[str, str]
    body: bytes
    host: str

    @property
    def ours(self) -> bool:
        """Whether paceline itself gave it."""
        return "x-paceline" in self.headers


def refusal_of(error: object, provider: str | None = None) -> Refusal | None:
    """Return the refusal in an exception, or ``None``.

    The first HTTP answer decides: of the exception, or of an exception behind it (``__cause__``, ``__context__``). An
    exception group is a refusal if all of its exceptions are refusals, with their longest wait. If there is no
    answer, a text with ``rate limit``, ``rate_limit``, ``too many requests`` or the word ``429`` is a refusal, unless
    the exception
    is of a kind that has another cause (a ``TypeError``, a ``FileNotFoundError``).

    Args:
        error: An exception of ``openai``, ``anthropic``, ``groq``, ``mistralai``, ``google-genai``, ``cohere``, ``botocore``
            or ``httpx``; any object that has a ``response`` with a status and headers, or a status code itself; an
            exception that was raised because of one of them.
        provider: The provider that answered, e.g. ``openai``; by default the provider of the answer's host, or of the
            SDK.

    Returns:
        Why the provider refused, and how long it asks to wait; ``None`` for any other error (a 400, a 500), and for one
        of paceline's own.

    Example:
        try:
            answer = await client.responses.create(model="gpt-6-luna", input=prompt)
        except openai.APIStatusError as error:
            refusal = paceline.refusal_of(error)
            print(refusal and refusal.retry_after_s)
    """
    found: list[Refusal] = []
    for chain in _chains(error):
        refusal = _refusal_in(chain, provider)
        if refusal is None:
            return None
        found.append(refusal)
    return max(found, key=lambda refusal: refusal.retry_after_s or 0.0, default=None)


def _refusal_in(chain: list[object], provider: str | None) -> Refusal | None:
    for source in chain:
        if (answer := _answer_in(source)) is not None:
            if answer.ours:
                return None
            dialect = _provider_of(source, answer.host, provider)
            call = Call(dialect.name, "", "", 0)
            return judge(dialect, call, answer.status, answer.headers, answer.body, strict=False).refusal
    for source in chain:
        text = _text_of(source)
        if _SAYS_SO.search(text):
            said = _provider_of(source, "", provider).refusal(429, {}, text.encode("utf-8", "replace"))
            return replace(said, message="") if said is not None else Refusal(RefusalKind.RATE)
    return None


ERRORS_MAX: Final = 100
"""How many exceptions are read: those in groups, and those behind them."""

_RESPONSES: Final = ("response", "raw_response", "http_response", "sdk_http_response")
"""The attributes of SDKs' objects that hold the HTTP response."""


def _response_in(answer: object) -> tuple[object, int | None]:
    """The HTTP response that ``answer`` is or holds, and its status; ``(None, None)`` for none."""
    for response in (*(_get(answer, name) for name in _RESPONSES), answer):  # an SDK's wrapper has a status, too
        status = _status(response)
        if status is not None and _get(response, "headers") is not None:
            return response, status
    return None, None


def finish_of(answer: object) -> Finish:
    """Return what the model finished: the text, the thoughts and the tool calls of an answer, and why it ended.

    Args:
        answer: An SDK's answer, of any provider; its mapping, as boto3 returns it; or an HTTP response whose body is JSON.
            Also a message of LangChain, or the result of pydantic-ai, LangGraph or LlamaIndex: its last answer counts.

    Returns:
        Its ``state`` is ``complete``, ``tool_call``, ``cut_off``, ``declined``, ``blocked``, ``empty`` or ``paused``.
        ``whole()`` returns the text, or raises an ``UnfinishedError``. The first of several choices counts.

    Raises:
        TypeError: ``answer`` is a stream, or the list of its events, or an object that doesn't say what the model
            finished.

    Example:
        text = paceline.finish_of(await client.responses.create(model="gpt-6-luna", input=prompt)).whole()
    """
    answer = _last_answer(answer)
    dumped = decode(answer) if isinstance(answer, bytes) else _dumped(answer)
    if _is_stream(answer, dumped):
        raise TypeError(
            f"finish_of: {type(answer).__name__} is a stream, or its events: pass the whole answer, such as"
            " stream.get_final_message(), or json.loads(answer['body'].read()) of boto3"
        )
    if not isinstance(dumped, Mapping | list | str):
        response, _ = _response_in(answer)
        dumped = decode(_body(answer if response is None else response, most=None))
    elif isinstance(dumped, Mapping) and not _is_known(answer, dumped):
        raise TypeError(
            f"finish_of: {type(answer).__name__} does not say what the model has finished: pass the model's answer, as"
            " the SDK returned it"
        )
    return finished(dumped)


def _last_answer(answer: object) -> object:
    """The model's last answer in what a framework returns; ``answer`` itself where it is one."""
    if callable(_get(answer, "all_messages")):  # the result of a run of pydantic-ai
        return _get(answer, "response")
    messages = answer.get("messages") if isinstance(answer, Mapping) else None  # the state of LangGraph
    if isinstance(messages, list) and messages and _get(messages[-1], "response_metadata") is not None:
        return messages[-1]
    raw = _get(answer, "raw")  # LlamaIndex has the provider's answer beside its own; ``requests`` has a socket there
    return raw if isinstance(dumped := _dumped(raw), Mapping) and form_of(dumped) else answer


def _is_stream(answer: object, dumped: Any) -> bool:
    if isinstance(dumped, list):
        return bool(dumped) and isinstance(dumped[0], Mapping) and promises_end(dumped[0]) is True
    if isinstance(answer, Mapping):
        return any(callable(_get(value, "read")) or callable(_get(value, "get_stream")) for value in answer.values())
    iterates = any(hasattr(answer, name) for name in ("__next__", "__anext__"))
    return iterates or "text/event-stream" in _headers(_response_in(answer)[0]).get("content-type", "")


def _is_known(answer: object, dumped: Mapping[str, Any]) -> bool:
    """Whether an object that does not dump itself has the attributes of an answer, or of an error."""
    if isinstance(answer, Mapping) or any(callable(_get(answer, name)) for name in _DUMPS):
        return True
    return form_of(dumped) is not None or not SDKS.isdisjoint(dumped) or error_in(dumped) is not None


_DUMPS: Final = ("model_dump", "to_dict")


def _dumped(value: object, depth: int = 8) -> Any:
    """An SDK's answer as JSON values: as it dumps itself, or by its attributes."""
    if isinstance(value, Mapping | str | int | float) or not depth:
        return value
    if isinstance(value, list | tuple):
        return [_dumped(one, depth - 1) for one in value]
    for name in _DUMPS:
        if callable(dump := getattr(value, name, None)):
            return dump()
    if callable(listed := getattr(value, "ListFields", None)):  # a protobuf message, as gRPC SDKs return them
        return {field.name: _dumped(one, depth - 1) for field, one in listed()}
    if _get(value, "headers") is not None or not hasattr(value, "__dict__"):
        return None if depth == 8 else value
    return {name: _dumped(one, depth - 1) for name, one in vars(value).items() if not name.startswith("_")}


def headers_in(answer: object) -> dict[str, str]:
    """The headers of an HTTP response, or of an SDK's answer that holds them; empty for none."""
    if isinstance(answer, Mapping):  # as botocore returns it
        return _lowered(as_mapping(answer.get("ResponseMetadata")).get("HTTPHeaders"))
    holders = (answer, *(_get(answer, name) for name in _RESPONSES))
    return next(filter(None, map(_headers, holders)), {})


def readings_in(pool: str, headers: Mapping[str, str], now_s: float) -> list[Reading]:
    """The quotas that the headers of an answer of ``pool`` report; ``now_s``: seconds since the epoch."""
    return provider_of(pool).readings(headers, now_s)


@public
@dataclass(frozen=True, slots=True)
class HeaderLimits:
    """The limits in the headers of one answer.

    Attributes:
        provider: The provider in whose dialect they were read; empty if their names don't show one.
        readings: One for each quota that the headers report, with ``unit``, ``limit``, ``remaining``, ``reset_s`` and
            ``period_s``; a field is ``None`` where its header is missing or cannot be read.
        retry_after_s: The wait that ``retry-after`` or ``retry-after-ms`` asks for, in seconds; ``None`` for none.
    """

    provider: str
    readings: tuple[Reading, ...]
    retry_after_s: float | None


def limits_in(headers: object, provider: str | None = None, *, now_s: float | None = None) -> HeaderLimits:
    """Read the limits in the headers of an answer. To let a limiter learn from them, see :meth:`Limiter.observe`.

    Args:
        headers: A mapping, or pairs of a name and a value; names and values are texts or bytes, in any case.
        provider: The provider that gave the answer, e.g. ``groq``. ``None``: the one that uses these names. Names can
            be ambiguous: ``x-ratelimit-limit-requests`` is for a day at Groq, and for a minute at OpenAI, which
            paceline assumes.
        now_s: The time of the answer in seconds since the epoch, if its ``date`` header is missing; now by default.
            Needed for resets that are instants.

    Raises:
        TypeError: ``headers`` is neither a mapping nor pairs.

    Example:
        answer = await client.responses.with_raw_response.create(model="gpt-6-luna", input=prompt)
        limits = paceline.limits_in(answer.headers)
        left = {reading.unit: reading.remaining for reading in limits.readings}
    """
    found = parse.headers_of(headers)
    if provider is None:
        starts = ((name, tuple(row.get("headers", ()))) for name, row in table("dialects").items())
        provider = next((name for name, start in starts if any(header.startswith(start) for header in found)), "")
    dialect = provider_named(provider or "generic")  # names that all servers use alike
    readings = dialect.readings(found, time.time() if now_s is None else now_s)
    return HeaderLimits(dialect.name if provider else "", tuple(readings), parse.retry_after_s(found))


_SAYS_SO = re.compile(r"rate[ _]limit|too many requests|(?<![\w.,])429(?!\w|[.,]\d)", re.IGNORECASE)
_OTHER: Final = (
    PacelineError, ArithmeticError, AssertionError, AttributeError, EOFError, ImportError, LookupError, MemoryError, NameError,
    ReferenceError, SyntaxError, TypeError, Warning,
)  # fmt: skip


def _is_other(error: BaseException) -> bool:
    """Whether ``error`` is by its type about something else, so that its text may mention a limit by chance.

    The text of a subclass of ``ValueError`` repeats what could not be parsed, and the text of an ``OSError`` with a number names a file.
    """
    parses = isinstance(error, ValueError) and type(error) is not ValueError
    system = isinstance(error, OSError) and error.errno is not None
    return parses or system or isinstance(error, _OTHER) or not isinstance(error, Exception)


def _text_of(error: object) -> str:
    if not isinstance(error, BaseException) or _is_other(error):
        return ""
    try:
        return str(error)[:4_096]
    except Exception:  # noqa: BLE001  (a foreign method)
        return ""


def _chains(error: object) -> Iterator[list[object]]:
    """``error`` and the exceptions behind it, nearest first; with a group among them, one such chain for each of its own.

    With an error of paceline in it, a chain is empty. The context of an error that is about something else is not its
    reason, so it is left out.
    """
    todo: deque[tuple[list[object], object]] = deque([([], error)])
    read = 0
    while todo:
        chain, at = todo.popleft()
        while at is not None and read < ERRORS_MAX and not any(at is before for before in chain):
            read += 1
            if isinstance(at, BaseExceptionGroup):
                todo.extend((chain, one) for one in at.exceptions)
                chain, at = [], None
                break
            if isinstance(at, PacelineError):
                yield []
                return
            chain = [*chain, at]
            if not isinstance(at, BaseException):
                break
            hidden = at.__suppress_context__ or _is_other(at)
            at = at.__cause__ or (None if hidden else at.__context__)
        if chain:
            yield chain


def refusal_said(error: object, pool: str) -> tuple[Refusal | None, Mapping[str, str]]:
    """As :func:`refusal_of`, for an answer that must be a refusal of ``pool``; with the headers of the answer.

    The refusal is ``None`` only for paceline's own 429.

    Raises:
        TypeError: ``error`` has no HTTP answer, and its text names no rate limit.
        QuotaError: Its answer is not a refusal.
    """
    name, slash, _ = pool.partition("/")
    refusal, answer = refusal_of(error, name if slash and is_provider(name) else None), answer_of(error)
    if refusal is not None or (answer is not None and answer.ours):
        return refusal, {} if answer is None else answer.headers
    if answer is None:
        raise TypeError(
            f"{pool}: {type(error).__name__} carries no HTTP answer, so it does not say that the provider refused: pass"
            " an SDK's exception with a response, an event with an error, a paceline.Refusal, or retry_after_s=..."
        )
    raise QuotaError(
        f"{pool}: an answer with status {answer.status} is no refusal: settle() the permit, or cancel() it if nothing"
        " was sent"
    )


def answer_of(error: object) -> Answer | None:
    """The HTTP answer in ``error`` or behind it, or ``error`` itself where it is one; ``None`` when there is none."""
    return next((found for chain in _chains(error) for source in chain if (found := _answer_in(source))), None)


def _answer_in(error: object) -> Answer | None:
    for response in (*(_get(error, name) for name in _RESPONSES[:3]), error):
        if isinstance(response, Mapping) and response is not error:
            return _botocore_answer(response)
        if (status := _status(response)) is not None:
            headers = _headers(response) or _headers(error)
            return Answer(status, headers, _body(response) or _body(error), _host(response) or _host(error))
    event = None if isinstance(error, BaseException) else _dumped(error)
    if error_in(event) is not None:  # of a stream or a WebSocket
        return Answer(200, {}, json.dumps(event, default=str).encode(), "")
    return None


def _botocore_answer(response: Mapping[str, Any]) -> Answer | None:
    """An answer as botocore parses it: status and headers in ``ResponseMetadata``, and the ``Error``."""
    about, error = as_mapping(response.get("ResponseMetadata")), response.get("Error")
    status = about.get("HTTPStatusCode")
    if not isinstance(status, int) or not isinstance(error, Mapping):
        return None
    body = {"__type": str(error.get("Code", "")), "message": str(error.get("Message", ""))[:BODY_MAX]}
    return Answer(status, _lowered(about.get("HTTPHeaders")), json.dumps(body).encode(), "")


def _provider_of(error: object, host: str, provider: str | None) -> Provider:
    if provider is not None:
        return provider_named(provider)
    known = provider_for_host(host) if host else None
    if known is not None:
        return known
    packages = (cls.__module__.partition(".")[0] for cls in type(error).__mro__)
    sdks = {row["sdk"]: name for name, row in table("dialects").items() if "sdk" in row}
    return provider_named(next((sdks[package] for package in packages if package in sdks), "generic"))


def _get(thing: object, name: str) -> Any:
    """An attribute; ``None`` where it is missing or raises (a body that was not read, for example)."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001  (a foreign property)
        return None


def _status(thing: object) -> int | None:
    found = (_get(thing, name) for name in ("status_code", "status", "code"))
    return next((int(status) for status in found if isinstance(status, int) and 100 <= status <= 599), None)


def _headers(thing: object) -> dict[str, str]:
    return _lowered(_get(thing, "headers"))


def _lowered(headers: object) -> dict[str, str]:
    try:
        return parse.headers_of(headers)
    except Exception:  # noqa: BLE001  (a foreign mapping)
        return {}


def _body(thing: object, most: int | None = BODY_MAX) -> bytes:
    """The body of a response that was read, at most so many bytes; of aiohttp's it is ``_body``."""
    for name in ("content", "_body", "body", "details", "text", "data"):
        body = _get(thing, name)
        if isinstance(body, Mapping | list):
            try:
                body = json.dumps(body)
            except (TypeError, ValueError, RecursionError):
                continue
        if isinstance(body, str):
            body = body[:most].encode("utf-8", "replace")
        if isinstance(body, bytes) and body:
            return body[:most]
    return b""


def _host(thing: object) -> str:
    host = _get(_get(_get(thing, "request"), "url"), "host")
    return host if isinstance(host, str) else ""
