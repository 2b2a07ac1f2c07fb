"""The part of ``paceline exec`` around the command: its environment, its signals, its exit code, and a summary."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Final, NamedTuple

from paceline import facts
from paceline.core.results import PacelineError
from paceline.http.unpaced import with_host
from paceline.launcher.child import VARIABLE, ChildTally, read_failed, read_records
from paceline.launcher.kind import program_at
from paceline.pacing.events import Event
from paceline.pacing.owners import LOOK_S

SITE: Final = Path(__file__).parent / "site"
NOT_FOUND, NOT_EXECUTABLE, NOT_PACED = 127, 126, 125
FORWARDED: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGBREAK")
OF_TERMINALS: Final = ("SIGINT", "SIGQUIT", "SIGBREAK")
"""A terminal sends them to each process in its foreground."""

KINDS_SHOWN: Final = 10

_PLAIN: Final = re.compile(r"[\w+\-./:?@]+")
_BEFORE_QUOTE: Final = re.compile(r'(\\*)("|\Z)')

NOTHING: Final = "no request was paced: none to pace came to the gateway (does the program read OPENAI_BASE_URL, or what is usual for its provider?)"
UNSENT: Final = (
    "no request was sent: paceline refused them, as it told the program, or the program left while they waited"
)
FORCE: Final = "to pace it through a gateway, add --gateway: the program then reads its address from OPENAI_BASE_URL, ..., and needs no paceline in its environment"


class Led(NamedTuple):
    """What leads a program to its gateway.

    Attributes:
        environ: The variables.
        options: What stands before its own arguments.
    """

    environ: Mapping[str, str]
    options: Sequence[str] = ()


Gateway = Callable[[Path, str, Callable[[Event], None]], AbstractContextManager[Led]]
"""Runs a gateway for the command; takes a folder for its files, the store, and what is called with events, and yields what leads the
command to it."""


class StartError(PacelineError):
    """The command cannot be started; `paceline exec` ends with ``exit_code`` then."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run(
    command: Sequence[str],
    arguments: Mapping[str, Any],
    provider: str | None,
    say: Callable[[str], None],
    *,
    strict: bool = False,
    gateway: Gateway | None = None,
    hint: str = FORCE,
) -> int:
    """Run ``command`` with its Python processes paced, and what it sends to a gateway, and print a summary.

    Args:
        command: The program and its arguments.
        arguments: The arguments of the limiter of each process; without a store, the processes share a temporary one.
        provider: The provider of hosts that do not show it.
        say: Takes a line for the user.
        strict: Whether it is an error that a process was not paced, or with a gateway that nothing was.
        gateway: Runs a gateway for programs that are not Python; ``None`` for none.
        hint: What to do if nothing was paced, or why there is no gateway.

    Returns:
        The exit code of the command, or 128 and the number of the signal that ended it. It is ``NOT_PACED`` if
        ``strict``, the code would be 0, and a process that imports an HTTP library was not paced, or with a gateway nothing.

    Raises:
        StartError: The command cannot be started.
        PacelineError: A setting of the gateway is invalid.
    """
    with TemporaryDirectory(prefix="paceline-exec-", ignore_cleanup_errors=True) as name:
        home, tally = Path(name), ChildTally()
        store = arguments["store"] or f"sqlite:{home / 'quotas.db'}"
        settings = home / "settings"
        settings.touch(0o600)
        settings.write_bytes(pickle.dumps(({**arguments, "store": store}, provider, facts.projects())))
        path = os.pathsep.join(filter(None, (str(SITE), os.environ.get("PYTHONPATH"))))
        environ = {**os.environ, "PYTHONPATH": path, VARIABLE: str(settings)}
        begin = gateway if _may_start(command[0]) else None  # what cannot be started needs none
        try:
            with nullcontext(Led({})) if begin is None else begin(home, store, tally.count) as led:
                at = program_at(command) + 1
                code = _run([*command[:at], *led.options, *command[at:]], {**environ, **led.environ})
        except FileNotFoundError:
            raise StartError(f"no such command: {command[0]}", NOT_FOUND) from None
        except OSError as error:
            raise StartError(f"{command[0]} cannot be started: {error.strerror}", NOT_EXECUTABLE) from None
        failed, records = read_failed(home), read_records(home)
    if gateway is not None:
        records.append(tally.record())
    for line in summary(records, failed, gateway=gateway is not None, hint=hint):
        say(line)
    lacking = failed or (gateway is not None and not any(record["used"] for record in records))
    return NOT_PACED if strict and lacking and code == 0 else code


