"""A key with a list of models: no field of any API names another one, and nothing else is taken for a name."""

import gzip
import json
import random
import re
from dataclasses import replace

import pytest
from attack_helpers import ANSWER, answers, post, raw_server, talk
from gateway_helpers import Stub, stub
from test_attacks import attacked

from grids import some
from paceline.gateway.errors import RequestError
from paceline.gateway.keys import ClientKey, KeySecret
from paceline.gateway.rights import Asked, check_rights
from paceline.http.describe import body_of
from paceline.providers.base import COUNTING
from paceline.providers.registry import provider_for_host, provider_named

MINE, FOREIGN = "good-mini", "evil-pro"
CHAT, SAID = "/v1/chat/completions", [{"role": "user", "content": "hi"}]
PROFILE = "arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.anthropic.claude-opus-5-5"
KEY = ClientKey("alice", KeySecret("0" * 64), "", models=(f"*{MINE}", "predictions", "agent-api", "async-api"))

FIELDS = {
    "openai /v1/chat/completions": ["model", "moderation.model"],
    "openai /v1/responses": ["model", "tools.0.model", "tools.0.tools.0.model", "input.0.tools.0.model", "moderation.model"],
    "openai /v1/embeddings": ["model"],
    "openai /v1/images/generations": ["model"],
    "anthropic /v1/messages": ["model", "fallbacks.0.model", "tools.0.model", "context_management.edits.0.model"],
    "openrouter /api/v1/chat/completions": [
        "model", "models.0", "models.1", "fallbacks.0.model", "preset", "plugins.0.allowed_models.0", "plugins.0.model",
        "tools.0.parameters.model", "tools.0.parameters.analysis_models.0", "reasoning.judge",
    ],
    "openrouter /api/v1/responses": ["models.0", "tools.0.parameters.model"],
    "openrouter /api/v1/messages": ["fallbacks.0.model", "models.0"],
    "vercel /v1/chat/completions": ["model", "models.0", "providerOptions.gateway.models.0"],
    "groq /openai/v1/chat/completions": ["compound_custom.models.answering_model", "compound_custom.models.reasoning_model"],
    "together /v1/chat/completions": ["model", "safety_model"],
    "mistral /v1/chat/completions": ["model", "guardrails.0.moderation_llm_v1.model_name"],
    "mistral /v1/conversations": ["model", "agent_id"],
    "mistral /v1/agents/completions": ["agent_id"],
    "perplexity /v1/responses": ["model", "models.0", "preset"],
    "perplexity /async/chat/completions": ["request.model"],
    "gemini /v1beta/models/good-mini:generateContent": ["model", "generationConfig.routingConfig.manualMode.modelName"],
    "gemini /v1beta/models/good-mini:batchEmbedContents": ["requests.0.model"],
    "gemini /v1beta/interactions": ["model", "agent"],
    "vertex /v1/projects/p/locations/l/publishers/google/models/good-mini:generateContent": [
        "generationConfig.routingConfig.manualMode.modelName",
        "generationConfig.routingConfig.autoMode.modelRoutingPreference",
        "tools.0.retrieval.vertexRagStore.ragRetrievalConfig.ranking.llmRanker.modelName",
    ],
    "azure /openai/v1/responses": ["model", "agent.name", "tools.0.model"],
    "azure /openai/deployments/good-mini/chat/completions": [
        "data_sources.0.parameters.embedding_dependency.deployment_name", "fallback_model",
    ],
    "bedrock /model/good-mini/converse": ["modelId", "additionalModelRequestFields.fallbacks.0.model"],
    "bedrock /model/good-mini/invoke": ["model_id", "fallbacks.0.model"],
    "cohere /v2/chat": ["model"],
    "cohere /v2/rerank": ["model", "reranker.model"],
    "voyage /v1/rerank": ["model"],
    "ollama /api/chat": ["model", "Model", "MODEL"],
    "replicate /v1/predictions": ["version"],
    "databricks /serving-endpoints/good-mini/invocations": ["model"],
    "cloudflare /client/v4/accounts/a/ai/run/@cf/good-mini": ["fallbacks.0"],
    "my-own-server /v1/chat/completions": [
        "model", "fallbacks.0", "fallbacks.0.gpt-4.0", "context_window_fallbacks.0.x.0", "model_list.0.litellm_params.model",
        "extra_body.models.0", "extra_body.model", "model\0", "modelId", "session.model", "body.model",
    ],
}  # fmt: skip
"""Fields that name a model, by API; numbers are places in lists."""

