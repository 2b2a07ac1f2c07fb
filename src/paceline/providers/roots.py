"""The address of each provider's API: its usual root, and the URL of a path below a root."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from paceline.providers.base import Provider
from paceline.providers.registry import PROVIDERS, head_of, known_host

_OPENAI: Final = re.compile(
    r"(?:/v1)?(?P<rest>/(?:(?P<chat>chat/completions)|completions|responses|embeddings|moderations|images/\w+|audio/\w+"
    r"|files|batches)(?:[/?].*)?)$"
)
"""The paths of OpenAI's API, with and without a version: other providers have them at a place of their own."""

_VERSION: Final = re.compile(r"/v\d+[a-z]*(?=/|$)")
"""A version in the path of an API: ``/v1``, ``/v1beta``."""


def host_root(provider: Provider) -> str | None:
    """The scheme and host of ``provider``; ``None`` where they depend on the user, or data names them that may not."""
    hosts = () if head_of(provider.name).rootless else provider.hosts
    return f"https://{hosts[0]}" if hosts and "*" not in hosts[0] else None


def usual_root(provider: Provider) -> str | None:
    """The root of the paths of ``provider``, for :func:`joined`; ``None`` where it depends on the user."""
    return None if head_of(provider.name).path is None else host_root(provider)


def without_version(base_url: str) -> str:
    """The root of the paths of a server, which begin with ``/v1``: its address without that."""
    return base_url.removesuffix("/v1").rstrip("/")


def placed(provider: str, path: str) -> str:
    """``path`` as the provider with this name has it, if it is one of OpenAI's API; any other one as it is."""
    entry, found = head_of(provider), _OPENAI.match(path)
    if entry.path is None or found is None:
        return path
    return (entry.path if entry.chat is None or not found["chat"] else entry.chat) + found["rest"]


def versioned(path: str) -> str:
    """A path of OpenAI's API with its version; any other one as it is."""
    found = _OPENAI.match(path)
    return path if found is None else "/v1" + found["rest"]


def joined(root: str, path: str) -> str:
    """The URL of ``path`` below the server's ``root``.

    At the host of a known provider, a path of OpenAI's API goes where that provider has it, with ``/v1`` and without.
    Elsewhere a ``/v1`` at the end of the root is for paths without a version. A root with a version of its own
    (``/api/paas/v4``, ``/v1beta/openai``) replaces the version at the beginning of the path, and a path that begins with the
    path of the root is not appended to it.
    """
    url = urlsplit(root)
    base, at_host = url.path, known_host(url.hostname or "")
    if at_host and base in ("", PROVIDERS[at_host].path):
        return root.removesuffix(base) + placed(at_host, path)
    replaced = _VERSION.match(path) if _VERSION.search(base) else None
    if base.endswith("/v1") and _VERSION.search(path):
        root, base, replaced = without_version(root), without_version(base), None
    if base and path.startswith(f"{base}/"):
        return root.removesuffix(base) + path
    return root + (path if replaced is None else path[replaced.end() :])
