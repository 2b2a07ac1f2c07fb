"""The two servers of the comparison with peers: the project's emulator, and mocklimit."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT, environment
from benchmarks.traffic import CHAT, MAX_OUTPUT_TOKENS, MODEL, RESPONSES
from benchmarks.worlds import LATENCY_S, Limit, Server, World
from paceline.emulator import Emulator

RULES = {"bucket": "token_bucket", "sliding": "sliding_window", "window": "fixed_window"}


@dataclass(frozen=True, slots=True)
class Counts:
    """What a server says it has admitted and refused."""

    admitted: int
    refused: int


class Running:
    """A server that runs: ``port``, and :meth:`counts`."""

    def __init__(self, port: int, counts: Any) -> None:
        self.port, self.counts = port, counts


@contextmanager
def serving(server: Server, world: World) -> Iterator[Running]:
    """Run a server with this world's limits, each in a process of its own."""
    if server == "mocklimit":
        yield from _mocklimit(world.true)
        return
    limits = {"*": [_written(unit, limit) for unit, limit in world.true.items()]}
    # Answers are as long as max_tokens, as at mocklimit: what a limiter settles is what the server has charged.
    settings: dict[str, Any] = {"output_share": 1.0, "output_spread": 0.0, "latency_s": LATENCY_S}
    with Emulator(limits, process=True, other_users=world.others, **settings) as emulator:

        def counts() -> Counts:
            tally = emulator.tally()
            return Counts(tally["admitted"], tally["refused_total"])

        yield Running(int(emulator.base_url.rpartition(":")[2]), counts)


def _written(unit: str, limit: Limit) -> str:
    return f"{limit.amount} {unit}/{limit.period_s}s{'' if limit.rule == 'bucket' else f' {limit.rule}'}"


# --- mocklimit -------------------------------------------------------------------------------------------------------


def _mocklimit(limits: Mapping[str, Limit]) -> Iterator[Running]:
    python, why = environment("mocklimit")
    if not python:
        raise RuntimeError(f"mocklimit: {why}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("spec.yaml", "limits.yaml")]
        for path, value in zip(paths, (SPEC, rate_config(limits)), strict=True):
            path.write_text(json.dumps(value))  # JSON is YAML
        command = [python, "-m", "benchmarks.mockserver", *map(str, paths), str(port)]
        child = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
        )  # fmt: skip

        def stats() -> dict[str, Any]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            with closing(connection):
                connection.request("GET", "/mocklimit/stats")
                return dict(json.load(connection.getresponse()))

        def counts() -> Counts:
            by_key = [one for endpoint in stats().values() for one in endpoint.values()]
            refused = sum(one["total_429s"] for one in by_key)
            return Counts(sum(one["total_requests"] for one in by_key) - refused, refused)

        try:
            until_s = time.monotonic() + 20
            while True:
                try:
                    stats()
                    break
                except OSError:
                    if child.poll() is not None or time.monotonic() > until_s:
                        raise RuntimeError("mocklimit did not start") from None
                    time.sleep(0.1)
            yield Running(port, counts)
        finally:
            child.kill()
            child.wait()


def _schema(value: Any) -> dict[str, Any]:
    """A schema of which mocklimit's generator makes exactly this value: it reads no examples."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {name: _schema(one) for name, one in value.items()}}
    if isinstance(value, list):
        return {"type": "array", "items": _schema(value[0])}
    return {"enum": [value]}


_ANSWERS = {
    CHAT: {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_763_000_000, "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    },
    RESPONSES: {
        "id": "resp_1", "object": "response", "created_at": 1_763_000_000, "model": MODEL, "status": "completed",
        "output": [{
            "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "yes"}],
        }],
    },
}  # fmt: skip
SPEC = {
    "openapi": "3.0.0",
    "info": {"title": "OpenAI", "version": "1"},
    "paths": {
        path: {"post": {"responses": {"200": {"content": {"application/json": {"schema": _schema(value)}}}}}}
        for path, value in _ANSWERS.items()
    },
}
_FIXED, _NONE = {"strategy": "fixed", "value": MAX_OUTPUT_TOKENS}, {"strategy": "fixed", "value": 0}
_BODY = {"strategy": "characters_div_4"}
_USAGE = {CHAT: ("prompt_tokens", "completion_tokens"), RESPONSES: ("input_tokens", "output_tokens")}
"""mocklimit puts the amounts of its resources into ``usage`` under their own names: these are OpenAI's."""


def rate_config(limits: Mapping[str, Limit]) -> dict[str, Any]:
    """The limits in mocklimit's format, with OpenAI's headers and refusals; both paths share them, as models do."""
    endpoints = {
        path: {
            "methods": ["POST"], "policy": "openai", "timing": {"base_ms": [LATENCY_S * 1_000, LATENCY_S * 1_000]},
            "resources": {
                "requests": {"input": {"strategy": "fixed", "value": 1}, "output": _NONE},
                "total_tokens": {"input": _BODY, "output": _FIXED},
                given: {"input": _BODY, "output": _NONE},
                made: {"input": _NONE, "output": _FIXED},
            },
        }
        for path, (given, made) in _USAGE.items()
    }  # fmt: skip
    strategies = {RULES[limit.rule] for limit in limits.values() if limit.rule != "bucket"} or {"token_bucket"}
    (strategy,) = strategies  # a limit with a capacity is a bucket under each of them
    policy = {
        "strategy": strategy, "scope": "api_key", "error_template": {"provider": "openai"},
        "format": {"reset": "go_duration", "retry_after": {"header": "retry-after", "unit": "seconds"}},
        "limits": [_one(unit, limit) for unit, limit in limits.items()],
    }  # fmt: skip
    return {"policies": {"openai": policy}, "endpoints": endpoints}


def _one(unit: str, limit: Limit) -> dict[str, Any]:
    headers = {name: f"x-ratelimit-{name}-{unit}" for name in ("limit", "remaining", "reset")}
    given = {"dimension": "requests" if unit == "requests" else "total_tokens", "headers": headers}
    if limit.rule == "bucket":
        return given | {"capacity": limit.amount, "refill_rate": limit.rate}
    return given | {"limit": limit.amount, "window_seconds": limit.period_s}
