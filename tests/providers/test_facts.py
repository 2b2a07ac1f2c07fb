"""Facts about providers: the form, the places that have them, which one holds, and where keys never go."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from click.testing import CliRunner

from grids import some
from odd_server import OddServer
from paceline import facts
from paceline.batch.address import at_home
from paceline.batch.forms import Form
from paceline.cli.app import app
from paceline.config import Config, data_set
from paceline.config.servers import server
from paceline.core.results import PacelineWarning, SettingsError, SourceKind
from paceline.facts.lives import Life
from paceline.gateway.private import find_way
from paceline.gateway.server import end_watch
from paceline.gateway.upstreams import _configured
from paceline.limiter.limiter import Limiter
from paceline.providers.base import Usage
from paceline.providers.prices import Prices
from paceline.providers.registry import PROVIDERS, locate, provider_for_host, provider_named
from paceline.providers.roots import host_root, usual_root
from paceline.providers.tables import is_listed, known_providers, life_of, lookup, models, stated

ROW = """
[[providers.openai.limits]]
match = ["gpt-7"]
source = "our dashboard"
day = 2026-11-27
confidence = "documented"
tier_2 = "777 requests/min, 9M tokens/min"
"""
ACME = """
[providers.acme]
hosts = ["api.acme.example"]
key_env = "ACME_KEY"

[[providers.acme.limits]]
match = ["default", "acme-1"]
source = "https://acme.example/limits"
day = 2026-11-01
confidence = "documented"
account = "7 requests/s"
"""
EVIL = """
[providers.openai]
hosts = ["api.evil.example"]
path = "/evil"
key_env = "EVIL"

[providers.evil]
hosts = ["api.evil.example", "eu.api.openai.com"]
key_env = "OPENAI_API_KEY"
aliases = ["openai", "chatgpt"]
makes = "gpt-"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the user's facts."""
    monkeypatch.setenv("PACELINE_FACTS", str(tmp_path / "facts"))
    (tmp_path / "facts").mkdir()
    facts.forget()
    yield tmp_path / "facts"
    facts.forget()


@pytest.fixture
def users(folder):
    """Write the user's file."""

    def write(text):
        (folder / facts.USERS).write_text(text, "utf-8")
        facts.forget()

    return write


def project(tmp_path, text, *, named=True):
    file = tmp_path / "paceline.toml"
    file.write_text(text, "utf-8")
    return Config.load(file, {}, named=named)


def first(provider, model, tier=None):
    return str(lookup(provider, model, tier).quotas[0])


class TestTheDataSet:
    def test_each_row_has_a_source_a_day_and_a_confidence(self):
        found = {file.stem: facts.read(file) for file in facts.TABLES.glob("*.toml")}
        heads = found.pop("providers")
        assert heads["day"] == facts.day()
        assert all([*one["providers"]] == [name] for name, one in found.items())
        rows = [
            row for name, one in found.items() for kind in facts.KINDS for row in one["providers"][name].get(kind, ())
        ]
        assert {row["confidence"] for row in rows} == {"documented", "third_party", "assumed"}
        assert max(row["as_of"] for row in rows) <= facts.day()
        assert sum("day" not in row for row in rows) <= WEAK

    def test_a_pattern_promises_nothing_for_a_model_that_may_be_newer(self):
        assert lookup("cohere", "command-a-plus-05-2026", "production").confidence == "documented"
        for model in ("command-a-plus", "command-a-20270101"):
            assert lookup("cohere", model, "production").confidence == "assumed"
            assert lookup("cohere", model, "production").sources.popitem()[1].kind is SourceKind.ASSUMED
        older = lookup("anthropic", "claude-opus-4-20250514", "tier_2")
        assert (older.matched, older.confidence) == ("claude-opus-4-*", "third_party")  # a date in its name
        assert lookup("anthropic", "claude-haiku-4-9", 2).confidence == "assumed"
        same = lookup("bedrock", "us-east-1/us.anthropic.claude-opus-5-5-v1:0", None)
        assert (same.matched, same.confidence) == ("*.anthropic.claude-opus-5-5*", "documented")

    def test_a_model_that_began_before_the_row_is_the_pattern_s(self, users):
        users(
            '[[providers.cohere.models]]\nmatch = "command-a-plus"\nfrom = 2026-05-20\nsource = "s"\nday = 2026-11-01\n'
            '[[providers.cohere.limits]]\nmatch = "command-a-*"\nsource = "s"\nday = 2026-08-20\nconfidence = "documented"\n'
            'production = "20 requests/min"\n'
        )
        assert lookup("cohere", "command-a-plus", "production").confidence == "documented"

    def test_of_several_patterns_the_longest_is_about_a_model(self, users):
        row = '[[providers.cohere.models]]\nmatch = "{}"\n{}\nsource = "s"\nday = 2026-11-01\n'
        mosts = {"command-*": 3, "command-a-*": 1, "command-a-plus": 2}
        users("".join(row.format(match, f"output_max = {most}") for match, most in mosts.items()))
        assert stated("cohere", "command-a-plus", "output_max") == 2
        assert stated("cohere", "command-a-mini", "output_max") == 1
        users(row.format("command-*", "output_max = 3") + row.format("command-a-plus", "from = 2026-05-20"))
        assert stated("cohere", "command-a-plus", "output_max") == 3  # the longest one says nothing of it


