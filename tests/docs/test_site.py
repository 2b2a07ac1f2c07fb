"""The pages as a whole: links lead somewhere, each page is in the site, promises name tests, figures are those of their script."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from pages import PAGES, ROOT

sys.path.insert(0, str(ROOT / "docs" / "site"))

import build
import figures

from paceline.cli.commands import COMMANDS

LINKED = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "RELEASING.md", "SECURITY.md"))]
LINK = re.compile(r"(?<!`)\]\(((?!https?:)[^)\s]+)\)")


def prose(path: Path) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(path: Path) -> set[str]:
    """The anchors of the headings, as the repository's page and the site make them."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE):
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).replace("`", "").strip().lower()
        found.append(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return set(found)


@pytest.mark.parametrize("path", LINKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for link in LINK.findall(prose(path)):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("path", LINKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_table_begins_with_its_head(path):
    """An empty line in a table makes text of the rows below it."""
    broken = re.findall(r"\n\n(\|.*)\n(?!\|[-| ]+\|)", prose(path))
    assert not broken, f"no row of dashes is below {broken[0]!r}"


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without calling what it names."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def pages_in(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for item in (nav.values() if isinstance(nav, dict) else nav) for page in pages_in(item)]


def test_the_navigation_has_each_page_once():
    nav = pages_in(yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)["nav"])
    assert sorted(nav) == sorted([*build.PAGES.values(), *build.REFERENCE, "cli.md"])


def test_the_pages_are_written_and_have_each_command_and_name(tmp_path):
    build.main(tmp_path / "pages")
    written = (tmp_path / "pages" / "cli.md").read_text("utf-8")
    assert [name for name in COMMANDS if f"## paceline {name}\n" not in written] == []
    api = "".join((tmp_path / "pages" / page).read_text("utf-8") for page in build.REFERENCE)
    assert [name for name in build.paceline.__all__ if api.count(f"heading: paceline.{name}\n") != 1] == []
    for page in build.PAGES.values():
        assert (tmp_path / "pages" / page).is_file()


def test_a_built_site_gets_its_search_once(tmp_path):
    worker = tmp_path / "assets" / "javascripts" / "workers" / "search.0a1b.min.js"
    worker.parent.mkdir(parents=True)
    worker.write_text("self.onmessage = () => {};", "utf-8")
    for _ in range(2):
        build.finish(tmp_path)
        assert worker.read_text("utf-8").count("self.onmessage = (message)") == 1


def test_each_version_has_its_folder_and_all_are_listed(tmp_path, monkeypatch):
    built, site = tmp_path / "built", tmp_path / "site"
    built.mkdir()
    missing = (
        '<a href="/index.html"><script src="/../versions.js"></script>{"base":"/","x":"a/b"} new URL("/",location)'
    )
    (built / "404.html").write_text(missing)
    for version in ("0.9.0", "0.10.0", "0.2.0", "0.9.0"):
        monkeypatch.setattr(build.paceline, "__version__", version)
        (built / "index.html").write_text(f"pages of {version}")
        build.publish(built, site)
    assert (site / "versions.js").read_text().startswith('const VERSIONS = ["0.10.0", "0.9.0", "0.2.0"];\n//')
    assert (site / "0.2.0" / "index.html").read_text() == "pages of 0.2.0"
    assert 'url=0.10.0/index.html"' in (site / "index.html").read_text()
    assert (site / "404.html").read_text() == (
        '<a href="/0.10.0/index.html"><script src="/0.10.0/../versions.js"></script>'
        '{"base":"/0.10.0/","x":"a/b"} new URL("/0.10.0/",location)'
    )


def test_a_page_that_loads_from_another_host_is_found(tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<script src="app.js"></script><a href="https://example.org">x</a>')
    build.check(tmp_path)
    for tag in (
        '<script src="https://example.org/a.js">',
        "<img src=//example.org/a.png>",
        '<link rel="stylesheet" href="https://example.org/a.css">',
    ):
        page.write_text(tag)
        with pytest.raises(SystemExit, match="another host"):
            build.check(tmp_path)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_the_figures_are_those_of_their_script(name):
    assert (figures.IMAGES / name).read_text("utf-8") == figures.FIGURES[name](), "run: python docs/site/figures.py"


def test_the_figures_show_what_the_page_says():
    page = (ROOT / "docs" / "how_limits_work.md").read_text("utf-8")
    points, refused = figures.retries(failed_count=False)
    assert round(refused / points[-1][1]) == 9
    assert "nine refusals for each answer" in page
    assert figures.retries(failed_count=True)[0][-1][1] < 0.15 * figures.paced()[-1][1]


def names_in(path: Path) -> set[str]:
    """The functions and classes of a file."""
    return set(re.findall(r"^ *(?:async def|def|class) (\w+)", path.read_text("utf-8"), re.MULTILINE))


def test_each_promise_names_tests_that_exist():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs" / "promises.md").read_text("utf-8"))
    assert len(named) > 20
    assert [(file, test) for file, test in named if test not in names_in(ROOT / "tests" / file)] == []


def test_the_page_of_the_five_systems_names_tests_that_exist():
    page = (ROOT / "docs" / "systems.md").read_text("utf-8")
    files = {path.relative_to(ROOT / "tests").as_posix(): names_in(path) for path in ROOT.glob("tests/**/test_*.py")}
    names = set(re.findall(r"`(test_\w+|Test\w+)`", page))
    assert len(names) > 60
    known = sorted(set().union(*files.values()))
    assert [name for name in names if not any(one.startswith(name) for one in known)] == []
    assert set(re.findall(r"`([\w/]+/test_\w+\.py)`", page)) - files.keys() == set()
    rows = [line for line in page.partition("## Simulation")[2].splitlines() if line.startswith("|")]
    assert len(rows) > 60
    assert {line.count("|") for line in rows} == {5}


@pytest.mark.parametrize(
    ("name", "section", "rows"),
    [
        ("providers", "What a request is charged", 16),
        ("how_limits_work", "What headers report", 9),
        ("how_limits_work", "Four ways", 4),
    ],
)
def test_each_fact_about_a_provider_has_its_source(name, section, rows):
    """A row of a table of providers names a page, or what was observed, and a year."""
    page = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    table = page.partition(f"## {section}")[2].partition("\n## ")[0]
    found = [
        line for line in table.splitlines() if line.startswith("| ") and not line.startswith(("| provider", "| rule"))
    ]
    assert len(found) >= rows
    assert [row for row in found if not re.search(r"\]\(https://[^)]+\).*\b202\d(-\d\d)?\b", row)] == []


def test_llms_txt_has_each_page_of_the_site_with_a_sentence():
    text = "\n".join(build.llms())
    nav = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader=Loader)["nav"]
    listed = re.findall(r"^- \[[^\]]+\]\(([\w/]+)\.html\): \S.{15,}$", text, re.MULTILINE)
    assert [f"{page}.md" for page in listed] == [page for page in pages_in(nav) if page != "index.md"]
    assert "](docs" not in text
