"""An answer on its way to the client."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from string import punctuation
from typing import Final
from urllib.parse import quote

from paceline.core.quota import NS
from paceline.gateway.connection import Headers
from paceline.gateway.errors import hide_account
from paceline.gateway.incoming import BODY_S, Incoming
from paceline.gateway.listing import LIST_MAX
from paceline.gateway.relay import HOP_BY_HOP, ClientReply, UnfinishedStreamError, forwarded, let_go
from paceline.pacing.answers import cause_of_error
from paceline.pacing.pacer import Pacer

log = logging.getLogger("paceline.gateway")

_HOP_BY_HOP_ANSWER: Final = HOP_BY_HOP - {b"content-length"}

_UPLOADS: Final = (b"x-goog-upload-url", b"x-goog-upload-control-url")
"""The headers in which Google says where the bytes of an upload go. @google/genai sends them to the gateway's host, but without the
server's name in the path; google-genai for Python goes past the gateway (2.32 and 3.6, 2026-11)."""

_BATCHES: Final = re.compile(r"/v1/messages/batches(/[^/]*(/cancel)?)?$")
"""The paths of Anthropic's batches, whose ``results_url`` the SDKs ask for the answers."""


class Passing:
    """Passes answers on to clients.

    Args:
        pacer: The pacer that counts the answers.
        tells_quotas: Whether answers keep the headers that say what is left of the provider's quotas.
    """

    def __init__(self, pacer: Pacer, *, tells_quotas: bool) -> None:
        self._pacer, self._tells_quotas = pacer, tells_quotas

    async def begin(self, request: Incoming, reply: ClientReply, part: bytes) -> None:
        """Send a part of an answer that is not judged yet, or what keeps its client, after its head."""
        send = request.send
        if not request.connection.answering:  # what follows may be another attempt's, of another length
            headers = [pair for pair in self._headers_of(reply) if pair[0] != b"content-length"]
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": part, "more_body": True})

    async def send(self, request: Incoming, reply: ClientReply) -> None:
        """Send an answer, without the account of the gateway's own key; one that has broken off is ``broken`` afterwards."""
        await hide_account(reply, request.decoded_path)
        await _lead_back(request, reply)
        send, connection = request.send, request.connection
        release: Callable[[], None] | None = None
        if connection.answering:
            reply.decode()
        else:
            headers = self._headers_of(reply)
            if reply.begun:  # one write for the head and what is there
                release, headers = connection.hold(headers), []
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        left, more = reply.length, True
        try:
            while part := await reply.read():
                left -= len(part)
                more = left != 0
                await send({"type": "http.response.body", "body": part, "more_body": more})
                if release is not None and (reply.unread or not more):
                    release()
                    release = None
                if not (more or reply.unread or reply.owes):
                    break
                if not more:
                    await asyncio.sleep(0)  # the client gets it before its usage is read
            if reply.broken:
                connection.close()
                await asyncio.sleep(BODY_S)  # its end ends this task
        except Exception as error:  # noqa: BLE001  (its head is sent: only the connection can say it)
            self._broke_off(reply, error)
            connection.abort()
            await asyncio.sleep(0)  # until the server knows
            return
        if more:
            await send({"type": "http.response.body", "body": b""})
        if release is not None:
            release()

    def _broke_off(self, reply: ClientReply, error: Exception) -> None:
        """Count and log an answer whose body has broken off."""
        why = str(error) if isinstance(error, UnfinishedStreamError) else type(error).__name__
        log.warning("%s: an answer broke off: %s: its client sees the connection end", reply.server, why)
        server, cause = reply.upstream, cause_of_error(error)
        if reply.record is not None and server is not None and cause is not None:
            pacer = self._pacer
            pacer.answers.count(server.root, reply.record.pool, reply.status, cause, pacer.clock.now_ns() / NS)
        reply.broken = True
        let_go(error)

    def _headers_of(self, reply: ClientReply) -> Headers:
        """The headers of an answer as the client gets them.

        A refusal keeps what it says of quotas in any case, and so do answers to the client's own credential, whose owner reads them.
        """
        # A 304 states the length of another answer.
        drop = HOP_BY_HOP if reply.status in (204, 304) else _HOP_BY_HOP_ANSWER
        headers, record = forwarded(reply.headers, drop), reply.record
        if not self._tells_quotas and reply.status < 400 and reply.of_gateway:
            headers = [pair for pair in headers if b"ratelimit" not in pair[0]]
        if reply.fallback:
            headers.append((b"x-paceline-fallback", reply.fallback))
        if record is not None:
            headers.append((b"x-paceline-waited", b"%.3f" % record.waited_s))
            headers.append((b"x-paceline-attempts", b"%d" % record.attempts))
        return headers


async def _lead_back(request: Incoming, reply: ClientReply) -> None:
    """Make the gateway's address of the one that a server names as its own: SDKs send it the client's key, or the bytes of an upload."""
    host, upstream = request.head.header("host"), reply.upstream
    if upstream is None or not host:
        return
    forwarded_as, root = request.head.header("x-forwarded-proto"), upstream.root.encode() + b"/"
    scheme = "https" if forwarded_as.startswith("https") else request.connection.scope["scheme"]
    here = f"{scheme}://{host}{request.head.key_path}/{quote(upstream.name, safe=punctuation)}/".encode("latin-1")

    def led(name: bytes, value: bytes) -> bytes:
        if not value.startswith(root):
            return value
        address = here + value.removeprefix(root)
        if name in _UPLOADS:
            return _with_key(address, request.given)
        return address if name == b"location" and reply.of_gateway else value

    reply.headers = [(name, led(name, value)) for name, value in reply.headers]
    if reply.of_gateway and reply.is_good and _BATCHES.search(request.path):
        body = await reply.plain(LIST_MAX)
        if len(body) > LIST_MAX:
            return
        changed = re.sub(rb'("results_url"\s*:\s*")' + re.escape(root), lambda found: found[1] + here, body)
        if changed != body:
            reply.put(reply.status, reply.headers, changed)


def _with_key(address: bytes, given: str) -> bytes:
    """An address with the client's key in its query: google-genai for Python sends no key with the bytes of an upload."""
    if not given:
        return address
    return address + (b"&" if b"?" in address else b"?") + b"key=" + quote(given).encode()
