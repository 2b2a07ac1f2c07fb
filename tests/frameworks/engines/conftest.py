"""A provider for each test, and a Redis with the quotas and the journals of its workers."""

import sys
from pathlib import Path

import pytest
from engine_world import provider_for_workers

sys.path += [str(Path(__file__).parents[2] / "stores"), str(Path(__file__).parents[2])]

from redis_servers import RedisServer


@pytest.fixture(scope="session")
def redis_server():
    with RedisServer() as server:
        yield server


@pytest.fixture
def provider(redis_server):
    redis_server.clear()
    with provider_for_workers(redis_server.url) as one:
        yield one