HARMLESS = [
    {"metadata": {"model": FOREIGN, "models": [FOREIGN]}},
    {"messages": [{"role": "assistant", "content": "x", "model": FOREIGN}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "model": FOREIGN}]}]},
    {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "buy", "input": {"model": FOREIGN}}]}]},
    {"input": [{"type": "function_call_output", "output": [{"model": FOREIGN}]}], "prompt": {"variables": {"model": FOREIGN}}},
    {"contents": [{"parts": [{"functionCall": {"name": "buy", "args": {"model": FOREIGN, "models": [FOREIGN]}}}]}]},
    {"tools": [{"type": "function", "function": {"name": "buy", "parameters": {"properties": {"model": {"enum": [FOREIGN]}}}}}]},
    {"tools": [{"type": "function", "name": "buy", "parameters": {"type": "object", "default": {"model": FOREIGN}}}]},
    {"tools": [{"name": "buy", "input_schema": {"properties": {"models": {"const": FOREIGN}}}, "input_examples": [{"model": FOREIGN}]}]},
    {"tools": [{"functionDeclarations": [{"name": "buy", "parameters": {"properties": {"model": {"description": FOREIGN}}}}]}]},
    {"toolConfig": {"tools": [{"toolSpec": {"name": "buy", "inputSchema": {"json": {"x": {"model": FOREIGN}}}}}]}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "car", "schema": {"properties": {"model": {"const": FOREIGN}}}}}},
    {"text": {"format": {"type": "json_schema", "schema": {"examples": [{"model": FOREIGN}]}}}},
    {"provider": {"order": ["azure"], "allow_fallbacks": True}, "route": "fallback", "reasoning": {"effort": "low"}},
    {"tools": [{"type": "web_search"}, {"type": "file_search", "ranking_options": {"ranker": "auto"}}], "tool_choice": {"type": "image_generation"}},
    {"user": FOREIGN, "stop": [FOREIGN], "service_tier": "flex", "modalities": ["text"], "speed": "fast"},
]  # fmt: skip


def put(body, path, value):
    """The body with a value at a path; what is there on the way stays."""
    name, _, rest = path.partition(".")
    if name.isdigit():
        found = body if isinstance(body, list) else []
        found += [{"type": "x"} for _ in range(int(name) + 1 - len(found))]
        found[int(name)] = put(found[int(name)], rest, value) if rest else value
        return found
    found = body if isinstance(body, dict) else {}
    found[name] = put(found.get(name), rest, value) if rest else value
    return found


def check(api, body, *, query="", headers=(), key=KEY):
    """The word of the refusal; empty: it is served."""
    name, path = api.split()
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    provider = provider_named(name)
    call = provider.describe(path, body_of(content))
    assert call is not None
    try:
        check_rights(key, name, provider, call.model, Asked(path, query, list(headers), content, True))
    except RequestError as error:
        return error.word
    return ""


def body_at(api):
    return {"messages": SAID} if re.search("mini[:/]|mini$", api) else {"model": MINE, "messages": SAID}


GRID = [(api, field) for api, fields in FIELDS.items() for field in fields]


@pytest.mark.parametrize(("api", "field"), GRID)
def test_every_field_that_names_a_model_is_checked(api, field):
    assert check(api, put(body_at(api), field, MINE)) == ""
    assert check(api, put(body_at(api), field, FOREIGN)) == "model"


@pytest.mark.parametrize("more", HARMLESS)
def test_what_names_no_model_is_served(more):
    for api in (f"openai {CHAT}", "anthropic /v1/messages", "gemini /v1beta/models/good-mini:generateContent"):
        assert check(api, {**body_at(api), **more}) == ""