WEAK = 93
"""The rows whose day is not known: fewer with each one that is looked up again."""


class TestTheUsersFile:
    def test_a_newer_model_a_changed_tier_and_a_new_host(self, users):
        users(ROW + ROW.replace("gpt-7", "gpt-5").replace("tier_2", "tier_3") + ACME)
        found = lookup("openai", "gpt-7", 2)
        assert (str(found.quotas[0]), found.confidence, found.as_of) == ("777 requests/min", "documented", "2026-11-27")
        assert "facts.toml: our dashboard (2026-11-27)" in str(found.sources[found.quotas[0]])
        assert (first("openai", "gpt-5", 3), first("openai", "gpt-5", 2)) == ("777 requests/min", "5k requests/min")
        assert is_listed("openai", "gpt-7")
        acme = provider_for_host("api.acme.example")
        assert (acme.name, acme.key_env, host_root(acme)) == ("acme", "ACME_KEY", "https://api.acme.example")
        assert first("acme", "acme-1") == "7 requests/s"
        status = Limiter(provider="acme").pacer.pools.scheduler("acme/acme-1").status()
        assert status["quotas"][0]["quota"] == "7 requests/s"

    def test_a_provider_with_the_api_of_another(self, users):
        users('[providers.acme]\nhosts = ["api.acme.example"]\napi = "anthropic"\n')
        acme = provider_for_host("api.acme.example")
        assert (type(acme).__name__, acme.name) == ("Anthropic", "acme")
        assert acme.describe("/v1/messages", {"model": "m", "messages": [], "max_tokens": 1}).model == "m"

    def test_it_wins_over_a_newer_row_and_this_is_said(self, users):
        users(ROW.replace("gpt-7", "gpt-5").replace("2026-11-27", "2026-01-02"))
        with pytest.warns(
            PacelineWarning,
            match=r"openai/gpt-5: the limits in .*facts.toml for tier_2 are of 2026-01-02, .* newer ones, of 2026-09",
        ):
            assert first("openai", "gpt-5", 2) == "777 requests/min"

    def test_models_end(self, users, caplog):
        users(
            '[[providers.openai.models]]\nmatch = ["gpt-old*"]\nuntil = 2026-10-23\nsource = "the page"\nday = 2026-10-01\n'
        )
        life = life_of("openai@eu", "gpt-old-mini")
        assert life == Life("", "2026-10-23", "the page (2026-10-01)")
        assert life.ending(date(2026, 8, 1)) == ""
        assert life.ending(date(2026, 8, 24)) == "ends on 2026-10-23, in 60 days, by the page (2026-10-01)"
        assert life.ending(date(2026, 10, 23)).startswith("has ended on 2026-10-23")
        assert life_of("openai", "gpt-7") is None
        limiter = Limiter(provider="openai")
        limiter.pacer.pools.maker.made = end_watch()
        for model in ("gpt-old", "gpt-old", "gpt-7"):  # it is sent all the same
            assert limiter.try_acquire(f"openai/{model}", requests=1)
        assert [record.getMessage() for record in caplog.records] == [
            "the model openai/gpt-old has ended on 2026-10-23, by the page (2026-10-01)"
        ]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("day = ", "facts.toml: Invalid value (at end of document)"),
            ("days = 1", "facts.toml: days: there is no such field; did you mean 'day'?"),
            ("[providers.Acme]", "providers.Acme: a name has lower-case letters"),
            ("[providers.acme]\nhost = []", "providers.acme.host: there is no such field; did you mean 'hosts'?"),
            ("[providers.acme]\nhosts = ['https://x.y']", "providers.acme.hosts: ['https://x.y']: it must be a list of host names"),
            ("[providers.acme]\nmakes = '('", "providers.acme.makes: '(': it must be a regular expression"),
            ("[providers.acme]\napi = 'antropic'", "providers.acme.api: there is no provider 'antropic'; did you mean 'anthropic'?"),
            ("[providers.acme]\ndefault_tier = 'a'", "providers.acme.default_tier: 'a' is not in ladders"),
            (ROW.replace("tier_2", "tier2"), "providers.openai.limits[1].tier2: there is no such field; did you mean 'tier_2'?"),
            (ROW.replace("777 requests/min", "777 request/mon"), "providers.openai.limits[1].tier_2:"),
            (ROW.replace("day = 2026-11-27", ""), "providers.openai.limits[1]: give the day on which it was read"),
            (ROW.replace("day = 2026-11-27", "about = 26"), "providers.openai.limits[1].about: 26: it must be a month or a year"),
            (ROW.replace("2026-11-27", '"2026-11-31"'), "providers.openai.limits[1].day: '2026-11-31': day is out of range"),
            (ROW.replace('source = "our dashboard"', ""), "providers.openai.limits[1]: it has no source"),
            (ROW.replace('"documented"', '"sure"'), "confidence: 'sure': it must be 'documented' or"),
            (ROW.partition("tier_2")[0], "providers.openai.limits[1]: it states no limit"),
            (f"{ROW}{ROW.replace('777', '-7').replace('gpt-7', 'gpt-8')}", "providers.openai.limits[2].tier_2:"),
            (f"{ACME}keys = 1\n", "providers.acme.limits[1].keys: 1: it must be limits"),
        ],
    )  # fmt: skip
    def test_a_broken_file_is_one_error_with_its_place(self, users, folder, text, said):
        users(text)
        file = str(folder / facts.USERS)
        with pytest.raises(SettingsError) as error:
            lookup("openai", "gpt-7", 2)
        assert str(error.value).startswith(file)
        assert said in str(error.value)
        assert len(str(error.value).splitlines()) == 1
        result = CliRunner().invoke(app, ["limits", "check", file])
        assert (result.exit_code, result.output) == (2, f"paceline limits: {error.value}\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("day = 2026-11-28T10:00:00Z", "facts.toml: day: 2026-11-28 10:00:00+00:00: a time: it must be a day, e.g. 2026-11-28"),
        (ROW.replace("2026-11-27", "2026-11-27T10:00:00"), "limits[1].day: 2026-11-27 10:00:00: a time: it must be a day"),
        ("day = 9999-01-01", "facts.toml: day: 9999-01-01 has not come yet"),
        (ROW.replace("2026-11-27", "2999-11-27"), "providers.openai.limits[1].day: 2999-11-27 has not come yet"),
        (ROW + ROW.replace("777", "778"), "providers.openai.limits[2].match: 'gpt-7' for tier_2 is in limits[1], too: keep one"),
        (ROW.replace('"gpt-7"', '"gpt-7", "gpt-7"'), "providers.openai.limits[1].match: 'gpt-7' for tier_2 is in limits[1], too"),
        ("[providers.acme]\naliases = ['gpt', 'openai']", "providers.acme.aliases: 'openai' is a name of openai"),
        ("[providers.acme]\naliases = ['google']", "providers.acme.aliases: 'google' is a name of gemini"),
        ("[providers.google]", "providers.google: 'google' is another name of gemini: write [providers.gemini]"),
        ("[providers.acme]\nhosts = ['eu.api.openai.com']", "providers.acme.hosts: 'eu.api.openai.com' is a host of openai"),
        ("[providers.acme]\nhosts = ['*.openai.com']", "providers.acme.hosts: '*.openai.com' is a host of openai"),
    ],
)  # fmt: skip
def test_a_check_finds_what_cannot_be_meant(tmp_path, text, said):
    file = tmp_path / "facts.toml"
    file.write_text(text, "utf-8")
    result = CliRunner().invoke(app, ["limits", "check", str(file)])
    assert (result.exit_code, said in result.stderr) == (2, True), result.output


