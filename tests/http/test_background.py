"""Answers that are made in the background: the request is settled with the answer that is asked for later."""

import asyncio
import gc
import json
import weakref

import aiohttp
import httpx
import openai
import pytest
import requests
import urllib3
from chats import pool_of, spent

import paceline
from odd_server import JSON, SSE, OddServer
from paceline.http import background, pace_transport
from paceline.testing import ManualClock

TOKENS = "100k tokens/min"


def answer_with(status, usage=None, number=1):
    return {"id": f"resp_{number}", "object": "response", "status": status, "output": [], "usage": usage}


ASKED = {"model": "gpt-5", "input": "Hello.", "background": True}
USAGE = {"input_tokens": 900, "output_tokens": 100, "total_tokens": 1_000}


class Provider:
    """Answers each POST with a job, and each GET with the next of ``states``."""

    def __init__(self, *states):
        self.states, self.posts = list(states), 0

    def __call__(self, request):
        if request.method == "POST":
            self.posts += 1
            return httpx.Response(200, json=answer_with("queued", number=self.posts))
        status, usage = self.states.pop(0)
        return httpx.Response(200, json=answer_with(status, usage))


def client_of(limiter, provider):
    transport = pace_transport(limiter, httpx.MockTransport(provider), provider="openai")
    return openai.OpenAI(api_key="k", http_client=httpx.Client(transport=transport))


def level(limiter):
    return spent(limiter)["tokens"]


@pytest.mark.parametrize(
    ("last", "charged"), [(("completed", USAGE), 1_000), (("failed", None), None), (("cancelled", None), None)]
)
def test_the_usage_is_that_of_the_answer_that_is_asked_for(last, charged):
    limiter = paceline.Limiter({"openai/*": TOKENS})
    with client_of(limiter, Provider(("in_progress", None), last)) as client:
        job = client.responses.create(model="gpt-5", input="Hello.", background=True, max_output_tokens=50)
        held = level(limiter)
        assert client.responses.retrieve(job.id).status == "in_progress"
        assert (level(limiter), pool_of(limiter)["in_flight"]) == (held, 1)
        assert client.responses.retrieve(job.id).status == last[0]
    assert (pool_of(limiter)["in_flight"], level(limiter)) == (0, held if charged is None else charged)
    assert not limiter.pacer.jobs


async def ask_by_aiohttp(limiter, url):
    async with aiohttp.ClientSession() as session:
        limiter.attach(session, provider="openai")
        async with session.post(url, json=ASKED) as made, session.get(f"{url}/{(await made.json())['id']}") as answer:
            return await answer.json()


def ask_by_requests(limiter, url, retry=0):
    with requests.Session() as session:
        session.mount(url, requests.adapters.HTTPAdapter(max_retries=retry))
        limiter.attach(session, provider="openai")
        made = session.post(url, json=ASKED, timeout=20).json()
        return session.get(f"{url}/{made['id']}", timeout=20).json()


@pytest.mark.parametrize("ask", [lambda *asked: asyncio.run(ask_by_aiohttp(*asked)), ask_by_requests])
def test_it_is_asked_for_with_any_library(ask):
    limiter = paceline.Limiter({"openai/*": TOKENS})
    answers = [answer_with("queued"), answer_with("completed", USAGE)]
    with OddServer(lambda number, _: (200, JSON, answers[number])) as server:
        assert ask(limiter, f"{server.base_url}/v1/responses")["status"] == "completed"
    assert server.methods == ["POST", "GET"]
    assert (pool_of(limiter)["in_flight"], level(limiter)) == (0, 1_000)
    assert not limiter.pacer.jobs


def test_other_requests_pass_as_they_are():
    async def ask(url):
        async with aiohttp.ClientSession() as session:
            limiter.attach(session, provider="openai")
            await (await session.post(url, json=ASKED)).read()
            with pytest.raises(aiohttp.InvalidURL):
                await session.get("http://[")

    limiter = paceline.Limiter({"openai/*": TOKENS})
    with OddServer(lambda *_: (200, JSON, answer_with("queued"))) as server:
        asyncio.run(ask(f"{server.base_url}/v1/responses"))
    assert limiter.pacer.jobs


def test_urllib3_may_ask_for_it_again():
    limiter = paceline.Limiter({"openai/*": TOKENS})
    answers = [(200, answer_with("queued")), (503, {}), (200, answer_with("completed", USAGE))]
    retry = urllib3.Retry(1, status_forcelist=[503], backoff_factor=0)
    with OddServer(lambda number, _: (answers[number][0], JSON, answers[number][1])) as server:
        assert ask_by_requests(limiter, f"{server.base_url}/v1/responses", retry)["status"] == "completed"
    assert server.methods == ["POST", "GET", "GET"]
    assert (pool_of(limiter)["in_flight"], level(limiter)) == (0, 1_000)


