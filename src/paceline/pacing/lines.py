"""The lines that a pool writes to the log.

Waits, permits, refusals and retries go to the logger ``paceline.rate_limit``. Each is one line of text, with its values
in fields of the record (``extra``), whose names do not change. What a pool notices goes to the logger ``paceline``.
"""

from __future__ import annotations

import atexit
import logging
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from logging import DEBUG, INFO, WARNING
from typing import Any, Final

from paceline.core.hints import counted
from paceline.core.ledger import total_tokens
from paceline.core.meters import Spread
from paceline.core.pool import Pool
from paceline.core.queue import DEFAULT_LANE, Waiter
from paceline.core.quota import INPUT_TOKENS, NS, REQUESTS, TOKENS
from paceline.core.results import NOT_QUOTAS, STORE, Refusal, RefusalKind, WaitUntil
from paceline.core.unstated.measured import FoundMeter
from paceline.pacing.clock import SYSTEM_CLOCK
from paceline.pacing.events import Event
from paceline.pacing.status import Waiting, wait_until_s

log = logging.getLogger("paceline.rate_limit")
_notices = logging.getLogger("paceline")

LEVELS: Final[dict[int, bool]] = getattr(log, "_cache", {})
"""What ``log.isEnabledFor`` has found so far, for paths on which even that call is too slow; logging empties it at
every change. Not ``False``: ask ``isEnabledFor``."""

KEEPS: Final = "paceline_keeps"
"""An attribute of a handler that keeps what is logged, and does not show it."""


