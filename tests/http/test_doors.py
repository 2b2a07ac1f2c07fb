"""Where `attach()` looks for a client, and what `instrument()` takes a request for."""

import threading

import httpx
import httpx2
import openai
import pydantic
import pytest
from chats import ANSWER, CHAT, POOL, attached, spent
from http_ways import chat_at

import paceline
from paceline.http import paced
from paceline.providers import common
from waits import join

CLAUDE = "anthropic/claude-haiku-4-5"


def counts(limiter):
    return {name: pool["counts"] for name, pool in limiter.status()["pools"].items()}


class Model(pydantic.BaseModel):
    """As llama-index's and LangChain's: a client that is no field, made by itself or given."""

    name: str = "gpt-5"
    _client: object = pydantic.PrivateAttr(default=None)
    _http_client: object = pydantic.PrivateAttr(default=None)


def test_attach_finds_both_clients_that_a_pydantic_model_keeps_private(world, limiter):
    model = Model()
    with openai.OpenAI(api_key="k", base_url=f"{world.base_url}/v1") as sdk, httpx.Client() as client:
        model._client, model._http_client = sdk, client
        limiter.attach(model, provider="openai")
        sdk.chat.completions.create(**CHAT)
        client.post(chat_at(world), json=CHAT, headers={"authorization": "Bearer k"})
    assert counts(limiter) == {POOL: {"granted": 2, "settled": 2}}


class NoTransport:
    """Sends, and is no transport of httpx2 or httpx."""

    def handle_request(self, request):
        raise NotImplementedError

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class PerLoop(httpx2.Client):
    """As google-genai's: it makes a client for each event loop, and has made one."""

    _inner_client_cls = httpx2.Client

    def __init__(self, **options):
        super().__init__(**options)
        self._loop_clients = {}


def attached_elsewhere():
    client = httpx2.Client()
    paceline.Limiter().attach(client)
    return client


def with_an_inner_one_elsewhere():
    client = PerLoop()
    client._loop_clients["a loop"] = attached_elsewhere()
    return client


def without_a_transport():
    client = httpx2.Client()
    client._transport = NoTransport()
    return client


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (attached_elsewhere, "another limiter"),
        (with_an_inner_one_elsewhere, "another limiter"),
        (without_a_transport, "NoTransport is not a transport"),
        (lambda: httpx2.Client(mounts={"https://": NoTransport()}), "NoTransport is not a transport"),
    ],
)
def test_attach_paces_all_or_none(limiter, second, why):
    model = Model()
    with httpx2.Client() as model._client, second() as model._http_client:
        clients = [model._client, model._http_client]
        before = [client._transport for client in clients]
        with pytest.raises((TypeError, ValueError), match=why):
            limiter.attach(model, provider="openai")
        assert [client._transport for client in clients] == before
        assert "_inner_client_cls" not in vars(model._http_client), "nor will those of other event loops be paced"


class Strange:
    """Says yes to every name."""

    def __getattr__(self, name):
        return self


@pytest.mark.parametrize("nothing", [Model(), Model.model_construct(), Strange()])
def test_a_model_without_a_client_is_said_to_have_none(limiter, nothing):
    with pytest.raises(TypeError, match=r"paceline\.instrument\(limiter\)"):
        limiter.attach(nothing)


# --- instrument(provider=)


def post(world, client, path="/v1/chat/completions", body=CHAT, **headers):
    address = f"{world.base_url}{path}"
    return client.post(address, json=body, headers={"authorization": "Bearer k", "x-api-key": "k", **headers})


async def test_a_provider_is_named_for_addresses_that_nobody_knows(world, limiter):
    with paceline.instrument(limiter, provider="openai"), httpx.Client() as client:
        post(world, client)
        async with httpx2.AsyncClient() as async_client:
            await post(world, async_client)
    assert counts(limiter) == {POOL: {"granted": 2, "settled": 2}}


