"""What a process knows of whether its store answers, and what the log says of it."""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress

from paceline.core.quota import NS
from paceline.core.results import StoreError, StoreFormatError
from paceline.pacing.clock import Clock
from paceline.shared.membership import RETRY_NS, Membership
from paceline.shared.messages import Message, Store, StoreReply, ping, remarks

log = logging.getLogger("paceline")

QUICK_S = 0.1
"""A failure in less time does not delay other pools: the ledger of a single pool may be unreadable."""

TELL_NS = 60 * NS
"""If a store is lost again in less time, the log tells of that only if the loss lasts."""

LOOK_S = 60.0
"""How often it is looked whether something makes quotas unsafe, and what is kept beside them is brought up to date."""


class Losses:
    """The log of the losses of one store, or of one pool whose ledger alone cannot be used: one loss in ``TELL_NS`` at most."""

    def __init__(self, name: str) -> None:
        self._name, self._pools = name, set[str]()  # that are lost
        self._is_told, self._next_ns = False, 0  # whether the log tells of it, and when it may tell of the next loss

    def lost(self, now_ns: int, pool: str, line: str) -> None:
        """A pool is lost, as ``line`` says; to be called at each failure."""
        self._pools.add(pool)
        if not self._is_told and now_ns >= self._next_ns:
            log.warning("%s", line)
            self._is_told, self._next_ns = True, now_ns + TELL_NS

    def back(self, now_ns: int, pool: str) -> bool:
        """A pool is not lost; returns whether there is nothing left to tell."""
        self._pools.discard(pool)
        if self._is_told and not self._pools:
            log.warning("%s: the store answers again", self._name)
            self._is_told = False
        return not self._pools and now_ns >= self._next_ns


class Contact:
    """The calls to a store, and what their failures show.

    Attributes:
        down: Until when other pools than those that have failed do not try the store, and why; ``None``: it has answered last.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self.down: tuple[int, str] | None = None
        self._asked = Losses(store.url)  # as answers() has found it
        self._failed: dict[str, bool] = {}  # pools that failed since the last reply; whether it took long
        self._losses: dict[str, Losses] = {}  # of a pool whose reason names it, by its name; of the others, by ""
        self._look_s: dict[str, float] = {}  # when each pool is looked at next
        self._remarks: set[str] = set()  # that were logged

    def exchange(self, pool: str, message: Message, began_s: float) -> StoreReply | str | StoreFormatError:
        """The reply to the message of a pool, by its name in the store, or the reason why there is none."""
        down = self.down
        # This pool has failed, or two others have after a long wait: then the store is down, not one ledger.
        failed = pool in self._failed or sum(self._failed.values()) > 1
        if failed and down is not None and self._clock.now_ns() < down[0]:
            return down[1]
        try:
            reply = self._store.exchange(pool, message)
        except StoreFormatError as error:
            return error
        except StoreError as error:
            reason = str(error)
        # A store of the user's own may raise anything, and the pools must go on.
        except (Exception, SystemExit) as error:
            reason = f"{self._store.url.rstrip(':')}: {type(error).__name__}"
            # One traceback for a loss: the store is tried again every second.
            if not self._losses and (down is None or down[1] != reason):
                log.exception("%s", self._store.url)
        else:
            self.down = None
            self._failed.clear()
            return reply
        self._look_s.clear()  # it may come back empty
        self._failed[pool] = time.monotonic() - began_s > QUICK_S
        # Half the time after which a pool tries again, so that its next try reaches the store.
        self.down = (self._clock.now_ns() + RETRY_NS // 2, reason)
        return reason

    def look(self, pool: str, now_s: float) -> None:
        """Log once what makes quotas unsafe at the store: at the first exchange of a pool, each minute, and after a loss."""
        if now_s < self._look_s.get(pool, -math.inf):
            return
        self._look_s[pool] = now_s + LOOK_S
        with suppress(StoreError):  # the next exchange tells of it
            for remark in remarks(self._store, pool):
                if remark not in self._remarks:
                    log.warning("%s: %s", self._store.url, remark)
                self._remarks.add(remark)

    def note(self, pool: str, membership: Membership, pools: int) -> None:
        """Log what a reply to one of the ``pools``, or the lack of one, has changed."""
        now_ns = self._clock.now_ns()
        if not membership.state.alone:
            # All are told that it is back: a pool may have been lost alone, and later with the others.
            self._losses = {key: losses for key, losses in self._losses.items() if not losses.back(now_ns, pool)}
            return
        own = repr(pool) in str(membership.reason) or pools == 1
        name = pool if own else f"{pool} (one of the {pools} pools of this store)"
        line = f"{name}: {membership.reason}; continuing in mode {membership.mode} until the store answers again"
        losses = self._losses.setdefault(pool if own else "", Losses(pool if own else self._store.url))
        losses.lost(now_ns, pool, line)

    def answers(self) -> bool:
        """Whether the store answers; it may take the time that a store has for that. A change is logged."""
        try:
            ping(self._store)
        except StoreError as error:
            self._asked.lost(self._clock.now_ns(), "", str(error))
            return False
        self._asked.back(self._clock.now_ns(), "")
        return True
