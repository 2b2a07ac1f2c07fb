"""What ``paceline exec`` says of a plan's window that is used up: once a window, at once or in the summary."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from paceline.cli import plan_words
from paceline.cli.line import plain, read
from paceline.launcher.kind import program_at

if TYPE_CHECKING:
    from paceline.pacing.events import Event

LOOK_S: Final = 2.0
"""From a refusal until the look at who waits: those that were on their way are refused until then."""

READ_S: Final = 2.0

ANOTHER_S: Final = 60.0
"""An end that is so much later is another window: the last tests of a window come a moment after its end, which is rounded."""

PRINT: Final = {
    "claude": frozenset({"-p", "--print"}),
    "codex": frozenset({"exec", "e", "review"}),
    "gemini": frozenset({"-p", "--prompt"}),
    "opencode": frozenset({"run", "serve"}),
}
"""Programs that fill the terminal, unless they get one of these words (2026-11)."""


def fills_terminal(words: Sequence[str]) -> bool:
    """Whether a command draws over the whole terminal: a line of ours would be lost in it."""
    at = program_at(words)
    prints = PRINT.get(Path(words[at]).stem.lower())
    return prints is not None and not prints & set(words[at + 1 :])


class WindowWatch:
    """Looks at the windows that refuse.

    Args:
        say: Takes a line for the user.
        at_once: Whether a line is said at once, else at the end.
    """

    def __init__(self, say: Callable[[str], None], *, at_once: bool) -> None:
        self._say, self._at_once = say, at_once
        self._address, self._key = "", ""
        self._ends_s: dict[tuple[str, str], float] = {}  # by account and window: the end that was told
        self._pending: dict[tuple[str, str], threading.Timer] = {}
        self._lines: list[str] = []
        self._lock = threading.RLock()

    def begin(self, address: str, key: str) -> None:
        """The gateway of the program is at ``address``."""
        self._address, self._key = address, key

    def seen(self, event: Event) -> None:
        """An event of a permit."""
        window = event.refusal.window if event.kind == "refused" and event.refusal is not None else None
        if not window:
            return
        about = event.pool.partition("/")[0], window
        with self._lock:
            if about not in self._pending and time.time() >= self._ends_s.get(about, 0.0):
                timer = self._pending[about] = threading.Timer(LOOK_S, self._look, about)
                timer.daemon = True
                timer.start()

    def end(self) -> None:
        """The program has ended, and its gateway is about to."""
        for about, timer in list(self._pending.items()):
            timer.cancel()
            self._look(*about)
        for line in self._lines:
            self._say(line)

    def _look(self, account: str, window: str) -> None:
        with self._lock:
            if self._pending.pop((account, window), None) is None:  # looked at meanwhile
                return
        now_s = time.time()
        try:
            rows = read(self._address, self._key, READ_S)
        except Exception:  # noqa: BLE001  (the gateway ends: there is nothing to say)
            return
        row = next((one for one in rows if (one["account"], one["window"]) == (account, window)), None)
        if row is None:
            return
        ends_s = now_s + (float("inf") if row["ends_s"] is None else row["ends_s"])
        if ends_s <= self._ends_s.get((account, window), -float("inf")) + ANOTHER_S:
            return
        self._ends_s[account, window] = ends_s
        if self._at_once:
            self._say(plain(plan_words.used_up(row, now_s)))
        else:
            until = f", until {plan_words.ends(row, now_s).partition(',')[0]}" if plan_words.is_ahead(row) else ""
            at = time.strftime("%H:%M", time.localtime(now_s))
            self._lines.append(plain(f"{account}: {plan_words.name(row)} was used up at {at}{until}"))
