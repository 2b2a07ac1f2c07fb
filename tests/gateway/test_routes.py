"""Names of models at the one address: each goes to its servers, and to the next one if the first cannot answer."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from gateway_helpers import FORM, FORM_KIND, bearer, chat, read_body, stub, tell

from paceline.config import Config
from paceline.gateway import errors, fallback
from paceline.gateway.relay import ClientReply
from paceline.gateway.upstreams import Upstreams
from paceline.pacing.lack import Lack
from waits import until

ANSWER = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "text": "hi"}
CHUNK = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'


class Servers:
    """Servers below ``/a``, ``/b`` and ``/c``: each answers with the status that is set for it."""

    def __init__(self):
        self.seen, self.status, self.breaks = [], {}, set()

    async def __call__(self, scope, receive, send):
        body = await read_body(receive)
        which, path = scope["path"][1], scope["path"][2:]
        form = b"gpt-5" if b"\r\ngpt-5\r\n" in body else b""
        model = form.decode() or json.loads(body or b"{}").get("model")
        self.seen.append((which, path, model, dict(scope["headers"]).get(b"authorization", b"").decode()))
        status = self.status.get(which, 200)
        if status != 200 or b'"stream"' not in body:
            await tell(send, ANSWER if status == 200 else {"error": {"message": "no", "type": "t"}}, status)
            return
        kind = (b"content-type", b"text/event-stream")
        await send({"type": "http.response.start", "status": 200, "headers": [kind]})
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        if which in self.breaks:
            await asyncio.sleep(0.05)
            raise RuntimeError
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    @property
    def asked(self):
        return [(which, model) for which, _, model, _ in self.seen]


@pytest.fixture
def servers():
    return Servers()


@pytest.fixture
def routed(serve, servers, monkeypatch):
    """Start a gateway in front of the three servers, with names for their models."""
    for name in "ABC":
        monkeypatch.setenv(f"KEY_{name}", f"sk-of-{name.lower()}")
    monkeypatch.setattr(errors, "_told", {})
    with stub(servers) as url:

        def start(models, more=None, **given):
            tables = {
                name: {"provider": "openai", "base_url": f"{url}/{name}", "key_env": f"KEY_{name.upper()}"}
                for name in "abc"
            }
            tables["c"]["provider"] = "groq"
            given = {"upstreams": tables | (more or {}), "models": models, "breaker": False, **given}
            return serve(url, provider=None, **given)

        yield start


@pytest.fixture
def ask(client):
    """Ask a gateway for a chat by a name of its models."""

    def ask(running, name, headers=(), **fields):
        url = f"{running.url}/v1/chat/completions"
        return client.post(url, json=chat(model=name, **fields), headers=dict(headers))

    return ask


def test_each_name_goes_to_its_server_with_its_key(routed, servers, client, ask):
    models = {"smart": "a/gpt-5", "quick": "b/gpt-4", "meta/*": "c/meta-*", "all": ["two/gpt-5"]}
    running = routed(models, groups={"two": {"members": ["a", "b"], "in_order": True}})
    for name, path in (("smart", "/v1"), ("quick", ""), ("meta/llama", "/v1"), ("all", "/v1")):
        url = f"{running.url}{path}/chat/completions"
        answer = client.post(url, json=chat(model=name), headers=bearer("sk-mine"))
        assert answer.status_code == 200, answer.text
        assert "x-paceline-fallback" not in answer.headers
    assert servers.seen == [
        ("a", "/v1/chat/completions", "gpt-5", "Bearer sk-of-a"),
        ("b", "/v1/chat/completions", "gpt-4", "Bearer sk-of-b"),
        ("c", "/v1/chat/completions", "meta-llama", "Bearer sk-of-c"),
        ("a", "/v1/chat/completions", "gpt-5", "Bearer sk-of-a"),
    ]
    pools = {name for name, pool in running.limiter.status()["pools"].items() if pool["counts"].get("granted")}
    assert pools == {"openai@a/gpt-5", "openai@b/gpt-4", "groq/meta-llama"}  # of the group, by any way
    unknown = ask(running, "smrt")
    assert (unknown.status_code, "did you mean 'smart'" in unknown.text) == (404, True)
    nameless = client.post(f"{running.url}/v1/files", json={})
    assert (nameless.status_code, "the request names no model, and its path no server" in nameless.text) == (404, True)
    assert [row["id"] for row in client.get(f"{running.url}/v1/models").json()["data"]] == ["smart", "quick", "all"]


def test_a_server_can_have_a_name_in_another_script(routed, servers, ask, monkeypatch):
    monkeypatch.setenv("KEY_D", "sk-of-d")
    with stub(servers) as url:
        server = {"provider": "openai", "base_url": f"{url}/a", "key_env": "KEY_D"}
        answer = ask(routed({"smart": "\u65e5\u672c/gpt-5"}, {"\u65e5\u672c": server}), "smart")
    assert (answer.status_code, servers.seen[0][3]) == (200, "Bearer sk-of-d")


def test_a_good_answer_is_the_clients_whatever_its_headers_say():
    """Its place has been paid for it."""
    said = [(b"x-paceline", b"timeout")]
    assert fallback.why_failed(ClientReply(200, said)) == ""
    assert fallback.why_failed(ClientReply(503, said)) == "timeout"


def test_a_form_and_a_large_body(routed, servers, client, ask, large):
    servers.status["a"] = 503
    running = routed({"smart": ["a/gpt-5", "b/gpt-5"]})
    form = FORM % b"smart"
    assert client.post(f"{running.url}/v1/audio/transcriptions", content=form, headers=FORM_KIND).status_code == 200
    assert ask(running, "smart").status_code == 200
    assert servers.asked == [("a", "gpt-5"), ("b", "gpt-5")] * 2


def test_a_key_sees_and_uses_its_names_alone(routed, servers, client, ask, keys):
    headers = {"authorization": f"Bearer {keys.add('mine', models=('smart',))}"}
    running = routed({"smart": ["a/gpt-5", "b/gpt-4"], "quick": "b/gpt-4"}, keys=keys.file)
    servers.status["a"] = 500
    for name, status in (("smart", 200), ("quick", 403), ("gpt-5", 404)):
        answer = ask(running, name, headers)
        assert answer.status_code == status, answer.text
    assert [row["id"] for row in client.get(f"{running.url}/v1/models", headers=headers).json()["data"]] == ["smart"]
    assert client.get(f"{running.url}/v1/models/smart", headers=headers).json()["id"] == "smart"
    assert client.get(f"{running.url}/v1/models/quick", headers=headers).status_code == 404
    assert client.get(f"{running.url}/v1/models").status_code == 401


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("status", "asked", "why"),
    [
        (500, "ab", "status 500"),
        (401, "ab", "status 401"),
        (404, "ab", "status 404"),
        (307, "ab", "status 307"),
        (402, "ab", "stopped"),
        (400, "a", ""),
        (413, "ab", "status 413"),
        (429, "ab", "gave_up"),
        (503, "ab", "gave_up"),
        (422, "a", ""),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_another_place_may_answer(routed, servers, ask, caplog, status, asked, why, stream):
    servers.status["a"] = status
    running = routed({"smart": ["a/gpt-5", "b/gpt-4"]})
    answer = ask(running, "smart", **{"stream": True} if stream else {})
    assert answer.status_code == (200 if why else status)
    assert "".join(dict.fromkeys(which for which, _ in servers.asked)) == asked
    assert answer.headers.get("x-paceline-fallback", "") == (f"b/gpt-4 after a/gpt-5 ({why})" if why else "")
    assert (f"smart: a/gpt-5 cannot answer ({why}): the request goes to b/gpt-4" in caplog.text) == bool(why)


def test_what_the_limits_of_a_place_forbid_another_one_may_allow(routed, servers, ask):
    limits = {"openai/gpt-5": "1 requests/hour", "openai/gpt-4": "10 tokens/min", "groq/llama": "100k requests/min"}
    running = routed({"smart": ["a/gpt-5", "b/gpt-4", "c/llama"]}, limits=limits)
    heads = [ask(running, "smart", {"x-paceline-timeout": "5"}).headers for _ in range(2)]
    assert servers.asked == [("a", "gpt-5"), ("c", "llama")]
    said = [head.get("x-paceline-fallback", "") for head in heads]
    assert said == ["", "c/llama after a/gpt-5 (timeout), b/gpt-4 (never_fits)"]


def test_an_answer_that_is_sent_again_names_its_fallback(routed, servers, ask, keys, tmp_path):
    servers.status["a"] = 500
    running = routed({"smart": ["a/gpt-5", "b/gpt-4"]}, keys=keys.file, access_log=tmp_path / "access.log")
    headers = bearer(keys.add("mine"), **{"idempotency-key": "k"})
    first, again = (ask(running, "smart", headers) for _ in range(2))
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["x-paceline-fallback"] == first.headers["x-paceline-fallback"] != ""
    until(lambda: (tmp_path / "access.log").read_text().count("b/gpt-4 after a/gpt-5") == 2)


def test_a_server_that_is_down_and_one_without_a_key_are_passed(routed, ask, keys, nowhere):
    more = {"down": {"provider": "openai", "base_url": nowhere, "key_env": "KEY_A"}, "cohere": {}}
    running = routed({"smart": ["down/x", "cohere/y", "c/llama"]}, more=more, keys=keys.file)
    answer = ask(running, "smart", bearer(keys.add("mine")))
    assert answer.headers["x-paceline-fallback"] == "c/llama after down/x (unreachable), cohere/y (no_key)"


@pytest.mark.parametrize(
    ("server", "advice"),
    [("cohere", "CO_API_KEY for it"), ("own", 'key_env = "" for it in [upstreams] if it needs none')],
)
def test_what_to_do_about_a_key_that_is_missing(routed, client, keys, nowhere, monkeypatch, server, advice):
    """A server of the user's own may need none."""
    for variable in ("CO_API_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    more = {"own": {"provider": "vllm", "base_url": nowhere}, "cohere": {}}
    running = routed({"smart": "a/gpt-5"}, more=more, keys=keys.file)
    answer = client.post(f"{running.url}/{server}/v1/chat/completions", json=chat(), headers=bearer(keys.add("mine")))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "paceline_no_key")
    assert answer.json()["error"]["message"].endswith(advice)


