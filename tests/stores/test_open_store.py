"""What may be given as a store, and the errors for anything else."""

import re
from pathlib import Path

import pytest

from paceline.stores import StoreError, as_store
from paceline.stores.base import Prefixed
from paceline.stores.memory import MemoryStore
from paceline.stores.sqlite import SQLiteStore


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


def test_what_a_store_lacks_is_named():
    class Half:
        url = "half:"
        close = after_fork = print

    with pytest.raises(StoreError, match=re.escape("store is of the type Half, which has no exchange(): give")):
        as_store(Half())