@pytest.mark.parametrize("seed", some([60, 61], 60))
def test_bodies_at_random_reach_no_other_model(seed):
    """At each API: a field of the table among harmless ones, also deeper in the body and in other spellings."""
    chance = random.Random(seed)
    for _ in range(1_000):
        api, field = chance.choice(GRID)
        evil, top = chance.random() < 0.7, field.partition(".")[0]
        body = put(body_at(api), field, FOREIGN if evil else MINE)
        if field != "version":
            shell = chance.choice(["", "extra_body.", "request.", "options.gateway.", "list.0."])
            body = put(body, shell + field, FOREIGN if evil else MINE)
        for more in chance.sample(HARMLESS, 4):
            body |= {name: value for name, value in more.items() if name not in ("model", top)}
        content = json.dumps(body)
        if chance.random() < 0.5:
            content = content.replace('"models"', '"\\u006dodels"').replace('"fallbacks"', '"Fall_Backs"')
        assert check(api, content.encode()) == ("model" if evil else ""), (api, content)


@pytest.mark.parametrize(
    ("tool", "word"),
    [
        ({"type": "image_generation"}, "model"),
        ({"type": "openrouter:fusion", "parameters": {"model": MINE}}, "model"),
        ({"type": "openrouter:fusion", "parameters": {"model": MINE, "analysis_models": [MINE]}}, ""),
        ({"type": "image_generation", "model": MINE}, ""),
    ],
)
def test_a_tool_for_which_the_server_chooses_a_model_has_to_be_allowed(tool, word):
    body = {"model": MINE, "input": "hi", "tools": [tool]}
    assert check("openai /v1/responses", body) == word
    other = ClientKey("bob", KeySecret("1" * 64), "", models=(MINE, "image_generation", "*:fusion"))
    assert check("openai /v1/responses", body, key=other) == ""


def test_names_that_stand_for_the_model():
    assert check("openrouter /api/v1/chat/completions", {"models": [MINE], "messages": SAID}) == ""
    assert check(f"openai {CHAT}", {"models": [MINE], "messages": SAID}) == "model"
    assert check("openrouter /api/v1/chat/completions", {"model": f"{MINE}@preset/x-{MINE}"}) == ""
    assert check("openrouter /api/v1/chat/completions", {"model": f"{MINE}@preset/x"}) == "model"
    named = {"model": f"models/{MINE}", "requests": [{"model": f"models/{MINE}"}]}
    exact = ClientKey("bob", KeySecret("1" * 64), "", models=(MINE,))
    assert check("gemini /v1beta/models/good-mini:batchEmbedContents", named, key=exact) == ""


@pytest.mark.parametrize(
    ("api", "word"),
    [
        ("my-own-server /engines/evil-pro/completions", "model"),
        ("my-own-server /openai/deployments/evil-pro/chat/completions", "model"),
        ("azure /openai/deployments/evil-pro/chat/completions", "model"),
        ("azure /openai/deployments/good-mini/chat/completions", ""),
        ("azure /openai/Deployments/evil-pro/chat/completions", "model"),
        ("azure /openai/deployments/good-mini/deployments/evil-pro/chat/completions", "model"),
        ("mistral /v1/conversations/conv_1", "model"),
        ("mistral /v1/conversations", ""),
        ("gemini /v1beta/models/evil-pro:generateContent", "model"),
        ("bedrock /model/evil-pro/converse", "model"),
        ("vertex /v1/projects/p/locations/l/endpoints/7/chat/completions", "model"),
        ("vertex /v1/projects/p/locations/l/endpoints/openapi/chat/completions", ""),
        ("replicate /v1/models/x/evil-pro/predictions", "model"),
        ("replicate /v1/models/x/good-mini/predictions", ""),
        ("replicate /v1/deployments/x/evil-pro/predictions", "model"),
    ],
)
def test_the_path_names_a_model(api, word):
    assert check(api, {"model": MINE, "messages": SAID}) == word


def test_what_people_call_a_deployment_is_no_name_for_azure():
    assert check("azure /openai/deployments/good-mini/chat/completions", {"model": "gpt-5", "messages": SAID}) == ""


