"""Limiters on one store that answers when the test says so; time stands still unless the test moves it."""

import asyncio
import threading

import paceline
from memory_store import MemoryStore
from paceline.testing import ManualClock
from waits import BOUND_S, carried

JOBS = "3600 requests/hour burst 100, 360k tokens/hour burst 10k"  # one request a second, a hundred tokens a second


earlier = set()
"""The threads that were there before the test: what another one has left, if it failed."""


def store_threads():
    """The threads of store workers that the test has started."""
    return [thread for thread in threading.enumerate() if thread.name == "paceline-store" and thread not in earlier]


class ObedientStore:
    """A store in memory that can be held and can fail; it remembers what it was told."""

    url = "obedient:store"

    def __init__(self, clock):
        self.inner = MemoryStore(clock=clock)
        self.messages = []
        self.failure = None
        self.times_closed = 0
        self._free = threading.Event()
        self._free.set()

    def exchange(self, pool, message):
        self.messages.append(message)
        assert self._free.wait(BOUND_S), "a test held its store and forgot it"
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)
        return self.inner.exchange(pool, message)

    def hold(self):
        self._free.clear()

    def let_go(self):
        self._free.set()

    def after_fork(self):
        self.inner.after_fork()

    def close(self):
        self.times_closed += 1

    def charged(self, index=0, pool="jobs"):
        """All that was ever charged, and what it came to with refunds and debts."""
        account = self.inner._ledgers[pool]._accounts[index]
        return account.charged, account.spent


class SharedWorld:
    """A clock, a store, and limiters that share it: each is a process of its own."""

    def __init__(self):
        self.clock = ManualClock()
        self.store = ObedientStore(self.clock)
        self.limiters = []

    def limiter(self, quotas=JOBS, *, store=None, **options):
        limiter = paceline.Limiter({"jobs": quotas}, store=store or self.store, clock=self.clock, **options)
        self.limiters.append(limiter)
        return limiter

    def close(self):
        """End all limiters; what the store was charged is final then."""
        self.store.let_go()
        for limiter in self.limiters:
            limiter.close()

    def quiet(self):
        """Wait until nothing is due for the store, and all replies are delivered."""

        assert all(carried(limiter.pacer.pools.worker) for limiter in self.limiters), (
            "a worker is dead, or its store is held"
        )

    def move(self, seconds):
        """Let time pass; all that is due on the way is carried to the store and back."""
        end_ns = self.clock.now_ns() + round(seconds * 1e9)
        self.quiet()
        while (next_ns := self.clock.next_ns) is not None and next_ns <= end_ns:
            self.clock.advance_to(next_ns)
            self.quiet()
        self.clock.advance_to(end_ns)

    async def moved(self, seconds=0.0):
        """The same, while the tasks of this loop go on."""
        end_ns = self.clock.now_ns() + round(seconds * 1e9)
        await self.turns()
        while (next_ns := self.clock.next_ns) is not None and next_ns <= end_ns:
            self.clock.advance_to(next_ns)
            await self.turns()
        self.clock.advance_to(end_ns)
        await self.turns()

    async def turns(self):
        """Some turns of this loop, with the store's answers between them."""
        for _ in range(3):
            self.quiet()
            for _ in range(5):
                await asyncio.sleep(0)

    def joined(self, quotas=JOBS, **options):
        """A limiter that the store knows."""
        limiter = self.limiter(quotas, **options)
        self.join(limiter)
        return limiter

    def join(self, limiter):
        """Its first word to the store, and nothing spent."""
        self.take(limiter).cancel()
        self.move(0.02)

    def take(self, limiter, **cost):
        """A permit that is there."""
        permit = limiter.try_acquire("jobs", **(cost or {"tokens": 0}))
        assert permit, permit
        return permit

    def status(self, limiter):
        return limiter.status()["pools"]["jobs"]
