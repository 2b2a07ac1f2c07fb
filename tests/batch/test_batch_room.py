"""A run that has too few files, or too little memory, for its workers."""

import asyncio
import errno
import json
import subprocess
import sys
from types import SimpleNamespace

import aiohttp
import pytest
from batch_helpers import FAST, GOOD, Reply, call, chat, chats, finish, read_answers, run_job, write_lines

from paceline.batch import client as client_module
from paceline.batch import gates
from paceline.batch.gates import Room
from paceline.batch.progress import LineView
from paceline.pacing.lack import Lack

KEY = SimpleNamespace(ssl=True, host="host", port=1)


class Narrow:
    """In place of a session: raises ``error`` for each request beyond ``most`` in flight, and answers the others."""

    def __init__(self, most, error):
        self.most, self.error, self.now, self.lacked = most, error, 0, 0

    async def post(self, _url, **_):
        if self.now >= self.most:
            self.lacked += 1
            raise self.error
        self.now += 1
        await asyncio.sleep(0.005)
        self.now -= 1
        return Reply(json.dumps(GOOD).encode())

    async def close(self):
        pass


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (aiohttp.ClientConnectorError(KEY, OSError(errno.EMFILE, "no")), "too many open files: 1"),
        (RuntimeError("can't start new thread"), "no new thread can be started: 1"),
        (MemoryError(), "out of memory: 1"),
    ],
)
def test_a_lack_lowers_the_requests_in_flight_and_is_named_once(tmp_path, monkeypatch, capsys, caplog, error, words):
    narrow = Narrow(20, error)
    monkeypatch.setattr(client_module, "session", lambda *_: narrow)
    monkeypatch.setattr(gates, "PAUSE_S", 0.01)
    source = write_lines(tmp_path / "in.jsonl", chats(120))
    code, report = run_job(source, "http://127.0.0.1:9", LineView(), workers=100, max_attempts=1)
    assert (code, report["ok"], report["attempts"]) == (0, 120, 120)
    assert len(read_answers(tmp_path / "in.results.jsonl")) == 120
    err = capsys.readouterr().err
    assert err.count(words) == err.count("requests in flight at most") == 1
    assert "cannot reach" not in err + caplog.text
    assert "failures in a row" not in err + caplog.text
    assert narrow.lacked <= 100


async def in_room(room, count):
    return [await room.enter() for _ in range(count)]


async def test_a_burst_of_lacks_finds_how_many_fit(monkeypatch):
    monkeypatch.setattr(gates, "RISE_S", 1_000.0)
    room = Room(lambda _: None)
    entries = await in_room(room, 500)
    for number, entry in enumerate(entries[231:]):
        room.lower(Lack.FILES, entry, entry, 500, 499 if number == 0 else 0)
        room.leave()
    assert room.most == 223
    waiting = asyncio.create_task(room.enter())
    for _ in range(8):
        await asyncio.sleep(0)
        assert not waiting.done()
        room.leave()
    room.leave()
    await waiting


async def test_requests_that_entered_before_and_are_sent_later_do_not_lower_it_again():
    """They wait in the queue of the pool, and are no part of the burst that has lowered the bound."""
    room = Room(lambda _: None)
    entries = await in_room(room, 300)
    room.lower(Lack.FILES, entries[103], 104, 104, 103)
    for attempt, entry in enumerate(entries[104:], 105):
        room.lower(Lack.FILES, entry, attempt, attempt, 103)
    assert room.most == 95


def test_nothing_is_loaded_from_a_file_for_the_first_answer():
    """A run that has no file left when it comes would lose it."""
    check = "import sys, paceline.batch.results; sys.exit('encodings.utf_8_sig' not in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


async def test_the_bound_rises_by_one_and_more_and_more_slowly(monkeypatch):
    monkeypatch.setattr(gates, "RISE_S", 0.0)
    room = Room(lambda _: None)
    for entry in await in_room(room, 20):
        room.lower(Lack.FILES, entry, entry, 20, 19)
    assert (room.most, room.words) == (1, "too many open files: 1 request in flight at most")
    waiting = [asyncio.create_task(room.enter()) for _ in range(40)]
    for step in range(2, 12):
        await asyncio.sleep(0)
        room.leave()
        assert room.most == step
    for task in waiting:
        task.cancel()
    monkeypatch.setattr(gates, "RISE_S", 1_000.0)
    later = Room(lambda _: None)
    await in_room(later, 9)
    later.lower(Lack.FILES, 9, 9, 9, 8)
    waiting = asyncio.create_task(later.enter())
    await asyncio.sleep(0)
    later.leave()
    assert later.most == 6
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_turn_of_a_task_that_was_cancelled_goes_to_the_next(monkeypatch):
    monkeypatch.setattr(gates, "RISE_S", 1_000.0)
    room = Room(lambda _: None)
    await in_room(room, 2)
    room.lower(Lack.FILES, 1, 1, 2, 1)
    room.leave()
    first, second = (asyncio.create_task(room.enter()) for _ in range(2))
    await asyncio.sleep(0)
    room.leave()
    first.cancel()
    await asyncio.wait_for(second, 5)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit to raise")
class TestLimit:
    """The command raises its limit of open files, and the library does not."""

    @pytest.fixture
    def soft(self):
        import resource

        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        hard = before[1]
        low = 1_000 if hard == resource.RLIM_INFINITY else min(1_000, hard // 2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
        yield low, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    def test_the_command_does_and_a_job_in_a_program_does_not(self, tmp_path, emulator, soft):
        (low, now), source = soft, write_lines(tmp_path / "in.jsonl", [chat("a")])
        run_job(source, emulator.base_url, LineView())
        assert now() == low
        call(source, base_url=emulator.base_url)
        assert now() > low

    @pytest.mark.long("a process of its own")
    def test_a_run_ends_with_few_files(self, tmp_path, emulator, command):
        emulator.reset(latency_s=0.1, limits={"*": FAST})
        source = write_lines(tmp_path / "in.jsonl", chats(600))
        setup = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))"
        _, err = finish(command(source, "--workers", "300", base_url=emulator.base_url, setup=setup), 0)
        assert err.count("too many open files") == 1
        assert "600 attempts, 0 of them refused" in err
        assert "cannot reach" not in err
        assert "failures in a row" not in err


async def test_answers_that_end_in_a_burst_of_lacks_do_not_lower_the_bound():
    room = Room(lambda _: None)
    entries = await in_room(room, 300)
    others = 300
    for number, entry in enumerate(entries[100:]):
        if number % 4 == 0:
            others -= 1
            room.leave()  # one that had what it needs
        others -= 1
        room.lower(Lack.FILES, entry, entry, 300, others)
        room.leave()
    assert room.most == 91
