"""``paceline check --admin`` before servers written from the documentation of the administration APIs."""

import json
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import date

import pytest
from click.testing import CliRunner

import paceline
from odd_server import OddServer
from paceline import facts
from paceline.cli.app import app
from paceline.cli.check import command
from paceline.cli.limits import command as limits
from paceline.core.results import SourceKind
from paceline.providers.tables import life_of, lookup

ADMIN, USUAL = "sk-ant-admin01-secret", "sk-ant-api03-secret"


def group(models, rpm, itpm, otpm, kind="model_group", **more):
    """An item as platform.claude.com/docs/en/manage-claude/rate-limits-api has it."""
    values = {"requests_per_minute": rpm, "input_tokens_per_minute": itpm, "output_tokens_per_minute": otpm}
    stated = [{"type": name, "value": value, **more} for name, value in values.items() if value is not None]
    return {"type": "rate_limit", "group_type": kind, "models": models, "limits": stated}


LIMITS = "/v1/organizations/rate_limits"
GROUPS = [
    group([f"claude-test-{n}", f"claude-test-{n}-20261001"], 1_000 + n, 100_000 + n, 9_000 + n) for n in range(18)
]
REST = [
    {"type": "rate_limit", "group_type": "batch", "models": None, "limits": [
        {"type": "enqueued_batch_requests", "value": 500_000}, {"type": "requests_per_minute", "value": 4_000}]},
    group(None, 8_000, None, None, kind="token_count"),
    {"type": "rate_limit", "group_type": "web_search", "models": None, "limits": [{"type": "tool_uses_per_second", "value": 50}]},
]  # fmt: skip
ANTHROPIC = {
    "/v1/organizations/rate_limits": {"data": GROUPS, "next_page": "two"},
    "/v1/organizations/rate_limits?page=two": {"data": REST, "next_page": None},
    "/v1/organizations/workspaces/wrkspc_1/rate_limits": {
        "data": [group(["claude-test-3", "claude-test-3-20261001"], 7, None, None, org_limit=1_003)], "next_page": None,
    },
}  # fmt: skip
OPENAI = {
    "/v1/models": {"object": "list", "data": [
        {"id": "gpt-old", "object": "model", "created": 1, "owned_by": "openai", "shutdown_date": "2026-12-11"},
        {"id": "gpt-old-2025-08-07", "object": "model", "created": 1, "owned_by": "openai", "shutdown_date": "2026-12-11"},
        {"id": "ft:gpt-old:acme", "object": "model", "created": 1, "owned_by": "acme", "shutdown_date": "2027-01-14"},
        {"id": "gpt-6-luna", "object": "model", "created": 1, "owned_by": "openai", "shutdown_date": None},
        {"id": "gpt-6-astra", "object": "model", "created": 1, "owned_by": "openai"},
    ]},
    "/v1/organization/projects/proj_1/rate_limits": {"object": "list", "has_more": True, "last_id": "rl-1", "data": [
        {"object": "project.rate_limit", "id": "rl-1", "model": "gpt-6-luna", "max_requests_per_1_minute": 321,
         "max_tokens_per_1_minute": 654_000, "max_images_per_1_minute": 0},
    ]},
    "/v1/organization/projects/proj_1/rate_limits?after=rl-1": {"object": "list", "has_more": False, "data": [
        {"object": "project.rate_limit", "id": "rl-2", "model": "gpt-6-astra", "max_requests_per_1_minute": 5,
         "max_tokens_per_1_minute": 10**16, "max_requests_per_1_day": 90},
    ]},
}  # fmt: skip


@pytest.fixture
def provider():
    """Starts a server that answers GETs of its pages to one key alone."""

    def start(pages, key):
        seen = []

        def answer(number, _):
            path, headers = server.paths[number], server.headers[number]
            sent = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
            seen.append((server.methods[number], path, sent))
            page = pages.get(path)
            status = 401 if sent not in key else 404 if page is None else page if isinstance(page, int) else 200
            return status, {}, page or {"error": {"message": f"key {sent}"}}

        server = running.enter_context(OddServer(answer))
        return server.base_url, seen

    with ExitStack() as running:
        yield start


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """The folder of the user's facts, and the keys."""
    for name in ("ANTHROPIC_ADMIN_KEY", "ANTHROPIC_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PACELINE_FACTS", str(tmp_path / "facts"))
    (tmp_path / "facts").mkdir()
    facts.forget()
    yield tmp_path / "facts"
    monkeypatch.undo()
    facts.forget()


