"""The life of one request: describe, acquire, send, observe, settle when the body has passed; another attempt if need be.

It is written once, over a :class:`Binding`, which knows the HTTP library. In sync code, the coroutines of a binding do
their work inside the call, so that the life runs from start to end without suspending (:func:`run_sync`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from paceline.core.progress import Row
from paceline.core.quota import CONCURRENCY, NS, Cost
from paceline.core.results import (
    AcquireTimeoutError,
    BudgetError,
    GaveUpError,
    NeverFitsError,
    PacelineError,
    PoolStoppedError,
    QueueFullError,
    QuotaError,
    Refusal,
    RefusalKind,
    RefusalScope,
    SettingsError,
    StoreError,
    TooLargeError,
)
from paceline.core.stop import ENDS
from paceline.http.account import payer_of
from paceline.http.background import job_of, poll_of, remember
from paceline.http.describe import (
    Metered,
    body_of,
    describe,
    describe_guessed,
    has_limits,
    is_metered,
    provider_guessed,
)
from paceline.http.recognise import (
    Trial,
    answers_here,
    is_chat,
    limited_body,
    llm_body,
    owner_of,
    recognised,
)
from paceline.http.tap import Tap
from paceline.http.unpaced import MEDIA_HOSTS, announce
from paceline.pacing.allowances import Asked, Charge
from paceline.pacing.answers import ANSWERED, TIMEOUT, UNREADABLE, cause_of_error, cause_of_status
from paceline.pacing.breaker import is_server_fault
from paceline.pacing.faults import Fault, fault_of
from paceline.pacing.pacer import Pacer
from paceline.pacing.permit import Acquisition, Permit, adjust, current_permit, holds_permit, refuse, reports, waiter_of
from paceline.pacing.plan_use import UNNAMED
from paceline.pacing.retry import Again, GiveUp
from paceline.pacing.tries import Tries
from paceline.providers import parse
from paceline.providers.answers import plausible
from paceline.providers.base import COUNTING, Provider, Usage, UsageReader
from paceline.providers.plan_headers import plan_headers_in, plan_readings
from paceline.providers.refusals import refuses_key
from paceline.providers.registry import provider_for_host
from paceline.providers.verdict import Beginning, Judged, Verdict
from paceline.responses.finish import state_of
from paceline.responses.values import MAPPING

if TYPE_CHECKING:
    from paceline.pacing.traffic import TrafficLog

log = logging.getLogger("paceline.http")


class UnsentError(Exception):
    """A binding's own refusal to send: the permit is given back."""


class Binding(Protocol):
    """One described request in the terms of an HTTP library, and its responses."""

    is_async: bool

    @property
    def address(self) -> str: ...  # the host, with a port that is not the usual one
    @property
    def target(self) -> tuple[str, str]: ...  # the host, without a port, and the path
    async def send(self, permit: Permit | None = None) -> Any: ...  # the response; `permit`: of this attempt
    def head(self, response: Any) -> tuple[int, Mapping[str, str]]: ...  # status; headers, names in lower case
    async def peek(
        self, response: Any, headers: Mapping[str, str], beginning: Beginning
    ) -> None: ...  # fed until it is enough
    def tap(self, response: Any, headers: Mapping[str, str], tap: Tap) -> None: ...  # fed while the caller reads
    def note(self, response: Any, record: Exchanged) -> None: ...
    async def close(self, response: Any) -> None: ...
    def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> Any: ...  # a response made here


class Undescribed(Binding, Protocol):
    """The same of a request that is to be described."""

    method: str

    @property
    def in_memory(self) -> bool: ...  # whether the body of the request is there without reading
    def query(self) -> str: ...  # of its URL, as it is sent
    def header(self, name: str) -> str: ...  # its first value; empty for none
    async def content(self) -> bytes: ...  # of the request, which can still be sent


