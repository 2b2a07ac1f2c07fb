"""The bound on the number in flight by itself."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.quota import NS
from paceline.core.unstated.in_flight import FULL_MAX_N, FULL_N, RECENT_N, ROW_MAX, InFlightBound, blame
from paceline.core.unstated.rate import MeasuredRate

T0, SOON_NS = 1_000 * NS, NS // 10


class Server:
    """A bound, and a provider with slots: an attempt is refused if all are taken. Outcomes come in order."""

    def __init__(self, slots: int) -> None:
        self.bound, self.slots, self.now_ns = InFlightBound(), slots, T0
        self.served, self.sizes, self.refused, self.sets = [], [], 0, 0

    def send(self) -> bool:
        """Send one attempt; whether it was admitted."""
        self.now_ns += SOON_NS
        note = self.bound.sent(self.now_ns)
        self.sizes.append(self.bound.size)
        if len(self.served) < self.slots:
            self.served.append(note)
            return True
        self.refused += 1
        if not self.bound.refused(self.now_ns, note):
            self.sets += self.bound.add_witness(note)
        return False

    def answer(self) -> None:
        """Answer the oldest attempt that is served."""
        self.now_ns += 3 * NS
        self.bound.ended(self.now_ns, self.served.pop(0), answered=True)

    def fill(self) -> None:
        """Send what may go, up to the first refusal."""
        while self.bound.flight.in_flight < self.bound.size and self.send():
            pass

    def go_on(self) -> None:
        """Send what may go, and answer the oldest."""
        self.fill()
        self.answer()


def bounded(slots: int = 5) -> Server:
    """A server whose slots have been found."""
    server = Server(slots)
    while server.bound.size == inf:
        server.go_on()
    assert server.bound.size == slots
    return server


@pytest.fixture
def bound():
    return InFlightBound()


@pytest.fixture
def server():
    """Its five slots have been found."""
    return bounded(5)


def test_three_refusals_that_only_the_number_in_flight_explains_set_the_bound():
    server = Server(5)
    for witnesses in (1, 2):
        server.fill()
        assert (server.bound.size, server.bound.witnesses) == (inf, witnesses)
        server.answer()
    server.fill()
    assert (server.bound.size, server.sets, server.refused) == (5, 1, 3)
    assert server.bound.flight.in_flight == 5
    assert (server.bound.witnesses, server.bound.full_count, server.bound.step) == (0, 0, 1)  # it begins anew


def test_a_refusal_with_no_more_in_flight_than_were_admitted_is_no_witness():
    server = Server(5)
    server.go_on()
    server.slots = 3
    assert not server.send()
    assert (server.bound.witnesses, server.bound.border) == (0, inf)


def test_an_old_attempt_does_not_bound_what_is_compared():
    server = Server(20)
    server.fill()
    server.slots = 3
    while len(server.served) > 2:
        server.answer()
    for _ in range(2 * RECENT_N):
        server.go_on()
    assert server.bound.size == 3


def test_refused_attempts_were_not_in_flight(bound):
    notes = [bound.sent(T0 + i) for i in range(10)]
    assert [note.most for note in notes] == list(range(10))
    for note in notes[5:8]:
        bound.refused(T0 + SOON_NS, note)
    assert (notes[8].most, notes[9].most) == (5, 6)
    assert [note.most for note in notes[:5]] == list(range(5))
    assert bound.flight.in_flight == 7


def test_an_attempt_that_was_not_sent_was_not_in_flight(bound):
    notes = [bound.sent(T0 + i) for i in range(3)]
    bound.flight.lost(notes[1])
    assert (bound.flight.in_flight, notes[2].most, notes[2].least) == (2, 1, 1)
    bound.sent(T0 + 10 * NS)
    assert bound.admitted.count == 2


def test_an_answer_leaves_open_whether_an_attempt_on_its_way_had_one_less_in_flight(bound):
    first = bound.sent(T0)
    bound.refused(T0 + SOON_NS, bound.sent(T0))  # refusals take this long
    early, late = bound.sent(T0 + NS), bound.sent(T0 + NS + SOON_NS // 4)
    bound.ended(T0 + NS + SOON_NS, first, answered=True)
    assert (early.most, early.least) == (1, 1)
    assert (late.most, late.least) == (2, 1)
    latest = bound.sent(T0 + 9 * NS)
    bound.ended(T0 + 9 * NS, bound.sent(T0 + 9 * NS), answered=True)
    assert (latest.most, latest.least) == (2, 1)


def test_an_attempt_is_admitted_when_its_refusal_is_overdue_or_with_its_answer(bound):
    one, two = bound.sent(T0), bound.sent(T0 + NS // 2)
    bound.ended(T0 + NS // 2, two, answered=True)
    assert (bound.admitted.count, bound.admitted.highest) == (1, 1)
    bound.sent(T0 + NS)
    assert bound.admitted.count == 1
    bound.sent(T0 + NS + 1)
    assert bound.admitted.count == 2
    bound.ended(T0 + 30 * NS, one, answered=True)
    assert (bound.admitted.count, bound.flight.in_flight) == (2, 2)


def test_the_bound_grows_by_one_while_it_is_full_and_falls_with_a_refusal(server):
    before, server.sizes = server.refused, []
    for _ in range(600):
        server.go_on()
    assert (set(server.sizes), server.bound.full_needed) == ({5, 6}, FULL_MAX_N)
    assert 6 <= server.refused - before <= 10  # after 4, 8, 16, 32, 64, 120, 120, ... attempts that filled it
    assert FULL_N == 4


def test_the_bound_grows_fast_if_the_provider_has_more(server):
    server.slots = 500
    for _ in range(400):
        server.go_on()
    assert server.bound.size > 50


def test_the_bound_returns_to_the_last_refused_number_and_goes_on_by_one():
    server = bounded(10)
    server.bound.size = 4.0  # as after refusals with few in flight
    while len(server.served) > 3:
        server.answer()
    server.sizes = []
    for _ in range(200):
        server.go_on()
    assert sorted(set(server.sizes)) == [4, 5, 7, 10, 11]


def test_an_idle_caller_does_not_test_the_bound(server):
    before = server.refused
    while server.served:
        server.answer()
    for _ in range(200):
        server.send()
        server.answer()
    assert (server.bound.size, server.refused) == (5, before)


def test_attempts_in_flight_at_a_refusal_do_not_lower_the_bound_again():
    bound = bounded(50).bound
    notes = [bound.sent(T0 + 10**6 * NS) for _ in range(60)]
    assert bound.refused(T0 + 10**6 * NS + SOON_NS, notes[-1])
    size = bound.size
    for note in notes[-9:-1]:
        assert bound.refused(T0 + 10**6 * NS + SOON_NS, note)
    assert bound.size == size


def test_the_bound_explains_four_refusals_in_a_row_and_no_more():
    server = bounded(10)
    server.slots = 0
    findings = []
    while server.bound.flight.in_flight > 1:
        server.now_ns += NS
        server.bound.ended(server.now_ns, server.served.pop(0), answered=True)
        findings.append(server.bound.refused(server.now_ns, server.bound.sent(server.now_ns)))
    assert findings == [True] * ROW_MAX + [False] * (len(findings) - ROW_MAX)


def test_two_refusals_of_full_servers_that_the_bound_does_not_explain_refute_it():
    server = bounded()
    for _ in range(10):
        server.go_on()
    bound, sizes = server.bound, []
    for _ in range(2):
        server.answer()
        assert not bound.refused_by_full(server.now_ns, bound.sent(server.now_ns))
        sizes.append(bound.size)
    assert sizes == [5, inf]
    server.refused = server.sets = 0
    while not server.sets:
        server.go_on()
    assert (server.refused, bound.size) == (7, 5)  # six, after one with no admitted attempt before it


def test_the_last_attempt_in_flight_is_not_explained():
    server = bounded(1)
    assert not server.bound.refused(server.now_ns, server.bound.sent(server.now_ns))
    assert server.bound.size == 1


# -- together with the rate


class Both:
    def __init__(self) -> None:
        self.rate, self.bound, self.now_ns = MeasuredRate(T0), InFlightBound(), T0

    def send(self):
        self.now_ns = max(self.now_ns, self.rate.earliest_ns(self.now_ns))
        return self.rate.sent(self.now_ns, 1.0), self.bound.sent(self.now_ns)

    def refuse(self, notes) -> bool:
        return blame(self.now_ns, self.rate, notes[0], self.bound, notes[1])


def test_the_rate_opens_again_when_the_number_in_flight_explains_its_refusals():
    both, served, findings = Both(), [], []
    while both.bound.size == inf:
        notes = both.send()
        if len(served) < 5:
            served.append(notes)
            continue
        findings.append(both.refuse(notes))
        both.now_ns += NS
        both.rate.answered(both.now_ns, served[0][0])
        both.bound.ended(both.now_ns, served.pop(0)[1], answered=True)
    assert findings[-1]
    assert True not in findings[:-1]
    assert both.bound.size == 5
    assert (both.rate.phase.value, both.rate.cycle.top) == ("opening", 0.0)


def test_a_refusal_that_the_bound_explains_is_only_counted_by_the_rate():
    both = Both()
    both.bound.size = 2.0
    one, two, three = both.send(), both.send(), both.send()
    before = both.rate.rate
    assert both.refuse(three)
    assert (both.rate.rate, both.rate.tally.admitted) == (before, 2)
    assert (one[1].most, two[1].most) == (0, 1)


# -- properties


@given(steps=st.lists(st.tuples(st.sampled_from("sssarru"), st.integers(0, NS), st.integers(0, 20)), max_size=200))
def test_what_is_in_flight_is_counted_whatever_happens(steps):
    bound, now_ns, open_notes = InFlightBound(), T0, []
    for what, gap_ns, which in steps:
        now_ns += gap_ns
        if what == "s" and bound.flight.in_flight < bound.size:
            open_notes.append(bound.sent(now_ns))
        elif what != "s" and open_notes:
            note = open_notes.pop(which % len(open_notes))
            if what == "a":
                bound.ended(now_ns, note, answered=True)
            elif what == "u":
                bound.flight.lost(note)
            elif not bound.refused(now_ns, note):
                bound.add_witness(note)
        assert bound.flight.in_flight == len(open_notes)
        assert bound.size >= 1
        assert all(note.most >= 0 for note in open_notes)
        assert all(note.least <= note.most for note in open_notes)
        assert bound.flight.in_flight < bound.size or bound.flight.in_flight  # it never stops for good
        assert all(now_ns - note.sent_ns <= 3 * NS for note in bound.flight.pending)


def test_a_number_in_flight_that_is_named_is_the_bound_and_its_border(bound):
    notes = [bound.sent(T0) for _ in range(6)]
    bound.named(T0 + SOON_NS, notes[-1])
    assert (bound.size, bound.border, bound.row) == (5, 5, 0)
    explained = [bound.refused(T0 + NS, bound.sent(T0 + NS)) for _ in range(ROW_MAX + 1)]
    assert explained == [True] * ROW_MAX + [False]


def test_all_witnesses_face_the_same_attempts():
    """A peak that was admitted counts until a witness is proved false, also if many attempts with fewer in flight follow."""
    bound, now_ns = InFlightBound(), T0

    def sent(number):
        nonlocal now_ns
        notes = []
        for _ in range(number):
            now_ns += SOON_NS
            notes.append(bound.sent(now_ns))
        return notes

    def refused(note):
        assert not bound.refused(now_ns, note)
        assert not bound.add_witness(note)
        return bound.witnesses

    many = sent(10)
    now_ns += 3 * NS
    assert refused(*sent(1)) == 1
    for note in many:
        bound.ended(now_ns, note, answered=True)
    for _ in range(2 * RECENT_N + 1):
        bound.ended(now_ns, *sent(1), answered=True)
    few = sent(5)
    now_ns += 3 * NS
    assert refused(*sent(1)) == 0  # six were in flight, and ten had been admitted
    assert len(few) == bound.flight.in_flight


def test_where_chance_is_known_there_is_no_bound():
    both = Both()
    notes = [both.send() for _ in range(10)]
    both.bound.named(both.now_ns, notes[-1][1])
    assert both.bound.size == 9
    both.rate.expect(both.now_ns, 10.0)
    both.rate.chance.share = 0.3
    assert not both.refuse(both.send())
    assert both.bound.size == inf
