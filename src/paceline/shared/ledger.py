"""The books of a pool that many processes share: a ledger behind one operation, :meth:`SharedLedger.apply`.

Every store keeps its books by this arithmetic: those in Python hold such an object, the Redis script says the same in
Lua, and a differential test holds the one against the other.

Who goes next
    Inside a process its line says. Between processes the books keep one place for each that waits: its next
    request. Nobody is let go unless those ahead of it could go, too; so a large request is not overtaken for ever by
    the small ones of another process. A process that does not come back in time loses its place.

Who is gone
    A process that has not been heard of for ``LEASE_NS`` is gone: it is no longer counted, and its slots are free.
    With each message it says what it holds, so a lost answer or a forgotten store puts itself right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

from paceline.core.ledger import PROBE_NS
from paceline.core.meters import Bucket, Meter, Slots, Spaced, Window, meter
from paceline.core.quota import NS, Quota, Rule
from paceline.shared.messages import (
    Charged,
    Learned,
    Left,
    Lesson,
    Mark,
    Message,
    Refused,
    Reply,
    Settled,
    Standing,
    quota_fields,
    quota_key,
)
from paceline.shared.meters import absorb, at_once, carry, dump_meter, fill, load_meter, stand, turn

LEASE_NS = 15 * NS
"""How long a process counts after its last message, and keeps its slots."""

FORGET_NS = 3_600 * NS
"""How long the number of its last message is remembered."""

GRACE_NS = 2 * NS
"""How much later than it said a process may come back for its place."""

PEERS_MAX = 1_000
"""Of more processes than this, those that are gone are forgotten at once."""

WAIT_MAX_NS = 86_400 * NS
"""No answer says to wait longer, for slots nobody knows when."""


@dataclass(slots=True)
class Account:
    """A quota in the books: its meter and all that is known about it."""

    key: str
    meter: Meter
    given: Quota | None
    version: int = 0
    epoch: int = 0
    shifted_ns: int = 0
    charged: float = 0.0
    spent: float = 0.0
    refused: float = 0.0


@dataclass(slots=True)
class Peer:
    """A process: when it was last heard of, the number of its last message, what it holds by account."""

    seen_ns: int
    number: int = 0
    held: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Place:
    """A process waits with a request of these amounts, by account; it will be back before ``until_ns``."""

    who: str
    amounts: list[float]
    until_ns: int


class SharedLedger:
    """One pool's books. Not thread-safe; time is an argument."""

    def __init__(self) -> None:
        self._accounts: list[Account] = []
        self._peers: dict[str, Peer] = {}
        self._places: list[Place] = []
        self._not_before_ns = 0
        self._probe_next = False
        self._probe: str | None = None  # whose
        self._last_ns = 0
        self._set_ns = 0  # by how much the clock was set in all: marks are instants of a clock that never was

    def apply(self, now_ns: int, message: Message) -> Reply:
        """Take the news of one process, and grant it what fits: all quotas of a request, or none."""
        if now_ns < self._last_ns:
            self._turn_back(now_ns - self._last_ns)
        self._last_ns = now_ns
        index = self._configure(now_ns, message)  # of the account, for each quota of the message
        peer = self._meet(now_ns, message.who)
        if message.number > peer.number:
            peer.number = message.number
            self._take_news(now_ns, message, index)
        self._hold(now_ns, peer, message.held, index)
        reply = self._grant(now_ns, message, index, peer)
        if message.leaving:  # its number must not be forgotten
            peer.seen_ns = now_ns - LEASE_NS - 1
        rest = [i for i in range(len(self._accounts)) if i not in index]
        known = [*message.versions, *[-1] * len(rest)]
        reply.standings = [self._standing(now_ns, i, known[n]) for n, i in enumerate([*index, *rest])]
        return reply

    def _turn_back(self, by_ns: int) -> None:
        """The store's clock was set back: what was so far from full then is so far from full now."""
        for account in self._accounts:
            if isinstance(account.meter, Bucket):
                turn(account.meter, by_ns)
        for peer in self._peers.values():
            peer.seen_ns += by_ns
        for place in self._places:
            place.until_ns += by_ns
        self._not_before_ns += by_ns
        self._set_ns += by_ns

    def _configure(self, now_ns: int, message: Message) -> list[int]:
        """Open an account for each quota that has none; a newcomer's configuration replaces what was configured."""
        known = {account.key: i for i, account in enumerate(self._accounts)}
        for n, quota in enumerate(message.quotas):
            key = quota_key(quota)
            if key not in known:
                known[key] = len(self._accounts)
                fresh = meter(quota, now_ns, message.headroom_s, gentle=message.gentle)
                _recall(fresh, now_ns, message.recalled[n] if n < len(message.recalled) else 0.0)
                self._accounts.append(Account(key, fresh, quota))
            elif message.fresh and self._accounts[known[key]].given != quota:
                account = self._accounts[known[key]]
                before, account.given = account.meter, quota
                account.meter = meter(quota, now_ns, message.headroom_s, gentle=message.gentle)
                carry(before, account.meter)
                account.version += 1
                account.epoch += 1
        return [known[quota_key(quota)] for quota in message.quotas]

    def _meet(self, now_ns: int, who: str) -> Peer:
        forget_ns = FORGET_NS if len(self._peers) <= PEERS_MAX else LEASE_NS
        for name in [name for name, peer in self._peers.items() if peer.seen_ns + forget_ns < now_ns]:
            del self._peers[name]
        peer = self._peers.get(who)
        if peer is None:
            peer = self._peers[who] = Peer(now_ns)
        peer.seen_ns = now_ns
        return peer

    def _take_news(self, now_ns: int, message: Message, index: list[int]) -> None:
        fresh = [self._accounts[i].version == known for i, known in zip(index, message.versions, strict=True)]
        for news in message.news:
            if isinstance(news, Settled):
                self._settle(now_ns, news, index, message)
            elif isinstance(news, Refused):
                for i, amount in zip(index, news.amounts, strict=False):
                    self._accounts[i].refused += amount
                    self._accounts[i].version += 1
                if news.pause_ns:
                    self._not_before_ns = max(self._not_before_ns, now_ns + news.pause_ns)
                    self._probe_next, self._probe = True, None
            elif isinstance(news, Charged):
                left = news.amounts if news.left is None else news.left
                for i, amount, rest in zip(index, news.amounts, left, strict=False):
                    account = self._accounts[i]
                    account.charged += amount
                    account.spent += amount
                    absorb(account.meter, now_ns, rest)
            elif fresh[news.index]:
                self._learn(now_ns, self._accounts[index[news.index]], news)

    def _settle(self, now_ns: int, news: Settled, index: list[int], message: Message) -> None:
        for i, charged, mark, actual in zip(index, news.amounts, news.marks, news.actual, strict=False):
            account = self._accounts[i]
            if actual is not None and actual != charged:
                set_ns = self._set_ns if isinstance(account.meter, Bucket) else 0
                account.meter.correct(now_ns, int(mark) + set_ns, charged, actual)
                account.spent += actual - charged
            if message.gentle and news.answered:
                account.meter.answered(charged)
        if news.probe and self._probe == message.who:
            self._probe, self._not_before_ns = None, min(self._not_before_ns, now_ns)
            self._probe_next = not news.answered  # it will say nothing: let another go

    def _charge(self, now_ns: int, i: int, amount: float) -> Mark:
        if not amount:
            return 0
        account = self._accounts[i]
        account.charged += amount
        account.spent += amount
        mark = account.meter.charge(now_ns, amount)
        return mark - self._set_ns if isinstance(account.meter, Bucket) else mark

    def _learn(self, now_ns: int, account: Account, news: Learned) -> None:
        m, value = account.meter, news.value
        account.version += 1
        if news.what == "epoch":
            account.epoch += 1
        elif news.what == "adopt":
            m.adopt(now_ns, value)
        elif news.what == "seen":
            if isinstance(m, Window):
                m.seen(now_ns, value)
        elif isinstance(m, Bucket):
            if news.what == "shift":
                m.shift(now_ns, round(value))
                account.shifted_ns += round(value)
            elif news.what == "hold":
                m.hold(value)
            elif news.what == "press":
                m.press(now_ns, value)
            elif news.what == "spread" and not isinstance(m, Spaced):
                account.meter = Spaced(m.quota, now_ns, m.headroom_s)
                carry(m, account.meter)

    def _hold(self, now_ns: int, peer: Peer, held: list[float], index: list[int]) -> None:
        """What this process says it holds is what it holds; those who are gone hold nothing."""
        peer.held = [0.0] * len(self._accounts)
        for i, amount in zip(index, held, strict=False):
            peer.held[i] = amount
        for i, account in enumerate(self._accounts):
            if isinstance(account.meter, Slots):
                # Not sum(): from left to right, as every store adds.
                account.meter.used = reduce(add, [p.held[i] for p in self._live(now_ns) if i < len(p.held)], 0.0)

    def _live(self, now_ns: int) -> list[Peer]:
        return [peer for peer in self._peers.values() if peer.seen_ns + LEASE_NS >= now_ns]

    def _grant(self, now_ns: int, message: Message, index: list[int], peer: Peer) -> Reply:
        places = [place for place in self._places if place.until_ns >= now_ns]
        mine = next((n for n, place in enumerate(places) if place.who == message.who), len(places))
        before = self._sums(places[:mine])
        places = [place for place in places if place.who != message.who]
        others = self._sums(places)
        grants: list[list[Mark]] = []
        probe, latest, binds = False, now_ns, -1
        for want in message.wants:
            latest, binds = self._not_before_ns, -1
            for n, i in enumerate(index):
                if n < len(want) and want[n]:
                    at_ns = self._accounts[i].meter.earliest(now_ns, want[n], before[i], message.slack_ns)
                    if at_ns > latest:
                        latest, binds = at_ns, n
            if latest > now_ns:
                break
            grants.append([self._charge(now_ns, i, amount) for i, amount in zip(index, want, strict=False)])
            for i, amount in zip(index, want, strict=False):
                peer.held[i] += amount
            before = others  # the next is behind all who wait
            if self._probe_next:
                self._probe_next, self._probe, probe = False, message.who, True
                self._not_before_ns = now_ns + PROBE_NS
        if len(grants) < len(message.wants) and message.place_ns:
            amounts = [0.0] * len(self._accounts)
            for i, amount in zip(index, message.wants[len(grants)], strict=False):
                amounts[i] = amount
            place = Place(message.who, amounts, now_ns + message.place_ns + GRACE_NS)
            places.insert(len(places) if grants else mine, place)
        self._places = places
        waits_ns = min(latest - now_ns, WAIT_MAX_NS) if len(grants) < len(message.wants) else 0
        binds = binds if waits_ns else -1
        pause_ns = max(self._not_before_ns - now_ns, 0)
        return Reply(grants, probe, waits_ns, binds, pause_ns, len(self._live(now_ns)), [])

    def _sums(self, places: list[Place]) -> list[float]:
        sums = [0.0] * len(self._accounts)
        for place in places:
            for i, amount in enumerate(place.amounts):
                sums[i] += amount
        return sums

    def _standing(self, now_ns: int, i: int, known: int) -> Standing:
        account = self._accounts[i]
        m = account.meter
        standing = Standing(0, 0.0, account.charged, account.spent, float("inf"))
        if isinstance(m, Bucket):
            standing.room_ns, standing.opened = max(m.full_at_ns - now_ns, 0), m.opened
        if isinstance(m, Window | Slots | Spaced):
            m.level(now_ns)  # what has left its period is used no more
            standing.used = m.used
        if account.version != known:
            lesson = Lesson(account.version, m.quota, epoch=account.epoch, refused=account.refused)
            if isinstance(m, Bucket):
                lesson.capacity, lesson.ceiling, lesson.shifted_ns = m.capacity, m.ceiling, account.shifted_ns
                lesson.spread = isinstance(m, Spaced) and m.quota.rule is Rule.BUCKET
            standing.learned = lesson
        return standing

    def dump(self) -> dict[str, Any]:
        """Everything, as plain values that JSON can write."""
        return {
            "accounts": [
                {
                    "key": a.key,
                    "quota": quota_fields(a.meter.quota),
                    "given": quota_fields(a.given) if a.given else None,
                    "spread": isinstance(a.meter, Spaced),
                    "headroom_s": a.meter.headroom_s,
                    "meter": dump_meter(a.meter),
                    "version": a.version,
                    "epoch": a.epoch,
                    "shifted": a.shifted_ns,
                    "charged": a.charged,
                    "spent": a.spent,
                    "refused": a.refused,
                }
                for a in self._accounts
            ],
            "peers": {who: [p.seen_ns, p.number, p.held] for who, p in self._peers.items()},
            "places": [[p.who, p.amounts, p.until_ns] for p in self._places],
            "not_before": self._not_before_ns,
            "probe_next": self._probe_next,
            "probe": self._probe,
            "last": self._last_ns,
            "set": self._set_ns,
        }

    @classmethod
    def load(cls, state: dict[str, Any]) -> SharedLedger:
        """The books that :meth:`dump` wrote.

        Raises:
            KeyError, TypeError, ValueError: This is not what ``dump`` wrote.
        """
        books = cls()
        books._last_ns = now_ns = state["last"]
        for a in state["accounts"]:
            quota = _quota(a["quota"])
            m: Meter = Spaced(quota, now_ns, a["headroom_s"]) if a["spread"] else meter(quota, now_ns, a["headroom_s"])
            load_meter(m, quota, a["meter"])
            given = _quota(a["given"]) if a["given"] else None
            numbers = (a["version"], a["epoch"], a["shifted"], a["charged"], a["spent"], a["refused"])
            books._accounts.append(Account(a["key"], m, given, *numbers))
        books._peers = {who: Peer(*peer) for who, peer in state["peers"].items()}
        books._places = [Place(*place) for place in state["places"]]
        books._not_before_ns, books._probe_next = state["not_before"], state["probe_next"]
        books._probe, books._set_ns = state["probe"], state["set"]
        return books


def _recall(m: Meter, now_ns: int, value: Left) -> None:
    """Start where a process remembers that forgotten books stood."""
    if isinstance(m, Spaced):
        fill(m, now_ns, value if isinstance(value, list) else [value])
        return
    if isinstance(value, list):  # the process had learned that it is to be spread
        value = at_once(m, value) * (m.ns_per_unit if isinstance(m, Bucket) else 1.0)
    if isinstance(m, Bucket):
        stand(
            m, now_ns + round(value), max(m.opened, value / m.ns_per_unit)
        )  # an opening one goes on evenly from there
    elif isinstance(m, Window):
        m.seen(now_ns, m.quota.amount - value)


def _quota(fields: list[Any]) -> Quota:
    unit, amount, period_s, burst, rule, anchor = fields
    return Quota(unit, amount, period_s, burst, Rule(rule), anchor)
