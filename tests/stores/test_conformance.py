"""The public suite, run for the stores of the library."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.stores.memory import MemoryStore
from paceline.stores.sqlite import SQLiteStore
from paceline.testing import StoreConformance


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self):
        return MemoryStore()

    @pytest.fixture
    def second(self, store):
        return store


class TestSQLiteStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path):
        store = SQLiteStore(tmp_path / "books.db", timeout_s=5.0)
        yield store
        store.close()

    second = store


def test_the_suite_imports_no_pytest():
    code = "import paceline.testing.stores, sys; paceline.testing.StoreConformance; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
