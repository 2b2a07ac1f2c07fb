"""The limits of a pool that neither the user nor an answer states: they are found from the outcomes of its attempts."""

from __future__ import annotations

from collections import deque

from paceline.core.charges import Charges
from paceline.core.entry import Entry
from paceline.core.ledger import Ledger
from paceline.core.quota import CONCURRENCY, NS, OWN_RULES, REQUESTS
from paceline.core.results import Refusal, Reservation, Source, SourceKind
from paceline.core.unstated.chance import Shedding
from paceline.core.unstated.in_flight import InFlightBound, blame
from paceline.core.unstated.measured import InFlightMeter, RateMeter
from paceline.core.unstated.rate import RatePhase

MEASURED = Source(SourceKind.LEARNED, "measured")
"""The source of what was found."""


class Unstated:
    """The entries of the unstated limits of a ledger: a rate for each unit, and a number in flight.

    A ledger charges their meters like any other. Where a store charges the others,
    :class:`~paceline.shared.capacity.SharedCapacity` charges these itself: by :meth:`earliest`, :meth:`without`,
    :meth:`sent`, :meth:`answered` and :meth:`unsent`.

    Args:
        ledger: The ledger.
        notices: Takes what the user should know.

    Attributes:
        meters: Their meters.
        shedding: What the refusals for want of capacity have shown.
        admitted: How many attempts were sent, and not refused so far.
    """

    def __init__(self, ledger: Ledger, notices: deque[str]) -> None:
        self._ledger, self._notices = ledger, notices
        self._rates: dict[str, RateMeter] = {}  # by unit
        self._in_flight: InFlightMeter | None = None
        self.meters: list[RateMeter | InFlightMeter] = []
        self.shedding = Shedding()
        self.admitted = Charges()
        self._said: set[str] = set()  # the units that a notice has named

    def measures(self, unit: str | None) -> bool:
        """Whether the limit of ``unit`` is measured; ``None``: whether any rate is."""
        return bool(self._rates) if unit is None else any(meter.quota.unit == unit for meter in self.meters)

    def admits_others(self, reservation: Reservation) -> bool:
        """Whether an attempt was admitted, or may be, that is not the one of ``reservation``."""
        return any(meter.admits_others(reservation) for meter in self._rates.values())

    def refutes(self, now_ns: int, unit: str, amount: float, period_s: float) -> bool:
        """Whether more of ``unit`` was admitted than ``amount`` per period allows."""
        return unit in self._rates and self._rates[unit].refutes(now_ns, amount, period_s)

    def finds_chance(self, unit: str) -> bool:
        """Whether the measured rate of ``unit`` has found that attempts are refused by chance."""
        return unit in self._rates and self._rates[unit].rate.chance.share > 0

    def begin(self, now_ns: int, unit: str | None = None, *, as_stated: bool = False) -> None:
        """Measure the rate of ``unit``, or the number in flight, from now on.

        A rate counts what was admitted before: no measurement was needed until now, and it opens no slower for that.

        Args:
            now_ns: The present.
            unit: The unit; ``None``: the rate of requests and the number in flight.
            as_stated: Whether the measurement begins with the rate of the stated limit.
        """
        for each in (REQUESTS, CONCURRENCY) if unit is None else (unit,):
            if each == CONCURRENCY:
                if self._in_flight is None:
                    self._in_flight = InFlightMeter(len(self._ledger.entries))
                    for one in sorted(self._ledger.open_reservations, key=lambda one: one.granted_ns):
                        self._ledger.charge_open(one.granted_ns, one, self._in_flight.index, self._in_flight, 1.0)
                    self._add(self._in_flight)
            elif each not in self._rates:
                meter = self._rates[each] = RateMeter(len(self._ledger.entries), each, now_ns)
                self._add(meter)
                if as_stated and (stated_rate := self._told(each)):
                    meter.rate.expect(now_ns, stated_rate)
                if lately := self.admitted.since(now_ns - round(meter.quota.period_s * NS)):
                    meter.rate.count_before(lately[0][0], sum(attempts for _, attempts in lately))

    def _told(self, unit: str) -> float:
        """The rate of the stated limits of ``unit``, per second; 0 for none, or a day's."""
        quotas = [m.quota for m in self._ledger.meters if m.quota.unit == unit and m.quota.rule not in OWN_RULES]
        return min((quota.rate for quota in quotas if quota.rate and not quota.is_long), default=0.0)

    def _add(self, meter: RateMeter | InFlightMeter) -> None:
        self.meters.append(meter)
        self._ledger.entries.append(Entry(meter, f"{meter.quota.unit}, not measured yet", MEASURED))

    def off(self, now_ns: int, unit: str) -> None:
        """Let what was found of ``unit`` limit nothing from now on: its limit is stated."""
        for meter in self.meters:
            if meter.quota.unit == unit:
                meter.off(now_ns)

    @property
    def is_limiting(self) -> bool:
        """Whether one of these limits holds attempts back now."""
        return any(meter.is_limiting for meter in self.meters)

    def earliest(self, now_ns: int, amounts: list[float]) -> tuple[int, int]:
        """The first instant at which these limits allow ``amounts``, and the index of the entry that binds."""
        return max(
            ((m.earliest(now_ns, amounts[m.index]), m.index) for m in self.meters if amounts[m.index]), default=(0, -1)
        )

    def without(self, amounts: list[float]) -> list[float]:
        """``amounts`` of the other limits alone."""
        others = list(amounts)
        for meter in self.meters:
            others[meter.index] = 0.0
        return others

    def sent(self, now_ns: int, amounts: list[float]) -> list[int]:
        """Charge ``amounts`` to these limits; return a mark for each entry of the ledger."""
        marks = [0] * len(amounts)
        for meter in self.meters:
            if amounts[meter.index]:
                marks[meter.index] = meter.charge(now_ns, amounts[meter.index])
        return marks

    def answered(self, now_ns: int, reservation: Reservation) -> None:
        """Count an answer that is no refusal."""
        for meter in self.meters:
            if meter.index < len(reservation.marks):
                meter.answered(now_ns, reservation.marks[meter.index], 0.0)

    def unsent(self, now_ns: int, reservation: Reservation) -> None:
        """Take back an attempt that was not sent."""
        for meter in self.meters:
            if meter.index < len(reservation.marks):
                meter.unsent(now_ns, reservation.marks[meter.index], 0.0)

    def timed_out(self, now_ns: int, reservation: Reservation) -> bool:
        """Count an attempt whose caller has given up; whether too many were in flight to be answered in time."""
        if self._in_flight is None or not self._in_flight.timed_out(now_ns, reservation):
            return False
        self._describe(self._in_flight)
        return True

    def explains_full(self, reservation: Reservation, refusal: Refusal) -> bool:
        """Whether what was found explains a refusal for want of capacity: a number in flight, or a rate."""
        in_flight = self._in_flight
        if in_flight is not None and (in_flight.fills_queue(reservation, refusal) or in_flight.bounds(reservation)):
            return True
        return self.shedding.is_rate

    def refused_by_full(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> bool:
        """Learn from a refusal for want of capacity, beside a stated limit, too; whether there are more entries.

        A queue is full, as many are in flight as the servers have slots, or they refuse for a rate. Else it is chance.
        """
        before = len(self.meters)
        self.begin(now_ns, CONCURRENCY)
        in_flight = self._in_flight
        assert in_flight is not None
        if in_flight.fills_queue(reservation, refusal):
            in_flight.refused_by_queue(reservation)
        elif self.shedding.is_rate or not in_flight.refused_by_full(now_ns, reservation):
            self._shed(now_ns, reservation, refusal, in_flight.bound)
        self.explained(now_ns, reservation)
        self._describe(in_flight)
        return len(self.meters) > before

    def _shed(self, now_ns: int, reservation: Reservation, refusal: Refusal, bound: InFlightBound) -> None:
        """Learn from a refusal for want of capacity that the number in flight does not explain: a rate, or chance.

        If it is chance, neither the rates nor the ``bound`` limit anything from then on.
        """
        shedding, was_rate = self.shedding, self.shedding.is_rate
        if rate := shedding.refused(now_ns, reservation.number):
            self.begin(now_ns)
            self._rates[REQUESTS].rate.expect(now_ns, rate)
            self._describe(self._rates[REQUESTS])
        elif shedding.is_rate:
            self.refused(now_ns, reservation, refusal)
            measured = self._rates[REQUESTS].rate
            measured.cycle.steady = 1.0  # the next test comes as soon as if none had found the same rate
            by_chance = measured.chance.share > 0
            if by_chance or measured.phase is RatePhase.BLOCKED:
                shedding.end(now_ns, by_chance=by_chance)
        if was_rate and not shedding.is_rate:
            bound.forget()
            for meter in self._rates.values():
                meter.rate.reopen(now_ns)

    def explained(self, now_ns: int, reservation: Reservation) -> None:
        """Count a refusal that has another reason than these limits."""
        self.admitted.log(now_ns, self.admitted.total - 1)
        for meter in self.meters:
            meter.explained(now_ns, reservation)
        for rate in self._rates.values():
            if not any(reservation.marks[rate.index : rate.index + 1]):  # it was sent before the measurement began
                rate.rate.refused_before(reservation.granted_ns)

    def retracted(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> None:
        """Count a refusal that is about its request, and take back the earlier ones of that request."""
        self.explained(now_ns, reservation)
        if self._rates and (meter := self._rates.get(refusal.unit or self._guilty)) is not None:
            meter.rate.retract(now_ns, refusal.retracts)

    def refused(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> bool:
        """Learn from a refusal that no stated limit explains: it is about the rate of a unit, or the number in flight.

        Returns:
            Whether there are more entries, because it names another unit.
        """
        before = len(self.meters)
        if self._in_flight is not None and refusal.kind.about_rate and refusal.unit in (None, CONCURRENCY):
            self._in_flight.bound.refused_for_rate()
        if refusal.unit == CONCURRENCY:
            self._bound(now_ns, reservation)
        else:
            self._blame(now_ns, reservation, refusal)
        self.explained(now_ns, reservation)  # the others
        for meter in self.meters:
            self._describe(meter)
        return len(self.meters) > before

    def _bound(self, now_ns: int, reservation: Reservation) -> None:
        """Bound the number in flight: a refusal has named it."""
        in_flight = self._in_flight
        if in_flight is not None and (note := in_flight.take(reservation)) is not None:
            in_flight.bound.named(now_ns, note)

    def _blame(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> None:
        """Blame the rate of the unit that a refusal names.

        If it names none, the number in flight may be the reason, too.
        """
        if refusal.unit is not None:
            self.begin(now_ns, refusal.unit)
        rate, in_flight = self._rates[refusal.unit or self._guilty], self._in_flight
        rate_note = rate.take(reservation)
        if rate_note is None:  # it was sent before the measurement began
            return
        asked_s = refusal.retry_after_s
        # Of several waits the shortest counts, until its probe is refused.
        if refusal.sooner_s and rate.rate.phase is not RatePhase.BLOCKED:
            asked_s = refusal.sooner_s
        asked_ns = round((asked_s or 0.0) * NS) or None  # less than a nanosecond is no wait
        note = None if in_flight is None or refusal.unit is not None else in_flight.take(reservation)
        if in_flight is None or note is None:
            rate.rate.refused(now_ns, rate_note, asked_ns)
        else:
            blame(now_ns, rate.rate, rate_note, in_flight.bound, note, asked_ns)

    @property
    def _guilty(self) -> str:
        """The unit whose rate is blamed for a refusal that names none.

        The first one with a measured rate, or else the first.
        """
        return next((unit for unit, meter in self._rates.items() if meter.found), next(iter(self._rates)))

    def _describe(self, meter: RateMeter | InFlightMeter) -> None:
        """Name the entry by what was found; the first time, say so to a user whose stated limits do not explain it."""
        if (found := meter.found) is not None:
            meter.describe(found)
            entry = self._ledger.entries[meter.index]
            entry.name = str(meter.quota)
            if entry.unit not in self._said and len(self._ledger.entries) > len(self.meters):  # some limit is stated
                self._said.add(entry.unit)
                self._notices.append(f"no known limit on {entry.unit} explains the refusals: paceline measures it")
