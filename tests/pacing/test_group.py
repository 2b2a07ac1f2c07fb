"""A group of pools: where each request goes, and three regions before three emulated providers."""

import asyncio
from collections import Counter

import httpx2
import pytest

import paceline
from paceline.emulator import Refused, Settings, World
from paceline.http.describe import describe
from paceline.http.httpx import HttpxRequest
from paceline.http.routed import RoutedExchange, Way
from paceline.providers.registry import changed, provider_named
from paceline.testing import ManualClock
from virtual_time import virtual
from waits import gone

QUOTA = "500 requests/min"
CHAT = "/v1/chat/completions"
MEMBERS = ("one.example", "two.example")


def group_of(clock, quotas, **options):
    limiters = {name: paceline.Limiter({"jobs": quota}, clock=clock) for name, quota in quotas.items()}
    return paceline.Group({name: (limiter, "jobs") for name, limiter in limiters.items()}, **options), limiters


class Regions:
    """Three regions, each with a provider of its own, and workers that never run out of work."""

    def __init__(self, clock, quotas, **options):
        self.clock, self.group = clock, group_of(clock, quotas, **options)[0]
        self.worlds = {
            name: World(Settings(limits={"m": quota}, latency_s=1.0, headers=False), clock.now_ns() / 1e9)
            for name, quota in quotas.items()
        }
        self.sent, self.refused = [], Counter()

    @property
    def now_s(self):
        return self.clock.now_ns() / 1e9

    async def work(self):
        while True:
            async with self.group.acquire() as (member, permit):
                answer = self.worlds[member].admit(self.now_s, "m", 10, 10)
                if isinstance(answer, Refused):
                    self.refused[member] += 1
                    permit.refused(retry_after_s=answer.wait_s)
                    continue
                self.sent.append((self.now_s, member))
                await asyncio.sleep(answer.duration_s)
                self.worlds[member].finish(self.now_s, answer)
                permit.settle()

    def rate(self, from_s, to_s, *members):
        sent = sum(from_s <= at < to_s and (not members or member in members) for at, member in self.sent)
        return sent / (to_s - from_s) * 60


@virtual
async def test_three_regions_are_used_in_full_and_one_goes_away_and_comes_back(clock):
    regions = Regions(clock, dict.fromkeys(["eu", "us", "asia"], "250 requests/min"))
    start_s = regions.now_s
    tasks = [asyncio.create_task(regions.work()) for _ in range(50)]
    await asyncio.sleep(60)
    limiter, pool = regions.group.members["us"]
    limiter.pacer.pools.scheduler(pool).pause(clock.now_ns() + 40 * 10**9)
    await asyncio.sleep(120)
    await gone(tasks)
    assert regions.refused == {}
    assert regions.rate(start_s + 75, start_s + 100, "eu", "asia") >= 0.98 * 500
    assert regions.rate(start_s + 75, start_s + 100, "us") == 0
    assert min(regions.rate(start_s + 120, start_s + 180, member) for member in regions.worlds) >= 0.98 * 250


def test_weights_decide_where_all_are_free(clock):
    group, _ = group_of(clock, {"a": "10k requests/min", "b": "10k requests/min"}, weights={"a": 3})
    assert Counter(group.acquire().wait()[0] for _ in range(40)) == {"a": 30, "b": 10}


def test_in_order_the_second_is_used_when_the_first_is_full(clock):
    group, _ = group_of(clock, {"own": "60 requests/min burst 10", "more": "6000 requests/min"}, in_order=True)
    taken = Counter(group.acquire().wait()[0] for _ in range(30))
    assert taken["own"] in (9, 10)  # less the headroom
    clock.advance(5)
    assert [group.acquire().wait()[0] for _ in range(4)] == ["own"] * 4


def test_a_conversation_stays_where_it_is(clock):
    group, _ = group_of(clock, dict.fromkeys(["a", "b", "c"], "6000 requests/min"))
    keys = [f"conversation {n}" for n in range(60)]
    first = {key: group.acquire(sticky=key).wait()[0] for key in keys}
    assert {key: group.acquire(sticky=key).wait()[0] for key in keys} == first
    assert min(Counter(first.values()).values()) > 8
    fewer, _ = group_of(clock, dict.fromkeys(["a", "b"], "6000 requests/min"))
    moved = {key for key in keys if fewer.acquire(sticky=key).wait()[0] != first[key]}
    assert moved == {key for key in keys if first[key] == "c"}


def test_a_conversation_moves_when_its_member_is_much_later(clock):
    group, limiters = group_of(clock, {"a": "60 requests/min burst 10", "b": "60 requests/min burst 10"})
    home, _ = group.acquire(sticky="x").wait()
    limiters[home].pacer.pools.scheduler("jobs").pause(clock.now_ns() + 60 * 10**9)
    assert group.acquire(sticky="x").wait()[0] != home


