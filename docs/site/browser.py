"""The built site in a browser: ``python docs/site/browser.py site``, after ``make docs``.

Needs Chromium and the package playwright, as ``make frameworks ENVS=browser`` has them. It prints the pages that are too high, and the searches
whose first page is another one, and ends with 1 if there are any.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

HEIGHT_MAX = 12_000
"""Pixels of a page at a width of 1,280."""

TABLES = {"cli.html", "providers.html", "status.html", "architecture.html"}
"""Pages that are lists and tables to look something up, and may be higher."""

FIRST = {
    "429": "troubleshooting.html#a-429-below-your-limit",
    "pool": "concepts.html#pool",
    "docker": "operate.html#containers-and-kubernetes",
    "troubleshooting": "troubleshooting.html",
    "budget": "budgets.html",
    "retry": "how_limits_work.html#why-retrying-makes-it-worse",
    "langchain": "integrations_frameworks.html#langchain",
    "litellm": "integrations_frameworks.html#litellm",
    "openai sdk": "integrations.html",
    "team key": "gateway_keys.html#teams",
    "who used what": "gateway_keys.html#who-used-what",
    "share between processes": "processes.html",
    "test": "testing.html",
    "claude plan": "plans.html",
    "what is a pool": "concepts.html#pool",
    "how do I retry": "how_limits_work.html#why-retrying-makes-it-worse",
    "stop at a budget": "budgets.html",
    "PoolStoppedError": "api_errors.html#paceline.core.results.PoolStoppedError",
}
"""The first page that a search finds."""


class Quiet(SimpleHTTPRequestHandler):
    """Serves the files of the site."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def heights(page: Page, site: Path, base: str) -> Iterator[str]:
    """The pages that are too high."""
    for file in sorted(site.glob("*.html")):
        page.goto(base + file.name)
        height = page.evaluate("document.documentElement.scrollHeight")
        if height > HEIGHT_MAX and file.name not in TABLES:
            yield f"{file.name}: {height:,} px"


def searches(page: Page, base: str) -> Iterator[str]:
    """The searches whose first page is another one."""
    page.goto(f"{base}index.html")
    page.wait_for_timeout(500)
    page.keyboard.press("/")
    page.wait_for_timeout(700)
    for words, expected in FIRST.items():
        page.keyboard.press("Control+A")
        page.keyboard.type(words)
        page.wait_for_timeout(1_200)
        found = page.evaluate(
            "[...document.querySelectorAll('*')].flatMap((e) => e.shadowRoot ? [...e.shadowRoot.querySelectorAll('a[href]')] : [])"
            ".map((a) => new URL(a.href).pathname.split('/').pop() + new URL(a.href).hash)"
        )
        if found[:1] != [expected]:
            yield f"{words!r} finds {found[:3]}, not {expected} first"


def main(root: Path) -> int:
    """Look at the newest version below ``root``; returns the exit code."""
    site = max(root.glob("*/index.html")).parent
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}/{site.name}/"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        wrong = [*heights(page, site, base), *searches(page, base)]
        browser.close()
    server.shutdown()
    sys.stdout.write("\n".join(wrong or ["all pages and searches are as they should be"]) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
