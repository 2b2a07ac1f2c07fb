"""Which quotas hold for which model: what the user gave beats what the provider publishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core.quota import Quota, parse_quotas
from paceline.core.results import QuotaError

QuotaLike = str | Quota | Sequence[str | Quota]


@dataclass(frozen=True, slots=True)
class Resolved:
    """The pool of a model, its quotas, and where they come from; ``remote``: a provider keeps the books, too."""

    pool: str
    quotas: tuple[Quota, ...]
    source: str
    remote: bool = False


class Limits:
    """What the user gave, and the published tables behind it.

    Args:
        given: Quotas by name. A name is a pool of your own (``starts``), a model (``gpt-5``), a provider's
            model (``openai/gpt-5``), all models of a provider (``openai/*``) or every model (``*``).
        provider: The provider whose published limits stand behind ``given``; ``None`` for nobody's.
        tier: The account's tier at that provider, or at the only one that ``given`` names.

    Raises:
        QuotaError: A quota cannot be read.
    """

    def __init__(
        self,
        given: Mapping[str, QuotaLike] | None = None,
        *,
        provider: str | None = None,
        tier: str | int | None = None,
    ) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise QuotaError(
                f"quotas are {type(given).__name__}: write them by pool, {{'openai/gpt-5': '500 requests/min'}}; a file is read by"
                " Limiter.load(path)"
            )
        self.provider = provider
        self.tier = tier
        self.given = {name: _quotas(name, quotas) for name, quotas in (given or {}).items()}

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
        for name in (f"{page.name}/{model}", model, f"{page.name}/{alias}", alias, f"{page.name}/*", "*"):
            if name in self.given:
                return Resolved(f"{page.name}/{alias}", self.given[name], "given", remote=True)
        from paceline.providers.tables import lookup

        tier = self.tier if self.tier is not None and page.name == self.home else None
        published = lookup(page.name, model, tier)
        source = f"{published.source} ({published.as_of})"
        return Resolved(f"{page.name}/{published.pool}", published.quotas, source, remote=True)


def _quotas(name: str, quotas: QuotaLike) -> tuple[Quota, ...]:
    try:
        if isinstance(quotas, Quota):
            return (quotas,)
        if isinstance(quotas, str):
            return parse_quotas(quotas)
        return tuple(quota for part in quotas for quota in _quotas(name, part))
    except QuotaError as error:
        raise QuotaError(f"limit of {name!r}: {error}") from None
