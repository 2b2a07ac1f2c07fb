"""LangChain's models and agents against the emulator: attached, behind the middleware, and both."""

import asyncio
import json

import pytest
from harness import LIMITS, PROMPT, books_agree, charged, counts, crowd_row, spent
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from long_tools import Calls, long_json, long_text

import paceline
from paceline.integrations.langchain import PacelineMiddleware, PacelineRateLimiter
from paceline.integrations.langchain_agents import chat

OPENAI_LIMITS, CLAUDE_LIMITS = LIMITS["openai/*"], LIMITS["anthropic/*"]
PROVIDER = "openai"
GPT, CLAUDE = "openai/gpt-5", "anthropic/claude-haiku-4-5"


def gpt(world, cls=ChatOpenAI, **options):
    return cls(model="gpt-5", api_key="k", base_url=f"{world.base_url}/v1", **{"max_tokens": 40, **options})


def claude(world, **options):
    return ChatAnthropic(model="claude-haiku-4-5", api_key="k", base_url=world.base_url, max_tokens=40, **options)


def agent(model, *middleware, tools=(), **options):
    return create_agent(model, list(tools), middleware=list(middleware), **options)


def asked(text=PROMPT):
    return {"messages": [HumanMessage(text)]}


# --- chat models, attached or instrumented


async def every_way(model, **options):
    """Two answers and two streams."""
    model.invoke(PROMPT)
    await model.ainvoke(PROMPT)
    for _ in model.stream(PROMPT, **options):
        pass
    async for _ in model.astream(PROMPT, **options):
        pass


async def test_chat_models_are_attached(world, limiter):
    model = gpt(world)
    limiter.attach(model, provider="openai")
    await every_way(model, stream_usage=True)
    books_agree(limiter, world, GPT, 4)
    model.batch([PROMPT] * 5)
    books_agree(limiter, world, GPT, 9)
    await model.abatch([PROMPT] * 5)
    books_agree(limiter, world, GPT, 14)


async def test_claude_by_instrument(world):
    limiter = paceline.Limiter({"anthropic/*": CLAUDE_LIMITS})
    with paceline.instrument(limiter):
        await every_way(claude(world))
    books_agree(limiter, world, CLAUDE, 4)


# --- the rate limiter of a chat model


async def test_rate_limiter_sync_async_stream(world, limiter):
    pace = PacelineRateLimiter(limiter, GPT, input_tokens=100, output_tokens=40)
    await every_way(gpt(world, rate_limiter=pace))
    assert counts(limiter, GPT) == {"granted": 4, "settled": 4}
    assert spent(limiter, GPT)["tokens"] == 4 * 140


async def test_rate_limiter_that_may_not_block():
    limiter = paceline.Limiter({"calls": "1 requests/min"}, headroom_s=0)
    pace = PacelineRateLimiter(limiter, "calls")
    assert pace.acquire(blocking=False) is True
    assert pace.acquire(blocking=False) is False
    assert await pace.aacquire(blocking=False) is False
    with pytest.raises(paceline.SettingsError, match="no quota for 'cals'"):
        PacelineRateLimiter(limiter, "cals")


# --- the middleware


async def test_middleware_waits_and_settles_without_help_from_below(world, limiter):
    running = agent(gpt(world), PacelineMiddleware(limiter))
    running.invoke(asked())
    await running.ainvoke(asked())
    books_agree(limiter, world, GPT, 2)


@pytest.mark.parametrize("door", ["attach", "instrument"])
async def test_middleware_and_client_below_charge_once(world, limiter, door):
    model = gpt(world)
    running = agent(model, PacelineMiddleware(limiter))
    if door == "attach":
        limiter.attach(model, provider="openai")
        running.invoke(asked())
        await running.ainvoke(asked())
    else:
        with paceline.instrument(limiter):
            running.invoke(asked())
            await running.ainvoke(asked())
            await asyncio.gather(*[running.ainvoke(asked()) for _ in range(10)])
            running.batch([asked()] * 10)  # LangChain's threads
    calls = world.tally()["admitted"]
    books_agree(limiter, world, GPT, calls)


