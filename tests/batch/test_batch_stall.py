"""A run whose network holds everything for a time."""

from urllib.parse import urlsplit

import pytest
from batch_helpers import chat, finish, read_answers, write_lines
from stalling import stalling_proxy

from paceline.emulator import Emulator


@pytest.mark.soak
def test_few_are_refused_when_a_network_that_held_everything_delivers_at_once(tmp_path, command):
    """Without the probe, 4 s of requests come at once, to a provider that holds one second's worth: 120 refusals."""
    limit = "2400 requests/min"
    requests, answers = write_lines(tmp_path / "r.jsonl", [chat(str(n)) for n in range(500)]), tmp_path / "a.jsonl"
    with (
        Emulator(limits={"*": limit}, rule="quantised", quantum_s=1.0, latency_s=0.02) as emulator,
        stalling_proxy(urlsplit(emulator.base_url).port, after_s=6, for_s=4) as port,
    ):
        run = command(requests, "-o", answers, base_url=f"http://127.0.0.1:{port}", limit=limit)
        _, said = finish(run, 0)
        refused = emulator.tally()["refused_total"]
    assert "sending one request every 2 s until an answer comes" in said
    assert len(read_answers(answers)) == 500
    assert refused <= 70, refused
