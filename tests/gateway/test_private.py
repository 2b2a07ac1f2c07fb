"""The gateway of one program: which servers its environment names, and what the program gets in their place."""

import logging
import re
import tomllib
from contextlib import closing
from dataclasses import replace

import pytest
from gateway_helpers import bearer, chat, stub
from test_gateway import Odd

from paceline.config import Config
from paceline.core.results import SettingsError
from paceline.gateway.private import KEY, LOGINS, NAMES, PATIENCE, find_login, find_way, private_gateway
from paceline.gateway.server import ProcessSettings
from paceline.gateway.upstreams import Upstreams


def way(environ, **given):
    return find_way(Config.load(environ={}, given=given), environ)


def servers(found):
    """The address and the key of each server."""
    upstreams = Upstreams(found.servers, found.real).servers
    return {name: (upstreams[name].root, upstreams[name].key) for name in upstreams}


@pytest.fixture
def settings(tmp_path):
    """The settings of the gateway of a program."""
    return ProcessSettings(config=Config.load(environ={}), keys=tmp_path / "private", host="127.0.0.1")


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
    led = {variable for variable, value in changed.items() if value.startswith("http://gateway/")}
    assert led == set(NAMES[name].addresses)


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
    assert Upstreams(found.servers, found.real).servers["openai"].provider.name == provider


def test_a_server_on_this_machine_needs_no_key_and_another_one_does():
    found = way({"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"})
    assert servers(found) == {"openai": ("http://127.0.0.1:8000", "")}
    assert (found.keys, found.stated) == ([], {"OPENAI_API_KEY": "none"})
    assert not way({"OPENAI_BASE_URL": "https://mine.example/v1"}).paths
    assert not way({"AZURE_OPENAI_API_KEY": "its address is unknown"}).paths


def test_a_malformed_address_is_named_without_its_value():
    with pytest.raises(SettingsError, match="invalid OPENAI_BASE_URL") as raised:
        way({"OPENAI_BASE_URL": "https://user:secret@host/v1", "OPENAI_API_KEY": "k"})
    assert "secret" not in str(raised.value)


def test_servers_of_the_settings_come_before_those_of_the_environment():
    tables = {"local": {"provider": "vllm", "base_url": "http://127.0.0.1:8000"}}
    found = way({"OPENAI_API_KEY": "sk-real", "ANTHROPIC_API_KEY": "sk-ant"}, upstreams=tables)
    assert (found.paths["OPENAI_BASE_URL"], found.paths["ANTHROPIC_BASE_URL"]) == ("/local/v1", "/anthropic")
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
    behind = {"OPENAI_API_KEY": "k", "HTTPS_PROXY": "http://proxy", "NO_PROXY": "a.example"}
    changed = way(behind).environ("http://g", "pk")
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
    upstream = Upstreams(found.servers, found.real).servers["anthropic"]
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
    assert list(settings.check(found.real).servers) == ["openai"]


