"""The pool of a name, its quotas, and their sources."""

import warnings

import pytest

from paceline import Limiter
from paceline.core.quota import Quota
from paceline.core.results import PacelineWarning, QuotaError, SettingsError, SourceKind
from paceline.pacing.limits import Limits
from paceline.pacing.settings import PacingSettings


def made(quotas=None, **settings):
    return Limits(PacingSettings(quotas=quotas, **settings))


def kinds(limits, name):
    resolved = limits.resolve(name)
    return {str(q): str(source.kind) for q, source in zip(resolved.quotas, resolved.sources, strict=True)}


@pytest.mark.parametrize(
    ("arguments", "name", "kind"),
    [
        ({"quotas": {"openai/gpt-5": "60 requests/min"}}, "openai/gpt-5", "given"),
        ({"quotas": {"jobs": "60 requests/min"}}, "jobs", "given"),
        ({"quotas": {"*": "60 requests/min"}}, "other", "given"),
        ({"provider": "openai", "tier": 2}, "gpt-5", "published"),
        ({"provider": "openai"}, "gpt-5", "assumed"),  # the tier is not named
        ({"provider": "openai", "tier": 2}, "gpt-unheard-of", "assumed"),  # no row is about it
        ({"provider": "openai", "tier": 3}, "gpt-4-turbo", "assumed"),  # its row has a lower tier only
        ({"provider": "deepseek"}, "deepseek-v4-pro", "published"),  # there are no tiers
        ({"provider": "azure", "tier": 1}, "acme.openai.azure.com/d", "assumed"),
    ],
)
def test_the_source_of_a_limit(arguments, name, kind):
    assert set(kinds(made(**arguments), name).values()) == {kind}


def test_each_quota_has_a_source_of_its_own():
    # a unit that the row does not state is the default row's; an override is the user's
    assert kinds(made(provider="openai", tier=1), "gpt-4.1-mini") == {
        "200k tokens/min": "published",
        "500 requests/min": "assumed",
    }
    assert kinds(made(provider="openai", tier=1, rpm_override=7), "gpt-5") == {
        "500k tokens/min": "published",
        "7 requests/min": "given",
    }

    assert set(kinds(made(provider="openai", tier=1, rpm_override=500), "gpt-5").values()) == {"published", "given"}


@pytest.mark.filterwarnings("ignore:no published limits are known")
def test_a_given_concurrency_takes_precedence_over_an_assumed_one():
    assert kinds(made(concurrency={"*": 20}), "vllm/llama3.1") == {"20 concurrency": "given"}
    assert kinds(made(concurrency={"*": 20}), "deepseek/deepseek-v4-pro") == {"20 concurrency": "given"}
    assert kinds(made(concurrency={"*": 900}), "deepseek/deepseek-v4-pro") == {"500 concurrency": "published"}


def test_a_source_names_the_table_its_date_and_the_tier():
    limits = made(provider="anthropic", tier="build").resolve("claude-opus-5")
    source = limits.sources[0]
    assert (source.kind, source.tier) == (SourceKind.PUBLISHED, "build")
    assert str(source) == "published: https://platform.claude.com/docs/en/api/rate-limits (2026-10-09), build"


@pytest.mark.filterwarnings("ignore:no published limits are known")
@pytest.mark.parametrize(
    ("provider", "given", "name", "want"),
    [
        ("groq", {}, "openai/gpt-oss-120b", "groq/openai/gpt-oss-120b"),
        ("groq", {}, "moonshotai/kimi-k2", "groq/moonshotai/kimi-k2"),
        ("groq", {}, "groq/llama-3.1-8b-instant", "groq/llama-3.1-8b-instant"),
        ("groq", {}, "groq/compound", "groq/groq/compound"),  # its full name in requests
        ("groq", {"openai/gpt-5": "9 requests/min"}, "openai/gpt-5", "openai/gpt-5"),
        ("groq", {"openai/*": "9 requests/min"}, "openai/gpt-5", "openai/gpt-5"),
        ("groq", {"openai/*": "9 requests/min"}, "openai/gpt-oss-120b", "groq/openai/gpt-oss-120b"),  # in its table
        ("groq", {"*": "9 requests/min"}, "acme/m", "groq/acme/m"),
        ("openrouter", {}, "deepseek/deepseek-r1:free", "openrouter/free"),
        ("openrouter", {}, "openrouter/deepseek/deepseek-r1", "openrouter/deepseek/deepseek-r1"),
        ("together", {}, "deepseek/deepseek-r1", "together/deepseek/deepseek-r1"),
        ("my-own-host", {}, "openai/gpt-oss-20b", "my-own-host/openai/gpt-oss-20b"),
        ("my-own-host", {}, "my-own-host/gpt-oss-20b", "my-own-host/gpt-oss-20b"),
        ("openai", {}, "anthropic/claude-opus-5", "anthropic/claude-opus-5"),  # names of OpenAI's models have no slash
        ("bedrock", {}, "anthropic/claude-opus-5-5", "anthropic/claude-opus-5-5"),
    ],
)
def test_a_name_with_a_slash(provider, given, name, want):
    assert made(given, provider=provider).resolve(name).pool == want


