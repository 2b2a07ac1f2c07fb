"""What a server really charges, beside the budget: at most the budget and one request, for every shape of request."""

import asyncio
import datetime as dt
import json
from contextlib import suppress

import httpx2
import pytest

import paceline
from memory_store import MemoryStore
from paceline.pacing.clock import SYSTEM_CLOCK
from paceline.testing import ManualClock, run_virtual

MORNING_S = int(dt.datetime(2026, 11, 23, 8, tzinfo=dt.UTC).timestamp())
PRICE = {"input": 10.0, "cached": 1.0, "cache_write": 20.0, "output": 100.0}
SPOKEN = 400.0
MODELS = {"openai": "gpt-5", "anthropic": "claude-opus-5", "gemini": "gemini-2.5-flash", "perplexity": "sonar-pro"}
PRICES = {f"{provider}/{model}": PRICE for provider, model in MODELS.items()}
PRICES |= {"openai/fine": PRICE, "openai/voice": PRICE | {"audio_output": SPOKEN}}
DEARER = 5.0
DEAR = {name: usd * DEARER for name, usd in PRICE.items()}
PRICES |= {"openai/dear": DEAR, "anthropic/dear": DEAR, "gemini/dear": DEAR, "openai/gpt-image-1": PRICE}
PATHS = {
    "chat": ("openai", "/v1/chat/completions"),
    "responses": ("openai", "/v1/responses"),
    "anthropic": ("anthropic", "/v1/messages"),
    "gemini": ("gemini", "/v1beta/models/gemini-2.5-flash:{}enerateContent"),
    "images": ("openai", "/v1/images/generations"),
    "speech": ("openai", "/v1/audio/speech"),
    "stated": ("perplexity", "/chat/completions"),
}
BASE = {
    "api": "chat", "stream": False, "ends": "whole", "most": 6_000, "used": 5_000, "told": True, "at_once": 60, "model": "",
    "written": 0, "audio": False, "budget": "1 usd/day", "limiters": 1, "served": 1, "prompt": 9, "more": {}, "dear": False,
}  # fmt: skip
"""``ends``: ``whole``, ``breaks`` (by the server), ``left`` (by the client after the first part), ``early`` (before it), ``broken`` (each attempt, before it). ``used``: the output that is billed, of
which four tokens are text. ``told``: whether the answer reports the usage, or ``input``: that alone. ``served``: how many answers there are at least.
``more``: further fields of the request. ``dear``: whether the dearest of the models that it names has answered."""

ANTHROPIC = {"api": "anthropic"}
ADVISOR = {"tools": [{"type": "advisor_20260301", "model": "dear"}]}
ADVISED = ANTHROPIC | {"most": 1_000, "used": 20_000, "dear": True, "more": ADVISOR}
SECOND_MAXIMUM = {"max_completion_tokens": 6_000}
FALLBACKS = {"fallbacks": [{"model": "fine"}, {"model": "dear", "max_tokens": 6_000}]}
SHAPES = {
    "a large maximum, nearly used": {},
    "one after another": {"at_once": 1},
    "used to the last": {"used": 6_000},
    "hardly used": {"used": 50, "served": 60},
    "above the whole budget": {"most": 64_000, "used": 60_000},
    "above the whole budget, hardly used": {"most": 64_000, "used": 50, "served": 60},
    "no maximum": {"most": None},
    "no maximum of an unknown model": {"most": None, "model": "fine"},
    "no maximum and no usage": {"most": None, "model": "fine", "stream": True, "told": False},
    "a stream": {"stream": True},
    "a stream without usage": {"stream": True, "told": False},
    "a stream that breaks": {"stream": True, "ends": "breaks"},
    "a stream whose client leaves": {"stream": True, "ends": "left"},
    "a client that leaves before the answer": {"ends": "early", "served": 0},
    "attempts that break": {"ends": "broken", "served": 0},
    "attempts that break, no maximum": {"ends": "broken", "served": 0, "most": None},
    "attempts that break, two processes": {"ends": "broken", "served": 0, "limiters": 2},
    "an answer without usage": {"told": False},
    "responses": {"api": "responses"},
    "responses, a stream that breaks": {"api": "responses", "stream": True, "ends": "breaks"},
    "anthropic": ANTHROPIC,
    "anthropic, a stream": ANTHROPIC | {"stream": True},
    "anthropic, a stream that breaks": ANTHROPIC | {"stream": True, "ends": "breaks"},
    "anthropic, a stream whose client leaves": ANTHROPIC | {"stream": True, "ends": "left"},
    "anthropic, written to the cache": ANTHROPIC | {"written": 8_000, "prompt": 8_000, "used": 100, "most": 100},
    "gemini": {"api": "gemini"},
    "gemini, a stream that breaks": {"api": "gemini", "stream": True, "ends": "breaks"},
    "audio": {"audio": True, "used": 2_000, "most": 2_000, "model": "voice"},
    "a picture": {"api": "images", "model": "gpt-image-1", "used": 6_240},
    "ten pictures": {"api": "images", "model": "gpt-image-1", "used": 62_400, "more": {"n": 10}},
    "a picture of an unknown model": {"api": "images", "model": "fine", "used": 50_000},
    "a picture without usage": {"api": "images", "model": "gpt-image-1", "used": 6_240, "told": False},
    "speech": {"api": "speech", "model": "fine", "used": 2_000, "told": False, "prompt": 500},
    "one of two models": {"more": {"models": ["gpt-5", "dear"]}, "dear": True},
    "a model that falls back": ANTHROPIC | {"more": {"fallbacks": [{"model": "dear"}]}, "dear": True},
    "a fallback with a maximum of its own": ANTHROPIC | {"most": 100, "used": 5_000, "dear": True, "more": FALLBACKS},
    "an advisor": ADVISED,
    "an advisor, a stream that breaks": ADVISED | {"stream": True, "ends": "breaks"},
    "a model of Gemini's tools": {
        "api": "gemini",
        "dear": True,
        "more": {"tools": [{"ranker": {"modelName": "dear"}}]},
    },
    "a stated cost": {"api": "stated", "stream": True},
    "a stated cost, a stream that breaks": {"api": "stated", "stream": True, "ends": "breaks"},
    "a stated cost, a stream whose client leaves": {"api": "stated", "stream": True, "ends": "left"},
    "usage without output": {"told": "input"},
    "usage without output, a stream": {"told": "input", "stream": True},
    "anthropic, usage without output": ANTHROPIC | {"told": "input"},
    "anthropic, usage without output, a stream": ANTHROPIC | {"told": "input", "stream": True},
    "gemini, usage without output": {"api": "gemini", "told": "input"},
    "two maximums, the smaller first": ANTHROPIC | {"most": 100, "used": 5_000, "more": SECOND_MAXIMUM},
    "a month and a day": {"budget": "1 usd/day, 1.5 usd/month"},
    "a budget that refills": {"budget": "1 usd/1000hour"},
    "two processes": {"limiters": 2},
    "two processes, without usage": {"limiters": 2, "stream": True, "told": False},
    "two processes, no maximum": {"limiters": 2, "most": None},
}


