"""`paceline.map`: order, errors, how many calls run, the journal, cancellation."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import traceback
from concurrent.futures import CancelledError, InvalidStateError
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

import paceline
from paceline.data.crowd import AHEAD
from paceline.data.journal import OwnJournal
from paceline.data.mapping import Map
from paceline.testing import ManualClock, run_virtual
from virtual_time import virtual
from waits import BOUND_S, soon, until

UNPACED = "ignore:map of .* nothing that it calls is paced"


async def spoiled_map(journal, called, spoil=None, at=30, count=60):
    """The values of a map; ``spoil`` is called in the call ``at``, or after all of them."""

    async def call(number):
        called.append(number)
        if spoil is not None and len(called) == at:
            spoil()
        return number

    pieces = quiet(call, range(count), journal=journal, concurrency=4)
    return [value for _, value in sorted([(done.index, done.value) async for done in pieces])]


async def double(number):
    await asyncio.sleep(0.001 * (number % 3))
    return 2 * number


def quiet(function, items, **options):
    return paceline.map(function, items, progress=False, **options)


class Doubling:
    """An object with an async call."""

    async def __call__(self, number):
        return await double(number)


@pytest.mark.parametrize("function", [
    double, Doubling(), lambda number: double(number),  # noqa: PLW0108  (it is not async itself)
], ids=["async", "object", "returns a coroutine"])  # fmt: skip
async def test_results_have_the_order_of_the_items(function):
    assert await quiet(function, range(20)) == [2 * number for number in range(20)]


async def test_results_as_they_come():
    async def wait(place):
        await asyncio.sleep(0.02 * (3 - place))
        return place

    assert [done.value async for done in quiet(wait, range(3))] == [2, 1, 0]


async def test_it_is_a_coroutine_for_a_task():
    started = asyncio.Event()

    async def stay(_):
        started.set()
        await asyncio.Event().wait()

    assert await asyncio.create_task(quiet(double, [1])) == [2]
    task = asyncio.create_task(quiet(stay, [1]))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.filterwarnings(UNPACED)
async def test_items_may_be_asynchronous_and_endless():
    async def numbers():
        number = 0
        while True:
            yield number
            number += 1

    async for done in quiet(double, numbers()):
        if done.index == 10:
            break
    assert done.value == 20


async def test_errors_are_kept_and_end_no_other_call():
    async def invert(number):
        return 1 / number

    with pytest.warns(
        paceline.PacelineWarning, match="map of invert: 1 call raised an exception, the first for item 1: Zero"
    ):
        results = await quiet(invert, [1, 0, 4])
    assert results == [1, None, 0.25]
    assert type(results.errors[1]) is ZeroDivisionError


async def test_a_cancellation_inside_of_a_call_is_its_error():
    async def cancelled(_):
        raise asyncio.CancelledError

    with pytest.warns(paceline.PacelineWarning):
        assert "cancelled" in str((await quiet(cancelled, [1])).errors[0])


async def test_what_the_items_raise_is_raised():
    def items():
        yield 1
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        await quiet(double, items())


class TestSync:
    def test_without_a_loop(self):
        threads = set()

        def triple(number):
            threads.add(threading.get_ident())
            return 3 * number

        assert paceline.map_sync(triple, range(10), progress=False) == [3 * number for number in range(10)]
        assert threading.get_ident() not in threads

    async def test_inside_of_a_loop(self):
        assert paceline.map_sync(double, range(3), progress=False) == [0, 2, 4]
        with pytest.raises(LookupError):
            paceline.map_sync(double, iter(lambda: {}["missing"], None), progress=False)

    async def test_stop_iteration_is_an_error(self):
        with pytest.warns(paceline.PacelineWarning):
            assert "StopIteration" in str((await quiet(lambda _: next(iter(())), [1])).errors[0])

    @pytest.mark.parametrize("kind", [TimeoutError, CancelledError, InvalidStateError])
    async def test_an_error_is_the_one_that_was_raised(self, kind):
        """asyncio replaces some errors of threads by new ones."""
        raised = kind("no answer")

        def call(_):
            raise raised from ConnectionError("closed")

        with pytest.warns(paceline.PacelineWarning):
            [error] = (await quiet(call, [1])).errors.values()
        assert error is raised
        assert traceback.extract_tb(error.__traceback__)[-1].name == "call"


class TestCrowd:
    async def test_so_many_calls_of_a_function_that_asks_for_no_permits_which_is_said_once(self):
        running = most = 0

        async def call(_):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

        with pytest.warns(paceline.PacelineWarning, match=r"limiter.attach\(client\)") as warned:
            await quiet(call, range(3 * AHEAD))
        assert (most, len(warned)) == (AHEAD, 1)

    @pytest.mark.filterwarnings(UNPACED)
    async def test_values_of_a_journal_are_no_calls(self, tmp_path, recwarn):
        await quiet(double, range(3 * AHEAD), journal=tmp_path / "answers.db")
        recwarn.clear()
        await quiet(double, range(3 * AHEAD + 1), journal=tmp_path / "answers.db")
        assert not recwarn.list

    def paced(self, limits, items, seconds, **options):
        """The virtual time of a map, the most calls in flight, and the most that waited."""
        clock = ManualClock()
        limiter = paceline.Limiter({"jobs": limits}, headroom_s=0, clock=clock)
        seen = {"flight": 0, "waiting": 0}
        in_flight = 0

        async def call(item):
            nonlocal in_flight
            async with limiter.acquire("jobs") as permit:
                in_flight += 1
                pool = limiter.status()["pools"]["jobs"]
                seen["flight"] = max(seen["flight"], in_flight)
                seen["waiting"] = max(seen["waiting"], pool["waiting"])
                await asyncio.sleep(seconds)
                in_flight -= 1
                permit.settle()
            return item

        async def main():
            begun_ns = clock.now_ns()
            assert await quiet(call, items, **options) == list(items)
            return (clock.now_ns() - begun_ns) / 1e9

        return run_virtual(main(), clock), seen["flight"], seen["waiting"]

    def test_as_many_as_the_limiter_lets_go(self):
        """At 20 per second and 15 s each, 300 calls are in flight, and 64 of the others wait."""
        took_s, in_flight, waiting = self.paced("1200 requests/min even burst 1", range(400), 15.0)
        assert took_s == pytest.approx(399 / 20 + 15, abs=0.5)
        assert in_flight == pytest.approx(300, abs=2)
        assert waiting <= AHEAD

    def test_a_burst_goes_at_once(self):
        took_s, in_flight, _ = self.paced("1000 requests/min burst 1000", range(1_000), 30.0)
        assert took_s == pytest.approx(30, abs=1)
        assert in_flight == 1_000

    def test_a_bound_of_ones_own(self):
        took_s, in_flight, _ = self.paced("60000 requests/min burst 1000", range(100), 1.0, concurrency=10)
        assert (round(took_s), in_flight) == (10, 10)

    async def test_a_slow_reader_holds_calls_back(self):
        begun = 0

        async def call(number):
            nonlocal begun
            begun += 1
            return number

        async for _ in quiet(call, range(100), concurrency=5):
            for _ in range(20):
                await asyncio.sleep(0)
            break
        assert begun <= 6

    @virtual
    async def test_calls_within_calls(self, clock):
        """A call of the outer crowd has its permit when a call of the inner one has it."""
        limiter = paceline.Limiter({"jobs": "60000 requests/min burst 1000"}, clock=clock)
        most = running = 0

        async def inner(item):
            async with limiter.acquire("jobs") as permit:
                permit.settle()
            return item

        async def outer(item):
            nonlocal most, running
            await quiet(inner, [item])
            running += 1
            most = max(most, running)
            await asyncio.sleep(10)
            running -= 1

        await quiet(outer, range(2 * AHEAD))
        assert most == 2 * AHEAD


class TestJournal:
    @pytest.fixture
    def journal(self, tmp_path):
        return tmp_path / "answers.db"

    async def test_what_is_kept_is_not_called_again(self, journal):
        called = []

        async def call(item):
            called.append(item)
            if item == "b":
                raise ConnectionError
            return {"text": item}

        with pytest.warns(paceline.PacelineWarning):
            await quiet(call, ["a", "b", "c", "a"], journal=journal)
        assert sorted(called) == ["a", "a", "b", "c"]
        called.clear()
        with pytest.warns(paceline.PacelineWarning):
            again = await quiet(call, ["d", "c", "a", "a", "b"], journal=journal)
        assert sorted(called) == ["b", "d"]
        assert again == [{"text": "d"}, {"text": "c"}, {"text": "a"}, {"text": "a"}, None]

    async def test_a_final_answer_is_not_called_again(self, journal):
        called = []

        async def ask(state):
            called.append(state)
            raise paceline.UnfinishedError(state, "no", "its text")

        states = ["declined", "blocked", "cut_off", "empty", "paused"]
        for again, sent in (("", states), ("", states[2:]), ("blocked, declined", states)):
            called.clear()
            with pytest.warns(paceline.PacelineWarning, match="5 calls raised") as warned:
                results = await paceline.map(ask, states, journal=journal, again=again, progress=False)
            assert sorted(called) == sorted(sent)
            assert [(one.state, str(one), one.text) for one in results.errors.values()] == [
                (state, f"{state}: no", "its text") for state in states
            ]
            kept = "2 of them before, whose errors are in the journal: again='declined,blocked' calls them again"
            assert any(kept in str(one.message) for one in warned) is (len(sent) < 5)
        with pytest.raises(paceline.SettingsError, match="again names what a journal keeps"):
            paceline.map(ask, states, again="declined")

    async def test_keys_of_ones_own(self, journal):
        rows = [{"id": 7, "text": object()}, {"id": 8, "text": object()}]

        async def call(row):
            return row["id"]

        assert await quiet(call, rows, journal=journal, key="id") == [7, 8]
        assert await quiet(call, rows[::-1], journal=journal, key=lambda row: row["id"]) == [8, 7]

    @pytest.mark.parametrize(
        ("rows", "key", "message"),
        [
            ([{"id": 1}, {"id": 1}], "id", "item 1 has the key '1' of an earlier item"),
            ([{"id": 1}, {}], "id", "item 1 has no key: KeyError"),
            ([{"id": None}], "id", "item 0 has no key"),
            ([{"id": 1.5}], "id", "item 0 has a float as its key; it must be a text or an integer"),
            ([object()], None, "item 0 is a object, and no JSON value: give key="),
        ],
    )
    async def test_wrong_keys(self, journal, rows, key, message):
        async def call(_):
            return 1

        with pytest.raises(paceline.SettingsError, match=message):
            await quiet(call, rows, journal=journal, key=key)

    @pytest.mark.parametrize("value", [object(), (1, 2), {1: 2}, float("nan"), b"x"])
    async def test_a_value_that_is_no_json_costs_one_call(self, journal, value):
        calls = 0

        async def call(_):
            nonlocal calls
            calls += 1
            return value

        with pytest.raises(paceline.SettingsError, match="for item 0, which a journal cannot keep as it is"):
            await quiet(call, range(100), journal=journal)
        assert calls == 1

    @pytest.mark.parametrize("fault", ["items", "key", "value"])
    async def test_calls_in_flight_at_a_failure_are_paid_and_kept(self, journal, fault):
        called, most = [], 40

        async def rows():
            for row in range(most):
                yield row
                await asyncio.sleep(0.001)  # the first call goes alone
            if fault == "items":
                raise ConnectionError("the cursor is lost")
            yield 7 if fault == "key" else most

        async def call(row):
            called.append(row)
            await asyncio.sleep(0.01 if row == most else 0.2 if row else 0)
            return object() if row == most else row

        with pytest.raises((ConnectionError, paceline.SettingsError)):
            await quiet(call, rows(), journal=journal, key=lambda row: row)
        paid, called = {row for row in called if row != most}, []
        assert paid == set(range(most))
        assert await quiet(call, range(most), journal=journal, key=lambda row: row) == list(range(most))
        assert called == []

    async def test_a_failure_is_raised_while_the_next_item_does_not_come(self, journal):
        async def rows():
            yield 0
            await asyncio.Event().wait()

        async def call(_):
            return object()

        async with asyncio.timeout(BOUND_S):
            with pytest.raises(paceline.SettingsError):
                await quiet(call, rows(), journal=journal)

    async def test_of_one_program_at_a_time(self, journal):
        async def second(_):
            await quiet(double, [1], journal=journal)

        with pytest.warns(paceline.PacelineWarning):
            results = await quiet(second, [1], journal=journal)
        assert f"the journal {journal} is in use" in str(results.errors[0])

    @pytest.mark.parametrize(("is_journal", "change", "said"), [
        (True, ("UPDATE entries SET entry = ?", (b"\xff{",)), "is damaged: the value of"),
        (True, ("PRAGMA user_version = 9",), "in format 9: update paceline"),
        (False, ("CREATE TABLE customers (name TEXT)",), "belongs to another program"),
        (False, None, "not a database"),
    ], ids=["a damaged value", "a newer format", "another program's", "a text"])  # fmt: skip
    async def test_what_it_cannot_read_stays_as_it_is(self, journal, is_journal, change, said):
        if is_journal:
            await quiet(double, [1], journal=journal)
        if change is None:
            journal.write_text("id,text\n" * 100)
        else:
            with closing(sqlite3.connect(journal)) as db, db:
                db.execute(*change)
        before = journal.read_bytes()
        with pytest.raises(paceline.StoreError, match=said):
            await quiet(double, [1], journal=journal)
        assert journal.read_bytes() == before

    def test_a_disk_that_is_full_for_a_while(self, journal, monkeypatch):
        """A value is written again: it is paid for."""
        lost, clock = [3], ManualClock()
        write = paceline.stores.entries.EntryFile.write

        def failing(self, key, entry):
            if lost[0]:
                lost[0] -= 1
                raise paceline.StoreError("no space")
            write(self, key, entry)

        monkeypatch.setattr("paceline.stores.entries.EntryFile.write", failing)

        assert run_virtual(quiet(double, range(5), journal=journal)._collected(), clock) == [0, 2, 4, 6, 8]
        lost[0] = 1_000
        with pytest.raises(paceline.StoreError, match="no space"):
            run_virtual(quiet(double, range(6), journal=journal)._collected(), clock)

    def test_few_calls_start_while_the_disk_is_full(self, journal, monkeypatch, caplog):
        """A kill would lose every value that is not kept yet, and each of them is paid for."""
        clock, called = ManualClock(), []
        limiter = paceline.Limiter({"jobs": "6k requests/min burst 10"}, headroom_s=0, clock=clock)
        write, begun_ns = paceline.stores.entries.EntryFile.write, clock.now_ns()

        def failing(self, key, entry):
            if 1 <= (clock.now_ns() - begun_ns) / 1e9 <= 50:
                raise paceline.StoreError("no space")
            write(self, key, entry)

        monkeypatch.setattr("paceline.stores.entries.EntryFile.write", failing)

        async def call(number):
            async with limiter.acquire("jobs"):
                called.append(number)
                await asyncio.sleep(0.1)
            return number

        async def main():
            results = asyncio.ensure_future(quiet(call, range(1_000), journal=journal)._collected())
            await asyncio.sleep(1)
            before = len(called)
            await asyncio.sleep(40)
            return before, len(called), await results

        before, meanwhile, results = run_virtual(main(), clock)
        assert results == called == list(range(1_000))
        assert before > 50
        # Those whose values are not kept, those that waited for a permit, and those in flight.
        assert meanwhile - before <= 2 * AHEAD + 10
        assert caplog.messages == ["a value is not in the journal, trying again: no space"]

    @pytest.mark.skipif(sys.platform == "win32", reason="an open file stays there")
    @pytest.mark.parametrize("ends", [("", "-wal", "-shm", "-lock"), ("",), ("-wal",), ("folder",)])
    def test_a_journal_that_another_program_deletes_is_written_again(self, tmp_path, ends):
        journal, called = tmp_path / "folder" / "answers.db", []

        def spoil():
            if ends == ("folder",):
                shutil.rmtree(journal.parent)
            else:
                for end in ends:
                    Path(f"{journal}{end}").unlink()

        for _ in range(2):
            assert run_virtual(spoiled_map(journal, called, spoil), ManualClock()) == list(range(60))
        assert sorted(called) == list(range(60))

    @pytest.mark.skipif(sys.platform == "win32", reason="an open file stays there")
    def test_a_deleted_journal_is_there_again_while_calls_take_long(self, tmp_path):
        """A kill would lose all values."""
        journal, seen = tmp_path / "answers.db", []

        async def call(number):
            if number == 5:
                journal.unlink()
                await asyncio.sleep(100)
                with closing(sqlite3.connect(journal)) as db:
                    seen.extend(db.execute("SELECT count(*) FROM entries").fetchone())
            return number

        run_virtual(quiet(call, range(6), journal=journal)._collected(), ManualClock())
        assert seen == [5]

    @pytest.mark.skipif(sys.platform == "win32", reason="an open file stays there")
    @pytest.mark.parametrize("at", [30, 60])
    @pytest.mark.parametrize("another", [b"of another program\n", None])
    def test_the_file_that_has_the_name_of_the_journal_stays_as_it_is(self, tmp_path, at, another):
        """Also if it is a journal."""
        journal, other, called = tmp_path / "answers.db", tmp_path / "other.db", []
        recovered = tmp_path / "answers.db.recovered"
        if another is None:
            paceline.map_sync(lambda number: -number, range(1_000, 1_005), journal=other, progress=False)
            another = other.read_bytes()
        other.write_bytes(another)
        with pytest.raises(paceline.StoreError, match=f"is in {recovered}: move it to {journal}"):
            run_virtual(spoiled_map(journal, called, lambda: other.replace(journal), at), ManualClock())
        assert journal.read_bytes() == another
        before = list(called)
        with pytest.raises(paceline.StoreError, match=f"{recovered} has the values of an earlier map.*: move it to"):
            run_virtual(spoiled_map(journal, called), ManualClock())
        assert called == before  # nothing is paid for again
        with closing(OwnJournal(other)):
            other.with_name("other.db.recovered").touch()  # by the map that has it open, for example
            with pytest.raises(paceline.StoreError, match="in use"):
                OwnJournal(other)
        recovered.rename(journal)
        assert run_virtual(spoiled_map(journal, called), ManualClock()) == list(range(60))
        assert sorted(called) == list(range(60))

    @pytest.mark.skipif(sys.platform == "win32", reason="an open file stays there")
    @pytest.mark.parametrize(("share", "deleted"), [(0, False), (0.5, False), (0.5, True)])
    def test_what_a_shortened_journal_has_is_read(self, tmp_path, share, deleted):
        journal, called = tmp_path / "answers.db", []
        recovered = tmp_path / "answers.db.recovered"
        assert run_virtual(spoiled_map(journal, called, count=40), ManualClock()) == list(range(40))
        large, padding = "x" * 200_000, range(1_000, 1_020)  # more than SQLite has in memory
        paceline.map_sync(lambda _: large, padding, journal=journal, progress=False)

        def spoil():
            os.truncate(journal, int(journal.stat().st_size * share))
            if deleted:
                journal.unlink()

        with pytest.raises(paceline.StoreError, match="entries are lost" if deleted else "replaced or shortened"):
            run_virtual(spoiled_map(journal, called, spoil, at=50), ManualClock())
        if not deleted:
            recovered.rename(journal)
        assert run_virtual(spoiled_map(journal, called), ManualClock()) == list(range(60))
        assert set(called) == set(range(60))
        assert len(called) <= 60 + 40
        assert paceline.map_sync(lambda _: large, padding, journal=journal, progress=False) == [large] * 20

    async def test_cancellation_keeps_what_is_done(self, journal):
        called = []

        async def call(number):
            called.append(number)
            if number >= 10:
                await asyncio.Event().wait()
            return number

        running = asyncio.ensure_future(quiet(call, range(20), journal=journal)._collected())
        await soon(lambda: len(called) == 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        called.clear()
        again = await quiet(lambda number: called.append(number) or number, range(20), journal=journal)
        assert (again, sorted(called)) == (list(range(20)), list(range(10, 20)))

    @pytest.mark.long("starts several processes")
    def test_kills_at_random_moments(self, tmp_path):
        """Each item is called once, and again only if it was in flight at a kill."""
        seed = random.randrange(10**6)
        luck, program, called = random.Random(seed), tmp_path / "program.py", tmp_path / "calls"
        program.write_text(PROGRAM)
        called.touch()
        kills, stop = 0, luck.randrange(1, 120)
        while True:
            child = subprocess.Popen([sys.executable, program], cwd=tmp_path)
            until(lambda child=child, stop=stop: child.poll() is not None or called.stat().st_size >= 4 * stop)
            if child.poll() is not None:
                break
            child.kill()
            child.wait()
            kills, stop = kills + 1, stop + luck.randrange(60, 120)
        assert child.returncode == 0, seed
        assert json.loads((tmp_path / "results").read_text()) == list(range(300)), seed
        calls = called.read_text().split()
        assert len(set(calls)) == 300, seed
        assert len(calls) <= 300 + 8 * kills, seed


PROGRAM = """
import json, time
from pathlib import Path
import paceline

