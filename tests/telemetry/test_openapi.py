"""The OpenAPI document is valid, and real documents match it."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
from test_page import ask

import paceline
from memory_store import MemoryStore
from paceline.core.queue import Waiter
from paceline.pacing.status import PoolStatus
from paceline.providers.plan_headers import PlanReading
from paceline.telemetry.history import Recorder
from paceline.telemetry.merged import _JOINED
from paceline.telemetry.openapi import SCHEMAS, document
from paceline.testing import ManualClock

PAGE = Path(__file__).parents[2] / "docs" / "status.md"


def check(name, value):
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": closed(SCHEMAS)}}
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(value)))


def closed(schema):
    """The schema, with every object that names its properties closed, so that a new field is noticed."""
    if isinstance(schema, dict):
        schema = {name: closed(part) for name, part in schema.items()}
        return schema | {"additionalProperties": False} if "properties" in schema else schema
    return [closed(part) for part in schema] if isinstance(schema, list) else schema


def limiter_of(quotas="5 requests/min", **options):
    return paceline.Limiter({"openai/gpt-5": quotas}, clock=ManualClock(), **options)


def given():
    limiter = limiter_of("500 requests/min, 10k tokens/day, 3 concurrency")
    headers = {"x-ratelimit-limit-requests": "400", "x-ratelimit-remaining-requests": "399"}
    limiter.acquire("openai/gpt-5", input_tokens=100).wait().settle(input_tokens=80, headers=headers)
    return limiter


def published():
    limiter = paceline.Limiter.for_provider("anthropic", clock=ManualClock())
    limiter.acquire("claude-sonnet-4-5", input_tokens=100).wait()
    return limiter


def waiting():
    limiter = paceline.Limiter({"jobs": "5 requests/min", "own": "7 starts/min exact"}, clock=ManualClock())
    limiter.acquire("jobs").wait()
    limiter.pacer.pools.scheduler("jobs").pool.submit(
        limiter.pacer.clock.now_ns(), Waiter({"requests": 4.5}, name="agent")
    )
    return limiter


def refused(kind):
    limiter = limiter_of()
    limiter.acquire("openai/gpt-5").wait().refused(paceline.Refusal(kind, "no credit", retry_after_s=9))
    return limiter


def paused():
    return refused(paceline.RefusalKind.RATE)


def stopped():
    return refused(paceline.RefusalKind.MONEY)


def shared():
    return limiter_of(store=MemoryStore())


def planned():
    limiter = given()
    reading = PlanReading("5h", 0.62, 60.0, read_s=limiter.pacer.clock.now_ns() / 1e9)
    limiter.pacer.pools.plans.read("anthropic@7f3a91", [reading])
    return limiter


OF_ONE = {"quotas", "wait_s", "metrics", "store"}
"""What ``merged`` joins by hand, or takes from the process that the store has told last."""


def test_each_field_of_a_pool_has_its_places():
    fields, page = PoolStatus.__annotations__.keys(), PAGE.read_text("utf-8")
    told = set(re.findall(r"`(\w+)`", page.partition("Fields of a [pool]")[2].partition("\n\nThree settings")[0]))
    assert not fields - told, "docs/status.md tells the meaning of each field of a pool"
    assert _JOINED.keys() == fields - OF_ONE, "telemetry/merged.py says what several processes have together"


@pytest.mark.parametrize("make", [given, published, waiting, paused, stopped, shared, planned])
def test_real_documents_match_it(make):
    limiter = make()
    status = limiter.status()
    check("Status", status)
    recorder = Recorder(limiter, lambda: 1.0)
    recorder.sample()
    check("History", recorder.document())
    limiter.close()


def test_a_wrong_document_does_not_match():
    status = given().status()
    status["pools"]["openai/gpt-5"]["waiting"] = "many"
    with pytest.raises(jsonschema.ValidationError):
        check("Status", status)


def test_it_is_served_and_every_path_is_there():
    limiter = given()
    app = paceline.status_app(limiter)
    assert json.loads(ask(app, "/api/v1/openapi.json")[2]) == json.loads(json.dumps(document()))
    for path in document()["paths"]:
        assert ask(app, path.replace("{pool}", "openai/gpt-5"))[0] == 200
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
