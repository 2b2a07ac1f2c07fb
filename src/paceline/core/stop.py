"""The stop of a pool: its requests are refused, then one goes, the probe, and the others when it was served."""

from __future__ import annotations

from paceline.core.pause import Pause, PausePhase
from paceline.core.quota import NS
from paceline.core.results import RefusalKind, Stopped

STOP_NS, STOP_MAX_NS = 600 * NS, 3_600 * NS
"""How long a stopped pool sends nothing, at first and at most; then one request goes, the probe."""

ENDS = {
    RefusalKind.MONEY: "no money left",
    RefusalKind.NEVER_FITS: "the provider allows none of it, because a limit is 0",
}
"""The refusals that stop a pool where they are about all of it, because no wait helps, and the words for them. A model
that this account does not have has a limit of 0."""


class Stop:
    """A pause that is too long for requests to wait for its end. A pool has one from :meth:`begin` to its end.

    Attributes:
        pause: What may go. The probe has no reservation when it is let through, so the instant stands for it.
        ends_ns: The end that the provider has stated; 0: none. After it requests wait again, as after any pause.
    """

    def __init__(self) -> None:
        self.pause: Pause[int] = Pause()
        self.ends_ns = 0
        self._began_ns = self._longest_ns = 0  # when the present stop began, and how long it lasts at most

    @property
    def outcome(self) -> Stopped:
        """What a request gets that is refused."""
        return Stopped(self.pause.reason, self.pause.until_ns, self.ends_ns)

    def begin(self, now_ns: int, sent_ns: int, reason: str, stop_s: float, asked_s: float = 0.0) -> None:
        """Refuse requests for ``stop_s``, and then send one, the probe.

        It ends where the provider has asked for ``asked_s``, after as long.

        The first stop lasts 10 minutes at most. As long as no attempt is served, the next ones last 20, 40 and then 60
        minutes at most. Nothing happens if the refused attempt was sent, at ``sent_ns``, before the present stop began.
        """
        # What was in flight when the pool stopped is refused, too, and would double the stop each time.
        if sent_ns < self._began_ns:
            return
        self._longest_ns = min(2 * self._longest_ns or STOP_NS, STOP_MAX_NS)
        # The last probe has its answer, so that its time is over.
        self.pause.end()
        # If the probe gets no answer, the next one goes after a whole stop: after PROBE_NS, a stopped pool would send
        # as in a pause.
        stop_ns = min(round(stop_s * NS), self._longest_ns)
        self.pause.begin(now_ns + stop_ns, reason, probe_ns=self._longest_ns)
        self._began_ns = now_ns
        # A shorter stated wait is no end: the stop has another reason than that.
        self.ends_ns = now_ns + round(asked_s * NS) if asked_s >= stop_s else 0

    def for_newcomer(self, now_ns: int) -> Stopped | None:
        """The outcome of a request that comes during the stop; ``None`` for the probe.

        A request that comes after the end of the pause becomes the probe by this call.
        """
        if now_ns < self.pause.until_ns:
            return self.outcome
        self.pause.granted(now_ns, now_ns)  # it has no reservation yet, so that the instant stands for it
        return None

    def for_waiters(self) -> Stopped | None:
        """The outcome of all waiters, which came before the stop; ``None`` when only a probe waits."""
        return self.outcome if self.pause.phase is PausePhase.CLOSED else None

    def unsent(self, now_ns: int) -> None:
        """Let the next request be the probe: the present one was not sent."""
        if self.pause.probe is not None:
            self.pause.unsent(now_ns, self.pause.probe)

    def cancelled(self, now_ns: int, sent_ns: int) -> None:
        """An attempt that was granted at ``sent_ns`` was not sent. During a stop only probes are granted."""
        if sent_ns > self._began_ns:
            self.unsent(now_ns)

    def ends_with(self, sent_ns: int) -> bool:
        """Whether it ends with the answer to an attempt that was served.

        That was sent, at ``sent_ns``, after the beginning.
        """
        return sent_ns > self._began_ns
