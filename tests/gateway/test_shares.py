"""The bounds that client keys share: one that does its worst leaves room for the others."""

import pytest
from attack_helpers import answers, read
from test_gateway import Odd

from paceline.gateway import answers as kept
from paceline.gateway import incoming, server
from paceline.gateway.answers import KeptAnswers
from paceline.gateway.shares import Shares
from paceline.gateway.waiting import Identity
from waits import until


def fill(shares, owner, most=1_000):
    """Use all that ``owner`` may, one by one; returns how much that is."""
    used = 0
    while shares.fits(owner, 1, most):
        shares.use(owner, 1)
        used += 1
    return used


class TestShares:
    def test_each_key_leaves_a_quarter(self):
        shares = Shares()
        assert [fill(shares, key) for key in "abc"] == [750, 187, 47]
        assert shares.fits("d", 1, 1_000)
        shares.use("a", -750)
        assert 187 + fill(shares, "b") == (1_000 - 47) * 3 // 4

    def test_without_client_keys_there_are_no_others(self):
        shares = Shares()
        assert fill(shares, "") == 1_000
        assert not shares.fits("a", 1, 1_000)

    def test_the_first_of_a_key_only_needs_room(self):
        shares = Shares()
        assert shares.fits("a", 1, 1)
        assert not shares.fits("a", 2, 1)

    def test_what_is_read_of_the_answers_of_one_key_leaves_room(self, monkeypatch):
        monkeypatch.setattr(kept, "ALL_MAX", 4_000)
        answers = KeptAnswers()

        def read(key):
            noted = answers.noted(Identity(key, b"1"))
            noted.add(b"x" * 1_000)
            return noted

        alice = [read("alice") for _ in range(4)]
        assert [one.body is None for one in alice] == [False, False, False, True]
        assert read("bob").body
        assert not read("alice").body
        for one in alice[:2]:
            one.forget()
        assert read("alice").body


class TestServed:
    """alice's requests wait; bob's are sent to another model."""

    @pytest.fixture
    def start(self, serve):
        return lambda **given: serve(Odd(), limits={"slow": "1 requests/day"}, **given)

    @pytest.fixture
    def ask(self, keys, send_chat):
        secrets = {name: keys.add(name) for name in ("alice", "bob")}
        return lambda running, name, model="gpt-5", **fields: send_chat(running, secrets[name], model=model, **fields)

    @pytest.fixture
    def wait(self, ask):
        def wait(running, count, **fields):
            """Requests of alice that wait, behind the one of this day; each is there before the next one comes."""
            assert answers(read(ask(running, "alice", "slow"), 1)) == [200]
            waiting = []
            for number in range(count):
                waiting.append(ask(running, "alice", "slow", **fields))
                until(lambda number=number: running.pool("openai/slow")["waiting"] == number + 1)
            return waiting

        return wait

    def test_bodies(self, start, ask, wait, monkeypatch):
        monkeypatch.setattr(incoming, "BODIES_MAX", 400_000)
        running = start()
        waiting = wait(running, 2, user="x" * 120_000)
        refused = read(ask(running, "alice", "slow", user="x" * 120_000), 1)
        assert answers(refused) == [503]
        assert b"the bodies of this key's requests are too large" in refused
        assert answers(read(ask(running, "bob", user="x" * 120_000), 1)) == [200]
        for one in waiting:
            one.close()  # its place is kept, and its body
        until(lambda: len(running.dispatch.held.places) == 2)
        assert answers(read(ask(running, "bob", user="x" * 120_000), 1)) == [200]

    def test_connections(self, start, ask, wait, monkeypatch):
        monkeypatch.setattr(server, "CONNECTIONS_MAX", 4)
        running = start()
        wait(running, 3)
        refused = read(ask(running, "alice"), 1)
        assert answers(refused) == [503]
        assert b'"paceline_busy"' in refused
        assert answers(read(ask(running, "bob"), 1)) == [200]
        until(lambda: running.dispatch._under_way.total == 3)

    def test_waiting_requests(self, start, ask, wait):
        running = start(waiting_max=4)
        wait(running, 3)
        refused = read(ask(running, "alice", "slow"), 1)
        assert answers(refused) == [429]
        assert b'"paceline_queue_full"' in refused
        ask(running, "bob", "slow")
        until(lambda: running.pool("openai/slow")["waiting"] == 4)
        assert answers(read(ask(running, "bob", "slow"), 1)) == [429]
