"""Where the requests of each provider go when the user names the provider alone."""

from urllib.parse import urlsplit

import pytest

import paceline
from paceline.config.servers import address_of
from paceline.core.results import PacelineWarning, SettingsError
from paceline.providers.forms import table
from paceline.providers.registry import PROVIDERS, provider_for_host, provider_named
from paceline.providers.roots import joined, usual_root
from paceline.providers.tables import UNKNOWN

CHAT = {  # the documentation of each provider, 2026-11
    "openai": "https://api.openai.com/v1/chat/completions",
    "anthropic": "https://api.anthropic.com/v1/chat/completions",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions",
    "groq": "https://api.groq.com/openai/v1/chat/completions",
    "mistral": "https://api.mistral.ai/v1/chat/completions",
    "cohere": "https://api.cohere.com/compatibility/v1/chat/completions",
    "xai": "https://api.x.ai/v1/chat/completions",
    "deepseek": "https://api.deepseek.com/v1/chat/completions",
    "together": "https://api.together.ai/v1/chat/completions",
    "fireworks": "https://api.fireworks.ai/inference/v1/chat/completions",
    "openrouter": "https://openrouter.ai/api/v1/chat/completions",
    "cerebras": "https://api.cerebras.ai/v1/chat/completions",
    "perplexity": "https://api.perplexity.ai/chat/completions",
    "moonshot": "https://api.moonshot.ai/v1/chat/completions",
    "zai": "https://api.z.ai/api/paas/v4/chat/completions",
    "dashscope": "https://dashscope-intl.aliyuncs.com/compatible-mode/v1/chat/completions",
    "sambanova": "https://api.sambanova.ai/v1/chat/completions",
    "nvidia": "https://integrate.api.nvidia.com/v1/chat/completions",
    "huggingface": "https://router.huggingface.co/v1/chat/completions",
    "github": "https://models.github.ai/inference/chat/completions",
    "deepinfra": "https://api.deepinfra.com/v1/openai/chat/completions",
    "digitalocean": "https://inference.do-ai.run/v1/chat/completions",
    "vercel": "https://ai-gateway.vercel.sh/v1/chat/completions",
    "ollama": "https://ollama.com/v1/chat/completions",
    # addresses of the list of models.dev, 2026-11
    "kimi_code": "https://api.kimi.com/coding/v1/chat/completions",
    "minimax": "https://api.minimax.io/v1/chat/completions",
    "alibaba_coding_plan": "https://coding-intl.dashscope.aliyuncs.com/v1/chat/completions",
    "xiaomi": "https://api.xiaomimimo.com/v1/chat/completions",
    "tencent_coding_plan": "https://api.lkeap.cloud.tencent.com/coding/v3/chat/completions",
    "volcengine": "https://ark.cn-beijing.volces.com/api/v3/chat/completions",
    "novita": "https://api.novita.ai/openai/chat/completions",
    "siliconflow": "https://api.siliconflow.com/v1/chat/completions",
    "nebius": "https://api.tokenfactory.nebius.com/v1/chat/completions",
    "baseten": "https://inference.baseten.co/v1/chat/completions",
    "chutes": "https://llm.chutes.ai/v1/chat/completions",
    "ovhcloud": "https://oai.endpoints.kepler.ai.cloud.ovh.net/v1/chat/completions",
    "scaleway": "https://api.scaleway.ai/v1/chat/completions",
    "github_copilot": "https://api.githubcopilot.com/chat/completions",
    "opencode": "https://opencode.ai/zen/v1/chat/completions",
}
OWN = {  # the address is the user's own
    "azure": "https://RESOURCE.openai.azure.com/openai/v1/chat/completions",
    "bedrock": "https://bedrock-runtime.REGION.amazonaws.com/openai/v1/chat/completions",
    "databricks": "https://WORKSPACE.cloud.databricks.com/serving-endpoints/chat/completions",
    "vertex": "https://aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/endpoints/openapi/chat/completions",
    "cloudflare": "https://api.cloudflare.com/client/v4/accounts/ACCOUNT_ID/ai/v1/chat/completions",
    "vllm": "http://localhost:8000/v1/chat/completions",
}
WITHOUT_CHAT = {"voyage", "jina", "replicate", "chatgpt"}


def test_each_provider_has_a_place():
    assert PROVIDERS.keys() >= CHAT.keys() | OWN.keys() | WITHOUT_CHAT
    for name, entry in PROVIDERS.items():
        provider = provider_named(name)
        assert (provider.name, provider.hosts) == (name, entry.hosts)
        assert entry.own or entry.hosts[0].count("*") == 0, name
        assert entry.own or urlsplit(usual_root(provider)).hostname == entry.hosts[0]
        assert all(provider_for_host(host) is provider for host in entry.hosts)
    assert table("dialects").keys() <= PROVIDERS.keys(), "a provider is known, and its address is not"


