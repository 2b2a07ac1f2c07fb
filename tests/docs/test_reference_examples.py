"""The examples of public docstrings run, with an emulator for OpenAI; the docstrings that people need most have one."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

import pytest
from pages import Block
from test_python_examples import COMMON, reader  # noqa: F401  (a fixture)

import paceline
import paceline.testing

GIVEN = """
quotas = {"openai/gpt-6-luna": ["6000 requests/min", "60M tokens/min"], "openai/gpt-5": "6000 requests/min"}
limiter = paceline.Limiter(quotas)
"""
EXAMPLE = re.compile(r"^Example:\n((?: {4}.*\n?|\n)+)", re.MULTILINE)


def described() -> dict[str, object]:
    """The public names and their methods."""
    found: dict[str, object] = {"testing.run_virtual": paceline.testing.run_virtual}
    for name in paceline.__all__:
        value = found[name] = getattr(paceline, name)
        if inspect.isclass(value):
            found |= {f"{name}.{member}": what for member, what in inspect.getmembers(value, callable)}
    return {name: value for name, value in found.items() if not name.rpartition(".")[2].startswith("_")}


POINTS_ELSEWHERE = {"arun", "map_sync", "Group.acquire"}
"""Their arguments are those of ``run``, ``map`` and ``Limiter.acquire``, as their docstrings say."""

EXAMPLES = {
    name: textwrap.dedent(example[1])
    for name, value in described().items()
    if (example := EXAMPLE.search(inspect.getdoc(value) or ""))
}
FUNCTIONS = {
    name: value
    for name, value in described().items()
    if (inspect.isfunction(value) or inspect.ismethod(value)) and name not in POINTS_ELSEWHERE
}
NEEDED = {
    "Limiter", "Limiter.load", "Limiter.for_provider", "Limiter.acquire", "Limiter.try_acquire", "Limiter.attempts", "Limiter.paced",
    "Limiter.attach", "Limiter.estimate", "Limiter.status", "Limiter.resume", "Permit.settle", "Permit.refused", "Permit.failed", "Permit.cancel",
    "Group", "Quota.parse", "RetryPolicy", "lane", "map", "map_sync", "run", "instrument", "eta", "refusal_of", "finish_of", "testing.run_virtual",
}  # fmt: skip


def test_the_docstrings_that_people_need_most_have_an_example():
    assert EXAMPLES.keys() >= NEEDED


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(reader, name):  # noqa: F811
    Path("paceline.toml").write_text('provider = "openai"\ntier = 2\n', "utf-8")
    space: dict[str, object] = {}
    exec(COMMON + GIVEN, space)
    reader.python(Block(name, 0, "python", EXAMPLES[name], None), space)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_described(name):
    told = inspect.getdoc(FUNCTIONS[name]) or ""
    section = re.search(r"^Args:\n((?: {4}.*\n?|\n)+)", told, re.MULTILINE)
    parameters = [one for one in inspect.signature(FUNCTIONS[name]).parameters if one != "self"]
    missing = [
        one for one in parameters if section is None or not re.search(rf"^ {{4}}\**{one}:", section[1], re.MULTILINE)
    ]
    assert missing == [], "Args: of the docstring has a line for each argument"
