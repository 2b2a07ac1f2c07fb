"""`paceline init`: what it writes can be read, has no key in it, and replaces nothing."""

import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from paceline.cli.app import app
from paceline.config import Config
from paceline.config.litellm import convert
from paceline.config.schema import TARGETS_MAX
from paceline.config.servers import group
from paceline.config.starter import of_environment, of_settings
from paceline.gateway.upstreams import Upstreams

TEN = """
model_list:
  - model_name: gpt-4o
    litellm_params: {model: azure/gpt-4o-eu, api_base: "https://eu.openai.azure.com/", api_key: os.environ/AZURE_EU_KEY, api_version: "2024-10-21", rpm: 900, tpm: 450000, weight: 2}
  - model_name: gpt-4o
    litellm_params: {model: azure/gpt-4o-us, api_base: "https://us.openai.azure.com/", api_key: os.environ/AZURE_US_KEY, rpm: 600, tpm: 300000, weight: 1}
  - model_name: gpt-4o
    litellm_params: {model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY, rpm: 500}
  - model_name: smart
    litellm_params: {model: openai/gpt-5, api_key: os.environ/OPENAI_API_KEY, rpm: 500, tpm: 500000, timeout: 300}
  - model_name: claude
    litellm_params: {model: anthropic/claude-sonnet-4-5, api_key: sk-ant-written-in-the-file, rpm: 50, max_parallel_requests: 8}
  - model_name: gemini-flash
    litellm_params: {model: gemini/gemini-2.5-flash, api_key: os.environ/GEMINI_API_KEY, tpm: 1000000}
  - model_name: llama
    litellm_params: {model: groq/llama-3.3-70b-versatile, api_key: os.environ/GROQ_API_KEY}
    tpm: 12000
    rpm: 30
  - model_name: nova
    litellm_params: {model: bedrock/amazon.nova-pro-v1:0, aws_region_name: us-east-1, rpm: 100}
  - model_name: local
    litellm_params: {model: hosted_vllm/qwen3, api_base: "http://127.0.0.1:8000/v1", max_parallel_requests: 32}
  - model_name: embed
    litellm_params: {model: text-embedding-3-small, api_key: os.environ/OPENAI_KEY_2, rpm: 3000, tpm: 1000000}
    model_info: {mode: embedding}
router_settings:
  {routing_strategy: usage-based-routing-v2, num_retries: 3, allowed_fails: 2, cooldown_time: 30, redis_host: redis.local,
   redis_password: os.environ/REDIS_PASSWORD, model_group_alias: {gpt-4: gpt-4o}}
litellm_settings: {drop_params: true, request_timeout: 600, fallbacks: [{gpt-4o: [claude]}], max_budget: 100, budget_duration: 30d}
general_settings: {master_key: sk-1234, database_url: "postgresql://user:hidden@host/db", global_max_parallel_requests: 200}
environment_variables: {LANGFUSE_SECRET_KEY: sk-lf-hidden}
"""
LOST = (
    "line 3 (gpt-4o): api_version: requests go to",
    "line 9 (smart): timeout: a client has its own",
    "line 11 (claude): api_key: a key is written in the file: put it into the variable ANTHROPIC_API_KEY",
    "line 19 (nova): requests are signed",
    "line 23 (embed): model_info: models are not described, except for their prices",
    "router_settings: routing_strategy: ",
    "router_settings: num_retries: the client's SDK retries",
    "router_settings: allowed_fails: [breaker] counts",
    "router_settings: cooldown_time: [breaker] counts",
    "router_settings: redis_host: no store is written",
    "router_settings: redis_password: no store is written",
    "litellm_settings: drop_params: ",
    "litellm_settings: request_timeout: ",
    "general_settings: master_key: clients have keys of their own",
    "general_settings: database_url: ",
    "environment_variables: set them in the environment",
    "openai, openai_key_2: they share the limits of their provider",
    "translation: requests in OpenAI's form go to the endpoints for it of anthropic, gemini",
)
ENVIRON = dict.fromkeys(("AZURE_EU_KEY", "AZURE_US_KEY", "OPENAI_KEY_2"), "a-key")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "GROQ_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "GITHUB_TOKEN", "PACELINE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def init(*words, stdin=None):
    return CliRunner().invoke(app, ["init", *map(str, words)], input=stdin)


def converted(*deployments, name="m", **more):
    """What deployments with one name become, with further tables of the file."""
    return convert({"model_list": [{"model_name": name, "litellm_params": one} for one in deployments], **more})


def read_back(made):
    """The settings that the written file has."""
    return Config.load(given=tomllib.loads(of_settings(made.settings, "x.yaml", made.lost)), environ={})


