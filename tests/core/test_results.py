"""How a request can end: what the errors say, and what they carry."""

from __future__ import annotations

import math
import pickle

import pytest

from paceline.core.results import (
    BudgetError,
    GaveUpError,
    NeverFits,
    NeverFitsError,
    PacelineError,
    PoolStoppedError,
    QueueFullError,
    Refusal,
    RefusalKind,
    SettingsError,
    TooLargeError,
    UnfinishedError,
    explaining,
)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            NeverFitsError("m", "tokens", 1_200, 1_000),
            "m: the request costs 1,200 tokens, and the quota holds 1,000 at most: send less, or raise the limit",
        ),
        (
            TooLargeError("m", 1_200, 1_000),
            "m: the request is estimated at 1,200 tokens, and one call may have 1,000: send less, or raise max_tokens_per_call",
        ),
        (
            QueueFullError("m", 1_000),
            "m: 1,000 requests wait already, and the queue is full; send fewer at once, or raise waiting_max",
        ),
        (BudgetError("m", "5 usd are spent", None), "m: 5 usd are spent"),
        (BudgetError("m", "5 usd are spent", 7_199), "m: 5 usd are spent; it is allowed in 7,199 s"),
        (BudgetError("m", "5 usd are spent", 7_200), "m: 5 usd are spent; it is allowed in 7,200 s (2.0 hours)"),
        (
            PoolStoppedError("m", "no credit left", 599.5),
            (
                "m: stopped: no credit left (one request is tried in 600 s, and then every 10 to 60 minutes;"
                " limiter.resume('m') ends the stop)"
            ),
        ),
        (GaveUpError("m", 6, Refusal(RefusalKind.RATE), "6 attempts made"), "m: refused (rate), 6 attempts made"),
        (
            GaveUpError("m", 1, Refusal(RefusalKind.MONEY, message="no credit"), "waiting cannot help"),
            "m: refused (money), waiting cannot help: no credit",
        ),
    ],
)
def test_what_an_error_says(error, said):
    assert isinstance(error, PacelineError)
    assert (str(error), error.pool) == (said, "m")
    copied = pickle.loads(pickle.dumps(error))  # as a pool of processes returns it
    assert (type(copied), str(copied), vars(copied)) == (type(error), said, vars(error))


def test_what_an_error_carries():
    too_large = TooLargeError("m", 1_200, 1_000)
    assert isinstance(too_large, NeverFitsError)
    assert (too_large.unit, too_large.cost, too_large.most) == ("tokens", 1_200, 1_000)
    unfinished = UnfinishedError("cut_off", "the maximum of 5 tokens", "Once upon")
    assert (str(unfinished), unfinished.text) == ("cut_off: the maximum of 5 tokens", "Once upon")
    full = QueueFullError("m", 5)
    assert (full.length, full.retry_after_s) == (5, math.inf)
    assert BudgetError("m", "spent", 9.5).retry_after_s == 9.5
    stopped = PoolStoppedError("m", "no credit left", 599.5)
    assert (stopped.reason, stopped.retry_after_s) == ("no credit left", 599.5)
    gave_up = GaveUpError("m", 3, Refusal(RefusalKind.RATE, retry_after_s=7.5), "3 attempts made")
    assert (gave_up.attempts, gave_up.refusal.kind, gave_up.retry_after_s) == (3, RefusalKind.RATE, 7.5)


def test_a_request_that_never_fits_is_no_permit():
    assert not NeverFits("tokens", 1_200, 1_000)


@pytest.mark.parametrize(
    ("error", "words"),
    [(FileNotFoundError(2, "No such file", "x"), "No such file"), (OSError("broken"), "broken")],
)
def test_an_error_of_the_system_is_explained_by_what_failed(error, words):
    with pytest.raises(SettingsError, match=rf"^a\.jsonl: {words}; make room$"), explaining("a.jsonl", "; make room"):
        raise error
    with pytest.raises(PacelineError, match=r"^lines: bad$"), explaining("lines", kind=PacelineError, of=ValueError):
        raise ValueError("bad")