def test_one_that_nothing_answers_is_named(routed, servers, client, ask, caplog, tmp_path, nowhere):
    """To the client and in the log."""
    table = {"provider": "openai", "base_url": nowhere, "key_env": "KEY_A"}
    more = {"eu": table, "us": table}
    both = {"both": {"members": ["eu", "us"]}}
    models = {"smart": "eu/x", "any": "both/x", "next": ["a/gpt-5", "b/gpt-4"]}
    running = routed(models, more=more, groups=both, retry={"max_attempts": 1}, access_log=tmp_path / "log")
    servers.status["a"] = 500
    for name, server in (("smart", "eu"), ("smart", "eu"), ("any", "eu or us"), ("next", "")):
        answer = ask(running, name)
        assert answer.status_code == (502 if server else 200)
        assert f"paceline: {server} cannot be reached: ConnectionRefusedError" in answer.text or not server
    answer = client.get(f"{running.url}/eu/v1/models")
    assert "eu cannot be reached" in answer.text
    for server in ("eu", "eu or us"):
        line = f"{server} cannot be reached: ConnectionRefusedError, so that clients get a 502"
        assert [record.getMessage() for record in caplog.records].count(line) == 1
    until(lambda: (tmp_path / "log").read_text().count("\n") == 5)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line.get("model"), line["server"]) for line in lines] == [
        ("smart", "eu"), ("smart", "eu"), ("any", "eu or us"), ("next", "b"), (None, "eu"),
    ]  # fmt: skip
    assert [line.get("fallback") for line in lines[-2:]] == ["b/gpt-4 after a/gpt-5 (status 500)", None]


