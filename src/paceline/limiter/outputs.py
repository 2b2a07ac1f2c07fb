"""What answers have shown of the output, kept beside the store of the quotas: a new process begins with it."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from paceline.core.results import StoreError
from paceline.estimation.calibration import Calibrations
from paceline.stores.notes import Notes

log = logging.getLogger("paceline")

KEPT_MAX: Final = 1_000
"""Models that are read, the latest first."""

WRITTEN_MAX: Final = 100
"""Models that are written at once: Redis serves no other client meanwhile, and the others follow."""

_Key = tuple[str, str, str]


class KeptOutputs:
    """The outputs of a limiter's recent answers, in notes that other processes and later ones read.

    It is called in the thread of the store, and between its exchanges. Without the notes, nothing is lost but what answers show again.

    Args:
        calibrations: What the answers of the limiter have shown.
        notes: Where they are kept.
    """

    def __init__(self, calibrations: Calibrations, notes: Notes) -> None:
        self._calibrations, self._notes = calibrations, notes
        self._read = False
        self._written: dict[_Key, int] = {}

    def __call__(self) -> None:
        """Read what there is, the first time, and write what is new."""
        try:
            if not self._read:
                self._read = True
                for _, entry in sorted(self._notes.read())[:KEPT_MAX]:
                    self._restore(entry)
            self._write()
        except StoreError as error:
            log.debug("the usual output of answers is not stored: %s", error)

    def _write(self) -> None:
        news = [item for item in self._calibrations.outputs() if self._written.get(item[0]) != item[1].answers]
        notes = {}
        for key, output in news[:WRITTEN_MAX]:
            entry = {"of": key, "outputs": [round(tokens) for tokens in output.recent]}
            notes["/".join(key)] = json.dumps(entry)
        if notes:
            self._notes.write(notes)
        self._written |= {key: output.answers for key, output in news[:WRITTEN_MAX]}

    def _restore(self, entry: bytes) -> None:
        """Take over a note; one of another form is none."""
        try:
            found: Any = json.loads(entry)
            key, outputs = found["of"], found["outputs"]
            provider, model, endpoint = map(str, key)
            calibration = self._calibrations.of(provider, model, endpoint)
            calibration.restore([float(tokens) for tokens in outputs])
        except (ValueError, KeyError, TypeError):
            return
        self._written[provider, model, endpoint] = calibration.output.answers
