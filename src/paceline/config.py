"""The settings of a run, from the command line, the environment and a file: each beats the next, all beat the tables.

provider = "openai"
tier = 2
workers = 500

[limits]
"gpt-5" = ["500 requests/min", "400k tokens/min"]
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Self, get_args
from urllib.parse import urlsplit

from paceline.core.branch import LostMode
from paceline.core.outcomes import QuotaError, StoreError
from paceline.core.quota import REQUESTS, TOKENS, Quota, parse_quotas
from paceline.core.retry import RetryPolicy
from paceline.limiter import LEASE_MAX_S, Limiter
from paceline.limits import Limits, Resolved
from paceline.providers.registry import provider_named, suggest
from paceline.providers.tables import DEFAULT, lookup
from paceline.stores import Store, open_store

ENV_PREFIX = "PACELINE_"
WORKERS_MAX = 20_000
RUN_S = 30 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a run needs to know beside its requests.

    Attributes:
        limits: Quotas by model (or ``openai/*``, ``*``); they beat the published tables.
        provider: Whose API it is; by the address or the requests' format when not given.
        tier: The account's tier, for the published tables.
        base_url: The server's root, without ``/v1``; the provider's own when not given.
        workers: How many requests are waiting or in flight at the same time.
        max_attempts: HTTP attempts for one request, the first included.
        timeout_s: How long one attempt may take; waiting in line does not count.
        headroom_s: What every quota keeps unused, in seconds of its refill.
        store: Where the quotas are kept, as a URL; not shown, for it may hold a password. A run that is not told
            chooses itself.
        lost: What to do while the store cannot be asked.
        lease_s: For how long a process may take a share of the rate, in seconds; ``None``: when the load is high.
        rpm_override: Requests a minute for every model, whatever else is said.
        tpm_override: Tokens a minute, in and out together, for every model, whatever else is said.
    """

    limits: Mapping[str, tuple[Quota, ...]] = field(default_factory=dict)
    provider: str | None = None
    tier: str | None = None
    base_url: str | None = None
    workers: int = 500
    max_attempts: int = 6
    timeout_s: float = 600.0
    headroom_s: float = 1.0
    store: str | None = field(default=None, repr=False)
    lost: LostMode = "safe"
    lease_s: float | None = None
    rpm_override: float | None = None
    tpm_override: float | None = None

    @classmethod
    def load(
        cls, file: Path | None = None, environ: Mapping[str, str] = os.environ, given: Mapping[str, Any] | None = None
    ) -> Self:
        """Put a run's settings together.

        Args:
            file: A TOML file (or YAML, where ``pyyaml`` is installed).
            environ: ``PACELINE_PROVIDER``, ``PACELINE_WORKERS`` and so on; ``limits`` have no variable.
            given: What the command line says, by field; ``None`` stands for nothing said. ``limits`` are added to
                the file's, model by model.

        Raises:
            QuotaError: A setting cannot be meant; the message names where it stands and what would be right.
        """
        config = cls()
        if file is not None:
            config = config.having(_read(file), str(file))
        variables = {name: f"{ENV_PREFIX}{name.upper()}" for name in _READERS if name != "limits"}
        said = {name: environ[variable] for name, variable in variables.items() if environ.get(variable)}
        for name, value in said.items():
            config = config.having({name: value}, variables[name], name_it=False)
        chosen = {name: value for name, value in (given or {}).items() if value not in (None, {}, ())}
        return config.having(chosen, "command line", readers=_READERS | _OVERRIDES)

    def limiter(self, provider: str | None = None, store: Store | None = None) -> Limiter:
        """A limiter with these limits, and the published ones of the provider behind them.

        Args:
            provider: Whose tables stand behind the given limits, when these settings do not say.
            store: Where its books are; in this process when not given.

        Raises:
            QuotaError: The tier is unknown.
        """
        name = self.provider or provider
        page = provider_named(name).name if name else None
        if page and self.tier is not None:
            lookup(page, DEFAULT, self.tier)  # an unknown tier is said now, not at the first request
        # A batch has time: its attempts are bounded, and a day's quota is waited out instead of failing what is left.
        retry = RetryPolicy(max_attempts=self.max_attempts, max_elapsed_s=RUN_S, max_retry_after_s=RUN_S, faults=True)
        sharing: dict[str, Any] = {"store": store, "lost": self.lost, "lease_s": self.lease_s}
        ttl_s = max(900.0, 2 * self.timeout_s)
        limiter = Limiter(headroom_s=self.headroom_s, ttl_s=ttl_s, retry=retry, **sharing)
        rates = {unit: rate for unit, rate in ((REQUESTS, self.rpm_override), (TOKENS, self.tpm_override)) if rate}
        limiter.limits = _Overridden(self.limits, page, self.tier, rates)
        return limiter

    def having(
        self,
        values: Mapping[str, Any],
        where: str,
        *,
        name_it: bool = True,
        readers: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> Self:
        """The same settings, but for ``values``; ``where`` they stand is said when one cannot be meant."""
        known = _READERS if readers is None else readers
        read: dict[str, Any] = {}
        for name, value in values.items():
            place = f"{where}: {name}" if name_it else where
            if name not in known:
                near = suggest(name, known) or f"; known: {', '.join(known)}"
                raise QuotaError(f"{place}: no such setting{near}")
            try:
                read[name] = known[name](value)
            except ValueError as error:  # QuotaError is one
                raise QuotaError(f"{place}: {error}") from None
        if "limits" in read:
            read["limits"] = {**self.limits, **read["limits"]}
        return replace(self, **read)


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
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError("it must be an address like 'https://api.openai.com' or 'http://127.0.0.1:8080/v1'")
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/").removesuffix("/v1").rstrip("/")


class _Overridden(Limits):
    """Limits in which some units' rates a minute are what the command line says, for every model."""

    def __init__(
        self, given: Mapping[str, Any], provider: str | None, tier: str | None, rates: Mapping[str, float]
    ) -> None:
        super().__init__(given, provider=provider, tier=tier)
        self._rates = rates

    def model(self, provider: str, model: str) -> Resolved:
        resolved = super().model(provider, model)
        if not self._rates:
            return resolved
        kept = (quota for quota in resolved.quotas if quota.unit not in self._rates or quota.period_s != 60)
        fixed = (Quota(unit, rate) for unit, rate in self._rates.items())
        return replace(resolved, quotas=(*kept, *fixed), source="given")


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QuotaError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None
    if file.suffix in (".yaml", ".yml"):
        try:
            yaml = import_module("yaml")
        except ImportError:
            raise QuotaError(f"{file}: YAML needs pyyaml: install it, or write the settings as TOML") from None
        fault, load = yaml.YAMLError, yaml.safe_load
    else:
        toml = import_module("tomllib")
        fault, load = toml.TOMLDecodeError, toml.loads
    try:
        values = load(text)
    except fault as error:
        raise QuotaError(f"{file}: {error}") from None
    if not isinstance(values, dict):
        raise QuotaError(f"{file}: it must hold settings by name, e.g. 'workers'")
    return {str(name): value for name, value in values.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r}: it must be a text")
    return value.strip()


def _tier(value: Any) -> str:
    return _text(str(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def _number(least: float, most: float, what: str) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not least <= number <= most:
            raise ValueError(f"{value!r}: it must be {what} from {least:g} to {most:g}")
        return number

    return read


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = _number(least, most, "a whole number")(value)
        if not number.is_integer():
            raise ValueError(f"{value!r}: it must be a whole number from {least} to {most}")
        return int(number)

    return read


def _store(value: Any) -> str:
    """Never shows the whole of ``value``: it may hold a password."""
    if not isinstance(value, str):
        raise ValueError("it must be a text like 'sqlite:PATH' or 'redis://HOST:PORT/DB'")  # noqa: TRY004
    url = value.strip()
    scheme, colon, rest = url.partition(":")
    if not (colon and scheme in _SCHEMES and (scheme in _SCHEMES[:2] or rest.startswith("//"))):
        near = suggest(scheme, _SCHEMES) if colon and re.fullmatch(r"[a-z+]{1,16}", scheme) else ""
        raise ValueError(f"it is no store's URL{near}: write {_STORES}")
    try:
        open_store(url)  # nothing is opened yet
    except StoreError as error:
        raise ValueError(str(error)) from None
    return url


def _lost(value: Any) -> str:
    mode = _text(value)
    if mode not in get_args(LostMode):
        hint = suggest(mode, get_args(LostMode))
        raise ValueError(f"{mode!r}: it must be 'safe', 'closed' or 'open'{hint}")
    return mode


def _limits(value: Any) -> dict[str, tuple[Quota, ...]]:
    if not isinstance(value, Mapping):
        raise ValueError('write a table: "gpt-5" = ["500 requests/min", "400k tokens/min"]')  # noqa: TRY004
    limits = {}
    for model, quotas in value.items():
        if isinstance(quotas, tuple):  # from the command line, read already
            limits[model] = quotas
            continue
        if not isinstance(quotas, str | list) or not all(isinstance(quota, str) for quota in quotas):
            raise ValueError(f'{model}: {quotas!r}: write texts, e.g. ["500 requests/min", "400k tokens/min"]')
        try:
            limits[str(model)] = parse_quotas(quotas)
        except QuotaError as error:
            raise ValueError(f"{model}: {error}") from None
    return limits


_SCHEMES = (
    *("memory", "sqlite", "redis", "rediss", "unix"),
    *("redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"),
)
_STORES = "'memory:', 'sqlite:PATH', 'redis://HOST:PORT/DB', or another that docs/stores.md names"

_READERS: dict[str, Callable[[Any], Any]] = {
    "limits": _limits,
    "provider": _text,
    "tier": _tier,
    "base_url": lambda value: parse_base_url(_text(value)),
    "workers": _whole(1, WORKERS_MAX),
    "max_attempts": _whole(1, 1_000),
    "timeout_s": _number(0.001, 86_400.0, "seconds"),
    "headroom_s": _number(0.0, 3_600.0, "seconds"),
    "store": _store,
    "lost": _lost,
    "lease_s": _number(0.0, LEASE_MAX_S, "seconds"),
}
_OVERRIDES: dict[str, Callable[[Any], Any]] = {
    "rpm_override": _number(1e-3, 1e12, "a number"),
    "tpm_override": _number(1e-3, 1e12, "a number"),
}
