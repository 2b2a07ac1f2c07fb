"""Requests that are not paced are announced, and so are limits that hold no request back."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import urllib.request
import warnings
from urllib.parse import urlsplit

import aiohttp
import httpx
import httpx2
import openai
import pytest
import websockets
import websockets.sync.client
from chats import ANSWER, CHAT, attached, counts
from http_ways import Loopback

import paceline
from odd_server import OddServer
from paceline.http import unpaced

SECRET = "sk-secret-9876543210"


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level(logging.WARNING, "paceline")
    return caplog


@pytest.fixture
def refusing():
    """The port of a server that accepts no WebSocket."""
    with OddServer(lambda *_: (403, {}, b"")) as server:
        yield server.server_port


def client_of(limiter, library=httpx2, seen=None):
    def answer(request):
        if seen is not None:
            seen.append(request.read())
        return library.Response(200, json=ANSWER)

    return attached(limiter, answer, library=library)


def said(log):
    return [record.getMessage() for record in log.records]


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://api.openai.com/v1/videos", "/v1/videos"),
        ("https://api.anthropic.com/v1/complete", "/v1/complete"),
        ("https://api.cohere.com/v1/classify", "/v1/classify"),
        ("https://router.huggingface.co/hf-inference/models/acme/m-1", "/hf-inference/models/acme/*"),
        ("https://generativelanguage.googleapis.com/v1beta/models/imagen-4.0:predict", "/v1beta/models/*:predict"),
        ("https://us-east5-aiplatform.googleapis.com/v1/projects/p7/locations/us-east5/publishers/google/models/veo-3:predictLongRunning", "/v1/projects/*/locations/*/publishers/google/models/*:predictLongRunning"),
        ("https://acme.openai.azure.com/openai/deployments/sora-2/videos", "/openai/deployments/*/videos"),
        ("https://api.fireworks.ai/inference/v1/workflows/accounts/f/models/flux-1/text_to_image", "/inference/v1/workflows/accounts/f/models/*/text_to_image"),
        (f"https://api.openai.com/v1/odd/{SECRET}", "/v1/odd/*"),
    ],
)  # fmt: skip
def test_a_path_that_is_not_read_is_announced_once(log, url, kind):
    with client_of(paceline.Limiter()) as client:
        for _ in range(2):
            assert client.post(url, json={"prompt": SECRET}, headers={"authorization": SECRET}).status_code == 200
        client.get(url)
    [line] = said(log)
    assert line.startswith(f"POST {httpx2.URL(url).host}{kind} is not paced")
    assert "limiter.acquire('" in line
    assert SECRET not in line


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1/files",
        "https://api.openai.com/v1/uploads/upload_1/parts",
        "https://api.openai.com/v1/batches/batch_1/cancel",
        "https://api.openai.com/v1/fine_tuning/jobs",
        "https://api.openai.com/v1/threads/thread_1/messages",
        "https://api.openai.com/v1/vector_stores",
        "https://api.openai.com/v1/responses/resp_1/cancel",
        "https://api.openai.com/v1/responses/input_tokens",
        "https://api.openai.com/v1/chat/completions/chatcmpl-abc",
        "https://api.openai.com/v1/traces/ingest",
        "https://api.openai.com/v1/realtime/client_secrets",
        "https://api.anthropic.com/v1/messages/batches",
        "https://api.anthropic.com/v1/messages/batches/b_1/cancel",
        "https://api.anthropic.com/api/event_logging/batch",
        "https://generativelanguage.googleapis.com/v1beta/models/gemini-3:countTokens",
        "https://generativelanguage.googleapis.com/v1beta/models/gemini-3:batchGenerateContent",
        "https://generativelanguage.googleapis.com/v1beta/cachedContents",
        "https://generativelanguage.googleapis.com/upload/v1beta/files",
        "https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/l/pipelineJobs",
        "https://acme.cloud.databricks.com/api/2.1/jobs/run-now",
        "https://api.cloudflare.com/client/v4/zones",
        "https://api.cohere.com/v1/tokenize",
        "https://api.mistral.ai/v1/agents",
        "https://api.together.ai/v1/fine-tunes",
        "https://api.together.ai/v1/endpoints",
        "https://openrouter.ai/api/v1/keys",
        "https://dashscope.aliyuncs.com/api/v1/tasks/1/cancel",
        "https://ollama.com/api/pull",
        "https://example.com/v1/videos",
    ],
)
def test_a_path_of_management_and_an_unknown_host_are_not_announced(log, url):
    with client_of(paceline.Limiter()) as client:
        client.post(url, json={})
    assert said(log) == []


def test_a_call_inside_a_permit_is_not_announced(log):
    limiter = paceline.Limiter({"openai/*": "500 requests/min"})
    with client_of(limiter) as client, limiter.acquire("openai/sora-2"):
        client.post("https://api.openai.com/v1/videos", json={})
    assert said(log) == []


# --- what is sent in another way than over the HTTP libraries


def by_aiohttp(url):
    async def main():
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=Loopback())) as session:
            await session.ws_connect(url)

    asyncio.run(main())


def by_websockets(url):
    async def main():
        await websockets.connect(url, sock=socket.create_connection(("127.0.0.1", urlsplit(url).port)), proxy=None)

    asyncio.run(main())


def by_websockets_sync(url):
    with socket.create_connection(("127.0.0.1", urlsplit(url).port)) as sock:
        websockets.sync.client.connect(url, sock=sock, proxy=None)


@pytest.mark.parametrize("connect", [by_aiohttp, by_websockets, by_websockets_sync])
def test_a_websocket_to_a_provider_is_announced_once(log, connect, refusing):
    limiter = paceline.Limiter()
    with paceline.instrument(limiter):
        for host in ("api.openai.com", "api.openai.com", "example.com"):
            with pytest.raises((websockets.InvalidStatus, aiohttp.WSServerHandshakeError)):
                connect(f"ws://{host}:{refusing}/v1/realtime?key={SECRET}")
    [row] = limiter.status()["unpaced"]
    assert {name: row[name] for name in ("provider", "host", "kind", "count")} == {
        "provider": "openai", "host": "api.openai.com", "kind": "WebSocket", "count": 2,
    }  # fmt: skip
    assert row["remedy"] == "acquire a permit around each call: `with limiter.acquire('openai/<model>') as permit`"
    assert said(log) == [
        "WebSocket api.openai.com is not paced, because its messages are no HTTP requests; to pace it, " + row["remedy"]
    ]


def test_urllib_is_announced_but_not_what_it_fetches(log, monkeypatch):
    monkeypatch.setattr(urllib.request.OpenerDirector, "_open", lambda *_: None)
    post = "https://api.openai.com/v1/chat/completions"
    limiter = paceline.Limiter({"jobs": "9 requests/min"})
    with paceline.instrument(limiter):
        for url, data in ((post, b"{}"), (urllib.request.Request(post, b"{}"), None), (post, None)):
            urllib.request.OpenerDirector().open(url, data)
        urllib.request.OpenerDirector().open("https://api.openai.com/v1/files", b"{}")
        with limiter.acquire("jobs"):
            urllib.request.OpenerDirector().open(post, b"{}")
    [row] = limiter.status()["unpaced"]
    assert (row["kind"], row["count"]) == ("POST /v1/chat/completions by urllib", 2)
    [line] = said(log)
    assert "paceline does not pace urllib; to pace it, send it with httpx, httpx2, aiohttp, requests or urllib3" in line


def test_the_kinds_are_bounded(monkeypatch):
    monkeypatch.setattr(unpaced, "KINDS_MAX", 2)
    with client_of(paceline.Limiter()) as client:
        for path in ("a", "b", "c", "a"):
            client.post(f"https://api.openai.com/v1/{path}", json={})
    assert list(unpaced.kinds.values()) == [2, 1]


# --- multipart forms


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("path", ["audio/transcriptions", "audio/translations", "images/edits", "images/variations"])
def test_a_multipart_form_is_charged_to_its_model(log, library, path):
    limiter, seen = paceline.Limiter({"openai/*": ["500 requests/min", "1M tokens/min"]}), []
    file = b"\0" * 100_000 + b'\r\n--x; name="model"\r\n\r\nother\r\n--' + b"\0" * 100
    with client_of(limiter, library, seen) as client:
        fields = {"model": "m-1", "prompt": "Hello."}
        client.post(f"https://api.openai.com/v1/{path}", data=fields, files={"file": ("a", file)})
    [(name, pool)] = limiter.status()["pools"].items()
    assert (name, pool["counts"]) == ("openai/m-1", {"granted": 1, "settled": 1})
    assert {quota["unit"]: quota["spent"] for quota in pool["quotas"]} == {"requests": 1, "tokens": 17}
    assert file in seen[0]
    assert said(log) == []


@pytest.mark.parametrize(
    "content", [b"--", b"--x\r\n", b'--x\r\n; name="model"\r\n' * 9_000, b"\xff" * 99, b"--" * 99_000]
)
def test_a_broken_form_has_an_unknown_model(content):
    limiter = paceline.Limiter({"openai/*": "500 requests/min"})
    with client_of(limiter) as client:
        client.post("https://api.openai.com/v1/audio/transcriptions", content=content)
    assert list(limiter.status()["pools"]) == ["openai/unknown"]


async def test_a_refused_form_is_sent_whole_again(tmp_path):
    """The file is open and read by then."""
    limiter, sent = paceline.Limiter({"openai/*": "500 requests/min"}), []
    (tmp_path / "a.wav").write_bytes(b"RIFF" * 50_000)

    async def answer(request):
        sent.append(await request.aread())
        return httpx2.Response(429 if len(sent) == 1 else 200, json={"text": "Hello."}, headers={"retry-after-ms": "1"})

    http_client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    async with openai.AsyncOpenAI(api_key="k", http_client=http_client) as client:
        limiter.attach(client)
        with (tmp_path / "a.wav").open("rb") as file:
            await client.audio.transcriptions.create(model="whisper-1", file=file)
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert b"RIFF" * 50_000 in sent[0]
    assert counts(limiter, "openai/whisper-1") == {"granted": 2, "refused_rate": 1, "settled": 1}


# --- limits on units that calls do not have


OPENAI, COHERE = "https://api.openai.com/v1", "https://api.cohere.com"
GROQ, CEREBRAS = "https://api.groq.com/openai/v1/chat/completions", "https://api.cerebras.ai/v1/chat/completions"
EMBED = {"model": "embed-v4.0", "texts": ["a"]}


def warned(limits, *calls, limiter=None):
    limiter = limiter or paceline.Limiter(limits)
    with warnings.catch_warnings(record=True) as found, client_of(limiter) as client:
        warnings.simplefilter("always")
        for url, body in calls:
            client.post(url, json=body)
    return [str(one.message) for one in found if issubclass(one.category, paceline.PacelineWarning)]


@pytest.mark.parametrize(
    ("limits", "calls"),
    [
        ({"openai/gpt-5": "100 pages/min"}, [(f"{OPENAI}/chat/completions", CHAT)] * 2),
        ({"gpt-5": ["9 requests/min", "100 pages/min"]}, [(f"{OPENAI}/responses", {"model": "gpt-5", "input": "a"})]),
        ({"openai/*": "100 pages/min"}, [(f"{OPENAI}/chat/completions", CHAT | {"model": m}) for m in ("a-1", "b-2")]),
        ({"anthropic/*": "100 pages/min"}, [("https://api.anthropic.com/v1/messages", CHAT)]),
    ],
)
def test_a_limit_on_a_unit_that_no_call_has_is_named_once(limits, calls):
    [line] = warned(limits, *calls)
    assert "the limit '100 pages/min'" in line
    assert "input_tokens, output_tokens, requests, tokens," in line


def test_a_limit_in_dollars_is_named_with_the_budget_that_counts_them():
    [line] = warned({"openai/gpt-5": ["9 requests/min", "5 usd/day"]}, *[(f"{OPENAI}/chat/completions", CHAT)] * 2)
    assert "the limit '5 usd/day window utc' delays no call of a client" in line
    assert "or a budget, which counts what clients spend: Limiter(budget='5 usd/day')" in line


@pytest.mark.parametrize(
    ("limits", "calls"),
    [
        ({"openai/gpt-5": ["9 requests/min", "1M tokens/min", "1M input_tokens/min", "1M output_tokens/min", "9 concurrency"]}, [(f"{OPENAI}/chat/completions", CHAT)]),
        ({"cohere/*": "2k inputs/min"}, [(f"{COHERE}/v2/chat", CHAT), (f"{COHERE}/v2/embed", EMBED), (f"{COHERE}/v2/rerank", CHAT)]),
        ({"groq/*": "7200 audio_seconds/hour"}, [(GROQ, CHAT)]),
        ({"cerebras/*": "150k uncached_tokens/min"}, [(CEREBRAS, CHAT)]),
        ({"openai/*": "5 images/min"}, [(f"{OPENAI}/chat/completions", CHAT)]),
        ({"jobs": "5 pages/min", "openai/*": "500 requests/min"}, [(f"{OPENAI}/chat/completions", CHAT)]),
    ],
)  # fmt: skip
def test_a_limit_on_a_unit_that_some_calls_have_is_not_named(limits, calls):
    assert warned(limits, *calls) == []


FIREWORKS = "https://api.fireworks.ai/inference/v1/chat/completions"


@pytest.mark.parametrize(("provider", "url"), [("cerebras", CEREBRAS), ("fireworks", FIREWORKS)])
def test_a_unit_of_the_provider_s_own_needs_no_quota(provider, url):
    with client_of(paceline.Limiter({f"{provider}/*": ["9 requests/min", "1M tokens/min"]})) as client:
        assert client.post(url, json=CHAT).status_code == 200


@pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")
@pytest.mark.parametrize(
    ("provider", "url", "body"), [("cohere", f"{COHERE}/v2/chat", CHAT), ("groq", GROQ, {**CHAT, "model": "whisper-large-v3"})]
)  # fmt: skip
def test_a_table_s_limit_is_not_named(provider, url, body):
    lines = warned({}, (url, body), limiter=paceline.Limiter.for_provider(provider))
    assert not any("delays no call" in line for line in lines)


def test_a_unit_that_is_charged_by_hand_is_not_named():
    limiter = paceline.Limiter({"openai/gpt-5": "100 images/min"})
    with limiter.acquire("openai/gpt-5", images=3):
        assert warned({}, (f"{OPENAI}/chat/completions", CHAT), limiter=limiter) == []


def told_by(program, script):
    """The lines that a program writes to standard error."""
    if "fork" in script and not hasattr(os, "fork"):
        pytest.skip("no fork here")
    command = [sys.executable, "-W", "ignore", "-c", program + script]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr.splitlines()


AGAIN = pytest.mark.long("starts a process again")
PAST = "a limiter was made, and no request was paced: {} went past it; to pace a client, call limiter.attach(client), and to pace the whole program, paceline.instrument(limiter)"
UNATTACHED = """
import os, sys, paceline
limiter = paceline.Limiter({"openai/*": "60 requests/min"})
import httpx2, requests
send = lambda path, **kind: httpx2.Client(transport=httpx2.MockTransport(lambda request: httpx2.Response(200, json={})), **kind).post(f"https://api.openai.com/v1/{path}", json={})
class Answers(requests.adapters.HTTPAdapter):
    def get_connection_with_tls_context(self, *_, **__):
        from urllib3 import HTTPSConnectionPool
        class Refusing(HTTPSConnectionPool):
            def _make_request(self, *_, **__): raise OSError
        return Refusing("api.anthropic.com")
