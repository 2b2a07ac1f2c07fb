"""``paceline doctor``: one page for a bug report, without secrets."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from paceline.cli import options
from paceline.cli.guides import Helped
from paceline.core.hints import counted
from paceline.core.results import PacelineError
from paceline.facts import standing
from paceline.pacing.limits import Limits
from paceline.pacing.settings import PacingSettings
from paceline.providers.registry import PROVIDERS, provider_named
from paceline.providers.tables import ending, known_providers
from paceline.shared.messages import remarks
from paceline.stores import NO_STORE, StoreError, as_store

if TYPE_CHECKING:
    from paceline.config import Config

WRONG = 1
EPILOG = """Nothing is sent to a provider, and no value of a key or password is printed. SDKs are looked for in the Python that runs this: use the program's."""

LIBRARIES: Final = ("httpx", "httpx2", "aiohttp", "requests", "urllib3", "botocore", "aiobotocore")
"""The HTTP libraries that are paced."""

SDKS: Final = (
    "openai", "anthropic", "google-genai", "mistralai", "cohere", "groq", "together", "litellm", "langchain-core", "dspy", "boto3", "ollama",
    "huggingface-hub", "replicate", "voyageai", "xai-sdk", "cerebras-cloud-sdk", "fireworks-ai", "openai-agents", "pydantic-ai-slim", "crewai",
    "autogen-core", "llama-index-core", "inspect-ai", "instructor",
)  # fmt: skip
"""Packages that send requests to models (2026-11)."""

PAST: Final = {
    "grpcio": "gRPC", "websockets": "WebSockets", "websocket-client": "WebSockets", "curl-cffi": "curl", "niquests": "its async client",
    "pycurl": "curl", "pyreqwest": "Rust", "wreq": "Rust", "primp": "Rust", "impit": "Rust",
}  # fmt: skip
"""What goes past the libraries that are paced, and by which way; see ``http/bypass.py``."""

OURS: Final = ("pydantic", "pyyaml", "click", "redis", "uvicorn", "genai-prices", "opentelemetry-sdk")
PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_LOCAL: Final = re.compile(r"https?://(127\.|localhost|\[::1\])")
FILES_FEW: Final = 1_024
"""The limit of open files below which a few hundred requests in flight can fail."""

Row = tuple[str, str]


@click.command(cls=Helped, epilog=EPILOG)
@options.CONFIG
@options.timeout("The longest wait for the store, in seconds.", 3.0)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, file: Path | None, timeout_s: float, as_json: bool) -> None:
    """Print what a bug report needs, without secrets.

    The report shows versions, paced libraries, names of keys, limits, the store, the clock, files, proxies and problems.
    """
    page = Page()
    page.look(file, os.environ, timeout_s)
    if as_json:
        sections = {name: [list(row) for row in rows] for name, rows in page.sections.items()}
        click.echo(json.dumps({**sections, "problems": page.problems}))
    else:
        for name, rows in page.sections.items():
            click.echo(name)
            click.echo("\n".join(f"  {line}" for line in options.aligned(rows or [("none", "")])) + "\n")
        click.echo("what is wrong")
        click.echo("\n".join(f"  * {problem}" for problem in page.problems or ["nothing that can be seen from here"]))
    sys.exit(WRONG if page.problems else 0)


