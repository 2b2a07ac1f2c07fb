"""``paceline resume``: ends the stop of a pool of a gateway."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import click

from paceline.cli import options
from paceline.cli.guides import Helped
from paceline.cli.line import plain
from paceline.cli.pages import ReadError, fetch, gateway_url

_PATH: Final = "/api/v1/resume/"


@click.command(cls=Helped, name="resume")
@click.argument("pool")
@click.argument("url", required=False)
@options.KEY
@options.timeout("The longest wait for the response, in seconds.", 5.0)
def command(pool: str, url: str | None, key: str | None, timeout_s: float) -> None:
    """End the stop of a pool of a gateway.

    Use it after you have topped up the account: the next request goes at once. POOL is a name that `paceline status` shows, or a pattern such
    as 'openai/*'. URL is http://127.0.0.1:8080 by default. If clients need keys, --key is a key made with --may-resume.
    """
    where = gateway_url(url, _PATH + quote(pool, safe="/*@:,"))
    found = fetch(where, key, timeout_s, "POST")
    if not isinstance(found, dict) or not isinstance(found.get("resumed"), list):
        raise ReadError(f"{where} answers, but not as a gateway that resumes pools: is it an older version?")
    for name in found["resumed"]:
        click.echo(f"resumed: {plain(name)}")
    for name in found["not_stopped"]:
        click.echo(f"not stopped: {plain(name)}")
