"""The pages of the site, from the pages of the repository: ``python docs/site/build.py TARGET``.

The Markdown of the repository is written for its own page: README.md lies above docs/, and pages link to sources. Here the same files
get the places that they have in the site, and their links follow. The pages of the command and of the API are generated.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from html import escape
from importlib import import_module
from inspect import cleandoc, isclass
from pathlib import Path

import click
import yaml

import paceline
from paceline.cli.app import app
from paceline.cli.guides import Helped, guide_of
from paceline.config.schema import json_schema

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"^!\[[^\]]*\]\(([^)]+)\)$", re.MULTILINE)
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)")

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
    **{f"docs/{path.name}": path.name for path in sorted((ROOT / "docs").glob("*.md"))},
    **{f"examples/{path.parent.name}/README.md": f"examples/{path.parent.name}.md" for path in ROOT.glob("examples/*/README.md")},
}  # fmt: skip
"""Each page of the repository, and its place in the site."""

GIVEN = ("Acquisition", "Permit")
"""Classes whose objects users get and never make."""

REFERENCE: dict[str, tuple[str, str, str]] = {
    "api_limiter.md": ("Limiter", "Limiter instrument status_app", ""),
    "api_permit.md": (
        "Permit",
        "Permit Acquisition Later NeverFits Waiting Refusal RefusalKind RefusalScope refusal_of Reading HeaderLimits limits_in Finish finish_of Event",
        "",
    ),
    "api_lanes.md": (
        "Lanes, groups and policies",
        "Group lane LaneSpec Buffer Quota Rule RetryPolicy BreakerPolicy PlanPolicy",
        "",
    ),
    "api_data.md": ("run, map, partition", "run arun map map_sync partition", ""),
    "api_errors.md": ("Errors", "", ""),
    "api_testing.md": ("Testing", "", "testing planner.simulation"),
    "api_planning.md": ("Planning", "eta", "planner.forecast planner.plan planner.workload planner.logs"),
    "api_integrations.md": (
        "Integrations",
        "",
        (
            "integrations.anthropic integrations.langchain integrations.dspy integrations.ray integrations.beam integrations.extropy"
            " integrations.flatmachines integrations.massgen"
        ),
    ),
    "api_stores.md": ("Stores and providers", "", "stores providers.base telemetry.otel"),
}
"""The pages of the API: a title, names of ``paceline``, and its modules. The page of errors has every error and warning."""


NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
"""The front matter of a page whose words would hide the documentation's."""


def place(target: Path) -> str:
    """Where a file or a folder of the repository is in the site; what is no page is one of its files."""
    name = target.relative_to(ROOT).as_posix()
    if name == "examples":
        return PAGES["docs/systems.md"]
    if target.is_dir():
        name += "/README.md"
    return PAGES.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else f"files/{name}")


def copied(name: str, folder: Path) -> Iterator[Path]:
    """Write one page with the links that it needs in the site; yields the other files to which it links."""
    source = ROOT / name
    linked: list[Path] = []

    def moved(link: re.Match[str]) -> str:
        target = (source.parent / link[1]).resolve()
        if not target.exists():
            raise SystemExit(f"{name}: the link to {link[1]} leads nowhere")
        at = place(target)
        if target.is_file() and at not in PAGES.values():
            linked.append(target)
        return os.path.relpath(at, Path(PAGES[name]).parent)

    text, rest = "", source.read_text("utf-8")
    for fence in [*FENCE.findall(rest), None]:
        prose, _, rest = rest.partition(fence) if fence else (rest, "", "")
        prose = IMAGE.sub(r"[\g<0>](\1)", prose)  # opens in full: on a phone it is small
        text += LINK.sub(moved, prose) + (fence or "")
    page = folder / PAGES[name]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text((NOT_SEARCHED if name == "CHANGELOG.md" else "") + text, "utf-8")
    yield from linked