async def test_middleware_streams(world, limiter):
    running = agent(gpt(world, stream_usage=True), PacelineMiddleware(limiter))
    with paceline.instrument(limiter):
        chunks = [chunk async for chunk in running.astream(asked(), stream_mode="messages")]
        chunks += list(running.stream(asked(), stream_mode="messages"))
    assert len(chunks) > 4
    books_agree(limiter, world, GPT, 2)


def test_middleware_over_claude(world):
    limiter = paceline.Limiter({"anthropic/*": CLAUDE_LIMITS, "openai/*": OPENAI_LIMITS})
    agent(claude(world), PacelineMiddleware(limiter)).invoke(asked())
    agent(gpt(world), PacelineMiddleware(limiter, GPT)).invoke(asked())
    assert spent(limiter, CLAUDE) == charged(world, "claude-haiku-4-5")
    assert spent(limiter, GPT) == charged(world, "gpt-5")


def test_middleware_estimates_near_what_is_used(world, limiter):
    estimates = []

    class Watched(paceline.Limiter):
        def acquire(self, pool, **cost):
            estimates.append(cost["input_tokens"])
            return super().acquire(pool, **cost)

    limiter = Watched({"openai/*": OPENAI_LIMITS})
    running = agent(gpt(world), PacelineMiddleware(limiter), tools=[long_text], system_prompt=PROMPT)
    used = [running.invoke(asked())["messages"][-1].usage_metadata["input_tokens"] for _ in range(20)]
    assert used[0] * 0.7 < estimates[0] < used[0] * 1.5
    assert used[0] < estimates[-1] < used[0] * 1.1  # learned


PARTS = [
    {"type": "text", "text": "word " * 100},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}},
    {"type": "tool_use", "id": "a", "name": "search", "input": {"query": "word " * 100}},
    {"type": "nobody_knows_this", "what": {"deep": ["word " * 100, None, 5]}},
]
CALL = {"name": "search", "args": {"query": "word " * 100}, "id": "a"}


def test_sizes_of_all_that_a_history_can_hold():
    model = chat(None, ChatAnthropic(model="claude-haiku-4-5", api_key="k"), {})
    one = model.size([HumanMessage("word " * 100)])
    assert model.size([HumanMessage(PARTS[:1])]) == one
    assert 1 < model.size([HumanMessage(PARTS[1:2])]) < 2_000
    called = model.size([AIMessage("", tool_calls=[CALL])])
    assert one < called < 1.5 * one
    assert model.size([AIMessage(PARTS[2:3], tool_calls=[CALL])]) <= called  # Claude says it twice
    assert model.size([HumanMessage(PARTS[3:])]) >= one
    assert model.size([], [{"type": "web_search_20250305", "name": "web_search"}, long_text]) > 10


async def test_middleware_makes_a_pool_pause_where_nobody_else_does(paceline_emulator):
    world = paceline_emulator(limits={"gpt-5": "2 requests/s"})
    limiter = paceline.Limiter({"openai/*": OPENAI_LIMITS})  # believes in more than there is
    retry = ModelRetryMiddleware(max_retries=10, initial_delay=0, jitter=False)
    running = agent(gpt(world, max_retries=0), retry, PacelineMiddleware(limiter))
    await asyncio.gather(*[running.ainvoke(asked()) for _ in range(6)])
    tally = world.tally()
    assert tally["admitted"] == 6
    assert counts(limiter, GPT)["refused_rate"] == tally["refused_total"] >= 1


def test_middleware_timeout(world):
    limiter = paceline.Limiter({"openai/*": "1 requests/min"}, headroom_s=0)
    running = agent(gpt(world), PacelineMiddleware(limiter, timeout=1))
    running.invoke(asked())
    with pytest.raises(paceline.AcquireTimeoutError):
        running.invoke(asked())
    assert world.tally()["admitted"] == 1