class Page:
    """What was found, by section, and what is wrong with it."""

    def __init__(self) -> None:
        self.sections: dict[str, list[Row]] = {}
        self.problems: list[str] = []

    def look(self, file: Path | None, environ: Mapping[str, str], timeout_s: float) -> None:
        """Look at everything; a section that cannot be made is a problem."""
        self._see("versions", _versions())
        self._see("facts about providers", self._facts())
        self._see("paced here", self._paced())
        config = self._config(file, environ)
        self._see("keys (names only)", self._keys(environ, config))
        if config is not None:
            self._see("settings that are set", self._settings(config))
            self._see("limits", self._limits(config, environ))
            self._see("store", self._store(config, timeout_s))
        self._see("machine", self._machine())
        self._see("proxies", self._proxies(environ))

    def _see(self, name: str, rows: Iterable[Row]) -> None:
        """Make a section."""
        found = self.sections[name] = []
        try:
            found.extend(rows)
        except PacelineError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))

    def _facts(self) -> Iterator[Row]:
        known = standing()
        age = "" if known["age_days"] is None else f", {counted(known['age_days'], 'day')} old"
        yield "data set", f"of {known['day']}{age}, {'installed' if known['installed'] else 'of this version'}"
        yield from (("next to it", place) for place in known["places"])
        if known["remark"]:
            self.problems.append(known["remark"])

    def _paced(self) -> Iterator[Row]:
        """The SDKs that are installed, and by which library they send; what is not paced."""
        found = False
        for name in SDKS:
            try:
                package = distribution(name)
            except PackageNotFoundError:
                continue
            always = [text for text in package.requires or () if "extra ==" not in text]
            needs = {re.split(r"[^\w.-]", text, maxsplit=1)[0].lower() for text in always}
            ways = [library for library in LIBRARIES if library in needs]
            said = [f"paced, through {', '.join(ways)}"] if ways else []
            said += [f"{PAST[one]} ({one}), which is not" for one in PAST if one in needs]
            found = found or bool(ways)
            yield f"{name} {package.version}", "; ".join(said) or "through another package of this list"
        for name, way in PAST.items():
            if version := _version(name):
                shown = "`status()` and `paceline exec` name each host that is reached so"
                yield f"{name} {version}", f"not paced: {way}; {shown}"
        if not found and not any(map(_version, LIBRARIES)):
            self.problems.append(
                f"no HTTP library that is paced is installed for {sys.executable}: run paceline doctor with the program's Python"
            )

    def _config(self, file: Path | None, environ: Mapping[str, str]) -> Config | None:
        from paceline.config import Config, find_file

        try:
            path = find_file(file, environ)
            self.sections["configuration"] = [("file", str(path) if path else "none: paceline init writes one")]
            variables = sorted(name for name in environ if name.startswith("PACELINE_"))
            self.sections["configuration"].append(("variables", ", ".join(variables) or "none"))
            return Config.load(path, environ=environ, given={})
        except PacelineError as error:
            lines = [line for line in str(error).splitlines() if line not in self.problems]
            self.problems += [f"settings: {line}" for line in lines]
        return None

    def _keys(self, environ: Mapping[str, str], config: Config | None) -> Iterator[Row]:
        from paceline.config.servers import root_named, server
        from paceline.config.starter import providers_of

        found = providers_of(environ)
        for name, variables in found.items():
            yield name, ", ".join(variables)
            value = environ.get(PROVIDERS[name].key_env, "")
            if value != value.strip("'\" \t\r\n") or not (value.isascii() and value.isprintable()):
                self.problems.append(
                    f"{PROVIDERS[name].key_env} has blanks, quotes or other characters that no key has: set it again"
                )
            try:
                root_named(provider_named(name), environ)
            except PacelineError as error:
                self.problems.append(str(error))
        if config is not None:
            for named in config.upstreams:
                try:
                    at = server(config, named, environ)
                except PacelineError as error:
                    self.problems.append(str(error))
                else:
                    if at.key:
                        yield f"upstreams.{named}", str(at.key_file or at.key_env or at.key)

    def _settings(self, config: Config) -> Iterator[Row]:
        from paceline.config.show import BY_DEFAULT, rows

        for row in rows(config):
            if row.source != BY_DEFAULT and not row.name.startswith("limits"):
                yield row.name, f"{row.value} ({row.source})"
        if config.shadow:
            self.problems.append("shadow is set: requests are logged, and none is delayed")

    def _limits(self, config: Config, environ: Mapping[str, str]) -> Iterator[Row]:
        """The limits that hold, and how they are known."""
        from paceline.config.schema import ANY
        from paceline.config.show import rows
        from paceline.config.starter import providers_of

        set_limits = Limits(PacingSettings(quotas=config.limits, provider=config.provider))
        self._see_end(*(set_limits.resolve(name).pool for name in config.limits if "*" not in name))
        found = providers_of(environ)
        for row in rows(config, found):
            if row.name.startswith("limits"):
                yield row.name.removeprefix("limits").lstrip(".: "), f"{', '.join(row.value)} ({row.source})"
        for name in sorted(found.keys() - {*known_providers()}):
            if ANY not in config.limits and f"{name}/*" not in config.limits:
                yield f"{name}/*", "none is published: the rate is measured"

    def _see_end(self, *pools: str) -> None:
        """The models of these pools that have ended, or end soon."""
        ended = (f"the model {pool} {said}" for pool in pools if "/" in pool and (said := ending(*pool.split("/", 1))))
        self.problems += [one for one in ended if one not in self.problems]

    def _store(self, config: Config, timeout_s: float) -> Iterator[Row]:
        from paceline.cli.standing import read_store

        store = as_store(config.store) if config.store and config.store != NO_STORE else None
        if store is None:
            yield (
                "none",
                "each process has quotas of its own: several of them need store = 'sqlite:PATH' or 'redis://HOST'",
            )
            return
        path = Path(store.url.removeprefix("sqlite:"))
        exists = os.path.exists  # Path's own raises where a folder may not be entered
        if store.url.startswith("sqlite:") and not exists(path):
            yield store.url, "is made at its first use"
            # The store makes the folders that are missing, but no drive.
            there = next(filter(exists, path.absolute().parents), Path(path.absolute().anchor))
            if not (there.is_dir() and os.access(there, os.W_OK)):
                self.problems.append(f"{store.url}: {there} cannot be written, or is no folder")
            return
        try:
            status, further = read_store(config.store, timeout_s)
        except (PacelineError, click.UsageError) as error:
            self.problems.append(f"the store cannot be read: {error}")
            yield store.url, "cannot be read"
        else:
            yield store.url, f"reachable, {counted(len(status['pools']), 'pool')}"
            self._see_end(*status["pools"])
            self.problems += further
            with closing(store), suppress(StoreError):  # it was reachable
                found = (remark for pool in status["pools"] or [""] for remark in remarks(store, pool))
                for remark in dict.fromkeys(found):
                    self.problems.append(f"{store.url}: {remark}")

    def _machine(self) -> Iterator[Row]:
        now = datetime.now().astimezone()
        yield "clock", f"{now.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, here {now:%z}"
        if now.year < 2026:
            self.problems.append("the clock is years behind: TLS and quotas of a day need the right time")
        yield "processors", str(os.cpu_count())
        if sys.platform != "win32":
            import resource

            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            yield "open files", f"{_many(soft)}, at most {_many(hard)}; each request in flight needs one or two"
            if 0 <= soft < FILES_FEW:
                self.problems.append(f"only {soft:,} files can be open: ulimit -n 65536")

    def _proxies(self, environ: Mapping[str, str]) -> Iterator[Row]:
        given = [name for name in sorted(environ, reverse=True) if environ[name].strip()]
        both = {name.upper(): environ[name] for name in given if name.upper() in PROXIES}
        for name, value in both.items():
            yield name, value if name == "NO_PROXY" else re.sub(r"[^/@\s]*@", "...@", value)
        local = [name for name in environ if name.endswith("_BASE_URL") and _LOCAL.match(environ[name])]
        passes = re.search(r"(^|,)\s*(\*|127\.0\.0\.1|localhost)", both.get("NO_PROXY", ""))
        if local and not passes and both.keys() & {"HTTP_PROXY", "ALL_PROXY"}:
            self.problems.append(
                f"{', '.join(sorted(local))} is on this machine, and a proxy is set: add 127.0.0.1,localhost to NO_PROXY"
            )


def _versions() -> Iterator[Row]:
    yield "paceline", _version("paceline") or "not installed, imported from a folder"
    yield "python", f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    yield "system", platform.platform()
    yield from ((name, version) for name in (*OURS, *LIBRARIES) if (version := _version(name)))


def _version(name: str) -> str:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return ""


def _many(files: int) -> str:
    return f"{files:,}" if 0 <= files < 2**40 else "no limit"