def test_one_that_is_cancelled_is_over():
    """As held it would keep all others from a budget that let it go alone."""

    def answer(request):
        return httpx.Response(200, json=answer_with("cancelled" if request.url.path.endswith("/cancel") else "queued"))

    limiter = paceline.Limiter({"openai/*": TOKENS})
    with client_of(limiter, answer) as client:
        job = client.responses.create(model="gpt-5", input="Hello.", background=True)
        assert client.responses.cancel(job.id).status == "cancelled"
    assert pool_of(limiter)["in_flight"] == 0
    assert not limiter.pacer.jobs


def test_a_pool_of_slots_does_not_wait_for_it():
    limiter = paceline.Limiter({"openai/*": f"{TOKENS}, 2 concurrency"}, acquire_timeout_s=1.0)
    with client_of(limiter, Provider()) as client:
        for _ in range(5):
            client.responses.create(model="gpt-5", input="Hello.", background=True)
    assert pool_of(limiter)["in_flight"] == 0
    assert not limiter.pacer.jobs


def test_other_answers_settle_nothing():
    limiter = paceline.Limiter({"openai/*": TOKENS})
    with client_of(limiter, Provider(("completed", USAGE))) as client:
        client.responses.create(model="gpt-5", input="Hello.", background=True)
        client.responses.retrieve("resp_9")
    assert limiter.pacer.jobs


def test_the_oldest_of_too_many_stays_charged_as_held(monkeypatch):
    monkeypatch.setattr(background, "JOBS_MAX", 2)
    limiter = paceline.Limiter({"openai/*": TOKENS})
    with client_of(limiter, Provider()) as client:
        for _ in range(3):
            client.responses.create(model="gpt-5", input="Hello.", background=True)
    assert pool_of(limiter)["in_flight"] == 2


PRICES = {"openai/gpt-5": {"input": 1_000.0, "output": 1_000.0}}  # 0.001 a token


def dollars(limiter):
    """What is spent or reserved."""
    [quota] = pool_of(limiter, "budget")["quotas"]
    return quota["limit"] - quota["remaining"]


@pytest.mark.parametrize("quotas", [TOKENS, f"{TOKENS}, 2 concurrency"])
@pytest.mark.parametrize("after_s", [10, 5 * 3_600])
def test_a_budget_is_charged_with_the_usage_of_the_answer(quotas, after_s):
    clock = ManualClock(1_800_000_000)
    limiter = paceline.Limiter({"openai/*": quotas}, prices=PRICES, budget="100 usd/month", clock=clock)
    with client_of(limiter, Provider(("in_progress", None), ("completed", USAGE))) as client:
        job = client.responses.create(model="gpt-5", input="Hello.", background=True, max_output_tokens=50)
        held = dollars(limiter)
        assert 0.05 < held < 0.1
        clock.advance(after_s)
        client.responses.retrieve(job.id)
        assert dollars(limiter) == held
        client.responses.retrieve(job.id)
    assert dollars(limiter) == pytest.approx(1.0)


RESPONSE = [
    {"type": "response.created", "response": answer_with("in_progress")},
    {"type": "response.output_text.delta", "delta": "Hi."},
    {"type": "response.completed", "response": answer_with("completed", USAGE)},
]
AGENT = {"agent": "deep-research-pro", "input": "Hi.", "background": True}
SPENT = {"total_input_tokens": 900, "total_output_tokens": 100}
INTERACTION = {"event_type": "interaction.completed", "interaction": {"id": "i", "status": "completed", "usage": SPENT}}


@pytest.mark.parametrize(
    ("provider", "path", "asked", "job", "events"),
    [
        ("openai", "/v1/responses", ASKED, answer_with("queued"), RESPONSE),
        ("gemini", "/v1beta/interactions", AGENT, {"id": "i", "status": "in_progress"}, [INTERACTION]),
    ],
)
def test_an_answer_that_is_asked_for_as_a_stream(provider, path, asked, job, events):
    """As held it would keep all others from a budget that let it go alone, as all agents do."""
    body = "".join(f"event: {one.get('type', 'interaction.completed')}\ndata: {json.dumps(one)}\n\n" for one in events)

    def answer(request):
        if request.method == "POST":
            return httpx.Response(200, json=job)
        return httpx.Response(200, text=body, headers=SSE)

    prices = PRICES | {"gemini/unknown": PRICES["openai/gpt-5"]}
    limiter = paceline.Limiter({f"{provider}/*": TOKENS}, prices=prices, budget="100 usd/day")
    transport = pace_transport(limiter, httpx.MockTransport(answer), provider=provider)
    with httpx.Client(transport=transport, base_url="http://x") as client:
        client.post(path, json=asked)
        assert client.get(f"{path}/{job['id']}?stream=true").text == body
    assert dollars(limiter) == pytest.approx(1.0)
    assert not limiter.pacer.jobs


def test_a_limiter_is_not_kept():
    limiter = paceline.Limiter({"openai/*": TOKENS})
    with client_of(limiter, Provider()) as client:
        client.responses.create(model="gpt-5", input="Hello.", background=True)
    gone = weakref.ref(limiter)
    del limiter, client
    gc.collect()
    assert gone() is None
