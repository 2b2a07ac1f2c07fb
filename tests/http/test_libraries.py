"""aiohttp, requests and urllib3 against the emulator: paced, settled, retried and refused as under httpx."""

import asyncio
import gc
import gzip
import io
import json
import socket
import time
import uuid
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from weakref import ref

import aiohttp
import chats
import pytest
import requests
import urllib3
from chats import ANSWER, counts, spent
from http_ways import KEY, WAYS, ask_by_aiohttp, by_requests, chat_at

import paceline
from odd_server import JSON, OddServer
from paceline.http.exchange import Exchange

LIMITS = chats.LIMITS["openai/*"]
SAID = [{"role": "user", "content": "Say something. " * 20}]
CHAT = {"model": "gpt-5", "messages": SAID, "max_completion_tokens": 40}
STREAM = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
OTHERS = {name: send for name, send in WAYS.items() if "httpx" not in name}


@pytest.fixture
def limiter():
    limiter = paceline.Limiter({"openai/*": LIMITS})
    with paceline.instrument(limiter, provider="openai"):
        yield limiter


every_way = pytest.mark.parametrize("send", OTHERS.values(), ids=OTHERS)


@every_way
@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
def test_a_request_is_settled_with_what_the_server_charged(world, limiter, send, body):
    status, text = send(chat_at(world), body)
    assert status == 200
    assert (b"[DONE]" in text) == ("stream" in body)
    assert counts(limiter) == {"granted": 1, "settled": 1}
    assert spent(limiter) == world.tally()["pools"]["gpt-5"]["charges"]


@every_way
def test_a_request_that_is_no_model_s_is_sent_as_it_is(limiter, send):
    with OddServer(lambda *_: (200, JSON, {"a": 1})) as server:
        assert send(f"{server.base_url}/other", {"a": 1}) == (200, b'{"a": 1}')
    assert limiter.status()["pools"] == {}


@every_way
def test_a_refusal_of_our_own_is_the_library_s_own_answer(world, send):
    limiter = paceline.Limiter({"openai/*": ["100 tokens/min"]})
    with paceline.instrument(limiter, provider="openai"):
        status, text = send(chat_at(world), {**CHAT, "max_completion_tokens": 5_000})
    assert status == 429
    assert json.loads(text)["error"]["code"] == "paceline_never_fits"
    assert world.tally()["admitted"] == 0


@every_way
def test_a_request_that_is_too_large_by_no_limit_of_the_account_gets_the_server_s_own_answer(limiter, send):
    error = {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}
    with OddServer(lambda *_: (413, JSON, error)) as server:
        status, text = send(f"{server.base_url}/v1/chat/completions", CHAT)
    assert (status, json.loads(text), len(server.asked)) == (413, error, 1)
    assert counts(limiter) == {"granted": 1, "refused_never_fits": 1}


def test_raise_for_status_holds_for_the_answer_that_the_caller_gets(world):
    limiter = paceline.Limiter({"openai/*": ["100 tokens/min"]})
    large, url = {**CHAT, "max_completion_tokens": 5_000}, chat_at(world)

    async def main():
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            with pytest.raises(aiohttp.ClientResponseError) as caught:
                await session.post(url, json=large, headers=KEY)
            assert (caught.value.status, caught.value.headers["x-paceline"]) == (429, "never_fits")
            async with session.post(url, json=large, headers=KEY, raise_for_status=False) as response:
                assert (await response.json())["error"]["type"] == "rate_limit_error"

    with paceline.instrument(limiter, provider="openai"):
        asyncio.run(main())
        with pytest.raises(requests.HTTPError) as caught:
            requests.post(url, json=large, headers=KEY, timeout=5).raise_for_status()
    assert caught.value.response.headers["x-should-retry"] == "false"


def test_a_response_that_is_closed_or_dropped_early_is_settled(world, limiter):
    url = chat_at(world)

    async def main():
        async with aiohttp.ClientSession() as session:
            async with session.post(url, json=STREAM, headers=KEY):
                pass  # never read
            response = await session.post(url, json=STREAM, headers=KEY)
            await response.content.readany()
            response.close()

    asyncio.run(main())
    requests.post(url, json=STREAM, headers=KEY, timeout=5, stream=True).close()
    http = urllib3.PoolManager()
    response = http.request("POST", url, json=STREAM, headers=KEY, preload_content=False)
    response.read(10)
    response.close()
    http.clear()
    assert counts(limiter) == {"granted": 4, "settled": 4}


async def test_a_wait_is_outside_of_the_client_s_timeout(world):
    limiter = paceline.Limiter({"openai/*": ["40 requests/min burst 1"]}, headroom_s=0)
    with paceline.instrument(limiter, provider="openai"):
        timeout = aiohttp.ClientTimeout(total=1.2)  # less than the wait, and long for an answer
        url = chat_at(world)
        answers = await asyncio.gather(*(ask_by_aiohttp(url, CHAT, timeout=timeout) for _ in range(2)))
    assert [status for status, _ in answers] == [200] * 2


