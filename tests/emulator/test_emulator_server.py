"""The emulator over HTTP, spoken to by the providers' own SDKs."""

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
from functools import partial

import anthropic
import httpx2
import openai
import pytest

from paceline.emulator import Emulator, SettingsError
from paceline.emulator.settings import Settings
from waits import until

HELLO = [{"role": "user", "content": "hello"}]
EXACT = {"output_share": 1.0, "output_spread": 0.0}


@pytest.fixture
def openai_client(paceline_emulator, kept):
    """Start an emulator and a client of it: ``openai_client(limits=...)`` returns both."""

    def start(make=openai.OpenAI, version="/v1", **settings):
        emulator = paceline_emulator(**settings)
        return emulator, kept(make(base_url=f"{emulator.base_url}{version}", api_key="any", max_retries=0))

    return start


@pytest.fixture
def anthropic_client(openai_client):
    return partial(openai_client, anthropic.Anthropic, "")


def test_openai_chat(openai_client):
    emulator, client = openai_client(limits="gpt-5=10 requests/min,40k tokens/min", **EXACT)
    raw = client.chat.completions.with_raw_response.create(model="gpt-5", messages=HELLO, max_tokens=100, n=2)
    answer = raw.parse()
    assert raw.headers["x-ratelimit-remaining-requests"] == "9"
    assert raw.headers["x-ratelimit-remaining-tokens"] == str(40_000 - answer.usage.prompt_tokens - 200)
    assert raw.headers["x-ratelimit-reset-requests"] == "6s"
    assert len(answer.choices) == 2
    assert answer.usage.completion_tokens == 200
    assert emulator.tally()["charges"] == {"requests": 1, "tokens": answer.usage.prompt_tokens + 200}


def test_openai_chat_stream(openai_client):
    emulator, client = openai_client(**EXACT)
    with client.chat.completions.create(
        model="gpt-5", messages=HELLO, max_tokens=50, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert len("".join(c.choices[0].delta.content or "" for c in chunks[:-1])) == 200
    assert chunks[-2].choices[0].finish_reason == "length"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 50)
    with client.chat.completions.create(model="gpt-5", messages=HELLO, stream=True) as stream:
        assert all(chunk.usage is None for chunk in stream)
    assert emulator.tally()["answered"] == 2


def test_openai_responses(openai_client):
    _, client = openai_client(**EXACT)
    answer = client.responses.create(model="gpt-5", input="hello", max_output_tokens=30)
    assert len(answer.output_text) == 120
    assert answer.usage.output_tokens == 30
    with client.responses.stream(model="gpt-5", input="hello", max_output_tokens=30) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == answer.output_text
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    with client.responses.create(model="gpt-5", input="hello", stream=True) as events:
        numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(numbers)))


def test_openai_embeddings(openai_client):
    emulator, client = openai_client()
    named = {"extra_headers": {"x-custom-id": "a"}}
    answer = client.embeddings.create(model="emb", input=["one", "two"], **named)
    assert [len(item.embedding) for item in answer.data] == [1_536, 1_536]
    plain = client.embeddings.create(model="emb", input="one", dimensions=4, encoding_format="float", **named)
    assert plain.data[0].embedding == [0.5] * 4
    tally = emulator.tally()
    assert tally["charges"]["tokens"] == answer.usage.total_tokens + plain.usage.total_tokens
    assert tally["answers"] == {"distinct": 1, "most": 2, "repeated": {"a": 2}, "overflow": 0}


def test_openai_errors_have_their_types(openai_client):
    emulator, client = openai_client(limits={"gpt-5": "1 requests/min,1k tokens/min"})

    def send(**more):
        return client.chat.completions.create(**{"model": "gpt-5", "messages": HELLO} | more)

    with pytest.raises(openai.RateLimitError, match="Request too large") as error:
        send(max_tokens=2_000)
    assert "retry-after" not in error.value.response.headers
    send()
    with pytest.raises(
        openai.RateLimitError, match=r"on requests per min \(RPM\): Limit 1, Used 1, Requested 1"
    ) as error:
        send()
    assert error.value.code == "rate_limit_exceeded"
    assert 50 <= int(error.value.response.headers["retry-after"]) <= 60
    with pytest.raises(openai.NotFoundError):
        send(model="gpt-6")
    with pytest.raises(openai.BadRequestError):
        send(messages="hello")
    emulator.reset(money_after=0)
    with pytest.raises(openai.RateLimitError) as error:
        send()
    assert error.value.code == "insufficient_quota"
    emulator.reset(money_after=None, valid_key="other")
    with pytest.raises(openai.AuthenticationError) as wrong:
        send()
    assert "any" not in str(wrong.value)
    assert emulator.tally()["refused"] == {"auth": 1}


