"""Keys in what a server has sent are replaced by ``***``."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote

KEY_MIN: Final = 8
"""Characters in a key; a shorter one is a placeholder (``EMPTY``, ``ollama``), and may occur in any text."""

PART_MIN: Final = 16
"""Characters of a key that reveal it; the public prefixes of keys are shorter."""


class Secrets:
    """Replaces keys in what a server has sent by ``***``: whole keys, and parts of ``PART_MIN`` characters or more.

    A key is found as it is, in a URL's encoding, with the escapes of JSON (also escaped twice), in base64 and as hex digits.

    Args:
        keys: The keys of all addresses of a run; those below ``KEY_MIN`` characters are no secrets.
    """

    _BLOCK: Final = 8
    _ESCAPE: Final = re.compile(rb"\\+(?:u00([2-7][0-9A-Fa-f])|(.))", re.DOTALL)

    def __init__(self, keys: Iterable[str]) -> None:
        forms: set[str] = set()
        for key in keys:
            if len(key) >= KEY_MIN:
                quoted = quote(key, safe="")
                forms |= {key, quoted, re.sub("%..", lambda code: code[0].lower(), quoted), json.dumps(key)[1:-1]}
                forms |= {b64encode(before + key.encode()).decode() for before in (b"", b":", b"::")}
                forms.add(key.encode().hex())
        # Every part of PART_MIN characters in a text holds one of the text's aligned words of 8 bytes whole. One look at
        # each word is a tenth of the time of a search for every block.
        encoded = [one.encode() for one in forms]
        words = (form[at : at + 8] for form in encoded if len(form) >= PART_MIN - 1 for at in range(len(form) - 7))
        self._words = {int.from_bytes(word, sys.byteorder) for word in words}
        self._short = [form for form in encoded if len(form) < PART_MIN - 1]
        # Every part of PART_MIN characters holds one of these blocks whole.
        step, size = PART_MIN - self._BLOCK + 1, self._BLOCK
        self._blocks = [
            (form[at : at + size], at, form) for form in sorted(encoded) for at in range(0, len(form) - size + 1, step)
        ]

    def __call__(self, body: bytes) -> bytes:
        """``body`` without keys; the same object if it has none."""
        plain = self._ESCAPE.sub(_unescaped, body) if b"\\u00" in body or b"\\/" in body else body
        if self._words.isdisjoint(memoryview(plain)[: len(plain) & ~7].cast("Q")) and not any(
            key in plain for key in self._short
        ):
            return body
        found = sorted(span for block in self._blocks for span in _spans(plain, *block))
        if not found:
            return body
        parts, end = [], 0
        for left, right in found:
            if left >= end:
                parts += [plain[end:left], b"***"]
            end = max(end, right)
        return b"".join([*parts, plain[end:]])

    def text(self, words: str) -> str:
        """``words`` without keys."""
        return self(words.encode("utf-8", "replace")).decode()


def _unescaped(escape: re.Match[bytes]) -> bytes:
    """The character of an escape in JSON that has no need of one; any other escape as it is."""
    plain = bytes.fromhex(escape[1].decode()) if escape[1] else escape[2] if escape[2] == b"/" else b'"'
    return escape[0] if plain in b'"\\\x7f' else plain


def _spans(text: bytes, block: bytes, at: int, key: bytes) -> Iterator[tuple[int, int]]:
    """Where ``text`` has ``block``, which begins at ``at`` in ``key``, with enough of the key around it."""
    least, left = min(len(key), PART_MIN), text.find(block)
    while left >= 0:
        start, begin, right, end = left, at, left + len(block), at + len(block)
        while begin and start and text[start - 1] == key[begin - 1]:
            start, begin = start - 1, begin - 1
        while end < len(key) and right < len(text) and text[right] == key[end]:
            right, end = right + 1, end + 1
        if right - start >= least:
            yield start, right
        left = text.find(block, left + 1)
