"""Sends single requests of a batch at the pace of a limiter, and makes records of their answers."""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from html import unescape
from typing import Any, Final

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from paceline.batch.acceptance import is_served
from paceline.batch.address import proxy_for
from paceline.batch.files import FILE_GONE, GoneError
from paceline.batch.gates import HANDFUL, EndedError, Leads, Room, RunRoute
from paceline.batch.reach import Reach, origin
from paceline.batch.redact import PART_MIN, Secrets
from paceline.batch.requests import BadLineError, RunRequest, keyless
from paceline.batch.summary import Calls
from paceline.batch.transport import (
    NO_CONNECTION,
    AnswerTooLargeError,
    DistrustedError,
    NotDecodedError,
    PausedError,
    RunTarget,
    Sender,
    WholeAnswer,
    session,
)
from paceline.config.servers import ProviderAddress, ServerGroup
from paceline.http.binding import Binding
from paceline.http.describe import Metered, at_account, describe
from paceline.http.exchange import Exchange, Way
from paceline.http.routed import RoutedExchange
from paceline.limiter.limiter import Limiter
from paceline.pacing.lack import lack_of
from paceline.pacing.pacer import Pacer
from paceline.pacing.retry import Again
from paceline.pacing.tries import Tries
from paceline.providers.refusals import KEY_INVALID, codes_of, refuses_key
from paceline.providers.verdict import Judged, Verdict

MESSAGE_MAX: Final = 2_000
NOT_THERE = frozenset([301, 302, 303, 307, 308, 404, 405, 410])
"""Status of an answer for a path or a model that the address does not have."""

EXCERPT_MAX: Final = 200

TRUST: Final = "check --base-url, or name the certificate of your own authority in SSL_CERT_FILE"
"""What to do about a certificate that is not trusted."""

UNANSWERED: Final = (
    aiohttp.ClientError,
    HttpProcessingError,
    AnswerTooLargeError,
    NotDecodedError,
    OSError,
    ValueError,
)
"""What an attempt without an answer raises: of the client and of the system, for a URL that is none, and for a file that is gone."""

_Bind = Callable[[RunRequest, str, RunTarget, bytes], Binding]
_Seen = Callable[[Judged, Binding], bool]

