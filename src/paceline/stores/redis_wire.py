"""Messages to the Redis script and its answers, in which numbers are whole, or texts with all digits."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from paceline.core.quota import Quota, Rule
from paceline.shared.messages import (
    Charged,
    LearnedState,
    Mark,
    Message,
    News,
    Note,
    Noted,
    Refused,
    Settled,
    Standing,
    StoreReply,
)
from paceline.shared.peers import BILLION

CLOCK, HEADER = 7, 10
"""Where the clock of the server, in microseconds, is in an answer, and how many numbers come first."""

LATE, NEWER = -1, -2
"""The first number of an answer to a message that was not applied: the server has read it too late, or the ledger has a newer format."""

_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@cache
def lua(name: str) -> str:
    """The script in ``NAME.lua``."""
    return (files("paceline.stores") / f"{name}.lua").read_text("utf-8")


@cache
def script() -> str:
    """The whole script of the ledgers."""
    return "".join(map(lua, ("meters", "peers", "ledger")))


@lru_cache(maxsize=64)
def quota_lines(quotas: tuple[Quota, ...]) -> str:
    """Each of these quotas in six words on a line of its own; equal quotas have equal lines."""
    return "\n".join(
        f"{q.unit} {float(q.amount)!r} {float(q.period_s)!r} {float(q.burst)!r} {q.rule.value} {q.anchor or '-'}"
        for q in quotas
    )


def encode(message: Message, late_us: int = 0, *, present: bool = False) -> str:
    """The message without its quotas.

    Args:
        message: The message.
        late_us: From when on the server, by its own clock, must not apply it; 0: never.
        present: Whether the process keeps a subscription to its channel on that server.

    A list: who, number, headroom, place, slack, versions, news, wants, held and windows (empty: none), recalled, share, late, noted, fresh, gentle, leaving,
    alone, closed, present.
    """
    known, news = message.known, [_news(one) for one in message.news]
    held = message.held if any(message.held) else []
    windows = _windows(message) if any(known.windows) else []
    # In the order of ledger.lua.
    return _to_json([
        message.who, message.number, known.headroom_s, message.place_ns, message.slack_ns, known.versions, news,
        message.wants, held, windows, known.recalled, message.share, late_us, known.noted,
        known.fresh, known.gentle, message.leaving, message.alone, message.closed, present,
    ])  # fmt: skip


def _windows(message: Message) -> list[Any]:
    """Each with its time zone: the quota in the ledger may have another one."""
    pairs = zip(message.known.quotas, message.known.windows, strict=False)
    return [[quota.anchor, *days] if days else 0 for quota, days in pairs]


def _news(news: News) -> list[Any]:
    if isinstance(news, Settled):
        listed: list[Any] = ["settled", news.answered, news.probe]
        for amount, mark, actual in zip(news.amounts, news.marks, news.actual, strict=False):
            listed += (amount, mark, amount if actual is None else actual)
        return listed
    if isinstance(news, Refused):
        return ["refused", news.pause_ns, news.probe_ns, *news.amounts]
    if isinstance(news, Charged):
        return ["spent", news.amounts, news.left or [[amount] for amount in news.amounts]]
    if isinstance(news, Noted):
        return ["noted", news.key, news.text]
    return [news.what, news.index, news.value]


def decode(answer: list[Any], message: Message) -> StoreReply:
    """The script's answer to ``message``.

    It is flat: number of grants (or ``LATE``, ``NEWER``), probe, wait, binds, pause, peers, share in billionths, the server's clock in
    microseconds, noted, number of notes; the notes; the marks of the grants; the standings.

    Raises:
        ValueError, IndexError, TypeError: It is no answer of the script.
    """
    if answer[0] < 0:
        raise ValueError("the clock of the server jumps")
    granted, probe, wait_ns, binds, pause_ns, peers, share, _, noted, told = answer[:HEADER]
    at, grants = HEADER + 3 * told, []
    notes = [Note(answer[i].decode(), answer[i + 1].decode(), answer[i + 2]) for i in range(HEADER, at, 3)]
    for want in message.wants[:granted]:
        end = at + min(len(want), len(message.known.quotas))
        marks: list[Mark] = answer[at:end]
        grants.append(marks)
        at = end
    standings = []
    while at < len(answer):
        lack_ns, used, charged, spent, opened, version = answer[at : at + 6]
        standing = Standing(_whole(lack_ns), float(used), float(charged), float(spent), float(opened))
        at += 6
        if version >= 0:
            standing.learned = _learned_state(version, answer[at : at + 12])
            at += 12
        standings.append(standing)
    return StoreReply(grants, probe == 1, wait_ns, binds, pause_ns, peers, share / BILLION, standings, noted, notes)


def _learned_state(version: int, fields: list[Any]) -> LearnedState:
    unit, amount, period_s, burst, rule, anchor, spread, burst_cap, ceiling, shifted_ns, epoch, refused = fields
    rule, anchor = Rule(rule.decode()), anchor.decode() or None
    quota = Quota(unit.decode(), float(amount), float(period_s), float(burst), rule, anchor)
    numbers = (float(burst_cap), float(ceiling), _whole(shifted_ns), epoch, float(refused))
    return LearnedState(version, quota, spread == 1, *numbers)


def _whole(number: Any) -> int:
    """A whole number; the script writes those above 2^53 as text."""
    return number if isinstance(number, int) else int(float(number))
