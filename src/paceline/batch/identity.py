"""What identifies the rows of an input: a column of theirs, or their number and content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

from paceline.batch.caller import Caller
from paceline.batch.index import Index
from paceline.batch.requests import ID_MAX
from paceline.data.frames import is_missing


class Ids:
    """The ids of rows: what a column has, or their number and content.

    A column that the user has not named may identify some rows alone. The others, which have no value in it or the value of an earlier
    row, are identified by number and content. In a column that the user has named, such a value is an error of its row.
    """

    def __init__(self, key: str | None, *, required: bool, caller: Caller) -> None:
        self._key, self._required, self._caller = key, required, caller
        self._others, self._index = 0, Index()  # the ids of a large table are on disk

    def told(self) -> str:
        """A remark about the rows that are identified in another way, if there are any."""
        if not self._others:
            return ""
        remedy = f"{self._caller.option('key')} names another column"
        return f" ({self._others:,} by number and content, because their {self._key!r} is empty or repeated; {remedy})"

    def __call__(self, number: int, row: Mapping[str, Any]) -> str | int:
        """The id of a row; the same when it is called again."""
        if self._key is None:
            return self._of_content(number, row)
        if self._required or self._key in row:
            value = _id_of(row[self._key])
            if not (wrong := self._wrong(number, value)):
                return cast("str | int", value)
            if self._required:
                raise TypeError(f"{self._key!r}, which identifies the rows, {wrong}")
        self._others += 1
        return self._of_content(number, row)

    def of_refused(self, number: int, row: Mapping[str, Any]) -> str | int:
        """The id of a row that cannot be sent."""
        try:
            return self(number, row)
        except (TypeError, KeyError):
            return self._of_content(number, row)

    def is_of(self, custom_id: str | int | None, number: int, row: Mapping[str, Any]) -> bool:
        """Whether a row has this id."""
        return custom_id in (_id_of(row.get(self._key or "")), self._of_content(number, row))

    def _wrong(self, number: int, value: str | int | None) -> str:
        """What makes a value no id."""
        if value is None:
            return "has no value"
        try:
            text = str(value)
            text.encode()
        except ValueError:  # half a surrogate pair; or too many digits
            return "is no valid text"
        if len(text) > ID_MAX:
            return f"has {len(text):,} characters: it may have {ID_MAX}"
        first = self._index.add(text, number)
        if first not in (None, number):
            return f"is the same as in row {first}: name a column whose values differ with {self._caller.option('key')}"
        return ""

    @staticmethod
    def _of_content(number: int, row: Mapping[str, Any]) -> str:
        """Another row at the same place is another request."""
        try:
            content = json.dumps(row, sort_keys=True, default=str)
        except TypeError:  # an object in it has keys of several types
            content = repr(row)
        return f"row-{number}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"

    def close(self) -> None:
        """Delete the temporary file."""
        self._index.close()


def _id_of(value: Any) -> str | int | None:
    """A value as the id of a row; ``None`` if there is none."""
    if is_blank(value):
        return None
    value = value.item() if getattr(value, "ndim", None) == 0 else value  # a number of numpy
    if isinstance(value, float) and value.is_integer():
        return int(value)  # pandas makes floats of the integers of a column with a missing one
    return value if isinstance(value, str | int) and not isinstance(value, bool) else str(value)


def is_blank(value: Any) -> bool:
    """Whether a value of a table is none, or a text without a character: CSV files have no other way to write none."""
    return is_missing(value) or (isinstance(value, str) and not value.strip())
