"""Answers that are compressed, cut, huge or nonsense: the caller gets what it would have got, and the charges are right."""

import asyncio
import gc
import gzip
import json
import threading
from functools import partial

import chats
import httpx
import httpx2
import openai
import pytest
from chats import CHAT, PATH, pool_of, spent, wide_limiter

import paceline
from paceline.http import pace_transport
from paceline.http.ahead import in_pieces
from paceline.http.httpx import _decode

BODY = {name: CHAT[name] for name in ("model", "messages")}
ANSWER = json.dumps(chats.ANSWER).encode()
EVENTS = (
    b'data: {"id": "a", "object": "chat.completion.chunk", "choices": [{"delta": {"content": "Hi."}}]}\n\n'
    b'data: {"id": "a", "object": "chat.completion.chunk", "choices": [], "usage": '
    + json.dumps(chats.ANSWER["usage"]).encode()
    + b"}\n\n"
    b"data: [DONE]\n\n"
)


def chunks_of(library, body, size=7, fails=False):
    class Chunks(library.SyncByteStream, library.AsyncByteStream):
        closed = False

        def __iter__(self):
            for start in range(0, len(body), size):
                yield body[start : start + size]
            if fails:
                raise library.ReadError("gone")

        async def __aiter__(self):
            for chunk in self:
                yield chunk

        def close(self):
            type(self).closed = True

        async def aclose(self):
            type(self).closed = True

    return Chunks()


def client(limiter, library, status, headers, body, **options):
    streams = []

    class Inner(library.BaseTransport):
        def handle_request(self, request):
            streams.append(chunks_of(library, body, **options))
            return library.Response(status, headers=headers, stream=streams[-1])

    http = library.Client(transport=pace_transport(limiter, Inner(), "openai"), base_url="http://127.0.0.1")
    return http, streams


@pytest.fixture
def limiter():
    return wide_limiter()


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("encoding", ["gzip", "", "identity", "unheard-of"])
@pytest.mark.parametrize(
    ("body", "sent"), [(BODY, ANSWER), ({**BODY, "stream": True}, EVENTS)], ids=["whole", "stream"]
)
def test_a_compressed_answer_is_passed_on_and_settled(library, encoding, body, sent, limiter):
    packed = gzip.compress(sent) if encoding == "gzip" else sent
    http, _ = client(limiter, library, 200, {"content-encoding": encoding}, packed)
    with http, http.stream("POST", PATH, json=body) as response:
        assert b"".join(response.iter_bytes()) == sent
    assert spent(limiter)["tokens"] == 17


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize("status", [400, 500])
def test_an_error_is_the_callers_to_read(library, status, limiter):
    said = b'{"error": {"message": "no"}}'
    http, _ = client(limiter, library, status, {"content-encoding": "gzip"}, gzip.compress(said))
    with http:
        response = http.post(PATH, json=BODY)
        assert response.json() == {"error": {"message": "no"}}
        assert response.elapsed
        with http.stream("POST", PATH, json=BODY) as response:
            assert gzip.decompress(b"".join(response.iter_raw())) == said
    assert pool_of(limiter)["in_flight"] == 0


@pytest.mark.parametrize("status", [400, 429, 500])
def test_a_cut_error_body_closes_its_permit(status):
    limiter = wide_limiter(retry=paceline.RetryPolicy(max_attempts=1))
    http, _ = client(limiter, httpx2, status, {"content-length": "1000"}, b"abc", fails=True)
    with http:
        if status == 429:  # the status alone says enough
            assert http.post(PATH, json=BODY).headers["x-paceline"] == "gave_up"
        else:
            with pytest.raises(httpx2.ReadError):
                http.post(PATH, json=BODY)
    pool = pool_of(limiter)
    assert (pool["in_flight"], pool["counts"].get("refused_rate", 0)) == (0, status == 429)


def test_a_huge_refusal_is_looked_at_and_let_go():
    limiter = wide_limiter(retry=paceline.RetryPolicy(max_refused=2, backoff_s=0.01))
    bomb = gzip.compress(b" " * 50_000_000)
    http, streams = client(limiter, httpx2, 429, {"content-encoding": "gzip"}, bomb, size=65_536)
    with http:
        assert http.post(PATH, json=BODY).headers["x-paceline"] == "gave_up"
    assert [stream.closed for stream in streams] == [True, True]


def test_numbers_without_end_and_json_without_end(limiter):
    body = ANSWER.replace(b'"prompt_tokens": 12', b'"prompt_tokens": ' + b"9" * 400)
    http, _ = client(limiter, httpx2, 200, {}, body)
    with http:
        assert http.post(PATH, json=BODY).status_code == 200
        assert http.post(PATH, content=b'{"a":' * 200_000).status_code == 200
        assert http.post(PATH, json={**BODY, "max_tokens": 10**400}).status_code == 200
    assert all(pool["in_flight"] == 0 for pool in limiter.status()["pools"].values())


def test_a_request_sent_again_is_paced_again(limiter):
    http, _ = client(limiter, httpx2, 200, {}, ANSWER)
    with http:
        request = http.build_request("POST", PATH, json=BODY)
        for _ in range(3):
            http.send(request)
    assert pool_of(limiter)["counts"]["granted"] == 3


def test_two_sdks_on_one_http_client_are_told_apart_or_refused(limiter):
    with httpx2.Client() as http:
        limiter.attach(http, provider="openai")
        limiter.attach(http, provider="openai")
        with pytest.raises(ValueError, match="another provider already"):
            limiter.attach(http, provider="anthropic")


async def test_cancelled_while_an_error_is_read():
    limiter = paceline.Limiter({"openai/*": ["1 concurrency"]})

    class Stalled(httpx2.AsyncByteStream):
        async def __aiter__(self):
            yield b"abc"
            await asyncio.Event().wait()

    class Inner(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request):
            return httpx2.Response(500, headers={"content-length": "1000"}, stream=Stalled())

    transport = pace_transport(limiter, Inner(), "openai")
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(http.post(PATH, json=BODY), 0.05)
    assert pool_of(limiter)["in_flight"] == 0


def test_streams_left_to_the_garbage_collector(paceline_emulator):
    """Collected while this very thread holds the pool's lock, they settle all the same."""
    world = paceline_emulator(limits={"gpt-5": "600k requests/min,900M tokens/min"})
    limiter = paceline.Limiter({"openai/*": ["600k requests/min", "900M tokens/min"]})
    client = limiter.attach(openai.OpenAI(base_url=f"{world.base_url}/v1", api_key="k"), provider="openai")
    before = gc.get_threshold()
    gc.set_threshold(20, 2, 2)
    done = threading.Event()

    def leave_many():
        for _ in range(60):
            for _ in client.chat.completions.create(stream=True, **BODY):
                break
        done.set()

    try:
        threading.Thread(target=leave_many, daemon=True).start()
        assert done.wait(60), "deadlock"
    finally:
        gc.set_threshold(*before)
        client.close()


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_a_body_that_expands_without_end_is_decoded_in_small_pieces(library):
    headers = {"content-encoding": "gzip"}
    decode = in_pieces(headers, partial(_decode, library.Response(200, headers=headers)))
    sizes = [len(piece) for piece in decode(gzip.compress(bytes(50 * 2**20), 1))]
    assert sum(sizes) == 50 * 2**20
    assert max(sizes) < 1.1 * 2**20