@dataclass(slots=True)
class Exchanged:
    """The record of one request; httpx and httpx2 carry it as ``response.extensions["paceline"]``.

    Attributes:
        pool: The pool that was charged.
        cost: What the last attempt reserved, per unit.
        attempts: HTTP attempts made.
        waited_s: Seconds spent in the queue, over all attempts.
        refusals: The provider's refusals, in order.
        usage: What the answer reported; ``None`` until its body has passed.
        granted_ns: When the permit of the last attempt was granted, on the limiter's clock.
        settled: The permit of the answer, once its body has passed; ``None`` before, and without one.
        whole: Whether the answer has come to its end: not so of a stream that has broken off, or whose reader has left.
    """

    pool: str
    cost: Cost = field(default_factory=dict)
    attempts: int = 0
    waited_s: float = 0.0
    refusals: list[Refusal] = field(default_factory=list)
    usage: Usage | None = None
    granted_ns: int = 0
    settled: Permit | None = field(default=None, repr=False)
    whole: bool = True

    @property
    def charged(self) -> Cost | None:
        """What was charged for the answer, per unit; ``None`` until its body has passed, and without one."""
        return None if self.settled is None else self.settled.charged


async def exchange(
    pacer: Pacer, http: Undescribed, provider: Provider | None = None, fallback: Provider | None = None
) -> Any:
    """Send a request at the pool's pace and return the response.

    Also when the caller is cancelled meanwhile, the charge of a request that was never sent is given back, and the
    charge of a request that the provider may have counted stays.

    Args:
        pacer: The pacer whose pools are charged.
        http: The request, and the way to send it.
        provider: The provider whose API the request uses; found by its host if not given.
        fallback: The provider of unknown hosts; by default the one of the limiter, if its quotas are given.
    """
    target = http.target
    if pacer.jobs and (reader := poll_of(pacer, http.method, target[1])) is not None:
        return await _watched(http, reader)
    if http.method != "POST":
        return await http.send()
    if paced_beyond and http.address in paced_beyond:
        return await http.send()
    if sending.get() == target:  # paced by a layer above: attach() and instrument(), or one HTTP library over another
        return await http.send()
    try:
        metered = await _describe(pacer, http, target, provider, fallback)
    except SettingsError as error:
        return _own_refusal(http, error)
    if metered is None or _is_paced_above():
        return await http.send()
    if isinstance(metered, Trial):
        return await _watched(http, metered)
    return await Exchange(pacer, http, metered).run()


async def _watched(http: Binding, reader: UsageReader) -> Any:
    """Send a request as it is, and let ``reader`` look at its answer."""
    response = await http.send()
    status, headers = http.head(response)
    if status < 400:
        http.tap(response, headers, Tap(reader, lambda _usage, _refusal: None))
    return response


paced_beyond: Final[set[str]] = set()
"""The addresses of gateways with the same quotas, which pace what they get."""

sending: ContextVar[tuple[str, str] | None] = ContextVar("paceline_sending", default=None)
"""The target of the attempt that is being sent."""


async def _describe(
    pacer: Pacer, http: Undescribed, target: tuple[str, str], provider: Provider | None, fallback: Provider | None
) -> Metered | Trial | None:
    """What a request costs; ``None`` for one that is not paced; a trial for one that may be an LLM's."""
    host, path = target
    known: Any = provider or provider_for_host(host)
    if known is not None:
        if is_metered(known, path):
            content = await http.content()
            payer = payer_of(pacer, known, http.header, partial(body_of, content), http.query())
            return describe(pacer, known, path, content, payer)
    else:
        guess = provider_guessed(pacer, host, path, http.header, fallback)
        if guess is not None:
            content, named = await http.content(), guess is fallback
            found = describe_guessed(pacer, guess, target, content, http.header, http.query(), named=named)
            if found is not None:
                return found
    return None if holds_permit() else await _unlisted(pacer, http, target, known, fallback)


async def _unlisted(
    pacer: Pacer, http: Undescribed, target: tuple[str, str], known: Any, fallback: Provider | None
) -> Metered | Trial | None:
    """What a request to a path costs that no provider lists: its body may say what it is."""
    host, path = target
    if known is None and has_limits(pacer, host):
        body = limited_body(pacer, host, path, await http.content())
    else:
        body = llm_body(path, await http.content()) if http.in_memory else None
    if body is not None and known is not None and is_chat(body):
        payer = payer_of(pacer, known, http.header, lambda: body, http.query())
        return recognised(pacer, known, body, guessed=False, payer=payer)
    if body is not None and known is None:
        owner, sure = owner_of(pacer, host, body["model"], fallback)
        if sure or answers_here(host, path):
            return recognised(pacer, owner, body, guessed=fallback is None)
        announce(owner.name, host, path, trial=True)
        return Trial(host, path)
    name = known.name if known is not None else MEDIA_HOSTS.get(host, "")
    if name:
        announce(name, host, path)
    return None


