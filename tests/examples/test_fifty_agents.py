"""Fifty agents under seven starts a minute: every promise of the example, in virtual time but for the last."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import httpx2
import pytest

import paceline
from paceline.testing import run_virtual

EXAMPLE = Path(__file__).parents[2] / "examples" / "fifty_agents"
sys.path.insert(0, str(EXAMPLE))
starts_file, starts_module = import_module("starts_file"), import_module("starts")
sys.path.remove(str(EXAMPLE))
StartsFile, Starts = starts_file.StartsFile, starts_module.Starts

GEMINI = {"gemini": {"max_starts": 7, "time_window": 60}}
FIFTY = [f"agent_{number:02}" for number in range(50)]


def settings(backends=None, **more):
    return StartsFile.of({"backends": backends or GEMINI, **more})


def start_all(file, *agents, after_s=()):
    """When each agent started, in seconds since all called; ``(name, backend[, model])`` each, some called later."""

    async def main(clock):
        starts, start_s = Starts(file, clock=clock), clock.now_ns() / 1e9

        async def start(agent, at_s):
            await asyncio.sleep(at_s)
            started = await starts.wait(*agent)
            return started.agent, round(started.at_s - start_s, 6)

        later = dict(after_s)
        return dict(await asyncio.gather(*(start(agent, later.get(agent[0], 0.0)) for agent in agents)))

    return run_virtual(main)


def gemini(*names):
    return [(name, "gemini") for name in names]


class TestAllFiftyStartInAboutSevenMinutes:
    """None early, none lost."""

    def test_even_seven_at_once_then_one_each_60_7_s(self):
        at_s = start_all(settings(), *gemini(*FIFTY))
        assert list(at_s.values()) == pytest.approx([max(0, k - 6) * 60 / 7 for k in range(50)], abs=1e-3)
        assert max(at_s.values()) == pytest.approx(368.571, abs=1e-3)

    def test_window_seven_each_minute(self):
        at_s = start_all(settings({"gemini": {**GEMINI["gemini"], "mode": "window"}}), *gemini(*FIFTY))
        assert list(at_s.values()) == pytest.approx([k // 7 * 60 for k in range(50)], abs=1e-3)

    @pytest.mark.parametrize(("mode", "most"), [("even", 13), ("window", 7)])
    def test_never_more_in_any_minute(self, mode, most):
        """A full burst and a minute's refill in mode even, the number itself in mode window; both are reached."""
        file = settings({"gemini": {**GEMINI["gemini"], "mode": mode}})
        late = {name: number * 3.7 for number, name in enumerate(FIFTY[20:])}
        at_s = sorted(start_all(file, *gemini(*FIFTY), after_s=late.items()).values())
        assert max(sum(first <= other < first + 59.999 for other in at_s) for first in at_s) == most

    @pytest.mark.parametrize("mode", ["even", "window"])
    def test_who_gives_up_while_waiting_costs_nobody_a_start(self, mode):
        async def main(clock):
            starts = Starts(settings({"gemini": {**GEMINI["gemini"], "mode": mode}}), clock=clock)
            start_s, waiting = (
                clock.now_ns() / 1e9,
                [asyncio.ensure_future(starts.wait(*agent)) for agent in gemini(*FIFTY)],
            )
            await asyncio.sleep(1)
            for task in waiting[7:40]:
                task.cancel()
            started = await asyncio.gather(*waiting, return_exceptions=True)
            at_s = [one.at_s - start_s for one in started if not isinstance(one, BaseException)]
            assert starts.status()["pools"]["starts/gemini"]["queue"] == []
            return at_s

        at_s = run_virtual(main)
        assert len(at_s) == 17
        assert max(at_s) == pytest.approx({"even": 10 * 60 / 7, "window": 120}[mode], abs=1e-3)


class TestPerBackend:
    def test_first_come_first_served(self):
        names = [f"agent_{number * 7 % 50:02}" for number in range(50)]
        at_s = start_all(settings(), *gemini(*names))
        assert sorted(at_s, key=lambda name: (at_s[name], names.index(name))) == names

    def test_a_backend_without_a_limit_starts_at_once_while_another_waits(self):
        helpers = [(f"helper_{number}", "openai") for number in range(100)]
        at_s = start_all(settings(), *gemini(*FIFTY), *helpers, after_s=[("helper_99", 100.0)])
        assert {at_s[name] for name, _ in helpers[:99]} == {0.0}
        assert at_s["helper_99"] == 100.0
        assert at_s["agent_49"] > 360

    def test_backends_have_limits_of_their_own(self):
        file = settings({**GEMINI, "claude": {"max_starts": 2, "time_window": 10}})
        at_s = start_all(file, *gemini(*FIFTY), *[(f"c{number}", "claude") for number in range(4)])
        assert [at_s[f"c{number}"] for number in range(4)] == pytest.approx([0, 0, 5, 10], abs=1e-3)
        assert at_s["agent_49"] == pytest.approx(368.571, abs=1e-3)


