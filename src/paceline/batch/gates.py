"""What a request of a run waits for beside its quotas: room on this machine, the first request with its prefix, and the first answers."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

from paceline.batch.transport import RunTarget
from paceline.core.hints import counted
from paceline.core.quota import NS
from paceline.estimation.prefixes import Prompt
from paceline.pacing.clock import Clock
from paceline.pacing.lack import Lack

SPARE: Final = 8
"""How far the bound is below the requests that had what they need: their files are for the resolver, the store and the output."""

PAUSE_S: Final = 1.0
"""How long a request waits that lacked something."""

RISE_S, RISE_MOST_S = 1.0, 60.0
"""The time until one more request may be in flight. It doubles when a request has lacked something that entered under the bound."""

LEAD_S: Final = 5.0
"""The longest wait for a prefix after its first request was sent: most answers have begun by then."""

WRITTEN_S: Final = 240.0
"""For so long after its first request was sent a prefix counts as written: it lives for five minutes."""

PREFIXES_MAX: Final = 10_000
"""The prefixes that are known as written; the oldest is dropped first."""

HANDFUL: Final = 10
"""How many answers show that an address or a model is wrong, if all of the first ones do, or so many in a row later."""

HOLD_S: Final = 1.0
"""How long the other requests wait for the first answers, at most."""

PAGE_S: Final = 5.0
"""How long an address that has served may answer with pages, for a server that is exchanged, while the requests are sent again."""


class Room:
    """Bounds the requests in flight: not at all, until one of them has lacked something.

    Args:
        say: Takes a line for the user.

    Attributes:
        most: How many there may be.
        lack: What was lacking last; ``None`` for nothing yet.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.most: float = math.inf
        self.lack: Lack | None = None
        self._say, self._said = say, False
        self._inside = self._entered = 0
        self._newest = self._newest_attempt = -1  # the last entry, and the last attempt, before the bound was lowered
        self._fit = 0  # how many of the attempts in flight had what they need
        self._rise_s, self._risen_s = RISE_S, 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> int:
        """Wait for room; return the number of the entry."""
        while self._inside >= self.most:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._wake()
                raise
        self._inside += 1
        self._entered += 1
        return self._entered

    def leave(self) -> None:
        """Make room for another one, and sometimes for one more."""
        self._inside -= 1
        if self._waiting:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._risen_s >= self._rise_s:
                self.most, self._risen_s = self.most + 1, now_s
                self._wake()
            if self._inside < self.most:
                self._wake()

    def lower(self, lack: Lack, entry: int, attempt: int, last: int, others: int) -> None:
        """Lower the bound to a little less than what is in flight.

        Args:
            lack: What an attempt lacked.
            entry: The number of its entry. One that had entered before the bound was lowered does not show that it is too high.
            attempt: The number of the attempt. Those in flight when another one lacked something may lack the same.
            last: The number of the last attempt of all.
            others: The other attempts in flight.
        """
        if attempt > self._newest_attempt:
            self._newest_attempt, self._fit = last, others
        else:
            self._fit -= 1
        if entry > self._newest:
            self._newest = self._entered
            self._rise_s = RISE_S if self.lack is None else min(2 * self._rise_s, RISE_MOST_S)
        self.most = min(self.most, max(1, self._fit - min(SPARE, self._fit // 4)))
        self.lack, self._risen_s = lack, asyncio.get_running_loop().time()

    async def pause(self) -> None:
        """Wait after a lack; the first time, say what was lacking."""
        await asyncio.sleep(PAUSE_S)
        if self.lack is not None and not self._said:
            self._said = True
            self._say(f"{self.words}{self.lack.remedy}")

    @property
    def words(self) -> str:
        """What was lacking, and the bound; empty for none."""
        return f"{self.lack}: {counted(self.most, 'request')} in flight at most" if self.lack is not None else ""

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class Leads:
    """The first requests of prefixes that the provider has not cached yet: the others with such a prefix wait until it is written.

    A prefix is readable when the answer that writes it begins. Requests that are sent before pay for it each, in money and in quota. A
    run has no use for a short latency, so it waits.

    Args:
        clock: The clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: dict[int, _First] = {}  # by prefix
        self._written: OrderedDict[int, int] = OrderedDict()  # by prefix: when its first request was sent

    @asynccontextmanager
    async def behind(self, prompt: Prompt | None, sent_ns: Callable[[], int | None]) -> AsyncIterator[None]:
        """Around a request: it waits for the first one of its prefix, if there is one, or is the first one.

        Args:
            prompt: The prompt of the request.
            sent_ns: Returns when its last attempt was sent; ``None`` while it waits for its permit.
        """
        now_ns = self._clock.now_ns()
        prefix = prompt.unwritten(now_ns) if prompt is not None else None
        if prefix is None or now_ns < self._written.get(prefix, -NS * 10**9) + WRITTEN_S * NS:
            yield
            return
        first = self._first.get(prefix)
        if first is not None:
            await self._written_by(first)
            yield
            return
        first = self._first[prefix] = _First(now_ns, sent_ns)
        try:
            yield
            self._written.pop(prefix, None)
            self._written[prefix] = first.since_ns(now_ns)
            if len(self._written) > PREFIXES_MAX:
                self._written.popitem(last=False)
        finally:
            del self._first[prefix]
            first.over.set()

    async def _written_by(self, first: _First) -> None:
        """Wait until the first request is over, at most ``LEAD_S`` after it was sent: in the queue it writes nothing."""
        while not first.over.is_set():
            now_ns = self._clock.now_ns()
            left_s = (first.since_ns(now_ns) - now_ns) / NS + LEAD_S
            if left_s <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await first.over.wait()


class _First:
    """The first request of a prefix, which came ``at_ns``; ``sent_ns`` as for :meth:`Leads.behind`."""

    def __init__(self, at_ns: int, sent_ns: Callable[[], int | None]) -> None:
        self._at_ns, self._sent_ns, self.over = at_ns, sent_ns, asyncio.Event()

    def since_ns(self, now_ns: int) -> int:
        """Since when its answer is awaited; ``now_ns`` while it waits for its permit."""
        sent_ns = self._sent_ns()
        return now_ns if sent_ns is None else max(sent_ns, self._at_ns)


class RunRoute:
    """The requests of one path and model at an address, or at the addresses of a group, until its answers show that it is wrong.

    Before one of them shows that the address serves them, at most ``HANDFUL`` are sent within ``HOLD_S``: the answers of a
    wrong address come fast. A longer hold would delay every run whose answers take a minute.

    Args:
        root: The server's root.
        path: The path below it.
        origins: Scheme, host and port of the address, or of each in a group.

    Attributes:
        target: Where the requests go.
        open: Set when all requests may be sent, or none.
        served: Whether an answer has shown it.
        wrong: How many answers in a row were not from the API that was asked for, of each address.
        why: Why no further request is sent; empty while they are.
    """

    def __init__(self, root: str, path: str, origins: Iterable[str] = ()) -> None:
        self.target = RunTarget.of(root, path)
        self.open = asyncio.Event()
        self.served = False
        self.wrong = dict.fromkeys(origins or [self.target.origin], 0)
        self.why = ""
        self._sent = 0
        self._wrong_s = 0.0  # when the first of the wrong ones came
        self._asking: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()

    async def enter(self) -> bool:
        """Wait for the answers of others, if need be; return whether the request may be sent."""
        if not self.open.is_set():
            self._sent += 1
            if self._sent == 1:
                asyncio.get_running_loop().call_later(HOLD_S, self.open.set)
            if self._sent > HANDFUL:
                await self.open.wait()
        return not self.why

    async def again(self) -> bool:
        """Whether a request whose answer was unreadable is sent again, once others have shown what they can."""
        await self.open.wait()
        return not self.why

    def good(self, origin: str) -> None:
        """Count an answer of the API that was asked for."""
        if self.wrong[origin] or not self.served:
            self.wrong[origin], self.served = 0, True
            self.open.set()

    def bad(self, origins: Iterable[str], *, again: bool) -> bool:
        """Count a wrong answer of each of ``origins``; return whether a handful in a row of each address is wrong.

        Args:
            origins: The addresses.
            again: Whether its request is sent again: a page that is gone after ``PAGE_S`` costs nothing then.
        """
        now_s = asyncio.get_running_loop().time()
        if not any(self.wrong.values()):
            self._wrong_s = now_s
        for one in origins:
            self.wrong[one] += 1
        lasts = now_s - self._wrong_s >= PAGE_S or not (again and self.served)
        return lasts and not self.why and min(self.wrong.values()) >= HANDFUL

    def end(self, why: str, in_flight: Container[asyncio.Task[Any]]) -> None:
        """Send nothing more. Requests in flight may finish; those that wait are not sent."""
        self.why = self.why or why
        self.open.set()
        for task in self._asking - self._ended:
            if task not in in_flight and task is not asyncio.current_task():
                self._ended.add(task)
                task.cancel()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Around the exchange of a request.

        Raises:
            EndedError: It was not sent, because the route has ended meanwhile.
        """
        task = asyncio.current_task()
        assert task is not None
        self._asking.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._ended or task.uncancel():  # else the run stops, too
                raise
            raise EndedError from None
        finally:
            self._asking.discard(task)
            self._ended.discard(task)


class EndedError(Exception):
    """A request was not sent, because others like it have shown that it cannot be answered."""