@pytest.mark.filterwarnings("ignore:the limit of 'openai/gpt-5' has matched no model")
def test_a_limit_of_one_provider_does_not_hold_at_another():
    given = {"openai/gpt-5": "60 requests/min"}
    at_openrouter = made(given).model("openrouter", "openai/gpt-5")
    assert at_openrouter.pool == "openrouter/openai/gpt-5"
    assert {str(source.kind) for source in at_openrouter.sources} == {"assumed"}
    named = made(given, provider="openrouter").model("openrouter", "openai/gpt-5")  # there, it is OpenRouter's model
    assert [str(quota) for quota in named.quotas] == ["60 requests/min"]


@pytest.mark.parametrize("given", ["gpt-5", "*"])
def test_by_hand_and_attached_reach_the_same_pool(given):
    limits = made({given: "60 requests/min"})
    assert limits.resolve("gpt-5-2025-08-07") == limits.model("openai", "gpt-5")


@pytest.mark.parametrize("name", ["jobs", "gpt-oss-120b", "embed-jobs", "o-line"])
def test_a_name_of_ones_own_is_a_pool_of_its_own(name):
    resolved = made({name: "60 requests/min"}).resolve(name)
    assert (resolved.pool, resolved.learns) == (name, False)


@pytest.mark.parametrize(
    ("given", "name", "write"),
    [
        ("openai/gpt5", "openai/gpt-5", "openai/gpt-5"),
        ("opnai/gpt-5", "openai/gpt-5", "openai/gpt-5"),
        ("gpt5", "openai/gpt-5", "openai/gpt-5"),
        ("anthropic/claude-opus5", "anthropic/claude-opus-5", "anthropic/claude-opus-5"),
        ("openai/gpt-5", "openrouter/openai/gpt-5", "openrouter/openai/gpt-5"),
        ("openai/gpt-5*", "openai/gpt-5", "openai/gpt-5"),
        ("gpt-*", "openai/gpt-5", "openai/gpt-5"),
        ("openai", "openai/gpt-5", "openai/*"),
        ("openia/*", "openai/gpt-5", "openai/*"),
        ("https://api.openai.com/v1", "openai/gpt-5", "openai/*"),
        ("eu.api.openai.com/*", "openai/gpt-5", "openai/*"),
        ("10.0.0.7:8000/*", "10.0.0.7/llama", "10.0.0.7/*"),
        ("10.0.0.7:8000/llama", "10.0.0.7/llama", "10.0.0.7/llama"),
        ("http://10.0.0.7", "10.0.0.7/llama", "10.0.0.7/*"),
        ("https://10.0.0.7:1/v1", "10.0.0.7/llama", "10.0.0.7/*"),
        ("[10.0.0.7]/*", "10.0.0.7/llama", "10.0.0.7/*"),
        ("10.0.0.*/*", "10.0.0.7/llama", "10.0.0.7/*"),
        ("openai/o*", "openai/gpt-5", None),
        ("groq/*", "openai/gpt-5", None),
        ("jobs/*", "openai/gpt-5", None),
        ("/", "openai/gpt-5", None),
        ("openai/gpt-5", "openai/gpt-5-mini", None),
        ("openai/gpt-5", "openai/gpt-4", None),
        ("mistral/mistral-large", "mistral/mistral-small", None),
        ("jobs", "openai/gpt-5", None),
        ("arts", "openai/star", None),  # short names of the same letters
    ],
)
def test_a_limit_that_a_model_nearly_matches_is_named_once(given, name, write):
    limits = made({given: "60 requests/min"})
    provider, _, model = name.partition("/")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        limits.model(provider, model)
        limits.model(provider, model)
    texts = [str(warning.message) for warning in caught if "has matched no model" in str(warning.message)]
    assert len(texts) == (write is not None)
    assert all(f"limit of {given!r} has" in text and f"write {write!r} instead" in text for text in texts)


@pytest.mark.parametrize(
    ("given", "used", "asked"),
    [
        ("openai", lambda limits: limits.resolve("openai"), ("openai", "gpt-5")),  # by hand, beside attached clients
        ("openai/gpt-5", lambda limits: limits.model("openai", "gpt-5"), ("openrouter", "openai/gpt-5")),
        ("openai@eu/gpt-5", id, ("openai@us", "gpt-5")),  # another account
    ],
)
def test_a_limit_that_has_matched_or_is_another_account_s_is_not_named(given, used, asked):
    limits = made({given: "60 requests/min"})
    used(limits)
    limits.model(*asked)  # warnings are errors here


@pytest.mark.parametrize(
    ("home", "provider"), [("openai", "openai"), ("openai", "openai@eu"), ("openai@eu", "openai@eu")]
)
def test_the_tier_of_an_account_holds_there(home, provider):
    quotas = [str(quota) for quota in made({}, provider=home, tier=2).model(provider, "gpt-5.4").quotas]
    assert quotas == ["5k requests/min", "1M tokens/min"]


