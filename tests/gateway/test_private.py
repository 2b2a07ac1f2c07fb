"""The gateway of one program: which servers its environment names, and what the program gets in their place."""

import pytest
from gateway_helpers import chat, stub
from test_gateway import Odd

from paceline.config import Config
from paceline.core.results import QuotaError
from paceline.gateway.private import KEY, NAMES, find_way, private_gateway
from paceline.gateway.server import ProcessSettings
from paceline.gateway.upstreams import Upstreams


def way(environ, **given):
    return find_way(Config.load(environ={}, given=given), environ)


def servers(found):
    """The address and the key of each server."""
    upstreams = Upstreams(found.servers, found.real)
    return {name: (upstreams[name].root, upstreams[name].key) for name in upstreams}


def test_a_provider_with_a_key_is_behind_the_gateway_and_its_key_stays_there():
    found = way({"OPENAI_API_KEY": "sk-real", "HOME": "/home/x"})
    assert servers(found) == {"openai": ("https://api.openai.com", "sk-real")}
    assert found.environ("http://127.0.0.1:7", "pk-1") == {
        "PACELINE_GATEWAY": "http://127.0.0.1:7",
        "PACELINE_KEY": "pk-1",
        "OPENAI_API_KEY": "pk-1",
        "OPENAI_BASE_URL": "http://127.0.0.1:7/openai/v1",
        "OPENAI_API_BASE": "http://127.0.0.1:7/openai/v1",
        "OPENAI_API_BASE_URL": "http://127.0.0.1:7/openai/v1",
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name != "azure"])
def test_every_key_of_a_provider_is_replaced(name):
    real = {variable: f"real-{variable}" for variable in NAMES[name].keys}
    changed = way(real).environ("http://gateway", "pk-1")
    assert {changed[variable] for variable in real} == {"pk-1"}
    assert {variable for variable, value in changed.items() if value.startswith("http://gateway/")} == set(
        NAMES[name].addresses
    )


@pytest.mark.parametrize(
    ("variable", "address", "root", "paths"),
    [
        ("OPENAI_BASE_URL", "https://mine.example/v1/", "https://mine.example", {"OPENAI_API_BASE": "/openai/v1"}),
        ("OPENAI_API_BASE", "https://mine.example/api/v4", "https://mine.example", {"OPENAI_BASE_URL": "/openai/api/v4"}),
        ("OPENAI_BASE_URL", "https://openrouter.ai/api/v1", "https://openrouter.ai", {"OPENAI_BASE_URL": "/openai/api/v1"}),
        ("ANTHROPIC_BASE_URL", "http://10.0.0.1:4000/a", "http://10.0.0.1:4000", {"ANTHROPIC_BASE_URL": "/anthropic/a"}),
        (
            "GEMINI_API_BASE",
            "https://mine.example/x/v1beta",
            "https://mine.example",
            {"GEMINI_API_BASE": "/gemini/x/v1beta", "GOOGLE_GEMINI_BASE_URL": "/gemini/x"},
        ),
        ("AZURE_OPENAI_ENDPOINT", "https://m.openai.azure.com/", "https://m.openai.azure.com", {"AZURE_OPENAI_ENDPOINT": "/azure"}),
    ],
)  # fmt: skip
def test_an_address_of_the_user_is_where_requests_go_on(variable, address, root, paths):
    name = next(name for name, names in NAMES.items() if variable in names.addresses)
    found = way({variable: address, NAMES[name].keys[0]: "sk-real"})
    assert servers(found) == {name: (root, "sk-real")}
    assert found.paths.items() >= paths.items()


@pytest.mark.parametrize(
    ("address", "given", "provider"),
    [
        ("https://openrouter.ai/api/v1", {"provider": "openai"}, "openrouter"),
        ("http://10.0.0.1/v1", {"provider": "vllm"}, "vllm"),
        ("http://10.0.0.1/v1", {}, "openai"),
    ],
)
def test_the_host_of_an_address_tells_the_provider_and_else_the_settings_do(address, given, provider):
    found = way({"OPENAI_BASE_URL": address, "OPENAI_API_KEY": "k"}, **given)
    assert Upstreams(found.servers, found.real)["openai"].provider.name == provider


