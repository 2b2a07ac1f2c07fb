"""What a finalizer, or the handler of a signal, calls in the middle of a call of the same thread: it waits for nothing."""

import ast
import asyncio
import sys
from pathlib import Path

import pytest

import paceline
from memory_store import MemoryStore
from paceline.core.quota import Quota
from paceline.core.results import StoreError
from paceline.data import crowd
from paceline.data.journal import SharedJournal
from paceline.data.places import open_place
from paceline.pacing.clock import SYSTEM_CLOCK
from paceline.pacing.group import Choice
from paceline.pacing.owners import ThreadOwner
from paceline.stores.redis import _Connection
from paceline.stores.redis_presence import Presence
from paceline.stores.sqlite import SQLiteStore
from shared_pools import message_of
from waits import BOUND_S, join, run_all

PLAIN = {
    "cli/standing.py": "the page asks, in its threads",
    "data/partition.py": "a partition begins and ends, which no finalizer does",
    "gateway/handover.py": "it is taken without waiting",
    "limiter/tally.py": "what writes the sums",
    "pacing/inbox.py": "no section: one thread waits on it, and any other one releases it",
    "pacing/owners.py": "no section: a thread waits on it, and any other one wakes it",
    "stores/entries.py": "threads of their own use the file",
    "stores/tallies.py": "what writes the sums",
    "telemetry/history.py": "it begins once",
}
"""The files with a lock that is not reentrant, and why no finalizer and no handler comes to it."""


def exchange(store):
    return store.exchange("pool", message_of("a", 1, (Quota("requests", 10),), [0], headroom_s=0.0, wants=[[1.0]]))


class Interrupting:
    """A clock whose first call is another one's place to call ``act``."""

    def __init__(self, act):
        self._acts = [act]

    def now_ns(self):
        while self._acts:
            self._acts.pop()()
        return SYSTEM_CLOCK.now_ns()


def test_every_other_lock_is_reentrant():
    root, found = Path(paceline.__file__).parent, set()
    for file in root.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "Lock(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Lock", "threading.Lock"):
                found.add(file.relative_to(root).as_posix())
    assert found == PLAIN.keys()


def test_a_thread_is_woken_by_itself():
    owner = ThreadOwner()

    def wake(*_):
        owner.wake({})
        return wake

    def wait():
        sys.settrace(wake)  # at each line of what it calls
        owner.wait()

    run_all([wait])


def test_a_thread_that_is_awake_is_woken_again():
    owner = ThreadOwner()
    owner.wake({})
    owner.wake({})
    run_all([owner.wait])
    assert owner._woken.locked(), "its next wait needs another one"


@pytest.mark.parametrize("act", ["exchange", "close"])
def test_a_store_in_memory(act):
    errors = []
    clock = Interrupting(lambda: errors.extend(within_itself(act)))

    def within_itself(act):
        try:
            exchange(store) if act == "exchange" else store.close()
        except StoreError as error:
            yield error

    store = MemoryStore(clock=clock)
    run_all([lambda: exchange(store)])
    assert [str(error) for error in errors] == ["this thread is using the store already"] * (act == "exchange")
    exchange(store)


@pytest.mark.parametrize("act", [SQLiteStore.close, exchange])
def test_a_store_in_a_file(tmp_path, act):
    store = SQLiteStore(tmp_path / "quotas.db", clock=Interrupting(lambda: act(store)))
    with pytest.raises(StoreError):
        run_all([lambda: exchange(store)])
    exchange(store)
    store.close()


def test_a_connection_to_redis():
    class Connected:
        def connect(self):
            connection.execute("PING")

        def disconnect(self):
            pass

    connection = _Connection(Connected(), Presence(Connected))
    with pytest.raises(StoreError, match="this thread is using the store already"):
        run_all([lambda: connection.execute("PING")])


def test_a_presence():
    def connect():
        presence.close()
        raise ConnectionError

    presence = Presence(connect)
    run_all([lambda: presence.join("a")])


def test_a_group():
    class Collecting(dict):
        def __getitem__(self, name):
            value = super().__getitem__(name)
            if acts:
                acts.pop()()
            return value

    choice = Choice(["a", "b"], SYSTEM_CLOCK)
    choice._weights = Collecting(choice._weights)
    acts = [lambda: chosen.append(choice.pick({"a": 0.0, "b": 0.0}, None, {}))]
    chosen = []
    run_all([lambda: chosen.append(choice.pick({"a": 0.0, "b": 0.0}, None, {}))])
    assert len(chosen) == 2


async def test_a_crowd():
    class Collecting:
        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            self.lock.acquire()
            if acts:
                acts.pop()()

        def __exit__(self, *_):
            self.lock.release()

    calls = crowd.Crowd(2)
    one, other = calls.join(), calls.join()
    acts = [lambda: calls.leave(other)]
    calls._lock = Collecting(calls._lock)
    await asyncio.to_thread(run_all, [lambda: calls.leave(one)])
    assert calls.ahead == 0


async def test_a_journal_that_its_own_thread_closes(tmp_path):
    one = SharedJournal(open_place("job", f"sqlite:{tmp_path / 'quotas.db'}"), "job")
    assert await one.begin("a") is None
    one._threads.submit(one.close).result(BOUND_S)
    join(one._keeper)
