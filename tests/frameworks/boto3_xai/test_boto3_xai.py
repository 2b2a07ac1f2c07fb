"""boto3 and xai_sdk send past httpx: that is said, loudly, when they are loaded before us and when after.

Should one of these tests fail because the package has come within reach, its warning can go.
"""

import subprocess
import sys

import anthropic
import pytest
from harness import MESSAGES

import paceline

SCRIPT = """
import importlib, paceline, warnings
for step in {steps}:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if step == "instrument":
            running = paceline.instrument(paceline.Limiter())
        else:
            importlib.import_module(step)
    for warning in said:
        if issubclass(warning.category, paceline.PacelineWarning):
            print(f"{{step}}: {{warning.message}}")
"""


def said(*steps):
    script = SCRIPT.format(steps=steps)
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("package", "advice"),
    [
        ("boto3", "it sends through urllib3; acquire a permit around each call"),
        ("xai_sdk", "it sends through gRPC; acquire a permit around each call"),
    ],
)
def test_each_is_warned_of_in_either_order(package, advice):
    assert said("instrument", package).startswith(f"{package}: paceline does not pace {package}: {advice}")
    assert said(package, "instrument").startswith(f"instrument: paceline does not pace {package}: {advice}")


def bedrock(world):
    import boto3
    from botocore.config import Config

    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "k", "region_name": "us-east-1"}
    config = Config(retries={"max_attempts": 1, "mode": "standard"})
    return boto3.client("bedrock-runtime", endpoint_url=world.base_url, config=config, **keys)


@pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")
def test_boto3_does_send_past_us(world, limiter):
    """Its request reaches the server, which has no such path, and no pool hears of it."""
    limiter.limits.provider = "bedrock"
    with paceline.instrument(limiter):
        client = bedrock(world)
        with pytest.raises(client.exceptions.ClientError, match="404"):
            client.converse(
                modelId="amazon.nova-lite-v1:0", messages=[{"role": "user", "content": [{"text": "hello"}]}]
            )
    assert limiter.status() == {"pools": {}}
    with pytest.raises(TypeError, match="no httpx or httpx2 client inside"):
        limiter.attach(client)


@pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")
def test_bedrock_through_anthropic_is_within_reach(world):
    """The other way out that the warning names: the server has no such path, but the pool has heard of the request."""
    limiter = paceline.Limiter({"bedrock/*": ["600 requests/min", "600k tokens/min"]})
    keys = {"aws_access_key": "k", "aws_secret_key": "k", "aws_region": "us-east-1"}
    client = limiter.attach(anthropic.AnthropicBedrock(base_url=world.base_url, **keys), provider="bedrock")
    with client, pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="anthropic.claude-haiku-4-5-v1:0", messages=MESSAGES, max_tokens=5)
    assert [pool["counts"] for pool in limiter.status()["pools"].values()] == [{"granted": 1, "settled": 1}]


@pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")
def test_xai_sdk_sends_through_grpc_and_cannot_be_attached(limiter):
    xai_sdk = pytest.importorskip("xai_sdk")
    assert "grpc" in sys.modules
    client = xai_sdk.Client(api_key="k")
    with pytest.raises(TypeError, match="no httpx or httpx2 client inside"):
        limiter.attach(client)


def test_the_advice_for_boto3_works():
    """A permit around the call, settled with the answer as boto3 returns it."""
    limiter = paceline.Limiter({"bedrock/amazon.nova-lite-v1:0": ["600 requests/min", "600k tokens/min"]})
    answer = {"usage": {"inputTokens": 12, "outputTokens": 30, "totalTokens": 42}, "stopReason": "end_turn"}
    with limiter.acquire("bedrock/amazon.nova-lite-v1:0", input_tokens=20, output_tokens=400, tokens=420) as permit:
        permit.settle(answer)
    (pool,) = limiter.status()["pools"].values()
    assert {quota["unit"]: quota["spent"] for quota in pool["quotas"]} == {"requests": 1, "tokens": 42}
