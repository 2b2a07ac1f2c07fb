"""The public suite, run for Redis: alone, behind Sentinels and in a cluster."""

from functools import partial

import pytest

from paceline.stores.redis import RedisStore
from paceline.testing import StoreConformance


class TestRedisStore(StoreConformance):
    @pytest.fixture
    def url(self, redis_server):
        return redis_server.url

    @pytest.fixture
    def store(self, url):
        store = RedisStore(url, timeout_s=5.0)
        yield store
        store.close()

    second = store

    @pytest.fixture
    def opener(self, url):
        return partial(RedisStore, url, timeout_s=5.0)

    @pytest.fixture
    def broken(self, url):
        return RedisStore("redis://127.0.0.1:1")


@pytest.mark.long("the suite over a third sort of connection")
class TestRedisStoreWithSentinels(TestRedisStore):
    @pytest.fixture
    def url(self, redis_sentinel):
        return redis_sentinel.url


class TestRedisStoreInACluster(TestRedisStore):
    @pytest.fixture
    def url(self, redis_cluster):
        return redis_cluster.url

    @pytest.mark.long("starts several processes, as test_two_processes_share of TestRedisStore does")
    def test_two_processes_share(self, request):
        super().test_two_processes_share(request)
