"""llama-index against the emulator: complete, chat, streams and a workflow's agent, instrumented or attached."""

import httpx
import openai
import pytest
from harness import PROMPT, books_agree, counts, crowd_row
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai import OpenAI, OpenAIResponses

import paceline

PROVIDER = "openai"
POOL = "openai/gpt-5"
CHAT = [ChatMessage(role="user", content=PROMPT)]
USAGE = {"stream_options": {"include_usage": True}}


def llm(world, model_class=OpenAI, **options):
    address = {"api_key": "k", "api_base": f"{world.base_url}/v1"}
    return model_class(model="gpt-5", temperature=1, **address, **options)


async def test_every_way_of_calling(world, limiter):
    model = llm(world, max_tokens=40)
    with paceline.instrument(limiter):
        assert model.complete(PROMPT).text
        assert model.chat(CHAT).message.content
        assert (await model.acomplete(PROMPT)).text
        assert (await model.achat(CHAT)).message.content
        assert list(model.stream_chat(CHAT, **USAGE))
        assert [chunk async for chunk in await model.astream_chat(CHAT, **USAGE)]
    books_agree(limiter, world, POOL, 6)


async def test_responses(world, limiter):
    model = llm(world, OpenAIResponses, max_output_tokens=40)
    with paceline.instrument(limiter):
        assert model.chat(CHAT).message.content
        assert (await model.achat(CHAT)).message.content
        assert list(model.stream_chat(CHAT))
    books_agree(limiter, world, POOL, 3)


async def test_an_llm_is_attached_with_the_http_clients_that_it_was_given(world, limiter):
    """They are private attributes of a pydantic model."""
    with httpx.Client() as http_client:
        async with httpx.AsyncClient() as async_http_client:
            model = llm(world, max_tokens=40, http_client=http_client, async_http_client=async_http_client)
            limiter.attach(model, provider="openai")
            assert model.complete(PROMPT).text
            assert (await model.acomplete(PROMPT)).text
    assert counts(limiter, POOL) == {"granted": 2, "settled": 2}
    with pytest.raises(TypeError, match=r"paceline\.instrument\(limiter\)"):
        limiter.attach(llm(world))  # it has made none yet


async def test_an_agent_of_a_workflow(world, limiter):
    with paceline.instrument(limiter):
        agent = FunctionAgent(llm=llm(world, max_tokens=40), tools=[], system_prompt="You know the weather.")
        assert str(await agent.run(PROMPT))
    calls = world.tally()["admitted"]
    assert calls
    assert counts(limiter, POOL) == {"granted": calls, "settled": calls}


def test_our_refusal_is_a_rate_limit_error(world, limiter):
    with paceline.instrument(limiter), pytest.raises(openai.RateLimitError, match="the quota holds 4,000,000"):
        llm(world, max_tokens=5_000_000, max_retries=0).complete(PROMPT)
    assert world.tally()["admitted"] == 0


def test_a_crowd_in_threads_and_tasks(paceline_emulator):
    def calls(world):
        model = llm(world, max_tokens=40, max_retries=0)
        return lambda: model.chat(CHAT), lambda: model.achat(CHAT)

    crowd_row(paceline_emulator, "llama-index-core", "over openai and httpx", POOL, calls)
