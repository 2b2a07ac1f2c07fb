"""The protocol between a process and a store of shared ledgers: one message, one reply.

Messages and replies contain durations, never instants, so the clocks of two machines need not agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from paceline.core.changes import Change
from paceline.core.pause import PROBE_NS
from paceline.core.quota import NS, Quota

Mark = int | str
"""The state of a meter at a charge, in a form of the store's own; a :class:`Settled` returns it."""

Left = list[float]
"""What a quota lacks; of a spread one by eighths of its last period, the latest first."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Attempts that were charged ``amounts`` at ``marks`` have ended, for each of the message's quotas.

    Attributes:
        actual: Their true cost; ``None`` where it is unknown. All zero: the attempts were never sent.
        answered: Whether the provider has answered, so that an opening bucket may widen its burst.
        probe: Whether the probe after a pause was among the attempts.
    """

    amounts: list[float]
    marks: list[Mark]
    actual: list[float | None]
    answered: bool = True
    probe: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """An attempt that was charged ``amounts`` was refused: the charge stays, and the pool pauses for ``pause_ns``.

    ``probe_ns``: how long the others wait then for the answer to the probe.
    """

    amounts: list[float]
    pause_ns: int
    probe_ns: int = PROBE_NS


@dataclass(frozen=True, slots=True)
class Noted:
    """``text`` under the name ``key`` is for all processes of the pool. The store keeps the newest of each name, and does not read it."""

    key: str
    text: str


class Note(NamedTuple):
    """What a process has noted, and how long ago by the store's clock."""

    key: str
    text: str
    age_ns: int


NOTES_MAX = 64
"""How many notes a pool keeps, the newest: twice the windows of an account."""


@dataclass(frozen=True, slots=True)
class Charged:
    """``amounts`` were spent without a grant of the store, for each of the message's quotas.

    ``left``: the part of them that has not been refilled meanwhile; ``None``: all.
    """

    amounts: list[float]
    left: list[Left] | None = None


News = Settled | Refused | Charged | Noted | Change
"""The store ignores a change unless the process knew the current version of the quota: many learn the same at once."""


@dataclass(slots=True)
class Known:
    """What a process knows of the quotas: as configured there, and at the last reply.

    Attributes:
        quotas: The quotas as configured; amounts and marks are in this order.
        versions: For each quota, the version of its :class:`LearnedState` that the process has; -1: none.
        fresh: Whether the configured quotas replace the store's; in the first message of a process.
        headroom_s: What each quota keeps unused, in seconds of its refill.
        gentle: Whether buckets open slowly.
        windows: For each quota with a window that restarts at a local midnight: the restarts of yesterday, today and the
            next two days, in seconds since 1970, for stores without time zones; ``None`` for all other quotas.
        recalled: For each quota, what it lacks in the snapshot. A store that has lost the quota restores this state.
        noted: The ``noted`` of the last reply.
    """

    quotas: tuple[Quota, ...] = ()
    versions: list[int] = field(default_factory=list)
    fresh: bool = False
    headroom_s: float = 1.0
    gentle: bool = False
    windows: list[tuple[int, ...] | None] = field(default_factory=list)
    recalled: list[Left] = field(default_factory=list)
    noted: int = 0


@dataclass(slots=True)
class Message:
    """The updates and requests of a process.

    Attributes:
        who: The unique name of the process.
        number: Counts the messages of this process. A message without a reply is sent again under its number, and the
            store applies the news of a number once.
        known: What it knows of the quotas.
        news: The updates since the last message, in order.
        held: The amount in flight in this process, for each quota; used for slots.
        wants: The charges of the next requests in the queue, in its order.
        leaving: Whether the process holds nothing and does not count as a peer until its next message.
        alone: Whether the process spends its share of the limits, because the store was lost.
        closed: Whether the process spends nothing while the store is lost, so that nothing is kept for it then.
        share: The share of the limits that the process takes if the store is lost before its next message.
        place_ns: How long to keep a place among the waiting processes; 0: no place.
        slack_ns: How much later a grant may be spent.
    """

    who: str
    number: int
    known: Known = field(default_factory=Known)
    news: list[News] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    wants: list[list[float]] = field(default_factory=list)
    leaving: bool = False
    alone: bool = False
    closed: bool = False
    share: float = 0.0
    place_ns: int = 0
    slack_ns: int = 0

    def report_within_ns(self, reply: StoreReply) -> int:
        """When the process reports again at the latest: it waits, or spends a lease; 0: when it has something to report."""
        waits_ns = min(reply.wait_ns, max(self.place_ns, reply.peers * POLL_NS)) if self.place_ns else 0
        return max(waits_ns, self.slack_ns if self.wants else 0)


