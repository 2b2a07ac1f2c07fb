"""Whether full servers refuse for a rate, or a share of the attempts by chance."""

import random

import pytest

from paceline.core.quota import NS
from paceline.core.unstated.chance import ALARM, LASTS_NS, Shedding


class Server:
    """Ten attempts a second before a server that admits the first ``rate`` of each second, or refuses a ``share`` by chance."""

    def __init__(self, rate=10.0, share=0.0, seed=1):
        self.rate, self.share, self.dice = rate, share, random.Random(seed)
        self.shedding, self.now_ns, self.found = Shedding(), 0, []

    def run(self, attempts, refuses=None):
        """Send attempts until a rate is found, or all are sent."""
        for n in range(attempts):
            self.now_ns += NS // 10
            self.shedding.sent += 1
            refused = n % 10 >= self.rate or self.dice.random() < self.share if refuses is None else refuses(n)
            if refused and (rate := self.shedding.refused(self.now_ns, self.shedding.sent)):
                self.found.append(rate)
                return


@pytest.mark.parametrize("rate", [1, 2])
def test_a_rate_is_found_where_retries_are_refused_for_it(rate):
    server = Server(rate=rate)
    server.run(1_000)
    [found] = server.found
    assert found == pytest.approx(rate, rel=0.25)
    assert server.shedding.is_rate
    assert server.now_ns < 15 * NS / rate


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5])
@pytest.mark.parametrize("seed", range(5))
def test_chance_is_not_taken_for_a_rate(share, seed):
    server = Server(share=share, seed=seed)
    server.run(10_000)
    assert not server.found


def test_a_server_that_admits_nothing_has_no_rate():
    server = Server(rate=0)
    server.run(1_000)
    assert not server.found
    assert server.shedding.weight > ALARM


def tried(**server):
    one = Server(**server)
    one.run(1_000)
    assert one.shedding.is_rate
    return one


def test_refusals_of_attempts_that_were_sent_before_it_was_found_count_for_nothing():
    server = tried(rate=2)
    for number in range(server.shedding.sent):
        server.shedding.refused(server.now_ns, number)
    assert server.shedding.is_rate


def test_a_rate_is_found_anew_after_a_time_that_doubles():
    server = tried(rate=2)
    for n in range(1, 4):
        server.now_ns += 2 ** (n - 1) * LASTS_NS
        server.run(1_000)
        assert len(server.found) == 1 + n


@pytest.mark.parametrize("outage_s", [60, 600])
def test_an_outage_is_no_part_of_the_time_in_which_a_rate_is_measured(outage_s):
    server = Server(rate=2)
    server.run(100, lambda n: True)
    server.now_ns += outage_s * NS
    server.run(1_000)
    assert server.found == [pytest.approx(2, rel=0.25)]