def test_the_query_and_headers_name_models():
    body = {"model": MINE, "messages": SAID}
    for query, word in (
        (f"model={FOREIGN}", "model"),
        (f"model={MINE}", ""),
        ("api-version=1", ""),
        (f"a%5Bmodel%5D={FOREIGN}", "model"),
    ):
        assert check(f"openai {CHAT}", body, query=query) == word
    for name, value, word in (
        (b"x-ms-oai-image-generation-deployment", FOREIGN, "model"),
        (b"azureml-model-deployment", FOREIGN, "model"),
        (b"groq-model-version", "latest", ""),
        (b"user-agent", FOREIGN, ""),
        (b"anthropic-beta", FOREIGN, ""),
    ):
        assert check(f"openai {CHAT}", body, headers=[(name, value.encode())]) == word


JSON = (b"content-type", b"application/json")


@pytest.mark.parametrize(
    ("body", "headers", "word"),
    [
        (b'{"model": "evil-pro", "model": "good-mini"}', [JSON], "twice"),
        (b'{"model": "good-mini", "tools": [{"model": "evil-pro", "model": "good-mini"}]}', [JSON], "twice"),
        (b'{"model": "good-mini", "\\u006dodel": "good-mini"}', [], "twice"),
        (b'{"model": "good-mini", "MODEL": "evil-pro"}', [], "model"),
        (b'{"model": "good-mini", model: "evil-pro"}', [JSON], "unread"),
        ('{"model": "good-mini"}'.encode("utf-16"), [JSON], "unread"),
        (b'{"model": "good-mini"}', [JSON, (b"content-type", b"multipart/form-data; boundary=x")], "unread"),
        (b'{"model": "good-mini", "+AG0-odel": "evil-pro"}', [(b"content-type", b"application/json; charset=utf-7")], "unread"),
        (b'{"model": "good-mini"}', [(b"content-type", b'application/json; charset="UTF-8"')], ""),
        (b'{"model": "good-mini", "x": "&model=evil-pro&"}', [(b"content-type", b"application/x-www-form-urlencoded")], "model"),
        (b'{"model": "good-mini", "x": "a=b"}', [(b"content-type", b"application/x-www-form-urlencoded")], ""),
    ],
)  # fmt: skip
def test_what_two_servers_could_read_in_two_ways_is_refused(body, headers, word):
    assert check(f"openai {CHAT}", body, headers=headers) == word


def part(disposition, value):
    return b"--B\r\ncontent-disposition: form-data; " + disposition + b"\r\n\r\n" + value + b"\r\n"


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ([part(b'name="model"', b"good-mini")], ""),
        ([part(b'name="model"', b"evil-pro")], "model"),
        ([part(b'name="model"', b"good-mini"), part(b'name="model"', b"evil-pro")], "twice"),
        ([part(b'name="model"', b"good-mini"), part(b'name="file"; filename="a;b.mp3"', b"x" * 40_000), part(b'name="extra[model]"', b"evil-pro"),
          part(b'name="f"; filename="c"', b"x" * 40_000)], "model"),
        ([part(b'name="model"', b"good-mini"), part(b'name="image[]"; filename="a"', b"1"), part(b'name="image[]"; filename="b"', b"2")], ""),
        ([part(b'name="model"', b"good-mini"), part(b"name=model", b"evil-pro")], "unread"),
        ([part(b'name="model"', b"good-mini"), part(b'name="x"; name="model"', b"evil-pro")], "unread"),
        ([part(b'name="model"', b"good-mini"), part(b'filename="x\\"; name="model"', b"evil-pro")], "unread"),
        ([part(b'name="model"', b"good-mini"), b'--B\ncontent-disposition: form-data; name="model"\n\nevil-pro\r\n'], "unread"),
    ],
)  # fmt: skip
def test_forms_name_one_model(parts, word):
    headers = [(b"content-type", b"multipart/form-data; boundary=B")]
    assert check("openai /v1/audio/transcriptions", b"".join(parts) + b"--B--\r\n", headers=headers) == word