def test_urllib3_s_own_retries_are_attempts(paceline_emulator):
    world = paceline_emulator(limits={"*": ",".join(LIMITS)}, faults={"503": 0.5}, seed=3)
    limiter = paceline.Limiter({"openai/*": [*LIMITS, "1 concurrency"]})
    policy = urllib3.Retry(total=20, status_forcelist=[429, 503], allowed_methods=None, backoff_factor=0)
    with requests.Session() as session, paceline.instrument(limiter, provider="openai"):
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=policy))
        for _ in range(5):
            assert session.post(chat_at(world), json=CHAT, headers=KEY, timeout=5).status_code == 200
    faults = sum(world.tally()["faults"].values())
    assert faults > 0
    assert counts(limiter) == {"granted": 5 + faults, "settled": 5 + faults}
    assert {row["status"]: row["count"] for row in limiter.status()["answers"]} == {200: 5, 503: faults}


def test_a_host_that_fails_pauses_what_urllib3_repeats():
    limiter = paceline.Limiter({"openai/*": LIMITS}, breaker=paceline.BreakerPolicy(failures=2, first_pause_s=0.5))
    policy = urllib3.Retry(total=3, status_forcelist=[500], allowed_methods=None, backoff_factor=0)
    at_s = []

    def answer(number, _):
        at_s.append(time.monotonic())
        return (500, JSON, {}) if number < 2 else (200, JSON, ANSWER)

    with OddServer(answer) as server, urllib3.PoolManager(retries=policy) as http:
        limiter.attach(http, provider="openai")
        assert http.request("POST", chat_at(server), json=CHAT, headers=KEY).status == 200
    assert at_s[2] - at_s[1] > 0.4


@pytest.mark.parametrize(
    ("breaks", "refused", "budget", "usd"),
    [(True, 1, 50, 12.8), (False, 1, 50, 0), (False, 1, 1, 0), (False, 9, 50, 0)],
    ids=["broken", "refused", "refused, with a budget below one answer", "refused at the last retry"],
)
def test_an_attempt_that_urllib3_repeats_holds_no_more_than_it_may_have_cost(breaks, refused, budget, usd):
    def answer(number, _):
        assert number or not breaks  # else the connection closes
        usage = {"prompt_tokens": 9, "completion_tokens": 1}
        return (503, JSON, {"error": {"message": "no"}}) if number < refused else (200, JSON, ANSWER | {"usage": usage})

    prices = {"openai/gpt-5": {"input": 0.0, "output": 100.0}}  # an answer has 128,000 tokens at most
    limiter = paceline.Limiter({"openai/*": LIMITS}, prices=prices, budget=f"{budget} usd/day")
    policy = urllib3.Retry(total=2, status_forcelist=[503], allowed_methods=None, backoff_factor=0)
    with OddServer(answer) as server, requests.Session() as session:
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=policy))
        limiter.attach(session, provider="openai")
        body = {"model": "gpt-5", "messages": CHAT["messages"]}
        with nullcontext() if refused < 3 else pytest.raises(requests.exceptions.RetryError):
            assert session.post(chat_at(server), json=body, headers=KEY, timeout=5).status_code == 200
    assert spent(limiter, "budget")["usd"] == pytest.approx(usd, abs=0.001)


@pytest.mark.parametrize(
    ("status", "chunked", "error"),
    [
        ("200 OK", False, requests.ConnectionError),
        ("200 OK", True, requests.ConnectionError),
        ("400 Bad Request", False, requests.exceptions.ChunkedEncodingError),
    ],
)
def test_a_body_that_is_cut_before_its_content_is_an_error_of_requests(limiter, status, chunked, error):
    framed = {"transfer-encoding": "chunked"} if chunked else {"content-length": "99"}
    part = b'c\r\n{"choices": [' if chunked else b'{"choices": ['
    head = b"".join(f"{name}: {value}\r\n".encode() for name, value in (JSON | framed).items())
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1/chat/completions"
        asked = thread.submit(by_requests, url, CHAT)
        connection, _ = server.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(f"HTTP/1.1 {status}\r\n".encode() + head + b"\r\n" + part)
            connection.shutdown(socket.SHUT_WR)
            with pytest.raises(error):
                asked.result(10)
    assert counts(limiter) == {"granted": 1, "settled": 1}


async def test_an_open_connection_keeps_no_request(world, limiter, monkeypatch):
    made = []

    class Seen(Exchange):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            made.append(ref(self))

    monkeypatch.setattr("paceline.http.paced.Exchange", Seen)
    async with aiohttp.ClientSession() as session, session.post(chat_at(world), json=CHAT, headers=KEY) as answer:
        assert answer.status == 200
        await answer.read()
        del answer
        gc.collect()
        assert made[0]() is None


