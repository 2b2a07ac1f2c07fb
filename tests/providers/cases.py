"""Reads a provider's fixtures and checks its provider against one of them. What a fixture leaves out must be absent.

``[[error]]``: an answer (``status = 0``: an error inside a stream) and what it means; ``kind = ""``: no refusal.
``[[header]]``: an answer's headers and the readings in them, each a table with the fields of ``Reading``.
``[[usage]]``: an answer's body, the usage in it as (input, output, cached, cache write), what is charged for it.
"""

from __future__ import annotations

import json
import tomllib
from functools import partial
from pathlib import Path

import pytest

from paceline.core.results import Reading, Refusal, RefusalScope
from paceline.providers.base import Call, Usage
from paceline.providers.registry import provider_named
from paceline.providers.verdict import judge

JSON = {"content-type": "application/json"}
FIELDS = ("code", "retry_after_s", "unit", "period_s", "limit", "used", "requested", "pool", "scope")


def load(name):
    return tomllib.loads(Path(__file__).with_name("fixtures").joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def each(cases, kind):
    """A test for each fixture of one kind."""
    return pytest.mark.parametrize("case", cases[kind], ids=[case["what"] for case in cases[kind]])


def feed(provider, data, **call):
    """The reader of an answer's bytes, which come three at a time."""
    return read(provider, *(data[at : at + 3] for at in range(0, len(data), 3)), **call)


def read(provider, *chunks, call=None, **fields):
    """The reader of an answer to ``call``, or to a chat, after these bytes and their end."""
    reader = provider.usage_reader(call or Call(provider.name, "chat", "m", 1, **fields))
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()
    return reader


CLAUDE = "anthropic-ratelimit-{family}-{part}"


def told(form="x-ratelimit-{part}-{family}", **families):
    """The headers of quotas: by family the limit, what remains of it and the reset, as far as they are given."""
    parts = ("limit", "remaining", "reset")
    return {
        form.format(part=part, family=family.replace("_", "-")): value
        for family, values in families.items()
        for part, value in zip(parts, values, strict=False)
    }


def judged(body, provider="openai", *, status=200, headers=JSON, endpoint="chat", stream=False, strict=True):
    """The verdict on an answer with this body: bytes, or a JSON value."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    call = Call(provider, endpoint, "m", 10, 5, stream)
    return judge(provider_named(provider), call, status, headers, raw, strict=strict)


def sse(*events, name=False):
    """Server-sent events of values or texts; with ``name``, their types are in lines of their own."""
    written = partial(json.dumps, separators=(",", ":"), ensure_ascii=False)
    texts = [event if isinstance(event, str) else written(event) for event in events]
    named = [f"event: {event['type']}\n" if name else "" for event in events]
    return "".join(f"{line}data: {text}\n\n" for line, text in zip(named, texts, strict=True)).encode()


def check_error(provider, case):
    body = case["text"].encode() if "text" in case else json.dumps(case.get("body", {})).encode()
    if case["status"]:
        headers = case.get("headers", {})
        call = Call(provider.name, "chat", "m", 1, stream=b"data:" in body)
        refusal = judge(provider, call, case["status"], headers, body).refusal
    else:
        refusal = feed(provider, b"data: " + body + b"\n\n", stream=True).refusal
    if not case["kind"]:
        assert refusal is None
        return
    assert isinstance(refusal, Refusal)
    assert refusal.kind == case["kind"]
    found = {name: getattr(refusal, name) for name in FIELDS}
    found = {name: value for name, value in found.items() if value not in (None, "", RefusalScope.POOL)}
    assert found == pytest.approx({name: case[name] for name in FIELDS if name in case})


def check_headers(provider, case):
    wanted = [Reading(**reading) for reading in case["readings"]]
    assert provider.readings(case["headers"], case.get("now_s", 0.0)) == wanted


def check_usage(provider, case):
    call = Call(provider.name, "chat", case.get("model", "m"), 1, case.get("most"))
    usage = provider.usage(case["body"])
    assert usage == Usage(*case["usage"], usd=case.get("usd"), partial=case.get("partial", False))
    charged = provider.charged(call, usage)
    assert {unit: charged[unit] for unit in case["charged"]} == case["charged"]
    assert feed(provider, json.dumps(case["body"]).encode()).usage == usage
