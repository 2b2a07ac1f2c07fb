"""From a host or a name to its provider. A provider's module is imported when the provider is first asked for."""

from __future__ import annotations

import re
import warnings
from copy import copy
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from paceline.core.hints import did_you_mean
from paceline.core.results import PacelineWarning, QuotaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paceline.providers.base import Provider


class ProviderEntry(NamedTuple):
    """A provider that comes with paceline.

    Attributes:
        key_env: The environment variable that holds the key.
        hosts: As in :class:`~paceline.providers.base.Provider`.
        implementation: The module in ``paceline.providers``, and the class there.
        encoding: The estimator's weights; empty: those that count highest, for models of many makers.
        makes: A regular expression for the beginning of the names of the provider's own models, which have no slash;
            empty where a name says nothing about the provider.
        slashes: Whether the provider serves models of many makers, whose names contain slashes.
        path: What stands before the paths of OpenAI's API at its hosts: ``/openai/v1`` for ``/openai/v1/chat/completions``.
            ``None`` where it names a project or an account of the user's. Source: the documentation of each provider, 2026-11.
        chat: The same for chat completions, where they are at another place.
        own: An address that only the user knows in full: of a resource, a region, an account or a machine.
        day: The time zone whose midnight restarts the quotas of a day; empty where they refill continuously,
            so that a quota of a day that the user gives is a bucket, too, and the window restarts at midnight UTC.
            Sources (2026-10): Google's page on rate limits for Los Angeles; messages of OpenAI's and Groq's refusals, whose
            waits are a bucket's; DigitalOcean's page on limits. For all others UTC is an assumption, except OpenRouter.
    """

    key_env: str
    hosts: tuple[str, ...] = ()
    implementation: str = "compatible:Compatible"
    encoding: str = ""
    makes: str = ""
    slashes: bool = False
    day: str = "utc"
    path: str | None = "/v1"
    chat: str | None = None
    own: str = ""


