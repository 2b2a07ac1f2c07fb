"""Several accounts behind one path of the gateway: each request goes where it can go soonest."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from gateway_helpers import chat, stub
from test_gateway import Odd

from paceline.config import Config
from paceline.core.results import SettingsError
from paceline.gateway.reading import BodyReader
from paceline.gateway.upstreams import Upstreams

CHAT = "/gpt/v1/chat/completions"
TWENTY = {"openai/gpt-5": "20 requests/min"}


@pytest.fixture
def group(serve, monkeypatch):
    """Start a gateway with one group, of servers by name: their URLs, or their tables of settings."""

    def start(servers, limits=TWENTY, group=None, **given):
        for name in servers:
            monkeypatch.setenv(f"KEY_{name.upper()}", f"sk-of-{name}")
        upstreams = {
            name: {"provider": "openai", "key_env": f"KEY_{name.upper()}"}
            | (one if isinstance(one, dict) else {"base_url": one})
            for name, one in servers.items()
        }
        groups = {"gpt": {"members": list(servers), **(group or {})}}
        return serve("http://127.0.0.1:9", upstreams=upstreams, groups=groups, limits=limits, **given)

    return start


@pytest.fixture
def regions(paceline_emulator):
    """Emulated providers by name, each with a key of its own."""

    def start(names=("eu", "us", "asia"), limits="20 requests/min"):
        return {name: paceline_emulator(limits={"*": limits}, latency_s=0.0) for name in names}

    return start


def send(client, running, count=1, **fields):
    def one(_):
        return client.post(f"{running.url}{CHAT}", json=chat() | fields)

    with ThreadPoolExecutor(max_workers=30) as pool:
        return list(pool.map(one, range(count)))


def admitted(worlds):
    return {name: world.tally()["admitted"] for name, world in worlds.items()}


def test_each_server_gets_its_own_key_and_name_of_the_model(group, client, monkeypatch, large):
    read, ask = [], BodyReader.read
    monkeypatch.setattr(BodyReader, "read", lambda self, *given: read.append(given) or ask(self, *given))
    eu, us = Odd(), Odd()
    with stub(eu) as one, stub(us) as other:
        running = group({"eu": one, "us": {"base_url": other, "models": {"gpt-5": "my-deployment"}}})
        assert {answer.status_code for answer in send(client, running, 8)} == {200}
    seen = {(headers[b"authorization"], json.loads(body)["model"]) for *_, headers, body in eu.seen + us.seen}
    assert seen == {(b"Bearer sk-of-eu", "gpt-5"), (b"Bearer sk-of-us", "my-deployment")}
    assert len(read) == 8 * large


def test_a_conversation_stays_where_its_prompt_is_cached(group, regions, client, large):
    worlds = regions(limits="1k requests/min")
    running = group({name: world.base_url for name, world in worlds.items()}, {"openai/gpt-5": "1k requests/min"})
    send(client, running, 12, prompt_cache_key="conversation 7")
    assert sorted(admitted(worlds).values()) == [0, 0, 12]
    client.headers["x-paceline-sticky"] = "conversation 7"
    send(client, running, 12)
    assert sorted(admitted(worlds).values()) == [0, 0, 24]


@pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
def test_what_one_member_cannot_answer_goes_to_another(group, regions, client, caplog, status):
    worlds = regions(("us",), limits="1k requests/min")
    broken = Odd([b'{"error": {"message": "not here"}}'], status=status)
    with caplog.at_level(logging.WARNING, "paceline.http"), stub(broken) as url:
        running = group({"eu": url, "us": worlds["us"].base_url}, {"openai/gpt-5": "1k requests/min"})
        assert [answer.status_code for answer in send(client, running, 10)] == [200] * 10
    assert admitted(worlds) == {"us": 10}
    assert broken.seen
    said = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(said) == (status < 500)


@pytest.mark.parametrize("status", [400, 408, 409, 425, 499])
def test_what_may_be_about_the_request_goes_to_no_other_member(group, client, status):
    broken = Odd([b'{"error": {"message": "a conflict"}}'], status=status)
    with stub(broken) as one, stub(broken) as other:
        [answer] = send(client, group({"eu": one, "us": other}))
    assert (answer.status_code, len(broken.seen)) == (status, 1)


def test_a_server_that_is_away_costs_no_request(group, regions, client, nowhere):
    worlds = regions(("us",), limits="1k requests/min")
    running = group({"eu": nowhere, "us": worlds["us"].base_url}, {"openai/gpt-5": "1k requests/min"})
    assert {answer.status_code for answer in send(client, running, 20)} == {200}
    assert admitted(worlds) == {"us": 20}


def test_the_error_of_all_members_reaches_the_client(group, client):
    with ExitStack() as servers:
        none = Odd([b'{"error": {"message": "no such model"}}'], status=404)
        urls = {name: servers.enter_context(stub(none)) for name in ("eu", "us")}
        running = group(urls)
        [answer] = send(client, running)
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "no such model")
    assert answer.headers["x-paceline-attempts"] == "2"


def test_a_client_key_may_use_the_group(group, regions, client, keys, large):
    worlds = regions(("eu", "us"))
    mine = keys.add("alice", models=["gpt/*"])
    other = keys.add("bob", models=["gpt-4*"])
    running = group({name: world.base_url for name, world in worlds.items()})
    for key, status in ((mine, 200), (other, 403)):
        client.headers["authorization"] = f"Bearer {key}"
        assert send(client, running)[0].status_code == status


TABLE = {"provider": "openai", "base_url": "http://127.0.0.1:9"}
UPSTREAMS = {"eu": TABLE, "us": TABLE, "plan": {"provider": "chatgpt"}}
CHATGPT = "upstreams.chatgpt: chatgpt takes no keys"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"groups": {"gpt": {"members": ["eu", "uss"]}}}, "groups.gpt: 'uss' is no server in [upstreams]; did you mean 'us'?"),
        ({"groups": {"gpt": {}}}, "groups.gpt: a group needs one member or more"),
        ({"groups": {"gpt": {"members": ["eu"], "weights": {"us": 2}}}}, "groups.gpt: weights has 'us', which is no member"),
        ({"groups": {"eu": {"members": ["us"]}}}, "groups.eu: a server in [upstreams] has this name, too"),
        ({"groups": {"gpt": {"members": ["eu", "plan"]}}}, "groups.gpt: 'plan' cannot be a member: chatgpt takes no keys"),
        ({"groups": {"gpt": {"members": "eu"}}}, 'a list of names in [upstreams], e.g. ["eu", "us"]'),
        ({"groups": {"gpt": {"member": ["eu"]}}}, "no such setting; did you mean 'members'?"),
        ({"models": {"m": "eur/x"}}, "'eur' is no server or group; did you mean 'eu'"),
        ({"models": {"m": "eu"}}, "has no model: write eu/MODEL"),
        ({"models": {"m": ["eu/x"] * 7}}, "it has 7 targets: give 1 to 6"),
        ({"models": {"m": ["eu/x", "eu/y", "eu/x"]}}, "'eu/x' is named twice"),
        ({"models": {"m": "eu/*"}}, "a name can have one '*'"),
        ({"models": {"*/*": "eu/*"}}, "a name can have one '*'"),
        ({"models": {"m": [1]}}, "write a list of servers with a model"),
        ({"upstreams": {"chatgpt": {"key_env": "MINE"}}}, CHATGPT),
        ({"upstreams": {"chatgpt": {"key_file": "mine"}}}, CHATGPT),
    ],
)  # fmt: skip
def test_what_is_refused_at_the_start(given, words):
    with pytest.raises(SettingsError) as raised:
        Upstreams(Config.load(environ={}, given={"upstreams": UPSTREAMS, **given}), {"MINE": "k"})
    assert words in str(raised.value)
