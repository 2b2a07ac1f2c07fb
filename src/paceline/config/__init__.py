"""The settings of a program, from the command line, the environment and a file: each beats the next, all beat the tables.

provider = "openai"
tier = 2

[limits]
"gpt-5" = ["500 requests/min", "400k tokens/min"]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Self

from paceline.config.readers import base_url as _base_url
from paceline.config.schema import ANY, BREAKER, CONCURRENCY, LANES, LIMITS, NAMES, OVERRIDES, Key, Said, read
from paceline.config.sources import ENV_PREFIX, FILES, Faults, Source, environment, find_file, models_of, read_file
from paceline.core.pool import WAITING_MAX
from paceline.core.queue import LaneSpec
from paceline.core.quota import Quota, parse_quotas
from paceline.core.results import QuotaError
from paceline.pacing.breaker import BreakerPolicy
from paceline.pacing.limits import Limits
from paceline.providers.registry import provider_named
from paceline.providers.tables import DEFAULT, known_providers, lookup
from paceline.shared.capacity import LostMode

__all__ = ["ANY", "ENV_PREFIX", "Config", "find_file", "load_arguments", "parse_base_url", "parse_limit"]


BREAKER_POLICY = BreakerPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a limiter, or a run, is told.

    Attributes:
        limits: Quotas by model (or ``openai/*``, ``*``, a pool of your own); they beat the published tables.
        provider: Whose API it is; by the address or the requests' format when not given.
        tier: The account's tier, for the published tables.
        base_url: The server's root, without ``/v1``; the provider's own when not given. For runs.
        workers: How many requests are waiting or in flight at the same time. For runs.
        max_attempts: HTTP attempts for one request, the first included.
        timeout_s: How long one attempt may take; waiting in line does not count. For runs.
        headroom_s: What every quota keeps unused, in seconds of its refill.
        ttl_s: After how many seconds a permit that nobody closed counts as charged; ``None``: 900, and for runs at
            least twice ``timeout_s``.
        waiting_max: How many may wait in one pool.
        acquire_timeout_s: How long a request may wait in line unless it says so itself; ``None``: for ever. Not for runs.
        estimate_factor: What estimates of input are multiplied by on top of their learned correction, instead of what
            their learned spread asks; ``None``: that.
        min_interval_s: The least time between two requests of one pool.
        learn: Whether the headers of answers, and refusals, change limits.
        concurrency: Requests in flight at a provider, over all its models; ``*``: at any other.
        lanes: What holds for lanes where the program does not say.
        retry: Fields of :class:`~paceline.RetryPolicy` that are said.
        breaker: When to stop trying a provider that fails; ``None``: never.
        store: Where the quotas are kept, as a URL; not shown, for it may hold a password. A run that is not told
            chooses itself.
        lost: What to do while the store cannot be asked.
        lease_s: For how long a process may take a share of the rate, in seconds; ``None``: when the load is high.
        rpm_override: Requests a minute for every model, whatever else is said.
        tpm_override: Tokens a minute, in and out together, for every model, whatever else is said.
        origins: Where each setting was said that was said.
    """

    limits: Mapping[str, tuple[Quota, ...]] = field(default_factory=dict)
    provider: str | None = None
    tier: str | None = None
    base_url: str | None = None
    workers: int = 500
    max_attempts: int = 6
    timeout_s: float = 600.0
    headroom_s: float = 1.0
    ttl_s: float | None = None
    waiting_max: int = WAITING_MAX
    acquire_timeout_s: float | None = None
    estimate_factor: float | None = None
    min_interval_s: float = 0.0
    learn: bool = True
    concurrency: Mapping[str, int] = field(default_factory=dict)
    lanes: Mapping[str, LaneSpec] = field(default_factory=dict)
    retry: Mapping[str, Any] = field(default_factory=dict)
    breaker: BreakerPolicy | None = BREAKER_POLICY
    store: str | None = field(default=None, repr=False)
    lost: LostMode = "safe"
    lease_s: float | None = None
    rpm_override: float | None = None
    tpm_override: float | None = None
    origins: Mapping[Key, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(
        cls,
        file: Path | None = None,
        environ: Mapping[str, str] = os.environ,
        given: Mapping[str, Any] | None = None,
        where: str = "command line",
    ) -> Self:
        """Put the settings together.

        Args:
            file: A TOML file, or YAML with the extra ``yaml``.
            environ: ``PACELINE_PROVIDER``, ``PACELINE_RETRY__BACKOFF_S``, ``PACELINE_LIMITS__OPENAI__GPT_5`` and so on.
            given: What the command line says, by field; ``None`` stands for nothing said. ``limits`` are added to
                the file's, model by model.
            where: What ``given`` is called when it cannot be meant.

        Raises:
            QuotaError: Settings cannot be meant; the message has a line for each: where it stands and what would be right.
        """
        faults, config = Faults(), cls()
        if file is not None:
            config = config.telling(read(read_file(file, faults), faults))
        names = [*models_of(config.provider or ""), *config.limits, *config.lanes]
        for source in environment(environ, [*NAMES, *OVERRIDES], names):
            config = config.telling(read(source, faults, OVERRIDES))
        chosen = {name: value for name, value in (given or {}).items() if value not in (None, {}, ())}
        config = config.telling(read(Source(chosen, where), faults, OVERRIDES))
        if (fault := _tier_fault(config.home, config.tier)) is not None:
            faults.add(config.origins["tier",], fault)
        faults.check()
        return config

    @property
    def home(self) -> str | None:
        """The provider that the tier is of: the one that is set, or the only one that the limits name."""
        return Limits(self.limits, provider=self.provider and provider_named(self.provider).name).home

    def arguments(self, provider: str | None = None, *, patient: bool = True) -> dict[str, Any]:
        """The arguments of a :class:`~paceline.Limiter` with these settings.

        Args:
            provider: Whose tables stand behind the given limits, when these settings do not say.
            patient: As for a batch, which has time: faults are tried again, no request times out in the queue, a day's
                quota is waited out, and the caller chooses the store.
        """
        from paceline.config.build import arguments

        return arguments(self, provider, patient=patient)

    def having(self, values: Mapping[str, Any], where: str) -> Self:
        """The same settings, but for ``values``; ``where`` they stand is said when one cannot be meant.

        Raises:
            QuotaError: One cannot be meant.
        """
        faults = Faults()
        config = self.telling(read(Source(values, where), faults))
        faults.check()
        return config

    def telling(self, said: Said) -> Self:
        """The same settings, but for what is said."""
        fields: dict[str, Any] = {"breaker": self.breaker, "origins": dict(self.origins)}
        for name in (LIMITS, CONCURRENCY, LANES, "retry"):
            fields[name] = dict(getattr(self, name))
        for key, (value, origin) in said.items():
            name, rest = key[0], key[1:]
            if name == LIMITS:  # a model that is named alone is meant at every provider that was named before
                for exact in [other for other in self.limits if other.partition("/")[2] == rest[0]]:
                    if (LIMITS, exact) not in said:
                        fields[LIMITS][exact], fields["origins"][LIMITS, exact] = value, origin
            if name == LANES:
                lane = fields[LANES].get(rest[0]) or LaneSpec(rest[0])
                fields[LANES][rest[0]] = replace(lane, **{rest[1]: value})
            elif name == BREAKER:
                breaker = fields[BREAKER] or BreakerPolicy()
                fields[BREAKER] = replace(breaker, **{rest[0]: value}) if rest else breaker if value else None
            elif rest:
                fields[name][rest[0]] = value
            else:
                fields[name] = value
            fields["origins"][key] = origin
        return replace(self, **fields)


def _tier_fault(provider: str | None, tier: str | None) -> QuotaError | None:
    """Why ``provider`` has no such tier, if it is known which it has."""
    try:
        if tier is not None and provider in known_providers():
            lookup(provider, DEFAULT, tier)
    except QuotaError as error:
        return error
    return None


OPTIONS = ("clock", "events")
"""What a limiter can be told beside its settings."""


def load_arguments(
    path: str | PathLike[str] | None = None, environ: Mapping[str, str] = os.environ, **given: Any
) -> dict[str, Any]:
    """See :meth:`paceline.Limiter.load`; ``given``: settings by name, which beat all others, and :data:`OPTIONS`."""
    options = {name: given.pop(name) for name in OPTIONS if name in given}
    if not isinstance(given.get("store", ""), str):
        options["store"] = given.pop("store")
    file = find_file(path, environ)
    config = Config.load(file, environ, given, "the arguments")
    if file is None and not config.origins:
        raise QuotaError(f"there is no configuration: no {', '.join(FILES)} here, and no {ENV_PREFIX}... is set")
    return config.arguments(patient=False) | options


def parse_limit(text: str) -> tuple[str, tuple[Quota, ...]]:
    """Read ``MODEL=500 requests/min,400k tokens/min``.

    Raises:
        QuotaError: It is no such text.
    """
    model, equals, quotas = text.rpartition("=")
    if not equals or not model.strip():
        raise QuotaError(f"{text!r}: write it like 'gpt-5=500 requests/min,400k tokens/min' ('*' for every model)")
    return model.strip(), parse_quotas(quotas)


def parse_base_url(text: str) -> str:
    """The server's root without ``/v1`` and a slash at the end.

    Raises:
        ValueError: It is no address of an HTTP server.
    """
    return _base_url(text)
