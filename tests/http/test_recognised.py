"""Requests with an LLM's body at paths that paceline does not know."""

import json
import logging

import aiohttp
import chats
import httpx
import httpx2
import pytest
from chats import ANSWER, attached

import paceline
from odd_server import JSON, SSE, OddServer
from paceline.http import pace_transport, paced, unpaced

CHAT = chats.CHAT | {"model": "m"}
MESSAGES = CHAT["messages"]
PATH = "/api/v2/cortex/inference:complete"
LIMIT = {"*": "100 requests/min"}


@pytest.fixture(autouse=True)
def log(caplog):
    paced._llms.clear()
    paced._logged.clear()
    caplog.set_level(logging.INFO, "paceline")
    return caplog


def said(log):
    # Limiters of other tests may sum up their refusals at any time.
    return [record.getMessage() for record in log.records if record.name != "paceline.rate_limit"]


def pools(limiter):
    return {name: pool["counts"]["granted"] for name, pool in limiter.status()["pools"].items()}


@pytest.fixture
def server():
    with OddServer(lambda *_: (200, JSON, ANSWER)) as server:
        yield server


def send(limiter, server, times=1, path=PATH, body=CHAT):
    with limiter.attach(httpx2.Client()) as client:
        answers = [client.post(server.base_url + path, json=body) for _ in range(times)]
        return [(answer.status_code, answer.content) for answer in answers]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, CHAT),
        ("/v1/chat", CHAT),
        ("/v1/text/chatcompletion_v2", CHAT),
        ("/ml/v1/text/chat?version=2024-05-01", {"model_id": "m", "project_id": "p", "messages": MESSAGES}),
        ("/ml/v1/text/generation?version=2024-05-01", {"model_id": "m", "input": "Hello."}),
    ],
    ids=["snowflake", "writer", "minimax", "watsonx chat", "watsonx text"],
)
def test_they_are_paced_once_an_llm_has_answered(log, server, path, body):
    limiter = paceline.Limiter(LIMIT)
    assert {status for status, _ in send(limiter, server, 3, path, body)} == {200}
    assert pools(limiter) == {"127.0.0.1/m": 2}
    [once] = [line for line in said(log) if "is not paced" in line]
    assert once.startswith("POST 127.0.0.1/")


@pytest.mark.parametrize(
    "kind", [str, str.encode, lambda text: bytearray(text.encode())], ids=["text", "bytes", "bytearray"]
)
async def test_a_body_that_aiohttp_gets_in_memory_is_looked_at(server, kind):
    limiter, body = paceline.Limiter(LIMIT), kind(json.dumps(CHAT))
    with paceline.instrument(limiter):
        async with aiohttp.ClientSession(headers=JSON) as session:
            for _ in range(2):
                async with session.post(server.base_url + PATH, data=body) as answer:
                    assert await answer.json() == ANSWER
    assert pools(limiter) == {"127.0.0.1/m": 1}
    assert server.asked == [CHAT, CHAT]


FORMS = {
    "watsonx": (200, JSON, {"results": [{"generated_text": "Hi.", "generated_token_count": 2}]}),
    "stream": (200, SSE, b'data: {"choices": [{"delta": {"content": "Hi."}}]}\n\ndata: [DONE]\n\n'),
    "gemini": (200, JSON, {"candidates": [{"content": {"parts": [{"text": "Hi."}]}}]}),
}
OTHERS = {
    "job": (200, JSON, {"id": "job", "status": "queued"}),
    "list": (200, JSON, {"data": [1, 2]}),
    "audio": (200, {"content-type": "audio/mpeg"}, b"\xff\xf3\x00"),
    "refusal": (429, JSON, {"error": {"message": "Too many requests"}}),
    "error": (500, JSON, ANSWER),
}


@pytest.mark.parametrize("name", [*FORMS, *OTHERS])
def test_the_form_of_an_answer_decides_and_none_is_sent_twice(log, name):
    limiter = paceline.Limiter(LIMIT if name in FORMS else {"*": "1 requests/hour"}, acquire_timeout_s=0.0)
    answer = (FORMS | OTHERS)[name]
    with OddServer(lambda *_: answer) as server:
        assert {status for status, _ in send(limiter, server, 3)} == {answer[0]}
        assert len(server.asked) == 3
    assert pools(limiter) == ({"127.0.0.1/m": 2} if name in FORMS else {})
    assert sum("is not paced" in line for line in said(log)) == 1


