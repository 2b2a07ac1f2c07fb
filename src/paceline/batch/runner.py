"""The workers: a fixed number of tasks that take requests from one reader, send them, and record the answers."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from paceline.batch.progress import Meter, View
from paceline.batch.reach import Reach, origin
from paceline.batch.redact import PART_MIN, Secrets
from paceline.batch.requests import Request
from paceline.batch.results import Results, encode_answer
from paceline.batch.summary import Tally
from paceline.batch.transport import (
    NO_CONNECTION,
    Answer,
    AnswerTooLargeError,
    NotDecodedError,
    PausedError,
    Sender,
    Target,
    session,
)
from paceline.config import Config
from paceline.core.results import QuotaError
from paceline.http.describe import Metered
from paceline.http.exchange import Exchange
from paceline.limiter.limiter import Limiter
from paceline.providers.registry import is_loopback

WRITE_AGAIN_S: Final = 1.0
UNWRITTEN_MAX_S: Final = 600.0
"""How often a failed write is tried again, and for how long before the run stops."""

MESSAGE_MAX: Final = 2_000
KEY_REFUSED: Final = (401, 403)
NOT_THERE = frozenset([301, 302, 303, 307, 308, 404, 405, 410])
"""Status of an answer for a path or a model that the address does not have."""

HANDFUL: Final = 10
"""How many answers show that an address or a model is wrong, if all of the first ones do."""

HOLD_S: Final = 1.0
"""How long the other requests wait for the first answers, at most."""

WHYS_SHOWN: Final = 3
EXCERPT_MAX: Final = 200

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""

UNANSWERED: Final = (
    aiohttp.ClientError,
    HttpProcessingError,
    AnswerTooLargeError,
    NotDecodedError,
    OSError,
    ValueError,
)
"""What an attempt without an answer raises: of the client and of the system, and for a URL that is none."""

_STOPPING = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
_OWN_ANSWER = "x-paceline"  # the header of a 429 or 503 that paceline itself makes
_DIGIT = re.compile("[0-9]")
_IN_HEADER = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a provider's requests go, and with which headers and key."""

    root: str
    headers: Mapping[str, str]
    key: str


class Route:
    """The requests of one path and model at an address, until one of them shows that the address serves them.

    Before that, at most ``HANDFUL`` are sent within ``HOLD_S``: the answers of a wrong address come fast. A longer hold
    would delay every run whose answers take a minute.

    Args:
        root: The server's root.
        path: The path below it.

    Attributes:
        target: Where the requests go.
        open: Set when all requests may be sent, or none.
        served: Whether an answer has shown it.
        wrong: How many answers were not from the API that was asked for.
        why: Why no further request is sent; empty while they are.
    """

    def __init__(self, root: str, path: str) -> None:
        url = URL(root + path)
        self.target = Target(url, origin(str(url)), (url.host or "", url.path))
        self.open = asyncio.Event()
        self.served = False
        self.wrong = self._sent = 0
        self.why = ""

    async def enter(self) -> bool:
        """Wait for the answers of others, if need be; return whether the request may be sent."""
        if not self.open.is_set():
            self._sent += 1
            if self._sent == 1:
                asyncio.get_running_loop().call_later(HOLD_S, self.open.set)
            if self._sent > HANDFUL:
                await self.open.wait()
        return not self.why

    def answered(self, *, wrong: bool) -> bool:
        """Count an answer; return whether it is the last of a handful that were all wrong."""
        if self.served or self.why:
            return False
        self.wrong += wrong
        self.served = not wrong
        if not wrong or self.wrong == HANDFUL:
            self.open.set()
        return self.wrong == HANDFUL and wrong