_OWN_ANSWER = "x-paceline"  # the header of a 429 or 503 that paceline itself makes
_DIGIT = re.compile("[0-9]")
_PAGE = re.compile(r"\s*<(?:!doctype|\?xml|html|head|title|body|center)\b", re.IGNORECASE)
_TITLE = re.compile(r"<(title|h1)\b[^>]{0,200}>([^<]{1,200})", re.IGNORECASE)
_IN_HEADER = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What became of a request.

    Attributes:
        response: ``status_code``, ``request_id`` and ``body`` of the answer; ``None`` if there was none.
        error: ``code`` and ``message``; ``None`` if the request is answered.
        answer: The answer that was received.
        ends: Whether no other request can be answered either: ``key`` if the key is refused, ``money`` if none is left.
        tries: The attempts that were made.
    """

    response: dict[str, Any] | None
    error: dict[str, str] | None
    answer: WholeAnswer | None = None
    ends: str = ""
    tries: Tries | None = None


class Members:
    """The servers of a group: each request goes to the one where it can go soonest.

    Attributes:
        origins: The addresses.
    """

    def __init__(self, group: ServerGroup, pacer: Pacer) -> None:
        self._group, self._pacer = group, pacer
        # All requests may begin alike: they would wait for one member while the others are free.
        self._choice = group.choice(pacer.clock, by_cache=False)
        self.origins = tuple(origin(one.root) for one in group.members.values())
        self._target = functools.cache(RunTarget.of)

    def exchange(self, request: RunRequest, metered: Metered, bind: _Bind, seen: _Seen) -> Exchange:
        """The exchange of a request with any of them.

        Raises:
            BadLineError: One of them cannot be asked for it.
        """
        ways = {}
        for name, one in self._group.members.items():
            body, own = one.renamed(request.body), None
            if body is request.body:
                own = at_account(self._pacer, metered, one.provider)
            content = request.content() if body is request.body else json.dumps(body).encode("ascii")
            own = own or describe(self._pacer, one.provider, request.path, content)
            if own is None:
                raise BadLineError(f"url is {keyless(request.path)!r}, which is not paced for {one.provider.name}")
            place = self._target(one.base_url, request.path, self.origins)
            ways[name] = Way(bind(request, one.provider.name, place, content), own)
        sticky = request.body.get("prompt_cache_key")
        sticky = None if sticky is None else str(sticky)
        exchange = RoutedExchange(self._pacer, ways, self._choice, sticky=sticky, seen=seen)
        exchange.model = request.model  # members may have other names for it
        return exchange

    def outcome(self, outcome: RunOutcome, model: str) -> RunOutcome:
        """The outcome of a request for a model; one that ends the run says so of all of them."""
        if outcome.ends == "key" and len(self._choice.left_aside(model)) < len(self._group.members):
            return replace(outcome, ends="")  # other members answer, but the request has no attempt left
        if not outcome.ends:
            return outcome
        why = "have no money left" if outcome.ends == "money" else "refuse their keys, or the model"
        message = f"{self} {why}: {', '.join(self._group.members)}"
        return replace(outcome, error={"code": "key_refused", **(outcome.error or {}), "message": message})

    def __str__(self) -> str:
        return f"the servers of the group {self._group.name}"


class RunClient:
    """Sends requests, each when the limiter allows it.

    Args:
        limiter: The limiter.
        addresses: Where requests go, by the provider's name.
        timeout_s: The time from sending a request to the end of its answer.
        say: Takes a line for the user.
        calls: Counts the attempts.
        paused: Whether nothing may be sent now.
        group: The servers: each request goes to the one where it can go soonest. ``None`` for no group.

    Attributes:
        limiter: The limiter.
        reach: Reports addresses that cannot be reached.
        sender: Makes the attempts, and counts them.
        room: Bounds the requests in flight, if this machine cannot have more.
    """

    def __init__(
        self,
        limiter: Limiter,
        addresses: Mapping[str, ProviderAddress],
        timeout_s: float,
        say: Callable[[str], None],
        calls: Calls,
        paused: Callable[[], bool] = lambda: False,
        group: ServerGroup | None = None,
    ) -> None:
        secrets = Secrets(address.key for address in addresses.values())
        self._members = Members(group, limiter.pacer) if group is not None else None
        self._proxy = proxy_for(addresses)
        again = limiter.pacer.retry.faults and limiter.pacer.retry.max_attempts > 1
        self.reach = Reach(say, again=again, proxy=self._proxy)
        self.sender = Sender(timeout_s, self.reach, secrets, calls, paused)
        self.room = Room(say)
        self._leads = Leads(limiter.pacer.clock)
        self.limiter, self._addresses, self._say = limiter, addresses, say
        self._routes: dict[tuple[str, str, str], RunRoute] = {}
        self._distrusted: dict[str, str] = {}  # why nothing is sent to the address of a provider
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Open the connections of the running event loop."""
        self._session = session(self.sender.timeout_s, lambda name: self.reach.connected(name, time.monotonic()))
        if self.sender.post is None:
            self.sender.post = functools.partial(self._session.post, allow_redirects=False, proxy=self._proxy)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    @property
    def whys(self) -> list[str]:
        """Why requests of some path and model are not sent any more, each once."""
        return list(dict.fromkeys(route.why for route in self._routes.values() if route.why))

    def why_not(self, request: RunRequest) -> str:
        """Why requests like ``request`` are not sent any more; empty while they are."""
        route = self._routes.get(_kind(request))
        return route.why if route is not None else ""

    async def ask(self, request: RunRequest, metered: Metered, tries: Tries | None = None) -> RunOutcome | None:
        """Send one request; ``None`` if it was not sent, because others like it show that the address or the model is wrong.

        Args:
            request: The request.
            metered: What it costs.
            tries: The attempts at it so far; ``None`` for none.

        Raises:
            PausedError: Nothing may be sent now.
        """
        address = self._addresses[request.provider.name]
        route = self._route(request, address)
        if route.why or not (route.served or await route.enter()):
            return None
        exchange = self._exchange(request, metered, route)
        exchange.tries = tries or exchange.tries
        answer = await self._attempt(request, exchange, route)
        if not isinstance(answer, WholeAnswer):
            return answer
        judged = exchange.judged
        if judged is not None and judged.verdict is Verdict.UNREADABLE:
            tries = exchange.tries
            if route.served:
                if not await route.again():
                    return None
            elif await route.again() and isinstance(tries.failed(exchange.metered.scheduler, None, None), Again):
                return await self.ask(request, metered, tries)
        elif judged is not None and judged.verdict is Verdict.FAULT:
            self._judge(route, request, answer, judged, exchange.http.address)
        outcome = replace(_outcome(request, answer), tries=exchange.tries)
        return outcome if self._members is None else self._members.outcome(outcome, request.model)

    async def _attempt(
        self, request: RunRequest, exchange: Exchange, route: RunRoute
    ) -> WholeAnswer | RunOutcome | None:
        """The answer; the outcome of a request that gets none; ``None`` if others have shown that it need not be sent."""
        try:
            with route.asking():
                async with self._leads.behind(exchange.metered.prompt, lambda: _sent_ns(exchange)):
                    return await self._answer(exchange)
        except PausedError:
            raise
        except EndedError:
            return None
        except DistrustedError as error:
            self._distrust(request.provider.name, str(error))
            return None
        except UNANSWERED as error:
            return self._unanswered(error, exchange)

    def _route(self, request: RunRequest, address: ProviderAddress) -> RunRoute:
        """What is known of the requests like this one."""
        route = self._routes.get(kind := _kind(request))
        if route is None:
            origins = self._members.origins if self._members is not None else ()
            route = self._routes[kind] = RunRoute(address.root, request.path, origins)
            route.why = self._distrusted.get(request.provider.name, "")
        return route

    def _unanswered(self, error: BaseException, exchange: Exchange) -> RunOutcome:
        """The outcome of an attempt without an answer."""
        code = "connection_error"
        if isinstance(error, AnswerTooLargeError):
            code, words = "answer_too_large", str(error)
        elif isinstance(error, GoneError):
            code, words = FILE_GONE, str(error)
        elif isinstance(error, NO_CONNECTION):
            words = self.reach.lose(exchange.http.address, error)
        else:
            words = one_line(self.sender.secrets.text(f"{type(error).__name__}: {error}".rstrip(": ")))
        return RunOutcome(None, {"code": code, "message": words[:MESSAGE_MAX]}, tries=exchange.tries)

    async def _answer(self, exchange: Exchange) -> WholeAnswer:
        """Run an exchange, again each time when this machine lacks something for it."""
        while True:
            entry = await self.room.enter()
            try:
                answer: WholeAnswer = await exchange.run()
            except Exception as error:
                if (lack := lack_of(error)) is None:
                    raise
                sender = self.sender
                sender.calls.made -= 1
                sender.free()
                attempt = getattr(exchange.http, "attempt", 0)
                self.room.lower(lack, entry, attempt, sender.last, len(sender.in_flight))
            else:
                return answer
            finally:
                self.room.leave()
            await self.room.pause()

    def _exchange(self, request: RunRequest, metered: Metered, route: RunRoute) -> Exchange:
        """The exchange of a request: with its server, or with any of the group.

        Raises:
            BadLineError: A server of the group cannot be asked for it.
        """

        def seen(judged: Judged, http: Binding) -> bool:
            at = http.address  # not the exchange's: a cycle would keep each request until a collection
            if judged.verdict is Verdict.RESULT:
                route.good(at)
                return False
            self.sender.free()
            self.sender.calls.refused += judged.verdict is Verdict.REFUSAL
            wrong = judged.verdict is Verdict.UNREADABLE and (not route.served or _is_page(judged.start))
            if wrong and route.bad([at], again=True):
                self._end(route, request, 200, judged.start.decode("utf-8", "replace") or judged.why)
            return bool(route.why) or (judged.verdict is Verdict.UNREADABLE and not route.served)

        if self._members is not None:
            return self._members.exchange(request, metered, self._bind, seen)
        http = self._bind(request, request.provider.name, route.target, request.content())
        return Exchange(self.limiter.pacer, http, metered, seen=seen)

    def _bind(self, request: RunRequest, provider: str, target: RunTarget, content: bytes) -> Binding:
        headers = self._addresses[provider].headers_for(target.url.raw_path)
        if _IN_HEADER.fullmatch(request.custom_id):
            headers["x-custom-id"] = request.custom_id  # for the log of a gateway on the way
        return self.sender.request(target, headers, content)

    def _judge(self, route: RunRoute, request: RunRequest, answer: WholeAnswer, judged: Judged, origin: str) -> None:
        """Count an error that is no refusal; stop sending the requests of ``route`` if it shows that it is wrong."""
        status = judged.status
        if status >= 500:
            return
        moved = status in NOT_THERE and (not route.served or status < 400 or isinstance(answer.payload, str))
        if not moved:
            route.good(origin)
        elif route.bad(route.wrong, again=False):
            code, words = error_of(answer.payload)
            self._end(route, request, status, f"{code}: {words}" if code else words)

    def _end(self, route: RunRoute, request: RunRequest, status: int, words: str) -> None:
        """Stop sending the requests of ``route``, whose answers are wrong, the last one with ``status`` and ``words``."""
        what, who = request.model[:100], str(self._members or _shown(route.target.url))
        which, check = f"the first {HANDFUL} answers", "--base-url, the url of the lines, and the model's name"
        if route.served:
            which, check = f"{HANDFUL} answers in a row", "the server, and the proxy on the way if there is one"
        why = (
            f"{which} for {what} from {who} were not from its API, the last one with status {status} ({one_line(words)});"
            f" check {check}"
        )
        route.end(why, self.sender.in_flight)
        self._say(f"no more requests of {what} to {keyless(request.path)[:100]} are sent: the answers are wrong")

    def _distrust(self, provider: str, reason: str) -> None:
        """Stop sending to the address of ``provider``, or to the addresses of the group."""
        why = f"{reason}; {TRUST}"
        self._distrusted.setdefault(provider, why)
        for (name, _, _), route in self._routes.items():
            if name == provider:
                route.end(why, self.sender.in_flight)


