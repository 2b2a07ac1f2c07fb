"""What is left of a plan, who has used it and when it goes on: in the status, as a line, on the page, as metrics, and under `paceline exec`."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from attack_helpers import raw_server
from click.testing import CliRunner
from gateway_helpers import Stub, bearer, chat, stub

import paceline
from grids import some
from odd_server import SSE, sse
from paceline.cli import exec_windows
from paceline.cli.app import app as cli
from paceline.cli.exec_windows import WindowWatch, fills_terminal
from paceline.core.results import Refusal, RefusalKind
from paceline.gateway.keys import KeyFile
from paceline.pacing.events import Event
from paceline.providers.plan_headers import PlanReading
from waits import until

CLAUDE, CHATGPT = "sk-ant-oat01-aa11", "eyJh.eyJodHRwczovL2FwaS5vcGVuYWkuY29tL2F1dGgiOiB7fX0.x"
SESSION, SUBAGENT = "0f0e0d0c-aaaa-bbbb-cccc-0123456789ab", "agent-7777-secret"
OLD = {"user_id": f"user_{'a' * 64}_account_11111111-2222-3333-4444-555555555555_session_{SESSION}"}


pytestmark = pytest.mark.usefixtures("no_keys")


class Plan(Stub):
    """A window of 5 hours, of which each answer states 2 % more, beginning with 20 %."""

    def __init__(self):
        self.used, self.status = 0.18, "allowed"

    def answer(self, path, *_):
        self.used += 0.02
        ends = int(time.time()) + 4_000
        names = {"utilization": f"{self.used:.2f}", "reset": ends, "status": self.status}
        more = {f"anthropic-ratelimit-unified-5h-{name}": value for name, value in names.items()}
        if "responses" in path:
            numbers = {"used-percent": f"{self.used * 100:.0f}", "window-minutes": 300, "reset-after-seconds": 4_000}
            more = {f"x-codex-primary-{name}": value for name, value in numbers.items()}
        usage = {"input_tokens": 1_000, "output_tokens": 100}
        body = {"type": "message", "content": [{"type": "text", "text": "hi"}], "usage": usage}
        return body, 200, more


@pytest.fixture
def upstream():
    with stub(Plan()) as url:
        yield url


def ask(client, running, headers, path="/anthropic/v1/messages", login=CLAUDE, **fields):
    body = chat(**{"model": "claude-sonnet-4-5", **fields})
    assert client.post(running.url + path, json=body, headers=bearer(login) | headers).status_code == 200


def test_who_has_used_how_much(serve, upstream, client):
    running = serve(upstream)
    session, agent = {"x-claude-code-session-id": SESSION}, {"x-claude-code-agent-id": SUBAGENT}
    for n in range(8):
        ask(client, running, session | (agent if n % 2 else {}))
    ask(client, running, {}, metadata=OLD)
    (row,) = client.get(f"{running.url}/api/v1/plans").json()["plans"]
    assert (row["used"], row["waiting"]) == (0.36, 0)
    assert row["own"] == pytest.approx(0.16, abs=0.02)  # what the last answer has used is not stated yet
    assert 20 <= row["requests_left"] <= 40
    (one,) = row["sessions"]  # the header and the field of an earlier version name the same one
    assert (one["program"], one["subagents"]) == ("claude", 1)
    assert one["own"] == pytest.approx(5 / 9 * row["own"], abs=0.001)

    metrics = client.get(f"{running.url}/metrics").text
    labels = f'{{account="{row["account"]}",window="5h"}}'
    for name, value in (("used_ratio", "0.36"), ("shut", "0.0"), ("waiting", "0.0"), ("own_ratio", f"{row['own']}")):
        assert f"paceline_plan_{name}{labels} {value}\n" in metrics
    assert f"paceline_plan_ends_seconds{labels} " in metrics
    shown = CliRunner().invoke(cli, ["status"], env={"PACELINE_GATEWAY": running.url}).output  # as within `exec`
    assert f"{row['account']}\t5 h\t36%\t{row['own']:.0%}\t" in shown
    assert f"{row['account']}, of 5 h by session: {one['session']} (claude) " in shown
    assert ", its 1 subagent " in shown
    line = CliRunner().invoke(cli, ["status", "--line", running.url]).output
    assert line.startswith(f"5 h 36% ({row['own']:.0%} here) until ")
    assert line.count("\n") == 1
    kept = shown + line + metrics + json.dumps(row)
    assert not [one for one in (SESSION, SUBAGENT, "11111111-", CLAUDE, "agent-7777") if one in kept]


def test_a_session_is_shown_by_the_name_that_its_user_gives_it(serve, upstream, client):
    running = serve(upstream)
    for n, name in enumerate(("tests", "the docs\t" + 99 * "s")):
        ask(client, running, {"x-claude-code-session-id": f"{n}", "x-paceline-name": name})
    (row,) = client.get(f"{running.url}/api/v1/plans").json()["plans"]
    assert {one["session"] for one in row["sessions"]} == {"tests", "the_docs_" + 31 * "s"}


def test_no_table_of_pools_stands_above_the_plans_if_it_is_empty(serve, upstream, client):
    running = serve(upstream)
    ask(client, running, {})
    shown = CliRunner().invoke(cli, ["status", running.url]).output
    assert shown.startswith("account\twindow\t")
    assert "by session" not in shown


def test_codex_and_its_subagents(serve, upstream, client):
    running = serve(upstream)
    for agent in ("/root", "/root/reviewer"):
        turn = {"x-codex-turn-metadata": json.dumps({"agent_name": agent}), "thread-id": f"t-{agent}"}
        ask(client, running, {"session-id": SESSION, **turn}, "/openai/v1/responses", CHATGPT, input="hi")
    ask(client, running, {"session-id": SESSION, "x-codex-turn-metadata": "["}, "/openai/v1/responses", CHATGPT)
    (row,) = client.get(f"{running.url}/api/v1/plans").json()["plans"]
    (one,) = row["sessions"]
    assert (row["window"], one["program"], one["subagents"]) == ("codex 5h", "codex", 1)


PAGES = {
    "anthropic": ("/api/oauth/usage", CLAUDE, {"five_hour": {"utilization": 77.0, "resets_at": "2099-01-01T00:00:00Z"}}, "5h"),
    "chatgpt": (
        "/backend-api/wham/usage", CHATGPT,
        {"rate_limit": {"primary_window": {"used_percent": 77, "limit_window_seconds": 18_000, "reset_after_seconds": 60}}}, "codex 5h",
    ),
}  # fmt: skip


@pytest.mark.parametrize("provider", PAGES)
def test_what_a_client_looks_up_itself_is_read_while_it_passes(serve, client, provider):
    path, login, page, window = PAGES[provider]

    def answer(asked, *_):
        return (page if asked == path else {"type": "message", "content": [{"text": "hi"}]},)

    with stub(Stub(answer)) as url:
        running = serve(url, upstreams={provider: {"base_url": url}})
        plans, headers = f"{running.url}/api/v1/plans", {"authorization": f"Bearer {login}"}
        look = running.url + f"/{provider}{path}"
        assert client.get(look, headers=headers).json() == page
        # A look makes no account, which would know nobody's renewed token.
        assert client.get(plans).json()["plans"] == []
        turn = "/anthropic/v1/messages" if provider == "anthropic" else "/chatgpt/backend-api/codex/responses"
        ask(client, running, {}, turn, login)
        assert client.get(look, headers=headers).json() == page
        [row] = client.get(plans).json()["plans"]
    assert (row["window"], row["used"], row["state"]) == (window, 0.77, "open")


def test_an_event_of_a_stream_is_read(serve, client):
    events = [
        {"type": "codex.rate_limits", "rate_limits": {"primary": {"used_percent": 77, "window_minutes": 300, "reset_after_seconds": 60}}},
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_text.delta", "delta": "hi"},
        {"type": "response.completed", "response": {"id": "r", "status": "completed", "usage": {"input_tokens": 9, "output_tokens": 3}}},
    ]  # fmt: skip

    with stub(Stub(lambda *_: (b"".join(sse(*events, name=True)), 200, SSE))) as url:
        running = serve(url, upstreams={"chatgpt": {"base_url": url}})
        ask(client, running, {"session-id": SESSION}, "/chatgpt/backend-api/codex/responses", CHATGPT, stream=True)
        [row] = client.get(f"{running.url}/api/v1/plans").json()["plans"]
        assert (row["window"], row["used"], len(row["sessions"])) == ("codex 5h", 0.77, 1)


def test_a_line_never_fails(serve, upstream, tmp_path, nowhere):
    keys = tmp_path / "some.json"
    KeyFile(keys).add("one")
    for where, words in (
        (nowhere.removeprefix("http://"), "no answer from 127.0.0.1"),
        (upstream, "no page of paceline"),
        (serve(upstream, keys=keys).url, "asks for a key"),
        (serve(upstream).url, "no answer of a plan yet"),
        ("http://[", "no page of paceline"),
    ):
        found = CliRunner().invoke(cli, ["status", "--line", where])
        assert (found.exit_code, words in found.output) == (0, True), found.output
    assert CliRunner().invoke(cli, ["status", "--line", "--json"]).exit_code == 2


HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"


def drip(connection):
    while True:
        time.sleep(0.05)
        connection.sendall(b" ")


@pytest.mark.parametrize(
    ("answer", "then", "words"),
    [(HEAD, drip, "no answer from"), (HEAD + b"[" * 100_000, socket.socket.close, "no page of paceline")],
    ids=["a drip", "a deep one"],
)
def test_a_line_does_not_wait_or_fall_for_any_answer(answer, then, words):
    with raw_server(answer, then=then) as server:
        found = CliRunner().invoke(cli, ["status", "--line", "--timeout", "0.5", server.url])
    assert (found.exit_code, words in found.output) == (0, True), found.output


@pytest.mark.parametrize("full", some([True, False], True, mark=pytest.mark.long("starts a process again")))
def test_a_line_that_cannot_be_printed_is_no_failure(full):
    words = [sys.executable, "-m", "paceline", "status", "--line", "http://["]
    if full:
        if not Path("/dev/full").exists():
            pytest.skip("no full device")
        with Path("/dev/full").open("w") as out:
            found = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, check=False)
    else:
        read, write = os.pipe()
        os.close(read)
        found = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, check=False)
        os.close(write)
    assert (found.returncode, found.stderr) == (0, b"")


def refusal(window):
    about = Refusal(RefusalKind.RATE, "used up", retry_after_s=9_000.0, window=window)
    return Event("refused", "anthropic@7f3a91/claude-opus-5", "default", 0.0, {}, refusal=about)


@pytest.mark.parametrize("at_once", [True, False])
def test_exec_says_once_a_window_that_it_is_used_up(monkeypatch, at_once):
    monkeypatch.setattr(exec_windows, "LOOK_S", 0.01)
    limiter, said = paceline.Limiter({"jobs": "5 requests/min"}), []
    reading = PlanReading("5h", 1.0, 9_060.0, "rejected", read_s=time.time())
    limiter.pacer.pools.plans.read("anthropic@7f3a91", [reading])
    with closing(limiter.serve_status(port=0)) as page:
        watch = WindowWatch(said.append, at_once=at_once)
        watch.begin(page.url.rstrip("/"), "")
        watch.seen(refusal(None))
        watch.seen(refusal("5h"))
        until(lambda: watch._ends_s)
        watch.seen(refusal("5h"))
        watch._ends_s = dict.fromkeys(watch._ends_s, time.time() - 1.0)  # it has ended, and refuses for a moment more
        reading = PlanReading("5h", 1.0, 30.0, "rejected", read_s=time.time())
        limiter.pacer.pools.plans.read("anthropic@7f3a91", [reading])
        watch.seen(refusal("5h"))
        until(lambda: not watch._pending)
        assert len(said) == at_once
        watch.end()
    (line,) = said
    told = "used up until" if at_once else "was used up at"
    assert line.startswith(f"anthropic@7f3a91: 5 h {told} ")
    assert line.endswith(" (2 h 31 min)") == at_once
    limiter.close()


@pytest.mark.parametrize(
    ("words", "fills"),
    [
        (["claude"], True),
        (["/usr/bin/claude", "-p", "hi"], False),
        (["codex", "exec", "hi"], False),
        (["codex.cmd"], True),
        (["node", "x.mjs"], False),
    ],
)
def test_a_line_is_not_lost_in_a_program_that_fills_the_terminal(words, fills):
    assert fills_terminal(words) == fills
