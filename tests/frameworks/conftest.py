"""The world that the SDKs' suites run in: an emulated provider and a limiter that knows its limits."""

import sys
from pathlib import Path

import pytest
from engine_world import provider_for_workers
from gateway_world import Gateway, Recorder
from harness import LIMITS, MODELS

import paceline


@pytest.fixture
def world(paceline_emulator):
    return paceline_emulator(limits=MODELS)


@pytest.fixture
def limiter(request):
    """Knows the limits of every provider, or of the module's ``PROVIDER`` alone, whose requests those to loopback then are."""
    provider = getattr(request.module, "PROVIDER", None)
    return paceline.Limiter({f"{provider}/*": LIMITS[f"{provider}/*"]} if provider else LIMITS)


@pytest.fixture(scope="module")
def recorder():
    """A server that records."""
    with Recorder() as recorder:
        yield recorder


@pytest.fixture(scope="module")
def gateway(tmp_path_factory, recorder):
    """A gateway in front of it."""
    with Gateway(tmp_path_factory.mktemp("gateway"), recorder.url) as gateway:
        yield gateway
    assert "Traceback" not in gateway.log


@pytest.fixture(scope="session")
def redis_server():
    """A Redis server, as the project's own tests start it."""
    tests = Path(__file__).parents[1]
    sys.path += [str(tests / "stores"), str(tests)]
    from redis_servers import RedisServer

    with RedisServer() as server:
        yield server


@pytest.fixture
def provider(redis_server):
    """A provider for the workers of an engine, whose quotas and journals are in a Redis."""
    redis_server.clear()
    with provider_for_workers(redis_server.url) as one:
        yield one