def test_a_server_that_has_failed_often_is_left_out_at_once(routed, servers, ask):
    servers.status["a"] = 500
    running = routed({"smart": ["a/gpt-5", "b/gpt-4"]}, breaker={"failures": 2, "first_pause_s": 600, "pause_s": 600})
    said = [ask(running, "smart").headers["x-paceline-fallback"] for _ in range(3)]
    assert [which for which, _ in servers.asked] == ["a", "b", "a", "b", "b"]
    assert said[-1] == "b/gpt-4 after a/gpt-5 (failed before)"


def test_an_answer_that_has_begun_is_not_begun_again(routed, servers, client):
    servers.breaks.add("a")
    running = routed({"smart": ["a/gpt-5", "b/gpt-4"]})
    with (
        pytest.raises(httpx2.RemoteProtocolError),
        client.stream("POST", f"{running.url}/v1/chat/completions", json=chat(model="smart", stream=True)) as answer,
    ):
        answer.read()
    assert [which for which, _ in servers.asked] == ["a"]


def test_the_most_specific_name_wins():
    models = {"emu/*": "a/*", "*": "a/*", "*-luna": "b/*", "g*": "b/*", "gpt*": "c/*", "gpt*a": "a/1*", "gpt-6": "a/6"}
    tables = {name: {"provider": "vllm", "base_url": "http://127.0.0.1:9"} for name in "abc"}
    names = ("emu/gpt-6-luna", "x-luna", "gx-luna", "gpt-6-luna", "gpt-7", "gpt-6", "x")
    for order in (1, -1):
        given = {"upstreams": tables, "models": dict(list(models.items())[::order])}
        routes = Upstreams(Config.load(environ={}, given=given), {}).native.routes
        places = [routes.find(name)[0].target for name in names]
        assert places == ["a/gpt-6-luna", "b/x", "b/x-luna", "a/1-6-lun", "c/-7", "a/6", "a/x"]


