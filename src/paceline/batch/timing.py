"""How long a run in batches waits for its providers, and why it stops."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from paceline.batch.api import UNTRUSTED, BrokenError, NotYetError, RefusedError
from paceline.batch.chunks import BatchKind
from paceline.batch.progress import ProgressView
from paceline.batch.runner import FAILED, USAGE
from paceline.core.results import PacelineError
from paceline.providers.refusals import refuses_key
from paceline.providers.registry import provider_named

CALL_S: Final = 1_800.0
"""The longest time of one call, which a large file needs."""

FULL_ALL_S: Final = 86_400.0
"""How long the queue may be full without a batch of this run in it, before the run stops."""

SHARE: Final = 0.8
"""The part of the speed under the limits that is relied on before a deadline: retries and other users take the rest."""

LIFE_S: Final = 8 * 86_400.0
"""The age at which a batch that has not ended, or was not found, is given up: no provider's window is longer than a week."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations, in seconds.

    Attributes:
        poll_first_s: Between the first looks at a batch; each next one is half as long again.
        poll_most_s: Between two looks at most; Azure asks for a minute at least.
        settle_s: How long after a creation without an answer the list of batches is believed; and after the end of a batch that it has no results.
        full_first_s: The pause when the queue was full; it doubles.
        full_most_s: The longest such pause.
        quiet_s: How long a provider may give no usable answer, before the run says so.
        lost_s: The same, before the run stops; how long results are asked for that are not there, or fewer than the provider counts; and how
            long the batch of one request fails before the request has failed.
        retry_s: Between a call without a usable answer and the next one.
        cancel_s: How long cancelled batches are waited for; the providers state ten minutes.
        last_s: What the last answers of requests that are sent one by one take, beside the limits.
    """

    poll_first_s: float = 5.0
    poll_most_s: float = 60.0
    settle_s: float = 30.0
    full_first_s: float = 60.0
    full_most_s: float = 600.0
    quiet_s: float = 30.0
    lost_s: float = 3_600.0
    retry_s: float = 5.0
    cancel_s: float = 600.0
    last_s: float = 60.0


class Deadline:
    """Keeps what is unfinished within what can be sent one by one in the time that is left.

    The speed one by one is certain, and the speed of batches is not. So batches go on while the rest could still be sent, and are
    cancelled when it only just can. Where it cannot from the start, they go on as long as they can be of use.

    Args:
        seconds: The time from now to the deadline.
        need_s: The seconds in which the limits admit so many requests.
        timing: How long it takes to cancel batches, and what the last answers take.
        clock: The time, in seconds.

    Attributes:
        bet: Whether the deadline can only be kept if the batches end in time.
    """

    def __init__(
        self,
        seconds: float,
        need_s: Callable[[int], float],
        timing: Timing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._need_s, self._clock, self._least_s = need_s, clock, timing.cancel_s + timing.last_s
        self._end_s = clock() + seconds
        self.bet = True

    def needs(self, unfinished: int) -> float:
        """The seconds in which batches can be cancelled and the rest be sent one by one."""
        return self._least_s + self._need_s(unfinished) / SHARE

    def due(self, unfinished: int) -> bool:
        """Whether to leave the batches now."""
        left_s = self._end_s - self._clock()
        if left_s > self.needs(unfinished):
            self.bet = False
            return False
        return not self.bet or left_s <= self._least_s


def jittered(seconds: float) -> float:
    """``seconds``, up to a fifth more or less: the calls of several batches are spread."""
    return seconds * random.uniform(0.8, 1.2)


class StopError(PacelineError):
    """The run cannot go on; its batches can."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Outage:
    """The time without a usable answer: the run says so once, and stops after long."""

    def __init__(self, view: ProgressView, timing: Timing) -> None:
        self._view, self._timing = view, timing
        self.end()

    def end(self) -> None:
        """Begin anew: there was a usable answer."""
        self._since_s, self._said = time.monotonic(), False

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return time.monotonic() - self._since_s

    @property
    def too_long(self) -> bool:
        """Whether the run stops for it."""
        return self.seconds > self._timing.lost_s

    def note(
        self, error: BrokenError | RefusedError, kind: BatchKind, words: str, last_words: str = "", *, now: bool = False
    ) -> None:
        """Take the error of a call for a batch of ``kind``, and say once what does not work, ``now`` or when it lasts.

        Raises:
            StopError: The refusal is a final one, or the outage is too long.
        """
        if isinstance(error, RefusedError) and error.status not in (404, 410, 429):  # 404: also just after the creation
            raise stopping(error, kind) from None
        if self.too_long and not isinstance(error, NotYetError):
            raise StopError(FAILED, f"{last_words or words}: {error}") from None
        if not self._said and (now or self.seconds > self._timing.quiet_s):
            self._view.say(f"{words}: {error}; trying again")
            self._said = True
        if isinstance(error, NotYetError):  # the provider has answered: what follows is a new outage
            self._since_s = time.monotonic()


def stopping(error: RefusedError, kind: BatchKind) -> StopError:
    """Why a run cannot go on after a refusal."""
    name, status, exit_code = kind.provider, error.status, USAGE
    if error.code == UNTRUSTED:
        text = str(error)
    elif refuses_key(status, {"code": error.code, "message": str(error)}):
        detail, env = f" ({error.code})" if error.code else "", provider_named(name).key_env
        text = f"{name} refused the key with a {status}{detail}; set {env} to a key for batches"
    elif status in (404, 405) and not error.code:
        text = f"{name}: this address has no Batch API (status {status}); use --mode sync"
    else:
        exit_code, text = FAILED, f"{name} refused a call of its Batch API with a {status}: {error.code}: {error}"
    return StopError(exit_code, text)
