"""MassGen itself against the emulator: fifty agents by the example's limits, and a limiter for a few."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "fifty_agents"
SPEED, WINDOW_S = 20, 3.0

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


@pytest.fixture(scope="module")
def fifty(tmp_path_factory):
    """What became of fifty agents and five of another backend."""
    folder = tmp_path_factory.mktemp("fifty")
    script = str(EXAMPLE / "massgen_starts.py")
    run(folder, script, "--speed", str(SPEED), "--mode", "even", "--record", "record.json")
    return json.loads((folder / "record.json").read_text())


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """What became of four agents, twice."""
    output = run(tmp_path_factory.mktemp("few"), "-c", FEW)
    (line,) = (line for line in output.splitlines() if line.startswith("RECORD "))
    return json.loads(line.removeprefix("RECORD "))


def instants(record, backend):
    return sorted(one["at_s"] for one in record["started"] if one["backend"] == backend)


class TestFifty:
    def test_all_start_in_their_order_and_once(self, fifty):
        names = [one["agent"] for one in fifty["started"] if one["backend"] == "gemini"]
        assert names == [f"agent_{number:02}" for number in range(1, 51)]

    def test_none_early(self, fifty):
        at_s = instants(fifty, "gemini")
        for number, instant in enumerate(at_s[7:], start=1):
            assert instant - at_s[0] >= number * WINDOW_S / 7 - 0.001
        assert at_s[-1] - at_s[0] < 43 * WINDOW_S / 7 + 15  # what MassGen's own loop adds

    def test_another_backend_does_not_wait(self, fifty):
        """They come last in the configuration: MassGen's own loop would come to them when all the others had started."""
        assert all(one["waited_s"] == 0 for one in fifty["started"] if one["backend"] == "chatcompletion")
        assert len(instants(fifty, "chatcompletion")) == 5
        assert instants(fifty, "chatcompletion")[-1] < instants(fifty, "gemini")[30]

    def test_every_call_is_paced_and_none_refused(self, fifty):
        """Three calls for each agent, whose model calls no tools."""
        assert fifty["admitted"] == {"gemini-2.5-flash": 150, "gpt-4o-mini": 15}
        assert fifty["paced"]["gemini/gemini-2.5-flash"] == {"granted": 150, "settled": 150}
        assert fifty["refused"] == 0


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
