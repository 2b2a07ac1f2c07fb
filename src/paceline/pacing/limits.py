"""The quotas of each model: those that the user gave take precedence over the published ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final, TypeVar

from paceline.core.capacity import Learns
from paceline.core.hints import did_you_mean
from paceline.core.quota import CONCURRENCY, REQUESTS, TOKENS, Quota, Rule
from paceline.core.results import GIVEN, QuotaError, Source, SourceKind, explaining, warn
from paceline.pacing.periods import in_days
from paceline.pacing.settings import PacingSettings, QuotaLike, parsed
from paceline.providers.registry import base_of, head_of, is_provider, maker, provider_for_host, provider_named, slip

NEAR: Final = 0.9
"""How similar two names are, from 0 to 1, if one is probably a slip for the other."""
NEAR_MAX: Final = 1_000
"""How many given names a model that none of them matches is compared with."""
_DIGITS, _PUNCTUATION = re.compile(r"\D"), re.compile(r"[\W_]+")
_ADDRESS = re.compile(r"(?:https?://)?\[?(?P<host>[^/\[\]]+?)\]?\.?(?::\d{1,5})?(?P<rest>/.*)?", re.IGNORECASE)
"""A host as users write it: as a URL, with a port, IPv6 in brackets. Pools have its name alone."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A pool, its quotas, and their source.

    Attributes:
        pool: The name of the pool.
        quotas: Its quotas.
        sources: The source of each quota.
        learns: Whether a provider counts, too, so that its answers correct the quotas; ``up``: they raise given ones,
            too.
        charged_after: The units that the provider charges when the answer is produced.
        slots: The bound on requests in flight at the provider, over all its models; ``None`` for none.
        interval_s: The least time between two starts, in seconds.
        gentle: Whether buckets open gently, because a provider counts, too.
        is_model: Whether it is the pool of a provider's model, and none of the user's own.
    """

    pool: str
    quotas: tuple[Quota, ...]
    sources: tuple[Source, ...]
    learns: Learns = False
    slots: Quota | None = None
    interval_s: float = 0.0
    charged_after: frozenset[str] = frozenset()
    gentle: bool = False
    is_model: bool = False

    @property
    def is_unstated(self) -> bool:
        """Whether neither the user nor a table states a limit: there are assumed slots only."""
        return bool(self.quotas) and all(
            quota.rule is Rule.SLOTS and source.kind is SourceKind.ASSUMED
            for quota, source in zip(self.quotas, self.sources, strict=True)
        )

    @property
    def lacks_requests(self) -> bool:
        """Whether a table states a rate, and none of requests, which the provider may limit, too."""
        return (
            any(quota.rate for quota in self.quotas)
            and not any(quota.unit == REQUESTS for quota in self.quotas)
            and all(source.kind in (SourceKind.PUBLISHED, SourceKind.ASSUMED) for source in self.sources)
        )


class Limits:
    """The given quotas, and the published ones for models without.

    Args:
        settings: The settings. A quota of a day restarts at the midnight of its provider.

    Attributes:
        given_source: The source of the given quotas of models; a simulation takes them for a table's.
        untabled: The accounts for which no published limits hold: logins to plans, which have no tier.

    Raises:
        QuotaError: A quota cannot be read, or the tier is unknown.
    """

    def __init__(self, settings: PacingSettings) -> None:
        given, provider, tier, concurrency = settings.quotas, settings.provider, settings.tier, settings.concurrency
        if given is not None and not isinstance(given, Mapping):
            raise QuotaError(
                f"quotas is a {type(given).__name__}: it must be a mapping, e.g."
                " {'openai/gpt-6-luna': '500 requests/min'}; to read a file, call Limiter.load(path)"
            )
        self.given = _named({name: _quotas(name, quotas) for name, quotas in (given or {}).items()}, provider)
        self._spellings: dict[str, list[str]] | None = None  # the names in `given` by their usual spelling
        self.given_source = GIVEN
        self.untabled: set[str] = set()
        self._used: set[str] = set()  # the names in `given` that a model or a pool has matched
        self._named: set[str] = set()  # those, and other matters, that a warning has named
        self.settings = settings
        self.provider = None
        if provider is not None:
            # Imported here, as everywhere in this file: if all quotas are given, no table is read.
            from paceline.providers.tables import lookup

            if not isinstance(provider, str) or not provider.strip():
                raise QuotaError(f"provider is {provider!r}: it must be the name of a provider, e.g. 'openai'")
            self.provider = provider_named(provider).name
            own = any(name.startswith(f"{self.provider}/") for name in self.given)  # so it is meant
            if not own and (hint := slip(provider)):
                self.warn(provider, hint)
            if tier is not None:
                lookup(self.provider, "default", tier)  # an unknown tier raises here, not at the first request
        self._overrides = overrides(settings.rpm_override, settings.tpm_override)
        self._own: dict[str, tuple[str | int | None, dict[str, float]]] = {}  # a pool's own tier and overrides
        self._concurrency = {
            name.removesuffix("/"): Quota(CONCURRENCY, float(most), 0.0, rule=Rule.SLOTS)
            for name, most in _named({f"{name}/": most for name, most in (concurrency or {}).items()}).items()
        }

    @property
    def home(self) -> str | None:
        """The provider of the tier: the limiter's, or the only one that ``given`` names; else ``None``."""
        if self.provider is not None:
            return self.provider

        prefixes = {name.partition("/")[0] for name in self.given if "/" in name}
        names = {base_of(prefix) for prefix in prefixes if is_provider(prefix)}
        return names.pop() if len(names) == 1 else None

    def override(
        self,
        name: str,
        *,
        tier: str | int | None = None,
        rpm_override: float | None = None,
        tpm_override: float | None = None,
        used: Collection[str] = (),
    ) -> None:
        """Set the tier and the overrides of one model, in place of what holds for all models.

        ``used``: the pools in use.

        Raises:
            QuotaError: The name or the tier is unknown, the name is no model of a provider, or its pool is in use with
                other limits.
        """
        pool = self.resolve(name).pool
        provider, _, model = pool.partition("/")
        if not model:
            raise QuotaError(f"{name!r} is no model of a provider: write it like 'openai/gpt-6-luna'")
        if tier is not None:
            from paceline.providers.tables import lookup

            lookup(provider, model, tier)  # an unknown tier raises here
        own = tier, overrides(rpm_override, tpm_override)
        if pool in used and own != self._own.get(pool, (None, {})):
            raise QuotaError(f"pool {pool} is in use: set its tier and its overrides before its first request")
        self._own[pool] = own

    def resolve(self, name: str) -> Resolved:
        """The pool ``name``: ``provider/model``, a model of this limiter's provider, or the user's own name.

        Where the names of the limiter's provider contain slashes (``openai/gpt-oss-120b`` at Groq), a name is a model
        there first, unless it begins with that provider's own name, or the user gave a quota of that name.

        Raises:
            QuotaError: ``name`` is unknown; the message lists the known names.
        """
        if not isinstance(name, str) or not name.strip() or name.endswith("/"):
            raise QuotaError(f"pool is {name!r}: it must be the name of a model or of a pool, e.g. 'openai/gpt-6-luna'")
        prefix, _, model = name.partition("/")
        owner = provider_named(prefix).name if model else ""
        if self.provider is not None and self._is_at_home(name, owner):
            return self.model(self.provider, name)
        if at := self._provider_in(name, owner):
            return self.model(at, model)
        if self.provider is not None:
            return self.model(self.provider, name)
        made_by = maker(name)  # an attached client reaches the same pool
        if made_by is not None and self.given_for(made_by, name, provider_named(made_by).pool(name)) is not None:
            return self.model(made_by, name)
        if name in self.given or "*" in self.given:
            given = name if name in self.given else "*"
            self._used.add(given)
            return _given(name, self.given[given])
        known = ", ".join(sorted(self.given)) or "none"
        raise QuotaError(
            f"no quota for {name!r}; known: {known}. Write a provider's model like 'openai/gpt-6-luna', or give the"
            f" limiter a quota of that name{did_you_mean(name, self.given)}"
        )

    def _provider_in(self, name: str, owner: str) -> str:
        """The provider with which a name begins; empty if it has no slash, or is the user's own name of a pool."""
        prefix, _, model = name.partition("/")
        if not model:
            return ""
        if is_provider(prefix) or owner == self.provider:
            return owner
        unknown = name not in self.given and not self.given.keys().isdisjoint((f"{prefix}/*", "*"))
        return prefix if unknown else ""

    def _is_at_home(self, name: str, owner: str) -> bool:
        """Whether a name with a slash is a model of the limiter's provider.

        ``owner``: the provider that it begins with.
        """
        from paceline.providers.tables import is_listed

        if not owner or self.provider is None or not head_of(self.provider).slashes:
            return False
        given = name in self.given or f"{name.partition('/')[0]}/*" in self.given
        return is_listed(self.provider, name) or not (given or owner == self.provider)

    def model(self, provider: str, model: str) -> Resolved:
        """The pool that ``provider`` charges for ``model``."""
        known = provider_named(provider)
        alias = known.pool(model)
        tier, own_rates = self._own.get(f"{known.name}/{alias}", (None, {}))
        sources, rates = self._sources_of(known.name, model, alias, tier), self._overrides | own_rates
        effective = overridden(tuple(sources), rates)
        sources = {quota: GIVEN if _is_in(rates, quota) else sources[quota] for quota in effective}
        bounds = self._concurrency
        slots = bounds.get(known.name, bounds.get(base_of(known.name), bounds.get("*")))
        if slots is not None:  # also on the model alone, so that its excess waits in its own queue
            own = {
                quota: source for quota, source in sources.items() if quota.unit == CONCURRENCY and not quota.period_s
            }
            sure = {quota: source for quota, source in own.items() if source.kind is not SourceKind.ASSUMED}
            # A bound that a table assumes gives way to the user's, and a lower one that is published stays.
            fewest = min([slots, *sure], key=lambda quota: quota.amount)
            others = {quota: source for quota, source in sources.items() if quota not in own}
            sources = others | {fewest: sure.get(fewest, GIVEN)}
        pool, quotas, of = f"{known.name}/{alias}", tuple(sources), tuple(sources.values())
        learns, interval_s = self.settings.learn, self.settings.min_interval_s
        after = known.charged_after
        return Resolved(pool, quotas, of, learns, slots, interval_s, after, gentle=bool(learns), is_model=True)

    def given_for(self, provider: str, model: str, alias: str) -> tuple[Quota, ...] | None:
        """The given quotas that hold for ``model`` at ``provider``, where its pool is ``alias``; ``None`` for none.

        The provider's hold for each of its accounts that has none of its own.
        """
        base, written = base_of(provider), self._written_otherwise(provider, model, alias)
        names = [f"{base}/{model}", model, f"{base}/{alias}", alias, *written, f"{base}/*", "*"]
        if base != provider:
            names = [f"{provider}/{model}", f"{provider}/{alias}", f"{provider}/*", *names]
        for name in names:
            if name in self.given and (base == self.provider or not _names_other(provider, name)):
                self._used.add(name)
                return in_days(self.given[name], provider)
        return None

    def _written_otherwise(self, provider: str, model: str, alias: str) -> list[str]:
        """The given names of ``model`` in another spelling that the provider charges to one pool.

        It has a date or a dot.
        """
        from paceline.providers.parse import spelled

        if self._spellings is None:
            self._spellings = {}
            for name in self.given:
                self._spellings.setdefault(spelled(name), []).append(name)
        pool, prefix = provider_named(provider).pool, f"{provider}/"
        names = [*self._spellings.get(spelled(prefix + model), ()), *self._spellings.get(spelled(model), ())]
        return [name for name in names if pool(name.removeprefix(prefix)) == alias]

    def _sources_of(self, provider: str, model: str, alias: str, tier: str | int | None) -> dict[Quota, Source]:
        """The quotas of a model, and the source of each; ``tier``: its own, if it has one."""
        given = self.given_for(provider, model, alias)
        if given is not None:
            return dict.fromkeys(given, self.given_source)
        from paceline.providers.tables import DEFAULT, UNKNOWN, lookup, near_model

        if provider in self.untabled:
            return dict.fromkeys(UNKNOWN, Source(SourceKind.ASSUMED, "a login has no tier"))
        self._warn_of_near(provider, model)
        # The tier is one of the limiter's own provider: elsewhere its name means something else, or nothing.
        if tier is None and self.settings.tier is not None and base_of(provider) == base_of(self.home or ""):
            tier = self.settings.tier
        published = lookup(provider, model, tier)
        near = near_model(provider, model) if published.matched == DEFAULT else None
        if near is not None:
            self.warn(near, f"{provider}: no limits of a model {model!r} are published; did you mean {near!r}?")
        return published.sources

    def _warn_of_near(self, provider: str, model: str) -> None:
        """Name the given limit that ``model`` nearly matches, if no model has matched it."""
        name = f"{provider}/{model}"
        for given in islice(self.given, NEAR_MAX):
            if given in self._used or ("@" in given and _names_other(provider, given)):  # of another account
                continue
            is_near = given == model or _is_near(given, name) or _is_near(given, model)
            if meant := name if is_near else _meant(given, provider, name):
                self.warn(
                    given,
                    f"the limit of {given!r} has matched no model so far, and {name!r} has no limit: if you mean this"
                    f" model, write {meant!r} instead",
                )
                return

    def warn(self, name: str, message: str) -> None:
        """Warn with ``message``, once for each ``name``."""
        if name not in self._named:
            self._named.add(name)
            warn(message)


