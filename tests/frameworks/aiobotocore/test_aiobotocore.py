"""aiobotocore is paced by `instrument()` above its signatures, not by the binding of aiohttp below them."""

import json

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from bedrock_server import ANSWER, CALL, KEYS, Bedrock, bedrock_row, only_pool
from botocore.exceptions import ClientError, EndpointConnectionError

import paceline

BODY = {name: CALL[name] for name in ("messages", "inferenceConfig")}


@pytest.fixture
def server():
    with Bedrock() as server:
        yield server


def bedrock(port):
    config = AioConfig(retries={"max_attempts": 3, "mode": "standard"})
    return get_session().create_client(
        "bedrock-runtime", endpoint_url=f"http://127.0.0.1:{port}", config=config, **KEYS
    )


async def test_it_is_paced_and_settled_and_a_refusal_is_repeated_by_the_limiter(server, limiter):
    with paceline.instrument(limiter, provider="bedrock"):
        async with bedrock(server.server_port) as client:
            assert (await client.converse(**CALL))["usage"]["totalTokens"] == 42
            raw = await client.invoke_model(modelId=CALL["modelId"], body=json.dumps(BODY))
            assert json.loads(await raw["body"].read()) == ANSWER
            events = [event async for event in (await client.converse_stream(**CALL))["stream"]]
            assert events[-1]["metadata"]["usage"]["outputTokens"] == 30
            dropped = await client.converse_stream(**CALL)
            dropped["stream"].close()
    assert only_pool(limiter)["counts"] == {"granted": 5, "refused_rate": 1, "settled": 4}
    assert len(server.signed) == 5


async def test_a_stream_is_settled_with_its_usage(server, limiter):
    server.signed.append(None)  # none is refused
    with paceline.instrument(limiter, provider="bedrock"):
        async with bedrock(server.server_port) as client:
            async for _ in (await client.converse_stream(**CALL))["stream"]:
                pass
            raw = await client.invoke_model(modelId=CALL["modelId"], body=json.dumps(BODY))
            await raw["body"].read()
    pool = only_pool(limiter)
    assert {quota["unit"]: quota["spent"] for quota in pool["quotas"]} == {"requests": 2, "tokens": 84}


async def test_a_stream_begins_before_its_content(server, limiter, monkeypatch):
    monkeypatch.setattr("paceline.providers.verdict.HELD_S", 0.05)
    server.signed.append(None)  # none is refused
    server.go.clear()
    async with bedrock(server.server_port) as client:
        limiter.attach(client, provider="bedrock")
        events = aiter((await client.converse_stream(**CALL))["stream"])
        assert "messageStart" in await anext(events)
        server.go.set()
        assert ["metadata" in event async for event in events] == [True]
    assert server.go.waited == [True]
    pool = only_pool(limiter)
    assert (pool["in_flight"], pool["counts"]) == (0, {"granted": 1, "settled": 1})


async def test_a_refusal_of_our_own_is_not_repeated_and_a_dead_host_is_charged_nothing():
    limiter = paceline.Limiter({"bedrock/*": ["600 requests/min", "10 tokens/min"]})
    with paceline.instrument(limiter, provider="bedrock"):
        async with bedrock(9) as client:
            with pytest.raises(ClientError, match=r"ThrottlingException.*the quota holds 10") as caught:
                await client.converse(**CALL)
    assert caught.value.response["ResponseMetadata"]["HTTPHeaders"]["x-paceline"] == "never_fits"
    limiter = paceline.Limiter({"bedrock/*": "600 requests/min"})
    with paceline.instrument(limiter, provider="bedrock"):
        async with bedrock(9) as client:
            with pytest.raises(EndpointConnectionError):
                await client.converse(**CALL)
    pool = only_pool(limiter)
    assert pool["counts"]["granted"] == pool["counts"]["cancelled"] > 1


def test_a_crowd_is_never_refused():
    def calls(service):
        async def acall():
            async with bedrock(service.server_port) as client:
                await client.converse(**CALL)

        return None, acall

    bedrock_row("aiobotocore", "Bedrock over aiohttp", calls)
