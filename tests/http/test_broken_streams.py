"""A stream that ends early counts as expected, and as much as its text: what its beginning reports is not what it has cost."""

import json

import httpx2
import pytest
from chats import CHAT, attached, spent

import paceline
from paceline.testing import ManualClock

WORDS = "word " * 4_000
ANTHROPIC = [
    {"type": "message_start", "message": {"role": "assistant", "usage": {"input_tokens": 900, "output_tokens": 1}}},
    *[{"type": "content_block_delta", "delta": {"type": "text_delta", "text": WORDS[:100]}}] * 200,
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4_000}},
    {"type": "message_stop"},
]
GEMINI = [
    *[{"candidates": [{"content": {"parts": [{"text": WORDS[:100]}]}}], "usageMetadata": {"promptTokenCount": 900, "candidatesTokenCount": 2}}] * 200,
    {"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 900, "candidatesTokenCount": 4_000}},
]  # fmt: skip
OPENAI = [
    *[{"choices": [{"delta": {"content": WORDS[:100]}, "finish_reason": None}], "usage": {"prompt_tokens": 900, "completion_tokens": 2}}] * 200,
    {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 900, "completion_tokens": 4_000}},
]  # fmt: skip
RESPONSES = [
    *[{"type": "response.output_text.delta", "delta": WORDS[:100]}] * 200,
    {"type": "response.completed", "response": {"usage": {"input_tokens": 900, "output_tokens": 4_000}}},
]
SILENT = [*[{"choices": [{"delta": {"content": WORDS[:100]}, "finish_reason": None}]}] * 200, {"choices": []}]
STREAMS = {
    "anthropic": ("anthropic", "/v1/messages", ANTHROPIC),
    "gemini": ("gemini", "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse", GEMINI),
    "gemini, an array": ("gemini", "/v1beta/models/gemini-2.5-flash:streamGenerateContent", GEMINI),
    "chat, with the usage so far": ("openai", "/v1/chat/completions", OPENAI),
    "chat, without usage": ("openai", "/v1/chat/completions", SILENT),
    "responses": ("openai", "/v1/responses", RESPONSES),
}


class Broken(httpx2.SyncByteStream):
    def __init__(self, events, whole, array):
        self.events, self.whole, self.array = events, whole, array

    def __iter__(self):
        for number, event in enumerate(self.events if self.whole else self.events[:-2]):
            data = json.dumps(event, indent=1)
            yield (f"{',' if number else '['}{data}\r\n" if self.array else f"data: {json.dumps(event)}\n\n").encode()
        if not self.whole:
            raise httpx2.ReadError("the connection is closed")
        if self.array:
            yield b"]"


@pytest.mark.sample(5)
@pytest.mark.parametrize("how", ["whole", "breaks", "left"])
@pytest.mark.parametrize("name", STREAMS)
def test_it_counts_as_much_as_its_text(name, how):
    provider, path, events = STREAMS[name]
    limiter = paceline.Limiter({"*": "100k requests/min, 1M output_tokens/min"}, clock=ManualClock())
    counted = []
    limiter.pacer.allowances.tally = lambda *found: counted.append(found[-1])

    def answer(_request):
        array = "array" in name
        kind = {"content-type": "application/json" if array else "text/event-stream"}
        return httpx2.Response(200, headers=kind, stream=Broken(events, how == "whole", array))

    body = CHAT | {"stream": True, "max_tokens": 9_000, "input": "hi", "contents": []}
    with attached(limiter, answer, provider).stream("POST", path, json=body) as reply:
        try:
            for number, _ in enumerate(reply.iter_bytes()):
                if how == "left" and number == 190:
                    break
        except httpx2.ReadError:
            assert how == "breaks"
        record = reply.extensions["paceline"]
    [usage] = counted
    assert usage.partial is False
    told = how == "whole" and name != "chat, without usage"
    assert (record.usage is not None) is told
    assert usage.output_tokens == 4_000 if told else 3_000 <= usage.output_tokens <= 6_000
    if "responses" not in name and "without" not in name:
        assert usage.input_tokens == 900
    [pool] = [pool for pool in limiter.status()["pools"] if pool.startswith(provider)]
    assert spent(limiter, pool)["output_tokens"] >= usage.output_tokens - 1
