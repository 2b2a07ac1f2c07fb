"""What may be given as a store, and the errors for anything else."""

import itertools
import re
import sys
import threading
from pathlib import Path

import pytest

from memory_store import MemoryStore
from paceline.shared.messages import Message
from paceline.stores import StoreError, as_store
from paceline.stores.base import Prefixed
from paceline.stores.sqlite import SQLiteStore


class Half:
    url = "half:"
    close = after_fork = print


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("q.db", "did you mean 'sqlite:q.db'?"),
        ("/var/lib/q.db", "did you mean 'sqlite:/var/lib/q.db'?"),
        ("sqllite:q.db", "no store is called 'sqllite': did you mean 'sqlite'?"),
        ("SQLITE:q.db", "did you mean 'sqlite'?"),
        ("mysql://host", "no store is called 'mysql': write 'memory:', 'sqlite:PATH', 'redis://HOST:PORT/DB'"),
        ("", "a store is given by its URL: write 'memory:'"),
        ("memory:x", "did you mean 'memory:', which is no store?"),
        ("MEMORY", "did you mean 'memory:', which is no store?"),
        ("me@host", "a store is given by its URL: write 'memory:'"),
        (Path("q.db"), "store is a path: write store='sqlite:q.db'"),
        (MemoryStore, "store is the class MemoryStore: write store=MemoryStore(...)"),
        (
            object(),
            "store is of the type object, which has no url (a str), exchange(), after_fork(), close(): give a URL",
        ),
        (5, "store is of the type int, which has no url"),
        (Half(), "store is of the type Half, which has no exchange(): give"),
    ],
)
def test_what_is_no_store(given, says):
    with pytest.raises(StoreError, match=re.escape(says)):
        as_store(given)


def test_what_is_one(tmp_path):
    store = MemoryStore()
    assert as_store(store) is store
    assert as_store("memory:") is None
    assert isinstance(as_store(Prefixed(store, "team")), Prefixed)
    assert isinstance(as_store(f"sqlite:{tmp_path}/q.db"), SQLiteStore)


def test_a_finalizer_that_needs_the_store_which_its_thread_uses_gets_an_error():
    class Interrupted:
        def now_ns(self):
            with pytest.raises(StoreError, match="this thread is using the store already"):
                store.exchange("pool", Message("a", 2))
            return 1

    store = MemoryStore(clock=Interrupted())
    for number in (1, 3):
        assert store.exchange("pool", Message("a", number)).peers == 1


def test_an_interrupt_at_any_instant_leaves_the_store_to_other_threads():
    def interrupt(_frame, event, _argument):
        nonlocal left
        left -= event in ("call", "c_return")  # where Python runs the handlers of signals
        if left == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    for instant in itertools.count(1):
        store, left, replies = MemoryStore(), instant, []

        def exchange(store=store, replies=replies):
            replies.append(store.exchange("pool", Message("a", 1)))

        try:
            sys.setprofile(interrupt)
            exchange()
            sys.setprofile(None)
        except KeyboardInterrupt:
            replies.clear()
        if left > 0:
            break
        exchange()
        other = threading.Thread(target=exchange, daemon=True)
        other.start()
        other.join(10)
        assert len(replies) == 2
    assert instant > 10
