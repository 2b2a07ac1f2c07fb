"""Which quotas hold for which model: what the user gave beats what the provider publishes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core.quota import CONCURRENCY, REQUESTS, TOKENS, Quota, Rule, parse_quotas
from paceline.core.results import QuotaError

QuotaLike = str | Quota | Sequence[str | Quota]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The pool of a model, its quotas, and where they come from.

    Attributes:
        pool: Its name.
        quotas: What is allowed.
        source: ``given``, or the published table and its date.
        remote: Whether a provider counts, too, so that its answers correct the quotas.
        slots: How many requests may be in flight at the provider, over all its models; ``None``: any number.
        interval_s: The least time between two starts, in seconds.
    """

    pool: str
    quotas: tuple[Quota, ...]
    source: str
    remote: bool = False
    slots: Quota | None = None
    interval_s: float = 0.0


class Limits:
    """What the user gave, and the published tables behind it.

    Args:
        given: Quotas by name. A name is a pool of your own (``starts``), a model (``gpt-5``), a provider's
            model (``openai/gpt-5``), all models of a provider (``openai/*``) or every model (``*``).
        provider: The provider whose published limits stand behind ``given``; ``None`` for none.
        tier: The account's tier at that provider, or at the only one that ``given`` names.
        rpm_override: Requests a minute for every model, instead of any other limit on them.
        tpm_override: Tokens a minute for every model, instead of any other limit on them.
        learn: Whether answers correct the limits.
        concurrency: Requests in flight by provider, over all its models; ``*`` for every other provider.
        min_interval_s: The least time between two starts of one pool, in seconds.

    Raises:
        QuotaError: A quota cannot be read, or the tier is unknown.
    """

    def __init__(
        self,
        given: Mapping[str, QuotaLike] | None = None,
        *,
        provider: str | None = None,
        tier: str | int | None = None,
        rpm_override: float | None = None,
        tpm_override: float | None = None,
        learn: bool = True,
        concurrency: Mapping[str, int] | None = None,
        min_interval_s: float = 0.0,
    ) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise QuotaError(
                f"quotas are {type(given).__name__}: write them by pool, {{'openai/gpt-5': '500 requests/min'}}; a file is read by"
                " Limiter.load(path)"
            )
        self.given = {name: _quotas(name, quotas) for name, quotas in (given or {}).items()}
        self.tier = tier
        self.provider = None
        if provider is not None:
            from paceline.providers.registry import provider_named
            from paceline.providers.tables import lookup

            self.provider = provider_named(provider).name
            if tier is not None:
                lookup(self.provider, "default", tier)  # an unknown tier raises here, not at the first request
        self._overrides = overrides(rpm_override, tpm_override)
        self._learn = learn
        self._concurrency = {
            name: Quota(CONCURRENCY, float(most), 0.0, rule=Rule.SLOTS) for name, most in (concurrency or {}).items()
        }
        if not 0 <= min_interval_s < math.inf:
            raise QuotaError(f"min_interval_s is {min_interval_s!r}: it must be 0 s or more")
        self._interval_s = min_interval_s

    @property
    def home(self) -> str | None:
        """The one provider that this limiter is about: its own, or the only one that ``given`` names."""
        if self.provider is not None:
            return self.provider
        from paceline.providers.registry import is_provider, provider_named

        prefixes = {name.partition("/")[0] for name in self.given if "/" in name}
        names = {provider_named(prefix).name for prefix in prefixes if is_provider(prefix)}
        return names.pop() if len(names) == 1 else None

    def resolve(self, name: str) -> Resolved:
        """The pool called ``name``: ``provider/model``, a model of this limiter's provider, or a name of your own.

        Raises:
            QuotaError: Nothing is known about ``name``; the message names what is.
        """
        from paceline.providers.registry import is_provider, suggest

        provider, _, model = name.partition("/")
        if model and is_provider(provider):
            return self.model(provider, model)
        if model and name not in self.given and (f"{provider}/*" in self.given or "*" in self.given):
            return self.model(provider, model)  # of a provider that has no page here
        if name in self.given and self.provider is None:
            return Resolved(name, self.given[name], "given")
        if self.provider is not None:
            return self.model(self.provider, name)
        if "*" in self.given:
            return Resolved(name, self.given["*"], "given")
        raise QuotaError(
            f"no quota for {name!r}{suggest(name, self.given)}; known: {', '.join(sorted(self.given)) or 'none'}."
            " Name a provider's model like 'openai/gpt-5', or give the limiter a quota of that name"
        )

    def model(self, provider: str, model: str) -> Resolved:
        """The pool that ``provider`` charges for ``model``."""
        from paceline.providers.registry import provider_named

        page = provider_named(provider)
        alias = page.pool(model)
        quotas, source = self._quotas_of(page.name, model, alias)
        if self._overrides:
            quotas, source = overridden(quotas, self._overrides), "given"
        slots = self._concurrency.get(page.name, self._concurrency.get("*"))
        if slots is not None:  # no more requests of one model than of all: the rest waits in the model's own queue
            own = [quota for quota in quotas if (quota.unit, quota.rule) == (CONCURRENCY, Rule.SLOTS)]
            fewest = min([slots, *own], key=lambda quota: quota.amount)
            quotas = (*(quota for quota in quotas if quota not in own), fewest)
        return Resolved(f"{page.name}/{alias}", quotas, source, self._learn, slots, self._interval_s)

    def _quotas_of(self, provider: str, model: str, alias: str) -> tuple[tuple[Quota, ...], str]:
        """The quotas of a model, and their source."""
        for name in (f"{provider}/{model}", model, f"{provider}/{alias}", alias, f"{provider}/*", "*"):
            if name in self.given:
                return self.given[name], "given"
        from paceline.providers.tables import lookup

        tier = self.tier if self.tier is not None and provider == self.home else None
        published = lookup(provider, model, tier)
        return published.quotas, f"{published.source} ({published.as_of})"


def overrides(rpm: float | None, tpm: float | None) -> dict[str, float]:
    """Amounts a minute by unit that hold for every model."""
    return {unit: rate for unit, rate in ((REQUESTS, rpm), (TOKENS, tpm)) if rate}


def overridden(quotas: tuple[Quota, ...], rates: Mapping[str, float]) -> tuple[Quota, ...]:
    """``quotas`` with ``rates`` in place of their own a minute."""
    kept = (quota for quota in quotas if quota.unit not in rates or quota.period_s != 60)
    return (*kept, *(Quota(unit, rate) for unit, rate in rates.items()))


def _quotas(name: str, quotas: QuotaLike) -> tuple[Quota, ...]:
    try:
        if isinstance(quotas, Quota):
            return (quotas,)
        if isinstance(quotas, str):
            return parse_quotas(quotas)
        return tuple(quota for part in quotas for quota in _quotas(name, part))
    except QuotaError as error:
        raise QuotaError(f"limit of {name!r}: {error}") from None