def test_all_hosts_are_told_apart():
    hosts = [host for entry in PROVIDERS.values() for host in entry.hosts]
    assert len(hosts) == len(set(hosts))
    names = [name for own, entry in PROVIDERS.items() for name in (own, *entry.aliases)]
    assert len(names) == len(set(names))
    assert all(provider_named(name.replace("_", "-").title()) is provider_named(name) for name in names)


@pytest.mark.parametrize("path", ["/coding/v1/chat/completions", "/anthropic/v1/messages", "/v1/responses"])
def test_a_plan_speaks_the_apis_of_its_family(path):
    body = {"model": "kimi-for-coding", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
    provider = provider_for_host("api.kimi.com")
    assert provider.describe(path, body).model == "kimi-for-coding"
    with pytest.warns(PacelineWarning, match="a rate is measured until an answer states one"):
        resolved = paceline.Limiter({}).limits.model(provider.name, "kimi-for-coding")
    assert (resolved.pool, resolved.quotas) == ("kimi_code/kimi-for-coding", UNKNOWN)


@pytest.mark.parametrize("name", CHAT)
def test_its_name_is_enough(name):
    provider = provider_named(name)
    root = address_of(provider, None, {provider.key_env: "k"}).root
    url = urlsplit(CHAT[name])
    for path in ("/v1/chat/completions", "/chat/completions", url.path):
        assert joined(root, path) == CHAT[name]
    for base in (f"https://{url.netloc}", CHAT[name].removesuffix("/chat/completions")):  # as --base-url
        assert joined(base, "/v1/chat/completions") == CHAT[name]


@pytest.mark.parametrize("name", OWN)
def test_an_address_of_the_users_own_is_asked_for(name):
    provider, own = provider_named(name), PROVIDERS[name].own
    with pytest.raises(SettingsError, match=rf"no address is known for {name}, .*: give it with --base-url {own}"):
        address_of(provider, None, {provider.key_env: "k"})
    assert joined(own, "/v1/chat/completions") == OWN[name]


def test_a_plan_has_no_key():
    for root in (None, "https://chatgpt.com"):
        with pytest.raises(SettingsError, match=r"chatgpt takes no keys, .*: `paceline exec --login -- codex`"):
            address_of(provider_named("chatgpt"), root, {"": "k", "OPENAI_API_KEY": "k"})


@pytest.mark.parametrize(
    ("name", "path", "at"),
    [
        ("chatgpt", "/v1/responses", "/backend-api/codex/responses"),
        ("chatgpt", "/backend-api/codex/responses", "/backend-api/codex/responses"),
        ("cohere", "/v2/chat", "/v2/chat"),
        ("cohere", "/v1/rerank", "/v1/rerank"),
        ("cohere", "/v1/embeddings", "/compatibility/v1/embeddings"),
        ("gemini", "/v1beta/models/m:generateContent", "/v1beta/models/m:generateContent"),
        ("anthropic", "/v1/messages", "/v1/messages"),
        ("perplexity", "/v1/responses", "/v1/responses"),
        ("groq", "/v1/audio/transcriptions", "/openai/v1/audio/transcriptions"),
        ("groq", "/v1/batches?limit=100", "/openai/v1/batches?limit=100"),
        ("openrouter", "/api/v1/messages", "/api/v1/messages"),
        ("voyage", "/v1/embeddings", "/v1/embeddings"),
        ("replicate", "/v1/predictions", "/v1/predictions"),
        ("ollama", "/api/chat", "/api/chat"),
    ],
)
def test_paths_of_its_own_api_stay(name, path, at):
    root = usual_root(provider_named(name))
    assert joined(root, path) == root + at


def test_the_key_goes_into_the_header_of_the_place():
    address = address_of(provider_named("gemini"), None, {"GEMINI_API_KEY": "k"})
    assert address.headers_for("/v1beta/openai/chat/completions")["authorization"] == "Bearer k"
    assert address.headers_for("/v1beta/models/m:generateContent")["x-goog-api-key"] == "k"


def test_a_missing_key_of_a_server_that_can_be_local_names_the_local_address():
    with pytest.raises(
        SettingsError, match=r"set the environment variable OLLAMA_API_KEY, or .* --base-url http://localhost"
    ):
        address_of(provider_named("ollama"), None, {})
