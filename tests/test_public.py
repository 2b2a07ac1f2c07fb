"""What is public stands in ``public.txt``: a change of it is seen in review, and needs a line in the changelog."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.public import PAGE, RECORD, public, with_settings

import paceline

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))


def test_what_is_public_is_what_the_record_says():
    assert public().splitlines() == RECORD.read_text("utf-8").splitlines(), "python -m tests.public writes it again"


def test_the_page_has_every_setting_as_it_is_declared():
    page = PAGE.read_text("utf-8")
    assert with_settings(page) == page, "python -m tests.public writes it again"


def test_the_address_of_the_project_is_the_same_everywhere():
    address = PROJECT["project"]["urls"]["Source"]
    links = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    assert all(url.startswith(address) for url in PROJECT["project"]["urls"].values())
    assert all(f"]({address}/" in link["replacement"] for link in links)


def test_the_version_is_a_release():
    assert [part.isdecimal() for part in paceline.__version__.split(".")] == [True] * 3
