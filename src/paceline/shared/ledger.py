"""The ledger of a pool that many processes share, behind one operation: :meth:`SharedLedger.apply`.

The stores in Python hold such an object; the Redis script is the same arithmetic in Lua, and a differential test compares
the two.

Order between processes
    Inside a process its queue decides. The shared ledger keeps one place for each waiting process: its next request. A
    request is granted only when those in the places before it would fit as well, so the small requests of one process
    do not overtake a large request of another. A process that does not ask again in time loses its place.

Ended processes
    A process that sends no message for ``LEASE_US`` is no longer counted, and its slots are free. Each message reports
    what its process holds, so a lost reply needs no repair. In a new ledger, if a process remembers slots in use, nothing
    is granted before those that hold them have reported, for ``REJOIN_NS`` at most.

Earlier states
    A server that crashes may come back empty or with a snapshot, and a replica that takes over may lack the last messages. Each
    process whose answered messages the ledger lacks restores the use that it remembers.

Shares
    Each reply tells the process its share of the limits while the store is lost. A share rises only when others have
    fallen: a process counts with the larger one of what it was told and what it last reported, so that the shares of all
    processes never add up to more than 1, whichever replies arrive. An eighth of what is left stays for the next process
    to join. The share of a process without requests wanes, in its own arithmetic as in the ledger's.

    A process whose requests wait, or that has a lease, announces when it will report again. One that does not may have
    lost the store while others reach it. For ``VANISHED_US`` the ledger charges what this process may spend with its share
    (of a window, it keeps the share unused), unless the store knows that it has ended; so it does for a process that has
    just found the store again. A process that spends nothing while the store is lost has no share, and nothing is
    charged when it vanishes. One that comes back and was never alone gets what was charged for it back. After an outage
    of the store nothing is granted before the processes that vanished in it have reported, for ``REJOIN_NS`` at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from operator import attrgetter
from typing import Any

from paceline.core.changes import Change, What, apply
from paceline.core.meters import Meter, Slots, Spread, Window, new_meter
from paceline.core.pause import PROBE_NS, Pause, PausePhase
from paceline.core.quota import NS, Quota, Rule
from paceline.shared.messages import (
    NOTES_MAX,
    POLL_NS,
    REJOIN_NS,
    Charged,
    Known,
    LearnedState,
    Mark,
    Message,
    Note,
    Noted,
    Refused,
    Settled,
    Standing,
    StoreReply,
)
from paceline.shared.meters import of, replaced
from paceline.shared.peers import BILLION, LEASE_US, LEFT_US, Peer, Peers, Seen

GRACE_NS = 2 * NS
"""How much later than announced a process may ask again and keep its place."""

WAIT_MAX_NS = 86_400 * NS
"""The longest wait in a reply; the wait for a slot, since it is unknown when one becomes free."""


@dataclass(slots=True)
class SharedAccount:
    """A quota: its configuration, its meter, and what :class:`Standing` and :class:`LearnedState` report beside it."""

    meter: Meter
    given: Quota
    version: int = 0
    epoch: int = 0
    shifted_ns: int = 0
    charged: float = 0.0
    spent: float = 0.0
    refused: float = 0.0


class SharedLedger:
    """The shared ledger of one pool. Not thread-safe; time is an argument."""

    def __init__(self) -> None:
        self._accounts: list[SharedAccount] = []
        self._peers = Peers()
        self._pause: Pause[str] = Pause()  # the probe is the process that sends it
        self._notes: dict[str, tuple[str, int]] = {}  # each with its instant, the newest last
        self._noted = 0
        self._born_us: int | None = None  # the first message
        self._last_ns = 0
        self._set_ns = 0  # the sum of all clock steps; the marks of buckets are instants without them

    def apply(self, now_ns: int, message: Message, ended: Callable[[str, bool], bool] = lambda *_: False) -> StoreReply:
        """Apply the news of a process, then grant its requests that fit: in all quotas, or in none.

        Args:
            now_ns: The present, in nanoseconds since the epoch, by a clock that all processes of the place agree on.
            message: The message.
            ended: Whether a process, by its name ``who``, is known to have ended: it is asked about those that are overdue. The second
                argument says whether the store was there when they became so.
        """
        # A clock that is set back would lengthen each wait, so all instants are moved with it.
        if now_ns < self._last_ns:
            self.clock_was_set(now_ns - self._last_ns)
        # Without the steps of the clock: in a step no process was silent.
        last_us, now_us = (self._last_ns - self._set_ns) // 1_000, (now_ns - self._set_ns) // 1_000
        spent_ns = self._peers.advance(last_us, now_us, ended) * 1e-6
        for m in self._meters:
            of(m).spend(m, self._last_ns, now_ns, spent_ns)
        self._last_ns = now_ns
        index = self._configure(now_ns, message.known)
        peer = self._peers.meet(message.who, now_us)
        self._recall(now_ns, now_us, message, index, peer)
        # Both instants are equal if it was alone at its last message.
        if peer.presumed_ns and not message.alone and peer.due_us != peer.seen_us:
            # It was late, and never alone: what it was presumed to spend is taken back.
            for m in self._meters:
                of(m).unspend(m, now_ns - (now_us - peer.due_us) * 1_000, now_ns, peer.presumed_ns)
            peer.presumed_ns = 0.0
        # A message without a reply is sent again under its number. Its news was applied the first time.
        if message.number > peer.number:
            peer.number = message.number
            self._take_news(now_ns, now_us, message, index, peer)
        # It takes its grants from here again, so that nothing is presumed of it any more.
        if not message.alone:
            peer.presumed_ns = 0.0
        self._take_held(peer, message.held, index)
        reply = self._grant(now_ns, now_us, message, index, peer)
        told = self._peers.share()
        reply.share, peer.share = told / BILLION, max(round(message.share * BILLION), told)
        within_ns = message.report_within_ns(reply)
        # One that was alone is overdue at once, because it spends its share until it takes grants from here.
        peer.due_us = now_us if message.alone else now_us + (within_ns + GRACE_NS) // 1_000 if within_ns else 0
        # Many processes report more rarely, by POLL_NS. Two of their reports may be missing.
        peer.lease_us = max(LEASE_US, 3 * reply.peers * POLL_NS // 1_000)
        if message.closed:
            peer.share = peer.due_us = 0
        if message.leaving:  # its number is still remembered
            peer.lease_us, peer.share = -1, 0
        self._peers.part(message.who, peer, now_us)
        reply.standings = self._standings(now_ns, index, message.known.versions)
        reply.noted = self._noted
        if message.known.noted != self._noted:
            reply.notes = [Note(key, text, (now_us - at_us) * 1_000) for key, (text, at_us) in self._notes.items()]
        return reply

    def _recall(self, now_ns: int, now_us: int, message: Message, index: list[int], peer: Peer) -> None:
        """Restore the use that a process remembers, if messages of it that were answered are unknown here."""
        if self._born_us is None:
            self._born_us = now_us
        # No process that the ledger has met is forgotten sooner: one that it does not know was met by the ledger before.
        is_young = now_us - self._born_us < LEFT_US
        if peer.number < message.number - 1 and (peer.number or is_young):
            # The place has gone back to an earlier state, or is new.
            for i, left in zip(index, message.known.recalled, strict=False):
                of(self._accounts[i].meter).remember(self._accounts[i].meter, now_ns, left)

    @property
    def _meters(self) -> list[Meter]:
        return [account.meter for account in self._accounts]

    def processes(self, now_ns: int) -> list[Seen]:
        """The processes that share the ledger, as of ``now_ns``."""
        return self._peers.seen((now_ns - self._set_ns) // 1_000)

    def clock_was_set(self, by_ns: int) -> None:
        """The store's clock was set, by so many nanoseconds, since the last message: all waits stay as long as they were."""
        for m in self._meters:
            of(m).turn(m, by_ns)
        self._pause.until_ns += by_ns
        self._set_ns += by_ns
        self._last_ns += by_ns

    def _configure(self, now_ns: int, process: Known) -> list[int]:
        """Open missing accounts, and let a first message replace the configuration; the account of each quota."""
        index, keys = list[int](), [(account.given.unit, account.given.period_s) for account in self._accounts]
        for n, quota in enumerate(process.quotas):
            # Quotas with an equal unit and period are the same one, even if processes have read other limits of it.
            key = quota.unit, quota.period_s
            if key not in keys:
                keys.append(key)
                meter = new_meter(quota, now_ns, process.headroom_s, gentle=process.gentle)
                of(meter).recall(meter, now_ns, process.recalled[n] if n < len(process.recalled) else [])
                # Only those that hold the recalled slots know how many are still in use.
                self._peers.awaited += isinstance(meter, Slots) and meter.used > 0
                self._accounts.append(SharedAccount(meter, quota))
            index.append(keys.index(key))
            account = self._accounts[index[-1]]
            if process.fresh and account.given != quota:
                account.given = quota
                meter = new_meter(quota, now_ns, process.headroom_s, gentle=process.gentle)
                account.meter = replaced(now_ns, account.meter, meter)
                account.version += 1
                account.epoch += 1
        return index

    def _take_news(self, now_ns: int, now_us: int, message: Message, index: list[int], peer: Peer) -> None:
        # Compared before the loop: each change raises the version, and the second one of a message applies, too.
        fresh = [self._accounts[i].version == known for i, known in zip(index, message.known.versions, strict=True)]
        for news in message.news:
            if isinstance(news, Settled):
                self._settle(now_ns, news, index, message)
            elif isinstance(news, Refused):
                for i, amount in zip(index, news.amounts, strict=False):
                    self._accounts[i].refused += amount
                    self._accounts[i].version += 1
                if news.pause_ns:
                    self._pause.begin(now_ns + news.pause_ns, probe_ns=news.probe_ns)
            elif isinstance(news, Noted):
                self._notes.pop(news.key, None)
                self._notes[news.key] = news.text, now_us
                for oldest in list(self._notes)[:-NOTES_MAX]:
                    del self._notes[oldest]
                # An instant, so that a new ledger doesn't repeat numbers that processes know from a lost one.
                self._noted = max(self._noted + 1, now_us)
            elif isinstance(news, Charged):
                left, counted_ns = news.left or [[amount] for amount in news.amounts], 0.0
                for i, amount, rest in zip(index, news.amounts, left, strict=False):
                    account = self._accounts[i]
                    account.charged += amount
                    account.spent += amount
                    more, ns = of(account.meter).beyond(account.meter, rest, peer.presumed_ns)
                    of(account.meter).absorb(account.meter, now_ns, more)
                    counted_ns = max(counted_ns, ns)
                peer.presumed_ns -= counted_ns
            elif fresh[news.index]:
                self._learn(now_ns, self._accounts[index[news.index]], news)

    def _settle(self, now_ns: int, news: Settled, index: list[int], message: Message) -> None:
        for i, charged, mark, actual in zip(index, news.amounts, news.marks, news.actual, strict=False):
            account = self._accounts[i]
            if actual is not None and actual != charged:
                # A mark of 0 is no instant: nothing was charged.
                set_ns = self._set_ns if mark and account.meter.refills else 0
                account.meter.correct(now_ns, int(mark) + set_ns, charged, actual)
                account.spent += actual - charged
            if message.known.gentle and news.answered:
                account.meter.answered(now_ns, int(mark), charged if actual is None else max(charged, actual))
        if news.probe and news.answered:
            self._pause.answered(now_ns, message.who)
        elif news.probe:
            self._pause.unsent(now_ns, message.who)

    def _learn(self, now_ns: int, account: SharedAccount, change: Change) -> None:
        m = account.meter
        account.version += 1
        account.epoch += change.what == What.EPOCH
        if change.what != What.SPREAD:
            apply(now_ns, m, change)
        elif m.bursts:
            account.meter = replaced(now_ns, m, Spread(m.quota, now_ns, m.headroom_s))
        if change.what == What.SHIFT and m.refills:
            account.shifted_ns += round(change.value)

    def _take_held(self, peer: Peer, held: list[float], index: list[int]) -> None:
        """Replace what this process holds, and add it to the slots of all others."""
        mine, others = dict(zip(index, held, strict=False)), self._peers.held
        peer.held = [0.0] * len(self._accounts)
        for i, m in enumerate(self._meters):
            if isinstance(m, Slots):
                peer.held[i] = mine.get(i, 0.0)
                m.used = (others[i] if i < len(others) else 0.0) + peer.held[i]

    def _charge(self, now_ns: int, i: int, amount: float, peer: Peer) -> Mark:
        """Charge ``amount`` to the account ``i``, for ``peer``."""
        if not amount:
            return 0
        account = self._accounts[i]
        account.charged += amount
        account.spent += amount
        if account.meter.holds:
            peer.held[i] += amount
        return account.meter.charge(now_ns, amount) - (self._set_ns if account.meter.refills else 0)

    def _grant(self, now_ns: int, now_us: int, message: Message, index: list[int], peer: Peer) -> StoreReply:
        # Those that vanished may spend their share of a window at its start, at its end, or all at once: it stays unused.
        gone = self._peers.gone / BILLION
        sums = [m.quota.amount * gone if isinstance(m, Window) else 0.0 for m in self._meters]
        before, others = self._peers.places.ahead(message.who, sums)
        grants: list[list[Mark]] = []
        probe, latest, binds = False, now_ns, -1
        back_ns = now_ns
        if self._peers.awaited:
            # What those that vanished in the outage have spent is known when they report, which they do by then.
            back_ns += max(REJOIN_NS - (now_us - self._peers.away_us) * 1_000, 0)
        for want in message.wants:
            latest, binds = max(self._pause.until_ns, back_ns), -1
            for n, (i, amount) in enumerate(zip(index, want, strict=False)):
                if amount:
                    at_ns = self._accounts[i].meter.earliest(now_ns, amount, before[i], message.slack_ns)
                    if at_ns > latest:
                        latest, binds = at_ns, n
            if latest > now_ns:
                break
            grants.append([self._charge(now_ns, i, amount, peer) for i, amount in zip(index, want, strict=False)])
            # A later request of this process is behind all that wait, or one process would take every turn.
            before = others
            if self._pause.phase is PausePhase.CLOSED:
                self._pause.granted(now_ns, message.who)
                probe = True
        waits_ns = min(latest - now_ns, WAIT_MAX_NS) if len(grants) < len(message.wants) else 0
        pause_ns = max(self._pause.until_ns, back_ns) - now_ns
        # One more, because this process is out of the sums from meet() to part().
        reply = StoreReply(grants, probe, waits_ns, binds, pause_ns, self._peers.live + 1, 0.0, [])
        amounts, until_us = None, 0
        if len(grants) < len(message.wants) and message.place_ns:
            amounts = [0.0] * len(self._accounts)
            for i, amount in zip(index, message.wants[len(grants)], strict=False):
                amounts[i] = amount
            # A place, not a common time to try again: eight processes would come back together, and one with a large
            # request would lose each time.
            until_us = now_us + (message.report_within_ns(reply) + GRACE_NS) // 1_000
        self._peers.places.keep(message.who, amounts, until_us, last=bool(grants))
        return reply

    def _standings(self, now_ns: int, index: list[int], versions: list[int]) -> list[Standing]:
        """The states of the quotas at ``index``, which a process has in these versions, and of all others."""
        standings, rest = list[Standing](), [i for i in range(len(self._accounts)) if i not in index]
        for i, known in zip_longest([*index, *rest], versions, fillvalue=-1):
            account = self._accounts[i]
            m, learned = account.meter, None
            lack_ns, used, opened = of(m).standing(m, now_ns)
            # Only what is new to the process, because most replies would repeat it.
            if account.version != known:
                shifted_ns, taught = account.shifted_ns if m.refills else 0, of(m).taught(m)
                learned = LearnedState(
                    account.version, m.quota, m.is_spread_bucket, *taught, shifted_ns, account.epoch, account.refused
                )
            standings.append(Standing(lack_ns, used, account.charged, account.spent, opened, learned))
        return standings

    def dump(self) -> dict[str, Any]:
        """The whole state, as plain JSON values. It shares lists with the ledger, so the caller encodes it at once."""
        return {
            "accounts": [
                {
                    "quota": _fields(a.meter.quota),
                    "given": _fields(a.given),
                    "spread": isinstance(a.meter, Spread),
                    "headroom_s": a.meter.headroom_s,
                    "meter": of(a.meter).dump(a.meter),
                    **dict(zip(_NUMBERS, _numbers(a), strict=True)),
                }
                for a in self._accounts
            ],
            "peers": self._peers.dump(),
            "not_before": self._pause.until_ns,
            "probe_next": self._pause.phase is PausePhase.CLOSED,
            "probe": self._pause.probe,
            "probe_ns": self._pause.probe_ns,
            "notes": self._notes,
            "noted": self._noted,
            "born": self._born_us,
            "last": self._last_ns,
            "set": self._set_ns,
        }

    @classmethod
    def load(cls, state: dict[str, Any]) -> SharedLedger:
        """The ledger with the state that :meth:`dump` returned.

        Raises:
            LookupError, TypeError, ValueError: ``state`` is invalid.
        """
        ledger = cls()
        ledger._last_ns = now_ns = state["last"]
        for a in state["accounts"]:
            quota = _quota(a["quota"])
            make: Callable[[Quota, int, float], Meter] = Spread if a["spread"] else new_meter
            m = make(quota, now_ns, a["headroom_s"])
            of(m).load(m, a["meter"])
            ledger._accounts.append(SharedAccount(m, _quota(a["given"]), *(a[name] for name in _NUMBERS)))
        ledger._peers = Peers.load(state["peers"])
        ledger._pause = Pause(state["not_before"], closed=state["probe_next"], probe=state["probe"])
        ledger._set_ns = state["set"]
        # What an older version has stored has none of these.
        ledger._pause.probe_ns, ledger._noted = state.get("probe_ns", PROBE_NS), state.get("noted", 0)
        ledger._born_us = state.get("born", 0)
        ledger._notes = {key: (text, at_us) for key, (text, at_us) in state.get("notes", {}).items()}
        return ledger


_fields = attrgetter("unit", "amount", "period_s", "burst", "rule._value_", "anchor")  # faster than rule.value
"""A quota as plain values."""

_NUMBERS = "version", "epoch", "shifted", "charged", "spent", "refused"
_numbers = attrgetter("version", "epoch", "shifted_ns", "charged", "spent", "refused")
"""Of an account."""


def _quota(fields: list[Any]) -> Quota:
    unit, amount, period_s, burst, rule, anchor = fields
    return Quota(unit, amount, period_s, burst, Rule(rule), anchor)
