"""The quotas of one pool together.

Reservations and settlements are made here. ``Learning`` corrects the quotas: by a
:class:`~paceline.core.changes.Change` where other processes make the same correction, and else by a method of the
ledger.

An attempt *reserves* the cost that the provider counts at admission: if the cost fits every quota, every quota is
charged, and otherwise none. After the answer the reservation is *settled* with the true cost: a lower one gives
an exact refund, a higher one becomes debt. What the beginning of an answer shows is *adjusted* before. An attempt that
was never sent is *cancelled*. A *refused* attempt is closed and keeps its charge. (A refusal of less than the pool is
settled without tokens: ``Pool.refuse``.) A reservation that stays open beyond its time-to-live is closed and stays
charged in full.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from paceline.core.entry import Entries, Entry
from paceline.core.meters import Bucket, Exact, Meter, Restarting, Spread, new_meter
from paceline.core.pause import OPEN, Pause
from paceline.core.quota import (
    CONCURRENCY,
    FAR_NS,
    INPUT_TOKENS,
    NS,
    OUTPUT_TOKENS,
    REQUESTS,
    TOKENS,
    Cost,
    Quota,
    Rule,
    rounded,
)
from paceline.core.results import (
    GIVEN,
    LEARNED,
    Decision,
    NeverFits,
    Reservation,
    Source,
    SourceKind,
    WaitUntil,
)

DEBT_MAX = 4.0
"""A request larger than a quota is charged this multiple of the quota at most, unless its true cost is known."""

Kind = tuple[str, float, Rule]
"""What of a quota is not its amount: the unit, the period and the rule."""


class Ledger:
    """The quotas that a provider charges together under one key.

    Args:
        quotas: The quotas.
        now_ns: The present.
        usable: The share of every limit that is used, above 0 and at most 1. Slots and even quotas are used in full.
            The quotas of the meters, ``given`` and all that is learned are amounts of that share.
        sources: The source of each quota; ``given`` for all of them when empty.
        headroom_s: The part of each quota that stays unused, in seconds of its own refill.
        ttl_s: How long a reservation may stay open, in seconds.
        gentle: Whether a provider counts, too: buckets open slowly, and each answer is reported to the meters.
        charged_after: The units that the provider charges when the answer is produced, and not at admission.
        own: Whether the quotas are the user's alone: what other processes have beside them does not hold here.

    Attributes:
        entries: One per quota, in the order of all lists of amounts.
        pause: No grant before its end, then a probe: after a refusal, in a silence, or where the host has failed.
        loss_check_ns: When :meth:`lose_old` has to look again: no reservation is lost before this instant.
    """

    def __init__(
        self,
        quotas: Iterable[Quota],
        now_ns: int,
        *,
        usable: float = 1.0,
        sources: Sequence[Source] = (),
        headroom_s: float = 1.0,
        ttl_s: float = 900.0,
        gentle: bool = False,
        charged_after: Collection[str] = (),
        own: bool = False,
    ) -> None:
        self.usable, self.own = usable, own
        self.headroom_s = headroom_s
        self.charged_after = charged_after
        self.gentle = gentle
        self.entries = Entries()
        self._open: dict[Reservation, None] = {}  # the oldest first
        for i, quota in enumerate(quotas):
            self.add_quota(now_ns, quota.part(usable), sources[i] if sources else GIVEN)
        self.pause: Pause[Reservation] = Pause()
        self._last_ns = self._at_once = 0  # the instant of the last grant, and the number of grants at that instant
        self.ttl_ns = round(ttl_s * NS)
        self.loss_check_ns = now_ns + self.ttl_ns

    @property
    def meters(self) -> list[Meter]:
        """The meters of the entries."""
        return [entry.meter for entry in self.entries]

    @property
    def names(self) -> list[str]:
        """The quotas in their notation."""
        return [entry.name for entry in self.entries]

    def expected_output(self, input_tokens: float, output_tokens: float) -> float:
        """The part of ``output_tokens``, which are expected and no demand, that does not make a request too large.

        It takes at most half of a quota, and with the input no more than a quota of all tokens holds.
        """
        for entry in self.entries:
            unit = entry.unit
            if unit in (TOKENS, OUTPUT_TOKENS):
                most = entry.meter.most
                bound = min(most / 2, max(most - input_tokens, 0.0)) if unit == TOKENS else most / 2
                if bound < output_tokens:
                    output_tokens = bound
        return output_tokens

    @property
    def in_flight(self) -> int:
        """How many reservations are open."""
        return len(self._open)

    def amounts(self, cost: Cost) -> list[float]:
        """``cost`` as one number per entry.

        Of the units that ``cost`` does not name, ``tokens`` is the sum of input and output, ``requests`` and
        ``concurrency`` are 1, and any other unit is 0.
        """
        amounts = []
        for unit in self.entries.units:
            amounts.append(cost[unit] if unit in cost else _left_out(unit, cost))  # noqa: PERF401  (slower on 3.11)
        return amounts

    def never(self, amounts: list[float]) -> NeverFits | None:
        """The first amount that is above its ``refused_above``; ``None`` for none."""
        for i, entry in enumerate(self.entries):
            if amounts[i] > entry.refused_above:
                return NeverFits(entry.unit, amounts[i], entry.refused_above, self.names[i])
        return None

    def fitting(self, amounts: list[float]) -> list[float]:
        """``amounts``, as they are reserved: an amount larger than its quota is lowered to what the quota holds.

        An amount above ``refused_above`` stays, because it is refused.
        """
        pairs = zip(amounts, self.entries, strict=True)
        return [min(amount, one.meter.most) if amount <= one.refused_above else amount for amount, one in pairs]

    def earliest(self, now_ns: int, amounts: list[float], ahead: list[float] | None = None) -> tuple[int, int]:
        """The first instant at which ``amounts`` fit if nothing is released before, and the index of what binds.

        The instant is ``FAR_NS`` where only a release can make them fit; the index is -1 for the pause, or for none.
        ``ahead``: the amounts of the requests that go first.
        """
        latest, binding = self.pause.until_ns, -1
        for i, entry in enumerate(self.entries):
            amount = amounts[i]
            if amount:
                m = entry.meter
                at_ns = m.earliest(now_ns, min(amount, m.most), ahead[i] if ahead else 0.0)
                if at_ns > latest:
                    latest, binding = at_ns, i
        return latest, binding

    def requests_in(self, amounts: list[float]) -> list[float]:
        """``amounts``, with nothing of any other unit."""
        return [amount if unit == REQUESTS else 0.0 for unit, amount in zip(self.entries.units, amounts, strict=True)]

    def reserve(self, now_ns: int, cost: Cost, amounts: list[float] | None = None) -> Decision:
        """Charge every quota, or none.

        Args:
            now_ns: The present.
            cost: The cost per unit.
            amounts: :meth:`amounts` of ``cost``, if the caller has it.
        """
        if amounts is None:
            amounts = self.amounts(cost)
        latest, binding = self.pause.until_ns, -1
        is_oversized = False
        # The loop is never(), fitting() and earliest() in one pass: this is the path of every request.
        for i, entry in enumerate(self.entries):
            amount = amounts[i]
            if amount:
                m = entry.meter
                if amount > m.most:
                    if amount > entry.refused_above:
                        return NeverFits(entry.unit, amount, entry.refused_above, self.names[i])
                    amount, is_oversized = m.most, True
                at_ns = m.earliest(now_ns, amount)
                if at_ns > latest:
                    latest, binding = at_ns, i
        if latest > now_ns and not self._is_rounding(now_ns, latest, binding):
            return WaitUntil(latest, self.name(binding))
        if is_oversized:
            amounts = self.fitting(amounts)  # the rest is charged when the provider has served it
        marks = []
        # An index is faster than a strict zip, and this is the path of every request.
        for i, entry in enumerate(self.entries):
            amount = amounts[i]
            marks.append(entry.meter.charge(now_ns, amount) if amount else 0)
            entry.spent += amount
        # Each charge was rounded up by less than a nanosecond. _is_rounding() forgives one for each of this instant.
        self._at_once = self._at_once + 1 if self._last_ns == now_ns else 1
        self._last_ns = now_ns
        reservation = Reservation(cost, amounts, marks, now_ns, now_ns + self.ttl_ns)
        self._open[reservation] = None
        reservation.oversized = is_oversized
        # The phase first: in an open pool, one comparison is all that a pause costs.
        if self.pause.phase is not OPEN and self.pause.counts:
            self.pause.granted(now_ns, reservation)
        return reservation

    def _is_rounding(self, now_ns: int, at_ns: int, binding: int) -> bool:
        """Whether the wait for a bucket until ``at_ns`` is the rounding of the charges that were made at this instant.

        Each was rounded up to a nanosecond: seven of a seventh of a minute come to more than a minute.
        """
        rounding_ns = self._at_once if self._last_ns == now_ns else 0
        return binding >= 0 and at_ns - now_ns <= rounding_ns and self.entries[binding].meter.refills

    def seconds_of(self, amounts: list[float]) -> float:
        """``amounts`` as one number: how many seconds of the scarcest quota they take."""
        longest, entries = -1.0, self.entries
        for i, amount in enumerate(amounts):
            rate = entries[i].meter.quota.rate
            if rate and amount > longest * rate:
                longest = amount / rate
        return longest if longest >= 0 else 1.0  # there are slots only

    def name(self, binding: int) -> str:
        """The quota at index ``binding`` in its notation; for -1 the reason of the pause."""
        return self.pause.reason if binding < 0 else self.entries[binding].name

    def settle(self, now_ns: int, reservation: Reservation, actual: Cost | None) -> list[float]:
        """Close ``reservation`` with its true cost; a closed one stays as it is.

        ``None``: as reserved, or, for a request larger than a quota, its whole cost, up to ``DEBT_MAX`` quotas.
        Units that ``actual`` leaves out stay as reserved.

        Returns:
            The true amount per entry.
        """
        reserved = reservation.amounts
        # It was charged a part of its cost, so "as reserved" would be too little.
        if reservation.oversized:
            actual = actual or self._most_debt(reservation)
        if not self.close(now_ns, reservation):
            return reserved
        if self.pause.phase is not OPEN:
            self.pause.answered(now_ns, reservation)
        # Only if a provider counts as well: it may have counted the attempt as late as its answer.
        # Before the correction, because it moves the amount that was reserved.
        if self.entries.exact and self.gentle:
            self.arrived(now_ns, reservation)
        true = reserved
        if actual:
            true = self.settled_amounts(reservation, actual)
            entries, marks = self.entries, reservation.marks
            for i, amount in enumerate(true):
                if amount != reserved[i]:
                    entry = entries[i]
                    entry.meter.correct(now_ns, marks[i], reserved[i], amount)
                    entry.spent += amount - reserved[i]
        if self.gentle:
            entries = self.entries
            # The marks bound the loop, because a quota that was added since has not charged this attempt.
            for i, mark in enumerate(reservation.marks):
                entries[i].meter.answered(now_ns, mark, max(reserved[i], true[i]))
        return true

    def arrived(self, now_ns: int, reservation: Reservation) -> None:
        """The answer to ``reservation`` has begun: exact quotas count the attempt from now on, as the provider may."""
        if reservation.arrived:
            return
        reservation.arrived = True
        for i, m, mark in self._exact_charges(reservation):
            reservation.marks[i] = m.arrived(now_ns, mark, reservation.amounts[i])

    def refuse(self, now_ns: int, reservation: Reservation) -> None:
        """Close a refused reservation, and keep its charge.

        The provider had less left than the ledger, and a refund would buy the next refusal.
        """
        self.close(now_ns, reservation)
        # If the probe is refused, the others wait as its refusal says, and no longer.
        self.pause.answered(now_ns, reservation)
        for entry, amount in zip(self.entries, reservation.amounts, strict=False):
            entry.refused += amount

    def give_back(self, now_ns: int, reservation: Reservation, index: int) -> None:
        """Take a refused attempt off the quota at ``index``: the provider has not counted it."""
        amounts, entry = reservation.amounts, self.entries[index]
        # Otherwise the quota was added since, so that it has charged nothing.
        if index < len(reservation.marks) and amounts[index]:
            # 0 from now on, so that it is given back once.
            amount, amounts[index] = amounts[index], 0.0
            entry.meter.correct(now_ns, reservation.marks[index], amount, 0.0)
            entry.spent -= amount
            entry.refused -= amount

    def _exact_charges(self, reservation: Reservation) -> Iterator[tuple[int, Exact, int]]:
        """What ``reservation`` was charged in exact quotas: the index, the meter and the mark."""
        for i, m in self.entries.exact:
            if i < len(reservation.marks) and reservation.amounts[i]:  # quotas may have been added since
                yield i, m, reservation.marks[i]

    def adjust(self, now_ns: int, reservation: Reservation, known: Cost) -> None:
        """Correct an open reservation by the true amounts that are ``known`` already; the others stay as reserved."""
        # An attempt larger than a quota was charged in part, so its true amount says nothing before the end.
        if not reservation.open or reservation.oversized:
            return
        amounts = reservation.amounts
        # WEAK: a held amount would be corrected as if it were charged. None comes here: only output is held, and
        # `known` has no unit that the output changes.
        for i, (entry, mark) in enumerate(zip(self.entries, reservation.marks, strict=False)):
            amount = known.get(entry.unit, amounts[i])
            if amount != amounts[i]:
                entry.meter.correct(now_ns, mark, amounts[i], amount)
                entry.spent += amount - amounts[i]
                amounts[i] = amount
        # A quota of all tokens needs it at the end, for the sum with what is not known yet.
        reservation.known = reservation.known | known if reservation.known else known

    def _most_debt(self, reservation: Reservation) -> Cost:
        """The cost of a request larger than a quota whose true cost is unknown.

        It is bounded by what the quotas can repay soon.
        """
        cost: Cost = {}
        for entry, amount in zip(self.entries, self.amounts(reservation.cost), strict=True):
            # A cost has one amount per unit. Of several quotas of one unit, the smallest bounds it.
            cost[entry.unit] = min(amount, DEBT_MAX * entry.meter.most, cost.get(entry.unit, math.inf))
        return cost

    def settled_amounts(self, reservation: Reservation, actual: Cost) -> list[float]:
        """The true cost as one number per entry; units that ``actual`` leaves out stay as they are charged now."""
        if TOKENS in self.entries.units:
            actual = with_sum(reservation.cost if reservation.known is None else reservation.cost_now, actual)
        return list(map(actual.get, self.entries.units, reservation.amounts))  # quotas may have been added since

    def true_cost(self, cost: Cost, actual: Cost | None) -> Cost:
        """The true cost of an attempt, for the units of its ``cost`` and of the quotas; see :meth:`settle`."""
        true = merged(cost, actual) if actual else cost
        amounts = dict(zip(self.entries.units, self.amounts(true), strict=True))
        return {unit: amount for unit, amount in true.items() if unit in cost or unit in amounts} | amounts

    def keep_open(self, reservation: Reservation) -> None:
        """Add an open reservation that was charged elsewhere."""
        self._open[reservation] = None

    def owns(self, reservation: Reservation) -> bool:
        """Whether ``reservation`` is open here."""
        return reservation in self._open

    @property
    def open_reservations(self) -> list[Reservation]:
        """All open reservations."""
        return list(self._open)

    def sent_beside(self, reservation: Reservation) -> list[int]:
        """When the attempts of the other open reservations were sent."""
        return [one.granted_ns for one in self._open if one is not reservation]

    def in_use(self, index: int) -> float:
        """The charges of all open reservations to the quota at ``index``."""
        return sum(r.amounts[index] for r in self._open if index < len(r.amounts))

    def open_before(self, index: int, at_ns: int) -> float:
        """The charges to the quota at ``index`` of the open reservations that were granted at ``at_ns`` or before."""
        return sum(r.amounts[index] for r in self._open if r.granted_ns <= at_ns and index < len(r.amounts))

    def cancel(self, now_ns: int, reservation: Reservation) -> None:
        """Close a reservation whose request was never sent."""
        if self.close(now_ns, reservation):
            self.pause.unsent(now_ns, reservation)
            for i, reserved in enumerate(reservation.amounts):
                if reserved:
                    self.entries[i].meter.unsent(now_ns, reservation.marks[i], reserved)
                    self.entries[i].spent -= reserved

    def lose_old(self, now_ns: int) -> int:
        """Close the reservations whose time-to-live is over, as lost and charged in full; return how many."""
        late = []
        for reservation in self._open:
            # The oldest come first, so the first one that is in time ends the search.
            if reservation.lost_at_ns > now_ns:
                break
            late.append(reservation)
        for reservation in late:
            self.close(now_ns, reservation)
            for entry, mark in zip(self.entries, reservation.marks, strict=False):
                entry.meter.lost(now_ns, mark)
        # With nothing in flight, the next one is granted now at the earliest, and lost a time-to-live later.
        self.loss_check_ns = min(self.next_loss_ns, now_ns + self.ttl_ns)
        return len(late)

    @property
    def next_loss_ns(self) -> int:
        """When the oldest open reservation is lost."""
        for oldest in self._open:  # faster than next() of a generator
            return oldest.lost_at_ns
        return FAR_NS

    def adopt(self, now_ns: int, index: int, amount: float, period_s: float | None = None) -> None:
        """Change the amount, and the period (``None``: as it is), of the quota at ``index``.

        A lower given limit rises with it.
        """
        entry = self.entries[index]
        entry.meter.become(now_ns, entry.meter.quota.with_amount(amount, period_s))
        entry.name = str(entry.meter.quota)
        self.raise_given(index)

    def raise_given(self, index: int) -> None:
        """Take the present limit at ``index`` for the given one, if it is higher: the user has raised it elsewhere."""
        entry = self.entries[index]
        m = entry.meter
        if m.quota.amount > entry.given:
            entry.given = m.quota.amount
            entry.refused_above = max(entry.refused_above, rounded(m.most / entry.share))

    def add_quota(self, now_ns: int, quota: Quota, source: Source = LEARNED) -> None:
        """Charge a further quota, which is the usable part of its limit, from now on.

        Slots are charged with what is in flight, too.
        """
        given = source.kind is SourceKind.GIVEN
        m = new_meter(quota, now_ns, self.headroom_s, gentle=self.gentle, held=quota.unit in self.charged_after)
        # A table or an answer states this limit, and it may be too high.
        if not given and isinstance(m, Bucket) and m.opened < math.inf:
            m.opened /= 2
            m.widen()
        if quota.rule is Rule.SLOTS:
            for reservation in self._open:
                self.charge_open(now_ns, reservation, len(self.entries), m, 1.0)
        # part() returns the quota itself if all of it is used: slots, even quotas, or `usable` is 1.
        share = 1.0 if quota.part(self.usable) is quota else self.usable
        # Only a limit that the user has set turns a request away. About any other limit the provider decides.
        above = rounded(m.most / share) if given else math.inf
        self.entries.append(Entry(m, str(quota), source, quota.amount if given else math.inf, above, share))

    def counts(self, quotas: Iterable[Quota]) -> bool:
        """Whether its quotas are those in ``quotas``, but for their amounts."""
        return [*map(_kind, quotas)] == [_kind(meter.quota) for meter in self.meters]

    def give(self, now_ns: int, quotas: Iterable[Quota]) -> None:
        """Take ``quotas`` of the same kinds, which the user gives in place of these: what is used stays."""
        # Not the usable part of them: only the user's own allowances are given anew, and these are used to the last.
        for entry, quota in zip(self.entries, quotas, strict=True):
            entry.meter.give(now_ns, quota)
            entry.name, entry.given, entry.refused_above = str(quota), quota.amount, rounded(entry.meter.most)

    def lacks(self, now_ns: int) -> dict[Kind, float]:
        """What is used of each quota that is no slots, by its kind."""
        return {_kind(m.quota): m.lack(now_ns) for m in self.meters if not m.holds}

    def use(self, now_ns: int, lacks: Mapping[Kind, float]) -> None:
        """Charge what was used of quotas of the same kinds."""
        for m in self.meters:
            m.charge(now_ns, lacks.get(_kind(m.quota), 0.0))

    def charge_open(self, now_ns: int, reservation: Reservation, index: int, m: Meter, amount: float) -> None:
        """Charge ``amount`` for an open reservation to the meter ``m`` of a quota at ``index`` that was added since."""
        # Quotas that were added between have charged it nothing.
        reservation.amounts += [0.0] * (index - len(reservation.amounts))
        reservation.marks += [0] * (index - len(reservation.marks))
        reservation.amounts.append(amount)
        reservation.marks.append(m.charge(now_ns, amount))

    def spread(self, now_ns: int, index: int, wait_s: float | None = None) -> Spread:
        """Spread the quota at ``index`` evenly: the provider does not count it as a bucket.

        What it lacks from full stays; of a window, its use. Low points, a learned ceiling and held amounts do not stay.

        ``wait_s``: how long the provider asks to wait. What was used is taken for used one period before the end of the
        wait, because then it leaves the period: one unit goes at that end, and the others follow evenly.
        """
        entry, wait_ns = self.entries[index], round((wait_s or 0.0) * NS)
        used_ns = now_ns if wait_s is None else now_ns + min(wait_ns - round(entry.meter.quota.period_s * NS), 0)
        spread = Spread(entry.meter.quota, used_ns, self.headroom_s)
        self._replace(used_ns, entry, spread, entry.meter.lack(now_ns))
        if wait_s is not None:
            # At this full_at_ns, earliest() lets one unit go exactly at the end of the wait.
            one_ns = now_ns + wait_ns - math.ceil(spread.ns_per_unit)
            spread.full_at_ns = max(spread.full_at_ns, one_ns + spread.reach_ns)
        return spread

    def count_restarts(self, now_ns: int, index: int, stop_ns: int, used: float, *, whole: bool = False) -> None:
        """Count the quota at ``index`` as one that restarts at ``stop_ns``, with ``used`` of its present window.

        ``whole``: whether all of that may go at once.
        """
        entry = self.entries[index]
        assert isinstance(entry.meter, Bucket)  # no other meter has a tracker, which learns of restarts
        # Of a bucket `opened` is what may go at once. Of a window it counts what has gone, too.
        opened = math.inf if whole else entry.meter.opened + used
        restarting = Restarting(entry.meter.quota, now_ns, self.headroom_s, stop_ns, opened)
        self._replace(now_ns, entry, restarting, used)
        # First: if the stated restart has passed, the present window is entered with nothing used.
        restarting.roll(now_ns)
        restarting.counted = used  # the log that it may have taken does not say what belongs to the present window

    def _replace(self, now_ns: int, entry: Entry, spread: Spread, used: float) -> None:
        """Count ``entry`` with ``spread``, a new meter, from now on.

        It takes the log of the present one, or ``used``.
        """
        if isinstance(entry.meter, Spread):
            spread.take_log(entry.meter)
        else:
            spread.charge(now_ns, used)
        entry.meter = spread

    def count_as_bucket(self, now_ns: int, index: int) -> Bucket:
        """Count the quota at ``index`` as a bucket, full."""
        entry = self.entries[index]
        # Full, because the caller takes the level next, from the answer or from the reply of the store. WEAK: where the
        # provider states more than the given limit, no level is taken, and the answers to later attempts correct it.
        bucket = Bucket(entry.meter.quota, now_ns, self.headroom_s, gentle=self.gentle)
        entry.meter = bucket
        return bucket

    def close(self, now_ns: int, reservation: Reservation) -> bool:
        """Close ``reservation`` and keep its charge; whether it was open."""
        if not reservation.open:
            return False
        reservation.open = False
        del self._open[reservation]
        # Its amounts may be fewer, because quotas are added. They are never removed.
        assert len(reservation.amounts) <= len(self.entries)
        for i in self.entries.holding:
            if i < len(reservation.amounts):  # quotas may have been added since
                m, amount, marks = self.entries[i].meter, reservation.amounts[i], reservation.marks
                if i < len(marks):
                    marks[i] = m.release(now_ns, marks[i], amount)
                else:  # it was charged elsewhere
                    m.release(now_ns, 0, amount)
        return True


def total_tokens(cost: Cost) -> float:
    """The ``tokens`` of ``cost``; the sum of its input and output where it does not name them."""
    return cost[TOKENS] if TOKENS in cost else cost.get(INPUT_TOKENS, 0.0) + cost.get(OUTPUT_TOKENS, 0.0)


def merged(cost: Cost, actual: Cost) -> Cost:
    """``cost`` with the units of ``actual`` replaced, and the sum of its tokens; see :func:`with_sum`."""
    return cost | with_sum(cost, actual)


def with_sum(cost: Cost, actual: Cost) -> Cost:
    """``actual``, with ``tokens`` as the sum if it names input or output tokens alone.

    ``cost`` has the one that it leaves out.
    """
    read, written = actual.get(INPUT_TOKENS), actual.get(OUTPUT_TOKENS)
    if TOKENS in actual or (read is None and written is None):
        return actual
    if read is None:
        read = cost.get(INPUT_TOKENS, 0.0)
    if written is None:
        written = cost.get(OUTPUT_TOKENS, 0.0)
    return {**actual, TOKENS: read + written}


def amount_of(unit: str, cost: Cost) -> float:
    """The amount of ``unit`` in ``cost``, as a quota on it counts it; see :meth:`Ledger.amounts`."""
    return cost[unit] if unit in cost else _left_out(unit, cost)


def _left_out(unit: str, cost: Cost) -> float:
    """The amount of a ``unit`` that ``cost`` does not name."""
    if unit == TOKENS:
        return total_tokens(cost)
    return 1.0 if unit in (REQUESTS, CONCURRENCY) else 0.0


def _kind(quota: Quota) -> Kind:
    return quota.unit, quota.period_s, quota.rule