class Exchange:
    """The life of one metered request; its methods are in the order in which they happen.

    Args:
        pacer: The pacer whose pools are charged.
        http: The request, and the way to send it.
        metered: Its description.
        timeout_s: The longest wait in the queue, over all attempts, in seconds; by default the timeout in the settings.
        name: A name for the ``queue`` in the status.
        seen: Called with the verdict on each answer, and the request that it answers. It returns whether a fault of the
            server ends the request, where another attempt is allowed.

    Attributes:
        judged: The verdict on the last answer.
        acquisition: The request for a permit, which knows why it waits; ``None`` where it does not.
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
        self._timeout_s, self._name = timeout_s, name
        self.record = Exchanged(metered.scheduler.pool.name)
        self.charge: Charge | None = None
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
        if not self.pacer.allowances:
            return await self._attempts()
        try:
            await self._hold()
        except PacelineError as error:
            return _own_refusal(self.http, error, self.record)
        if self.charge is None:
            return await self._attempts()
        try:
            response = await self._attempts()
        except BaseException as error:
            if self.waits or fault_of(error) in (Fault.UNSENT, Fault.UNREACHED):
                self.charge.cancel()
            self.charge.end()
            raise
        if not self.charge.settles:
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

        token = sending.set(self.http.target)
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
        while response is None:
            try:
                permit = await self._acquire(permit)
            except PacelineError as error:
                if self.acquisition is not None:
                    error = self.tries.error(self.record.pool, waiter_of(self.acquisition), error)
                return _own_refusal(self.http, error, self.record)
            self.acquisition = None
            response = await self._attempt(permit)
        return response

    async def _hold(self) -> None:
        """Hold the cost of the request in the allowances of its lane."""
        asked = [Asked(one.call, one.expected) for one in self.everywhere()]
        self.charge = self.pacer.allowances.charge(self.pacer.lanes.of(), asked, self._timeout_s)
        if self.charge is not None:
            for acquisition, account in self.charge.steps():
                self.acquisition = acquisition
                try:
                    self.charge.hold(await acquisition if self.http.is_async else acquisition.wait())
                except PacelineError as error:
                    raise self.charge.fail(error, account) from None
                except BaseException:
                    self.charge.cancel()
                    raise
                finally:
                    self.acquisition = None

    def everywhere(self) -> list[Metered]:
        """The request at each server that may answer it."""
        return [self.metered]

    async def _acquire(self, last: Permit | None) -> Permit:
        """The permit for an attempt: for the first, the one that the caller holds, if any; else from the queue."""
        permit = current_permit(self.metered.scheduler) if last is None else None
        if permit is None:
            self.acquisition = acquisition = self.pacer.acquire_call(
                self.metered.scheduler,
                self.metered.estimate,
                units=self.metered.provider.units,
                again=last,
                timeout=self._timeout_s,
                name=self._name,
                lane=None if self.metered.payer is None else self.metered.payer.lane,
            )
            if last is not None:
                self.tries.place(waiter_of(acquisition))
            permit = await acquisition if self.http.is_async else acquisition.wait()
        self.record.cost, self.record.granted_ns = permit.reservation.cost, permit.reservation.granted_ns
        self.record.waited_s += permit.waited_s
        return permit

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
        pool, cause = self.metered.scheduler.pool.name, _cause_of(judged)
        self.pacer.answers.count(self.http.address, pool, judged.status, cause, now_ns / NS)
        ends = self._seen is not None and self._seen(judged, self.http)
        try:
            self.read_plan(headers, refusal, now_ns)
            self._observe(headers, permit, refusal, now_ns)
            row = None if refusal is None else self.metered.scheduler.row(permit.reservation, refusal)
            failed = is_server_fault(judged.status, refusal, row)
            if failed:
                status, _ = self.http.head(response)  # which may say less than its body
                self._count_fault(permit, f"status {status}{judged.why and f', {judged.why}'}")
            elif failed is not None:
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
        token = sending.set(self.http.target)
        try:
            response = await self.http.send(permit)
            if not permit.reservation.open:
                return response, None, {}
            return response, *await self._judge(response, permit)
        except BaseException as error:
            if not permit.reservation.open:  # superseded
                raise
            fault, delay_s = fault_of(error), None
            if (cause := cause_of_error(error)) is not None:
                now_s = self.pacer.clock.now_ns() / NS
                self.pacer.answers.count(self.http.address, self.metered.scheduler.pool.name, 0, cause, now_s)
            if fault in (Fault.BROKEN, Fault.UNREACHED):
                # Counted before the permit is closed: a failed probe must not let the other waiters go.
                if not (cause == TIMEOUT and self.metered.scheduler.timed_out(permit.reservation)):
                    self._count_fault(permit, type(error).__name__, fault)
                delay_s = self._after_fault()
            if fault is Fault.UNSENT:
                self.tries.unsent()
                self.record.attempts = self.tries.made
            if fault in (Fault.UNSENT, Fault.UNREACHED):
                permit.cancel()
            else:
                permit.settle()  # the provider may have counted it
                if self.charge is not None and delay_s is not None:
                    self.charge.broke()
            if delay_s is None:
                raise
        finally:
            sending.reset(token)
        await self._delay(delay_s)
        return None

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
        """Pause the pool as the refusal asks; then another attempt, or a refusal of paceline's own."""
        await self.http.close(response)
        self.record.refusals.append(refusal)
        self.metered.refused(refusal)
        if self.metered.payer is not None:
            self.metered.payer.refused()
        decision = self.tries.failed(self.metered.scheduler, refusal, row)
        refuse(permit, self.tries.refusal or refusal, decision)
        if not (isinstance(decision, Again) and decision.pool_wide) and self._elsewhere(refusal):
            return None
        if isinstance(decision, GiveUp):
            error = GaveUpError(self.record.pool, self.record.attempts, refusal, decision.reason)
            return _own_refusal(self.http, error, self.record)
        self.tries.announce(self.metered.scheduler, decision)
        if not decision.pool_wide:  # else the request waits in the queue: for the end of the pause, and for the quotas
            await self._delay(decision.delay_s)
        return None

    async def _failed(self, response: Any, judged: Judged, permit: Permit, *, ends: bool) -> Any | None:
        """An error that is no refusal: for the caller, or for another attempt after a server fault; not if it ``ends``."""
        delay_s = self._after_fault() if judged.status >= 500 and not ends else None
        permit.settle()  # the provider may have counted it
        if delay_s is None:
            return await self._shown(response, judged)
        await self.http.close(response)
        await self._delay(delay_s)
        return None

    async def _shown(self, response: Any, judged: Judged) -> Any:
        """The response for the caller: one that says with its status what its body says."""
        if self.http.head(response)[0] == judged.status:
            return response
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

    def _count_fault(self, permit: Permit, reason: str, fault: Fault = Fault.BROKEN) -> None:
        """Count a failure of the host. Without a connection it counts, too, where the limiter repeats the attempt.

        After a probe the next one is another request's: an outage does not use up the attempts of one request.
        """
        reached = fault is Fault.BROKEN or self.pacer.retry.faults
        sent_ns, scheduler = permit.reservation.granted_ns, self.metered.scheduler
        self.tries.behind = self.pacer.health.failed(self.http.address, scheduler, sent_ns, reason, reached=reached)

    def _after_fault(self) -> float | None:
        """The seconds until another attempt after a server fault or a broken connection; ``None`` for no other."""
        if self._elsewhere(None):
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
        while seconds:
            await self._sleep(seconds)
            seconds = self.tries.delayed_s(self.metered.scheduler)

    async def _sleep(self, seconds: float) -> None:
        if self.http.is_async:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)  # noqa: ASYNC251  (sync code)


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
            slots = CONCURRENCY in scheduler.pool.ledger.units
            if slots:
                permit.settle()  # the end of its slot is not known
            if not (slots and charge is None):  # as held until the caller has asked for the answer
                remember(exchange.pacer, job, self._settle_job)
        elif isinstance(payload, MAPPING):
            scheduler.finished(state_of(payload))
            self._settle(None if metered.call.endpoint == COUNTING else provider.usage(payload), None)
        else:
            reader = provider.usage_reader(metered.call)
            late = partial(scheduler.timed_out, permit.reservation)
            exchange.http.tap(response, self._headers, Tap(reader, partial(self._end, reader), self._adjust, late))

    def _settle_job(self, found: Mapping[str, Any] | None) -> None:
        """It was made in the background, and this is all of it; ``None``: it was never asked for."""
        self._settle(None if found is None else self._metered.provider.usage(found), None)

    def _end(self, reader: UsageReader, usage: Usage | None, refusal: Refusal | None) -> None:
        """Its body has passed; a reader of another package may not know how far the model has come."""
        if (plan := getattr(reader, "plan", None)) is not None:
            self._exchange.read_plan(plan_headers_in(plan), None, self._exchange.pacer.clock.now_ns())
        if (state := getattr(reader, "state", None)) is not None:
            self._metered.scheduler.finished(state)
        # Without output it generates no text, and its form need not say where it ends.
        if self._metered.call.max_output_tokens != 0:
            self._record.whole = getattr(reader, "whole", True)
        self._settle(usage, refusal)

    def _adjust(self, usage: Usage) -> None:
        """It reports its input before its end."""
        usage = plausible(self._record.pool, usage, self._permit.cost)
        self._begin(usage)
        adjust(self._permit, self._metered.known(usage))
        if self._charge is not None:
            self._charge.begun(usage, self._metered.call)

    def _settle(self, usage: Usage | None, refusal: Refusal | None) -> None:
        """It is over."""
        call, permit, windows = self._metered.call, self._permit, self._exchange.windows
        if usage is not None and usage.partial and not call.writes:
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
        usage = plausible(self._record.pool, usage, permit.reservation.cost)
        if tier != usage.tier:
            usage = replace(usage, tier=tier[: parse.TIER_MAX])
        is_text = usage.partial and not usage.input_tokens  # and nothing is reported
        if not is_text:
            self._begin(usage)
        if is_text and usage.output_tokens <= metered.tokens()[1]:
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
        """Learn from the first usage that it reports."""
        if not self._begun:
            self._begun = True
            self._metered.begun(usage, self._permit.reservation.granted_ns)


