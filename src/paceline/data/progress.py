"""The progress of a map: tqdm's bar, which notebooks show, too; without tqdm a line every ten seconds."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from typing import Any

from paceline.pacing.lines import is_shown, say_sums

EVERY_S, SAID_S = 10.0, 60.0
"""The time between two lines, and between two about a wait."""

log = logging.getLogger("paceline")


class Bar:
    """The count of what is done. This one shows nothing."""

    def __init__(self) -> None:
        self.done = 0

    def advance(self, failed: int) -> None:
        """Count one more; ``failed``: how many have failed until now."""
        self.done += 1
        self.show(failed)

    def show(self, failed: int) -> None:
        """Show the count."""

    def say(self, text: str) -> None:
        """Print a line that stays."""
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    def stands(self, why: str) -> None:
        """Say that nothing has come for a while, and why."""

    def close(self) -> None:
        """End the display."""


class WaitsBar(Bar):
    """Waits alone, in the log: for the processes of an engine, which has a display of its own."""

    def stands(self, why: str) -> None:
        """See :meth:`Bar.stands`."""
        log.warning("%s done; %s", f"{self.done:,}", why)


class LinesBar(Bar):
    """Lines on standard error."""

    def __init__(self, total: int | None) -> None:
        super().__init__()
        self._total = "" if total is None else f"/{total:,}"
        self._begun_s = time.monotonic()
        self._next_s = self._begun_s + EVERY_S

    def show(self, failed: int) -> None:
        """See :meth:`Bar.show`."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            speed = self.done / (now_s - self._begun_s) * 60
            self.say(f"{self.done:,}{self._total} done, {failed:,} failed, {speed:,.0f}/min")

    def stands(self, why: str) -> None:
        """See :meth:`Bar.stands`."""
        self.say(f"{self.done:,}{self._total} done; {why}")


class Tqdm(Bar):
    """A bar of tqdm."""

    def __init__(self, shown: Any) -> None:
        super().__init__()
        self._shown, self._failed = shown, 0

    def show(self, failed: int) -> None:
        """See :meth:`Bar.show`."""
        if failed != self._failed:
            self._failed = failed
            self._shown.set_postfix_str(f"{failed:,} failed", refresh=False)
        self._shown.update()

    def say(self, text: str) -> None:
        """See :meth:`Bar.say`."""
        with suppress(OSError):
            self._shown.write(text, file=sys.stderr)

    def stands(self, why: str) -> None:
        """See :meth:`Bar.stands`."""
        self.say(why)

    def close(self) -> None:
        """See :meth:`Bar.close`."""
        self._shown.close()


@contextmanager
def bar(total: int | None, wanted: bool | None) -> Iterator[Bar]:
    """A bar for the time of a block; ``None``: none, but waits are logged.

    Above it are the lines that paceline logs, unless the program has a handler for them: Python would print each refusal.
    """
    shown = _made(total) if wanted else WaitsBar() if wanted is None else Bar()
    has_handler = is_shown("paceline")
    try:
        with logged(shown.say) if wanted and not has_handler else nullcontext():
            yield shown
    finally:
        shown.close()


def _made(total: int | None) -> Bar:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a notebook without ipywidgets has a bar of text
            tqdm = import_module("tqdm.auto").tqdm
    except ImportError:
        return LinesBar(total)
    return Tqdm(tqdm(total=total, unit="item", dynamic_ncols=True))


@contextmanager
def logged(say: Callable[[str], None]) -> Iterator[None]:
    """Let ``say`` have the lines that paceline logs, so that no line breaks a bar, and a quiet run writes none."""
    log, handler = logging.getLogger("paceline"), _Logged(say)
    log.addHandler(handler)
    try:
        yield
    finally:
        say_sums()  # which Python would print at the end of the program
        log.removeHandler(handler)


class _Logged(logging.Handler):
    """Says the lines of a log. Of the refusals in one pool for one reason, which the progress counts, it says the first one."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._said: set[tuple[str, str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Say one line."""
        text, fields = record.getMessage(), record.__dict__
        if "reason" in fields:
            kind = fields["pool"], fields["reason"]
            if kind in self._said:
                return
            self._said.add(kind)
            text = text.removeprefix(f"{fields['event']} ") + "; further ones are not shown"
        self._say(text)
