"""litellm with ``api_base`` at the gateway, and nothing else changed."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches its prices while it is imported

import litellm
import pytest
from gateway_world import ARGUMENTS, MESSAGES, TOOLS, WHOLE

ROUTES = {
    "openai": ("openai/gpt-5", "/openai/v1"),
    "anthropic": ("anthropic/claude-haiku-4-5", "/anthropic"),
    "gemini": ("gemini/gemini-2.5-flash", "/gemini/v1beta"),
}


@pytest.fixture(params=ROUTES)
def asked(request, gateway):
    model, path = ROUTES[request.param]
    return {"model": model, "api_base": gateway.url + path, "api_key": "k", "messages": MESSAGES, "max_tokens": 100}


def text_of(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_plain(asked):
    answer = litellm.completion(**asked)
    assert (answer.choices[0].message.content, answer.usage.prompt_tokens) == (WHOLE, 70)


async def test_streams(asked):
    assert text_of(litellm.completion(**asked, stream=True)) == WHOLE
    assert text_of([chunk async for chunk in await litellm.acompletion(**asked, stream=True)]) == WHOLE


@pytest.mark.parametrize("stream", [False, True])
def test_tools(asked, stream):
    if asked["model"].startswith("gemini"):
        pytest.skip("the recorded answers of Gemini have none")
    answer = litellm.completion(**asked, tools=TOOLS, stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == ARGUMENTS


def test_responses_and_embeddings(gateway):
    given = {"api_base": f"{gateway.url}/openai/v1", "api_key": "k"}
    answer = litellm.responses(model="openai/gpt-5", input="Hi", **given)
    assert answer.output[0].content[0].text == WHOLE
    answer = litellm.embedding(model="openai/text-embedding-3-small", input=["a"], encoding_format="float", **given)
    assert answer.data[0]["embedding"] == [0.25, -0.5]