def is_shown(name: str) -> bool:
    """Whether the program has a handler for what the logger ``name`` logs."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if not all(hasattr(handler, KEEPS) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


NOTICED_S: Final = 1.0
"""A wait from this length on is logged as ``INFO``, a shorter one as ``DEBUG``."""

LINES_MAX: Final = 100
"""How many lines of one kind a pool writes in a second, except for permits; the next one has the number left out."""

SUM_S: Final = 60.0
"""After the line of a refusal, the further ones of its kind have one line for each such period: one run had 424 of
them."""

EXACT_MAX: Final = 300
"""With so many requests ahead, the line of a wait has a lower bound of it. The exact wait takes 0.1 ms to compute then,
and 30 ms with 3,000 ahead (on one core, 2026-11)."""

_Kind = tuple[str, str | None, str | None]  # of refusals: the event, the reason, the unit
_Left = dict[str, float | None]  # what is left of the quotas, by the field of the record
_STATED: Final = ("unit", "limit", "period_s", "used", "requested", "window")
_PERIODS: Final = {1.0: "s", 60.0: "min", 3_600.0: "hour", 86_400.0: "day"}
_EVENTS: Final = {"acquired": "rate_limit.acquire", "settled": "rate_limit.release", "cancelled": "rate_limit.release"}


class Lines:
    """The lines of one pool.

    Args:
        pool: The pool.
        read: Calls a function of the present with the pool locked, and returns its result. Nothing is logged inside.
        why: Tells why a waiter waits; ``None`` if it waits no longer.
    """

    __slots__ = ("__weakref__", "_counts", "_noticed", "_pool", "_read", "_refusals", "_unsaid", "_why")

    def __init__(
        self,
        pool: Pool,
        read: Callable[[Callable[[int], Any]], Any],
        why: Callable[[Waiter], Waiting | None],
    ) -> None:
        self._pool, self._read, self._why = pool, read, why
        # Of each kind of refusals that has had a line within the last period: how many since then, and the last one.
        self._refusals: dict[_Kind, tuple[int, Event]] = {}
        # Of each event: a second, its lines, and those left out before the next.
        self._counts: dict[str, list[int]] = {}
        self._noticed = True  # whether the last wait of the present second was one that is noticed
        self._unsaid: deque[tuple[Waiter, WaitUntil]] = deque(maxlen=LINES_MAX)  # whose waits are to be logged

    def waits(self, now_ns: int, waiter: Waiter, until: WaitUntil) -> None:
        """``waiter`` begins to wait; ``until`` is a lower bound."""
        if LEVELS.get(INFO) is not False and log.isEnabledFor(INFO):
            self._unsaid.append((waiter, until))
            self.say_waits(now_ns)

    def say_waits(self, now_ns: int) -> None:
        """Log the waits that are not logged yet, except those for which the answer of the store is awaited."""
        while self._unsaid:
            waiter, until = self._unsaid.pop()
            if not self._say_wait(now_ns, waiter, until):
                self._unsaid.append((waiter, until))
                return

    def _say_wait(self, now_ns: int, waiter: Waiter, until: WaitUntil) -> bool:
        """Log one wait; false, and nothing is logged, while only the answer of the store is missing."""
        # Of a line that is left out the level is not computed: the last line that was written stands for it.
        may = self._may("rate_limit.wait", now_ns, counts=self._noticed)
        reason = self._reason(now_ns, waiter, until) if may else None
        if reason is None:
            return True
        quota, expected_s = reason.quota, reason.expected_wait_s
        name, lane = waiter.name, waiter.lane.name
        if quota == STORE:
            self._counts["rate_limit.wait"][1] -= 1  # it has written nothing yet
            return False
        self._noticed = expected_s is None or expected_s >= NOTICED_S
        level = INFO if self._noticed else DEBUG
        if not log.isEnabledFor(level):
            return True
        used, limit = self._read(lambda now_ns: self._use(now_ns, quota))
        what = NOT_QUOTAS[quota].awaited if quota in NOT_QUOTAS else _kind(quota)
        seconds = "" if expected_s is None else f" {expected_s:.1f} s"
        amounts = "" if limit is None else f" ({limit:,.0f} measured)"
        if used is not None:
            amounts = f" ({used:,.0f} of {limit:,.0f} used)"
        self._write(
            level,
            "rate_limit.wait",
            f"Rate limit: waiting{seconds} for {what} of {self._pool.name}{amounts}{_caller(name, lane)}",
            caller=name,
            lane=lane,
            expected_wait_s=None if expected_s is None else round(expected_s, 3),
            quota=quota,
            used=used,
            limit=limit,
            ahead=reason.ahead,
        )
        return True

    def _reason(self, now_ns: int, waiter: Waiter, until: WaitUntil) -> Waiting | None:
        """Why ``waiter`` waits; in a long queue, where that takes long to compute, with the lower bound ``until``."""
        ahead = self._pool.queue.length - 1
        if ahead < EXACT_MAX:
            return self._why(waiter)
        wait_s = wait_until_s(until.at_ns, now_ns)
        return Waiting(ahead, until.quota, wait_s if wait_s < math.inf else None)

    def permit(self, event: Event) -> None:
        """A permit was acquired, settled or cancelled."""
        if event.kind == "refused":
            self._refused(event)
            return
        used, estimated = event.reported or event.used, total_tokens(dict(event.reserved))
        ratio = None
        if used is not None and event.sized and estimated:
            ratio = round(total_tokens(dict(used)) / estimated, 4)
        if event.kind == "cancelled":
            text = "cancelled"
        else:
            text = ", ".join(f"{round(amount, 2):,.15g} {unit}" for unit, amount in (used or event.reserved).items())
            text += f" after {event.waited_s:.1f} s" if used is None else ""
        self._say_permit(DEBUG, _EVENTS[event.kind], event, text, self._read(self._left), ratio)

    def _refused(self, event: Event) -> None:
        """Log the first refusal of its kind, and count it if another one was logged in this period."""
        name = "rate_limit.429_error" if RefusalKind(str(event.reason)).about_rate else "rate_limit.refused"
        kind = name, event.reason, getattr(event.refusal, "unit", None)

        def left_at_first(now_ns: int) -> _Left | None:
            count = self._refusals.get(kind)
            self._refusals[kind] = (0, event) if count is None else (count[0] + 1, event)
            return self._left(now_ns) if count is None else None

        # With the pool locked: of several threads one writes the line.
        if (left := self._read(left_at_first)) is not None:
            _summing.add(self)
            self._set_timer(kind)
            self._say_permit(WARNING, kind[0], event, _said(event), left)

    def _set_timer(self, kind: _Kind) -> None:
        """Sum up in a minute of the system's clock: a line for people must not be an instant of a simulated one."""
        # Weakly, because the timer would keep the pool of a limiter that is gone for a minute more.
        weakly = weakref.WeakMethod(self._sum)

        def end() -> None:
            if (alive := weakly()) is not None:
                alive(kind)

        SYSTEM_CLOCK.call_at(SYSTEM_CLOCK.now_ns() + round(SUM_S * NS), end)

    def _sum(self, kind: _Kind, within: str = f" in {SUM_S:g} s") -> None:
        """Log how many refusals of a kind there were since its last line.

        ``within``: the period that has ended, after which another one begins; empty at the end of the program.
        """

        def take(now_ns: int) -> tuple[int, Event, _Left] | None:
            number, event = self._refusals.pop(kind, (0, None))
            if event is None or not number:
                return None
            if within:
                self._refusals[kind] = 0, event
            return number, event, self._left(now_ns)

        if (taken := self._read(take)) is None:
            return
        number, event, left = taken
        if within:
            self._set_timer(kind)
        more = f"{counted(number, 'more refusal')}{within}, the last one: {_said(event)}"
        self._say_permit(WARNING, kind[0], event, more, left, left_out=number - 1)

    def say_sums(self) -> None:
        """Log, at the end of the program, how many refusals were not logged."""
        for kind in list(self._refusals):
            self._sum(kind, within="")

    def _say_permit(
        self, level: int, name: str, event: Event, text: str, left: _Left, ratio: float | None = None, left_out: int = 0
    ) -> None:
        used, refusal = event.reported or event.used, event.refusal
        stated = None
        if refusal is not None:
            stated = {what: amount for what in _STATED if (amount := getattr(refusal, what)) is not None}
        self._write(
            level,
            name,
            f"{name} {self._pool.name}: {text}{_caller(event.name, event.lane)}",
            caller=event.name,
            lane=event.lane,
            waited_s=round(event.waited_s, 6),
            reserved=dict(event.reserved),
            used=None if used is None else dict(used),
            charged=None if event.used is None else dict(event.used),
            ratio=ratio,
            reason=event.reason,
            retry_after_s=event.retry_after_s,
            stated=stated,
            **left,
            **({"left_out": left_out} if left_out else {}),
        )

    def retries(self, now_ns: int, attempt: int, max_attempts: int | None, delay_s: float, reason: str) -> None:
        """Another attempt follows attempt number ``attempt``, which failed for ``reason``, after ``delay_s``.

        ``max_attempts``: ``None`` where attempts are not bounded.
        """
        level = INFO if delay_s >= NOTICED_S else DEBUG
        if log.isEnabledFor(level) and self._may("rate_limit.retry", now_ns):
            bound = "" if max_attempts is None else f"/{max_attempts}"
            self._write(
                level,
                "rate_limit.retry",
                f"Retry {attempt}{bound} in {delay_s:.1f} s: {self._pool.name} ({reason})",
                attempt=attempt,
                max_attempts=max_attempts,
                delay_s=round(delay_s, 3),
                reason=reason,
            )

    def notices(self) -> None:
        """Log the notices of the pool, about learned limits and silence."""
        while self._pool.notices:
            try:
                notice = self._pool.notices.popleft()
            except IndexError:  # another thread has taken it
                break
            _notices.warning("%s: %s", self._pool.name, notice)

    def hint_at_store(self) -> None:
        """Log that several processes use the limiter since a fork."""
        _notices.warning(
            "%s: several processes use this limiter since a fork, and each of them spends the whole quota; to share it,"
            " give the limiter a store: Limiter(..., store='sqlite:/path/quotas.db')",
            self._pool.name,
        )

    def after_fork(self) -> None:
        """Forget the waits, the refusals and the notices of the parent process, which logs them itself."""
        self._unsaid.clear()
        self._refusals.clear()
        self._pool.notices.clear()

    def _left(self, now_ns: int) -> _Left:
        """What is left of the quotas per minute; of tokens, or of input tokens where the pool counts them apart."""
        left: dict[str, float] = {}
        for entry in self._pool.capacity.ledger.entries:
            m = entry.meter
            if m.is_known and m.quota.period_s == 60:
                left[m.quota.unit] = min(round(m.level(now_ns), 3), left.get(m.quota.unit, math.inf))
        tokens = left.get(TOKENS, left.get(INPUT_TOKENS))
        return {"rpm_remaining": left.get(REQUESTS), "tpm_remaining": tokens}

    def _use(self, now_ns: int, quota: str) -> tuple[float | None, float | None]:
        """What is used of the quota with this notation, and what it holds; ``None`` for no quota.

        Of a measured limit the use is not known, and its amount only after a measurement.
        """
        for entry in self._pool.ledger.entries:
            if entry.name == quota:
                m = entry.meter
                if isinstance(m, FoundMeter):
                    return None, m.found
                limit = m.quota.amount if isinstance(m, Spread) else m.quota.burst  # as its level counts
                return round(min(max(limit - m.level(now_ns), 0.0), limit), 3), limit
        return None, None

    def _may(self, event: str, now_ns: int, *, counts: bool = True) -> bool:
        """Whether another line of this kind may be written in this second; if not, it is counted."""
        # WEAK: without a lock, so threads may write a few lines too many in a second, or count a few too few.
        count = self._counts.setdefault(event, [0, 0, 0])
        if count[0] != now_ns // NS:
            count[:2] = now_ns // NS, 0
            self._noticed = True
        count[1] += 1
        if count[1] > LINES_MAX:
            count[2] += counts
        return count[1] <= LINES_MAX

    def _write(self, level: int, event: str, text: str, **fields: Any) -> None:
        count = self._counts.get(event)
        left_out = 0
        if count is not None and count[2]:
            left_out, count[2] = count[2], 0
            text += f"; {left_out:,} such lines were left out"
        log.log(level, "%s", text, extra={"event": event, "pool": self._pool.name, "left_out": left_out, **fields})


