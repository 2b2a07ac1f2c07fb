"""Spans and metrics, as an SDK of OpenTelemetry receives them."""

import asyncio

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import paceline
from paceline.config import Config
from paceline.gateway.server import ProcessSettings
from paceline.telemetry import otel
from virtual_time import virtual


@pytest.fixture
def received():
    """The providers of an SDK, and what they have received."""
    reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    return MeterProvider([reader]), tracers, reader, exporter


def points(reader):
    """Data points by the name of their metric."""
    data = reader.get_metrics_data()
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@virtual
async def test_waits_usage_and_refusals(clock, received):
    meters, tracers, reader, exporter = received
    listener = otel.Listener(meters, tracers)
    limiter = paceline.Limiter({"openai/gpt-5": "60 requests/min burst 3"}, clock=clock, events=listener)
    otel.watch(limiter, meters)
    tracer = tracers.get_tracer("program")
    with tracer.start_as_current_span("work"):
        for answer in [{"input_tokens": 80, "output_tokens": 7}] * 5:  # the provider charges 10 of output
            async with limiter.acquire("openai/gpt-5", input_tokens=100, output_tokens=10) as permit:
                permit.settle(answer)
        async with limiter.acquire("openai/gpt-5") as permit:
            permit.refused(retry_after_s=30.0)
    with paceline.lane("second"):
        waits = asyncio.ensure_future(limiter.acquire("openai/gpt-5")._wait_async())
    await asyncio.sleep(0.1)
    found = points(reader)
    waits.cancel()
    spans = exporter.get_finished_spans()
    work = next(span for span in spans if span.name == "work")
    waits = [span for span in spans if span.name == "paceline.wait"]
    assert len(waits) >= 3
    assert {span.parent.span_id for span in waits} == {work.context.span_id}
    assert dict(waits[0].attributes) == {
        "paceline.pool": "openai/gpt-5", "paceline.lane": "default",
        "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-5",
    }  # fmt: skip
    assert 0.5e9 < waits[-1].end_time - waits[-1].start_time < 1.5e9
    assert [(event.name, event.attributes["paceline.reason"]) for event in work.events] == [
        ("paceline.refused", "rate")
    ]
    usage = {point.attributes["gen_ai.token.type"]: point for point in found["gen_ai.client.token.usage"]}
    assert (usage["input"].sum, usage["input"].count) == (400, 5)
    assert (usage["output"].sum, usage["output"].count) == (35, 5)
    assert found["paceline.wait"][0].count == 6
    assert [(point.value, point.attributes) for point in found["paceline.waiting"]] == [
        (1, {"paceline.pool": "openai/gpt-5"})
    ]
    assert found["paceline.refusals"][0].value == 1
    assert {point.attributes["paceline.event"]: point.value for point in found["paceline.permits"]}["settled"] == 5
    limit = found["paceline.quota.limit"][0]
    assert (limit.value, limit.attributes["paceline.unit"]) == (60, "requests")
    assert 29 < found["paceline.cool_down"][0].value <= 30


@virtual
async def test_without_an_sdk_nothing_happens(clock):
    limiter = paceline.Limiter({"jobs": "60 requests/min burst 3"}, clock=clock, events=otel.Listener())
    otel.watch(limiter)
    for _ in range(5):
        (await limiter.acquire("jobs")).settle()


def test_several_limiters_are_watched(received):
    meters, _, reader, _ = received
    for name in ("first", "second"):  # an SDK takes the callbacks of one instrument of a name only
        otel.watch(paceline.Limiter({name: "60 requests/min"}), meters)
    limits = points(reader)["paceline.quota.limit"]
    assert [point.attributes["paceline.pool"] for point in limits] == ["first", "second"]


async def test_a_request_has_a_span_below_its_callers(received):
    _, tracers, _, exporter = received
    limiter = paceline.Limiter({"openai/gpt-5": "60 requests/min"}, events=otel.Listener(tracer_provider=tracers))

    async def app(scope, receive, send):
        async with limiter.acquire("openai/gpt-5") as permit:
            permit.refused(retry_after_s=30.0)
        await send({"type": "http.response.start", "status": 503})

    async def send(event):
        sent.append(event["status"])

    sent, caller = [], "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    scope = {"type": "http", "method": "POST", "path": "/v1/responses", "headers": [(b"traceparent", caller.encode())]}
    await otel.Traced(app, tracers)(scope, None, send)
    [span] = exporter.get_finished_spans()
    assert (span.name, span.kind.name, span.status.status_code.name) == ("paceline.request", "SERVER", "ERROR")
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == tuple(caller.split("-")[1:3])
    assert dict(span.attributes) == {
        "http.request.method": "POST", "url.path": "/v1/responses", "http.response.status_code": 503,
    }  # fmt: skip
    assert [event.name for event in span.events] == ["paceline.refused"]
    assert sent == [503]


async def test_reading_a_page_has_no_span(received):
    _, tracers, _, exporter = received

    async def app(scope, receive, send):
        pages.append(scope["path"])

    pages = []
    await otel.Traced(app, tracers)({"type": "http", "method": "GET", "path": "/metrics"}, None, None)
    await otel.Traced(app, tracers)({"type": "lifespan", "path": ""}, None, None)
    assert (pages, exporter.get_finished_spans()) == (["/metrics", ""], ())


def test_the_gateway_observes_the_limiter_that_serves(monkeypatch, tmp_path):
    watched = []
    monkeypatch.setattr(otel, "watch", watched.append)
    config = Config.load(environ={}, given={"provider": "openai"})
    settings = ProcessSettings(config=config, keys=tmp_path / "keys.json", host="127.0.0.1", otel=True)
    settings.check()  # makes a limiter, too
    gateway = settings.gateway(environ={})
    assert watched == [gateway.limiter]
    gateway.limiter.close()