def by_requests():
    session = requests.Session()
    session.mount("https://", Answers())
    try: session.post("https://api.anthropic.com/v1/messages", json={})
    except requests.ConnectionError: pass
"""


@pytest.mark.parametrize(
    ("script", "past"),
    [
        pytest.param("", "", marks=AGAIN),
        pytest.param("send('files'); send('batches')", "", marks=AGAIN),  # nothing is generated there
        pytest.param("with limiter.acquire('openai/m'): send('responses')", "", marks=AGAIN),
        pytest.param(  # another client
            "import httpx2; limiter.attach(httpx2.Client()); send('responses')", "1 to api.openai.com", marks=AGAIN
        ),
        ("[send('responses') for _ in range(3)]; by_requests()", "3 to api.openai.com, 1 to api.anthropic.com"),
        pytest.param("paceline.Limiter(limiter.limits.given, budget='5 usd/day'); send('responses')", "1 to api.openai.com", marks=AGAIN),
        pytest.param("with paceline.instrument(limiter): send('responses')", "", marks=AGAIN),
        pytest.param("send('responses'); sys.exit(0) if os.fork() == 0 else os.wait()", "1 to api.openai.com", marks=AGAIN),
    ],
    ids=["nothing", "management", "by hand", "another client", "past", "a budget", "instrumented", "a child"],
)  # fmt: skip
def test_the_end_of_a_program_that_paces_nothing_says_so_if_requests_went_past(script, past):
    assert told_by(UNATTACHED, script) == ([PAST.format(past)] if past else [])
