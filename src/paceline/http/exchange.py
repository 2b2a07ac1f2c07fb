"""The life of one metered request: acquire, send, observe, settle when the body has passed; another attempt if need be.

It is written once, over a :class:`Binding`, which knows the HTTP library. In sync code, the coroutines of a binding do
their work inside the call, so that the life runs from start to end without suspending (:func:`run_sync`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from paceline.core.progress import Row
from paceline.core.quota import CONCURRENCY, NS
from paceline.core.results import GaveUpError, PacelineError, Refusal, RefusalKind, RefusalScope
from paceline.http.background import remember
from paceline.http.binding import Binding, Exchanged, own_refusal
from paceline.http.describe import Metered
from paceline.http.tap import Tap
from paceline.pacing.allowances import Asked, Charge
from paceline.pacing.answers import ANSWERED, TIMEOUT, UNREADABLE, cause_of_error, cause_of_status
from paceline.pacing.breaker import is_server_fault
from paceline.pacing.faults import PASSING, Fault, fault_of, is_of_answer
from paceline.pacing.pacer import Pacer
from paceline.pacing.permit import (
    Acquisition,
    Permit,
    ReplacedError,
    adjust,
    current_permit,
    end_later,
    refuse,
    reports,
    waiter_of,
)
from paceline.pacing.plan_use import UNNAMED
from paceline.pacing.retry import Again, GiveUp
from paceline.pacing.tries import Tries
from paceline.pacing.turns import answered
from paceline.providers import parse
from paceline.providers.base import COUNTING, Usage, UsageReader
from paceline.providers.plan_headers import plan_headers_in, plan_readings
from paceline.providers.refusals import refuses_key
from paceline.providers.verdict import REQUEST_FAULT, Beginning, Judged, Verdict
from paceline.responses.events import is_stream
from paceline.responses.finish import job_of, state_of
from paceline.responses.values import MAPPING

if TYPE_CHECKING:
    from paceline.pacing.traffic import TrafficLog

log = logging.getLogger("paceline.http")

sending: ContextVar[ref[Exchange] | None] = ContextVar("paceline_sending", default=None)
"""The exchange whose attempt is being sent. A connection keeps the context in which it was made, and must not keep a request."""


def sending_here() -> Exchange | None:
    """The exchange whose attempt is being sent here; ``None`` if there is none."""
    found = sending.get()
    return None if found is None else found()


class Way(NamedTuple):
    """A request as it is sent to one server, and what it costs there."""

    http: Binding
    metered: Metered


class Exchange:
    """The life of one metered request; its methods are in the order in which they happen.

    Args:
        pacer: The pacer whose pools are charged.
        http: The request, and the way to send it.
        metered: Its description.
        timeout_s: The longest wait, in the queue and for the limits of its lane, over all attempts, in seconds; by default
            the timeout in the settings. The time of the attempts is no part of it.
        name: A name for the ``queue`` in the status.
        seen: Called with the verdict on each answer, and the request that it answers. It returns whether a fault of the
            server ends the request, where another attempt is allowed.

    Attributes:
        judged: The verdict on the last answer.
        acquisition: The request for a permit, which knows why it waits; ``None`` where it does not.
        began_ns: When it began to wait for what precedes the queue of the next permit; ``None``: for nothing.
        windows: The windows of the plan that pays, as its answers have stated them.
    """

    def __init__(
        self,
        pacer: Pacer,
        http: Binding,
        metered: Metered,
        *,
        timeout_s: float | None = None,
        name: str | None = None,
        seen: Callable[[Judged, Binding], bool] | None = None,
    ) -> None:
        self.pacer, self.http, self.metered = pacer, http, metered
        self.acquisition: Acquisition | None = None
        self._until_ns = pacer.deadline_ns(pacer.settings.acquire_timeout_s if timeout_s is None else timeout_s)
        self._name = name
        self.record = Exchanged(metered.scheduler.pool.name)
        self.charge: Charge | None = None
        self.began_ns: int | None = None
        self.tries = Tries(pacer.retry, pacer.health)
        self.judged: Judged | None = None
        self._seen = seen
        self.windows: set[str] = set()

    @property
    def waits(self) -> bool:
        """Whether it waits for a permit now."""
        return self.acquisition is not None

    async def run(self) -> Any:
        """Make attempts until there is a response for the caller: the provider's, or a refusal of paceline's own."""
        if self.pacer.shadow is not None:
            return await self._shadowed(self.pacer.shadow)
        try:
            response = await self._attempts()
        except BaseException as error:
            if self.charge is not None:
                # Only what was sent is billed, and no answer without a result, for which urllib3 may raise.
                if self.waits or is_of_answer(error) or fault_of(error) in (Fault.UNSENT, Fault.UNREACHED):
                    self.charge.cancel()
                # After ``cancel`` nothing is open.
                self.charge.end()
            raise
        if self.charge is not None and not self.charge.settles:  # no answer with a result
            self.charge.cancel()
        return response

    async def _shadowed(self, shadow: TrafficLog) -> Any:
        """Send the request at once, and log it when its answer is over."""
        from paceline.pacing.traffic import Entry

        call, started_ns = self.metered.call, self.pacer.clock.now_ns()
        entry = Entry(started_ns / NS, self.record.pool, self.pacer.lanes.of().name, call.model, call.input_tokens)
        entry.max_output_tokens, entry.status = call.max_output_tokens, 0

        def end(usage: Usage | None, refusal: Refusal | None) -> None:
            if usage is not None:
                entry.input_tokens, entry.output_tokens = usage.input_tokens, usage.output_tokens
            if refusal is not None:
                entry.status = 429
            entry.seconds = (self.pacer.clock.now_ns() - started_ns) / NS
            shadow.write(entry)

        token = sending.set(ref(self))
        try:
            response = await self.http.send()
        except BaseException:
            end(None, None)
            raise
        finally:
            sending.reset(token)
        entry.status, headers = self.http.head(response)
        if entry.status >= 400:
            end(None, None)
        else:
            self.http.tap(response, headers, Tap(self.metered.provider.usage_reader(call), end))
        return response

    async def _attempts(self) -> Any:
        permit = response = None
        allowances = self.pacer.allowances
        while response is None:  # each further attempt follows the permit of the last one
            try:
                # Again after an attempt that may have been billed: what it held has ended with it.
                if self.charge is None and (allowances.by_lane or allowances.tally):
                    await self._hold()
                permit = await self._acquire(permit)
            except PacelineError as error:
                if self.acquisition is not None:
                    error = self.tries.error(self.record.pool, waiter_of(self.acquisition), error)
                return own_refusal(self.http, error, self.record)
            self.acquisition = None
            self.record.cost, self.record.granted_ns = permit.cost, permit.reservation.granted_ns
            sent_ns = self.pacer.clock.now_ns()
            response = await self._attempt(permit)
            self._no_wait(permit, sent_ns)
        return response

    def _no_wait(self, permit: Permit, began_ns: int) -> None:
        """Leave the time since ``began_ns``, after the grant of ``permit``, out of the longest wait."""
        if self._until_ns is not None:
            passed_ns = self.pacer.clock.now_ns() - began_ns
            self._until_ns += passed_ns
            end_later(permit, passed_ns)

    async def _hold(self) -> None:
        """Hold the cost of the request in the allowances of its lane, also if they are replaced while it waits."""
        self.began_ns = self.pacer.clock.now_ns()
        while True:
            try:
                return await self._hold_once()
            except ReplacedError:
                assert self.charge is not None
                self.charge.cancel()
                self.charge = None

    async def _hold_once(self) -> None:
        # One that has given everything back is there already, and makes its steps again.
        if self.charge is None:
            asked = [Asked(way.metered.call, way.metered.expected) for way in self.ways()]
            self.charge = self.pacer.allowances.charge(self.pacer.lanes.of(), asked)
        if self.charge is not None:
            for acquisition, account in self.charge.steps(self._until_ns):
                self.acquisition = acquisition
                try:
                    permit = await acquisition if self.http.is_async else acquisition.wait()
                    self.charge.hold(permit)
                except ReplacedError:
                    raise
                except PacelineError as error:
                    raise self.charge.fail(error, account) from None
                except BaseException:
                    self.charge.cancel()
                    raise
                finally:
                    self.acquisition = None

    def ways(self) -> list[Way]:
        """The request to each server that may answer it."""
        return [Way(self.http, self.metered)]

    async def _acquire(self, last: Permit | None) -> Permit:
        """The permit for an attempt: for the first, the one that the caller holds, if any; else from the queue."""
        permit = current_permit(self.metered.scheduler) if last is None else None
        if permit is None:
            left_s = None
            if last is None and self._until_ns is not None:  # a further attempt has the deadline of the last one
                left_s = max(self._until_ns - self.pacer.clock.now_ns(), 0) / NS
            self.acquisition = acquisition = self._ask(self.metered, left_s, last)
            permit = await acquisition if self.http.is_async else acquisition.wait()
        self._granted(permit)
        return permit

    def _granted(self, permit: Permit) -> None:
        """Count the wait for the permit."""
        self.began_ns = None  # another one may follow at once, and has a wait of its own
        self.record.waited_s += permit.waited_s

    def _ask(self, metered: Metered, timeout_s: float | None, last: Permit | None) -> Acquisition:
        """The request for a permit of ``metered``; ``last``: the permit that it follows."""
        acquisition = self.pacer.acquire_call(
            metered.scheduler,
            metered.estimate,
            units=metered.provider.units,
            again=last,
            timeout=timeout_s,
            name=self._name,
            lane=None if metered.payer is None else metered.payer.lane,
        )
        waiter = waiter_of(acquisition)
        waiter.began_ns = self.began_ns
        if self.tries.made:
            self.tries.place(waiter)
        return acquisition

    async def _attempt(self, permit: Permit) -> Any | None:
        """Send the request once: the response for the caller; ``None`` for another attempt, after any pause."""
        self.tries.began(permit)
        self.record.attempts = self.tries.made
        permit.model = self.metered.call.model
        if (answer := await self._send(permit)) is None:
            return None
        response, judged, headers = answer
        # Superseded: the library has repeated the request, in another exchange.
        if judged is None or not permit.reservation.open:
            return response
        self.judged = judged
        permit.status, refusal, now_ns = judged.status, judged.refusal, self.pacer.clock.now_ns()
        self._count_answer(judged.status, _cause_of(judged))
        ends = self._seen is not None and self._seen(judged, self.http)
        try:
            # The headers come first: a refusal is blamed on a quota by what they state.
            self.read_plan(headers, refusal, now_ns)
            self._observe(headers, permit, refusal, now_ns)
            row = None if refusal is None else self.metered.scheduler.row(permit.reservation, refusal)
            failed = is_server_fault(judged.status, refusal, row)
            if failed:
                status, _ = self.http.head(response)  # which may say less than its body
                self._count_fault(permit, f"status {status}{judged.why and f', {judged.why}'}")
            elif failed is not None:  # servers that refuse a part of their load are neither
                self.pacer.health.succeeded(self.http.address, self.metered.scheduler)
            if refusal is not None:
                return await self._refused(response, refusal, row, permit)
            self.http.note(response, self.record)
            if judged.verdict is not Verdict.RESULT:
                return await self._failed(response, judged, permit, ends=ends)
            _Accepted(self, permit, headers).settle_with(response, judged.payload)
        except BaseException:  # cancelled while the body of an error was read, for example
            permit.close()
            raise
        return response

    async def _send(self, permit: Permit) -> tuple[Any, Judged | None, Mapping[str, str]] | None:
        """The response, the verdict on it, and its headers; ``None`` for another attempt after a broken connection."""
        token = sending.set(ref(self))
        try:
            response = await self.http.send(permit)
            if not permit.reservation.open:  # superseded: its answer was judged in the other exchange
                return response, None, {}
            return response, *await self._judge(response, permit)
        except BaseException as error:
            if not permit.reservation.open:  # superseded: the other exchange has counted the error
                raise
            fault, delay_s, cause = fault_of(error), None, cause_of_error(error)
            if cause is not None:
                self._count_answer(0, cause)
            if fault in (Fault.BROKEN, Fault.UNREACHED):
                self._count_error(permit, error, fault)
                delay_s = self._after_fault()
            if fault is Fault.UNSENT:  # the client had no connection left, for example, which is no attempt
                self.tries.unsent()
                self.record.attempts = self.tries.made
            if fault in (Fault.UNSENT, Fault.UNREACHED):
                permit.cancel()
            elif delay_s is None:
                permit.settle()  # the provider may have counted it
            else:
                self.superseded(permit, error)
            if delay_s is None:
                raise
            self._repeats(error)
        finally:
            sending.reset(token)
        await self._delay(delay_s)  # after the reset: what the program sends meanwhile is no part of this attempt
        return None

    def _repeats(self, error: BaseException) -> None:
        """Called with the error of an attempt that is repeated. It stays whole: a program's transport may have kept it."""

    def repeated(self, permit: Permit, status: int, error: BaseException | None) -> None:
        """The HTTP library repeats the request itself, in an exchange of its own, after this answer or an ``error``."""
        cause = cause_of_status(status) if error is None else cause_of_error(error)
        if cause is not None and cause != ANSWERED:  # else it is a redirect
            self._count_answer(status, cause)
            if error is not None:
                self._count_error(permit, error, fault_of(error) or Fault.BROKEN)
            elif status >= 500:
                self._count_fault(permit, f"status {status}")
        self.superseded(permit, error)

    def superseded(self, permit: Permit, error: BaseException | None) -> None:
        """The attempt was sent, and is repeated after an ``error`` or an answer: the provider may have billed one that broke.

        The next attempt holds its own cost: here, or in the exchange of a library that repeats the request itself.
        """
        permit.settle()
        if self.charge is not None:
            # An answer without a result, and what was not received, are not billed.
            if error is None or fault_of(error) is not Fault.BROKEN:
                self.charge.cancel()
            self.charge.end()
            self.charge = None

    def read_plan(self, headers: Mapping[str, str], refusal: Refusal | None, now_ns: int) -> None:
        """Keep what a response says of the plan of the account that has paid."""
        found = plan_readings(headers, now_ns / NS, None if refusal is None else refusal.window)
        if found:
            self.windows.update(reading.window for reading in found)
            sent_s = self.record.granted_ns / NS
            self.pacer.pools.read_plan(self.metered.provider.name, found, served=refusal is None, sent_s=sent_s)

    def _observe(self, headers: Mapping[str, str], permit: Permit, refusal: Refusal | None, now_ns: int) -> None:
        """Let the pool learn from the headers of a response.

        Headers of an answer about another limit than the pool's may be about that limit, too: they are not read.
        """
        if not headers or self.metered.call.mode or (refusal is not None and refusal.scope is RefusalScope.MODE):
            return
        scheduler = self.metered.scheduler
        if refusal is not None or scheduler.reads_at(now_ns):
            readings = self.metered.provider.readings(headers, now_ns / NS)
            if readings:
                scheduler.observe(readings, permit.reservation)

    async def _judge(self, response: Any, permit: Permit) -> tuple[Judged, Mapping[str, str]]:
        """The verdict on an answer by the beginning of its body, and its headers."""
        status, headers = self.http.head(response)
        metered = self.metered
        # A server fault is no sign of life: a proxy may give it for a server that does not answer.
        if status < 500:
            metered.scheduler.begun(permit.reservation)
        patience = metered.scheduler.patience
        beginning = Beginning(
            metered.provider, metered.call, status, headers, strict=not metered.guessed, held_s=patience.seconds
        )
        try:
            await self.http.peek(response, headers, beginning)
        except BaseException as error:
            if status < 400 or not isinstance(error, Exception):
                await self.http.close(response)
                raise
            log.debug("the body of a response (%d) broke off: %s", status, type(error).__name__)  # its status must do
        judged = beginning.judged()
        if beginning.held:
            patience.judged(beginning, judged.refusal)
        if judged.refusal is not None:
            judged = replace(judged, refusal=self.scoped(judged.refusal))
        return judged, headers

    def scoped(self, refusal: Refusal) -> Refusal:
        """``refusal``, about no more than the request's mode where that has limits of its own; a balance is the account's."""
        broad = refusal.kind is not RefusalKind.MONEY and refusal.scope is RefusalScope.POOL
        return replace(refusal, scope=RefusalScope.MODE) if broad and self.metered.call.mode else refusal

    async def _refused(self, response: Any, refusal: Refusal, row: Row | None, permit: Permit) -> Any | None:
        """Pause the pool as the refusal asks; then another attempt, or a refusal of paceline's own.

        A 413 that names no limit of the account, as Anthropic's, is for the caller as it came: it is about no rate.
        """
        self.record.refusals.append(refusal)
        self.metered.refused(refusal)
        if self.metered.payer is not None:
            self.metered.payer.refused()
        decision = self.tries.failed(self.metered.scheduler, refusal, row)
        refuse(permit, self.tries.refusal or refusal, decision)
        elsewhere = not (isinstance(decision, Again) and decision.pool_wide) and self._elsewhere(refusal)
        judged, names_limit = self.judged, refusal.unit is not None or refusal.limit is not None
        gives_up = isinstance(decision, GiveUp) and not elsewhere
        if gives_up and judged is not None and judged.status == 413 and not names_limit:
            self.http.note(response, self.record)
            return await self._shown(response, judged)
        await self.http.close(response)  # its connection is free during the pause
        if elsewhere:
            return None
        if isinstance(decision, GiveUp):
            error = GaveUpError(self.record.pool, self.record.attempts, refusal, decision.reason)
            return own_refusal(self.http, error, self.record)
        self.tries.announce(self.metered.scheduler, decision)
        if not decision.pool_wide:  # else the request waits in the queue: for the end of the pause, and for the quotas
            await self._delay(decision.delay_s)
        return None

    async def _failed(self, response: Any, judged: Judged, permit: Permit, *, ends: bool) -> Any | None:
        """An error that is no refusal: for the caller, or for another attempt if it may pass; not if it ``ends``."""
        of_server = judged.status >= 500
        delay_s = self._after_fault(of_server=of_server) if judged.status in PASSING and not ends else None
        usage = None if judged.payload is None else self.metered.provider.usage(judged.payload)
        if usage is None or not usage.output_tokens:
            permit.settle()  # the provider may have counted it
        else:  # it has generated something, so it was paid
            _Accepted(self, permit, {}).settle(usage, None)
            self.charge = None  # another attempt holds its own
            if self.record.usage is not None:
                self.tries.paid.append((self.record.pool, self.record.usage))
            self.record.usage = self.record.settled = None  # they are an answer's
        if delay_s is None:
            return await self._shown(response, judged)
        await self.http.close(response)
        await self._delay(delay_s)
        return None

    async def _shown(self, response: Any, judged: Judged) -> Any:
        """The response for the caller: one that says with its status what its body says."""
        status, headers = self.http.head(response)
        if status == judged.status:
            return response
        if judged.status == REQUEST_FAULT and is_stream(headers.get("content-type", "")):
            return response  # nothing is to be repeated: agents know the error by its event, as Codex a context that is full
        await self.http.close(response)
        error, word = judged.error, {}
        if judged.verdict is Verdict.UNREADABLE:
            message = f"paceline: {self.record.pool}: the answer is not from this API: {judged.why}"
            error = {"type": "server_error", "code": "paceline_unreadable", "message": message}
            word = {"x-paceline": "unreadable"}
        body = json.dumps({"type": "error", "error": dict(error)}).encode()
        made = self.http.respond(judged.status, {"content-type": "application/json", **word}, body)
        self.http.note(made, self.record)
        return made

    def _count_answer(self, status: int, cause: str) -> None:
        now_s = self.pacer.clock.now_ns() / NS
        self.pacer.answers.count(self.http.address, self.metered.scheduler.pool.name, status, cause, now_s)

    def _count_error(self, permit: Permit, error: BaseException, fault: Fault) -> None:
        """Count an attempt without an answer as a failure of the host, unless it shows that the host has too many requests.

        Before the permit is closed: a failed probe must not let the other waiters go.
        """
        if not (cause_of_error(error) == TIMEOUT and self.metered.scheduler.timed_out(permit.reservation)):
            self._count_fault(permit, type(error).__name__, fault)

    def _count_fault(self, permit: Permit, reason: str, fault: Fault = Fault.BROKEN) -> None:
        """Count a failure of the host. Without a connection it counts, too, where the limiter repeats the attempt.

        After a probe the next one is another request's: an outage does not use up the attempts of one request.
        """
        reached = fault is Fault.BROKEN or self.pacer.retry.faults
        sent_ns, scheduler = permit.reservation.granted_ns, self.metered.scheduler
        self.tries.behind = self.pacer.health.failed(self.http.address, scheduler, sent_ns, reason, reached=reached)

    def _after_fault(self, *, of_server: bool = True) -> float | None:
        """The seconds until another attempt after an error that may pass; ``None`` for no other.

        An error that is not ``of_server``, and no broken connection, may be about the request: it goes nowhere else.
        """
        if of_server and self._elsewhere(None):
            return 0.0
        if not self.pacer.retry.faults:
            return None
        decision = self.tries.failed(self.metered.scheduler, None, None)
        if isinstance(decision, GiveUp):
            return None
        self.tries.announce(self.metered.scheduler, decision)
        return decision.delay_s

    def _elsewhere(self, refusal: Refusal | None) -> bool:  # noqa: ARG002
        """Whether another attempt follows at once at another account, which the request did not fail at."""
        return False

    async def _delay(self, seconds: float) -> None:
        """Wait before another attempt, and as long as the budget of retries has not earned it."""
        for pause_s in self.tries.pauses(self.metered.scheduler, seconds):
            if self.http.is_async:
                await asyncio.sleep(pause_s)
            else:
                time.sleep(pause_s)  # noqa: ASYNC251  (sync code)


