"""Spans and metrics through the API of OpenTelemetry; which SDK receives them, and where it sends them, is the program's.

    listener = otel.Listener()  # of the global providers
    limiter = paceline.Limiter(..., events=listener)
    otel.watch(limiter)

Names of the GenAI semantic conventions (1.38, development status, 2025-10) where they exist: ``gen_ai.client.token.usage``,
``gen_ai.provider.name``, ``gen_ai.request.model``, ``gen_ai.token.type``. No attribute has a key or a prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final
from weakref import WeakKeyDictionary

from paceline.core.hints import why_missing
from paceline.core.quota import INPUT_TOKENS, NS, OUTPUT_TOKENS
from paceline.pacing.events import Event
from paceline.telemetry import status_app as asgi
from paceline.telemetry.families import FAMILIES, Family
from paceline.telemetry.history import Reporting
from paceline.telemetry.merged import merged

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider
    from opentelemetry.util.types import Attributes
except ImportError as error:
    raise ImportError(why_missing(error, "OpenTelemetry", "otel"), name=__name__) from error

SCOPE: Final = "paceline"

WAIT_MIN_S: Final = 0.001
"""Shorter waits have no span."""

USAGE_BOUNDS: Final = (1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304)
"""The buckets that the conventions recommend for tokens."""

WAIT_BOUNDS: Final = (0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600)

_TOKENS: Final = ((INPUT_TOKENS, "input"), (OUTPUT_TOKENS, "output"))


class Listener:
    """Makes spans and metrics of the events of permits; the ``events`` of a limiter.

    A wait for a permit becomes a span ``paceline.wait`` below the span that is current where the permit is acquired; a
    refusal of the provider becomes an event of the current span. The metrics are the usage of tokens and the waits.

    Args:
        meter_provider: By default the global one.
        tracer_provider: By default the global one.
    """

    def __init__(
        self, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._usage = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens used, as the answers report.",
            explicit_bucket_boundaries_advisory=USAGE_BOUNDS,
        )
        self._waits = meter.create_histogram(
            "paceline.wait",
            unit="s",
            description="Waits for a permit.",
            explicit_bucket_boundaries_advisory=WAIT_BOUNDS,
        )

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if event.kind == "acquired":
            self._waits.record(event.waited_s, {"paceline.pool": event.pool})
            if event.waited_s >= WAIT_MIN_S:
                self._span_wait(event)
        elif event.kind == "settled" and event.used is not None:
            model, used = _model(event.pool), event.reported or event.used
            for unit, kind in _TOKENS:
                if used.get(unit):
                    self._usage.record(used[unit], {**model, "gen_ai.token.type": kind})
        elif event.kind == "refused":
            about = {"paceline.pool": event.pool, "paceline.reason": event.reason or ""}
            trace.get_current_span().add_event("paceline.refused", about)

    def _span_wait(self, event: Event) -> None:
        now_ns = time.time_ns()
        about: Attributes = {"paceline.pool": event.pool, "paceline.lane": event.lane, **_model(event.pool)}
        start_ns = now_ns - round(event.waited_s * NS)
        self._tracer.start_span("paceline.wait", attributes=about, start_time=start_ns).end(now_ns)


class Traced:
    """An ASGI application, with a span ``paceline.request`` of each POST below the span that its ``traceparent`` names.

    Args:
        app: The application.
        tracer_provider: By default the global one.
    """

    def __init__(self, app: asgi.App, tracer_provider: TracerProvider | None = None) -> None:
        self._app = app
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)

    async def __call__(self, scope: asgi.Event, receive: asgi.Receive, send: asgi.Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with self._tracer.start_as_current_span(
            "paceline.request",
            propagate.extract(headers),
            trace.SpanKind.SERVER,
            {"http.request.method": "POST", "url.path": scope["path"]},
        ) as span:

            async def tell(event: asgi.Event) -> None:
                if event["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", event["status"])
                    if event["status"] >= 500:
                        span.set_status(trace.StatusCode.ERROR)
                await send(event)

            await self._app(scope, receive, tell)


_WATCHED: Final[WeakKeyDictionary[Any, list[Reporting]]] = WeakKeyDictionary()
"""What is observed, by provider: of the instruments of one name, an SDK takes the callbacks of the first alone."""


def watch(limiter: Reporting, meter_provider: MeterProvider | None = None) -> None:
    """Observe the status of ``limiter`` at each collection of metrics, beside the limiters that are watched already.

    Args:
        limiter: A limiter, or any object with such a ``status()``.
        meter_provider: By default the global one.
    """
    watched = _WATCHED.setdefault(meter_provider or metrics.get_meter_provider(), [])
    watched.append(limiter)
    if len(watched) > 1:
        return
    meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)

    for family in FAMILIES:
        make = meter.create_observable_counter if family.grows else meter.create_observable_gauge
        observe = [_observing(watched, family)]
        make(f"{SCOPE}.{family.name}", observe, unit=family.unit, description=family.about)


def _observing(watched: list[Reporting], family: Family) -> Callable[[CallbackOptions], Iterable[Observation]]:
    names = [f"{SCOPE}.{label}" for label in family.labels.split()]

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for values, number in family.rows(merged([limiter.status() for limiter in watched])["pools"]):
            if number is not None:
                yield Observation(number, dict(zip(names, values, strict=True)))

    return observe


def _model(pool: str) -> dict[str, str]:
    provider, slash, model = pool.partition("/")
    return {"gen_ai.provider.name": provider.partition("@")[0], "gen_ai.request.model": model} if slash else {}
