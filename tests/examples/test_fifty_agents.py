"""Fifty agents under seven starts a minute, by the example's file: in virtual time but for the last."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

import pytest
from example_programs import EXAMPLES, load

from paceline.testing import run_virtual

EXAMPLE = EXAMPLES / "fifty_agents"
[example] = load("fifty_agents")

FIFTY = [f"agent_{number:02}" for number in range(50)]


def gemini(*names):
    return [(name, "gemini", "gemini-3.8-flash") for name in names]


def start_all(*agents, mode=None, later=None, **options):
    """When each agent started, in seconds since all called; some call ``later``, by name."""

    async def main(clock):
        limiter, start_ns = example.limiter_of(mode=mode, clock=clock, **options), clock.now_ns()

        async def start(agent, at_s):
            await asyncio.sleep(at_s)
            await example.start(limiter, *agent)
            return agent[0], round((clock.now_ns() - start_ns) / 1e9, 6)

        return dict(await asyncio.gather(*(start(agent, (later or {}).get(agent[0], 0.0)) for agent in agents)))

    return run_virtual(main)


class TestAllFiftyStartInAboutSevenMinutes:
    def test_window_seven_each_minute(self):
        at_s = start_all(*gemini(*FIFTY))
        assert list(at_s.values()) == [k // 7 * 60 for k in range(50)]

    def test_even_seven_at_once_then_one_each_60_7_s(self):
        at_s = start_all(*gemini(*FIFTY), mode="even")
        assert list(at_s.values()) == pytest.approx([max(0, k - 6) * 60 / 7 for k in range(50)], abs=1e-3)
        assert max(at_s.values()) == pytest.approx(368.571, abs=1e-3)


class TestPerBackend:
    def test_a_backend_without_a_limit_starts_at_once_while_another_waits(self):
        helpers = [(f"helper_{number}", "openai", "gpt-6-luna") for number in range(100)]
        at_s = start_all(*gemini(*FIFTY), *helpers, later={"helper_99": 100.0})
        assert {at_s[name] for name, *_ in helpers[:99]} == {0.0}
        assert at_s["helper_99"] == 100.0
        assert at_s["agent_49"] == 420

    def test_a_model_s_own_limit_holds_in_place_of_its_backend_s(self):
        pro = [(f"pro{number}", "gemini", "gemini-3.5-flash-lite") for number in range(6)]
        at_s = start_all(*pro, *gemini(*FIFTY[:8]))
        assert [at_s[name] for name, *_ in pro] == [0, 0, 60, 60, 120, 120]
        assert [at_s[name] for name in FIFTY[:8]] == [0] * 7 + [60]


def test_every_wait_is_logged_before_it_with_the_count_the_window_the_wait_and_the_name(caplog):
    caplog.set_level(logging.INFO, "paceline.rate_limit")
    at_s = start_all(*gemini(*FIFTY), ("helper", "openai", "gpt-6-luna"))
    lines = [record.getMessage() for record in caplog.records if record.event == "rate_limit.wait"]
    assert len(lines) == 43
    for name, line in zip(FIFTY[7:], lines, strict=True):
        assert line == f"Rate limit: waiting {at_s[name]:.1f} s for starts/min of starts/gemini (7 of 7 used), {name}"
    record = caplog.records[0]
    assert (record.caller, record.used, record.limit, record.ahead, record.expected_wait_s) == ("agent_07", 7, 7, 0, 60)


@pytest.mark.parametrize(
    ("mode", "refused"),
    [("window", 0), ("off", 43)],
)
@pytest.mark.long("two minutes thirty times as fast")
def test_the_whole_program_thirty_times_as_fast(mode, refused):
    """Over HTTP: the other backend at once, and no call refused."""
    command = [sys.executable, str(EXAMPLE / "run.py"), "--speed", "30", "--mode", mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (1 if refused else 0), done.stdout + done.stderr
    assert f"the API admitted {60 - refused} requests and refused {refused}" in done.stdout


def test_the_page_installs_what_is_tested():
    tested = (EXAMPLE.parents[1] / "tests" / "frameworks" / "massgen" / "requirements.txt").read_text()
    pins = [line for line in tested.splitlines() if "==" in line and not line.startswith("pytest")]
    assert [line for line in (EXAMPLE / "requirements.txt").read_text().splitlines() if "==" in line] == pins
