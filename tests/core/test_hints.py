"""Suggestions for misspelt names, and why a package cannot be imported."""

from __future__ import annotations

import pytest

from paceline.core.hints import NAMES_MAX, counted, did_you_mean, shown_names, why_missing


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("opnai", "; did you mean 'openai'?"),
        ("OpenAI", "; did you mean 'openai'?"),
        ("berlin", "; did you mean 'Berlin'?"),
        ("openai", ""),
        ("zzz", ""),
    ],
)
def test_the_nearest_name(name, hint):
    assert did_you_mean(name, ["openai", "Berlin"]) == hint


def test_a_higher_cutoff_suggests_less():
    assert did_you_mean("opai", ["openai"], cutoff=0.6)
    assert did_you_mean("opai", ["openai"], cutoff=0.9) == ""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn"),
            "a budget needs the extra 'budget': pip install 'paceline[budget]'",
        ),
        (
            ImportError("DLL load failed while importing _speedups: not found", name="_speedups"),
            "_speedups is installed and does not load: DLL load failed while importing _speedups: not found",
        ),
        (ImportError("no library"), "a package is installed and does not load: no library"),
        (ImportError("the page needs a server", name="paceline.telemetry"), "the page needs a server"),
    ],
)
def test_a_package_that_does_not_load_is_not_called_missing(error, words):
    assert why_missing(error, "a budget", "budget") == words


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["id", "text", 3], "id, text, 1 more"),
        (["Why is the sky blue, and who says so?", "sk-12345"], "2, which look like no names"),
        ([], ""),
        ([f"c{n}" for n in range(NAMES_MAX + 1)], ", ".join(f"c{n}" for n in range(NAMES_MAX)) + ", 1 more"),
    ],
)
def test_only_what_looks_like_a_name_is_shown(names, shown):
    assert shown_names(names) == shown


def test_one_is_counted_without_an_s():
    assert [counted(1, "request"), counted(2000, "request")] == ["1 request", "2,000 requests"]
    assert [counted(1, "batch"), counted(2, "batch")] == ["1 batch", "2 batches"]
