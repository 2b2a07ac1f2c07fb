"""The SDKs for Python with the gateway's address in place of the provider's, and nothing else changed."""

import io
import json
import struct

import anthropic
import cohere
import openai
import pytest
from gateway_world import ARGUMENTS, AUDIO, MESSAGES, SCHEMA, TEXT, TOOL, TOOLS, WHOLE
from google import genai
from google.genai import types
from mistralai.client import Mistral

CLAUDE = {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": MESSAGES}
CLAUDE_TOOLS = [{"name": TOOL["name"], "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}]


@pytest.fixture(params=["direct", "gateway"])
def at(request, gateway, recorder):
    """The address of a provider's server: its own, and in the gateway."""
    return lambda name: recorder.url if request.param == "direct" else f"{gateway.url}/{name}"


class TestOpenAI:
    @pytest.fixture
    def client(self, at):
        with openai.OpenAI(base_url=at("openai") + "/v1", api_key="k") as client:
            yield client

    def test_chat(self, client):
        answer = client.chat.completions.create(model="gpt-5", messages=MESSAGES)
        assert (answer.choices[0].message.content, answer.usage.total_tokens) == (WHOLE, 80)

    def test_tools(self, client):
        answer = client.chat.completions.create(model="gpt-5", messages=MESSAGES, tools=TOOLS)
        assert json.loads(answer.choices[0].message.tool_calls[0].function.arguments) == ARGUMENTS
        with client.chat.completions.stream(model="gpt-5", messages=MESSAGES, tools=TOOLS) as stream:
            answer = stream.get_final_completion()
        assert json.loads(answer.choices[0].message.tool_calls[0].function.arguments) == ARGUMENTS

    @pytest.mark.parametrize("tools", [False, True])
    def test_responses(self, client, tools):
        tool = {"type": "function", "name": TOOL["name"], "parameters": SCHEMA, "strict": True}
        given = {"tools": [tool]} if tools else {}
        answer = client.responses.create(model="gpt-5", input="Hi", store=False, **given)
        with client.responses.stream(model="gpt-5", input="Hi", **given) as stream:
            streamed = stream.get_final_response()
        for one in (answer, streamed):
            if tools:
                assert json.loads(one.output[0].arguments) == ARGUMENTS
            else:
                assert one.output_text == WHOLE

    def test_embeddings(self, client, recorder):
        base64 = client.embeddings.create(model="text-embedding-3-small", input=["a"], encoding_format="float")
        assert base64.data[0].embedding == [0.25, -0.5]
        assert recorder.asked[0].json["input"] == ["a"]

    def test_files_and_audio(self, client, recorder):
        wave = b"RIFF" + struct.pack("<I", 40) + bytes(range(256)) * 1_000
        answer = client.audio.transcriptions.create(model="whisper-1", file=("a.wav", io.BytesIO(wave)))
        assert answer.text == WHOLE
        assert wave in recorder.asked[0].body
        assert client.files.create(file=("a.jsonl", b"{}"), purpose="batch").id == "file-1"
        with client.audio.speech.with_streaming_response.create(model="tts-1", voice="alloy", input="a") as spoken:
            assert b"".join(spoken.iter_bytes()) == AUDIO

    def test_models(self, client):
        assert [model.id for model in client.models.list()] == ["gpt-5"]

    def test_an_error_is_the_providers(self, client):
        with pytest.raises(openai.NotFoundError, match="no /v1/fine_tuning"):
            client.fine_tuning.jobs.list()


class TestAnthropic:
    @pytest.fixture
    def client(self, at):
        with anthropic.Anthropic(base_url=at("anthropic"), api_key="k") as client:
            yield client

    def test_messages(self, client):
        answer = client.messages.create(**CLAUDE)
        assert (answer.content[0].text, answer.usage.output_tokens) == (WHOLE, 10)

    def test_a_stream_with_tools(self, client):
        with client.messages.stream(**CLAUDE, tools=CLAUDE_TOOLS) as stream:
            assert "".join(stream.text_stream) == WHOLE
            answer = stream.get_final_message()
        assert (answer.content[1].input, answer.stop_reason) == (ARGUMENTS, "tool_use")

    def test_what_costs_nothing(self, client):
        assert client.messages.count_tokens(model=CLAUDE["model"], messages=MESSAGES).input_tokens == 70
        assert list(client.messages.batches.list()) == []

    def test_betas(self, client, recorder):
        client.beta.messages.create(**CLAUDE, betas=["context-1m-2025-08-07", "x-1"])
        assert recorder.asked[0].header("anthropic-beta") == "context-1m-2025-08-07,x-1"
        assert recorder.asked[0].path == "/v1/messages"


class TestGemini:
    @pytest.fixture
    def client(self, at):
        return genai.Client(api_key="k", http_options=types.HttpOptions(base_url=at("gemini")))

    def test_content(self, client):
        answer = client.models.generate_content(model="gemini-2.5-flash", contents="Hi")
        assert (answer.text, answer.usage_metadata.total_token_count) == (WHOLE, 80)

    async def test_an_async_stream(self, client):
        parts = await client.aio.models.generate_content_stream(model="gemini-2.5-flash", contents="Hi")
        assert [part.text async for part in parts] == TEXT

    def test_what_costs_nothing(self, client):
        assert client.models.count_tokens(model="gemini-2.5-flash", contents="Hi").total_tokens == 70


class TestCohere:
    @pytest.fixture
    def client(self, at):
        return cohere.ClientV2(base_url=at("cohere"), api_key="k")

    def test_chat(self, client):
        answer = client.chat(model="command-a-03-2025", messages=MESSAGES)
        assert answer.message.content[0].text == WHOLE


class TestMistral:
    def test_chat(self, at):
        with Mistral(server_url=at("mistral"), api_key="k") as client:
            answer = client.chat.complete(model="mistral-small-latest", messages=MESSAGES)
            assert answer.choices[0].message.content == WHOLE