def test_an_attached_client_alone_is_paced(world):
    url, limiter = chat_at(world), paceline.Limiter({"openai/*": LIMITS})

    async def main():
        async with aiohttp.ClientSession() as paced, aiohttp.ClientSession() as other:
            assert limiter.attach(limiter.attach(paced, provider="openai"), provider="openai") is paced
            for session in (paced, other):
                async with session.post(url, json=CHAT, headers=KEY) as response:
                    await response.read()

    asyncio.run(main())
    assert counts(limiter) == {"granted": 1, "settled": 1}
    with requests.Session() as session, urllib3.PoolManager() as manager:
        limiter.attach(session, provider="openai").post(url, json=CHAT, headers=KEY, timeout=5)
        limiter.attach(manager, provider="openai").request("POST", url, json=CHAT, headers=KEY)
        by_requests(url, CHAT)
        assert counts(limiter) == {"granted": 3, "settled": 3}
        with pytest.raises(ValueError, match="another limiter"):
            paceline.Limiter({"openai/*": LIMITS}).attach(session)
    with paceline.instrument(limiter, provider="openai"), requests.Session() as session:
        limiter.attach(session, provider="openai").post(url, json=CHAT, headers=KEY, timeout=5)
    assert counts(limiter) == {"granted": 4, "settled": 4}


async def test_a_form_with_a_file_is_sent_again_whole():
    """A stand-in for the transcription of audio: the emulator has none."""
    refused = 429, JSON | {"retry-after-ms": "20"}, {"error": {"message": "Rate limit", "code": "rate_limit_exceeded"}}
    limiter = paceline.Limiter({"openai/*": LIMITS})
    with OddServer(lambda number, _: (200, JSON, {"text": "hi"}) if number else refused) as server:
        url = f"{server.base_url}/v1/audio/transcriptions"
        with paceline.instrument(limiter, provider="openai"):
            form = aiohttp.FormData()
            form.add_field("model", "whisper-1")
            form.add_field("prompt", "of a talk")
            form.add_field("file", io.BytesIO(b"\x00sound\xff" * 100), filename="a.wav", content_type="audio/wav")
            async with aiohttp.ClientSession() as session, session.post(url, data=form, headers=KEY) as response:
                assert await response.json() == {"text": "hi"}
            data, files = {"model": "whisper-1", "prompt": "x"}, {"file": io.BytesIO(b"sound" * 9)}
            await asyncio.to_thread(requests.post, url, data=data, files=files, headers=KEY)
    bodies = server.asked
    assert len(bodies) == 3
    assert all(b"whisper-1" in body and b"sound" in body for body in bodies)
    assert bodies[0].count(b"\x00sound\xff") == bodies[1].count(b"\x00sound\xff") == 100
    assert counts(limiter, "openai/whisper-1")["settled"] == 2


@pytest.mark.parametrize("option", ["json_serialize", "json_serialize_bytes"])
async def test_a_session_s_own_serializer_makes_the_body(world, limiter, option):
    def serialize(body):
        text = json.dumps(body, default=str)
        return text if option == "json_serialize" else text.encode()

    body = {**CHAT, "user": uuid.uuid4()}
    url = chat_at(world)
    async with (
        aiohttp.ClientSession(**{option: serialize}) as session,
        session.post(url, json=body, headers=KEY) as response,
    ):
        assert response.status == 200
        await response.read()
    assert counts(limiter) == {"granted": 1, "settled": 1}


async def in_parts(raw):
    yield raw[:50]
    yield raw[50:]


@pytest.mark.parametrize("make", [bytes, bytearray, bytes.decode, io.BytesIO, in_parts])
async def test_a_body_of_any_kind_is_read_and_sent(world, limiter, make):
    data = make(json.dumps(CHAT).encode())
    headers = {**KEY, "content-type": "application/json"}
    url = chat_at(world)
    async with aiohttp.ClientSession() as session, session.post(url, data=data, headers=headers) as response:
        assert response.status == 200
        await response.read()
    assert spent(limiter) == world.tally()["pools"]["gpt-5"]["charges"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_answers_are_read(encoding):
    answer = json.dumps(ANSWER).encode()
    packed = gzip.compress(answer) if encoding == "gzip" else zlib.compress(answer)

    parts = [packed[at : at + 11] for at in range(0, len(packed), 11)]
    with OddServer(lambda *_: (200, JSON | {"content-encoding": encoding}, parts)) as server:
        for name, send in OTHERS.items():
            limiter = paceline.Limiter({"openai/*": LIMITS})
            with paceline.instrument(limiter, provider="openai"):
                status, text = send(chat_at(server), CHAT)
            assert (status, json.loads(text)) == (200, json.loads(answer)), name
            assert spent(limiter) == {"requests": 1, "tokens": 12 + 40}, name
