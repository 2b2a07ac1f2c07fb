"""The example's programs, and an environment in which litellm neither fetches nor talks."""

import os
import sys
from pathlib import Path

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches its prices while it is imported
os.environ["FLATAGENTS_LOG_LEVEL"] = "CRITICAL"

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "paper_pipeline"
sys.path.insert(0, str(EXAMPLE))

WIDE = {"arcee": "6000 requests/min", "pony": "6000 requests/min"}


@pytest.fixture
def world(paceline_emulator, monkeypatch):
    world = paceline_emulator(limits=WIDE)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{world.base_url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    return world
