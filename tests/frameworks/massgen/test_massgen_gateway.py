"""MassGen with its base URLs at the gateway, and nothing else changed."""

import json
import os
import subprocess
import sys
from pathlib import Path

from gateway_world import Gateway

from paceline.emulator import Emulator

GPT, GEMINI = ["4 requests/2s", "10M tokens/min"], ["4 requests/2s", "10M input_tokens/min"]


def test_twelve_agents(tmp_path):
    """Six agents of either backend start at once, where four requests are allowed at once."""
    limits = {"gpt-4o-mini": GPT, "gemini-2.5-flash": GEMINI}
    with (
        Emulator(limits, process=True, latency_s=0.02) as world,
        Gateway(tmp_path, world.base_url, limits={"openai/*": GPT, "gemini/*": GEMINI}) as gateway,
    ):
        gemini = {"type": "gemini", "model": "gemini-2.5-flash"}
        other = {"type": "chatcompletion", "model": "gpt-4o-mini", "base_url": f"{gateway.url}/openai/v1"}
        agents = [{"id": f"a{n}", "backend": other if n % 2 else gemini} for n in range(12)]
        (tmp_path / "agents.yaml").write_text(json.dumps({"agents": agents}))
        clean = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
        own = {"HOME": str(tmp_path), "GEMINI_API_KEY": "any", "OPENAI_API_KEY": "any"}
        own["GOOGLE_GEMINI_BASE_URL"] = f"{gateway.url}/gemini"
        own["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"
        command = [Path(sys.executable).with_name("massgen"), "--config", "agents.yaml", "--automation", "Say hello."]
        done = subprocess.run(
            command, cwd=tmp_path, env=clean | own, capture_output=True, text=True, timeout=300, check=False
        )
        pools = gateway.get("/status")[0]["pools"]
        tally = world.tally()
    assert done.returncode == 0, done.stdout + done.stderr
    assert tally["refused_total"] == 0
    assert tally["admitted"] >= 12
    assert {name: pool["counts"]["granted"] for name, pool in pools.items() if pool["counts"]} == {
        f"{provider}/{model}": tally["pools"][model]["admitted"]
        for provider, model in (("openai", "gpt-4o-mini"), ("gemini", "gemini-2.5-flash"))
    }
