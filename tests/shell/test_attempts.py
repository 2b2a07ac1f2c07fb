"""``limiter.attempts``: one loop that waits, tries, and tries again when the provider refuses."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest

import paceline
from paceline.testing import ManualClock, run_virtual

POOL = "openai/gpt-5"
RETRY = paceline.RetryPolicy(max_attempts=3, backoff_s=2.0, jitter=0.0)
MONEY = '{"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}'


def answered(status, body="{}", **headers):
    request = httpx.Request("POST", "https://api.openai.com/v1/responses")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx.Response(status, headers=named, text=body, request=request)
    return httpx.HTTPStatusError(f"status {status}", request=request, response=response)


class Call:
    """A call that raises what it is told to, one after the other, and then answers."""

    def __init__(self, *errors, **options):
        self.clock, self.errors, self.at_s = ManualClock(), list(errors), []
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
            said = None
            for attempt in self.limiter.attempts(POOL, **options):
                async with attempt as permit:
                    said = self.make(permit)
            return said

        return run_virtual(main(), self.clock)

    @property
    def pool(self):
        return self.limiter.status()["pools"][POOL]


def test_an_answer_ends_it():
    call = Call()
    assert call.run() == "answer"
    assert call.at_s == [0]
    assert (call.pool["in_flight"], call.pool["counts"]["granted"]) == (0, 1)


def test_a_block_may_return():
    call = Call(answered(429, retry_after="1"))

    def work():
        for attempt in call.limiter.attempts(POOL):
            with attempt as permit:
                return call.make(permit)
        raise AssertionError

    thread = threading.Thread(target=lambda: said.append(work()))
    said = []
    thread.start()
    while thread.is_alive():
        call.clock.advance(0.1)
        thread.join(0.001)
    assert said == ["answer"]
    assert len(call.at_s) == 2


def test_retry_after_wins_and_the_pause_is_everybodys():
    call = Call(answered(429, retry_after="7"))
    seen = []

    async def main():
        async def another():
            async with call.limiter.acquire(POOL):
                seen.append(round((call.clock.now_ns() - call.began_ns) / 1e9, 1))

        for attempt in call.limiter.attempts(POOL):
            async with attempt as permit:
                if call.at_s:  # again: in front of whoever came in between
                    assert not seen
                else:
                    tasks.append(asyncio.create_task(another()))
                call.make(permit)
        await tasks[0]

    tasks = []
    run_virtual(main(), call.clock)
    assert call.at_s == [0, 7]
    assert seen
    assert seen[0] >= 7


def test_pauses_double_where_nobody_names_one():
    call = Call(answered(429), answered(429))
    assert call.run() == "answer"
    assert call.at_s == pytest.approx([0, 2, 6], abs=0.3)  # and what a quota of 10/s takes that was found empty


def test_when_none_is_left_the_error_says_how_many_and_why():
    last = answered(429, retry_after="3")
    call = Call(answered(429), answered(429), last)
    with pytest.raises(paceline.GaveUpError, match="3 attempts made") as caught:
        call.run()
    error = caught.value
    assert (error.pool, error.attempts, error.retry_after_s) == (POOL, 3, 3)
    assert error.refusal.kind is paceline.RefusalKind.RATE
    assert error.__cause__ is last
    assert call.pool["counts"]["refused_rate"] == 3
    assert call.pool["in_flight"] == 0


def test_time_in_line_is_no_time_spent_on_it():
    call = Call(answered(429))
    call.limiter.gate(POOL).pause(call.clock.now_ns() + 700 * 10**9)
    assert call.run() == "answer"
    assert call.at_s == pytest.approx([700, 702], abs=0.3)


def test_another_policy_for_one_call():
    call = Call(answered(429))
    with pytest.raises(paceline.GaveUpError):
        call.run(retry=paceline.RetryPolicy(max_attempts=1))


@pytest.mark.parametrize("error", [answered(400), answered(500), ValueError("no")])
def test_any_other_error_goes_up_at_once(error):
    call = Call(error)
    with pytest.raises(type(error)) as caught:
        call.run()
    assert caught.value is error
    assert call.at_s == [0]
    assert call.pool["in_flight"] == 0


def test_money_is_not_waited_for():
    call = Call(answered(429, MONEY))
    with pytest.raises(paceline.GaveUpError, match="waiting cannot help"):
        call.run()
    assert call.pool["stopped"]


def test_whoever_met_full_servers_waits_alone():
    call = Call(answered(503, '{"error": {"message": "overloaded"}}', retry_after="5"))
    assert call.run() == "answer"
    assert call.at_s == [0, 5]
    assert call.pool["cool_down_s"] == 0


def test_full_servers_open_the_breaker_and_an_answer_closes_it():
    full = [answered(503, '{"error": {"message": "overloaded"}}', retry_after="1") for _ in range(2)]
    call = Call(*full, breaker=paceline.BreakerPolicy(failures=2, pause_s=60.0))
    assert call.run() == "answer"
    assert call.at_s == [0, 1, 61]


def test_a_permit_that_the_block_has_closed_is_its_own_affair():
    call = Call()
    error = answered(429)

    async def main():
        for attempt in call.limiter.attempts(POOL):
            async with attempt as permit:
                permit.settle()
                raise error

    with pytest.raises(httpx.HTTPStatusError):
        run_virtual(main(), call.clock)
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


def test_a_name_that_nobody_knows():
    with pytest.raises(paceline.QuotaError, match="requets"):
        Call().limiter.attempts("other", requets=1)