def _may_start(program: str) -> bool:
    """Whether a program can be started, as far as is known: Windows starts more than is in PATH."""
    searched = os.pathsep.join(os.get_exec_path()) or os.curdir  # an empty PATH is this folder
    return sys.platform == "win32" or shutil.which(program, path=searched) is not None


def _run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []  # signals that came while the command was started

    def forward(number: int, _: object) -> None:
        if signal.Signals(number).name in OF_TERMINALS and _in_foreground():
            return  # the terminal has sent it to the command, too
        if child is None:
            early.append(number)
        elif child.poll() is None:
            child.send_signal(number)

    numbers = [getattr(signal, name) for name in FORWARDED if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, forward)
    try:
        words = _for_windows(command) if sys.platform == "win32" else command
        child = subprocess.Popen(words, env=dict(environ))  # noqa: S603
        for number in early:
            child.send_signal(number)
        end = Thread(target=child.wait, name="paceline-exec", daemon=True)
        end.start()
        while end.is_alive():  # a signal that comes just before a wait, or that another thread gets, ends no wait
            end.join(LOOK_S)
        code = child.returncode
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _for_windows(command: Sequence[str]) -> str | Sequence[str]:
    """A command as Windows starts it: npm's programs end with .cmd there, and ``cmd`` reads their arguments as a line of its own.

    It takes what is in quotes as it is, except for quotes and ``%``, which has no escape: an empty part of a variable ends its name.
    """
    program = shutil.which(command[0]) or command[0]
    if not program.lower().endswith((".bat", ".cmd")):
        return [program, *command[1:]]
    quoted = (_BEFORE_QUOTE.sub(r"\1\1\2\2", word).replace("%", "%%cd:~,%") for word in command[1:])
    return " ".join([f'"{program}"', *(word if _PLAIN.fullmatch(word) else f'"{word}"' for word in quoted)])


def _in_foreground() -> bool:
    """Whether this process belongs to the foreground of its terminal."""
    if sys.platform == "win32":  # all processes of a console have its Ctrl-C and Ctrl-Break
        return True
    try:
        with open("/dev/tty", "rb") as terminal:  # noqa: PTH123
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def summary(
    records: Sequence[Mapping[str, Any]], failed: Sequence[str] = (), *, gateway: bool = False, hint: str = FORCE
) -> list[str]:
    """The lines that say what was paced, and what was not.

    Args:
        records: What each process and the gateway have sent.
        failed: Why a process was not paced, for each.
        gateway: Whether there was a gateway.
        hint: What to do if nothing was paced.
    """
    if failed:
        line = f"{len(failed):,} process{'es' * (len(failed) > 1)} not paced, the first one: {failed[0]}"
        return [line, *(summary(records, gateway=gateway) if records else [hint])]
    if not records:
        return ["no Python process of the command imported an HTTP library that is paced: nothing was paced", hint]
    pools: dict[str, dict[str, float]] = {}
    kinds: dict[tuple[str, ...], int] = {}
    for record in records:
        for name, counts in record.get("pools", {}).items():
            total = pools.setdefault(name, {})
            for what, number in counts.items():
                total[what] = max(total.get(what, 0), number) if what == "longest_s" else total.get(what, 0) + number
        for *kind, number in record.get("unpaced", ()):
            kinds[tuple(kind)] = kinds.get(tuple(kind), 0) + number
    lines = [_line(name, counts) for name, counts in sorted(pools.items())] or [_nothing(records, gateway=gateway)]
    for (provider, host, kind), number in sorted(kinds.items())[:KINDS_SHOWN]:
        what = f"{number:,} x {with_host(kind, host)} ({provider})" if provider else f"what {kind} sent"
        lines.append(f"not paced: {what}")
    if len(kinds) > KINDS_SHOWN:
        lines.append(f"not paced: {len(kinds) - KINDS_SHOWN} more kinds of requests")
    return lines


def _nothing(records: Sequence[Mapping[str, Any]], *, gateway: bool) -> str:
    """The line for a command that has sent no request."""
    if any(record.get("used") for record in records):
        return UNSENT
    return NOTHING if gateway else "no request was paced"


def _line(name: str, counts: Mapping[str, float]) -> str:
    requests, refused = int(counts["requests"]), int(counts["refused"])
    line = f"{name}: {requests:,} request{'s' * (requests != 1)}, {refused:,} refused"
    for what, words in (("unconnected", "without a connection"), ("unanswered", "without an answer")):
        if number := int(counts.get(what, 0)):
            line += f", {number:,} attempt{'s' * (number > 1)} {words}"
    if requests <= 0:
        return line
    mean_s = max(counts["waited_s"], 0.0) / requests
    return f"{line}; waits {mean_s:.1f} s on average, {counts['longest_s']:.1f} s at most"
