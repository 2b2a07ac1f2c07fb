"""One pool: a queue and a capacity. Its methods do not wait, and take no lock.

The caller (:class:`~paceline.pacing.section.Section`) invokes a method under its lock, wakes the waiters that the
method returns, and sets one timer for :attr:`Pool.wake_ns`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from paceline.core.allowance import Shut
from paceline.core.capacity import NOTICES_MAX, PENDING, Capacity, Resolution
from paceline.core.ledger import Ledger, merged, total_tokens
from paceline.core.pause import OPEN, PausePhase
from paceline.core.progress import Progress, Row
from paceline.core.queue import Queue, Waiter
from paceline.core.quota import CONCURRENCY, FAR_NS, INPUT_TOKENS, NS, REQUESTS, TOKENS, Cost
from paceline.core.record import Record
from paceline.core.results import (
    COOL_DOWN,
    NO_NOTES,
    QUEUE,
    WAIT_MAX_S,
    Decision,
    Expired,
    NeverFits,
    Outcome,
    QueueFull,
    Reading,
    Refusal,
    RefusalScope,
    Replaced,
    Reservation,
    Stopped,
    StoreLost,
    WaitUntil,
    within,
)
from paceline.core.silence import Silence
from paceline.core.stop import ENDS, STOP_MAX_NS, Stop

WAITING_MAX = 1_000_000
"""The default bound of a queue; a waiter takes about half a kilobyte."""


class Pool:
    """The quotas that a provider charges together under one key, and the requests that wait for them.

    An attempt passes these calls:

    1. :meth:`submit` or :meth:`try_grant`. A waiter in the queue is granted by :meth:`pump`, with a store also by
       :meth:`resolve`; :meth:`withdraw` removes it.
    2. As its answer comes: :meth:`observe` (its headers), :meth:`answered` (it has begun), :meth:`adjust` (its first
       usage).
    3. One of :meth:`settle`, :meth:`cancel` and :meth:`refuse` closes it. The pause after a refusal depends on
       :meth:`row`.
    4. :meth:`pump`, after each of 2 and 3: what has changed may let others go.

    Args:
        waiting_max: How many may wait.
        served: Whether its requests go to one server, so that all of them wait in vain when it is silent.

    Attributes:
        name: Its name, e.g. ``openai/gpt-6-luna``.
        capacity: The quotas.
        queue: The waiters.
        wake_ns: When :meth:`pump` must be called if no event comes before; ``None`` for never.
        record: What has become of its attempts.
        silence: Whether its attempts get answers.
        progress: Whether its attempts are admitted.
        notices: What is to be logged, about silences and limits; the reader empties it.
        undecided: The waiters of :meth:`try_grant` that are in the queue until the store decides.
    """

    def __init__(
        self,
        name: str,
        capacity: Capacity,
        queue: Queue | None = None,
        *,
        waiting_max: int = WAITING_MAX,
        served: bool = True,
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.queue = Queue() if queue is None else queue
        self.queue.seconds_of = self._seconds_of
        self.wake_ns: int | None = None
        self.record = Record()
        self._stop: Stop | None = None
        self._replaced: Replaced | None = None
        self.progress = Progress()
        learning = capacity.learning
        self.notices: deque[str] = deque(maxlen=NOTICES_MAX) if learning is None else learning.notices
        self.silence = Silence(capacity, self.notices, watches=served)
        self._waiting_max = waiting_max
        self.undecided: tuple[Waiter, ...] = ()

    @property
    def ledger(self) -> Ledger:
        """The quotas as known to this process, to be read only."""
        return self.capacity.ledger

    @property
    def stopped(self) -> Stopped | None:
        """The outcome of requests while the pool sends nothing but one every 10 to 60 minutes.

        ``None`` at other times.
        """
        return None if self._stop is None else self._stop.outcome

    def submit(self, now_ns: int, waiter: Waiter) -> Outcome:
        """Grant ``waiter`` at once, add it to the queue (``WaitUntil``), or refuse it.

        A returned waiter takes its former place in its lane.
        """
        if self._replaced is not None:
            return self._replaced
        if (stopped := self._meet(now_ns, waiter)) is not None:
            return stopped
        if self.queue.length:
            return self._add(now_ns, waiter)
        decision = self._reserve(now_ns, waiter)
        if type(decision) is WaitUntil:
            # With a store the ledger may know more than the decision, which may be left to the store.
            return self._add(now_ns, waiter, decision if self.capacity.behind == QUEUE else None)
        return decision if isinstance(decision, Reservation) else self._unsent(now_ns, decision)

    def _add(self, now_ns: int, waiter: Waiter, until: WaitUntil | None = None) -> Outcome:
        """Add ``waiter`` to the queue, unless it can never be granted, or not in time.

        ``until``: when it can go at the earliest, if that is known.
        """
        if until is None:
            never = self.capacity.ledger.never(waiter.amounts)
            # An old reply of a store turns no request away: another process may have given something back.
            if never is not None and self.capacity.is_current(now_ns):
                return self._unsent(now_ns, never)
        at_ns, quota = self.soonest(now_ns, waiter) if until is None else until
        if self.queue.length >= self._waiting_max:
            return self._unsent(now_ns, QueueFull(self.queue.length, self._told_ns(at_ns)))
        if self._is_late(now_ns, waiter, at_ns) and self.capacity.is_current(now_ns):
            return self._expired(now_ns, at_ns, quota)
        if self.capacity.learning is not None:
            self.capacity.learning.stalled(now_ns, at_ns, waiter.amounts)
        waiter.queued = True
        if waiter.lost_ns:
            self._weigh(waiter)
        self.queue.push(waiter)
        if self.queue.head() is waiter or waiter.deadline_ns is not None or waiter.returned or waiter.lost_ns:
            self._set_wake(now_ns)  # else it is planned for the head already
        return WaitUntil(at_ns, quota)

    def try_grant(self, now_ns: int, waiter: Waiter) -> Outcome:
        """Grant ``waiter`` at once or not at all; not at all, if other requests wait.

        ``WaitUntil`` with ``waiter.queued``: the store decides, and ``waiter.outcome`` is set then.
        """
        if (stopped := self._meet(now_ns, waiter)) is not None:
            return stopped
        # The undecided ones wait for the store alone, so they are not ahead of it.
        if self.queue.length > len(self.undecided):
            never = self.ledger.never(waiter.amounts)
            return self._unsent(now_ns, WaitUntil(*self.soonest(now_ns, waiter)) if never is None else never)
        decision = PENDING if self.queue.length else self._reserve(now_ns, waiter)
        if decision is PENDING:
            waiter.queued = True
            self.queue.push(waiter)
            self.undecided += (waiter,)
            self._set_wake(now_ns)
            return decision
        return decision if isinstance(decision, Reservation) else self._unsent(now_ns, decision)

    def _meet(self, now_ns: int, waiter: Waiter) -> Stopped | None:
        """Count what ``waiter`` costs, and give it its number; the outcome of one that comes during a stop.

        After the stated end of a stop it waits, as the others, for the answer to one.
        """
        # A waiter comes again after a refusal, or after a wait in another pool.
        waiter.outcome, waiter.queued = None, False
        waiter.amounts = self.capacity.ledger.amounts(waiter.cost)
        waiter.arrived_ns = now_ns
        if not waiter.returned:
            waiter.number = self.queue.next_number()
        if self._stop is None:
            return None
        if not 0 < self._stop.ends_ns <= now_ns:
            return self._stop.for_newcomer(now_ns)
        self._stop = None
        # It ends at once, so that one goes as its probe. The others wait for the answer, as after any pause.
        self.capacity.pause(now_ns)
        return None

    def _expired(self, now_ns: int, at_ns: int, quota: str) -> Outcome:
        """The outcome of a request whose deadline passes before ``quota`` would allow it at ``at_ns``."""
        self.record.counts["expired"] += 1
        return self._unsent(now_ns, Expired(self._told_ns(at_ns), quota))

    def _unsent(self, now_ns: int, outcome: Outcome) -> Outcome:
        """``outcome``, of a request that is not sent: during a stop, it was not the probe."""
        if self._stop is not None:
            self._stop.unsent(now_ns)
        return outcome

    def replace(self, _now_ns: int) -> None:
        """Grant nothing more: another pool has taken the place of this one. What was granted is settled here."""
        self._replaced = Replaced()

    def resolve(self, now_ns: int, resolution: Resolution) -> list[Waiter]:
        """Take the result of an exchange with the store; return the waiters whose ``outcome`` is set now."""
        asked, until, changed, newly_lost = resolution
        if isinstance(until, StoreLost):
            return self._turn_away(until)
        # Before any grant, which charges these amounts.
        if changed:
            self.recount()
        if until is None:
            self.record.counts["store_lost"] += newly_lost
            return self._decide_alone(now_ns)
        done = self.pump(now_ns)
        if asked:
            # Those that the store has not granted leave the queue: try_grant() does not wait.
            self.undecided = tuple([waiter for waiter in self.undecided if waiter not in asked])
            refused = [waiter for waiter in asked if waiter.outcome is None and self.queue.withdraw(waiter)]
            for waiter in refused:
                waiter.outcome = self._unsent(now_ns, until)
            done += refused
        hopeless = [] if until.at_ns <= now_ns else self._hopeless(now_ns)
        if asked or hopeless:
            self._set_wake(now_ns)
        return done + hopeless

    def _decide_alone(self, now_ns: int) -> list[Waiter]:
        """Try those again for which the store was to decide, when the waiters have had their turn."""
        # Out of the queue first, or pump() would grant them as waiters, each in the place at which it came.
        again, self.undecided = [waiter for waiter in self.undecided if self.queue.withdraw(waiter)], ()
        done = self.pump(now_ns)
        for waiter in again:
            waiter.outcome = self.try_grant(now_ns, waiter)
        if again:
            self._set_wake(now_ns)
        return done + again

    def _is_late(self, now_ns: int, waiter: Waiter, at_ns: int) -> bool:  # noqa: ARG002
        """Whether ``waiter`` cannot go in time, because it goes at ``at_ns`` at the earliest."""
        # At FAR_NS a release lets it go, which may come in time.
        return waiter.deadline_ns is not None and waiter.deadline_ns < at_ns != FAR_NS

    def _hopeless(self, now_ns: int) -> list[Waiter]:
        """Refuse the first waiters whose deadlines cannot be met by what the store has told.

        Not all was known when they came.
        """
        found: list[Waiter] = []
        # Those behind the first one that can wait expire at their deadlines. A look at all of them would take each
        # reply the time of the whole queue.
        while (head := self.queue.head()) is not None and head not in self.undecided:
            at_ns, binding = self.capacity.earliest(now_ns, head.amounts)
            if not self._is_late(now_ns, head, at_ns):
                break
            self.queue.withdraw(head)
            head.outcome = self._expired(now_ns, at_ns, self._named(now_ns, at_ns, binding))
            found.append(head)
        return found

    def pump(self, now_ns: int) -> list[Waiter]:
        """Grant the waiters that may go now; return those whose ``outcome`` is set now."""
        queue, ledger = self.queue, self.capacity.ledger
        if ledger.loss_check_ns <= now_ns:
            self.record.counts["lost"] += ledger.lose_old(now_ns)
        if self._stop is not None and (stopped := self._stop.for_waiters()) is not None:
            return self._turn_away(stopped)
        if self._replaced is not None:
            return self._turn_away(self._replaced)
        if not queue.length:
            self.wake_ns = None
            return []
        # A deadline of this instant can still be met.
        done = self._overdue(now_ns, now_ns - 1) if queue.deadlines else []
        while (head := queue.head()) is not None:
            if head.estimate is not None and self._has_moved(now_ns, head):
                continue
            decision = self._reserve(now_ns, head)
            if isinstance(decision, WaitUntil):
                break
            # After the last one the queue forgets its lanes, and so this cost.
            overtaken = queue.pop(head, ledger.seconds_of(head.amounts) if queue.length > 1 else 0.0)
            if overtaken:
                self._count_overtaken(now_ns, head, overtaken)
            head.outcome = decision
            done.append(head)
        # These could go until now, and nothing has let them.
        late = self._overdue(now_ns, now_ns) if queue.deadlines else []
        self._set_wake(now_ns)
        return done + late

    def _count_overtaken(self, now_ns: int, head: Waiter, overtaken: float) -> None:
        """Count a grant before its turn, and what it has saved: its prompt would be lost in the time of the others."""
        self.record.counts["overtook"] += 1
        if overtaken * NS > head.lost_ns - now_ns:
            self.record.saved_tokens += head.cached_tokens

    def _seconds_of(self, amounts: list[float]) -> float:
        """See :meth:`Ledger.seconds_of`, of the present ledger."""
        return self.capacity.ledger.seconds_of(amounts)

    def _has_moved(self, now_ns: int, head: Waiter) -> bool:
        """Estimate ``head`` again.

        Returns whether its place has changed, because its cached prompt is lost or was read since.
        """
        assert head.estimate is not None
        cost, cached_tokens, lost_ns = head.estimate()
        if cost != head.cost:
            head.cost, head.amounts = cost, self.ledger.amounts(cost)
        # While its prompt is cached, it keeps its place, even if the cache keeps the prompt for longer now.
        if not head.lost_ns or (lost_ns and now_ns < head.lost_ns):
            return False
        head.cached_tokens, head.lost_ns = cached_tokens, lost_ns
        if lost_ns:
            self._weigh(head)
        self.queue.renew(head)
        return True

    def _weigh(self, waiter: Waiter) -> None:
        """Compute what the cached tokens of ``waiter`` save."""
        cached: Cost = {REQUESTS: 0.0, CONCURRENCY: 0.0, INPUT_TOKENS: float(waiter.cached_tokens)}
        waiter.saves = self.queue.seconds_of(self.ledger.amounts(cached))

    def drain(self) -> None:
        """Drop all waiters: in a forked child they belong to the parent."""
        self.queue.drain()
        self.undecided = ()

    def withdraw(self, now_ns: int, waiter: Waiter) -> None:
        """Remove ``waiter``, because its caller waits no longer; cancel its grant, if it has one."""
        if isinstance(waiter.outcome, Reservation):
            self.cancel(now_ns, waiter.outcome)
        else:
            if self.queue.withdraw(waiter) and self._stop is not None:
                self._stop.unsent(now_ns)
            if not self.queue.length:
                # Otherwise the timer for the waiter would be set again and again.
                self.wake_ns = None

    def settle(self, now_ns: int, reservation: Reservation, actual: Cost | None, waiter: Waiter | None = None) -> None:
        """Close ``reservation`` with its true cost; ``None``: see :meth:`Capacity.settle`.

        ``None`` is no sign of an answer: it ends neither a silence nor a stop. It ends a row of refusals, and the pause
        whose probe it was: the attempt was not refused.
        """
        if not reservation.open:
            return
        self.record.counts["settled"] += 1
        self.progress.admit(now_ns, reservation.granted_ns)
        amounts = self.capacity.settle(now_ns, reservation, actual)
        # If none waits, an opening is over: it holds back those that waited, and newcomers are no herd.
        if not self.queue.length and (pause := self.capacity.ledger.pause).phase is not OPEN:
            pause.empty()
        if actual:
            self.silence.settled(now_ns, now_ns - reservation.granted_ns)
            if self._stop is not None and self._stop.ends_with(reservation.granted_ns):
                self._stop = None
            if waiter is None or waiter.sized:
                self._compare(reservation.cost, actual if waiter is None else waiter.reported or actual)
            # One that was granted at once has paid nothing in its lane.
            if waiter is not None and waiter.queued and self.queue.length and amounts != reservation.amounts:
                self.queue.correct(waiter, self._seconds_of(amounts) - self._seconds_of(reservation.amounts))

    def timed_out(self, now_ns: int, reservation: Reservation) -> bool:
        """Count a time-out, before the attempt is settled; whether too many were in flight to be answered in time."""
        learning = self.capacity.learning
        return learning is not None and reservation.open and learning.timed_out(now_ns, reservation)

    def adjust(self, now_ns: int, reservation: Reservation, known: Cost, waiter: Waiter) -> None:
        """Correct an open reservation by the part of its true cost that the beginning of its answer shows."""
        before = self._seconds_of(reservation.amounts)
        self.capacity.adjust(now_ns, reservation, known)
        if waiter.queued:
            self.queue.correct(waiter, self._seconds_of(reservation.amounts) - before)

    @property
    def opens_at_heads(self) -> bool:
        """Whether the beginning of an answer that is no refusal changes what may go."""
        return self.progress.allowance.began_ns > 0 or self.capacity.ledger.pause.opens_ns > 0

    def admitted(self, now_ns: int, reservation: Reservation) -> None:
        """The answer to ``reservation`` has begun, and is no refusal: an allowance that was shut is open."""
        self.progress.allowance.admit(reservation.granted_ns)
        self.capacity.admitted(now_ns, reservation)
        # As in settle().
        if not self.queue.length:
            self.ledger.pause.empty()
        if self._stop is not None and self._stop.ends_with(reservation.granted_ns):
            self._stop = None

    @property
    def shut(self) -> Shut | None:
        """The allowance that is used up, or that opens; ``None`` for none."""
        allowance, pause = self.progress.allowance, self.ledger.pause
        # A pool that opens from a pause for another reason than a cool-down has no allowance that is used up.
        if not (allowance.is_shut or (pause.opens_ns and pause.reason == COOL_DOWN)):
            return None
        state = "shut" if pause.phase in (PausePhase.OPEN, PausePhase.CLOSED) else pause.phase.value
        return Shut(allowance.window, state, allowance.began_ns, allowance.ends_ns, pause.until_ns, self.queue.length)

    def answered(self, now_ns: int) -> None:
        """An answer has begun, which ends a silence; the caller sets ``begun`` of its reservation."""
        self.silence.answered(now_ns)

    def _compare(self, cost: Cost, actual: Cost) -> None:
        """Add an estimated cost, and what was used of it, to :attr:`Record.estimates`."""
        estimates = self.record.estimates
        for unit, amount in actual.items():
            if unit in cost:
                pair = estimates[unit]
                pair[0] += cost[unit]
                pair[1] += amount
        # A cost of input and output has been reserved as their sum, where a quota counts all tokens.
        if TOKENS in cost or TOKENS not in self.capacity.ledger.entries.units:
            return
        if TOKENS in (true := merged(cost, actual)):
            pair = estimates[TOKENS]
            pair[0] += total_tokens(cost)
            pair[1] += true[TOKENS]

    def cancel(self, now_ns: int, reservation: Reservation) -> None:
        """Close ``reservation`` and give back its charge: its request was never sent."""
        if reservation.open:
            self.record.counts["cancelled"] += 1
            self.capacity.cancel(now_ns, reservation)
            if self._stop is not None:
                self._stop.cancelled(now_ns, reservation.granted_ns)

    def refuse(
        self,
        now_ns: int,
        reservation: Reservation,
        refusal: Refusal,
        pause_s: float,
        stop_s: float = 0.0,
        why: str = "",
    ) -> None:
        """Close ``reservation``, keep its charge, and pause the pool for ``pause_s`` seconds.

        A refusal that no wait can end stops the pool (:data:`ENDS`). With ``stop_s`` any refusal stops it for so many
        seconds, for the reason ``why``. The next :meth:`pump` removes the waiters. A refusal that is not about the pool
        corrects the charge, so that the request counts and none of its tokens, and takes back what the pool has wrongly
        learned from earlier refusals of the request.
        """
        self.record.counts[f"refused_{refusal.kind.value}"] += 1
        self.silence.answered(now_ns)
        if refusal.scope is not RefusalScope.POOL:
            if reservation.open:
                if self.capacity.learning is not None:
                    self.capacity.learning.retracted(now_ns, reservation, refusal)
                # Nothing was served, so its settlement is no admission to learn from.
                reservation.notes, reservation.number = NO_NOTES, 0
                # The provider counts the request, and no tokens of it.
                self.capacity.settle(now_ns, reservation, dict.fromkeys(reservation.cost, 0.0) | {REQUESTS: 1.0})
            return
        others_ns = self.capacity.ledger.sent_beside(reservation)
        shows_no_rate = self.progress.refuse(now_ns, reservation.granted_ns, refusal, others_ns)
        pause_ns = round(max(pause_s, 0.0) * NS)
        opens_ns = self.progress.allowance.opens_ns(now_ns + pause_ns) if shows_no_rate else None
        probe_ns = self.progress.probe_ns(refusal)
        if self.capacity.refuse(now_ns, reservation, refusal, pause_ns, opens_ns, probe_ns):
            self.recount()
        # The message is left out: it may quote the request, and the reason is shown to others than its sender.
        code = f" ({refusal.code})" if refusal.code else ""
        # The longest stop: Stop.begin() shortens the first ones.
        if ends := ENDS.get(refusal.kind):
            stop_s, why = STOP_MAX_NS / NS, ends
        if stop_s:
            self._stop, asked_s = self._stop or Stop(), within(refusal.retry_after_s, 0.0, WAIT_MAX_S)
            self._stop.begin(now_ns, reservation.granted_ns, f"{why}{code}", stop_s, asked_s or 0.0)
        elif self._stop is not None and refusal.kind.about_rate and self._stop.ends_with(reservation.granted_ns):
            # Its probe was refused for a time that requests wait for, as after any refusal.
            self._stop = None

    def row(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> Row | None:
        """The refusals of the pool in a row, with the one of ``reservation``, which comes now.

        See :meth:`Progress.row`.
        """
        others_ns = self.capacity.ledger.sent_beside(reservation)
        # Kept, because paces() below asks for it, and the learning in refuse(), when others may have come.
        reservation.alone = not (others_ns or self.queue.length)
        row = self.progress.row(now_ns, reservation.granted_ns, refusal, others_ns)
        learning = self.capacity.learning
        if row is None or learning is None or row.is_allowance:
            return row
        if row.is_test and self.progress.allowance.foretold(reservation.granted_ns, refusal):
            return row  # of a long wait that has not ended, which shows no rate
        return row._replace(is_paced=learning.paces(now_ns, reservation, refusal))

    def observe(self, now_ns: int, readings: Iterable[Reading], reservation: Reservation) -> None:
        """Learn from the headers of the answer to ``reservation``, before it is settled."""
        if self.capacity.observe(now_ns, list(readings), reservation):
            self.recount()

    def recount(self) -> None:
        """Compute the amounts of all waiters again, because quotas have changed."""
        # WEAK: what a cached prompt saves, and so the place of its lane, stays as it was by the former quotas.
        for waiter in self.queue:
            waiter.amounts = self.ledger.amounts(waiter.cost)

    def resume(self) -> None:
        """End a stop."""
        self._stop = None

    def soonest(self, now_ns: int, waiter: Waiter) -> tuple[int, str]:
        """A lower bound on when ``waiter``, not yet in the queue, can go, and what binds.

        Of the waiters ahead only the requests are counted: their tokens may be refunded.
        """
        at_ns, binding = self.capacity.earliest(now_ns, waiter.amounts)
        alone = waiter.returned or not self.queue.length
        ahead = 0 if alone else self.queue.ahead_of_newcomer(waiter.lane, waiter.lost_ns)
        if ahead:
            # What is ahead counts in quotas of requests only: of the others it asks for nothing.
            requests = self.ledger.requests_in(waiter.amounts)
            then = self.ledger.earliest(now_ns, requests, [float(ahead)] * len(requests))
            if then[0] > at_ns:
                at_ns, binding = then
        return at_ns, self._named(now_ns, at_ns, binding)

    def foresee(self, now_ns: int, waiter: Waiter) -> NeverFits | Expired | None:
        """Why ``waiter``, not in the queue, would not be granted if it joined the queue now.

        ``None``: it may be granted.
        """
        waiter.amounts = self.ledger.amounts(waiter.cost)
        found: NeverFits | Expired | None = self.ledger.never(waiter.amounts)
        if found is None and waiter.deadline_ns is not None:
            at_ns, quota = self.soonest(now_ns, waiter)
            if FAR_NS != at_ns > waiter.deadline_ns:
                found = Expired(self._told_ns(at_ns), quota)
        return found if self.capacity.is_current(now_ns) else None

    def expected(self, now_ns: int, waiter: Waiter) -> int | None:
        """When ``waiter`` goes if it joins the queue now and those ahead cost as much; ``None``: it never fits here."""
        ledger, amounts = self.ledger, self.ledger.amounts(waiter.cost)
        if ledger.never(amounts) is not None or (self._stop is not None and now_ns < self._stop.pause.until_ns):
            return None
        ahead = self.queue.ahead_of_newcomer(waiter.lane, waiter.lost_ns)
        return self.capacity.earliest(now_ns, amounts, [ahead * amount for amount in amounts])[0]

    def place(self, now_ns: int, waiter: Waiter) -> tuple[int, int, str]:
        """How many waiters go before ``waiter``, when it goes if all estimates are exact, and what binds then.

        Where slots bind then, the instant is not known, and what the first waiter waits for is named.
        """
        before = self.queue.before(waiter)
        ahead = [sum(column) for column in zip(*(w.amounts for w in before), strict=True)]
        at_ns, binding = self.capacity.earliest(now_ns, waiter.amounts, ahead)
        # When a slot is free is unknown. What the first waiter waits for is a better answer than that.
        named_ns = at_ns
        if before and at_ns >= FAR_NS:
            first_ns, first = self.capacity.earliest(now_ns, before[0].amounts)
            if first_ns > now_ns:
                named_ns, binding = first_ns, first
        return len(before), self._told_ns(at_ns), self._named(now_ns, named_ns, binding)

    def binds(self, now_ns: int) -> str | None:
        """What the first waiter waits for, or has waited for if it may go now; ``None`` for an empty queue."""
        head = self.queue.head()
        if head is None:
            return None
        at_ns, binding = self.capacity.earliest(now_ns, head.amounts)
        # _named() would name the queue for a quota that is free by now, and no other waiter is ahead of the first.
        return self.ledger.name(binding) if self.capacity.behind == QUEUE else self._named(now_ns, at_ns, binding)

    def cool_down_ns(self, now_ns: int) -> int:
        """How much longer the pool pauses, to the stated end of an allowance, before which only tests go.

        0 or less: it does not.
        """
        return max(self.capacity.cool_down_ns(now_ns), self.progress.allowance.ends_ns - now_ns)

    def _told_ns(self, at_ns: int) -> int:
        """What is said of a request that may go at ``at_ns``: before the end of an allowance only a test goes."""
        return max(at_ns, self.progress.allowance.ends_ns)

    def _named(self, now_ns: int, at_ns: int, binding: int) -> str:
        """What binds until ``at_ns``: the quota at index ``binding`` or a pause.

        If that is past, the queue or the store.
        """
        if at_ns <= now_ns:
            return self.capacity.behind
        return self.capacity.pause_reason if binding < 0 else self.ledger.name(binding)

    def _reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        # As in pump(), because a request that comes to an empty queue does not pass that.
        ledger = self.capacity.ledger
        if ledger.loss_check_ns <= now_ns:
            self.record.counts["lost"] += ledger.lose_old(now_ns)
        if now_ns >= self.silence.check_ns:
            self.silence.check(now_ns)
        decision = self.capacity.reserve(now_ns, waiter)
        if isinstance(decision, Reservation):
            self.record.counts["granted"] += 1
            self.record.waits.add(waiter.lane.name, now_ns - waiter.arrived_ns)
        return decision

    def _overdue(self, now_ns: int, deadline_ns: int) -> list[Waiter]:
        """Remove the waiters with a deadline of ``deadline_ns`` or earlier, as expired."""
        late = self.queue.overdue(deadline_ns)
        head = self.queue.head() if late else None
        for waiter in late:
            at_ns, binding = self.capacity.earliest(now_ns, waiter.amounts)
            # Alone it would fit, so what the first of the others waits for is the reason.
            if at_ns <= now_ns and head is not None:
                at_ns, binding = self.capacity.earliest(now_ns, waiter.amounts, head.amounts)
            waiter.outcome = self._expired(now_ns, at_ns, self._named(now_ns, at_ns, binding))
        return late

    def _turn_away(self, why: Stopped | StoreLost | Replaced) -> list[Waiter]:
        """Remove all waiters, with the outcome ``why``.

        The waiters are woken in their order, and so come to another pool in it.
        """
        waiters = list(self.queue.in_order())
        self.queue.drain()
        for waiter in waiters:
            waiter.outcome = why
        self.undecided = ()
        self.wake_ns = None
        return waiters

    def _set_wake(self, now_ns: int) -> None:
        """Plan the next :meth:`pump`."""
        head = self.queue.head()
        if head is None:
            self.wake_ns = None
            return
        at_ns = self.capacity.wake_ns(now_ns, head)
        deadline_ns = self.queue.next_deadline_ns if self.queue.deadlines else None
        self.wake_ns = at_ns if deadline_ns is None or (at_ns is not None and at_ns < deadline_ns) else deadline_ns
