"""Media by their bytes: which texts are base64 of a picture, a recording or a file, and how long a recording is."""

from __future__ import annotations

import base64
import re
import string
from collections.abc import Callable
from typing import Final

IMAGE, AUDIO, FILE = "image", "audio", "file"

SHORT: Final = 1_024
"""A shorter text is counted as it stands: its base64 costs no more than a picture would."""

_MAGIC: Final = (  # where, the bytes that stand there, and what begins so
    (0, b"\x89PNG", IMAGE), (0, b"\xff\xd8\xff", IMAGE), (0, b"GIF8", IMAGE), (0, b"II*\0", IMAGE), (0, b"MM\0*", IMAGE),
    (8, b"WEBP", IMAGE), (4, b"ftyphei", IMAGE), (4, b"ftypmif1", IMAGE), (4, b"ftypavif", IMAGE), (0, b"BM", IMAGE),
    (0, b"<svg", IMAGE), (8, b"WAVE", AUDIO), (0, b"ID3", AUDIO), (0, b"\xff\xfb", AUDIO), (0, b"\xff\xf3", AUDIO),
    (0, b"\xff\xf2", AUDIO), (0, b"\xff\xf1", AUDIO), (0, b"\xff\xf9", AUDIO), (0, b"OggS", AUDIO), (0, b"fLaC", AUDIO),
    (4, b"ftypM4A", AUDIO), (0, b"#!AMR", AUDIO), (4, b"ftyp", FILE), (0, b"\x1aE\xdf\xa3", FILE), (8, b"AVI ", FILE),
    (0, b"FLV\1", FILE), (0, b"\0\0\1\xba", FILE), (0, b"%PDF", FILE), (0, b"PK\3\4", FILE),
)  # fmt: skip
_HEAD, _SLICES = 60, 8  # letters that are looked at in the beginning, and at so many more places; lines are longer
_LETTERS: Final = frozenset(string.ascii_letters + string.digits + "+/-_")
_CLASSES: Final = tuple(map(frozenset, (string.ascii_lowercase, string.ascii_uppercase, string.digits)))
_MARK: Final = ";base64,"
# RFC 2397: the type may be left out.
_URL: Final = re.compile(r"data:(?:([\w.+-]{0,80})/[\w.+-]{1,80})?[^,\s]{0,200}$", re.IGNORECASE)
_URL_MAX: Final = 400  # letters before the comma of a data: URL
_ENDS: Final = "\"'<> )]},\n\\"  # letters that end a URL in a text, HTML, Markdown or JSON


def kind_of(start: bytes) -> str | None:
    """What begins with these bytes: ``image``, ``audio``, or ``file`` for videos and documents; ``None`` if that is not known."""
    return next((kind for at, magic, kind in _MAGIC if start.startswith(magic, at)), None)


def media_in(text: str) -> tuple[list[str], str]:
    """The kinds of media that stand in a text as base64, and the text without them.

    Media are a text that is nothing but base64, and ``data:`` URLs anywhere in it. Base64 among words, without ``data:``, is text:
    a model reads it so.
    """
    if _is_base64(text):
        return [kind_of(_decoded(text[:_HEAD])) or FILE], ""
    if text[:5].lower() == "data:" and _MARK not in text[:_URL_MAX]:  # percent-encoded
        url = _URL.match(text[: min(text.find(","), _URL_MAX)])
        return ([_kind_named(url[1], "")], "") if url and url[1] else ([], text)
    kinds: list[str] = []
    if not _has_run(text):
        return kinds, text
    kept, at = [], 0
    while (mark := text.find(_MARK, at)) >= 0:
        start = text.rfind("data:", max(at, mark - _URL_MAX), mark)
        url = _URL.match(text[start:mark]) if start >= 0 else None
        end = mark + len(_MARK)
        if url:
            kinds.append(_kind_named(url[1], text[end : end + _HEAD]))
            kept.append(text[at:start])
            end = _end_of(text, end)
        else:
            kept.append(text[at:end])
        at = end
    return kinds, "".join([*kept, text[at:]]) if at else text


def _has_run(text: str) -> bool:
    """Whether a text may have a run of two ``SHORT`` without a space. To look for one space in each part is far cheaper than for a word."""
    return any(text.find(" ", at, at + SHORT) < 0 for at in range(0, len(text) - SHORT + 1, SHORT))