class Server(httpx2.AsyncBaseTransport):
    """Bills what it has produced, whatever it tells."""

    def __init__(self, shape, seconds):
        self.shape, self.seconds, self.usd = shape, seconds, 0.0

    def price(self):
        shape = self.shape
        of_input = PRICE["cache_write"] if shape["written"] else PRICE["input"]
        of_output = SPOKEN if shape["audio"] else PRICE["output"]
        return (shape["prompt"] * of_input + shape["used"] * of_output) * (DEARER if shape["dear"] else 1) / 1e6

    async def handle_async_request(self, request):
        self.usd += self.price()
        await asyncio.sleep(self.seconds)
        if self.shape["ends"] == "broken":
            raise httpx2.ReadTimeout("no answer")
        if self.shape["api"] == "speech":
            return httpx2.Response(200, headers={"content-type": "audio/mpeg"}, content=b"ID3" + bytes(2_000))
        *parts, last = self.answer(self.shape["stream"])
        if not self.shape["stream"]:
            return httpx2.Response(200, json=last)
        events = Stream(self.shape, parts, last)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=events)

    def answer(self, stream):
        """The events of a stream; without ``stream`` the answer."""
        shape = self.shape
        prompt, used = shape["prompt"], shape["used"]
        heard = {"audio_tokens": used} if shape["audio"] else {}
        usage = {"prompt_tokens": prompt, "completion_tokens": used, "completion_tokens_details": heard}
        if shape["told"] == "input":
            usage = {"prompt_tokens": prompt}
        told = {"usage": usage} if shape["told"] else {}
        match shape["api"], stream:
            case "chat", False:
                yield {"choices": [{"finish_reason": "stop", "message": {"content": "word"}}]} | told
            case "chat", True:
                yield {"choices": [{"delta": {"content": "word word word word"}, "finish_reason": None}]}
                yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}
                yield {"choices": []} | told
            case "stated", _:  # each part states what it is so far
                for used_so_far, reason in ((4, None), (used, "stop")):
                    usd = (prompt * PRICE["input"] + used_so_far * PRICE["output"]) / 1e6
                    spent = {"prompt_tokens": prompt, "completion_tokens": used_so_far, "cost": {"total_cost": usd}}
                    yield {"choices": [{"delta": {"content": "word"}, "finish_reason": reason}], "usage": spent}
            case "images", _:
                spent = {"input_tokens": prompt, "output_tokens": used, "total_tokens": prompt + used}
                yield {"data": [{"b64_json": "AA=="}]} | ({"usage": spent} if shape["told"] else {})
            case "responses", _:
                spent = {"input_tokens": prompt, "output_tokens": used}
                item = {"type": "message", "content": [{"type": "output_text", "text": "word"}]}
                whole = {"id": "r", "status": "completed", "output": [item], "usage": spent}
                if stream:
                    yield {"type": "response.created", "response": {"id": "r", "status": "in_progress", "usage": None}}
                    yield {"type": "response.output_text.delta", "delta": "word word word word"}
                yield {"type": "response.completed", "response": whole} if stream else whole
            case "anthropic", False:
                yield {"type": "message", "content": [{"type": "text", "text": "word"}], "usage": self.anthropic(used)}
            case "anthropic", True:
                yield {"type": "message_start", "message": {"role": "assistant", "usage": self.anthropic(1)}}
                yield {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "word word word word"}}
                told = {"usage": {"output_tokens": used}} if shape["told"] is True else {}
                yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}} | told
                if not told:
                    yield {"type": "message_stop"}
            case "gemini", _:
                words = {"content": {"parts": [{"text": "word"}]}}
                if stream:
                    so_far = {"promptTokenCount": prompt, "candidatesTokenCount": 4}
                    yield {"candidates": [words], "usageMetadata": so_far}
                spent = {"promptTokenCount": prompt, "candidatesTokenCount": 4, "thoughtsTokenCount": used - 4}
                if shape["told"] == "input":
                    spent = {"promptTokenCount": prompt}
                yield {"candidates": [words | {"finishReason": "STOP"}], "usageMetadata": spent}

    def anthropic(self, output):
        written = self.shape["written"]
        fresh = self.shape["prompt"] - written
        told = {"output_tokens": output} if output == 1 or self.shape["told"] is True else {}
        return {"input_tokens": fresh, "cache_creation_input_tokens": written} | told


