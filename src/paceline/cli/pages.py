"""The pages that gateways and programs serve: their addresses, and what they answer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import click

from paceline.cli.line import GATEWAY, USUAL, plain
from paceline.core.results import StoreError
from paceline.responses.values import decode

if TYPE_CHECKING:  # `paceline status --line` is called again and again
    import httpx2

BYTES_MAX: Final = 64 * 2**20
"""A status page of ten thousand pools has a tenth of this."""


class ReadError(StoreError):
    """There is nothing to show; the message says why."""

    exit_code = 1


def page_url(url: str) -> httpx2.URL:
    """The address of a page, without a password and a query.

    Raises:
        click.UsageError: It is no address.
    """
    import httpx2

    try:
        parts = httpx2.URL(url if "://" in url else f"http://{url}")
        where = parts.copy_with(userinfo=b"", query=None, fragment=None)
    except httpx2.InvalidURL:
        parts = where = httpx2.URL()
    if not parts.host or parts.scheme not in ("http", "https"):
        raise click.UsageError(f"{url!r}: write an address like 'http://127.0.0.1:8000/status'")
    return where


def client_for(key: str | None, **options: Any) -> httpx2.AsyncClient:
    """An HTTP client that sends ``key``, with these options.

    Raises:
        SettingsError: The user's certificates cannot be read.
    """
    import httpx2

    from paceline.batch.reach import certificates

    headers = {"authorization": f"Bearer {key}"} if key else {}
    trusted = certificates()  # httpx2 reads this variable only together with the proxies
    return httpx2.AsyncClient(verify=trusted, trust_env=False, headers=headers, **options)


def fetch(where: httpx2.URL, key: str | None, timeout_s: float, method: str = "GET") -> Any:
    """Read the JSON with which an address of a page answers; ``None`` for something else.

    Raises:
        ReadError: It cannot be read.
    """
    import asyncio

    import httpx2

    from paceline.batch.reach import UNTRUSTED, reason

    async def ask() -> tuple[int, bytes]:
        """The status code and the body; ``timeout_s`` is for all of it, however slowly the answer comes."""
        client = client_for(key, timeout=None, follow_redirects=True)
        async with asyncio.timeout(timeout_s), client, client.stream(method, where) as response:
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > BYTES_MAX:
                    raise httpx2.ReadError(f"more than {BYTES_MAX // 2**20} MB")
            return response.status_code, bytes(body)

    try:
        code, body = asyncio.run(ask())
    except TimeoutError:
        raise ReadError(f"{where} did not answer within {timeout_s:g} s") from None
    except httpx2.HTTPError as error:
        why = reason(error)
        trust = "name the certificate of its authority: export SSL_CERT_FILE=authority.pem"
        hint = trust if why.startswith(UNTRUSTED) else "is the program running, and is this its page?"
        raise ReadError(f"{where} cannot be read ({why}): {hint}") from None
    page = decode(body)
    if code != 200:
        message = page.get("error") if isinstance(page, dict) else None
        if isinstance(message, dict):  # the gateway's form
            message = message.get("message")
        if code in (401, 403):
            message = f"{message or 'it needs a key'} (give one with --key, or in PACELINE_KEY)"
        raise ReadError(f"{where} answers {code}" + (f": {plain(message)}" if message else ": is this a status page?"))
    return page


def gateway_url(url: str | None, path: str) -> httpx2.URL:
    """The address of ``path`` at a gateway: the one at ``url``, the one of the `paceline exec` around this command, or the usual one."""
    where = page_url(url or os.environ.get(GATEWAY) or USUAL)
    return where.copy_with(path=where.path.rstrip("/").removesuffix(path) + path)
