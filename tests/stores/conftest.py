from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from redis_servers import Cluster, RedisServer, Sentinels, cluster, sentinel

from paceline.stores.redis import RedisStore


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store; tests of one kind of store have its object by this name."""
    return f"sqlite:{tmp_path / 'q.db'}" if request.param == "sqlite" else request.getfixturevalue("redis_server").url


@pytest.fixture
def redis_at() -> Iterator[Callable[..., RedisStore]]:
    """Make stores, by their URL or client, which are closed when the test ends."""
    with ExitStack() as opened:
        yield lambda given, timeout_s=5.0, **options: opened.enter_context(
            closing(RedisStore(given, timeout_s=timeout_s, **options))
        )


@pytest.fixture(scope="session")
def _redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_server(_redis_server: RedisServer) -> RedisServer:
    """An empty server that also has no scripts; the test may kill or freeze it."""
    _redis_server.clear()
    return _redis_server


@pytest.fixture(scope="session")
def _redis_sentinel() -> Iterator[Sentinels]:
    with sentinel() as group:
        group.look_every(10_000, 2_000)  # as by default: often takes 2 % of a core, until the last test has ended
        yield group


@pytest.fixture
def redis_sentinel(_redis_sentinel: Sentinels) -> Sentinels:
    """A master without keys and its Sentinels, which a test may freeze; one that kills the master has its own."""
    _redis_sentinel.master.ask("FLUSHALL")
    return _redis_sentinel


@pytest.fixture(scope="session")
def _redis_cluster() -> Iterator[Cluster]:
    with cluster() as nodes:
        yield nodes


@pytest.fixture
def redis_cluster(_redis_cluster: Cluster) -> Cluster:
    """A cluster without keys, whose nodes a test may freeze."""
    for node in _redis_cluster.nodes:
        node.ask("FLUSHALL")
    return _redis_cluster
