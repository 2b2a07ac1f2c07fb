import pytest


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch, tmp_path):
    """An empty current folder, where no file of settings is found."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write(tmp_path):
    """Write a file into the current folder; gives its path as one would type it."""

    def write(text, name="paceline.toml"):
        (tmp_path / name).write_text(text)
        return name

    return write