def test_a_key_with_a_budget_has_each_field_once():
    budget = ClientKey("bob", KeySecret("1" * 64), "", limits=("1 usd/day",))
    assert check(f"openai {CHAT}", b'{"model": "cheap", "model": "dear"}', key=budget) == "twice"
    assert check(f"openai {CHAT}", b'{"model": "cheap", "models": ["dear"]}', key=budget) == ""
    assert check(f"openai {CHAT}", b"no JSON", key=budget) == ""
    assert check(f"openai {CHAT}", '{"model": "cheap", "model": "dear"}'.encode("utf-16"), key=budget) == "twice"
    form = [(b"content-type", b"multipart/form-data; boundary=B")]
    for name in (b"model", b"n"):
        twice = (
            part(b'name="file"; filename="a"', b"x" * 40_000)
            + part(b'name="%s"' % name, b"1")
            + part(b'name="%s"' % name, b"2")
        )
        for headers in (form, []):
            assert check("openai /v1/images/edits", twice + b"--B--\r\n", headers=headers, key=budget) == "twice"
            assert check("openai /v1/images/edits", twice, headers=headers, key=budget) == "unread"
    files = part(b'name="image[]"; filename="a"', b"1") * 2 + part(b'name="model"', b"gpt-image-1")
    assert check("openai /v1/images/edits", files + b"--B--\r\n", headers=form, key=budget) == ""
    everything = ClientKey("bob", KeySecret("1" * 64), "")
    assert check(f"openai {CHAT}", b'{"model": "cheap", "model": "dear"}', key=everything) == ""


def test_the_gateway_refuses_and_does_not_send(keys, large):
    secret = keys.add("alice", models=(MINE,)).encode()
    with raw_server(ANSWER) as upstream, raw_server(ANSWER) as other, attacked((upstream, other), keys.file) as running:
        for fields, status in (
            (b"", 200),
            (b', "models": ["evil-pro"]', 403),
            (b', "tools": [{"type": "x", "model": "evil-pro"}]', 403),
            (b', "model": "good-mini"', 400),
        ):
            upstream.raw.clear()
            body = b'{"model": "good-mini", "messages": []' + fields + b"}"
            sent = post(b"/openai/v1/chat/completions", b"authorization: Bearer " + secret, body=body)
            assert answers(talk(running.url, sent)) == [status]
            assert upstream.raw.endswith(body) == (status == 200) == bool(upstream.raw)


LISTS = {
    "openai /v1/models": ({"object": "list", "data": [{"id": MINE}, {"id": FOREIGN}]}, {"object": "list", "data": [{"id": MINE}]}),
    "anthropic /v1/models": (
        {"data": [{"id": FOREIGN}, {"id": MINE}], "first_id": FOREIGN, "last_id": MINE, "has_more": False},
        {"data": [{"id": MINE}], "first_id": MINE, "last_id": MINE, "has_more": False},
    ),
    "gemini /v1beta/models": ({"models": [{"name": f"models/{MINE}"}, {"name": f"models/{FOREIGN}"}]}, {"models": [{"name": f"models/{MINE}"}]}),
    "ollama /api/tags": ({"models": [{"name": FOREIGN, "model": FOREIGN}]}, {"models": []}),
    "together /v1/models": ([{"id": FOREIGN}, {"id": MINE}], [{"id": MINE}]),
    "openai /v1/models?limit=2": ({"data": [{"id": FOREIGN}]}, {"data": []}),
    "openai /v1/models ": ("a page", None),
}  # fmt: skip


