"""MassGen itself against the emulator: `paceline exec` with the fifty agents of the example, and a limiter for a few."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "fifty_agents"

FEW = """
import json, os, sys
from pathlib import Path

import massgen.cli
import paceline
from massgen.orchestrator import Orchestrator
from paceline.integrations.massgen import pace_starts
from paceline.testing import Emulator

seen, methods = [], [Orchestrator._stream_agent_execution, Orchestrator._apply_agent_startup_rate_limit]

async def fails(agent, backend, model):
    seen.append([agent, backend, model])
    if agent == "b":
        raise RuntimeError("not today")

with Emulator({"*": "6000 requests/min"}) as world:
    gemini = {"type": "gemini", "model": "gemini-2.5-flash"}
    other = {"type": "chatcompletion", "model": "gpt-4o-mini", "base_url": f"{world.base_url}/v1"}
    backends = {"a": gemini, "b": gemini, "c": gemini, "d": other}
    agents = [{"id": name, "backend": backend} for name, backend in backends.items()]
    Path("agents.yaml").write_text(json.dumps({"agents": agents}))
    os.environ["GOOGLE_GEMINI_BASE_URL"] = world.base_url
    sys.argv = ["massgen", "--config", "agents.yaml", "--automation", "--no-logs", "--rate-limit", "Say hello."]
    tallies, limiter = [], paceline.Limiter({"starts/gemini": "60 starts/min burst 1"}, headroom_s=0)
    for starts in (limiter, fails):
        pace_starts(fails)  # the newest holds
        with pace_starts(starts):
            try:
                massgen.cli.cli_main()
            except SystemExit:
                pass
        tallies.append(world.tally())
        world.reset()
print("RECORD", json.dumps({
    "seen": seen,
    "tallies": tallies,
    "counts": limiter.status()["pools"]["starts/gemini"]["counts"],
    "undone": methods == [Orchestrator._stream_agent_execution, Orchestrator._apply_agent_startup_rate_limit],
}))
"""


def run(folder, *command):
    """Run a program in a folder of its own, with no key and no way to the internet."""
    environ = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    environ |= {"HOME": str(folder), "GEMINI_API_KEY": "any", "OPENAI_API_KEY": "any"}
    environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FIFTY = """
import os, subprocess, sys
from pathlib import Path

from paceline.testing import Emulator

example, limits = Path(sys.argv[1]), sys.argv[2]
with Emulator({"*": "600 requests/min"}) as world:
    other = f"{{type: chatcompletion, model: gpt-4o-mini, base_url: '{world.base_url}/v1'}}"
    agents = (example / "fifty.yaml").read_text().replace("{type: openai, model: gpt-5-mini}", other)
    Path("fifty.yaml").write_text(agents)
    Path("starts.yaml").write_text(limits)
    os.environ["GOOGLE_GEMINI_BASE_URL"] = world.base_url
    bin = Path(sys.executable).parent
    line = [bin / "paceline", "exec", "--config", "starts.yaml", "--", bin / "massgen", "--config", "fifty.yaml"]
    done = subprocess.run([*line, "--automation", "Say hello."], capture_output=True, text=True)
    print("RECORD", __import__("json").dumps({"said": done.stderr, "tally": world.tally()}))
"""
LIMITS = """
starts:
  gemini: {max_starts: 7, time_window: 3}
priorities: {"agent_50": 10}
limits: {"gemini/*": 600 requests/min}
"""


@pytest.fixture(scope="module")
def fifty(tmp_path_factory):
    """What became of fifty agents and five of another backend: the tally, and the lines of the session's log."""
    folder = tmp_path_factory.mktemp("fifty")
    output = run(folder, "-c", FIFTY, str(EXAMPLE), LIMITS)
    (line,) = (line for line in output.splitlines() if line.startswith("RECORD "))
    (session,) = folder.rglob("massgen.log")
    lines = [line for line in session.read_text().splitlines() if "Rate limit" in line]
    return json.loads(line.removeprefix("RECORD ")) | {"lines": lines}


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """What became of four agents, twice."""
    output = run(tmp_path_factory.mktemp("few"), "-c", FEW)
    (line,) = (line for line in output.splitlines() if line.startswith("RECORD "))
    return json.loads(line.removeprefix("RECORD "))


class TestFifty:
    def test_all_start_once_and_the_one_with_priority_before_the_others_that_wait(self, fifty):
        started = [
            line.split("Agent startup allowed: ")[1].split()[0] for line in fifty["lines"] if "/7 starts)" in line
        ]
        in_order = [f"agent_{number:02}" for number in range(1, 50)]
        assert started == [*in_order[:7], "agent_50", *in_order[7:]]

    def test_every_wait_is_in_the_session_s_log_before_the_start(self, fifty):
        waits = [line for line in fifty["lines"] if "waiting" in line]
        assert len(waits) == 43
        assert all("(7 of 7 used), agent_" in line for line in waits)
        assert any("waiting 3.0 s" in line or "waiting 2." in line for line in waits)

    def test_no_window_has_more_than_seven(self, fifty):
        """By the log, which has whole seconds. The last starts in the eighth window: 7 x 7 = 49."""
        lines = [line for line in fifty["lines"] if "Agent startup allowed" in line and "/7 starts)" in line]
        assert all("after 0.0 s" in line for line in lines[:7])
        at_s = [
            sum(int(part) * scale for part, scale in zip(line[:8].split(":"), (3600, 60, 1), strict=True))
            for line in lines
        ]
        assert min((late - early) % 86_400 for early, late in zip(at_s, at_s[7:], strict=False)) >= 2
        assert (at_s[-1] - at_s[0]) % 86_400 >= 20

    def test_another_backend_does_not_wait(self, fifty):
        assert sum("at once, there is no limit" in line for line in fifty["lines"]) == 5

    def test_every_call_is_paced_and_none_refused(self, fifty):
        """Three calls for each agent, whose model calls no tools."""
        tally = fifty["tally"]
        admitted = {model: pool["admitted"] for model, pool in tally["pools"].items()}
        assert admitted == {"gemini-2.5-flash": 150, "gpt-4o-mini": 15}
        assert tally["refused_total"] == 0
        assert "paceline exec: gemini/gemini-2.5-flash: 150 requests, 0 refused" in fifty["said"]
        assert "paceline exec: starts/gemini: 50 requests, 0 refused" in fifty["said"]


class TestFew:
    def test_a_limiter_s_pool_of_the_backend_s_name(self, few):
        """And MassGen's own waits are off, though it was told to: a cool-down of 3 s after each start among them."""
        assert few["counts"] == {"granted": 3, "settled": 3}
        assert few["tallies"][0]["admitted"] == 12

    def test_what_an_agent_is_known_by(self, few):
        gemini = [[name, "gemini", "gemini-2.5-flash"] for name in "abc"]
        assert few["seen"] == [*gemini, ["d", "chatcompletion", "gpt-4o-mini"]]

    def test_a_wait_that_fails_is_that_agent_s_error(self, few):
        assert few["tallies"][1]["pools"]["gemini-2.5-flash"]["admitted"] == 6
        assert few["tallies"][1]["pools"]["gpt-4o-mini"]["admitted"] == 3

    def test_it_can_be_undone(self, few):
        assert few["undone"]