def _kind(request: RunRequest) -> tuple[str, str, str]:
    """What the requests of a route have in common."""
    return request.provider.name, request.path, request.model


def _sent_ns(exchange: Exchange) -> int | None:
    """When its last attempt was sent; ``None`` while it waits for its permit."""
    return None if exchange.waits else exchange.record.granted_ns


def _outcome(request: RunRequest, answer: WholeAnswer) -> RunOutcome:
    """The record of an answer."""
    status, payload = answer.status, answer.payload
    code, words = error_of(payload) if not is_served(status) else ("", "")
    own = answer.headers.get(_OWN_ANSWER) if status in {429, 502, 503} else None
    if own is not None:
        error = {"code": code or f"paceline_{own}", "message": words}
        return RunOutcome(None, error, answer, "money" if own == "stopped" else "")
    if refuses_key(status, {"code": code, "message": words}):
        detail = words if status == 403 else code  # the message of the others may hold a part of the key
        words = (
            f"{request.provider.name} refused the key with a {status}"
            f"{f' ({detail})' if detail else ''}; set {request.provider.key_env} to a key that may use {request.model[:100]}"
        )
        return RunOutcome(None, {"code": "key_refused", "message": words[:MESSAGE_MAX]}, answer, "key")
    request_id = answer.headers.get("x-request-id") or answer.headers.get("request-id")
    response: dict[str, Any] = {"status_code": status, "request_id": request_id, "body": payload}
    if not is_served(status):
        return RunOutcome(response, {"code": code or f"http_{status}", "message": words}, answer)
    return RunOutcome(response, None, answer)


def _is_page(start: bytes) -> bool:
    """Whether the beginning of a body is a text that is no JSON: no answer that was cut, and none without content."""
    return not (start.lstrip() or b"{").startswith((b"{", b"["))


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
    if isinstance(payload, list) and payload:  # of Gemini, where it has OpenAI's form
        payload = payload[0]
    error = payload.get("error") if isinstance(payload, dict) else None
    if not isinstance(error, dict):
        return "", _without_tags(str(error or payload or "no reason given"))[:MESSAGE_MAX]
    code = KEY_INVALID if KEY_INVALID in codes_of(error) else error.get("code") or error.get("type")
    return str(code or "")[:100], _without_tags(str(error.get("message") or ""))[:MESSAGE_MAX]


def _without_tags(text: str) -> str:
    """``text``, or the title of the page that it is: a proxy answers with pages, and a message is read without their tags."""
    if not _PAGE.match(text):
        return text
    title = _TITLE.search(text)
    return f"a page{f': {one_line(unescape(title[2]))}' if title else ''}"
