"""The bound on the number in flight by itself."""

from __future__ import annotations

from math import inf

import pytest
from core_providers import T0
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.quota import NS
from paceline.core.rate import Finding, MeasuredRate
from paceline.core.window import FULL_MAX_N, FULL_N, RECENT_N, ROW_MAX, InFlightWindow, blame

SOON_NS = NS // 10


class Server:
    """A window, and a provider with slots: an attempt is refused if all are taken. Outcomes come in order."""

    def __init__(self, slots: int) -> None:
        self.window, self.slots, self.now_ns = InFlightWindow(), slots, T0
        self.served, self.sizes, self.refused, self.sets = [], [], 0, 0

    def send(self) -> bool:
        """Send one attempt; whether it was admitted."""
        self.now_ns += SOON_NS
        note = self.window.sent(self.now_ns)
        self.sizes.append(self.window.size)
        if len(self.served) < self.slots:
            self.served.append(note)
            return True
        self.refused += 1
        if not self.window.explains(self.now_ns, note):
            self.sets += self.window.finds(note)
        return False

    def answer(self) -> None:
        """Answer the oldest attempt that is served."""
        self.now_ns += 3 * NS
        self.window.answered(self.now_ns, self.served.pop(0))

    def fill(self) -> None:
        """Send what may go, up to the first refusal."""
        while self.window.has_room and self.send():
            pass


def bounded(slots: int = 5) -> Server:
    """A server whose slots have been found."""
    server = Server(slots)
    while server.window.size == inf:
        server.fill()
        server.answer()
    assert server.window.size == slots
    return server


def test_three_refusals_that_only_the_number_in_flight_explains_set_the_bound():
    server = Server(5)
    for witnesses in (1, 2):
        server.fill()
        assert (server.window.size, server.window.witnesses) == (inf, witnesses)
        server.answer()
    server.fill()
    assert (server.window.size, server.sets, server.refused) == (5, 1, 3)
    assert server.window.in_flight == 5
    assert not server.window.has_room


def test_refusals_in_a_row_are_one_witness():
    server = Server(5)
    server.fill()
    server.now_ns += 2 * NS  # it is known of the first five that they were admitted
    for _ in range(20):
        server.send()
    assert (server.window.size, server.window.witnesses) == (inf, 2)


def test_an_attempt_that_was_alone_is_not_refused_for_the_number_in_flight():
    server = Server(0)
    for _ in range(20):
        server.send()
    assert server.window.size == inf
    assert server.window.witnesses == 0


def test_one_admitted_attempt_with_as_many_in_flight_is_proof_against_the_bound():
    server = Server(5)
    server.fill()
    assert (server.window.border, server.window.witnesses) == (5, 1)
    server.answer()
    server.slots = 6
    server.fill()
    server.answer()
    assert server.send()
    assert (server.window.border, server.window.witnesses) == (inf, 0)


def test_a_refusal_with_no_more_in_flight_than_were_admitted_is_no_witness():
    server = Server(5)
    server.fill()
    server.answer()
    server.slots = 3
    assert not server.send()
    assert (server.window.witnesses, server.window.border) == (0, inf)


def test_an_old_attempt_does_not_bound_what_is_compared():
    server = Server(20)
    server.fill()
    server.slots = 3
    while len(server.served) > 2:
        server.answer()
    for _ in range(2 * RECENT_N):
        server.fill()
        server.answer()
    assert server.window.size == 3


def test_refused_attempts_were_not_in_flight():
    window = InFlightWindow()
    notes = [window.sent(T0 + i) for i in range(10)]
    assert [note.most for note in notes] == list(range(10))
    for note in notes[5:8]:
        window.explains(T0 + SOON_NS, note)
    assert (notes[8].most, notes[9].most) == (5, 6)
    assert [note.most for note in notes[:5]] == list(range(5))
    assert window.in_flight == 7


def test_an_attempt_that_was_not_sent_was_not_in_flight():
    window = InFlightWindow()
    notes = [window.sent(T0 + i) for i in range(3)]
    window.unsent(notes[1])
    assert (window.in_flight, notes[2].most, notes[2].least) == (2, 1, 1)
    window.sent(T0 + 10 * NS)
    assert window.admitted_count == 2


