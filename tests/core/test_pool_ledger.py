"""Everybody who asks a pool is counted once, and its status says so."""

from __future__ import annotations

import json

from core_pools import RATE, ask, pool_of, pump_at_wake, use_up
from core_worlds import T0, gaps_ns
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.queue import LaneSpec, Waiter
from paceline.core.quota import NS
from paceline.core.results import Reservation, Source, SourceKind
from paceline.pacing.status import report

steps = st.sampled_from(["ask", "ask", "attempt", "settle", "settle", "cancel", "refuse", "withdraw", "wake"])


class TestBooks:
    @given(script=st.lists(st.tuples(steps, gaps_ns, st.integers(1, 60), st.integers(0, 50)), max_size=60))
    def test_everybody_is_counted_once(self, script):
        pool = pool_of("600 requests/min burst 5", ttl_s=100)
        open_ones, waiting, asked = [], [], 0
        now_ns, turned_away = T0, 0
        for step, gap_ns, cost, pick in script:
            now_ns += gap_ns
            if step in ("ask", "attempt"):
                asked += 1
                waiter = Waiter({"requests": 1 + cost % 5}, LaneSpec(f"{pick % 3}"))
                outcome = pool.submit(now_ns, waiter) if step == "ask" else pool.try_grant(now_ns, waiter)
                if isinstance(outcome, Reservation):
                    open_ones.append((waiter, outcome))
                elif step == "ask":
                    waiting.append(waiter)
                else:
                    turned_away += 1
            elif step == "withdraw" and waiting:
                pool.withdraw(now_ns, waiting.pop(pick % len(waiting)))
                turned_away += 1
            elif step == "wake" and pool.wake_ns is not None:
                now_ns = max(now_ns, pool.wake_ns)
            elif open_ones and step in ("settle", "cancel", "refuse"):
                waiter, reservation = open_ones.pop(pick % len(open_ones))
                if step == "settle":
                    pool.settle(now_ns, reservation, {"requests": cost % 6}, waiter)
                elif step == "cancel":
                    pool.cancel(now_ns, reservation)
                else:
                    pool.refuse(now_ns, reservation, RATE, pick % 3)
            for waiter in pool.pump(now_ns):
                waiting.remove(waiter)
                open_ones.append((waiter, waiter.outcome))
            open_ones = [(waiter, reservation) for waiter, reservation in open_ones if reservation.open]
            assert (pool.ledger.in_flight, pool.queue.length) == (len(open_ones), len(waiting))
            assert pool.record.counts["granted"] == asked - turned_away - len(waiting)
            assert (pool.wake_ns is None) == (not waiting)
            assert pool.wake_ns is None or pool.wake_ns > now_ns

    def test_what_nobody_settles_is_forgotten_though_nobody_waits(self):
        pool = pool_of("60 requests/s", ttl_s=10)
        for second in range(1_000):
            assert isinstance(ask(pool, T0 + second * NS)[1], Reservation)
        assert pool.ledger.in_flight < 100

    def test_a_lost_permit_frees_its_slot(self):
        pool = pool_of("1 concurrency", ttl_s=10)
        use_up(pool)
        waiter, _ = ask(pool)
        assert pump_at_wake(pool) == (T0 + 10 * NS, [waiter])
        assert pool.record.counts["lost"] == 1


class TestStatus:
    def test_it_is_json_and_complete(self):
        texts = ["9 requests/min", "900 tokens/hour sliding", "5 usd/day window utc", "2 concurrency"]
        pool = pool_of(*texts, learns=True, sources=[Source(SourceKind.ASSUMED, "table")] * 4)
        _, outcome = ask(pool, tokens=1.23456)
        for _ in range(3):
            ask(pool, lane=LaneSpec("wrap"), tokens=1)
        pool.settle(T0, outcome, {"usd": 1 / 3})
        pool.pump(T0)
        status = report(pool, T0)
        assert json.loads(json.dumps(status, allow_nan=False)) == status
        assert [entry["quota"] for entry in status["quotas"]] == texts
        assert [entry["unit"] for entry in status["quotas"]] == ["requests", "tokens", "usd", "concurrency"]
        assert (status["quotas"][2]["spent"], status["quotas"][2]["remaining"]) == (0.333333, 4.666667)
        assert {entry["source"] for entry in status["quotas"]} == {"assumed: table"}
        assert set(status["quotas"][0]) >= {"limit", "remaining", "period_s", "burst", "rule"}
        assert status["in_flight"] + status["waiting"] == 3
        assert status["lanes"] == {"wrap": status["waiting"]}
        assert status["counts"]["settled"] == 1
        assert status["stopped"] is None

    def test_how_long_the_first_request_of_each_lane_has_waited(self):
        pool = pool_of("1 requests/min")
        for seconds, lane in enumerate(["default", "wrap", "wrap", "prep"]):
            ask(pool, now_ns=T0 + seconds * NS, lane=LaneSpec(lane))
        status = report(pool, T0 + 10 * NS)
        assert (status["lanes"], status["lanes_waited_s"]) == ({"wrap": 2, "prep": 1}, {"wrap": 9.0, "prep": 7.0})

    def test_an_idle_pool(self):
        status = report(pool_of("9 requests/min"), T0)
        assert status["binds"] is None
        assert status["waiting"] == status["in_flight"] == status["cool_down_s"] == 0
        assert status["counts"] == status["lanes"] == {}

    def test_durations_are_rounded_up(self):
        pool = pool_of("9 requests/min")
        pool.ledger.pause.begin(T0 + 1_000_000_001)
        assert report(pool, T0)["cool_down_s"] == 1.001
