"""The gateway's own answers, and what is logged of failures."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from traceback import format_tb
from typing import Any, Final

from paceline.gateway.forms import as_asked
from paceline.gateway.relay import ClientReply, let_go
from paceline.gateway.waiting import PLACE_S
from paceline.pacing.faults import Fault, fault_of
from paceline.pacing.lack import Lack, lack_of
from paceline.providers.base import Call
from paceline.providers.refusals import is_about_key
from paceline.responses.errors import error_of
from paceline.telemetry.status_app import Send

log = logging.getLogger("paceline.gateway")

TELL_S: Final = 60.0
"""The least time between two lines of the log that tell of the same lack, error or fallback."""

TOLD_MAX: Final = 1_000
"""How many lines of one kind are remembered: patterns take names from clients."""


class RequestError(Exception):
    """A request that the gateway does not send: the status and the word of its answer, and a message."""

    def __init__(self, status: int, word: str, message: str) -> None:
        super().__init__(message)
        self.status, self.word = status, word


async def hide_account(reply: ClientReply, path: str = "") -> None:
    """Leave the account of the gateway's own key out of an error at ``path``: a client takes what is said of a key for its own."""
    if reply.of_gateway and reply.status in (400, 401, 403):
        body, _ = await reply.peek_error()
        if is_about_key(reply.status, error_of(body)[0]):
            message = f"{reply.server} refuses the gateway's own key, not yours: its operator has to write a valid one"
            # What no client repeats: after a 502 Codex asked 30 times, and qwen-code and opencode for a minute (2026-12).
            instead = own(401, "upstream_key", message, {"x-should-retry": "false"}, path)
            reply.put(instead.status, instead.headers, await instead.peek(0))
    await reply.hide_key()


async def as_event(reply: ClientReply, call: Call) -> ClientReply:
    """An error as an event in a stream that has begun, which then breaks off: some SDKs read no error there."""
    try:
        await hide_account(reply)
        body = b"".join([part async for part in reply.parts()])
    finally:
        reply.close()
    try:
        value = json.loads(body)
        value = value[0] if isinstance(value, list) else value  # Gemini's
        error = dict(value["error"])
    except (ValueError, TypeError, LookupError):
        error = _detail(502, "no_answer", f"the server answered with status {reply.status}")
        value = {"type": "error", "error": error}
    name = b""
    match call.endpoint:
        case "messages":  # Anthropic's SDKs read events by their names
            name = b"event: error\n"
        case "responses":
            told = {"type": "error", "sequence_number": 0, "error": error}
            value = {"code": None, "message": "", "param": None} | error | told
        case "generate":
            # Google's SDKs raise an error whose code is a number; that for Python wants the error before all else
            # (google-genai 3.4.0, @google/genai 2.32.0). Any other event is content to them.
            code = error.get("code")
            value = {"error": error if isinstance(code, int) else error | {"code": reply.status, "status": code}}
    event = ClientReply(200, [], name + b"data: " + json.dumps(value).encode() + b"\n\n")
    event.broken = True
    return event


def stopping() -> RequestError:
    """For a request that comes, or still waits, when the gateway ends."""
    return RequestError(503, "stopping", "this gateway is stopping: send the request again")


def come_back(status: int) -> RequestError:
    """For a client that would give up soon."""
    return RequestError(
        status, "waiting", f"this request still waits: send it again within {PLACE_S:g} s, and it keeps its place"
    )


def no_answer(error: Exception, server: str = "the server") -> RequestError:
    """A server that did not answer, or a lack of this machine; ``server``: its name, or each name in a group."""
    if (lack := lack_of(error)) is not None:
        tell_lack(lack)
        return RequestError(503, "lack", f"this gateway's machine lacks what another request needs: {lack}")
    fault = fault_of(error)
    if isinstance(error, TimeoutError) and fault is not Fault.UNREACHED:
        answer = RequestError(504, "timeout", f"{server} did not answer in time")
    elif fault is Fault.UNREACHED:
        answer = RequestError(502, "unreached", f"{server} cannot be reached: {type(error).__name__}")
    else:
        answer = RequestError(502, "no_answer", f"the connection to {server} broke: {type(error).__name__}")
    if fault is None:
        tell(error)
    elif untold(answer.word, server) is not None:
        log.warning("%s, so that clients get a %d", answer, answer.status)
    let_go(error)
    return answer


_told: dict[str, dict[object, tuple[float, int]]] = {}


def untold(kind: str, about: object = None) -> int | None:
    """How many lines of a kind were left out since the last one about the same, if another one is due; ``None``: it is left out, too."""
    now_s, told = time.monotonic(), _told.setdefault(kind, {})
    told_s, more = told.get(about, (-math.inf, 0))
    due = now_s - told_s >= TELL_S
    if due and len(told) >= TOLD_MAX:
        told.clear()
    told[about] = (now_s, 0) if due else (told_s, more + 1)
    return more if due else None


def tell_lack(lack: Lack) -> None:
    """Log what this machine lacks, once in ``TELL_S``."""
    if untold("lack", lack) is not None:
        log.warning("this machine lacks what further requests need, which get a 503 or wait: %s%s", lack, lack.remedy)


def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop: thousands of one lack once, which asyncio reports for each place in the backlog."""
    lack = lack_of(context.get("exception"))
    if lack is None:
        loop.default_exception_handler(context)
    else:
        tell_lack(lack)


def tell(error: Exception) -> None:
    """Log an unexpected error, without its message: it may hold a key or a part of a request."""
    log.error("a request failed: %s\n%s", type(error).__name__, "".join(format_tb(error.__traceback__)))


def own(status: int, word: str, message: str, headers: dict[str, str] | None = None, path: str = "") -> ClientReply:
    """The answer with an error of the gateway's own, to a request for ``path``, in a form that most SDKs read."""
    value = as_asked(path, status, {"type": "error", "error": _detail(status, word, message)})
    return json_reply(status, value, {"x-paceline": word, **(headers or {})})


def _detail(status: int, word: str, message: str) -> dict[str, Any]:
    kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "api_error"
    return {"type": kind, "code": f"paceline_{word}", "message": f"paceline: {message}", "param": None}


_WAIT: Final = {"retry-after": "5", "x-should-retry": "true"}
_BY_WORD: Final = {
    "no_key": {"x-should-retry": "false"},
    "under_way": _WAIT,
    "waiting": _WAIT | {"connection": "close"},  # only a connection that is opened later has a claim
}
_BY_STATUS: Final = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}
"""The headers of the answer to a request that is not sent, by the word or else by the status."""


def refusal(error: RequestError, path: str) -> ClientReply:
    """The answer to a request for ``path`` that is not sent."""
    headers = _BY_WORD.get(error.word) or _BY_STATUS.get(error.status)
    return own(error.status, error.word, str(error), headers, path)


def json_reply(status: int, value: Any, headers: dict[str, str] | None = None) -> ClientReply:
    """An answer with ``value`` as JSON."""
    body = json.dumps(value).encode()
    pairs = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    return ClientReply(status, [(name.encode(), text.encode()) for name, text in pairs.items()], body)


async def respond(reply: ClientReply, send: Send) -> None:
    """Send an answer of the gateway's own."""
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    body = b"".join([part async for part in reply.parts()])
    await send({"type": "http.response.body", "body": body})