def test_an_answer_leaves_open_whether_an_attempt_on_its_way_had_one_less_in_flight():
    window = InFlightWindow()
    first = window.sent(T0)
    window.explains(T0 + SOON_NS, window.sent(T0))  # refusals take this long
    early, late = window.sent(T0 + NS), window.sent(T0 + NS + SOON_NS // 4)
    window.answered(T0 + NS + SOON_NS, first)
    assert (early.most, early.least) == (1, 1)
    assert (late.most, late.least) == (2, 1)
    latest = window.sent(T0 + 9 * NS)
    window.answered(T0 + 9 * NS, window.sent(T0 + 9 * NS))
    assert (latest.most, latest.least) == (2, 1)


def test_an_attempt_is_admitted_when_its_refusal_is_overdue_or_with_its_answer():
    window = InFlightWindow()
    one, two = window.sent(T0), window.sent(T0 + NS // 2)
    window.answered(T0 + NS // 2, two)
    assert (window.admitted_count, window.highest) == (1, 1)
    window.sent(T0 + NS)
    assert window.admitted_count == 1
    window.sent(T0 + NS + 1)
    assert window.admitted_count == 2
    window.answered(T0 + 30 * NS, one)
    assert window.admitted_count == 2
    assert window.in_flight == 2


def test_a_refusal_that_comes_late_frees_its_place():
    window = InFlightWindow()
    slow, later = window.sent(T0), window.sent(T0 + 2 * NS)
    assert window.highest == 0
    assert window.admitted_count == 1  # as far as is known
    assert not window.explains(T0 + 3 * NS, slow)
    assert (window.in_flight, later.most, later.least) == (1, 0, 0)


def test_the_bound_grows_by_one_while_it_is_full_and_falls_with_a_refusal():
    server = bounded(5)
    before, server.sizes = server.refused, []
    for _ in range(600):
        server.fill()
        server.answer()
    assert set(server.sizes) == {5, 6}
    assert server.window.full_needed == FULL_MAX_N
    assert 6 <= server.refused - before <= 10  # after 4, 8, 16, 32, 64, 120, 120, ... attempts that filled it
    assert FULL_N == 4


def test_the_bound_grows_fast_if_the_provider_has_more():
    server = bounded(5)
    server.slots = 500
    for _ in range(400):
        server.fill()
        server.answer()
    assert server.window.size > 50


def test_the_bound_returns_to_the_last_refused_number_and_goes_on_by_one():
    server = bounded(10)
    server.window.size = 4.0  # as after refusals with few in flight
    while len(server.served) > 3:
        server.answer()
    server.sizes = []
    for _ in range(200):
        server.fill()
        server.answer()
    assert sorted(set(server.sizes)) == [4, 5, 7, 10, 11]


def test_an_idle_caller_does_not_test_the_bound():
    server = bounded(5)
    before = server.refused
    while server.served:
        server.answer()
    for _ in range(200):
        server.send()
        server.answer()
    assert server.window.size == 5
    assert server.refused == before


def test_attempts_in_flight_at_a_refusal_do_not_lower_the_bound_again():
    window = bounded(50).window
    notes = [window.sent(T0 + 10**6 * NS) for _ in range(60)]
    assert window.explains(T0 + 10**6 * NS + SOON_NS, notes[-1])
    size = window.size
    for note in notes[-9:-1]:
        assert window.explains(T0 + 10**6 * NS + SOON_NS, note)
    assert window.size == size


def test_the_bound_explains_four_refusals_in_a_row_and_no_more():
    server = bounded(10)
    server.slots = 0
    findings = []
    while server.window.in_flight > 1:
        server.now_ns += NS
        server.window.answered(server.now_ns, server.served.pop(0))
        findings.append(server.window.explains(server.now_ns, server.window.sent(server.now_ns)))
    assert findings == [True] * ROW_MAX + [False] * (len(findings) - ROW_MAX)


def test_the_bound_does_not_explain_a_refusal_with_as_many_in_flight_as_were_admitted():
    server = bounded(5)
    for _ in range(3):
        server.answer()
        server.fill()
    server.answer()
    server.slots = 3
    assert server.window.highest == 4
    note = server.window.sent(server.now_ns)
    assert not server.window.explains(server.now_ns, note)
    assert server.window.size == 5


def test_the_last_attempt_in_flight_is_not_explained():
    server = bounded(1)
    assert not server.window.explains(server.now_ns, server.window.sent(server.now_ns))
    assert server.window.size == 1


# -- together with the rate


class Both:
    def __init__(self) -> None:
        self.rate, self.window, self.now_ns = MeasuredRate(T0), InFlightWindow(), T0

    def send(self):
        self.now_ns = max(self.now_ns, self.rate.earliest_ns(self.now_ns))
        return self.rate.sent(self.now_ns, 1.0), self.window.sent(self.now_ns)

    def refuse(self, notes) -> Finding | None:
        return blame(self.now_ns, self.rate, notes[0], self.window, notes[1])


def test_the_rate_opens_again_when_the_number_in_flight_explains_its_refusals():
    both, served, findings = Both(), [], []
    while both.window.size == inf:
        notes = both.send()
        if len(served) < 5:
            served.append(notes)
            continue
        findings.append(both.refuse(notes))
        both.now_ns += NS
        both.rate.answered(both.now_ns, served[0][0])
        both.window.answered(both.now_ns, served.pop(0)[1])
    assert findings[-1] is None
    assert None not in findings[:-1]
    assert both.window.size == 5
    assert (both.rate.phase.value, both.rate.cycle.top) == ("opening", 0.0)


def test_a_refusal_that_the_bound_explains_is_only_counted_by_the_rate():
    both = Both()
    both.window.size = 2.0
    one, two, three = both.send(), both.send(), both.send()
    before = both.rate.rate
    assert both.refuse(three) is None
    assert both.rate.rate == before
    assert both.rate.admitted_total == 2
    assert (one[1].most, two[1].most) == (0, 1)


@pytest.mark.parametrize("finding", [Finding.OLD, Finding.LATE, Finding.CHANCE])
def test_a_test_of_the_rate_is_no_witness(monkeypatch, finding):
    both = Both()
    both.send()
    monkeypatch.setattr(MeasuredRate, "refused", lambda *_, **__: finding)
    assert both.refuse(both.send()) is finding
    assert both.window.witnesses == 0


# -- properties


@given(steps=st.lists(st.tuples(st.sampled_from("sssarru"), st.integers(0, NS), st.integers(0, 20)), max_size=200))
def test_what_is_in_flight_is_counted_whatever_happens(steps):
    window, now_ns, open_notes = InFlightWindow(), T0, []
    for what, gap_ns, which in steps:
        now_ns += gap_ns
        if what == "s" and window.has_room:
            open_notes.append(window.sent(now_ns))
        elif what != "s" and open_notes:
            note = open_notes.pop(which % len(open_notes))
            if what == "a":
                window.answered(now_ns, note)
            elif what == "u":
                window.unsent(note)
            elif not window.explains(now_ns, note):
                window.finds(note)
        assert window.in_flight == len(open_notes)
        assert window.size >= 1
        assert all(note.most >= 0 for note in open_notes)
        assert all(note.least <= note.most for note in open_notes)
        assert window.has_room or window.in_flight  # it never stops for good
        assert all(now_ns - note.sent_ns <= 3 * NS for note in window.pending)


@pytest.mark.parametrize("slots", [1, 2, 7, 60])
def test_slots_are_found_and_kept(slots):
    server = bounded(slots)
    sizes = []
    for _ in range(300):
        server.fill()
        sizes.append(server.window.size)
        server.answer()
    assert set(sizes) <= {slots, slots + 1}


def test_a_number_in_flight_that_is_named_is_the_bound_and_its_border():
    window = InFlightWindow()
    notes = [window.sent(T0) for _ in range(6)]
    window.named(T0 + SOON_NS, notes[-1])
    assert (window.size, window.border, window.row) == (5, 5, 0)
    explained = [window.explains(T0 + NS, window.sent(T0 + NS)) for _ in range(ROW_MAX + 1)]
    assert explained == [True] * ROW_MAX + [False]


def test_a_bound_that_was_found_begins_without_evidence():
    window = bounded().window
    assert (window.witnesses, window.full_count, window.step) == (0, 0, 1)