def call(number):
    with open("calls", "a") as file:
        file.write(f"{number:3}\\n")
    time.sleep(0.02)
    return number

results = paceline.map_sync(call, range(300), journal="answers.db", concurrency=8, progress=False)
Path("results").write_text(json.dumps(results))
"""


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("later", [False, True], ids=["waiting", "not yet waiting"])
async def test_calls_that_wait_for_a_permit_at_a_failure_send_nothing(sync, later):
    sent, failed = [], threading.Event()
    limiter = paceline.Limiter({"x/*": "1 requests/hour burst 1"})

    async def rows():
        for row in range(4):
            yield row
        await soon(lambda: len(sent) == 1 and (later or limiter.status()["pools"]["x/m"]["waiting"] == 3))
        asyncio.get_running_loop().call_later(0.05, failed.set)
        raise ConnectionError("the cursor is lost")

    def threaded(row):
        if later and row:
            failed.wait(BOUND_S)
        with limiter.acquire("x/m", input_tokens=1) as permit:
            sent.append(row)
            permit.settle()

    async def call(row):
        if later and row:
            await soon(failed.is_set)
        async with limiter.acquire("x/m", input_tokens=1) as permit:
            sent.append(row)
            permit.settle()

    async with asyncio.timeout(BOUND_S):
        with pytest.raises(ConnectionError):
            await quiet(threaded if sync else call, rows())
    assert sent == [0]


async def test_a_thread_that_waits_sends_nothing_after_the_end():
    """Its permit is given back."""
    limiter = paceline.Limiter({"jobs": "1 concurrency"})
    sent, ended = [], threading.Event()

    def call(number):
        try:
            with limiter.acquire("jobs") as permit:
                sent.append(number)
                permit.settle()
        finally:
            ended.set()

    held = await limiter.acquire("jobs")
    running = asyncio.ensure_future(quiet(call, [1])._collected())
    await soon(lambda: limiter.status()["pools"]["jobs"]["waiting"])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    held.settle()
    assert await asyncio.to_thread(ended.wait, BOUND_S)
    assert sent == []
    assert limiter.try_acquire("jobs")


async def test_a_task_that_a_call_has_left_behind_goes_on():
    limiter = paceline.Limiter({"jobs": "1 concurrency"})
    held = await limiter.acquire("jobs")
    behind = []

    async def later():
        async with limiter.acquire("jobs") as permit:
            permit.settle()
        return "sent"

    async def call(_):
        behind.append(asyncio.create_task(later()))
        await soon(lambda: limiter.status()["pools"]["jobs"]["waiting"])

    await quiet(call, [1])
    held.settle()
    assert await behind[0] == "sent"


@pytest.mark.parametrize(
    ("items", "message"),
    [({"a": 1}, "items is a dict: give its rows"), ("text", "items is a str"), (5, "items is a int, which cannot be")],
)
def test_what_cannot_be_items(items, message):
    with pytest.raises(TypeError, match=message):
        quiet(double, items)


def test_other_misuse():
    with pytest.raises(TypeError, match="takes a function and items, not a list first"):
        quiet([1], double)
    with pytest.raises(paceline.SettingsError, match="concurrency is 0"):
        quiet(double, [1], concurrency=0)
    with pytest.raises(paceline.SettingsError, match="journal is an empty text"):
        quiet(double, [1], journal="")
    with pytest.raises(paceline.SettingsError, match="key names the items in a journal"):
        quiet(double, [1], key="id")


async def test_a_map_is_gone_through_once():
    mapped = quiet(double, [1])
    await mapped
    with pytest.raises(RuntimeError, match="call map\\(\\) again"):
        await mapped


class TestProgress:
    async def test_lines_without_tqdm(self, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        times = count(0.0, 5.0)
        monkeypatch.setattr("paceline.data.progress.time", SimpleNamespace(monotonic=lambda: next(times)))
        await paceline.map(double, range(4))
        assert capsys.readouterr().err.splitlines() == ["2/4 done, 0 failed, 12/min", "4/4 done, 0 failed, 12/min"]

    @pytest.mark.parametrize(("progress", "before"), [(True, "1/3 done; "), (None, "1 done; "), (False, None)])
    @virtual
    async def test_a_wait_is_not_silent(self, clock, monkeypatch, caplog, capsys, progress, before):
        """In virtual time: the second call waits a minute. A process of an engine has ``None``, and logs it."""
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        limiter = paceline.Limiter({"jobs": "1 requests/min"}, clock=clock)

        async def call(number):
            async with limiter.acquire("jobs"):
                return number

        assert await Map(call, range(3), None, None, None, progress) == [0, 1, 2]
        wait = "2 calls wait for 1 requests/min of jobs, the next one 40 s"
        lines = capsys.readouterr().err.splitlines() + [record.getMessage() for record in caplog.records]
        expected = [f"{before}{wait}", f"{before}{wait}".replace("1", "2", 1).replace("2 calls", "1 calls")]
        assert [line for line in lines if "wait" in line] == (expected if before else [])

    @virtual
    async def test_a_pause_is_named(self, clock, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        limiter, refused = paceline.Limiter({"jobs": "600 requests/min"}, clock=clock), []

        async def call(number):
            async with limiter.acquire("jobs") as permit:
                if number == 0 and not refused:
                    refused.append(number)
                    permit.refused(retry_after_s=30)
            async with limiter.acquire("jobs"):
                return number

        await Map(call, range(3), None, None, None, True)
        assert "calls wait for the cool-down of jobs, the next one" in capsys.readouterr().err

    @pytest.mark.parametrize("module", ["tqdm", "none"])
    async def test_refusals_are_one_line(self, monkeypatch, capsys, module):
        """A cell of a notebook had one for each refusal."""
        if module == "none":
            monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        log = logging.getLogger("paceline")
        monkeypatch.setattr(log, "propagate", False)  # the test runner has handlers
        capsys.readouterr()
        before = list(log.handlers)  # pages of other tests keep what is logged

        async def refused(number):
            fields = {"event": "rate_limit.429_error", "pool": "openai/gpt-5", "reason": "rate"}
            log.warning("rate_limit.429_error openai/gpt-5: refused (rate)", extra=fields)
            return number

        await paceline.map(refused, range(5))
        shown = capsys.readouterr().err
        assert shown.count("refused (rate)") == 1
        assert "openai/gpt-5: refused (rate); further ones are not shown" in shown
        assert log.handlers == before

    async def test_a_program_with_a_handler_has_all_lines(self, capsys):
        seen, lines = logging.Handler(), []
        seen.emit = lambda record: lines.append(record.getMessage())
        log = logging.getLogger("paceline")
        log.addHandler(seen)
        try:
            await paceline.map(lambda _: log.warning("a line"), range(3), progress=True)
        finally:
            log.removeHandler(seen)
        assert lines == ["a line"] * 3
        assert "a line" not in capsys.readouterr().err

    async def test_a_bar_of_tqdm(self, capsys):
        async def invert(number):
            return 1 / number

        with pytest.warns(paceline.PacelineWarning):
            await paceline.map(invert, range(4))
        shown = capsys.readouterr().err
        assert "4/4" in shown
        assert "1 failed" in shown
