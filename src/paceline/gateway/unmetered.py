"""A request that costs nothing: it is passed on at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.core.quota import NS
from paceline.gateway.errors import no_answer
from paceline.gateway.incoming import Incoming
from paceline.gateway.listing import as_listed, cause_of, check_listing
from paceline.gateway.relay import ClientReply, Relayed
from paceline.http.account import login_of
from paceline.http.background import poll_of
from paceline.http.tap import Tap
from paceline.pacing.answers import cause_of_error
from paceline.pacing.pacer import Pacer
from paceline.providers.plan_headers import is_page, plan_headers_in, plan_readings
from paceline.providers.streams import JsonReader


async def send_unmetered(pacer: Pacer, request: Incoming, sent: Relayed) -> ClientReply:
    """Pass on a request that costs nothing."""
    check_listing(request)
    request.entry.server = sent.server
    reply: ClientReply | None = None
    try:
        reply = await sent.send()
        cause = await cause_of(request, reply)
    except Exception as error:
        if reply is not None:
            reply.close()
        _count(pacer, request, 0 if reply is None else reply.status, cause_of_error(error))
        raise no_answer(error, sent.server) from error
    _count(pacer, request, reply.status, cause)
    _read(pacer, request, sent, reply)
    return await as_listed(request, reply)


def _read(pacer: Pacer, request: Incoming, sent: Relayed, reply: ClientReply) -> None:
    """Read what an answer that costs nothing says while it passes: of an answer in the background, or of a client's plan."""
    if reply.is_good:
        poll = poll_of(pacer, request.head.method, request.decoded_path)
        reader = poll or _page(pacer, request, reply)
        if reader is not None:
            sent.tap(reply, reply.texts, Tap(reader, lambda *_: None))


def _page(pacer: Pacer, request: Incoming, reply: ClientReply) -> JsonReader | None:
    """A reader for a page with what is used of a client's plan, which the client has asked for; ``None`` for any other page."""
    provider = request.place.members[0].provider.name
    asks = request.head.method == "GET" and is_page(provider, request.path)
    account = login_of(pacer, provider, request.head.header) if asks else ""
    if not account:
        return None
    headers = reply.texts
    dated = {"date": headers["date"]} if "date" in headers else {}

    def read(page: Mapping[str, Any]) -> None:
        if found := plan_readings(plan_headers_in(page) | dated, pacer.clock.now_ns() / NS):
            pacer.pools.read_plan(account, found)

    return JsonReader(read)


def _count(pacer: Pacer, request: Incoming, status: int, cause: str | None) -> None:
    """Count what came of a request that costs nothing; it has no model."""
    server = request.place.members[0]
    if cause is not None:
        pacer.answers.count(server.root, server.provider.name, status, cause, pacer.clock.now_ns() / NS)
