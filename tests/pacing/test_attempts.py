"""``limiter.attempts``: one loop that waits, tries, and tries again when the provider refuses."""

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from tests.simulation.troubles import SimulatedStore, SimulatedWorker

import paceline
from paceline.pacing.breaker import Health
from paceline.pacing.tries import Tries
from paceline.planner.timeline import Timeline
from paceline.testing import ManualClock, run_virtual
from virtual_time import virtual
from waits import play

POOL = "openai/gpt-5"
RETRY = paceline.RetryPolicy(max_attempts=3, max_refused=3, backoff_s=2.0, jitter=0.0)
MONEY = '{"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}'
FULL = '{"error": {"message": "overloaded"}}'


def answered(status, body="{}", **headers):
    request = httpx.Request("POST", "https://api.openai.com/v1/responses")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx.Response(status, headers=named, text=body, request=request)
    return httpx.HTTPStatusError(f"status {status}", request=request, response=response)


class Call:
    """A call that raises what it is told to, one after the other, and then answers."""

    def __init__(self, *errors, clock=None, **options):
        self.clock, self.errors, self.at_s = clock or ManualClock(), list(errors), []
        self.began_ns = self.clock.now_ns()
        quotas = {POOL: "600 requests/min", "other": "60 requests/min"}
        self.limiter = paceline.Limiter(quotas, clock=self.clock, headroom_s=0.1, retry=RETRY, **options)

    def make(self, permit):
        self.at_s.append(round((self.clock.now_ns() - self.began_ns) / 1e9, 2))
        if self.errors:
            raise self.errors.pop(0)
        permit.settle()
        return "answer"

    def run(self, **options):
        """In virtual time."""

        async def main():
            said, attempts = None, self.limiter.attempts(POOL, **options)
            for attempt in attempts:
                async with attempt as permit:
                    said = self.make(permit)
            assert attempts.made == len(self.at_s)
            return said

        return run_virtual(main(), self.clock)

    @property
    def pool(self):
        return self.limiter.status()["pools"][POOL]


def test_a_block_may_return():
    call = Call(answered(429, retry_after="1"))

    def work():
        for attempt in call.limiter.attempts(POOL):
            with attempt as permit:
                return call.make(permit)
        raise AssertionError

    assert play(call.clock, work) == "answer"
    assert len(call.at_s) == 2


@pytest.mark.parametrize("tokens", [150, 2_000])
@pytest.mark.parametrize(
    ("limits", "before", "shared"),
    [
        ("30000 tokens/min", 0, False), ("30000 tokens/min", 60, False), ("3000 tokens/min", 0, False), ("8 concurrency", 0, False),
        ("600 requests/min", 0, True), ("30000 tokens/min", 0, True),
    ],
)  # fmt: skip
def test_a_refusal_that_is_only_a_text_says_nothing_of_the_level(limits, before, shared, tokens):
    """The retries go when the policy says, however many tokens the request has, and the next request waits for what was charged."""
    time = Timeline(1, 1_767_225_600)
    clock, at_s, cost = time.clock, [], {"input_tokens": tokens, "output_tokens": 0}
    limiter = paceline.Limiter({POOL: limits}, clock=clock, retry=replace(RETRY, max_attempts=4, max_refused=4))
    if shared:  # in virtual time, too: a thread would race with it
        options = {"on_store_failure": "fail_safe", "lease_s": None}
        limiter.pacer.pools.maker.worker = SimulatedWorker(SimulatedStore(time), "p", clock, **options)

    def now_s():
        return clock.now_ns() / 1e9

    async def main():
        for _ in range(before):
            async with limiter.acquire(POOL, input_tokens=150, output_tokens=0) as permit:
                permit.settle()
        await asyncio.sleep(1.5)
        for attempt in limiter.attempts(POOL, **cost):
            async with attempt as permit:
                at_s.append(now_s())
                if len(at_s) < 4:
                    raise RuntimeError("Rate limit exceeded for gpt-5")
                permit.settle()
        ended_s = now_s()
        small = dict(cost, input_tokens=150)
        async with limiter.acquire(POOL, **small) as permit:
            permit.settle()
        return now_s() - ended_s

    assert run_virtual(main(), clock) < 0.5
    assert [one - at_s[0] for one in at_s] == pytest.approx([0, 2, 6, 14], abs=0.3)  # a store answers after a moment


