"""What of the Ray integration needs no Ray; the rest is in tests/frameworks/ray."""

import asyncio
import json
import sys
from contextlib import ExitStack, closing
from types import ModuleType

import pytest

from odd_server import OddServer
from paceline.batch.requests import request_of
from paceline.config import Config
from paceline.core.results import PacelineError, PacelineWarning, SettingsError, StoreError
from paceline.data import journal
from paceline.integrations.ray import Actor, AnswerColumns, actors_for, key_of, paced_requests, read_line

BODY = {"model": "gpt-5", "messages": [{"role": "user", "content": "hello"}]}
LIMITS = {"openai/gpt-5": "500 requests/min"}


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-key-of-a-test")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    places = f"sqlite:{tmp_path / 's.db'}", f"sqlite:{tmp_path / 'j.db'}"
    with ExitStack() as actors:
        yield lambda **settings: actors.enter_context(
            closing(Actor({"limits": LIMITS, **settings}, *places, 60, "custom_id", 10))
        )


@pytest.fixture
def actor(made):
    return made()


def row(**fields):
    return {"custom_id": "a", "url": "/v1/chat/completions", "body": BODY, **fields}


@pytest.mark.parametrize("body", [BODY, json.dumps(BODY), json.dumps(BODY).encode(), {**BODY, "temperature": None}])
def test_every_form_of_a_body_is_the_same_request(actor, body):
    request = actor._request(row(body=body, params=None, method=None))
    assert request.body == BODY
    assert key_of(request) == key_of(request_of(0, row()))


def test_a_changed_request_has_another_key():
    keys = {key_of(request_of(0, row(**change))) for change in ({}, {"custom_id": "b"}, {"body": {**BODY, "n": 2}})}
    assert len(keys) == 3


def test_a_number_is_an_id(actor):
    assert actor._request(row(custom_id=7)).custom_id == "7"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"body": "{"}, "not JSON"),
        ({"body": None}, "body is missing"),
        ({"url": None}, "url is missing: write {"),
        ({"custom_id": None}, "custom_id is missing"),
        ({"body": {**BODY, "stream": True}}, "streamed answers are not supported"),
        ({"body": {**BODY, "seed": object()}}, "not JSON serializable"),
        ({"url": "/v1/messages", "body": {**BODY, "max_tokens": 9}}, "set the environment variable ANTHROPIC_API_KEY"),
    ],
)
def test_a_row_that_cannot_be_sent_is_an_answer(actor, fields, words):
    answer = actor._request(row(**fields))
    assert isinstance(answer, AnswerColumns)
    assert answer.error_code == "bad_line"
    assert words in answer.error_message


def test_lines_become_rows():
    assert read_line({"text": json.dumps(row())}) == row(body=json.dumps(BODY))
    params = {**BODY, "max_tokens": 9}
    line = {"custom_id": "b", "params": params}
    assert read_line({"text": json.dumps(line)}) == {
        "custom_id": "b", "url": "/v1/messages", "body": json.dumps(params),
    }  # fmt: skip
    assert read_line({"text": "no json"})["body"] is None


@pytest.mark.parametrize(
    ("limits", "latency_s", "actors"),
    [
        ({"openai/gpt-5": "500 requests/min"}, 10, 1),
        ({"openai/gpt-5": "30k requests/min"}, 10, 10),
        ({"openai/gpt-5": "30k requests/min", "anthropic/*": "3k requests/min"}, 10, 11),
        ({"openai/gpt-5": "400k tokens/min"}, 10, 1),
    ],
)
def test_there_are_as_many_actors_as_the_quota_needs(limits, latency_s, actors):
    assert actors_for(Config.load(None, {}, {"limits": limits}), latency_s) == actors


