"""The share of the ideal speed of a run: of answers alone, by the limits that are in effect."""

import asyncio
import random
from dataclasses import dataclass

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.stated import HOST, Server

import paceline
from paceline.batch.ideal import IdealSpeed
from paceline.core.quota import NS
from paceline.testing import ManualClock, run_virtual

pytestmark = pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")
MESSAGES = [{"role": "user", "content": "Hi."}]


@dataclass
class World(Server):
    """A server whose answers may cost more than was held, which may fail and change its limit, and may state nothing."""

    tokens: int = 17
    faults: float = 0.0
    stating: bool = True
    later: int = 100  # the limit from ``change_s`` on
    change_s: float = 1e9

    async def handle_async_request(self, request):
        if self.now_s >= self.change_s:
            self.limit = self.later
        if self.dice.random() < self.faults:
            return httpx2.Response(self.dice.choice([500, 503, 429]), json={"error": {"message": "no"}})
        response = await super().handle_async_request(request)
        headers = dict(response.headers) if self.stating else {}
        headers.pop("content-length", None)
        body = response.json()
        if response.status_code == 200:
            tokens = self.dice.randint(1, self.tokens)
            body["usage"] = {"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5}
        return httpx2.Response(response.status_code, headers=headers, json=body)


def share_of(server, told, *, jobs=150, workers=30, limit_s=7_200.0, **options):
    """The share of the ideal speed of ``jobs`` requests by an attached client, and how many were answered."""
    ideal = IdealSpeed()

    async def main(clock):
        limiter = paceline.Limiter({f"{HOST}/m": told} if told else {}, clock=clock, **options)
        server.start_s, left, answered = asyncio.get_running_loop().time(), iter(range(jobs)), 0
        ideal.begin(clock.now_ns() / NS, limiter.status()["pools"])

        async def work(client):
            nonlocal answered
            for _ in left:
                body = {"model": "m", "messages": MESSAGES, "max_tokens": 5}
                response = await client.post("/v1/chat/completions", json=body)
                answered += response.status_code == 200
                ideal.take(limiter, response.extensions["paceline"])

        transport = httpx2.AsyncClient(transport=server, base_url=f"https://{HOST}", timeout=None)
        async with limiter.attach(transport) as client:
            try:
                async with asyncio.timeout(limit_s):
                    await asyncio.gather(*(work(client) for _ in range(workers)))
            except TimeoutError:
                pass
        return answered

    state = random.getstate()
    try:
        answered = run_virtual(main)
        return ideal.share, answered
    finally:
        random.setstate(state)


WORLDS = st.builds(
    World,
    rule=st.sampled_from(["window", "first", "oldest", "newest", "bucket"]),
    form=st.sampled_from(["epoch", "iso", "seconds"]),
    offset_s=st.sampled_from([0.0, 20.0]),
    limit=st.sampled_from([5, 40, 100]),
    period_s=st.sampled_from([5.0, 60.0]),
    latency_s=st.sampled_from([(0.0, 0.0), (0.2, 2.0), (1.0, 30.0)]),
    others=st.sampled_from([0, 3]),
    retry_after=st.booleans(),
    stating=st.booleans(),
    tokens=st.sampled_from([1, 20, 5_000]),
    faults=st.sampled_from([0.0, 0.1, 0.5]),
    later=st.sampled_from([5, 1_000]),
    change_s=st.sampled_from([3.0, 30.0, 1e9]),
    seed=st.integers(0, 99),
)
TOLD = st.sampled_from(
    [
        None, "40 requests/min", "1000 requests/min", "30 requests/min, 2k tokens/min", "10 requests/s, 200 tokens/s burst 50",
        "60 requests/min window", "50 requests/10s sliding, 3 concurrency", "100 requests/day, 900 tokens/min",
    ]
)  # fmt: skip


@given(WORLDS, TOLD, st.booleans(), st.sampled_from([1, 8, 60]))
@settings(max_examples=settings.default.max_examples // 4)
def test_no_share_is_above_one(server, told, learn, workers):
    share, _ = share_of(server, told, workers=workers, jobs=60, limit_s=900.0, learn=learn)
    assert share is None or 0 < share <= 1


def test_the_limits_of_a_lane_are_limits_too():
    lane = paceline.LaneSpec("default", limits=["60 requests/min burst 5"])
    share, answered = share_of(World(limit=1_000, stating=False), "1000 requests/min", lanes=[lane])
    assert answered == 150
    assert share > 0.9  # of 60 a minute, not of 1,000


def pool_of(*limits, **options):
    limiter = paceline.Limiter({"a/m": list(limits)}, learn=False, clock=ManualClock(), **options)
    return limiter, limiter.pacer.pools.scheduler("a/m")


def share_at(scheduler, answers, *, end_s=None, begin=(0.0, {})):
    """The share of ``answers``: instant and cost of each."""
    ideal = IdealSpeed()
    ideal.begin(*begin)
    for at_s, cost in answers:
        ideal.answered(scheduler, cost, at_s)
    ideal.sent(end_s or 0.0)
    return ideal.share


@pytest.mark.parametrize(
    ("limits", "answers", "end_s", "share"),
    [
        (["60 requests/min"], [(0.0, {})] * 60, 10.0, None),  # the burst holds everything
        (["60 requests/min"], [(float(n), {}) for n in range(60)], 100.0, None),  # it would have, though it took longer
        (["60 requests/min"], [(0.0, {})] * 60 + [(n + 1.0, {}) for n in range(30)], 30.0, 1.0),
        (["60 requests/min"], [(0.0, {})] * 60 + [(n + 1.0, {}) for n in range(30)], 60.0, 0.5),  # nothing after that
        (["60 requests/min"], [(2.0 * n, {}) for n in range(100)], 200.0, 0.2),  # 40 of 100 after the burst
        (["60 requests/min", "1k tokens/min"], [(0.0, {"tokens": 1e3}), (6.0, {"tokens": 100.0})], 6.0, 1.0),
        (["60 requests/min", "1k tokens/min"], [(0.0, {"tokens": 9e9}), (6.0, {"tokens": 9e9})], 6.0, 1.0),  # a debt
        (["60 requests/min", "1k tokens/min"], [(0.0, {"tokens": 9e9})], 0.0, None),
        (["2 concurrency"], [(float(n), {}) for n in range(9)], 9.0, None),
    ],
)
def test_the_share_is_what_the_limits_have_refilled_for_answers(limits, answers, end_s, share):
    found = share_at(pool_of(*limits)[1], answers, end_s=end_s)
    assert found == (share if share is None else pytest.approx(share))


def test_a_bucket_that_others_have_emptied_before_comes_back_first():
    limiter, scheduler = pool_of("60 requests/min")
    assert limiter.try_acquire("a/m", requests=58)
    before = limiter.status()["pools"]
    assert share_at(scheduler, [(60.0, {})] * 60, end_s=60.0, begin=(0.0, before)) == pytest.approx(58 / 60)
    assert share_at(scheduler, [(60.0, {})] * 60, end_s=60.0) is None


@pytest.mark.parametrize("limit", [6.0, 600.0])
def test_each_answer_counts_by_the_limit_in_effect(limit):
    _, scheduler = pool_of("60 requests/min")
    ideal = IdealSpeed()
    ideal.begin(0.0, {})
    for n in range(200):
        ideal.answered(scheduler, {}, max(n - 59, 0.0))
    scheduler.pool.ledger.adopt(scheduler.now_ns(), 0, limit)
    after_s = 140.0
    for _ in range(200):
        after_s += 60.0 / limit
        ideal.answered(scheduler, {}, after_s)
    assert 0.9 < ideal.share <= 1


def test_windows_count_whole_from_their_known_starts():
    whole = [(101, 20.0, 1.0), (200, 20.0, 1.0), (300, 80.0, 1.0)]
    for answers, end_s, share in [(100, 15.0, None), (101, 40.0, 0.5), *whole]:
        _, scheduler = pool_of("100 requests/min")
        begin_s = scheduler.now_ns() / NS
        scheduler.pool.ledger.count_restarts(scheduler.now_ns(), 0, scheduler.now_ns() + 20 * NS, 0.0, whole=True)
        given = [(begin_s + max(n // 100 * 60.0 - 39.999, 0.0), {}) for n in range(answers)]
        found = share_at(scheduler, given, end_s=begin_s + end_s, begin=(begin_s, {}))
        assert found == (share if share is None else pytest.approx(share, abs=0.001)), answers


def test_more_than_a_window_admits_is_not_more_than_all_windows():
    _, scheduler = pool_of("100 requests/min")
    begin_s = scheduler.now_ns() / NS
    scheduler.pool.ledger.count_restarts(scheduler.now_ns(), 0, scheduler.now_ns() + 60 * NS, 0.0, whole=True)
    given = [(begin_s + at_s, {"requests": 250.0}) for at_s in (1.0, 61.0, 121.0)]
    assert 0.9 < share_at(scheduler, given, begin=(begin_s, {})) <= 1


def test_refused_attempts_are_no_work_and_there_is_no_ideal_beside_a_measured_limit():
    share, answered = share_of(World(rule="bucket", limit=100, others=3), "1000 requests/min", jobs=200)
    assert answered == 200
    assert 0.9 < share <= 1
    share, answered = share_of(World(rule="bucket", limit=20, stating=False), "600 requests/min", jobs=30)
    assert (share, answered) == (None, 30)


def test_a_joint_limit_binds_too():
    _, scheduler = pool_of("600 requests/min", joint_limits={"a/*": "6 requests/min"})
    answers = [(0.0, {})] * 6 + [(10.0 * n, {}) for n in range(1, 7)]
    assert share_at(scheduler, answers) == pytest.approx(1)
