"""The pools that clients name: bounded for each key, and forgotten when they are idle."""

import httpx2
import pytest
from gateway_helpers import CHAT, chat

from paceline.core.results import Refusal, RefusalKind
from paceline.gateway import models
from paceline.gateway.models import FEW, IDLE_S, MODELS_MAX, NamedModels
from paceline.limiter.limiter import Limiter


@pytest.fixture
def pools(clock):
    return Limiter({"openai/*": "60 requests/min"}, clock=clock).pacer.pools


def fill(named, pools, key, count, now_s=0.0):
    return [named.use(key, pools.of_model("openai", f"{key}-{number}"), now_s) for number in range(count)]


def test_idle_ones_are_forgotten_and_make_room(pools):
    named = NamedModels(pools)
    assert all(fill(named, pools, "a", MODELS_MAX))
    for _ in range(10):
        named.expire(IDLE_S - 1)
    assert len(pools.in_use) == MODELS_MAX
    for _ in range(10):
        named.expire(IDLE_S + 1)
    assert len(pools.in_use) == FEW
    assert named.use("a", pools.of_model("openai", "new"), IDLE_S + 1)


def test_the_last_used_are_kept(pools):
    named = NamedModels(pools)
    fill(named, pools, "a", FEW + 2)
    named.use("b", pools.of_model("openai", "a-0"), 1.0)  # of another key, which uses it, too
    named.expire(IDLE_S + 2)
    left = {scheduler.pool.name for scheduler in pools.in_use}
    assert {f"openai/a-{number}" for number in range(FEW + 2)} - left == {"openai/a-1", "openai/a-2"}


def test_a_pool_that_knows_of_requests_is_not_forgotten(clock):
    limiter = Limiter({"openai/*": "60 requests/min burst 2"}, clock=clock)
    pools = limiter.pacer.pools
    scheduler = pools.of_model("openai", "m")
    clock.advance(60)
    permit = limiter.acquire("openai/m").wait()
    clock.advance(60)
    assert not pools.forget(scheduler), "a request is in flight"
    permit.settle()
    limiter.acquire("openai/m").wait().settle()
    assert not pools.forget(scheduler), "its quota is not full"
    clock.advance(60)
    permit = limiter.acquire("openai/m").wait()
    permit.refused(Refusal(RefusalKind.RATE, retry_after_s=3_000.0))
    clock.advance(600)
    assert not pools.forget(scheduler), "it has a pause"
    clock.advance(3_600)
    assert pools.forget(scheduler)
    assert pools.of_model("openai", "m") is not scheduler


def test_the_gateway_refuses_one_name_too_many(serve, emulator, client, keys, monkeypatch):
    monkeypatch.setattr(models, "MODELS_MAX", 3)
    bad, good = ({"authorization": f"Bearer {keys.add(name)}"} for name in ("bad", "good"))
    running = serve(emulator.base_url)
    url = running.url + CHAT
    answers = [client.post(url, json=chat(model=f"m{number}"), headers=bad) for number in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[-1].json()["error"]["code"] == "paceline_models"
    assert len(running.limiter.status()["pools"]) == 3, "the pools of the others are forgotten at once"
    assert client.post(url, json=chat(model="m9"), headers=good).status_code == 200
    assert httpx2.get(url.removesuffix(CHAT) + "/readyz").status_code == 200