def test_when_none_is_left_the_error_says_how_many_and_why():
    last = answered(429, retry_after="3")
    call = Call(answered(429), answered(429), last)
    with pytest.raises(paceline.GaveUpError, match="3 attempts made") as caught:
        call.run()
    error = caught.value
    assert (error.pool, error.attempts, error.retry_after_s) == (POOL, 3, 3)
    assert (error.refusal.kind, error.__cause__) == (paceline.RefusalKind.RATE, last)
    assert (call.pool["counts"]["refused_rate"], call.pool["in_flight"]) == (3, 0)


def test_time_in_line_is_no_time_spent_on_it():
    call = Call(answered(429))
    call.limiter.pacer.pools.scheduler(POOL).pause(call.clock.now_ns() + 700 * 10**9)
    assert call.run() == "answer"
    assert call.at_s == pytest.approx([700, 702], abs=0.3)


@pytest.mark.parametrize("error", [answered(400), answered(500), ValueError("no")])
def test_any_other_error_goes_up_at_once(error):
    call = Call(error)
    with pytest.raises(type(error)) as caught:
        call.run()
    assert caught.value is error
    assert (call.at_s, call.pool["in_flight"]) == ([0], 0)


def test_whoever_met_full_servers_waits_alone():
    call = Call(answered(503, FULL, retry_after="5"))
    assert call.run() == "answer"
    assert call.at_s == [0, 5]
    assert call.pool["cool_down_s"] == 0


def test_full_servers_open_the_breaker_and_an_answer_closes_it():
    full = [answered(503, FULL, retry_after="1") for _ in range(2)]
    call = Call(*full, breaker=paceline.BreakerPolicy(failures=2, pause_s=60.0))
    assert call.run() == "answer"
    assert call.at_s == [0, 1, 2]


class TestFaultsByHand:
    """The breaker heeds them; the pool pauses after five in a row, and an answer ends that."""

    @pytest.fixture(autouse=True)
    def pools(self, clock):
        self.limiter = paceline.Limiter({POOL: "600 requests/min", "starts": "600 starts/min"}, clock=clock)

    def fail(self, error, times=5, *, pool=POOL, reported=False):
        for _ in range(times):
            cost = {"starts": 1} if pool == "starts" else {}
            with contextlib.suppress(type(error)), self.limiter.acquire(pool, **cost) as permit:
                if not reported:
                    raise error
                permit.failed(error)
        return self.limiter.status()["pools"][pool]["cool_down_s"]

    @pytest.mark.parametrize("reported", [False, True])
    @pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), httpx.ReadTimeout("no"), answered(502)])
    def test_five_in_a_row_pause_the_pool(self, error, reported):
        assert self.fail(error, 4, reported=reported) == 0
        assert self.fail(error, 1, reported=reported) == pytest.approx(1.0, abs=0.01)
        assert self.limiter.status()["pools"][POOL]["in_flight"] == 0

    def test_an_answer_between_ends_the_row_and_one_after_it_the_pause(self):
        for _ in range(3):
            assert self.fail(TimeoutError(), 4) == 0
            self.limiter.try_acquire(POOL).settle()
        held = self.limiter.try_acquire(POOL)
        assert self.fail(TimeoutError()) > 0
        held.settle()
        assert self.limiter.status()["pools"][POOL]["cool_down_s"] == 0

    @pytest.mark.parametrize("error", [ValueError("no"), answered(400), KeyError("x")])
    def test_another_error_is_none(self, error):
        assert self.fail(error, 9) == 0

    def test_in_a_pool_of_ones_own_only_what_is_reported_counts(self):
        assert self.fail(TimeoutError(), 9, pool="starts") == 0
        assert self.fail(TimeoutError(), 4, pool="starts", reported=True) == 0
        assert self.fail(TimeoutError(), 1, pool="starts", reported=True) == pytest.approx(1.0, abs=0.01)

    def test_they_count_where_limits_are_not_learned(self, clock):
        self.limiter = paceline.Limiter({POOL: "600 requests/min"}, clock=clock, learn=False)
        assert self.fail(TimeoutError()) > 0

    def test_without_a_connection_the_charge_is_given_back(self):
        self.limiter.try_acquire(POOL).failed(httpx.ConnectError("no"))
        self.limiter.try_acquire(POOL).failed()
        counts = self.limiter.status()["pools"][POOL]["counts"]
        assert (counts["cancelled"], counts["settled"]) == (1, 1)