@pytest.mark.parametrize("name", ["api.openai.com/*", "API.openai.com/gpt-5", "openai/gpt-5"])
def test_the_host_of_a_provider_is_its_name(name):
    assert made({name: "7 requests/min"}).model("openai", "gpt-5").quotas == (Quota.parse("7 requests/min"),)


def test_a_slip_in_the_name_of_a_published_model():
    said = r"openai: no limits of a model 'gpt5' are published; did you mean 'gpt-5'"
    with pytest.warns(PacelineWarning, match=said):
        made(provider="openai", tier=1).resolve("gpt5")


@pytest.mark.parametrize(
    ("provider", "tier", "message"),
    [
        ("", None, "provider is '': it must be the name of a provider"),
        ("  ", None, "it must be the name of a provider"),
        ("ollama", 2, "no tiers of ollama are known: leave out tier=2"),
        ("opnai", 2, "provider 'opnai' are not known: give quotas, too; did you mean 'openai'"),
        ("unheard", None, "provider 'unheard' are not known: give quotas, too; known are anthropic, azure"),
        ("deepseek", 2, r"tier 2 of deepseek is unknown \(known: account\)"),
    ],
)
def test_an_invalid_provider_or_tier(provider, tier, message):
    with pytest.raises(SettingsError, match=message):
        Limiter.for_provider(provider, tier=tier)


def test_a_provider_that_is_nearly_a_known_one_is_told():
    with pytest.warns(PacelineWarning, match="'opnai' is used as a provider of your own; did you mean 'openai'"):
        Limiter(provider="opnai")
    Limiter(provider="acme")
    Limiter({"opnai/*": "9 requests/min"}, provider="opnai")
    Limiter.for_provider("opnai", quotas={"opnai/*": "9 requests/min"})
    Limiter(provider="OpenAI@eu")


@pytest.mark.parametrize("name", ["", " ", "openai/", None, 5])
def test_an_invalid_name(name):
    with pytest.raises(QuotaError, match="it must be the name of a model or of a pool"):
        Limiter.for_provider("openai", tier=1).acquire(name)


def test_an_unknown_host_has_no_rate():
    with pytest.warns(PacelineWarning, match="a rate is measured until an answer states one"):
        resolved = made().model("localhost", "llama3.1")
    assert [str(quota) for quota in resolved.quotas] == ["8 concurrency"]


@pytest.mark.parametrize("provider", ["anthropic", None])
@pytest.mark.parametrize(
    "given", ["claude-haiku-4.5", "anthropic/claude-haiku-4.5", "claude-haiku-4-5", "claude-haiku-4-5-20251001"]
)
@pytest.mark.parametrize(
    "asked", ["claude-haiku-4.5", "anthropic/claude-haiku-4-5", "claude-haiku-4-5-20251001", "claude/claude-haiku-4.5"]
)
def test_a_dot_and_a_date_in_a_name_are_other_spellings_of_one_model(provider, given, asked):
    limits = made({given: "77 requests/min", "anthropic/*": "5 requests/min"}, provider=provider)
    for found in (limits.resolve(asked), limits.model("anthropic", asked.rpartition("/")[2])):
        quotas = [str(quota) for quota in found.quotas]
        assert (found.pool, quotas) == ("anthropic/claude-haiku-4-5", ["77 requests/min"])


@pytest.mark.parametrize(
    ("provider", "given", "asked"),
    [
        ("anthropic", "claude-sonnet-4", "claude-sonnet-4-5"),  # one pool, and two models
        ("openai", "gpt-5-1", "gpt-5.1"),  # OpenAI's names have dots
        ("gemini", "gemini-2.5-pro-2025-05-06", "gemini-2.5-pro"),  # Google counts each snapshot apart
    ],
)
def test_other_names_are_other_models(provider, given, asked):
    found = made({given: "77 requests/min", f"{provider}/*": "5 requests/min"}).model(provider, asked)
    assert [str(quota) for quota in found.quotas] == ["5 requests/min"]


@pytest.mark.parametrize(
    ("given", "name", "pool", "amount"),
    [
        ({"openai/gpt-5": 500}, "openai@eu/gpt-5", "openai@eu/gpt-5", 500),
        ({"gpt-5": 500}, "OpenAI@EU/gpt-5-2025-08-07", "openai@eu/gpt-5", 500),
        ({"openai/gpt-5": 500, "openai@eu/*": 60}, "openai@eu/gpt-5", "openai@eu/gpt-5", 60),
        ({"openai@us/gpt-5": 60, "*": 9}, "openai@eu/gpt-5", "openai@eu/gpt-5", 9),
        ({"openai@us/gpt-5": 60, "*": 9}, "openai/gpt-5", "openai/gpt-5", 9),
        ({"claude@a/*": 9}, "anthropic@a/claude-opus-5", "anthropic@a/claude-opus-5", 9),
    ],
)
def test_an_account_has_limits_of_its_own_or_those_of_its_provider(given, name, pool, amount):
    resolved = made({limited: f"{requests} requests/min" for limited, requests in given.items()}).resolve(name)
    assert (resolved.pool, resolved.quotas) == (pool, (Quota("requests", amount),))
