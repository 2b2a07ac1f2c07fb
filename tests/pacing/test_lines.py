"""The log lines of waits, permits, refusals and retries: their text, level and fields; and how many there are at most."""

import asyncio
import logging
import re
from collections import deque
from pathlib import Path

import httpx2
import pytest

import paceline
from paceline.core import results
from paceline.core.quota import NS
from paceline.core.results import NO_ANSWER, NOT_QUOTAS, Reading
from paceline.emulator.rules import BucketRule
from paceline.pacing import lines
from paceline.testing import ManualClock, run_virtual
from virtual_time import virtual
from waits import started, until

LOGGER = "paceline.rate_limit"
POOL = "openai/gpt-4o"
QUOTAS = {POOL: ["500 requests/min", "30k tokens/min"]}


def limiter_of(quotas=None, **options):
    return paceline.Limiter(quotas or QUOTAS, **{"clock": ManualClock(), "headroom_s": 0, "learn": False, **options})


@pytest.fixture
def logged(caplog):
    """Records of the lines, at any level: ``logged(logging.INFO)``."""

    def at(level):
        caplog.set_level(level, LOGGER)
        return caplog.records

    yield at
    caplog.set_level(logging.NOTSET, LOGGER)


def texts(records):
    return [record.getMessage() for record in records]


def wait(limiter, *acquired):
    """Acquire all at once, in virtual time."""

    async def main():
        async def one(pool, **options):
            (await limiter.acquire(pool, **options)).settle()

        await asyncio.gather(*(one(pool, **options) for pool, options in acquired))

    run_virtual(main(), limiter.pacer.clock)