def _cause_of(judged: Judged) -> str:
    """What an answer is, as :class:`~paceline.pacing.answers.Answers` counts it."""
    if judged.refusal is not None:
        return judged.refusal.kind.value
    if judged.verdict is Verdict.RESULT:
        return ANSWERED
    if judged.verdict is Verdict.UNREADABLE:
        return UNREADABLE
    return "key" if refuses_key(judged.status, judged.error) else cause_of_status(judged.status)


_WORDS = {
    AcquireTimeoutError: "timeout", BudgetError: "budget", QueueFullError: "queue_full", NeverFitsError: "never_fits", PoolStoppedError: "stopped",
    QuotaError: "quota", SettingsError: "quota", StoreError: "store", TooLargeError: "too_large",
}  # fmt: skip


def _own_refusal(http: Binding, error: PacelineError, record: Exchanged | None = None) -> Any:
    """A 429 of paceline's own, which every SDK raises as its ``RateLimitError`` without another attempt.

    After refusals for want of capacity it is a 503, as the provider's was. So it is where the store of the quotas has never answered:
    a handler of 429 backs off, and this needs a person.
    """
    word, status = _WORDS.get(type(error), "gave_up"), 429
    if isinstance(error, GaveUpError):
        if error.refusal.kind in ENDS and error.refusal.scope is RefusalScope.POOL:
            word = "stopped"
        elif error.refusal.kind is RefusalKind.NEVER_FITS:
            word = "never_fits"
        elif error.refusal.kind is RefusalKind.CAPACITY:
            status = 503
    elif isinstance(error, StoreError):
        status = 503
    headers = {"x-should-retry": "false", "x-paceline": word, "content-type": "application/json"}
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None and math.isfinite(retry_after_s):
        headers["retry-after"] = str(math.ceil(retry_after_s))
    kind = "rate_limit_error" if status == 429 else "service_unavailable_error"
    told = error.told if isinstance(error, PoolStoppedError) else error
    detail = {"type": kind, "code": f"paceline_{word}", "message": f"paceline: {told}", "param": None}
    response = http.respond(status, headers, json.dumps({"type": "error", "error": detail}).encode())
    if record is not None:
        http.note(response, record)
    return response


_paced_above: ContextVar[list[bool] | None] = ContextVar("paceline_paced_above", default=None)


@contextmanager
def paced_above() -> Iterator[None]:
    """Let the next metered request pass the paced HTTP clients below: the caller has paced it."""
    token = _paced_above.set([True])
    try:
        yield
    finally:
        _paced_above.reset(token)


def _is_paced_above() -> bool:
    above = _paced_above.get()
    return bool(above and above.pop())