class Runner:
    """Sends the requests of ``source`` and appends every answer to ``results``.

    Args:
        source: The requests to send, with what they cost; one is read when a worker is free.
        addresses: Where requests go, by the provider's name.

    Attributes:
        stop: The exit code and the reason of a run that ended early.
    """

    def __init__(
        self,
        source: Iterator[tuple[Request, Metered]],
        limiter: Limiter,
        config: Config,
        addresses: Mapping[str, Address],
        results: Results,
        tally: Tally,
        view: View,
        meter: Meter,
    ) -> None:
        self.stop: tuple[int, str] | None = None
        proxy = proxy_for(addresses)
        self.reach = Reach(view.say, again=limiter.retry.faults and limiter.retry.max_attempts > 1, proxy=proxy)
        self._secrets = Secrets(address.key for address in addresses.values())
        self.sender = Sender(config.timeout_s, self.reach, self._secrets, lambda: bool(results.kept))
        self._proxy = proxy
        self._source, self._limiter, self._config, self._addresses = source, limiter, config, addresses
        self._results, self._tally, self._view, self._meter = results, tally, view, meter
        self._again: list[tuple[Request, Metered]] = []  # not sent, because answers could not be written
        self._writing: asyncio.Task[None] | None = None  # while there are answers that could not be written
        self._tasks: list[asyncio.Task[None]] = []
        self._routes: dict[tuple[str, str, str], Route] = {}

    async def run(self) -> None:
        """Send everything.

        Raises:
            BadLineError: The input has changed since it was checked.
        """
        loop = asyncio.get_running_loop()

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self._on_signal)

        main = threading.current_thread() is threading.main_thread()  # other threads cannot handle signals
        heeded = [number for number in _STOPPING if main and signal.getsignal(number) is not signal.SIG_IGN]  # nohup
        before = {number: signal.signal(number, on_signal) for number in heeded}
        workers = min(self._config.workers, max(self._tally.left, 1))
        client = session(self._config.timeout_s)
        if self.sender.post is None:
            self.sender.post = functools.partial(client.post, allow_redirects=False, proxy=self._proxy)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(workers)]
        progress = asyncio.create_task(self._show())
        try:
            await self._finish()
            whys = [route.why for route in self._routes.values() if route.why]
            if whys and self.stop is None:
                self.stop = FAILED if self._tally.ok else USAGE, "; ".join(whys[:WHYS_SHOWN])
        finally:
            progress.cancel()
            if self._writing is not None:
                self._writing.cancel()
            for number, handler in before.items():
                signal.signal(number, handler)
            await client.close()

    def _halt(self, code: int, message: str) -> None:
        """Send nothing more. Requests in flight may finish; waiting requests have cost nothing and are cancelled."""
        if self.stop is None:
            self.stop = code, message
        self.sender.stopping = True
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current and task not in self.sender.in_flight:
                task.cancel()

    def _on_signal(self) -> None:
        if self.stop is None:
            self._halt(INTERRUPTED, "interrupted")
            self._view.say("stopping: waiting for the requests in flight; interrupt again to stop at once")
        else:
            for task in self._tasks:
                task.cancel()

    async def _finish(self) -> None:
        """Wait for the workers; the first exception of one ends the others."""
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

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(self._view.every_s)
            unwritten = self._results.why if self._results.kept else ""
            self._view.show(*self._meter.line(self._limiter.status()["pools"], self.sender.refused, unwritten))

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while self.stop is None and (found := await self._next()) is not None:
            try:
                await self._serve(*found)
            except PausedError:
                self._again.append(found)
            finally:
                self.sender.in_flight.discard(task)
            await asyncio.sleep(0)  # the client notices here that the server has closed the connection after its answer

    async def _next(self) -> tuple[Request, Metered] | None:
        """The next request; while answers cannot be written, there is none."""
        while self._writing is not None:
            await asyncio.shield(self._writing)
        return self._again.pop() if self._again else next(self._source, None)

    async def _write_kept(self) -> None:
        """Write the answers that could not be written, as soon as that is possible."""
        path, results = self._results.path, self._results
        self._view.say(
            f"cannot write {path}: {results.why}; sending is paused, and answers are kept in memory; free some space"
        )
        started_s, most = asyncio.get_running_loop().time(), 0
        while results.kept and (waited_s := asyncio.get_running_loop().time() - started_s) < UNWRITTEN_MAX_S:
            await asyncio.sleep(WRITE_AGAIN_S)
            most = max(most, len(results.kept))
            results.write_kept()
        if results.kept:
            self._halt(FAILED, f"{path} could not be written for {waited_s / 60:.0f} minutes: {results.why}")
        else:
            self._view.say(f"{path} can be written again; it has the {most:,} answers that were kept")
            self._writing = None

    async def _serve(self, request: Request, metered: Metered) -> None:
        """Send one request and record its answer."""
        address = self._addresses[request.provider.name]
        kind = request.provider.name, request.path, request.model
        route = self._routes.get(kind)
        if route is None:
            route = self._routes[kind] = Route(address.root, request.path)
        if not (route.served or await route.enter()):
            return
        headers = address.headers
        if _IN_HEADER.fullmatch(request.custom_id):
            headers = {**headers, "x-custom-id": request.custom_id}  # for the log of a gateway on the way
        target = route.target
        content = json.dumps(request.body).encode("ascii")
        http = self.sender.request(target, headers, content)
        try:
            answer = await Exchange(self._limiter, http, metered, target.key).run()
        except PausedError:
            raise
        except UNANSWERED as error:
            code = "connection_error"
            if isinstance(error, AnswerTooLargeError):
                code, words = "answer_too_large", str(error)
            elif isinstance(error, NO_CONNECTION):
                words = self.reach.lose(target.origin, error)
            else:
                words = one_line(self._secrets.text(f"{type(error).__name__}: {error}".rstrip(": ")))
            self._record(request, None, {"code": code, "message": words[:MESSAGE_MAX]})
        else:
            self._take(request, answer)
            if not route.served and _OWN_ANSWER not in answer.headers and answer.status < 500:
                self._judge(route, request, answer)

    def _judge(self, route: Route, request: Request, answer: Answer) -> None:
        """Stop sending the requests of ``route`` if its first answers show that the address or the model is wrong."""
        status, payload = answer.status, answer.payload
        wrong = status in NOT_THERE or (status == 200 and not isinstance(payload, dict))
        if route.answered(wrong=wrong):
            code, words = error_of(payload)
            reason = one_line(f"{code}: {words}" if code else words)
            route.why = (
                f"the first {HANDFUL} answers for {request.model[:100]} from {_shown(route.target.url)} were not from its API, the last"
                f" one with status {status} ({reason}); check --base-url, the url of the lines, and the model's name"
            )
            self._view.say(
                f"no more requests of {request.model[:100]} to {request.path[:100]} are sent: the answers are wrong"
            )

    def _take(self, request: Request, answer: Answer) -> None:
        """Record an answer, or halt because of it."""
        record = answer.record
        if record is not None:
            self._tally.waits.add(record.waited_s)
            if record.usage is not None:
                self._tally.input_tokens += record.usage.input_tokens
                self._tally.output_tokens += record.usage.output_tokens
        status, payload = answer.status, answer.payload
        code, words = error_of(payload) if status != 200 else ("", "")
        own = answer.headers.get(_OWN_ANSWER) if status in {429, 503} else None
        if own == "stopped":
            self._halt(FAILED, words)
        elif own is not None:
            self._record(request, None, {"code": code or f"paceline_{own}", "message": words})
        elif status in KEY_REFUSED:
            detail = code if status == 401 else words  # the message of a 401 may hold a part of the key
            self._halt(
                USAGE,
                f"line {request.line}: {request.provider.name} refused the key with a {status}"
                f"{f' ({detail})' if detail else ''}; set {request.provider.key_env} to a key that may use {request.model[:100]}",
            )
        else:
            request_id = answer.headers.get("x-request-id") or answer.headers.get("request-id")
            response, error = {"status_code": status, "request_id": request_id, "body": payload}, None
            if status != 200:
                error = {"code": code or f"http_{status}", "message": words}
            elif not isinstance(payload, dict):
                error = {"code": "not_json", "message": "the answer is not a JSON object; is the base URL right?"}
            self._record(request, response, error)

    def _record(self, request: Request, response: dict[str, Any] | None, error: dict[str, str] | None) -> None:
        try:
            self._results.append(encode_answer(request.custom_id, response, error))
        except OSError as failure:
            self._halt(FAILED, f"{self._results.path} cannot be written: {failure.strerror}")
            return
        if self._results.kept and self._writing is None:
            self._writing = asyncio.create_task(self._write_kept())
        if error is None:
            self._tally.ok += 1
        else:
            self._tally.fail(error["code"])