class TestWaits:
    @virtual
    async def test_before_the_wait_with_the_quota_and_the_caller(self, clock, logged):
        records, limiter = logged(logging.INFO), limiter_of(clock=clock)
        limiter.try_acquire(POOL, tokens=27_500).settle()
        waiting = asyncio.ensure_future(limiter.acquire(POOL, name="agent-7", tokens=4_100))
        await asyncio.sleep(0)
        said = "Rate limit: waiting 3.2 s for tokens/min of openai/gpt-4o (27,500 of 30,000 used), agent-7"
        assert texts(records) == [said]
        assert not waiting.done()
        (await waiting).settle()
        [record] = records
        assert (record.levelname, record.name) == ("INFO", LOGGER)
        fields = ("event", "pool", "lane", "caller", "expected_wait_s", "quota", "used", "limit", "ahead", "left_out")
        assert [getattr(record, name) for name in fields] == [
            "rate_limit.wait", POOL, "default", "agent-7", 3.2, "30k tokens/min", 27_500, 30_000, 0, 0,
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("quotas", "before", "pool", "options", "text"),
        [
            ("1 requests/min", lambda it: it.try_acquire("jobs").settle(), "jobs", {"lane": "night"},
             " 60.0 s for requests/min of jobs (1 of 1 used), lane night"),
            ("60 requests/min burst 3", lambda it: it.try_acquire("jobs", requests=3).settle(), "jobs", {},
             " 1.0 s for requests/min of jobs (3 of 3 used)"),
            ("1 concurrency", lambda it: it.try_acquire("jobs"), "jobs", {"name": "b"},
             " for concurrency of jobs (1 of 1 used), b"),
            ("9 requests/s", lambda it: it.try_acquire("openai/a"), "openai/b", {"name": "judge"},
             " for concurrency of openai/in flight (1 of 1 used), judge"),
            ("9 requests/s", lambda it: it.try_acquire("openai/a").refused(retry_after_s=20), "openai/a", {},
             " 20.0 s for the cool-down of openai/a"),
            ("9 requests/s", lambda it: it.pacer.pools.scheduler("jobs").pause(it.pacer.clock.now_ns() + 20 * NS, NO_ANSWER),
             "jobs", {}, " 20.0 s for an answer of jobs"),
        ],
    )  # fmt: skip
    @virtual
    async def test_for_what(self, clock, logged, quotas, before, pool, options, text):
        records = logged(logging.INFO)
        limiter = limiter_of({"jobs": quotas, "openai/*": quotas}, concurrency={"openai": 1}, clock=clock)
        held = before(limiter)
        waiting = asyncio.create_task(limiter.acquire(pool, **options)._wait_async())
        await asyncio.sleep(1)
        if held is not None:
            held.settle()
        (await waiting).settle()
        assert texts(records[-1:]) == [f"Rate limit: waiting{text}"]
        assert (records[-1].expected_wait_s is None) == (held is not None), "of a slot it is not known how long"

    def test_with_the_requests_ahead(self, logged):
        records, limiter = logged(logging.INFO), limiter_of({"starts/gemini": "6 starts/min"})
        wait(limiter, *(("starts/gemini", {"starts": 1, "name": f"agent_{number:02}"}) for number in range(1, 51)))
        said = "Rate limit: waiting 10.0 s for starts/min of starts/gemini (6 of 6 used), agent_07"
        assert (len(records), records[0].getMessage()) == (44, said)
        assert records[-1].getMessage().endswith("(6 of 6 used), agent_50")
        assert (records[-1].expected_wait_s, records[-1].ahead) == (440, 43)

    def test_what_a_pool_notices_is_a_line_of_its_own(self, caplog):
        scheduler = limiter_of().pacer.pools.scheduler(POOL)
        scheduler.pool.notices.append("no answer for 12.0 s")
        scheduler.observe([], None)
        assert caplog.messages == [f"{POOL}: no answer for 12.0 s"]

    def test_a_silence_is_told_while_no_answer_comes(self, caplog):
        limiter = limiter_of({"jobs": "6000 requests/min"})
        limiter.try_acquire("jobs").settle(requests=1)
        for wait_s in (0, 0, 0, 0, 0, 13, 2):
            limiter.pacer.clock.advance(wait_s)
            assert limiter.try_acquire("jobs")
        [line] = caplog.messages
        assert line.startswith("jobs: no answer for 15.0 s, with 6 requests in flight")

    def test_what_an_exchange_with_the_store_has_taught_is_told_after_it(self, caplog):
        scheduler = limiter_of().pacer.pools.scheduler(POOL)
        scheduler.section.transact(lambda _: scheduler.pool.notices.append("paceline measures it"))
        assert caplog.messages == [f"{POOL}: paceline measures it"]

    def test_of_two_threads_that_look_for_a_notice_one_logs_it(self, caplog):
        scheduler = limiter_of().pacer.pools.scheduler(POOL)

        class Taken(deque):
            def popleft(self):
                self.clear()
                return super().popleft()

        scheduler.pool.notices = Taken(["no answer for 12.0 s"])
        scheduler.observe([], None)
        assert not caplog.messages

    def test_a_forked_child_does_not_repeat_what_its_parent_says(self, caplog):
        scheduler = limiter_of().pacer.pools.scheduler(POOL)
        scheduler.pool.notices.append("no answer for 12.0 s")
        scheduler.after_fork()
        scheduler.observe([], None)
        assert not caplog.messages

    def test_what_is_no_quota_has_its_words_and_stands_on_the_page(self):
        names = {value for name, value in vars(results).items() if name.isupper() and isinstance(value, str)}
        assert names == set(NOT_QUOTAS), "each of these constants needs its row in NOT_QUOTAS of core/results.py"
        page = Path(__file__).parents[2].joinpath("docs", "by_hand.md").read_text("utf-8")
        told = page.partition("`quota` is the quota that binds")[2].partition("\n\n")[0]
        assert set(re.findall(r"`([^`]+)`", told)) == set(NOT_QUOTAS), "docs/by_hand.md names what binds"

    @pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")
    @virtual
    async def test_for_a_limit_that_is_measured(self, clock, logged):
        """The first lines are written before a rate is known, the last one after refusals of all but one a second."""
        records, limiter = logged(logging.INFO), limiter_of(learn=True, clock=clock)
        began_s = clock.now_ns() / NS
        provider = BucketRule(60, 60, began_s)
        provider.charge(began_s, 50)

        async def one():
            for attempt in limiter.attempts("vllm/a"):
                async with attempt as permit:
                    now_s = clock.now_ns() / NS
                    if not provider.fits(now_s, 1):
                        permit.refused()
                        continue
                    provider.charge(now_s, 1)
                    permit.settle()

        await asyncio.gather(*(one() for _ in range(60)))
        lines = [record for record in records if "waiting" in record.getMessage()]
        assert re.fullmatch(r"Rate limit: waiting [\d.]+ s for requests of vllm/a", lines[0].getMessage())
        assert (lines[0].used, lines[0].limit) == (None, None)
        measured = [one for one in lines if one.limit]
        said = r"Rate limit: waiting [\d.]+ s for requests/min of vllm/a \(\d+ measured\)"
        assert re.fullmatch(said, measured[-1].getMessage())
        assert measured[-1].used is None

    def test_of_a_shared_pool_when_its_store_has_answered(self, logged, world):
        records = logged(logging.INFO)
        other, limiter = (world.limiter("60 requests/min burst 3", headroom_s=0) for _ in range(2))
        world.join(other)
        for _ in range(3):
            world.take(other).settle()
        world.quiet()
        thread = started(lambda: limiter.acquire("jobs", name="a").wait().settle())
        until(lambda: records, "the line")
        assert texts(records) == ["Rate limit: waiting 1.0 s for requests/min of jobs (3 of 3 used), a"]
        until(lambda: world.move(1) or not thread.is_alive(), "the end of the wait")
        assert len(records) == 1

    def test_a_short_wait_is_for_debugging(self, logged):
        records, limiter = logged(logging.INFO), limiter_of({"jobs": "120 requests/min burst 1"})
        wait(limiter, ("jobs", {}), ("jobs", {}))
        assert records == []
        logged(logging.DEBUG)
        limiter.pacer.clock.advance(60)
        wait(limiter, ("jobs", {}), ("jobs", {}))
        waits = [record for record in records if record.event == "rate_limit.wait"]
        assert [(one.levelname, one.expected_wait_s) for one in waits] == [("DEBUG", 0.5)]

    def test_hundreds_write_a_bounded_number(self, logged):
        records, limiter = logged(logging.INFO), limiter_of({"jobs": "60 requests/min burst 1"})
        wait(limiter, *(("jobs", {}) for _ in range(501)))
        assert len(records) == lines.LINES_MAX
        wait(limiter, ("jobs", {}), ("jobs", {}), ("jobs", {}))
        assert len(records) > lines.LINES_MAX
        assert records[lines.LINES_MAX].left_out == 400
        assert records[lines.LINES_MAX].getMessage().endswith("used); 400 such lines were left out")

    def test_waits_that_are_not_noticed_are_not_counted(self, logged):
        records, limiter = logged(logging.INFO), limiter_of({"jobs": "60k requests/min burst 1"})
        wait(limiter, *(("jobs", {}) for _ in range(501)))
        limiter.pacer.clock.advance(2)
        limiter.try_acquire("jobs").refused(retry_after_s=9)
        wait(limiter, ("jobs", {}))
        assert [record.left_out for record in records] == [0, 0]

    def test_a_queue_too_long_to_be_summed_up(self, logged, monkeypatch):
        monkeypatch.setattr(lines, "EXACT_MAX", 2)
        records, limiter = logged(logging.INFO), limiter_of({"jobs": "60 requests/min burst 1"})
        wait(limiter, *(("jobs", {}) for _ in range(6)))
        assert [record.expected_wait_s for record in records] == [1, 2, 3, 4, 5]


