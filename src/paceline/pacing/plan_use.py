"""Who uses the windows of a plan: how much of each went through this process, by the sessions that clients claim.

What a client claims of itself is shown, and is no more than that: no limit, stop or right depends on it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypedDict

from paceline.core.allowance import SAME_END_NS
from paceline.core.plan import NO_WEIGHT, Weighed
from paceline.core.quota import NS
from paceline.estimation.plan_weight import ROUNDING, PlanWeight
from paceline.providers.base import Usage

if TYPE_CHECKING:
    from paceline.providers.plan_headers import PlanReading

CACHED, OUTPUT = 0.1, 5.0
"""The worth of a token that was read from a cache, and of one of output, in tokens of input: the ratios of Anthropic's
prices for all its models (genai-prices, 2026-11). WEAK: what weighs in a plan is not published. Models differ, and so a
session with a small model is shown too large."""

ANOTHER_S: Final = 60.0
ANOTHER: Final = 0.01
"""An end that is so much later, or a used share that is so much lower, is another window: the stated ones tremble by
less."""

SESSIONS_MAX: Final = 50
"""The sessions of one window that are told apart, those that use most; the others are added up."""

AGENTS_MAX: Final = 1_000
"""The subagents of one session that are counted."""


class Client(NamedTuple):
    """What a request claims of its client, as digests.

    Attributes:
        program: ``claude`` or ``codex``; empty if it is unknown.
        session: The digits of its session; empty if it is unknown.
        agent: The digits of the subagent that sends it; empty for the session itself.
    """

    program: str = ""
    session: str = ""
    agent: str = ""


UNNAMED: Final = Client()


class SessionStatus(TypedDict):
    """What one session has used of a window: docs/status.md has the meaning of each field."""

    program: Annotated[str, "`claude` or `codex`; empty if it is unknown."]
    session: Annotated[str, "Digits that stand for the session; empty for sessions that are added up."]
    own: Annotated[float | None, "The share of the window that it has used, without its subagents."]
    subagents: int
    subagents_own: float | None


class _Session:
    """The amounts of one session."""

    __slots__ = ("agents", "by_agents", "by_itself")

    def __init__(self) -> None:
        self.by_itself = self.by_agents = 0.0
        self.agents: set[str] = set()

    @property
    def amount(self) -> float:
        return self.by_itself + self.by_agents


class WindowUse:
    """What answers have stated of one window, and what this process uses of it since the first of them.

    Attributes:
        reading: The last one that was news.
        noted: The last one that the processes of a store were told, or have told.
    """

    __slots__ = (
        "_amount", "_ended", "_ends_s", "_first", "_requests", "_sessions", "_used", "_used_s", "_weight",
        "noted", "reading",
    )  # fmt: skip

    def __init__(self) -> None:
        self.reading: PlanReading
        self.noted: PlanReading | None = None
        self._weight = PlanWeight()
        self._used: float | None = None
        self._used_s = 0.0  # when that was read first
        self._first = self._amount = 0.0  # used when it was seen first, and the own amount since
        self._ended = 0.0  # of the own amount: since the used share has risen
        self._requests = 0
        self._ends_s: float | None = None
        self._sessions: dict[tuple[str, str], _Session] = {}

    def read(self, reading: PlanReading, sent_s: float = inf) -> bool:
        """An answer states the window; whether that is news. ``sent_s``: when its request was sent, since 1970.

        Answers to requests that were under way together come in any order: one that states less is of another window
        only if it was sent after the larger share was read. Else it is older than what is known.
        """
        ends_s = None if reading.until_s is None else reading.read_s + reading.until_s
        used = self._used if reading.used is None else reading.used
        late = sent_s < self._used_s
        another = self._is_another(used, ends_s, reading.read_s, late=late)
        if late and not another and used is not None and self._used is not None and used < self._used:
            return False
        if another:
            self._amount, self._requests, self._sessions = 0.0, 0, {}
            self._used = None
        if used is not None:
            self._weigh(used, reading, another=another)
        if used != self._used:
            self._used, self._used_s, self._ended = used, reading.read_s, 0.0
        self._ends_s = self._ends_s if ends_s is None else ends_s
        self.reading = reading
        return True

    def note(self, one: PlanReading) -> bool:
        """Whether a reading states another share, status or end than the last one that was noted; it is noted then."""
        before = self.noted
        if before is not None and (before.used, before.status, before.paid) == (one.used, one.status, one.paid):
            ends_s = [reading.read_s + (reading.until_s or 0.0) for reading in (before, one)]
            if (before.until_s is None) == (one.until_s is None) and abs(ends_s[0] - ends_s[1]) <= SAME_END_NS / NS:
                return False
        self.noted = one
        return True

    def _weigh(self, used: float, reading: PlanReading, *, another: bool) -> None:
        """Compare what is ``used`` with what was charged."""
        if self._used is None:
            self._first = 0.0 if another else used  # the one before was seen to end, so all of this one may be ours
            self._weight.begin(used, reading.read_s)
        elif reading.used is not None:
            self._weight.read(used, reading.read_s)

    def _is_another(self, used: float | None, ends_s: float | None, read_s: float, *, late: bool) -> bool:
        later = False
        if ends_s is not None and self._ends_s is not None:
            has_ended = read_s >= self._ends_s  # a window of seconds has an end that is little later
            later = ends_s > self._ends_s + (SAME_END_NS / NS if has_ended else ANOTHER_S)
        return later or (not late and used is not None and self._used is not None and used < self._used - ANOTHER)

    def charge(self, client: Client, amount: float) -> None:
        """A request is charged."""
        self._amount += amount
        self._ended += amount
        self._requests += 1
        self._weight.use(amount)
        key = (client.program, client.session)
        session = self._sessions.get(key)
        if session is None:
            if len(self._sessions) >= SESSIONS_MAX:
                self._join_smallest()
            session = self._sessions[key] = _Session()
        if client.agent:
            session.by_agents += amount
            if len(session.agents) < AGENTS_MAX:
                session.agents.add(client.agent)
        else:
            session.by_itself += amount

    def _join_smallest(self) -> None:
        """Add the session that has used least to those that are not told apart."""
        key = min((one for one in self._sessions if one != ("", "")), key=lambda one: self._sessions[one].amount)
        rest = self._sessions.setdefault(("", ""), _Session())
        rest.by_itself += self._sessions.pop(key).amount

    @property
    def own(self) -> float | None:
        """The share of the window that went through this process; ``None`` while no share is stated."""
        if self._used is None:
            return None
        # A share is rounded, and does not have the request that states it: it has risen by at least what we have used.
        return round(min(self._weight.weight * self._amount, max(self._used - self._first, 0.0)), 4)

    @property
    def requests_left(self) -> int | None:
        """How many requests like those so far are left, with two digits; ``None`` while that is not known."""
        if self._used is None or not (share := self.weighed.each):
            return None
        return round(float(f"{max(1.0 - self._used, 0.0) / share:.2g}"))

    @property
    def weighed(self) -> Weighed:
        """What requests like those so far use of the window; 0 while that is not known."""
        if not (self._requests and self._weight.is_known):
            return NO_WEIGHT
        weight = self._weight.weight
        # What has ended since the last stated share is in none. More than a rounding hides would have been stated.
        return Weighed(weight * self._amount / self._requests, min(weight * self._ended, ROUNDING))

    def sessions(self) -> list[SessionStatus]:
        """The sessions, those that have used most first."""
        own = self.own

        def share(amount: float) -> float | None:
            return None if own is None else round(own * amount / self._amount, 4) if self._amount else 0.0

        found = sorted(self._sessions.items(), key=lambda one: (one[0] == ("", ""), -one[1].amount))
        return [
            {
                "program": program,
                "session": session,
                "own": share(one.by_itself),
                "subagents": len(one.agents),
                "subagents_own": share(one.by_agents),
            }
            for (program, session), one in found
        ]


def amount_of(usage: Usage) -> float:
    """What a request has used, in tokens of input by their worth."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    return usage.input_tokens - cached + CACHED * cached + OUTPUT * usage.output_tokens