def proxy_for(addresses: Mapping[str, Address]) -> str | None:
    """The proxy that the environment names for ``addresses``; none for this machine's.

    Raises:
        QuotaError: It is not the address of an HTTP proxy; the message does not quote it, because it may hold a password.
    """
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    urls = [urlsplit(address.root) for address in addresses.values()]
    hosts = [(url.scheme, url.hostname or "") for url in urls]
    scheme = next((s for s, host in hosts if s in proxies and not (is_loopback(host) or proxy_bypass(host))), None)
    if scheme is None:
        return None
    proxy = proxies[scheme] if "://" in proxies[scheme] else f"http://{proxies[scheme]}"
    with suppress(ValueError):
        url = URL(proxy)
        if url.scheme in {"http", "https"} and url.host:
            return proxy
    raise QuotaError(f"{scheme}_proxy is not the address of an HTTP proxy; set it to one like http://proxy:3128")


def one_line(words: str) -> str:
    """The beginning of a text in one printable line."""
    return "".join(c if c.isprintable() else " " for c in " ".join(words[: 10 * EXCERPT_MAX].split()))[:EXCERPT_MAX]


def _shown(url: URL) -> str:
    """A URL without user name and query, and without parts of its path that can be keys."""
    return origin(str(url)) + "/".join(
        "***" if len(part) >= PART_MIN and _DIGIT.search(part) else part for part in url.path.split("/")
    )


def error_of(payload: Any) -> tuple[str, str]:
    """Code and message of an error's body."""
    error = payload.get("error") if isinstance(payload, dict) else None
    if not isinstance(error, dict):
        return "", str(error or payload or "no reason given")[:MESSAGE_MAX]
    return str(error.get("code") or error.get("type") or "")[:100], str(error.get("message") or "")[:MESSAGE_MAX]