@pytest.fixture
def keys(monkeypatch):
    """Set both keys of Anthropic and OpenAI's usual one."""
    for name, key in {"ANTHROPIC_ADMIN_KEY": ADMIN, "ANTHROPIC_API_KEY": USUAL, "OPENAI_API_KEY": "sk-usual"}.items():
        monkeypatch.setenv(name, key)


def run(*words, answer=None, of=command):
    return CliRunner().invoke(of, [*map(str, words)], input=answer)


def admin(url, *words, of="anthropic", answer=None):
    """Ask a provider's API for administrators at an address; without ``answer`` nothing is asked back."""
    consent = () if answer is not None else ("--yes",)
    return run("--admin", "--provider", of, "--base-url", url, *words, *consent, answer=answer)


def stated(name, model, tier=None):
    found = lookup(name, model, tier)
    return [str(quota) for quota in found.quotas], found.tier


def amounts(model):
    return {quota.unit: quota.amount for quota in lookup("anthropic", model).quotas}


def test_twenty_rows_are_written_and_the_next_run_uses_them(provider, folder, keys, monkeypatch):
    url, seen = provider(ANTHROPIC, {ADMIN})
    before = stated("anthropic", "claude-test-7")
    result = admin(url, answer="y\n")
    assert result.exit_code == 0, result.output
    assert "anthropic: 20 rows of limits, 0 of ends of models, in " in result.output
    assert "changes nothing there" in result.output
    assert [(method, path) for method, path, _ in seen] == [("GET", LIMITS), ("GET", f"{LIMITS}?page=two")]
    [file] = folder.rglob("*.json")
    text = file.read_text()
    assert not any(key in text + str(file) + result.output for key in (ADMIN, USUAL))
    [rows] = [json.loads(text)["providers"]["anthropic"]["limits"]]
    assert len(rows) == 20
    assert rows[7]["source"] == "GET /v1/organizations/rate_limits"
    assert rows[7]["day"] == str(date.today())  # noqa: DTZ011

    found, tier = stated("anthropic", "claude-test-7")
    assert (found, tier) == (["1007 requests/min", "100007 input_tokens/min", "9007 output_tokens/min"], "organization")
    its = {"requests": 1_007, "input_tokens": 100_007, "output_tokens": 9_007}
    assert amounts("claude-test-7-20261001") == its
    assert (amounts("count_tokens"), amounts("message_batches")) == ({"requests": 8_000}, {"requests": 4_000})
    resolved = paceline.Limiter({}).limits.model("anthropic", "claude-test-7")
    assert {source.kind for source in resolved.sources} == {SourceKind.PUBLISHED}
    shown = run("anthropic", "claude-test-7", of=limits).output
    assert "1007 requests/min, 100007 input_tokens/min, 9007 output_tokens/min\tclaude-test-7\tyour file" in shown

    assert stated("anthropic", "claude-not-listed") == stated("anthropic", "claude-not-listed", "start")
    assert stated("anthropic", "claude-test-7", "start") != (found, tier)  # a tier that is named holds
    assert stated("anthropic@7f3a91", "claude-test-7") == before  # another credential is of another organization
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-another-organization")
    facts.forget()
    assert stated("anthropic", "claude-test-7") == before


