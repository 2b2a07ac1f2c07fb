"""Random commands for a shared ledger, and the Lua script on a server."""

import random
from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from redis_servers import RedisServer

from paceline.core.changes import Change
from paceline.core.meters import LOW_POINTS_MAX, window_starts
from paceline.core.quota import MONTH, MONTH_S, NS, Quota, Rule
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import NOTES_MAX, Charged, Left, Message, Noted, Refused, Settled, StoreReply
from paceline.shared.peers import FRONT
from paceline.stores.redis import RedisStore
from paceline.stores.redis_presence import Presence
from paceline.stores.redis_wire import decode, encode, quota_lines
from shared_pools import message_of
from waits import until

ZONES = ("America/Los_Angeles", "Europe/Berlin", "Asia/Kolkata", "Africa/Cairo")
PERIODS_S = (1.0, 10.0, 60.0, 0.3, 3_600.0, 86_400.0, 86_400.0)
EPOCH_US = 1_767_225_600_000_000  # 2026-01-01
GRID_US = 2**41  # as in meters.lua
PARTS = (*[0.0] * 4, *[0.001] * 8, *[0.01] * 8, *[0.05] * 8, 0.2, 0.2, 0.6, 1.0, 1.2)  # of a burst, that costs are
DAY_US = 86_400_000_000
JUMPS_US = (  # how far time may go at once, and how often
    (0, 30), (1_000, 30), (50_000, 30), (2_000_000, 40), (20_000_000, 6), (90_000_000, 3), (4_000_000_000, 2),
    (DAY_US, 2), (-1_000, 2), (-5_000_000, 1), (-3_600_000_000, 1), (40 * DAY_US, 0.3),
)  # fmt: skip