def test_giving_up_pauses_others_only_for_what_is_theirs_too():
    once = paceline.RetryPolicy(max_attempts=1)
    for error, pause_s in (
        (answered(429, retry_after="50"), 50),
        (answered(503, FULL, retry_after="50"), 0),
        (answered(429, retry_after="86400"), 86_400),  # the stated end; a probe tests it before
        (answered(429, retry_after="3456000"), 15),  # nonsense: it ends with the probe
    ):
        call = Call(error)
        with pytest.raises(paceline.GaveUpError):
            call.run(retry=once)
        assert call.pool["cool_down_s"] == pytest.approx(pause_s, abs=0.3)


def test_no_attempt_starts_after_the_time_that_the_policy_allows():
    """Neither the pause after a refusal nor the queue behind it makes an attempt later than that."""
    brief = paceline.RetryPolicy(max_elapsed_s=5.0, jitter=0.0)
    call = Call(*[answered(429, retry_after="3")] * 9)
    with pytest.raises(paceline.GaveUpError, match="more than 5 s after the first"):
        call.run(retry=brief)
    assert call.at_s == [0, 3]
    call = Call(*[answered(429, retry_after="1")] * 9)
    call.run(retry=paceline.RetryPolicy(jitter=0.0))  # answered after nine refusals
    busy = Call(answered(429, retry_after="1"))

    async def main():
        for attempt in busy.limiter.attempts(POOL, retry=brief):
            async with attempt as permit:
                busy.limiter.pacer.pools.scheduler(POOL).pause(busy.clock.now_ns() + 60 * 10**9)
                busy.make(permit)

    with pytest.raises(paceline.GaveUpError, match="more than 5 s after the first") as caught:
        run_virtual(main(), busy.clock)
    assert (busy.at_s, caught.value.refusal.retry_after_s) == ([0], 1)
    assert busy.clock.now_ns() - busy.began_ns <= 5 * 10**9


@virtual
async def test_a_request_that_is_always_refused_blocks_no_other_and_is_given_up(clock):
    call, served = Call(clock=clock), []

    async def one(name):
        for attempt in call.limiter.attempts(POOL, retry=paceline.RetryPolicy(jitter=0.0)):
            async with attempt as permit:
                if name == "bad":
                    raise answered(429)
                permit.settle()
                served.append(name)

    outcomes = await asyncio.gather(*map(one, ["bad", *range(400)]), return_exceptions=True)
    assert sorted(served) == list(range(400))
    assert [type(outcome) for outcome in outcomes if outcome] == [paceline.GaveUpError]
    assert "others of the pool were admitted" in str(outcomes[0])


def test_a_pool_that_admits_nothing_stops_after_ten_minutes():
    call = Call(*[answered(429)] * 99)
    with pytest.raises(paceline.GaveUpError, match="has admitted nothing for"):
        call.run(retry=paceline.RetryPolicy(jitter=0.0))
    assert 600 <= call.at_s[-1] <= 720
    assert "has admitted nothing for" in call.pool["stopped"]