class TestSettings:
    def test_a_model_s_own_limit_holds_in_place_of_its_backend_s(self):
        pro = {"max_starts": 1, "time_window": 30, "mode": "window"}
        file = settings({"gemini": {**GEMINI["gemini"], "models": {"pro": pro}}})
        agents = [(f"{model}{number}", "gemini", model) for model in ("pro", "flash") for number in range(8)]
        at_s = start_all(file, *agents)
        assert [at_s[f"pro{number}"] for number in range(8)] == pytest.approx([k * 30 for k in range(8)], abs=1e-3)
        assert [at_s[f"flash{number}"] for number in range(8)] == pytest.approx([0] * 7 + [60 / 7], abs=1e-3)

    def test_a_model_may_have_a_limit_where_its_backend_has_none(self):
        file = settings({"gemini": {"models": {"pro": {"max_starts": 1, "time_window": 30}}}})
        at_s = start_all(file, ("a", "gemini", "pro"), ("b", "gemini", "pro"), ("c", "gemini", "flash"))
        assert at_s == pytest.approx({"a": 0, "b": 30, "c": 0}, abs=1e-3)

    @pytest.mark.parametrize("values", [{}, {"backends": {}}, {"backends": {"gemini": False}}, None])
    def test_removed_everybody_starts_at_once(self, values):
        assert set(start_all(StartsFile.of(values), *gemini(*FIFTY)).values()) == {0.0}

    def test_some_agents_go_first(self):
        file = settings(priorities={"coordinator*": 10, "reviewer_1": 5})
        names = [*FIFTY[:20], "reviewer_1", "coordinator_a", "coordinator_b"]
        at_s = start_all(file, *gemini(*names), after_s=[("coordinator_b", 10.0)])
        order = sorted(at_s, key=lambda name: (at_s[name], names.index(name)))
        assert order[7:11] == ["coordinator_a", "coordinator_b", "reviewer_1", "agent_07"]

    @pytest.mark.parametrize(("burst", "at_s"), [(1, [0, 60 / 7, 120 / 7]), (2, [0, 0, 60 / 7])])
    def test_a_burst_of_its_own(self, burst, at_s):
        file = settings({"gemini": {**GEMINI["gemini"], "burst": burst}})
        assert list(start_all(file, *gemini("a", "b", "c")).values()) == pytest.approx(at_s, abs=1e-3)

    def test_evenly_and_without_a_burst_no_minute_has_more_than_seven(self):
        at_s = list(start_all(settings({"gemini": {**GEMINI["gemini"], "burst": 1}}), *gemini(*FIFTY)).values())
        assert max(sum(first <= other < first + 59.999 for other in at_s) for first in at_s) == 7

    def test_the_file_that_comes_with_it(self):
        file = StartsFile.load(EXAMPLE / "starts.yaml", speed=60, mode="window")
        assert str(file.limits["starts/gemini"]) == "7 in 1 s"
        assert file.limits["starts/gemini"].mode == "window"
        assert file.pool("gemini", "gemini-2.5-pro") == "starts/gemini/gemini-2.5-pro"
        assert file.pool("openai", "gpt-5") is None
        assert (file.priority("coordinator"), file.priority("agent_01")) == (10, 0)

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ([], r"starts is \[\]: write names"),
            ({"backend": {}}, "no such setting: 'backend'; did you mean 'backends'"),
            ({"backends": {"gemini": 7}}, "backends.gemini is 7"),
            ({"backends": {"gemini": {"max_start": 7}}}, "did you mean 'max_starts'"),
            ({"backends": {"gemini": {"max_starts": 0, "time_window": 60}}}, "max_starts is 0: .* above 0"),
            ({"backends": {"gemini": {"max_starts": True, "time_window": 60}}}, "max_starts is True"),
            ({"backends": {"gemini": {"max_starts": 7}}}, "time_window is None: it must be seconds above 0"),
            (
                {"backends": {"gemini": {"max_starts": 7, "time_window": 60, "mode": "odd"}}},
                "it must be even or window",
            ),
            (
                {"backends": {"gemini": {"max_starts": 7, "time_window": 60, "burst": 8}}},
                "burst is 8: .* to max_starts",
            ),
            (
                {"backends": {"gemini": {"models": {"pro": {"max_starts": -1}}}}},
                "backends.gemini.models.pro.max_starts",
            ),
            ({"priorities": {"a": "high"}}, "priorities.a is 'high': it must be a whole number"),
        ],
    )
    def test_what_cannot_be_meant_is_said(self, values, said):
        with pytest.raises(starts_file.StartsError, match=said):
            StartsFile.of(values)

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path):
        with pytest.raises(starts_file.StartsError, match=r"none\.yaml"):
            StartsFile.load(tmp_path / "none.yaml")
        (tmp_path / "bad.yaml").write_text("backends: [")
        with pytest.raises(starts_file.StartsError, match=r"bad\.yaml"):
            StartsFile.load(tmp_path / "bad.yaml")


