"""Processes that share a pool of a store, and the model's replies to the same messages."""

from __future__ import annotations

import random
import time
from dataclasses import fields, replace
from typing import Any
from uuid import uuid4

from paceline.core.changes import Change, What
from paceline.core.meters import window_starts
from paceline.core.quota import NS, parse_quotas
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import (
    Charged,
    Known,
    LearnedState,
    Mark,
    Message,
    News,
    Refused,
    Settled,
    Standing,
    StoreReply,
)
from paceline.stores.base import Store


class SharingProcess:
    """A process that shares a pool: it numbers its messages, and keeps the versions of the quotas from the replies."""

    def __init__(self, store: Store, pool: str, text: str, who: str = "a", **options: Any) -> None:
        self.store, self.pool, self.who = store, pool, who
        self.quotas = parse_quotas(text)
        self.versions = [-1] * len(self.quotas)
        self.number = 0
        self.options: dict[str, Any] = {"headroom_s": 0.0} | options

    def send(
        self, *news: News, wants: list[list[float]] | None = None, place_s: float = 0.0, **options: Any
    ) -> StoreReply:
        """Send one message now; return its reply."""
        message = self.message(*news, wants=wants or [], place_ns=round(place_s * NS), **options)
        return self.received(self.store.exchange(self.pool, message))

    def message(self, *news: News, **options: Any) -> Message:
        """The next message; ``options`` are its fields, and the fields of what the process knows."""
        self.number += 1
        given: dict[str, Any] = {"number": self.number, "quotas": self.quotas, "versions": list(self.versions)}
        given["windows"] = [window_starts(quota.anchor, time.time_ns()) for quota in self.quotas]
        given |= self.options | options
        known = {each.name: given.pop(each.name) for each in fields(Known) if each.name in given}
        return Message(self.who, known=Known(**known), news=list(news), **given)

    def received(self, reply: StoreReply) -> StoreReply:
        """Keep the versions of a reply, and return it."""
        for i, standing in enumerate(reply.standings[: len(self.versions)]):
            if standing.learned is not None:
                self.versions[i] = standing.learned.version
        return reply

    def ask(self, *want: float, **options: Any) -> StoreReply:
        """Send one request now."""
        return self.send(wants=[list(want)], **options)

    def take(self, *want: float, **options: Any) -> list[Any]:
        """Send one request that must be granted now; return its marks."""
        reply = self.ask(*want, **options)
        assert len(reply.grants) == 1, reply
        assert reply.wait_ns == 0
        return reply.grants[0]

    def standing(self, index: int = 0) -> Standing:
        """The state of a quota."""
        return self.send().standings[index]

    def learned(self, index: int = 0) -> LearnedState:
        """All learned values of a quota, as a new process receives them."""
        learned = self.send(versions=[-1] * len(self.versions)).standings[index].learned
        assert learned is not None
        return learned


def two(store: Store, second: Store, text: str, **options: Any) -> tuple[SharingProcess, SharingProcess]:
    """Two processes that share a new pool."""
    pool = f"conformance/{uuid4().hex}"
    return SharingProcess(store, pool, text, "a", **options), SharingProcess(second, pool, text, "b", **options)


def period() -> str:
    """A period of about a day; the current one started hours ago and lasts for hours."""
    now_s = time.time()
    return next(f"{p}s" for p in range(90_000, 99_000, 100) if p / 4 < now_s % p < p * 3 / 4)


def sleep(wait_ns: int) -> None:
    """Sleep for the wait of a reply, which must be short."""
    assert 0 < wait_ns < NS // 2, f"the wait is {wait_ns} ns: it must be above 0 and below 0.5 s"
    time.sleep(wait_ns / NS + 0.001)


class History:
    """Random messages of three processes, sent to a store and to the model at almost the same time.

    The quotas have periods of days, so that the difference in time changes no grant.
    """

    def __init__(self, stores: tuple[Store, ...], seed: int) -> None:
        text = f"90 requests/day, 900 tokens/day burst 400, 900 images/{period()} window utc, 6 concurrency"
        text += ", 5k pages/day sliding"
        pool = f"conformance/{uuid4().hex}"
        gentle = seed % 2 == 1
        self._dice, self._ledger = random.Random(seed), SharedLedger()
        self._group = [
            SharingProcess(stores[i % len(stores)], pool, text, who, gentle=gentle) for i, who in enumerate("abc")
        ]
        self._open: dict[str, list[_Attempt]] = {process.who: [] for process in self._group}

    def step(self) -> tuple[StoreReply, StoreReply]:
        """Send one message; return the replies of the store and of the model."""
        dice, process = self._dice, self._dice.choice(self._group)
        mine = self._open[process.who]
        news, model_news = self._ends(mine)
        most, count = dice.choice([30, 300]), dice.randint(0, 3)
        wants = [[1.0, float(dice.randint(1, most)), 1.0, 1.0, float(dice.randint(0, 20))] for _ in range(count)]
        held = [0.0, 0.0, 0.0, float(len(mine)), 0.0]
        times = {"place_ns": dice.choice([0, 3_600 * NS]), "slack_ns": dice.choice([0, 0, 3_600 * NS])}
        message = process.message(*news, wants=wants, held=held, **times)
        reply = process.received(process.store.exchange(process.pool, message))
        model = self._ledger.apply(time.time_ns(), replace(message, news=model_news))
        mine.extend(zip(wants, reply.grants, model.grants, strict=False))
        return reply, model

    def _ends(self, attempts: list[_Attempt]) -> tuple[list[News], list[News]]:
        """End some of the open attempts and learn something: the news for the store, and for the model."""
        dice = self._dice
        news: tuple[list[News], list[News]] = ([], [])
        while attempts and dice.random() < 0.6:
            amounts, *marks = attempts.pop(dice.randrange(len(attempts)))
            answered = dice.random() < 0.5
            actual: list[float | None] = [0.0] * 5
            if answered:
                actual = [None, float(dice.randint(1, 200)), None, None, 10.0]
            others: list[list[News]] = [[Refused(amounts, 0)], [Charged([0.0, 3.0, 1.0, 0.0, 0.0])], [], []]
            more = dice.choice(others)
            for items, its in zip(news, marks, strict=True):
                items += [Settled(amounts, its, actual, answered), *more]
        if dice.random() < 0.1:
            learned = dice.choice(
                [Change(1, What.CAP_BURST, 300.0), Change(1, What.ADOPT, 1_200.0), Change(0, What.SET_CEILING, 0.9)]
            )
            for items in news:
                items.append(learned)
        return news


_Attempt = tuple[list[float], list[Mark], list[Mark]]
"""An attempt: its charges, and its marks from the store and from the model."""


def without_times(reply: StoreReply) -> tuple[Any, ...]:
    """The part of a reply that must be equal for store and model."""
    standings = [(s.used, s.charged, s.spent, s.opened, s.learned) for s in reply.standings]
    return len(reply.grants), reply.probe, reply.binds, reply.peers, standings


def times_ns(reply: StoreReply) -> list[int]:
    """The part of a reply that depends on the time."""
    return [reply.wait_ns, reply.pause_ns, *(standing.lack_ns for standing in reply.standings)]
