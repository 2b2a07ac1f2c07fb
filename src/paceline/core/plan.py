"""What of a plan's windows may be used, and by whom.

A share is kept for a person, or a window is spread over its length.

It holds requests back only where the user asks for it, by the shares that answers state, and by an estimate of what the
requests in flight use beside that: no provider says what a request costs of a window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, Literal, NamedTuple

from paceline.core.allowance import OPENS_NS, Allowance
from paceline.core.checked import check, suggesting
from paceline.core.ledger import Ledger
from paceline.core.local import LocalCapacity
from paceline.core.pause import OPEN
from paceline.core.queue import LaneSpec, Waiter
from paceline.core.quota import DAY_S, NS
from paceline.core.results import QUEUE, Decision, SettingsError, WaitUntil, public

INTERACTIVE: Final = "interactive"
"""The lane of a person, who waits for the answer."""

THERE_NS: Final = 16 * 3_600 * NS
"""A share is kept for so long after a person's request: from the end of a working day to the next morning."""

MELTS: Final = 5
"""The kept share melts in this part of a window, the last fifth: a person needs less of it by then."""

Overage = Literal["go on", "wait"]
WhenShut = Literal["hold", "refuse"]


@public
@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPolicy:
    """How the windows of a plan are used: Claude Pro, Max and Team, ChatGPT with Codex.

    Attributes:
        keep: The share of each window to reserve for the lane ``interactive``, if it sent a request in the last 16
            hours. It shrinks to 0 in the last fifth of the window.
        spread: The windows to spread, such as ``7d``: all other requests use at most the part of the window that has
            passed, and a day more.
        stop_at: The share at which all requests wait for the next window; ``None``: none.
        overage: Whether requests continue for money if the provider allows it (``go on``), or ``wait``.
        when_shut: Whether requests wait while a window is used up (``hold``), or get the refusal at once
            (``refuse``).

    Raises:
        SettingsError: A value is out of its range.
    """

    keep: float = 0.1
    spread: str | tuple[str, ...] = ()
    stop_at: float | None = None
    overage: Overage = "go on"
    when_shut: WhenShut = "hold"

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        check(self)
        if not 0 <= self.keep < 1:
            raise SettingsError(f"plans: keep is {self.keep!r}: it must be a share from 0 to below 1, e.g. 0.1")
        if self.stop_at is not None and not 0 < self.stop_at <= 1:
            raise SettingsError(f"plans: stop_at is {self.stop_at!r}: it must be a share above 0, at most 1, e.g. 0.8")

    @property
    def holds(self) -> bool:
        """Whether it delays requests that the provider would answer."""
        return bool(self.keep or self.spread or self.stop_at is not None or self.overage == "wait")


class Window(NamedTuple):
    """A window as the last answer has stated it.

    It has a name, the used share, an end, and a length, 0 for an unknown one.
    """

    name: str
    used: float
    ends_ns: int
    length_ns: int


class Weighed(NamedTuple):
    """What the stated share of a window leaves out.

    Attributes:
        each: The share that one request uses.
        ended: The share of the requests that have ended since the stated one has risen, as far as it is rounded.
    """

    each: float
    ended: float


class Held(NamedTuple):
    """The window by which requests are held back, how many wait, and until when, unless an answer states less."""

    window: str
    waiting: int
    until_ns: int


NO_WEIGHT: Final = Weighed(0.0, 0.0)


class Plan:
    """The windows of one account, and what its policy lets go.

    Attributes:
        windows: The windows by name.
        weighed: By window what requests use of it, where enough of them have shown it.
        person_ns: When a person's request was looked at last.
    """

    def __init__(self, policy: PlanPolicy) -> None:
        self.policy = policy
        self.windows: dict[str, Window] = {}
        self.weighed: Mapping[str, Weighed] = {}
        # Before the first request of a person, none was there of late.
        self.person_ns = -THERE_NS
        # Above the whole window requests cost money. To wait is to stop at that share.
        waits = 1.0 if policy.overage == "wait" else inf
        self._stop_at = waits if policy.stop_at is None else min(policy.stop_at, waits)

    def held(self, now_ns: int, lane: LaneSpec, in_flight: int = 0) -> tuple[int, str]:
        """Until when a request is held back, unless an answer states less, and the name of the window; past: it is not.

        ``in_flight``: how many requests have not ended, which no stated share has.
        """
        person = lane.name == INTERACTIVE
        if person:
            self.person_ns = now_ns
        latest, name = now_ns, ""
        for one in self.windows.values():
            # Of one that has ended nothing is known until an answer states the next one, so it holds nothing back.
            weighed = self.weighed.get(one.name, NO_WEIGHT)
            used = one.used + weighed.ended + in_flight * weighed.each
            until_ns = self._until_ns(now_ns, one, used, person=person) if one.ends_ns > now_ns else now_ns
            if until_ns > latest:
                latest, name = until_ns, one.name
        return latest, name

    def _until_ns(self, now_ns: int, one: Window, used: float, *, person: bool) -> int:
        """Until when one window holds a request back, if ``used`` of it is used in the end."""
        if used >= self._stop_at:
            return one.ends_ns
        until_ns, keep, length_ns = now_ns, self.policy.keep, one.length_ns
        # When all is used up, the provider says whether requests go on for money.
        if person or one.used >= 1:
            return until_ns
        if keep and used >= 1 - keep and (gone_ns := self.person_ns + THERE_NS) > now_ns:
            # The kept share falls to 0 at the end. What is used crosses it at this instant.
            melted_ns = one.ends_ns - round((1 - used) / (MELTS * keep) * length_ns) if length_ns else one.ends_ns
            until_ns = min(melted_ns, gone_ns)
        spread = self.policy.spread
        if one.name in ((spread,) if isinstance(spread, str) else spread) and length_ns:
            # A day ahead of the part that has passed, or the first day of a week would allow nothing.
            until_ns = max(until_ns, one.ends_ns - round((1 - used) * length_ns + DAY_S * NS))
        return min(until_ns, one.ends_ns)


