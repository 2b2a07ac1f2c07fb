"""Processes that share the ledger of a pool, at instants that a test chooses."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from core_worlds import T0
from hypothesis import strategies as st

from paceline.core.changes import Change
from paceline.core.meters import Bucket
from paceline.core.queue import LaneSpec, Waiter
from paceline.core.quota import NS, Quota, parse_quotas
from paceline.core.results import Cost, Reading, Reservation, Source, SourceKind
from paceline.shared.exchange import answer, ask
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import Message, News, Refused, Settled, Standing, StoreReply
from shared_pools import message_of, shared_pool


def reloaded(ledger: SharedLedger) -> SharedLedger:
    """The ledger after a dump and a load."""
    return SharedLedger.load(json.loads(json.dumps(ledger.dump())))


class Shared:
    """The shared ledger of a pool, and its processes."""

    def __init__(self, text: str, *, headroom_s: float = 0.0, gentle: bool = False) -> None:
        self.quotas = parse_quotas(text)
        self.headroom_s, self.gentle = headroom_s, gentle
        self.ledger = SharedLedger()
        self.now_ns = T0
        self.numbers: Counter[str] = Counter()

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS)

    def tell(self, who: str, *news: News, place_s: float = 0.0, slack_s: float = 0.0, **options: Any) -> StoreReply:
        """One message of ``who`` now, with the next number; it knows the first state of each quota."""
        self.numbers[who] += 1
        quotas = options.pop("quotas", self.quotas)
        versions = options.pop("versions", [0] * len(quotas))
        options = {"number": self.numbers[who], "headroom_s": self.headroom_s, "gentle": self.gentle} | options
        times = {"place_ns": round(place_s * NS), "slack_ns": round(slack_s * NS)}
        message = message_of(who, quotas=quotas, versions=versions, news=list(news), **times, **options)
        return self.ledger.apply(self.now_ns, message)

    def ask(self, who: str, *want: float, place_s: float = 0.0, **options: Any) -> StoreReply:
        """One request now: granted if ``wait_s`` is 0."""
        return self.tell(who, wants=[list(want)], place_s=place_s, **options)

    def take(self, who: str, *want: float, **options: Any) -> list[Any]:
        """One request that must be granted now: its marks."""
        reply = self.ask(who, *want, **options)
        assert reply.wait_ns == 0, reply
        return reply.grants[0]

    def standing(self, index: int = 0) -> Standing:
        """The state of a quota, with all learned values."""
        return self.tell("observer", versions=[-1] * len(self.quotas)).standings[index]


class Member:
    """A pool of one process, and the shared ledger of its store, which others change, too."""

    def __init__(self, quotas: str, *, gentle: bool = True, source: SourceKind = SourceKind.GIVEN) -> None:
        self.now_ns, self.ledger, self.quotas = T0, SharedLedger(), tuple(parse_quotas(quotas))
        sources = [Source(source)] * len(self.quotas)
        self.pool = shared_pool("p", self.quotas, T0, who="a", learns=gentle, lease_s=0.0, sources=sources)
        self.others_number = 0

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS)

    def exchange(self) -> list[Waiter]:
        message = ask(self.pool, self.now_ns, at_once=True)
        if message is None:
            return []
        return answer(self.pool, self.now_ns, self.ledger.apply(self.now_ns, message))

    def take(self, tokens: float, **others: float) -> Reservation:
        waiter = Waiter({"tokens": tokens, **others}, LaneSpec("default"))
        self.pool.submit(self.now_ns, waiter)
        for _ in range(2_000):
            self.exchange()
            if waiter.outcome is not None:
                break
            self.wait(0.05)
        assert isinstance(waiter.outcome, Reservation)
        return waiter.outcome

    def answer(self, granted: Reservation, *said: Reading, actual: Cost | None = None) -> None:
        self.pool.settle(self.now_ns, granted, actual)
        self.pool.observe(self.now_ns, said, granted)
        self.exchange()
        self.exchange_soon()

    def exchange_soon(self) -> None:
        self.wait(0.02)
        self.exchange()

    def other_process_says(self, what: str, value: float = 0.0) -> None:
        self.other_process_sends(Change(0, what, value))

    def other_process_sends(self, news: News) -> None:
        for one in ([], [news]):  # its first message has no news
            self.others_number += 1
            version = self.ledger._accounts[0].version if self.ledger._accounts else 0
            message = message_of("b", self.others_number, self.quotas, versions=[version], news=one, gentle=True)
            self.ledger.apply(self.now_ns, message)

    @property
    def meter(self) -> Bucket:
        return self.pool.ledger.entries[0].meter


def wait_s(reply: StoreReply) -> float:
    return reply.wait_ns / NS


@dataclass
class Command:
    """The next step of one process, after a pause of all."""

    gap_ns: int
    who: str
    shares: list[int]  # what it wants: a request for each, in hundredths of the most that fits
    end: str  # of its open attempts
    part: int  # of what they were charged, in hundredths: their true cost
    place_ns: int
    lost: bool  # the answer: the message is sent again


commands = st.builds(
    Command,
    st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 3 * NS), st.integers(0, 90 * NS), st.integers(0, 10**14)),
    st.sampled_from("abc"),
    st.lists(st.integers(1, 100), max_size=3),
    st.sampled_from(["settle", "settle", "cancel", "refuse", "lesson", "later", "later"]),
    st.integers(0, 100),
    st.sampled_from([0, NS, 30 * NS]),
    st.booleans(),
)


@dataclass
class Attempt:
    """One that was granted; ``cost`` becomes the true one when that is known."""

    at_ns: int
    amounts: list[float]
    marks: list[Any]
    cost: list[float]
    open: bool = True


@dataclass
class Player:
    """A process of a random history; its messages follow from the replies."""

    who: str
    quotas: tuple[Quota, ...]
    options: dict[str, Any]
    lessons: bool = True
    number: int = 0
    versions: list[int] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    wanted: list[list[float]] = field(default_factory=list)

    def says(self, command: Command) -> Message:
        self.number += 1
        self.versions = self.versions or [-1] * len(self.quotas)
        mine = [attempt for attempt in self.attempts if attempt.open]
        news: list[News] = []
        for attempt in mine if command.end != "later" else []:
            news.extend(self._end(attempt, command))
        held = [float(sum(a.amounts[i] for a in mine if a.open)) for i in range(len(self.quotas))]
        if command.shares:
            self.wanted = [[max(int(q.burst * s / 100), 1.0) for q in self.quotas] for s in command.shares]
        message = {"news": news, "held": held, "wants": self.wanted, "place_ns": command.place_ns}
        return message_of(self.who, self.number, self.quotas, self.versions, **message, **self.options)

    def _end(self, attempt: Attempt, command: Command) -> list[News]:
        attempt.open = False
        if command.end == "refuse":
            return [Refused(attempt.amounts, command.part * NS // 50 if self.lessons else 0)]
        true = [0.0 if command.end == "cancel" else float(a * command.part // 100) for a in attempt.amounts]
        attempt.cost = true
        news: list[News] = [Settled(attempt.amounts, attempt.marks, list(true), command.end != "cancel", probe=True)]
        if command.end == "lesson" and self.lessons:
            news += [Change(0, what, value) for what, value in LESSONS[command.part % len(LESSONS)]]
        return news

    def heard(self, now_ns: int, reply: StoreReply, *, lost: bool = False) -> None:
        """``lost``: the reply is lost, and its grants are never sent."""
        if not lost:
            for amounts, marks in zip(self.wanted, reply.grants, strict=False):
                self.attempts.append(Attempt(now_ns, amounts, marks, list(amounts)))
            del self.wanted[: len(reply.grants)]
            for i, standing in enumerate(reply.standings[: len(self.quotas)]):
                if standing.learned is not None:
                    self.versions[i] = standing.learned.version


LESSONS: list[list[tuple[Any, Any]]] = [
    [("shift", 2.5 * NS)],
    [("shift", -1.5 * NS), ("cap_burst", 3.0)],
    [("set_ceiling", 0.5), ("epoch", 0.0)],
    [("set_ceiling", 1.0), ("cap_burst", float("inf"))],
    [("adopt", 41.0)],
    [("seen", 2.0)],
    [("spread", 0.0)],
]