def test_many_fallbacks_repeat_no_other_line_of_the_log(monkeypatch, caplog):
    monkeypatch.setattr(errors, "_told", {})
    for line in range(errors.TOLD_MAX + 2):
        fallback.tell("all", f"a/{line}", "b/gpt-4", "no_answer")
        errors.no_answer(ConnectionResetError(), "a")
        errors.tell_lack(Lack.FILES)
        assert (errors.untold("connections") is None) is bool(line)
    told = [record.getMessage() for record in caplog.records if "the request goes to" not in record.getMessage()]
    assert [line.split()[0] for line in told] == ["the", "this"]
    assert all(len(of_a_kind) <= errors.TOLD_MAX for of_a_kind in errors._told.values())


def test_a_request_that_waited_for_a_budget_goes_to_no_place_that_has_failed_meanwhile(routed, servers, client):
    """They would ask it one after another, each after a longer pause, before any came back for the next place."""
    servers.status["a"] = 500
    prices = {f"openai/{model}": {"input": 0.0, "output": 100.0} for model in ("gpt-5", "gpt-4")}
    limits = {"*": "100k requests/min"}
    more = {"breaker": True, "budget": "3 usd/day", "prices": prices, "limits": limits}
    running, asked = routed({"smart": ["a/gpt-5", "b/gpt-4"]}, **more), chat(model="smart", max_tokens=8_000)

    def send(_):
        return client.post(f"{running.url}/v1/chat/completions", json=asked, timeout=5).status_code

    with ThreadPoolExecutor(16) as crowd:
        statuses = [*crowd.map(send, range(16))]
    assert sorted(statuses) == [200] * 4 + [429] * 12  # 0.80 USD each, as reserved: the answers report no usage
