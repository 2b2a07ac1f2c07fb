"""What a process has to tell the store: told once, in order, and again if nobody answered."""

from __future__ import annotations

from paceline.core.quota import NS
from paceline.shared.leases import Lease
from paceline.shared.messages import Charged, News
from paceline.shared.snapshot import Fallback

LINGER_NS = NS // 100
"""How long news waits for a question to go with."""

NEWS_MAX = 100_000
"""How much news is kept for a lost store; the oldest is dropped, and what it was about stays charged."""


class Outbox:
    """News for the store.

    Attributes:
        due_ns: When to tell it, if no question goes before; ``None``: there is none.
        number: Of the message that was told last.
    """

    __slots__ = ("_again", "_news", "_settled", "due_ns", "number")

    def __init__(self) -> None:
        self.due_ns: int | None = None
        self.number = 0
        self._news: list[News] = []
        self._settled: list[Lease] = []  # have news
        self._again: list[News] | None = None  # of a message that nobody has answered

    def add(self, now_ns: int, news: News, *, at_once: bool = False) -> None:
        """Something to tell, soon or at once."""
        self._news.append(news)
        if len(self._news) > NEWS_MAX:
            del self._news[: NEWS_MAX // 2]
        self.soon(now_ns)
        if at_once:
            self.due_ns = now_ns

    def soon(self, now_ns: int) -> None:
        """The store should hear from us."""
        if self.due_ns is None:
            self.due_ns = now_ns + LINGER_NS

    def answered(self, now_ns: int, lease: Lease) -> None:
        """The first of a lease's attempts was answered since it was told last; all of one lease's are told as one."""
        self._settled.append(lease)
        self.soon(now_ns)

    def owed(self, now_ns: int, told: list[float], true: list[float]) -> None:
        """An attempt that was ``told`` as reserved may have cost more."""
        debt = [max(a - b, 0.0) for a, b in zip(true, told, strict=True)]
        if any(debt):
            self.add(now_ns, Charged(debt))

    def take(self, now_ns: int, fallback: Fallback | None) -> list[News]:
        """The news for the next message, ``fallback``'s on top; that of the last one, where nobody has answered it."""
        if self._again is None:
            self.number += 1
            settled = [news for lease in self._settled if (news := lease.news()) is not None]
            alone = fallback.news(now_ns) if fallback is not None else None
            self._again = [*settled, *self._news, *([alone] if alone is not None else [])]
            self._news, self._settled = [], []
        self.due_ns = now_ns + LINGER_NS if self._news or self._settled else None
        return self._again

    def confirm(self) -> None:
        """The store has heard it."""
        self._again = None

    def clear(self) -> None:
        """It is somebody else's news."""
        self._news, self._settled, self._again, self.due_ns, self.number = [], [], None, None, 0