class TestConversion:
    def test_ten_models(self, here):
        (here / "litellm.yaml").write_text(TEN)
        done = init("--from", "litellm.yaml")
        assert done.exit_code == 0, done.output
        assert "10 deployments became 10 limits, 8 upstreams, 1 group, 8 models" in done.stderr
        assert "the keys that it needs: AZURE_EU_KEY, AZURE_US_KEY, OPENAI_API_KEY, ANTHROPIC_API_KEY, " in done.stderr
        for text in (done.stderr, Path("paceline.toml").read_text()):
            assert [start for start in LOST if start not in text] == []
            assert not any(secret in text for secret in ("written-in-the-file", "sk-1234", "hidden"))
        config = Config.load(Path("paceline.toml"), environ={})
        limits = {name: [str(quota) for quota in quotas] for name, quotas in config.limits.items()}
        assert limits["azure@azure_eu/gpt-4o-eu"] == ["900 requests/min", "450k tokens/min"]
        assert limits["anthropic/claude-sonnet-4-5"] == ["50 requests/min", "8 concurrency"]
        assert limits["groq/llama-3.3-70b-versatile"] == ["30 requests/min", "12k tokens/min"]
        assert limits["vllm/qwen3"] == ["32 concurrency"]
        assert [str(quota) for quota in config.joint_limits["*"]] == ["200 concurrency"]
        assert [str(quota) for quota in config.budget] == ["100 usd/30 days window"]
        assert config.models["gpt-4o"] == ("gpt_4o/gpt-4o", "anthropic/claude-sonnet-4-5")
        assert config.models["gpt-4"] == config.models["gpt-4o"][:1]
        assert config.store is None  # its password is in no file

    def test_each_request_is_charged_to_the_pool_with_its_limits(self):
        made = convert(yaml.safe_load(TEN)).settings
        config = Config.load(given=made, environ={})
        found = {name: Upstreams(config, ENVIRON).native.routes.find(name)[0] for name in config.models}
        pools = {f"{one.provider.name}/{one.models[name]}" for name, place in found.items() for one in place.members}
        assert pools == set(made["limits"]) - {"bedrock/amazon.nova-pro-v1:0"}
        gpt = group(config, "gpt_4o", ENVIRON)
        assert list(gpt.members) == ["azure_eu", "azure_us", "openai"]
        assert [one.root for one in gpt.servers] == [
            "https://eu.openai.azure.com/openai", "https://us.openai.azure.com/openai", "https://api.openai.com"
        ]  # fmt: skip
        names = {one.renamed({"model": "gpt-4o"})["model"] for one in gpt.servers}
        assert names == {"gpt-4o-eu", "gpt-4o-us", "gpt-4o"}

    @pytest.mark.parametrize(("entries", "limits", "said"), [
        ([{"model": "openai/a", "rpm": 10}, {"model": "openai/a", "rpm": 5}], {"openai/a": {"rpm": 15}}, "their limits are added"),
        ([{"model": "openai/a", "rpm": "many"}], {}, "rpm is no number above 0"),
        ([{"model": "a", "api_key": "hidden-1"}, {"model": "a", "api_key": "hidden-2"}], {}, "OPENAI_API_KEY_2"),
        ([{"model": "predibase/a", "rpm": 5}], {"predibase/a": {"rpm": 5}}, "predibase has no usual address"),
        ([{"model": "predibase/a", "api_base": "https://h/v1", "order": "first"}], {}, "order is no number"),
        ([{"model": "openai/a", "mock_response": "hidden"}], {}, "mock_response: it has no counterpart"),
    ])  # fmt: skip
    def test_what_is_special(self, entries, limits, said):
        made = converted(*entries)
        assert made.settings.get("limits", {}) == limits
        assert said in "\n".join(made.lost)
        assert "hidden" not in of_settings(made.settings, "x.yaml", made.lost)
        read_back(made)

    @pytest.mark.parametrize(("params", "more", "said"), [
        ({"api_base": "os.environ/MY_BASE"}, {}, "api_base is in the variable MY_BASE: set it and convert again, or write the address. Its server is left out"),
        ({"base_url": "os.environ/MY_BASE"}, {}, "api_base is in the variable MY_BASE"),
        ({"api_base": "https://u:hidden@h"}, {}, "api_base: it must be an address"),
        ({"api_base": "https://h/v1?token=hidden"}, {}, "api_base: it must be an address"),
        ({"api_base": ["https://hidden"]}, {}, "api_base: it must be an address"),
        ({"litellm_credential_name": "c"}, {}, "litellm_credential_name: its address and its key are in credential_list"),
        ({"use_litellm_proxy": True}, {}, "use_litellm_proxy: its requests go to another proxy"),
        ({}, {"router_settings": {"default_litellm_params": {"api_base": "os.environ/MY_BASE"}}}, "in the variable MY_BASE"),
        ({}, {"environment_variables": {"OPENAI_API_BASE": "os.environ/MY_BASE"}}, "in the variable MY_BASE"),
    ])  # fmt: skip
    def test_the_key_of_a_service_whose_address_is_not_known_goes_nowhere(self, params, more, said):
        made = converted({"model": "openai/foo", "api_key": "os.environ/MY_KEY", "rpm": 5, **params}, **more)
        assert made.settings == {"limits": {"openai/foo": {"rpm": 5}}}
        lost = "\n".join(made.lost)
        assert said in lost
        assert 'add NAME = { provider = "openai", base_url = "https://...", key_env = "MY_KEY" } to [upstreams]' in lost
        assert "hidden" not in lost

    @pytest.mark.parametrize(("name", "model", "models", "said"), [
        ("anthropic/*", "anthropic/*", {"anthropic/*": "anthropic/*"}, "its limits are of all models together"),
        ("*", "*", {}, "model *: write a name for each provider"),
        ("*", "openai/*", {"*": "openai/*"}, "all: no server has the model"),
        ("gpt-*", "openai/gpt-4*", {"gpt-*": "openai/gpt-4*"}, "all: no server has the model"),
        ("gpt-*", "openai/gpt-4o", {"gpt-*": "openai/gpt-4o", "all": "openai/gpt-4o"}, "its limits are of all"),
        ("gpt", "openai/gpt-*", {}, "what it stands for none without it"),
        ("bedrock/*", "bedrock/*", {}, "requests are signed"),
    ])  # fmt: skip
    def test_a_pattern_is_a_name(self, name, model, models, said):
        router = {"model_group_alias": {"all": name}}
        made = converted({"model": model, "rpm": 5}, name=name, router_settings=router)
        assert made.settings.get("models", {}) == models
        assert set(made.settings) <= {"models", "upstreams"}
        assert said in "\n".join(made.lost)
        read_back(made)

    def test_a_name_that_is_left_out_and_goes_to_a_pattern_is_told(self):
        models = {"nova": "bedrock/amazon.nova-pro", "*": "openai/*", "vertex-a": "vertex_ai/a", "vertex-*": "groq/*"}
        entries = [{"model_name": name, "litellm_params": {"model": model}} for name, model in models.items()]
        lost = convert({"model_list": entries}).lost
        told = 'model_list[{}] ({}): its requests go to {} now, by the name "{}": write its name to [models]'
        assert told.format(1, "nova", "openai/*", "*") in lost
        assert told.format(3, "vertex-a", "groq/*", "vertex-*") in lost
        other = {"model_name": "no", "litellm_params": {"model": "openai/a"}}
        assert not any("its requests go to" in one for one in convert({"model_list": [entries[0], other]}).lost)

    def test_what_differs_of_the_router_is_told(self):
        router = {"num_retries": 2, "redis_host": "h", "redis_password": "hidden", "max_fallbacks": 9}
        made = converted({"model": "openai/a"}, router_settings=router)
        lost = "\n".join(made.lost)
        assert "num_retries: the client's SDK retries a 5xx or a broken connection; with faults = true" in lost
        assert "or with a password the variable PACELINE_STORE to redis://:PASSWORD@HOST:PORT" in lost
        assert "hidden" not in lost
        assert f"router_settings: max_fallbacks: a name has {TARGETS_MAX} places at most" in made.lost

    @pytest.mark.parametrize("key", ["none", "EMPTY", "sk-no-key-required", "fake-api-key", "lm-studio", "sk-1234"])
    @pytest.mark.parametrize("model", ["hosted_vllm/a", "openai/a"])
    def test_a_key_that_stands_for_none_is_not_asked_for(self, key, model):
        made = converted({"model": model, "api_base": "http://127.0.0.1:8000/v1", "api_key": key})
        config = read_back(made)
        if key == "sk-1234":
            assert len(made.variables) == 1
        else:
            assert made.variables == []
            [server] = Upstreams(config, {"OPENAI_API_KEY": "sk-of-openai"}).servers.values()
            assert server.key == "none"

    def test_fallbacks_of_a_pattern_and_hidden_names(self):
        entries = [("*-luna", "groq/*"), ("gpt-*", "openai/gpt-*"), ("m", "groq/m")]
        made = convert({
            "model_list": [{"model_name": name, "litellm_params": {"model": model}} for name, model in entries],
            "router_settings": {
                "fallbacks": [{"m": ["gpt-6-luna"]}], "model_group_alias": {"n": {"model": "m", "hidden": True}}
            },
        })  # fmt: skip
        assert made.settings["models"]["m"] == ["groq/m", "openai/gpt-6-luna"]
        assert made.settings["models"]["n"] == "groq/m"
        assert made.lost == ["router_settings: model_group_alias: n: GET /v1/models lists it, too"]

    def test_an_address_for_all_is_that_of_each_deployment(self):
        for more in (
            {"environment_variables": {"OPENAI_BASE_URL": "https://near.example/v1"}},
            {"router_settings": {"default_litellm_params": {"api_base": "https://near.example/v1"}}},
        ):
            made = converted({"model": "openai/foo", "api_key": "os.environ/MY_KEY"}, **more)
            assert {one["base_url"] for one in made.settings["upstreams"].values()} == {"https://near.example/v1"}

    @pytest.mark.parametrize(("table", "name", "value"), [
        ("litellm_settings", "max_budget", "os.environ/BUDGET"),
        ("general_settings", "global_max_parallel_requests", "many"),
        ("router_settings", "redis_host", "u:hidden@h"),
        ("router_settings", "redis_url", "redis://u:hidden@h"),
    ])  # fmt: skip
    def test_a_value_that_cannot_be_read_is_said_and_not_shown(self, table, name, value):
        made = converted({"model": "openai/a"}, **{table: {name: value}})
        assert set(made.settings) == {"upstreams", "models"}
        assert [one for one in made.lost if one.startswith(f"{table}: {name}")]
        assert "hidden" not in "".join(made.lost)

    def test_orders_are_a_group_in_order(self):
        near = {"model": "openai/a", "api_base": "https://near.example/v1", "order": 1}
        made = converted({"model": "openai/a", "order": 2}, near)
        assert made.settings["groups"] == {"m": {"members": ["openai_near", "openai"], "in_order": True}}

    @pytest.mark.parametrize(("text", "said"), [
        ("a: 1", "x.yaml: it has no model_list: it must be the config.yaml of a litellm proxy"),
        ("include: [models.yaml]", "x.yaml: it has no model_list: convert the files that include names"),
        ("model_list: [{model_name: m}]", r"x.yaml: line 1: it has no litellm_params.model"),
        ("model_list: [{model_name: m, litellm_params: {model: openai/}}]", r"x.yaml: line 1 (m): litellm_params.model has no model"),
        ("model_list: [", "x.yaml"),
        ("model_list: [{model_name: m, litellm_params: {model: openai/a, rpm: 0.0001}}]", "x.yaml: limits: openai/a: rpm: 0.0001: it must be a number from"),
    ])  # fmt: skip
    def test_what_is_no_configuration_of_litellm(self, here, text, said):
        (here / "x.yaml").write_text(text)
        done = init("--from", "x.yaml")
        assert (done.exit_code, Path("paceline.toml").exists()) == (2, False)
        assert said in done.stderr


