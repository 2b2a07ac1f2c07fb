"""The pools that clients name: as many for each key as a program can need, and none that is idle."""

from __future__ import annotations

import gc
from itertools import islice
from typing import Final

from paceline.pacing.pools import Pools
from paceline.pacing.scheduler import Scheduler

MODELS_MAX: Final = 500
"""The pools that one client key can open: more than a provider has models, and a twentieth of what a limiter keeps."""

IDLE_S: Final = 600.0
"""The time without a request after which a pool is forgotten, if all of its quotas are full."""

FEW: Final = 50
"""So many pools of a key are kept however idle they are: what was learned of them stays."""

LOOKED_AT: Final = 100
"""The pools of a key that are looked at in one step."""

COLLECT_FROM: Final = 500
"""So many forgotten accounts, with pools of 13 kB each, are worth a whole garbage collection, which a gateway makes almost never."""


class NamedModels:
    """The pools that the requests of each client key, or of each account of clients without one, have opened.

    Args:
        pools: All pools of the limiter.
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._owner: dict[str, str] = {}  # the key that has opened a pool
        self._used: dict[str, dict[str, tuple[Scheduler, float]]] = {}  # by key; the longest idle first
        self._forgotten = 0  # accounts, since the last collection

    def use(self, key: str, scheduler: Scheduler, now_s: float) -> bool:
        """Note that a request of ``key`` uses a pool; false if it is one too many of that key, and so is forgotten."""
        name = scheduler.pool.name
        used = self._used.setdefault(self._owner.get(name, key), {})
        if name in used:
            del used[name]
        elif len(used) >= MODELS_MAX:
            self._pools.forget(scheduler)
            return False
        used[name] = scheduler, now_s
        self._owner.setdefault(name, key)
        return True

    def forget(self, key: str) -> None:
        """Forget an account whose pools are forgotten."""
        self._forgotten += 1
        for name in self._used.pop(key, ()):
            self._owner.pop(name, None)

    def expire(self, now_s: float) -> None:
        """Forget pools that are idle, those that were used last excepted."""
        if self._forgotten >= COLLECT_FROM:
            self._forgotten = 0
            gc.collect()
        for used in self._used.values():
            for name in list(islice(used, max(min(len(used) - FEW, LOOKED_AT), 0))):
                scheduler, used_s = used.pop(name)
                if now_s - used_s < IDLE_S or not self._pools.forget(scheduler):
                    used[name] = scheduler, used_s
                else:
                    del self._owner[name]
