"""The table of docs/providers.md that is made of the data set: ``python docs/site/facts.py`` writes it there.

``tests/providers/test_docs.py`` compares it. Providers with a row of their own in the page's first table are not in it.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import fill
from typing import Final

from paceline import facts
from paceline.providers.registry import PROVIDERS
from paceline.providers.tables import tiers

PAGE: Final = Path(__file__).parents[1] / "providers.md"
BEGIN, END = "<!-- made of the data set: python docs/site/facts.py -->", "<!-- end -->"


def written(page: str) -> str:
    """The text of ``page`` with the table of today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    own = set(re.findall(r"^\| `(\w+)` \|", before, re.MULTILINE))
    known = [name for name in PROVIDERS if name not in own and facts.heads()[name].keys() & {"ladders", "note"}]
    table = "\n".join(["| provider | hosts | published limits |", "|---|---|---|", *map(_row, known)])
    others = ", ".join(
        f"`{name}`" if PROVIDERS[name].hosts else f"`{name}` ({_hosts(name)[0]})"
        for name in sorted(PROVIDERS.keys() - own - set(known))
    )
    measured = fill(
        f"No limits of these are known, so paceline measures their rates: {others}.", 158, break_on_hyphens=False
    )
    return f"{before}{BEGIN}\nThe data set is of {facts.shipped_day()}.\n\n{table}\n\n{measured}\n{END}{after}"


def _hosts(name: str) -> list[str]:
    entry = PROVIDERS[name]
    return [f"`{host}`" for host in entry.hosts] or [f"your own server, by name: `{entry.own}`"]


def _row(name: str) -> str:
    head = facts.heads()[name]
    known = tiers(name) if "ladders" in head else []
    limits = (
        f"by tier: {', '.join(f'`{tier}`' for tier in known)}"
        if known[1:]
        else "the same for all accounts"
        if known
        else "none known"
    )
    note = head.get("note")
    return f"| `{name}` | {', '.join(_hosts(name))} | {limits}{f': {note}' if note else ''} |"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