def _named(given: Mapping[str, T], home: str | None = None) -> dict[str, T]:
    """``given`` with the usual names of providers in place of their aliases; ``home``: the limiter's provider.

    Where the names of models contain slashes (``google/gemma`` at OpenRouter), they stay as they are.
    """
    named: dict[str, T] = {}
    for name, value in given.items():
        usual, (prefix, slash, rest) = name, name.partition("/") if isinstance(name, str) else ("", "", "")
        if slash and is_provider(prefix) and not (home and head_of(provider_named(home).name).slashes):
            usual = f"{provider_named(prefix).name}/{rest}"
        if usual in named:
            raise QuotaError(f"limits of {name!r} and of another spelling of {usual!r}: keep one")
        named[usual] = value
    return named


def _names_other(provider: str, name: str) -> bool:
    """Whether ``name`` begins with the name of another provider."""
    prefix, slash, _ = name.partition("/")
    return bool(slash) and is_provider(prefix) and provider_named(prefix).name not in (provider, base_of(provider))


def _meant(given: str, provider: str, name: str) -> str:
    """What to write for a limit that matches nothing, but is meant for all of ``provider`` or as a pattern of ``name``.

    Empty for any other.
    """
    address = _ADDRESS.fullmatch(given)
    if address is None or _names_other(provider, given):
        return ""
    # The path of a URL is no name of a model.
    host, rest = address["host"], "/*" if "://" in given else address["rest"] or "/*"
    owner = (provider_for_host(host) or provider_named(host)).name
    if rest == "/*" and (_is_near(owner, provider) or fnmatchcase(provider, owner)):
        return f"{provider}/*"
    return name if any(fnmatchcase(name, pattern) for pattern in (f"{owner}{rest}", f"{provider}/{given}")) else ""