@pytest.mark.parametrize(
    ("provider", "base", "path", "model", "pool"),
    [
        ("openai", "http://127.0.0.1:1", "/v1/chat/completions", "gpt-5.4", "openai/gpt-5.4"),
        ("openai@eu", "http://localhost:1", "/v1/responses", "gpt-5.4", "openai@eu/gpt-5.4"),
        ("anthropic", "http://[::1]:1", "/v1/messages", "claude-opus-5", "anthropic/claude-opus-5"),
        ("openai", "http://localhost:1", "/v1/chat/completions", "gpt-99", "openai/gpt-99"),
        ("groq", "http://localhost:1", "/openai/v1/chat/completions", "llama-4-x", "groq/llama-4-x"),
        ("mistral", "http://localhost:1", "/v1/chat/completions", "mistral-large-9", "mistral/mistral-large-9"),
        ("ollama", "http://127.0.0.1:11434", "/api/chat", "llama3", "ollama/llama3"),
        ("bedrock", "http://localhost:1", "/model/acme.m-v1:0/invoke", "", "bedrock/acme.m-v1:0"),
        ("openai", "http://localhost:1", "/v1/chat/completions", "llama3", "localhost/llama3"),
        ("openai", "http://localhost:1", "/v1/chat/completions", "gpt-oss-20b", "localhost/gpt-oss-20b"),
        ("groq", "http://localhost:1", "/openai/v1/chat/completions", "gpt-5.4", "localhost/gpt-5.4"),
        ("openai", "http://gateway.example", "/v1/chat/completions", "gpt-5.4", "gateway.example/gpt-5.4"),
    ],
)
@pytest.mark.filterwarnings("ignore:no published limits:paceline.PacelineWarning")
def test_a_server_here_stands_for_the_provider_of_the_limiter(provider, base, path, model, pool):
    limiter = paceline.Limiter.for_provider(provider)
    with attached(limiter, httpx2.Response(200, json=ANSWER)) as client:
        client.post(base + path, json={"model": model, "messages": MESSAGES})
    assert [name for name, count in pools(limiter).items() if count] == [pool]


@pytest.mark.parametrize("given", ["localhost/*", "localhost/llama3"])
def test_limits_for_a_server_here_hold_beside_the_provider_of_the_limiter(log, given):
    ollama = "http://localhost:11434/v1/chat/completions", {"model": "llama3", "messages": MESSAGES}
    limiter = paceline.Limiter({given: "9 requests/min"}, provider="groq")
    with attached(limiter, httpx2.Response(200, json=ANSWER)) as client:
        client.post(ollama[0], json=ollama[1])
    assert limiter.status()["pools"]["localhost/llama3"]["counts"]["granted"] == 1
    log.clear()
    limiter = paceline.Limiter.for_provider("groq")
    with attached(limiter, httpx2.Response(200, json=ANSWER)) as client:
        for model in ("llama3", "llama3", "gemma3"):
            client.post(ollama[0], json=ollama[1] | {"model": model})
    [line] = said(log)
    assert line.startswith("the server on localhost is paced with the limits of groq")
    assert "{'localhost/*': '600 requests/min'}" in line


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/ml/v1/text/embeddings?version=2025-10-15", {"json": {"model_id": "m", "inputs": ["a"]}}),
        ("/v1/ranking", {"json": {"model": "m", "query": {"text": "q"}, "passages": [{"text": "a"}]}}),
        ("/embed", {"json": {"inputs": ["a"]}}),
        ("/rerank", {"json": {"query": "q", "texts": ["a"]}}),
        ("/predict", {"json": {"instances": [{"content": "a"}]}}),
        ("/transcribe", {"data": {"model": "m"}, "files": {"file": ("a.wav", b"RIFF")}}),
    ],
    ids=["watsonx", "NIM", "TEI", "TEI rerank", "no known field", "a recording"],
)
def test_with_limits_for_the_host_a_body_of_any_form_is_paced(path, content):
    limits = {"own.example/*": "2 requests/min burst 1"}
    with answering({"results": [1]}, limits, acquire_timeout_s=5) as client:
        assert [client.post(f"http://own.example{path}", **content).status_code for _ in range(3)] == [200, 429, 429]
        assert client.post("http://own.example/v1/files", **content).status_code == 200