@pytest.mark.long("runs each program")
def test_each_program_uses_the_rows_of_the_organization(
    provider, folder, keys, monkeypatch, tmp_path, paceline_emulator
):
    url, _ = provider(ANTHROPIC, {ADMIN})
    assert admin(url).exit_code == 0
    made, served = [], []

    class Kept(paceline.Limiter):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            made.append(self)

    def serve(settings, listener, *_):
        served.append(settings)
        listener.close()

    monkeypatch.setattr("paceline.batch.job.Limiter", Kept)
    monkeypatch.setattr("paceline.gateway.server.serve", serve)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    emulator = paceline_emulator(limits="*=10000 requests/min")
    params = {"model": "claude-test-7", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    (tmp_path / "in.jsonl").write_text(json.dumps({"custom_id": "1", "params": params}) + "\n", "utf-8")
    planned = run("plan", "in.jsonl", "--json", of=app)
    assert "1007 requests/min" in planned.output, planned.output
    ran = run(
        "run", "in.jsonl", "--provider", "anthropic", "--base-url", emulator.base_url, "--store", "memory:", of=app
    )
    assert (ran.exit_code, emulator.tally()["admitted"]) == (0, 1), ran.output
    assert run("serve", "--port", "0", of=app).exit_code == 0
    made.append(paceline.Limiter(**served[0].config.arguments()))
    used = [str(limiter.limits.model("anthropic", "claude-test-7").quotas[0]) for limiter in made]
    assert used == ["1007 requests/min"] * 2
    assert [*made[0].status()["pools"]] == ["anthropic/claude-test-7"]
    code = "import httpx2\nfrom paceline.providers.tables import lookup\nprint(lookup('anthropic', 'claude-test-7').quotas[0])"
    command = [sys.executable, "-m", "paceline", "exec", "--", sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == "1007 requests/min\n"


def test_a_workspace_has_its_own_limits_and_the_organization_s(provider, keys):
    url, _ = provider(ANTHROPIC, {ADMIN})
    result = admin(url, "--workspace", "wrkspc_1", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["organizations"][0]["limits"] == 20
    assert amounts("claude-test-3") == {"requests": 7, "input_tokens": 100_003, "output_tokens": 9_003}


def test_openai_tells_the_ends_of_models_and_the_limits_of_a_project(provider, keys, monkeypatch):
    url, seen = provider(OPENAI, {"sk-usual", "sk-admin"})
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin")
    result = admin(f"{url}/v1", "--project", "proj_1", "--json", of="openai")
    assert result.exit_code == 0, result.output
    [report] = json.loads(result.stdout)["organizations"]
    assert (report["limits"], report["models"]) == (2, 2)
    assert [sent for _, _, sent in seen] == ["sk-usual", "sk-admin", "sk-admin"]
    assert life_of("openai", "gpt-old").ends == "2026-12-11"
    assert life_of("openai", "ft:gpt-old:acme").ending(date(2026, 12, 20)).startswith("ends on 2027-01-14, in 25 days")
    assert stated("openai", "gpt-6-luna") == (["321 requests/min", "654k tokens/min"], "organization")
    assert stated("openai", "gpt-6-astra") == (["5 requests/min", "90 requests/day"], "organization")


@pytest.mark.parametrize(
    ("pages", "key", "said"),
    [
        (ANTHROPIC, "other", "anthropic refused the key in ANTHROPIC_ADMIN_KEY (401): an administrator's key is needed"),
        ({}, ADMIN, "anthropic has no /v1/organizations/rate_limits (404): look at the address of its API"),
        ({"/v1/organizations/rate_limits": 500}, ADMIN, "/v1/organizations/rate_limits (500): run this again later"),
        ({"/v1/organizations/rate_limits": 429}, ADMIN, "(429): it had too many requests: run this again in a minute"),
        ({"/v1/organizations/rate_limits": 302}, ADMIN, "(302): is it the address of its API?"),
        ({"/v1/organizations/rate_limits": b"<html>"}, ADMIN, "did not answer GET"),
        ({"/v1/organizations/rate_limits": {"data": [{"group_type": "model_group"}]}}, ADMIN, "has another form: KeyError 'models'"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_one_sentence_and_changes_nothing(provider, folder, keys, pages, key, said):
    url, _ = provider(pages, {key})
    result = admin(url)
    assert result.exit_code == 1
    assert said in result.stderr
    assert ADMIN not in result.output
    assert not list(folder.rglob("*"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--admin"], 1, "no key to ask with: set ANTHROPIC_ADMIN_KEY"),
        (["--admin", "--provider", "groq"], 1, "groq: no API for administrators is known"),
        (["--admin", "--provider", "anthropic"], 1, "no key to ask anthropic with: set the environment variable ANTHROPIC_ADMIN_KEY"),
        (["--admin", "--provider", "openai", "--project", "../x"], 1, "'../x' is no id of a project"),
        (["--admin", "gpt-6-luna"], 2, "--admin asks for all models"),
        (["gpt-6-luna", "--project", "p"], 2, "--project and --workspace need --admin"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant(words, code, said):
    result = run(*words, "--yes")
    assert result.exit_code == code
    assert said in result.stderr


def test_an_address_gets_the_keys_of_the_provider_that_is_named_alone(provider, keys):
    url, seen = provider(ANTHROPIC | OPENAI, {ADMIN, "sk-usual"})
    result = run("--admin", "--base-url", url, "--yes")
    assert (result.exit_code, "--base-url needs --provider" in result.stderr, seen) == (2, True, [])
    assert admin(url).exit_code == 0
    assert {sent for _, _, sent in seen} == {ADMIN}


def test_without_consent_or_a_usual_key_nothing_is_kept(provider, folder, monkeypatch):
    url, seen = provider(ANTHROPIC, {ADMIN})
    monkeypatch.setenv("ANTHROPIC_ADMIN_KEY", ADMIN)
    for answer in ("n\n", ""):  # the end of standard input, too
        assert admin(url, answer=answer).exit_code == 2
    assert seen == []
    result = admin(url)
    assert (result.exit_code, "set ANTHROPIC_API_KEY: the limits are kept for" in result.stderr) == (1, True)
    assert not list(folder.rglob("*.json"))


def test_a_list_that_no_command_could_read_is_not_written(provider, folder, keys):
    many = [{"id": f"ft:gpt-{n}:{'x' * 180}", "shutdown_date": "2026-12-11"} for n in range(11_000)]
    url, _ = provider({"/v1/models": {"data": many}}, {"sk-usual"})
    result = admin(url, of="openai")
    assert (result.exit_code, "characters are too many: 2,000,000 at most" in result.stderr) == (1, True)
    assert not list(folder.rglob("*"))


@pytest.mark.sample(8)
@pytest.mark.parametrize("found", [b"[", b"{", b"\xff{", b'{"providers": 1}', b"x" * 2_000_001])
@pytest.mark.parametrize(
    "words",
    [["check", "--admin", "--provider", "openai", "--yes"], ["limits"], ["serve"], ["config"], ["check", "gpt-5"]],
)
def test_a_file_that_cannot_be_read_is_named(folder, keys, words, found):
    file = folder / "organizations" / facts.organization_file("openai", "sk-usual")
    file.parent.mkdir(parents=True)
    file.write_bytes(found)
    result = run(*words, of=app)
    assert result.exit_code in (1, 2)
    assert str(file) in result.stderr
    assert "Delete this file, and run `paceline check --admin` again" in result.stderr


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], f"anthropic: GET {LIMITS}: it is empty; nothing is changed"),
        (
            [group(["claude-test-3"], 0, -1, None)],
            "none of its 1 items has a limit that can be used; nothing is changed",
        ),
        (REST[2:], "none of its 1 items has a limit that can be used"),
    ],
)
def test_a_list_that_says_nothing_takes_no_limit_away(provider, folder, keys, data, said):
    pages = {LIMITS: {"data": [group(["claude-test-3"], 9_000, None, None)]}}
    url, _ = provider(pages, {ADMIN})
    assert admin(url).exit_code == 0
    pages[LIMITS] = {"data": data}
    result = admin(url)
    assert (result.exit_code, said in result.stderr) == (1, True), result.output
    assert stated("anthropic", "claude-test-3") == (["9k requests/min"], "organization")


def test_limits_that_are_not_asked_for_again_stay(provider, monkeypatch):
    url, _ = provider(OPENAI | ANTHROPIC, {"sk-usual", "sk-admin"})
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-usual")
    for name in ("OPENAI_ADMIN_KEY", "ANTHROPIC_ADMIN_KEY"):
        monkeypatch.setenv(name, "sk-admin")
    for name, more, model in (
        ("openai", ["--project", "proj_1"], "gpt-6-luna"),
        ("anthropic", ["--workspace", "wrkspc_1"], "claude-test-3"),
    ):
        assert admin(url, *more, of=name).exit_code == 0
        before = stated(name, model)
        result = admin(url, of=name)
        assert (result.exit_code, "was not asked for now: its limits of " in result.stderr) == (1, True)
        assert stated(name, model) == before
        assert admin(url, *more, of=name).exit_code == 0
    assert life_of("openai", "gpt-old").ends == "2026-12-11"


def test_an_id_that_is_not_known_is_named(provider, keys):
    url, _ = provider({}, {ADMIN})
    result = admin(url, "--workspace", "wrkspc_9")
    assert "workspaces/wrkspc_9/rate_limits (404): look at the id in --workspace" in result.stderr


def test_an_end_is_the_day_of_a_time(provider, keys):
    told = ["2026-12-11T00:00:00Z", 1_796_947_200, "2026-12-11", "soon", True, 1e300, {}]
    models = [{"id": f"gpt-t{number}", "shutdown_date": one} for number, one in enumerate(told)]
    url, _ = provider({"/v1/models": {"data": models}}, {"sk-usual"})
    assert admin(url, of="openai").exit_code == 0
    ends = [life.ends for number in range(7) if (life := life_of("openai", f"gpt-t{number}"))]
    assert ends == ["2026-12-11"] * 3