class TestPermits:
    def test_acquire_and_release(self, logged):
        records, limiter = logged(logging.DEBUG), limiter_of()
        with limiter.acquire(POOL, name="a7", input_tokens=1_000, output_tokens=500) as permit:
            permit.settle(tokens=1_200)
        assert texts(records) == [
            "rate_limit.acquire openai/gpt-4o: 1,000 input_tokens, 500 output_tokens, 1 requests, 1,500 tokens after 0.0 s, a7",
            "rate_limit.release openai/gpt-4o: 1,000 input_tokens, 500 output_tokens, 1 requests, 1,200 tokens, a7",
        ]
        acquired, released = records
        assert {record.levelname for record in records} == {"DEBUG"}
        assert (acquired.rpm_remaining, acquired.tpm_remaining, acquired.ratio) == (499, 28_500, None)
        assert (released.rpm_remaining, released.tpm_remaining, released.ratio) == (499, 28_800, 0.8)
        assert (released.caller, released.waited_s, released.used["tokens"]) == ("a7", 0, 1_200)

    def test_input_and_output_apart(self, logged):
        records = logged(logging.DEBUG)
        limiter = limiter_of({"anthropic/m": ["50 requests/min", "30k input_tokens/min", "8k output_tokens/min"]})
        permit = limiter.try_acquire("anthropic/m", input_tokens=1_000, output_tokens=200)
        permit.settle(input_tokens=1_500, output_tokens=300)
        assert [(record.tpm_remaining, record.ratio) for record in records] == [(29_000, None), (28_500, 1.5)]

    def test_a_pool_of_other_units(self, logged):
        records, limiter = logged(logging.DEBUG), limiter_of({"starts": "7 starts/hour"})
        limiter.try_acquire("starts", starts=1).settle()
        assert [(r.rpm_remaining, r.tpm_remaining, r.ratio) for r in records] == [(None, None, None)] * 2

    def test_cancelled(self, logged):
        records, limiter = logged(logging.DEBUG), limiter_of()
        limiter.try_acquire(POOL, tokens=10).cancel()
        assert (texts(records)[1], records[1].rpm_remaining) == ("rate_limit.release openai/gpt-4o: cancelled", 500)

    def test_it_is_turned_on_and_off_while_a_program_runs(self, logged):
        limiter = limiter_of()
        limiter.try_acquire(POOL).settle()
        records = logged(logging.DEBUG)
        limiter.try_acquire(POOL).settle()
        assert len(records) == 2
        logged(logging.INFO)
        limiter.try_acquire(POOL).settle()
        assert len(records) == 2

    def test_off_it_costs_no_call(self, monkeypatch):
        limiter = limiter_of()
        limiter.try_acquire(POOL).settle()
        monkeypatch.setattr(lines.log, "isEnabledFor", None)
        limiter.try_acquire(POOL).settle()


