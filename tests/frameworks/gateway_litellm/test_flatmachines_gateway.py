"""flatmachines with ``OPENAI_BASE_URL`` at the gateway, and nothing else changed."""

import asyncio
import os

os.environ["FLATAGENTS_LOG_LEVEL"] = "CRITICAL"

import pytest
from flatmachines import FlatMachine
from gateway_world import Gateway

from paceline.emulator import Emulator

LIMITS = ["20 requests/2s", "10M tokens/min"]
MODEL = {"provider": "openai", "name": "gpt-5", "max_tokens": 10, "max_retries": 0}
AGENT = {"spec": "flatagent", "spec_version": "4.2.1", "data": {"name": "a", "model": MODEL, "user": "Hi"}}
STATES = {
    "first": {"agent": "a", "transitions": [{"to": "second"}]},
    "second": {"agent": "a", "transitions": [{"to": "end"}]},
    "end": {"type": "final", "output": {"done": "yes"}},
}
MACHINE = {
    "spec": "flatmachine",
    "spec_version": "4.2.1",
    "data": {"name": "m", "context": {}, "agents": {"a": AGENT}, "machines": {}, "states": STATES},
}


@pytest.mark.filterwarnings("ignore::flatmachines.validation.ValidationWarning")
def test_machines_at_once(tmp_path, monkeypatch):
    """40 machines of two states each: twice as many calls at once as the limit allows."""
    with (
        Emulator({"gpt-5": LIMITS}, process=True, latency_s=0.02) as world,
        Gateway(tmp_path, world.base_url, limits={"openai/*": LIMITS}) as gateway,
    ):
        monkeypatch.setenv("OPENAI_BASE_URL", f"{gateway.url}/openai/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "any")

        async def main():
            machines = [FlatMachine(config_dict=MACHINE).execute({}, max_steps=20) for _ in range(40)]
            return await asyncio.gather(*machines)

        assert asyncio.run(main()) == [{"done": "yes"}] * 40
        spent, tally = gateway.spent("openai/gpt-5"), world.tally()
    assert (tally["admitted"], tally["refused_total"]) == (80, 0)
    assert spent == tally["pools"]["gpt-5"]["charges"]