def _is_base64(text: str) -> bool:
    """Whether a long text is nothing but base64, by slices of it.

    Base64 of ASCII, and of zeros, decodes to ASCII, as letters by chance hardly do. Any other has letters of both cases and
    digits. Names of genes and proteins, numbers and repeated letters have neither.
    """
    if not text.isascii() or not _LETTERS.issuperset(text[:_HEAD]):  # nearly every text has a space there
        return False
    step = max((len(text) - _HEAD) // _SLICES & ~3, 4)
    slices = [text[at : at + _HEAD] for at in range(0, step * _SLICES + 1, step)]
    letters = frozenset().union(*slices)
    if not letters - _LETTERS <= {"\r", "\n", "="}:
        return False
    return all(letters & one for one in _CLASSES) or all(_decoded(one).isascii() for one in slices)


def _decoded(text: str) -> bytes:
    letters = text.translate({10: None, 13: None, ord("-"): "+", ord("_"): "/"}).rstrip("=")
    return base64.b64decode(letters[: len(letters) & ~3])


def _kind_named(mime: str | None, base: str) -> str:
    """What a ``data:`` URL of the type ``mime`` holds; of another type, and of none, its bytes tell it."""
    named = {"image": IMAGE, "audio": AUDIO}.get((mime or "").lower())
    return named or (_LETTERS.issuperset(base) and kind_of(_decoded(base))) or FILE


def _end_of(text: str, start: int) -> int:
    end = len(text)
    for letter in _ENDS:
        found = text.find(letter, start, end)
        end = found if found >= 0 else end
    return end


# How long a recording is, by its header and its size.

BYTES_PER_S: Final = 8_000
"""Of a recording whose header does not tell: 64 kbit/s, as speech is compressed. An assumption; most music has more."""

_MP3_KBITS: Final = (  # by the index in a frame's header, of layer III: version 1, and versions 2 and 2.5
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
_MP3_HZ: Final = (44_100, 48_000, 32_000)
_LOOK: Final = 65_536  # bytes at each end of a recording in which its header and its last page are looked for


def seconds_of(data: memoryview) -> float:
    """How long a recording is, in seconds; by its size, if its header does not tell. 0 for a picture or a document.

    WAV, FLAC, Ogg, MP3 and MP4 are read. Malformed bytes never raise.
    """
    head = bytes(data[:_LOOK])
    if kind_of(head) == IMAGE or head.startswith((b"%PDF", b"PK")):
        return 0.0
    reader = next((read for at, magic, read in _READERS if head.startswith(magic, at)), _mp3_s)
    try:
        seconds = reader(head, data)
    except (IndexError, ZeroDivisionError):
        seconds = 0.0
    # No recording has less than a byte a second.
    return seconds if 0 < seconds <= len(data) else len(data) / BYTES_PER_S


def _wav_s(head: bytes, data: memoryview) -> float:
    """The bytes after the header by the bytes of a second: the length that is stated is wrong in a stream."""
    form, samples = head.find(b"fmt "), head.find(b"data")
    return (
        (len(data) - samples - 8) / int.from_bytes(head[form + 16 : form + 20], "little") if form > 0 < samples else 0.0
    )


def _flac_s(head: bytes, data: memoryview) -> float:  # noqa: ARG001
    bits = int.from_bytes(head[18:26])  # 20 of the rate, 8 of channels and depth, 36 of the samples
    return (bits & (1 << 36) - 1) / (bits >> 44)


def _ogg_s(head: bytes, data: memoryview) -> float:
    """The position of the last page; Opus counts it at 48 kHz."""
    tail, vorbis = bytes(data[-_LOOK:]), head.find(b"\x01vorbis")
    last = tail.rfind(b"OggS")
    hz = 48_000 if vorbis < 0 else int.from_bytes(head[vorbis + 12 : vorbis + 16], "little")
    return int.from_bytes(tail[last + 6 : last + 14], "little") / hz if last >= 0 else 0.0


def _mp4_s(head: bytes, data: memoryview) -> float:
    """The duration in the header ``mvhd``, which stands near one of the ends."""
    for piece in (head, bytes(data[-16 * _LOOK :])):
        if (at := piece.find(b"mvhd")) >= 0:
            size, at = (8, at + 24) if piece[at + 4] else (4, at + 16)
            return int.from_bytes(piece[at + 4 : at + 4 + size]) / int.from_bytes(piece[at : at + 4])
    return 0.0


def _mp3_s(head: bytes, data: memoryview) -> float:
    """The frames that the first one counts, or the size by its bit rate."""
    at = (
        10 + sum((byte & 127) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=False))
        if head[:3] == b"ID3"
        else 0
    )
    start = bytes(data[at : at + 4_096])
    if start[0] != 0xFF or start[1] & 0xE6 != 0xE2:  # no frame of layer III
        return 0.0
    older = start[1] >> 3 & 3 != 3
    hz = _MP3_HZ[start[2] >> 2 & 3] >> (older + (start[1] >> 3 & 3 == 0))
    counted = max(start.find(b"Xing", 0, 64), start.find(b"Info", 0, 64))
    if counted > 0 and start[counted + 7] & 1:
        return int.from_bytes(start[counted + 8 : counted + 12]) * (576 if older else 1_152) / hz
    return (len(data) - at) / (_MP3_KBITS[older][start[2] >> 4] * 125)


_READERS: Final[tuple[tuple[int, bytes, Callable[[bytes, memoryview], float]], ...]] = (
    (8, b"WAVE", _wav_s), (0, b"fLaC", _flac_s), (0, b"OggS", _ogg_s), (4, b"ftyp", _mp4_s),
)  # fmt: skip
