from collections.abc import Iterator

import pytest
from redis_servers import Cluster, RedisServer, Sentinels, cluster, sentinel


@pytest.fixture(scope="session")
def _redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_server(_redis_server: RedisServer) -> RedisServer:
    """An empty server that also has no scripts; the test may kill or freeze it."""
    _redis_server.clear()
    return _redis_server


@pytest.fixture(scope="module")
def redis_sentinel() -> Iterator[Sentinels]:
    """Shared by the tests of a module: one that kills the master is the last, or has a ``sentinel()`` of its own."""
    with sentinel() as group:
        yield group


@pytest.fixture(scope="module")
def redis_cluster() -> Iterator[Cluster]:
    """Shared by the tests of a module: each has keys of its own."""
    with cluster() as nodes:
        yield nodes
