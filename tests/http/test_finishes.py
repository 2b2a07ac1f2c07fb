"""The status counts answers by how far the model has come with them, whole and streamed."""

import json

import httpx
import pytest

from odd_server import JSON, SSE, OddServer
from paceline import Limiter
from paceline.telemetry.prometheus import exposition

USAGE = {"prompt_tokens": 9, "completion_tokens": 2}
REASONS = ["stop", "stop", "length", "content_filter"]


def answered(number, body):
    reason, wide = REASONS[number % len(REASONS)], body.get("stream")
    said = {"content": "42"}
    choice = {"index": 0, "finish_reason": reason, ("delta" if wide else "message"): said}
    whole = {"object": "chat.completion", "choices": [choice], "usage": USAGE}
    if not wide:
        return 200, JSON, whole
    first = {"choices": [{"index": 0, "delta": said, "finish_reason": None}], "usage": None}
    return 200, SSE, [f"data: {json.dumps(event)}\n\n".encode() for event in (first, whole)] + [b"data: [DONE]\n\n"]


@pytest.mark.parametrize("stream", [False, True])
def test_finishes_are_counted(stream):
    with OddServer(answered) as server, Limiter({"openai/m": "60k requests/min"}) as limiter:
        with limiter.attach(httpx.Client(base_url=server.base_url), provider="openai") as client:
            for _ in REASONS:
                body = {"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": stream}
                assert client.post("/v1/chat/completions", json=body).status_code == 200
        status = limiter.status()
    assert status["pools"]["openai/m"]["finishes"] == {"complete": 2, "cut_off": 1, "blocked": 1}
    assert 'paceline_finishes_total{pool="openai/m",state="cut_off"} 1.0' in exposition(status).decode()