USED_UP = {"unit": "tokens", "limit": 30_000, "period_s": 60, "used": 29_937, "requested": 385, "retry_after_s": 8}
STATED = Reading("requests", limit=3, period_s=60), Reading("tokens", limit=10_000, period_s=60), Reading("usd")


class TestRefusalsAndRetries:
    RETRY = paceline.RetryPolicy(max_refused=3, backoff_s=2.0, jitter=0.0)

    @pytest.mark.parametrize("kind", ["capacity", "money", "never_fits"])
    def test_another_refusal(self, logged, kind):
        records, limiter = logged(logging.WARNING), limiter_of()
        limiter.try_acquire(POOL).refused(paceline.Refusal(paceline.RefusalKind(kind)))
        assert texts(records) == [f"rate_limit.refused openai/gpt-4o: refused ({kind})"]

    @pytest.mark.parametrize(
        ("stated", "text"),
        [
            (USED_UP, "refused (rate: tokens, limit 30,000/min, used 29,937, requested 385), retry after 8 s"),
            ({"message": "the provider's", "retry_after_s": 2.5}, "refused (rate), retry after 2.5 s"),
            ({"unit": "requests", "period_s": 86_400}, "refused (rate: requests/day)"),
            ({"unit": "usd", "limit": 2.5, "period_s": 600}, "refused (rate: usd, limit 2.5/600 s)"),
            ({"unit": "tokens", "limit": 0}, "refused (rate: tokens, limit 0)"),
            ({"requested": 385}, "refused (rate: requested 385)"),
            ({"limits": STATED}, "refused (rate: of 3 requests/min or 10,000 tokens/min)"),
        ],
    )
    def test_what_the_provider_has_stated_is_in_the_line(self, logged, stated, text):
        records, limiter = logged(logging.WARNING), limiter_of()
        limiter.try_acquire(POOL, tokens=100).refused(paceline.Refusal(paceline.RefusalKind.RATE, **stated))
        [record] = records
        assert record.getMessage() == f"rate_limit.429_error openai/gpt-4o: {text}"
        assert (record.levelname, record.event, record.reason) == ("WARNING", "rate_limit.429_error", "rate")
        assert (record.rpm_remaining, record.tpm_remaining) == (499, 29_900)
        assert record.retry_after_s == stated.get("retry_after_s")
        told_apart = {"limits", "retry_after_s", "message"}
        assert record.stated == {what: amount for what, amount in stated.items() if what not in told_apart}

    def test_the_first_refusal_of_a_kind_has_a_line_and_the_others_a_sum_each_minute(self, logged, monkeypatch):
        records, limiter = logged(logging.WARNING), limiter_of({POOL: "1000 requests/s"})
        clock = limiter.pacer.clock
        monkeypatch.setattr(lines, "SYSTEM_CLOCK", clock)

        def refused(number, **stated):
            for permit in [limiter.try_acquire(POOL) for _ in range(number)]:
                permit.refused(paceline.Refusal(retry_after_s=0.001, scope=paceline.RefusalScope.REQUEST, **stated))
                clock.advance(0.01)

        refused(42, kind=paceline.RefusalKind.RATE, unit="tokens")
        refused(1, kind=paceline.RefusalKind.RATE, unit="requests")
        refused(2, kind=paceline.RefusalKind.CAPACITY)
        clock.advance(61)
        refused(1, kind=paceline.RefusalKind.RATE, unit="tokens")
        clock.advance(200)
        refused(1, kind=paceline.RefusalKind.RATE, unit="tokens")
        again = "refused (rate: tokens), retry after 0.001 s"
        assert [text.partition(": ")[2] for text in texts(records)] == [
            again,
            "refused (rate: requests), retry after 0.001 s",
            "refused (capacity), retry after 0.001 s",
            f"41 more refusals in 60 s, the last one: {again}",
            "1 more refusal in 60 s, the last one: refused (capacity), retry after 0.001 s",
            f"1 more refusal in 60 s, the last one: {again}",
            again,
        ]
        assert [record.left_out for record in records] == [0, 0, 0, 40, 0, 0, 0]

    def test_what_is_not_said_yet_is_said_at_the_end(self, logged):
        records, limiter = logged(logging.WARNING), limiter_of()
        for permit in [limiter.try_acquire(POOL) for _ in range(3)]:
            permit.refused(retry_after_s=0.001)
        lines.say_sums()
        said = "rate_limit.429_error openai/gpt-4o: 2 more refusals, the last one: refused (rate), retry after 0.001 s"
        assert [text for text in texts(records)[1:] if POOL in text] == [said]
        records.clear()
        lines.say_sums()
        assert not records

    def test_attempts(self, logged):
        records, limiter = logged(logging.INFO), limiter_of(retry=self.RETRY)

        async def main():
            for attempt in limiter.attempts(POOL):
                async with attempt:
                    raise RuntimeError("Rate limit exceeded for gpt-4o")

        with pytest.raises(paceline.GaveUpError):
            run_virtual(main(), limiter.pacer.clock)
        assert [text for text in texts(records) if text.startswith("Retry")] == [
            "Retry 1/3 in 2.0 s: openai/gpt-4o (rate)",
            "Retry 2/3 in 4.0 s: openai/gpt-4o (rate)",
        ]
        retry = records[1]
        fields = ("levelname", "event", "pool", "attempt", "max_attempts", "delay_s", "reason")
        assert [getattr(retry, name) for name in fields] == ["INFO", "rate_limit.retry", POOL, 1, 3, 2.0, "rate"]
        assert [record.event for record in records[:3]] == [
            "rate_limit.429_error",
            "rate_limit.retry",
            "rate_limit.wait",
        ]

    async def test_an_attached_client(self, logged, short_probes):
        records = logged(logging.DEBUG)
        retry = paceline.RetryPolicy(max_attempts=3, backoff_s=0.01)
        limiter = limiter_of(retry=retry, clock=paceline.pacing.clock.SYSTEM_CLOCK)
        answers = [httpx2.Response(429, json={}), httpx2.Response(503, json={}), httpx2.Response(200, json={})]
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: answers.pop(0))) as client:
            limiter.attach(client, provider="openai")
            body = {"model": "gpt-4o", "messages": [], "max_tokens": 5}
            await client.post("https://api.openai.com/v1/chat/completions", json=body)
        events = [record.event for record in records if record.event != "rate_limit.wait"]
        assert events == [
            "rate_limit.acquire", "rate_limit.429_error", "rate_limit.retry",
            "rate_limit.acquire", "rate_limit.refused", "rate_limit.retry",
            "rate_limit.acquire", "rate_limit.release",
        ]  # fmt: skip
