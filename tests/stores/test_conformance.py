"""The public suite, run for the stores of the library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from memory_store import MemoryStore
from paceline.stores import StoreError
from paceline.stores.sqlite import SQLiteStore
from paceline.testing import ManualClock, StoreConformance
from programs import python
from systems import unless_wine

STORES_PAGE = Path(__file__).parents[2] / "docs" / "stores.md"


class TestMemoryStore(StoreConformance):
    # It lives in one process and cannot fail: there is neither an ``opener`` nor a ``broken`` one.
    test_two_processes_share = None
    test_a_failure_is_a_store_error = None

    @pytest.fixture
    def store(self):
        return MemoryStore()

    @pytest.fixture
    def second(self, store):
        return store


class TestSQLiteStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path):
        store = SQLiteStore(tmp_path / "books.db", timeout_s=60.0)
        yield store
        store.close()

    second = store

    @pytest.fixture
    def opener(self, tmp_path):
        return partial(SQLiteStore, tmp_path / "books.db", timeout_s=60.0)

    @pytest.fixture
    def broken(self, tmp_path):
        (tmp_path / "text").write_text("no folder")
        return SQLiteStore(tmp_path / "text" / "books.db")

    @unless_wine("a ProcessPoolExecutor of two processes does not end there, also with abs() as its function")
    def test_two_processes_share(self, request):
        super().test_two_processes_share(request)


def test_the_suite_imports_no_pytest():
    python("import paceline.testing.stores, sys; paceline.testing.StoreConformance; sys.exit('pytest' in sys.modules)")


class TestWhatIsWrongIsFound:
    """The suite fails for stores with one mistake each."""

    def test_a_clock_that_counts_from_elsewhere(self):
        class Monotonic(ManualClock):
            def now_ns(self):
                return time.monotonic_ns()

        store = MemoryStore(clock=Monotonic())
        with pytest.raises(AssertionError):
            StoreConformance().test_windows_go_by_the_wall_clock(store, store)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
    def test_a_connection_that_is_kept_in_a_forked_child(self):
        class Connected(MemoryStore):
            opener = os.getpid()

            def exchange(self, pool, message):
                if self.opener != os.getpid():
                    raise StoreError("this connection is the parent's")
                return super().exchange(pool, message)

        with pytest.raises(AssertionError, match="a child has failed"):
            StoreConformance().test_a_forked_child_is_another_process(Connected())

    def test_a_failure_that_is_no_store_error(self, request):
        class Raises(MemoryStore):
            def exchange(self, pool, message):
                raise OSError("no disk")

        class Request:
            def getfixturevalue(self, _):
                return store

        suite, store = StoreConformance(), Raises()
        with pytest.raises(OSError, match="no disk"):
            suite.test_a_failure_is_a_store_error(Request())
        with pytest.raises(OSError, match="no disk"):
            suite.test_a_name_that_cannot_be_written_is_a_store_error(store)
        store = MemoryStore()
        with pytest.raises(AssertionError, match="no StoreError was raised"):
            suite.test_a_failure_is_a_store_error(Request())


@pytest.mark.skipif(sys.platform == "win32", reason="it locks its files with fcntl")
@pytest.mark.long("the whole suite for stores, in a process of its own")
def test_the_store_of_the_docs_passes(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", STORES_PAGE.read_text("utf-8"), re.DOTALL)
    store = next(block for block in blocks if "class FileStore:" in block)
    tests = next(block for block in blocks if "class TestFileStore(" in block)
    (tmp_path / "file_store.py").write_text(store.replace("/var/lib/app/quotas", str(tmp_path)))
    (tmp_path / "test_file_store.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3_000:]
    assert "skipped" not in done.stdout
