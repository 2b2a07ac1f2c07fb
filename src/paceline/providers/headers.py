"""The limits in the headers of an answer, for programs that read them by hand."""

from __future__ import annotations

import time
from dataclasses import dataclass

from paceline.core.results import Reading, public
from paceline.providers import parse
from paceline.providers.forms import table
from paceline.providers.quota_headers import readings_in
from paceline.providers.registry import provider_named


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
    dialect = provider_named(provider) if provider else None
    read = readings_in if dialect is None else dialect.readings  # names that all servers use alike
    readings = read(found, time.time() if now_s is None else now_s)
    return HeaderLimits("" if dialect is None else dialect.name, tuple(readings), parse.retry_after_s(found))
