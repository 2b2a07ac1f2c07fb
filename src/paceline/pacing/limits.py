"""The quotas of each model: those that the user gave take precedence over the published ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.core.capacity import Learns
from paceline.core.quota import CONCURRENCY, REQUESTS, TOKENS, Quota, Rule, parse_quotas
from paceline.core.results import GIVEN, QuotaError, Source

QuotaLike = str | Quota | Sequence[str | Quota]


@dataclass(frozen=True, slots=True)
class Resolved:
    """A pool, its quotas, and their source.

    Attributes:
        pool: The name of the pool.
        quotas: Its quotas.
        sources: The source of each quota.
        learns: Whether a provider counts, too, so that its answers correct the quotas; ``up``: they raise given ones, too.
        charged_after: The units that the provider charges when the answer is produced.
        slots: The bound on requests in flight at the provider, over all its models; ``None`` for none.
        interval_s: The least time between two starts, in seconds.
    """

    pool: str
    quotas: tuple[Quota, ...]
    sources: tuple[Source, ...]
    learns: Learns = False
    slots: Quota | None = None
    interval_s: float = 0.0
    charged_after: frozenset[str] = frozenset()


class Limits:
    """The given quotas, and the published ones for models without.

    Args:
        given: Quotas by name. A name is the user's own pool (``starts``), a model (``gpt-5``), a provider's
            model (``openai/gpt-5``), all models of a provider (``openai/*``) or every model (``*``).
        provider: The provider whose published limits hold where ``given`` has none; ``None`` for none.
        tier: The tier of the account at that provider, or at the only one that ``given`` names.
        rpm_override: Requests per minute for every model, in place of its own limit.
        tpm_override: Tokens per minute for every model, in place of its own limit.
        learn: Whether answers correct the limits. ``True``: they lower given limits and never raise them; ``"up"``: they
            raise them, too.
        concurrency: The bound on requests in flight by provider, over all its models; ``*`` for every other provider.
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
        learn: Learns = True,
        concurrency: Mapping[str, int] | None = None,
        min_interval_s: float = 0.0,
    ) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise QuotaError(
                f"quotas is a {type(given).__name__}: it must be a mapping, e.g. {{'openai/gpt-5': '500 requests/min'}}; to"
                " read a file, call Limiter.load(path)"
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
        if learn not in (True, False, "up"):
            raise QuotaError(f"learn is {learn!r}: it must be True, False or 'up'")
        self._learn = learn
        self._concurrency = {
            name: Quota(CONCURRENCY, float(most), 0.0, rule=Rule.SLOTS) for name, most in (concurrency or {}).items()
        }
        if not 0 <= min_interval_s < math.inf:
            raise QuotaError(f"min_interval_s is {min_interval_s!r}: it must be 0 s or more")
        self._interval_s = min_interval_s

    @property
    def home(self) -> str | None:
        """The provider of the tier: that of the limiter, or the only one that ``given`` names; else ``None``."""
        if self.provider is not None:
            return self.provider
        from paceline.providers.registry import is_provider, provider_named

        prefixes = {name.partition("/")[0] for name in self.given if "/" in name}
        names = {provider_named(prefix).name for prefix in prefixes if is_provider(prefix)}
        return names.pop() if len(names) == 1 else None

    def resolve(self, name: str) -> Resolved:
        """The pool ``name``: ``provider/model``, a model of this limiter's provider, or the user's own name.

        Raises:
            QuotaError: ``name`` is unknown; the message lists the known names.
        """
        from paceline.providers.registry import is_provider, suggest

        provider, _, model = name.partition("/")
        if model and is_provider(provider):
            return self.model(provider, model)
        if model and name not in self.given and (f"{provider}/*" in self.given or "*" in self.given):
            return self.model(provider, model)  # an unknown provider
        if name in self.given and self.provider is None:
            return _given(name, self.given[name])
        if self.provider is not None:
            return self.model(self.provider, name)
        if "*" in self.given:
            return _given(name, self.given["*"])
        raise QuotaError(
            f"no quota for {name!r}{suggest(name, self.given)}; known: {', '.join(sorted(self.given)) or 'none'}."
            " Write a provider's model like 'openai/gpt-5', or give the limiter a quota of that name"
        )

    def model(self, provider: str, model: str) -> Resolved:
        """The pool that ``provider`` charges for ``model``."""
        from paceline.providers.registry import provider_named

        known = provider_named(provider)
        alias = known.pool(model)
        sources = self._sources_of(known.name, model, alias)
        sources = {quota: sources.get(quota, GIVEN) for quota in overridden(tuple(sources), self._overrides)}
        slots = self._concurrency.get(known.name, self._concurrency.get("*"))
        if slots is not None:  # also on the model alone, so that its excess waits in its own queue
            own = [quota for quota in sources if (quota.unit, quota.rule) == (CONCURRENCY, Rule.SLOTS)]
            fewest = min([slots, *own], key=lambda quota: quota.amount)
            source = sources.get(fewest, GIVEN)
            sources = {quota: sources[quota] for quota in sources if quota not in own} | {fewest: source}
        pool, quotas, of = f"{known.name}/{alias}", tuple(sources), tuple(sources.values())
        return Resolved(pool, quotas, of, self._learn, slots, self._interval_s, known.charged_after)

    def given_for(self, provider: str, model: str, alias: str) -> tuple[Quota, ...] | None:
        """The given quotas that hold for ``model`` at ``provider``, where its pool is ``alias``; ``None`` for none."""
        names = (f"{provider}/{model}", model, f"{provider}/{alias}", alias, f"{provider}/*", "*")
        return next((self.given[name] for name in names if name in self.given), None)

    def _sources_of(self, provider: str, model: str, alias: str) -> dict[Quota, Source]:
        """The quotas of a model, and the source of each."""
        given = self.given_for(provider, model, alias)
        if given is not None:
            return dict.fromkeys(given, GIVEN)
        from paceline.providers.tables import lookup

        tier = self.tier if self.tier is not None and provider == self.home else None
        return lookup(provider, model, tier).sources


def _given(name: str, quotas: tuple[Quota, ...]) -> Resolved:
    return Resolved(name, quotas, (GIVEN,) * len(quotas))


def overrides(rpm: float | None, tpm: float | None) -> dict[str, float]:
    """The amounts per minute that hold for every model, by unit."""
    return {unit: rate for unit, rate in ((REQUESTS, rpm), (TOKENS, tpm)) if rate}


def overridden(quotas: tuple[Quota, ...], rates: Mapping[str, float]) -> tuple[Quota, ...]:
    """``quotas``, with ``rates`` in place of those per minute on the same units."""
    kept = (quota for quota in quotas if quota.unit not in rates or quota.period_s != 60)
    return (*kept, *(Quota(unit, rate) for unit, rate in rates.items()))


def _quotas(name: str, quotas: QuotaLike) -> tuple[Quota, ...]:
    try:
        return _parsed(quotas)
    except QuotaError as error:
        raise QuotaError(f"limit of {name!r}: {error}") from None


def _parsed(quotas: QuotaLike) -> tuple[Quota, ...]:
    if isinstance(quotas, Quota):
        return (quotas,)
    if isinstance(quotas, str):
        return parse_quotas(quotas)
    if isinstance(quotas, Mapping) or not isinstance(quotas, Iterable):
        example = f"{quotas} requests/min" if isinstance(quotas, int) else "500 requests/min"
        raise QuotaError(f"{quotas!r} is no quota: write it as a text, e.g. {example!r}, or as a list of texts")
    return tuple(quota for part in quotas for quota in _parsed(part))