_AZURE: Final = (
    "*.openai.azure.com",
    "*.cognitiveservices.azure.com",
    "*.services.ai.azure.com",
    "*.openai.azure.us",
)
_VERTEX: Final = ("aiplatform.googleapis.com", "*-aiplatform.googleapis.com", "aiplatform.*.rep.googleapis.com")
_BEDROCK: Final = (
    "bedrock-runtime.*.amazonaws.com",
    "bedrock-runtime-fips.*.amazonaws.com",
    "bedrock-runtime.*.api.aws",
)
_DASHSCOPE: Final = (
    "dashscope-intl.aliyuncs.com",
    "dashscope.aliyuncs.com",
    "dashscope-us.aliyuncs.com",
    "*.maas.aliyuncs.com",
)
_DATABRICKS: Final = ("*.cloud.databricks.com", "*.azuredatabricks.net", "*.gcp.databricks.com")
_PACIFIC: Final = "America/Los_Angeles"
_OPENAI_MAKES: Final = r"gpt-(?!oss)|o[134](-|$)|chatgpt-|text-embedding-(3|ada)|ft:gpt-"
_MISTRAL_MAKES: Final = r"(open-)?(mistral|mixtral|codestral|devstral|magistral|ministral|pixtral|voxtral)-"
PROVIDERS: Final = {
    "openai": ProviderEntry(
        "OPENAI_API_KEY", ("api.openai.com", "*.api.openai.com"), "openai:OpenAI", "o200k", makes=_OPENAI_MAKES, day=""
    ),
    "anthropic": ProviderEntry(
        "ANTHROPIC_API_KEY", ("api.anthropic.com",), "anthropic:Anthropic", "claude_v4_8", makes="claude-"
    ),
    "gemini": ProviderEntry(
        "GEMINI_API_KEY",
        ("generativelanguage.googleapis.com",),
        "gemini:Gemini",
        "gemma3",
        makes=r"(models/)?gemini-",
        day=_PACIFIC,
        path="/v1beta/openai",
    ),
    "vertex": ProviderEntry(
        "GOOGLE_OAUTH_ACCESS_TOKEN",
        _VERTEX,
        "gemini:Vertex",
        "gemma3",
        day=_PACIFIC,
        path=None,
        own="https://aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION/endpoints/openapi",
    ),  # no keys: an assumed name
    "azure": ProviderEntry(
        "AZURE_OPENAI_API_KEY",
        _AZURE,
        "azure:Azure",
        "o200k",
        path="/openai/v1",
        own="https://RESOURCE.openai.azure.com",
    ),
    "groq": ProviderEntry("GROQ_API_KEY", ("api.groq.com",), encoding="o200k", slashes=True, day="", path="/openai/v1"),
    "mistral": ProviderEntry("MISTRAL_API_KEY", ("api.mistral.ai", "codestral.mistral.ai"), makes=_MISTRAL_MAKES),
    "cohere": ProviderEntry(
        "CO_API_KEY",
        ("api.cohere.com", "api.cohere.ai"),
        "cohere:Cohere",
        makes="command-|embed-(v|english|multilingual)",
        path="/compatibility/v1",
    ),
    "xai": ProviderEntry("XAI_API_KEY", ("api.x.ai", "*.api.x.ai"), makes="grok-"),
    "deepseek": ProviderEntry("DEEPSEEK_API_KEY", ("api.deepseek.com",), makes=r"deepseek-(chat|reasoner|v\d)"),
    "together": ProviderEntry(
        "TOGETHER_API_KEY", ("api.together.ai", "api-inference.together.ai", "api.together.xyz"), slashes=True
    ),
    "fireworks": ProviderEntry("FIREWORKS_API_KEY", ("api.fireworks.ai",), slashes=True, path="/inference/v1"),
    "openrouter": ProviderEntry(
        "OPENROUTER_API_KEY", ("openrouter.ai",), "compatible:OpenRouter", slashes=True, path="/api/v1"
    ),
    "cerebras": ProviderEntry("CEREBRAS_API_KEY", ("api.cerebras.ai",)),
    "perplexity": ProviderEntry(
        "PERPLEXITY_API_KEY", ("api.perplexity.ai",), "compatible:Perplexity", makes="sonar", slashes=True, chat=""
    ),
    "bedrock": ProviderEntry(
        "AWS_BEARER_TOKEN_BEDROCK",
        _BEDROCK,
        "bedrock:Bedrock",
        path="/openai/v1",
        own="https://bedrock-runtime.REGION.amazonaws.com",
    ),
    "moonshot": ProviderEntry("MOONSHOT_API_KEY", ("api.moonshot.ai", "api.moonshot.cn"), makes="kimi-|moonshot-"),
    "zai": ProviderEntry("ZAI_API_KEY", ("api.z.ai", "open.bigmodel.cn"), makes="glm-", path="/api/paas/v4"),
    "dashscope": ProviderEntry("DASHSCOPE_API_KEY", _DASHSCOPE, path="/compatible-mode/v1"),
    "sambanova": ProviderEntry("SAMBANOVA_API_KEY", ("api.sambanova.ai",)),
    "nvidia": ProviderEntry("NVIDIA_API_KEY", ("integrate.api.nvidia.com",), slashes=True),
    "huggingface": ProviderEntry("HF_TOKEN", ("router.huggingface.co",), slashes=True),
    "github": ProviderEntry(
        "GITHUB_TOKEN", ("models.github.ai", "models.inference.ai.azure.com"), slashes=True, path="/inference"
    ),
    "deepinfra": ProviderEntry("DEEPINFRA_API_KEY", ("api.deepinfra.com",), slashes=True, path="/v1/openai"),
    "databricks": ProviderEntry(
        "DATABRICKS_TOKEN", _DATABRICKS, path="/serving-endpoints", own="https://WORKSPACE.cloud.databricks.com"
    ),
    "digitalocean": ProviderEntry("GRADIENT_MODEL_ACCESS_KEY", ("inference.do-ai.run", "*.agents.do-ai.run"), day=""),
    "cloudflare": ProviderEntry(
        "CLOUDFLARE_API_TOKEN",
        ("api.cloudflare.com", "gateway.ai.cloudflare.com"),
        slashes=True,
        path=None,
        own="https://api.cloudflare.com/client/v4/accounts/ACCOUNT_ID/ai/v1",
    ),
    "vercel": ProviderEntry("AI_GATEWAY_API_KEY", ("ai-gateway.vercel.sh",), slashes=True),
    "voyage": ProviderEntry("VOYAGE_API_KEY", ("api.voyageai.com", "ai.mongodb.com"), makes="voyage-"),
    "replicate": ProviderEntry("REPLICATE_API_TOKEN", ("api.replicate.com",), "compatible:Replicate", slashes=True),
    "ollama": ProviderEntry(
        "OLLAMA_API_KEY", ("ollama.com",), "compatible:Ollama", slashes=True, own="http://localhost:11434"
    ),
    "vllm": ProviderEntry("VLLM_API_KEY", slashes=True, own="http://localhost:8000"),
}
"""The providers that come with paceline, by name."""