def test_a_server_on_this_machine_needs_no_key_and_another_one_does():
    found = way({"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"})
    assert servers(found) == {"openai": ("http://127.0.0.1:8000", "none")}
    assert found.keys == ["OPENAI_API_KEY"]
    assert not way({"OPENAI_BASE_URL": "https://mine.example/v1"}).paths
    assert not way({"AZURE_OPENAI_API_KEY": "its address is unknown"}).paths


def test_a_malformed_address_is_named_without_its_value():
    with pytest.raises(QuotaError, match="invalid OPENAI_BASE_URL") as raised:
        way({"OPENAI_BASE_URL": "https://user:secret@host/v1", "OPENAI_API_KEY": "k"})
    assert "secret" not in str(raised.value)


def test_servers_of_the_settings_come_before_those_of_the_environment():
    tables = {"local": {"provider": "vllm", "base_url": "http://127.0.0.1:8000"}}
    found = way({"OPENAI_API_KEY": "sk-real", "ANTHROPIC_API_KEY": "sk-ant"}, upstreams=tables)
    assert found.paths["OPENAI_BASE_URL"] == "/local/v1"
    assert found.paths["ANTHROPIC_BASE_URL"] == "/anthropic"
    assert servers(found) == {
        "local": ("http://127.0.0.1:8000", "none"),
        "anthropic": ("https://api.anthropic.com", "sk-ant"),
    }


def test_a_key_that_the_settings_name_stays_with_the_gateway():
    tables = {"anthropic": {"base_url": "https://mine.example", "key_env": "MY_KEY"}}
    found = way({"MY_KEY": "sk-real"}, upstreams=tables)
    changed = found.environ("http://gateway", "pk-1")
    assert (changed["MY_KEY"], changed["ANTHROPIC_API_KEY"]) == ("pk-1", "pk-1")
    assert servers(found) == {"anthropic": ("https://mine.example", "sk-real")}


def test_a_provider_whose_address_no_variable_names_is_at_the_gateway_and_its_key_with_the_program():
    found = way({"MISTRAL_API_KEY": "m", "OPENAI_API_KEY": "sk-real"})
    assert servers(found)["mistral"] == ("https://api.mistral.ai", "m")
    assert "MISTRAL_API_KEY" not in found.keys


def test_a_proxy_is_not_asked_for_the_gateway():
    changed = way({"OPENAI_API_KEY": "k", "HTTPS_PROXY": "http://proxy", "NO_PROXY": "a.example"}).environ(
        "http://g", "pk"
    )
    assert (changed["NO_PROXY"], changed["no_proxy"]) == ("a.example,127.0.0.1",) * 2
    assert "NO_PROXY" not in way({"OPENAI_API_KEY": "k"}).environ("http://g", "pk")


def test_claude_code_waits_a_day_unless_the_user_says_otherwise():
    changed = way({"ANTHROPIC_API_KEY": "k", "API_TIMEOUT_MS": "5"}).environ("http://g", "pk")
    assert "API_TIMEOUT_MS" not in changed
    assert changed["CLAUDE_STREAM_IDLE_TIMEOUT_MS"] == changed["CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS"] == "86400000"


@pytest.mark.parametrize(
    ("variable", "header"),
    [("ANTHROPIC_AUTH_TOKEN", ("authorization", "Bearer t")), ("ANTHROPIC_API_KEY", ("x-api-key", "t"))],
)
def test_a_key_of_anthropic_is_sent_in_the_header_of_its_variable(variable, header):
    found = way({"ANTHROPIC_BASE_URL": "https://api.deepseek.com/anthropic", variable: "t"})
    upstream = Upstreams(found.servers, found.real)["anthropic"]
    assert upstream.credentials("/anthropic/v1/messages", upstream.key) == tuple(one.encode() for one in header)


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000/v1", "https://mine.example/v1"])
def test_a_key_in_a_file_is_a_key(tmp_path, address):
    (tmp_path / "key").write_text("sk-file")
    found = way({"OPENAI_BASE_URL": address, "OPENAI_API_KEY_FILE": str(tmp_path / "key")})
    assert servers(found) == {"openai": (address.removesuffix("/v1"), "sk-file")}