# An eighth stays free, or the next process to join would have no share until another one leaves.
SHARED_PART = 7 / 8
"""The part of the free share that a process is told; the rest is for the next one to join."""

WANE_NS, WANES = 15 * NS, 7
"""The share of a process without requests is halved in each such time, and after so many it does not count."""

REJOIN_NS = 5 * NS // 2
"""How long after the first reply of a lost store it is authoritative again, beside the retries of many processes: all have
reported their use by then."""

POLL_NS = NS // 200
"""Times the number of processes: how often one of them asks again, or reports, so that the store is not asked more often by all."""


@dataclass(slots=True)
class LearnedState:
    """A quota of the shared ledger, and all that answers have taught about it.

    Attributes:
        version: Counts the changes of the fields below.
        quota: The quota now.
        spread: Whether a bucket is spread evenly over its period.
        burst_cap: What a bucket holds at once; infinite: as configured.
        ceiling: The learned share of the rate.
        shifted_ns: The sum of all corrections of the level.
        epoch: Counts the changes of rate and rule.
        refused: The sum of the charges of refused attempts.
    """

    version: int
    quota: Quota
    spread: bool = False
    burst_cap: float = float("inf")
    ceiling: float = 1.0
    shifted_ns: int = 0
    epoch: int = 0
    refused: float = 0.0


@dataclass(slots=True)
class Standing:
    """The state of a quota at a reply.

    Attributes:
        lack_ns: How far from full a bucket is, in nanoseconds of its refill; of a window, the time until it restarts, or
            0 if that is unknown; 0 for slots.
        used: The use of a window, of slots, or of the last period of a spread quota; 0 for buckets.
        charged: The sum of all charges of all processes, without refunds.
        spent: The same with refunds and debts.
        opened: What an opening bucket may grant at once so far; infinite when it is open.
        learned: What answers have taught; ``None`` when the process has this version.
    """

    lack_ns: int
    used: float
    charged: float
    spent: float
    opened: float
    learned: LearnedState | None = None


@dataclass(slots=True)
class StoreReply:
    """The store's reply to a message.

    Attributes:
        grants: The marks of the requests that are granted: the first ones of ``wants``.
        probe: Whether the first grant is the probe after a pause.
        wait_ns: When to ask again for the first request that is not granted; 0: all are granted.
        binds: The index of the quota that this request waits for, in the message's order; -1: the pause, or none.
        pause_ns: The rest of the pause.
        peers: How many processes share the pool now, this one included.
        share: The share of the limits for this process while the store is lost.
        standings: The states of the message's quotas, then of quotas that the message does not have.
        noted: Changes with each note.
        notes: All notes of the pool, if the message has another ``noted``.
    """

    grants: list[list[Mark]]
    probe: bool
    wait_ns: int
    binds: int
    pause_ns: int
    peers: int
    share: float
    standings: list[Standing]
    noted: int = 0
    notes: list[Note] = field(default_factory=list)


class Store(Protocol):
    """Keeps the shared ledgers of pools for many processes.

    ``exchange`` may be called from any thread; the library calls it from a thread of its own, never from an event loop.

    Attributes:
        url: The kind and the place of the store, for logs and errors: without a password.
    """

    url: str

    def exchange(self, pool: str, message: Message) -> StoreReply:
        """Apply ``message`` to the ledger of ``pool`` in one step: :meth:`paceline.shared.ledger.SharedLedger.apply`.

        Raises:
            StoreError: The message was not applied, or it is not known whether it was.
        """

    def after_fork(self) -> None:
        """In a forked child, before any call: replace connections, threads and locks, which belong to the parent."""

    def close(self) -> None:
        """Close what is open; a later ``exchange`` opens it again."""


def ping(store: Store) -> None:
    """Ask a store whether it takes what it is sent, by its method ``ping()``, which leaves nothing there.

    A store need not have that method: it gets a message about a pool without quotas then.

    Raises:
        StoreError: It does not answer, or takes nothing.
    """
    ask = getattr(store, "ping", None)
    if ask is not None:
        ask()
    else:
        store.exchange("ping", Message("ping", 0, leaving=True))


def remarks(store: Store, pool: str) -> list[str]:
    """What makes quotas unsafe at the place of ``pool``, and what to do, by the method ``remarks()`` of a store; without it none.

    Raises:
        StoreError: It cannot be looked at now.
    """
    look = getattr(store, "remarks", None)
    return [] if look is None else look(pool)
