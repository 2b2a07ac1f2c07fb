"""What a request is: whose, for which pool, at what cost. Only known paths are metered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from paceline.core.quota import Cost
from paceline.estimation.calibration import TokenCalibration
from paceline.http.sansio import Io
from paceline.pacing.scheduler import Scheduler
from paceline.providers.base import Call, Provider
from paceline.providers.registry import provider_for_host, provider_named

if TYPE_CHECKING:
    from paceline.limiter.limiter import Limiter


@dataclass(frozen=True, slots=True)
class Metered:
    """A request that costs something."""

    provider: Provider
    call: Call
    scheduler: Scheduler
    calibration: TokenCalibration

    def cost(self) -> Cost:
        """What the provider will hold, by what is known now."""
        call = self.call
        # An expectation is no demand: it may not make a request too large that the provider would admit.
        expected = min(
            self.calibration.expected_output(call.max_output_tokens), self.scheduler.pool.ledger.most_output / 2
        )
        return self.provider.held(call, self.calibration.input.apply(call.input_tokens), expected)


async def describe(limiter: Limiter, request: Any, provider: Provider | None, io: Io) -> Metered | None:
    """Describe an httpx or httpx2 request; ``None`` when nobody charges for it."""
    if request.method != "POST":
        return None
    page: Any = provider or _provider_of(limiter, request)
    path = request.url.path
    if not _is_metered(page, path):  # its body is none of our business
        return None
    try:
        body = json.loads(await _content(request, io))
        call = page.describe(path, body if isinstance(body, dict) else {})
    except (ValueError, RecursionError):  # no JSON, or nested without end: the provider will say so
        call = page.describe(path, {})
    if call is None:
        return None
    return Metered(
        page,
        call,
        limiter.scheduler_for(page.name, call.model),
        limiter.calibrations.of(call.provider, call.model, call.endpoint),
    )


@lru_cache(maxsize=4_096)
def _is_metered(
    page: Any, path: str
) -> bool:  # Any: a protocol says nothing of hashing, and every page has its identity
    return page.describe(path, {}) is not None


def _provider_of(limiter: Limiter, request: Any) -> Provider:
    """As :func:`said_by`, else the one provider that the limiter is about, else generic."""
    return said_by(request) or provider_named(limiter.limits.home or request.url.host)


def said_by(request: Any) -> Provider | None:
    """Whose dialect a request speaks, by its host; on a host that nobody knows, by the protocol's own mark."""
    known = provider_for_host(request.url.host)
    if known is None and "anthropic-version" in request.headers:
        return provider_named("anthropic")
    return known


async def _content(request: Any, io: Io) -> bytes:
    content = getattr(request, "_content", None)
    if content is None:  # a streamed body: reading it makes it replayable, too
        content = await io.read(request)
    return bytes(content)