def test_a_member_without_money_is_left_out(clock):
    group, limiters = group_of(clock, {"a": QUOTA, "b": QUOTA})
    permit = limiters["a"].acquire("jobs").wait()
    permit.refused(paceline.Refusal(paceline.RefusalKind.MONEY, message="no credit"))
    assert limiters["a"].status()["pools"]["jobs"]["stopped"]
    assert {group.acquire().wait()[0] for _ in range(10)} == {"b"}


def test_a_request_that_fits_nowhere(clock):
    group, _ = group_of(clock, {"a": "100 tokens/min", "b": "200 tokens/min"})
    assert group.acquire(tokens=150).wait()[0] == "b"
    with pytest.raises(paceline.NeverFitsError):
        group.acquire(tokens=250).wait()


def test_a_timeout_is_for_all_members(clock):
    group, limiters = group_of(clock, {"a": QUOTA, "b": QUOTA})
    for limiter in limiters.values():
        limiter.pacer.pools.scheduler("jobs").pause(clock.now_ns() + 60 * 10**9)
    with pytest.raises(paceline.AcquireTimeoutError):
        group.acquire(timeout=3).wait()


@virtual
async def test_slots_that_become_free_elsewhere_are_taken_and_places_remain(clock):
    """How long a request waits for a slot is unknown: it is not bound to the member at which it began to wait."""
    group, _ = group_of(clock, dict.fromkeys(["a", "b"], "1 concurrency"))
    held = dict([await group.acquire() for _ in range(2)])
    began_s, went = clock.now_ns() / 1e9, []

    async def ask(number):
        _, permit = await group.acquire()
        went.append((number, round(clock.now_ns() / 1e9 - began_s)))
        permit.settle()

    tasks = [asyncio.ensure_future(ask(number)) for number in range(4)]
    await asyncio.sleep(3)
    tasks += [asyncio.ensure_future(ask(number)) for number in (4, 5)]
    await asyncio.sleep(8)
    held.pop("b").settle()  # half of them wait there, in their order
    await asyncio.gather(*tasks)
    held.pop("a").settle()
    assert went == [(0, 11), (2, 11), (4, 11), (5, 13), (1, 15), (3, 15)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": {"c": 1}}, "'c', which is no member"),
        ({"weights": {"a": 0}}, "must be a number above 0"),
        ({"sticky_s": -1}, "0 s or more"),
    ],
)
def test_wrong_options(options, said):
    with pytest.raises(paceline.QuotaError, match=said):
        group_of(ManualClock(), {"a": QUOTA, "b": QUOTA}, **options)
    with pytest.raises(paceline.QuotaError, match="one member or more"):
        paceline.Group({})
    with pytest.raises(paceline.QuotaError, match=r"member 'eu' of a group is <Limiter.*write it like \(limiter, "):
        paceline.Group({"eu": paceline.Limiter({"jobs": QUOTA})})


REFUSED = {"error": {"message": "Rate limit reached on requests per min (RPM).", "code": "rate_limit_exceeded"}}


@pytest.mark.sample(4)
@pytest.mark.parametrize("wait_s", [8, 30, 90])
@pytest.mark.parametrize("timeout_s", [None, 200.0])
@pytest.mark.parametrize("door", ["group", "routed"])
@virtual
async def test_a_refused_attempt_is_made_again_however_long_the_wait(clock, door, timeout_s, wait_s):
    """The time after which another member would be chosen is no deadline of the request."""
    seen = Counter()

    async def server(request):
        seen[request.url.host] += 1
        await asyncio.sleep(0.2)
        if seen[request.url.host] == 3:
            return httpx2.Response(429, headers={"retry-after": str(wait_s)}, json=REFUSED)
        usage = {"prompt_tokens": 5, "completion_tokens": 5}
        return httpx2.Response(200, json={"choices": [{"message": {"content": "x"}}], "usage": usage})

    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    limiter = paceline.Limiter({f"{name}/m": "120 requests/min burst 4" for name in MEMBERS}, clock=clock)
    clients = {name: httpx2.AsyncClient(transport=httpx2.MockTransport(server)) for name in MEMBERS}
    group = paceline.Group({name: (limiter, f"{name}/m") for name in MEMBERS})

    async def in_group():
        async with group.acquire(input_tokens=9, output_tokens=5, timeout=timeout_s) as (member, permit):
            response = await limiter.attach(clients[member]).post(f"https://{member}{CHAT}", json=body)
            permit.settle()
            return response.status_code

    async def routed():
        def way(name):
            request = clients[name].build_request("POST", f"https://{name}{CHAT}", json=body)
            http = HttpxRequest(clients[name].send, request, is_async=True)
            described = describe(limiter.pacer, changed(provider_named("openai"), name=name), CHAT, request.content)
            return Way(http, described)

        ways = {name: way(name) for name in MEMBERS}
        response = await RoutedExchange(limiter.pacer, ways, group.choice, timeout_s=timeout_s).run()
        return response.status_code

    one = in_group if door == "group" else routed
    assert Counter(await asyncio.gather(*(one() for _ in range(20)))) == {200: 20}
    assert sum(seen.values()) > 20
