"""The membership of a process: whether the store answers it, and who grants its requests meanwhile."""

from __future__ import annotations

from enum import Enum
from random import Random

from paceline.core.quota import NS
from paceline.pacing.settings import OnStoreFailure
from paceline.shared.messages import REJOIN_NS, SHARED_PART, WANE_NS, WANES, Message, StoreReply
from paceline.shared.peers import BILLION, SHARE_MIN

RETRY_NS = 1 * NS
"""How often a lost store is tried."""

FEW, RETRIES_PER_S = 16, 1_000
"""With more processes than the first, each waits for a random time of its own before it tries a lost store again; in
all, they try it so often."""


class State(Enum):
    """Who grants the requests of this process.

    Attributes:
        known: Whether the store knows the process: it has answered, and no newer version has stopped the process since.
        asks: Whether a message asks for grants.
        alone: Whether the store is lost: the fallback grants, or nothing in mode ``fail_closed``.
        late: Whether a reply finds processes that have to report what they spent without this one.
        label: Its name in the status.
    """

    # The first value keeps the members apart: LOST and BACK have equal flags, and Enum would make them one.
    #            known  asks   alone  late   label
    NEW = "new", False, True, False, False, "new"  # no message has had a reply yet, or failed
    MISSED = "missed", False, False, False, True, "new"  # messages have failed, and none had a reply: all is refused
    OPEN = "open", False, False, True, False, "lost"  # the same in mode fail_open: the fallback grants
    JOINED = "joined", True, True, False, False, "joined"  # the store grants
    LOST = "lost", True, False, True, False, "lost"  # the store has granted before, and does not reply
    BACK = "back", True, False, True, False, "lost"  # it replies again, and all processes report what they have spent
    STOPPED = "stopped", False, False, False, True, "stopped"  # a newer version uses the store: all is refused

    def __init__(self, _name: str, known: bool, asks: bool, alone: bool, late: bool, label: str) -> None:
        self.known, self.asks, self.alone, self.late, self.label = known, asks, alone, late, label


class Membership:
    """What a process knows of the store and of the processes that share its quotas.

    Attributes:
        who, random: Its unique name, and its random numbers.
        mode: What it grants while the store is lost: a share of the limits (``fail_safe``), nothing (``fail_closed``),
            or the whole limits (``fail_open``).
        state: Who grants its requests.
        reason: Why the store is lost or has stopped the process; ``None`` in the state ``JOINED``.
        back_ns: When the lost store replied first; in the state ``BACK``.
        peers, share: Of the last reply: see :class:`StoreReply`.
        announced: Whether the store knew at the last reply when this process reports again.
        heard_ns: When the last message with a reply was sent.
        try_ns: When to try the store again, while it is lost or refuses this process.
    """

    def __init__(self, now_ns: int, mode: OnStoreFailure, who: str) -> None:
        self.who, self.random = who, Random(who)
        self.mode = mode
        self.state = State.NEW
        self.reason: str | None = None
        self.back_ns = 0
        self.peers = 1
        self.share = 0.0
        self.announced = False
        self.heard_ns = now_ns
        self.try_ns = 0

    @property
    def retry_ns(self) -> int:
        """How often a store that does not answer is tried."""
        # All together they try it no more often than this, however many they are.
        return max(RETRY_NS, self.peers * NS // RETRIES_PER_S)

    @property
    def report_ns(self) -> int:
        """How long after its first reply a store that was away is authoritative again: all have reported by then."""
        return REJOIN_NS + (0 if self.peers <= FEW else 3 * self.retry_ns // 2)

    def share_at(self, now_ns: int) -> float:
        """The share of the limits if the store is lost at ``now_ns``."""
        # A process that has announced its report is charged in full when it vanishes, so its share stays whole.
        waned = 0 if self.announced else min((now_ns - self.heard_ns) // WANE_NS, WANES)
        return self.share * 0.5**waned

    def replied(self, now_ns: int, asked: Message, sent_ns: int, reply: StoreReply) -> None:
        """Note the reply to a message that was sent at ``sent_ns``."""
        self.peers, self.share = max(reply.peers, 1), reply.share
        self.announced, self.heard_ns = bool(asked.report_within_ns(reply)), sent_ns
        if self.state is State.BACK and now_ns < self.back_ns + self.report_ns:
            self.try_ns = self.back_ns + self.report_ns
        elif self.state.alone and self.state is not State.BACK:
            self.state = State.BACK
            self.back_ns = self.try_ns = now_ns
        else:
            self.state, self.reason = State.JOINED, None

    def failed(self, now_ns: int, reason: str, *, final: bool) -> None:
        """Note that a message has no reply; ``final``: and that no message will have one."""
        if final:
            self.state = State.STOPPED
        elif self.state.known:
            self.state = State.LOST
        else:
            self.state = State.OPEN if self.mode == "fail_open" else State.MISSED
        self.reason = reason
        # Many processes that try again at the same moment would keep a store down that has just come up.
        apart = 1.0 if self.peers <= FEW else self.random.uniform(0.5, 1.5)
        self.try_ns = now_ns + round(apart * self.retry_ns)

    def forked(self, who: str) -> None:
        """Be the process ``who`` from now on, in a forked child."""
        # Its own random numbers: with the parent's it would try again in step with it, and with other children.
        self.who, self.random = who, Random(who)
        # The least of what a process is told, because its parent keeps the share. A chain of forks ends there, too: of a
        # share without a bound no quota could be made after twelve of them.
        self.share = max(self.share * (1 - SHARED_PART) ** 2, min(self.share, SHARE_MIN / BILLION))