def test_a_check_finds_the_data_set_right(tmp_path):
    for file in facts.TABLES.glob("*.toml"):
        assert CliRunner().invoke(app, ["limits", "check", str(file)]).exit_code == 0, file


CODE = "import httpx2\nfrom paceline.providers.tables import lookup\nprint(lookup('acme', 'acme-1').quotas[0])"


@pytest.fixture
def limiters(monkeypatch):
    """The limiters of runs and gateways, which are made as ever."""
    made = []

    class Kept(Limiter):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            made.append(self)

    monkeypatch.setattr("paceline.batch.job.Limiter", Kept)
    return made


@pytest.mark.parametrize(
    "place", some(["user", "named", "found"], "found", mark=pytest.mark.long("starts two processes again"))
)
def test_all_programs_use_the_same_facts(users, tmp_path, monkeypatch, place, limiters, paceline_emulator):
    if place == "user":
        users(ACME)
    project(tmp_path, "" if place == "user" else ACME)
    facts.forget()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACME_KEY" if place != "found" else "ACME_API_KEY", "sk-acme")
    facts.add_project(str(tmp_path / "paceline.toml"), {}, trusted=True)
    emulator = paceline_emulator(limits="*=1000 requests/min")
    request = {"model": "acme-1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": request}
    requests = tmp_path / "in.jsonl"
    requests.write_text(json.dumps(line) + "\n", "utf-8")
    named = ["--config", str(tmp_path / "paceline.toml")] if place == "named" else []

    shown = CliRunner().invoke(app, ["limits", "acme", "acme-1", "--json", *named])
    assert json.loads(shown.output)["quotas"] == ["7 requests/s"]
    planned = CliRunner().invoke(app, ["plan", str(requests), "--provider", "acme", "--json", *named])
    assert "7 requests/s" in planned.output, planned.output
    words = ["run", str(requests), "--provider", "acme", "--base-url", emulator.base_url, "--store", "memory:", *named]
    ran = CliRunner().invoke(app, words)
    assert (ran.exit_code, emulator.tally()["admitted"]) == (0, 1), ran.output
    assert limiters[0].status()["pools"]["acme/acme-1"]["quotas"][0]["quota"] == "7 requests/s"
    config = Config.load(tmp_path / "paceline.toml", {}, named=place == "named")
    served = [one.root for one in _configured(config, {"ACME_KEY": "sk-acme"}) if one.name == "acme"]
    assert served == ([] if place == "found" else ["https://api.acme.example"])
    ran = subprocess.run(
        [sys.executable, "-m", "paceline", "exec", *named, "--", sys.executable, "-c", CODE],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stdout == "7 requests/s\n", ran.stderr


@pytest.mark.parametrize(
    ("words", "host", "gets"),
    [
        ([], "elsewhere.example", False),
        ([], "api.groq.com", True),  # of a provider, and no other one is named
        (["--config", "paceline.toml"], "elsewhere.example", True),
        (["--base-url", "http://127.0.0.1:9"], "elsewhere.example", True),
    ],
)
def test_the_address_of_a_found_file_gets_no_key_of_a_run(tmp_path, monkeypatch, words, host, gets):
    monkeypatch.chdir(tmp_path)
    Path("paceline.toml").write_text(f'base_url = "https://{host}/v1"', "utf-8")
    Path("in.jsonl").write_text("", "utf-8")
    said = CliRunner().invoke(app, ["plan", "in.jsonl", *words]).output
    assert (f"a key would go to {host}" not in said) == gets, said


@pytest.mark.parametrize(
    ("words", "provider", "model"),
    [
        (["--model", "groq/openai/gpt-oss-120b"], "groq", "openai/gpt-oss-120b"),
        (["--model", "groq/openai/gpt-oss-120b", "--base-url", "http://127.0.0.1:9/v1"], None, "groq/openai/gpt-oss-120b"),
        (["--model", "nvidia/nemotron", "--provider", "nvidia"], "nvidia", "nvidia/nemotron"),
        (["--model", "meta-llama/llama-4"], None, "meta-llama/llama-4"),
    ],
)  # fmt: skip
def test_the_beginning_of_a_model_s_name_is_its_provider(words, provider, model):
    given = dict(zip(words[::2], words[1::2], strict=True))
    config = Config.load(given={"provider": given.get("--provider"), "base_url": given.get("--base-url")}, environ={})
    form = at_home(Form(model=given["--model"]), config)
    assert (form.provider, form.model) == (provider, model)


def test_a_budget_counts_with_the_users_facts(users):
    model = '[[providers.openai.models]]\nmatch = "gpt-7"\nsource = "s"\nday = 2026-11-27\n'
    users(model + "output_max = 77\nprice = { input = 2.0, output = 8.0, request = 0.5 }\n")
    prices = Prices({})
    for provider, name in (("openai", "gpt-7"), ("openrouter", "openai/gpt-7"), ("azure", "gpt-7-2026-11-01")):
        assert prices.output_max(provider, name) == 77
        assert prices.usd(provider, name, Usage(1_000_000, 1_000_000)) == pytest.approx(10.5)
    given = Prices({"openai/gpt-7": {"input": 1.0, "output": 1.0}})
    assert given.usd("openai", "gpt-7", Usage(1_000_000, 0)) == 1.0
    users(model + "price = { input = 2.0 }\n")
    with pytest.raises(
        SettingsError, match=r"facts.toml: providers.openai.models\[1\].price: .*USD for a million tokens"
    ):
        models("openai")


class TestAProjectsSettings:
    def test_they_win_over_the_users_file(self, users, tmp_path):
        users(ROW)
        project(tmp_path, ROW.replace("777", "888"))
        assert first("openai", "gpt-7", 2) == "888 requests/min"

    def test_a_named_file_may_have_a_root_and_a_found_one_gets_no_key(self, tmp_path):
        environ = {"ACME_KEY": "sk-secret", "ACME_API_KEY": "sk-other"}
        config = project(tmp_path, ACME, named=True)
        assert server(config, "acme", environ).base_url == "https://api.acme.example"
        config = project(tmp_path, ACME, named=False)
        acme = provider_for_host("api.acme.example")  # it is paced where a program sends to it
        assert (acme.name, first("acme", "acme-1")) == ("acme", "7 requests/s")
        assert usual_root(acme) is None
        with pytest.raises(SettingsError, match="no address is known for acme: data that you have not named"):
            locate(acme, usual_root(acme), environ)
        with pytest.raises(SettingsError, match=r"acme has no usual address.* name these with --config"):
            server(config, "acme", environ)

    @pytest.mark.parametrize(
        ("text", "name", "host"),
        [
            *(
                (f"[upstreams]\n{name} = {{ base_url = '{url}', key_env = 'OPENAI_API_KEY' }}", name, urlsplit(url).hostname)
                for name, url in [
                    ("openai", "http://api.openai.com/v1"),
                    ("openai", "https://api.openai.com:9999"),
                    ("openai", "https://evil.example\\.api.openai.com"),
                    ("azure", "https://attacker.openai.azure.com"),
                    ("databricks", "https://attacker.cloud.databricks.com"),
                    ("baseten", "https://attacker.api.baseten.co"),
                    ("groq", "https://api.openai.com"),
                ]
            ),
            ('base_url = "http://api.openai.com"\nprovider = "openai"', "openai", "api.openai.com"),
            ('[upstreams]\nopenai = { base_url = "http://elsewhere.example" }', "openai", "elsewhere.example"),
            ('base_url = "http://elsewhere.example/v1"\nprovider = "openai"', "openai", "elsewhere.example"),
            ('[upstreams]\nmine = { provider = "openai", base_url = "http://10.0.0.5" }', "mine", "10.0.0.5"),
            ('[upstreams]\ngroq = { base_url = "http://h.example", key_env = "OPENAI_API_KEY" }', "groq", "h.example"),
            (f'{ACME}[upstreams]\nacme = {{ base_url = "https://api.acme.example", key_env = "OPENAI_API_KEY" }}', "acme", "api.acme.example"),
        ],
    )  # fmt: skip
    def test_the_address_of_a_found_file_gets_no_key(self, tmp_path, monkeypatch, text, name, host):
        environ = {"OPENAI_API_KEY": "sk-secret"}
        config = project(tmp_path, text, named=False)
        file = str(tmp_path / "paceline.toml")
        with pytest.raises(SettingsError) as error:
            server(config, name, environ)
        why = "which is no host of|which any customer of|in clear text|at a port"
        assert re.search(rf"a key would go to {re.escape(host)}, ({why})", str(error.value))
        assert str(error.value).endswith(f"name it with --config {file}")
        assert server(project(tmp_path, text, named=True), name, environ).key == "sk-secret"
        by_variable = Config.load(tmp_path / "paceline.toml", {"PACELINE_CONFIG": file})
        assert server(by_variable, name, environ).key == "sk-secret"
        if "key_env" not in text:  # the key is the client's own
            assert server(project(tmp_path, text, named=False), name, {}).key == ""

    @pytest.mark.parametrize(
        ("table", "more"),
        [
            ('openai = { base_url = "https://api.openai.com:443/v1", key_env = "MINE" }', {}),
            ('bedrock = { base_url = "https://bedrock-runtime.eu-west-1.amazonaws.com", key_env = "MINE" }', {}),
            ('vertex = { base_url = "https://europe-west1-aiplatform.googleapis.com", key_env = "MINE" }', {}),
            ('openai = { base_url = "https://eu.api.openai.com" , key_env = "MINE" }', {}),
            ('openai = { base_url = "http://127.0.0.1:9/v1", key_env = "MINE" }', {}),
            ('openai = { base_url = "http://h.example", key_env = "MINE" }', {"PACELINE_UPSTREAMS__OPENAI__BASE_URL": "http://mine.example"}),
        ],
    )  # fmt: skip
    def test_a_found_file_may_name_known_hosts_and_this_machine(self, tmp_path, table, more):
        file = tmp_path / "paceline.toml"
        file.write_text(f"[upstreams]\n{table}", "utf-8")
        assert server(Config.load(file, more), table.partition(" ")[0], {"MINE": "sk-mine"}).key == "sk-mine"

    def test_beside_a_found_file_the_environment_may_name_any_address(self, tmp_path):
        config = project(tmp_path, ROW, named=False)
        environ = {"OPENAI_BASE_URL": "http://mine.example/v1", "OPENAI_API_KEY": "sk-mine"}
        assert server(find_way(config, environ).servers, "openai", environ).key == "sk-mine"

    def test_a_found_file_changes_no_known_provider(self, tmp_path):
        before = PROVIDERS["openai"]
        project(tmp_path, EVIL + ROW, named=False)
        assert PROVIDERS["openai"] == before
        assert provider_named("openai").name == provider_named("chatgpt").name.replace("chatgpt", "openai") == "openai"
        assert provider_for_host("eu.api.openai.com").name == "openai"
        assert provider_named("evil").key_env == "EVIL_API_KEY"
        assert host_root(provider_named("evil")) is None
        assert first("openai", "gpt-7", 2) == "777 requests/min"

    def test_a_wrong_row_is_an_error_with_the_file(self, tmp_path):
        with pytest.raises(
            SettingsError, match=r"paceline.toml: providers: openai.limits\[1\].tier_9: there is no such field"
        ):
            project(tmp_path, ROW.replace("tier_2", "tier_9"))

    def test_the_command_shows_what_is_used(self, tmp_path, users, monkeypatch):
        users(ROW)
        monkeypatch.chdir(tmp_path)
        project(tmp_path, f'[limits]\n"openai/gpt-5" = ["5 requests/min"]\n{ACME}')
        shown = {}
        for model in ("openai/gpt-5", "openai/gpt-7", "openai/gpt-4o", "openai/gpt-99", "acme/acme-1"):
            result = CliRunner().invoke(
                app, ["limits", model, "--json", *(["--tier", "2"] if "openai" in model else [])]
            )
            record = json.loads(result.stdout)
            shown[model] = record["from"], record["quotas"][0]
        assert shown == {
            "openai/gpt-5": ("set", "5 requests/min"),
            "openai/gpt-7": ("your file", "777 requests/min"),
            "openai/gpt-4o": ("table", "5k requests/min"),
            "openai/gpt-99": ("assumed", "5k requests/min"),
            "acme/acme-1": ("your file", "7 requests/s"),
        }
        said = CliRunner().invoke(app, ["limits", "gpt-4o", "--tier", "2"]).output
        assert "table of 2026-09-20" in said


def test_the_command_shows_what_answers_have_stated(tmp_path):
    store = f"sqlite:{tmp_path / 'quotas.db'}"
    with Limiter(provider="openai", tier=2, store=store) as limiter:
        permit = limiter.try_acquire("openai/gpt-4o", requests=1)
        headers = {"x-ratelimit-limit-requests": "9000", "x-ratelimit-remaining-requests": "8999"}
        permit.settle(
            httpx2.Response(200, headers=headers, json={"usage": {"prompt_tokens": 9, "completion_tokens": 1}})
        )
    file = tmp_path / "paceline.toml"
    file.write_text(f'provider = "openai"\ntier = 2\nstore = {json.dumps(store)}\n', "utf-8")
    result = CliRunner().invoke(app, ["limits", "openai", "gpt-4o", "--config", str(file), "--json"])
    assert json.loads(result.stdout)["sources"] == {
        "9k requests/min": "stated by an answer",
        "450k tokens/min": "table",
    }


def test_the_command_reads_the_store_once_for_all_providers(monkeypatch):
    read = []
    monkeypatch.setattr("paceline.cli.standing.read_store", lambda *asked: read.append(asked) or ({"pools": {}}, []))
    assert CliRunner().invoke(app, ["limits"], env={"PACELINE_STORE": "redis://127.0.0.1:1"}).exit_code == 0
    assert len(read) == 1


class TestUpdate:
    def of(self, tmp_path, day, text=ROW + ACME):
        """A whole data set with the providers of ``text``."""
        whole = {
            name: {kind: [row | {} for row in facts.data_rows(name, kind)] for kind in facts.KINDS}
            for name in facts.shipped_names()
        }
        for row in (row for one in whole.values() for rows in one.values() for row in rows):
            del row["as_of"]
        whole |= {name: whole.get(name, {}) | head for name, head in tomllib.loads(text)["providers"].items()}
        file = tmp_path / "newer.json"
        file.write_text(json.dumps({"day": day, "providers": whole}, default=str), "utf-8")
        return file

    @pytest.fixture(autouse=True)
    def tomorrow(self, monkeypatch):
        """The data set of this version is of some days ago."""
        monkeypatch.setattr(facts, "shipped_day", lambda: "2026-11-01")

    def test_a_newer_data_set_is_used_and_taken_back(self, folder, tmp_path):
        runner = CliRunner()
        result = runner.invoke(app, ["limits", "update", str(self.of(tmp_path, "2026-11-20"))])
        assert (result.exit_code, facts.day()) == (0, "2026-11-20")
        assert result.output == "the data set of 2026-11-20 is in use, instead of the one of 2026-11-01\n"
        assert (first("openai", "gpt-7", 2), first("acme", "acme-1")) == ("777 requests/min", "7 requests/s")
        assert "gpt-4o" not in models("openai")  # its rows are the provider's
        assert models("groq")  # of which it says nothing
        assert host_root(provider_named("acme")) is None
        assert data_set.install(str(self.of(tmp_path, "2026-11-21", ROW.replace("777", "999"))))
        assert first("openai", "gpt-7", 2) == "999 requests/min"
        assert data_set.undo() == "the data set of 2026-11-20 is in use again"
        assert first("openai", "gpt-7", 2) == "777 requests/min"
        assert data_set.undo() == "the data set of 2026-11-01 is in use again"
        assert "acme" not in known_providers()
        assert "no data set is installed" in runner.invoke(app, ["limits", "update", "--undo"]).output
        assert list(folder.iterdir()) == []

    def test_a_file_of_additions_is_no_data_set(self, folder, tmp_path):
        whole = json.loads(self.of(tmp_path, "2026-11-20").read_text("utf-8"))
        heads = {name: {} for name in whole["providers"]}
        for name, providers in {
            "groq": {name: one for name, one in whole["providers"].items() if name != "groq"},
            "xai": whole["providers"] | {"xai": {"models": []}},
            "openai": heads,
        }.items():
            file = tmp_path / "part.json"
            file.write_text(json.dumps({"day": "2026-11-20", "providers": providers}), "utf-8")
            result = CliRunner().invoke(app, ["limits", "update", str(file)])
            assert result.exit_code == 2, result.output
            assert f"it is no whole data set: {name} had " in result.stderr
            assert "rows of limits, and has none: nothing is installed. Additions belong into " in result.stderr
            assert facts.USERS in result.stderr
        assert (facts.day(), list(folder.iterdir())) == ("2026-11-01", [])

    def test_a_broken_installed_file_is_named_with_the_way_out(self, folder):
        (folder / facts.INSTALLED).write_text("{", "utf-8")
        facts.forget()
        for words in (["limits"], ["config"], ["doctor"]):
            said = CliRunner().invoke(app, words).output
            assert f"{folder / facts.INSTALLED}: " in said
            assert "`paceline limits update --undo` takes this file away" in said
        assert CliRunner().invoke(app, ["limits", "update", "--undo"]).exit_code == 0
        assert CliRunner().invoke(app, ["limits", "openai"]).exit_code == 0

    def test_an_older_one_replaces_no_newer_one(self, folder, tmp_path, monkeypatch):
        data_set.install(str(self.of(tmp_path, "2026-11-20")))
        for day in ("2026-11-20", "2026-10-31"):
            with pytest.raises(SettingsError, match=f"it is of {day}, and the data set in use is of 2026-11-20"):
                data_set.install(str(self.of(tmp_path, day)))
        with pytest.raises(SettingsError, match="9999-01-01 has not come yet"):
            data_set.install(str(self.of(tmp_path, "9999-01-01")))
        monkeypatch.setattr(facts, "shipped_day", lambda: "2026-11-28")  # a newer version of paceline
        facts.forget()
        assert facts.day() == "2026-11-28"
        assert "older than the one of this version, and not used" in facts.standing(date(2026, 11, 28))["remark"]

    def test_it_moves_no_host_and_no_key(self, folder, tmp_path):
        before = PROVIDERS["openai"]
        data_set.install(str(self.of(tmp_path, "2026-11-20", EVIL)))
        assert PROVIDERS["openai"] == before
        assert provider_for_host("eu.api.openai.com").name == "openai"
        assert (host_root(provider_named("evil")), provider_named("evil").key_env) == (None, "EVIL_API_KEY")
        assert PROVIDERS["evil"].makes == ""

    def test_a_url_needs_its_sha256(self, folder, tmp_path):
        body = self.of(tmp_path, "2026-11-20").read_bytes()
        right = hashlib.sha256(body).hexdigest()
        with OddServer(lambda *_: (200, {}, body)) as server:
            url = f"{server.base_url}/facts.toml"
            with pytest.raises(SettingsError, match="give its --sha256"):
                data_set.install(url)
            with pytest.raises(SettingsError, match=f"its SHA-256 is {right}, and not 00: nothing is installed"):
                data_set.install(url, "00")
            assert facts.day() == "2026-11-01"
            data_set.install(url, right.upper())
        assert facts.day() == "2026-11-20"
        with pytest.raises(SettingsError, match="use https"):
            data_set.install("http://acme.example/facts.toml", right)

    @pytest.mark.sample(3)
    @pytest.mark.parametrize("text", ["x = 1", ROW.replace("tier_2", "tier_9"), "[[", "{}", '{"day": 1}'])
    def test_a_broken_one_changes_nothing(self, folder, tmp_path, text):
        data_set.install(str(self.of(tmp_path, "2026-11-20")))
        file = tmp_path / "broken.toml"
        file.write_text(text, "utf-8")
        with pytest.raises(SettingsError, match=r"broken.toml"):
            data_set.install(str(file))
        assert (facts.day(), [one.name for one in folder.iterdir()]) == ("2026-11-20", [facts.INSTALLED])


@pytest.mark.parametrize(
    ("make", "said"), [("touch", "it is a file: name the folder"), ("exists", "there is no such folder: create it")]
)
def test_a_folder_that_is_none_is_an_error(folder, monkeypatch, make, said):
    named = folder / "facts.toml"
    getattr(named, make)()
    monkeypatch.setenv("PACELINE_FACTS", str(named))
    facts.forget()
    for words in (["limits"], ["config"]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2, result.output
        assert f"PACELINE_FACTS: {named}: {said}" in result.stderr
    with pytest.raises(SettingsError, match="PACELINE_FACTS"):
        lookup("openai", "gpt-5", None)


def test_the_day_is_named_and_an_old_one_once(folder):
    old = facts.standing(date(2027, 3, 1))
    assert (old["day"], old["age_days"], old["places"]) == (facts.day(), 93, [])
    assert old["remark"].startswith("the facts about providers are 93 days old")
    assert facts.standing(date(2027, 2, 26))["remark"] is None  # 90 days
    said = CliRunner().invoke(app, ["--version", "--verbose"]).output.splitlines()
    assert said[1] == f"facts about providers: of {facts.day()}"
    assert Limiter({"jobs": "1 requests/s"}).status()["facts"]["day"] == facts.day()
    assert f"of {facts.day()}" in CliRunner().invoke(app, ["doctor"]).output
