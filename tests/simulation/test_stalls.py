"""A network that holds what is sent for 5 s and then delivers it at once: few of the held requests are refused."""

import pytest
from tests.simulation.fleet import Fleet

from grids import some

BOTH, THERE, BACK = "requests and answers", "requests", "answers"
SECOND, TRAILING = {"rule": "quantised", "quantum_s": 1}, {"rule": "sliding"}

# requests a minute, true rule, latency, what is held, refused after the stall at most; without the probe it was
ROWS = [
    (600, SECOND, 0.05, BOTH, 6),  # 40
    (600, SECOND, 0.05, THERE, 7),  # 40
    (600, SECOND, 0.05, BACK, 0),  # 0
    (600, SECOND, 1.0, BOTH, 14),  # 40
    (3_000, SECOND, 0.05, BOTH, 10),  # 202
    (3_000, SECOND, 1.0, BOTH, 40),  # 201
    (600, TRAILING, 0.05, BOTH, 0),
    (600, TRAILING, 1.0, BOTH, 0),
]


@pytest.mark.parametrize(("rate", "rule", "latency_s", "held", "most"), some(ROWS, ROWS[0], ROWS[2]))
def test_after_a_stall_of_the_network_few_are_refused(rate, rule, latency_s, held, most):
    limit = f"{rate} requests/min"
    settings = {"limits": {"m": limit}, "latency_s": latency_s, "jitter": 0.3, **rule}
    stalls = [(30, 5, held)]
    report = Fleet(limit, settings, jobs=rate, words=(20, 30), stalls=stalls).run()
    late = [at_s for at_s in report.refused if at_s > 30]
    assert report.lost == 0
    assert len(late) <= most, late
    assert not report.pool.silence.since_ns


@pytest.mark.parametrize("latency_s", some([0.02, 0.5, 5.0, 20.0], 0.5))
def test_a_faithful_provider_never_makes_a_pool_silent(latency_s):
    settings = {"limits": {"m": "500 requests/min,400k tokens/min"}, "latency_s": latency_s, "jitter": 0.9}
    report = Fleet("500 requests/min,400k tokens/min", settings, jobs=600).run()
    assert not report.pool.notices
