"""extropy's own loop over agents (0.2.3: the newest whose wheel starts), its calls sent to the emulator by openai 1.

Replaced are the prompts, and what reads an answer as JSON: the emulator writes prose.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import openai
import openai.resources.chat  # at the first call it would take part of the deadline
import pytest
import yaml
from extropy.cli.app import app
from extropy.core.providers.base import TokenUsage
from extropy.simulation import engine, reasoning
from harness import PROMPT
from typer.testing import CliRunner

import paceline
from odd_server import JSON, OddServer
from paceline.emulator import Refused, Settings, World
from paceline.integrations.extropy import pace_engine


@pytest.fixture
def world(paceline_emulator):
    return paceline_emulator(limits="1200 requests/min,1M tokens/min", latency_s=0.2, headers=False)


@pytest.fixture
def loop(monkeypatch, world):
    """Let extropy's loop ask the emulator."""
    clients = []

    async def simple_call_async(prompt, model, **_):
        if not clients:
            clients.append(openai.AsyncOpenAI(api_key="k", base_url=f"{world.base_url}/v1"))
        answer = await clients[0].chat.completions.create(
            model=model, messages=[{"role": "user", "content": prompt}], max_completion_tokens=80
        )
        usage = TokenUsage(answer.usage.prompt_tokens, answer.usage.completion_tokens)
        return {"reasoning": answer.choices[0].message.content, "conviction": 50}, usage

    async def close():
        await clients[0].close()

    monkeypatch.setattr(reasoning, "simple_call_async", simple_call_async)
    monkeypatch.setattr(reasoning, "close_simulation_provider", close)
    for name, value in {
        "build_pass1_prompt": PROMPT, "build_pass1_schema": {}, "build_pass2_prompt": PROMPT,
        "build_pass2_schema": {"type": "object"}, "_get_primary_position_outcome": None,
    }.items():  # fmt: skip
        monkeypatch.setattr(reasoning, name, lambda *_, value=value: value)


def written(folder, agents):
    """The files of a scenario, in which all agents hear of an event at once; the path of the scenario."""
    meta = {"name": "bus", "description": "the bus", "population_spec": "population.yaml", "agents_file": "agents.json"}
    files = {
        "population.yaml": {
            "meta": {"description": "people", "size": agents},
            "grounding": {"overall": "low"} | dict.fromkeys(["sources_count", "strong_count", "medium_count", "low_count"], 0),
            "attributes": [],
            "sampling_order": [],
        },
        "agents.json": [{"_id": f"agent {number}", "age": 20 + number % 60} for number in range(agents)],
        "network.json": {"meta": {}, "nodes": [], "edges": []},
        "scenario.yaml": {
            "meta": meta | {"network_file": "network.json"},
            "event": {
                "type": "announcement", "content": "The bus costs more.", "source": "the council", "credibility": 0.9,
                "ambiguity": 0.1, "emotional_valence": -0.2,
            },
            "seed_exposure": {
                "channels": [{"name": "news", "description": "news", "reach": "broadcast"}],
                "rules": [{"channel": "news", "when": "true", "probability": 1.0, "timestep": 0}],
            },
            "interaction": {"primary_model": "passive_observation", "description": "none"},
            "spread": {"share_probability": 0.0},
            "outcomes": {"suggested_outcomes": [{"name": "likes", "type": "boolean", "description": "likes it"}]},
            "simulation": {"max_timesteps": 1},
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content) if name.endswith("json") else yaml.safe_dump(content))
    return folder / "scenario.yaml"


def test_the_limits_of_extropys_command_line(loop, world, tmp_path):
    scenario = written(tmp_path, 40)
    limiter = paceline.Limiter(provider="openai", tier=1)
    own = vars(engine.DualRateLimiter)["create"]
    words = ["simulate", scenario, "-o", scenario.parent / "out", "--model", "gpt-5", "--routine-model", "gpt-5-mini"]
    with pace_engine(limiter), paceline.instrument(limiter, provider="openai"):
        done = CliRunner().invoke(
            app, [str(word) for word in [*words, "--rate-tier", 3, "--rpm-override", 300, "--quiet"]]
        )
    assert done.exit_code == 0, done.output
    assert vars(engine.DualRateLimiter)["create"] is own
    assert (world.tally()["admitted"], world.tally()["refused_total"]) == (80, 0)
    pools = limiter.status()["pools"]
    assert sorted(pools) == ["openai/gpt-5", "openai/gpt-5-mini"]
    limits = [{quota["unit"]: quota["limit"] for quota in pool["quotas"]} for pool in pools.values()]
    assert limits == [{"requests": 300, "tokens": 2e6}, {"requests": 5_000, "tokens": 4e6}]
    assert [pool["counts"] for pool in pools.values()] == [{"granted": 40, "settled": 40}] * 2


# --- the command itself, before a server of our own

LIMIT = "40 requests/4s"


def sample(schema):
    """A value by a JSON schema."""
    kinds = {"object": lambda: {name: sample(part) for name, part in schema.get("properties", {}).items()}}
    kinds |= {"array": lambda: [sample(schema.get("items", {}))], "boolean": lambda: True, "string": lambda: "so be it"}
    return schema["enum"][0] if "enum" in schema else kinds.get(schema.get("type"), lambda: 1)()


class Server(OddServer):
    """OpenAI's Responses, with a value by the schema of each request, in an emulated world; no headers."""

    def __init__(self, limits):
        super().__init__(self.respond)
        self.world = World(Settings(limits=limits), time.monotonic())

    def respond(self, _, body):
        with self.lock:
            decision = self.world.admit(time.monotonic(), body["model"], 400, 50)
        if isinstance(decision, Refused):
            return 429, JSON, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}
        part = {"type": "output_text", "text": json.dumps(sample(body["text"]["format"]["schema"])), "annotations": []}
        message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
        said = {"id": "r", "object": "response", "created_at": 0, "model": body["model"], "status": "completed"}
        said |= {"output": [message], "parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
        return 200, JSON, said | {"usage": {"input_tokens": 400, "output_tokens": 50, "total_tokens": 450}}


def test_the_command_in_one_environment_with_paceline_exec(tmp_path):
    """`paceline exec -- extropy simulate ...`: 80 agents, 40 requests at once and 10 a second, none refused."""
    scenario, limits = written(tmp_path, 80), tmp_path / "limits.yaml"
    limits.write_text(json.dumps({"provider": "openai", "limits": {"openai/*": LIMIT}}))
    own, beside = Path(sys.executable).parent, {"OPENAI_API_KEY": "any", "HOME": str(tmp_path)}
    with Server({"*": LIMIT}) as server:
        beside["OPENAI_BASE_URL"] = f"http://127.0.0.1:{server.server_port}/v1"
        words = [own / "paceline", "exec", "--strict", "--config", limits, "--", own / "extropy", "simulate", scenario]
        words += ["-o", tmp_path / "out", "--model", "gpt-5", "--routine-model", "gpt-5-mini", "--quiet"]
        done = subprocess.run(words, env=os.environ | beside, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Reasoning calls: 80" in done.stdout
    tally = server.world.tally()
    assert {name: pool["admitted"] for name, pool in tally["pools"].items()} == {"gpt-5": 80, "gpt-5-mini": 80}
    assert tally["refused_total"] <= 1  # in real time, on a machine that may be busy
    assert "paceline exec: openai/gpt-5: 80 requests, " in done.stderr