def test_who_says_what_it_is_keeps_it(world, limiter):
    """Anthropic's mark on the same unknown host; and the host of a provider that is known."""
    claude = {**CHAT, "model": "claude-haiku-4-5"}
    groq = "https://api.groq.com/openai/v1/chat/completions"
    with paceline.instrument(limiter, provider="openai"), httpx2.Client() as client:
        post(world, client, "/v1/messages", claude, **{"anthropic-version": "2023-06-01"})
        with attached(limiter, httpx2.Response(200, json=ANSWER)) as elsewhere:
            elsewhere.post(groq, json={**CHAT, "model": "llama-3.3-70b-versatile"})
    assert counts(limiter) == {
        CLAUDE: {"granted": 1, "settled": 1},
        "groq/llama-3.3-70b-versatile": {"granted": 1, "settled": 1},
    }


def test_anthropic_at_a_host_with_limits_of_its_own_is_charged_as_anthropic():
    """What is written to the cache counts, and only the output that was made."""
    usage = {"input_tokens": 3, "cache_creation_input_tokens": 10_000, "output_tokens": 100}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "x"}], "usage": usage}
    limiter = paceline.Limiter({"llm.internal/*": ["150k input_tokens/min", "60k output_tokens/min"]})
    with attached(limiter, httpx2.Response(200, json=answer)) as client:
        body = {**CHAT, "model": "claude-haiku-4-5", "max_tokens": 300}
        client.post("http://llm.internal/v1/messages", json=body, headers={"anthropic-version": "2023-06-01"})
    assert spent(limiter, "llm.internal/claude-haiku-4-5") == {"input_tokens": 10_003, "output_tokens": 100}


def test_a_client_that_is_attached_keeps_its_own_provider(world, limiter):
    with httpx2.Client() as client:
        limiter.attach(client, provider="anthropic")
        with paceline.instrument(limiter, provider="openai"):
            post(world, client, "/v1/messages", {**CHAT, "model": "claude-haiku-4-5"})
    assert counts(limiter) == {CLAUDE: {"granted": 1, "settled": 1}}


# --- unknown hosts


def canned(limiter, url, body, *, headers=None, **named):
    """Send ``body`` to an address that answers everything; the pools that were charged, with the source of their limits."""
    with paceline.instrument(limiter, **named):
        transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json={}))
        with httpx2.Client(transport=transport) as client:
            client.post(url, json=body, headers=headers)
    pools = {name: pool["quotas"] for name, pool in limiter.status()["pools"].items() if pool["counts"]}
    return {name: next((one["source"] for one in quotas), "not measured yet") for name, quotas in pools.items()}


ASSISTANTS, HOST = "http://chat.example/api/channels/42/messages", "http://llm.internal:8000"


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (ASSISTANTS, {"text": "hello"}),
        (ASSISTANTS, {"messages": ["hello"]}),
        (ASSISTANTS, ["model", "messages"]),
        ("http://survey.example/forms/7/responses", {"model": "A"}),
        ("http://survey.example/forms/7/responses", {"answers": [1]}),
        ("http://tailor.example/embeddings", {"input": "gold"}),
    ],
)
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("named", [False, True])
def test_a_path_alone_makes_no_llm_request(url, body, provider, named):
    options = {"provider": provider} if named else {}
    assert canned(paceline.Limiter.for_provider(provider), url, body, **options) == {}


CLAUDE_HEADERS = {"anthropic-version": "2023-06-01"}
LLAMA = {**CHAT, "model": "llama3.1"}


@pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")
@pytest.mark.parametrize(
    ("limiter", "path", "body", "headers", "pool"),
    [
        (paceline.Limiter, "/v1/chat/completions", LLAMA, None, "llm.internal/llama3.1"),
        (lambda: paceline.Limiter.for_provider("openai"), "/v1/chat/completions", LLAMA, None, "llm.internal/llama3.1"),
        (lambda: paceline.Limiter.for_provider("openai"), "/v1/responses", {"model": "gpt-5", "input": "a"}, None, "llm.internal/gpt-5"),
        (lambda: paceline.Limiter.for_provider("anthropic"), "/v1/chat/completions", LLAMA, None, "llm.internal/llama3.1"),
        (lambda: paceline.Limiter.for_provider("anthropic"), "/v1/messages", LLAMA, None, "llm.internal/llama3.1"),
        (paceline.Limiter, "/v1/messages", LLAMA, CLAUDE_HEADERS, "llm.internal/llama3.1"),
        (lambda: paceline.Limiter({"openai/gpt-5": "500 requests/min"}), "/v1/chat/completions", LLAMA, None, "llm.internal/llama3.1"),
        (lambda: paceline.Limiter.for_provider("gemini"), "/v1beta/models/gemma:generateContent", {"contents": "a"}, None, "llm.internal/gemma"),
    ],
)  # fmt: skip
def test_an_unknown_host_has_its_own_pools_and_no_published_limits(limiter, path, body, headers, pool, caplog):
    found = canned(limiter(), HOST + path, body, headers=headers)
    assert list(found) == [pool]
    assert "://" not in found[pool]  # no table's source
    canned(limiter(), HOST + path, body, headers=headers)
    assert caplog.text.count("llm.internal is not a host of") <= 1  # once in a process


@pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")
@pytest.mark.parametrize(
    ("limiter", "named"),
    [
        (lambda: paceline.Limiter({"*": "500 requests/min"}), {}),
        (lambda: paceline.Limiter({"openai/*": "500 requests/min"}), {}),
        (lambda: paceline.Limiter.for_provider("openai"), {}),
        (paceline.Limiter, {"provider": "openai"}),
    ],
)
def test_the_body_of_a_request_to_an_unknown_host_is_described_once(limiter, named, monkeypatch):
    described = []
    count = common.prompt_tokens
    monkeypatch.setattr(common, "prompt_tokens", lambda *parts: described.append(parts) or count(*parts))
    made = limiter()
    canned(made, f"{HOST}/v1/chat/completions", LLAMA, **named)
    described.clear()
    canned(made, f"{HOST}/v1/chat/completions", LLAMA, **named)
    assert len(described) == 1


@pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")
def test_a_gateway_is_told_how_to_name_its_provider(caplog):
    ask = {"model": "gpt-5", "input": "a"}
    canned(paceline.Limiter.for_provider("openai"), "https://gateway.internal/v1/responses", ask)
    assert "if it is a gateway to openai, name the provider: limiter.attach(client, provider='openai')" in caplog.text


@pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")
def test_an_unknown_host_is_named_once_where_threads_begin_at_once(monkeypatch):
    limiter, lines = paceline.Limiter.for_provider("openai"), []

    def ask():
        with attached(limiter, httpx2.Response(200, json={})) as client:
            client.post("https://threads.internal/v1/responses", json={"model": "gpt-5", "input": "a"})

    def warning(*line):
        lines.append(line)
        if len(lines) == 1:  # the other thread asks before this line is written
            other = threading.Thread(target=ask)
            other.start()
            join(other)

    monkeypatch.setattr(paced.log, "warning", warning)
    ask()
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("limiter", "named", "pool"),
    [
        (lambda: paceline.Limiter({"openai/*": "500 requests/min"}), {}, "openai/llama3.1"),
        (lambda: paceline.Limiter({"openai/llama3.1": "500 requests/min"}), {}, "openai/llama3.1"),
        (lambda: paceline.Limiter.for_provider("openai", quotas={"llama3.1": "500 requests/min"}), {}, "openai/llama3.1"),
        (lambda: paceline.Limiter({"*": "500 requests/min"}), {}, "llm.internal/llama3.1"),
        (lambda: paceline.Limiter({"openai/*": "500 requests/min"}), {"provider": "openai"}, "openai/llama3.1"),
    ],
)  # fmt: skip
def test_given_quotas_hold_at_an_unknown_host(limiter, named, pool):
    assert canned(limiter(), f"{HOST}/v1/chat/completions", LLAMA, **named) == {pool: "given"}


def test_a_provider_that_is_named_keeps_its_published_limits():
    assert "://" in canned(paceline.Limiter(), f"{HOST}/v1/chat/completions", CHAT, provider="openai")[POOL]