def test_a_program_names_the_account_of_its_own_key(client, settings):
    with stub(odd := Odd()) as url:
        found = way({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{url}/v1"})
        with private_gateway(settings, found, print) as environ, closing(client):
            headers = bearer(environ["OPENAI_API_KEY"], openai_organization="mine", cookie="a=1")
            client.post(f"{environ['OPENAI_BASE_URL']}/chat/completions", json=chat(), headers=headers)
    sent = odd.seen[0][3]
    assert (sent[b"authorization"], sent[b"openai-organization"]) == (b"Bearer k", b"mine")
    assert b"cookie" not in sent


def test_a_program_without_a_key_has_no_account_of_its_own(client, settings):
    told = []
    with stub(Odd()) as url:
        found = way({"OPENAI_BASE_URL": url + "/v1"})
        with private_gateway(settings, found, told.append) as environ, closing(client):
            for key in ("sk-of-the-program", environ["OPENAI_API_KEY"]):
                path, header = f"{environ['OPENAI_BASE_URL']}/chat/completions", {"authorization": f"Bearer {key}"}
                assert client.post(path, json=chat(), headers=header).status_code == 200
    assert {event.pool.partition("/")[0] for event in told} == {"openai"}  # and no openai@...


@pytest.mark.parametrize(
    ("name", "variable", "path"),
    [
        ("anthropic", "ANTHROPIC_BASE_URL", ""),
        ("openai", "OPENAI_BASE_URL", "/v1"),
        ("gemini", "GOOGLE_GEMINI_BASE_URL", ""),
    ],
)
def test_a_login_goes_to_a_server_on_this_machine_behind_a_key_in_the_path(name, variable, path):
    found = way({variable: "http://127.0.0.1:8000" + path})
    assert servers(found) == {name: ("http://127.0.0.1:8000", "")}
    changed = found.environ("http://g", "pk-1")
    assert changed[variable] == f"http://g/pk-1/{name}{path}"
    # Claude Code would send it in place of its login.
    assert {changed.get(key) for key in NAMES[name].keys} == ({None} if name == "anthropic" else {None, "none"})


def login(environ, program="claude", **given):
    return find_login(Config.load(environ={}, given=given), environ, program)


def test_a_login_goes_to_its_provider_and_no_key_is_with_it():
    given = {
        "upstreams": {"openai": {}, "both": {"provider": "openai"}},
        "groups": {"g": {"members": ["openai", "both"]}},
    }
    found = login({"OPENAI_API_KEY": "k", "CLAUDE_CODE_OAUTH_TOKEN": "t", "API_TIMEOUT_MS": "9"}, **given)
    assert servers(found) == {"anthropic": ("https://api.anthropic.com", "")}
    changed = found.environ("http://127.0.0.1:7", "pk-1")
    assert changed.pop("ANTHROPIC_BASE_URL") == "http://127.0.0.1:7/pk-1/anthropic"
    assert changed.keys() == {"PACELINE_GATEWAY", KEY, *PATIENCE} - {"API_TIMEOUT_MS"}
    assert found.options(changed) == ()
    assert LOGINS["claude"].terms in found.told[0]


def test_what_is_led_is_told_of_a_program_that_may_start_others():
    assert login({}, "claude").told[0].startswith("claude's own login goes to api.anthropic.com as claude sends it; ")
    which, _, led = login({}, "sh").told[0].partition(", and ")
    assert which == "programs that read ANTHROPIC_BASE_URL are paced"
    assert led.startswith("their own login goes to api.anthropic.com as they send it; ")


def test_codex_gets_its_address_by_options():
    found = login({"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}, "codex")
    assert servers(found) == {"chatgpt": ("https://chatgpt.com", "")}
    changed = found.environ("http://127.0.0.1:7", "pk-1")
    assert changed.keys() == {"PACELINE_GATEWAY", KEY}
    provider, table = found.options(changed)[1::2]
    assert provider == "model_provider=paced"
    read = tomllib.loads(table)["model_providers"]["paced"]
    assert read["base_url"] == "http://127.0.0.1:7/pk-1/chatgpt/backend-api/codex"
    assert (read["requires_openai_auth"], read["stream_idle_timeout_ms"]) == (True, 86_400_000)
    assert LOGINS["codex"].terms in found.told[0]


@pytest.mark.parametrize(
    ("environ", "program", "words"),
    [
        (
            {"ANTHROPIC_API_KEY": "k"},
            "claude",
            "ANTHROPIC_API_KEY is set, and claude sends that key instead of its login",
        ),
        ({"ANTHROPIC_AUTH_TOKEN_FILE": "k"}, "sh", "ANTHROPIC_AUTH_TOKEN_FILE is set"),
        ({"CODEX_API_KEY": "k"}, "codex", "CODEX_API_KEY is set, and codex sends that key"),
        (
            {"ANTHROPIC_BASE_URL": "https://mine.example/a"},
            "claude",
            "ANTHROPIC_BASE_URL names mine.example, and a login goes only to",
        ),
        ({"ANTHROPIC_BASE_URL": "no address"}, "claude", "invalid ANTHROPIC_BASE_URL"),
    ],
)
def test_where_a_login_cannot_pass(environ, program, words):
    with pytest.raises(SettingsError, match=re.escape(words)):
        login(environ, program)


def test_a_login_goes_to_no_server_of_others_by_the_settings():
    with pytest.raises(SettingsError, match=r"upstreams\.chatgpt\.base_url names mine\.example"):
        login({}, "codex", upstreams={"chatgpt": {"base_url": "https://mine.example"}})
    found = login({"ANTHROPIC_BASE_URL": "http://127.0.0.1:4000/router/"})
    assert servers(found) == {"anthropic": ("http://127.0.0.1:4000", "")}
    assert found.paths == {"ANTHROPIC_BASE_URL": "/anthropic/router"}


def test_a_program_that_has_a_login_for_a_server_on_this_machine_is_told_so():
    (line,) = way({"ANTHROPIC_BASE_URL": "http://127.0.0.1:4000"}).told
    assert line.startswith("no key is set, so the program's own login, if it has one, goes to http://127.0.0.1:4000")
    assert line.endswith("`--login` paces a plan")
    assert way({"ANTHROPIC_BASE_URL": "http://127.0.0.1:4000", "ANTHROPIC_API_KEY": "k"}).told == ()
    assert way({"OPENAI_BASE_URL": "http://127.0.0.1:4000/v1"}).told == ()


@pytest.mark.parametrize("program", LOGINS)
def test_what_a_login_sends_passes_byte_for_byte_and_the_key_in_its_path_is_nowhere(
    client, settings, tmp_path, program, caplog
):
    caplog.set_level(logging.DEBUG)
    log = tmp_path / "access.log"
    with stub(odd := Odd()) as url:
        found = login({}, program, upstreams={LOGINS[program].provider: {"base_url": url}})
        with private_gateway(replace(settings, access_log=log), found, print) as environ, closing(client):
            base = (
                environ.get("ANTHROPIC_BASE_URL")
                or tomllib.loads(found.options(environ)[3])["model_providers"]["paced"]["base_url"]
            )
            key, place = environ[KEY], base.partition(environ[KEY])[2]
            own = {"authorization": "Bearer sk-ant-oat01-mine", "chatgpt-account-id": "acc", "cookie": "a=1"}
            asked = [
                ("POST", "/v1/messages?beta=true"),
                ("POST", "/responses"),
                ("GET", "/api/oauth/usage"),
                ("POST", "/v1/messages/count_tokens"),
            ]
            for method, path in asked:
                assert client.request(method, base + path, json=chat(), headers=own).status_code == 200
            for wrong in ("/pk-wrong", f"/{key[:-1]}", f"/{key}x", "/pk-", ""):
                other = f"{environ['PACELINE_GATEWAY']}{wrong}{place}/v1/messages"
                assert client.post(other, json=chat(), headers=own).status_code == (404 if wrong else 401)
    root = place.partition(LOGINS[program].provider)[2]
    expected = [(method, (root + path).partition("?")[0]) for method, path in asked]
    assert [(method, path.decode()) for method, path, *_ in odd.seen] == expected
    for _, _, _, headers, _ in odd.seen:
        assert {name: headers[name.encode()].decode() for name in own} == own
        assert key not in str(headers)
    logged = [one.getMessage() for one in caplog.records if one.name.startswith(("paceline", "uvicorn"))]
    written = "".join([log.read_text(), *logged])
    assert '"path": ' in written
    assert not any(secret in written for secret in (key, "sk-ant-oat01-mine"))


def test_a_program_sees_no_quotas_of_the_provider_which_it_need_not_keep(emulator, client, serve, settings):
    found = way({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{emulator.base_url}/v1"})

    def names(address, key):
        answer = client.post(f"{address}/chat/completions", json=chat(), headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 200
        return {name for name in answer.headers if "ratelimit" in name}

    assert "x-ratelimit-remaining-requests" in names(f"{serve(emulator.base_url).url}/openai/v1", "any")
    with private_gateway(settings, found, print) as environ, closing(client):
        assert names(environ["OPENAI_BASE_URL"], environ["OPENAI_API_KEY"]) == set()