ALIASES: Final = {
    "claude": "anthropic",
    "google": "gemini",
    "google_ai_studio": "gemini",
    "vertex_ai": "vertex",
    "vertexai": "vertex",
    "azure_openai": "azure",
    "azure_ai": "azure",
    "foundry": "azure",
    "grok": "xai",
    "aws": "bedrock",
    "amazon_bedrock": "bedrock",
    "bedrock_converse": "bedrock",
    "cohere_chat": "cohere",
    "mistralai": "mistral",
    "together_ai": "together",
    "fireworks_ai": "fireworks",
    "kimi": "moonshot",
    "glm": "zai",
    "zhipu": "zai",
    "qwen": "dashscope",
    "nvidia_nim": "nvidia",
    "hf": "huggingface",
    "github_models": "github",
    "vercel_ai_gateway": "vercel",
    "ollama_chat": "ollama",
    "voyageai": "voyage",
    "hosted_vllm": "vllm",
}
"""Other names of providers; ``-`` and ``_`` are the same."""

GROUP: Final = "paceline.providers"
"""The entry points under which an installed package offers providers of its own."""

_METHODS = ("describe", "pool", "held", "charged", "readings", "refusal", "usage_reader", "usage")
_P = TypeVar("_P", bound="Provider")
_added: dict[str, Provider] = {}
_hosts: dict[str, str] = {host: name for name, entry in PROVIDERS.items() for host in entry.hosts}


