"""The settings of files and variables: a limiter's, in the form of files, and further ones for runs and servers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from paceline.core.queue import LaneSpec
from paceline.core.quota import Quota
from paceline.pacing.breaker import BreakerPolicy
from paceline.pacing.settings import PlainSettings, declared, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings(PlainSettings):
    """Settings of a limiter and of a run; in code, ``PacingSettings`` has objects of the same names."""

    # fmt: off
    limits: Mapping[str, tuple[Quota, ...]] = setting({},
        "Quotas by model, ``provider/*``, ``*`` or the name of your own pool. In code: the first argument.")
    base_url: str | None = setting(None,
        "The server's address for runs, with or without ``/v1``. Default: the provider's.")
    workers: int = setting(500,
        "Requests of a run that wait or are in flight at once.", ("a whole number", 1, 20_000))
    max_attempts: int = setting(6,
        "The most failed attempts per request of a run, the same as ``retry.max_attempts``.", ("a whole number", 1, 1_000))
    timeout_s: float = setting(600.0, "The longest duration of one attempt of a run.", ("seconds", 0.001, 86_400))
    store: str | None = setting(None,
        "The URL of the store in which processes share quotas. Runs use a file of this user by default.", repr=False)
    retry: Mapping[str, Any] = setting({},
        "When to retry after a refusal: fields of :class:`~paceline.RetryPolicy`.")
    plans: Mapping[str, Any] = setting({},
        "How to use the windows of plans: fields of :class:`~paceline.PlanPolicy`.")
    breaker: BreakerPolicy | None = setting(BreakerPolicy(),
        "When to pause after failures of a host: fields of :class:`~paceline.BreakerPolicy`, or off.")
    lanes: Mapping[str, LaneSpec] = setting({},
        "Weights, priorities and limits by lane, unless ``paceline.lane()`` sets them.")
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings(RunSettings):
    """All settings of a file: these, and what there is to know of servers, their models and providers."""

    # fmt: off
    upstreams: Mapping[str, Mapping[str, Any]] = setting({}, "The servers of the gateway and of groups, by name.")
    groups: Mapping[str, Mapping[str, Any]] = setting({}, "Servers for the same requests, by name.")
    group: str | None = setting(None, "The group that a run sends to.")
    models: Mapping[str, tuple[str, ...]] = setting({},
        "Models at the gateway's one address, by name: the server of each, then its fallbacks.")
    providers: Mapping[str, Mapping[str, Any]] = setting({},
        "Facts about providers, for the whole process. See ``paceline.facts``.")
    # fmt: on


def plain_text(text: str) -> str:
    """A text without the markup of docstrings."""
    return re.sub(r":\w+:`~?(?:[\w.]*\.)?([^`]*)`", r"`\1`", text).replace("``", "`")


def reference(*, bounds: bool = True) -> Iterator[tuple[str, str, str]]:
    """The name, the default and the text of every setting, for the help and the page.

    Args:
        bounds: Whether the text has the bounds of a number. The values of a choice are always there.
    """
    defaults = {one.name: one.default for one in fields(FileSettings)}
    for name, its in declared(FileSettings).items():
        default = defaults[name]
        if isinstance(default, bool):
            default = str(default).lower()
        elif isinstance(default, int | float):
            default = f"{default:,.15g}"
        expected = its.expected if bounds or its.choices else ""
        text = plain_text(f"{its.brief}{f': {expected}' if expected else ''}.")
        yield name, default if isinstance(default, str) else "", text