class PlanCapacity(LocalCapacity):
    """The capacity of the pool that all requests of an account pass.

    Attributes:
        plan: The windows of the account.
        holds: The window by which the last request was held back that the plan can hold back; empty: it was not.
        held_ns: Until when, unless an answer states less.
        notices: What is to be logged; the pool has them.
        allowance: What the refusals of the pool show of the windows.
        of_pools: How many requests are in flight in the pools of the account: not all of them took a turn here.
        heard: Called with the name of a window, what another process has noted of it, and how many nanoseconds ago.
    """

    def __init__(self, plan: Plan, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.plan, self.behind = plan, QUEUE
        self.holds, self.held_ns = "", 0
        self.notices: deque[str] = deque()
        self.allowance = Allowance()
        self.of_pools: Callable[[], int] = lambda: 0
        self.heard: Callable[[str, str, int], None] = lambda *_: None
        self._told_ns: dict[str, int] = {}  # by window: the end of the one that was told

    def reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        """See :meth:`Capacity.reserve <paceline.core.capacity.Capacity.reserve>`."""
        until_ns, window = self.plan.held(now_ns, waiter.lane, self.in_flight)
        if until_ns > now_ns:
            self.holds, self.held_ns, self.behind = window, until_ns, f"the share of {window} that is left"
            self._tell(now_ns, window)
            return WaitUntil(until_ns, self.behind)
        # A person's request that goes shows nothing of the others: they may be held back still.
        if self.holds and waiter.lane.name != INTERACTIVE:
            # All that wait would use up more than there is, so they go as after a pause: two for each answer.
            if self.ledger.pause.phase is OPEN:
                self.ledger.pause.begin(now_ns, self.behind, OPENS_NS)
            self.holds, self.behind = "", QUEUE
        return super().reserve(now_ns, waiter)

    @property
    def in_flight(self) -> int:
        """How many requests are in flight, or on the way to their pools."""
        # The larger one: some requests take no turn here, and others have not reached their pools yet.
        return max(self.ledger.in_flight, self.of_pools())

    def is_free(self, now_ns: int, lane: LaneSpec) -> bool:
        """Whether nothing is shut or held back, for a request of ``lane``."""
        # Asked even if the pause decides: it notes that a person is there.
        held_ns = self.plan.held(now_ns, lane, self.in_flight)[0]
        return held_ns <= now_ns and not (self.holds or self.allowance.began_ns) and self.ledger.pause.phase is OPEN

    def note_window(self, now_ns: int, window: str, text: str) -> None:
        """Tell the processes that share the plan what is known of a window: none."""

    def _tell(self, now_ns: int, window: str) -> None:
        if now_ns >= self._told_ns.get(window, 0):
            one = self.plan.windows[window]
            # Once for each window: the next line may follow when this one has ended.
            self._told_ns[window] = one.ends_ns
            self.notices.append(
                f"{one.used:.0%} of {window} is used, and requests wait for the remaining part, as [plans] says: keep,"
                " spread, stop_at, overage"
            )

    def wake_ns(self, now_ns: int, head: Waiter) -> int | None:
        """See :meth:`Capacity.wake_ns <paceline.core.capacity.Capacity.wake_ns>`."""
        at_ns = super().wake_ns(now_ns, head)
        held_ns = self.plan.held(now_ns, head.lane, self.in_flight)[0]
        return max(at_ns or 0, held_ns) if held_ns > now_ns else at_ns