class LuaLedger:
    """The script on a server, at the time that is told."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._store = RedisStore(server.url, timeout_s=30.0)
        self._subscriptions: dict[str, Presence] = {}

    def __call__(
        self, now_us: int, message: Message, present: bool = False, subscribed: AbstractSet[str] = frozenset()
    ) -> StoreReply:
        for who in self._subscriptions.keys() - subscribed:
            self._subscriptions.pop(who).close()
            until(lambda who=who: not self._server.ask("PUBSUB", "NUMSUB", f"paceline:{who}")[1])
        for who in subscribed - self._subscriptions.keys():
            self._subscriptions[who] = Presence(lambda: self._store._address.connection(30.0))
            self._subscriptions[who].join(who)
        words = encode(message, present=present), quota_lines(message.known.quotas), str(now_us)
        return decode(self._store._call("pool", *words), message)

    def flush(self) -> None:
        """Forget the ledger."""
        self._server.ask("FLUSHDB")

    def close(self) -> None:
        """Close all connections."""
        for one in (*self._subscriptions.values(), self._store):
            one.close()


@dataclass
class Grant:
    """What was granted once, with the marks of both ledgers."""

    quotas: tuple[Quota, ...]
    amounts: list[float]
    marks: tuple[list[Any], list[Any]]
    probe: bool
    at_us: int


@dataclass
class Process:
    """One that shares the pool."""

    who: str
    quotas: tuple[Quota, ...]
    number: int = 0
    share: float = 0.0
    noted: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    grants: list[Grant] = field(default_factory=list)
    last: tuple[Message, Message] | None = None


class World:
    """A pool, its processes and their commands; what each command is, its seed says."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.now_us = EPOCH_US + rng.randrange(700 * DAY_US)
        if rng.random() < 0.2:  # near where epochs change
            self.now_us = (EPOCH_US // GRID_US + rng.randrange(1, 20)) * GRID_US - rng.randrange(60_000_000)
        units = rng.sample(["requests", "tokens", "input_tokens", "output_tokens", "usd", "images"], rng.randint(1, 4))
        self.quotas = [self._quota(unit, self._amount(), rng.choice(PERIODS_S)) for unit in units]
        self.busy = rng.random() < 0.2  # many small requests in a short time
        if rng.random() < 0.5 and not self.busy:
            names = rng.choice([["concurrency"], ["concurrency", "streams"]])
            self.quotas += [Quota(name, float(rng.randint(1, 6)), 0.0, rule=Rule.SLOTS) for name in names]
        self.gentle = rng.random() < 0.4
        self.headroom_s = rng.choice([0.0, 0.25, 1.0, 2.5])
        self.leases = rng.random() < 0.3
        self.crowd = rng.random() < 0.15  # more waiting processes than are kept in front
        self.processes = [self._process(f"p{i}") for i in range(40 if self.crowd else rng.randint(1, 5))]
        self.ledger = SharedLedger()
        self.peers = 0
        self.subscribed = {process.who for process in self.processes}
        self.watched = set[str]()
        self.seen = Counter[str]()

    def _amount(self) -> float:
        rng = self.rng
        return rng.choice([float(rng.randint(1, 50)), float(rng.randint(100, 100_000)), rng.uniform(0.5, 5_000.0)])

    def _quota(self, unit: str, amount: float, period_s: float) -> Quota:
        rng = self.rng
        rule = rng.choice([Rule.BUCKET, Rule.BUCKET, Rule.WINDOW, Rule.SLIDING])
        anchor = None
        if rule is Rule.WINDOW:
            anchor = rng.choice([None, "utc", "utc", *((*ZONES, MONTH, MONTH) if period_s == 86_400 else ())])
            period_s = MONTH_S if anchor == MONTH else period_s
        burst = amount * rng.choice([1.0, 1.0, 0.1, 0.3, 1.7]) if rule is Rule.BUCKET else amount
        return Quota(unit, amount, period_s, burst, rule, anchor)

    def _process(self, who: str) -> Process:
        quotas = self.rng.sample(self.quotas, self.rng.randint(1, len(self.quotas)))
        if self.rng.random() < 0.7:
            quotas = self.quotas
        return Process(who, tuple(quotas))

    def step(self, other: Any) -> None:
        """One command for both ledgers; AssertionError where they answer differently."""
        rng = self.rng
        far, _ = rng.choices(JUMPS_US, [often for _, often in JUMPS_US])[0]
        if self.busy and rng.random() < 0.99:
            far = min(abs(far), 1_000)
        if self.crowd and rng.random() < 0.97:
            far = min(abs(far), 100_000)
        before_us = self.now_us
        self.now_us += rng.randint(0, far) if far >= 0 else -rng.randint(0, -far)
        self._count("set back", far < 0)
        self._count("epoch moved", self.now_us // GRID_US > before_us // GRID_US)
        self._count("vanished", self.vanished())
        self._count("behind", len(self.ledger.dump()["peers"]["places"]) > FRONT)
        process = rng.choice(self.processes)
        pair, present = self._messages(process), rng.random() < 0.8
        if rng.random() < 0.2:
            self.subscribed ^= {rng.choice(self.processes).who}
        ours = self.ledger.apply(self.now_us * 1_000, pair[0], self._has_ended)
        theirs = other(self.now_us, pair[1], present, self.subscribed)
        self.watched.discard(process.who)
        if present and process.who in self.subscribed:
            self.watched.add(process.who)
        marks = ours.grants, theirs.grants
        assert [len(marks) for marks in ours.grants] == [len(marks) for marks in theirs.grants], (pair, ours, theirs)
        ours.grants = theirs.grants = []
        assert ours == theirs, f"{pair[0]}\nPython {ours}\nLua    {theirs}"
        self._take(process, pair[0], marks, ours)

    def _has_ended(self, who: str, was_there: bool) -> bool:
        ended = was_there and who in self.watched and who not in self.subscribed
        self._count("ended", ended)
        return ended

    def _take(self, process: Process, message: Message, marks: tuple[list[Any], list[Any]], reply: StoreReply) -> None:
        for n, (ours, theirs) in enumerate(zip(*marks, strict=True)):
            grant = Grant(message.known.quotas, message.wants[n], (ours, theirs), reply.probe and n == 0, self.now_us)
            process.grants.append(grant)
            self._count("granted")
        del process.grants[:-20]
        self._count("waits", reply.wait_ns > 0)
        self._count("probe", reply.probe)
        self._count("awaited", reply.pause_ns > max(self.ledger.dump()["not_before"] - self.now_us * 1_000, 0))
        self._count("gone", reply.peers < self.peers)
        self.peers, process.share = reply.peers, reply.share
        self._count("notes", len(reply.notes) > 1)
        if self.rng.random() < 0.7:
            process.noted = reply.noted
        self._count("paused", reply.pause_ns > 0)
        self._count("opening", any(s.opened < float("inf") for s in reply.standings))
        quotas = [
            *message.known.quotas,
            *(s.learned.quota for s in reply.standings[len(message.known.quotas) :] if s.learned),
        ]
        for quota, standing in zip(quotas, reply.standings, strict=True):
            assert standing.lack_ns < 2**51 or quota.rule is Rule.WINDOW, (
                f"the world is too wild for doubles: {standing} of {quota}"
            )
            if standing.learned is not None and self.rng.random() < 0.9:
                process.versions[f"{quota.unit}/{quota.period_s}"] = standing.learned.version
                self._count("spread", standing.learned.spread)
        if len(quotas) > len(process.quotas) and self.rng.random() < 0.2:
            process.quotas = tuple(quotas)

    def _count(self, what: str, yes: bool = True) -> None:
        self.seen[what] += yes

    def vanished(self) -> bool:
        return bool(self.ledger.dump()["peers"]["sums"][3])

    def end(self) -> None:
        """Note what it came to."""
        for account in self.ledger.dump()["accounts"]:
            self._count("low points merged", len(account["meter"].get("low_marks", ())) == LOW_POINTS_MAX)
            self._count("slices", len(account["meter"].get("ends", ())) > 1)
            self._count("time zone", account["quota"][-1] in ZONES)
            self._count("month", account["quota"][-1] == MONTH)

    # Messages.

    def _messages(self, process: Process) -> tuple[Message, Message]:
        rng = self.rng
        if process.last and process.last[0].known.quotas == process.quotas and rng.random() < 0.05:
            self._count("told again")
            known = replace(process.last[0].known, versions=self._versions(process))
            again = {"wants": self._wants(process), "known": known}
            return replace(process.last[0], **again), replace(process.last[1], **again)
        fresh = process.number == 0 or rng.random() < 0.02
        if fresh and process.number and rng.random() < 0.7:
            self._reconfigure(process)
        process.number += rng.choice([1, 1, 1, 7])
        news = [self._news(process) for _ in range(rng.choice([0, 0, 1, 1, 2, 5]))]
        clock_ns = (self.now_us + rng.randint(-20, 20) * 3_600_000_000) * 1_000  # the process's own clock
        message = message_of(
            process.who,
            process.number,
            process.quotas,
            self._versions(process),
            fresh=fresh,
            leaving=rng.random() < 0.05,
            alone=rng.random() < 0.1,
            closed=rng.random() < 0.1,
            share=rng.choice([0.0, process.share, process.share, rng.random()]),
            headroom_s=self.headroom_s,
            gentle=self.gentle,
            news=[ours for ours, _ in news],
            held=[float(rng.randint(0, 2)) if q.rule is Rule.SLOTS else 0.0 for q in process.quotas],
            wants=self._wants(process),
            place_ns=rng.choice([0, NS, 5 * NS]),
            slack_ns=rng.randrange(NS // 2) if self.leases else 0,
            recalled=[self._left(q) for q in process.quotas] if rng.random() < 0.3 else [],
            windows=[window_starts(q.anchor, clock_ns) if q.rule is Rule.WINDOW else None for q in process.quotas],
            noted=process.noted,
        )
        process.last = message, replace(message, news=[theirs for _, theirs in news])
        return process.last

    def _versions(self, process: Process) -> list[int]:
        return [process.versions.get(f"{q.unit}/{q.period_s}", -1) for q in process.quotas]

    def _reconfigure(self, process: Process) -> None:
        self._count("reconfigured")
        quotas = list(process.quotas)
        i = self.rng.randrange(len(quotas))
        old = quotas[i]
        if old.rule is Rule.SLOTS:
            quotas[i] = old.with_amount(float(self.rng.randint(1, 9)))
        else:
            amount = old.amount * self.rng.uniform(0.5, 2.0)
            quotas[i] = self.rng.choice([old.with_amount(amount), self._quota(old.unit, amount, old.period_s)])
        process.quotas = tuple(quotas)

    def _cost(self, quota: Quota) -> float:
        rng = self.rng
        if self.busy:
            return quota.burst * rng.uniform(0.0005, 0.001)
        if quota.rule is Rule.SLOTS:
            return 1.0
        part = rng.choice(PARTS)
        amount = quota.burst * part * rng.uniform(0.5, 1.0)
        return rng.choice([amount, float(round(amount)), float(round(amount))])

    def _left(self, quota: Quota) -> Left:
        """What is used of a quota, in all or by eighths of its last period."""
        used = self._cost(quota) * 0.5
        if quota.rule is Rule.SLOTS or self.rng.random() < 0.5:
            return [used]
        return [used * self.rng.choice([0.0, 0.1, 0.3, 1.0]) for _ in range(8)]

    def _wants(self, process: Process) -> list[list[float]]:
        return [[self._cost(q) for q in process.quotas] for _ in range(self.rng.choice([0, 1, 1, 2, 4]))]

    def _news(self, process: Process) -> tuple[Any, Any]:
        rng = self.rng
        often = {"settled": 12, "refused": 0 if self.busy else 0.3, "charged": 0.3, "learned": 1, "noted": 0.5}
        kind = rng.choices(list(often), list(often.values()))[0]
        if kind == "settled":
            return self._settled(process)
        self._count(kind)
        if kind == "refused":
            both = Refused(
                [self._cost(q) for q in process.quotas],
                rng.choice([0, rng.randrange(5 * NS)]),
                rng.choice([2, 60]) * NS,
            )
        elif kind == "noted":
            both = Noted(f"w{rng.randrange(2 * NOTES_MAX if self.crowd else 3)}", f"{rng.random()!r} 5h")
        elif kind == "charged":
            left = [self._left(q) for q in process.quotas] if rng.random() < 0.7 else None
            both = Charged([self._cost(q) * 0.3 for q in process.quotas], left)
        else:
            both = self._learned(process)
        return both, both

    def _settled(self, process: Process) -> tuple[Any, Any]:
        rng = self.rng
        if not process.grants:
            return Charged([]), Charged([])
        grant = process.grants.pop(rng.randrange(len(process.grants)))
        ancient = self.now_us > grant.at_us + 20 * DAY_US  # marks are not told apart for ever
        if ancient or (grant.quotas != process.quotas and rng.random() < 0.9):  # else it is taken for other quotas'
            return Charged([]), Charged([])
        self._count("settled")
        actual: list[float | None] = [
            rng.choice([None, a, 0.0, a * rng.random(), float(round(a * rng.random())), a * rng.uniform(1.0, 1.3)])
            if a or q.rule is Rule.SLOTS
            else self._cost(q) * 0.1  # of what was not charged
            for q, a in zip(grant.quotas, grant.amounts, strict=True)
        ]
        answered, probe = rng.random() < 0.9, grant.probe
        ours, theirs = (Settled(grant.amounts, marks, actual, answered, probe) for marks in grant.marks)
        return ours, theirs

    def _learned(self, process: Process) -> Change:
        rng = self.rng
        index = rng.randrange(len(process.quotas))
        quota = process.quotas[index]
        values = {
            "shift": rng.choice([1, -1]) * rng.choice([rng.random() * 0.2 * quota.period_s * NS, rng.randrange(9) / 2]),
            "cap_burst": quota.burst * rng.uniform(0.0, 1.3),
            "set_ceiling": rng.uniform(0.3, 1.2),
            "adopt": quota.amount * rng.choice([rng.uniform(0.4, 2.0), 1.0]),
            "seen": quota.amount * rng.uniform(0.0, 1.0),
            "spread": 0.0,
            "epoch": 0.0,
        }
        what = rng.choice(list(values))
        self._count(what)
        return Change(index, what, values[what])
