"""``paceline top``: the live page in a terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click
import httpx2

from paceline.batch.summary import in_time
from paceline.cli.guides import Helped
from paceline.cli.line import plain
from paceline.cli.options import KEY
from paceline.cli.pages import client_for, page_url
from paceline.core.results import NO_ANSWER, PacelineError

if TYPE_CHECKING:
    from textual.app import App

STEP_S: Final = 1.0
PAUSE_MAX_S: Final = 15.0
TIMEOUT_S: Final = 10.0

ROWS_MAX: Final = 500
"""The pools that are shown, the limited ones first."""

WAITS, PAUSED, STOPPED = 2, 3, 4
"""How much a pool needs a look; less for one in which nothing waits."""

BAR: Final = 12
"""The width of a level, in characters."""

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"


@click.command(cls=Helped, name="top", epilog="Keys: arrows choose a pool, / filters, q ends it.")
@click.argument("url", default="http://127.0.0.1:8080")
@KEY
def command(url: str, key: str | None) -> None:
    """Show the pools of a gateway or a program, live.

    URL is the address of the gateway, or of a status page.
    """
    if not sys.stdout.isatty():
        raise PacelineError(f"it needs a terminal; `paceline status {url}` prints the status once")
    make_app(str(page_url(url)).rstrip("/").removesuffix("/status"), key).run()


def make_app(root: str, key: str | None) -> App[None]:
    """The application for the page at ``root``."""
    from rich.text import Text
    from textual.app import App, ComposeResult
    from textual.binding import Binding
    from textual.containers import VerticalScroll
    from textual.widgets import DataTable, Footer, Input, Static

    client = client_for(key, timeout=TIMEOUT_S)

    class Top(App[None]):
        CSS = """
        #headline { padding: 0 1; text-style: bold; }
        #filter { display: none; }
        #filter.shown { display: block; }
        DataTable { height: 1fr; }
        #details { height: 12; border-top: solid $panel; padding: 0 1; }
        """
        BINDINGS: ClassVar = [
            Binding("q", "quit", "Quit"),
            Binding("slash", "filter", "Filter"),
            Binding("escape", "all", "All", show=False),
        ]
        ENABLE_COMMAND_PALETTE = False
        TITLE = "paceline"

        def __init__(self) -> None:
            super().__init__()
            self._status: Mapping[str, Any] = {"pools": {}}
            self._since, self._levels = 0.0, dict[str, list[float]]()
            self._queues: dict[str, list[int]] = {}
            self._events: list[str] = []
            self._shown: list[str] = []
            self._problem = ""

            # Held here: an event that comes before or after the screen exists would find none of them by a query.
            self._headline = Static("Reading the status …", id="headline", markup=False)
            self._filter = Input(placeholder="part of a pool's name", id="filter")
            self._table = DataTable[Text](cursor_type="row", zebra_stripes=True)
            self._text = Static("", id="text", markup=False)

        def compose(self) -> ComposeResult:
            yield from (self._headline, self._filter, self._table, VerticalScroll(self._text, id="details"), Footer())

        def on_mount(self) -> None:
            table = self._table
            for name in ("pool", "quota", "level", "left", "full again in", "waiting", "in flight", "refused", "state"):
                table.add_column(name, key=name)
            table.focus()
            self.run_worker(self._follow(), exclusive=True)

        async def _follow(self) -> None:
            pause_s = STEP_S
            async with client:
                while True:
                    try:
                        answer = await client.get(f"{root}/status")
                        answer.raise_for_status()
                        self._status = checked(answer.json())
                        await self._read_history()
                        pause_s, self._problem = STEP_S, ""
                    except (httpx2.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
                        pause_s, self._problem = min(2 * pause_s, PAUSE_MAX_S), _problem(root, error)
                    self._render_all()
                    await asyncio.sleep(pause_s)

        async def _read_history(self) -> None:
            answer = await client.get(f"{root}/history", params={"since": self._since})
            if answer.status_code != 200:  # a page without a history
                return
            page = answer.json()
            self._since = page["time"]
            for name, columns in page["pools"].items():
                levels = [
                    min(shares) for shares in zip(*columns["quotas"].values(), strict=False) if None not in shares
                ]
                self._levels[name] = (self._levels.get(name, []) + levels)[-60:]
                self._queues[name] = (self._queues.get(name, []) + columns["waiting"])[-60:]
            self._events = (self._events + [plain(event["text"]) for event in page["events"]])[-50:]

        def _render_all(self) -> None:
            wanted = self._filter.value.lower()
            found = [(name, pool) for name, pool in self._status["pools"].items() if wanted in name.lower()]
            found.sort(key=lambda item: (-_state(item[1])[0], -item[1]["waiting"], item[0]))
            self._headline.update(self._problem or headline(found))
            table = self._table
            rows = {
                f"{name}\n{i}": [Text(cell) for cell in row]  # plain: no markup
                for name, pool in found[:ROWS_MAX]
                for i, row in enumerate(_rows(name, pool))
            }
            if list(rows) != self._shown:
                chosen = self._shown[table.cursor_row] if table.cursor_row < len(self._shown) else ""
                table.clear()
                for row_key, row in rows.items():
                    table.add_row(*row, key=row_key)
                self._shown = list(rows)
                table.move_cursor(row=self._shown.index(chosen) if chosen in rows else 0)
            else:
                columns = list(table.columns)
                for row_key, row in rows.items():
                    for column, cell in zip(columns, row, strict=True):
                        table.update_cell(row_key, column, cell)
            self._render_details()

        def _render_details(self) -> None:
            table, text = self._table, ""
            if self._shown and 0 <= table.cursor_row < len(self._shown):
                name = self._shown[table.cursor_row].partition("\n")[0]
                pool = self._status["pools"].get(name)
                if pool is not None:
                    text = details(name, pool, self._levels.get(name, []), self._queues.get(name, []))
            events = "\n".join(reversed(self._events[-5:]))
            self._text.update(f"{text}\n\n{events}" if events else text)

        def on_data_table_row_highlighted(self) -> None:
            self._render_details()

        def on_input_changed(self) -> None:
            self._render_all()

        def on_input_submitted(self) -> None:
            self._table.focus()

        def action_filter(self) -> None:
            self._filter.add_class("shown")
            self._filter.focus()

        def action_all(self) -> None:
            self._filter.value = ""
            self._filter.remove_class("shown")
            self._table.focus()

    return Top()


def checked(status: Any) -> Mapping[str, Any]:
    """A status whose pools can be shown.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: It is another document.
    """
    for name, pool in status["pools"].items():
        _rows(name, pool), details(name, pool, [], []), headline([(name, pool)])
    return dict(status)


def headline(pools: list[tuple[str, Mapping[str, Any]]]) -> str:
    """One sentence: what is limited, by what, until when."""
    rank, state = _state(pools[0][1]) if pools else (0, "")
    if rank < WAITS:
        return "Nothing waits: every request goes at once"
    name, pool = pools[0]
    waiting = f"{pool['waiting']:,} wait" if pool["waiting"] else "nothing waits"
    if rank == STOPPED:
        return plain(f"{name} is stopped: {pool['stopped']}")
    if state == NO_ANSWER:
        return plain(f"{name} gets no answers, and sends one request at a time: {waiting}")
    if rank == WAITS and pool.get("eta_s") is not None:
        waiting += f", the last one goes in about {in_time(pool['eta_s'])}"
    return plain(f"{name} is {state}: {waiting}")


def details(name: str, pool: Mapping[str, Any], levels: list[float], queues: list[int]) -> str:
    """What the table has no room for."""
    lanes = sorted(pool["lanes"].items(), key=lambda lane: -lane[1])
    waits = ((one["name"] or one["lane"], one["expected_wait_s"]) for one in pool["queue"][:8])
    first = [f"{who} {'unknown' if wait_s is None else in_time(wait_s)}" for who, wait_s in waits]
    lines = [
        f"{plain(name)}   level {_spark(levels, 1.0)}   waiting {_spark(queues, max(queues, default=0))}",
        f"waits: {pool['wait_s']['mean']:g} s on average, {pool['wait_s']['longest']:g} s at most",
        f"lanes: {', '.join(f'{plain(lane)} {n:,}' for lane, n in lanes[:8]) or '-'}",
        f"next: {plain(', '.join(first)) or '-'}",
    ]
    for quota in pool["quotas"]:
        learned = ", ".join(f"{field} {value}" for field, value in quota["learned"].items())
        lines.append(plain(f"{quota['quota']}: {quota['source']}{f' ({learned})' if learned else ''}"))
    return "\n".join(lines)


def _rows(name: str, pool: Mapping[str, Any]) -> list[tuple[str, ...]]:
    refused = sum(count for kind, count in pool["counts"].items() if kind.startswith("refused_"))
    of_pool = f"{pool['waiting']:,}", f"{pool['in_flight']:,}", f"{refused:,}", plain(_state(pool)[1])
    rows = list[tuple[str, ...]]()
    for i, quota in enumerate(pool["quotas"]):
        share = min(max(quota["remaining"] / (quota["limit"] or 1.0), 0.0), 1.0)
        bar = "█" * round(share * BAR)
        left = f"{quota['remaining']:,.1f}".removesuffix(".0")
        mine = (plain(name), *of_pool) if i == 0 else ("", "", "", "", "")
        full = in_time(quota["reset_s"]) if quota["reset_s"] else "-"
        rows.append((mine[0], plain(quota["quota"]), bar.ljust(BAR, "░"), left, full, *mine[1:]))
    return rows


def _state(pool: Mapping[str, Any]) -> tuple[int, str]:
    """How much a pool needs a look, and its state in words."""
    if pool["stopped"]:
        return STOPPED, "stopped"
    if pool["binds"] == NO_ANSWER:
        return PAUSED, NO_ANSWER
    if pool["cool_down_s"]:
        return PAUSED, f"paused for {in_time(pool['cool_down_s'])} {pool.get('paused') or ''}".rstrip()
    if pool["waiting"]:
        return WAITS, f"at its limit of {pool['binds']}" if pool["binds"] else "sending"
    return (1, "below its limit") if pool["in_flight"] else (0, "not in use")


def _spark(values: list[float] | list[int], most: float) -> str:
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[min(round(value / most * top), top) if most else 0] for value in values[-40:]) or "-"


def _problem(root: str, error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"{root} needs a key: --key, or PACELINE_KEY"
    if not isinstance(error, httpx2.HTTPError):  # the page of a store, or something else
        why = "its answer is not the status of a program"
    else:
        why = f"it answers {status}" if status else type(error).__name__
    return f"No answer from {root} ({why}): these values are old. Trying again …"