@pytest.mark.parametrize("path", ["/v1/agents/completions", "/api/sessions/3/chat", "/tasks/generate?stream=1"])
def test_with_messages_the_end_of_a_path_tells_whether_it_generates(path):
    body = {"model": "m", "messages": MESSAGES}
    with answering(ANSWER, {"own.example/*": "2 requests/min burst 1"}, acquire_timeout_s=5) as client:
        assert [client.post(f"http://own.example{path}", json=body).status_code for _ in range(3)] == [200, 429, 429]
        for counting in ("/tokenize", "/v1/messages/count_tokens", "/v1/sessions/"):
            assert client.post(f"http://own.example{counting}", json=body).status_code == 200


def test_limits_for_other_models_at_the_host_hold_nothing_back():
    with answering({"results": [1]}, {"own.example/m": "1 requests/min burst 1"}, acquire_timeout_s=5) as client:
        answers = [client.post("http://own.example/predict", json={"instances": []}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3


def test_a_recording_for_an_unknown_host_is_paced():
    with answering({"text": "Hi."}, {"*": "2 requests/min burst 1"}, acquire_timeout_s=5) as client:
        form = {"data": {"model": "m"}, "files": {"file": ("a.wav", b"RIFF")}}
        answers = [client.post("http://own.example/v1/audio/transcriptions", **form) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]


def answering(answer, limits, **settings):
    """A client whose server gives this answer to all requests."""
    return attached(paceline.Limiter(limits, **settings), lambda _: httpx2.Response(200, json=answer))


def test_the_limits_of_the_only_provider_hold_for_them(log, server):
    limiter = paceline.Limiter({"openai/*": "100 requests/min"})
    send(limiter, server, 2)
    assert pools(limiter) == {"openai/m": 1}
    assert "limiter.attach(client, provider='openai')" in said(log)[0]


@pytest.mark.parametrize(
    "body", [{"q": "x"}, {"model": "m"}, {"messages": MESSAGES}, {"model": 5.5, "input": "x"}, [CHAT]]
)
def test_other_bodies_are_nobody_s_business(log, server, body):
    limiter = paceline.Limiter(LIMIT)
    send(limiter, server, 2, "/rpc", body)
    assert (pools(limiter), said(log)) == ({}, [])


def test_a_body_that_has_to_be_read_is_not_read():
    class Taker(httpx.BaseTransport):
        def handle_request(self, request):
            assert not hasattr(request, "_content")
            return httpx.Response(200, json={"taken": sum(map(len, request.stream))})

    def parts():
        yield json.dumps(CHAT).encode()

    with httpx.Client(transport=pace_transport(paceline.Limiter(LIMIT), Taker())) as client:
        assert client.post("http://host.example/upload", content=parts()).json()["taken"] > 0


def test_at_a_known_provider_a_chat_is_paced_at_once(server):
    limiter = paceline.Limiter({"openai/*": "100 requests/min"})
    with limiter.attach(httpx2.Client(), provider="openai") as client:
        client.post(f"{server.base_url}/v9/talk", json=CHAT)
        client.post(f"{server.base_url}/v9/count_tokens", json=CHAT)
        client.post(f"{server.base_url}/v1/videos", json={"model": "m", "prompt": "a film"})
    assert pools(limiter) == {"openai/m": 1}


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.elevenlabs.io/v1/text-to-speech/voice", "elevenlabs"),
        ("https://api.stability.ai/v2beta/stable-image/generate/core", "stability"),
        ("https://queue.fal.run/fal-ai/flux", "fal"),
    ],
)
def test_hosts_for_speech_images_and_video_are_announced(log, url, name):
    limiter = paceline.Limiter(LIMIT)
    with attached(limiter, lambda _: httpx.Response(200, content=b"x"), library=httpx) as client:
        for _ in range(2):
            client.post(url, json={"text": "a secret"})
    [once] = said(log)
    assert f"limiter.acquire('{name}/<model>')" in once
    assert "secret" not in once
    assert [row["count"] for row in unpaced.rows()] == [2]
