"""`paceline top` on a real status page, driven by textual's own pilot; and `paceline status` with a key."""

import asyncio
import functools
import sys
import time
from contextlib import asynccontextmanager, closing

import pytest
from click.testing import CliRunner
from textual.css.query import NoMatches
from textual.widgets import DataTable, Input, Static

import paceline
from odd_server import OddServer
from paceline.cli.app import app
from paceline.cli.top import make_app
from paceline.core.queue import LaneSpec, Waiter
from paceline.http import unpaced

ODD = "odd [/red]\x1b[31m"


@pytest.fixture
def limiter():
    limiter = paceline.Limiter({"openai/gpt-5": "5 requests/min, 10k tokens/min", ODD: "500 requests/min"})
    scheduler = limiter.pacer.pools.scheduler("openai/gpt-5")
    for number in range(9):
        waiter = Waiter({"requests": 1, "tokens": 1}, LaneSpec(f"lane {number % 2}"), name=f"agent_{number}")
        scheduler.pool.submit(scheduler.now_ns(), waiter)
    return limiter


@pytest.fixture
def page(limiter):
    with closing(limiter.serve_status(port=0)) as server:
        yield server


def text_of(top, name):
    return str(top.query_one(name, Static).render())


async def shown(top, pilot, condition):
    end = time.monotonic() + 60
    while not holds(condition):
        assert time.monotonic() < end, text_of(top, "#headline")
        await pilot.pause(0.05)


def holds(condition):
    """False as long as textual has not built the screen, too, which takes a while on a busy machine."""
    try:
        return condition()
    except NoMatches:
        return False


def cells(top):
    table = top.query_one(DataTable)
    return [[str(cell) for cell in table.get_row_at(i)] for i in range(table.row_count)]


@asynccontextmanager
async def driven(root, key=None):
    top = make_app(root.rstrip("/"), key)
    async with top.run_test(size=(140, 40)) as pilot:
        yield top, pilot


async def test_it_shows_the_pools(page):
    async with driven(page.url) as (top, pilot):
        await shown(top, pilot, lambda: top.query_one(DataTable).row_count == 3)
        assert text_of(top, "#headline").startswith("openai/gpt-5 is at its limit of 5 requests/min: ")
        first, second, third = cells(top)
        assert (first[0], first[1], first[5]) == ("openai/gpt-5", "5 requests/min", "8")
        assert second[:2] == ["", "10k tokens/min"]
        assert third[0] == "odd [/red]?[31m"
        assert "█" * 12 in third[2]
        details = text_of(top, "#text")
        assert "lanes: lane 1 4, lane 0 4" in details or "lanes: lane 0 4, lane 1 4" in details
        assert "next: agent_1 " in details
        await pilot.press("slash", "o", "d", "d")
        await shown(top, pilot, lambda: top.query_one(DataTable).row_count == 1)
        await pilot.press("escape")
        await shown(top, pilot, lambda: top.query_one(DataTable).row_count == 3)
        assert top.query_one("#filter", Input).value == ""


@pytest.mark.parametrize("document", ['{"pools": {"x": {}}}', "no"])
async def test_a_server_that_serves_something_else(document):
    with OddServer(lambda *_: (200, {}, document.encode())) as server:
        async with driven(server.base_url) as (top, pilot):
            said = "its answer is not the status of a program"
            await shown(top, pilot, lambda: said in text_of(top, "#headline"))


async def test_a_server_that_goes_away(page):
    async with driven(page.url) as (top, pilot):
        await shown(top, pilot, lambda: top.query_one(DataTable).row_count == 3)
        await asyncio.to_thread(page.close)
        await shown(top, pilot, lambda: text_of(top, "#headline").startswith("No answer from"))
        assert top.query_one(DataTable).row_count == 3


async def test_a_key(limiter):
    with closing(limiter.serve_status(port=0, key="secret")) as server:
        async with driven(server.url) as (top, pilot):
            await shown(top, pilot, lambda: "needs a key" in text_of(top, "#headline"))
        async with driven(server.url, "secret") as (top, pilot):
            await shown(top, pilot, lambda: top.query_one(DataTable).row_count == 3)
        status = functools.partial(asyncio.to_thread, CliRunner().invoke, app, ["status", server.url])
        assert (await status()).exit_code == 1
        done = await status(env={"PACELINE_KEY": "secret"})
        assert done.exit_code == 0
        assert "5 requests/min" in done.stdout


def test_without_a_terminal_it_names_the_other_command():
    done = CliRunner().invoke(app, ["top", "http://127.0.0.1:9"])
    assert done.exit_code == 2
    assert "paceline top: it needs a terminal; `paceline status http://127.0.0.1:9`" in done.output


def test_a_package_that_its_module_imports_and_that_does_not_load_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "paceline.cli.top")
    monkeypatch.setitem(sys.modules, "httpx2", None)
    done = CliRunner().invoke(app, ["top"])
    assert done.exit_code == 2
    assert done.stderr.startswith("paceline top: it needs the extra 'top': pip install 'paceline[top]' (")


def test_the_command_shows_what_was_not_paced(page, monkeypatch):
    monkeypatch.setattr(unpaced, "kinds", {("openai", "api.openai.com", "POST /v1/videos"): 3})
    done = CliRunner().invoke(app, ["status", page.url])
    assert done.exit_code == 0
    assert "not paced: POST /v1/videos at api.openai.com, 3: acquire a permit" in done.stderr