def _is_near(given: str, name: str) -> bool:
    """Whether two names differ by a slip: in punctuation, case, a letter or the order of letters, but in no digit."""
    if given == name or "*" in given or _DIGITS.sub("", given) != _DIGITS.sub("", name):
        return False
    from difflib import SequenceMatcher

    one, other = (_PUNCTUATION.sub("", text.lower()) for text in (given, name))
    return one == other or (
        min(len(one), len(other)) > 4
        and (sorted(one) == sorted(other) or SequenceMatcher(None, one, other).ratio() >= NEAR)
    )


def _given(name: str, quotas: tuple[Quota, ...]) -> Resolved:
    return Resolved(name, in_days(quotas), (GIVEN,) * len(quotas))


def overrides(rpm: float | None, tpm: float | None) -> dict[str, float]:
    """The amounts per minute that hold for every model, by unit."""
    return {unit: rate for unit, rate in ((REQUESTS, rpm), (TOKENS, tpm)) if rate}


def overridden(quotas: tuple[Quota, ...], rates: Mapping[str, float]) -> tuple[Quota, ...]:
    """``quotas``, with ``rates`` in place of those per minute on the same units."""
    kept = (quota for quota in quotas if not _is_in(rates, quota))
    return (*kept, *(Quota(unit, rate) for unit, rate in rates.items()))


def _is_in(rates: Mapping[str, float], quota: Quota) -> bool:
    return quota.unit in rates and quota.period_s == 60


def _quotas(name: str, quotas: QuotaLike) -> tuple[Quota, ...]:
    with explaining(f"limit of {name!r}", kind=QuotaError, of=QuotaError):
        return parsed(quotas)
