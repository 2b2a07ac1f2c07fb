"""boto3 is paced by `instrument()`; xai_sdk sends through gRPC, of which a warning tells."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anthropic
import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError
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


def test_xai_sdk_is_warned_of_in_either_order():
    advice = "paceline does not pace xai_sdk: it sends through gRPC; acquire a permit around each call"
    assert said("instrument", "xai_sdk").startswith(f"xai_sdk: {advice}")
    assert said("xai_sdk", "instrument").startswith(f"instrument: {advice}")
    assert said("instrument", "boto3") == said("boto3", "instrument") == ""


ANSWER = {
    "output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 12, "outputTokens": 30, "totalTokens": 42},
    "metrics": {"latencyMs": 5},
}
CALL = {
    "modelId": "amazon.nova-lite-v1:0",
    "messages": [{"role": "user", "content": [{"text": "hello"}]}],
    "inferenceConfig": {"maxTokens": 100},
}


class Bedrock(BaseHTTPRequestHandler):
    """Refuses the first request: the emulator has no Bedrock."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.server.signed.append(self.headers["x-amz-date"])
        self.rfile.read(int(self.headers["content-length"]))
        refused = len(self.server.signed) == 1
        answer = json.dumps({"message": "Too many requests"} if refused else ANSWER).encode()
        self.send_response(429 if refused else 200)
        if refused:
            self.send_header("x-amzn-errortype", "ThrottlingException")
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bedrock)
    server.signed = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def bedrock(port):
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "k", "region_name": "us-east-1"}
    config = Config(retries={"max_attempts": 3, "mode": "standard"})
    return boto3.client("bedrock-runtime", endpoint_url=f"http://127.0.0.1:{port}", config=config, **keys)


def test_boto3_is_paced_and_settled_and_a_refusal_is_repeated_by_the_limiter(server):
    limiter = paceline.Limiter({"bedrock/*": ["600 requests/min", "60k tokens/min"]})
    with paceline.instrument(limiter, provider="bedrock"):
        client = bedrock(server.server_port)
        assert client.converse(**CALL)["usage"]["totalTokens"] == 42
        body = {name: CALL[name] for name in ("messages", "inferenceConfig")}
        raw = client.invoke_model(modelId=CALL["modelId"], body=json.dumps(body))
        assert json.loads(raw["body"].read()) == ANSWER
    (pool,) = limiter.status()["pools"].values()
    assert pool["counts"] == {"granted": 3, "refused_rate": 1, "settled": 2}
    assert len(server.signed) == 3


def test_a_request_that_has_waited_is_signed_again(server, monkeypatch):
    monkeypatch.setattr("paceline.http.botocore.SIGNED_S", 1.0)
    limiter = paceline.Limiter({"bedrock/*": "30 requests/min burst 1"}, headroom_s=0)
    with paceline.instrument(limiter, provider="bedrock"):
        bedrock(server.server_port).converse(**CALL)  # the first attempt is refused, the second waits for 2 s
    first, second = (int(stamp[-3:-1]) for stamp in server.signed)
    assert (second - first) % 60 >= 1


def test_a_refusal_of_our_own_is_not_repeated_and_a_dead_host_is_charged_nothing():
    limiter = paceline.Limiter({"bedrock/*": ["600 requests/min", "10 tokens/min"]})
    with paceline.instrument(limiter, provider="bedrock"):
        client = bedrock(9)
        with pytest.raises(client.exceptions.ClientError, match=r"ThrottlingException.*the quota holds 10") as caught:
            client.converse(**CALL)
    assert caught.value.response["ResponseMetadata"]["HTTPHeaders"]["x-paceline"] == "never_fits"
    limiter = paceline.Limiter({"bedrock/*": "600 requests/min"})
    with paceline.instrument(limiter, provider="bedrock"), pytest.raises(EndpointConnectionError):
        bedrock(9).converse(**CALL)
    (pool,) = limiter.status()["pools"].values()
    assert pool["counts"]["granted"] == pool["counts"]["cancelled"] > 1


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
    with pytest.raises(TypeError, match=r"no client of httpx.* inside"):
        limiter.attach(client)


def test_the_advice_for_boto3_works():
    """A permit around the call, settled with the answer as boto3 returns it."""
    limiter = paceline.Limiter({"bedrock/amazon.nova-lite-v1:0": ["600 requests/min", "600k tokens/min"]})
    answer = {"usage": {"inputTokens": 12, "outputTokens": 30, "totalTokens": 42}, "stopReason": "end_turn"}
    with limiter.acquire("bedrock/amazon.nova-lite-v1:0", input_tokens=20, output_tokens=400, tokens=420) as permit:
        permit.settle(answer)
    (pool,) = limiter.status()["pools"].values()
    assert {quota["unit"]: quota["spent"] for quota in pool["quotas"]} == {"requests": 1, "tokens": 42}
