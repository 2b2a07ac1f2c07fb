"""boto3 is paced by `instrument()`; xai_sdk sends through gRPC, which is announced, as are curl_cffi and websocket-client."""

import json

import anthropic
import boto3
import curl_cffi
import grpc
import pytest
import websocket
import xai_sdk
from bedrock_server import ANSWER, CALL, KEYS, Bedrock, bedrock_row, only_pool
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError
from harness import MESSAGES

import paceline
from paceline.http import unpaced


@pytest.fixture(autouse=True)
def kinds():
    """What this process has sent past the limiters, empty at first."""
    unpaced.kinds.clear()
    return unpaced.kinds


@pytest.fixture
def server():
    with Bedrock() as server:
        yield server


def bedrock(port):
    config = Config(retries={"max_attempts": 3, "mode": "standard"})
    return boto3.client("bedrock-runtime", endpoint_url=f"http://127.0.0.1:{port}", config=config, **KEYS)


def test_boto3_is_paced_and_settled_and_a_refusal_is_repeated_by_the_limiter(server, limiter):
    with paceline.instrument(limiter, provider="bedrock"):
        client = bedrock(server.server_port)
        assert client.converse(**CALL)["usage"]["totalTokens"] == 42
        body = {name: CALL[name] for name in ("messages", "inferenceConfig")}
        raw = client.invoke_model(modelId=CALL["modelId"], body=json.dumps(body))
        assert json.loads(raw["body"].read()) == ANSWER
        assert list(client.converse_stream(**CALL)["stream"])[-1]["metadata"]["usage"]["outputTokens"] == 30
    assert only_pool(limiter)["counts"] == {"granted": 4, "refused_rate": 1, "settled": 3}
    assert len(server.signed) == 4


def test_a_stream_begins_before_its_content(server, limiter, monkeypatch):
    monkeypatch.setattr("paceline.providers.verdict.HELD_S", 0.05)
    server.signed.append(None)  # none is refused
    server.go.clear()
    client = limiter.attach(bedrock(server.server_port), provider="bedrock")
    events = iter(client.converse_stream(**CALL)["stream"])
    assert "messageStart" in next(events)
    server.go.set()
    assert ["metadata" in event for event in events] == [True]
    assert server.go.waited == [True]
    pool = only_pool(limiter)
    assert (pool["in_flight"], pool["counts"]) == (0, {"granted": 1, "settled": 1})


def test_an_attached_client_is_paced_and_another_is_not(server, limiter):
    server.signed.append(None)  # none is refused
    client = limiter.attach(bedrock(server.server_port), provider="bedrock")
    assert client.converse(**CALL)["usage"]["totalTokens"] == 42
    assert list(client.converse_stream(**CALL)["stream"])[-1]["metadata"]["usage"]["outputTokens"] == 30
    bedrock(server.server_port).converse(**CALL)
    with paceline.instrument(paceline.Limiter({"bedrock/*": "600 requests/min"}), provider="bedrock"):
        client.converse(**CALL)  # once, by its own limiter
    assert only_pool(limiter)["counts"] == {"granted": 3, "settled": 3}


def test_a_request_that_has_waited_is_signed_again(server, monkeypatch):
    monkeypatch.setattr("paceline.http.botocore.SIGNED_S", 1.0)
    limiter = paceline.Limiter(
        {"bedrock/*": "30 requests/min burst 1"}, headroom_s=0, retry=paceline.RetryPolicy(backoff_s=2.0, jitter=0)
    )
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
    pool = only_pool(limiter)
    assert pool["counts"]["granted"] == pool["counts"]["cancelled"] > 1


def test_bedrock_through_anthropic_is_within_reach(world, limiter):
    """The other way out that the warning names: the server has no such path, but the pool has heard of the request."""
    keys = {"aws_access_key": "k", "aws_secret_key": "k", "aws_region": "us-east-1"}
    client = limiter.attach(anthropic.AnthropicBedrock(base_url=world.base_url, **keys), provider="bedrock")
    with client, pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="anthropic.claude-haiku-4-5-v1:0", messages=MESSAGES, max_tokens=5)
    assert [pool["counts"] for pool in limiter.status()["pools"].values()] == [{"granted": 1, "settled": 1}]


def test_xai_sdk_cannot_be_attached(limiter):
    with pytest.raises(TypeError, match=r"no client of httpx.* inside"):
        limiter.attach(xai_sdk.Client(api_key="k"))


async def test_a_channel_of_grpc_is_announced(limiter, kinds, caplog):
    with paceline.instrument(limiter):
        kinds.clear()  # xai_sdk is imported already
        caplog.clear()
        for make in (xai_sdk.Client, xai_sdk.AsyncClient):
            make(api_key="k")
        grpc.insecure_channel("localhost:1").close()
        grpc.secure_channel("dns:///generativelanguage.googleapis.com:443", grpc.ssl_channel_credentials()).close()
    assert set(kinds) == {("xai", "api.x.ai", "gRPC"), ("gemini", "generativelanguage.googleapis.com", "gRPC")}
    assert kinds["xai", "api.x.ai", "gRPC"] >= 2
    assert len(caplog.records) == 2
    assert "use openai.OpenAI(base_url='https://api.x.ai/v1'), or acquire a permit" in caplog.records[0].getMessage()


async def test_curl_cffi_and_websocket_client_are_announced(limiter, kinds):
    """Nothing listens there."""
    ask = {"json": {"model": "gpt-5"}, "proxy": "http://127.0.0.1:9", "timeout": 5}
    url = "https://api.openai.com/v1/chat/completions"
    with paceline.instrument(limiter):
        kinds.clear()  # of xai_sdk
        with pytest.raises(curl_cffi.CurlError):
            curl_cffi.post(url, **ask)
        async with curl_cffi.AsyncSession() as session:
            with pytest.raises(curl_cffi.CurlError):
                await session.post(url, **ask)
            with pytest.raises(curl_cffi.CurlError):
                await session.get(url, proxy="http://127.0.0.1:9", timeout=5)
            with pytest.raises(curl_cffi.CurlError):
                await session.ws_connect("wss://api.openai.com/v1/realtime", proxy="http://127.0.0.1:9", timeout=5)
        with pytest.raises(OSError, match="refused"):
            websocket.create_connection(
                "wss://api.openai.com/v1/realtime", http_proxy_host="127.0.0.1", http_proxy_port=9, proxy_type="http"
            )
    assert kinds == {
        ("openai", "api.openai.com", "POST /v1/chat/completions by curl_cffi"): 2,
        ("openai", "api.openai.com", "WebSocket"): 2,
    }


def test_a_crowd_of_boto3_is_never_refused():
    def calls(service):
        client = bedrock(service.server_port)
        return (lambda: client.converse(**CALL),)

    bedrock_row("boto3", "Bedrock over botocore", calls)