# --- history and tools' results


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_tools_results_are_cut(world, limiter, limited, asynchronous):
    middleware = PacelineMiddleware(limiter if limited else None)
    running = agent(gpt(world, Calls), middleware, tools=[long_text, long_json])
    answer = await running.ainvoke(asked()) if asynchronous else running.invoke(asked())
    text, table = [message.content for message in answer["messages"] if message.type == "tool"]
    assert len(text) <= 12_000
    assert text.endswith("[... 50,000 characters, cut here ...]")
    assert len(table) <= 12_000
    assert json.loads(table)["rows"][0] == {"id": 0, "text": "x" * 300}
    assert answer["messages"][-1].content


class Spy(PacelineMiddleware):
    """Keeps what the model is sent."""

    def wrap_model_call(self, request, handler):
        def kept(request):
            self.sent = request.messages
            return handler(request)

        return super().wrap_model_call(request, kept)


def conversation(turns):
    messages = [HumanMessage("The task: " + "count words. " * 20)]
    for turn in range(turns):
        call = {"name": "long_text", "args": {}, "id": f"call_{turn}"}
        messages.append(AIMessage("", tool_calls=[call]))
        messages.append(ToolMessage("word " * 200, tool_call_id=f"call_{turn}"))
    return messages


@pytest.mark.parametrize("limited", [True, False])
def test_history_is_trimmed(world, limiter, limited):
    spy = Spy(limiter if limited else None, max_input_tokens=2_000)
    running = agent(gpt(world), spy, tools=[long_text], system_prompt="Be brief.")
    history = conversation(40)
    running.invoke({"messages": history})  # from the first answer on, estimates are better
    answer = running.invoke({"messages": history})
    assert len(answer["messages"]) == len(history) + 1  # the state keeps everything
    assert 10 < len(spy.sent) < 30
    assert spy.sent[0] == answer["messages"][0]
    assert [message.type for message in spy.sent[1:]] == ["ai", "tool"] * (len(spy.sent) // 2)
    assert spy.sent[-1].tool_call_id == "call_39"
    assert answer["messages"][-1].usage_metadata["input_tokens"] <= 2_050


def test_a_system_message_counts_and_stays(world, limiter):
    spy = Spy(limiter, max_input_tokens=2_000)
    running = agent(gpt(world), spy, system_prompt=SystemMessage("Be brief. " * 400))
    answer = running.invoke({"messages": conversation(40)})
    assert answer["messages"][-1].usage_metadata["input_tokens"] < 2_400
    assert 3 <= len(spy.sent) < 12


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(paceline.SettingsError, match="max_tool_output_chars is 5"):
        PacelineMiddleware(max_tool_output_chars=5)
    with pytest.raises(paceline.SettingsError, match="max_input_tokens is 0"):
        PacelineMiddleware(max_input_tokens=0)


def test_a_crowd_of_calls_in_threads_and_tasks(paceline_emulator):
    def calls(world):
        model = gpt(world, max_retries=0)
        return lambda: model.invoke(PROMPT), lambda: model.ainvoke(PROMPT)

    crowd_row(paceline_emulator, "langchain-openai", "over openai 3", GPT, calls)


def test_a_crowd_of_graphs_in_threads_and_tasks(paceline_emulator):
    def calls(world):
        model, graph = gpt(world, max_retries=0), StateGraph(MessagesState)
        graph.add_node("weather", lambda state: {"messages": [model.invoke(state["messages"])]})
        graph.add_edge(START, "weather")
        graph.add_edge("weather", END)
        compiled = graph.compile()
        return lambda: compiled.invoke(asked()), lambda: compiled.ainvoke(asked())

    crowd_row(paceline_emulator, "langgraph", "over openai 3", GPT, calls)