class TestLog:
    @pytest.mark.parametrize(
        ("mode", "waits"), [("even", ["8.6", "17.1", "25.7"]), ("window", ["60.0", "60.0", "60.0"])]
    )
    def test_every_wait_and_every_start(self, caplog, mode, waits):
        """A wait with the count, the window, the wait and the agent's name."""
        caplog.set_level(logging.INFO, "starts")
        file = settings({"gemini": {**GEMINI["gemini"], "mode": mode}})
        start_all(file, *gemini(*FIFTY[:10]), ("helper", "openai"))
        lines = [record.getMessage() for record in caplog.records]
        assert [line for line in lines if " waits " in line] == [
            f"agent_0{7 + k} waits {waits[k]} s: 7 of 7 in 60 s have started, {k} go before" for k in range(3)
        ]
        assert lines[:7] == [f"agent_0{k} (gemini) starts after 0.0 s: {k + 1} of 7 in 60 s" for k in range(7)]
        assert "helper (openai) starts at once: there is no limit" in lines
        later = [line for line in lines if line.startswith(("agent_07", "agent_08", "agent_09")) and " starts " in line]
        assert [line.split(" after ")[1].split(" s")[0] for line in later] == waits

    def test_the_wait_that_is_said_is_the_wait_that_is(self, caplog):
        caplog.set_level(logging.INFO, "starts")
        for mode in ("even", "window"):
            caplog.clear()
            start_all(settings({"gemini": {**GEMINI["gemini"], "mode": mode}}), *gemini(*FIFTY))
            said, done = {}, {}
            for line in (record.getMessage() for record in caplog.records):
                words = line.split()
                if words[1] == "waits":
                    said[words[0]] = words[2]
                else:
                    done[words[0]] = words[4]
            assert len(said) == 43
            assert said == {name: done[name] for name in said}


class TestStatusPage:
    @pytest.mark.parametrize("mode", ["even", "window"])
    def test_it_shows_the_queue(self, mode):
        async def main(clock):
            file = settings({"gemini": {**GEMINI["gemini"], "mode": mode}}, priorities={"coordinator": 1})
            starts = Starts(file, clock=clock)
            waiting = [asyncio.ensure_future(starts.wait(*agent)) for agent in gemini(*FIFTY[:10], "coordinator")]
            await asyncio.sleep(1)
            page = httpx2.AsyncClient(
                transport=httpx2.ASGITransport(paceline.status_app(starts)), base_url="http://page"
            )
            async with page:
                pool = (await page.get("/status/starts/gemini")).json()
                unknown = await page.get("/status/starts/openai")
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            return pool, unknown.status_code

        pool, unknown = run_virtual(main)
        assert [row["name"] for row in pool["queue"]] == ["coordinator", "agent_07", "agent_08", "agent_09"]
        assert [row["waited_s"] for row in pool["queue"]] == [1.0] * 4
        waits = {"even": [7.6, 16.1, 24.7, 33.3], "window": [59.0] * 4}[mode]
        assert [row["expected_wait_s"] for row in pool["queue"]] == pytest.approx(waits, abs=0.05)
        assert pool["lanes"] == {"priority 1": 1, "priority 0": 3}
        assert (pool["waiting"], unknown) == (4, 404)


def test_the_whole_program_thirty_times_as_fast():
    """Over HTTP: both modes, the other backend at once, and no call refused."""
    command = [sys.executable, str(EXAMPLE / "run.py"), "--speed", "30", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for mode in ("even", "window"):
        lines = [line for line in done.stdout.splitlines() if f"run    {mode}:" in line]
        assert "50 gemini agents started" in lines[0]
        assert "60 calls answered, 0 failed" in lines[0]
        assert "admitted 60 requests and refused 0" in lines[1]