def test_claude_code_gets_the_key_for_which_it_asks_nothing():
    found = find_way(Config.load(environ={}), {"ANTHROPIC_API_KEY": "sk-ant"}, "claude")
    changed = found.environ("http://g", "pk")
    assert (changed["ANTHROPIC_AUTH_TOKEN"], changed["ANTHROPIC_API_KEY"]) == ("pk", "")
    assert servers(found) == {"anthropic": ("https://api.anthropic.com", "sk-ant")}


@pytest.mark.parametrize("path", ["/v1/messages", "/messages"])
def test_vercels_paths_of_anthropic_are_found(path):
    found = way({"ANTHROPIC_API_KEY": "k"})
    assert Upstreams(found.servers, found.real).find(f"/anthropic{path}")[1] == "/v1/messages"


def test_the_key_of_the_gateway_has_a_name_that_is_no_setting():
    Config.load(environ={"PACELINE_GATEWAY": "http://127.0.0.1:7", KEY: "pk-1"})


def test_a_limiter_without_an_address_for_its_provider_is_no_error(tmp_path):
    environ = {"OPENAI_API_KEY": "k"}
    config = Config.load(environ={}, given={"provider": "vllm"})
    found = find_way(config, environ)
    settings = ProcessSettings(config=config, keys=tmp_path / "keys", host="127.0.0.1", servers=found.servers)
    assert list(settings.check(found.real)) == ["openai"]


def test_a_program_names_the_account_of_its_own_key(client, tmp_path):
    with stub(odd := Odd()) as url:
        found = way({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{url}/v1"})
        settings = ProcessSettings(
            config=Config.load(environ={}, given={}), keys=tmp_path / "private", host="127.0.0.1"
        )
        with private_gateway(settings, found, lambda _: None) as environ:
            headers = {
                "authorization": f"Bearer {environ['OPENAI_API_KEY']}",
                "openai-organization": "mine",
                "cookie": "a=1",
            }
            client.post(f"{environ['OPENAI_BASE_URL']}/chat/completions", json=chat(), headers=headers)
    sent = odd.seen[0][3]
    assert (sent[b"authorization"], sent[b"openai-organization"]) == (b"Bearer k", b"mine")
    assert b"cookie" not in sent


def test_a_login_goes_to_a_server_on_this_machine_behind_a_key_in_the_path(client, tmp_path):
    with stub(odd := Odd()) as url:
        found = way({"ANTHROPIC_BASE_URL": url})
        settings = ProcessSettings(
            config=Config.load(environ={}, given={}), keys=tmp_path / "private", host="127.0.0.1"
        )
        with private_gateway(settings, found, lambda _: None) as environ:
            for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
                assert name not in environ  # a program sends it in place of its login
            login, paths = {"authorization": "Bearer sk-ant-oat01-mine"}, ["/v1/messages", "/api/oauth/usage"]
            for path in paths:
                client.post(environ["ANTHROPIC_BASE_URL"] + path, json=chat(), headers=login)
            for key, status in (("/pk-wrong", 404), ("", 401)):
                answer = client.post(
                    f"{environ['PACELINE_GATEWAY']}{key}/anthropic{paths[0]}", json=chat(), headers=login
                )
                assert answer.status_code == status
    seen = [(path.decode(), headers[b"authorization"].decode()) for _, path, _, headers, _ in odd.seen]
    assert seen == [(path, login["authorization"]) for path in paths]


def test_a_program_sees_no_quotas_of_the_provider_which_it_need_not_keep(emulator, client, serve, tmp_path):
    found = way({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{emulator.base_url}/v1"})
    settings = ProcessSettings(config=Config.load(environ={}, given={}), keys=tmp_path / "private", host="127.0.0.1")

    def names(address, key):
        answer = client.post(f"{address}/chat/completions", json=chat(), headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 200
        return {name for name in answer.headers if "ratelimit" in name}

    with private_gateway(settings, found, lambda _: None) as environ:
        assert names(environ["OPENAI_BASE_URL"], environ["OPENAI_API_KEY"]) == set()
    assert "x-ratelimit-remaining-requests" in names(f"{serve(emulator.base_url).url}/openai/v1", "any")
