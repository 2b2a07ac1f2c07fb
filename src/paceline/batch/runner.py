"""The workers: a fixed number of tasks that take requests from one reader, send them, and write what came back."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import FrameType
from typing import Any, Final

import httpx2

from paceline.batch.flight import SEAT, SEATS, Flight
from paceline.batch.progress import Meter, View
from paceline.batch.reach import UNREACHED, Reach
from paceline.batch.requests import Request
from paceline.batch.results import Results, encode_answer
from paceline.batch.summary import Tally
from paceline.config import Config
from paceline.http import pace_transport
from paceline.limiter.limiter import Limiter
from paceline.providers.registry import is_loopback

MESSAGE_MAX: Final = 2_000
ERRORS_MAX: Final = 100  # kinds of failure that are counted apart
KEY_REFUSED: Final = (401, 403)
_SAID_BY_US = "x-paceline"
_IN_HEADER = re.compile(r"[!-~]{1,200}")


class Stop(StrEnum):
    """Why a run ended before its input did."""

    INTERRUPTED = "interrupted"
    KEY = "key"
    MONEY = "money"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a provider's requests go, and with which headers."""

    root: str
    headers: Mapping[str, str]
    key: str
    key_env: str


class Runner:
    """Sends what ``source`` yields and appends every answer to ``results``.

    Args:
        source: The requests to send; read one at a time, as workers become free.
        limiter: Whose pace is kept.
        config: Workers and deadlines.
        addresses: Where requests go, by provider.
        results: Where answers go.
        tally: Counts.
        view: What the user sees.
        meter: Words for it.

    Attributes:
        stop: Why it ended early, and what to say about it; ``None`` while nothing is wrong.
        flight: The attempts.
        reach: Which addresses cannot be reached.
    """

    def __init__(
        self,
        source: Iterator[Request],
        limiter: Limiter,
        config: Config,
        addresses: Mapping[str, Address],
        results: Results,
        tally: Tally,
        view: View,
        meter: Meter,
    ) -> None:
        self.stop: tuple[Stop, str] | None = None
        proxy = _proxy(addresses)
        self.reach = Reach(view.say, again=limiter.retry.faults and limiter.retry.max_attempts > 1, proxy=proxy)
        self.flight = Flight(_pools(config.workers, proxy), config.timeout_s, self.reach)
        self._source, self._limiter, self._config, self._addresses = source, limiter, config, addresses
        self._results, self._tally, self._view, self._meter = results, tally, view, meter
        self._paced = {name: pace_transport(limiter, self.flight, provider=name) for name in addresses}
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Send everything.

        Raises:
            BadLineError: The input has changed since it was checked.
        """
        loop = asyncio.get_running_loop()

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self._on_signal)

        main = threading.current_thread() is threading.main_thread()  # nobody else may handle signals
        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM) if main}
        workers = min(self._config.workers, max(self._tally.left, 1))
        self._tasks = [asyncio.create_task(self._work(seat)) for seat in range(workers)]
        watcher = asyncio.create_task(self._watch())
        try:
            await self._finish()
        finally:
            watcher.cancel()
            for number, handler in before.items():
                signal.signal(number, handler)
            await self.flight.aclose()

    def halt(self, why: Stop, message: str) -> None:
        """Send nothing more: what is in flight may finish; who waits in line has cost nothing and goes."""
        if self.stop is None:
            self.stop = why, message
        self.flight.landing = True
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current and task not in self.flight.aloft:
                task.cancel()

    def _on_signal(self) -> None:
        if self.stop is None:
            self._view.say("stopping: waiting for what is in flight; once more to stop at once")
            self.halt(Stop.INTERRUPTED, "interrupted")
        else:
            for task in self._tasks:
                task.cancel()

    async def _finish(self) -> None:
        """Wait for the workers; the first that breaks ends the others."""
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            broken = next((task for task in done if not task.cancelled() and task.exception()), None)
        finally:
            if self.stop is None:
                for task in self._tasks:
                    task.cancel()
            ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        for error in ([broken.exception()] if broken else []) + ended:
            if isinstance(error, Exception):
                raise error

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._view.every_s)
            self._view.show(*self._meter.line(self._limiter.status()["pools"], self.flight.refused))

    async def _work(self, seat: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        while self.stop is None:
            request = next(self._source, None)
            if request is None:
                return
            try:
                await self._serve(request, seat)
            finally:
                self.flight.aloft.discard(task)

    async def _serve(self, request: Request, seat: int) -> None:
        """Send one request and record what came of it."""
        address = self._addresses[request.page.name]
        headers = dict(address.headers)
        if _IN_HEADER.fullmatch(request.custom_id):
            headers["x-custom-id"] = request.custom_id  # for whoever reads the log of a gateway in between
        message = httpx2.Request(
            "POST",
            address.root + request.path,
            headers=headers,
            content=json.dumps(request.body).encode("ascii"),
            extensions={SEAT: seat},
        )
        try:
            response = await self._paced[request.page.name].handle_async_request(message)
            body = await response.aread()
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            if isinstance(error, UNREACHED):
                words = self.reach.lose(message.url, error)
            else:
                words = f"{type(error).__name__}: {error}".rstrip(": ")
            self._record(request, None, {"code": "connection_error", "message": words[:MESSAGE_MAX]})
            return
        self._count(response)
        said = response.headers.get(_SAID_BY_US) if response.status_code == 429 else None
        payload = _payload(body)
        if said == "stopped":
            self.halt(Stop.MONEY, _error_of(payload)[1])
        elif said is not None:
            code, words = _error_of(payload)
            self._record(request, None, {"code": code or f"paceline_{said}", "message": words})
        elif response.status_code in KEY_REFUSED:
            self._refused_key(request, response.status_code, payload, address)
        else:
            self._record_answer(request, response, payload, address)

    def _count(self, response: httpx2.Response) -> None:
        record = response.extensions.get("paceline")
        if record is None:
            return
        self._tally.waits.add(record.waited_s)
        if record.usage is not None:
            self._tally.input_tokens += record.usage.input_tokens
            self._tally.output_tokens += record.usage.output_tokens

    def _record_answer(self, request: Request, response: httpx2.Response, payload: Any, address: Address) -> None:
        status = response.status_code
        request_id = response.headers.get("x-request-id") or response.headers.get("request-id")
        answer = {"status_code": status, "request_id": request_id, "body": payload}
        error = None
        if status != 200:
            code, words = _error_of(payload)
            error = {"code": code or f"http_{status}", "message": words.replace(address.key, "***")}
        elif not isinstance(payload, dict):
            error = {"code": "not_json", "message": "the answer is no JSON object; is the base URL right?"}
        self._record(request, answer, error)

    def _record(self, request: Request, response: dict[str, Any] | None, error: dict[str, str] | None) -> None:
        try:
            self._results.append(encode_answer(request.custom_id, response, error))
        except OSError as fault:
            self.halt(Stop.OUTPUT, f"{self._results.path} cannot be written: {fault.strerror}")
            return
        if error is None:
            self._tally.ok += 1
        else:
            self._tally.failed += 1
            known = error["code"] in self._tally.errors or len(self._tally.errors) < ERRORS_MAX
            self._tally.errors[error["code"] if known else "other"] += 1

    def _refused_key(self, request: Request, status: int, payload: Any, address: Address) -> None:
        code, words = _error_of(payload)
        # What a 401 says may hold a part of the key.
        detail = code if status == 401 else words.replace(address.key, "***")
        self.halt(
            Stop.KEY,
            f"line {request.line}: {request.page.name} refused the key with a {status}"
            f"{f' ({detail})' if detail else ''}; set {address.key_env} to a key that may use {request.model[:100]}",
        )


def _proxy(addresses: Mapping[str, Address]) -> str | None:
    """The proxy that the environment names for ``addresses``; none for this machine's."""
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    urls = [url for url in (httpx2.URL(address.root) for address in addresses.values()) if not is_loopback(url.host)]
    return next((proxies[url.scheme] for url in urls if url.scheme in proxies and not proxy_bypass(url.host)), None)


def _pools(workers: int, proxy: str | None) -> list[httpx2.AsyncHTTPTransport]:
    """Connections without a bound of their own: the workers are the bound, and nobody holds a permit in a queue."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=30.0)
    tls = httpx2.create_ssl_context()
    return [httpx2.AsyncHTTPTransport(verify=tls, limits=limits, proxy=proxy) for _ in range(0, workers, SEATS)]


def _payload(body: bytes) -> Any:
    """The JSON of an answer; the text of what is none, shortened."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body[:10_000].decode("utf-8", "replace")


def _error_of(payload: Any) -> tuple[str, str]:
    """Code and message of an error's body."""
    error = payload.get("error") if isinstance(payload, dict) else None
    if not isinstance(error, dict):
        return "", str(error or payload or "no more is said")[:MESSAGE_MAX]
    return str(error.get("code") or error.get("type") or "")[:100], str(error.get("message") or "")[:MESSAGE_MAX]