@pytest.mark.parametrize(
    ("fault", "error"), [("500", openai.InternalServerError), ("503", openai.InternalServerError), ("drop", openai.APIConnectionError)]
)  # fmt: skip
def test_faults(openai_client, fault, error):
    emulator, client = openai_client(faults={fault: 1.0})
    with pytest.raises(error):
        client.chat.completions.create(model="gpt-5", messages=HELLO)
    tally = emulator.tally()
    assert tally["faults"] == {fault: 1}
    assert (tally["admitted"], tally["answered"], tally["in_flight"]) == (fault != "503", 0, 0)


def test_anthropic_messages(anthropic_client):
    emulator, client = anthropic_client(
        limits="claude=5 requests/min,50k input_tokens/min,10k output_tokens/min", **EXACT
    )
    raw = client.messages.with_raw_response.create(model="claude", max_tokens=600, messages=HELLO, system="be kind")
    answer = raw.parse()
    assert raw.headers["anthropic-ratelimit-requests-remaining"] == "4"
    assert raw.headers["anthropic-ratelimit-tokens-limit"] == "60000"
    assert raw.headers["request-id"].startswith("req_")
    assert answer.stop_reason == "max_tokens"
    with client.messages.stream(model="claude", max_tokens=600, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == answer.content[0].text
    assert final.usage.output_tokens == 600
    assert emulator.tally()["charges"]["output_tokens"] == 1_200


def test_anthropic_errors_have_their_types(anthropic_client):
    emulator, client = anthropic_client(limits="1 requests/min", valid_key="any")

    def send(**more):
        return client.messages.create(**{"model": "claude", "max_tokens": 10, "messages": HELLO} | more)

    send()
    with pytest.raises(anthropic.RateLimitError, match=r"of 1 requests per minute\.") as error:
        send()
    assert 50 <= int(error.value.response.headers["retry-after"]) <= 60
    assert "anthropic-ratelimit-requests-reset" in error.value.response.headers
    emulator.reset(valid_key="other")
    with pytest.raises(anthropic.AuthenticationError):
        send()
    emulator.reset(valid_key=None, faults={"529": 1.0})
    with pytest.raises(anthropic.OverloadedError):
        send()


async def test_async_context_and_limits_in_mid_run():
    async with Emulator(limits={"m": "1 requests/min"}) as emulator, httpx2.AsyncClient() as client:

        async def send():
            body = {"model": "m", "messages": HELLO}
            headers = {"authorization": "Bearer any"}
            return await client.post(f"{emulator.base_url}/chat/completions", json=body, headers=headers)

        assert [(await send()).status_code for _ in range(2)] == [200, 429]
        emulator.set_limits("m=5 requests/min,1k tokens/min")
        assert (await send()).headers["x-ratelimit-limit-requests"] == "5"
        with pytest.raises(SettingsError, match="did you mean 'requests'"):
            emulator.set_limits({"m": "5 request/min"})
        with pytest.raises(SettingsError, match="did you mean 'latency_s'"):
            emulator.reset(latncy_s=1)
        assert (await client.get(f"{emulator.base_url}/v1/models")).json()["data"][0]["id"] == "m"
        assert (
            await client.head(f"{emulator.base_url}/v1/models")
        ).status_code == 200  # a probe of a container's health
        assert (await client.get(f"{emulator.base_url}/v1/nothing")).status_code == 404


async def test_a_client_that_leaves_a_stream_is_noticed(paceline_emulator):
    emulator = paceline_emulator(latency_per_token_s=0.005, **EXACT)
    body = {"model": "m", "max_tokens": 200, "stream": True, "messages": HELLO}
    async with (
        httpx2.AsyncClient(headers={"x-api-key": "any"}) as client,
        client.stream("POST", f"{emulator.base_url}/v1/messages", json=body) as response,
    ):
        async for _ in response.aiter_raw():
            break
    until(lambda: not emulator.tally()["in_flight"])
    tally = emulator.tally()
    assert (tally["answered"], tally["faults"]) == (0, {"gone": 1})


def test_large_bodies_pass_and_huge_ones_are_refused(paceline_emulator):
    emulator = paceline_emulator(limits="100m tokens/min")
    for size, status in ((1_000_000, 200), (33 * 1024 * 1024, 413)):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * (size // 5)}]})
        connection = http.client.HTTPConnection(emulator.base_url.removeprefix("http://"), timeout=10)
        connection.request("POST", "/v1/chat/completions", body, {"authorization": "Bearer any"})
        assert connection.getresponse().status == status
        connection.close()


def test_no_thread_and_no_socket_is_left():
    before = threading.active_count()
    emulator = Emulator(latency_s=30.0)
    with emulator:
        connection = http.client.HTTPConnection(emulator.base_url.removeprefix("http://"), timeout=10)
        body = json.dumps({"model": "m", "messages": HELLO})
        connection.request("POST", "/v1/chat/completions", body, {"authorization": "Bearer any"})
        until(lambda: emulator.tally()["in_flight"])
    connection.close()
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError):
        emulator.tally()
    emulator.stop()


def test_in_a_process():
    with Emulator(limits="3 requests/min", process=True) as emulator:
        client = openai.OpenAI(base_url=emulator.base_url, api_key="any", max_retries=0)
        client.embeddings.create(model="m", input="hello")
        client.close()
        assert emulator.tally()["admitted"] == 1
        child = emulator._child
        port = int(emulator.base_url.rpartition(":")[2])
        with pytest.raises(OSError, match=str(port)):
            Emulator(limits="3 requests/min", process=True, port=port).start()
    assert child.returncode == 0


def test_a_process_that_cannot_start_is_an_error(monkeypatch, capfd):
    monkeypatch.setenv("PYTHONHOME", "nowhere")
    with pytest.raises(RuntimeError, match="has not started"):
        Emulator(limits="3 requests/min", process=True).start()


@pytest.mark.parametrize(
    "said", ["", json.dumps(["127.0.0.1", 0, Settings().values()]) + "\n"], ids=["at once", "later"]
)
def test_a_process_whose_parent_has_ended_says_nothing(said):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "paceline.emulator.server"]
    pipes = {"stdout": writer, "stderr": subprocess.PIPE}
    done = subprocess.run(command, input=said, **pipes, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


async def test_hundreds_connect_at_once(paceline_emulator):
    emulator = paceline_emulator(limits="100k requests/min", latency_s=0.8)
    host, port = emulator.base_url.removeprefix("http://").split(":")
    body = json.dumps({"model": "m", "max_tokens": 1, "messages": HELLO}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer any\r\nconnection: close\r\n"

    async def send() -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer[9:12]

    assert set(await asyncio.gather(*(send() for _ in range(400)))) == {b"200"}
    assert emulator.tally()["in_flight_peak"] > 100


def test_what_is_used_survives_in_a_file(tmp_path):
    state = tmp_path / "openai.json"
    for left in (9, 8):
        with Emulator({"a|b": "10 requests/day,5 concurrency"}, state=state) as emulator:
            response = httpx2.post(
                f"{emulator.base_url}/v1/chat/completions",
                json={"model": "b", "messages": HELLO},
                headers={"authorization": "Bearer any"},
            )
            assert response.headers["x-ratelimit-remaining-requests"] == str(left)
    for wrong in ("{", "[1]", "{}", '{"at_s": 1, "used": {"a": [1]}}'):
        state.write_text(wrong)
        with pytest.raises(SettingsError, match="it is not a state that an emulator has written: remove the file"):
            Emulator({"a": "10 requests/day"}, state=state).start()