_summing: weakref.WeakSet[Lines] = weakref.WeakSet()  # which have counted refusals


@atexit.register
def say_sums() -> None:
    """Log how many refusals were not logged so far: at the end of the program, or before a handler is removed."""
    for lines in list(_summing):
        lines.say_sums()


def _said(event: Event) -> str:
    """A refusal with what the provider has stated of it, and nothing else."""
    refusal = event.refusal
    stated = "" if refusal is None else ", ".join(_stated(refusal))
    asked = "" if event.retry_after_s is None else f", retry after {event.retry_after_s:g} s"
    return f"refused ({event.reason}{stated and ': '}{stated}){asked}"


def _stated(refusal: Refusal) -> Iterator[str]:
    def per(period_s: float | None) -> str:
        return "" if not period_s else f"/{_PERIODS.get(period_s) or f'{period_s:g} s'}"

    if refusal.window:
        yield f"the plan's window {refusal.window}"
    alone = refusal.limit is None
    if refusal.unit:
        yield refusal.unit + (per(refusal.period_s) if alone else "")
    if not alone:
        yield f"limit {refusal.limit:,.15g}{per(refusal.period_s)}"
    for what in ("used", "requested"):
        if (amount := getattr(refusal, what)) is not None:
            yield f"{what} {amount:,.15g}"
    limits = [f"{one.limit:,.15g} {one.unit}{per(one.period_s)}" for one in refusal.limits if one.limit is not None]
    if limits:
        yield f"of {' or '.join(limits)}"


def _kind(quota: str) -> str:
    """What a quota counts, without the amount and the options: tokens/min.

    While the limit is not measured yet, its unit.
    """
    first, second, *_ = quota.split()
    return first.removesuffix(",") if first.endswith(",") else second


def _caller(name: str | None, lane: str) -> str:
    return f", {name}" if name else "" if lane == DEFAULT_LANE.name else f", lane {lane}"
