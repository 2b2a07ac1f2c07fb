"""The options of the gateway, given as headers by the SDKs, while requests wait for a limit of 50 a minute."""

import time

import anthropic
import cohere
import openai
import pytest
from gateway_world import MESSAGES, WHOLE, Gateway, chunked, gzipped, provider, whole
from google import genai
from google.genai import types
from mistralai.client import Mistral

from waits import until

KEPT = {"x-paceline-keepalive": "1"}
NAMES = ("openai", "responses", "anthropic", "gemini", "cohere", "mistral")
LIMITS = {f"{name}/*": ["50 requests/min burst 1"] for name in NAMES if name != "responses"}


def chat_of(root, headers):
    client = openai.OpenAI(base_url=f"{root}/openai/v1", api_key="k", default_headers=headers)
    chunks = client.chat.completions.create(model="gpt-5", messages=MESSAGES, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def responses_of(root, headers):
    client = openai.OpenAI(base_url=f"{root}/openai/v1", api_key="k", default_headers=headers)
    stream = client.responses.create(model="gpt-5", input="Hi", stream=True)
    return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def claude_of(root, headers):
    client = anthropic.Anthropic(base_url=f"{root}/anthropic", api_key="k", default_headers=headers)
    with client.messages.stream(model="claude-haiku-4-5", max_tokens=100, messages=MESSAGES) as stream:
        return "".join(stream.text_stream)


def gemini_of(root, headers):
    options = types.HttpOptions(base_url=f"{root}/gemini", headers=headers)
    client = genai.Client(api_key="k", http_options=options)
    return "".join(p.text for p in client.models.generate_content_stream(model="gemini-2.5-flash", contents="Hi"))


def cohere_of(root, headers):
    client, options = cohere.ClientV2(base_url=f"{root}/cohere", api_key="k"), {"additional_headers": headers}
    parts = client.chat_stream(model="command-a-03-2025", messages=MESSAGES, request_options=options)
    return "".join(part.delta.message.content.text for part in parts if part.type == "content-delta")


def mistral_of(root, headers):
    with Mistral(server_url=f"{root}/mistral", api_key="k") as client:
        parts = client.chat.stream(model="mistral-small-latest", messages=MESSAGES, http_headers=headers)
        found = [part.data.choices[0].delta.content for part in parts if part.data.choices]
        return "".join(text or "" for text in found)


STREAMS = {
    "openai": (chat_of, openai.APIError), "responses": (responses_of, openai.APIError),
    "anthropic": (claude_of, anthropic.APIError), "gemini": (gemini_of, Exception),
    "cohere": (cohere_of, Exception), "mistral": (mistral_of, Exception),
}  # fmt: skip


@pytest.fixture(scope="module")
def narrow(tmp_path_factory, recorder):
    with Gateway(tmp_path_factory.mktemp("gateway"), recorder.url, limits=LIMITS) as gateway:
        yield gateway
    assert "Traceback" not in gateway.log


@pytest.fixture
def waiting(narrow, recorder):
    """The gateway with nothing left, so that the next request of a provider waits for 1.2 s."""

    def use_up(name):
        until(lambda: not any(pool["waiting"] for pool in narrow.get("/status")["pools"].values()))
        STREAMS[name][0](narrow.url, {})
        recorder.asked.clear()
        return narrow.url

    return use_up


@pytest.mark.parametrize("name", NAMES)
class TestKeptAlive:
    def test_comments_do_not_break_a_parser(self, waiting, recorder, name):
        assert STREAMS[name][0](waiting(name), KEPT) == WHOLE

    def test_nor_does_an_encoded_stream(self, waiting, recorder, name):
        def encoded(asked):
            pieces = provider(asked)
            if "gzip" not in (asked.header("accept-encoding") or ""):
                return pieces
            body = [piece.partition(b"\r\n")[2][:-2] for piece in pieces[1:-1]]
            return chunked(list(gzipped(body)), "content-encoding: gzip")

        recorder.answer = encoded
        assert STREAMS[name][0](waiting(name), KEPT) == WHOLE

    @pytest.mark.parametrize(
        "refusal",
        [
            whole(
                {"type": "error", "error": {"type": "invalid_request_error", "message": "too\nlong"}},
                status="400 Bad Request",
            ),
            whole(b"<html>\r\n no\r\n</html>", status="502 Bad Gateway", kind="text/html"),
            [b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"],
            [b"connection: close"],
        ],
        ids=["an error in JSON", "an error in HTML", "an empty error", "a broken connection"],
    )
    def test_an_error_afterwards_is_an_error(self, waiting, recorder, name, refusal):
        call, error = STREAMS[name]
        root = waiting(name)
        recorder.answer = lambda _: refusal
        with pytest.raises(error):
            call(root, KEPT)


def test_a_deadline_has_a_true_retry_after(waiting, recorder):
    root = waiting("openai")
    client = openai.OpenAI(base_url=f"{root}/openai/v1", api_key="k")
    asked = {"model": "gpt-5", "messages": MESSAGES, "extra_headers": {"x-paceline-timeout": "0.1"}}
    with pytest.raises(openai.RateLimitError) as raised:
        client.chat.completions.create(**asked)
    after_s = int(raised.value.response.headers["retry-after"])
    assert 1 <= after_s <= 2
    assert raised.value.body["code"] == "paceline_timeout"
    time.sleep(after_s)
    assert client.chat.completions.create(**asked).choices[0].message.content == WHOLE


@pytest.mark.parametrize("name", NAMES)
def test_a_deadline_is_an_error_of_every_sdk(waiting, recorder, name):
    call, error = STREAMS[name]
    root = waiting(name)
    with pytest.raises(error, match="paceline"):
        call(root, {"x-paceline-timeout": "0.1"})
    assert recorder.asked == []
