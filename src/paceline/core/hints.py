"""Parts of error messages: suggestions for misspelled names, and why a package cannot be imported."""

from __future__ import annotations

import re
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """``; did you mean 'x'?`` with the most similar name of ``known``, case ignored.

    Args:
        name: The unknown name.
        known: The valid names.
        cutoff: The least similarity of a suggestion, from 0 to 1.

    Returns:
        The suggestion; ``""`` when no name is similar enough, or ``name`` is among ``known``.
    """
    # Imported here, because only errors need it.
    from difflib import get_close_matches

    spellings = {one.lower(): one for one in known}
    near = [spellings[match] for match in get_close_matches(name.lower(), spellings, 1, cutoff)]
    return f"; did you mean {near[0]!r}?" if near and near[0] != name else ""


def counted(count: float, noun: str) -> str:
    """``1 request``, ``2,000 requests``, ``2 batches``."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count:,.0f} {noun}{ending * (count != 1)}"


def needs(extra: str) -> str:
    """``needs the extra 'redis': pip install 'paceline[redis]'``."""
    return f"needs the extra {extra!r}: pip install 'paceline[{extra}]'"


def why_missing(error: ImportError, what: str, extra: str) -> str:
    """The extra that ``what`` needs if a package is not installed.

    If one is installed and does not load, the reason for that.

    Never names the package that is not installed: it may be one that another package needs.

    Args:
        error: The error of the import. One that a module of paceline raises by hand says this already.
        what: The subject of the sentence, like ``a budget``.
        extra: The extra of this project.
    """
    if isinstance(error, ModuleNotFoundError):
        return f"{what} {needs(extra)}"
    if error.name is not None and error.name.partition(".")[0] == "paceline":
        return str(error)
    return f"{error.name or 'a package'} is installed and does not load: {error}"


NAMES_MAX = 20
"""The most names in a message."""

_NAME = re.compile(r"[A-Za-z_@$][\w.@$:/-]{0,39}(?: [\w.()/-]{1,20}){0,2}")
# Five digits are rather a part of a key or a number than of a name.
_DIGITS = re.compile(r"\d.*\d.*\d.*\d.*\d")


def shown_names(names: Iterable[object]) -> str:
    """The names of fields or columns for a message.

    A file whose first line is no header has values in place of names, which can be prompts or keys: what does not look
    like a name is counted alone.
    """
    texts = [str(name) for name in names]
    shown = [text for text in texts if may_be_shown(text)][:NAMES_MAX]
    others = len(texts) - len(shown)
    return ", ".join(shown + ([f"{others} more" if shown else f"{others}, which look like no names"] if others else []))


def may_be_shown(text: str) -> bool:
    """Whether a text looks like the name of a field or column, and not like a value."""
    return _NAME.fullmatch(text) is not None and _DIGITS.search(text) is None