def test_an_actor_needs_a_store_and_a_key(monkeypatch, tmp_path):
    for name in ("PACELINE_STORE", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreError, match="set PACELINE_STORE"):
        Actor({"limits": LIMITS}, None, "job", 60, "custom_id", 10)
    with pytest.raises(SettingsError, match="give the base_url of a gateway with groups"):
        Actor({"limits": LIMITS, "group": "gpt"}, None, "job", 60, "custom_id", 10)
    with pytest.raises(SettingsError, match="set OPENAI_API_KEY or ANTHROPIC_API_KEY"):
        Actor({"limits": LIMITS}, f"sqlite:{tmp_path / 's.db'}", "job", 60, "custom_id", 10)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"actors": 0}, "actors is 0: it must be 1 or more"),
        ({"in_flight": -1}, "in_flight is -1"),
        ({"rows_per_block": 5_000}, "rows_per_block is 5000: it must be from 1 to 1,000"),
        ({"latency_s": 0}, "latency_s is 0"),
        ({"journal": ""}, "journal is ''"),
        ({"store": "redis://:hunter2@host/0"}, "store has a password"),
        ({"store": "memory:"}, "the actors must share one"),
        ({"tires": 2}, "arguments of paced_requests: tires: no such setting"),
    ],
)
def test_wrong_arguments_are_errors_at_once(monkeypatch, given, words):
    for name in ("ray", "ray.data"):  # nothing of them is used before
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(PacelineError) as raised:
        paced_requests(None, **{"limits": LIMITS, "journal": "job", **given})
    assert words in str(raised.value)
    assert "hunter2" not in str(raised.value)


async def test_an_actor_that_is_collected_in_its_event_loop_does_not_wait_for_it(made, monkeypatch):
    sent, actor = [], made()
    send = asyncio.run_coroutine_threadsafe

    def sends(coroutine, loop):
        sent.append(send(coroutine, loop))
        sent[-1].result = pytest.fail
        return sent[-1]

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", sends)
    actor._loop = asyncio.get_running_loop()
    actor.__del__()
    del sent[0].result
    await asyncio.wrap_future(sent[0])
    actor._loop = None


async def answered(actor, *requests):
    try:
        return await actor._answers(requests)
    finally:
        await actor._client.close()


async def test_an_answer_is_in_the_journal_before_it_is_passed_on(made, paceline_emulator):
    world = paceline_emulator(limits={"gpt-5": "500 requests/min"})
    actor = made(base_url=world.base_url, provider="openai")
    request = actor._request(row())
    [answer] = await answered(actor, request)
    assert (answer.status_code, answer.error_code) == (200, None)
    assert json.loads(answer.response)["choices"]
    wrong = AnswerColumns(error_code="bad_line")
    again = made(base_url=world.base_url, provider="openai")
    assert await answered(again, request, wrong, request) == [answer, wrong, answer]
    assert world.tally()["admitted"] == 1


async def test_a_budget_needs_no_address(made, monkeypatch, paceline_emulator):
    world = paceline_emulator(limits={"gpt-5": "500 requests/min"})
    monkeypatch.setenv("OPENAI_BASE_URL", world.base_url)
    prices = {"openai/gpt-5": {"input": 1.0, "output": 1.0}}
    actor = made(provider="openai", budget="1 usd/day", prices=prices)
    [answer] = await answered(actor, actor._request(row()))
    assert (answer.status_code, answer.error_code) == (200, None)


async def test_after_a_refused_key_nothing_more_is_sent(made):
    refusal = {"error": {"code": "invalid_api_key", "message": "no sk-a-key-of-a-test"}}
    with OddServer(lambda *_: (401, {}, refusal)) as server:
        actor = made(base_url=server.base_url, provider="openai")
        requests = [actor._request(row(custom_id=name)) for name in "ab"]
        with pytest.warns(PacelineWarning, match="2 calls raised"):
            first, second = await answered(actor, *requests)
    assert (first.status_code, first.error_code, second.error_code) == (401, "key_refused", "key_refused")
    assert "sk-a-key" not in str(first)
    assert len(server.asked) == 1
    assert [await actor._journal.begin(key_of(one)) for one in requests] == [None, None]


async def test_without_its_journal_nothing_is_sent(made, monkeypatch, paceline_emulator):
    monkeypatch.setattr(journal, "START_S", 0.0)
    world = paceline_emulator(limits={"gpt-5": "500 requests/min"})
    actor = made(base_url=world.base_url, provider="openai")
    actor._journal._place.close()
    with pytest.raises(StoreError, match="closed database"):
        await answered(actor, actor._request(row()))
    assert world.tally()["admitted"] == 0