@pytest.mark.sample(7)
@pytest.mark.parametrize("where", LISTS)
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_list_of_models_has_those_alone_that_the_key_may_use(serve, client, keys, where, encoding):
    value, want = LISTS[where]
    name, path = where.split(" ", 1)
    asked = []

    def answer(path, headers, _body):
        asked.append(path)
        if headers.get("accept-encoding") == "gzip":
            return gzip.compress(json.dumps(value).encode()), 200, {"content-encoding": "gzip"}
        return (value,)

    with stub(Stub(answer)) as url:
        table = {"provider": name, "base_url": url, "key_env": "OPENAI_API_KEY", "models": {}}
        running = serve(url, provider=None, keys=keys.file, upstreams={"one": table})
        bound, free = keys.add("bound", models=(f"*{MINE}",), limits=("9 requests/min",)), keys.add("free")
        exact = keys.add("exact", endpoints=("/v1/files*",))

        def get(key, path=path.strip()):  # noqa: B008
            headers = {"authorization": f"Bearer {key}", "accept-encoding": encoding}
            return client.get(f"{running.url}/one{path}", headers=headers)

        assert get(free).json() == value
        found = get(bound)
        assert found.status_code == (502 if want is None else 200)
        assert want is None or found.json() == want
        refused = get(exact)
        assert refused.status_code == 403
        path_alone = path.strip().partition("?")[0]
        assert f"keys change exact --endpoint '/v1/files*' --endpoint 'GET {path_alone}'`" in refused.text
        assert get(bound, f"/v1/models/{FOREIGN}").status_code == 404
        assert [get(one, f"/v1/models/{MINE}").status_code for one in (bound, free)] == [200, 200]
        assert get(free, f"/v1/models/{MINE}/permissions").status_code == 403
        assert f"/v1/models/{FOREIGN}" not in asked


BEDROCK = "bedrock-runtime.us-east-1.amazonaws.com"
GEMINI_MODEL = "models/gemini-2.5-pro"


@pytest.mark.parametrize(
    ("host", "path", "asks", "counts"),
    [
        (BEDROCK, "/model/anthropic.claude-opus-5-5-v1:0", "/converse", "/count-tokens"),
        (BEDROCK, f"/model/{PROFILE}", "/converse", "/count-tokens/"),
        ("generativelanguage.googleapis.com", f"/v1beta/{GEMINI_MODEL}", ":generateContent", ":countTokens"),
        ("aiplatform.googleapis.com", f"/v1/publishers/google/{GEMINI_MODEL}", ":generateContent", ":countTokens"),
    ],
)
def test_tokens_are_counted_for_the_models_that_a_key_may_ask(host, path, asks, counts):
    """By the names that their requests have."""
    provider = provider_for_host(host)
    model = provider.describe(path + asks, {}).model
    asked = Asked(path + counts, "", [(b"content-type", b"application/json")], b"{}", sent=True)
    check_rights(replace(KEY, models=(model,)), "s", provider, COUNTING, asked)
    with pytest.raises(RequestError, match="may not use the model"):
        check_rights(KEY, "s", provider, COUNTING, asked)


COUNTS = {
    "anthropic": ("/anthropic/v1/messages/count_tokens", "claude-opus-5", "claude-fable-5"),
    "openai": ("/openai/v1/responses/input_tokens", "gpt-5", "gpt-5-pro"),
    "gemini": ("/gemini/v1beta/models/{}:countTokens", "gemini-2.5-pro", "gemini-2.5-flash"),
}
"""The path, a model that the key may use, and one that it may not."""


@pytest.mark.parametrize("provider", COUNTS)
def test_tokens_are_counted_for_each_key_and_cost_a_request_alone(serve, client, keys, provider):
    asked = []
    server = Stub(lambda path, *_: asked.append(path) or ({"input_tokens": 14, "totalTokens": 14},))
    path, allowed, other = COUNTS[provider]
    running = serve(server, keys=keys.file, unpriced="refuse")
    headers = {"x-api-key": keys.add("bound", models=(allowed,), limits=("1 usd/day", "100 input_tokens/min"))}
    for model, status in ((allowed, 200), (other, 403), ("count_tokens", 403)):
        body = {"contents": SAID} if "{}" in path else {"model": model, "messages": SAID}
        answer = client.post(running.url + path.format(model), json=body, headers=headers)
        assert answer.status_code == status, answer.text
    pools = running.limiter.status()["pools"]
    spent = {quota["unit"]: quota["spent"] for quota in pools[f"{provider}/count_tokens"]["quotas"]}
    assert spent == ({"requests": 1} if provider == "anthropic" else {})  # no limits of others are published
    used = client.get(f"{running.url}/api/v1/usage", headers=headers).json()["keys"]["bound"]
    assert (used["requests"], used["input_tokens"], used["usd"]) == (1, 0, 0)
    assert asked == [path.format(allowed).removeprefix(f"/{provider}")]
