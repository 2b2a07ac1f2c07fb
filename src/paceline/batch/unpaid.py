"""Which results of a batch are neither an answer nor paid, and no fault of the request: it is sent again."""

from __future__ import annotations

import re
from typing import Final

from paceline.core.results import RefusalKind
from paceline.pacing.faults import PASSING
from paceline.providers.refusals import meaning

_PASSES: Final = frozenset([RefusalKind.RATE, RefusalKind.GROWTH, RefusalKind.CAPACITY])

_STATUSES: Final = (PASSING | {429}) - {501, 505}
"""The statuses of requests that can be sent again as they are; not what a server says that it never does."""

_OF_SERVERS: Final = "server_error internal_error internal_server_error api_error timeout_error"  # OpenAI, Anthropic
_OF_CALLS: Final = "cancelled unknown deadline_exceeded aborted internal data_loss unavailable"  # google.rpc.Code
_CODES: Final = frozenset(f"{_OF_SERVERS} {_OF_CALLS}".split())
"""The codes of such errors that are not refusals, which :func:`~paceline.providers.refusals.meaning` knows."""

_UNDONE: Final = re.compile(
    r"cancel|expire|time[d]?[_ -]?out|deadline|abort|interrupt|stopped|shut[_ -]?down|unprocessed"
    r"|(?:not|never)[_ -](?:been[_ -])?(?:executed|processed|started|run|completed)",
    re.IGNORECASE,
)
"""What errors of requests say that the batch's end has left: ``batch_expired``, ``batch_cancelled`` and ``request_timeout`` are OpenAI's
(API reference, the request output object, 2026-11)."""


NAMELESS: Final = frozenset(["", "no_answer", "errored", "batch_error"])
"""The codes of errors that name none."""


def is_unpaid(status: int | None, code: str, words: str) -> bool:
    """Whether a request with this error was neither answered nor paid, so that it can be sent again as it is.

    Args:
        status: The HTTP status of its answer; ``None`` or 0 for no answer.
        code: The error's code; empty for none.
        words: Its message.
    """
    if not status and code.isdecimal() and int(code) >= 400:
        status = int(code)
    failed = status if status and status >= 400 else None  # an error in an answer with status 200 is known by its code
    refusal = meaning(failed, [code] if code else [], words)
    if refusal is not None:
        return refusal.kind in _PASSES
    if failed:
        return failed in _STATUSES
    if code.lower() in _CODES:
        return True
    return not status and _UNDONE.search(words if code in NAMELESS else code) is not None
