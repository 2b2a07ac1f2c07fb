"""Where a run sends its requests, and whose limits hold there."""

import pytest
from batch_helpers import GOOD, GOOD_MESSAGE, Said, chat, message, run_job, write_lines

from odd_server import JSON, OddServer
from paceline.batch.address import provider_at
from paceline.config.servers import address_of
from paceline.core.results import SettingsError
from paceline.pacing.limits import Limits
from paceline.pacing.settings import PacingSettings
from paceline.providers.registry import provider_named

KEYS = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}
OWN = "500 requests/min, 500k tokens/min"


def answer(_, body):
    return 200, JSON, GOOD_MESSAGE if body["model"].startswith("claude") else GOOD


def run(tmp_path, lines, environ, **given):
    source, said = write_lines(tmp_path / "in.jsonl", lines), Said()
    given = {"base_url": None, "limits": {}} | given
    code, report = run_job(source, view=said, environ=KEYS | environ, **given)
    return code, report, said.lines


def pools_of(lines):
    return [line.partition(": ")[0] for line in lines if "requests" in line and "/gpt-5: " in line]


def test_the_variable_of_the_sdk_is_honoured_and_named(tmp_path):
    with OddServer(answer) as server, OddServer(answer) as other:
        environ = {"OPENAI_BASE_URL": f"{server.base_url}/a-secret/v1", "ANTHROPIC_BASE_URL": other.base_url}
        code, report, said = run(tmp_path, [chat("a"), message("b")], environ)
        assert (code, report["ok"]) == (0, 2)
        assert [len(one.asked) for one in (server, other)] == [1, 1]
    assert f"requests of openai go to {server.base_url} (OPENAI_BASE_URL)" in said
    assert f"requests of anthropic go to {other.base_url} (ANTHROPIC_BASE_URL)" in said
    assert "a-secret" not in "\n".join(said)


@pytest.mark.parametrize(("by", "sent"), [("variable", "gpt-5"), ("option", "openai/gpt-5")])
def test_a_row_may_name_its_provider_where_nothing_else_does(tmp_path, by, sent):
    with OddServer(answer) as server, OddServer(answer) as other:
        environ = {"OPENAI_BASE_URL": server.base_url, "GROQ_BASE_URL": other.base_url, "GROQ_API_KEY": "k"}
        given = {"base_url": server.base_url} if by == "option" else {}
        lines = [chat("a", model="openai/gpt-5"), chat("b", model="groq/openai/gpt-oss-120b")]
        code, report, _ = run(tmp_path, lines, environ, **given)
        assert (code, report["ok"]) == (0, 2)
        assert sent in [asked["model"] for asked in server.asked]  # with --base-url both go there, in any order
        assert [body["model"] for body in other.asked] == (["openai/gpt-oss-120b"] if by == "variable" else [])


def test_the_option_holds_before_the_variable(tmp_path):
    with OddServer(answer) as server:
        environ = {"OPENAI_BASE_URL": "http://127.0.0.1:9"}
        code, _, said = run(tmp_path, [chat("a")], environ, base_url=server.base_url)
    assert code == 0
    assert f"requests of openai go to {server.base_url}" in said


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("by", ["option", "variable", "member"])
def test_a_version_at_the_end_of_an_address_is_kept_for_lines_without_one(tmp_path, paceline_emulator, by, path):
    world = paceline_emulator(limits={"*": OWN}, latency_s=0.0)
    address, environ = f"{world.base_url}/v1/", {}
    given = {"base_url": address}
    if by == "variable":
        given, environ = {}, {"OPENAI_BASE_URL": address}
    elif by == "member":
        member = {"provider": "openai", "base_url": address}
        given = {"upstreams": {"eu": member}, "groups": {"all": {"members": ["eu"]}}, "group": "all"}
    code, report, _ = run(tmp_path, [chat("a") | {"url": path}], environ, **given)
    assert (code, report["ok"]) == (0, 1)
    assert world.tally()["admitted"] == 1


def test_a_malformed_variable_is_named_and_not_quoted(tmp_path):
    with pytest.raises(SettingsError, match="invalid OPENAI_BASE_URL: it must be an address like") as raised:
        run(tmp_path, [chat("a")], {"OPENAI_BASE_URL": "https://user:a-secret@host/v1"})
    assert "a-secret" not in str(raised.value)


def test_published_limits_do_not_hold_at_an_unknown_host_which_is_said_once(tmp_path):
    with OddServer(answer) as server:
        code, _, said = run(tmp_path, [chat(f"{number}") for number in range(60)], {}, base_url=server.base_url)
    assert code == 0
    [warning] = [line for line in said if "measured" in line]
    assert warning.startswith("warning: no published limits for 127.0.0.1's model 'gpt-5': the rate is measured until")
    assert "under these limits" not in "\n".join(said)  # there are none


@pytest.mark.parametrize(
    "given", [{"limits": {"openai/gpt-5": OWN}}, {"limits": {"gpt-5": OWN}}, {"provider": "openai"}, {"tier": "tier_1"}]
)
def test_those_that_the_user_names_do(tmp_path, given):
    with OddServer(answer) as server:
        code, _, said = run(tmp_path, [chat("a")], {}, base_url=server.base_url, **given)
    assert code == 0
    assert pools_of(said) == ["openai/gpt-5"]


@pytest.mark.parametrize(
    ("host", "name"), [("api.openai.com", "openai"), ("api.groq.com", "groq"), ("gateway.example", "gateway.example")]
)
def test_the_host_tells_whose_they_are(host, name):
    root = f"https://{host}/openai"
    assert provider_at(Limits(PacingSettings()), provider_named("openai"), root, "m").name == name


def test_gemini_has_a_server_of_its_own():
    address = address_of(provider_named("gemini"), None, {"GEMINI_API_KEY": "key"})
    assert address.root == "https://generativelanguage.googleapis.com"
