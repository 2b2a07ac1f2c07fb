"""`paceline.partition`: rows and columns, a journal that several processes use, what is refused."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import math
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import openai
import pytest
from tests.http.chats import ANSWER

import paceline
from odd_server import JSON, OddServer
from paceline.data import journal as journals
from paceline.data import partition as partitions
from paceline.data import places
from paceline.data.journal import SharedJournal
from paceline.data.mapping import Map
from paceline.data.places import open_place
from waits import BOUND_S, join, soon, started, until

LIMITS = {"jobs": "100k requests/min"}
ROWS = [{"id": number, "text": f"row {number}"} for number in range(20)]


@pytest.fixture(autouse=True)
def process(tmp_path, monkeypatch):
    """A process of an engine: its store is in its environment."""
    monkeypatch.setenv("PACELINE_STORE", f"sqlite:{tmp_path / 'quotas.db'}")


def done(rows, function, journal="job", **options):
    return paceline.partition(rows, function, journal=journal, **{"limits": LIMITS, "key": "id", **options})


def test_rows_get_two_columns_in_their_order():
    async def length(row):
        await asyncio.sleep(0.001 * (3 - row["id"] % 3))
        return len(row["text"])

    assert done(ROWS, length) == [{**row, "answer": len(row["text"]), "error": None} for row in ROWS]
    assert done(iter(ROWS), length, "job-2", key=None, into="length")[0]["length"] == 5
    assert done([], length) == []


def test_a_text_that_is_cut_off_is_in_the_error():
    message = {"role": "assistant", "content": "The sky is"}
    answer = {"choices": [{"finish_reason": "length", "message": message}]}
    with pytest.warns(paceline.PacelineWarning, match="UnfinishedError"):
        (row,) = done(ROWS[:1], lambda _: paceline.finish_of(answer).whole())
    said = "cut_off: the answer reached the maximum of tokens (length); its text: The sky is"
    assert (row["answer"], row["error"]) == (None, f"UnfinishedError: {said}")


@pytest.mark.filterwarnings("ignore:map of")
def test_a_final_answer_is_paid_again_on_demand_alone():
    called, message = [], {"role": "assistant", "content": "It is"}

    def ask(row):
        called.append(row["id"])
        return paceline.finish_of({"choices": [{"finish_reason": "refusal", "message": message}]}).whole()

    first = done(ROWS[:1], ask)
    assert first[0]["error"].startswith("UnfinishedError: declined: ")
    assert (done(ROWS[:1], ask), len(called)) == (first, 1)
    assert (done(ROWS[:1], ask, again="declined"), len(called)) == (first, 2)
    with pytest.raises(paceline.SettingsError, match="again: 'cut_off' is no state whose errors a journal keeps"):
        done(ROWS[:1], ask, again=["cut_off"])


@pytest.mark.filterwarnings("ignore:map of")
def test_a_row_without_a_key_of_its_own_is_its_own_error():
    rows = [{"id": 1.0}, {"id": math.nan}, {}, {"id": 1}, {"id": 2, "at": dt.date(2026, 11, 28), "of": math.nan}]
    found = done(rows, lambda row: row["id"])
    assert [row["answer"] for row in found] == [1.0, None, None, None, 2]
    assert [row["error"] for row in found] == [
        None,
        "invalid_row: it has no key",
        "invalid_row: it has no key: KeyError",
        "invalid_row: it has the key '1' of an earlier item; each needs its own",
        None,
    ]
    found = done([{"id": "a "}, {"id": None}], lambda _: "a", "job-3", key=lambda row: row["id"].strip())
    assert [row["error"] for row in found] == [None, "invalid_row: it has no key: AttributeError"]
    assert done(rows, lambda _: "a", "job-2", key=None)[4]["answer"] == "a"  # by its content, which is no JSON value


def test_what_is_in_the_journal_is_not_called_again():
    called = []

    def call(row):
        called.append(row["id"])
        if row["id"] == 3 and len(called) <= 20:
            raise ConnectionError("no way")
        return {"of": row["text"]}

    with pytest.warns(paceline.PacelineWarning, match="map of call: 1 call raised"):
        first = done(ROWS, call)
    assert (first[3]["answer"], first[3]["error"]) == (None, "ConnectionError: no way")
    second = done(ROWS[::-1], call)[::-1]  # another partition with the same rows
    assert second[3]["answer"] == {"of": "row 3"}
    assert sorted(called) == sorted([*range(20), 3])


def test_two_workers_at_the_same_rows_pay_once():
    called, both = [], threading.Barrier(2)

    async def call(row):
        called.append(row["id"])
        await asyncio.sleep(0.01)
        return row["id"]

    def work(rows):
        both.wait(BOUND_S)
        return done(rows, call)

    with ThreadPoolExecutor(2) as workers:
        results = list(workers.map(work, [ROWS, ROWS]))
    assert results[0] == results[1]
    assert sorted(called) == list(range(20))


def test_a_wait_for_another_worker_is_not_silent(monkeypatch, caplog):
    monkeypatch.setattr("paceline.data.mapping.EVERY_S", 0.01)
    begun = threading.Event()

    async def call(row):
        begun.set()
        await soon(lambda: "0 done; 1 items wait for another process that works at them" in caplog.messages)
        return row["id"]

    with ThreadPoolExecutor(1) as worker:
        first = worker.submit(done, ROWS[:1], call)
        assert begun.wait(BOUND_S)
        assert done(ROWS[:1], call) == first.result(BOUND_S)
        assert first.result()[0]["error"] is None


def test_a_client_is_made_once_for_all_partitions():
    """Its event loop is there for all of them; a client that is bound to one would fail in another."""
    made = []

    def client():
        made.append(openai.AsyncOpenAI(api_key="k", base_url=f"{server.base_url}/v1", max_retries=0))
        return made[-1]

    async def ask(row, client):
        answer = await client.chat.completions.create(
            model="gpt-5", messages=[{"role": "user", "content": row["text"]}]
        )
        return answer.choices[0].message.content

    with OddServer(lambda *_: (200, JSON, ANSWER)) as server:
        options = {"client": client, "limits": {"openai/gpt-5": "100k requests/min"}, "provider": "openai"}
        answers = done(ROWS[:4], ask, **options) + done(ROWS[4:8], ask, **options)
        asyncio.run_coroutine_threadsafe(made[0].close(), partitions._current[-1]._loop).result(BOUND_S)
    assert [row["answer"] for row in answers] == ["Hi."] * 8
    assert len(server.asked) == 8
    assert len(made) == 1


def test_a_partition_that_fails_leaves_no_claim(tmp_path):
    with pytest.raises(paceline.SettingsError, match="a journal cannot keep as it is"):
        done(ROWS, lambda _: object())
    with sqlite3.connect(tmp_path / "quotas.db.job.journal") as db:
        until(lambda: db.execute("SELECT count(*) FROM claims").fetchone() == (0,))  # they are given up by threads
    db.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_child_that_is_forked_has_a_limiter_and_a_journal_of_its_own():
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system has no fork")
    done(ROWS[:2], lambda row: row["id"])
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writer, json.dumps(done(ROWS[:4], lambda row: -row["id"])).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        assert [row["answer"] for row in json.load(pipe)] == [0, 1, -2, -3]


def test_inside_of_an_async_function_of_a_partition_it_would_wait_for_itself():
    async def call(row):
        return done([row], len)

    with pytest.warns(paceline.PacelineWarning):
        assert "would wait for itself" in done(ROWS[:1], call)[0]["error"]


def test_old_journals_are_closed():
    for number in range(2 * partitions.KEPT):
        done(ROWS[:1], lambda row: row["id"], f"job-{number}")
    assert len(partitions._current[-1]._journals._all) == partitions.KEPT


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"store": "memory:"}, "the store is 'memory:', which the processes of a job do not share: set PACELINE_STORE"),
        ({"store": "sqlite:quotas.db"}, "an engine runs each process in a folder of its own"),
        ({"journal": "sqlite:job.db"}, "the journal is 'sqlite:job.db': an engine runs"),
        ({"journal": "a/b"}, "journal is 'a/b': give a name"),
        ({"journal": None}, "the journal is None"),
        ({"rows": [{"answer": 1}]}, "the rows have the column 'answer'"),
        ({"rows": ["text"]}, "row 1 is a str: give dicts"),
        ({"key": "number"}, "the rows have no column 'number', which is the key: their columns are id, text"),
        ({"tires": 2}, "no such setting"),
    ],
)
def test_misuse(options, words):
    with pytest.raises(paceline.PacelineError) as raised:
        done(options.pop("rows", ROWS), lambda row: row, **options)
    assert words in str(raised.value)


def test_a_journal_of_a_map_is_refused(tmp_path):
    paceline.map_sync(lambda row: row, ROWS, journal=tmp_path / "answers.db", progress=False)
    with pytest.raises(paceline.StoreError, match="has entries of one program"):
        done(ROWS, lambda row: row, f"sqlite:{tmp_path / 'answers.db'}")
    done(ROWS, lambda row: row)
    with pytest.raises(paceline.StoreError, match="has a journal that processes share"):
        paceline.map_sync(lambda row: row, ROWS, journal=tmp_path / "quotas.db.job.journal", progress=False)


@pytest.mark.skipif(sys.platform == "win32", reason="an open file stays there")
@pytest.mark.parametrize("another", [None, b"of another program\n"])
async def test_a_journal_that_another_program_deletes_or_replaces(tmp_path, another, monkeypatch):
    """Two processes write it again, each what it can read, and neither pays again."""
    monkeypatch.setattr(journals, "AGAIN_S", 0.01)
    monkeypatch.setattr("paceline.data.mapping.JOURNAL_AGAIN_S", 0.01)
    path, called = tmp_path / "job.db", []
    two = [SharedJournal(open_place(f"sqlite:{path}", None), "job") for _ in range(2)]

    def spoil():
        for end in ("", "-wal", "-shm"):
            Path(f"{path}{end}").unlink()
        if another is not None:
            path.write_bytes(another)

    async def call(row):
        called.append(row["id"])
        if len(called) == 10:
            spoil()
        await asyncio.sleep(0.001)
        return row["id"]

    jobs = zip((ROWS, ROWS[::-1]), two, strict=True)
    maps = [Map(call, rows, journal, "id", 2, progress=None) for rows, journal in jobs]
    found = await asyncio.gather(*(one._collected() for one in maps), return_exceptions=True)
    for journal in two:
        journal.close()
    if another is not None:
        assert [type(one) for one in found] == [paceline.StoreError] * 2
        assert path.read_bytes() == another
        path.with_name("job.db.recovered").rename(path)
    else:
        assert [sorted(one) for one in found] == [list(range(20))] * 2
    assert [row["answer"] for row in done(ROWS, call, f"sqlite:{path}")] == list(range(20))
    assert sorted(called) == list(range(20))


class TestSharedJournal:
    @pytest.fixture
    def opened(self, tmp_path, monkeypatch):
        monkeypatch.setattr(journals, "AGAIN_S", 0.01)
        store = f"sqlite:{tmp_path / 'quotas.db'}"
        with ExitStack() as ends:
            yield lambda: ends.enter_context(closing(SharedJournal(open_place("job", store), "job")))

    async def test_a_damaged_value(self, opened):
        one = opened()
        one._place.write("a", b"no zlib")
        with pytest.raises(paceline.StoreError, match="the value of 'a' is damaged, or was written by another program"):
            await one.begin("a")

    async def test_a_claim_is_held_until_its_value_is_there(self, opened, monkeypatch):
        monkeypatch.setattr(places, "CLAIM_S", 0.5)
        monkeypatch.setattr(journals, "CLAIM_S", 0.06)  # renewed 25 times in that time, for machines that are busy
        one, other = opened(), opened()
        assert await one.begin("a") is None
        would_end_s = time.monotonic() + 0.5
        waits = asyncio.ensure_future(other.begin("a"))
        while time.monotonic() < would_end_s:
            await asyncio.sleep(0.01)
        assert not waits.done()
        await one.keep("a", journals.encoded("value", 0))
        assert (await waits).value == "value"

    async def test_after_a_call_that_failed_another_process_makes_it(self, opened):
        one, other = opened(), opened()
        assert await one.begin("a") is None
        waits = asyncio.ensure_future(other.begin("a"))
        one.give_up("a")
        assert await waits is None

    async def test_an_item_that_garbage_ends_anywhere_blocks_nothing(self, opened, monkeypatch):
        """The collector closes a coroutine at any place of a program, and its item is given up there."""
        monkeypatch.setattr(places, "CLAIM_S", 600)
        one, other = opened(), opened()
        for key in ("a", "b"):
            assert await one.begin(key) is None

        class Collecting(dict):
            def __setitem__(self, key, value):
                one.give_up("a")
                super().__setitem__(key, value)

        monkeypatch.setattr(one, "_claims", Collecting(one._claims))
        await asyncio.to_thread(join, started(asyncio.run, one.begin("c")))
        assert await other.begin("a") is None
        with one._threads._shutdown_lock:  # as within its submit()
            await asyncio.to_thread(join, started(one.give_up, "b"))
        assert await other.begin("b") is None

    async def test_a_claim_whose_map_was_cancelled_meanwhile_is_given_up(self, opened, monkeypatch):
        monkeypatch.setattr(places, "CLAIM_S", 600)
        one, other = opened(), opened()
        claim, has_begun, goes_on = one._place.claim, threading.Event(), threading.Event()

        def slow(key, token):
            has_begun.set()
            goes_on.wait(BOUND_S)
            return claim(key, token)

        monkeypatch.setattr(one._place, "claim", slow)
        begun = asyncio.ensure_future(one.begin("a"))
        assert await asyncio.to_thread(has_begun.wait, BOUND_S)
        begun.cancel()
        await asyncio.wait([begun])
        goes_on.set()
        assert await other.begin("a") is None

    async def test_a_place_that_is_lost_for_a_while(self, opened, monkeypatch):
        one, failures = opened(), [1, 2]
        claim = one._place.claim

        def failing(key, token):
            if failures:
                raise paceline.StoreError(f"lost {failures.pop()}")
            return claim(key, token)

        monkeypatch.setattr(one._place, "claim", failing)
        assert await one.begin("a") is None
        failures += [3]
        monkeypatch.setattr(one, "_wait_s", 0.0)
        with pytest.raises(paceline.StoreError, match="lost 3"):
            await one.begin("b")


@pytest.mark.long("processes are killed, and their claims run out after six seconds")
def test_a_killed_worker_costs_what_was_in_flight(tmp_path):
    program, calls = tmp_path / "work.py", tmp_path / "calls"
    program.write_text(PROGRAM)
    calls.touch()
    start = [sys.executable, program]
    killed = subprocess.Popen(start, cwd=tmp_path)
    until(lambda: calls.stat().st_size >= 4 * 30 or killed.poll() is not None)
    assert killed.poll() is None
    killed.send_signal(signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
    killed.wait()
    both = [subprocess.Popen(start, cwd=tmp_path) for _ in range(2)]  # as with speculative execution
    assert [one.wait(60) for one in both] == [0, 0]
    rows = calls.read_text().split()
    assert len(set(rows)) == 100
    assert len(rows) <= 100 + 8  # were in flight


PROGRAM = """
import json, time
import paceline

def call(row):
    with open("calls", "a") as file:
        file.write(f"{row['id']:3}\\n")
    time.sleep(0.05)
    return row["id"]

rows = [{"id": number} for number in range(100)]
answered = paceline.partition(rows, call, journal="job", key="id", limits={"jobs": "1 requests/s"}, concurrency=8)
assert [row["answer"] for row in answered] == list(range(100))
"""
