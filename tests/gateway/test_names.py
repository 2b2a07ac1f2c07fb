"""Names of models are the client's: an alias is replaced before a request leaves, wherever it stands, and the pool is that of the model sent."""

import json

import pytest
from gateway_helpers import FORM, FORM_KIND, Stub, chat, stub

from paceline.gateway.names import model_asked, renamed, renamed_path
from paceline.http.describe import body_of
from paceline.providers.registry import provider_named

NAMES = {"smart": "gpt-5", "quick": "claude/x:1", "ears": "whisper-1"}
EARS = FORM % b"ears"


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/v1beta/models/smart:generateContent", "/v1beta/models/gpt-5:generateContent"),
        ("/openai/deployments/smart/chat/completions", "/openai/deployments/gpt-5/chat/completions"),
        ("/model/quick/converse", "/model/claude%2Fx%3A1/converse"),
        ("/v1/models/smart", "/v1/models/gpt-5"),
        ("/v1/models/other", "/v1/models/other"),
        ("/v1/models", "/v1/models"),
        ("/v1/smart/x", "/v1/smart/x"),
    ],
)
def test_in_paths(path, sent):
    assert (renamed_path(path, NAMES), renamed_path(path, {})) == (sent, path)


def test_in_bodies():
    body = json.dumps({"model": "smart", "input": "smart"}).encode()
    assert json.loads(renamed(body, body_of(body), NAMES)) == {"model": "gpt-5", "input": "smart"}
    assert body_of(EARS)["model"] == "ears"
    assert renamed(EARS, body_of(EARS), NAMES) == EARS.replace(b"\nears", b"\nwhisper-1")
    unquoted = EARS.replace(b'name="model"', b"name=model")  # .NET
    assert renamed(unquoted, body_of(unquoted), NAMES) == unquoted.replace(b"\nears", b"\nwhisper-1")
    for one in (b'{"model": "other"}', b"--b\r\n", b"[]", b"", b'{"messages": [{"content": {"model": "smart"}}]}'):
        assert renamed(one, body_of(one), NAMES) is None


@pytest.mark.parametrize(
    "shape",
    [
        '{"requests": [{"model": "models/%s", "content": {"parts": [{"text": "smart"}]}}]}',  # Gemini batchEmbedContents
        '{"model": "models/%s", "content": {"parts": [{"text": "smart"}]}}',  # Gemini embedContent
        '{"requests": [{"custom_id": "smart", "params": {"model": "%s", "messages": []}}]}',  # Anthropic's batches
        '{"model": "other", "fallbacks": [{"model": "%s"}], "max_tokens": 9}',  # Anthropic
        '{"model": "%s", "models": ["other", "%s"]}',  # OpenRouter
        '{"input": "smart", "model": "other", "tools": [{"type": "image_generation", "model": "%s"}]}',  # OpenAI
    ],
)
def test_in_bodies_wherever_they_name_one(shape):
    body = shape.replace("%s", "smart").encode()
    assert json.loads(renamed(body, body_of(body), NAMES)) == json.loads(shape.replace("%s", "gpt-5"))


@pytest.mark.parametrize(
    ("own", "sent"),
    [({"models/smart": "b"}, "b"), ({"smart": "models/b"}, "models/b"), ({"smart": "b", "models/b": "c"}, "models/b")],
)
def test_in_bodies_with_a_name_in_a_collection(own, sent):
    body = b'{"model": "models/smart", "preset": "smart", "agent_id": "smart", "assistant": {"name": "smart"}}'
    found = json.loads(renamed(body, body_of(body), own))
    assert found == {**json.loads(body), "model": sent}  # agents and presets are no models


@pytest.mark.parametrize(
    ("provider", "path", "named", "asked"),
    [
        ("openai", "/v1/chat/completions", {"model": "smart"}, "smart"),
        ("gemini", "/v1beta/models/smart:generateContent", {"model": "evil"}, "smart"),
        ("azure", "/openai/deployments/smart/chat/completions", {"model": "evil"}, "smart"),
        ("bedrock", "/model/quick/converse", {}, "quick"),
        ("openai", "/v1/chat/completions", {}, "default"),
    ],
)
def test_what_a_client_asks_for(provider, path, named, asked):
    assert model_asked(provider_named(provider), path, named, "default") == asked


class Server(Stub):
    def __init__(self):
        self.seen = []

    def answer(self, path, _headers, body):
        self.seen.append((path, "whisper-1" if b"whisper-1" in body else json.loads(body or b"{}").get("model")))
        choices = [{"message": {"content": "hi"}, "finish_reason": "stop"}]
        return ({"choices": choices, "text": "hi", "candidates": [{}]},)


@pytest.fixture
def server():
    with stub(made := Server()) as made.url:
        yield made


@pytest.mark.parametrize("groups", [{}, {"two": {"members": ["main", "spare"], "in_order": True}}])
def test_a_server_and_a_group_take_the_same_names(serve, server, client, keys, large, groups):
    mine, other = keys.add("mine", models=("smart", "ears")), keys.add("other", models=("gpt-5", "whisper-1"))
    table = {"provider": "openai", "base_url": server.url, "key_env": "OPENAI_API_KEY", "models": NAMES}
    upstreams = {"main": table} | ({"spare": {**table, "models": {"smart": "gpt-4"}}} if groups else {})
    running = serve(server.url, provider=None, upstreams=upstreams, groups=groups, keys=keys.file)
    root = running.url + ("/two" if groups else "")
    for key, status in ((mine, 200), (other, 403)):
        headers = {"authorization": f"Bearer {key}"}
        answer = client.post(f"{root}/v1/chat/completions", json=chat(model="smart"), headers=headers)
        assert answer.status_code == status, answer.text
        answer = client.post(f"{root}/v1/audio/transcriptions", content=EARS, headers=headers | FORM_KIND)
        assert answer.status_code == status, answer.text
    assert server.seen == [("/v1/chat/completions", "gpt-5"), ("/v1/audio/transcriptions", "whisper-1")]
    account = "openai@main" if groups else "openai"
    pools = {name for name, pool in running.limiter.status()["pools"].items() if pool["counts"].get("granted")}
    assert pools == {f"{account}/gpt-5", f"{account}/whisper-1"}


def test_a_name_in_a_path_and_in_a_list(serve, server, client, keys):
    headers = {"x-goog-api-key": keys.add("mine", models=("smart",))}
    models = {"smart": "gemini-2.5-pro"}
    table = {"provider": "gemini", "base_url": server.url, "key_env": "GEMINI_API_KEY", "models": models}
    running = serve(server.url, provider=None, upstreams={"g": table}, keys=keys.file)
    body = {"contents": [{"parts": [{"text": "hi"}]}]}
    answer = client.post(f"{running.url}/g/v1beta/models/smart:generateContent", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    own = f"{running.url}/g/v1beta/models/gemini-2.5-pro:generateContent"
    assert client.post(own, json=body, headers=headers).status_code == 403
    assert client.get(f"{running.url}/g/v1beta/models/smart", headers=headers).status_code == 200
    model = "/v1beta/models/gemini-2.5-pro"
    assert [path for path, _ in server.seen] == [f"{model}:generateContent", model]
    assert list(running.limiter.status()["pools"]) == ["gemini/gemini-2.5-pro"]
