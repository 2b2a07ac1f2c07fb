"""What answers have shown of the output outlives the process, beside the store of the quotas."""

import json
import logging

import pytest

from paceline.estimation.calibration import Calibrations
from paceline.limiter.limiter import Limiter
from paceline.limiter.outputs import WRITTEN_MAX, KeptOutputs
from paceline.stores import Prefixed, StoreError, open_store
from paceline.stores.notes import SQLiteNotes, notes_beside
from waits import carried

MODEL = ("anthropic", "claude-opus-5", "messages")
QUOTAS = {"anthropic/*": ["1k requests/min", "90k output_tokens/min"]}


def learn(calibrations, *outputs, model=MODEL):
    for output in outputs:
        calibrations.of(*model).learn(input_estimate=9, input_tokens=9, max_output_tokens=64_000, output_tokens=output)


def serve(limiter, *outputs):
    """Make one exchange with the store for each answer, and learn from it."""
    for output in outputs or (None,):
        with limiter.acquire("anthropic/claude-opus-5", output_tokens=10) as permit:
            permit.settle()
        if output is not None:
            learn(limiter.pacer.calibrations, output)


@pytest.mark.parametrize("prefixed", [False, True])
def test_a_new_process_begins_with_what_the_last_one_knew(store, prefixed):
    def limiter():
        return Limiter(QUOTAS, store=Prefixed(open_store(store), "team") if prefixed else store)

    first = limiter()
    serve(first, *[3_000] * 8)
    first.close()
    second = limiter()
    serve(second)
    assert carried(second.pacer.pools.worker)
    assert second.pacer.calibrations.of(*MODEL).expected_output(64_000) == 3_000
    assert second.pacer.calibrations.of("bedrock", "claude-opus-5-5", "converse").expected_output(None) == 3_000
    second.close()


def test_what_this_process_has_seen_is_not_replaced(tmp_path):
    place = SQLiteNotes(tmp_path / "q.db", "outputs")
    earlier, now = Calibrations(), Calibrations()
    learn(earlier, *[3_000] * 8)
    KeptOutputs(earlier, place)()
    learn(now, *[50] * 8)
    KeptOutputs(now, place)()
    assert now.of(*MODEL).expected_output(64_000) == 50


def test_only_news_is_written_and_not_all_at_once(tmp_path):
    class Counted(SQLiteNotes):
        written = 0

        def write(self, notes):
            self.written += len(notes)
            super().write(notes)

    place, calibrations = Counted(tmp_path / "q.db", "outputs"), Calibrations()
    kept = KeptOutputs(calibrations, place)
    for number in range(WRITTEN_MAX + 5):
        learn(calibrations, 10, model=("openai", f"model-{number}", "chat"))
    kept()
    assert place.written == WRITTEN_MAX
    kept()
    assert place.written == WRITTEN_MAX + 5
    kept()
    assert place.written == WRITTEN_MAX + 5
    again = Counted(tmp_path / "q.db", "outputs")
    KeptOutputs(Calibrations(), again)()
    assert again.written == 0


@pytest.mark.parametrize(
    "entry",
    [
        "", "no JSON", "[]", "null", "{}", '{"of": 1, "outputs": []}', '{"of": ["a"], "outputs": [1]}',
        '{"of": ["a", "b", "c"], "outputs": ["x"]}', '{"of": ["a", "b", "c"], "outputs": null}',
        '{"of": ["a", "b", "c"], "outputs": [NaN, -5, Infinity]}',
    ],
)  # fmt: skip
def test_a_note_of_another_form_is_none(tmp_path, entry):
    place, calibrations = SQLiteNotes(tmp_path / "q.db", "outputs"), Calibrations()
    place.write({"one": entry, "two": json.dumps({"of": MODEL, "outputs": [700] * 8})})
    KeptOutputs(calibrations, place)()
    assert calibrations.of(*MODEL).expected_output(64_000) == 700
    assert calibrations.of("a", "b", "c").expected_output(None) in (512, 700)


def test_notes_that_cannot_be_used_stop_nothing(tmp_path, caplog):
    class Broken(SQLiteNotes):
        def read(self):
            raise StoreError("the disk is gone")

    calibrations = Calibrations()
    learn(calibrations, 700)
    with caplog.at_level(logging.DEBUG):
        KeptOutputs(calibrations, Broken(tmp_path / "q.db", "outputs"))()
    assert "the disk is gone" in caplog.text
    (tmp_path / "r.db.outputs").write_bytes(b"no database" * 100)
    limiter = Limiter(QUOTAS, store=f"sqlite:{tmp_path / 'r.db'}")
    serve(limiter, 10, 20)
    limiter.close()
    assert limiter.pacer.calibrations.of(*MODEL).output.answers == 2


def test_a_store_in_no_place_of_its_own_keeps_nothing():
    from memory_store import MemoryStore

    assert notes_beside(MemoryStore(), "outputs") is None
    assert notes_beside(Prefixed(MemoryStore(), "a"), "outputs") is None
    limiter = Limiter(QUOTAS, store=MemoryStore())
    serve(limiter, 10)
    limiter.close()