class _Accepted:
    """An answer that the caller gets: its permit is settled with the usage that its body reports.

    Args:
        exchange: The exchange that it ends.
        permit: The permit of its attempt.
        headers: Its headers.
    """

    def __init__(self, exchange: Exchange, permit: Permit, headers: Mapping[str, str]) -> None:
        self._exchange, self._permit, self._headers = exchange, permit, headers
        self._metered, self._record, self._charge = exchange.metered, exchange.record, exchange.charge
        self._begun = False  # whether it has reported a usage

    def settle_with(self, response: Any, payload: Any) -> None:
        """Settle with what the body reports: now, by its ``payload``, else while the caller reads it."""
        exchange, metered, permit, charge = self._exchange, self._metered, self._permit, self._charge
        provider, scheduler = metered.provider, metered.scheduler
        scheduler.admitted(permit.reservation)
        if metered.payer is not None:
            metered.payer.account.served = True
        if charge is not None:
            charge.settles = True
        if (job := job_of(payload)) is not None:
            slots = CONCURRENCY in scheduler.pool.ledger.entries.units
            if slots:
                permit.settle()  # the end of its slot is not known
            if not (slots and charge is None):  # as held until the caller has asked for the answer
                remember(exchange.pacer, job, self._settle_job)
        elif isinstance(payload, MAPPING):
            scheduler.section.finished(state_of(payload))
            # Counted tokens are the answer there, and nothing that was used.
            self.settle(None if metered.call.endpoint == COUNTING else provider.usage(payload), None)
        else:
            reader = provider.usage_reader(metered.call)
            late = partial(scheduler.timed_out, permit.reservation)
            exchange.http.tap(response, self._headers, Tap(reader, partial(self._end, reader), self._adjust, late))

    def _settle_job(self, found: Mapping[str, Any] | None) -> None:
        """It was made in the background, and this is all of it; ``None``: it was never asked for."""
        self.settle(None if found is None else self._metered.provider.usage(found), None)

    def _end(self, reader: UsageReader, usage: Usage | None, refusal: Refusal | None) -> None:
        """Its body has passed; a reader of another package may not know how far the model has come."""
        if (plan := getattr(reader, "plan", None)) is not None:
            self._exchange.read_plan(plan_headers_in(plan), None, self._exchange.pacer.clock.now_ns())
        if (state := getattr(reader, "state", None)) is not None:
            self._metered.scheduler.section.finished(state)
        self._record.failed = getattr(reader, "failed", False)
        # Without output it generates no text, and its form need not say where it ends.
        if self._metered.call.max_output_tokens != 0:
            self._record.whole = getattr(reader, "whole", True)
        self.settle(usage, refusal)

    def _adjust(self, usage: Usage) -> None:
        """It reports its input before its end."""
        usage = parse.plausible(self._record.pool, usage, self._permit.cost)
        self._begin(usage)
        adjust(self._permit, self._metered.known(usage))
        if self._charge is not None:
            self._charge.begun(usage, self._metered.call)

    def settle(self, usage: Usage | None, refusal: Refusal | None) -> None:
        """It is over."""
        call, permit, windows = self._metered.call, self._permit, self._exchange.windows
        usage = usage or parse.usage_in_headers(self._headers)
        if usage is not None and usage.partial and not call.writes:  # it has no output that could be missing
            usage = replace(usage, partial=False)
        if refusal is not None:  # in the middle of an answer, which the caller has: there is no other attempt
            refusal = self._exchange.scoped(refusal)
            self._record.refusals.append(refusal)
            self._metered.scheduler.patience.refused()
            permit.refused(refusal)
        elif usage is None:
            permit.settle()
        else:
            usage = self._pay(usage)
        if usage is not None and windows:
            client = UNNAMED if self._metered.payer is None else self._metered.payer.client
            self._exchange.pacer.pools.charge_plan(self._metered.provider.name, windows, usage, client)
        self._record.settled = permit if refusal is None else None
        if self._charge is not None:
            self._charge.settle(usage, call)

    def _pay(self, usage: Usage) -> Usage:
        """Charge what was used, and learn from it; the usage as it is taken."""
        metered, permit = self._metered, self._permit
        # Gemini reports in a header alone that a request was served at another tier.
        tier = usage.tier or self._headers.get("x-gemini-service-tier") or metered.call.tier
        usage = parse.plausible(self._record.pool, usage, permit.reservation.cost)
        if tier != usage.tier:
            usage = replace(usage, tier=tier[: parse.TIER_MAX])
        is_text = usage.partial and not usage.input_tokens  # and nothing is reported
        if not is_text:
            self._begin(usage)
        if is_text and usage.output_tokens <= metered.tokens()[1]:  # less than is held: the rest may be hidden
            permit.settle()
            return usage
        whole = metered.completed(usage) if usage.partial else usage
        charged = metered.provider.charged(metered.booked_call, whole)
        if not usage.partial:
            self._record.usage = permit.usage = usage
            metered.learn(usage)
            reports(permit, charged, usage)
        permit.settle(**charged)
        return usage

    def _begin(self, usage: Usage) -> None:
        """Learn what of the prompt was cached, from the first usage that it reports."""
        metered, sent_ns = self._metered, self._permit.reservation.granted_ns
        if metered.prompt is not None and not self._begun:
            self._begun = True
            answered(metered.prompt, usage, sent_ns, metered.provider, metered.scheduler.pool.name)


def _cause_of(judged: Judged) -> str:
    """What an answer is, as :class:`~paceline.pacing.answers.Answers` counts it."""
    if judged.refusal is not None:
        return judged.refusal.kind.value
    if judged.verdict is Verdict.RESULT:
        return ANSWERED
    if judged.verdict is Verdict.UNREADABLE:
        return UNREADABLE
    return "key" if refuses_key(judged.status, judged.error) else cause_of_status(judged.status)
