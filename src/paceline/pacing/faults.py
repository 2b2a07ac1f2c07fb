"""Why a request has no answer: by the exceptions of HTTP libraries, and of what this machine lacks."""

from __future__ import annotations

from enum import Enum
from typing import Final

from paceline.pacing.lack import lack_of


class Fault(Enum):
    """Why a request has no answer."""

    UNSENT = "unsent"  # the caller's own client has sent nothing, or this machine lacked what a connection needs
    UNREACHED = "unreached"  # no connection to the host: it has received nothing
    BROKEN = "broken"  # a timeout, or a connection that broke: the provider may have counted the request


FAULTS: Final = {
    name: fault
    for fault, names in {
        Fault.UNSENT: "UnsentError PoolTimeout UnsupportedProtocol LocalProtocolError NothingSentError EmptyPoolError"
        " FullPoolError ClosedPoolError LocationValueError InvalidURL NonHttpUrlClientError",
        Fault.UNREACHED: "ConnectError ConnectTimeout ProxyError ConnectionRefusedError gaierror ClientConnectorError"
        " ConnectionTimeoutError NewConnectionError ConnectTimeoutError SSLError EndpointConnectionError"
        " ProxyConnectionError ClientHttpProxyError",
        Fault.BROKEN: "TimeoutException NetworkError ProtocolError ReadError WriteError ClientConnectionError"
        " ClientPayloadError TimeoutError ConnectionResetError ConnectionAbortedError BrokenPipeError"
        " HTTPClientError",
    }.items()
    for name in names.split()
}
"""The faults by the names of exceptions; the first base class of an exception that is here decides. They are raised by
httpx2, httpx, dspy, aiohttp and urllib3, and by the standard library under transports of other makers."""

PASSING: Final = frozenset([408, 409, 425, 499, *range(500, 600)])
"""The statuses of errors after which the same request may succeed: those that the SDKs of OpenAI and Anthropic retry
(429 is a refusal), 425 (RFC 8470), and Google's 499 for a cancelled call."""

CAUSES_MAX: Final = 4
"""How many exceptions that SDKs wrap around one another are looked at."""


def fault_of(error: BaseException) -> Fault | None:
    """Why a request has no answer; ``None`` for an error that is not about the host."""
    fault, lack = _fault_named(error), lack_of(error)
    if lack is None:
        return fault
    # Otherwise the request may have been sent: it is charged, and the host is not to blame.
    return Fault.UNSENT if lack.is_unsent or fault is Fault.UNREACHED else None


def is_of_answer(error: BaseException) -> bool:
    """Whether urllib3 has raised ``error`` for an answer without a result, when its own retries were over."""
    return type(getattr(error, "reason", None)).__name__ == "ResponseError"


def is_timeout(error: BaseException) -> bool:
    """Whether an answer was awaited for too long, by the names of exceptions."""
    return any("Timeout" in base.__name__ for base in type(error).__mro__)


def _fault_named(error: BaseException) -> Fault | None:
    """The fault by the names of the exceptions."""
    for _ in range(CAUSES_MAX):
        for base in type(error).__mro__:
            if base.__name__ in FAULTS:
                return FAULTS[base.__name__]
        inner = error.__cause__ or getattr(error, "reason", None)  # urllib3 1.26 has no cause for its MaxRetryError
        if not isinstance(inner, BaseException):
            return None
        error = inner
    return None
