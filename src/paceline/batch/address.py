"""The server of each request of a batch: the provider whose limits apply there, and the proxy on the way to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

from yarl import URL

from paceline.batch.forms import Form
from paceline.config import Config
from paceline.config.servers import ProviderAddress, address_of, provider_of, root_of
from paceline.core.results import SettingsError
from paceline.pacing.limits import Limits
from paceline.providers import registry
from paceline.providers.base import Provider


def goes_anywhere(config: Config) -> bool:
    """Whether no setting says where requests go, so that a model may begin with the name of its provider, as in ``groq/llama-4``."""
    return not (provider_of(config) or config.base_url or config.group)


def at_home(form: Form, config: Config) -> Form:
    """``form`` with the provider whose API every request uses: as set, or by the beginning of its model.

    A server of your own may have models with such names, and so may a provider that is named: theirs stay as they are.
    """
    provider = provider_of(config)
    found = registry.prefixed(form.model) if form.model and goes_anywhere(config) else None
    return replace(form, provider=provider) if found is None else replace(form, provider=found[0].name, model=found[1])


def provider_at(limits: Limits, provider: Provider, root: str, model: str) -> Provider:
    """The provider whose limits hold for ``model`` at ``root``, of requests in the form of ``provider``.

    At a host of another provider it is that one. At an unknown host it is ``provider`` if the user has given quotas for
    it, else the same dialect under the name of the host: the published limits of a provider do not hold there.
    """
    host = urlsplit(root).hostname or ""
    known = registry.provider_for_host(host)
    if known is not None:
        return provider if registry.base_of(known.name) == registry.base_of(provider.name) else known
    if limits.given_for(provider.name, model, provider.pool(model)) is not None:
        return provider
    return registry.changed(provider, name=host)


def placing(config: Config, limits: Limits, environ: Mapping[str, str]) -> Callable[[Provider, str], Provider]:
    """What finds the provider whose limits hold for a model: where the user names neither a provider nor a tier, the address tells."""

    def place(provider: Provider, model: str) -> Provider:
        root = root_of(provider, config.base_url, environ)[0]
        return provider_at(limits, provider, root or "", model)

    named = config.group is not None or provider_of(config) or config.tier is not None
    return (lambda provider, _: provider) if named else place


def account_of(
    pool: str, addresses: Mapping[str, ProviderAddress], base_url: str | None, environ: Mapping[str, str]
) -> str | None:
    """The account whose quotas ``pool`` has (``openai/gpt-6-luna``): what keeps accounts apart in one store.

    ``None`` for limits of your own that bind whichever account a request goes to: budgets, and limits of lanes or of several models.
    """
    name = pool.partition("/")[0]
    at_host = (one for one in addresses.values() if urlsplit(one.root).hostname == name)
    address = addresses.get(name) or next(at_host, None)
    if address is None and registry.is_provider(name):
        address = address_of(registry.provider_named(name), base_url, environ)
    return None if address is None else address.account


def proxy_for(addresses: Mapping[str, ProviderAddress]) -> str | None:
    """The proxy that the environment names for ``addresses``; none for this machine's.

    Raises:
        SettingsError: It is not the address of an HTTP proxy; the message does not quote it, because it may hold a password.
    """
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    urls = [urlsplit(address.root) for address in addresses.values()]
    hosts = [(url.scheme, url.hostname or "") for url in urls]
    scheme = next(
        (s for s, host in hosts if s in proxies and not (registry.is_loopback(host) or proxy_bypass(host))), None
    )
    if scheme is None:
        return None
    proxy = proxies[scheme] if "://" in proxies[scheme] else f"http://{proxies[scheme]}"
    with suppress(ValueError):
        url = URL(proxy)
        if url.scheme in {"http", "https"} and url.host:
            return proxy
    raise SettingsError(f"{scheme}_proxy is not the address of an HTTP proxy; set it to one like http://proxy:3128")
