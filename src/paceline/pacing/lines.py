"""The lines that a pool writes to the logger ``paceline.rate_limit``: waits, permits, refusals, retries.

Each is one line of text, with its values in fields of the record (``extra``), whose names do not change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from logging import DEBUG, INFO, WARNING
from typing import Any, Final

from paceline.core.ledger import total_tokens
from paceline.core.pool import Pool
from paceline.core.quota import NS
from paceline.core.results import COOL_DOWN, QUEUE, STORE, STORE_LOST, RefusalKind
from paceline.pacing.status import metrics

log = logging.getLogger("paceline.rate_limit")

LEVELS: Final[dict[int, bool]] = getattr(log, "_cache", {})
"""What ``log.isEnabledFor`` has found so far, for paths on which even that call is too slow; logging empties it at every
change. Not ``False``: ask ``isEnabledFor``."""

NOTICED_S: Final = 1.0
"""A wait from this length on is logged as ``INFO``, a shorter one as ``DEBUG``."""

LINES_MAX: Final = 100
"""How many lines of one kind a pool writes in a second, except those of permits; the next one has the number left out."""

_NOT_QUOTAS: Final = {COOL_DOWN: "the cool-down", QUEUE: "the queue", STORE_LOST: "the store"}
_REFUSED: Final = {RefusalKind.RATE: "rate_limit.429_error", RefusalKind.GROWTH: "rate_limit.429_error"}
_EVENTS: Final = {"acquired": "rate_limit.acquire", "settled": "rate_limit.release", "cancelled": "rate_limit.release"}


Why = tuple[int, str, float | None]
"""Why a request waits: how many go before it, what binds, and the expected wait in seconds, if it is known."""


class Lines:
    """The lines of one pool.

    Args:
        pool: The pool.
        read: Calls a function of the present with the pool locked, and returns its result. Nothing is logged inside.
    """

    __slots__ = ("_counts", "_noticed", "_pool", "_read")

    def __init__(self, pool: Pool, read: Callable[[Callable[[int], Any]], Any]) -> None:
        self._pool, self._read = pool, read
        self._counts: dict[
            str, list[int]
        ] = {}  # of each event: a second, its lines, and those left out before the next
        self._noticed = True  # whether the last wait of the present second was one that is noticed

    def waits(self, now_ns: int, name: str | None, lane: str, why: Callable[[], Why | None]) -> bool:
        """A request begins to wait; ``why`` computes the reason, or ``None`` if it waits no longer.

        Returns:
            Whether the reason is known; it is not, and nothing is logged, while only the answer of the store is missing.
        """
        if not self._may("rate_limit.wait", now_ns, counts=self._noticed) or (reason := why()) is None:
            return True
        ahead, quota, expected_s = reason
        if quota == STORE:
            self._counts["rate_limit.wait"][1] -= 1
            return False
        self._noticed = expected_s is None or expected_s >= NOTICED_S
        level = INFO if self._noticed else DEBUG
        if not log.isEnabledFor(level):
            return True
        used, limit = self._read(lambda now_ns: self._use(now_ns, quota))
        # Of a quota, its notation without the amount and the options: tokens/min.
        what = _NOT_QUOTAS.get(quota) or quota.split()[1]
        seconds = "" if expected_s is None else f" {expected_s:.1f} s"
        amounts = "" if limit is None else f" ({used:,.0f} of {limit:,.0f} used)"
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
            ahead=ahead,
        )
        return True

    def permit(
        self,
        now_ns: int,
        kind: str,
        lane: str,
        waited_s: float,
        reserved: Mapping[str, float],
        used: Mapping[str, float] | None,
        reason: str | None,
        retry_after_s: float | None,
        name: str | None,
    ) -> None:
        """A permit was acquired, settled, cancelled or refused; the arguments are the fields of an event."""
        event = _EVENTS.get(kind) or _REFUSED.get(RefusalKind(str(reason)), "rate_limit.refused")
        refused = kind == "refused"
        if refused and not self._may(event, now_ns):
            return
        left, estimated = self._read(self._left), total_tokens(dict(reserved))
        ratio = None if used is None or not estimated else round(total_tokens(dict(used)) / estimated, 4)
        if refused:
            asked = "" if retry_after_s is None else f", retry after {retry_after_s:g} s"
            text = f"refused ({reason}){asked}"
        elif kind == "cancelled":
            text = "cancelled"
        else:
            text = ", ".join(f"{round(amount, 2):,.15g} {unit}" for unit, amount in (used or reserved).items())
            text += f" after {waited_s:.1f} s" if used is None else ""
        self._write(
            WARNING if refused else DEBUG,
            event,
            f"{event} {self._pool.name}: {text}{_caller(name, lane)}",
            caller=name,
            lane=lane,
            waited_s=round(waited_s, 6),
            reserved=dict(reserved),
            used=None if used is None else dict(used),
            ratio=ratio,
            reason=reason,
            retry_after_s=retry_after_s,
            **left,
        )

    def retries(self, now_ns: int, attempt: int, max_attempts: int, delay_s: float, reason: str) -> None:
        """Another attempt follows attempt number ``attempt``, which failed for ``reason``, after ``delay_s``."""
        level = INFO if delay_s >= NOTICED_S else DEBUG
        if log.isEnabledFor(level) and self._may("rate_limit.retry", now_ns):
            self._write(
                level,
                "rate_limit.retry",
                f"Retry {attempt}/{max_attempts} in {delay_s:.1f} s: {self._pool.name} ({reason})",
                attempt=attempt,
                max_attempts=max_attempts,
                delay_s=round(delay_s, 3),
                reason=reason,
            )

    def _left(self, now_ns: int) -> dict[str, float | None]:
        """What is left of the quotas per minute; of tokens, or of input tokens where the pool counts them apart."""
        left = metrics(self._pool, now_ns)
        tokens = left.get("tpm_remaining", left.get("itpm_remaining"))
        return {"rpm_remaining": left.get("rpm_remaining"), "tpm_remaining": tokens}

    def _use(self, now_ns: int, quota: str) -> tuple[float | None, float | None]:
        """What is used of the quota with this notation, and what it holds; ``None`` for no quota."""
        for account in self._pool.ledger.accounts:
            if account.name == quota:
                m = account.meter
                limit = m.quota.amount if m.refills and not m.bursts else m.quota.burst  # as its level counts
                return round(min(max(limit - m.level(now_ns), 0.0), limit), 3), limit
        return None, None

    def _may(self, event: str, now_ns: int, *, counts: bool = True) -> bool:
        """Whether another line of this kind may be written in this second; if not, it is counted."""
        count = self._counts.setdefault(event, [0, 0, 0])
        if count[0] != now_ns // NS:
            count[:2] = now_ns // NS, 0
            counts = self._noticed = True
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


def _caller(name: str | None, lane: str) -> str:
    return f", {name}" if name else "" if lane == "default" else f", lane {lane}"