def register(provider: _P) -> _P:
    """Make ``provider`` known by its name and its hosts; it replaces a provider of the same name.

    Returns:
        The same provider.

    Raises:
        QuotaError: The name or the hosts are invalid, or a method is missing.
    """
    name, hosts = getattr(provider, "name", None), getattr(provider, "hosts", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", name):
        raise QuotaError(f"invalid provider name {name!r}: use lower-case letters, digits, '-', '_' and '.'")
    if not isinstance(hosts, tuple) or not all(isinstance(host, str) and host == host.lower() for host in hosts):
        example = "give a tuple of lower-case host names, e.g. ('api.acme.example',)"
        raise QuotaError(f"invalid hosts {hosts!r} of provider {name}: {example}")
    missing = [method for method in _METHODS if not callable(getattr(provider, method, None))]
    if missing:
        raise QuotaError(
            f"provider {name} has no {', '.join(missing)}(): derive it from paceline.providers.generic.Generic"
        )
    _added[name] = provider
    _hosts.update(dict.fromkeys(hosts, name))
    return provider


def provider_named(name: str) -> Provider:
    """The provider called ``name``; for an unknown name, an OpenAI-compatible provider that carries it.

    ``openai@eu`` is OpenAI with quotas of its own: of another key, region or deployment.
    """
    clean = _canonical(name)
    return _added.get(clean) or _load(clean)


def is_provider(name: str) -> bool:
    """Whether ``name``, or the name that it is an alias of, is a known provider."""
    clean = base_of(name)
    if clean not in PROVIDERS and clean not in _added:
        _plug_in()
    return clean in PROVIDERS or clean in _added


CREDENTIALS: Final = {"anthropic": "x-api-key", "gemini": "x-goog-api-key", "azure": "api-key"}
"""The header of the key, where it is not ``authorization: Bearer KEY``."""


def output_limit(provider: str) -> str:
    """The field that bounds the output of a chat request in OpenAI's form, by the name of the provider.

    OpenAI's newer models refuse ``max_tokens``, and most other servers know no other name.
    """
    return "max_completion_tokens" if provider in ("openai", "azure", "groq") else "max_tokens"


def generate_path(model: str) -> str:
    """The path of a request to ``model`` in Gemini's form."""
    from urllib.parse import quote

    return f"/v1beta/models/{quote(model, safe='')}:generateContent"


def credentials(provider: Provider, path: str, key: str) -> tuple[str, str]:
    """The name and the value of the header that has the key, for a request to ``path``.

    On the paths of OpenAI's format Gemini takes a key as others do (ai.google.dev/gemini-api/docs/openai, 2026-11).
    """
    name = CREDENTIALS.get(base_of(provider.name))
    if name is None or (name == "x-goog-api-key" and "/openai/" in path):
        return "authorization", f"Bearer {key}"
    return name, key


def base_of(name: str) -> str:
    """The provider's name without an account: ``openai`` for ``openai@eu``."""
    return _canonical(name).partition("@")[0]


def with_account(provider: Provider, account: str) -> Provider:
    """``provider`` with quotas of its own, under the name ``provider@account``."""
    return under_name(provider, f"{base_of(provider.name)}@{account}")


def under_name(provider: Provider, name: str) -> Provider:
    """The dialect of ``provider`` under another name, which has quotas of its own."""
    other: Any = copy(provider)
    other.name = name
    return cast("Provider", other)


def provider_for_host(host: str) -> Provider | None:
    """The provider at ``host`` (a port is ignored); ``None`` for an unknown host."""
    clean = host.strip().lower().rstrip(".")
    if clean.count(":") == 1:
        clean = clean.partition(":")[0]
    name = _owner(clean)
    if name is None:
        _plug_in()
        name = _owner(clean)
    return None if name is None else _at_host(cast("Any", provider_named(name)), clean)


def known_host(host: str) -> str:
    """The name of the provider that comes with paceline and is at ``host``, in lower case; empty for any other host."""
    name = _owner(host) or ""
    return name if name in PROVIDERS else ""


@lru_cache(maxsize=256)
def _at_host(provider: Any, host: str) -> Provider:
    """The provider; where each host has limits of its own (Azure's resources, Bedrock's regions), the one for ``host``."""
    at_host: Callable[[str], Provider] = getattr(provider, "at_host", lambda _: provider)
    return at_host(host)


def has_slashes(name: str) -> bool:
    """Whether names of the provider's models contain slashes; a provider that is not known may serve any model."""
    entry = PROVIDERS.get(base_of(name))
    return entry is None or entry.slashes


def day_zone(name: str) -> str:
    """The time zone whose midnight restarts the provider's quotas of a day; empty where they refill continuously."""
    entry = PROVIDERS.get(base_of(name))
    return "utc" if entry is None else entry.day


@lru_cache(maxsize=1_024)
def maker(model: str) -> str | None:
    """The provider whose own model ``model`` is by its name; ``None`` where the name does not tell it."""
    return next((name for name, entry in PROVIDERS.items() if entry.makes and re.match(entry.makes, model)), None)


@lru_cache(maxsize=1_024)
def _canonical(name: str) -> str:
    clean, at, account = name.strip().lower().partition("@")
    return ALIASES.get(clean.replace("-", "_"), clean) + at + account


def _owner(host: str) -> str | None:
    label, _, rest = host.partition(".")
    name = _hosts.get(host) or _hosts.get(f"*-{label.rpartition('-')[2]}.{rest}")
    name = name or _hosts.get(f"{label}.*.{rest.partition('.')[2]}")
    while name is None and "." in host:
        host = host.partition(".")[2]
        name = _hosts.get(f"*.{host}")
    return name


@cache
def _plug_in() -> None:
    """Register the providers that installed packages offer; done once, when an unknown name or host is asked for.

    A known name keeps its provider, so that a program's behaviour does not depend on when this runs.
    """
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            provider = point.load()
            provider = provider() if isinstance(provider, type) else provider
            if provider.name not in PROVIDERS and provider.name not in _added:
                register(provider)
        except Exception as error:  # noqa: BLE001  (another package's fault must not stop this program)
            warnings.warn(f"provider {point.value!r} of {GROUP!r} is left out: {error}", PacelineWarning, stacklevel=2)


@lru_cache(maxsize=256)
def _load(name: str) -> Provider:
    base, at, account = name.partition("@")
    if at:
        return with_account(provider_named(base), account)
    entry = PROVIDERS.get(name)
    if entry is None:
        from paceline.providers.generic import Generic

        _plug_in()
        return _added.get(name) or Generic(name)
    module, _, class_name = entry.implementation.partition(":")
    make = cast("Callable[..., Provider]", getattr(import_module(f"paceline.providers.{module}"), class_name))
    return make(name, entry.key_env, entry.hosts, entry.encoding)


suggest = did_you_mean  # for packages that import it from here


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine."""
    import ipaddress

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def locate(provider: Provider, root: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """The base URL ``root`` and the key in ``environ``; ``none`` as the key of a server on this machine that needs none.

    Raises:
        QuotaError: The URL or the key is missing, or the key is malformed; the message does not quote the key.
    """
    from urllib.parse import urlsplit

    entry = PROVIDERS.get(base_of(provider.name))
    own = entry.own if entry is not None else ""
    if not root:
        why = f", because it is your own: give it with --base-url {own}" if own else ": give one with --base-url"
        raise QuotaError(f"no address is known for {provider.name}{why}")
    key = environ.get(provider.key_env, "").strip()
    if not key and not is_loopback(urlsplit(root).hostname or ""):
        instead = (
            f", or give your own server with --base-url {own}" if is_loopback(urlsplit(own).hostname or "") else ""
        )
        raise QuotaError(f"no key for {provider.name}: set the environment variable {provider.key_env}{instead}")
    if not (key.isascii() and key.isprintable()):
        raise QuotaError(f"invalid key in {provider.key_env}: it has characters that no key has; set it again")
    return root, key or "none"