class TestOfTheEnvironment:
    @pytest.mark.parametrize(
        "names", [(), ("OPENAI_API_KEY",), ("OPENAI_API_KEY", "GROQ_API_KEY", "VLLM_API_KEY"), ("CO_API_URL",)]
    )
    def test_it_can_be_read_as_it_is_and_with_every_comment_lifted(self, names):
        text = of_environment(dict.fromkeys(names, "a-hidden-key"))
        assert "hidden" not in text
        assert all(name in text for name in names)
        assert Config.load(given=tomllib.loads(text), environ={}).store is None
        lifted = "\n".join(
            line.removeprefix("# ") if " = " in line and "`" not in line else line for line in text.splitlines()
        )
        settings = tomllib.loads(lifted)
        assert Config.load(given=settings, environ={}).store == "sqlite:quotas.db"

    def test_nothing_is_overwritten_or_hidden(self, here):
        for name in ("paceline.toml", "paceline.yaml"):
            (here / name).write_text("tier: 2")
            done = init()
            assert done.exit_code == 2
            assert f"{name} exists" in done.stderr
            assert (here / name).read_text() == "tier: 2"
            (here / name).unlink()

    def test_it_names_what_it_found_and_writes(self, here, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "a-hidden-key")
        done = init()
        assert done.exit_code == 0
        assert "openai (OPENAI_API_KEY)" in done.stderr
        assert "hidden" not in done.output + Path("paceline.toml").read_text()


def test_a_first_file_says_what_its_provider_is_for():
    said = 'provider = "openai"   # whose tier is given, and of models whose name does not show it'
    assert f"\n{said}\n" in of_environment({"OPENAI_API_KEY": "key"})
    assert f"\n# {said}\n" in of_environment({})