@virtual
async def test_an_error_that_is_caught_in_the_loop_ends_it(clock):
    call = Call(ValueError("no"), ValueError("no"), answered(429), answered(429), answered(429), clock=clock)
    for made in (1, 1, 3):
        attempts = call.limiter.attempts(POOL)
        for attempt in attempts:
            with contextlib.suppress(ValueError, paceline.GaveUpError):
                async with attempt as permit:
                    call.make(permit)
        assert attempts.made == made


@virtual
async def test_retries_at_full_servers_keep_to_the_budget_that_calls_earn(clock):
    """A tenth of a hundred calls a second is refused once: one retry earned by five calls is enough."""
    limiter, tasks = paceline.Limiter({"many": "60k requests/min"}, clock=clock, retry=RETRY, breaker=None), []

    async def one(refused):
        began_ns = clock.now_ns()
        for attempt in limiter.attempts("many"):
            async with attempt as permit:
                if refused:
                    refused = False
                    raise answered(503, FULL)
                permit.settle()
        return (clock.now_ns() - began_ns) / 1e9

    for number in range(2_000):
        tasks.append(asyncio.create_task(one(number % 10 == 0)))
        await asyncio.sleep(0.01)
    assert max(await asyncio.gather(*tasks)) < 5


@pytest.mark.parametrize(("error", "closes"), [(SystemExit(429), False), (answered(429), True)])
def test_neither_the_end_of_the_program_nor_an_error_after_the_permit_s_end_is_a_refusal(error, closes):
    call = Call()
    attempt = next(iter(call.limiter.attempts(POOL)))
    permit = attempt.__enter__()
    if closes:
        permit.settle()
    assert not attempt.__exit__(type(error), error, None)
    assert "refused_rate" not in call.pool["counts"]


def test_leaving_the_loop_is_allowed_and_forgetting_the_block_is_not():
    call = Call()
    for attempt in call.limiter.attempts(POOL):
        assert attempt
        break
    with pytest.raises(RuntimeError, match="with attempt as permit"):
        for _ in call.limiter.attempts(POOL):
            pass
    assert "granted" not in call.pool["counts"]


@pytest.mark.parametrize("quota", ["600 requests/min", "100k tokens/min", "9 concurrency", "99 requests/min exact"])
@pytest.mark.parametrize("refusal", [None, answered(429), "too many requests"], ids=["nothing", "a 429", "words"])
def test_a_refusal_without_a_wait_pauses_by_the_policy_whoever_reports_it(clock, quota, refusal):
    """Also of a gRPC call, whose exception is not an SDK's."""

    async def main(reported, refusals=2):
        limiter = paceline.Limiter({POOL: quota}, clock=clock, headroom_s=0.1, retry=RETRY)
        begun_ns, at_s = clock.now_ns(), []
        for attempt in limiter.attempts(POOL, tokens=10):
            async with attempt as permit:
                at_s.append(round((clock.now_ns() - begun_ns) / 1e9, 2))
                if len(at_s) <= refusals:
                    error = RuntimeError(refusal) if isinstance(refusal, str) else refusal
                    if not reported:
                        raise error or RuntimeError("rate limit")
                    permit.refused(error)
                else:
                    permit.settle()
        return at_s

    assert [run_virtual(main(reported), clock) for reported in (True, False)] == [[0, 2, 6]] * 2
    with pytest.raises(paceline.GaveUpError) as caught:
        run_virtual(main(reported=True, refusals=3), clock)
    assert caught.value.attempts == 3


def test_the_budget_of_retries_knows_what_other_threads_have_had_admitted_before_its_turn(monkeypatch):
    scheduler, known = Call().limiter.pacer.pools.scheduler(POOL), []
    enter, progress = scheduler.section.read, scheduler.pool.progress

    def read(*args):
        progress.admitted += 1
        return enter(*args)

    def ask(now_ns, admitted, due=0.0):
        known.append(admitted)
        return due

    monkeypatch.setattr(scheduler, "read", read)
    scheduler.retries = SimpleNamespace(spend=ask, wait_s=ask)
    Tries(RETRY, Health(ManualClock(), None)).failed(scheduler, None, None)
    assert known == [1, 2]
