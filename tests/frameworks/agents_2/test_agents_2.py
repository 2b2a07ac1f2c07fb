"""smolagents, ag2, agentscope and mem0 against the emulator: crowds of calls of their models."""

import os
import tempfile

os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": tempfile.mkdtemp(), "OTEL_SDK_DISABLED": "true"}

import ag2
import pytest
from ag2.config import OpenAIConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from harness import MESSAGES, PROMPT, crowd_row
from mem0.configs.llms.openai import OpenAIConfig as Mem0Config
from mem0.llms.openai import OpenAILLM
from smolagents import OpenAIServerModel

POOL = "openai/m"


def smolagents_model(world):
    where = {"api_base": f"{world.base_url}/v1", "api_key": "k", "client_kwargs": {"max_retries": 0}}
    model = OpenAIServerModel("m", **where, max_tokens=40)
    return lambda: model.generate(MESSAGES), None


def ag2_agent(world):
    config = OpenAIConfig(model="m", api_key="k", base_url=f"{world.base_url}/v1", max_retries=0, max_tokens=40)
    return None, lambda: ag2.Agent("weather", config=config).ask(PROMPT)


def agentscope_model(world):
    credential = OpenAICredential(api_key="k", base_url=f"{world.base_url}/v1")
    parameters = OpenAIChatModel.Parameters(max_tokens=40)
    model = OpenAIChatModel(credential, "m", parameters, stream=False, max_retries=0)
    return None, lambda: model([UserMsg("user", PROMPT)])


def mem0_model(world):
    model = OpenAILLM(Mem0Config(model="m", api_key="k", openai_base_url=f"{world.base_url}/v1", max_tokens=40))
    return lambda: model.generate_response(MESSAGES), None


@pytest.mark.parametrize(
    ("package", "calls"),
    [("smolagents", smolagents_model), ("ag2", ag2_agent), ("agentscope", agentscope_model), ("mem0ai", mem0_model)],
)
def test_a_crowd_is_never_refused(paceline_emulator, package, calls):
    crowd_row(paceline_emulator, package, "over openai 3", POOL, calls)
