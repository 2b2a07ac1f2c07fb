import os

import pytest


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch, tmp_path):
    """No variable of paceline's, and an empty current folder."""
    for name in [name for name in os.environ if name.startswith("PACELINE_") and name != "PACELINE_FACTS"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write(tmp_path):
    """Write a file into the current folder; gives its path as one would type it."""

    def write(text, name="paceline.toml"):
        (tmp_path / name).write_text(text)
        return name

    return write
