"""No reading and no refusal, however broken, raises, or moves a limit to nonsense."""

import math

from hypothesis import given
from hypothesis import strategies as st

from paceline.core.local import LocalCapacity
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import NS, parse_quotas
from paceline.core.results import Reading, Refusal, RefusalKind, Reservation

START_NS = 1_700_000_000 * NS
anything = st.one_of(
    st.none(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(0, 1e6),
    st.integers(-10, 10**7).map(float),
    st.sampled_from([0.0, -1.0, 1e300, -1e300, 5e-324]),
)
units = st.sampled_from(["requests", "tokens", "input_tokens", "output_tokens", "pages", "concurrency", ""])
readings = st.builds(
    Reading,
    unit=units,
    limit=anything,
    remaining=anything,
    reset_s=anything,
    period_s=anything,
    resolution=st.one_of(st.just(1.0), st.floats(allow_nan=True)),
)
refusals = st.builds(
    Refusal,
    kind=st.sampled_from([RefusalKind.RATE, RefusalKind.GROWTH, RefusalKind.CAPACITY]),
    retry_after_s=anything,
    sooner_s=anything,
    unit=st.one_of(st.none(), units),
    period_s=anything,
    limit=anything,
    used=anything,
    requested=anything,
)
steps = st.lists(st.tuples(st.floats(0, 30), st.one_of(st.lists(readings, max_size=3), refusals)), max_size=25)


@given(steps)
def test_nonsense_teaches_nothing(steps):
    quotas = parse_quotas("500 requests/min, 400k tokens/min, 8 concurrency")
    pool = Pool("p", LocalCapacity.of(quotas, START_NS, learns=True))
    now_ns = START_NS
    for seconds, said in steps:
        now_ns += round(seconds * NS)
        outcome = pool.try_grant(now_ns, Waiter({"requests": 1, "tokens": 1_000}))
        if not isinstance(outcome, Reservation):
            now_ns = max(now_ns, pool.ledger.pause.until_ns) + 3_600 * NS
            continue
        now_ns += NS // 10
        if isinstance(said, Refusal):
            pool.refuse(now_ns, outcome, said, 0.5)
        else:
            pool.observe(now_ns, said, outcome)
            pool.settle(now_ns, outcome, None)
        for meter in pool.ledger.meters:
            quota = meter.quota
            assert 0 < quota.amount < math.inf
            assert 0 <= quota.period_s < math.inf
            assert math.isfinite(meter.level(now_ns))
            assert meter.most > 0
            if quota.period_s:
                # Whatever was said, somebody who waits for long enough goes: a day and ten of the quota's periods.
                wait_s = (meter.earliest(now_ns, min(1.0, quota.amount)) - now_ns) / NS
                assert wait_s <= 86_400 + 10 * quota.period_s, (wait_s, quota)
        assert len(pool.ledger.meters) <= 20