def options_of(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """A line for each argument and option of a command."""
    for param in command.get_params(ctx):
        if not getattr(param, "hidden", False):
            name, told = param.get_help_record(ctx) or (param.make_metavar(ctx), "")
            text = re.sub(r"([*_`])", r"\\\1", escape(told))  # a word of the help is no emphasis
            yield f"* <code>{escape(name)}</code>: {text}" if text else f"* <code>{escape(name)}</code>"


def commands(command: click.Command, ctx: click.Context, level: int = 2) -> Iterator[str]:
    """The section of a command, and the sections of its subcommands."""
    yield f"{'#' * level} {ctx.command_path}\n" if level > 1 else "# The command line\n"
    yield f"```text\n{ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}\n```\n"
    yield re.sub(r"(?m)^\b$\n?", "", cleandoc(command.help or "").replace("\b", "").replace("<", "&lt;")) + "\n"
    yield "\n".join(options_of(command, ctx)) + "\n"
    if isinstance(command, Helped):
        guide = guide_of(command)
        yield "```console\n" + "".join(f"$ {example}\n" for example in guide.examples) + "```\n"
        yield f"Exit codes: {guide.exits}\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            if below is not None and not below.hidden:
                yield from commands(below, click.Context(below, info_name=name, parent=ctx), level + 1)


def named(page: str) -> list[str]:
    """The names of ``paceline`` that a page of the API has."""
    if page != "api_errors.md":
        return REFERENCE[page][1].split()
    values = {name: getattr(paceline, name) for name in paceline.__all__}
    return [name for name, value in values.items() if isclass(value) and issubclass(value, Exception)]


def api(page: str) -> Iterator[str]:
    """A page of the API, as mkdocstrings reads the docstrings."""
    title, _, modules = REFERENCE[page]
    yield f"# {title}\n\nGenerated from the docstrings.\n"
    for name in named(page):
        home = paceline._HOME_OF[name]  # noqa: SLF001  (a class says that it is of paceline)
        made = "      merge_init_into_class: false\n" if name in GIVEN else ""
        yield f"::: {home}.{name}\n    options:\n      heading: paceline.{name}\n      heading_level: 2\n      toc_label: {name}\n{made}"
    for module in (f"paceline.{name}" for name in modules.split()):
        homes: dict[str, str] = getattr(import_module(module), "_HOMES", {}) if module == "paceline.testing" else {}
        yield f"## {module}\n"
        for name, home in homes.items():
            yield f"::: {home}.{name}\n    options:\n      heading: {module}.{name}\n"
        if not homes:
            yield (
                f"::: {module}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false\n"
                "      filters: ['!^_', '!^[A-Z0-9_]+$']\n"
            )


def llms() -> Iterator[str]:
    """The pages for models that read them, as https://llmstxt.org has it: the order of the site, a line for each page."""
    navigation = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader=yaml.BaseLoader)  # noqa: S506  (plain texts)
    sources = {place: name for name, place in PAGES.items()}
    yield f"# paceline\n\n> {navigation['site_description']}. A Python library, a command and a gateway.\n"
    yield "The JSON schema of the settings: [paceline.schema.json](paceline.schema.json)"
    for entry in navigation["nav"]:
        for section, pages in entry.items() if isinstance(entry, dict) else ():
            yield f"\n## {section}\n"
            for page in pages:
                ((title, place),) = page.items()
                told = (
                    first_sentence((ROOT / sources[place]).read_text("utf-8"))
                    if place in sources
                    else "Generated from the source."
                )
                yield f"- [{title}]({Path(place).with_suffix('.html').as_posix()}): {told}"


def first_sentence(text: str) -> str:
    """The first sentence of prose of a page, without its links."""
    prose = next(
        (part for part in FENCE.sub("", text).split("\n\n")[1:] if re.match(r"[\w*`]", part)),
        "Each with a line on what it has.",
    )
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split())).strip("*")
    return re.split(r"(?<=[.:?])\s", plain, maxsplit=1)[0].rstrip(":")


def written(parts: Iterable[str]) -> str:
    """The text of a page out of its parts."""
    return "\n".join(parts)


def main(folder: Path) -> None:
    """Write all pages, and the files to which they link, below ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in PAGES:
        for file in copied(name, folder):
            to = folder / place(file)
            to.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".md":
                to.write_text(NOT_SEARCHED + file.read_text("utf-8"), "utf-8")
            else:
                shutil.copyfile(file, to)
    (folder / "cli.md").write_text(
        written(commands(app, click.Context(app, info_name="paceline", **app.context_settings), 1)), "utf-8"
    )
    for page in REFERENCE:
        (folder / page).write_text(written(api(page)), "utf-8")
    (folder / "llms.txt").write_text(written(llms()), "utf-8")
    (folder / "paceline.schema.json").write_text(json.dumps(json_schema(), indent=2), "utf-8")
    for name in ("extra.css", "extra.js"):
        shutil.copyfile(ROOT / "docs" / "site" / name, folder / name)


def check(site: Path) -> None:
    """Stop where a built page loads anything from another host."""
    foreign = re.compile(
        r"""<(?:script|img|iframe|source)[^>]*\ssrc="?(?:https?:)?//[^>]*>|<link[^>]*stylesheet[^>]*//[^>]*>"""
    )
    found = [f"{page.name}: {tag}" for page in site.rglob("*.html") for tag in foreign.findall(page.read_text("utf-8"))]
    if found:
        raise SystemExit("loaded from another host:\n" + "\n".join(found))


ABSOLUTE = re.compile(r'(?<=[=(:]")/(?=[\w."])')
"""Where the page of a missing address, which any address can have, names the start of the site."""


def publish(built: Path, site: Path) -> None:
    """Put a built site in the folder of this version, beside other versions, and write the list of the versions."""
    folder = site / paceline.__version__
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(built, folder)
    found = [path.parent.name for path in site.glob("*/index.html") if re.fullmatch(r"\d+(\.\d+)+", path.parent.name)]
    versions = sorted(found, key=lambda name: [*map(int, name.split("."))], reverse=True)
    script = (ROOT / "docs" / "site" / "versions.js").read_text("utf-8")
    (site / "versions.js").write_text(f"const VERSIONS = {json.dumps(versions)};\n{script}", "utf-8")
    start = f"{versions[0]}/index.html"
    (site / "index.html").write_text(
        f'<!doctype html><html lang="en"><title>paceline</title><meta http-equiv="refresh" content="0; url={start}">'
        f'<a href="{start}">paceline {versions[0]}</a></html>\n',
        "utf-8",
    )
    missing = (site / versions[0] / "404.html").read_text("utf-8")
    (site / "404.html").write_text(ABSOLUTE.sub(f"/{versions[0]}/", missing), "utf-8")


def finish(site: Path) -> None:
    """Let the search of a built site do without words that no page has, and check the site."""
    (worker,) = site.glob("assets/javascripts/workers/search.*.js")
    added = (ROOT / "docs" / "site" / "search.js").read_text("utf-8")
    engine = worker.read_text("utf-8").removesuffix(added)
    worker.write_text(engine + added, "utf-8")
    check(site)


if __name__ == "__main__":
    if sys.argv[1] == "--finish":
        finish(Path(sys.argv[2]))
        publish(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]).resolve())
