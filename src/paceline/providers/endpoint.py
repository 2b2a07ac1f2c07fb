"""Where a provider's requests go, and with which key."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from paceline.core.results import QuotaError
from paceline.providers.base import Provider


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def locate(page: Provider, root: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """``root``, where ``page`` is to be found, and the key: ``none`` for a server on this machine that needs none.

    Raises:
        QuotaError: The address or the key is missing, or the key cannot be one; the key itself is not named.
    """
    if not root:
        raise QuotaError(f"where is {page.name}? Give its address with --base-url")
    key = environ.get(page.key_env, "").strip()
    if not key and not is_loopback(urlsplit(root).hostname or ""):
        raise QuotaError(f"no key for {page.name}: set the environment variable {page.key_env}")
    if not (key.isascii() and key.isprintable()):
        raise QuotaError(f"the key in {page.key_env} has characters that no key has")
    return root, key or "none"