class Stream(httpx2.AsyncByteStream):
    def __init__(self, shape, parts, last):
        self.shape, self.parts, self.last = shape, parts, last

    async def __aiter__(self):
        for part in self.parts:
            yield f"event: {part.get('type', 'x')}\ndata: {json.dumps(part)}\n\n".encode()
        await asyncio.sleep(0.5)
        if self.shape["ends"] == "breaks":
            raise httpx2.ReadError("the connection is closed")
        yield f"event: {self.last.get('type', 'x')}\ndata: {json.dumps(self.last)}\n\ndata: [DONE]\n\n".encode()


def request(shape):
    provider, path = PATHS[shape["api"]]
    model, stream, most = shape["model"] or MODELS[provider], shape["stream"], shape["most"]
    text = "hi " * (shape["prompt"] - 8)
    body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}]}
    maximum = {"chat": "max_completion_tokens", "responses": "max_output_tokens"}.get(shape["api"], "max_tokens")
    if shape["api"] in ("images", "speech"):
        return path, {"model": model, "prompt": text, "input": text, **shape["more"]}
    if shape["api"] == "responses":
        body = {"model": model, "stream": stream, "input": text}
    elif shape["api"] == "gemini":
        path = path.format("streamG" if stream else "g") + ("?alt=sse" if stream else "")
        settings = {"generationConfig": {"maxOutputTokens": most}, **shape["more"]}
        return path, {"contents": [{"parts": [{"text": text}]}], **settings}
    return path, body | ({maximum: most} if most else {}) | shape["more"]


async def one(client, shape):
    """The status of an answer, which is read as ``shape`` says."""
    path, body = request(shape)
    if shape["ends"] == "early":
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                return (await client.post(path, json=body)).status_code
        return 429
    try:
        async with client.stream("POST", path, json=body) as answer:
            async for _ in answer.aiter_bytes():
                if shape["ends"] == "left":
                    break
            return answer.status_code
    except httpx2.ReadError:
        return 200
    except httpx2.ReadTimeout:
        return 429


async def drive(limiters, server, shape):
    """The statuses of all requests of ``shape``, each limiter with its part of them."""
    provider = PATHS[shape["api"]][0]

    async def some(client):
        if shape["at_once"] == 1:
            return [await one(client, shape) for _ in range(60)]
        return await asyncio.gather(*(one(client, shape) for _ in range(shape["at_once"] // len(limiters))))

    clients = []
    for limiter in limiters:
        client = httpx2.AsyncClient(transport=server, base_url="http://a.test", timeout=None)
        clients.append(limiter.attach(client, provider=provider))
    found = await asyncio.gather(*map(some, clients))
    return [status for statuses in found for status in statuses]


def limiter_of(shape, clock, **options):
    retry = paceline.RetryPolicy(faults=True, backoff_s=0.01)
    return paceline.Limiter(
        {"*": "100k requests/min"}, prices=PRICES, budget=shape["budget"], clock=clock, retry=retry, **options
    )


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", SHAPES)
def test_what_is_charged_is_at_most_the_budget_and_one_request(name):
    shape = BASE | SHAPES[name]
    if shape["limiters"] == 1:
        clock, server = ManualClock(MORNING_S), Server(shape, 1.0)
        statuses = run_virtual(lambda clock: drive([limiter_of(shape, clock)], server, shape), clock)
    else:
        store, server = MemoryStore(), Server(shape, 0.02)
        limiters = [limiter_of(shape, SYSTEM_CLOCK, store=store) for _ in range(shape["limiters"])]
        try:
            statuses = asyncio.run(drive(limiters, server, shape))
        finally:
            for limiter in limiters:
                limiter.close()
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) >= shape["served"]
    assert server.usd <= 1 + server.price() + 1e-9
