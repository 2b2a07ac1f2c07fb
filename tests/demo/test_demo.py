import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from paceline.cli.app import app
from paceline.demo.batch import DemoBatch, Half
from paceline.demo.picture import draw, title
from paceline.demo.show import sparkline, table, unfinished, verdict

# One second's worth goes at once, the rest takes two: 600 requests a minute, 10 a second, a burst of 600.
SMALL = {
    "requests": 620, "workers": 60, "requests_per_min": 600, "tokens_per_min": 2_000_000, "latency_s": 0.02, "cut_s": 3.0, "start_s": 0.3,
}  # fmt: skip


def half(title: str = "with paceline", *, refused: int = 0, done: int = 10, stopped: bool = False) -> Half:
    tally = {
        "refused_total": refused, "refused": {"rate": refused}, "admitted": done, "timeline": [[0, done - 2, 0], [3, 2, refused]],
        "speed_vs_ideal": 0.99, "ideal_s": 2.0, "elapsed_s": 2.02,
    }  # fmt: skip
    return Half(title, 10, done=done, spans_s=[1.0] * done, elapsed_s=4.0, over=True, stopped=stopped, tally=tally)


@pytest.mark.long("draws pictures of two runs")
def test_small_demo_runs_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.demo.batch.DemoBatch", partial(DemoBatch, **SMALL))
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "620 of 620" in result.output
    assert ET.parse(tmp_path / "paceline-demo.svg").getroot().tag.endswith("svg")


@pytest.mark.long("starts several processes")
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_interrupt_ends_without_a_traceback(tmp_path: Path) -> None:
    code = (
        "from functools import partial; from paceline.demo import batch; from paceline.cli import main\n"
        f"batch.DemoBatch = partial(batch.DemoBatch, **{SMALL | {'cut_s': 60.0}}); main()"
    )
    command = [sys.executable, "-u", "-c", code, "demo", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()  # it has begun
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())


def test_the_end_says_what_happened() -> None:
    halves = half("SDK alone", refused=7, stopped=True), half()
    assert title(halves) == "The same 10 requests: 7 refusals without paceline, none with it"
    for both in (halves, (Half("a", 5), Half("b", 5))):  # and of two that have sent nothing
        lines = ET.fromstring(draw(both, 2.0)).findall("{*}polyline")
        assert len(lines) == 3 + 2
        assert table(both).row_count == 8
    assert verdict(half()) == []
    assert "refused 3 attempts" in verdict(half(refused=3))[0]
    assert "1 requests of the paced half were not answered" in verdict(half(done=9))[0]
    assert unfinished(half(refused=5, done=8)) == 2


def test_half_counts() -> None:
    one = half(refused=5, done=8)
    assert (one.attempts, one.span_s(0.5)) == (13, 1.0)
    assert one.timeline() == [(6, 0), (0, 0), (0, 0), (2, 5)]
    assert one.speed == 0.99
    assert half(stopped=True).speed == 0.5  # up to the stop: 2 s of work at best in 4 s


def test_batch_is_repeatable_and_mixed() -> None:
    prompts = DemoBatch().prompts()
    assert prompts == DemoBatch().prompts()
    assert len(prompts) == DemoBatch().requests
    words = sorted(len(prompt.split()) for prompt in prompts)
    assert words[0] < 60
    assert words[-1] > 2_000


def test_sparkline() -> None:
    assert sparkline([0, 1, 4, 9], 4, 3) == "▃██"
    assert sparkline([], 4, 3) == ""
