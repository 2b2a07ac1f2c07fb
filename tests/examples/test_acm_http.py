"""The evaluation program over HTTP: five SDKs, and an emulated provider for each."""

from __future__ import annotations

import sys

from example_programs import load

program, clients = load("acm", "clients")


async def test_the_whole_program(capsys):
    """Every component and every provider: nothing refused, and never more in flight than the file says."""
    options = program.parse(["--documents", "12", "--speed", "4"])
    outcome = await program.run(options)
    assert outcome.evaluation.failed == []
    assert outcome.evaluation.answered == 120
    assert set(outcome.tallies) == set(clients.PROVIDERS)
    most = {"openai": 10, "anthropic": 5, "google": 10, "azure": 10, "groq": 5}
    for provider, tally in outcome.tallies.items():
        assert tally["refused_total"] == 0
        assert 2 <= tally["in_flight_peak"] <= most[provider]
    said = capsys.readouterr().out
    assert said.startswith("120 calls: about ")
    assert "azure/gpt-6-astra: 140 requests/10s (the file does not say so)" in said


def test_a_restart_of_the_program_knows_the_day(tmp_path, capsys, monkeypatch):
    words = ["run.py", "--documents", "4", "--speed", "10", "--state", str(tmp_path / "acm.db")]
    monkeypatch.setattr(sys, "argv", words)
    assert program.main() == 0
    said = capsys.readouterr().out
    assert "used today" not in said
    assert "google saw 16 requests, refused 0, at most " in said
    assert "took " in said.splitlines()[-1]
    assert program.main() == 0
    said = capsys.readouterr().out
    assert "used today: gemini/gemini-3.8-flash: 1" in said  # 16 requests, less what has come back
    assert "used today: groq/openai/gpt-oss-120b: " in said
