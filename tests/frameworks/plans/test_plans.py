"""The real Claude Code and Codex with logins that were invented, before a server whose plans have windows of a minute.

Both end with exit code 1 at the first refusal of a plan, however short its wait: one that ends with 0 has seen none.
"""

import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gateway_world import TEXT, Gateway
from plan_world import PACELINE, NotInstalledError, Plans, arguments, environ, login, program

TURN_S = 170
SAID = "".join(TEXT)


@pytest.fixture(scope="session", autouse=True)
def clients():
    """Install them."""
    try:
        for name in ("claude", "codex"):
            program(name)
    except NotInstalledError as error:
        pytest.fail(str(error), pytrace=False)


def run(words, env, folder):
    """Run a command to its end."""
    return subprocess.run(
        words,
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TURN_S,
        check=False,
    )


def led(server, folder, account, words):
    """Run a client behind `paceline exec --login`."""
    settings = Path(folder) / "paceline.toml"
    at = f'base_url = "{server.url}"'
    settings.write_text(f"[upstreams.anthropic]\n{at}\n[upstreams.chatgpt]\n{at}\n")
    command = [*PACELINE, "exec", "--login", "--config", str(settings), "--", *words]
    return run(command, environ(folder, account), folder)


def test_two_windows_are_used_and_no_client_sees_a_refusal(tmp_path):
    """Four Claude Code of one command, and three Codex of a command each; two of each fit into a window."""
    turn = shlex.join(arguments("claude"))
    four = [
        "sh",
        "-c",
        f"{turn} & a=$!; {turn} & b=$!; {turn} & c=$!; {turn} & d=$!; wait $a && wait $b && wait $c && wait $d",
    ]
    with Plans(amount=2, length_s=60.0) as server, ThreadPoolExecutor() as threads:
        commands = [("claude", four), *[("codex", arguments("codex"))] * 3]
        done = list(threads.map(lambda one: led(server, tmp_path, *one), commands))
    for one in done:
        assert one.returncode == 0, one.stdout + one.stderr
        assert "limit" not in one.stdout
    assert done[0].stdout.count(SAID) == 4
    assert all(SAID in one.stdout for one in done[1:])
    for one, account, served in ((done[0], "claude", 4), (done[1], "codex", 3)):
        assert server.served(account) == served
        assert server.windows[login(account)].number == 2
        assert "own login goes to 127.0.0.1" in one.stderr
        assert re.search(r"paceline exec: (anthropic|chatgpt)@[0-9a-f]{6}/\S+: \d requests?, ", one.stderr)
    assert sum(one.status == 429 for one in server.turns) <= 12
    assert {one.path for one in server.asked if one.account == login("codex")} == {
        "/backend-api/codex/models",
        "/backend-api/codex/responses",
    }


def test_one_plan_that_ends_leaves_the_other_alone(tmp_path):
    """Six Claude Code through one gateway that has no key: three of them have a login whose window is used up for hours."""
    amounts = {login("claude_ended"): 0}
    with (
        Plans(amount=100, amounts=amounts, length_s=10_800.0) as server,
        Gateway(tmp_path, server.url, limits={"acme/*": ["9 requests/min"]}) as gateway,
    ):

        def start(account, number):
            env = environ(tmp_path, account) | {"ANTHROPIC_BASE_URL": f"{gateway.url}/anthropic"}
            env["ANTHROPIC_CUSTOM_HEADERS"] = f"x-paceline-name: agent_{number}"
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            return subprocess.Popen(arguments("claude"), env=env, cwd=tmp_path, text=True, **pipes)

        ended, healthy = (
            [start(account, number) for number in range(3)] for account in ("claude_ended", "claude_healthy")
        )
        try:
            outputs = [one.communicate(timeout=TURN_S)[0] for one in healthy]
            assert [one.returncode for one in healthy] == [0, 0, 0], outputs
            assert [one.poll() for one in ended] == [None] * 3  # they wait
            rows = {row["account"]: row for row in gateway.get("/api/v1/rate-limits/status")["plans"]}
        finally:
            for one in ended:
                one.kill()
                one.communicate()
    assert sorted((row["used"], row["status"]) for row in rows.values()) == [(0.03, "allowed"), (1.0, "rejected")]
    (healthy,) = (row for row in rows.values() if row["status"] == "allowed")
    assert {one["session"] for one in healthy["sessions"]} == {"agent_0", "agent_1", "agent_2"}
    assert not [one for one in server.asked if "x-paceline-name" in one.headers]
    assert server.served("claude_healthy") == 3
    assert server.served("claude_ended") == 0
